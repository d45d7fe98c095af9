"""What the next batch reads of each part, and in which task: within the limit, in turn."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import SourceError, StreamStateError
from airflow_streamstate.sources.interface import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Json,
    Part,
    PartitionedSource,
    Patience,
    PlannedEnd,
    SourceSettings,
)
from airflow_streamstate.sources.offsets import (
    Chunk,
    ChunkPlace,
    PartOffset,
    RowFormat,
    SourceOffset,
    Spool,
    compare,
    kept_since,
)

MAX_STATE_BYTES = 64 << 10
MAX_OFFSET_BYTES = 1 << 20
CHUNK_ROWS = 10_000
MOST_UNLIMITED = 1_000_000
"""How many rows one batch reads ahead of a part where Spark sets no limit (``Trigger.Once``)."""
CLEAN_UP_SECONDS = 60.0
MOST_VANISHED = 1_000
"""How many vanished parts an offset keeps the states of."""


@dataclass(frozen=True)
class Slice:
    """A stretch of one part, to be read by one task.

    Attributes:
        start, end: the states between which a planned part is read.
        units: how much is between them.
        pieces: for rows that were read ahead: chunks, and the first row and the one behind the last of each.
    """

    part: str
    start: Json = None
    end: Json = None
    units: int = 0
    pieces: tuple[tuple[bytes, int, int], ...] = ()


@dataclass
class _Open:
    """A part that is open in this process.

    Attributes:
        state: to which ``part`` has read.
        news_seconds: when it last had rows, or was opened.
        rests_until_seconds: when it is asked again, having had nothing.
        ahead: the chunk behind a place, as it was last read.
    """

    part: Part
    state: str
    news_seconds: float
    rests_until_seconds: float = -math.inf
    ahead: tuple[ChunkPlace, Chunk] | None = None


@dataclass
class _Batch:
    """A batch while it is planned.

    Attributes:
        left: how much it may still take.
        spent: the parts that are not asked any more.
        heads: of a part, the rows that it would give next.
        ends: of a planned part, where its read would end.
        short: the parts that had fewer rows than were asked for.
        begun: how much of each part was given before.
        away: the open parts that are not listed, and may come back.
    """

    parts: dict[str, PartOffset]
    left: float
    spent: set[str] = field(default_factory=set)
    heads: dict[str, Chunk] = field(default_factory=dict)
    ends: dict[str, PlannedEnd] = field(default_factory=dict)
    short: set[str] = field(default_factory=set)
    begun: dict[str, int] = field(default_factory=dict)
    away: list[str] = field(default_factory=list)


class Planner:
    """Plans the batches of one source, in one process.

    Args:
        rows: makes chunks of rows.
        spool: None for no spool: a source then may have planned parts only.
        say: prints one line for the user.
    """

    def __init__(
        self,
        source: PartitionedSource,
        rows: RowFormat,
        spool: Spool | None,
        clock: Clock,
        settings: SourceSettings,
        say: Callable[[str], None],
    ) -> None:
        self._source = source
        self._rows = rows
        self._spool = spool
        self._clock = clock
        self._settings = settings
        self._say = say
        self._open: dict[str, _Open] = {}
        self._patience = Patience(source.format_name(), clock, settings.fail_after_seconds, say)
        self._listed: tuple[str, ...] | None = None
        self._listed_seconds = -math.inf
        self._cleaned_seconds = -math.inf
        self._bounded: dict[str, float] | None = None
        self._away: dict[str, int] = {}
        self._read: dict[str, Chunk] = {}  # of the newest batch: it is given although the spool is away then
        self._turn = 0

    # what Spark asks

    def initial(self) -> SourceOffset:
        """Before anything was read; with a new lineage."""
        return self._by_this_source(SourceOffset(self._clock.new_uuid()))

    def _by_this_source(self, offset: SourceOffset) -> SourceOffset:
        source = self._source
        return replace(offset, version=source.version, unit=source.unit, schema=self._rows.schema_digest)

    def begin_bounded(self) -> None:
        """From now on read what there is at this moment, and no more."""
        self._source.begin_bounded()
        self._bounded = {}

    def next(self, start: SourceOffset, limit: int | None) -> SourceOffset:
        """The end of the batch that starts at an offset; the same offset if there is nothing to do.

        Raises:
            SourceError: the source broke a promise, or failed for too long.
        """
        start = self._by_this_source(start)
        listed = self._list(start.parts)
        if listed is None:
            return start
        taken_up = self._taken_up(start, listed)
        self._read.clear()
        batch = _Batch(dict(taken_up.parts), math.inf if limit is None else limit)
        batch.begun = {name: part.units for name, part in batch.parts.items()}
        batch.away = [name for name, part in batch.parts.items() if not part.is_finished and self._is_away(part)]
        names = self._in_turn(
            [name for name, part in batch.parts.items() if not part.is_finished and part.away_ms is None]
        )
        while self._round(start.lineage, batch, names):
            pass
        self._finish(batch, names)
        is_finished = self._are_finished(batch.parts, was_finished=start.is_finished)
        read = {name: part for name, part in batch.parts.items() if part != start.new_part}
        end = replace(taken_up, parts=read, is_finished=is_finished)
        if compare(start, end) == "same" and not self._is_told(start, end):
            return start  # that a part is away for a while is no batch of its own
        _check_size(end)
        return end

    def slices(self, start: SourceOffset, end: SourceOffset) -> list[Slice]:
        """What is between two offsets.

        Raises:
            SourceError: rows that were read ahead are gone, and the source gives others now.
        """
        found = []
        for name, after in end.parts.items():
            before = start.parts.get(name, start.new_part)
            if _position(before) == _position(after):
                continue
            if after.chunks == before.chunks and not before.taken and not after.taken:
                if after.units != before.units:
                    found.append(Slice(name, before.state, after.state, after.units - before.units))
                continue
            pieces = tuple(self._pieces(end, name, before, after))
            if pieces:
                found.append(Slice(name, pieces=pieces))
        return found

    def commit(self, end: SourceOffset) -> None:
        """Rows before this offset are not needed by the query any more; the spool is cleaned up now and then."""
        now_seconds = self._clock.monotonic_seconds()
        if self._spool is None or now_seconds - self._cleaned_seconds < CLEAN_UP_SECONDS:
            return
        self._cleaned_seconds = now_seconds
        before = kept_since(self._clock.now(), self._settings.keep_spool_seconds)
        try:
            numbers = {name: part.chunks for name, part in end.parts.items()}
            gone = self._spool.clean_up(end.lineage, numbers, before, others_from=end.first_chunk)
        except StreamStateError as error:
            self._say(f"old rows could not be removed from the spool: {error}")
        else:
            if gone:
                self._say(f"{gone} files of rows that were given long ago are removed from the spool")

    def close(self) -> None:
        """Suspend every part."""
        for name in list(self._open):
            self._suspend(name)

    # listing

    def _list(self, known: Mapping[str, PartOffset]) -> tuple[str, ...] | None:
        """The parts there are; None where the source does not report them at the moment."""
        now_seconds = self._clock.monotonic_seconds()
        if self._listed is not None and now_seconds - self._listed_seconds < self._settings.list_seconds:
            return self._listed
        return self._list_again(known)

    def _list_again(self, known: Mapping[str, PartOffset]) -> tuple[str, ...] | None:
        while True:
            listed: tuple[str, ...] | None = self._tolerant(
                "", "list_parts()", lambda: _checked_names(self._source.list_parts())
            )
            if listed is None:
                return None
            self._listed, self._listed_seconds = listed, self._clock.monotonic_seconds()
            may_return = self._note_away(known, listed)
            if self._bounded is None or not may_return:
                return listed
            # A query that reads what is there and ends waits for a part that is away, as for one that fails.
            self._clock.sleep(max(FIRST_PAUSE_SECONDS, min(self._settings.list_seconds, LONGEST_PAUSE_SECONDS)))

    def _note_away(self, known: Mapping[str, PartOffset], listed: tuple[str, ...]) -> bool:
        """Note since when parts are not listed; whether one that was not finished may still come back.

        Raises:
            SourceError: one stays away, and the source does not let its parts vanish.
        """
        there = {*listed}
        self._away = {name: self._away_since(name, part) for name, part in known.items() if name not in there}
        away = {name: replace(known[name], away_ms=since) for name, since in self._away.items()}
        unfinished = {name: part for name, part in away.items() if not part.is_finished}
        gone = sorted(name for name, part in unfinished.items() if not self._is_away(part))
        if gone and self._source.vanished == "error":
            raise SourceError(
                "parts of this source are not there any more, and were not finished",
                parts=gone[:20],
                away_for_seconds=self._settings.fail_after_seconds,
                next_step="Bring them back; a source whose parts may go declares it: vanished = 'finished'.",
            )
        return len(gone) < len(unfinished)

    def _away_since(self, name: str, part: PartOffset) -> int:
        since = self._away.get(name, part.away_ms)
        return int(self._clock.now().timestamp() * 1_000) if since is None else since

    def _is_away(self, part: PartOffset) -> bool:
        """Whether a part is not listed, but not for long enough to count as vanished."""
        return part.away_ms is not None and not self._is_vanished(part)

    def _is_vanished(self, part: PartOffset) -> bool:
        if part.away_ms is None:
            return False
        return self._clock.now().timestamp() * 1_000 - part.away_ms >= self._settings.fail_after_seconds * 1_000

    def _is_told(self, start: SourceOffset, end: SourceOffset) -> bool:
        """Whether a part vanished, or is listed again, which the next process has to know."""
        pairs = [(start.parts[name], part) for name, part in end.parts.items() if name in start.parts]
        return any(
            self._is_vanished(after) if before.away_ms is None else after.away_ms is None for before, after in pairs
        )

    def _taken_up(self, start: SourceOffset, listed: tuple[str, ...]) -> SourceOffset:
        """With the parts of the next offset: restored state beats the listing.

        A part that vanished keeps its state, and continues from it if it is listed again; a finished one is forgotten.
        """
        parts = {name: replace(start.parts.get(name, start.new_part), away_ms=None) for name in listed}
        vanished = []
        for name, part in start.parts.items():
            if name in parts:
                continue
            parts[name] = replace(part, away_ms=self._away_since(name, part))
            if self._is_vanished(parts[name]):
                vanished.append(name)
                if name in self._open:
                    self._say(f"part {name} is not there any more and counts as finished")
                    self._suspend(name)
        if self._bounded is not None and not self._bounded:
            there = {name: part for name, part in parts.items() if part.away_ms is None}
            self._bounded = {name: part.units + self._behind(name, part) for name, part in there.items()} or {"": 0}
        vanished.sort(key=lambda name: parts[name].away_ms or 0, reverse=True)
        kept = [name for name in vanished if not parts[name].is_finished][:MOST_VANISHED]
        return replace(start, parts=parts).without({*vanished} - {*kept})

    def _behind(self, name: str, offset: PartOffset) -> float:
        """How much there is to read now; infinite where the part does not know."""
        if offset.is_finished:
            return 0
        opened = self._tolerant(name, "build_part()", lambda: self._opened(name, offset.state))
        behind = None if opened is None else self._tolerant(name, "behind()", opened.part.behind)
        return math.inf if behind is None else behind

    def _in_turn(self, names: list[str]) -> list[str]:
        """The parts, each batch beginning with another one."""
        if not names:
            return []
        self._turn = (self._turn + 1) % len(names)
        return names[self._turn :] + names[: self._turn]

    # taking rows

    def _round(self, lineage: str, batch: _Batch, names: list[str]) -> bool:
        """Take an equal share of each part that has something; whether anything was taken."""
        asked = [name for name in names if name not in batch.spent]
        if batch.left < 1 or not asked:
            return False
        share = batch.left if batch.left == math.inf else math.ceil(batch.left / len(asked))
        for name in asked:
            self._look(lineage, batch, name, share)
        takers = [name for name in asked if name in batch.heads or name in batch.ends]
        bound_ms = self._bound_ms(batch, [*names, *batch.away])
        share = batch.left if batch.left == math.inf else math.ceil(batch.left / max(1, len(takers)))
        has_taken = False
        for name in takers:
            if batch.left < 1:
                break
            if name in batch.ends:
                taken = self._take_planned(batch, name, bound_ms)
            else:
                taken = self._take(batch, name, min(share, batch.left), bound_ms)
            batch.left -= taken
            has_taken = has_taken or taken > 0
        return has_taken

    def _look(self, lineage: str, batch: _Batch, name: str, share: float) -> None:
        """Find what a part has next; without anything it is spent for this batch."""
        if name in batch.heads or name in batch.ends:
            return
        offset = batch.parts[name]
        most = self._may_take(name, offset)
        is_enough = offset.units - batch.begun[name] >= MOST_UNLIMITED
        if name in batch.short or is_enough or (most < 1 and not offset.taken):
            batch.spent.add(name)
            return
        opened = self._tolerant(name, "build_part()", lambda: self._opened(name, offset.state, offset))
        if opened is None or (self._bounded is None and self._rests(opened) and not offset.taken):
            batch.spent.add(name)
        elif is_planned(opened.part):
            self._look_planned(batch, name, min(share, most), opened)
        else:
            self._look_ahead(lineage, batch, name, int(max(1, min(CHUNK_ROWS, share, most))), opened)

    def _look_planned(self, batch: _Batch, name: str, most: float, opened: _Open) -> None:
        batch.spent.add(name)  # one stretch of a batch, so that its two states define what it is
        limit = None if most == math.inf else int(most)
        end = self._tolerant(name, "plan_end()", lambda: opened.part.plan_end(limit))  # type: ignore[attr-defined]
        if end is None or (not end.units and _text(end.state, name) == opened.state):
            self._rest(opened)
            return
        self._checked_state(name, end.state, opened.state)
        batch.ends[name] = end

    def _look_ahead(self, lineage: str, batch: _Batch, name: str, wanted: int, opened: _Open) -> None:
        offset = batch.parts[name]
        chunk = self._tolerant(name, "poll()", lambda: self._ahead(lineage, batch, name, wanted, opened))
        if chunk is None:
            batch.spent.add(name)
        elif chunk.count:
            batch.heads[name] = chunk
        else:
            batch.spent.add(name)
            if _text(chunk.state) != _text(offset.state):
                batch.parts[name] = replace(offset, state=chunk.state, chunks=offset.chunks + 1)

    def _may_take(self, name: str, offset: PartOffset) -> float:
        """How much of a part may be read, where a query ends with what there was at its beginning."""
        return math.inf if self._bounded is None else self._bounded.get(name, 0) - offset.units

    def _rests(self, opened: _Open) -> bool:
        return self._clock.monotonic_seconds() < opened.rests_until_seconds

    def _rest(self, opened: _Open) -> None:
        opened.rests_until_seconds = self._clock.monotonic_seconds() + self._settings.poll_seconds

    def _take(self, batch: _Batch, name: str, most: float, bound_ms: float) -> int:
        """Take up to this many of a part's rows; how many were taken."""
        offset, chunk = batch.parts[name], batch.heads[name]
        count = int(min(most, chunk.count - offset.taken))
        if chunk.times_ms and bound_ms < math.inf:
            most = count
            count = _rows_before(chunk.times_ms, offset.taken, offset.taken + most, bound_ms)
            if self._is_slowest(batch, name, bound_ms):
                # The row by which it is the slowest may come after later ones: no part could continue before it.
                count = max(count, min(most, _least_at(chunk.times_ms, offset.taken) + 1 - offset.taken))
        if count == 0:
            return 0
        taken = offset.taken + count
        times = [time for time in chunk.times_ms[offset.taken : taken] if time is not None]
        moved = replace(
            offset,
            taken=taken,
            digest=chunk.digest,
            version=offset.version or self._source.version,
            schema=offset.schema if offset.taken else self._rows.schema_digest,
            units=offset.units + count,
            newest_ms=max([*times, *([] if offset.newest_ms is None else [offset.newest_ms])], default=None),
        )
        if taken == chunk.count:
            moved = replace(
                moved, state=chunk.state, chunks=offset.chunks + 1, taken=0, digest="", version=0, schema=""
            )
            del batch.heads[name]
            if chunk.is_finished:
                moved = replace(moved, is_finished=True)
                batch.spent.add(name)
        batch.parts[name] = moved
        return count

    def _take_planned(self, batch: _Batch, name: str, bound_ms: float) -> int:
        offset, end = batch.parts[name], batch.ends[name]
        last_ms = _ms(end.last_at)
        if last_ms is not None and last_ms > bound_ms and not self._is_slowest(batch, name, bound_ms):
            return 0
        del batch.ends[name]
        opened = self._open[name]
        opened.state = _text(end.state)
        opened.news_seconds = self._clock.monotonic_seconds()
        newest = [time for time in (offset.newest_ms, last_ms) if time is not None]
        batch.parts[name] = replace(
            offset,
            state=end.state,
            units=offset.units + end.units,
            newest_ms=max(newest, default=None),
            moves=offset.moves + (0 if end.units else 1),
        )
        return int(end.units)

    def _finish(self, batch: _Batch, names: list[str]) -> None:
        """Find out which parts are finished: those without rows that wait."""
        for name in batch.ends:
            self._suspend(name)  # it has moved on to where it may not go yet; it is built from its last state again
        for name in names:
            offset = batch.parts[name]
            opened = self._open.get(name)
            if opened is None or offset.taken or name in batch.heads or offset.is_finished:
                continue
            if _text(offset.state) == opened.state and self._tolerant(name, "is_finished()", opened.part.is_finished):
                batch.parts[name] = replace(offset, is_finished=True)
        for name in names:
            if batch.parts[name].is_finished:
                self._suspend(name)

    def _are_finished(self, parts: Mapping[str, PartOffset], *, was_finished: bool) -> bool:
        """Whether every part is finished, listed again after that."""
        there = [part for part in parts.values() if not self._is_vanished(part)]
        if not there:
            return was_finished
        if not all(part.is_finished for part in there):
            return False
        listed = self._listed if was_finished else self._list_again(parts)
        return listed is not None and all(name in parts for name in listed)

    # rows read ahead

    def _ahead(self, lineage: str, batch: _Batch, name: str, wanted: int, opened: _Open) -> Chunk:
        """The chunk behind a part's offset: of the spool, or read now and kept there."""
        offset = batch.parts[name]
        # The rest of a chunk is of those that read it, whatever this source would read there now.
        version, schema = (offset.version, offset.schema) if offset.taken else (0, self._rows.schema_digest)
        place = ChunkPlace(lineage, name, offset.chunks, offset.state, version or self._source.version, schema)
        if opened.ahead is not None and opened.ahead[0] == place:
            self._read[place.key] = opened.ahead[1]
            return opened.ahead[1]
        spool = self._needed_spool(name)
        chunk = spool.get(place)
        if chunk is None:
            chunk = self._poll(name, offset, wanted, opened)
            if chunk.count < wanted:
                self._had_all(batch, name, offset.units - offset.taken + chunk.count, opened)
            if chunk.count or _text(chunk.state) != _text(offset.state):
                chunk = spool.keep(place, chunk)
        if offset.taken and chunk.digest != offset.digest:
            raise _others(name, spool.uri)
        if _text(chunk.state) != opened.state:
            self._suspend(name)
            opened = self._opened(name, chunk.state)
        self._read[place.key] = chunk
        if chunk.count:
            opened.ahead = place, chunk
            opened.news_seconds = self._clock.monotonic_seconds()
        return chunk

    def _had_all(self, batch: _Batch, name: str, units: int, opened: _Open) -> None:
        """A part had fewer rows than it was asked for."""
        batch.short.add(name)
        self._rest(opened)
        if self._bounded is not None:
            self._bounded[name] = units

    def _poll(self, name: str, offset: PartOffset, wanted: int, opened: _Open) -> Chunk:
        if opened.state != _text(offset.state):
            self._suspend(name)
            opened = self._opened(name, offset.state)
        rows = list(opened.part.poll(wanted))
        if len(rows) > wanted:
            raise SourceError("poll() of a part gave more rows than its limit", part=name, limit=wanted, rows=len(rows))
        state = opened.part.snapshot()
        text = self._checked_state(name, state, opened.state if rows else None)
        is_finished = bool(opened.part.is_finished())
        opened.state = text
        return self._rows.chunk(name, rows, state, is_finished)

    def _needed_spool(self, name: str) -> Spool:
        if self._spool is None:
            raise SourceError(
                "this source reads ahead, and has no place where its rows are kept",
                source=self._source.format_name(),
                part=name,
                next_step="Give it option spool: a folder that outlives the driver, e.g. s3a://bucket/streams/spool.",
            )
        return self._spool

    def _pieces(
        self, end: SourceOffset, name: str, before: PartOffset, after: PartOffset
    ) -> list[tuple[bytes, int, int]]:
        spool = self._needed_spool(name)
        found = []
        at = before
        while (at.chunks, at.taken) < (after.chunks, after.taken):
            chunk = self._planned_chunk(spool, end, name, at, after)
            last = after.taken if at.chunks == after.chunks else chunk.count
            if last > at.taken:
                found.append((chunk.body, at.taken, last))
            if at.chunks == after.chunks:
                break
            at = PartOffset(chunk.state, at.chunks + 1)
        return found

    def _planned_chunk(self, spool: Spool, end: SourceOffset, name: str, at: PartOffset, after: PartOffset) -> Chunk:
        version, schema = (end.version, end.schema)
        if at.taken or at.chunks == after.chunks:
            version, schema = (at.version, at.schema) if at.taken else (after.version, after.schema)
        place = ChunkPlace(end.lineage, name, at.chunks, at.state, version or end.version, schema)
        if place.key in self._read:
            return self._read[place.key]
        chunk = spool.get(place)
        wanted = at.digest or (after.digest if at.chunks == after.chunks else "")
        if chunk is None or (wanted and chunk.digest != wanted):
            raise _gone(name, spool.uri, place.key)
        return chunk

    # parts that are open

    def _opened(self, name: str, state: Json, offset: PartOffset | None = None) -> _Open:
        """The part, open at a state, or behind the chunk that follows it."""
        there = self._open.get(name)
        if there is not None:
            is_behind = there.ahead is not None and offset is not None and there.ahead[0].number == offset.chunks
            if there.state == _text(state) or (is_behind and there.ahead and there.ahead[0].state == state):
                return there
            self._suspend(name)
        part = self._source.build_part(name, json.loads(_text(state)))
        if not isinstance(part, Part):
            raise SourceError(
                "build_part() gave no Part", source=self._source.format_name(), part=name, given=type(part).__name__
            )
        opened = _Open(part, _text(state), self._clock.monotonic_seconds())
        if there is not None:
            opened.news_seconds = there.news_seconds
        self._open[name] = opened
        return opened

    def _suspend(self, name: str) -> None:
        opened = self._open.pop(name, None)
        if opened is None:
            return
        try:
            opened.part.suspend()
        except Exception as error:
            self._say(f"part {name} could not be suspended: {type(error).__name__}: {error}")

    def _checked_state(self, name: str, state: Json, before: str | None) -> str:
        """The state as text.

        Raises:
            SourceError: it is no JSON, too large, or the one of before, although something was read.
        """
        text = _text(state, name)
        if len(text) > MAX_STATE_BYTES:
            raise SourceError(
                "the state of a part is too large for an offset",
                part=name,
                bytes=len(text),
                most=MAX_STATE_BYTES,
                next_step="Let snapshot() say where the part is, not what it holds.",
            )
        if text == before:
            raise SourceError(
                "a part has given rows, and its state is the one of before: it would give them again",
                part=name,
                state=text[:200],
                next_step="Let snapshot() change with the rows that were given.",
            )
        return text

    # event time

    def _ahead_ms(self) -> float:
        ahead = self._settings.ahead_seconds
        return math.inf if ahead is None or not self._source.event_time else ahead * 1_000

    def _bound_ms(self, batch: _Batch, names: list[str]) -> float:
        """The event time up to which rows may be given now."""
        ahead_ms = self._ahead_ms()
        if ahead_ms == math.inf:
            return math.inf
        return min((self._stands_ms(batch, name) for name in names), default=math.inf) + ahead_ms

    def _is_slowest(self, batch: _Batch, name: str, bound_ms: float) -> bool:
        return self._stands_ms(batch, name) + self._ahead_ms() <= bound_ms

    def _stands_ms(self, batch: _Batch, name: str) -> float:
        """The position of an open part: its next row, or else the newest that it gave; infinite where it is idle."""
        offset = batch.parts[name]
        if offset.is_finished:
            return math.inf
        chunk = batch.heads.get(name)
        if chunk is not None:
            times = [time for time in chunk.times_ms[offset.taken :] if time is not None]
            if times:
                return min(times)
        first_ms = _ms(batch.ends[name].first_at) if name in batch.ends else None
        if first_ms is not None:
            return first_ms
        opened = self._open.get(name)
        if opened is not None and self._is_idle(opened):
            return math.inf
        return -math.inf if offset.newest_ms is None else offset.newest_ms

    def _is_idle(self, opened: _Open) -> bool:
        return self._clock.monotonic_seconds() - opened.news_seconds >= self._settings.idle_seconds

    # trouble

    def _tolerant(self, name: str, what: str, act: Callable[[], Any]) -> Any:
        """The answer of the source; None while it fails, which it may for ``fail_after_seconds``.

        A query that reads what is there and ends waits for the answer.
        """
        waits = self._bounded is not None
        return self._patience.ask(name, what, act, waits=waits, failed=lambda: self._suspend(name))


def schema_of(source: PartitionedSource, settings: SourceSettings, clock: Clock, say: Callable[[str], None]) -> str:
    """The schema of a source, as DDL; a source that is away is waited for.

    Raises:
        SourceError: it has none, or was away for too long.
    """
    patience = Patience(source.format_name(), clock, settings.fail_after_seconds, say)
    schema = str(patience.ask("", "row_schema()", source.row_schema, waits=True))
    if not schema:
        raise SourceError("this source has no schema", source=source.format_name())
    return schema


def is_planned(part: Part) -> bool:
    """Whether a part can report where a read will end."""
    return callable(getattr(part, "plan_end", None))


def _position(part: PartOffset) -> tuple[str, int, int]:
    return _text(part.state), part.chunks, part.taken


def _rows_before(times_ms: Sequence[int | None], first: int, last: int, bound_ms: float) -> int:
    """How many rows from ``first`` on come before one that is later than the bound."""
    for at in range(first, last):
        time = times_ms[at]
        if time is not None and time > bound_ms:
            return at - first
    return last - first


def _least_at(times_ms: Sequence[int | None], first: int) -> int:
    """Which row from ``first`` on has the least time; ``first`` where none has a time."""
    timed = [(time, at) for at, time in enumerate(times_ms) if at >= first and time is not None]
    return min(timed)[1] if timed else first


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1_000)


def _text(state: Json, part: str = "") -> str:
    try:
        return json.dumps(state, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise SourceError(
            "the state of a part is not JSON",
            part=part,
            error=str(error)[:200],
            next_step="Let snapshot() give texts, numbers, lists and mappings with texts as keys.",
        ) from None


def _checked_names(listed: Any) -> tuple[str, ...]:
    if listed is None or isinstance(listed, (str, bytes)):
        raise SourceError("list_parts() gave no list of names", given=type(listed).__name__)
    names = list(listed)
    strange = [name for name in names if not isinstance(name, str) or not name]
    if strange:
        raise SourceError("list_parts() gave what is no name of a part", given=repr(strange[0])[:100])
    twice = sorted({name for name in names if names.count(name) > 1}) if len({*names}) < len(names) else []
    if twice:
        raise SourceError(
            "list_parts() gave the same name more than once", parts=twice[:20], next_step="Each part has its own name."
        )
    return tuple(sorted(names))


def _check_size(offset: SourceOffset) -> None:
    # Spark keeps two offsets a batch, and every position of a snapshot has one.
    size = sum(len(name) + len(_text(part.state)) + 100 for name, part in offset.parts.items())
    if size > MAX_OFFSET_BYTES:
        raise SourceError(
            "the offset of this source is too large",
            parts=len(offset.parts),
            bytes=size,
            most=MAX_OFFSET_BYTES,
            next_step="Use fewer parts, or smaller states; parts that are finished may be left out of list_parts().",
        )


def _others(part: str, uri: str) -> SourceError:
    return SourceError(
        "rows that were read ahead are gone from the spool, and the source gives others now",
        part=part,
        spool=uri,
        next_step="Bring the spool back, or deploy from another snapshot.",
    )


def _gone(part: str, uri: str, key: str) -> SourceError:
    return SourceError(
        "rows of a planned batch that were read ahead are gone from the spool",
        part=part,
        spool=uri,
        key=key,
        next_step="Bring the spool back, or deploy from another snapshot. keepSpoolSeconds sets how long rows stay.",
    )


# Which read task reads which part: rendezvous hashing with equal shares, so that few parts move.


def place(parts: Collection[str], tasks: int) -> dict[str, int]:
    """The task of each part, from 0 on; no task has more than its share, since a batch waits for the last one."""
    tasks = max(1, min(tasks, len(parts)))
    room = [math.ceil(len(parts) / tasks)] * tasks
    placed = {}
    for part in sorted(parts):
        wanted = sorted(range(tasks), key=lambda task: _score(part, task), reverse=True)
        task = next(task for task in wanted if room[task])
        room[task] -= 1
        placed[part] = task
    return placed


def moved(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """The parts that both have, in other tasks."""
    return sorted(part for part, task in after.items() if before.get(part, task) != task)


def _score(part: str, task: int) -> bytes:
    return hashlib.sha256(f"{task}/{part}".encode()).digest()
