"""What Spark's planning process asks of a reader, and what it reports in the driver's log. No Spark runs here."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.errors import SourceError
from airflow_streamstate.sources import spark_source
from airflow_streamstate.sources.interface import PartitionedSource, register
from airflow_streamstate.sources.spark_source import Cores
from support.listed_source import SCHEMA, ListedSource, PlannedSource, Shelf, numbers

SHELF = Shelf()


class Polled(ListedSource):
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(SHELF)
        self.options = options


class Planned(PlannedSource):
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(SHELF)
        self.options = options


@pytest.fixture
def cores(tmp_path: Path) -> Cores:
    (tmp_path / "cores").write_text("4")
    return Cores(str(tmp_path / "cores"), 1)


@pytest.fixture(autouse=True)
def shelf() -> None:
    SHELF.parts = {f"part {number}": numbers(0, 9) for number in range(24)}
    SHELF.ended = set()


def work(source: type[PartitionedSource], cores: Cores, tmp_path: Path, **options: str) -> Any:
    given = {"spool": str(tmp_path / "spool"), "pollSeconds": "0", **options}
    return spark_source._Work(source, given, SCHEMA, cores)


def rows_of(task: Any, reader: Any) -> list[int]:
    return [n for batch in reader.read(task) for n in batch.column(0).to_pylist()]


@pytest.mark.parametrize("source", [Polled, Planned])
def test_a_batch_is_read_by_tasks_that_know_nothing_but_their_own(
    source: type[PartitionedSource], cores: Cores, tmp_path: Path
) -> None:
    """Each part in one task, as many tasks as there are cores; the reader is pickled without what it has open."""
    reader = spark_source._FullReader(work(source, cores, tmp_path))
    start = reader.initialOffset()
    end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
    tasks = reader.partitions(start, end)
    assert len(tasks) == 4
    assert sorted(part for task in tasks for part in task.value) == sorted(SHELF.parts)
    away = pickle.loads(pickle.dumps((reader, tasks)))  # noqa: S301
    found = [n for task in away[1] for n in rows_of(task, away[0])]
    assert sorted(found) == sorted(list(range(10)) * 24)
    assert reader.partitions(end, end) == []
    reader.commit(end)
    reader.stop()


def test_few_parts_move_with_the_number_of_cores_and_that_is_said(
    cores: Cores, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their state goes with them: it is in the offset."""
    reader = spark_source._FullReader(work(Planned, cores, tmp_path, maxPerTrigger="48"))
    start = reader.initialOffset()
    first = reader.latestOffset(start, reader.getDefaultReadLimit())
    before = {part: number for number, task in enumerate(reader.partitions(start, first)) for part in task.value}
    assert "24 parts in 4 tasks" in capsys.readouterr().err
    Path(cores.path).write_text("5")
    second = reader.latestOffset(first, reader.getDefaultReadLimit())
    tasks = reader.partitions(first, second)
    said = capsys.readouterr().err
    assert "24 parts in 5 tasks, before 24 in 4; " in said
    after = {part: number for number, task in enumerate(tasks) for part in task.value}
    gone = sorted(part for part in before if before[part] != after[part])
    assert 1 <= len(gone) <= 10
    assert all(f"{part} from {before[part]} to {after[part]}" in said for part in gone)
    assert sorted(n for task in tasks for n in rows_of(task, reader)) == sorted([2, 3] * 24)
    reader.partitions(first, second)
    assert "tasks" not in capsys.readouterr().err


def test_a_planned_part_that_gives_another_number_of_rows_fails_its_batch(cores: Cores, tmp_path: Path) -> None:
    """Then the rows between two states are not the same, and a replay could not be trusted."""
    reader = spark_source._FullReader(work(Planned, cores, tmp_path))
    start = reader.initialOffset()
    tasks = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    for part in SHELF.parts:
        SHELF.parts[part] = numbers(0, 7)
    with pytest.raises(SourceError, match="another number of rows than it had planned"):
        [rows_of(task, reader) for task in tasks]


@pytest.mark.parametrize("source", [Polled, Planned])
def test_the_simple_reader_of_older_sparks_reads_the_same(
    source: type[PartitionedSource], cores: Cores, tmp_path: Path
) -> None:
    """All by the driver; a batch that is read again gives the same rows."""
    reader = spark_source._SimpleReader(work(source, cores, tmp_path, maxPerTrigger="48"))
    start = reader.initialOffset()
    rows, end = reader.read(start)
    found = list(rows)
    assert sorted(n for n, _ in found) == sorted([0, 1] * 24)
    again = spark_source._SimpleReader(work(source, cores, tmp_path))
    assert sorted(again.readBetweenOffsets(start, end)) == sorted(found)
    rest, last = again.read(end)
    assert sorted(n for n, _ in rest) == sorted(list(range(2, 10)) * 24)
    nothing, same = again.read(last)
    assert (list(nothing), same) == ([], last)


def test_limits_are_in_the_unit_of_the_source(cores: Cores, tmp_path: Path) -> None:
    """And everything where Spark asks for it."""
    reader = spark_source._FullReader(work(Polled, cores, tmp_path, maxPerTrigger="24"))
    start = reader.initialOffset()
    some = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert sum(part["units"] for part in some["parts"].values()) == 24
    everything = reader.latestOffset(some, spark_source.ReadAllAvailable())
    assert sum(part["units"] for part in everything["parts"].values()) == 240


@pytest.mark.parametrize("value", ["none", "-1", "0", "1.5"])
def test_an_option_that_is_no_number_is_named(cores: Cores, tmp_path: Path, value: str) -> None:
    """When the reader is made, before anything is read."""
    with pytest.raises(SourceError, match="not a number that it can be") as caught:
        work(Polled, cores, tmp_path, maxPerTrigger=value)
    assert caught.value.context["option"] == "maxpertrigger"


@pytest.mark.parametrize("given", [object(), dict, "pages"])
def test_only_a_partitioned_source_is_registered(given: Any) -> None:
    """Reported before Spark is asked."""
    with pytest.raises(SourceError, match="no PartitionedSource"):
        register(None, given)


def test_a_session_without_python_data_sources_is_refused_by_name() -> None:
    """Spark Connect, and a Spark before 4.0."""
    with pytest.raises(SourceError, match="classic SparkSession of Spark"):
        register(object(), Polled)
