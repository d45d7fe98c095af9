"""A barrier in the log of a query that is not ours: of its driver nothing can be seen but what it writes (1a.3).

It differs from the barrier of our own queries in two ways, both because nobody repairs that log before a start:

- It is put only above a batch that was planned before our eyes: then the query has read its log long ago (1a.2), and
  ``commits/<N>`` absent after the put makes it certain (1a.3).
- It names no source. A running query ends at it all the same; Spark that is started over it refuses ("There are [0]
  sources in the checkpoint offsets") where it would pass over a batch that failed, or run on beside us (Law 12).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from airflow_streamstate.checkpoint.barrier import withdraw
from airflow_streamstate.checkpoint.entries import BarrierMark, OffsetEntry, format_offset_entry, stop_entry
from airflow_streamstate.checkpoint.log import BarrierEntry, Checkpoint, Position, crc_key_of
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    ObjectExistsError,
    OutcomeUnknownError,
    UnsupportedCheckpointError,
)

FIRST_IN_LOG_2 = 2
"""Spark cannot start from an offset log of version 2 whose batch 1 is planned and not committed."""

LOOKED_AT = 3
"""Of how many of the last commits it is seen whether they are of a barrier of ours."""


@dataclass(frozen=True)
class Idle:
    """No batch was planned since the first look; ``batch_id`` is the one that is waited for. Nothing was put."""

    batch_id: int


@dataclass(frozen=True)
class Certain:
    """No batch beyond ``batch_id`` can be claimed; that one is not committed yet."""

    batch_id: int
    barrier_id: int


@dataclass(frozen=True)
class Unsure:
    """It lies over a committed batch, and nobody saw that batch uncommitted after the put: Spark may overwrite it."""

    batch_id: int
    barrier_id: int


@dataclass(frozen=True)
class Placed:
    """Final: ``batch_id`` is committed, and nothing runs after it."""

    batch_id: int
    barrier_id: int


OutsideStep = Idle | Certain | Unsure | Placed


class OutsideBarrier:
    """One barrier on its way into the log of a query that somebody else runs.

    Args:
        checkpoint: the query's.
        mark: of kind ``fence``: whoever puts it goes on after it; its command tells our barriers from others'.
    """

    def __init__(self, checkpoint: Checkpoint, mark: BarrierMark) -> None:
        self.checkpoint = checkpoint
        self._mark = mark
        self._awaited_id: int | None = None
        self._barrier_id: int | None = None
        self._is_certain = False
        self._removed: dict[int, OffsetEntry] = {}

    def found(self, position: Position) -> int | None:
        """Where a barrier of this command lies; None where there is none.

        Raises:
            ConflictError: one of somebody else's lies there.
        """
        for barrier in position.barriers:
            if not self._is_mine(barrier):
                mark = barrier.entry.mark
                raise ConflictError(
                    "somebody else has put a barrier into the log of this checkpoint",
                    checkpoint=f"{self.checkpoint.store.uri}/{self.checkpoint.prefix}",
                    batch_id=barrier.batch_id,
                    stream_id="" if mark is None else mark.stream_id,
                    next_step="Its stream has taken this query over, or is about to; `streamstate status` of that"
                    " stream tells.",
                )
        return position.barriers[-1].batch_id if position.barriers else None

    def step(self) -> OutsideStep:
        """Look, act at most once, and say where it stands. Never blocks.

        Raises:
            ConflictError: a barrier of somebody else's lies there.
            UnsupportedCheckpointError: the query goes on over barriers.
            DataError: the log is damaged.
        """
        checkpoint = self.checkpoint
        if self._barrier_id is None:
            if self._awaited_id is None:
                return self._look()
            planned_id = self._awaited_id
            if checkpoint.store.head(checkpoint.offset_key(planned_id)) is None:
                return Idle(planned_id)
            entry = checkpoint.read_offset(planned_id)
            if entry is None or entry.is_ours or (entry.version == "v2" and planned_id + 1 < FIRST_IN_LOG_2):
                return self._look()
            if not self._put(planned_id + 1, entry):
                return self._look()
            self._barrier_id = planned_id + 1
        return self._judge(self._barrier_id)

    def settle(self) -> None:
        """Take for certain what has lain over a committed batch for so long that no claim can be on its way."""
        self._is_certain = True

    def put_over(self, position: Position) -> int:
        """Bar the log of a query that does not run, whatever its last batch; twice is once. Where it lies.

        Raises:
            ConflictError: somebody else writes this log.
        """
        barrier_id = self.found(position)
        if barrier_id is None:
            barrier_id = position.barrier_id
            if not self._put(barrier_id, position.planned or self._entry(position.batch_id)):
                raise ConflictError(
                    "this query is not stopped: it has just planned a batch",
                    checkpoint=f"{self.checkpoint.store.uri}/{self.checkpoint.prefix}",
                    batch_id=barrier_id,
                    next_step="Leave out --stopped.",
                )
        self._barrier_id = barrier_id
        return barrier_id

    def take_back(self) -> bool:
        """Remove it, its checksum first; the log is then as it was before. True if there was one.

        Of a query that runs only what was certain is safe to remove: Spark never overwrites that. Where a query went on
        over it, what committed it goes first: Spark would refuse to start over an entry without sources, and such a
        query promises no more than that each batch runs at least once.

        Raises:
            VersionConflictError: what lay there was written over while it was removed.
        """
        self._awaited_id = None
        self._is_certain = False
        self._barrier_id = None
        # By the names alone: what else is damaged in this log, or contradicts itself, is not in the way.
        checkpoint, commits = self.checkpoint, self.checkpoint.commit_ids()
        lowest_id = min(commits[-LOOKED_AT:], default=0)
        is_removed, self._removed = False, {}
        for batch_id in reversed([number for number in checkpoint.offset_ids() if number >= lowest_id]):
            entry = self._mine_at(batch_id)
            if entry is None:
                continue
            if batch_id in commits:
                key = checkpoint.commit_key(batch_id)
                checkpoint.store.delete(crc_key_of(key))
                checkpoint.store.delete(key)
            self._removed[batch_id] = entry  # also where nobody says whether it went
            is_removed |= withdraw(checkpoint, batch_id, command_id=self._mark.command_id)
        return is_removed

    def put_back(self) -> None:
        """Bar the log again where ``take_back`` has come too late: another counts on what it removed.

        Only in the very place: where a batch has been planned there since, that other is told by its own last look.
        """
        for batch_id, entry in self._removed.items():
            if not self.checkpoint.is_committed(batch_id):
                with suppress(ObjectExistsError, OutcomeUnknownError):
                    self.checkpoint.store.create(self.checkpoint.offset_key(batch_id), format_offset_entry(entry))

    def _mine_at(self, batch_id: int) -> OffsetEntry | None:
        try:
            entry = self.checkpoint.read_offset(batch_id)
            return entry if entry is not None and self._is_mine(BarrierEntry(batch_id, entry)) else None
        except DataError:
            return None

    def has_gone_on(self, barrier_id: int) -> bool:
        """Whether somebody else wrote where the barrier lay, or ran it."""
        entry = self.checkpoint.read_offset(barrier_id)
        mark = None if entry is None else entry.mark
        is_there = mark is not None and mark.command_id == self._mark.command_id
        return not is_there or self.checkpoint.is_committed(barrier_id)

    def _look(self) -> OutsideStep:
        position = self.checkpoint.position()
        self._barrier_id = self.found(position)
        self._is_certain = False
        if self._barrier_id is not None:
            return self._judge(self._barrier_id)
        self._awaited_id = position.barrier_id
        return Idle(position.barrier_id)

    def _judge(self, barrier_id: int) -> OutsideStep:
        """What is read first was so before the barrier was read back: what overwrites it did so by then."""
        batch_id = barrier_id - 1
        is_committed = self.checkpoint.is_committed(batch_id)
        if self.checkpoint.is_committed(barrier_id):
            raise UnsupportedCheckpointError(
                "this query goes on over a barrier: its trigger is continuous, or it tracks progress asynchronously",
                checkpoint=f"{self.checkpoint.store.uri}/{self.checkpoint.prefix}",
                batch_id=barrier_id,
                next_step="Stop it yourself, and adopt it with --stopped. If it has ended, it runs this batch again.",
            )
        if self.has_gone_on(barrier_id):
            self._barrier_id = None
            return self._look()
        if not is_committed:
            self._is_certain = True
            return Certain(batch_id, barrier_id)
        return Placed(batch_id, barrier_id) if self._is_certain else Unsure(batch_id, barrier_id)

    def _entry(self, batch_id: int | None) -> OffsetEntry | None:
        return None if batch_id is None else self.checkpoint.read_offset(batch_id)

    def _put(self, barrier_id: int, base: OffsetEntry | None) -> bool:
        entry = replace(stop_entry(base, self._mark), source_lines=(), source_keys=(), extra={}, version="v1")
        body = format_offset_entry(entry)
        try:
            self.checkpoint.store.create(self.checkpoint.offset_key(barrier_id), body)
        except ObjectExistsError:
            return False
        except OutcomeUnknownError:
            pass  # whether it landed is what reading back says (Law 8)
        return True

    def _is_mine(self, barrier: BarrierEntry) -> bool:
        mark = barrier.entry.mark
        return mark is not None and mark.command_id == self._mark.command_id
