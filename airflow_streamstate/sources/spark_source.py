"""A partitioned source as Spark's Python data source API expects it; the only module here that needs pyspark."""

from __future__ import annotations

import atexit
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition, SimpleDataSourceStreamReader

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import SourceError
from airflow_streamstate.older_python import zipped
from airflow_streamstate.sources.interface import (
    DEFAULT_ROWS,
    PartitionedSource,
    SourceSettings,
    opened_source,
    read_settings,
)
from airflow_streamstate.sources.offsets import RowFormat, Spool, batches_in, from_json, to_json
from airflow_streamstate.sources.planner import Planner, Slice, moved, place, schema_of
from airflow_streamstate.store.open import open_store
from airflow_streamstate.store.options import plain_uri

# How many cores Spark has now, for the process that plans batches: it has no way to ask Spark.
#
# The process that registers a source writes the number into a file of this machine, where the planning process runs,
# too.

_EVERY_SECONDS = 2.0
_watched: dict[str, Cores] = {}
_guard = threading.Lock()


@dataclass(frozen=True)
class Cores:
    """Where the number of cores is published.

    Attributes:
        at_first: when this was made.
    """

    path: str
    at_first: int

    def now(self) -> int:
        try:
            return max(1, int(Path(self.path).read_text()))
        except (OSError, ValueError):
            return self.at_first


def watch_cores(context: Any) -> Cores:
    """Publish the cores of this Spark from now on; once for each ``SparkContext``."""
    with _guard:
        known = _watched.get(context.applicationId)
        if known is None:
            count = _count(context)
            path = Path(tempfile.mkdtemp(prefix="streamstate-cores-")) / "cores"
            _write(path, count)
            atexit.register(_remove, path)
            known = _watched[context.applicationId] = Cores(str(path), count)
            threading.Thread(target=_watch, args=(context, path), name="streamstate-cores", daemon=True).start()
        return known


def _watch(context: Any, path: Path) -> None:
    told = 0
    while True:
        SYSTEM_CLOCK.sleep(_EVERY_SECONDS)
        try:
            count = _count(context)
            if count != told:
                _write(path, count)
                told = count
        except Exception:
            return  # Spark has ended


def _count(context: Any) -> int:
    return max(1, int(context._jsc.sc().defaultParallelism()))


def _write(path: Path, count: int) -> None:
    new = path.with_suffix(".new")
    new.write_text(str(count))
    new.replace(path)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()


try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # Spark 4.0 and 4.1
    TELLS_START = False
    SupportsTriggerAvailableNow = object
else:
    TELLS_START = True

_SHOWN = 20
_ROWS_A_BATCH = 10_000


def _sayer(source: PartitionedSource) -> Callable[[str], None]:
    return lambda words: print(f"streamstate source {source.format_name()}: {words}", file=sys.stderr, flush=True)


class ReadTask(InputPartition):  # type: ignore[misc]
    """What one task reads."""

    def __init__(self, slices: list[Slice]) -> None:
        super().__init__([one.part for one in slices])
        self.slices = slices


class _SparkSource(DataSource):  # type: ignore[misc]
    """Base of the classes that are registered."""

    source_class: ClassVar[type[PartitionedSource]]
    cores: ClassVar[Cores]

    @classmethod
    def name(cls) -> str:
        return cls.source_class.format_name()

    def schema(self) -> str:
        source = opened_source(self.source_class, self.options)
        return schema_of(source, read_settings(source.options), SYSTEM_CLOCK, _sayer(source))

    def _work(self, schema: Any) -> _Work:
        return _Work(
            self.source_class, {str(name): str(value) for name, value in self.options.items()}, schema, self.cores
        )


class _FullSource(_SparkSource):
    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return _FullReader(self._work(schema))


class _SimpleSource(_SparkSource):
    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:  # noqa: N802
        return _SimpleReader(self._work(schema))


def data_source_of(source: type[PartitionedSource], cores: Cores) -> type[DataSource]:
    """The class to register in Spark."""
    base = _FullSource if TELLS_START else _SimpleSource
    return type(f"SparkSourceOf{source.__name__}", (base,), {"source_class": source, "cores": cores})


class _Work:
    """What both readers do."""

    def __init__(
        self, source_class: type[PartitionedSource], options: dict[str, str], schema: Any, cores: Cores
    ) -> None:
        self.source = opened_source(source_class, options)
        self.settings: SourceSettings = read_settings(self.source.options)
        self.schema = schema
        self.rows = RowFormat(schema, self.source.event_time)
        self._cores = cores
        self._planner: Planner | None = None
        self._placed: dict[str, int] = {}
        self._tasks = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # What a source holds open stays here: an executor makes its own of the options.
        return _Work, (type(self.source), dict(self.source.options), self.schema, self._cores)

    @property
    def planner(self) -> Planner:
        if self._planner is None:
            spool = None
            if self.settings.spool:
                spool = Spool(open_store(plain_uri(self.settings.spool)), self.rows)
            self._planner = Planner(self.source, self.rows, spool, SYSTEM_CLOCK, self.settings, self.say)
        return self._planner

    def say(self, words: str) -> None:
        """To the driver's log."""
        _sayer(self.source)(words)

    def latest(self, start: dict[str, Any], limit: int | None) -> dict[str, Any]:
        return to_json(self.planner.next(from_json(start), limit))

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[ReadTask]:
        """What is between two offsets, in tasks."""
        slices = self.planner.slices(from_json(start), from_json(end))
        if not slices:
            return []
        tasks = self.settings.tasks or self._cores.now()
        self._tell(place(end["parts"], tasks), tasks)
        placed = place([one.part for one in slices], tasks) if tasks >= len(slices) else self._placed
        found: dict[int, list[Slice]] = {}
        for one in slices:
            found.setdefault(placed[one.part], []).append(one)
        return [ReadTask(found[number]) for number in sorted(found)]

    def _tell(self, placed: dict[str, int], tasks: int) -> None:
        """Report which parts moved, if the number of tasks or the parts changed."""
        before, self._placed = self._placed, placed
        if self._tasks == tasks and before.keys() == placed.keys():
            return
        gone = moved(before, placed)
        words = f"{len(placed)} parts in {tasks} tasks"
        if before:
            shown = ", ".join(f"{part} from {before[part]} to {placed[part]}" for part in gone[:_SHOWN])
            words += f", before {len(before)} in {self._tasks}; {len(gone)} moved{': ' if shown else ''}{shown}"
        self._tasks = tasks
        self.say(words)

    def read(self, task: ReadTask) -> Iterator[Any]:
        for one in task.slices:
            if one.pieces:
                for body, first, last in one.pieces:
                    yield from batches_in(body, first, last)
            else:
                yield from self._read_planned(one)

    def _read_planned(self, one: Slice) -> Iterator[Any]:
        part = self.source.build_part(one.part, one.start)
        count = 0
        try:
            rows = iter(part.read(one.end))  # type: ignore[attr-defined]
            for first in rows:
                if hasattr(first, "num_rows"):  # Arrow
                    batch = first
                else:
                    batch = self.rows.batch(one.part, [first, *islice(rows, _ROWS_A_BATCH - 1)])
                count += batch.num_rows
                yield batch
        finally:
            part.suspend()
        if self.source.unit == "rows" and count != one.units:
            raise SourceError(
                "a part gave another number of rows than it had planned",
                part=one.part,
                planned=one.units,
                given=count,
                next_step="Its rows between two states must stay the same; else let it poll and be spooled.",
            )

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()


class _FullReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """For Spark 4.2 and newer."""

    def __init__(self, work: _Work) -> None:
        self._work = work

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return to_json(self._work.planner.initial())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most, unit = self._work.settings.max_per_trigger, self._work.source.unit
        if unit == "rows":
            return ReadMaxRows(most or DEFAULT_ROWS)
        return ReadAllAvailable() if most is None else ReadMaxBytes(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        most = getattr(limit, "max_rows", None) or getattr(limit, "max_bytes", None)
        return self._work.latest(start, most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._work.planner.begin_bounded()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[ReadTask]:
        return self._work.tasks(start, end)

    def read(self, partition: Any) -> Iterator[Any]:
        return self._work.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._work.planner.commit(from_json(end))

    def stop(self) -> None:
        self._work.stop()


class _SimpleReader(SimpleDataSourceStreamReader):  # type: ignore[misc]
    """For Spark 4.0 and 4.1: the driver reads all rows, and ``Trigger.AvailableNow`` is one batch."""

    def __init__(self, work: _Work) -> None:
        self._work = work

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return to_json(self._work.planner.initial())

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
        most = self._work.settings.max_per_trigger or (DEFAULT_ROWS if self._work.source.unit == "rows" else None)
        end = self._work.latest(start, most)
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[Any, ...]]:  # noqa: N802
        # Spark copies the iterator of a batch that it may need again.
        return iter([row for task in self._work.tasks(start, end) for row in _rows_of(self._work.read(task))])

    def commit(self, end: dict[str, Any]) -> None:
        self._work.planner.commit(from_json(end))


def _rows_of(batches: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zipped(*(column.to_pylist() for column in batch.columns))
