"""``StopStreamOperator``, ``DrainStreamOperator``, ``SkipBatchOperator`` and ``RetireStreamOperator``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_streamstate.errors import ConflictError, InvalidRequestError
from airflow_streamstate.hooks.refusals import told_to_airflow
from airflow_streamstate.hooks.rendered import optional_text, yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import (
    StreamStateOperator,
    TellsLineage,
    choices_of,
    names_of,
    ordered,
    rendered_terms,
    rendered_values,
    renderers_of,
    request_id_of,
    taken_terms,
)
from airflow_streamstate.protocol.forms import selected
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.order import (
    DeploymentChoice,
    DrainTerms,
    Expiry,
    RetireTerms,
    SkipTerms,
    StopTerms,
)
from airflow_streamstate.protocol.terms.version import StartTerms

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_streamstate.controller.deploy.skips import SkipView
    from airflow_streamstate.controller.observe.views import StreamStatus


class StopStreamOperator(TellsLineage, StreamStateOperator):
    """Stop a stream after the batch in flight, and keep its state in a snapshot.

    Idempotent: a retry, or a cleared task, finds its order and the order's result. For a stopped stream the task
    succeeds at once.

    Returns ``{stream_id, deployment_id, command_id, snapshot_id, end_offsets, watermark_at, state_rows_left}``; without
    ``wait_for_completion`` ``{stream_id, deployment_id, command_id, key, state}``; with ``deadline_seconds`` also
    ``outcome`` and ``cut_batches``.

    :param ignore_if_not_running: succeed if the deployment has failed, so that no driver can obey; the result then has
        no snapshot, as the next deploy takes it. By default the task fails. With ``on_deadline="kill"`` the end of a
        driver that had died is kept in a snapshot all the same. (templated)
    :param wait_for_completion: wait until the stream has stopped, for ``timeout_seconds`` at most; with
        ``deadline_seconds`` it must stay true. After an order that was withdrawn at the deadline, a retry orders again.

    :param deployment_id: which deployment; by default the current one. (templated)
    :param deadline_seconds: seconds from the order until the stream must have stopped with a complete snapshot, in
        place of the timeout and of an expiry. By default there is no deadline. (templated)
    :param on_deadline: at ``deadline_seconds``: fail withdraws an order that is not started, and fails; kill ends the
        driver, which must run on the machine of the caller, and keeps its end in a snapshot, also that of a dead
        driver. (templated)
    :param expires_in_seconds: the driver ignores an order that it reads later than this. By default there is no limit.
        (templated)
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(terms_of(DeploymentChoice), terms_of(StopTerms), terms_of(Expiry))
    template_fields: Sequence[str] = (
        *StreamStateOperator.template_fields,
        "ignore_if_not_running",
        *names_of(taken),
    )
    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = choices_of(taken)

    def __init__(
        self,
        *,
        # terms
        deployment_id: str | None = None,
        deadline_seconds: float | str | None = None,
        on_deadline: str = "fail",
        expires_in_seconds: float | str | None = None,
        # end of terms
        ignore_if_not_running: bool | str = False,
        wait_for_completion: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # terms
        self.deployment_id = deployment_id
        self.deadline_seconds = deadline_seconds
        self.on_deadline = on_deadline
        self.expires_in_seconds = expires_in_seconds
        # end of terms
        self.ignore_if_not_running = ignore_if_not_running
        self.wait_for_completion = wait_for_completion

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        chosen = rendered_terms(DeploymentChoice, self, self.taken)
        deadline = self._deadline(context)
        keeps_any_end = deadline is not None and deadline["on_deadline"] == "kill"
        if yes_or_no(self.ignore_if_not_running, "ignore_if_not_running") and not keeps_any_end:
            status = hook.client.status(str(self.stream_id), chosen.deployment_id)
            if status.state == "failed":
                self.log.warning("Not running, so there is nothing to stop: %s", status.error)
                return _nothing_to_stop(status)
        if deadline is not None:
            if self.deferrable:
                self._defer_until(context, hook, deadline)
            self.tell_known(context, hook)
            return self._stopped_by(hook, deadline)
        expiry = rendered_terms(Expiry, self, self.taken)
        order = self.give_order(context, hook, "stop", **vars(chosen), **vars(expiry))
        return self.end_of(hook, order, waits=self.wait_for_completion)

    def execute_complete(self, context: Context, event: Any = None) -> dict[str, Any]:
        from airflow_streamstate.triggers.streamstate import read_event

        with told_to_airflow():
            deadline = self._deadline(context)
        if deadline is None:
            return super().execute_complete(context, event)
        with told_to_airflow(self):
            read_event(event)  # the trigger only looks; the worker acts, under the same request id
            return self._stopped_by(self.hook(context), deadline)

    def _deadline(self, context: Context) -> dict[str, Any] | None:
        """The arguments of ``ForcedStops``; None without a deadline."""
        terms = rendered_terms(StopTerms, self, self.taken)
        if terms.deadline_seconds is None:
            return None
        if not self.wait_for_completion or optional_text(self.expires_in_seconds) is not None:
            raise InvalidRequestError(
                "deadline_seconds excludes wait_for_completion=False and expires_in_seconds",
                wait_for_completion=self.wait_for_completion,
                expires_in_seconds=self.expires_in_seconds,
                next_step="Leave out wait_for_completion and expires_in_seconds, or deadline_seconds.",
            )
        return {
            **vars(terms),
            **vars(rendered_terms(DeploymentChoice, self, self.taken)),
            "request_id": request_id_of(context),
            "reason": str(self.reason),
        }

    def _defer_until(self, context: Context, hook: StreamStateHook, deadline: dict[str, Any]) -> None:
        """Order the stop and wait in the triggerer, unless it has ended already."""
        from airflow_streamstate.controller.wait.condition import WaitCondition

        order = hook.client.forced_stops.order(str(self.stream_id), **deadline)
        if order is None:
            return
        self.tell_known(context, hook, deployment_id=order.deployment_id, command_id=order.command_id)
        watch = WaitCondition.of(order)
        if hook.client.advance(watch).outcome == "pending":
            self.defer_to_trigger(hook, watch, hook.deadline_text(deadline["deadline_seconds"]))

    def _stopped_by(self, hook: StreamStateHook, deadline: dict[str, Any]) -> dict[str, Any]:
        from airflow_streamstate.controller.wait.condition import end_result

        found = hook.client.forced_stops.stop(str(self.stream_id), **deadline)
        outcome = found.outcome
        ignored = yes_or_no(self.ignore_if_not_running, "ignore_if_not_running")
        if outcome.outcome == "failed" and not ignored:
            raise ConflictError(
                "the deployment had failed before it could be stopped; its end is kept",
                stream_id=outcome.stream_id,
                deployment_id=outcome.deployment_id,
                snapshot_id=outcome.snapshot_id,
                reason=outcome.reason,
                next_step="A deploy continues from that snapshot; ignore_if_not_running=True lets the task succeed.",
            )
        if outcome.reason:
            self.log.warning("%s %s: %s", outcome.stream_id, outcome.deployment_id, outcome.reason)
        return {
            **selected(outcome, "stream_id command_id|null"),
            **end_result(outcome),
            "outcome": outcome.outcome,
            "cut_batches": dict(found.cut_batches),
        }


def _nothing_to_stop(status: StreamStatus) -> dict[str, Any]:
    return {
        **selected(status, "stream_id deployment_id"),
        "command_id": None,
        "snapshot_id": None,
        "end_offsets": {},
        "watermark_at": None,
        "state_rows_left": None,
    }


# ``DrainStreamOperator``: stop reading, flush all buffered state, and end the stream.


class DrainStreamOperator(TellsLineage, StreamStateOperator):
    """Order the drain of a stream, and wait for it only with ``wait_for_completion``.

    A drain writes open windows early: use it for upgrades that the state cannot survive, and a stop for all others. A
    stopped, finished or failed deployment is launched once more for the flush.

    Idempotent: a retry, or a cleared task, finds its order and the order's result.

    Returns ``{stream_id, deployment_id, command_id, key, state}``; with ``wait_for_completion`` also
    ``{snapshot_id, end_offsets, watermark_at, state_rows_left}`` and no key.

    :param deployment_id: which deployment; by default the current one. (templated)
    :param mode: what is flushed: default flushes all state of the queries, event_time only moves the watermark.
        (templated)
    :param rehearse: first try the flush on a fork of the state, while the stream runs: the driver rejects a drain that
        would leave state, or whose flush would fail. (templated)
    :param allow_state_loss: accept state that the flush leaves: the next version drops it. (templated)
    :param batches_deadline_seconds: seconds from the order until the batches in flight must be committed. By default
        there is no limit. (templated)
    :param on_batches_deadline: at ``batches_deadline_seconds``: fail withdraws the drain, and the stream continues;
        stop stops it with its state; kill cuts the batch, and the next start runs it again. (templated)
    :param flush_deadline_seconds: seconds from the start of the flush until it must be committed. By default there is
        no limit. (templated)
    :param on_flush_deadline: at ``flush_deadline_seconds``: fail, stop or kill, as for ``on_batches_deadline``.
        (templated)
    :param leave_queries: queries that the script does not start: the drain leaves their state for the next deployment,
        and without their names it is refused. (templated)
    :param expires_in_seconds: the driver ignores an order that it reads later than this. By default there is no limit.
        (templated)

    :param wait_for_completion: wait until the stream is drained, for ``timeout_seconds`` at most.
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(terms_of(DeploymentChoice), terms_of(DrainTerms), terms_of(Expiry))
    template_fields: Sequence[str] = (*StreamStateOperator.template_fields, *names_of(taken))
    template_fields_renderers: ClassVar[dict[str, str]] = renderers_of(taken)
    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = choices_of(taken)

    def __init__(
        self,
        *,
        # terms
        deployment_id: str | None = None,
        mode: str = "default",
        rehearse: bool | str = True,
        allow_state_loss: bool | str = False,
        batches_deadline_seconds: float | str | None = None,
        on_batches_deadline: str = "fail",
        flush_deadline_seconds: float | str | None = None,
        on_flush_deadline: str = "fail",
        leave_queries: Sequence[str] | str | None = (),
        expires_in_seconds: float | str | None = None,
        # end of terms
        wait_for_completion: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # terms
        self.deployment_id = deployment_id
        self.mode = mode
        self.rehearse = rehearse
        self.allow_state_loss = allow_state_loss
        self.batches_deadline_seconds = batches_deadline_seconds
        self.on_batches_deadline = on_batches_deadline
        self.flush_deadline_seconds = flush_deadline_seconds
        self.on_flush_deadline = on_flush_deadline
        self.leave_queries = leave_queries
        self.expires_in_seconds = expires_in_seconds
        # end of terms
        self.wait_for_completion = wait_for_completion

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        order = self.give_order(
            context,
            hook,
            "drain",
            terms=rendered_terms(DrainTerms, self, self.taken),
            **vars(rendered_terms(DeploymentChoice, self, self.taken)),
            **vars(rendered_terms(Expiry, self, self.taken)),
        )
        return self.end_of(hook, order, waits=self.wait_for_completion)


# ``SkipBatchOperator``: skip a batch that always fails.


class SkipBatchOperator(StreamStateOperator):
    """Commit a planned batch that always fails, without reading its rows, and continue after it.

    For a stream that has ended: the next attempt skips the batch before it starts the query. The state is unchanged;
    the skipped offsets are recorded as a gap. Idempotent: a retry, or a cleared task, finds its order and the order's
    result; another batch is another request.

    Returns ``{stream_id, command_id, deployment_id, query, batch_id, moves}``; without ``wait_for_completion``
    ``{stream_id, deployment_id, command_id, key, state}``.

    :param reason: required; kept with the gap. (templated)
    :param wait_for_completion: wait until the batch is skipped, for ``timeout_seconds`` at most.

    :param batch_id: the batch that the next start would run first. (templated)
    :param query_name: the query, if several have a batch of this number planned. (templated)
    :param accept_written_rows: skip it although the sink may hold some of its output, which stays. (templated)
    :param assume_dead: continue although the launcher does not know whether the old driver is dead. (templated)
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(terms_of(SkipTerms), terms_of(StartTerms, "skip"))
    template_fields: Sequence[str] = (*StreamStateOperator.template_fields, *names_of(taken))

    def __init__(
        self,
        *,
        # terms
        batch_id: int | str,
        query_name: str | None = None,
        accept_written_rows: bool | str = False,
        assume_dead: bool | str = False,
        # end of terms
        wait_for_completion: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # terms
        self.batch_id = batch_id
        self.query_name = query_name
        self.accept_written_rows = accept_written_rows
        self.assume_dead = assume_dead
        # end of terms
        self.wait_for_completion = wait_for_completion

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        from airflow_streamstate.controller.deploy.skips import SkipOrder
        from airflow_streamstate.controller.wait.condition import WaitCondition

        terms = rendered_terms(SkipTerms, self, self.taken)
        request = SkipOrder(
            str(self.stream_id), terms, str(self.reason), **rendered_values(self, self.taken, StartTerms)
        )
        purpose = f"{terms.batch_id} {terms.query_name} {terms.accept_written_rows}"
        order = hook.client.skips.skip(request, request_id_of(context, purpose), self._say_what_is_passed_over)
        return self.wait_until_done(hook, WaitCondition.of(order)) if self.wait_for_completion else ordered(order)

    def _say_what_is_passed_over(self, view: SkipView) -> None:
        from airflow_streamstate.connectors.moves import describe

        for move in describe(view.moves):
            self.log.warning("Batch %s of query %s is passed over: %s", view.batch_id, view.query_name, move)


# ``RetireStreamOperator``: retire a stream.


class RetireStreamOperator(StreamStateOperator):
    """Mark an ended stream as retired; with ``delete`` remove it.

    A running stream is refused: stop or drain it first. Idempotent: a retry continues a deletion that was cut short; if
    the stream is gone already, the retry reports that. The task does not wait, so ``deferrable`` and
    ``timeout_seconds`` have no effect.

    Returns ``{stream_id, retired_at, retired_by, reason, deleted, objects}``.

    :param delete: remove the whole stream, with all snapshots, pinned ones too. This cannot be undone. (templated)
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(terms_of(RetireTerms))
    template_fields: Sequence[str] = (*StreamStateOperator.template_fields, *names_of(taken))

    def __init__(
        self,
        *,
        # terms
        delete: bool | str = False,
        # end of terms
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # terms
        self.delete = delete
        # end of terms

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:  # noqa: ARG002 - asks for no id
        deletes = rendered_terms(RetireTerms, self, self.taken).delete
        return hook.client.retention.retire(str(self.stream_id), reason=str(self.reason), deletes=deletes).to_json()
