"""Waiting until a query that somebody else runs has met its barrier; whoever put it watches until the end (Law 12)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.outside import Certain, Idle, OutsideBarrier, OutsideStep, Placed, Unsure
from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import DeadlineExceededError, UnavailableError

POLL_SECONDS = 0.05
SETTLE_SECONDS = 10.0
"""A claim whose look came before the put is over by then, also on S3A."""
LEAST_PATIENCE_SECONDS = 10.0
PATIENCE_BATCHES = 5
"""A batch that takes so many times as long as the longest of the last ones is taken to have failed."""

Report = Callable[[str], None]


def bar(
    barrier: OutsideBarrier,
    clock: Clock,
    deadline_seconds: float,
    *,
    go_on: Callable[[], None] = lambda: None,
    confirm: Callable[[], None] = lambda: None,
    report: Report = lambda _: None,
) -> Placed:
    """Bar a query that runs, and wait until the batch in flight is committed and nothing comes after it.

    A batch that does not commit in its time is taken to have failed: the barrier is taken back at once, so that the
    query may be started again as it was, and the next batch is waited for. So it is at the deadline.

    Args:
        barrier: on its way, or put by a call that was cut short.
        clock: for the waits.
        deadline_seconds: for all of it.
        go_on: called at each look; raises to give up.
        confirm: called before it is taken back; raises where another goes on with it.
        report: told where it stands.

    Raises:
        DeadlineExceededError: no batch was planned, or none was committed, in that time; the log is as it was.
        UnavailableError: the checkpoint cannot be read, or not written, until the deadline.
        ConflictError, UnsupportedCheckpointError, DataError: as ``OutsideBarrier.step``.
    """
    deadline = clock.monotonic_seconds() + deadline_seconds
    lasting = _Lasting()
    last: _TakenBack | None = None
    while True:
        go_on()
        step = _look(barrier)
        now = clock.monotonic_seconds()
        if isinstance(step, Placed):
            return step
        lasting.note(step, now)
        report(_words(step, last))
        if isinstance(step, Unsure):
            if lasting.seconds >= SETTLE_SECONDS:
                barrier.settle()
        elif now >= deadline:
            if isinstance(step, Certain):
                last = _take_back(barrier, step.batch_id, confirm)
            raise step.error if isinstance(step, _Silent) else _too_late(step, deadline_seconds, last)
        elif isinstance(step, Certain) and lasting.is_over(barrier.checkpoint):
            last = _take_back(barrier, step.batch_id, confirm)
        clock.sleep(POLL_SECONDS)


@dataclass(frozen=True)
class _Silent:
    """The checkpoint cannot be read now. It is waited for: a barrier of ours may lie there (Law 12)."""

    error: UnavailableError
    batch_id: int | None = None


def _look(barrier: OutsideBarrier) -> OutsideStep | _Silent:
    try:
        return barrier.step()
    except UnavailableError as error:
        return _Silent(error)


class _Lasting:
    """For how long it stands as it does."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._what: tuple[type, int | None] | None = None
        self._since = 0.0
        self._patience_seconds: float | None = None

    def note(self, step: OutsideStep | _Silent, now: float) -> None:
        what = type(step), step.batch_id
        if what != self._what:
            self._what, self._since, self._patience_seconds = what, now, None
        self.seconds = now - self._since

    def is_over(self, checkpoint: Checkpoint) -> bool:
        """Whether a batch has taken so long that it is taken to have failed."""
        if self.seconds < LEAST_PATIENCE_SECONDS:
            return False
        if self._patience_seconds is None:
            with suppress(UnavailableError):
                self._patience_seconds = _patience_seconds(checkpoint)
        return self._patience_seconds is not None and self.seconds >= self._patience_seconds


@dataclass(frozen=True)
class _TakenBack:
    """The batch whose barrier was taken back; ``is_committed``: right then, so that the query may have met it."""

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
    """By how long the last batches took, as far as the store tells."""
    longest = 0.0
    for batch_id in checkpoint.commit_ids()[-PATIENCE_BATCHES:]:
        planned = checkpoint.store.head(checkpoint.offset_key(batch_id))
        committed_at = checkpoint.committed_at(batch_id)
        if planned is not None and planned.modified_at is not None and committed_at is not None:
            longest = max(longest, (committed_at - planned.modified_at).total_seconds())
    return max(LEAST_PATIENCE_SECONDS, PATIENCE_BATCHES * longest)


def _words(step: OutsideStep | _Silent, last: _TakenBack | None) -> str:
    if isinstance(step, _Silent):
        return f"the checkpoint cannot be read now: {step.error}"
    if isinstance(step, Idle):
        return f"{'' if last is None else last.words}waiting until the query plans batch {step.batch_id}"
    if isinstance(step, Unsure):
        return (
            f"batch {step.batch_id} is committed; waiting for {SETTLE_SECONDS:g} s whether batch "
            f"{step.barrier_id} is begun all the same"
        )
    return f"the barrier lies behind batch {step.batch_id}; waiting for its commit"


def _too_late(step: OutsideStep, deadline_seconds: float, last: _TakenBack | None) -> DeadlineExceededError:
    if last is None:
        return DeadlineExceededError(
            "the query planned no batch in this time, and an idle query does not notice a barrier; nothing was changed",
            waited_seconds=deadline_seconds,
            batch_id=step.batch_id,
            next_step="Adopt it when input comes, with a longer --deadline; or stop it yourself, and say --stopped.",
        )
    if last.is_committed:
        return DeadlineExceededError(
            "the batch was committed just as the barrier behind it was taken back: the query may have ended there",
            waited_seconds=deadline_seconds,
            batch_id=last.batch_id,
            next_step="Look whether it runs. If it has ended, say --stopped, or start it again: nothing is in its way.",
        )
    return DeadlineExceededError(
        "the batch under the barrier was not committed in this time; the barrier was taken back",
        waited_seconds=deadline_seconds,
        batch_id=last.batch_id,
        next_step="Look whether the query failed; started again, it runs this batch as it would have. If a batch takes"
        " that long, give a longer --deadline.",
    )
