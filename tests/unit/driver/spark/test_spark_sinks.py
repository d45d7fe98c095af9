"""Asking a writer's sink."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

pytest.importorskip("pyspark")

from airflow_streamstate.connectors.registry import SINKS, find_connectors
from airflow_streamstate.connectors.sink import (
    FoundUndo,
    HeldBatches,
    Sink,
    SinkConnector,
    SinkReach,
    UndoOrder,
    connector_for,
)
from airflow_streamstate.driver.spark.spark_sinks import AskedSink, read_sink
from airflow_streamstate.errors import ConflictError, InvalidRequestError, UnavailableError


class _Broken:
    """A third-party connector whose every answer is an error."""

    name, skips, undo = "broken", "unknown", "unknown"

    def matches(self, sink: Sink) -> bool:
        return True

    def held_batches(self, sink: Sink, query_id: str | None, from_batch_id: int, reach: SinkReach) -> HeldBatches:
        raise ZeroDivisionError("of theirs\nsecond line")

    def prepare(self, sink: Sink, next_batch_id: int, reach: SinkReach) -> tuple[str, ...]:
        raise PermissionError("read only")


class _Asked(AskedSink):
    """Of a sink that was read already, with these connectors."""

    def __init__(self, sink: Sink, *connectors: Any) -> None:
        self.sink = sink
        self.connectors = connectors
        self._reach: Any = None

    def _sink(self) -> Sink:
        return self.sink

    def _connector(self, sink: Sink) -> SinkConnector | None:
        return connector_for(sink, self.connectors)


def test_an_connector_that_fails_cannot_tell() -> None:
    """Its error becomes the reason, in one line, and never ends the stream."""
    held = _Asked(Sink("x"), _Broken()).held_batches(None, 0)
    assert held.unknown_reason == "it could not be asked: ZeroDivisionError: of theirs"
    assert not held.lacks(0)


def test_a_sink_that_cannot_be_made_ready_stops_the_start() -> None:
    """The query would die later, with unreadable output."""
    with pytest.raises(UnavailableError) as caught:
        _Asked(Sink("x"), _Broken()).prepare(14)
    assert caught.value.context["reason"] == "PermissionError: read only"


class _NoCatalog(_Asked):
    """A table whose catalog does not answer."""

    def __init__(self, stated: Sink, catalog: str = "spark_catalog") -> None:
        super().__init__(stated, *find_connectors(SINKS, SinkConnector).connectors)
        self._catalog = catalog

    def _sink(self) -> Sink:
        raise TimeoutError("the metastore does not answer")

    @property
    def _stated(self) -> Sink:  # type: ignore[override]
        return self.sink

    def _catalog_of(self, table: str) -> str:
        return self._catalog


@pytest.mark.parametrize("name", ["delta", "iceberg", "kafka", "memory", "redis"])
def test_a_sink_that_needs_nothing_starts_where_its_catalog_cannot_be_read(name: str) -> None:
    """Only the log of an output folder has to be made ready: a table that reports that it is none needs nothing."""
    assert _NoCatalog(Sink(name, table="db.t")).prepare(14) == ()


def test_a_table_that_may_be_of_files_does_not_start_where_its_catalog_cannot_be_read() -> None:
    """Its log may need preparation, but at batch 0."""
    of_files = Sink("parquet", "/from/an/option", "db.t")
    with pytest.raises(UnavailableError) as caught:
        _NoCatalog(of_files).prepare(14)
    assert caught.value.context["reason"] == "TimeoutError: the metastore does not answer"
    assert _NoCatalog(of_files, "lake").prepare(14) == ()
    assert _NoCatalog(of_files).prepare(0) == ()


def test_what_an_connector_says_of_itself_is_not_cut() -> None:
    """Secrets are hidden later, and a cut one would not be recognised."""

    class Wordy(_Broken):
        def held_batches(self, *_given: object) -> Any:
            raise RuntimeError("x" * 290 + "hunter2-secret")

    assert _Asked(Sink("x"), Wordy()).held_batches(None, 0).unknown_reason.endswith("xhunter2-secret")


def test_a_sink_that_nobody_knows_is_left_alone() -> None:
    """It cannot answer, and gets nothing."""
    asked = _Asked(Sink("redis"))
    assert "redis" in asked.held_batches(None, 0).unknown_reason
    assert asked.prepare(14) == ()


def test_our_connectors_are_found_by_their_entry_points() -> None:
    """Each of them, and each its own kind."""
    found = find_connectors(SINKS, SinkConnector)
    names = {connector.name for connector in found.connectors}
    assert names >= {"file", "delta", "iceberg", "kafka", "foreachBatch", "memory", "console", "noop"}
    assert found.problems == ()
    formats = ("json", "delta", "iceberg", "kafka", "foreachbatch", "memory", "console", "noop")
    assert [connector_for(Sink(name), found.connectors) is not None for name in formats] == [True] * 8


class _Session:
    """A session whose catalog has one table with this description."""

    def __init__(self, *said: tuple[str, str]) -> None:
        self.catalog = self
        self._said = [{"col_name": name, "data_type": value} for name, value in said]

    def tableExists(self, name: str) -> bool:
        return name == "lake.db.t"

    def sql(self, _text: str) -> _Session:
        return self

    def collect(self) -> list[dict[str, str]]:
        return self._said


def test_a_table_is_what_its_catalog_says() -> None:
    """Format and place; without a catalog entry, as the writer states it."""
    stated = Sink("parquet", None, "lake.db.t")
    told = read_sink(_Session(("v", "bigint"), ("Provider", "DELTA"), ("Location", "file:/a")), stated)
    assert (told.format, told.path, told.is_there) == ("delta", "file:/a", True)
    silent = read_sink(_Session(), stated)
    assert connector_for(silent, find_connectors(SINKS, SinkConnector).connectors) is None
    assert silent.is_there
    assert read_sink(_Session(), dataclasses.replace(stated, format="iceberg")).format == "iceberg"
    elsewhere = dataclasses.replace(stated, table="lake.db.other")
    assert read_sink(_Session(), elsewhere) == elsewhere


ORDER = UndoOrder("u-1", 3, frozenset({"q"}))


class _Undoing(_Broken):
    """One that reports it can undo, and fails at it."""

    undo_needs_query_id = True

    def find_undo(self, sink: Sink, order: UndoOrder, reach: SinkReach) -> FoundUndo:
        raise PermissionError("no list\nsecond line")

    def undo_batches(self, sink: Sink, order: UndoOrder, found: FoundUndo, reach: SinkReach) -> None:
        raise InvalidRequestError("in its own words")


def test_an_undo_that_fails_stops_the_start_in_one_sentence() -> None:
    """What Spark or Hadoop raises becomes its reason; what a connector refuses stays as it is."""
    asked = _Asked(Sink("x"), _Undoing())
    assert asked.undo_means() == "exact by undo"
    assert asked.undo_needs_query_id()
    with pytest.raises(ConflictError, match="nothing was undone") as caught:
        asked.find_undo(ORDER)
    assert caught.value.context == {"to_batch_id": 3, "reason": "PermissionError: no list"}
    with pytest.raises(InvalidRequestError, match="in its own words"):
        asked.undo_batches(ORDER, FoundUndo((4,), (), "there"))


def test_a_table_whose_catalog_does_not_answer_is_not_undone() -> None:
    """What the writer alone reports may be another sink, which remembers other things. (Law 14)"""
    asked = _NoCatalog(Sink("parquet", None, "lake.db.t"))
    for ask in (lambda: asked.find_undo(ORDER), asked.undo_needs_query_id):
        with pytest.raises(ConflictError, match="could not be looked at"):
            ask()


def test_a_sink_that_is_another_one_than_before_is_not_undone() -> None:
    """Nor is one without a connector."""
    assert _Asked(Sink("x"), _Broken()).undo_means() == "unknown"
    assert not _Asked(Sink("x"), _Broken()).undo_needs_query_id()
    with pytest.raises(InvalidRequestError, match="it has changed since the last look"):
        _Asked(Sink("x"), _Broken()).find_undo(ORDER)


class _Warmed(_Broken):
    """Answers, and writes where it is configured to, or fails at it."""

    skips = "batch_id"

    def __init__(self, problem: Exception | None = None) -> None:
        self.asked: list[str | None] = []
        self.written: list[tuple[Any, str]] = []
        self._problem = problem

    def held_batches(self, sink: Sink, query_id: str | None, from_batch_id: int, reach: SinkReach) -> HeldBatches:
        self.asked.append(query_id)
        return HeldBatches()

    def warm(self, sink: Sink, row: Any, scratch_uri: str, reach: SinkReach) -> None:
        self.written.append((row, scratch_uri))
        if self._problem is not None:
            raise self._problem


def test_a_sink_that_is_warmed_is_asked_and_then_written_beside() -> None:
    """As a start asks it, under the id of its query."""
    connector = _Warmed()
    assert _Asked(Sink("x"), connector).warm("an id", lambda: "a row", "file:/scratch") == ()
    assert (connector.asked, connector.written) == (["an id"], [("a row", "file:/scratch")])


def test_what_of_a_sink_stays_cold_is_said_and_never_raised() -> None:
    """One part may fail and the other not; of a sink that never can answer, that it cannot is no news."""
    connector = _Warmed(ValueError("no such codec\nsecond line"))
    said = _Asked(Sink("x"), connector).warm("an id", lambda: "a row", "file:/scratch")
    assert (said, connector.asked) == (("what writes to it: ValueError: no such codec",), ["an id"])

    class Mute(_Broken):
        skips = "batch_id"

    said = _Asked(Sink("x"), Mute()).warm("an id", lambda: "a row", "file:/scratch")
    assert said == ("what it holds: it could not be asked: ZeroDivisionError: of theirs",)
    assert _Asked(Sink("x"), _Broken()).warm("an id", lambda: "a row", "file:/scratch") == ()
    assert _Asked(Sink("redis")).warm("an id", lambda: "a row", "file:/scratch") == ()
    (said_of_table,) = _NoCatalog(Sink("parquet", table="db.t")).warm("an id", lambda: "a row", "file:/scratch")
    assert said_of_table == "what writes to it: TimeoutError: the metastore does not answer"
