"""Windows over time, recognised in what Spark's analyzer makes of them.

In an analyzed plan, ``window(ts, '5 minutes')`` is arithmetic over microseconds inside a struct of start and end, with
the sizes as literals.
"""

from __future__ import annotations

import re

from airflow_streamstate.plan.model import Window, WindowKind
from airflow_streamstate.plan.terms import Term, terms_below

_MICROSECONDS = 1000  # in a millisecond
_UNITS_MS = {
    "microsecond": 0.001, "millisecond": 1, "second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000,
    "week": 604_800_000,
}  # fmt: skip
_PART = re.compile(r"(-?\d+(?:\.\d+)?)\s+([a-z]+?)s?(?=\s|$)", re.IGNORECASE)
_CONVERSION = "PreciseTimestampConversion"
_ADDED = "TimestampAddInterval"


def window_of(struct: Term) -> Window | None:
    """The window that a struct stands for; None for any other struct."""
    children = struct.children
    if len(children) != 4 or [children[0].text, children[2].text] != ["'start'", "'end'"]:
        return None
    start, end = children[1], children[3]
    if not terms_below(start, _CONVERSION) or not terms_below(end, _CONVERSION):
        return None
    remainders = terms_below(start, "Remainder")
    return _fixed(remainders[0], end) if remainders else _session(start, end)


def _fixed(remainder: Term, end: Term) -> Window | None:
    since, slide = remainder.children
    if since.kind != "Subtract":
        return None
    added = next((term for term in terms_below(end, "Add") if _is_number(term.children[-1])), None)
    if added is None or not _is_number(slide) or not _is_number(since.children[1]):
        return None
    # The end is the start plus the length; if the start is a sum, too, that is the outer one.
    duration_ms, slide_ms, offset_ms = _ms(added.children[-1]), _ms(slide), _ms(since.children[1])
    kind: WindowKind = "tumbling" if duration_ms == slide_ms else "sliding"
    return Window(kind, since.children[0].text, duration_ms, slide_ms, offset_ms)


def _session(start: Term, end: Term) -> Window | None:
    added = terms_below(end, _ADDED)
    if not added:
        return None
    gap = added[0].children[1]
    gap = gap.children[0] if gap.kind == "Cast" else gap
    duration_ms = interval_ms(gap.text.strip("'")) if gap.kind == "Literal" else None
    return Window("session", start.text, duration_ms, gap="" if duration_ms is not None else gap.text)


def interval_ms(text: str) -> int | None:
    """The milliseconds of an interval in Spark's words (``5 minutes``); None if they are not fixed (months)."""
    parts = _PART.findall(text)
    left = _PART.sub("", text).replace("interval", "").replace("INTERVAL", "").strip()
    if not parts or left or any(unit.lower() not in _UNITS_MS for _, unit in parts):
        return None
    return round(sum(float(number) * _UNITS_MS[unit.lower()] for number, unit in parts))


def _is_number(term: Term) -> bool:
    return term.kind == "Literal" and term.text.lstrip("-").isdigit()


def _ms(term: Term) -> int:
    return int(term.text) // _MICROSECONDS
