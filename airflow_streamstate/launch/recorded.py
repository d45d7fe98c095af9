"""What a launcher may take from a recorded handle: the ids of the run, by their pattern. All else is only compared.

Whoever can write into a home can write such a record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_streamstate.errors import UntrustedRecordError
from airflow_streamstate.launch.interface import LaunchHandle, LaunchPlace

_MOST_SHOWN = 200
_WARNING = "It can be forged: nothing was done by it."


def check_launch(place: LaunchPlace, recorded: LaunchHandle) -> None:
    """Raise UntrustedRecordError where the record is of another launcher, or of another launch."""
    for name in ("launcher", "launch_key"):
        if getattr(recorded, name) != getattr(place, name):
            raise untrusted(place, name, getattr(recorded, name), getattr(place, name))


def check_same(place: LaunchPlace, recorded: LaunchHandle, expected: Mapping[str, object]) -> None:
    """Raise UntrustedRecordError where a record says something else than ``expected``; it may lack names."""
    for name, value in expected.items():
        if name in recorded.data and recorded.data[name] != value:
            raise untrusted(place, name, recorded.data[name], value)


def check_options(place: LaunchPlace, recorded: LaunchHandle, expected: Mapping[str, object]) -> None:
    """As ``check_same``, of the options that a record has; one that it lacks is at its default."""
    options = recorded.data.get("options", {})
    if not isinstance(options, Mapping):
        raise untrusted(place, "options", options, "an object")
    for name, value in expected.items():
        if options.get(name, value) != value:
            raise untrusted(place, name, options[name], value)


def id_in(place: LaunchPlace, recorded: LaunchHandle, name: str, pattern: re.Pattern[str]) -> str:
    """An id of the run, as the record says it; "" where it says none.

    Raises:
        UntrustedRecordError: it is no text of this pattern.
    """
    value = recorded.data.get(name)
    if value is None or value == "":
        return ""
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise untrusted(place, name, value, f"text of the form {pattern.pattern}")
    return value


def untrusted(place: LaunchPlace, name: str, recorded: object, expected: object) -> UntrustedRecordError:
    """The error of a record that says something else than its reader knows."""
    return UntrustedRecordError(
        f"the record of this launch names another {name.replace('_', ' ')} than its reader's configuration",
        launcher=place.launcher,
        launch_key=place.launch_key,
        recorded=_shown(recorded),
        expected=_shown(expected),
        next_step=f"{_WARNING} If the driver was launched with other settings, use those.",
    )


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
