"""A sink that is made ready to be written to before the old version ends, without a trace in it.

In a JVM that never wrote to a kind of sink, the first batch loads and compiles what writes there. A driver that waits
for a handover has time for that while the old version still runs.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from airflow_streamstate.connectors.sink import Sink, SinkConnector, SinkReach

_OF_THE_SINK = frozenset({"path", "checkpointlocation", "queryname", "txnappid", "txnversion"})


@runtime_checkable
class WarmingSink(SinkConnector, Protocol):
    """A sink connector that can have a driver load what writes to its sink."""

    def warm(self, sink: Sink, row: Any, scratch_uri: str, reach: SinkReach) -> None:
        """Load and compile what the first batch needs to write. Reads the sink at the most: changes nothing in it.

        What it raises leaves the sink cold, and is told; nothing else comes of it.

        Args:
            sink: what is written to; it may not be there yet.
            row: a ``DataFrame`` of one row that has the columns of the query, and null in each.
            scratch_uri: an empty folder of its own, which Hadoop reaches and which is removed later. It may hold what
                an earlier call left.
            reach: what to ask with.
        """


def write_beside(sink: Sink, row: Any, scratch_uri: str) -> None:
    """Write a row twice into a scratch folder, in the format of a sink and with its options.

    Twice, because the second write finds a table where the first one makes it.

    Args:
        sink: whose format and options are taken.
        row: what is written.
        scratch_uri: where to.
    """
    options = {name: value for name, value in sink.options.items() if name not in _OF_THE_SINK}
    for _ in range(2):
        row.write.format(sink.format).options(**options).mode("append").save(scratch_uri)
