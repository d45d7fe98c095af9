"""Delta Lake's sink: each commit of a batch notes the query id and the batch id (``SetTransaction``).

An id up to the newest that is noted for a query is skipped, and ``RESTORE`` of the table does not take the note back.
Another query id is another query: a start that brings a new one is skipped nothing.

It is undone by ``RESTORE`` to the version that committed the batch, by what its own log says: from the newest version
down, each one is of the query, or changes no row, or is somebody else's, whose rows ``RESTORE`` would drop.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_streamstate.connectors.sink import HeldBatches, Sink, SinkReach, Skips, held_up_to, held_where_nobody_says
from airflow_streamstate.connectors.undoing import FoundUndo, UndoWish, cannot_undo, written_meanwhile
from airflow_streamstate.connectors.warming import write_beside

LOG = "_delta_log"
IGNORE_MISSING = "spark.sql.files.ignoreMissingFiles"


class DeltaSink:
    """Delta tables by path or by name. Implements ``UndoingSink`` and ``WarmingSink``."""

    name = "delta"
    skips: Skips = "query_id_and_batch_id"
    undo = "`RESTORE` the table, and go on under a new query id: `RESTORE` does not take back which batches it holds"
    undo_needs_query_id = True

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

    def warm(self, sink: Sink, row: Any, scratch_uri: str, reach: SinkReach) -> None:
        write_beside(sink, row, scratch_uri)

    def find_undo(self, sink: Sink, wish: UndoWish, reach: SinkReach) -> FoundUndo:
        if sink.path is None:
            if sink.table is not None and not sink.is_there:
                return FoundUndo()
            raise cannot_undo("nobody says where it lies", sink, wish)
        versions = _versions(sink.path, reach)
        return _Walk(sink, wish, reach, versions).back() if versions else FoundUndo()

    def undo_batches(self, sink: Sink, wish: UndoWish, found: FoundUndo, reach: SinkReach) -> None:
        if sink.path is None or not found.target:
            return
        session = reach.session
        if session.conf.get(IGNORE_MISSING, "false") == "true":
            raise cannot_undo(f"{IGNORE_MISSING} lets RESTORE pass over files that are gone", sink, wish)
        newest, target = found.marks["newest"], found.marks["target"]
        table = session._jvm.io.delta.tables.DeltaTable.forPath(session._jsparkSession, sink.path)
        table.restoreToVersion(target)
        # Between the look and the act there may have been somebody: RESTORE goes back from whatever is the newest then.
        done = _read(sink.path, newest + 1, reach) if newest + 1 in _versions(sink.path, reach) else None
        if done is None or done.restored != target:
            raise written_meanwhile(sink, wish, version=newest + 1)


@dataclass(frozen=True)
class _Commit:
    """One version of a table, as its log says.

    Attributes:
        batches: query id -> batch id.
        restored: the version that it went back to; None where it did not.
        changes: rows, columns or the rules of the table may be others than before.
        operation: as Delta calls it.
    """

    batches: Mapping[str, int]
    restored: int | None
    changes: bool
    operation: str


class _Walk:
    """The way back through a table's history to the version that committed the batch."""

    def __init__(self, sink: Sink, wish: UndoWish, reach: SinkReach, versions: Sequence[int]) -> None:
        self._sink, self._wish, self._reach = sink, wish, reach
        self._versions = frozenset(versions)
        self._newest = max(versions)

    def back(self) -> FoundUndo:
        """What was written since, newest version last; nothing to do where the table is there already.

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
                    "somebody else changed the table since that batch, which RESTORE would take back, too",
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
    return _Commit(
        {txn["appId"]: int(txn["version"]) for action in actions for txn in [action.get("txn")] if txn},
        _restored_version(info),
        any(_changes(action) for action in actions),
        str(info.get("operation", "unknown")),
    )


def _restored_version(info: Mapping[str, Any]) -> int | None:
    version = info.get("operationParameters", {}).get("version")
    return int(version) if info.get("operation") == "RESTORE" and str(version).isdigit() else None


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
