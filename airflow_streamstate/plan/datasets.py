"""The sources and the sink of a plan as datasets in OpenLineage's names, and the queries that feed each other."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from airflow_streamstate.plan.model import PlannedSink, PlannedSource, QueryPlan
from airflow_streamstate.protocol.redaction import HIDDEN, redact_uri
from airflow_streamstate.store.options import plain_uri

DEFAULT_CATALOG = "spark_catalog"
"""The namespace of a table that is named without a catalog."""
_SERVERS = "kafka.bootstrap.servers"
_MADE_UP = frozenset({"rate", "rate-micro-batch", "memory", "console", "noop", "foreachbatch", "foreach", "socket"})
"""Formats that read or write no dataset that another job could know."""


@dataclass(frozen=True, order=True)
class DatasetName:
    """A dataset, by namespace and name."""

    namespace: str
    name: str


def datasets_of(plans: Mapping[str, QueryPlan]) -> tuple[tuple[DatasetName, ...], tuple[DatasetName, ...]]:
    """What the queries of a deployment read, and what they write; each dataset once, sorted."""
    read = [found for plan in plans.values() for source in plan.sources for found in datasets_of_source(source)]
    written = [found for plan in plans.values() for found in datasets_of_sink(plan.sink)]
    return _each_once(read), _each_once(written)


def datasets_of_source(source: PlannedSource) -> tuple[DatasetName, ...]:
    """What a source reads; empty for rows that are made up, and for what is not known by a name."""
    if source.format == "kafka":
        return _topics(source.options, _subscribed(source.options))
    place = source.identity
    for word in (source.adapter, "table", source.format):  # the words of the connectors before it
        place = place.removeprefix(f"{word} ") if word else place
    return _at(source.format, place)


def datasets_of_sink(sink: PlannedSink) -> tuple[DatasetName, ...]:
    """What a sink writes; empty where the script's own function writes (``foreachBatch``)."""
    if sink.format == "kafka":
        return _topics(sink.options, (sink.target,) if sink.target else ())
    return _at(sink.format or sink.kind.partition(":")[0].lower(), sink.target)


def dataset_at(uri: str) -> DatasetName:
    """A folder or an object by its URI; a path without a scheme is on this cluster's own disk."""
    parts = urlsplit(plain_uri(redact_uri(uri)))
    path = parts.path.rstrip("/")
    if parts.scheme in ("", "file"):
        return DatasetName("file", path or "/")
    scheme = {"s3a": "s3", "s3n": "s3", "abfs": "abfss"}.get(parts.scheme, parts.scheme)
    name = path if scheme == "hdfs" else path.lstrip("/")
    host = parts.netloc.removeprefix(f"{HIDDEN}@")
    return DatasetName(f"{scheme}://{host}", name or "/")


def _at(kind: str, place: str) -> tuple[DatasetName, ...]:
    if kind in _MADE_UP or not place:
        return ()
    if "/" in place:
        return (dataset_at(place),)
    *catalog, database, table = ["default", *place.replace("`", "").split(".")][-3 if place.count(".") > 1 else -2 :]
    return (DatasetName(".".join(catalog) or DEFAULT_CATALOG, f"{database}.{table}"),)


def _topics(options: Mapping[str, str], topics: Iterable[str]) -> tuple[DatasetName, ...]:
    servers = [each.strip() for each in options.get(_SERVERS, "").split(",") if each.strip()]
    if not servers:
        return ()
    # The convention takes one server; the first by name is the same whatever order a script lists them in.
    return tuple(DatasetName(f"kafka://{min(servers)}", topic) for topic in topics)


def _subscribed(options: Mapping[str, str]) -> tuple[str, ...]:
    """The topics that a script names; a pattern names none."""
    topics = options.get("subscribe", "")
    if topics:
        return tuple(sorted(each.strip() for each in topics.split(",") if each.strip()))
    with suppress(ValueError):
        assigned = json.loads(options.get("assign", "") or "{}")
        return tuple(sorted(assigned)) if isinstance(assigned, dict) else ()
    return ()


def _each_once(found: Iterable[DatasetName]) -> tuple[DatasetName, ...]:
    return tuple(sorted(set(found)))


# Which queries of a deployment feed each other, as far as their plans prove it.
#
# A missed pair does no harm: a query that is fed reads all that is there for it before it is flushed.

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
    """Whether this source reads what is written to this sink, as far as their plans show."""
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
