"""Commands: each is read and judged once, then obeyed or answered. No object stops the agent (Law 7)."""

from __future__ import annotations

import threading
import traceback

from airflow_streamstate.control.command_status import is_late, out_of_date
from airflow_streamstate.control.journal import CommandSlot
from airflow_streamstate.driver.agent.own_snapshots import GaveWayError, LiveSnapshots
from airflow_streamstate.driver.attempt.answers import cancel_drains, clean_up, ignore
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.latch import Order, order_of
from airflow_streamstate.driver.shutdown.drain import cannot_drain_reason, drain_deployment
from airflow_streamstate.driver.shutdown.flush import Foreseen, foresee
from airflow_streamstate.driver.shutdown.stopping import carry_on, stop_deployment
from airflow_streamstate.errors import DataError, FencedError, OutcomeUnknownError, UnavailableError
from airflow_streamstate.protocol.codec import to_json
from airflow_streamstate.protocol.commands import (
    CancelRequest,
    Command,
    DrainNotification,
    SkipRequest,
    SnapshotRequest,
    StopRequest,
)
from airflow_streamstate.protocol.events import Drained, Expired, Rejected


class Foresight:
    """Tries each drain once before it starts, in the background and one at a time: trials of a query share a folder."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._guard = threading.Lock()
        self._found: dict[str, Foreseen] = {}
        self._under_way: str | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a trial is under way."""
        with self._guard:
            return self._under_way is not None

    def is_trying(self, command_id: str) -> bool:
        """Whether the trial of this drain has started: the drain cannot expire any more."""
        with self._guard:
            return command_id == self._under_way or command_id in self._found

    def tried(self, order: Order) -> frozenset[str]:
        """The queries whose flush was tried for this drain."""
        with self._guard:
            return self._found.get(order.command_id, Foreseen()).tried

    def look(self, order: Order) -> Foreseen | None:
        """The result of this drain's trial; None while it, or another one, is under way."""
        with self._guard:
            if order.command_id in self._found:
                return self._found[order.command_id]
            if self._under_way is not None:
                return None
            self._under_way = order.command_id
        self._attempt.in_background(lambda: self._try(order), gives_way=False)
        with self._guard:
            return self._found.get(order.command_id)

    def _try(self, order: Order) -> None:
        attempt, found = self._attempt, None
        try:
            found = foresee(attempt, order, attempt.queries.all())
        except FencedError:
            attempt.fence.close(None)
        except (UnavailableError, OutcomeUnknownError) as error:
            attempt.reporter.outage("the trial of a drain", error)  # the next poll tries again
        except Exception as error:
            attempt.reporter.say(traceback.format_exc())
            found = Foreseen(problems={"": f"its flush could not be tried: {type(error).__name__}"})
        finally:
            with self._guard:
                self._under_way = None
                if found is not None:
                    self._found[order.command_id] = found


_ENDED_AS = {
    None: "ended",
    "stopped": "stopped",
    "drained": "drained",
    "failed": "failed",
    "finished": "finished",
    "superfluous": "ended",
}


class CommandHandler:
    """Obeys the commands of a deployment in one attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._live_snapshots = LiveSnapshots(attempt, self.give_way)
        self._looked_at_seconds = attempt.clock.monotonic_seconds()
        self._foresight = Foresight(attempt)

    @property
    def is_trying_a_drain(self) -> bool:
        """Whether a drain is being tried."""
        return self._foresight.is_busy

    def give_way(self) -> None:
        """Called while a snapshot is copied; reads the commands as often as ``poll`` would.

        Raises:
            GaveWayError: a command asks for the end of the deployment.
            FencedError: this attempt was replaced.
        """
        attempt = self._attempt
        attempt.fence.check()
        now_seconds = attempt.clock.monotonic_seconds()
        if now_seconds - self._looked_at_seconds < attempt.spec.version.settings.command_poll_seconds:
            return
        self._looked_at_seconds = now_seconds
        try:
            commands = [slot.command for slot in attempt.journal.commands()]
        except (UnavailableError, OutcomeUnknownError) as error:  # not a reason to stop the copy
            attempt.reporter.outage("a poll of the commands", error)
            return
        if any(self._is_end(command) for command in commands):
            raise GaveWayError(
                "the deployment is being ended, and that comes first", next_step="Its end has its own snapshot."
            )

    def _is_end(self, command: Command | None) -> bool:
        """Whether a command ends the deployment, and this attempt has yet to obey it."""
        return (
            isinstance(command, (StopRequest, DrainNotification))
            and not self._attempt.command_status(command.command_id).is_ended
            and self._meant_elsewhere(command) is None
            and not self._is_for_a_later_attempt(command)
            and not self._is_expired(command)
        )

    def poll(self) -> None:
        """Obey or answer every command, in the order of their numbers.

        Raises:
            FencedError: this attempt was replaced.
            UnavailableError, OutcomeUnknownError: the store does not answer; call it again.
        """
        self._looked_at_seconds = self._attempt.clock.monotonic_seconds()
        latch = self._attempt.latch
        if not latch.is_released and latch.state == "drain":
            # Ordered before this attempt started, or cut short.
            drain_deployment(self._attempt, latch.order, tried=self._foresight.tried(latch.order))
        elif latch.state == "snapshot":
            carry_on(self._attempt)  # cut short
        elif not latch.is_released and latch.state == "stop" and latch.order.command is not None:
            stop_deployment(self._attempt, latch.order)
        for slot in self._attempt.journal.commands():
            self._take(slot)

    def _take(self, slot: CommandSlot) -> None:
        attempt = self._attempt
        command = slot.command
        if command is None:
            self._reject_object(slot, slot.problem)
        elif attempt.command_status(command.command_id).is_ended:
            clean_up(attempt)
        elif (elsewhere := self._meant_elsewhere(command)) is not None:
            self._ignore(command, slot, elsewhere)
        elif self._is_for_a_later_attempt(command):
            return
        elif self._is_expired(command):
            attempt.reporter.write(
                Expired, command_id=command.command_id, command_number=slot.number or 0, command=to_json(command)
            )
            attempt.reporter.say(f"{command.kind} {command.command_id} had expired when it was read")
            clean_up(attempt)
        elif isinstance(command, SnapshotRequest) and (stale := self._out_of_date(command)) is not None:
            self._ignore(command, slot, stale)
        elif attempt.latch.is_open:
            self._obey(command, slot)
        elif attempt.latch.is_released:
            self._answer_after_the_end(command, slot)

    def _obey(self, command: Command, slot: CommandSlot) -> None:
        order = order_of(command, slot.number or 0)
        if isinstance(command, StopRequest):
            stop_deployment(self._attempt, order)
        elif isinstance(command, SnapshotRequest):
            self._live_snapshots.take(order, slot.key)
        elif isinstance(command, DrainNotification):
            self._drain(order, slot)
        elif isinstance(command, CancelRequest):
            self._cancel(command, slot)
        elif isinstance(command, SkipRequest) and command.query_name in self._attempt.queries:
            # Before the query's start ``start.query_start`` obeys it.
            reject(
                self._attempt, order, slot.key, f"query {command.query_name} runs: a batch is skipped before a start"
            )

    def _cancel(self, command: CancelRequest, slot: CommandSlot) -> None:
        """Cancel a drain that has not started; one that has started looks for this command itself."""
        if not cancel_drains(self._attempt):
            self._ignore(command, slot, "no drain of this deployment is under way")

    def _drain(self, order: Order, slot: CommandSlot) -> None:
        reason = cannot_drain_reason(self._attempt, order)
        if reason is None:
            foreseen = self._foresight.look(order)
            if foreseen is None:
                return  # it is being tried; a later poll has the result
            reason = "; ".join(f"query {name}: {problem}" for name, problem in foreseen.problems.items()) or None
        if reason is None:
            drain_deployment(self._attempt, order, tried=self._foresight.tried(order))
        else:
            reject(self._attempt, order, slot.key, reason)

    def _answer_after_the_end(self, command: Command, slot: CommandSlot) -> None:
        attempt = self._attempt
        if isinstance(command, CancelRequest) and attempt.latch.outcome != "drained":
            return  # as the drain that it cancels, it is left for the next attempt
        if not isinstance(command, DrainNotification):
            ended = _ENDED_AS[attempt.latch.outcome]
            self._ignore(command, slot, f"the deployment had {ended} before it could be obeyed")
        elif attempt.latch.outcome == "drained":
            done = [event for event in attempt.reporter.events if isinstance(event, Drained)]
            if done:
                attempt.reporter.write(
                    Drained,
                    command_id=command.command_id,
                    command_number=slot.number or 0,
                    snapshot_id=done[-1].snapshot_id,
                    queries=done[-1].queries,
                )
                clean_up(attempt)
        # Else it is left for the next attempt: a notification is valid for the whole deployment.

    def _meant_elsewhere(self, command: Command) -> str | None:
        attempt = self._attempt
        if (command.stream_id, command.deployment_id) != (attempt.stream_id, attempt.deployment_id):
            return f"it is meant for deployment {command.deployment_id} of stream {command.stream_id}"
        oldest = attempt.oldest_stopped if isinstance(command, StopRequest) else attempt.number
        if isinstance(command, (StopRequest, SnapshotRequest)) and command.attempt < oldest:
            return f"it is meant for attempt {command.attempt}, and this is attempt {attempt.number}"
        return None

    def _is_for_a_later_attempt(self, command: Command) -> bool:
        return isinstance(command, (StopRequest, SnapshotRequest)) and command.attempt > self._attempt.number

    def _is_expired(self, command: Command) -> bool:
        is_begun = self._attempt.command_status(command.command_id).is_begun
        is_begun = is_begun or self._foresight.is_trying(command.command_id)
        return is_late(command, self._attempt.clock.now()) and not is_begun

    def _out_of_date(self, request: SnapshotRequest) -> str | None:
        if self._attempt.command_status(request.command_id).is_begun:
            return None
        return out_of_date(request, self._attempt.clock.now(), self._attempt.spec.version.settings.clock_skew_seconds)

    def _ignore(self, command: Command, slot: CommandSlot, reason: str) -> None:
        ignore(self._attempt, command, slot.number or 0, reason)

    def _reject_object(self, slot: CommandSlot, problem: DataError | None) -> None:
        """Reject once per object, which stays in the store for inspection."""
        events = self._attempt.reporter.events
        known = {(event.key, event.object_version) for event in events if isinstance(event, Rejected)}
        if (slot.key, slot.version) in known:
            return
        self._attempt.reporter.write(
            Rejected,
            command_id="",
            command_number=slot.number or 0,
            key=slot.key,
            reason="unreadable" if problem is None else str(problem.context.get("reason") or problem.message),
            object_version=slot.version,
        )
        self._attempt.reporter.say(f"{slot.key} is no command that can be read, and is left alone")


def reject(attempt: Attempt, order: Order, key: str, reason: str) -> None:
    """Write ``Rejected`` with the reason, and log it."""
    attempt.reporter.write(
        Rejected, command_id=order.command_id, command_number=order.command_number, key=key, reason=reason
    )
    attempt.reporter.say(f"command {order.command_id} is rejected: {reason}")
    clean_up(attempt)
