"""The options that every partitioned source has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_streamstate.errors import SourceError

DEFAULT_ROWS = 100_000


@dataclass(frozen=True)
class SourceSettings:
    """How a partitioned source is read.

    Attributes:
        spool: the folder for rows that are read ahead: a URI of a store; "" for none.
        max_per_trigger: how much a batch takes, in the source's unit; None for the default.
        list_seconds: how often parts are listed.
        poll_seconds: how long a part rests that had nothing.
        fail_after_seconds: how long a source may fail before its query does.
        ahead_seconds: how far the event time of a part may be ahead of the slowest open one; None: parts do not wait.
        idle_seconds: an open part without news for so long is not waited for.
        keep_spool_seconds: how long rows that were given stay in the spool.
        tasks: how many tasks read; None: as many as Spark has cores.
    """

    spool: str = ""
    max_per_trigger: int | None = None
    list_seconds: float = 10.0
    poll_seconds: float = 0.5
    fail_after_seconds: float = 300.0
    ahead_seconds: float | None = None
    idle_seconds: float = 300.0
    keep_spool_seconds: float = 7 * 86_400.0
    tasks: int | None = None


OPTIONS = {
    "spool": "spool",
    "maxpertrigger": "max_per_trigger",
    "listseconds": "list_seconds",
    "pollseconds": "poll_seconds",
    "failafterseconds": "fail_after_seconds",
    "aheadseconds": "ahead_seconds",
    "idleseconds": "idle_seconds",
    "keepspoolseconds": "keep_spool_seconds",
    "tasks": "tasks",
}
_WHOLE = ("max_per_trigger", "tasks")


def read_settings(options: Mapping[str, str]) -> SourceSettings:
    """The settings among the options of a source, whose names are in lower case.

    Raises:
        SourceError: one is no number, or below its least value.
    """
    found: dict[str, object] = {}
    for option, name in OPTIONS.items():
        text = str(options.get(option, "")).strip()
        if text:
            found[name] = text if name == "spool" else _number(option, text, is_whole=name in _WHOLE)
    return SourceSettings(**found)  # type: ignore[arg-type]


def _number(option: str, text: str, *, is_whole: bool) -> float:
    try:
        value = int(text) if is_whole else float(text)
    except ValueError:
        value = -1
    if not (1 if is_whole else 0) <= value < 1e12:
        raise SourceError(
            "this option of a source is not a number that it can be",
            option=option,
            value=text[:50],
            next_step="Use a whole number from 1 on." if is_whole else "Use a number of seconds.",
        )
    return value
