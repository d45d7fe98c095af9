"""Delta Lake's sink: each commit of a batch notes the query id and the batch id (``SetTransaction``).

An id up to the newest that is noted for a query is skipped, and ``RESTORE`` of the table does not take the note back.
Another query id is another query: a start that brings a new one is skipped nothing.
"""

from __future__ import annotations

from airflow_streamstate.adapters.sink import HeldBatches, Sink, SinkReach, Skips, held_up_to, held_where_nobody_says


class DeltaSink:
    """Delta tables by path or by name. Implements ``SinkAdapter``."""

    name = "delta"
    skips: Skips = "query_id_and_batch_id"
    undo = "`RESTORE` the table, and go on under a new query id: `RESTORE` does not take back which batches it holds"

    def matches(self, sink: Sink) -> bool:
        return sink.format == "delta"

    def held_batches(self, sink: Sink, query_id: str | None, from_batch_id: int, reach: SinkReach) -> HeldBatches:
        if query_id is None:
            return HeldBatches()
        if sink.path is None:
            return held_where_nobody_says(sink)
        session = reach.session
        log = session._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, sink.path)
        # Scala's default arguments, by the names that it gives them: their number differs between versions.
        defaults = (f"update$default${number}" for number in range(1, _arguments_of(log, "update") + 1))
        # Delta reads its log from the last checkpoint on, which repeats all transactions: nothing older is looked at.
        snapshot = log.update(*(getattr(log, name)() for name in defaults))
        if int(snapshot.version()) < 0:
            return HeldBatches()  # no table lies there yet
        noted = snapshot.transactions().get(query_id)
        return held_up_to(int(noted.get()) if noted.isDefined() else None, from_batch_id)

    def prepare(self, sink: Sink, next_batch_id: int, reach: SinkReach) -> tuple[str, ...]:
        return ()


def _arguments_of(log: object, method: str) -> int:
    counts = [
        int(found.getParameterCount())
        for found in log.getClass().getMethods()  # type: ignore[attr-defined]
        if found.getName() == method
    ]
    return max(counts)
