"""A barrier in the log of a query that streamstate does not run: only its log can be seen (1a.3).

No agent repairs that log before a start, hence two differences from a barrier of our own queries:

- It is put only above a batch whose planning was seen here: then the query has read its log before (1a.2), and
  ``commits/<N>`` absent after the put makes the barrier certain (1a.3).
- It names no source. A running query ends at it all the same; Spark that is started over it refuses ("There are [0]
  sources in the checkpoint offsets") instead of skipping a failed batch, or running on beside us (Law 12).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from airflow_streamstate.checkpoint.barrier import base_entry, withdraw
from airflow_streamstate.checkpoint.entries import BarrierMark, OffsetEntry, format_offset_entry, stop_entry
from airflow_streamstate.checkpoint.log import BarrierEntry, Checkpoint, Position, delete_with_crc
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
"""So many of the last commits are looked at for one of a barrier of ours."""


@dataclass(frozen=True)
class Idle:
    """No batch was planned since the first look, so nothing was put; ``batch_id`` is the one that is waited for."""

    batch_id: int


@dataclass(frozen=True)
class OutsideCertain:
    """No batch beyond ``batch_id`` can be claimed; that one is not committed yet."""

    batch_id: int
    barrier_id: int


@dataclass(frozen=True)
class Unsure:
    """It lies over a committed batch that was not seen uncommitted after the put: Spark may overwrite it."""

    batch_id: int
    barrier_id: int


@dataclass(frozen=True)
class OutsidePlaced:
    """Final: ``batch_id`` is committed, and nothing runs after it."""

    batch_id: int
    barrier_id: int


OutsideStep = Idle | OutsideCertain | Unsure | OutsidePlaced


class OutsideBarrier:
    """One barrier on its way into the log of a query that another program runs.

    ``mark`` is of kind ``fence``; its command tells this barrier from those of other streams.
    """

    def __init__(self, checkpoint: Checkpoint, mark: BarrierMark) -> None:
        self.checkpoint = checkpoint
        self._mark = mark
        self._awaited_id: int | None = None
        self._barrier_id: int | None = None
        self._is_certain = False
        self._removed: dict[int, OffsetEntry] = {}

    def found(self, position: Position) -> int | None:
        """The place of this command's barrier; None where there is none.

        Raises:
            ConflictError: a barrier of another command lies there.
        """
        for barrier in position.barriers:
            if not self._is_mine(barrier):
                mark = barrier.entry.mark
                raise ConflictError(
                    "another stream has put a barrier into the log of this checkpoint",
                    checkpoint=f"{self.checkpoint.store.uri}/{self.checkpoint.prefix}",
                    batch_id=barrier.batch_id,
                    stream_id="" if mark is None else mark.stream_id,
                    next_step="That stream has adopted this query, or is about to: see its `streamstate status`.",
                )
        return position.barriers[-1].batch_id if position.barriers else None

    def step(self) -> OutsideStep:
        """Look, act at most once, and say where it stands. Never blocks.

        Raises:
            ConflictError: a barrier of another command lies there.
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
        """Call the barrier certain: it has lain over a committed batch for longer than a claim can take."""
        self._is_certain = True

    def put_over(self, position: Position) -> int:
        """Bar the log of a query that does not run, whatever its last batch; twice is once. The barrier's place.

        Raises:
            ConflictError: another program writes this log.
        """
        barrier_id = self.found(position)
        if barrier_id is None:
            barrier_id = position.barrier_id
            if not self._put(barrier_id, base_entry(self.checkpoint, position)):
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

        Under a running query only a certain barrier is safe to remove: Spark never overwrites that. Where a query went
        on over it, its commit is removed first: Spark would refuse to start over an entry without sources, and such a
        query promises only that each batch runs at least once.

        Raises:
            VersionConflictError: the entry was overwritten while it was removed.
        """
        self._awaited_id = None
        self._is_certain = False
        self._barrier_id = None
        # By the names alone: other damage of this log, or a contradiction in it, is not in the way.
        checkpoint, commits = self.checkpoint, self.checkpoint.commit_ids()
        lowest_id = min(commits[-LOOKED_AT:], default=0)
        is_removed, self._removed = False, {}
        for batch_id in reversed([number for number in checkpoint.offset_ids() if number >= lowest_id]):
            entry = self._mine_at(batch_id)
            if entry is None:
                continue
            if batch_id in commits:
                delete_with_crc(checkpoint.store, checkpoint.commit_key(batch_id))
            self._removed[batch_id] = entry  # also where the removal has an unknown outcome
            is_removed |= withdraw(checkpoint, batch_id, command_id=self._mark.command_id)
        return is_removed

    def put_back(self) -> None:
        """Bar the log again where ``take_back`` came too late: another controller counts on what it removed.

        Only in the same place: where a batch has been planned there since, that controller's own last look finds it.
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
        """Whether the query overwrote the barrier, or ran it."""
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
        # Read before the barrier is read back: an overwrite had happened by then.
        batch_id = barrier_id - 1
        is_committed = self.checkpoint.is_committed(batch_id)
        if self.checkpoint.is_committed(barrier_id):
            raise UnsupportedCheckpointError(
                "this query continues over a barrier: its trigger is continuous, or it tracks progress asynchronously",
                checkpoint=f"{self.checkpoint.store.uri}/{self.checkpoint.prefix}",
                batch_id=barrier_id,
                next_step="Stop it yourself, and adopt it with --stopped. If it has ended, it runs this batch again.",
            )
        if self.has_gone_on(barrier_id):
            self._barrier_id = None
            return self._look()
        if not is_committed:
            self._is_certain = True
            return OutsideCertain(batch_id, barrier_id)
        return OutsidePlaced(batch_id, barrier_id) if self._is_certain else Unsure(batch_id, barrier_id)

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
