"""Tables as sources."""

from __future__ import annotations

import pytest

from airflow_streamstate.adapters.source import PlannedSource
from airflow_streamstate.adapters.table_source import TableSource


def test_a_table_is_its_name_or_its_place() -> None:
    """A name of a catalog counts before a path; a folder of plain files is none."""
    adapter = TableSource()
    assert adapter.identify(PlannedSource("delta", {"path": "/d"}, "lake.flights")) == "table lake.flights"
    assert adapter.identify(PlannedSource("delta", {"path": "/d/"})) == "table delta /d"
    assert adapter.identify(PlannedSource("parquet", {"path": "/d"})) is None


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
    """Delta's versions grow; the ids of Iceberg's snapshots say nothing."""
    assert TableSource().compare(first, second) == order


def test_versions_that_are_passed_over_are_mentioned() -> None:
    """failOnDataLoss=false is called what it is, for Delta too."""
    assert TableSource().remarks(PlannedSource("delta", {"failondataloss": "false"}))
    assert TableSource().remarks(PlannedSource("delta")) == ()


def test_a_password_in_a_path_is_no_part_of_what_it_is() -> None:
    """Identities stand in events and snapshots."""
    source = PlannedSource("delta", {"path": "s3a://AKIAKEY:secretkey@bucket/t/"})
    assert TableSource().identify(source) == "table delta s3a://***@bucket/t"
