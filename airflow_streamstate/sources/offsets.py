"""The offset of a partitioned source: the state of each part, and how far the rows read ahead were given."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import field, replace
from typing import Literal

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.sources.interface import Json

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
        taken: how many rows were given of the chunk that begins at ``state``.
        digest: of that chunk; "" where ``taken`` is 0.
        units: how much was given since the part began.
        newest_ms: the greatest event time that was given; None for none.
        is_finished: nothing will follow.
        moves: how often a planned part moved on without rows.
        away_ms: since when the source does not list it; None where it does. It keeps its state, and goes on from it
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
        first_chunk: with which number of chunks a part begins that is not among ``parts``: greater than any number that
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
        """Without these parts: they begin anew, if they are listed again."""
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
    """Without what does not say how far it was read."""
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
    """``version``: of the offset, which old parts did not say."""
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
