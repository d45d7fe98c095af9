"""Tables of a catalog, Delta and Iceberg: their sinks, their names as sources, and the order of their offsets.

Only Delta is asked for its versions; a snapshot that was expired after an offset is found by Spark itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from airflow_streamstate.connectors.sink import (
    FoundUndo,
    HeldBatches,
    Sink,
    SinkReach,
    Skips,
    UndoOrder,
    cannot_undo,
    held_up_to,
    held_without_place,
    path_to_undo,
    write_beside,
    written_meanwhile,
)
from airflow_streamstate.connectors.source import (
    NO_OFFSET,
    Lag,
    OffsetOrder,
    Source,
    SparkDoor,
    UnaskedSource,
    Untold,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.events import RepeatMeans
from airflow_streamstate.protocol.redaction import redact_uri

# Apache Iceberg's sink: the snapshot that a batch makes notes the query id and the batch id in its summary.
#
# Iceberg silently skips an id up to the newest that the table's present history has for the query.
# ``rollback_to_snapshot`` removes snapshots from that history, which undoes them. By the summaries, from the newest
# snapshot down, each one is of the query, or changes no row, or is another writer's.

QUERY_ID = "spark.sql.streaming.queryId"
EPOCH_ID = "spark.sql.streaming.epochId"
WAP_ENABLED, WAP_BRANCH, WAP_ID = "write.wap.enabled", "spark.wap.branch", "spark.wap.id"
LOOKS = 50
"""This many snapshots are read one by one; older ones all at once."""
_BRANCH_PART = "branch_"
_SAME_ROWS = "replace"
"""The operation of a snapshot with the rows of the one before it in other files."""


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
        table.refresh()  # the cached copy may be older than a commit whose answer was lost
        conf = reach.session.conf if table.properties().get(WAP_ENABLED) == "true" else {}
        if conf.get(WAP_ID, None):
            return HeldBatches(unknown_reason=f"what is written under {WAP_ID} is in no history of the table")
        # Iceberg skips by the table's own history even where it writes to a branch, so both count.
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
        """Iceberg skips by the table's own history only: what is written to a branch is there twice."""
        if _branch_of(sink):
            return "doubled"
        return "unknown" if any(conf.get(name) for name in (WAP_ID, WAP_BRANCH)) else "skipped"

    def find_undo(self, sink: Sink, request: UndoOrder, reach: SinkReach) -> FoundUndo:
        table = _load(sink, reach.session)
        if table is None:
            return FoundUndo()
        table.refresh()
        conf = reach.session.conf if table.properties().get(WAP_ENABLED) == "true" else {}
        if _branch_of(sink) or conf.get(WAP_ID, None) or conf.get(WAP_BRANCH, None):
            raise cannot_undo("what is written outside of a table's own history is not rolled back here", sink, request)
        snapshot = newest = table.currentSnapshot()
        undone: list[tuple[int, int]] = []
        while snapshot is not None:
            snapshot_id = int(snapshot.snapshotId())
            epochs = (_epoch(snapshot.summary(), query_id) for query_id in request.query_ids)
            epoch = next((one for one in epochs if one is not None), None)
            if epoch is not None and epoch <= request.to_batch_id:
                if epoch < request.to_batch_id:
                    raise cannot_undo(
                        "its history does not show that batch", sink, request, newest_batch_id_before=epoch
                    )
                return _found_undo(int(newest.snapshotId()), snapshot_id, undone)
            if epoch is not None:
                undone.append((epoch, snapshot_id))
            elif str(snapshot.operation()) != _SAME_ROWS:
                raise cannot_undo(
                    "another writer changed the table since that batch, which a rollback would undo, too",
                    sink,
                    request,
                    snapshot_id=snapshot_id,
                    operation=str(snapshot.operation()),
                )
            parent = snapshot.parentId()
            snapshot = None if parent is None else table.snapshot(parent)
        if newest is None:
            return FoundUndo()
        raise cannot_undo("its history does not reach back to that batch", sink, request)

    def undo_batches(self, sink: Sink, request: UndoOrder, found: FoundUndo, reach: SinkReach) -> None:
        table = _load(sink, reach.session) if found.target else None
        if table is None:
            return
        table.refresh()
        table.manageSnapshots().rollbackTo(found.marks["target"]).commit()
        # Another writer may have committed since ``find_undo``; the rollback has removed that, too.
        before = int(list(table.history())[-2].snapshotId())
        if before != found.marks["newest"]:
            raise written_meanwhile(sink, request, snapshot_id=before)


def _branch_of(sink: Sink) -> str | None:
    """The branch that the writer names, by its option or at the end of the table's name."""
    last = (sink.table or sink.path or "").rpartition(".")[2].strip("`")
    named = last.removeprefix(_BRANCH_PART) if last.startswith(_BRANCH_PART) else None
    return sink.options.get("branch") or named


def _newest_below(head: Any, table: Any, query_id: str, jvm: Any) -> int | None:
    """The newest batch of the query in the history that ends here; None without one."""
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
    """The same for a long history: all of the table's snapshots at once."""
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


def _epoch(summary: Any, query_id: str) -> int | None:
    epoch = summary.get(EPOCH_ID) if summary.get(QUERY_ID) == query_id else None
    return None if epoch is None else int(epoch)


def _load(sink: Sink, session: Any) -> Any:
    """The table as Iceberg knows it; None where it does not exist."""
    jvm = session._jvm
    name = sink.table or sink.path or ""
    if sink.table is None and "/" in name:
        tables = _tables_by_path(session)
        return tables.load(name) if tables.exists(name) else None
    if not session.catalog.tableExists(name):
        return None
    return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, name)


def _tables_by_path(session: Any) -> Any:
    """Tables without a catalog."""
    conf = session._jsparkSession.sessionState().newHadoopConf()
    return session._jvm.org.apache.iceberg.hadoop.HadoopTables(conf)


# Delta Lake's sink: each commit of a batch notes the query id and the batch id (``SetTransaction``).
#
# Delta skips an id up to the newest that is noted for a query, and ``RESTORE`` does not remove the note, so a query
# continues under a new id after an undo.
#
# An undo is ``RESTORE`` to the version that committed the batch. By the log, from the newest version down, each one is
# of the query, or changes no row, or is another writer's, whose rows ``RESTORE`` would drop.

LOG = "_delta_log"
IGNORE_MISSING = "spark.sql.files.ignoreMissingFiles"


class DeltaSink:
    """Delta tables by path or by name. Implements ``UndoingSink`` and ``WarmingSink``."""

    name = "delta"
    skips: Skips = "query_id_and_batch_id"
    undo = "`RESTORE` the table, and continue under a new query id: `RESTORE` does not undo which batches it holds"
    undo_needs_query_id = True

    def matches(self, sink: Sink) -> bool:
        return sink.format == "delta"

    def held_batches(self, sink: Sink, query_id: str | None, from_batch_id: int, reach: SinkReach) -> HeldBatches:
        if query_id is None:
            return HeldBatches()
        if sink.path is None:
            return held_without_place(sink)
        session = reach.session
        log = session._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, sink.path)
        # Scala's default arguments, by their generated names: their number differs between versions.
        defaults = (f"update$default${number}" for number in range(1, _arguments_of(log, "update") + 1))
        # Delta reads its log from the last checkpoint on, which repeats all transactions.
        snapshot = log.update(*(getattr(log, name)() for name in defaults))
        if int(snapshot.version()) < 0:
            return HeldBatches()  # no table is there yet
        noted = snapshot.transactions().get(query_id)
        return held_up_to(int(noted.get()) if noted.isDefined() else None, from_batch_id)

    def prepare(self, sink: Sink, next_batch_id: int, reach: SinkReach) -> tuple[str, ...]:
        return ()

    def warm(self, sink: Sink, row: Any, scratch_uri: str, reach: SinkReach) -> None:
        write_beside(sink, row, scratch_uri)

    def find_undo(self, sink: Sink, request: UndoOrder, reach: SinkReach) -> FoundUndo:
        path = path_to_undo(sink, request)
        versions = () if path is None else _versions(path, reach)
        return _Walk(sink, request, reach, versions).back() if versions else FoundUndo()

    def undo_batches(self, sink: Sink, request: UndoOrder, found: FoundUndo, reach: SinkReach) -> None:
        if sink.path is None or not found.target:
            return
        session = reach.session
        if session.conf.get(IGNORE_MISSING, "false") == "true":
            raise cannot_undo(f"{IGNORE_MISSING} lets RESTORE pass over files that are gone", sink, request)
        newest, target = found.marks["newest"], found.marks["target"]
        table = session._jvm.io.delta.tables.DeltaTable.forPath(session._jsparkSession, sink.path)
        table.restoreToVersion(target)
        # Another writer may have committed since ``find_undo``; RESTORE goes back from whatever is the newest.
        done = _read(sink.path, newest + 1, reach) if newest + 1 in _versions(sink.path, reach) else None
        if done is None or done.restored != target:
            raise written_meanwhile(sink, request, version=newest + 1)


@dataclass(frozen=True)
class _Commit:
    """One version of a table, from its log.

    Attributes:
        batches: query id -> batch id.
        restored: the version that it went back to; None if it did not.
        changes: it may change rows, columns or the rules of the table.
        operation: as Delta calls it.
    """

    batches: Mapping[str, int]
    restored: int | None
    changes: bool
    operation: str


class _Walk:
    """The way back through a table's history to the version that committed the batch."""

    def __init__(self, sink: Sink, request: UndoOrder, reach: SinkReach, versions: Sequence[int]) -> None:
        self._sink, self._wish, self._reach = sink, request, reach
        self._versions = frozenset(versions)
        self._newest = max(versions)

    def back(self) -> FoundUndo:
        """What was written since, newest version last; nothing where the table is at that version already.

        Raises:
            InvalidRequestError: as ``UndoingSink.find_undo``.
        """
        version = same_as = self._newest
        undone: list[tuple[int, int]] = []
        while True:
            commit = self._need(version)
            batch_id = self._batch_of(commit)
            if batch_id is not None and batch_id <= self._wish.to_batch_id:
                if batch_id < self._wish.to_batch_id:
                    raise self._refusal("its history does not show that batch", newest_batch_id_before=batch_id)
                return self._found(same_as, undone)
            if batch_id is not None:
                undone.append((batch_id, version))
            elif commit.restored is None and commit.changes:
                raise self._refusal(
                    "another writer changed the table since that batch, which RESTORE would undo, too",
                    version=version,
                    operation=commit.operation,
                )
            version = version - 1 if commit.restored is None else commit.restored
            if commit.restored is None:
                same_as = version

    def _found(self, same_as: int, undone: Sequence[tuple[int, int]]) -> FoundUndo:
        if not undone:
            return FoundUndo()
        return FoundUndo(
            tuple(sorted({batch_id for batch_id, _ in undone})),
            tuple(f"version {version} (batch {batch_id})" for batch_id, version in reversed(undone)),
            f"version {same_as}",
            {"newest": self._newest, "target": same_as},
        )

    def _batch_of(self, commit: _Commit) -> int | None:
        return next((commit.batches[query_id] for query_id in self._wish.query_ids if query_id in commit.batches), None)

    def _need(self, version: int) -> _Commit:
        if version < 0:
            raise self._refusal("its history does not show that batch")
        if version not in self._versions:
            raise self._refusal("its history does not reach back to that batch any more", missing_version=version)
        return _read(str(self._sink.path), version, self._reach)

    def _refusal(self, reason: str, **facts: object) -> Exception:
        return cannot_undo(reason, self._sink, self._wish, **facts)


def _log_of(path: str) -> str:
    return f"{path.rstrip('/')}/{LOG}"


def _versions(path: str, reach: SinkReach) -> list[int]:
    names = reach.names_in(_log_of(path)) or ()
    return sorted(int(name[:20]) for name in names if name.endswith(".json") and name[:-5].isdigit())


def _read(path: str, version: int, reach: SinkReach) -> _Commit:
    actions = [json.loads(line) for line in reach.read_text(f"{_log_of(path)}/{version:020}.json").splitlines() if line]
    info: Mapping[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    restored = info.get("operationParameters", {}).get("version")
    return _Commit(
        {txn["appId"]: int(txn["version"]) for action in actions for txn in [action.get("txn")] if txn},
        int(restored) if info.get("operation") == "RESTORE" and str(restored).isdigit() else None,
        any(_changes(action) for action in actions),
        str(info.get("operation", "unknown")),
    )


def _changes(action: Mapping[str, Any]) -> bool:
    if "metaData" in action or "protocol" in action:
        return True
    return any(action.get(kind, {}).get("dataChange", False) for kind in ("add", "remove", "cdc"))


def _arguments_of(log: object, method: str) -> int:
    counts = [
        int(found.getParameterCount())
        for found in log.getClass().getMethods()  # type: ignore[attr-defined]
        if found.getName() == method
    ]
    return max(counts)


_FORMATS = frozenset({"delta", "iceberg", "hudi", "paimon"})
_VERSION = "reservoirVersion"
_NOT_DELTA = "only the offsets of Delta say which version they are of"


class TableSource:
    """A source with the name of a table, or with a format of tables and a path."""

    name = "table"

    def identify(self, source: Source) -> str | None:
        if source.table:
            return f"table {source.table}"
        path = source.options.get("path")
        return f"table {source.format} {redact_uri(path.rstrip('/'))}" if source.format in _FORMATS and path else None

    def continues(self, source: Source, offset: str) -> bool:
        return False

    def compare(self, first: str, second: str) -> OffsetOrder:
        if first == second:
            return "same"
        if NO_OFFSET in (first, second):
            return "behind" if first == NO_OFFSET else "ahead"
        one, other = _fields(first), _fields(second)
        if one == other:
            return "same"
        if not all(name in offset for name in (_VERSION, "index") for offset in (one, other)):
            return "apart"  # an Iceberg snapshot's id shows nothing about its age
        at, other_at = ((offset[_VERSION], offset["index"]) for offset in (one, other))
        return "ahead" if at > other_at else "behind" if at < other_at else "same"

    def between(self, first: str, second: str) -> Lag | None:
        """In versions, for Delta; a part of one counts as one."""
        one, other = ({} if offset == NO_OFFSET else _fields(offset) for offset in (first, second))
        if any(_VERSION not in fields for fields in (one, other) if fields):
            return None
        if self.compare(first, second) != "behind":
            return Lag(0, "versions")
        return Lag(max(1, int(other[_VERSION]) - int(one.get(_VERSION, 0))), "versions")

    def open(self, source: Source, spark: SparkDoor) -> OpenTable:
        return OpenTable(source, spark)

    def remarks(self, source: Source) -> tuple[str, ...]:
        if self.passes_over_lost(source):
            return ("failOnDataLoss=false: versions that the table has no more are passed over without an error",)
        return ()

    def passes_over_lost(self, source: Source) -> bool:
        return source.options.get("failondataloss", "true").strip().lower() == "false"

    def explain(self, failure: str) -> str | None:
        return None


class OpenTable(UnaskedSource):
    """A table; its history is read by SQL."""

    def __init__(self, source: Source, spark: SparkDoor) -> None:
        super().__init__(_NOT_DELTA)
        self._source = source
        self._spark = spark

    def lag(self, offset: str) -> Lag | Untold | None:
        """In versions that are not fully read. An offset is before a version, or in it."""
        fields = {} if offset == NO_OFFSET else _fields(offset)
        if _VERSION not in fields:
            return Untold(_NOT_DELTA)
        newest = self._spark.session.sql(f"DESCRIBE HISTORY {self._name()} LIMIT 1").first()
        return Lag(max(0, int(newest["version"]) - int(fields[_VERSION]) + 1), "versions")

    def offset_at(self, moment: datetime, last: str) -> str | Untold:
        """Before the first version that was written at that moment or later."""
        fields = {} if last == NO_OFFSET else _fields(last)
        if _VERSION not in fields:
            return Untold(_NOT_DELTA)
        if int(fields.get("index", 0)) >= 0 or fields.get("isStartingVersion"):
            return Untold("its last offset is in the middle of a version")
        versions = self._spark.session.sql(f"DESCRIBE HISTORY {self._name()}").select("version", "timestamp").collect()
        since = [int(row["version"]) for row in versions if row["timestamp"].astimezone(timezone.utc) >= moment]
        first = min(since) if since else max(int(row["version"]) for row in versions) + 1
        return json.dumps({**fields, _VERSION: first}, separators=(",", ":"))

    def _name(self) -> str:
        return self._source.table or f"delta.`{self._source.options.get('path', '')}`"


def _fields(offset: str) -> dict[str, Any]:
    value = json.loads(offset)
    if isinstance(value, dict):
        return value
    raise ValueError(f"no offset of a table: {offset[:100]}")
