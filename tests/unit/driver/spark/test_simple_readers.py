"""How pyspark treats a Python source whose simple reader cannot read a batch again, as the limits state it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

datasource = pytest.importorskip("pyspark.sql.datasource")


def wrapped() -> Any:
    """As pyspark holds it: a new one at each start of a query."""
    from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper

    class Reader(datasource.SimpleDataSourceStreamReader):  # type: ignore[misc]  # pyspark is not looked into
        def initialOffset(self) -> dict[str, int]:
            return {"row": 0}

        def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
            return iter([(start["row"],)]), {"row": start["row"] + 1}

    return _SimpleStreamReaderWrapper(Reader())


def planned_by(reader: Any, start: dict[str, int]) -> list[tuple[int]] | None:
    """The rows of the next batch, as Spark plans it; None where pyspark would ask ``readBetweenOffsets`` for them."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    end = reader.latestOffset(start, ReadAllAvailable())
    rows = reader.getCache(start, end)
    return None if rows is None else list(rows)


def test_a_simple_reader_goes_on_from_a_commit_without_reading_between_offsets() -> None:
    """The driver's own cache has the rows; so a start from a committed offset is no loss."""
    assert planned_by(wrapped(), {"row": 0}) == [(0,)]
    assert planned_by(wrapped(), {"row": 7}) == [(7,)]


def test_a_planned_batch_of_it_cannot_run_again() -> None:
    """After a restart that cache is empty, and the method is asked."""
    from pyspark.errors import PySparkNotImplementedError

    again = wrapped()
    (partition,) = again.partitions({"row": 7}, {"row": 8})
    assert again.getCache({"row": 7}, {"row": 8}) is None
    with pytest.raises(PySparkNotImplementedError, match="readBetweenOffsets"):
        again.read(partition)
