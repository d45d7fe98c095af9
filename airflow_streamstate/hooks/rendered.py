"""Parses rendered template fields, and writes texts of streams as Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.interface import plain_options
from airflow_streamstate.protocol.codec import parse_time
from airflow_streamstate.protocol.terms.declaration import Kind, Term, terms_of
from airflow_streamstate.protocol.terms.version import LauncherChoice

T = TypeVar("T")
_NATIVE = "Give the DAG render_template_as_native_obj=True, or write the field as JSON."


def optional_text(value: object) -> str | None:
    """A text that may be missing: native rendering gives None, plain rendering ``None`` or an empty text."""
    text = str(value).strip() if value is not None else ""
    return None if text in ("", "None") else text


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


def is_given(value: object) -> bool:
    """Whether a field was given at all: native rendering gives None, plain rendering ``None`` or an empty text."""
    return value is not None and (not isinstance(value, str) or optional_text(value) is not None)


def term_value(one: Term, value: object, field: str) -> Any:
    """The value of a term, by its kind; its bounds are checked by its class."""
    return _PARSERS[one.kind](one, value, field)


def values_by_name(cls: type, value: object, field: str) -> dict[str, Any]:
    """Values of terms of a class by name, or JSON of them; a name that it does not have stays, to be refused by it."""
    known = {one.name: one for one in terms_of(cls)}
    found = {str(name): given for name, given in (_mapping(value, field) or {}).items()}
    return {
        name: _value_by_name(known[name], given, f"{field}.{name}") if name in known else given
        for name, given in found.items()
        if given is not None or name not in known or known[name].is_optional  # a value that renders to nothing
    }


def _value_by_name(one: Term, value: object, field: str) -> Any:
    """As ``term_value``; ``none`` is None if that is a value, and a list may be a text with commas."""
    if one.is_optional and str(value).strip().lower() in ("", "none"):
        return None
    if one.kind == "texts" and isinstance(value, str) and not value.lstrip().startswith("["):
        return tuple(filter(None, map(str.strip, value.split(","))))
    return term_value(one, value, field)


def launcher_choice(name: object, options: object, conn_id: object, pod_template: object) -> LauncherChoice | None:
    """The launcher of the four fields; None if not set. ``local`` by name is one, too: a stream moves back to it."""
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


def number(value: object, field: str) -> float:
    """A number, or one as text."""
    try:
        return float(str(value))
    except ValueError:
        raise InvalidRequestError(
            "this field is no number", field=field, value=str(value)[:60], next_step="Give it a number."
        ) from None


def texts_by_name(value: object, field: str) -> dict[str, tuple[str, ...]]:
    """Lists of texts by name, or JSON of them."""
    found = _mapping(value, field) or {}
    return {str(name): texts(_lines(lines, field), field) for name, lines in found.items()}


def _lines(given: object, field: str) -> list[str]:
    """Texts as they are, objects as JSON."""
    found = _parsed(given, field, "[") if isinstance(given, str) else given
    if not isinstance(found, Sequence) or isinstance(found, str) or not found:
        raise InvalidRequestError("this field has no list for a name", field=field, next_step=_NATIVE)
    return [one if isinstance(one, str) else json.dumps(one, separators=(",", ":")) for one in found]


def whole_number(value: object, field: str) -> int:
    """A whole number, or one as text."""
    try:
        return int(str(value))
    except ValueError:
        raise InvalidRequestError(
            "this field is no whole number", field=field, value=str(value)[:60], next_step="Give it a whole number."
        ) from None


def one_of(value: Any, allowed: Sequence[T], field: str) -> T:
    """One of the allowed values."""
    if value not in allowed:
        known = ", ".join("nothing" if item is None else str(item) for item in allowed)
        raise InvalidRequestError(
            "this field has a value that is not known", field=field, value=str(value)[:60], next_step=f"Use {known}."
        )
    return allowed[allowed.index(value)]


def _mapping(value: object, field: str) -> Mapping[Any, Any] | None:
    """A mapping, or one as JSON; None if not given."""
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


def _part(one: Term, value: object, field: str) -> Any:
    is_whole = one.declared.part is None and isinstance(value, one.part)
    return value if is_whole else values_by_name(one.part, value, field)


_PARSERS: Mapping[Kind, Callable[[Term, Any, str], Any]] = {
    "flag": lambda _one, value, field: yes_or_no(value, field),
    "choice": lambda one, value, field: one_of(str(value).strip(), one.choices, field),
    "seconds": lambda _one, value, field: number(value, field),
    "number": lambda _one, value, field: number(value, field),
    "whole": lambda _one, value, field: whole_number(value, field),
    "text": lambda _one, value, _field: str(value).strip(),
    "texts": lambda _one, value, field: texts(value, field),
    "command": lambda _one, value, field: texts(value, field),
    "mapping": lambda _one, value, field: text_mapping(value, field),
    "lists": lambda _one, value, field: texts_by_name(value, field),
    "moment": lambda _one, value, field: as_moment(value, field),
    "path": lambda _one, value, _field: Path(str(value).strip()),
    "paths": lambda _one, value, field: tuple(map(Path, texts(value, field))),
    "part": _part,
}


# Text of streams in Markdown, e.g. in the form by which a person approves a plan.

_MARKUP = re.compile(r"[\\`*_\[\]()<>!|~&#]")
_LINKED = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)|(?=@)", re.IGNORECASE)
_NO_WIDTH = "\u200b"


def plain_markdown(text: object) -> str:
    """Text within a line that Markdown shows as it is, also in a table: no link, no picture, no element, no code.

    Interfaces make links of bare addresses, too, after they have read the Markdown. So an address is broken by a
    character without width.
    """
    line = " ".join(str(text).split())
    return _MARKUP.sub(lambda found: f"\\{found[0]}", _LINKED.sub(_NO_WIDTH, line))
