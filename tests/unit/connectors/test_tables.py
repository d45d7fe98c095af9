"""Tables as sources."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_streamstate.connectors.source import Lag, Source, Untold
from airflow_streamstate.connectors.tables import TableSource


def test_a_table_is_its_name_or_its_place() -> None:
    """A name of a catalog counts before a path; a folder of plain files is none."""
    connector = TableSource()
    assert connector.identify(Source("delta", {"path": "/d"}, "lake.flights")) == "table lake.flights"
    assert connector.identify(Source("delta", {"path": "/d/"})) == "table delta /d"
    assert connector.identify(Source("parquet", {"path": "/d"})) is None


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [
        ('{"reservoirVersion":3,"index":-1,"isStartingVersion":false}', '{"reservoirVersion":2,"index":9}', "ahead"),
        ('{"index":1,"a":2}', '{"a":2,"index":1}', "same"),
        ('{"snapshot_id":7,"position":1}', '{"snapshot_id":9,"position":1}', "apart"),
        ("-", '{"snapshot_id":9,"position":1}', "behind"),
    ],
)
def test_what_cannot_be_ordered_is_apart(first: str, second: str, order: str) -> None:
    """Delta's versions grow; the ids of Iceberg's snapshots show nothing."""
    assert TableSource().compare(first, second) == order


def test_versions_that_are_passed_over_are_mentioned() -> None:
    """failOnDataLoss=false is called what it is, for Delta too."""
    assert TableSource().remarks(Source("delta", {"failondataloss": "false"}))
    assert TableSource().remarks(Source("delta")) == ()
    assert TableSource().passes_over_lost(Source("delta", {"failondataloss": "false"}))
    assert not TableSource().passes_over_lost(Source("delta"))


def test_a_password_in_a_path_is_no_part_of_what_it_is() -> None:
    """Identities are in events and snapshots."""
    source = Source("delta", {"path": "s3a://AKIAKEY:secretkey@bucket/t/"})
    assert TableSource().identify(source) == "table delta s3a://***@bucket/t"


class History:
    """A session whose every table has these versions."""

    def __init__(self, *versions: tuple[int, datetime]) -> None:
        self.rows = [{"version": version, "timestamp": written_at} for version, written_at in versions]
        self.asked: list[str] = []

    @property
    def session(self) -> Any:
        return self

    def sql(self, text: str) -> Any:
        self.asked.append(text)
        rows = SimpleNamespace(collect=lambda: self.rows)
        return SimpleNamespace(first=lambda: self.rows[0], select=lambda *_: rows)


NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def test_what_is_left_of_delta_is_told_in_versions() -> None:
    """One that is read in part counts; Iceberg's offsets do not show which version they are of."""
    door = History((9, NOON))
    opened = TableSource().open(Source("delta", {"path": "/d"}), door)  # type: ignore[arg-type]
    assert opened.lag('{"reservoirVersion":10,"index":-1}') == Lag(0, "versions")
    assert opened.lag('{"reservoirVersion":9,"index":4}') == Lag(1, "versions")
    assert opened.lag('{"reservoirVersion":7,"index":-1}') == Lag(3, "versions")
    assert isinstance(opened.lag('{"snapshot_id":7,"position":1}'), Untold)
    assert door.asked[0] == "DESCRIBE HISTORY delta.`/d` LIMIT 1"
    named = TableSource().open(Source("delta", table="lake.flights"), door)  # type: ignore[arg-type]
    named.lag('{"reservoirVersion":7,"index":-1}')
    assert door.asked[-1] == "DESCRIBE HISTORY lake.flights LIMIT 1"


@pytest.mark.parametrize(("hour", "version"), [(11, 7), (12, 8), (13, 9), (15, 10)])
def test_a_time_is_mapped_to_the_first_version_since(hour: int, version: int) -> None:
    """A version of just that moment is read again; after the last one there is nothing to read yet."""
    door = History((9, NOON.replace(hour=14)), (8, NOON), (7, NOON.replace(hour=11)))
    opened = TableSource().open(Source("delta", {"path": "/d"}), door)  # type: ignore[arg-type]
    last = '{"sourceVersion":1,"reservoirId":"x","reservoirVersion":10,"index":-1,"isStartingVersion":false}'
    found = opened.offset_at(NOON.replace(hour=hour), last)
    assert found == last.replace('"reservoirVersion":10', f'"reservoirVersion":{version}')


def test_a_time_is_not_mapped_where_the_form_of_an_offset_is_not_known() -> None:
    """In the middle of a version, and for what is not Delta: reported, and not guessed."""
    opened = TableSource().open(Source("delta", {"path": "/d"}), History((9, NOON)))  # type: ignore[arg-type]
    for last in ('{"reservoirVersion":9,"index":4}', '{"snapshot_id":7,"position":1}', "-"):
        assert isinstance(opened.offset_at(NOON, last), Untold)


def test_versions_between_two_offsets_are_counted() -> None:
    """A part of a version counts as one; for others the number is unknown."""
    connector = TableSource()
    seven, ten = '{"reservoirVersion":7,"index":-1}', '{"reservoirVersion":10,"index":-1}'
    assert connector.between(seven, ten) == Lag(3, "versions")
    assert connector.between(ten, seven) == Lag(0, "versions")
    assert connector.between(seven, '{"reservoirVersion":7,"index":4}') == Lag(1, "versions")
    assert connector.between('{"snapshot_id":7}', '{"snapshot_id":8}') is None
