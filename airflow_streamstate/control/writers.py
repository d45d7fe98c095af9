"""Which Spark wrote what a deployment holds, by its events.

A Spark that was started and neither committed a batch nor left state of one wrote nothing that an older one could not
read, so a failed upgrade goes back to what the old one left. The state of an uncommitted batch counts, since the query
continues from it where the sink holds that batch. If the snapshot that they started from cannot be read, every Spark
that continued from it counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import QueryStarted, Started
from airflow_streamstate.protocol.manifest import SnapshotManifest


def spark_that_wrote(
    events: Iterable[Event | None],
    positions: Mapping[str, int | None],
    start: SnapshotManifest | None,
    begun: Collection[str] = (),
    *,
    is_start_lost: bool = False,
) -> str:
    """The newest Spark that wrote a batch of this deployment, or of what a query still stands on; "" if unknown.

    Args:
        events: of the deployment, all attempts, in order; None for unreadable ones.
        positions: last committed batch of each of its queries; None for none, and for one that was never started here.
        start: the snapshot that it started from; None for none.
        begun: the queries whose next batch was written, and not committed (``has_begun_planned``).
        is_start_lost: it started from a snapshot that is gone or damaged; ``start`` is None.
    """
    known = [event for event in events if event is not None]
    versions = {event.attempt: event.spark_version for event in known if isinstance(event, Started)}
    wrote = set()
    for name, batch_id in positions.items():
        starts = [event for event in known if isinstance(event, QueryStarted) and event.query_name == name]
        ends = [event.batch_id for event in starts[1:]] + [batch_id] * bool(starts)
        by = {versions.get(event.attempt, "") for event, end in zip(starts, ends, strict=True) if event.batch_id != end}
        if is_start_lost:
            by = by or {versions.get(event.attempt, "") for event in starts}
        wrote |= by or ({start.spark_version} if start is not None and name in start.queries else set())
        if name in begun:  # any of those that found or reached this position may have written it
            wrote |= {versions.get(event.attempt, "") for event in starts if event.batch_id == batch_id}
    return newest_spark(wrote)


def newest_spark(versions: Iterable[str]) -> str:
    """The newest of these versions of Spark; "" for none, or where none is known."""
    return max(versions, key=_order, default="")


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", version)[:3])
