"""What all operators share: terms as fields, request id, hook, waiting, masking, lineage and errors."""

from __future__ import annotations

import hashlib
import logging
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow.providers.common.compat.sdk import BaseOperator, conf
from airflow.sdk.log import mask_secret

from airflow_streamstate.errors import InvalidRequestError, StreamNotFoundError, StreamStateError
from airflow_streamstate.hooks import configuration
from airflow_streamstate.hooks.refusals import ChecksLiterals, told_to_airflow
from airflow_streamstate.hooks.rendered import as_seconds, is_given, launcher_choice, term_value, text_mapping, texts
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.links import LINKS, QUERY_NAMES, links_of
from airflow_streamstate.protocol.forms import selected
from airflow_streamstate.protocol.ids import means_of, requester
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.protocol.redaction import secrets_of
from airflow_streamstate.protocol.terms.declaration import Term, term, terms_of
from airflow_streamstate.protocol.terms.version import CodeTerms, HandoverTerms, LauncherChoice, Version

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context
    from airflow.providers.openlineage.extractors.base import OperatorLineage

    from airflow_streamstate.controller.observe.pending_orders import OrderVerb
    from airflow_streamstate.controller.observe.views import CommandView
    from airflow_streamstate.controller.request.requests import ChangeRequest
    from airflow_streamstate.controller.wait.condition import WaitCondition
    from airflow_streamstate.hooks.openlineage import Parent
    from airflow_streamstate.hooks.task_upgrades import OnKill


RETURN_KEY = "return_value"
"""The XCom of a task's result; pushed by name if the task fails, as a failed task returns nothing."""


def request_id_of(context: Context, purpose: str = "") -> str:
    """The request id of this task: the same for every try, and after the task was cleared (Law 2).

    A hash of dag id, run id, task id, map index and ``purpose``, which distinguishes several requests of one task.
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
        """Wait in the triggerer until that time at most; ``execute_complete`` gets ``kwargs`` with the event."""
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
    :param poll_interval_seconds: seconds between two polls while waiting; by default Airflow's option ``[streamstate]
        poll_interval_seconds``.
    """

    template_fields: Sequence[str] = ("stream_id", "streamstate_conn_id", "reason", "timeout_seconds")
    ui_color = "#e8f0e4"
    operator_extra_links = LINKS
    pushed_links: Mapping[str, str] | None = None
    """What this process has pushed for the links of the task instance; None if another one started the task."""

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
        from airflow_streamstate.triggers.streamstate import read_event

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
        """Push what is known of the stream by now: each id under its name, and the links of the task instance.

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
        with suppress(StreamStateError):  # the links are a help: the task itself reports what is wrong
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
            from airflow_streamstate.controller.wait.condition import only_news

            found = hook.client.wait(
                watch,
                timeout_seconds,
                only_news(lambda text: self.log.info("Waiting: %s", text), hook.clock),
                poll_interval_seconds=self.poll_interval_seconds,
            )
            return self.result_from(watch, found.need_result())
        seen = hook.client.advance(watch)  # what has ended already needs no triggerer
        if seen.outcome == "pending":
            self.defer_to_trigger(hook, watch, hook.deadline_text(timeout_seconds), on_kill)
        return self.result_from(watch, seen.need_result())

    def hook(self, context: Context | None = None) -> StreamStateHook:
        """The hook of this operator, with the task of ``context`` as the requester."""
        requested_by = "airflow" if context is None else requester_of(context)
        return StreamStateHook(str(self.streamstate_conn_id), requested_by=requested_by)


# Hides the secrets among an operator's fields wherever Airflow shows them.

_LISTED = ("application", "py_files", "files", "jars", "packages", "master", "undo_command", "mirrors", "out")
"""A password in a URI and a secret in a command are refused, but Airflow renders the field before that."""
_MAY_BE_SECRET = frozenset({"conf", "arguments", "environment", *_LISTED})


class MasksSecrets:
    """Mixin of operators whose fields may hold secrets; their ``__init__`` sets ``_built`` at its end.

    A field that is set after that was rendered by Airflow, which shows it from then on.
    """

    _built: bool

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        shown = self.__dict__
        if name in _MAY_BE_SECRET and shown.get("_built"):
            mask_secrets_of(shown.get("conf"), shown.get("arguments"), shown.get("environment"))
            for listed in _LISTED:
                given = shown.get(listed)
                mask_secrets_of(None, given)
                if isinstance(given, str):  # also as one word: a path, a URI
                    mask_secrets_of(None, [given])


def mask_secrets_of(conf: Any, arguments: Any, environment: Any = None) -> None:
    """Have Airflow hide the secret values among these from now on."""
    named: dict[str, str] = {}
    variables: dict[str, str] = {}
    listed: tuple[str, ...] = ()
    # A field of a different type is refused when the task runs.
    with suppress(InvalidRequestError):
        named = text_mapping(conf, "conf")
    with suppress(InvalidRequestError):
        variables = text_mapping(environment, "environment")
    with suppress(InvalidRequestError):
        listed = texts(arguments, "arguments")
    for secret in secrets_of(named, listed, variables):
        mask_secret(secret)


# The terms of an operator: its template fields, and what they give once they are rendered.
#
# Each operator writes its ``__init__`` and the ``:param:`` lines of its terms out, since an author's editor, mypy,
# the reference pages and Airflow (``default_args``, ``partial``) read source and signatures; ``.pyi`` files would be
# a second text that none of those pages and no reader of the source sees. ``python docs/refresh.py`` writes these
# lines from the declaration of the terms, between their marks, and a test fails where they differ.

Terms = TypeVar("Terms")
_RENDERED_AS_JSON = ("texts", "command", "paths", "mapping", "lists", "part")
_BY_DEFAULT = "By default "


@dataclass(frozen=True)
class _PodTemplate:
    """An option of the launcher ``kubernetes`` that has a field by itself: Airflow shows it as YAML."""

    pod_template: Mapping[str, Any] | None = term(
        None, help="for the launcher `kubernetes`: a pod as YAML or mapping, merged into the driver's"
    )


def default_of(one: Term) -> Any:
    """Its default in a signature, which nobody can change for the others."""
    return None if one.is_optional or one.kind in ("mapping", "lists", "part", "path") else one.default


def taken_terms(*several: Sequence[Term]) -> tuple[Term, ...]:
    """The terms of an operator that has terms of several classes: each name once, and only what operators have."""
    found: dict[str, Term] = {}
    for one in (one for terms in several for one in terms):
        if one.declared.in_operators is True:
            found.setdefault(one.name, one)
    return tuple(found.values())


def kept(terms: Sequence[Term]) -> tuple[Term, ...]:
    """The terms of a change: what is not given stays as it is, whatever a new version would have."""
    return tuple(map(_kept, terms))


def required(terms: Sequence[Term], name: str) -> tuple[Term, ...]:
    """The terms, of which this one has to be given."""
    return tuple(replace(_kept(one), is_required=True, is_optional=False) if one.name == name else one for one in terms)


def by_default(terms: Sequence[Term], **defaults: Any) -> tuple[Term, ...]:
    """The terms, of which these have another default: a task that is tried again does what a person is asked for."""
    return tuple(replace(one, default=defaults.get(one.name, one.default)) for one in terms)


def fields_of(taken: Sequence[Term]) -> tuple[Term, ...]:
    """The terms that are template fields. A launcher is given by its name, its options and its connection."""
    return tuple(each for one in taken for each in (_LAUNCHER if _is_launcher(one) else (one,)))


def is_removable(one: Term) -> bool:
    """Whether a stream may have it no longer: what is not given stays, and an empty value removes it."""
    return one.declared.changes == "stream" and one.is_optional


def names_of(taken: Sequence[Term]) -> tuple[str, ...]:
    """The template fields of these terms."""
    return tuple(one.name_on("operators") for one in fields_of(taken))


def renderers_of(taken: Sequence[Term]) -> dict[str, str]:
    """How Airflow shows the rendered fields that are no plain text."""
    shown = [one for one in fields_of(taken) if one.kind in _RENDERED_AS_JSON]
    return {one.name_on("operators"): "yaml" if one.of is _PodTemplate else "json" for one in shown}


def choices_of(taken: Sequence[Term]) -> dict[str, Sequence[str]]:
    """The words that a field may have."""
    return {one.name_on("operators"): one.choices for one in fields_of(taken) if one.choices}


def rendered_values(task: object, taken: Iterable[Term], *classes: type) -> dict[str, Any]:
    """What the rendered fields of a task give of the terms of these classes, by name. An empty field gives nothing.

    Raises:
        InvalidRequestError: a field cannot be parsed, or one that has to be given is empty.
    """
    wanted = {one.name for cls in classes for one in terms_of(cls)}
    found = {one.name: _rendered(one, task) for one in taken if one.name in wanted}
    found |= {one.name: one.default for one in taken if found.get(one.name, one) is None and _has_own_default(one)}
    return {name: value for name, value in found.items() if value is not None}


def rendered_terms(cls: type[Terms], task: object, taken: Sequence[Term], **fixed: Any) -> Terms:
    """The terms that the rendered fields of a task give.

    Args:
        taken: the terms that are fields of the task; the others have their defaults.
        fixed: terms that the operator decides itself.

    Raises:
        InvalidRequestError: a field cannot be parsed, a term is wrong, or contradicts another.
    """
    return cls(**{**rendered_values(task, taken, cls), **fixed})


def _rendered(one: Term, task: object) -> Any:
    """The value of a rendered field: plain rendering gives text, native rendering an object. None: not given."""
    if _is_launcher(one):
        return launcher_choice(*(getattr(task, each.name) for each in _LAUNCHER))
    field = one.name_on("operators")
    value = getattr(task, field)
    if value == "" and one.kind == "text" and is_removable(one):
        return ""
    if is_given(value):
        return term_value(one, value, field)
    if one.is_required:
        raise InvalidRequestError("this field is empty", field=field, next_step="Give it a value.")
    return None


def _has_own_default(one: Term) -> bool:
    """Whether its default is that of ``by_default``."""
    return one.default is not None and one.default != next(x for x in terms_of(one.of) if x.name == one.name).default


def _kept(one: Term) -> Term:
    sentences = one.declared.help.split(". ")
    text = ". ".join(each for each in sentences if not each.startswith(_BY_DEFAULT))
    return replace(one, default=None, is_optional=True, is_required=False, declared=replace(one.declared, help=text))


def _is_launcher(one: Term) -> bool:
    return one.kind == "part" and one.part is LauncherChoice


_NAMES_OF_A_LAUNCHER = {"name": "launcher", "options": "launcher_options", "conn_id": "launcher_conn_id"}
_LAUNCHER = (
    *(replace(one, name=_NAMES_OF_A_LAUNCHER[one.name]) for one in kept(terms_of(LauncherChoice))),
    *terms_of(_PodTemplate),
)


# Base of the operators that change what a stream runs.


class ChangingOperator(MasksSecrets, StreamStateOperator):
    """Base of ``PlanUpgradeOperator`` and ``UpgradeStreamOperator``, whose ``taken`` starts with these terms."""

    taken: ClassVar[tuple[Term, ...]] = taken_terms(
        kept(terms_of(Version, "change")),
        terms_of(HandoverTerms),
        terms_of(CodeTerms),
        terms_of(StateRewrite),
    )
    template_fields: Sequence[str] = (*StreamStateOperator.template_fields, *names_of(taken))
    template_fields_renderers: ClassVar[dict[str, str]] = renderers_of(taken)
    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = choices_of(taken)

    def change(self) -> ChangeRequest:
        """The rendered change; raises InvalidRequestError if a field is invalid."""
        from airflow_streamstate.controller.request.requests import change_request

        given = rendered_values(self, self.taken, Version, HandoverTerms, CodeTerms, StateRewrite)
        return change_request(str(self.stream_id), reason=str(self.reason), **given)


# What operators that start or end a deployment report to OpenLineage.

log = logging.getLogger(__name__)


class TellsLineage:
    """Gives the task's events of OpenLineage their datasets, and sends the deployment's own events.

    Airflow's OpenLineage provider calls the methods in a process alongside the task; without it nothing of this runs.
    What goes wrong here is logged, and changes nothing of the task.
    """

    stream_id: str
    streamstate_conn_id: str

    def get_openlineage_facets_on_start(self) -> OperatorLineage | None:
        """What the stream reads and writes now, before the task has acted; None for a new stream."""
        return self._lineage(None)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage | None:
        """What the deployment that is current now reads and writes; sends its events and its predecessor's."""
        return self._lineage(task_instance)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage | None:
        """As after success: a deployment may have started, failed, or continued."""
        return self._lineage(task_instance)

    def _lineage(self, task_instance: Any) -> OperatorLineage | None:
        from airflow.providers.openlineage.extractors.base import OperatorLineage

        from airflow_streamstate.hooks.openlineage import datasets

        stream_id = str(self.stream_id)
        client = StreamStateHook(str(self.streamstate_conn_id), requested_by="airflow").client
        try:
            deployment_id = client.deployment_current_at(stream_id, None)
            inputs, outputs = datasets(client, stream_id, deployment_id)
            if task_instance is not None:
                self._send(client, stream_id, deployment_id, task_instance)
        except StreamNotFoundError:
            return None
        except StreamStateError as error:
            log.warning("OpenLineage receives nothing of %s: %s", stream_id, error)
            return None
        return OperatorLineage(inputs=inputs, outputs=outputs)

    @staticmethod
    def _send(client: Any, stream_id: str, deployment_id: str, task_instance: Any) -> None:
        from airflow.providers.openlineage.plugins.listener import get_openlineage_listener

        from airflow_streamstate.hooks.openlineage import run_events

        spec = client.home.control(stream_id).spec(deployment_id)
        parent = _parent_of(task_instance)
        means = means_of(spec.requested_by)
        by_this_run = means.startswith(f"airflow {task_instance.dag_id}.") and means.endswith(
            f" {task_instance.run_id}"
        )
        before = spec.start.predecessor_id
        events = [] if before is None else run_events(client, stream_id, before)
        events += run_events(client, stream_id, deployment_id, parent if by_this_run else None)
        adapter = get_openlineage_listener().adapter
        for event in events:
            adapter.emit(event)


def _parent_of(task_instance: Any) -> Parent | None:
    """The DAG run of the task, under the ids that Airflow's OpenLineage provider gives it."""
    from airflow.providers.openlineage import conf
    from airflow.providers.openlineage.plugins.adapter import OpenLineageAdapter

    from airflow_streamstate.hooks.openlineage import Parent

    dag_run = getattr(task_instance, "dag_run", None) or task_instance.get_template_context()["dag_run"]
    run_id = OpenLineageAdapter.build_dag_run_id(
        dag_id=task_instance.dag_id,
        logical_date=dag_run.logical_date or dag_run.run_after,
        clear_number=getattr(dag_run, "clear_number", 0),
    )
    return Parent(conf.namespace(), task_instance.dag_id, run_id)
