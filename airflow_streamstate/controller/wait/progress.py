"""Progress of a wait for a log: a line for each change, not for each look."""

from __future__ import annotations

import re
from collections.abc import Callable

from airflow_streamstate.clock import Clock

_AGES = re.compile(r"\d+(\.\d+)? s( ago)?")
_COUNTS = re.compile(r"[\d,]+ of ")
_SECONDS_BETWEEN_COUNTS = 5.0


def only_news(tell: Callable[[str], None], clock: Clock) -> Callable[[str], None]:
    """Tells a text unless it is the last one with other ages; one with only other counts at most every 5 seconds."""
    last, told_at_seconds = "", 0.0

    def report(text: str) -> None:
        nonlocal last, told_at_seconds
        news = _AGES.sub("", text)  # a growing age is no news
        uncounted = _COUNTS.sub("", news) != _COUNTS.sub("", last)
        if uncounted or (news != last and clock.monotonic_seconds() - told_at_seconds >= _SECONDS_BETWEEN_COUNTS):
            tell(text)
            last, told_at_seconds = news, clock.monotonic_seconds()

    return report
