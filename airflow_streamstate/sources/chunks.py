"""Rows that were read ahead, as Arrow bytes: one chunk follows a part's state, and leads to its next one.

pyspark and pyarrow are imported where they are needed, so that offsets can be read without them.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Any

from airflow_streamstate.errors import DataError, SourceError
from airflow_streamstate.sources.interface import Json, Row

_HEADER = b"streamstate"


@dataclass(frozen=True)
class Chunk:
    """Rows of a part, each with its place.

    Attributes:
        state: of the part behind the rows.
        is_finished: no row will follow them.
        count: of the rows.
        times_ms: the event time of each row, None where it has none; empty for a source without event times.
        body: the rows as an Arrow stream, with the state in the metadata of its schema.
        digest: of the rows and the state.
    """

    state: Json
    is_finished: bool
    count: int
    times_ms: Sequence[int | None]
    body: bytes
    digest: str


class RowFormat:
    """Makes chunks of a source's rows.

    Args:
        schema: Spark's schema of the rows.
        event_time: the column with the event time; "" for none.

    Raises:
        SourceError: there is no such column.
    """

    def __init__(self, schema: Any, event_time: str = "") -> None:
        self._schema = schema
        self._names: list[str] = list(schema.fieldNames())
        self._event_time = event_time
        if event_time and event_time not in self._names:
            raise SourceError(
                "the schema of this source lacks the column of its event times",
                column=event_time,
                columns=self._names,
                next_step="Name a column of the schema in event_time.",
            )

    @property
    def schema_digest(self) -> str:
        """Equal for schemas whose rows are the same."""
        return hashlib.sha256(self._schema.simpleString().encode()).hexdigest()[:16]

    def chunk(self, part: str, rows: Iterable[Row], state: Json, is_finished: bool) -> Chunk:
        """The chunk of these rows.

        Raises:
            SourceError: a row does not fit the schema.
        """
        import pyarrow as pa

        batch = self.batch(part, rows)
        header = json.dumps({"state": state, "finished": is_finished}, sort_keys=True).encode()
        marked = batch.replace_schema_metadata({_HEADER: header})
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, marked.schema) as writer:
            writer.write_batch(marked)
        body = sink.getvalue()
        return Chunk(state, is_finished, batch.num_rows, self._times(batch), body, hashlib.sha256(body).hexdigest())

    def read(self, body: bytes, where: str) -> Chunk:
        """The chunk that was kept; ``where`` is named in errors.

        Raises:
            DataError: it is damaged.
            SourceError: it is of another schema.
        """
        import pyarrow as pa

        try:
            with pa.ipc.open_stream(body) as reader:
                header = json.loads(reader.schema.metadata[_HEADER])
                batch = reader.read_next_batch()
            self._check_schema(batch.schema, where)
            times = self._times(batch)
        except (pa.ArrowException, KeyError, TypeError, ValueError, StopIteration) as error:
            raise DataError("rows that were read ahead are damaged", key=where, error=str(error)[:200]) from None
        digest = hashlib.sha256(body).hexdigest()
        return Chunk(header["state"], bool(header["finished"]), batch.num_rows, times, body, digest)

    def _check_schema(self, found: Any, where: str) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        wanted = arrow_schema(self._schema, to_arrow_schema)
        if [(field.name, field.type) for field in found] != [(field.name, field.type) for field in wanted]:
            raise SourceError(
                "rows that were read ahead have another schema than the source has now, and are not given whole yet",
                key=where,
                schema=self._schema.simpleString(),
                rows_have=", ".join(f"{field.name} {field.type}" for field in found)[:500],
                next_step="Go back to the schema of before until those rows are given, then change it.",
            )

    def _in_order(self, part: str, row: Row) -> Sequence[Any]:
        if isinstance(row, Mapping):
            if {*row} != {*self._names}:
                raise self._misfit(part, f"a row has the names {sorted(map(str, row))}")
            return [row[name] for name in self._names]
        if not isinstance(row, tuple | list):
            raise self._misfit(part, f"a row is of type {type(row).__name__}, not a tuple, a list or a mapping")
        if len(row) != len(self._names):
            raise self._misfit(part, f"a row has {len(row)} values")
        return row

    def batch(self, part: str, rows: Iterable[Row]) -> Any:
        """A ``RecordBatch`` of these rows; raises as ``chunk``."""
        import pyarrow as pa

        listed = [self._in_order(part, row) for row in rows]
        try:
            return to_arrow(self._schema, listed)
        except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError, ArithmeticError) as error:
            raise self._misfit(part, f"{type(error).__name__}: {error}"[:500]) from error
        except Exception as error:  # what pyspark's converters raise has other names in each version
            if type(error).__module__.startswith("pyspark"):
                raise self._misfit(part, f"{type(error).__name__}: {error}"[:500]) from error
            raise

    def _misfit(self, part: str, why: str) -> SourceError:
        return SourceError(
            "rows of this part do not fit the schema of the source",
            part=part,
            schema=self._schema.simpleString(),
            error=why,
            next_step="Let poll() give rows of that schema.",
        )

    def _times(self, batch: Any) -> Sequence[int | None]:
        if not self._event_time:
            return ()
        return [_as_ms(value) for value in batch.column(self._names.index(self._event_time)).to_pylist()]


def to_arrow(schema: Any, rows: Sequence[Sequence[Any]]) -> Any:
    """One ``RecordBatch`` as Spark takes it from a Python source."""
    import pyarrow as pa
    from pyspark.sql.conversion import LocalDataToArrowConversion
    from pyspark.sql.pandas.types import to_arrow_schema

    wanted = arrow_schema(schema, to_arrow_schema)
    converters = [LocalDataToArrowConversion._create_converter(field.dataType) for field in schema.fields]
    columns = [[convert(row[at]) for row in rows] for at, convert in enumerate(converters)]
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, wanted, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def arrow_schema(schema: Any, to_arrow_schema: Any) -> Any:
    """The Arrow schema that Spark wants of a Python source: times in UTC."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # Spark 4.0 and 4.1
        return to_arrow_schema(schema)


def batches_in(body: bytes, first: int, last: int) -> Iterable[Any]:
    """The rows of a chunk from ``first`` on and before ``last``, without its metadata."""
    import pyarrow as pa

    with pa.ipc.open_stream(body) as reader:
        for batch in reader:
            yield batch.slice(first, last - first).replace_schema_metadata(None)


def _as_ms(value: object) -> int | None:
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
        return int(moment.timestamp() * 1_000)
    if isinstance(value, date):
        return int(datetime(value.year, value.month, value.day, tzinfo=timezone.utc).timestamp() * 1_000)
    return None
