"""Puts a barrier into the log of a running foreign query, and watches it until it is met or taken back (Law 12)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.outside import (
    Idle,
    OutsideBarrier,
    OutsideCertain,
    OutsidePlaced,
    OutsideStep,
    Unsure,
)
from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import DeadlineExceededError, UnavailableError

POLL_SECONDS = 0.05
SETTLE_SECONDS = 10.0
"""By then Spark has finished a claim that it began before the put, also on S3A."""
LEAST_PATIENCE_SECONDS = 10.0
PATIENCE_BATCHES = 5
"""A batch that takes this many times the longest of the last batches counts as failed."""

Report = Callable[[str], None]


def bar(
    barrier: OutsideBarrier,
    clock: Clock,
    deadline_seconds: float,
    *,
    go_on: Callable[[], None] = lambda: None,
    confirm: Callable[[], None] = lambda: None,
    report: Report = lambda _: None,
) -> OutsidePlaced:
    """Put the barrier and wait until the batch in flight is committed and no batch comes after it.

    A batch that takes too long counts as failed: the barrier is taken back, so that the query can be started again, and
    the next batch gets a new one. At the deadline the barrier is taken back, too.

    Args:
        barrier: new, or put by an interrupted call.
        deadline_seconds: for the whole wait.
        go_on: called at each poll; raises to give up.
        confirm: called before the barrier is taken back; raises where another controller holds the adoption.
        report: gets the progress in words.

    Raises:
        DeadlineExceededError: no batch was planned, or none was committed, in time; the log is as before.
        UnavailableError: the checkpoint cannot be read or written until the deadline.
        ConflictError, UnsupportedCheckpointError, DataError: as ``OutsideBarrier.step``.
    """
    deadline = clock.monotonic_seconds() + deadline_seconds
    timer = _StepTimer()
    last: _TakenBack | None = None
    while True:
        go_on()
        step = _look(barrier)
        now = clock.monotonic_seconds()
        if isinstance(step, OutsidePlaced):
            return step
        timer.note(step, now)
        report(_words(step, last))
        if isinstance(step, Unsure):
            if timer.seconds >= SETTLE_SECONDS:
                barrier.settle()
        elif now >= deadline:
            if isinstance(step, OutsideCertain):
                last = _take_back(barrier, step.batch_id, confirm)
            raise step.error if isinstance(step, _Unreadable) else _too_late(step, deadline_seconds, last)
        elif isinstance(step, OutsideCertain) and timer.is_over(barrier.checkpoint):
            last = _take_back(barrier, step.batch_id, confirm)
        clock.sleep(POLL_SECONDS)


@dataclass(frozen=True)
class _Unreadable:
    """The checkpoint cannot be read now; the wait goes on, since it may hold the barrier (Law 12)."""

    error: UnavailableError
    batch_id: int | None = None


def _look(barrier: OutsideBarrier) -> OutsideStep | _Unreadable:
    try:
        return barrier.step()
    except UnavailableError as error:
        return _Unreadable(error)


class _StepTimer:
    """How long the barrier has been at its current step, in ``seconds``."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._what: tuple[type, int | None] | None = None
        self._since = 0.0
        self._patience_seconds: float | None = None

    def note(self, step: OutsideStep | _Unreadable, now: float) -> None:
        what = type(step), step.batch_id
        if what != self._what:
            self._what, self._since, self._patience_seconds = what, now, None
        self.seconds = now - self._since

    def is_over(self, checkpoint: Checkpoint) -> bool:
        """Whether a batch has taken so long that it counts as failed."""
        if self.seconds < LEAST_PATIENCE_SECONDS:
            return False
        if self._patience_seconds is None:
            with suppress(UnavailableError):
                self._patience_seconds = _patience_seconds(checkpoint)
        return self._patience_seconds is not None and self.seconds >= self._patience_seconds


@dataclass(frozen=True)
class _TakenBack:
    """The batch whose barrier was taken back; ``is_committed``: meanwhile, so that the query may have met it."""

    batch_id: int
    is_committed: bool

    @property
    def words(self) -> str:
        if self.is_committed:
            return f"batch {self.batch_id} was committed just as the barrier was taken back; "
        return f"batch {self.batch_id} was not committed; the barrier was taken back; "


def _take_back(barrier: OutsideBarrier, batch_id: int, confirm: Callable[[], None]) -> _TakenBack:
    confirm()
    barrier.take_back()
    return _TakenBack(batch_id, barrier.checkpoint.is_committed(batch_id))


def _patience_seconds(checkpoint: Checkpoint) -> float:
    """A multiple of the longest of the last batches, by the times in the store."""
    longest = 0.0
    for batch_id in checkpoint.commit_ids()[-PATIENCE_BATCHES:]:
        planned = checkpoint.store.head(checkpoint.offset_key(batch_id))
        committed_at = checkpoint.committed_at(batch_id)
        if planned is not None and planned.modified_at is not None and committed_at is not None:
            longest = max(longest, (committed_at - planned.modified_at).total_seconds())
    return max(LEAST_PATIENCE_SECONDS, PATIENCE_BATCHES * longest)


def _words(step: OutsideStep | _Unreadable, last: _TakenBack | None) -> str:
    if isinstance(step, _Unreadable):
        return f"the checkpoint cannot be read now: {step.error}"
    if isinstance(step, Idle):
        return f"{'' if last is None else last.words}waiting until the query plans batch {step.batch_id}"
    if isinstance(step, Unsure):
        return (
            f"batch {step.batch_id} is committed; waiting for {SETTLE_SECONDS:g} s whether batch"
            f" {step.barrier_id} begins all the same"
        )
    return f"the barrier is behind batch {step.batch_id}; waiting for its commit"


def _too_late(step: OutsideStep, deadline_seconds: float, last: _TakenBack | None) -> DeadlineExceededError:
    if last is None:
        return DeadlineExceededError(
            "the query planned no batch in this time, and an idle query does not notice a barrier; nothing was changed",
            waited_seconds=deadline_seconds,
            batch_id=step.batch_id,
            next_step="Adopt it when input comes, with a longer --deadline; or stop it yourself, and use --stopped.",
        )
    if last.is_committed:
        return DeadlineExceededError(
            "the batch was committed just as the barrier behind it was taken back: the query may have ended there",
            waited_seconds=deadline_seconds,
            batch_id=last.batch_id,
            next_step="Check whether it runs. If it has ended, use --stopped, or start it again: its log is as before.",
        )
    return DeadlineExceededError(
        "the batch under the barrier was not committed in this time; the barrier was taken back",
        waited_seconds=deadline_seconds,
        batch_id=last.batch_id,
        next_step="Check whether the query failed; started again, it runs this batch as before. If a batch takes that"
        " long, give a longer --deadline.",
    )
