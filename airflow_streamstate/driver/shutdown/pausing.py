"""Something that is done while every query stands at its barrier; they go on by themselves afterwards.

Malstrom snapshots at a barrier that goes through the whole stream; here each query has one, and all stand at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.shutdown.carrying_on import carry_on
from airflow_streamstate.driver.shutdown.stopping import (
    Ending,
    NotWaitedForError,
    close_latch,
    end_at_barriers,
    running_queries,
)
from airflow_streamstate.errors import ConflictError, DeadlineExceededError, StreamStateError

Result = TypeVar("Result")


def while_all_stand(
    attempt: Attempt,
    order: Order,
    act: Callable[[Callable[[], None]], Result],
    is_enough: Callable[[], bool] = lambda: False,
) -> Result:
    """Bring every query to its barrier, do something, and let them go on, whatever came of it.

    Args:
        attempt: this attempt, whose latch is open, or closed for this.
        order: what asks for it.
        act: what is done; it is given what lets the queries go on, for as soon as they need not stand any more.
        is_enough: asked again and again; whether to wait no longer for the batches in flight. What it raises is why.

    Raises:
        DeadlineExceededError: the batches in flight took too long; nothing was done.
        ConflictError: a batch failed, or an ending has begun; nothing was done.
        FencedError: this attempt was replaced.
        whatever ``act`` or ``is_enough`` raises.
    """
    if not close_latch(attempt, "snapshot", order) and attempt.latch.state != "snapshot":
        raise ConflictError("the deployment is being ended", next_step="Its end has a snapshot of its own.")
    endings: Sequence[Ending] = ()
    stand = True
    why: list[StreamStateError] = []

    def enough() -> bool:
        """Whoever lets the queries go on has to know how far each had come, whatever it is left for."""
        try:
            return is_enough()
        except StreamStateError as error:
            why.append(error)
            return True

    def let_go() -> None:
        nonlocal stand
        if stand and not attempt.is_fenced:
            stand = False
            carry_on(attempt, endings, order.command_id)

    try:
        failures = end_at_barriers(attempt, running_queries(attempt), order.command_id, is_enough=enough)
        if failures:
            raise ConflictError(
                "a batch failed on its way to the barrier",
                queries=sorted(failures),
                next_step="`streamstate status` shows why; where the other queries run on, ask again: the snapshot then"
                " holds a failed query at its last commit.",
            )
        return act(let_go)
    except NotWaitedForError as late:
        endings = late.endings
        if why:
            raise why[0] from None
        raise DeadlineExceededError(
            "the batches in flight were not committed in time, so that the queries never stood at one barrier",
            queries=[ending.query.name for ending in late.waiting],
            next_step="Ask again with a longer --ttl or --expires-in, or without --consistent.",
        ) from None
    finally:
        let_go()
