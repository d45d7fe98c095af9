"""Places a barrier in one call; the agent takes the steps one by one, for many queries at a time."""

from __future__ import annotations

from airflow_streamstate.checkpoint.barrier import BarrierPlacement, BatchFailed, Placed, QueryView, Step
from airflow_streamstate.checkpoint.log import BarrierMark, Checkpoint
from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import DeadlineExceededError, UnavailableError


def place_barrier(
    checkpoint: Checkpoint,
    mark: BarrierMark,
    view: QueryView,
    *,
    clock: Clock,
    deadline_seconds: float,
    poll_seconds: float = 0.05,
) -> Placed | BatchFailed:
    """Step until the barrier is placed or the batch under it has failed.

    Args:
        mark: of kind ``stop``.
        deadline_seconds: how long to wait at most; the batch in flight must end within it.

    Raises:
        DeadlineExceededError: with what was last seen. The entry may be in the log: step again, or ``repair``.
        FencedError, DataError, UnavailableError: as ``BarrierPlacement.step``.
    """
    placement = BarrierPlacement(checkpoint, mark, view)
    end = clock.monotonic_seconds() + deadline_seconds
    while True:
        seen: Step | UnavailableError
        try:
            seen = placement.step()
        except UnavailableError as error:
            seen = error  # nothing was changed; until the deadline the store may answer again
        if isinstance(seen, Placed | BatchFailed):
            return seen
        left = end - clock.monotonic_seconds()
        if left <= 0:
            raise DeadlineExceededError(
                "the barrier was not placed within the deadline",
                checkpoint=checkpoint.prefix,
                deadline_seconds=deadline_seconds,
                last_seen=repr(seen),
                next_step="Wait longer, or look at the query's slow batch; the entry may still take effect.",
            )
        clock.sleep(min(poll_seconds, left))
