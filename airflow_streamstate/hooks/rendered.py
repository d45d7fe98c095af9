"""Parses rendered template fields: native rendering gives objects, plain rendering gives text.

Every parser raises InvalidRequestError, with the field's name, for a value that it cannot parse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.options import plain_options
from airflow_streamstate.protocol.alerts import alert_values
from airflow_streamstate.protocol.codec import parse_time
from airflow_streamstate.protocol.terms.version import LauncherChoice

T = TypeVar("T")
_NATIVE = "Give the DAG render_template_as_native_obj=True, or write the field as JSON."


def optional_text(value: object) -> str | None:
    """A text that may be missing: native rendering gives None, plain rendering ``None`` or an empty text."""
    text = str(value).strip() if value is not None else ""
    return None if text in ("", "None") else text


def optional_path(value: object) -> Path | None:
    """A path that may be missing, as ``optional_text``."""
    text = optional_text(value)
    return None if text is None else Path(text)


def texts(value: object, field: str) -> tuple[str, ...]:
    """A list of texts, or one as JSON."""
    found = _parsed(value, field, "[") if isinstance(value, str) else value
    if found is None:
        return ()
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise InvalidRequestError("this field is no list", field=field, next_step=_NATIVE)
    return tuple(str(item) for item in found)


def text_mapping(value: object, field: str) -> dict[str, str]:
    """A mapping of texts, or one as JSON; an error shows no value, which may be a secret."""
    found = _mapping(value, field) or {}
    return {str(name): _as_spark_writes_it(item) for name, item in found.items()}


def restart_policy(value: object, field: str) -> dict[str, Any]:
    """Values of a restart policy by name, or JSON of them; the request refuses what it does not know."""
    found: dict[str, Any] = dict(text_mapping(value, field))
    for name, text in found.items():
        if name == "restore_lost_checkpoint":
            found[name] = yes_or_no(text, f"{field}.{name}")
        elif name == "max_restarts":
            found[name] = whole_number(text, f"{field}.{name}")
        elif name.endswith(("_seconds", "_factor")):
            found[name] = optional_factor(text, f"{field}.{name}")
    return found


def alert_rules(value: object, field: str) -> dict[str, Any]:
    """Values of alert rules by name, or JSON of them; the request refuses what it does not know."""
    found = _mapping(value, field) or {}
    return alert_values({str(name): one for name, one in found.items()})


def retention(value: object, field: str) -> dict[str, Any] | None:
    """All values of a retention by name, or JSON of them; None for none given. The request refuses what it does not
    know."""
    found = _mapping(value, field)
    if found is None:
        return None
    parsers = {"keep": optional_whole_number, "older_than_seconds": optional_factor, "at_mirrors": yes_or_no}
    given = {str(name): one for name, one in found.items()}
    return {name: parsers[name](one, f"{field}.{name}") if name in parsers else one for name, one in given.items()}


def launcher_choice(name: object, options: object, conn_id: object, pod_template: object) -> LauncherChoice | None:
    """The launcher of the four fields; None for none. ``local`` by name is one, too: a stream moves back to it."""
    found = _mapping(options, "launcher_options") or {}
    # An option that renders to nothing was not given.
    given = {key: value for key, value in found.items() if value is not None and value != "None"}
    if pod_template is not None and str(pod_template).strip() not in ("", "None", "{}"):
        given["pod_template"] = pod_template
    chosen = LauncherChoice(optional_text(name) or "", plain_options(given), optional_text(conn_id) or "")
    return None if chosen == LauncherChoice("") else chosen


def yes_or_no(value: object, field: str) -> bool:
    """A boolean, or ``true`` or ``false`` as text."""
    text = str(value).strip().lower()
    if text not in ("true", "false", "none", ""):
        raise InvalidRequestError("this field is neither true nor false", field=field, value=text[:60])
    return text == "true"


def as_seconds(value: object, field: str) -> float:
    """A number of seconds, at most a year."""
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 31_536_000:
        raise InvalidRequestError(
            "this is not a number of seconds",
            field=field,
            value=str(value)[:60],
            next_step="Use 1 to 31536000 seconds.",
        )
    return seconds


def as_moment(value: object, field: str) -> datetime | None:
    """A time with a time zone, or one as RFC 3339 text; None if it is missing."""
    text = optional_text(value)
    if text is None:
        return None
    try:
        return parse_time(text)
    except ValueError:
        raise InvalidRequestError(
            "this field is no time with a time zone",
            field=field,
            value=text[:60],
            next_step="Use one as 2026-03-01T10:05:00Z.",
        ) from None


def optional_seconds(value: object, field: str) -> float | None:
    """A number of seconds that may be missing."""
    return None if optional_text(value) is None else as_seconds(value, field)


def optional_factor(value: object, field: str) -> float | None:
    """A number that may be missing."""
    if optional_text(value) is None:
        return None
    try:
        return float(str(value))
    except ValueError:
        raise InvalidRequestError("this field is no number", field=field, value=str(value)[:60]) from None


def texts_by_name(value: object, field: str) -> dict[str, tuple[str, ...]]:
    """Lists of texts by name, or JSON of them."""
    found = _mapping(value, field) or {}
    return {str(name): texts(lines, field) for name, lines in found.items()}


def whole_number(value: object, field: str) -> int:
    """A whole number, or one as text."""
    try:
        return int(str(value))
    except ValueError:
        raise InvalidRequestError("this field is no whole number", field=field, value=str(value)[:60]) from None


def optional_whole_number(value: object, field: str) -> int | None:
    """A whole number that may be missing."""
    return None if optional_text(value) is None else whole_number(value, field)


def one_of(value: Any, allowed: Sequence[T], field: str) -> T:
    """One of the allowed values."""
    if value not in allowed:
        known = ", ".join("nothing" if item is None else str(item) for item in allowed)
        raise InvalidRequestError(
            "this field has a value that is not known", field=field, value=str(value)[:60], next_step=f"Use {known}."
        )
    return allowed[allowed.index(value)]


def _mapping(value: object, field: str) -> Mapping[Any, Any] | None:
    """A mapping, or one as JSON; None for none given."""
    found = _parsed(value, field, "{") if isinstance(value, str) else value
    if found is None or isinstance(found, Mapping):
        return found
    raise InvalidRequestError("this field is no mapping", field=field, next_step=_NATIVE)


def _parsed(text: str, field: str, opening: str) -> object:
    if text.strip() in ("", "None"):
        return None
    try:
        return json.loads(text) if text.lstrip().startswith(opening) else text
    except ValueError:
        raise InvalidRequestError("this field is no JSON", field=field, next_step=_NATIVE) from None


def _as_spark_writes_it(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
