"""A stop that has an end by its deadline: the order is withdrawn then, or the driver ended and its end kept.

The order is that of every stop; new is only what is done at the deadline. The same verb, given again, goes on where the
first one died.
"""

from __future__ import annotations

import contextlib
from typing import Literal

from airflow_streamstate.control.command_status import is_accepted
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.commands.forced_end import ForcedEnd, ForcedStop
from airflow_streamstate.controller.commands.orders import Orders
from airflow_streamstate.controller.context import Means
from airflow_streamstate.controller.deploy.attempts import Attempts
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.observe.outcomes import decide_command_outcome
from airflow_streamstate.controller.observe.state import decide_state
from airflow_streamstate.controller.observe.views import CommandView
from airflow_streamstate.controller.under_upgrade import refuse_during_upgrade
from airflow_streamstate.controller.wait.notifications import read_command
from airflow_streamstate.controller.wait.waiting import Report, Waits, describe
from airflow_streamstate.controller.wait.watching import Watching, redacted
from airflow_streamstate.errors import (
    DeadlineExceededError,
    DeploymentFailedError,
    OutcomeUnknownError,
    VersionConflictError,
)
from airflow_streamstate.protocol.commands import StopRequest
from airflow_streamstate.protocol.ids import check_id

OnDeadline = Literal["fail", "kill"]
ON_DEADLINE: tuple[OnDeadline, ...] = ("fail", "kill")
WITHDRAW_TRIES = 3
"""An order that is still there after them is past its deadline, and not begun for that."""


class ForcedStops:
    """Stops streams by a deadline.

    Args:
        means: of the controller.
        attempts: ends drivers.
        orders: gives the order.
        watching: turns what was seen into outcomes.
        waits: waits until the deadline.
    """

    def __init__(self, means: Means, attempts: Attempts, orders: Orders, watching: Watching, waits: Waits) -> None:
        self._means = means
        self._observer = means.observer
        self._attempts = attempts
        self._orders = orders
        self._watching = watching
        self._waits = waits

    def order(
        self,
        stream_id: str,
        *,
        deadline_seconds: float,
        on_deadline: OnDeadline = "fail",
        deployment_id: str | None = None,
        request_id: str,
        reason: str = "",
    ) -> CommandView | None:
        """Order such a stop and do not wait: ``stop`` with the same request id goes on from there. As
        ``Controller.stop``, but None for a ``kill`` of what has died: there is nothing to order, and its end is to be
        kept."""
        control = self._means.home.control(stream_id)
        if on_deadline == "kill" and self._dead(control, deployment_id, request_id) is not None:
            return None
        return self._give(
            stream_id,
            deadline_seconds=deadline_seconds,
            on_deadline=on_deadline,
            deployment_id=deployment_id,
            request_id=request_id,
            reason=reason,
        )

    def _give(
        self,
        stream_id: str,
        *,
        deadline_seconds: float,
        on_deadline: OnDeadline,
        deployment_id: str | None,
        request_id: str,
        reason: str,
    ) -> CommandView:
        # One that would be withdrawn at the deadline is not begun after it either, whoever has died by then.
        expires_in_seconds = deadline_seconds if on_deadline == "fail" else None
        return self._orders.order(
            stream_id,
            "stop",
            deployment_id=deployment_id,
            request_id=request_id,
            reason=reason,
            expires_in_seconds=expires_in_seconds,
        )

    def stop(
        self,
        stream_id: str,
        *,
        deadline_seconds: float,
        on_deadline: OnDeadline = "fail",
        deployment_id: str | None = None,
        request_id: str | None = None,
        reason: str = "",
        on_progress: Report | None = None,
    ) -> ForcedStop:
        """Order a stop, wait until it is complete, and do at the deadline what was asked for.

        Args:
            stream_id: the stream.
            deadline_seconds: how long it may take, from the moment the order is recorded.
            on_deadline: ``fail`` withdraws an order that is not obeyed yet; ``kill`` ends the driver, and takes its end
                over. Also the end of a driver that had died before.
            deployment_id: None for the current deployment.
            request_id: names the request over all its tries; None for a new one.
            reason: kept with the order.
            on_progress: told what is seen while waiting.

        Raises:
            StreamNotFoundError, DeploymentNotFoundError: there is none.
            DeadlineExceededError: of ``fail``: it has not stopped; says whether the order is withdrawn.
            DeploymentFailedError: of ``fail``: it failed.
            ConflictError: nobody would obey; it cannot be ended from here; its end cannot be taken over; somebody else
                moved the stream.
            DataError: a checkpoint is damaged.
        """
        means, control = self._means, self._means.home.control(stream_id)
        request_id = means.clock.new_uuid() if request_id is None else check_id(request_id, "request id")
        dead = self._dead(control, deployment_id, request_id) if on_deadline == "kill" else None
        if dead is not None:
            refuse_during_upgrade(control, control.need_register().value, means.upgrade_id)
            return self._force(control, *dead)
        order = self._give(
            stream_id,
            deadline_seconds=deadline_seconds,
            on_deadline=on_deadline,
            deployment_id=deployment_id,
            request_id=request_id,
            reason=reason,
        )
        attempt, age_seconds = self._ordered(control, order)
        left_seconds = max(0.0, deadline_seconds - age_seconds)
        try:
            outcome = self._waits.command(stream_id, order.deployment_id, order.command_id, left_seconds, on_progress)
        except DeadlineExceededError:
            if on_deadline == "fail":
                return self._withdraw(control, order, deadline_seconds)
            self._refuse_unobeyed(order)
        except DeploymentFailedError:
            if on_deadline == "fail":
                raise
        else:
            return ForcedStop(outcome)
        return self._force(control, order.deployment_id, attempt, order.command_id)

    def _dead(self, control: StreamControl, deployment_id: str | None, request_id: str) -> tuple[str, int, str] | None:
        """Deployment, attempt and order of this request ("" for none yet), where the driver has died: nobody would
        obey, and there is nothing to wait for."""
        command_id, record = "", control.request(request_id)
        if record is not None:
            if record.verb != "stop":
                return None  # the order is refused for it
            deployment_id, command_id = record.deployment_id, record.command_id or ""
        seen = self._observer.observe(control.stream_id, deployment_id)
        if not seen.is_current or decide_state(seen, seen.observed_at) != "failed":
            return None
        return seen.deployment_id, seen.attempt, command_id

    def _ordered(self, control: StreamControl, order: CommandView) -> tuple[int, float]:
        """For which attempt a stop was ordered, and how many seconds ago."""
        seen = self._observer.observe(order.stream_id, order.deployment_id)
        command = read_command(control, seen, order.command_id)
        if not isinstance(command, StopRequest):
            return seen.attempt, 0.0  # answered without having been written
        return command.attempt, (self._means.clock.now() - command.requested_at).total_seconds()

    # fail

    def _withdraw(self, control: StreamControl, order: CommandView, deadline_seconds: float) -> ForcedStop:
        """Take the order back where nobody has begun to obey it, and say where the stream stands now."""
        journal = control.journal(order.deployment_id)
        for _try in range(WITHDRAW_TRIES):
            found = [
                slot for slot in journal.commands() if slot.command and slot.command.command_id == order.command_id
            ]
            if not found:
                break
            with contextlib.suppress(OutcomeUnknownError, VersionConflictError):  # the next look tells (Law 8)
                journal.delete_command(found[0])
        seen = self._observer.observe(order.stream_id, order.deployment_id)
        end = decide_command_outcome(seen, order.command_id, StopRequest.kind)
        if end is None or end.outcome == "lost":
            raise _late(seen, order, deadline_seconds)
        if not end.is_what_was_ordered:
            raise self._waits.error_of(seen, end)
        return ForcedStop(self._watching.outcome(seen, end, order.command_id))

    # kill

    def _refuse_unobeyed(self, order: CommandView) -> None:
        """An order of an earlier try that had expired was not to be begun, so nothing is ended for it."""
        seen = self._observer.observe(order.stream_id, order.deployment_id)
        end = decide_command_outcome(seen, order.command_id, StopRequest.kind)
        if end is not None and end.outcome == "expired":
            raise self._waits.error_of(seen, end)

    def _force(self, control: StreamControl, deployment_id: str, attempt: int, command_id: str) -> ForcedStop:
        end = ForcedEnd(self._means, self._attempts, self._watching, control, deployment_id, attempt, command_id)
        return end.come_to()


def _late(seen: Observation, order: CommandView, deadline_seconds: float) -> DeadlineExceededError:
    """The deadline has passed: whether the order stands, and where the stream does."""
    state = decide_state(seen, seen.observed_at)
    is_begun = is_accepted((entry.event for entry in seen.events), order.command_id)
    if is_begun:
        fact = "the order stands: its driver obeys it already, which cannot be taken back"
    elif state in ("stopping", "draining"):
        fact = "this order is withdrawn, and an earlier one is being obeyed"
    elif state == "lost":
        fact = "the order is withdrawn, and nobody can say whether its driver runs"
    else:
        fact = "the order is withdrawn, and the stream runs on"
    return DeadlineExceededError(
        f"it has not stopped by its deadline; {fact}",
        stream_id=seen.stream_id,
        deployment_id=seen.deployment_id,
        attempt=seen.attempt,
        command_id=order.command_id,
        deadline_seconds=deadline_seconds,
        state=state,
        order="stands" if is_begun else "withdrawn",
        last_seen=redacted(seen, describe(seen)),
        next_step=f"Look at `streamstate logs {seen.stream_id}` for why; --on-deadline kill ends its driver and keeps"
        " its end.",
    )
