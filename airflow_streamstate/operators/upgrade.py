"""``UpgradeStreamOperator``, ``RollbackStreamOperator`` and ``RescaleStreamOperator``."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_streamstate.errors import InvalidRequestError, StreamStateError
from airflow_streamstate.hooks.refusals import text_of, told_to_airflow
from airflow_streamstate.hooks.rendered import as_seconds, one_of, optional_text
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import (
    RETURN_KEY,
    ChangingOperator,
    MasksSecrets,
    StreamStateOperator,
    TellsLineage,
    choices_of,
    cleared_after,
    names_of,
    rendered_terms,
    rendered_values,
    renderers_of,
    request_id_of,
    required,
    taken_terms,
)
from airflow_streamstate.protocol.codec import format_time, parse_time
from airflow_streamstate.protocol.forms import selected
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.order import BusyTerms, RollbackTerms, UpgradeTerms
from airflow_streamstate.protocol.upgrades import AfterStop

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView
    from airflow_streamstate.controller.upgrade.upgrades import RollbackRequest, UpgradeRequest


# Base of the operators that drive an upgrade or a rollback: steps run in workers, waiting happens anywhere.

UNDER_WAY_KEY = "upgrade"
"""The XCom that names the upgrade while it is under way: ``{stream_id, upgrade_id}``."""
KILLED_SECONDS = 20.0
"""How long ``on_kill`` continues an upgrade that it has cancelled; Airflow may end it sooner."""
PROGRESS_SECONDS = 30.0


class UpgradeOperatorBase(MasksSecrets, TellsLineage, StreamStateOperator):
    """Base of ``UpgradeStreamOperator`` and ``RollbackStreamOperator``; not for use by itself.

    Every step is recorded before it acts, so another worker can continue. A try continues the upgrade of the try
    before; if that ended another way than requested, the try reports the same end, and a cleared task starts again. A
    deferred task acts only in workers; its trigger only looks. While no version may be running, the task stays in its
    worker, for a minute at most.

    :param if_busy: while another upgrade or rollback of the stream is under way: refuse fails at once; wait waits for
        its end within the timeout, records nothing until then, and then plans against what runs. Several that wait
        start in any order. (templated)

    :param timeout_seconds: how long the task drives the upgrade, including the wait for another one; then the task
        fails, the upgrade stays under way, and a retry continues it. (templated)

    An upgrade whose task is gone without notice counts as abandoned two minutes after the last sign of a worker, three
    after the last one of a triggerer, and 15 where a worker died within a step (the capture of a large state) of an
    upgrade that would be abandoned. Where a user ends the task, that is so at once. If the upgrade has not touched the
    stream by then, the next command or a watcher ends it; else a watcher finishes it, or rolls it back. A retry
    continues with what it finds, and starts again if that was abandoned.
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
        """Digest of the whole request, as one request id identifies one request."""

    @abstractmethod
    def begin(self, hook: StreamStateHook, request_id: str) -> UpgradeView:
        """Record the request with a lease of ``LEASE_SECONDS``; the same request id finds it again."""

    def _waits_if_busy(self) -> bool:
        return rendered_terms(BusyTerms, self, UpgradeOperatorBase.taken).if_busy == "wait"

    def after_stop(self) -> AfterStop:
        """What happens to the upgrade when the task is ended after a version was ordered to stop."""
        return "finish"

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        timeout_seconds = as_seconds(self.timeout_seconds, "timeout_seconds")
        self.after_stop()  # an invalid field is refused before anything is recorded
        self._waits_if_busy()
        deadline_at = hook.clock.now() + timedelta(seconds=timeout_seconds)
        return self._drive(context, hook, self._begun(context, hook, deadline_at), deadline_at)

    def execute_complete(self, context: Context, event: Any = None, deadline_at: str | None = None) -> dict[str, Any]:
        """Continue in a worker: a step is due, or the worker has to look itself."""
        from airflow_streamstate.triggers.streamstate import read_event

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
        from airflow_streamstate.controller.stream_guards import BusyError

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

        An end other than the requested one stays in effect until the task is cleared: Airflow may run a try after one
        that failed for good, when it takes the end of a worker that deferred the task for the end of the task.
        """
        from airflow_streamstate.hooks.task_upgrades import stands_for_nothing, upgrade_of

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
        from airflow_streamstate.hooks.task_upgrades import stands_for_nothing, what_remains

        while True:
            self._driven = hook, view
            context["ti"].xcom_push(key=UNDER_WAY_KEY, value=selected(view, "stream_id upgrade_id"))
            self.tell_known(context, hook, upgrade_id=view.upgrade_id, deployment_id=_runs_in(view))
            view = self._brought_to_its_end(hook, view, deadline_at, told)
            if self._is_ended or not stands_for_nothing(hook.client, view):
                return self._judged(context, view)
            self.log.info(
                "%s: the try before was ended, and this one starts again", what_remains(view, self.after_stop())
            )
            view, told = self._begun(context, hook, deadline_at), 0

    def _brought_to_its_end(
        self, hook: StreamStateHook, view: UpgradeView, deadline_at: datetime, told: int
    ) -> UpgradeView:
        from airflow_streamstate.hooks.task_upgrades import HOLD_SECONDS, advance_upgrade

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
        from airflow_streamstate.hooks.task_upgrades import WAKING_SECONDS, relook_seconds

        watch = WaitCondition("upgrade", view.stream_id, deployment_id=view.upgrade_id)
        now = hook.clock.now()
        if now >= deadline_at:
            raise hook.client.out_of_time(watch, format_time(deadline_at))
        seconds = relook_seconds(view, now)
        hook.client.upgrades.hold(view.stream_id, view.upgrade_id, seconds + WAKING_SECONDS)
        looks_until = format_time(min(deadline_at, now + timedelta(seconds=seconds)))
        self.defer_to_trigger(hook, watch, looks_until, self.after_stop(), deadline_at=format_time(deadline_at))

    def _judged(self, context: Context, view: UpgradeView) -> dict[str, Any]:
        from airflow_streamstate.controller.upgrade.upgrade_views import end_lines

        for line in end_lines(view):
            self.log.info("%s", line)
        for warning in view.state.warnings:
            self.log.warning("The new version is kept: %s", warning)
        error, hook = view.as_error(), self._need_driven()[0]
        self.tell_known(context, hook, upgrade_id=view.upgrade_id, deployment_id=_runs_in(view))
        if error is None:
            return view.to_json()
        context["ti"].xcom_push(key=RETURN_KEY, value=view.to_json())
        raise AirflowFailException(text_of(error)) from error  # it has ended: no retry makes it another end

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
        from airflow_streamstate.hooks.task_upgrades import give_up, what_remains

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


AFTER_STOP: tuple[AfterStop, ...] = ("finish", "rollback")


class UpgradeStreamOperator(UpgradeOperatorBase, ChangingOperator):
    """Upgrade a stream to another version: rehearse it, stop the old one, start the new one, wait until it is healthy.

    The new version is rehearsed on a fork of the real state while the old one runs; if it cannot work, the task fails
    and nothing was touched. If the new version fails or makes no progress, the old one continues without a lost or
    doubled row, and the task fails. A retry tries neither again. A version that is only slower is kept: the log and
    ``warnings`` have both rates. Omitted parameters stay as they are, ``conf``, ``environment`` and
    ``launcher_options`` name by name; only the label of a version is that of its script. Without any the upgrade is a
    restart.

    Idempotent: a retry, or a cleared task, continues the upgrade that it started. If that was refused or abandoned, a
    cleared task starts again.

    Returns ``{upgrade_id, stream_id, phase, outcome, mode, old_deployment_id, new_deployment_id,
    returned_deployment_id, way, bad_batches, begun_batches, downtime_seconds, downtime_by_query, downtimes,
    not_running_seconds, verdict, differences, audit_ok, cancelled_by, reason, driver, warnings, waits_for}``; a failed
    task has the same XCom. The XCom ``upgrade``, ``{stream_id, upgrade_id}``, is pushed at the start.

    :param application: the PySpark script, unmodified. (templated)
    :param arguments: the script's arguments. An argument, or its value after ``--name=``, may be a reference to a
        secret: ``env://NAME``, ``secret://airflow-connection/ID#password`` (or login, host, port, schema, extra.KEY),
        ``secret://airflow-variable/KEY``. It is looked up at each launch, and only the reference is recorded.
        (templated)
    :param master: Spark's master. (templated)
    :param conf: Spark configuration. A value may be a reference to a secret. (templated)
    :param environment: variables for the driver's environment; a value may be a reference to a secret. (templated)
    :param py_files: Python files, folders, zips, eggs and wheels for the script; pinned. (templated)
    :param files: files next to the script; pinned. (templated)
    :param jars: local paths of jars, pinned; or URIs, as they are. (templated)
    :param packages: Maven packages. (templated)
    :param modules: patterns below the script's folder, as ``lib/*.py``: what is pinned of it, in place of what the
        script imports from there. (templated)
    :param working_folder: the absolute folder that drivers run in. (templated)
    :param spark_conn_id: the Airflow connection of type spark through which the driver is started. (templated)
    :param launcher: what starts the drivers: local, on the machine of the caller; kubernetes, yarn, ssh,
        emr-serverless, emr-eks, or one of another package. (templated)
    :param launcher_options: the launcher's options by name, as its how-to page lists them; none of them is a secret.
        (templated)
    :param launcher_conn_id: the Airflow connection by which it reaches its cluster; yarn takes none. (templated)
    :param pod_template: for the launcher ``kubernetes``: a pod as YAML or mapping, merged into the driver's.
        (templated)
    :param version_label: your own name of this version. (templated)
    :param on_query_failure: what a failed query does to the others: fail stops them and ends the deployment, degrade
        lets them run on, script leaves it to the script. (templated)
    :param allow_state_loss: drop state that the drain could not flush. (templated)
    :param allow_new_queries: queries that may start empty although the snapshot does not contain them. (templated)
    :param rename_queries: queries that the script has renamed: by their names in the snapshot, their names now; their
        state is kept. (templated)
    :param move_sources: folders of file sources that have moved: by the folder at the snapshot, the folder below which
        the same files are now, under the same names. The script reads the new folder; what was read is not read again.
        (templated)
    :param accept_lost_input: queries that may continue although input after their offsets is lost at the source.
        (templated)
    :param allow_literal_secrets: accept literal values under secret-like names, and record them in the home. By default
        they are refused. (templated)
    :param spark: the Spark that runs the driver on this machine: an installation, or a virtual environment that has
        pyspark, whose Python then runs the driver, too. Recorded as variables of the environment, SPARK_HOME and those
        of the Python. (templated)
    :param partitions: write the state again in this number of partitions of each stateful operator: Spark keeps the
        number that a checkpoint started with. ``streamstate rescale --suggest`` suggests one. (templated)
    :param state_store: write the state again into this state store: rocksdb. (templated)
    :param checkpoint_format: write the state again in Spark's state checkpoint format 1 or 2. (templated)
    :param migration: a Python file with functions from old to new state (airflow_streamstate.migration). (templated)
    :param auto_migrate: migrate state without a function if that is safe: an aggregate added, which starts with no
        rows, or removed, others in another order, a wider type, a field added to a state variable. (templated)
    :param rewriter_spark: the Spark 4.2 or newer that rewrites the state of a driver on an older Spark: an
        installation, or a virtual environment with pyspark, by its path where the driver runs. ``streamstate home
        doctor --prepare-rewriter`` makes one. (templated)
    :param mode: how the state is handed over: auto restores it if it fits, else drains with ``allow_drain``; only fresh
        starts with empty state. (templated)
    :param allow_drain: drain if the state does not fit: open windows are written early. (templated)
    :param needs_approval: wait until a person approves the plan. (templated)
    :param approved_by_another: as ``needs_approval``, by another person. (templated)
    :param roll_back_if_slower: abandon a version that falls behind its input and is slower than the version before by
        this factor: 2 means that it reads half the rows per second. By default it is kept, with a warning that has both
        rates. (templated)
    :param warm_return: also keep a driver of the current version ready, from before its stop until the new version is
        healthy: one that fails before its first commit is replaced at once. Needs room for three drivers for a moment,
        then for two. (templated)
    :param accept_hazards: accept a ``hazardous`` plan; a difference that needs a drain still needs it. (templated)
    :param rehearse: try each query on a fork of its state, without a sink: with an empty batch, then with its newest
        batches; else only compare the plans. The script runs once in both, with ``STREAMSTATE_REHEARSAL=1`` in its
        environment. (templated)
    :param rehearse_batches: this many of the newest batches of each query run again, with their rows and without a
        sink. (templated)
    :param rehearse_rows: about this many rows of these batches, at most. (templated)
    :param warm: launch the next driver while the other runs, also on a rollback: needs room for two. (templated)
    :param rehearsal_deadline_seconds: seconds until the rehearsal must have ended. (templated)
    :param healthy_batches: batches that each query must commit past the handover. Of a query with the trigger
        availableNow or once the end of its run counts instead. (templated)
    :param healthy_deadline_seconds: seconds from its launch until it must be healthy. After that it is abandoned.
        (templated)
    :param caught_up: healthy only when no input is left to read, or no more than the version before had left.
        (templated)
    :param undo_command: the command that undoes what a foreachBatch wrote, if there is no other rollback. (templated)

    :param rehearsal_id: the approved rehearsal of ``PlanUpgradeOperator``; refused if the change, or what runs, is
        another one by now. (templated)
    :param on_kill_action: what happens to the upgrade when the task is killed, marked or cleared after the old version
        was ordered to stop: ``finish`` or ``rollback``. Before that nothing has happened. (templated)

    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(ChangingOperator.taken, terms_of(UpgradeTerms))
    template_fields: Sequence[str] = (
        *UpgradeOperatorBase.template_fields,
        *names_of(taken),
        "rehearsal_id",
        "on_kill_action",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = renderers_of(taken)
    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = {
        **UpgradeOperatorBase.literal_choices,
        **choices_of(taken),
        "on_kill_action": AFTER_STOP,
    }

    def __init__(
        self,
        *,
        # terms
        application: str | Path | None = None,
        arguments: Sequence[str] | str | None = None,
        master: str | None = None,
        conf: Mapping[str, str] | str | None = None,
        environment: Mapping[str, str] | str | None = None,
        py_files: Sequence[str] | str | None = None,
        files: Sequence[str] | str | None = None,
        jars: Sequence[str] | str | None = None,
        packages: Sequence[str] | str | None = None,
        modules: Sequence[str] | str | None = None,
        working_folder: str | Path | None = None,
        spark_conn_id: str | None = None,
        launcher: str | None = None,
        launcher_options: Mapping[str, Any] | str | None = None,
        launcher_conn_id: str | None = None,
        pod_template: Mapping[str, Any] | str | None = None,
        version_label: str | None = None,
        on_query_failure: str | None = None,
        allow_state_loss: bool | str = False,
        allow_new_queries: Sequence[str] | str | None = (),
        rename_queries: Mapping[str, str] | str | None = None,
        move_sources: Mapping[str, str] | str | None = None,
        accept_lost_input: Sequence[str] | str | None = (),
        allow_literal_secrets: bool | str = False,
        spark: str | None = "",
        partitions: int | str | None = None,
        state_store: str | None = None,
        checkpoint_format: int | str | None = None,
        migration: str | Path | None = None,
        auto_migrate: bool | str = False,
        rewriter_spark: str | None = "",
        mode: str = "auto",
        allow_drain: bool | str = False,
        needs_approval: bool | str = False,
        approved_by_another: bool | str = False,
        roll_back_if_slower: float | str | None = None,
        warm_return: bool | str = False,
        accept_hazards: bool | str = False,
        rehearse: bool | str = True,
        rehearse_batches: int | str = 1,
        rehearse_rows: int | str = 100_000,
        warm: bool | str = True,
        rehearsal_deadline_seconds: float | str = 300.0,
        healthy_batches: int | str = 3,
        healthy_deadline_seconds: float | str = 300.0,
        caught_up: bool | str = False,
        undo_command: Sequence[str] | str | None = (),
        # end of terms
        rehearsal_id: str | None = None,
        on_kill_action: str = "finish",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # terms
        self.application = str(application) if isinstance(application, Path) else application
        self.arguments = arguments
        self.master = master
        self.conf = conf
        self.environment = environment
        self.py_files = py_files
        self.files = files
        self.jars = jars
        self.packages = packages
        self.modules = modules
        self.working_folder = str(working_folder) if isinstance(working_folder, Path) else working_folder
        self.spark_conn_id = spark_conn_id
        self.launcher = launcher
        self.launcher_options = launcher_options
        self.launcher_conn_id = launcher_conn_id
        self.pod_template = pod_template
        self.version_label = version_label
        self.on_query_failure = on_query_failure
        self.allow_state_loss = allow_state_loss
        self.allow_new_queries = allow_new_queries
        self.rename_queries = rename_queries
        self.move_sources = move_sources
        self.accept_lost_input = accept_lost_input
        self.allow_literal_secrets = allow_literal_secrets
        self.spark = spark
        self.partitions = partitions
        self.state_store = state_store
        self.checkpoint_format = checkpoint_format
        self.migration = str(migration) if isinstance(migration, Path) else migration
        self.auto_migrate = auto_migrate
        self.rewriter_spark = rewriter_spark
        self.mode = mode
        self.allow_drain = allow_drain
        self.needs_approval = needs_approval
        self.approved_by_another = approved_by_another
        self.roll_back_if_slower = roll_back_if_slower
        self.warm_return = warm_return
        self.accept_hazards = accept_hazards
        self.rehearse = rehearse
        self.rehearse_batches = rehearse_batches
        self.rehearse_rows = rehearse_rows
        self.warm = warm
        self.rehearsal_deadline_seconds = rehearsal_deadline_seconds
        self.healthy_batches = healthy_batches
        self.healthy_deadline_seconds = healthy_deadline_seconds
        self.caught_up = caught_up
        self.undo_command = undo_command
        # end of terms
        self.rehearsal_id = rehearsal_id
        self.on_kill_action = on_kill_action
        self._built = True

    def request_digest(self) -> str:
        return self._request().digest

    def begin(self, hook: StreamStateHook, request_id: str) -> UpgradeView:
        from airflow_streamstate.control.upgrade_journal import LEASE_SECONDS
        from airflow_streamstate.hooks.task_upgrades import refuse_unless_planned, upgrade_of

        request, rehearsal_id = self._request(), optional_text(self.rehearsal_id)
        if rehearsal_id is not None and upgrade_of(hook.client, request.stream_id, request_id) is None:
            refuse_unless_planned(hook.client, self.change(), rehearsal_id)
        return hook.client.upgrades.begin(
            request, request_id, lease_seconds=LEASE_SECONDS, if_abandoned=self.after_stop()
        )

    def after_stop(self) -> AfterStop:
        return one_of(self.on_kill_action, AFTER_STOP, "on_kill_action")

    def _request(self) -> UpgradeRequest:
        from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest

        return UpgradeRequest(self.change(), rendered_terms(UpgradeTerms, self, self.taken))


# ``RollbackStreamOperator``: go back to the version before, in the first exact way.


class RollbackStreamOperator(UpgradeOperatorBase):
    """Run the version before the current deployment again, without a lost or doubled row.

    If the current version has committed nothing, the version before continues from the handover. Otherwise its code is
    rehearsed on the state that the current version left, and continues from the last commit; the result names the
    batches that the current version wrote. If neither is possible, the sinks are undone to the handover. If no way is
    exact, the task fails without a retry, and nothing is touched.

    Idempotent, with the result of ``UpgradeStreamOperator``. If the task is killed, marked or cleared before the
    current version is ordered to stop, nothing happens; after that the rollback is finished by the task as far as
    Airflow lets it, by its next try, or by ``streamstate continue STREAM``.

    :param strategy: how it goes back: forward, the old code continues from the last commit; undo, it continues from the
        handover, with the sinks undone. By default the first of them that is exact. (templated)
    :param snapshot_id: go back to this older snapshot and its code, with the sinks undone to it; for a lost checkpoint,
        or for more than one wrong version. (templated)
    :param max_snapshot_age_seconds: refuse that snapshot if it is older. (templated)
    :param accept_duplicates: accept doubled rows on sinks that cannot be undone. (templated)
    :param accept_lost_input: queries that may continue although input after their offsets is lost at the source.
        (templated)
    :param warm: launch the next driver while the other runs, also on a rollback: needs room for two. (templated)
    :param rehearsal_deadline_seconds: seconds until the rehearsal must have ended. (templated)
    :param healthy_batches: batches that each query must commit past the handover. Of a query with the trigger
        availableNow or once the end of its run counts instead. (templated)
    :param healthy_deadline_seconds: seconds from its launch until it must be healthy. After that it is abandoned.
        (templated)
    :param caught_up: healthy only when no input is left to read, or no more than the version before had left.
        (templated)
    :param undo_command: the command that undoes what a foreachBatch wrote, if there is no other rollback. (templated)
    """

    taken: ClassVar[tuple[Term, ...]] = terms_of(RollbackTerms)
    template_fields: Sequence[str] = (*UpgradeOperatorBase.template_fields, *names_of(taken))
    template_fields_renderers: ClassVar[dict[str, str]] = renderers_of(taken)
    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = {
        **UpgradeOperatorBase.literal_choices,
        **choices_of(taken),
    }

    def __init__(
        self,
        *,
        # terms
        strategy: str | None = None,
        snapshot_id: str | None = None,
        max_snapshot_age_seconds: float | str | None = None,
        accept_duplicates: bool | str = False,
        accept_lost_input: Sequence[str] | str | None = (),
        warm: bool | str = True,
        rehearsal_deadline_seconds: float | str = 300.0,
        healthy_batches: int | str = 3,
        healthy_deadline_seconds: float | str = 300.0,
        caught_up: bool | str = False,
        undo_command: Sequence[str] | str | None = (),
        # end of terms
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # terms
        self.strategy = strategy
        self.snapshot_id = snapshot_id
        self.max_snapshot_age_seconds = max_snapshot_age_seconds
        self.accept_duplicates = accept_duplicates
        self.accept_lost_input = accept_lost_input
        self.warm = warm
        self.rehearsal_deadline_seconds = rehearsal_deadline_seconds
        self.healthy_batches = healthy_batches
        self.healthy_deadline_seconds = healthy_deadline_seconds
        self.caught_up = caught_up
        self.undo_command = undo_command
        # end of terms
        self._built = True

    def request_digest(self) -> str:
        return self._request().digest

    def begin(self, hook: StreamStateHook, request_id: str) -> UpgradeView:
        from airflow_streamstate.control.upgrade_journal import LEASE_SECONDS

        return hook.client.upgrades.begin_rollback(self._request(), request_id, lease_seconds=LEASE_SECONDS)

    def _request(self) -> RollbackRequest:
        from airflow_streamstate.controller.upgrade.upgrades import RollbackRequest

        terms = rendered_terms(RollbackTerms, self, self.taken)
        return RollbackRequest(str(self.stream_id), terms, str(self.reason))


# ``RescaleStreamOperator``: give the state of a stream another number of partitions.


class RescaleStreamOperator(UpgradeOperatorBase):
    """Rewrite the state of a stream in another number of partitions, without a lost or doubled row.

    The state is rewritten on a fork, compared row by row with the old one, and rehearsed with real rows while the
    stream runs; if that cannot work, the task fails and nothing was touched. Then the stream is stopped, and its state
    rewritten as it is by then. Needs Spark 4.2 or newer. Idempotent, with the result of ``UpgradeStreamOperator``;
    ``RollbackStreamOperator`` brings the old number back.

    :param partitions: write the state again in this number of partitions of each stateful operator: Spark keeps the
        number that a checkpoint started with. ``streamstate rescale --suggest`` suggests one. (templated)
    :param state_store: write the state again into this state store: rocksdb. (templated)
    :param rewriter_spark: the Spark 4.2 or newer that rewrites the state of a driver on an older Spark: an
        installation, or a virtual environment with pyspark, by its path where the driver runs. ``streamstate home
        doctor --prepare-rewriter`` makes one. (templated)
    :param roll_back_if_slower: abandon a version that falls behind its input and is slower than the version before by
        this factor: 2 means that it reads half the rows per second. By default it is kept, with a warning that has both
        rates. (templated)
    :param warm_return: also keep a driver of the current version ready, from before its stop until the new version is
        healthy: one that fails before its first commit is replaced at once. Needs room for three drivers for a moment,
        then for two. (templated)
    :param rehearse_batches: this many of the newest batches of each query run again, with their rows and without a
        sink. (templated)
    :param rehearse_rows: about this many rows of these batches, at most. (templated)
    :param warm: launch the next driver while the other runs, also on a rollback: needs room for two. (templated)
    :param rehearsal_deadline_seconds: seconds until the rehearsal must have ended. (templated)
    :param healthy_batches: batches that each query must commit past the handover. Of a query with the trigger
        availableNow or once the end of its run counts instead. (templated)
    :param healthy_deadline_seconds: seconds from its launch until it must be healthy. After that it is abandoned.
        (templated)
    :param caught_up: healthy only when no input is left to read, or no more than the version before had left.
        (templated)
    :param undo_command: the command that undoes what a foreachBatch wrote, if there is no other rollback. (templated)
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(
        required(terms_of(StateRewrite, "rescale"), "partitions"), terms_of(UpgradeTerms, "rescale")
    )
    template_fields: Sequence[str] = (
        *UpgradeOperatorBase.template_fields,
        *names_of(taken),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = renderers_of(taken)
    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = {
        **UpgradeOperatorBase.literal_choices,
        **choices_of(taken),
    }

    def __init__(
        self,
        *,
        # terms
        partitions: int | str,
        state_store: str | None = None,
        rewriter_spark: str | None = "",
        roll_back_if_slower: float | str | None = None,
        warm_return: bool | str = False,
        rehearse_batches: int | str = 1,
        rehearse_rows: int | str = 100_000,
        warm: bool | str = True,
        rehearsal_deadline_seconds: float | str = 300.0,
        healthy_batches: int | str = 3,
        healthy_deadline_seconds: float | str = 300.0,
        caught_up: bool | str = False,
        undo_command: Sequence[str] | str | None = (),
        # end of terms
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # terms
        self.partitions = partitions
        self.state_store = state_store
        self.rewriter_spark = rewriter_spark
        self.roll_back_if_slower = roll_back_if_slower
        self.warm_return = warm_return
        self.rehearse_batches = rehearse_batches
        self.rehearse_rows = rehearse_rows
        self.warm = warm
        self.rehearsal_deadline_seconds = rehearsal_deadline_seconds
        self.healthy_batches = healthy_batches
        self.healthy_deadline_seconds = healthy_deadline_seconds
        self.caught_up = caught_up
        self.undo_command = undo_command
        # end of terms
        self._built = True

    def request_digest(self) -> str:
        return self._request().digest

    def begin(self, hook: StreamStateHook, request_id: str) -> UpgradeView:
        from airflow_streamstate.control.upgrade_journal import LEASE_SECONDS

        return hook.client.upgrades.begin(self._request(), request_id, lease_seconds=LEASE_SECONDS)

    def _request(self) -> UpgradeRequest:
        from airflow_streamstate.controller.request.requests import change_request
        from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest

        rewrite = rendered_values(self, self.taken, StateRewrite)
        change = change_request(str(self.stream_id), reason=str(self.reason), **rewrite)
        return UpgradeRequest(change, rendered_terms(UpgradeTerms, self, self.taken, mode="restore"))
