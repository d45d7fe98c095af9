"""What all operators share: request id, hook, waiting, and the mapping of errors to Airflow."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator, conf

from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.hooks import configuration
from airflow_streamstate.hooks.literals import ChecksLiterals
from airflow_streamstate.hooks.refusals import told_to_airflow
from airflow_streamstate.hooks.rendered import as_seconds
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.links import LINKS, QUERY_NAMES, links_of
from airflow_streamstate.protocol.requesters import requester
from airflow_streamstate.protocol.views import selected

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_streamstate.controller.observe.orders import OrderVerb
    from airflow_streamstate.controller.observe.views import CommandView
    from airflow_streamstate.controller.wait.condition import WaitCondition
    from airflow_streamstate.hooks.ending import OnKill

RETURN_KEY = "return_value"
"""The XCom of a task's result; pushed by name if the task fails, as a failed task returns nothing."""


def request_id_of(context: Context, purpose: str = "") -> str:
    """The request id of this task: the same for every try, and after the task was cleared (Law 2).

    A hash of dag id, run id, task id, map index and ``purpose``, which tells several requests of one task apart.
    """
    ti = context["ti"]
    map_index = getattr(ti, "map_index", -1)
    words = (ti.dag_id, ti.run_id, ti.task_id, str(-1 if map_index is None else map_index), purpose)
    return "af-" + hashlib.sha256("\n".join(words).encode()).hexdigest()[:40]


def cleared_after(context: Context, retries: int) -> int:
    """The number of the try after which the task was last cleared; 0 if it was not cleared.

    When a task is cleared, Airflow sets ``max_tries`` to the tries so far plus ``retries``.
    """
    return max(0, (getattr(context["ti"], "max_tries", 0) or 0) - retries)


def ordered(order: CommandView) -> dict[str, Any]:
    """The result of an operator that records an order and does not wait."""
    return selected(order, "stream_id deployment_id command_id key state request_id?")


def requester_of(context: Context) -> str:
    """The user who has triggered the run, with the task, as ``requested_by`` of records and commands.

    Airflow's API server keeps the signed-in user with the run; nothing that is typed into a form changes it.
    """
    ti = context["ti"]
    user = getattr(context.get("dag_run"), "triggering_user_name", None)
    return requester(user, f"airflow {ti.dag_id}.{ti.task_id} {ti.run_id}")


class DefersToTrigger:
    """Of operators whose waits may be left to the triggerer."""

    streamstate_conn_id: str
    poll_interval_seconds: float
    defer: Any

    def defer_to_trigger(
        self,
        hook: StreamStateHook,
        watch: WaitCondition,
        until: str,
        on_kill_action: str = "leave",
        *,
        or_watches: Sequence[WaitCondition] = (),
        **kwargs: Any,
    ) -> None:
        """Wait in the triggerer until that time at most; ``execute_complete`` gets ``kwargs`` beside the event."""
        from airflow_streamstate.triggers.streamstate import StreamStateTrigger

        self.defer(
            trigger=StreamStateTrigger(
                watch=watch.to_json(),
                streamstate_conn_id=str(self.streamstate_conn_id),
                deferred_at=hook.deadline_text(0),
                deadline_at=until,
                poll_interval_seconds=self.poll_interval_seconds,
                on_kill_action=on_kill_action,
                or_watches=[one.to_json() for one in or_watches],
            ),
            method_name="execute_complete",
            kwargs=kwargs or None,
        )


class StreamStateOperator(ChecksLiterals, DefersToTrigger, BaseOperator):
    """Base of the operators; not for use by itself.

    :param stream_id: the stream. (templated)
    :param streamstate_conn_id: the Airflow connection that names the home. (templated)
    :param reason: kept with the recorded order. (templated)
    :param deferrable: wait in the triggerer instead of in a worker slot; the result is the same.
    :param timeout_seconds: how long the task waits. After that the task fails with the last observation; the stream
        runs on, and a retry continues the wait. (templated)
    :param poll_interval_seconds: seconds between two looks while waiting; by default Airflow's option ``[streamstate]
        poll_interval_seconds``.
    """

    template_fields: Sequence[str] = ("stream_id", "streamstate_conn_id", "reason", "timeout_seconds")
    ui_color = "#e8f0e4"
    operator_extra_links = LINKS
    pushed_links: Mapping[str, str] | None = None
    """What this process has pushed for the links beside the task instance; None where another one began the task."""

    def __init__(
        self,
        *,
        stream_id: str,
        streamstate_conn_id: str = StreamStateHook.default_conn_name,
        reason: str = "",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        timeout_seconds: float | str = 600.0,
        poll_interval_seconds: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.stream_id = stream_id
        self.streamstate_conn_id = streamstate_conn_id
        self.reason = reason
        self.deferrable = deferrable
        self.timeout_seconds = timeout_seconds
        self.poll_interval_seconds = (
            configuration.poll_interval_seconds() if poll_interval_seconds is None else poll_interval_seconds
        )

    @abstractmethod
    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        """Act, wait if the operator waits, and return the result."""

    def result_from(self, watch: WaitCondition, observed: Mapping[str, Any]) -> dict[str, Any]:
        """The operator's result from what the wait observed, in a worker or in the triggerer."""
        return {"stream_id": watch.stream_id, "command_id": watch.command_id, **observed}

    def execute(self, context: Context) -> dict[str, Any]:
        self.pushed_links = {}
        with told_to_airflow(self):
            hook = self.hook(context)
            found = dict(self.act(context, hook))
            if not self.pushed_links:
                self.tell_links(context, hook, found)
            return found

    def execute_complete(self, context: Context, event: Any = None) -> dict[str, Any]:  # noqa: ARG002 - Airflow's call
        """Continue a deferred task; the event holds the result."""
        from airflow_streamstate.triggers.events import read_event

        with told_to_airflow(self):
            content = read_event(event)
            return self.result_from(content.watch, content.need_result())

    def give_order(self, context: Context, hook: StreamStateHook, verb: OrderVerb, **given: Any) -> CommandView:
        """Give an order under the request id of the task, and push what is known of it; ``given``: its terms."""
        order = hook.client.order(
            verb, str(self.stream_id), reason=str(self.reason), request_id=request_id_of(context), **given
        )
        self.tell_known(context, hook, deployment_id=order.deployment_id, command_id=order.command_id)
        return order

    def end_of(self, hook: StreamStateHook, order: CommandView, *, waits: bool) -> dict[str, Any]:
        """The result of an order: its end, or with ``waits`` False that it is recorded."""
        from airflow_streamstate.controller.wait.condition import WaitCondition

        return self.wait_until_done(hook, WaitCondition.of(order)) if waits else ordered(order)

    def tell_known(self, context: Context, hook: StreamStateHook, **ids: str | None) -> None:
        """Push what is known of the stream by now: each id under its name, and the links beside the task instance.

        A try that is killed later, and a task that waits, show it already.
        """
        ti, stream_id = context["ti"], str(self.stream_id)
        for name, value in ids.items():
            if value:
                ti.xcom_push(key=name, value=value)
        self._push_links(context, hook, stream_id, {name: value for name, value in ids.items() if value})

    def tell_links(self, context: Context, hook: StreamStateHook, found: Mapping[str, Any]) -> None:
        """Push the links to what a result names, if it names any."""
        ids = {name: str(found[name]) for name in QUERY_NAMES if found.get(name)}
        if ids:
            self._push_links(context, hook, str(self.stream_id), ids)

    def _push_links(self, context: Context, hook: StreamStateHook, stream_id: str, ids: Mapping[str, str]) -> None:
        pages: Mapping[str, str] = {}
        with suppress(StreamStateError):  # the links are a help: the task itself says what is wrong
            pages = hook.client.status(stream_id, ids.get("deployment_id")).links
        links = links_of(str(self.streamstate_conn_id), stream_id, pages, ids)
        self.pushed_links = links
        for key, url in links.items():
            context["ti"].xcom_push(key=key, value=url)

    def wait_until_done(
        self,
        hook: StreamStateHook,
        watch: WaitCondition,
        on_kill: OnKill = "leave",
        *,
        timeout_seconds: float | None = None,
    ) -> dict[str, Any]:
        """Wait in the worker or in the triggerer, by default for the task's ``timeout_seconds``."""
        if timeout_seconds is None:
            timeout_seconds = as_seconds(self.timeout_seconds, "timeout_seconds")
        if not self.deferrable:
            from airflow_streamstate.controller.wait.progress import only_news

            found = hook.client.wait(
                watch,
                timeout_seconds,
                only_news(lambda text: self.log.info("Waiting: %s", text), hook.clock),
                poll_interval_seconds=self.poll_interval_seconds,
            )
            return self.result_from(watch, found.need_result())
        seen = hook.client.advance(watch)  # what is over already needs no triggerer
        if seen.outcome == "pending":
            self.defer_to_trigger(hook, watch, hook.deadline_text(timeout_seconds), on_kill)
        return self.result_from(watch, seen.need_result())

    def hook(self, context: Context | None = None) -> StreamStateHook:
        """The hook of this operator, with the task of ``context`` as the requester."""
        requested_by = "airflow" if context is None else requester_of(context)
        return StreamStateHook(str(self.streamstate_conn_id), requested_by=requested_by)
