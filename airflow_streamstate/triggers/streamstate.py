"""``StreamStateTrigger``: waits in the triggerer for every condition of operators and sensors."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.objects import Lease
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import of_one_stream
from airflow_streamstate.controller.wait.condition import PENDING, WaitCondition, WaitResult, only_news
from airflow_streamstate.errors import DataError, StreamStateError
from airflow_streamstate.hooks.configuration import count
from airflow_streamstate.hooks.refusals import error_from_json, is_retryable
from airflow_streamstate.hooks.task_upgrades import WAKING_SECONDS, end_watched
from airflow_streamstate.protocol.codec import parse_time
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.store.base import as_one_of_many
from airflow_streamstate.triggers.triggerer import begun, controller_of, in_pool, watcher_of

# The trigger's events, as plain JSON: ``{"outcome", "watch", "result", "error"}``.

EventOutcome = Literal["done", "over", "deadline"]
_OUTCOMES: tuple[EventOutcome, ...] = ("done", "over", "deadline")


@dataclass(frozen=True)
class EventContent(View):
    """A valid event.

    Attributes:
        outcome: ``done``: the condition was met; ``over``: it can no longer be met; ``deadline``: no time was left.
        result: of ``done``; else None.
        error: the reason of ``over`` and ``deadline``; else None.
    """

    outcome: EventOutcome
    watch: WaitCondition
    result: dict[str, Any] | None = None
    error: StreamStateError | None = None

    def need_result(self) -> dict[str, Any]:
        """The result; raises the error that is there instead."""
        if self.error is not None:
            raise self.error
        return dict(self.result or {})


def read_event(event: Any) -> EventContent:
    """The content of an event, checked: it came through a database.

    Raises:
        DataError: it is no event of this trigger.
    """
    try:
        if not isinstance(event, dict) or event.get("outcome") not in _OUTCOMES:
            raise ValueError("no known outcome")
        watch = WaitCondition.from_json(event.get("watch"))
        if event["outcome"] != "done":
            return EventContent(event["outcome"], watch, error=error_from_json(event.get("error")))
        return EventContent("done", watch, result=dict(event["result"]))
    except (ValueError, TypeError, KeyError) as problem:
        raise DataError(
            "this is no event of StreamStateTrigger",
            reason=str(problem),
            next_step="Clear the task; if it happens again, restart the triggerer: it may run another release.",
        ) from None


HEARD_SECONDS = 6.0
"""No trigger fires earlier after the deferral: the scheduler may take this long to see that the worker has ended.
Airflow takes a task that runs again before that for failed, and uses up a retry ("finished with state success, but the
task instance's state attribute is queued": apache/airflow#67287, #72716; the same in 3.3.2)."""
HEARD_SHARE = 5.0
"""The same wait as a multiple of the triggerer's own delay: on a busy machine the scheduler is as slow."""
MAX_HEARD_SECONDS = 120.0
SIGN_SHARE = 0.2
"""Of ``WAKING_SECONDS``: how often a trigger reports that the task of an upgrade still waits."""
SUPERVISED_SECONDS = 3_600.0
"""How long at most a triggerer that restarts drivers stays for an upgrade whose task was ended."""


class StreamStateTrigger(BaseTrigger):
    """Looks until a condition is met, can no longer be met, or the deadline has passed; then fires once.

    It only looks, and reports of an upgrade that its task still waits, so a new triggerer may run it again from the
    start.

    :param watch: ``WaitCondition.to_json`` of the condition.
    :param streamstate_conn_id: the connection that names the home.
    :param deferred_at: RFC 3339; when the task was deferred, by the worker's clock. None: when the trigger runs.
    :param deadline_at: RFC 3339; when to stop waiting. Absolute, so that a new triggerer does not wait again.
    :param poll_interval_seconds: seconds between two polls.
    :param on_kill_action: what happens to the deployment when a user ends the task: leave, stop, drain or kill; to an
        upgrade after its stop: leave, finish or rollback.
    :param or_watches: other conditions of the same home; the first that ends is the event.
    """

    def __init__(
        self,
        *,
        watch: dict[str, Any],
        streamstate_conn_id: str,
        deadline_at: str | None = None,
        poll_interval_seconds: float = 5.0,
        on_kill_action: str = "leave",
        deferred_at: str | None = None,
        or_watches: Sequence[dict[str, Any]] = (),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watch = watch
        self.streamstate_conn_id = streamstate_conn_id
        self.deadline_at = deadline_at
        self.poll_interval_seconds = poll_interval_seconds
        self.on_kill_action = on_kill_action
        self.deferred_at = deferred_at
        self.or_watches = list(or_watches)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "airflow_streamstate.triggers.streamstate.StreamStateTrigger",
            {
                "watch": self.watch,
                "streamstate_conn_id": self.streamstate_conn_id,
                "deadline_at": self.deadline_at,
                "poll_interval_seconds": self.poll_interval_seconds,
                "on_kill_action": self.on_kill_action,
                "deferred_at": self.deferred_at,
                "or_watches": self.or_watches,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        # Shielded: asgiref may lose the message of a cancellation, by which alone Airflow distinguishes a user's act
        # from the end of a triggerer.
        watches = [WaitCondition.from_json(one) for one in (self.watch, *self.or_watches)]
        watched = begun(self._watched_long_enough(watches))
        try:
            content = await asyncio.shield(watched)
        finally:
            watched.cancel()
        watch = content.watch
        count("streamstate.trigger.event", wanted=watch.wanted, stream_id=watch.stream_id, outcome=content.outcome)
        yield TriggerEvent(content.to_json())  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """A user marked or cleared the task; never called when a triggerer ends (Airflow 3.3).

        The order is shielded: a triggerer cancels a trigger about once a second until it has ended (3.3.2), and an
        order may take longer.
        """
        if self.on_kill_action != "leave":
            await asyncio.shield(begun(self._end_as_asked()))

    async def _end_as_asked(self) -> None:
        watch = WaitCondition.from_json(self.watch)
        try:
            controller = await controller_of(self.streamstate_conn_id)
            said = await in_pool(controller, end_watched, controller, self.on_kill_action, watch)
        except StreamStateError as error:
            self.log.error("The task was ended, and its %s was not ordered: %s", self.on_kill_action, error)  # noqa: TRY400
        else:
            self.log.info("%s", said)
            begun(self._until_over(controller, watch))  # the end of a trigger does not wait for that

    async def _until_over(self, controller: Controller, watch: WaitCondition) -> None:
        """Keep up the supervision of this triggerer, if it has any, until the upgrade of the ended task ends."""
        watcher = watcher_of(controller)
        if watch.wanted != "upgrade" or not watcher.supervises:
            return
        until_seconds = SYSTEM_CLOCK.monotonic_seconds() + SUPERVISED_SECONDS
        with watcher.turn(watch.stream_id, self.poll_interval_seconds) as turn:
            while (left_seconds := until_seconds - SYSTEM_CLOCK.monotonic_seconds()) > 0:
                with suppress(StreamStateError):
                    view = await in_pool(controller, controller.upgrades.view, watch.stream_id, watch.deployment_id)
                    if view.is_over:
                        return
                turn.begin_look()
                await turn.pause(left_seconds)

    async def _watched_long_enough(self, watches: Sequence[WaitCondition]) -> EventContent:
        began_seconds = SYSTEM_CLOCK.monotonic_seconds()
        delay_seconds = 0.0
        if self.deferred_at is not None:
            delay_seconds = max((SYSTEM_CLOCK.now() - parse_time(self.deferred_at)).total_seconds(), 0.0)
        content = await self._first_ended(watches)
        waited_seconds = delay_seconds + SYSTEM_CLOCK.monotonic_seconds() - began_seconds
        left_seconds = seconds_until_heard(delay_seconds) - waited_seconds
        if left_seconds > 0:
            await asyncio.sleep(left_seconds)
        return content

    async def _first_ended(self, watches: Sequence[WaitCondition]) -> EventContent:
        waits = [begun(self._watched(watch)) for watch in watches]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return next(one for one in waits if one.done()).result()
        finally:
            for one in waits:
                one.cancel()

    async def _watched(self, watch: WaitCondition) -> EventContent:
        try:
            controller = await controller_of(self.streamstate_conn_id)
            alive = Lease(SYSTEM_CLOCK, WAKING_SECONDS)
            tell = only_news(lambda text: self.log.info("Waiting for %s: %s", watch.stream_id, text), SYSTEM_CLOCK)
            with watcher_of(controller).turn(watch.stream_id, self.poll_interval_seconds) as turn:
                while True:
                    turn.begin_look()
                    seen = await self._look(controller, watch)
                    if watch.wanted == "upgrade" and alive.is_due(SIGN_SHARE):
                        await self._give_sign(controller, watch, alive, turn.longest_pause_seconds)
                    if seen.last_seen:
                        tell(seen.last_seen)
                    if seen.outcome != "pending":
                        return EventContent(seen.outcome, watch, seen.result, seen.error)
                    left_seconds = self._left_seconds()
                    if left_seconds <= 0:
                        # Of an upgrade a worker looks now and then itself, and knows when the task's own time has
                        # ended.
                        says = controller.time_to_look if self._goes_on else controller.out_of_time
                        return EventContent(
                            "deadline", watch, error=await in_pool(controller, says, watch, self.deadline_at)
                        )
                    await turn.pause(left_seconds)
        except StreamStateError as error:
            return EventContent("over", watch, error=error)

    async def _give_sign(
        self, controller: Controller, watch: WaitCondition, alive: Lease, pause_seconds: float
    ) -> None:
        """The task lives while its trigger looks: else watchers would bring its upgrade to its end."""
        with suppress(StreamStateError), alive.renewed():
            seconds = WAKING_SECONDS + 2 * pause_seconds
            prolong = controller.upgrades.prolong
            await in_pool(controller, as_one_of_many, prolong, watch.stream_id, watch.deployment_id, seconds)

    @property
    def _goes_on(self) -> bool:
        return any(one["wanted"] == "upgrade" for one in (self.watch, *self.or_watches))

    def _left_seconds(self) -> float:
        if self.deadline_at is None:
            return math.inf
        return (parse_time(self.deadline_at) - SYSTEM_CLOCK.now()).total_seconds()

    async def _look(self, controller: Controller, watch: WaitCondition) -> WaitResult:
        try:
            return await in_pool(controller, as_one_of_many, controller.advance, watch)
        except StreamStateError as error:
            if not is_retryable(error):
                raise
            self.log.warning("This poll went wrong, which shows nothing about the stream: %s", error)
            return PENDING
        except Exception as error:
            self.log.exception("This look at %s failed", watch.stream_id)
            raise of_one_stream(controller.home, error) from error


def seconds_until_heard(delay_seconds: float) -> float:
    """The least time from a deferral to its event, for a triggerer that started ``delay_seconds`` after it."""
    return min(max(HEARD_SECONDS, HEARD_SHARE * delay_seconds), MAX_HEARD_SECONDS)
