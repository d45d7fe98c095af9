"""Which queries of a deployment feed each other: where the sink of one is surely a source of another.

What their plans do not tell feeds nobody: a query that is fed reads all that is there for it before it is flushed.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping

from airflow_streamstate.plan.model import PlannedSink, PlannedSource, QueryPlan
from airflow_streamstate.store.s3a import plain_uri

_SUBSCRIBED = re.compile(r"subscribe (\S+)")
_PATTERN = re.compile(r"subscribepattern (.+)")


def in_stages(plans: Mapping[str, QueryPlan]) -> list[list[str]]:
    """Queries in the order of their data: those of a stage are fed by earlier stages alone.

    Queries that feed each other in a ring are of one stage; one that feeds itself is a query like any other.

    Args:
        plans: by query.

    Returns:
        Names, sorted within each stage.
    """
    fed_by = {name: {other for other in plans if other != name and _feeds(plans[other], plans[name])} for name in plans}
    stages: list[list[str]] = []
    left = set(plans)
    while left:
        free = {name for name in left if not fed_by[name] & left} or _ring(left, fed_by)
        stages.append(sorted(free))
        left -= free
    return stages


def _ring(left: set[str], fed_by: Mapping[str, set[str]]) -> set[str]:
    """Of queries of which each is fed by another: a smallest lot that nothing outside of it feeds."""

    def behind(name: str) -> set[str]:
        found, open_ = set[str](), {name}
        while open_:
            found |= open_
            open_ = {each for one in open_ for each in fed_by[one] & left} - found
        return found

    return min((behind(name) for name in sorted(left)), key=len)


def _feeds(upstream: QueryPlan, downstream: QueryPlan) -> bool:
    return any(is_fed_by(source, upstream.sink) for source in downstream.sources)


def is_fed_by(source: PlannedSource, sink: PlannedSink) -> bool:
    """Whether what is written to this sink is read by this source, as far as their plans tell."""
    if "kafka" in (source.format, sink.format):
        return source.format == sink.format and _reads_topic(source, sink.target)
    kind, _, what = source.identity.partition(" ")
    if kind == "table" and " " in what:
        what = what.partition(" ")[2]  # by its path
    elif kind == "table":
        return bool(sink.target) and _table(what) == _table(sink.target)
    return bool(sink.target) and bool(what) and _is_within(plain_uri(what), plain_uri(sink.target))


def _reads_topic(source: PlannedSource, topic: str) -> bool:
    if not topic:
        return False  # each row says its own
    subscribed, pattern = _SUBSCRIBED.search(source.identity), _PATTERN.search(source.identity)
    if subscribed is not None:
        return topic in subscribed.group(1).split(",")
    if pattern is not None:
        try:
            return re.fullmatch(pattern.group(1), topic) is not None
        except re.error:  # Java's own
            return False
    return f'"{topic}"' in source.identity


def _is_within(read: str, written: str) -> bool:
    """A folder, one above or below it, or a pattern of folders that takes it in."""
    if any(sign in read for sign in "*?[{"):
        fixed = re.split(r"[*?\[{]", read)[0]
        return fnmatch.fnmatch(written, read) or written.startswith(fixed) or fixed.startswith(f"{written}/")
    return f"{read}/".startswith(f"{written}/") or f"{written}/".startswith(f"{read}/")


def _table(name: str) -> str:
    return name.replace("`", "").rpartition(".")[2].lower()
