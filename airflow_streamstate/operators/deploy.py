"""``DeployStreamOperator`` and ``ResumeStreamOperator``: the operators that start a driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from airflow_streamstate.errors import StreamNotFoundError
from airflow_streamstate.hooks.refusals import told_to_airflow
from airflow_streamstate.hooks.rendered import one_of, optional_text
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.hooks.task_upgrades import ON_KILL_ACTIONS
from airflow_streamstate.operators.base import (
    StreamStateOperator,
    TellsLineage,
    choices_of,
    names_of,
    rendered_terms,
    rendered_values,
    renderers_of,
    request_id_of,
    taken_terms,
)
from airflow_streamstate.operators.upgrade import UpgradeOperatorBase
from airflow_streamstate.protocol.settings import AgentSettings, default_settings
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.order import UpgradeTerms
from airflow_streamstate.protocol.terms.version import CodeTerms, StartTerms, StreamTerms, Version

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_streamstate.controller.observe.views import DeploymentView, StreamStatus
    from airflow_streamstate.controller.request.requests import DeployRequest
    from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView
    from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest
    from airflow_streamstate.controller.wait.condition import WaitCondition


# Base of the operators that start a driver: what they wait for, and what happens when Airflow ends them.

WaitUntil = Literal["healthy", "caught_up", "finished", "none"]
WAIT_UNTIL: tuple[WaitUntil, ...] = ("healthy", "caught_up", "finished", "none")


def launched(found: Mapping[str, Any]) -> dict[str, Any]:
    """The result of an operator that starts a driver."""
    return {name: found.get(name) for name in ("stream_id", "deployment_id", "attempt", "state", "start")}


class LaunchingOperator(TellsLineage, StreamStateOperator):
    """Base of ``DeployStreamOperator``, which documents its parameters, and ``ResumeStreamOperator``."""

    template_fields: Sequence[str] = (*StreamStateOperator.template_fields, "wait_until", "if_stopped")

    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = {
        "wait_until": WAIT_UNTIL,
        "on_kill_action": ON_KILL_ACTIONS,
    }

    def __init__(
        self,
        *,
        wait_until: str = "healthy",
        if_stopped: str = "fail",
        on_kill_action: str = "leave",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.wait_until = wait_until
        self.if_stopped = if_stopped
        self.on_kill_action = on_kill_action
        self._launched: tuple[str, str] | None = None

    @property
    def until_finished(self) -> bool:
        """Whether a retry launches the next attempt of a failed run, whatever it had committed."""
        return one_of(self.wait_until, WAIT_UNTIL, "wait_until") == "finished"

    def wait_for_launched(self, context: Context, hook: StreamStateHook, view: DeploymentView) -> dict[str, Any]:
        """Wait for the launched deployment as ``wait_until`` asks."""
        found = view.to_json()
        self.tell_known(context, hook, deployment_id=view.deployment_id, snapshot_id=view.start.snapshot_id)
        return self.wait_for(hook, view.deployment_id, found)

    def wait_for(self, hook: StreamStateHook, deployment_id: str, found: Mapping[str, Any]) -> dict[str, Any]:
        """Wait for a deployment as ``wait_until`` asks; ``found`` is what is known of it by now."""
        from airflow_streamstate.controller.wait.condition import IF_STOPPED, WaitCondition

        wanted = one_of(self.wait_until, WAIT_UNTIL, "wait_until")
        if_stopped = one_of(self.if_stopped, IF_STOPPED, "if_stopped")
        action = one_of(self.on_kill_action, ON_KILL_ACTIONS, "on_kill_action")
        if wanted == "none":
            return launched(found)
        stream_id = str(self.stream_id)
        self._launched = (stream_id, deployment_id)
        watch = WaitCondition(wanted, stream_id, deployment_id=deployment_id, if_stopped=if_stopped)
        return self.wait_until_done(hook, watch, action)

    def result_from(self, watch: WaitCondition, observed: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        return launched(observed)

    def on_kill(self) -> None:
        """Airflow ends the task in its worker. For a deferred task it calls ``StreamStateTrigger.on_kill``."""
        from airflow_streamstate.hooks.task_upgrades import end_as_asked

        if self._launched is not None:
            end_as_asked(self.hook().client, self.on_kill_action, *self._launched)


IfRunning = Literal["fail", "ensure", "upgrade"]
UPGRADED_KEY = "upgrade_result"
"""The XCom of an upgrade that ``if_running`` started, as ``UpgradeStreamOperator`` returns it."""
IF_RUNNING: tuple[IfRunning, ...] = get_args(IfRunning)


class DeployStreamOperator(UpgradeOperatorBase, LaunchingOperator):
    """Deploy a script as the next version of a stream, from the last snapshot of the version before.

    Idempotent: a retry, or a cleared task, finds the deployment that it started. If that deployment failed before its
    first commit, or with ``wait_until="finished"`` at any time, the retry starts its next attempt; if a newer
    deployment is current, the task fails with a conflict that names it. A task that is cleared after a change of the
    script, its arguments or its configuration deploys again.

    Returns ``{stream_id, deployment_id, attempt, state, start: {mode, snapshot_id}}``, whether it deployed, found this
    version running, or upgraded the stream to it (``if_running``).

    ``owner`` is the owner of the task; that of the stream is ``stream_owner``. Rendered fields hide secret values.

    :param if_running: what the task does when the stream runs: ``fail``; ``ensure``: succeed if it runs this version,
        else upgrade it to this version; ``upgrade``: upgrade it in any case, which restarts the same version. An
        upgrade rehearses, hands over, and goes back if the new version fails, as ``UpgradeStreamOperator`` does, on
        the same terms. A stream that does not run is deployed. (templated)

    :param wait_until: ``healthy``: each query has committed a batch, or found no input; ``caught_up``: also no input is
        left to read; ``finished``: the stream has come to its end, since its triggers end each run, or its sources
        report that nothing follows; ``none``: return when the driver is launched. (templated)
    :param if_stopped: for ``wait_until="finished"``, where somebody stops, drains, kills or replaces the run before
        that: ``fail`` the task, without a retry, or ``wait`` for the end of what continues it: a resume, or another
        version. (templated)
    :param on_kill_action: what happens to the deployment when the waiting task is killed or marked: ``leave`` it,
        ``stop`` it with its state, ``drain`` it, or ``kill`` its driver.

    :param application: the PySpark script, unmodified. (templated)
    :param arguments: the script's arguments. An argument, or its value after ``--name=``, may be a reference to a
        secret: ``env://NAME``, ``secret://airflow-connection/ID#password`` (or login, host, port, schema, extra.KEY),
        ``secret://airflow-variable/KEY``. It is looked up at each launch, and only the reference is recorded.
        (templated)
    :param master: Spark's master. By default that of the Spark connection or of the launcher, else local[*].
        (templated)
    :param conf: Spark configuration. A value may be a reference to a secret. (templated)
    :param environment: variables for the driver's environment; a value may be a reference to a secret. (templated)
    :param py_files: Python files, folders, zips, eggs and wheels for the script; pinned. (templated)
    :param files: files next to the script; pinned. (templated)
    :param jars: local paths of jars, pinned; or URIs, as they are. (templated)
    :param packages: Maven packages. (templated)
    :param modules: patterns below the script's folder, as ``lib/*.py``: what is pinned of it, in place of what the
        script imports from there. (templated)
    :param working_folder: the absolute folder that drivers run in. By default that of the version before; for a new
        stream the current one. (templated)
    :param spark_conn_id: the Airflow connection of type spark through which the driver is started. (templated)
    :param launcher: what starts the drivers: local, on the machine of the caller; kubernetes, yarn, ssh,
        emr-serverless, emr-eks, or one of another package. (templated)
    :param launcher_options: the launcher's options by name, as its how-to page lists them; none of them is a secret.
        (templated)
    :param launcher_conn_id: the Airflow connection by which it reaches its cluster; yarn takes none. (templated)
    :param pod_template: for the launcher ``kubernetes``: a pod as YAML or mapping, merged into the driver's.
        (templated)
    :param attaches: the script calls ``attach()`` itself, and is submitted as it is. (templated)
    :param version_label: your own name of this version. (templated)
    :param on_query_failure: what a failed query does to the others: fail stops them and ends the deployment, degrade
        lets them run on, script leaves it to the script. (templated)
    :param mirrors: URIs of places that its snapshots are copied to. (templated)
    :param snapshots: where its snapshots are kept, instead of next to its checkpoints; none: no snapshot is taken while
        it runs. (templated)
    :param settings: settings of the agent in the driver. By default a deploy has those of the home, and an upgrade
        those of the version before. An ``AgentSettings``, or values by name, in which what is not given has its
        default: ``command_poll_seconds``, ``heartbeat_seconds``, ``lost_after_seconds``, ``exit_grace_seconds``,
        ``snapshot_ttl_seconds``, ``snapshot_request_timeout_seconds``, ``clock_skew_seconds``,
        ``snapshot_every_seconds``, ``fetch_batch_bytes``, ``fetch_timeout_seconds``, ``keep_running``,
        ``commit_offsets_to_group``. (templated)
    :param start: start with the state of the last snapshot (restore), with its offsets alone (seed), or empty (fresh).
        By default the last snapshot decides between the first two. (templated)
    :param snapshot_id: check that it starts from this snapshot. (templated)
    :param max_snapshot_age_seconds: refuse to start from an older snapshot. (templated)
    :param offsets: with the start mode seed: start at these offsets, by query, one text per source as Spark writes it,
        in the order that ``snapshot list --json`` shows. (templated)
    :param begins_at: with the start mode seed: start with the input of this time. (templated)
    :param accept_repeated_input: queries that may read input a second time. (templated)
    :param assume_dead: continue although the launcher does not know whether the old driver is dead. (templated)
    :param revive: deploy although the stream was retired. (templated)
    :param accept_hazards: accept a ``hazardous`` plan; a difference that needs a drain still needs it. (templated)
    :param allow_state_loss: drop state that the drain could not flush. (templated)
    :param allow_new_queries: queries that may start empty although the snapshot does not contain them. (templated)
    :param rename_queries: queries that the script has renamed: by their names in the snapshot, their names now; their
        state is kept. (templated)
    :param move_sources: folders of file sources that have moved: by the folder at the snapshot, the folder below which
        the same files are now, under the same names. The script reads the new folder; what was read is not read again.
        (templated)
    :param accept_lost_input: queries that may continue although input after their offsets is lost at the source.
        (templated)
    :param restart: what watchers do when a driver of the stream fails. Values by name: ``on_failure`` (restart, alert
        or nothing), ``initial_backoff_seconds``, ``backoff_factor``, ``max_backoff_seconds``, ``max_restarts``,
        ``restart_window_seconds``, ``healthy_for_seconds``, ``restore_lost_checkpoint``, ``hung_after_seconds``. What
        is not given stays as the stream has it. (templated)
    :param alerts: when people are notified about the stream. Values by name: ``driver_silent_seconds``,
        ``no_commit_seconds``, ``lag_over``, ``lag_growing_seconds``, ``watermark_behind_seconds``, ``state_rows_over``,
        ``state_memory_bytes_over``, ``state_growing_seconds``, ``snapshot_age_seconds``, ``off``. What is not given
        stays as the stream has it. (templated)
    :param stream_owner: a person or a team; alerts, ``streamstate status`` and the page name it. By default the stream
        keeps its own; ``""`` removes it. (templated)
    :param labels: all labels of the stream by name, for --canary, ``streamstate list --label``, the page and metrics.
        By default the stream keeps its own; ``{}`` removes it. (templated)
    :param retention: which snapshots of the stream stay when it is pruned, by watchers too. Values by name: ``keep``,
        ``older_than_seconds``, ``at_mirrors``. By default the stream keeps its own; ``{}`` removes it. (templated)
    :param allow_literal_secrets: accept literal values under secret-like names, and record them in the home. By default
        they are refused. (templated)
    :param spark: the Spark that runs the driver on this machine: an installation, or a virtual environment that has
        pyspark, whose Python then runs the driver, too. Recorded as variables of the environment, SPARK_HOME and those
        of the Python. (templated)
    :param allow_drain: drain if the state does not fit: open windows are written early. (templated)
    :param roll_back_if_slower: abandon a version that falls behind its input and is slower than the version before by
        this factor: 2 means that it reads half the rows per second. By default it is kept, with a warning that has both
        rates. (templated)
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
        terms_of(Version),
        terms_of(StartTerms),
        terms_of(StreamTerms),
        terms_of(CodeTerms),
        terms_of(UpgradeTerms, "deploy"),
    )
    template_fields: Sequence[str] = (
        *dict.fromkeys((*LaunchingOperator.template_fields, *UpgradeOperatorBase.template_fields)),
        "if_running",
        *names_of(taken),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = renderers_of(taken)
    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = {
        **LaunchingOperator.literal_choices,
        **UpgradeOperatorBase.literal_choices,
        **choices_of(taken),
        "if_running": IF_RUNNING,
    }

    def __init__(
        self,
        *,
        if_running: str = "fail",
        # terms
        application: str | Path,
        arguments: Sequence[str] | str | None = (),
        master: str | None = "",
        conf: Mapping[str, str] | str | None = None,
        environment: Mapping[str, str] | str | None = None,
        py_files: Sequence[str] | str | None = (),
        files: Sequence[str] | str | None = (),
        jars: Sequence[str] | str | None = (),
        packages: Sequence[str] | str | None = (),
        modules: Sequence[str] | str | None = (),
        working_folder: str | Path | None = None,
        spark_conn_id: str | None = None,
        launcher: str | None = None,
        launcher_options: Mapping[str, Any] | str | None = None,
        launcher_conn_id: str | None = None,
        pod_template: Mapping[str, Any] | str | None = None,
        attaches: bool | str = False,
        version_label: str | None = "",
        on_query_failure: str = "script",
        mirrors: Sequence[str] | str | None = (),
        snapshots: str | None = "",
        settings: AgentSettings | Mapping[str, Any] | str | None = None,
        start: str | None = None,
        snapshot_id: str | None = None,
        max_snapshot_age_seconds: float | str | None = None,
        offsets: Mapping[str, Sequence[str]] | str | None = None,
        begins_at: datetime | str | None = None,
        accept_repeated_input: Sequence[str] | str | None = (),
        assume_dead: bool | str = False,
        revive: bool | str = False,
        accept_hazards: bool | str = False,
        allow_state_loss: bool | str = False,
        allow_new_queries: Sequence[str] | str | None = (),
        rename_queries: Mapping[str, str] | str | None = None,
        move_sources: Mapping[str, str] | str | None = None,
        accept_lost_input: Sequence[str] | str | None = (),
        restart: Mapping[str, Any] | str | None = None,
        alerts: Mapping[str, Any] | str | None = None,
        stream_owner: str | None = None,
        labels: Mapping[str, str] | str | None = None,
        retention: Mapping[str, Any] | str | None = None,
        allow_literal_secrets: bool | str = False,
        spark: str | None = "",
        allow_drain: bool | str = False,
        roll_back_if_slower: float | str | None = None,
        warm: bool | str = True,
        rehearsal_deadline_seconds: float | str = 300.0,
        healthy_batches: int | str = 3,
        healthy_deadline_seconds: float | str = 300.0,
        caught_up: bool | str = False,
        undo_command: Sequence[str] | str | None = (),
        # end of terms
        timeout_seconds: float | str = 600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout_seconds=timeout_seconds, **kwargs)
        self.if_running = if_running
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
        self.attaches = attaches
        self.version_label = version_label
        self.on_query_failure = on_query_failure
        self.mirrors = mirrors
        self.snapshots = snapshots
        self.settings = settings
        self.start = start
        self.snapshot_id = snapshot_id
        self.max_snapshot_age_seconds = max_snapshot_age_seconds
        self.offsets = offsets
        self.begins_at = begins_at
        self.accept_repeated_input = accept_repeated_input
        self.assume_dead = assume_dead
        self.revive = revive
        self.accept_hazards = accept_hazards
        self.allow_state_loss = allow_state_loss
        self.allow_new_queries = allow_new_queries
        self.rename_queries = rename_queries
        self.move_sources = move_sources
        self.accept_lost_input = accept_lost_input
        self.restart = restart
        self.alerts = alerts
        self.stream_owner = stream_owner
        self.labels = labels
        self.retention = retention
        self.allow_literal_secrets = allow_literal_secrets
        self.spark = spark
        self.allow_drain = allow_drain
        self.roll_back_if_slower = roll_back_if_slower
        self.warm = warm
        self.rehearsal_deadline_seconds = rehearsal_deadline_seconds
        self.healthy_batches = healthy_batches
        self.healthy_deadline_seconds = healthy_deadline_seconds
        self.caught_up = caught_up
        self.undo_command = undo_command
        # end of terms
        self._built = True

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        request = self._request(hook)
        # A cleared task with a changed script is another request.
        request_id = request_id_of(context, request.digest)
        request = replace(request, request_id=request_id)
        running = self._running(hook, request)
        if running is not None:
            return self._ensured(context, hook, request, running)
        view = hook.client.deploy(request, self._say_how_it_starts, until_finished=self.until_finished)
        return self.wait_for_launched(context, hook, view)

    def _say_how_it_starts(self, view: DeploymentView) -> None:
        """Log the start mode and its notes before the driver runs."""
        snapshot = f" from {view.start.snapshot_id}" if view.start.snapshot_id else ""
        self.log.info("%s %s starts: %s%s", view.stream_id, view.deployment_id, view.start.mode, snapshot)
        for note in view.notes:
            self.log.warning("%s %s: %s", view.stream_id, view.deployment_id, note)

    def execute_complete(self, context: Context, event: Any = None, deadline_at: str | None = None) -> dict[str, Any]:
        """Continue in a worker: the deployment is as it was waited for, or a step of an upgrade is due."""
        from airflow_streamstate.triggers.streamstate import read_event

        with told_to_airflow(self):
            is_upgrade = read_event(event).watch.wanted in ("upgrade", "free")
        if is_upgrade:
            return self._upgraded(context, super().execute_complete(context, event, deadline_at))
        return LaunchingOperator.execute_complete(self, context, event)

    def on_kill(self) -> None:
        """Airflow ends the task in its worker: an upgrade is finished or withdrawn, a wait ends as ordered."""
        if self._driven is not None:
            super().on_kill()
        else:
            LaunchingOperator.on_kill(self)

    def request_digest(self) -> str:
        return self._upgrade_request(self.hook()).digest

    def begin(self, hook: StreamStateHook, request_id: str) -> UpgradeView:
        from airflow_streamstate.control.upgrade_journal import LEASE_SECONDS

        return hook.client.upgrades.begin(
            self._upgrade_request(hook), request_id, lease_seconds=LEASE_SECONDS, if_abandoned=self.after_stop()
        )

    def _running(self, hook: StreamStateHook, request: DeployRequest) -> StreamStatus | None:
        """The status of a stream that runs and is not to be deployed; None: deploy it.

        A deployment that this task started is deployed again, which finds it.
        """
        from airflow_streamstate.controller.observe.observation import ALIVE

        if one_of(optional_text(self.if_running) or "fail", IF_RUNNING, "if_running") == "fail":
            return None
        try:
            status = hook.client.status(request.stream_id)
        except StreamNotFoundError:
            return None
        control = hook.client.home.control(request.stream_id)
        own = control.request(request.request_id) if request.request_id else None
        is_own = own is not None and own.deployment_id == status.deployment_id
        return None if is_own or not (status.state in ALIVE or status.upgrade) else status

    def _ensured(
        self, context: Context, hook: StreamStateHook, request: DeployRequest, running: StreamStatus
    ) -> dict[str, Any]:
        """The stream runs: this version already, or by an upgrade to it."""
        from airflow_streamstate.declarations.diff import differences

        before = hook.client.home.control(running.stream_id).spec(running.deployment_id).version
        after = request.following(before)
        changed = [one.name for one in differences(before, after) if one.name != "version_label"]
        if one_of(self.if_running, IF_RUNNING, "if_running") == "ensure" and not changed and not running.upgrade:
            self.log.info("%s runs this version already: %s", running.stream_id, running.deployment_id)
            self.tell_known(context, hook, deployment_id=running.deployment_id)
            return self.wait_for(hook, running.deployment_id, running.to_json())
        self.log.info("%s runs; it is upgraded: %s", running.stream_id, ", ".join(changed) or "the same version")
        return self._upgraded(context, UpgradeOperatorBase.act(self, context, hook))

    def _upgraded(self, context: Context, result: Mapping[str, Any]) -> dict[str, Any]:
        """The result of a deploy, in place of that of an upgrade, which is pushed under ``UPGRADED_KEY``."""
        context["ti"].xcom_push(key=UPGRADED_KEY, value=dict(result))
        return launched(self.hook(context).client.status(str(self.stream_id)).to_json())

    def _upgrade_request(self, hook: StreamStateHook) -> UpgradeRequest:
        from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest

        return UpgradeRequest(self._request(hook), rendered_terms(UpgradeTerms, self, self.taken))

    def _request(self, hook: StreamStateHook) -> DeployRequest:
        from airflow_streamstate.controller.request.requests import deploy_request

        given = rendered_values(self, self.taken, Version, StartTerms, StreamTerms, CodeTerms)
        settings = given.get("settings")
        if isinstance(settings, Mapping):
            given["settings"] = default_settings(hook.client.home.home.uri).changed(settings) if settings else None
        return deploy_request(str(self.stream_id), reason=str(self.reason), **given)


# ``ResumeStreamOperator``: start the current deployment again, on its own checkpoints.


class ResumeStreamOperator(LaunchingOperator):
    """Start the current deployment of a stream again, with its recorded code, whatever the path holds by now.

    Idempotent: a retry, or a cleared task, finds the attempt that it started. If that attempt failed before its first
    commit, or with ``wait_until="finished"`` at any time, the retry starts the next one.

    Returns ``{stream_id, deployment_id, attempt, state, start: {mode, snapshot_id}}``.

    :param wait_until: see ``DeployStreamOperator``. (templated)
    :param if_stopped: see ``DeployStreamOperator``. (templated)
    :param on_kill_action: see ``DeployStreamOperator``.

    :param assume_dead: continue although the launcher does not know whether the old driver is dead. (templated)
    :param accept_hazards: accept a ``hazardous`` plan; a difference that needs a drain still needs it. (templated)
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(terms_of(StartTerms, "resume"))
    template_fields: Sequence[str] = (*LaunchingOperator.template_fields, *names_of(taken))

    def __init__(
        self,
        *,
        # terms
        assume_dead: bool | str = False,
        accept_hazards: bool | str = False,
        # end of terms
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # terms
        self.assume_dead = assume_dead
        self.accept_hazards = accept_hazards
        # end of terms

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        view = hook.client.resume(
            str(self.stream_id),
            request_id=request_id_of(context),
            reason=str(self.reason),
            until_finished=self.until_finished,
            **rendered_values(self, self.taken, StartTerms),
        )
        return self.wait_for_launched(context, hook, view)
