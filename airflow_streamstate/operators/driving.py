"""What the operators share that bring an upgrade or a rollback to its end: acting in workers, waiting anywhere."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_streamstate.controller.under_upgrade import BusyError
from airflow_streamstate.controller.upgrade.upgrades import busy_too_long, describe_holder
from airflow_streamstate.controller.upgrade.views import UpgradeView
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import InvalidRequestError, StreamStateError
from airflow_streamstate.hooks.refusals import text_of, told_to_airflow
from airflow_streamstate.hooks.rendered import as_seconds, one_of, optional_text, texts, whole_number, yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.hooks.upgrading import advance_upgrade, give_up, stands_for_nothing, upgrade_of, what_remains
from airflow_streamstate.operators.base import RETURN_KEY, StreamStateOperator, cleared_after, request_id_of
from airflow_streamstate.operators.masking import MasksSecrets
from airflow_streamstate.protocol.codec import format_time, parse_time
from airflow_streamstate.protocol.upgrades import AfterStop, HealthyWhen
from airflow_streamstate.triggers.events import read_event
from airflow_streamstate.triggers.streamstate import StreamStateTrigger

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

UNDER_WAY_KEY = "upgrade"
"""The XCom that names the upgrade while it is under way: ``{stream_id, upgrade_id}``."""
HOLD_SECONDS = 60.0
"""So long a deferrable task stays in its worker while the stream may stand still: coming back would cost seconds."""
MIN_RELOOK_SECONDS, MAX_RELOOK_SECONDS = 20.0, 600.0
"""A worker looks itself after so long, whatever a triggerer sees: that one may not see the driver's process."""
WAKING_SECONDS = 180.0
"""So long after a triggerer has woken a task a worker may take to begin; then the task is taken for gone."""
IF_BUSY = ("refuse", "wait")
KILLED_SECONDS = 20.0
"""So long ``on_kill`` goes on with what was given up; Airflow itself may end it sooner."""
PROGRESS_SECONDS = 30.0


class UpgradeOperatorBase(MasksSecrets, StreamStateOperator):
    """Base of ``UpgradeStreamOperator`` and ``RollbackStreamOperator``; not for use by itself.

    Every step is recorded before it acts, so another worker goes on where it is. A try of the task goes on with what
    the try before began; where that was over, and not as it was asked for, it says so again, and a task that was
    cleared begins anew. A deferred task acts in workers alone, and its trigger looks; while the stream may stand still
    it stays in its worker, for a minute at most.

    :param healthy_batches: so many batches each query has to commit past the handover. (templated)
    :param healthy_deadline_seconds: how long it has for that. (templated)
    :param caught_up: healthy only when nothing is left to read, or no more than the version before had left.
        (templated)
    :param rehearsal_deadline_seconds: how long a rehearsal may take. (templated)
    :param undo_command: undoes what a ``foreachBatch`` wrote, should there be no other way back. (templated)
    :param if_busy: what is done while another upgrade or rollback of the stream is under way: ``refuse`` fails the task
        at once; ``wait`` waits for its end, within ``timeout_seconds``, records nothing meanwhile, and then plans
        against what runs by then. Of several that wait any may come first. (templated)
    :param timeout_seconds: how long to stay with it, the wait for another one included; then the task fails, the
        upgrade stays under way, and a retry goes on with it. (templated)

    An upgrade whose task is gone, where Airflow told neither a worker nor a triggerer, holds the stream for two minutes
    after the last word of a worker, for 15 where that worker died within an act (the capture of a large state), or for
    three after a triggerer should have woken one: where it has not touched the stream by then, the next command that
    wants the stream ends it, and a retry begins anew.
    """

    template_fields: Sequence[str] = (
        *StreamStateOperator.template_fields,
        "healthy_batches",
        "healthy_deadline_seconds",
        "caught_up",
        "rehearsal_deadline_seconds",
        "undo_command",
        "if_busy",
    )

    def __init__(
        self,
        *,
        healthy_batches: int | str = 3,
        healthy_deadline_seconds: float | str = 300.0,
        caught_up: bool | str = False,
        rehearsal_deadline_seconds: float | str = 300.0,
        undo_command: Sequence[str] | str = (),
        if_busy: str = "refuse",
        timeout_seconds: float | str = 3_600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout_seconds=timeout_seconds, **kwargs)
        self.healthy_batches = healthy_batches
        self.healthy_deadline_seconds = healthy_deadline_seconds
        self.caught_up = caught_up
        self.rehearsal_deadline_seconds = rehearsal_deadline_seconds
        self.undo_command = undo_command
        self.if_busy = if_busy
        self._driven: tuple[StreamStateHook, UpgradeView] | None = None
        self._is_ended = False
        self._told_at_seconds: float | None = None
        self._built = True

    # what an operator of these is

    @abstractmethod
    def request_digest(self) -> str:
        """Over all that is asked for: one request id is one request."""

    @abstractmethod
    def begin(self, hook: StreamStateHook, request_id: str) -> UpgradeView:
        """Record what is asked for, with a lease of ``LEASE_SECONDS``; the same request id again finds it."""

    def after_stop(self) -> AfterStop:
        """What becomes of it when the task is ended and a version was told to stop already; before that, nothing."""
        return "finish"

    # bringing it to its end

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        timeout_seconds = as_seconds(self.timeout_seconds, "timeout_seconds")
        self.after_stop()  # what cannot be meant is refused before anything is recorded
        one_of(self.if_busy, IF_BUSY, "if_busy")
        deadline_at = hook.clock.now() + timedelta(seconds=timeout_seconds)
        return self._drive(context, hook, self._begun(context, hook, deadline_at), deadline_at)

    def execute_complete(self, context: Context, event: Any = None, deadline_at: str | None = None) -> dict[str, Any]:
        """Go on in a worker: there is something to do, or it is time that a worker looks itself."""
        with told_to_airflow():
            content = read_event(event)
            if content.outcome == "over":
                content.need_result()
            hook = self.hook(context)
            if deadline_at is None:  # ``dag.test()`` drops what is kept while a task is deferred
                deadline_at = hook.deadline_text(as_seconds(self.timeout_seconds, "timeout_seconds"))
            until = parse_time(deadline_at)
            if content.watch.wanted == "free":
                return self._drive(context, hook, self._begun(context, hook, until), until)
            view = hook.client.upgrades.view(content.watch.stream_id, content.watch.deployment_id)
            return self._drive(context, hook, view, until, told=view.state.last.number)

    def _begun(self, context: Context, hook: StreamStateHook, deadline_at: datetime) -> UpgradeView:
        """As ``_found_or_begun``, once no other upgrade holds the stream, where that is to be waited for."""
        while True:
            try:
                return self._found_or_begun(context, hook)
            except BusyError:
                if one_of(self.if_busy, IF_BUSY, "if_busy") != "wait":
                    raise
                self._wait_until_free(hook, deadline_at)

    def _wait_until_free(self, hook: StreamStateHook, deadline_at: datetime) -> None:
        stream_id, upgrades = str(self.stream_id), hook.client.upgrades
        holder = upgrades.holder(stream_id)
        if holder is None:
            return  # it has ended since
        now = hook.clock.now()
        if now >= deadline_at:
            raise busy_too_long(stream_id, holder)
        self.log.info("Waiting for another upgrade of %s: %s", stream_id, describe_holder(holder))
        if self.deferrable:
            self.defer(
                trigger=StreamStateTrigger(
                    watch=WaitCondition("free", stream_id, deployment_id=holder.upgrade_id).to_json(),
                    streamstate_conn_id=str(self.streamstate_conn_id),
                    deferred_at=hook.deadline_text(0),
                    deadline_at=format_time(deadline_at),
                    poll_interval_seconds=self.poll_interval_seconds,
                ),
                method_name="execute_complete",
                kwargs={"deadline_at": format_time(deadline_at)},
            )
        upgrades.wait_until_free(stream_id, (deadline_at - now).total_seconds())

    def _found_or_begun(self, context: Context, hook: StreamStateHook) -> UpgradeView:
        """What this task asked for: what is under way, or came to its end; else begun anew.

        An end that is not what was asked for stands until somebody clears the task: Airflow may run a try behind one
        that failed for good, where it takes the end of a worker that deferred the task for the task's own.
        """
        digest, cleared = self.request_digest(), cleared_after(context, self.retries or 0)
        for after in range(cleared + 1):
            for number in itertools.count(1):
                request_id = request_id_of(context, _purpose(digest, after, number))
                found = upgrade_of(hook.client, str(self.stream_id), request_id)
                if found is None:
                    break
                if not found.is_over or found.is_what_was_asked:
                    return self.begin(hook, request_id)
                if after == cleared and not stands_for_nothing(hook.client, found):
                    return found
        return self.begin(hook, request_id)

    def _drive(
        self, context: Context, hook: StreamStateHook, view: UpgradeView, deadline_at: datetime, told: int = 0
    ) -> dict[str, Any]:
        while True:
            self._driven = hook, view
            context["ti"].xcom_push(
                key=UNDER_WAY_KEY, value={"stream_id": view.stream_id, "upgrade_id": view.upgrade_id}
            )
            view = self._brought_to_its_end(hook, view, deadline_at, told)
            if self._is_ended or not stands_for_nothing(hook.client, view):
                return self._judged(context, view)
            self.log.info("%s: the try before was ended, and this one begins anew", what_remains(view))
            view, told = self._begun(context, hook, deadline_at), 0

    def _brought_to_its_end(
        self, hook: StreamStateHook, view: UpgradeView, deadline_at: datetime, told: int
    ) -> UpgradeView:
        upgrades = hook.client.upgrades
        left_seconds = max((deadline_at - hook.clock.now()).total_seconds(), 0.0)
        if not self.deferrable:
            return upgrades.run(view.stream_id, view.upgrade_id, left_seconds, self._tell_progress, self._tell)
        view = advance_upgrade(
            hook.client,
            view,
            told=told,
            hold_seconds=min(HOLD_SECONDS, left_seconds),
            on_step=self._tell,
            on_progress=self._tell_progress,
        )
        if not view.is_over:
            self._defer(hook, view, deadline_at)
        return view

    def _defer(self, hook: StreamStateHook, view: UpgradeView, deadline_at: datetime) -> None:
        watch = WaitCondition("upgrade", view.stream_id, deployment_id=view.upgrade_id)
        now = hook.clock.now()
        if now >= deadline_at:
            raise hook.client.out_of_time(watch, format_time(deadline_at))
        waited_seconds = (now - view.state.last.taken_at).total_seconds()
        relook_seconds = min(max(waited_seconds, MIN_RELOOK_SECONDS), MAX_RELOOK_SECONDS)
        hook.client.upgrades.hold(view.stream_id, view.upgrade_id, relook_seconds + WAKING_SECONDS)
        self.defer(
            trigger=StreamStateTrigger(
                watch=watch.to_json(),
                streamstate_conn_id=str(self.streamstate_conn_id),
                deferred_at=hook.deadline_text(0),
                deadline_at=format_time(min(deadline_at, now + timedelta(seconds=relook_seconds))),
                poll_interval_seconds=self.poll_interval_seconds,
                on_kill_action=self.after_stop(),
            ),
            method_name="execute_complete",
            kwargs={"deadline_at": format_time(deadline_at)},
        )

    def _judged(self, context: Context, view: UpgradeView) -> dict[str, Any]:
        for warning in view.state.last.warnings or ():
            self.log.warning("The new version is kept: %s", warning)
        error = view.as_error()
        if error is None:
            return view.to_json()
        context["ti"].xcom_push(key=RETURN_KEY, value=view.to_json())
        raise AirflowFailException(text_of(error)) from error  # it is over: no retry makes it another end

    # what is said

    def _tell(self, line: str) -> None:
        self.log.info("%s", line)

    def _tell_progress(self, line: str) -> None:
        hook, _ = self._need_driven()
        now_seconds = hook.clock.monotonic_seconds()
        if self._told_at_seconds is None or now_seconds - self._told_at_seconds >= PROGRESS_SECONDS:
            self._told_at_seconds = now_seconds
            self.log.info("Waiting: %s", line)

    # its end by Airflow

    def on_kill(self) -> None:
        """Airflow ends the task in its worker; where it is deferred, ``StreamStateTrigger.on_kill`` is told instead."""
        if self._driven is None:
            return
        self._is_ended = True
        hook, view = self._driven
        try:
            view = give_up(hook.client, view.stream_id, view.upgrade_id, self.after_stop(), KILLED_SECONDS)
        except StreamStateError as error:
            self.log.error("The task was ended, and going on with %s failed: %s", view.upgrade_id, error)  # noqa: TRY400
        self.log.info("The task was ended; %s", what_remains(view))

    def _need_driven(self) -> tuple[StreamStateHook, UpgradeView]:
        if self._driven is None:
            raise InvalidRequestError("nothing is under way here")
        return self._driven

    # fields

    def healthy_when(self) -> HealthyWhen:
        """When a version has proven itself."""
        return HealthyWhen(
            batches=whole_number(self.healthy_batches, "healthy_batches"),
            within_seconds=as_seconds(self.healthy_deadline_seconds, "healthy_deadline_seconds"),
            caught_up=yes_or_no(self.caught_up, "caught_up"),
        )

    def rehearsal_seconds(self) -> float:
        """How long a rehearsal may take."""
        return as_seconds(self.rehearsal_deadline_seconds, "rehearsal_deadline_seconds")

    def undo_words(self) -> tuple[str, ...]:
        """The command that undoes; none by default."""
        value = self.undo_command
        is_given = not isinstance(value, str) or optional_text(value) is not None
        return texts(value, "undo_command") if is_given else ()


def _purpose(digest: str, after: int, number: int) -> str:
    """What a request id is for: the request, and which time since the task was cleared."""
    words = [digest, f"after {after}" if after else "", str(number) if number > 1 else ""]
    return " ".join(word for word in words if word)
