"""A partitioned source of rows in memory, and a planner of it whose every part can fail on purpose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from pyspark.sql.types import StructType

from airflow_streamstate.sources.interface import Json, Part, PartitionedSource, PlannedEnd, PlannedPart, SourceSettings
from airflow_streamstate.sources.offsets import RowFormat, SourceOffset, Spool, from_json, to_json
from airflow_streamstate.sources.planner import Planner
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.memory import MemoryStore
from support.fake_clock import FakeClock

MIDNIGHT = datetime(2026, 1, 1, tzinfo=timezone.utc)
SCHEMA = StructType().add("n", "long").add("at", "timestamp")


def numbers(first: int, last: int, *, minute: float = 0.0) -> list[tuple[int, datetime]]:
    """Rows from ``first`` to ``last``, a second apart, from a minute on."""
    return [(n, MIDNIGHT + timedelta(minutes=minute, seconds=n)) for n in range(first, last + 1)]


@dataclass
class Shelf:
    """What the parts hold, and what goes wrong.

    Attributes:
        parts: rows by part; more may be added.
        ended: the parts that will get no more rows.
        failing: what is raised, by ``list_parts`` or the name of a part, as often as the list is long.
        built: the parts that were built, each with the state.
        suspended: the parts that were suspended.
    """

    parts: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    failing: dict[str, list[Exception]] = field(default_factory=dict)
    built: list[tuple[str, Json]] = field(default_factory=list)
    suspended: list[str] = field(default_factory=list)
    polls: list[tuple[str, int]] = field(default_factory=list)

    def may_fail(self, what: str) -> None:
        if self.failing.get(what):
            raise self.failing[what].pop(0)


class ListedSource(PartitionedSource):
    """Polled parts whose state is the number of rows that were given."""

    schema = "n long, at timestamp"
    event_time = "at"
    planned = False

    def __init__(self, shelf: Shelf, *, vanished: Literal["error", "finished"] = "error") -> None:
        super().__init__({})
        self.shelf = shelf
        self.vanished = vanished

    def list_parts(self) -> Iterable[str]:
        self.shelf.may_fail("list_parts")
        return list(self.shelf.parts)

    def build_part(self, part: str, state: Json) -> Part:
        self.shelf.built.append((part, state))
        return (ListedPlannedPart if self.planned else ListedPart)(self.shelf, part, state or 0)


class PlannedSource(ListedSource):
    """The same rows, of parts that know where a read will end."""

    planned = True


class ListedPart(Part):
    def __init__(self, shelf: Shelf, name: str, given: int) -> None:
        self.shelf, self.name, self.given = shelf, name, given

    def poll(self, limit: int) -> Iterable[Any]:
        self.shelf.may_fail(self.name)
        self.shelf.polls.append((self.name, limit))
        rows = self.shelf.parts[self.name][self.given : self.given + limit]
        self.given += len(rows)
        return rows

    def snapshot(self) -> Json:
        return self.given or None

    def is_finished(self) -> bool:
        return self.name in self.shelf.ended and self.given == len(self.shelf.parts[self.name])

    def suspend(self) -> None:
        self.shelf.suspended.append(self.name)

    def behind(self) -> int:
        return len(self.shelf.parts[self.name]) - self.given


class ListedPlannedPart(ListedPart, PlannedPart):
    def plan_end(self, limit: int | None) -> PlannedEnd | None:
        self.shelf.may_fail(self.name)
        rows = self.shelf.parts[self.name][self.given :][: limit or None]
        if not rows:
            return None
        self.given += len(rows)
        return PlannedEnd(self.given, len(rows), rows[0][1], rows[-1][1])

    def read(self, end: Json) -> Iterable[Any]:
        return iter(self.shelf.parts[self.name][self.given : end])


class Reading:
    """A query's view of a planner: batches, each planned, written down as Spark does, and read.

    Args:
        store: of the spool; shared by readings that share it.
    """

    def __init__(
        self,
        source: PartitionedSource,
        *,
        store: Store | None = None,
        clock: FakeClock | None = None,
        schema: StructType = SCHEMA,
        **settings: Any,
    ) -> None:
        self.source = source
        self.store = MemoryStore("spool") if store is None else store
        self.clock = FakeClock() if clock is None else clock
        self.said: list[str] = []
        rows = RowFormat(schema, source.event_time)
        spool = Spool(self.store, rows)
        self.settings = SourceSettings(**{"list_seconds": 0.0, "poll_seconds": 0.0, **settings})
        self.planner = Planner(source, rows, spool, self.clock, self.settings, self.said.append)
        self.at = self.planner.initial()

    def begin(self, offset: SourceOffset) -> Reading:
        """Continue from an offset, as it is in a checkpoint."""
        self.at = written(offset)
        return self

    def batch(self, limit: int | None = None) -> dict[str, list[Any]]:
        """The first column of the rows of the next batch, by part."""
        end = written(self.planner.next(self.at, limit))
        rows = self.rows(self.at, end)
        self.at = end
        return rows

    def rest(self, limit: int | None = None) -> dict[str, list[Any]]:
        """All batches until one is empty, and the offset stays."""
        found: dict[str, list[Any]] = {}
        for _ in range(1_000):
            before = self.at
            for name, rows in self.batch(limit).items():
                found.setdefault(name, []).extend(rows)
            if before == self.at:
                return found
        raise AssertionError("it does not end")

    def rows(self, start: SourceOffset, end: SourceOffset) -> dict[str, list[Any]]:
        """What is between two offsets, as executors read it."""
        from airflow_streamstate.sources.offsets import batches_in

        found: dict[str, list[Any]] = {}
        for one in self.planner.slices(start, end):
            rows = found.setdefault(one.part, [])
            for body, first, last in one.pieces:
                for batch in batches_in(body, first, last):
                    rows += batch.column(0).to_pylist()
            if not one.pieces:
                part = self.source.build_part(one.part, one.start)
                rows += [row[0] for row in part.read(one.end)]  # type: ignore[attr-defined]
        return found


def written(offset: SourceOffset) -> SourceOffset:
    """As it comes back from Spark's log."""
    import json

    return from_json(json.loads(json.dumps(to_json(offset))))


def counts(batch: Mapping[str, list[Any]]) -> dict[str, int]:
    return {name: len(rows) for name, rows in batch.items()}
