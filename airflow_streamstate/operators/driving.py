"""Base of the operators that drive an upgrade or a rollback: steps run in workers, waiting happens anywhere."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_streamstate.errors import InvalidRequestError, StreamStateError
from airflow_streamstate.hooks.refusals import text_of, told_to_airflow
from airflow_streamstate.hooks.rendered import as_seconds
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import RETURN_KEY, StreamStateOperator, cleared_after, request_id_of
from airflow_streamstate.operators.lineage import TellsLineage
from airflow_streamstate.operators.masking import MasksSecrets
from airflow_streamstate.operators.term_fields import choices_of, names_of, rendered_terms, taken_terms
from airflow_streamstate.protocol.codec import format_time, parse_time
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.order import BusyTerms
from airflow_streamstate.protocol.upgrades import AfterStop

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_streamstate.controller.upgrade.views import UpgradeView

UNDER_WAY_KEY = "upgrade"
"""The XCom that names the upgrade while it is under way: ``{stream_id, upgrade_id}``."""
KILLED_SECONDS = 20.0
"""How long ``on_kill`` continues an upgrade that it has cancelled; Airflow may end it sooner."""
PROGRESS_SECONDS = 30.0


class UpgradeOperatorBase(MasksSecrets, TellsLineage, StreamStateOperator):
    """Base of ``UpgradeStreamOperator`` and ``RollbackStreamOperator``; not for use by itself.

    Every step is recorded before it acts, so another worker can continue. A try continues the upgrade of the try
    before; if that ended another way than requested, the try reports the same end, and a cleared task begins anew. A
    deferred task acts only in workers; its trigger only looks. While no version may be running, the task stays in its
    worker, for a minute at most.

    :param if_busy: while another upgrade or rollback of the stream is under way: refuse fails at once; wait waits for
        its end within the timeout, records nothing until then, and then plans against what runs. Several that wait
        start in any order. (templated)

    :param timeout_seconds: how long the task drives the upgrade, including the wait for another one; then the task
        fails, the upgrade stays under way, and a retry continues it. (templated)

    An upgrade whose task is gone without notice counts as abandoned two minutes after the last sign of a worker, three
    after the last one of a triggerer, and 15 where a worker died within a step (the capture of a large state) of an
    upgrade that would be given up. Where a user ends the task, that is so at once. If the upgrade has not touched the
    stream by then, the next command or a watcher ends it; else a watcher finishes it, or rolls it back. A retry goes on
    with what it finds, and begins anew where that was given up.
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(terms_of(BusyTerms))
    template_fields: Sequence[str] = (*StreamStateOperator.template_fields, *names_of(taken))
    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = choices_of(taken)

    def __init__(
        self,
        *,
        # terms
        if_busy: str = "refuse",
        # end of terms
        timeout_seconds: float | str = 3_600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout_seconds=timeout_seconds, **kwargs)
        # terms
        self.if_busy = if_busy
        # end of terms
        self._driven: tuple[StreamStateHook, UpgradeView] | None = None
        self._is_ended = False
        self._told_at_seconds: float | None = None

    @abstractmethod
    def request_digest(self) -> str:
        """Digest of the whole request, as one request id stands for one request."""

    @abstractmethod
    def begin(self, hook: StreamStateHook, request_id: str) -> UpgradeView:
        """Record the request with a lease of ``LEASE_SECONDS``; the same request id finds it again."""

    def _waits_if_busy(self) -> bool:
        return rendered_terms(BusyTerms, self, UpgradeOperatorBase.taken).if_busy == "wait"

    def after_stop(self) -> AfterStop:
        """What happens to the upgrade when the task is ended after a version was told to stop."""
        return "finish"

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        timeout_seconds = as_seconds(self.timeout_seconds, "timeout_seconds")
        self.after_stop()  # an invalid field is refused before anything is recorded
        self._waits_if_busy()
        deadline_at = hook.clock.now() + timedelta(seconds=timeout_seconds)
        return self._drive(context, hook, self._begun(context, hook, deadline_at), deadline_at)

    def execute_complete(self, context: Context, event: Any = None, deadline_at: str | None = None) -> dict[str, Any]:
        """Continue in a worker: a step is due, or the worker has to look itself."""
        from airflow_streamstate.triggers.events import read_event

        with told_to_airflow(self):
            content = read_event(event)
            if content.outcome == "over":
                content.need_result()
            hook = self.hook(context)
            if deadline_at is None:  # ``dag.test()`` drops the kwargs of a deferral
                deadline_at = hook.deadline_text(as_seconds(self.timeout_seconds, "timeout_seconds"))
            until = parse_time(deadline_at)
            if content.watch.wanted == "free":
                return self._drive(context, hook, self._begun(context, hook, until), until)
            view = hook.client.upgrades.view(content.watch.stream_id, content.watch.deployment_id)
            return self._drive(context, hook, view, until, told=view.state.last.number)

    def _begun(self, context: Context, hook: StreamStateHook, deadline_at: datetime) -> UpgradeView:
        """As ``_found_or_begun``; with ``if_busy=wait`` once no other upgrade holds the stream."""
        from airflow_streamstate.controller.under_upgrade import BusyError

        while True:
            try:
                return self._found_or_begun(context, hook)
            except BusyError as error:
                if not self._waits_if_busy():
                    way = f'if_busy="wait" waits for its end. {error.next_step}'
                    raise BusyError(error.message, next_step=way, **error.context) from error
                self._wait_until_free(hook, deadline_at)

    def _wait_until_free(self, hook: StreamStateHook, deadline_at: datetime) -> None:
        from airflow_streamstate.controller.upgrade.upgrades import busy_too_long, describe_holder
        from airflow_streamstate.controller.wait.condition import WaitCondition

        stream_id, upgrades = str(self.stream_id), hook.client.upgrades
        holder = upgrades.holder(stream_id)
        if holder is None:
            return  # it has ended since
        now = hook.clock.now()
        if now >= deadline_at:
            raise busy_too_long(stream_id, holder)
        self.log.info("Waiting for another upgrade of %s: %s", stream_id, describe_holder(holder))
        if self.deferrable:
            watch, until = WaitCondition("free", stream_id, deployment_id=holder.upgrade_id), format_time(deadline_at)
            self.defer_to_trigger(hook, watch, until, deadline_at=until)
        upgrades.wait_until_free(stream_id, (deadline_at - now).total_seconds())

    def _found_or_begun(self, context: Context, hook: StreamStateHook) -> UpgradeView:
        """The upgrade of this task, under way or over; else a new one.

        An end other than the requested one stands until the task is cleared: Airflow may run a try after one that
        failed for good, when it takes the end of a worker that deferred the task for the end of the task.
        """
        from airflow_streamstate.hooks.upgrading import stands_for_nothing, upgrade_of

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
        from airflow_streamstate.hooks.upgrading import stands_for_nothing, what_remains

        while True:
            self._driven = hook, view
            context["ti"].xcom_push(
                key=UNDER_WAY_KEY, value={"stream_id": view.stream_id, "upgrade_id": view.upgrade_id}
            )
            self.tell_known(context, hook, upgrade_id=view.upgrade_id, deployment_id=_runs_in(view))
            view = self._brought_to_its_end(hook, view, deadline_at, told)
            if self._is_ended or not stands_for_nothing(hook.client, view):
                return self._judged(context, view)
            self.log.info(
                "%s: the try before was ended, and this one begins anew", what_remains(view, self.after_stop())
            )
            view, told = self._begun(context, hook, deadline_at), 0

    def _brought_to_its_end(
        self, hook: StreamStateHook, view: UpgradeView, deadline_at: datetime, told: int
    ) -> UpgradeView:
        from airflow_streamstate.hooks.upgrading import HOLD_SECONDS, advance_upgrade

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
        from airflow_streamstate.controller.wait.condition import WaitCondition
        from airflow_streamstate.hooks.upgrading import WAKING_SECONDS, relook_seconds

        watch = WaitCondition("upgrade", view.stream_id, deployment_id=view.upgrade_id)
        now = hook.clock.now()
        if now >= deadline_at:
            raise hook.client.out_of_time(watch, format_time(deadline_at))
        seconds = relook_seconds(view, now)
        hook.client.upgrades.hold(view.stream_id, view.upgrade_id, seconds + WAKING_SECONDS)
        looks_until = format_time(min(deadline_at, now + timedelta(seconds=seconds)))
        self.defer_to_trigger(hook, watch, looks_until, self.after_stop(), deadline_at=format_time(deadline_at))

    def _judged(self, context: Context, view: UpgradeView) -> dict[str, Any]:
        from airflow_streamstate.controller.upgrade.views import end_lines

        for line in end_lines(view):
            self.log.info("%s", line)
        for warning in view.state.warnings:
            self.log.warning("The new version is kept: %s", warning)
        error, hook = view.as_error(), self._need_driven()[0]
        self.tell_known(context, hook, upgrade_id=view.upgrade_id, deployment_id=_runs_in(view))
        if error is None:
            return view.to_json()
        context["ti"].xcom_push(key=RETURN_KEY, value=view.to_json())
        raise AirflowFailException(text_of(error)) from error  # it is over: no retry makes it another end

    def _tell(self, line: str) -> None:
        self.log.info("%s", line)

    def _tell_progress(self, line: str) -> None:
        hook, _ = self._need_driven()
        now_seconds = hook.clock.monotonic_seconds()
        if self._told_at_seconds is None or now_seconds - self._told_at_seconds >= PROGRESS_SECONDS:
            self._told_at_seconds = now_seconds
            self.log.info("Waiting: %s", line)

    def on_kill(self) -> None:
        """Airflow ends the task in its worker. For a deferred task it calls ``StreamStateTrigger.on_kill``."""
        from airflow_streamstate.hooks.upgrading import give_up, what_remains

        if self._driven is None:
            return
        self._is_ended = True
        hook, view = self._driven
        try:
            view = give_up(hook.client, view.stream_id, view.upgrade_id, self.after_stop(), KILLED_SECONDS)
        except StreamStateError as error:
            self.log.error("The task was ended, and continuing %s failed: %s", view.upgrade_id, error)  # noqa: TRY400
        self.log.info("The task was ended; %s", what_remains(view, self.after_stop()))

    def _need_driven(self) -> tuple[StreamStateHook, UpgradeView]:
        if self._driven is None:
            raise InvalidRequestError("nothing is under way here")
        return self._driven


def _runs_in(view: UpgradeView) -> str:
    """The deployment in which the stream was brought to its end by an upgrade, as far as that is known."""
    state = view.state
    return state.returned_deployment_id or state.new_deployment_id or state.upgrade.old_deployment_id


def _purpose(digest: str, after: int, number: int) -> str:
    """The purpose of a request id: the request, the last clear, and the number of the request since."""
    words = [digest, f"after {after}" if after else "", str(number) if number > 1 else ""]
    return " ".join(word for word in words if word)
