"""Partitioned sources of ``airflow_streamstate.sources``: what a source of this process's script reports of itself.

Its offsets show what they cover; identity, lag and what is lost are asked of the source's own class, which the script
has registered in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from airflow_streamstate.connectors.source import (
    NO_OFFSET,
    Lag,
    LostInput,
    OffsetOrder,
    Preflight,
    Source,
    SparkDoor,
    Unit,
    Untold,
)
from airflow_streamstate.sources import offsets
from airflow_streamstate.sources.interface import Part, PartitionedSource, opened_source, read_settings, registered
from airflow_streamstate.sources.offsets import ChunkPlace, PartOffset, SourceOffset
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.open import open_store
from airflow_streamstate.store.options import plain_uri

Answer = TypeVar("Answer")
_EMPTY = SourceOffset("")
_WORDS = (
    "rows read ahead of a partitioned source are kept in its spool, of which a checkpoint has only the names: keep the"
    " spool as long as the checkpoint and its snapshots"
)


class PartitionedConnector:
    """Every source that the script gave to ``sources.register``."""

    name = "partitioned"

    def identify(self, source: Source) -> str | None:
        found = registered(source.format)
        if found is None:
            return None
        return f"{source.format} {opened_source(found, source.options).identity()}".strip()

    def continues(self, source: Source, offset: str) -> bool:
        return False

    def compare(self, first: str, second: str) -> OffsetOrder:
        if NO_OFFSET in (first, second):
            known = [_parsed(one) for one in (first, second)]
            return "same" if first == second else "behind" if known[0] is _EMPTY else "ahead"
        return offsets.compare(_parsed(first), _parsed(second))

    def between(self, first: str, second: str) -> Lag | None:
        begin, end = _parsed(first), _parsed(second)
        return Lag(offsets.between(begin, end), _unit(end.unit if end is not _EMPTY else begin.unit))

    def finished_parts(self, offset: str) -> int | None:
        found = _parsed(offset)
        return len(found.parts) if found.is_finished else None

    def open(self, source: Source, spark: SparkDoor) -> OpenPartitioned:
        found = registered(source.format)
        if found is None:
            raise LookupError(f"no source is registered as {source.format}")
        return OpenPartitioned(opened_source(found, source.options))

    def remarks(self, source: Source) -> tuple[str, ...]:
        found = registered(source.format)
        if found is None:
            return ()
        opened = opened_source(found, source.options)
        return (*opened.remarks(), *([_WORDS] if read_settings(opened.options).spool else []))

    def explain(self, failure: str) -> str | None:
        """The sentence of a ``SourceError``, which Spark gives inside a Python traceback."""
        _, found, rest = failure.partition("errors.SourceError: ")
        if not found:
            return None
        return rest.splitlines()[0].strip() or None


class OpenPartitioned:
    """A partitioned source, asked in the driver."""

    def __init__(self, source: PartitionedSource) -> None:
        self._source = source

    def marks(self) -> Mapping[str, str]:
        return {}

    def lag(self, offset: str) -> Lag | Untold | None:
        read = SourceOffset("") if offset == NO_OFFSET else _parsed(offset)
        behind = 0
        for name in self._source.list_parts():
            part = read.parts.get(name, PartOffset())
            if part.is_finished:
                continue
            found = self._ask(name, part, lambda one: one.behind())
            if found is None:
                return Untold("its parts do not say how much there is to read")
            behind += max(0, found - part.taken)
        return Lag(behind, self._source.unit)

    def preflight(self, offset: str, marks: Mapping[str, str]) -> Preflight:
        read = _parsed(offset)
        listed = {*self._source.list_parts()}
        lost: list[LostInput] = []
        lost_parts: set[str] = set()
        for name, part in read.parts.items():
            if part.is_finished:
                continue
            found = self._lost(read, name, part, is_listed=name in listed)
            if found is not None:
                lost.append(found)
                lost_parts.add(name)
        if not lost:
            return Preflight((), offset)
        return Preflight(tuple(lost), offsets.to_text(replace(read.without(lost_parts), is_finished=False)))

    def close(self) -> None:
        return

    def _lost(self, read: SourceOffset, name: str, part: PartOffset, *, is_listed: bool) -> LostInput | None:
        if not is_listed:
            # A part whose source lets it vanish counts as finished.
            return None if self._source.vanished == "finished" else LostInput(name, "gone")
        if part.taken and not self._is_spooled(read, name, part):
            return LostInput(name, "removed", None, "the rows that were read ahead are gone from the spool")
        found = self._ask(name, part, lambda one: one.lost())
        if found is None:
            return None
        return LostInput(name, found.reason, found.units if self._source.unit == "rows" else None, found.detail)

    def _is_spooled(self, read: SourceOffset, name: str, part: PartOffset) -> bool:
        store = self._spool_store()
        place = ChunkPlace(read.lineage, name, part.chunks, part.state, part.version, part.schema)
        return store is not None and store.head(place.key) is not None

    def _spool_store(self) -> Store | None:
        uri = read_settings(self._source.options).spool
        return open_store(plain_uri(uri)) if uri else None

    def _ask(self, name: str, part: PartOffset, question: Callable[[Part], Answer]) -> Answer:
        built = self._source.build_part(name, part.state)
        try:
            return question(built)
        finally:
            built.suspend()


def _parsed(text: str) -> SourceOffset:
    return _EMPTY if text == NO_OFFSET else offsets.parse(text)


def _unit(text: str) -> Unit:
    return "bytes" if text == "bytes" else "rows"
