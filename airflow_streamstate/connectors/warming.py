"""Warming a sink: a waiting driver prepares to write to it before the old version ends, without a trace in it.

In a JVM that never wrote to a kind of sink, the first batch loads and compiles the code for it; a driver that waits for
a handover does so while the old version still runs.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from airflow_streamstate.connectors.sink import Sink, SinkConnector, SinkReach

_OF_THE_SINK = frozenset({"path", "checkpointlocation", "queryname", "txnappid", "txnversion"})


@runtime_checkable
class WarmingSink(SinkConnector, Protocol):
    """A sink connector that can make a driver load the code that writes to its sink."""

    def warm(self, sink: Sink, row: Any, scratch_uri: str, reach: SinkReach) -> None:
        """Load and compile what the first batch needs to write. It may read the sink, and changes nothing in it.

        An error leaves the sink cold and is reported; nothing else follows.

        Args:
            sink: it may not exist yet.
            row: a ``DataFrame`` of one row that has the columns of the query, and null in each.
            scratch_uri: an empty folder of its own, which Hadoop reaches and which is removed later. It may hold what
                an
                earlier call left.
        """


def write_beside(sink: Sink, row: Any, scratch_uri: str) -> None:
    """Write a row into a scratch folder, in the format of a sink and with its options.

    Twice, because the second write finds a table where the first one creates it.
    """
    for _ in range(2):
        row.write.format(sink.format).options(**options_to_write(sink)).mode("append").save(scratch_uri)


def options_to_write(sink: Sink) -> dict[str, str]:
    """The options of a sink that say how its rows are written, and not where."""
    return {name: value for name, value in sink.options.items() if name not in _OF_THE_SINK}
