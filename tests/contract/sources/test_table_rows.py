"""``table_rows`` on SQLite and on a real PostgreSQL: each row once, ties, late commits, nulls, an outage."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.sql.types import StructType

from airflow_streamstate.errors import SourceError
from airflow_streamstate.sources.table_rows import TableRows, from_json, to_json
from airflow_streamstate.sources.testing import check_partitioned_source
from support.fake_clock import FakeClock
from support.listed_source import Reading
from support.postgres import Postgres, postgres

SCHEMA = StructType().add("id", "long").add("at", "timestamp").add("word", "string")
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Postgres | None]:
    if request.param == "sqlite":
        yield None
        return
    with postgres() as running:
        yield running


class Orders:
    """A table of orders: a growing time with ties, and an id."""

    def __init__(self, url: str, server: Postgres | None) -> None:
        self.url, self.server = url, server
        self.engine = sa.create_engine(url, pool_pre_ping=True)
        self.table = sa.Table(
            "orders",
            sa.MetaData(),
            sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("at", sa.DateTime(timezone=True)),
            sa.Column("word", sa.String(20)),
        )
        self.table.metadata.drop_all(self.engine)
        self.table.metadata.create_all(self.engine)

    def add(self, *ids: int, second: int = 0, word: str = "a", connection: Any = None) -> None:
        rows = [{"id": one, "at": NOON + timedelta(seconds=second), "word": word} for one in ids]
        if connection is not None:
            connection.execute(self.table.insert(), rows)
            return
        with self.engine.begin() as opened:
            opened.execute(self.table.insert(), rows)

    def options(self, **more: str) -> dict[str, str]:
        return {"url": self.url, "table": "orders", "column": "at", "settleseconds": "0", **more}

    def reading(self, clock: FakeClock | None = None, **more: str) -> Reading:
        clock = FakeClock() if clock is None else clock
        return Reading(TableRows(self.options(**more), clock), clock=clock, schema=SCHEMA)


@pytest.fixture
def orders(server: Postgres | None, tmp_path: Path) -> Iterator[Orders]:
    found = Orders(f"sqlite:///{tmp_path}/orders.db" if server is None else server.url, server)
    yield found
    found.engine.dispose()


SQLITE = "sqlite"
POSTGRES = pytest.param("postgres", marks=pytest.mark.full)
pytestmark = pytest.mark.parametrize("server", [SQLITE, POSTGRES], indirect=True)


def test_it_keeps_the_promises_of_a_partitioned_source(orders: Orders) -> None:
    """Also where all rows have one time, and where each word is a part."""
    orders.add(3, 1, 2, second=1, word="a")
    orders.add(9, second=0, word="b")
    orders.add(4, second=2, word="a")
    ordered = [(9,), (1,), (2,), (3,), (4,)]
    check_partitioned_source(TableRows, orders.options(), {"orders": ordered}, columns=[0])
    check_partitioned_source(
        TableRows,
        orders.options(partby="word"),
        {'orders/"a"': [(1,), (2,), (3,), (4,)], 'orders/"b"': [(9,)]},
        columns=[0],
    )


def test_rows_come_once_by_batches_over_restarts_and_ties(orders: Orders) -> None:
    """A batch may end between two rows of one time."""
    orders.add(*range(10), second=1)
    reading = orders.reading()
    found = reading.batch(3)["orders"]
    again = orders.reading().begin(reading.at)
    again.store = reading.store
    orders.add(*range(10, 15), second=1)
    orders.add(15, second=2)
    assert [*found, *again.rest(4)["orders"]] == list(range(16))


def test_a_row_is_read_once_it_has_settled(orders: Orders) -> None:
    """A transaction that commits later than rows behind it has that long."""
    clock = FakeClock()
    reading = orders.reading(clock, settleseconds="5")
    orders.add(2, second=2)
    assert reading.rest() == {}
    orders.add(1, second=1)  # started before the other one, and visible only now
    clock.advance(3)
    assert reading.rest() == {}
    clock.advance(3)
    assert reading.rest() == {"orders": [1, 2]}
    orders.add(3, second=3)
    assert reading.rest() == {}
    clock.advance(5)
    assert reading.rest() == {"orders": [3]}


def test_a_transaction_that_is_open_delays_nothing_and_loses_nothing_within_its_time(orders: Orders) -> None:
    """Two writers at once, the earlier row committed later."""
    if orders.server is None:
        pytest.skip("SQLite has one writer at a time")
    clock = FakeClock()
    reading = orders.reading(clock, settleseconds="5")
    with orders.engine.connect() as slow, slow.begin():
        orders.add(1, second=1, connection=slow)
        orders.add(2, second=2)
        assert reading.rest() == {}
        clock.advance(4)
    clock.advance(1)
    assert reading.rest() == {"orders": [1, 2]}


def test_a_bounded_read_waits_for_rows_to_settle_and_takes_no_later_one(orders: Orders) -> None:
    """What is there at its beginning, and what of it was still under way."""
    clock = FakeClock()
    reading = orders.reading(clock, settleseconds="5")
    orders.add(1, 2, second=2)
    reading.planner.begin_bounded()
    assert reading.batch(1) == {"orders": [1]}
    orders.add(3, second=3)
    assert reading.rest(1) == {"orders": [2]}
    assert sum(clock.slept_seconds) == 5


def test_rows_without_a_value_are_refused_or_left_out(orders: Orders) -> None:
    """They would never be read."""
    orders.add(1)
    with orders.engine.begin() as connection:
        connection.execute(orders.table.insert(), [{"id": 2, "at": None, "word": "x"}])
    with pytest.raises(SourceError, match="no value in the growing column"):
        orders.reading().batch()
    assert orders.reading(nulls="skip").rest() == {"orders": [1]}


def test_rows_without_a_value_in_the_key_are_refused_or_left_out(orders: Orders) -> None:
    """Among rows with one time no comparison would find them."""
    orders.add(1, 2, second=1)
    with orders.engine.begin() as connection:
        connection.execute(orders.table.insert(), [{"id": 3, "at": NOON + timedelta(seconds=1), "word": None}])
    with pytest.raises(SourceError, match="no value in the key"):
        orders.reading(key="word,id").batch()
    assert orders.reading(key="word,id", nulls="skip").rest(1) == {"orders": [1, 2]}


def test_a_database_that_is_away_at_the_start_is_waited_for(orders: Orders) -> None:
    """For its schema too; for too long is one sentence."""
    from airflow_streamstate.sources.interface import SourceSettings
    from airflow_streamstate.sources.planner import schema_of

    class Away(TableRows):
        failures = 3

        def connected(self) -> Any:
            raise AssertionError("its schema needs no row")

        def table(self, name: str) -> Any:
            if self.failures:
                self.failures -= 1
                raise OSError("connection refused")
            return super().table(name)

    clock, said = FakeClock(), list[str]()
    source = Away(orders.options())
    assert schema_of(source, SourceSettings(), clock, said.append).startswith("`id` long")
    assert said[0] == "row_schema() of the source failed and is tried again: OSError: connection refused"
    source.failures = 1_000
    with pytest.raises(SourceError, match="failed for longer than it may"):
        schema_of(source, SourceSettings(fail_after_seconds=60.0), clock, said.append)


def test_a_planned_batch_is_the_same_although_the_table_changed(orders: Orders) -> None:
    """Its rows were kept when they were read."""
    orders.add(1, 2, 3)
    reading = orders.reading()
    start = reading.at
    rows = reading.batch(2)
    with orders.engine.begin() as connection:
        connection.execute(orders.table.delete())
    assert reading.rows(start, reading.at) == rows == {"orders": [1, 2]}


def test_a_database_that_goes_away_for_a_minute_costs_no_row(orders: Orders) -> None:
    """It is killed while rows wait, and comes back."""
    if orders.server is None:
        pytest.skip("SQLite is a file")
    clock = FakeClock()
    orders.add(*range(5))
    reading = orders.reading(clock)
    assert reading.batch(3) == {"orders": [0, 1, 2]}
    orders.server.stop()
    try:
        for _ in range(6):
            assert reading.batch(3) == {}
            clock.advance(10)
    finally:
        orders.server.start()
    clock.advance(30)
    assert reading.rest(3) == {"orders": [3, 4]}
    assert any("is tried again" in line for line in reading.said)


def test_what_a_start_would_find_is_told(orders: Orders) -> None:
    """How far it is behind, and that the table was emptied."""
    orders.add(1, 2, 3)
    reading = orders.reading()
    reading.batch(2)
    state = reading.at.parts["orders"].state

    def part() -> Any:
        return reading.source.build_part("orders", state)

    assert (part().behind(), part().lost()) == (1, None)
    with orders.engine.begin() as connection:
        connection.execute(orders.table.delete())
    assert part().lost().reason == "remade"


def test_a_part_is_finished_where_it_is_said_to_end(orders: Orders) -> None:
    """With every row of that value."""
    orders.add(1, 2, second=1)
    reading = orders.reading(until=(NOON + timedelta(seconds=1)).isoformat())
    assert reading.batch(1) == {"orders": [1]}
    assert not reading.at.is_finished
    assert reading.rest(1) == {"orders": [2]}
    assert reading.at.is_finished


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"column": ""}, "needs the options table and column"),
        ({"table": "nothing"}, "there is no such table"),
        ({"column": "nothing"}, "has no such column"),
        ({"settleseconds": "long"}, "is no number"),
        ({"nulls": "keep"}, "is error or skip"),
        ({"url": "", "urlenv": "STREAMSTATE_NO_SUCH_URL"}, "environment variable of the url is not set"),
        ({"url": "no-url-at-all"}, "url of table_rows cannot be used"),
        ({"url": "nosuchdialect://user:secret@host/db"}, "url of table_rows cannot be used"),
        ({"url": "postgresql://user:secret/db"}, "url of table_rows cannot be used"),
        ({"url": "nosuchdialect://user:my@secret@host/db"}, "url of table_rows cannot be used"),
        ({"url": "user:my@secret@host/db"}, "url of table_rows cannot be used"),
    ],
)
def test_options_that_are_wrong_are_named(orders: Orders, more: dict[str, str], words: str) -> None:
    """In one sentence, without a password."""
    with pytest.raises(SourceError, match=words) as caught:
        orders.reading(**more).batch()
    assert "secret" not in str(caught.value)


def test_its_schema_is_that_of_the_table(orders: Orders) -> None:
    """In Spark's words."""
    kind = "timestamp" if orders.server is not None else "timestamp_ntz"
    assert TableRows(orders.options()).row_schema() == f"`id` long, `at` {kind}, `word` string"


def test_values_of_a_growing_column_come_back_from_an_offset(server: Postgres | None) -> None:
    """Whatever its type; others are refused."""
    import uuid
    from decimal import Decimal

    for value in (5, "x", NOON, NOON.replace(tzinfo=None), NOON.date(), Decimal("1.50"), uuid.UUID(int=7), 1.5):
        assert from_json(to_json(value)) == value
        assert type(from_json(to_json(value))) is type(value)
    for value in (b"x", None, True, [1]):
        with pytest.raises(SourceError, match="cannot say how far"):
            to_json(value)
