"""The reach of a flush: every end of event time, and processing-time timers where the batch time is moved to them.

``current_timestamp()`` writes the batch time into the user's output, so it moves no further than the last timer.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.plan.model import QueryPlan, StateOperator
from airflow_streamstate.protocol.commands import DrainNotification
from airflow_streamstate.protocol.terms.order import DrainMode

NO_WATERMARK = "the query has no watermark that could pass it"
NOT_REACHED = "no watermark reaches it: it has no event time, or no timeout"
NOT_ASKED = "its timers are of processing time, which a drain of mode event_time leaves"
NOT_FIRED = "its due timers of processing time fired: these rows were set again, have a time to live, or are kept"
LIVES_ON = "its variables have a time to live, which a flush does not wait for"


class FlushReach:
    """The reach of the flushes of one drain.

    Args:
        order: the drain; ``default`` is its mode where its content is lost.
        plans: the known plans of the queries.
    """

    def __init__(self, attempt: Attempt, order: Order, plans: Mapping[str, QueryPlan]) -> None:
        self._attempt = attempt
        self.mode: DrainMode = order.command.mode if isinstance(order.command, DrainNotification) else "default"
        self._plans = plans

    def batch_time_ms(self, query: LogicalQuery, checkpoint: Checkpoint) -> int | None:
        """The batch time of the flush, in milliseconds since 1970; None for that of the batch before.

        Args:
            checkpoint: the query's own, or a fork, which nothing writes at this time.

        Raises:
            whatever Spark raises where the state cannot be read.
        """
        if self.mode != "default" or not query.startable.facts.stateful:
            return None
        plan = self._plans.get(query.name)
        if plan is not None and not any(map(_is_timed, plan.operators)):
            return None
        timed_out_ids = () if plan is None else tuple(each.operator_id for each in plan.operators if _times_out(each))
        due_ms = query.startable.last_timer_ms(self._attempt.uri_of(checkpoint), timed_out_ids)
        position = checkpoint.position()
        last = None if position.batch_id is None else checkpoint.read_offset(position.batch_id)
        if due_ms is None or last is None or due_ms < last.batch_timestamp_ms:
            return None
        return due_ms + 1  # Spark fires what is due before the batch time

    def why_left(self, query: LogicalQuery, operator_id: int) -> str:
        """Why an operator has rows after the flush, for people."""
        plan = self._plans.get(query.name)
        operators = [] if plan is None else [each for each in plan.operators if each.operator_id == operator_id]
        is_timed = any(map(_is_timed, operators))
        if is_timed and self.mode != "default":
            return NOT_ASKED
        # Spark supports a time to live only in processing-time mode, with or without timers.
        if any(variable.has_ttl for each in operators for variable in each.variables or ()):
            return LIVES_ON
        if is_timed:
            return NOT_FIRED
        return NOT_REACHED if query.startable.facts.watermarks else NO_WATERMARK


def _times_out(operator: StateOperator) -> bool:
    return operator.timeout == "ProcessingTimeTimeout"


def _is_timed(operator: StateOperator) -> bool:
    return operator.time_mode == "ProcessingTime" or _times_out(operator)
