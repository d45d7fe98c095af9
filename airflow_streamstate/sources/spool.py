"""Where rows that were read ahead are kept, so that a batch that was planned gives the same rows again.

A chunk has one place for the state that it follows, and is created only if nothing is there: of two drivers that read
on from one state the first decides, and both give its rows. So a fork of a checkpoint needs no copy of a spool.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_streamstate.errors import ObjectExistsError
from airflow_streamstate.sources.chunks import Chunk, RowFormat
from airflow_streamstate.sources.interface import Json
from airflow_streamstate.store.base import Store

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
