"""Barriers: entries in the offset log of a query that end it at a batch boundary (1a.1 to 1a.5, 1a.8)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, Union

from airflow_streamstate.checkpoint.log import (
    BarrierEntry,
    BarrierMark,
    Checkpoint,
    OffsetEntry,
    Position,
    crc_key_of,
    delete_with_crc,
    drain_entry,
    format_offset_entry,
    parse_offset_entry,
    replace_entry,
    stop_entry,
)
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    FencedError,
    ObjectExistsError,
    OutcomeUnknownError,
    UnsupportedCheckpointError,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.retry import Retry

_FENCE = Retry(tries=10)


class QueryView(Protocol):
    """The running query, as a placement sees it."""

    def has_ended(self) -> bool:
        """Whether the query's thread has ended, so that it writes nothing more.

        Spark's ``isActive`` is not this: ``stop()`` clears it first, while a batch is still being claimed.
        ``awaitTermination`` having returned is.
        """

    def is_trigger_active(self) -> bool:
        """Spark's ``status.isTriggerActive``."""

    def has_initialised(self) -> bool:
        """Whether a trigger or a progress of this run has been seen: Spark has read the log (1a.2)."""


@dataclass(frozen=True)
class NotInitialised:
    """The query has not read its log yet: putting an entry now could make Spark skip a batch (1a.2)."""


@dataclass(frozen=True)
class Uncertain:
    """The entry is there, but Spark may be about to overwrite it (1a.3)."""

    batch_id: int | None
    barrier_id: int


@dataclass(frozen=True)
class Overwritten:
    """Spark claimed the batch id of the entry; nothing is lost, the next step continues above it (1a.3)."""

    barrier_id: int


@dataclass(frozen=True)
class Certain:
    """No batch beyond ``batch_id`` can be claimed; that one is not committed yet."""

    batch_id: int
    barrier_id: int


@dataclass(frozen=True)
class Placed:
    """Final: ``batch_id`` is committed (None: no batch was) and nothing can run after it: ``stop()`` is safe (1a.4)."""

    batch_id: int | None
    barrier_id: int
    mark: BarrierMark | None


@dataclass(frozen=True)
class BatchFailed:
    """Final: the query ended with ``batch_id`` not committed; no entry of ours is above it any more (Law 12)."""

    batch_id: int


Step = Union[NotInitialised, Uncertain, Overwritten, Certain, Placed, BatchFailed]


class BarrierPlacement:
    """One barrier on its way into the log of a query.

    Args:
        mark: of kind ``stop``.
        view: the query that runs on it in this process.
        need_checkpoint: called where the log has no entry; raises where the checkpoint is gone.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        mark: BarrierMark,
        view: QueryView,
        need_checkpoint: Callable[[], None] = lambda: None,
    ) -> None:
        self._checkpoint = checkpoint
        self._need_checkpoint = need_checkpoint
        self._mark = mark
        self._view = view
        self._certain_id: int | None = None

    def step(self) -> Step:
        """Read the log, act at most once, and return the state of the placement. Never blocks.

        Raises:
            FencedError: a successor has fenced this log.
            DataError: the log is damaged, or gone.
        """
        ended = self._view.has_ended()  # first: what is read after it is final
        if not ended and not self._view.has_initialised():
            return NotInitialised()
        position = self._checkpoint.position()
        _refuse_fence(position, self._checkpoint)
        if position.last_batch_id is None and not position.barriers:
            self._need_checkpoint()
        if ended and position.planned_id is not None:
            _withdraw_above(self._checkpoint, position, self._mark.deployment_id)
            return BatchFailed(position.planned_id)
        barrier_id = position.barrier_id
        if not any(barrier.batch_id == barrier_id for barrier in position.barriers) and not self._put(position):
            return Overwritten(barrier_id)
        return self._judge(position.last_batch_id, barrier_id)

    def take_back(self) -> bool:
        """Remove the entry above the batch that the query runs, after a ``step`` that found it ``Certain``.

        A certain entry is never overwritten, so the deleted entry is ours. Spark looks for it only after its commit of
        the batch: with that absent after the delete, Spark never meets the entry.

        Returns:
            Whether the query continues as if there had been no entry; where not, it may be ending because of it.

        Raises:
            ConflictError: no entry was ever certain.
        """
        certain_id, self._certain_id = self._certain_id, None  # an entry that is put again is not certain yet
        if certain_id is None or certain_id == 0:
            raise ConflictError("only what is certain can be withdrawn", checkpoint=self._checkpoint.prefix)
        withdraw(self._checkpoint, certain_id)
        return not self._checkpoint.is_committed(certain_id - 1)

    def _put(self, position: Position) -> bool:
        checkpoint = self._checkpoint
        body = format_offset_entry(stop_entry(base_entry(checkpoint, position), self._mark))
        try:
            checkpoint.store.create(checkpoint.offset_key(position.barrier_id), body)
        except ObjectExistsError:
            return False
        except OutcomeUnknownError:
            pass  # ``_judge`` reads it back (Law 8)
        return True

    def _judge(self, batch_id: int | None, barrier_id: int) -> Step:
        """Whether the entry that was put is there to stay (1a.3).

        Spark claims a batch by a check and an act that does not check again: a rename on disk; on S3A a HEAD and a LIST
        of the place, an unconditional copy of a temp file onto it, and a delete. Reads are never stale on either. So
        the entry is safe from every claim whose check follows the put, and from every claim that has ended:

        - ``commits/<N>`` absent after the put: Spark looks for N+1 only after the answer to its copy onto
          ``commits/<N>``, so that check is still to come, and finds the entry.
        - outside a trigger: claims happen within one, and its thread waits for the answer to the copy.
        - ended: the thread that claims is gone (``stop()`` alone does not prove it). A copy that was sent and abandoned
          may still land at the server: then a batch is there that Spark planned and never ran, without state or output.
          The log is read again after the end, and the exchange for a drain is conditional on that reading.
        - certain before: one of these held, and nothing can make it untrue.

        None of these can be seen of a driver in another process: a fence against a living one is not absolute, on a
        disk for a moment, on S3A for the requests between its look and its copy (``snapshot.location`` finds it).
        """
        # All of these are looked at after the put. The read back comes last: an overwrite happened before it.
        sure = (
            self._certain_id == barrier_id
            or (batch_id is not None and not self._checkpoint.is_committed(batch_id))
            or not self._view.is_trigger_active()
            or self._view.has_ended()
        )
        entry = self._checkpoint.read_offset(barrier_id)
        if entry is None or not entry.is_ours or self._checkpoint.is_committed(barrier_id):
            return Overwritten(barrier_id)
        if not sure:
            return Uncertain(batch_id, barrier_id)
        self._certain_id = barrier_id
        if batch_id is not None and not self._checkpoint.is_committed(batch_id):
            return Certain(batch_id, barrier_id)
        return Placed(batch_id, barrier_id, entry.mark)


def exchange_for_drain(checkpoint: Checkpoint, mark: BarrierMark, *, batch_timestamp_ms: int | None = None) -> int:
    """Make the stop entry of this deployment a drain entry; doing it twice is doing it once (1a.5).

    Only for a log that is not in use: the query has ended, and its last batch is committed.

    Args:
        mark: of kind ``drain``.
        batch_timestamp_ms: as ``drain_entry``.

    Returns:
        The batch that the next start flushes in.

    Raises:
        ConflictError: there is no stop entry of this deployment over a committed batch, or it changed in the meantime.
    """
    position = checkpoint.position()
    _refuse_fence(position, checkpoint)
    if position.planned is not None or position.batch_id is None or not position.barriers:
        raise _no_stop_entry(checkpoint, position)
    for barrier in reversed(position.barriers[1:]):
        withdraw(checkpoint, barrier.batch_id)
    barrier_id = position.barriers[0].batch_id
    key = checkpoint.offset_key(barrier_id)
    found = checkpoint.store.get(key)
    entry = None if found is None else parse_offset_entry(found.body, key=key)
    there = entry.mark if entry is not None else None
    if found is None or there is None or there.deployment_id != mark.deployment_id:
        raise _no_stop_entry(checkpoint, position)
    if there.kind == "drain":
        return barrier_id
    base = checkpoint.read_offset(position.batch_id)
    if base is None:
        raise _no_stop_entry(checkpoint, position)
    replace_entry(
        checkpoint.store, key, format_offset_entry(drain_entry(base, mark, batch_timestamp_ms)), found.version
    )
    return barrier_id


def withdraw(checkpoint: Checkpoint, batch_id: int, *, command_id: str | None = None) -> bool:
    """Remove an entry of ours, or of ``command_id`` alone, its checksum first (1a.7). True if there was one.

    Raises:
        ConflictError: the entry is Spark's own, or changed in the meantime.
    """
    key = checkpoint.offset_key(batch_id)
    found = checkpoint.store.get(key)
    if found is None:
        return False
    entry = parse_offset_entry(found.body, key=key)
    if command_id is not None and (entry.mark is None or entry.mark.command_id != command_id):
        return False
    if not entry.is_ours:
        raise ConflictError("this entry of the offset log is Spark's own and is never removed", key=key)
    checkpoint.store.delete(crc_key_of(key))  # as in ``delete_with_crc``
    checkpoint.store.delete(key, found.version)
    return True


def put_fence(checkpoint: Checkpoint, mark: BarrierMark, *, before_each: Callable[[], None] = lambda: None) -> int:
    """Put a fence on top of the log of a deployment that is proven ended (1a.8); twice is once.

    Allowed over a batch that is not committed: this checkpoint is never started again.

    Args:
        mark: of kind ``fence``.
        before_each: called right before each try; raises where another controller has the log by now.

    Returns:
        The fence's place in the log.

    Raises:
        ConflictError: a driver keeps writing this log.
    """
    for _ in _FENCE.begin():
        position = checkpoint.position()
        top = position.barriers[-1] if position.barriers else None
        if top is not None and top.entry.mark is not None and top.entry.mark.kind == "fence":
            return top.batch_id
        fence_id = position.barrier_id if top is None else top.batch_id + 1
        body = format_offset_entry(stop_entry(base_entry(checkpoint, position), mark))
        before_each()
        with contextlib.suppress(ObjectExistsError, OutcomeUnknownError):
            checkpoint.store.create(checkpoint.offset_key(fence_id), body)
        # The next round reads it back: either it landed, or the end of the log has moved.
    raise ConflictError(
        "the log that was to be fenced is still being written",
        checkpoint=checkpoint.prefix,
        next_step="Make sure that the old driver has ended, then try again.",
    )


def take_back_fence(checkpoint: Checkpoint, fence_id: int, mark: BarrierMark) -> bool:
    """Remove a fence that came too late, if it is the one of this mark; whether it was.

    It would end a query that was started on this log in the meantime, or make it skip a batch while it starts (1a.2).
    """
    entry = checkpoint.read_offset(fence_id)
    return entry is not None and entry.mark == mark and withdraw(checkpoint, fence_id)


def base_entry(checkpoint: Checkpoint, position: Position) -> OffsetEntry | None:
    """The entry of the last batch that Spark planned; None before the first."""
    if position.planned is not None or position.batch_id is None:
        return position.planned
    return checkpoint.read_offset(position.batch_id)


def _refuse_fence(position: Position, checkpoint: Checkpoint) -> None:
    for barrier in position.barriers:
        mark = barrier.entry.mark
        if mark is not None and mark.kind == "fence":
            raise FencedError(
                "this checkpoint has been fenced by a successor",
                checkpoint=checkpoint.prefix,
                deployment_id=mark.deployment_id,
                next_step="This driver stops without writing.",
            )


def _withdraw_above(checkpoint: Checkpoint, position: Position, deployment_id: str) -> None:
    for barrier in reversed(position.barriers):
        mark = barrier.entry.mark
        if mark is not None and mark.deployment_id == deployment_id:
            withdraw(checkpoint, barrier.batch_id)


def _no_stop_entry(checkpoint: Checkpoint, position: Position) -> ConflictError:
    return ConflictError(
        "there is no stop entry of this deployment over a committed batch to make a drain of",
        checkpoint=checkpoint.prefix,
        last_committed=position.batch_id,
        planned=position.planned_id,
        barriers=[barrier.batch_id for barrier in position.barriers],
        next_step="Stop the query first; a drain is a stop whose entry is then exchanged.",
    )


# A barrier in the log of a query that streamstate does not run: only its log can be seen (1a.3).
#
# No agent repairs that log before a start, hence two differences from a barrier in a query of ours:
#
# - It is put only above a batch whose planning was seen here: then the query has read its log before (1a.2), and
#   ``commits/<N>`` absent after the put makes the barrier certain (1a.3).
# - It names no source. A running query ends at it all the same; Spark that is started over it refuses ("There are [0]
#   sources in the checkpoint offsets") instead of skipping a failed batch, or running on alongside us (Law 12).

FIRST_IN_LOG_2 = 2
"""Spark cannot start from an offset log of version 2 whose batch 1 is planned and not committed."""

LOOKED_AT = 3
"""This many of the last commits are searched for that of a barrier of ours."""


@dataclass(frozen=True)
class Idle:
    """No batch was planned since the first poll, so nothing was put; ``batch_id`` is the one that is waited for."""

    batch_id: int


@dataclass(frozen=True)
class OutsideCertain:
    """No batch beyond ``batch_id`` can be claimed; that one is not committed yet."""

    batch_id: int
    barrier_id: int


@dataclass(frozen=True)
class Unsure:
    """It is above a committed batch that was not seen uncommitted after the put: Spark may overwrite it."""

    batch_id: int
    barrier_id: int


@dataclass(frozen=True)
class OutsidePlaced:
    """Final: ``batch_id`` is committed, and nothing runs after it."""

    batch_id: int
    barrier_id: int


OutsideStep = Union[Idle, OutsideCertain, Unsure, OutsidePlaced]


class OutsideBarrier:
    """One barrier on its way into the log of a query that another program runs.

    ``mark`` is of kind ``fence``; its command distinguishes this barrier from those of other streams.
    """

    def __init__(self, checkpoint: Checkpoint, mark: BarrierMark) -> None:
        self.checkpoint = checkpoint
        self._mark = mark
        self._awaited_id: int | None = None
        self._barrier_id: int | None = None
        self._is_certain = False
        self._removed: dict[int, OffsetEntry] = {}

    def found(self, position: Position) -> int | None:
        """The place of this command's barrier; None if the log does not have it.

        Raises:
            ConflictError: a barrier of a different command is there.
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
        """Read the log, act at most once, and return the state of the barrier. Never blocks.

        Raises:
            ConflictError: a barrier of a different command is there.
            UnsupportedCheckpointError: the query continues over barriers.
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

        Only in the same place: where a batch has been planned there since, that controller's own last check finds it.
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
            pass  # whether it landed is what reading back shows (Law 8)
        return True

    def _is_mine(self, barrier: BarrierEntry) -> bool:
        mark = barrier.entry.mark
        return mark is not None and mark.command_id == self._mark.command_id
