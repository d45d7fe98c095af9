"""Apache Iceberg's sink: the snapshot that a batch makes notes the query id and the batch id in its summary.

An id up to the newest that is noted for a query in the table's present history is skipped, and no progress shows it.
What ``rollback_to_snapshot`` took out of that history is not held any more: so it is undone, by what the summaries say.
From the newest snapshot down, each one is of the query, or changes no row, or is somebody else's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_streamstate.connectors.sink import HeldBatches, Sink, SinkReach, Skips, held_up_to
from airflow_streamstate.connectors.undoing import FoundUndo, UndoWish, cannot_undo, written_meanwhile
from airflow_streamstate.protocol.data_events import RepeatMeans

QUERY_ID = "spark.sql.streaming.queryId"
EPOCH_ID = "spark.sql.streaming.epochId"
WAP_ENABLED, WAP_BRANCH, WAP_ID = "write.wap.enabled", "spark.wap.branch", "spark.wap.id"
LOOKS = 50
"""So many snapshots are looked at one by one; whatever is older, in one go."""
_BRANCH_PART = "branch_"
_SAME_ROWS = "replace"
"""The operation of a snapshot that holds the rows of the one before it in other files."""


class IcebergSink:
    """Iceberg tables by name or by path. Implements ``UndoingSink`` and ``WarmingSink``."""

    name = "iceberg"
    skips: Skips = "query_id_and_batch_id"
    undo = "`CALL … .system.rollback_to_snapshot(…)`: what it takes out of the table's history is not held any more"
    undo_needs_query_id = False

    def matches(self, sink: Sink) -> bool:
        return sink.format == "iceberg"

    def held_batches(self, sink: Sink, query_id: str | None, from_batch_id: int, reach: SinkReach) -> HeldBatches:
        if query_id is None:
            return HeldBatches()
        table = _load(sink, reach.session)
        if table is None:
            return HeldBatches()
        table.refresh()  # the catalog's copy may be older than a commit whose answer was lost
        conf = reach.session.conf if table.properties().get(WAP_ENABLED) == "true" else {}
        if conf.get(WAP_ID, None):
            return HeldBatches(unknown_reason=f"what is written under {WAP_ID} lies in no history of the table")
        # Iceberg itself skips by the table's own history alone, also where it writes to a branch: so both count.
        branch = _branch_of(sink) or conf.get(WAP_BRANCH, None)
        heads = [table.currentSnapshot(), table.snapshot(branch) if branch else None]
        found = [_newest_below(head, table, query_id, reach.session._jvm) for head in heads if head is not None]
        return held_up_to(max((batch_id for batch_id in found if batch_id is not None), default=None), from_batch_id)

    def prepare(self, sink: Sink, next_batch_id: int, reach: SinkReach) -> tuple[str, ...]:
        return ()

    def warm(self, sink: Sink, row: Any, scratch_uri: str, reach: SinkReach) -> None:
        jvm, tables = reach.session._jvm, _tables_by_path(reach.session)
        if not tables.exists(scratch_uri):
            schema = jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(row._jdf.schema())
            tables.create(schema, jvm.org.apache.iceberg.PartitionSpec.unpartitioned(), scratch_uri)
        row.write.format("iceberg").mode("append").save(scratch_uri)

    def repeats(self, sink: Sink, conf: Mapping[str, str]) -> RepeatMeans:
        """Iceberg skips by the table's own history alone: what is written beside it is there twice."""
        if _branch_of(sink):
            return "doubled"
        return "unknown" if any(conf.get(name) for name in (WAP_ID, WAP_BRANCH)) else "skipped"

    def find_undo(self, sink: Sink, wish: UndoWish, reach: SinkReach) -> FoundUndo:
        table = _load(sink, reach.session)
        if table is None:
            return FoundUndo()
        table.refresh()
        conf = reach.session.conf if table.properties().get(WAP_ENABLED) == "true" else {}
        if _branch_of(sink) or conf.get(WAP_ID, None) or conf.get(WAP_BRANCH, None):
            raise cannot_undo("what is written beside a table's own history is not rolled back here", sink, wish)
        snapshot = newest = table.currentSnapshot()
        undone: list[tuple[int, int]] = []
        while snapshot is not None:
            snapshot_id = int(snapshot.snapshotId())
            epoch = _epoch_of_any(snapshot.summary(), wish.query_ids)
            if epoch is not None and epoch <= wish.to_batch_id:
                if epoch < wish.to_batch_id:
                    raise cannot_undo("its history does not show that batch", sink, wish, newest_batch_id_before=epoch)
                return _found_undo(int(newest.snapshotId()), snapshot_id, undone)
            if epoch is not None:
                undone.append((epoch, snapshot_id))
            elif str(snapshot.operation()) != _SAME_ROWS:
                raise cannot_undo(
                    "somebody else changed the table since that batch, which a rollback would take back, too",
                    sink,
                    wish,
                    snapshot_id=snapshot_id,
                    operation=str(snapshot.operation()),
                )
            parent = snapshot.parentId()
            snapshot = None if parent is None else table.snapshot(parent)
        if newest is None:
            return FoundUndo()
        raise cannot_undo("its history does not reach back to that batch", sink, wish)

    def undo_batches(self, sink: Sink, wish: UndoWish, found: FoundUndo, reach: SinkReach) -> None:
        table = _load(sink, reach.session) if found.target else None
        if table is None:
            return
        table.refresh()
        table.manageSnapshots().rollbackTo(found.marks["target"]).commit()
        # Between the look and the act there may have been somebody: what he added is taken back with the rest.
        before = int(list(table.history())[-2].snapshotId())
        if before != found.marks["newest"]:
            raise written_meanwhile(sink, wish, snapshot_id=before)


def _branch_of(sink: Sink) -> str | None:
    """The branch that the writer names, by its option or at the end of the table's name."""
    last = (sink.table or sink.path or "").rpartition(".")[2].strip("`")
    named = last.removeprefix(_BRANCH_PART) if last.startswith(_BRANCH_PART) else None
    return sink.options.get("branch") or named


def _newest_below(head: Any, table: Any, query_id: str, jvm: Any) -> int | None:
    """The newest batch of the query in the history that ends here; None where there is none."""
    snapshot = head
    for _ in range(LOOKS):
        epoch = _epoch(snapshot.summary(), query_id)
        parent = snapshot.parentId()
        if epoch is not None or parent is None:
            return epoch
        snapshot = table.snapshot(parent)
        if snapshot is None:
            return None
    return _newest_in_metadata(int(snapshot.snapshotId()), table, query_id, jvm)


def _newest_in_metadata(head_id: int, table: Any, query_id: str, jvm: Any) -> int | None:
    """The same for what lies deep: all of the table's snapshots at once."""
    metadata = json.loads(str(jvm.org.apache.iceberg.TableMetadataParser.toJson(table.operations().current())))
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots", ())}
    snapshot = snapshots.get(head_id)
    while snapshot is not None:
        epoch = _epoch(snapshot.get("summary", {}), query_id)
        if epoch is not None:
            return epoch
        snapshot = snapshots.get(snapshot.get("parent-snapshot-id"))
    return None


def _found_undo(newest: int, target: int, undone: Sequence[tuple[int, int]]) -> FoundUndo:
    if not undone:
        return FoundUndo()
    return FoundUndo(
        tuple(sorted({epoch for epoch, _ in undone})),
        tuple(f"snapshot {snapshot_id} (batch {epoch})" for epoch, snapshot_id in reversed(undone)),
        f"snapshot {target}",
        {"newest": newest, "target": target},
    )


def _epoch_of_any(summary: Any, query_ids: Iterable[str]) -> int | None:
    return next((epoch for epoch in (_epoch(summary, query_id) for query_id in query_ids) if epoch is not None), None)


def _epoch(summary: Any, query_id: str) -> int | None:
    epoch = summary.get(EPOCH_ID) if summary.get(QUERY_ID) == query_id else None
    return None if epoch is None else int(epoch)


def _load(sink: Sink, session: Any) -> Any:
    """The table as Iceberg knows it; None where there is none."""
    jvm = session._jvm
    name = sink.table or sink.path or ""
    if sink.table is None and "/" in name:
        tables = _tables_by_path(session)
        return tables.load(name) if tables.exists(name) else None
    if not session.catalog.tableExists(name):
        return None
    return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, name)


def _tables_by_path(session: Any) -> Any:
    """Tables that no catalog knows."""
    conf = session._jsparkSession.sessionState().newHadoopConf()
    return session._jvm.org.apache.iceberg.hadoop.HadoopTables(conf)
