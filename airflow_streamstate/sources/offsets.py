"""The offset of a partitioned source, and the rows that were read ahead of it: chunks and their spool."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import date, datetime, timedelta, timezone
from typing import Any, Literal

from airflow_streamstate.errors import DataError, ObjectExistsError, SourceError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.older_python import zipped
from airflow_streamstate.sources.interface import Json, Row
from airflow_streamstate.store.base import Store

KIND = "streamstate"
"""The mark by which an offset is known; its value is the version of this format."""
FORMAT = 1
Order = Literal["same", "ahead", "behind", "apart"]


@dataclass(frozen=True)
class PartOffset:
    """How far a part was read.

    Attributes:
        state: of the part; of the beginning of the chunk where ``taken`` is not 0.
        chunks: how many chunks of rows read ahead were given whole.
        taken: how many rows were given of the chunk that starts at ``state``.
        digest: of that chunk; "" where ``taken`` is 0.
        units: how much was given since the part started.
        newest_ms: the greatest event time that was given; None without one.
        is_finished: nothing will follow.
        moves: how often a planned part moved on without rows.
        away_ms: since when the source does not list it; None where it does. It keeps its state, and continues from it
            once it is listed again.
        version, schema: by which that chunk was read; 0 and "" where ``taken`` is 0.
    """

    state: Json = None
    chunks: int = 0
    taken: int = 0
    digest: str = ""
    units: int = 0
    newest_ms: int | None = None
    is_finished: bool = False
    moves: int = 0
    away_ms: int | None = None
    version: int = 0
    schema: str = ""


@dataclass(frozen=True)
class SourceOffset:
    """A position in a partitioned source.

    Attributes:
        lineage: under which rows read ahead are kept; a fresh start has a new one.
        version: of the source that wrote it.
        unit: of the counts.
        parts: by name.
        is_finished: every part is, and was listed again since.
        first_chunk: with which number of chunks a part starts that is not among ``parts``: greater than any number that
            a forgotten part had, so that a part of the same name is not given its rows.
        schema: a digest of the schema by which it was planned; "" in old offsets.
    """

    lineage: str
    version: int = 1
    unit: str = "rows"
    parts: Mapping[str, PartOffset] = field(default_factory=dict)
    is_finished: bool = False
    first_chunk: int = 0
    schema: str = ""

    @property
    def new_part(self) -> PartOffset:
        """Of a part of which nothing was read."""
        return PartOffset(chunks=self.first_chunk)

    def without(self, names: Collection[str]) -> SourceOffset:
        """Without these parts: they start again, if they are listed again."""
        gone = [part.chunks + 1 for name, part in self.parts.items() if name in names]
        parts = {name: part for name, part in self.parts.items() if name not in names}
        return replace(self, parts=parts, first_chunk=max([self.first_chunk, *gone]))


def to_json(offset: SourceOffset) -> dict[str, Json]:
    """Equal offsets give equal text."""
    raw: dict[str, Json] = {KIND: FORMAT, "lineage": offset.lineage, "version": offset.version, "unit": offset.unit}
    if offset.is_finished:
        raw["finished"] = True
    if offset.first_chunk:
        raw["first_chunk"] = offset.first_chunk
    if offset.schema:
        raw["schema"] = offset.schema
    raw["parts"] = {name: _part_to_json(offset.parts[name]) for name in sorted(offset.parts)}
    return raw


def to_text(offset: SourceOffset) -> str:
    """An offset as Spark writes it."""
    return json.dumps(to_json(offset))


def from_json(raw: Json) -> SourceOffset:
    """Raises ValueError where it is no offset of a partitioned source, or of a later format."""
    try:
        if raw[KIND] != FORMAT or not isinstance(raw["parts"], dict):
            raise ValueError(raw[KIND])
        parts = {str(name): _part_from_json(part, int(raw["version"])) for name, part in raw["parts"].items()}
        return SourceOffset(
            str(raw["lineage"]),
            int(raw["version"]),
            str(raw["unit"]),
            parts,
            bool(raw.get("finished", False)),
            int(raw.get("first_chunk", 0)),
            str(raw.get("schema", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError(f"no offset of a partitioned source: {str(raw)[:100]}") from None


def parse(text: str) -> SourceOffset:
    """An offset as Spark wrote it; raises ValueError as ``from_json``."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"no offset of a partitioned source: {text[:100]}") from None
    return from_json(raw)


def compare(first: SourceOffset, second: SourceOffset) -> Order:
    """The order of two offsets; of a part that one lacks, it has read nothing."""
    names = {*first.parts, *second.parts}
    none = PartOffset()
    pairs = [(_place(first.parts.get(name, none)), _place(second.parts.get(name, none))) for name in names]
    if _covered(first) == _covered(second):
        return "same"
    is_behind = any(one < other for one, other in pairs) or (second.is_finished and not first.is_finished)
    is_ahead = any(one > other for one, other in pairs) or (first.is_finished and not second.is_finished)
    if is_ahead == is_behind:
        return "apart"
    return "ahead" if is_ahead else "behind"


def _covered(offset: SourceOffset) -> SourceOffset:
    """Without what does not show how far it was read."""
    parts = {name: replace(part, away_ms=None, version=0, schema="") for name, part in offset.parts.items()}
    return replace(offset, version=0, schema="", parts=parts)


def between(first: SourceOffset, second: SourceOffset) -> int:
    """How much the second covers that the first does not, in the source's unit."""
    none = PartOffset()
    return sum(max(0, part.units - first.parts.get(name, none).units) for name, part in second.parts.items())


def _place(part: PartOffset) -> tuple[int, int, int, int, bool]:
    return part.units, part.chunks, part.taken, part.moves, part.is_finished


def _part_to_json(part: PartOffset) -> dict[str, Json]:
    raw: dict[str, Json] = {"state": part.state, "units": part.units}
    if part.chunks:
        raw["chunks"] = part.chunks
    if part.taken:
        raw |= {"taken": part.taken, "digest": part.digest, "version": part.version}
        raw |= {"schema": part.schema} if part.schema else {}
    if part.moves:
        raw["moves"] = part.moves
    if part.newest_ms is not None:
        raw["newest"] = part.newest_ms
    if part.is_finished:
        raw["finished"] = True
    if part.away_ms is not None:
        raw["away"] = part.away_ms
    return raw


def _part_from_json(raw: Mapping[str, Json], version: int) -> PartOffset:
    """``version``: of the offset, which old parts did not record."""
    newest, away = raw.get("newest"), raw.get("away")
    return PartOffset(
        raw["state"],
        int(raw.get("chunks", 0)),
        int(raw.get("taken", 0)),
        str(raw.get("digest", "")),
        int(raw["units"]),
        None if newest is None else int(newest),
        bool(raw.get("finished", False)),
        int(raw.get("moves", 0)),
        None if away is None else int(away),
        int(raw.get("version", version)) if raw.get("taken") else 0,
        str(raw.get("schema", "")),
    )


# Rows that were read ahead, as Arrow bytes: one chunk follows a part's state, and leads to its next one.
#
# pyspark and pyarrow are imported where they are needed, so that offsets can be read without them.

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
        event_time: the column with the event time; "" if not set.

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
            SourceError: it is of a different schema.
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
        if not isinstance(row, (tuple, list)):
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
    arrays = [pa.array(column, type=field.type) for column, field in zipped(columns, wanted)]
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


# Where rows that were read ahead are kept, so that a batch that was planned gives the same rows again.
#
# A chunk has one place for the state that it follows, and is created only if nothing is there: of two drivers that
# read on from one state the first decides, and both give its rows. So a fork of a checkpoint needs no copy of a
# spool.

_KEY = re.compile(r"(?P<part>[^/]+)/(?P<number>[0-9]{12})-[0-9a-f]{16}\.arrow")
MOST_DELETED = 500
"""How many chunks one cleanup deletes."""


@dataclass(frozen=True)
class ChunkPlace:
    """Which rows: those behind a state of a part.

    Attributes:
        number: how many chunks of the part there were before; a state may come again.
        version, schema: of the source that reads them, and a digest of its schema; "" in old spools.
    """

    lineage: str
    part: str
    number: int
    state: Json
    version: int
    schema: str = ""

    @property
    def key(self) -> str:
        told = [self.version, self.state, *([self.schema] if self.schema else [])]
        what = json.dumps(told, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(what.encode()).hexdigest()[:16]
        return f"{self.lineage}/{part_folder(self.part)}/{self.number:012d}-{digest}.arrow"


def part_folder(part: str) -> str:
    """A name that every store takes."""
    word = re.sub(r"[^A-Za-z0-9]+", "-", part).strip("-")[:40]
    return f"{word}-{hashlib.sha256(part.encode()).hexdigest()[:16]}"


class Spool:
    """Chunks in a store."""

    def __init__(self, store: Store, rows: RowFormat) -> None:
        self._store = store
        self._rows = rows

    @property
    def uri(self) -> str:
        return self._store.uri

    def get(self, place: ChunkPlace) -> Chunk | None:
        stored = self._store.get(place.key)
        return None if stored is None else self._rows.read(stored.body, place.key)

    def has(self, place: ChunkPlace) -> bool:
        return self._store.head(place.key) is not None

    def keep(self, place: ChunkPlace, chunk: Chunk) -> Chunk:
        """Keep a chunk; returns the one that is there, which another driver may have read first."""
        try:
            self._store.create(place.key, chunk.body)
        except ObjectExistsError:
            there = self.get(place)
            if there is not None:
                return there
            self._store.put(place.key, chunk.body)
        return chunk

    def clean_up(self, lineage: str, needed_from: Mapping[str, int], before: datetime, *, others_from: int = 0) -> int:
        """Delete chunks of rows that were given, if they were kept before a moment; how many.

        Args:
            needed_from: the number of the first chunk of each part that was not given whole.
            others_from: that of every other part.
        """
        numbers = {part_folder(part): number for part, number in needed_from.items()}
        prefix = f"{lineage}/"
        gone = 0
        young: set[str] = set()
        for info in sorted(self._store.list_objects(prefix), key=lambda info: info.key):
            found = _KEY.fullmatch(info.key[len(prefix) :])
            if found is None or int(found["number"]) >= numbers.get(found["part"], others_from):
                continue
            if found["part"] in young:
                continue  # those behind a young chunk are younger
            head = self._store.head(info.key)
            if head is not None and head.modified_at is not None and head.modified_at < before:
                self._store.delete(info.key)
                gone += 1
                if gone == MOST_DELETED:
                    break
            else:
                young.add(found["part"])
        return gone


def kept_since(now: datetime, keep_seconds: float) -> datetime:
    """The moment before which chunks that were given are deleted."""
    return now - timedelta(seconds=keep_seconds)
