"""A launcher's options as they are given: names that exist, values in one form from the shell and from Airflow."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping

from airflow_streamstate.errors import InvalidRequestError


def plain_options(given: Mapping[str, object]) -> dict[str, object]:
    """The options in the form of a command line: texts, and the lists and objects that are written as JSON.

    A DAG's number or boolean is the text that a shell would give, so that both ask for the same.
    """
    return {str(name): _plain(value) for name, value in given.items()}


def option_text(value: object) -> object:
    """A number or a boolean as text; anything else as it is."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    return value


def read_options(launcher: str, given: Mapping[str, object], known: Iterable[str]) -> dict[str, object]:
    """The options as ``plain_options``, all of which this launcher has.

    Raises:
        InvalidRequestError: it lacks one; the next step names the nearest.
    """
    names = list(known)
    for name in given:
        if name in names:
            continue
        near = difflib.get_close_matches(name, names, 1)
        raise InvalidRequestError(
            "this launcher has no such option",
            launcher=launcher,
            option=name,
            known=", ".join(names),
            next_step=f"Did you mean {near[0]}?" if near else "Use one of the known ones.",
        )
    return plain_options(given)


def _plain(value: object) -> object:
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return option_text(value)
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value  # the launcher says what is wrong with a text that is no JSON
