"""Which queries of a deployment feed each other, as far as their plans prove it.

A missed pair does no harm: a query that is fed reads all that is there for it before it is flushed.
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
    """Names of queries in the order of their data: those of a stage are fed by earlier stages only. Sorted within a
    stage.

    Queries that feed each other in a ring are in one stage; a query that feeds itself is a query like any other.
    """
    fed_by = {
        name: {
            other
            for other, upstream in plans.items()
            if other != name and any(is_fed_by(source, upstream.sink) for source in plan.sources)
        }
        for name, plan in plans.items()
    }
    stages: list[list[str]] = []
    left = set(plans)
    while left:
        free = {name for name in left if not fed_by[name] & left} or _ring(left, fed_by)
        stages.append(sorted(free))
        left -= free
    return stages


def _ring(left: set[str], fed_by: Mapping[str, set[str]]) -> set[str]:
    """Among queries that are all fed by others: a smallest set that nothing outside of it feeds."""

    def behind(name: str) -> set[str]:
        found, open_ = set[str](), {name}
        while open_:
            found |= open_
            open_ = {each for one in open_ for each in fed_by[one] & left} - found
        return found

    return min((behind(name) for name in sorted(left)), key=len)


def is_fed_by(source: PlannedSource, sink: PlannedSink) -> bool:
    """Whether this source reads what is written to this sink, as far as their plans tell."""
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
        return False  # each row names its own topic
    subscribed, pattern = _SUBSCRIBED.search(source.identity), _PATTERN.search(source.identity)
    if subscribed is not None:
        return topic in subscribed.group(1).split(",")
    if pattern is not None:
        try:
            return re.fullmatch(pattern.group(1), topic) is not None
        except re.error:  # valid only in Java
            return False
    return f'"{topic}"' in source.identity


def _is_within(read: str, written: str) -> bool:
    """Whether a folder is the other, above or below it, or a pattern of folders includes it."""
    if any(sign in read for sign in "*?[{"):
        fixed = re.split(r"[*?\[{]", read)[0]
        return fnmatch.fnmatch(written, read) or written.startswith(fixed) or fixed.startswith(f"{written}/")
    return f"{read}/".startswith(f"{written}/") or f"{written}/".startswith(f"{read}/")


def _table(name: str) -> str:
    return name.replace("`", "").rpartition(".")[2].lower()
