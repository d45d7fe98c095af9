"""Delta tables, with Delta's own classes played: the real ones are asked in ``tests/sinks``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_streamstate.connectors.sink import FoundUndo, HeldBatches, Sink, UndoOrder
from airflow_streamstate.connectors.tables import DeltaSink
from airflow_streamstate.connectors.testing import SinkPlace, check_sink, check_undo
from airflow_streamstate.errors import ConflictError, InvalidRequestError
from support.sink_reach import QUERY_ID, DictReach

TABLE = Sink("delta", "/data/table")


class _Option:
    def __init__(self, value: int | None) -> None:
        self._value = value

    def isDefined(self) -> bool:
        return self._value is not None

    def get(self) -> int | None:
        return self._value


class _Method:
    def getName(self) -> str:
        return "update"

    def getParameterCount(self) -> int:
        return 2


class _DeltaLog:
    """A table's log, whose ``update`` takes two arguments that have defaults; and all that leads to it in the JVM."""

    def __init__(self, transactions: dict[str, int], version: int = 7) -> None:
        self._transactions = transactions
        self._version = version
        self.updates: list[tuple[object, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("update$default$"):
            return lambda: name[-1]
        return self  # a package on the way to the class

    def forTable(self, session: object, path: str) -> _DeltaLog:
        assert path == "/data/table"
        return self

    def getClass(self) -> _DeltaLog:
        return self

    def getMethods(self) -> list[_Method]:
        return [_Method()]

    def update(self, *arguments: object) -> _DeltaLog:
        self.updates.append(arguments)
        return self

    def version(self) -> int:
        return self._version

    def transactions(self) -> _DeltaLog:
        return self

    def get(self, query_id: str) -> _Option:
        return _Option(self._transactions.get(query_id))


class _Reach(DictReach):
    """Of a table whose log is never listed: a busy one holds tens of thousands of files."""

    def __init__(self, log: _DeltaLog) -> None:
        super().__init__()
        self._jvm = self._jsparkSession = log

    def names_in(self, folder: str) -> tuple[str, ...] | None:
        raise AssertionError(f"{folder} was listed")


def test_it_keeps_what_an_connector_promises() -> None:
    """The suite for any connector."""
    written = SinkPlace(TABLE, _Reach(_DeltaLog({QUERY_ID: 4})), QUERY_ID, 4)
    check_sink(DeltaSink(), SinkPlace(TABLE, _Reach(_DeltaLog({}, version=-1))), written)


def test_the_table_is_asked_as_it_is_now() -> None:
    """Delta keeps what it read last: it is brought up to date first, with the defaults that its version has."""
    log = _DeltaLog({QUERY_ID: 3})
    assert list(DeltaSink().held_batches(TABLE, QUERY_ID, 0, _Reach(log)).batch_ids) == [0, 1, 2, 3]
    assert log.updates == [("1", "2")]


def test_a_table_that_is_not_there_holds_nothing_and_no_path_cannot_tell() -> None:
    """A table that is named and not there will be made."""
    assert DeltaSink().held_batches(Sink("delta", None, "db.t"), QUERY_ID, 0, DictReach()) == HeldBatches()
    assert DeltaSink().held_batches(Sink("delta"), QUERY_ID, 0, DictReach()).unknown_reason
    nowhere = _Reach(_DeltaLog({QUERY_ID: 4}, version=-1))
    assert DeltaSink().held_batches(TABLE, QUERY_ID, 0, nowhere) == HeldBatches()


def test_a_table_of_unknown_place_cannot_tell() -> None:
    """It is there, so it may hold anything: taken for empty, ids that it holds would be skipped. (Law 14)"""
    held = DeltaSink().held_batches(Sink("delta", None, "db.t", is_there=True), QUERY_ID, 0, DictReach())
    assert "does not state where it is stored" in held.unknown_reason


def test_a_table_by_its_name_is_asked_like_one_by_its_path() -> None:
    """By the place that its catalog names."""
    by_name = Sink("delta", "/data/table", "db.t", is_there=True)
    reach = _Reach(_DeltaLog({QUERY_ID: 4}))
    assert list(DeltaSink().held_batches(by_name, QUERY_ID, 3, reach).batch_ids) == [3, 4]


class _Table(_Reach):
    """A table in memory as its log has it, and ``RESTORE`` in the JVM."""

    def __init__(self) -> None:
        super().__init__(_DeltaLog({}))
        self._jvm: Any = self
        self.restored: list[int] = []
        self.before_restore: Callable[[], None] = lambda: None
        self.io = self.delta = self.tables = self.DeltaTable = self

    def names_in(self, folder: str) -> tuple[str, ...] | None:
        return DictReach.names_in(self, folder)

    @property
    def newest(self) -> int:
        return len([name for name in self.files if name.endswith(".json")]) - 1

    def commit(self, *actions: dict[str, Any]) -> int:
        """The next version."""
        version = self.newest + 1
        self.files[f"/data/table/_delta_log/{version:020}.json"] = "\n".join(map(json.dumps, actions)) + "\n"
        return version

    def batch(self, batch_id: int, query_id: str = QUERY_ID) -> int:
        """A version that a batch made, of new rows and a new column."""
        return self.commit(
            {"commitInfo": {"operation": "STREAMING UPDATE", "operationParameters": {"epochId": f"{batch_id}"}}},
            {"txn": {"appId": query_id, "version": batch_id}},
            {"metaData": {}},
            {"add": {"path": f"{batch_id}.parquet", "dataChange": True}},
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(_DeltaLog({QUERY_ID: 4}), name)

    def forPath(self, session: object, path: str) -> _Table:
        assert path == "/data/table"
        return self

    def restoreToVersion(self, version: int) -> None:
        self.before_restore()
        self.restored.append(version)
        info = {"operation": "RESTORE", "operationParameters": {"version": version, "timestamp": None}}
        self.commit({"commitInfo": info}, {"remove": {"path": "x", "dataChange": True}})


def _wish(to_batch_id: int, *query_ids: str) -> UndoOrder:
    return UndoOrder("u-1", to_batch_id, frozenset(query_ids or (QUERY_ID,)))


def _undo(table: _Table, request: UndoOrder) -> FoundUndo:
    found = DeltaSink().find_undo(TABLE, request, table)
    DeltaSink().undo_batches(TABLE, request, found, table)
    return found


def _written(newest: int) -> _Table:
    table = _Table()
    table.commit({"metaData": {}}, {"protocol": {}})
    for batch_id in range(newest + 1):
        table.batch(batch_id)
    return table


def test_it_keeps_what_an_undoing_connector_promises() -> None:
    """The suite for any connector."""
    check_undo(DeltaSink(), SinkPlace(TABLE, _written(4), QUERY_ID, 4), 1)


def test_law_14_the_table_is_restored_to_the_version_of_the_batch() -> None:
    """Once: a driver that dies behind it finds nothing to do."""
    table = _written(5)
    found = _undo(table, _wish(2))
    assert found.batch_ids == (3, 4, 5)
    assert found.removed == ("version 4 (batch 3)", "version 5 (batch 4)", "version 6 (batch 5)")
    assert table.restored == [3]
    assert _undo(table, _wish(2)) == FoundUndo()
    assert table.restored == [3]


def test_law_14_going_back_again_leads_over_the_restore_before() -> None:
    """Batches of a different query id, and of the id before it; the version is the nearest one with the same rows."""
    table = _written(5)
    _undo(table, _wish(2))
    for batch_id in (3, 4):
        table.batch(batch_id, "another-of-ours")
    found = _undo(table, _wish(2, QUERY_ID, "another-of-ours"))
    assert found.batch_ids == (3, 4)
    assert table.restored == [3, 7]
    assert _undo(table, _wish(1, QUERY_ID, "another-of-ours")).batch_ids == (2,)
    assert table.restored == [3, 7, 2]


@pytest.mark.parametrize(
    "actions",
    [
        ({"commitInfo": {"operation": "WRITE"}}, {"add": {"path": "theirs", "dataChange": True}}),
        ({"commitInfo": {"operation": "DELETE"}}, {"remove": {"path": "1.parquet", "dataChange": True}}),
        ({"commitInfo": {"operation": "SET TBLPROPERTIES"}}, {"metaData": {}}),
        ({"txn": {"appId": "anothers", "version": 9}}, {"add": {"path": "theirs", "dataChange": True}}),
        ({"commitInfo": {"operation": "RESTORE", "operationParameters": {"timestamp": "2026"}}}, {"metaData": {}}),
    ],
)
def test_law_14_what_another_writer_changed_since_is_not_taken_back(actions: tuple[dict[str, Any], ...]) -> None:
    """Wherever it is above the batch; named by its version and operation."""
    table = _written(3)
    version = table.commit(*actions)
    table.batch(4)
    with pytest.raises(InvalidRequestError, match="another writer changed the table") as caught:
        _undo(table, _wish(2))
    assert caught.value.context["version"] == version
    assert table.restored == []
    assert _undo(table, _wish(3 + 1)) == FoundUndo()


def test_the_same_rows_in_other_files_are_no_other_writers() -> None:
    """``OPTIMIZE`` changes no row."""
    table = _written(3)
    moved = {"path": "x", "dataChange": False}
    table.commit({"commitInfo": {"operation": "OPTIMIZE"}}, {"remove": moved}, {"add": moved})
    assert _undo(table, _wish(2)).batch_ids == (3,)


def test_law_14_a_history_that_does_not_reach_back_is_refused() -> None:
    """Its entries were removed in time; or the table never had that batch."""
    table = _written(5)
    del table.files[f"/data/table/_delta_log/{4:020}.json"]
    with pytest.raises(InvalidRequestError, match="does not reach back"):
        DeltaSink().find_undo(TABLE, _wish(1), table)
    gap = _written(1)
    gap.batch(4)
    with pytest.raises(InvalidRequestError, match="does not show that batch"):
        _undo(gap, _wish(2))
    with pytest.raises(InvalidRequestError, match="another writer changed"):
        _undo(_written(1), _wish(-1))  # what made the table is not of the query
    assert gap.restored == []


def test_a_write_between_the_look_and_the_act_is_told() -> None:
    """RESTORE goes back from the newest version, whatever it is."""
    table = _written(3)
    table.before_restore = lambda: str(table.commit({"add": {"path": "theirs", "dataChange": True}}))
    with pytest.raises(ConflictError, match="wrote to the sink while it was undone"):
        _undo(table, _wish(2))


def test_restoring_what_is_gone_is_refused() -> None:
    """Spark can be configured to pass over missing files: then RESTORE would not report them."""
    table = _written(3)
    table.settings["spark.sql.files.ignoreMissingFiles"] = "true"
    with pytest.raises(InvalidRequestError, match="ignoreMissingFiles"):
        _undo(table, _wish(2))
    assert table.restored == []


def test_no_table_has_nothing_to_undo_and_no_place_cannot_be_undone() -> None:
    """As everywhere."""
    assert DeltaSink().find_undo(Sink("delta", None, "db.t"), _wish(2), DictReach()) == FoundUndo()
    assert DeltaSink().find_undo(TABLE, _wish(2), DictReach()) == FoundUndo()
    with pytest.raises(InvalidRequestError, match="its location is unknown"):
        DeltaSink().find_undo(Sink("delta", None, "db.t", is_there=True), _wish(2), DictReach())
