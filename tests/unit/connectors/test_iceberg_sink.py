"""Iceberg tables, with Iceberg's own classes played: the real ones are asked in ``tests/sinks``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_streamstate.connectors.sink import FoundUndo, HeldBatches, Sink, UndoOrder
from airflow_streamstate.connectors.tables import EPOCH_ID, LOOKS, QUERY_ID, IcebergSink
from airflow_streamstate.connectors.testing import OTHER_QUERY_ID, SinkPlace, check_sink, check_undo
from airflow_streamstate.errors import ConflictError, InvalidRequestError
from support import sink_reach
from support.sink_reach import DictReach

TABLE = Sink("iceberg", "/data/table", "lake.db.t")


class _Snapshot:
    def __init__(self, number: int, summary: dict[str, str]) -> None:
        self._number = number
        self._summary = summary

    def snapshotId(self) -> int:
        return self._number

    def summary(self) -> dict[str, str]:
        return self._summary

    def operation(self) -> str:
        return self._summary.get("operation", "append")

    def parentId(self) -> int | None:
        return self._number - 1 if self._number else None


class _Table:
    """A table whose snapshots have these summaries, and all that leads to it in the JVM and the session."""

    def __init__(
        self,
        *summaries: dict[str, str],
        named: bool = True,
        branches: dict[str, int] | None = None,
        conf: dict[str, str] | None = None,
        properties: dict[str, str] | None = None,
    ) -> None:
        self._snapshots = [_Snapshot(number, summary) for number, summary in enumerate(summaries)]
        self.catalog = self
        self.conf = conf or {}
        self._branches = branches or {}
        self._properties = properties or {}
        self._named = named
        self.loaded: list[str] = []
        self.unseen = 0
        self.looked_at = 0
        self.main = len(self._snapshots)

    def __getattr__(self, name: str) -> Any:
        return self  # a package on the way to a class

    def __call__(self, *_: object) -> _Table:
        return self

    def tableExists(self, name: str) -> bool:
        return self._named

    def exists(self, path: str) -> bool:
        return True

    def load(self, path: str) -> _Table:
        self.loaded.append(path)
        return self

    def loadIcebergTable(self, session: object, name: str) -> _Table:
        self.loaded.append(name)
        return self

    def refresh(self) -> None:
        self.unseen = 0

    def currentSnapshot(self) -> _Snapshot | None:
        seen = self._snapshots[: self.main - self.unseen]
        return seen[-1] if seen else None

    def snapshot(self, which: int | str) -> _Snapshot | None:
        self.looked_at += 1
        if isinstance(which, str):
            return self._snapshots[self._branches[which]] if which in self._branches else None
        return self._snapshots[which]

    def properties(self) -> dict[str, str]:
        return self._properties

    def toJson(self, _metadata: object) -> str:
        listed: list[dict[str, Any]] = []
        for number, one in enumerate(self._snapshots):
            listed.append({"snapshot-id": number, "parent-snapshot-id": one.parentId(), "summary": one.summary()})
        return json.dumps({"snapshots": listed})


class _Reach(DictReach):
    def __init__(self, table: _Table) -> None:
        super().__init__()
        self._table = table

    @property
    def session(self) -> Any:
        return self._table


def _batch(batch_id: int, query_id: str = sink_reach.QUERY_ID) -> dict[str, str]:
    return {QUERY_ID: query_id, EPOCH_ID: str(batch_id)}


def test_it_keeps_what_an_connector_promises() -> None:
    """The suite for any connector."""
    written = SinkPlace(TABLE, _Reach(_Table(*map(_batch, range(5)))), sink_reach.QUERY_ID, 4)
    check_sink(IcebergSink(), SinkPlace(TABLE, _Reach(_Table(named=False))), written)


def test_the_newest_of_this_query_is_found_below_what_others_wrote() -> None:
    """Compactions and other writers make snapshots, too."""
    table = _Table(_batch(3), _batch(4), {"operation": "replace"}, _batch(9, OTHER_QUERY_ID))
    held = IcebergSink().held_batches(TABLE, sink_reach.QUERY_ID, 0, _Reach(table))
    assert list(held.batch_ids) == [0, 1, 2, 3, 4]
    assert table.loaded == ["lake.db.t"]


def test_a_table_by_its_path_is_found_there() -> None:
    """Without a catalog; a name without a slash is one of a catalog."""
    table = _Table(_batch(1))
    by_path, by_name = Sink("iceberg", "/data/table"), Sink("iceberg", "db.t")
    for sink in (by_path, by_name):
        assert list(IcebergSink().held_batches(sink, sink_reach.QUERY_ID, 1, _Reach(table)).batch_ids) == [1]
    assert table.loaded == ["/data/table", "db.t"]


def test_a_table_without_a_snapshot_holds_nothing() -> None:
    """It was made and never written to."""
    assert IcebergSink().held_batches(TABLE, sink_reach.QUERY_ID, 0, _Reach(_Table())).lacks(0)


def test_a_commit_whose_reply_was_lost_is_seen() -> None:
    """A catalog keeps the table as it was last known to it, also where a commit landed and its answer did not: taken
    for not held, a flush would be undone, and its id skipped later with other rows. (Law 14)"""
    table = _Table(_batch(3), _batch(4))
    table.unseen = 1
    held = IcebergSink().held_batches(TABLE, sink_reach.QUERY_ID, 4, _Reach(table))
    assert list(held.batch_ids) == [4]


@pytest.mark.parametrize(
    ("sink", "conf", "properties"),
    [
        (Sink("iceberg", None, "lake.db.t.branch_audit"), {}, {}),
        (Sink("iceberg", None, "lake.db.t.`branch_audit`"), {}, {}),
        (Sink("iceberg", None, "lake.db.t", {"branch": "audit"}), {}, {}),
        (TABLE, {"spark.wap.branch": "audit"}, {"write.wap.enabled": "true"}),
    ],
)
def test_a_branch_is_asked_for_what_it_holds(sink: Sink, conf: dict[str, str], properties: dict[str, str]) -> None:
    """By the table's name, by an option, by the session; what the table itself got of the query counts as well."""
    batches = [_batch(number) for number in range(6)]
    table = _Table(*batches, branches={"audit": 5}, conf=conf, properties=properties)
    table.main = 3
    assert list(IcebergSink().held_batches(sink, sink_reach.QUERY_ID, 0, _Reach(table)).batch_ids) == [*range(6)]
    table = _Table(*batches, branches={"audit": 1}, conf=conf, properties=properties)
    assert list(IcebergSink().held_batches(sink, sink_reach.QUERY_ID, 4, _Reach(table)).batch_ids) == [4, 5]


def test_a_branch_is_not_asked_where_nothing_is_written_to_it() -> None:
    """The session's branch counts only for tables that ask for it; a branch that is not there yet holds nothing."""
    batches = [_batch(number) for number in range(6)]
    table = _Table(*batches, branches={"audit": 5}, conf={"spark.wap.branch": "audit"})
    table.main = 3
    assert list(IcebergSink().held_batches(TABLE, sink_reach.QUERY_ID, 0, _Reach(table)).batch_ids) == [0, 1, 2]
    new = Sink("iceberg", None, "lake.db.t.branch_new")
    assert list(IcebergSink().held_batches(new, sink_reach.QUERY_ID, 0, _Reach(table)).batch_ids) == [0, 1, 2]


def test_what_is_staged_cannot_be_told() -> None:
    """Written under an id to be published later it is in no history."""
    table = _Table(_batch(1), conf={"spark.wap.id": "w1"}, properties={"write.wap.enabled": "true"})
    held = IcebergSink().held_batches(TABLE, sink_reach.QUERY_ID, 0, _Reach(table))
    assert "spark.wap.id" in held.unknown_reason
    assert not held.lacks(2)


def test_a_long_history_is_read_in_one_go() -> None:
    """The newest batch of a query is mostly at hand; a table that others wrote to thousands of times is not asked for
    each of its snapshots."""
    others = [_batch(number, OTHER_QUERY_ID) for number in range(2000)]
    table = _Table(_batch(7), *others)
    assert list(IcebergSink().held_batches(TABLE, sink_reach.QUERY_ID, 7, _Reach(table)).batch_ids) == [7]
    assert table.looked_at <= LOOKS
    assert IcebergSink().held_batches(TABLE, "unheard-of", 0, _Reach(_Table(*others))) == HeldBatches()


class _RolledBack(_Table):
    """A table that can be rolled back, and knows what was its newest snapshot before."""

    def __init__(self, *summaries: dict[str, str], **named: Any) -> None:
        super().__init__(*summaries, **named)
        self.rollbacks: list[int] = []
        self._history = list(self._snapshots)
        self.before_rollback: Callable[[], None] = lambda: None

    def manageSnapshots(self) -> _RolledBack:
        return self

    def rollbackTo(self, snapshot_id: int) -> _RolledBack:
        self.before_rollback()
        self.rollbacks.append(snapshot_id)
        return self

    def commit(self) -> None:
        self.main = self.rollbacks[-1] + 1
        self._history.append(self._snapshots[self.rollbacks[-1]])

    def history(self) -> list[_Snapshot]:
        return self._history

    def write(self, summary: dict[str, str]) -> None:
        self._snapshots.append(_Snapshot(len(self._snapshots), summary))
        self._history.append(self._snapshots[-1])
        self.main = len(self._snapshots)


def _wish(to_batch_id: int) -> UndoOrder:
    return UndoOrder("u-1", to_batch_id, frozenset({sink_reach.QUERY_ID}))


def _undo(table: _RolledBack, to_batch_id: int, sink: Sink = TABLE) -> FoundUndo:
    reach = _Reach(table)
    found = IcebergSink().find_undo(sink, _wish(to_batch_id), reach)
    IcebergSink().undo_batches(sink, _wish(to_batch_id), found, reach)
    return found


def test_it_keeps_what_an_undoing_connector_promises() -> None:
    """The suite for any connector."""
    table = _RolledBack(*map(_batch, range(5)))
    check_undo(IcebergSink(), SinkPlace(TABLE, _Reach(table), sink_reach.QUERY_ID, 4), 1)


def test_law_14_the_table_is_rolled_back_to_the_snapshot_of_the_batch() -> None:
    """Once, over what holds the same rows in other files; what is out of its history is not held."""
    table = _RolledBack(*map(_batch, range(3)), {"operation": "replace"}, _batch(3), _batch(4))
    found = _undo(table, 1)
    assert found.batch_ids == (2, 3, 4)
    assert found.removed == ("snapshot 2 (batch 2)", "snapshot 4 (batch 3)", "snapshot 5 (batch 4)")
    assert table.rollbacks == [1]
    assert IcebergSink().held_batches(TABLE, sink_reach.QUERY_ID, 2, _Reach(table)).lacks(2)
    assert _undo(table, 1) == FoundUndo()
    assert table.rollbacks == [1]


def test_law_14_what_cannot_be_rolled_back_exactly_is_refused() -> None:
    """Another writer's rows; a batch that the history does not show; a branch, and what is staged."""
    theirs = _RolledBack(_batch(0), _batch(1), {"operation": "append"}, _batch(2))
    with pytest.raises(InvalidRequestError, match="another writer changed") as caught:
        _undo(theirs, 0)
    assert caught.value.context["snapshot_id"] == 2
    with pytest.raises(InvalidRequestError, match="does not show that batch"):
        _undo(_RolledBack(_batch(0), _batch(3)), 1)
    with pytest.raises(InvalidRequestError, match="does not reach back"):
        _undo(_RolledBack(_batch(2), _batch(3)), 1)
    branch = Sink("iceberg", "/data/table", "lake.db.t", {"branch": "b"})
    with pytest.raises(InvalidRequestError, match="outside of a table's own history"):
        _undo(_RolledBack(_batch(0), _batch(1)), 0, branch)
    assert theirs.rollbacks == []
    assert _undo(_RolledBack(named=False), 1) == FoundUndo()
    assert _undo(_RolledBack(), 1) == FoundUndo()


def test_a_write_between_the_look_and_the_rollback_is_told() -> None:
    """What he added is undone with the rest."""
    table = _RolledBack(_batch(0), _batch(1))
    table.before_rollback = lambda: table.write({"operation": "append"})
    with pytest.raises(ConflictError, match="wrote to the sink while it was undone") as caught:
        _undo(table, 0)
    assert caught.value.context["snapshot_id"] == 2
