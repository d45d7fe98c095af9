"""Delta tables, with Delta's own classes played: the real ones are asked in ``tests/sinks``."""

from __future__ import annotations

from typing import Any

from airflow_streamstate.adapters.delta_sink import DeltaSink
from airflow_streamstate.adapters.sink import HeldBatches, Sink
from airflow_streamstate.adapters.sink_conformance import SinkPlace, check_sink
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
    """Of a table whose log nobody lists: a busy one holds tens of thousands of files."""

    def __init__(self, log: _DeltaLog) -> None:
        super().__init__()
        self._jvm = self._jsparkSession = log

    def names_in(self, folder: str) -> tuple[str, ...] | None:
        raise AssertionError(f"{folder} was listed")


def test_it_keeps_what_an_adapter_promises() -> None:
    """The suite that anybody's adapter can be held to."""
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


def test_a_table_whose_place_nobody_says_cannot_tell() -> None:
    """It is there, so it may hold anything: taken for empty, ids that it holds would be skipped. (Law 14)"""
    held = DeltaSink().held_batches(Sink("delta", None, "db.t", is_there=True), QUERY_ID, 0, DictReach())
    assert "does not say where it lies" in held.unknown_reason


def test_a_table_by_its_name_is_asked_like_one_by_its_path() -> None:
    """By the place that its catalog says."""
    by_name = Sink("delta", "/data/table", "db.t", is_there=True)
    reach = _Reach(_DeltaLog({QUERY_ID: 4}))
    assert list(DeltaSink().held_batches(by_name, QUERY_ID, 3, reach).batch_ids) == [3, 4]
