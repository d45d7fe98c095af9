"""``DeployStreamOperator``: deploy a script as the next version of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from airflow_streamstate.errors import StreamNotFoundError
from airflow_streamstate.hooks.refusals import told_to_airflow
from airflow_streamstate.hooks.rendered import (
    alert_rules,
    as_moment,
    launcher_choice,
    one_of,
    optional_path,
    optional_seconds,
    optional_text,
    restart_policy,
    retention,
    text_mapping,
    texts,
    texts_by_name,
    yes_or_no,
)
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import request_id_of
from airflow_streamstate.operators.changing import ChangingOperator
from airflow_streamstate.operators.driving import UpgradeOperatorBase
from airflow_streamstate.operators.launching import LaunchingOperator, launched
from airflow_streamstate.operators.term_fields import choices_of, names_of, rendered_terms, renderers_of
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.start import StartMode
from airflow_streamstate.protocol.terms.upgrade import UpgradeTerms
from airflow_streamstate.protocol.terms.version import ON_QUERY_FAILURE

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_streamstate.controller.observe.views import DeploymentView, StreamStatus
    from airflow_streamstate.controller.request.requests import DeployRequest
    from airflow_streamstate.controller.upgrade.requests import UpgradeRequest
    from airflow_streamstate.controller.upgrade.views import UpgradeView
    from airflow_streamstate.protocol.settings import AgentSettings

IfRunning = Literal["fail", "ensure", "upgrade"]
UPGRADED_KEY = "upgrade_result"
"""The XCom of an upgrade that ``if_running`` began, as ``UpgradeStreamOperator`` returns it."""
IF_RUNNING: tuple[IfRunning, ...] = get_args(IfRunning)


class DeployStreamOperator(UpgradeOperatorBase, LaunchingOperator):
    """Deploy a script as the next version of a stream, from the last snapshot of the version before.

    Idempotent: a retry, or a cleared task, finds the deployment that it began. If that deployment failed before its
    first commit, or with ``wait_until="finished"`` at any time, the retry starts its next attempt; if a newer
    deployment is current, the task fails with a conflict that names it. A task that is cleared after a change of the
    script, its arguments or its configuration deploys anew.

    Returns ``{stream_id, deployment_id, attempt, state, start: {mode, snapshot_id}}``, whether it deployed, found this
    version running, or upgraded the stream to it (``if_running``).

    :param if_running: what the task does when the stream runs: ``fail``; ``ensure``: succeed if it runs this version,
        else upgrade it to this version; ``upgrade``: upgrade it in any case, which restarts the same version. An
        upgrade rehearses, hands over, and goes back if the new version fails, as ``UpgradeStreamOperator`` does, with
        the parameters that follow. A stream that does not run is deployed. (templated)

    :param allow_drain: drain if the state does not fit: open windows are written early. (templated)
    :param accept_hazards: accept a ``hazardous`` plan; a difference that needs a drain still needs it. (templated)
    :param roll_back_if_slower: give up a version that falls behind its input and is slower than the version before by
        this factor: 2 means that it reads half the rows per second. By default it is kept, with a warning that has both
        rates. (templated)
    :param warm: launch the next driver while the other runs, also on the way back: needs room for two. (templated)
    :param rehearsal_deadline_seconds: seconds until the rehearsal must have ended. (templated)
    :param healthy_batches: batches that each query must commit past the handover. Of a query with the trigger
        availableNow or once the end of its run counts instead. (templated)
    :param healthy_deadline_seconds: seconds from its launch until it must be healthy. After that it is given up.
        (templated)
    :param caught_up: healthy only when no input is left to read, or no more than the version before had left.
        (templated)
    :param undo_command: the command that undoes what a foreachBatch wrote, if there is no other way back. (templated)

    :param application: path of the PySpark script, unmodified. (templated)
    :param arguments: the script's arguments. An argument, or its value after ``--name=``, may be a reference to a
        secret: ``secret://airflow-connection/ID#password`` (or ``login``, ``host``, ``port``, ``schema``,
        ``extra.KEY``), ``secret://airflow-variable/KEY``, ``env://NAME``. The launcher looks it up at each launch; only
        the reference is shown and recorded. (templated)
    :param master: Spark's master; by default that of ``spark_conn_id``, else ``local[*]``. (templated)
    :param conf: Spark configuration; a value may be a reference to a secret. (templated)
    :param environment: variables for the driver, in addition to the worker's; a value may be a reference to a secret.
        (templated)
    :param allow_literal_secrets: accept literal values under secret-like names, and record them in the home. Rendered
        fields hide them. By default they are refused. (templated)
    :param py_files: Python files, folders, zips, eggs and wheels for the script. (templated)
    :param modules: patterns below the script's folder: what is pinned of it, in place of what the script imports from
        there. (templated)
    :param working_folder: absolute folder that drivers run in; by default that of the version before, for a new stream
        the current folder of the task. (templated)
    :param files: files beside the script. (templated)
    :param packages: Maven coordinates. (templated)
    :param jars: paths of jars, pinned, or URIs as they are. (templated)
    :param start: ``restore``, ``seed`` or ``fresh``; by default the last snapshot decides. The stream starts empty only
        with ``fresh``. (templated)
    :param snapshot_id: the snapshot that this deployment is expected to start from; a check. (templated)
    :param allow_state_loss: drop state that the drain could not flush. (templated)
    :param allow_new_queries: queries that may start empty although the snapshot does not contain them. (templated)
    :param rename_queries: by the name of a query in the snapshot, the name that the script gives it now. (templated)
    :param move_sources: by the folder of a file source at the snapshot, where the same files are now. (templated)
    :param accept_lost_input: queries that may continue although input after their offsets is lost. (templated)
    :param offsets: with ``start="seed"``: start at these offsets, by query, one text per source as Spark writes them
        and in the order of the snapshot. (templated)
    :param begins_at: with ``start="seed"``: start with the input of this time, RFC 3339. (templated)
    :param accept_repeated_input: queries that may read input a second time. (templated)
    :param max_snapshot_age_seconds: refuse to start from an older snapshot. (templated)
    :param assume_dead: take over although the launcher cannot tell whether the old driver is dead. (templated)
    :param version_label: your own name of this version. (templated)
    :param snapshots: URI under which snapshots are kept, instead of beside the checkpoints; ``none``: take no snapshot
        while the stream runs. (templated)
    :param on_query_failure: what a failed query does to the others: ``fail`` stops them and ends the deployment,
        ``degrade`` lets them run on, ``script`` leaves it to the script. (templated)
    :param restart_policy: what ``streamstate watch`` does when a driver fails, as values by name: ``on_failure``
        (``restart``, ``alert`` or ``nothing``), ``initial_backoff_seconds``, ``backoff_factor``,
        ``max_backoff_seconds``, ``max_restarts``, ``restart_window_seconds``, ``healthy_for_seconds``,
        ``restore_lost_checkpoint``, ``hung_after_seconds``. What is not given stays as the stream has it. (templated)
    :param alert_rules: when people are told of the stream, as values by name: ``driver_silent_seconds``,
        ``no_commit_seconds``, ``lag_over``, ``lag_growing_seconds``, ``watermark_behind_seconds``,
        ``state_rows_over``, ``state_memory_bytes_over``, ``state_growing_seconds``, ``snapshot_age_seconds``, ``off``.
        What is not given stays as the stream has it. (templated)
    :param stream_owner: a person or a team that alerts, ``streamstate status`` and the page name; "" for none. By
        default the stream keeps its owner. ``owner`` is the owner of the task. (templated)
    :param stream_labels: all labels of the stream, values by name; by default it keeps those that it has. (templated)
    :param stream_retention: which snapshots of the stream stay when it is pruned, by ``PruneSnapshotsOperator`` and by
        ``streamstate watch``, as values by name: ``keep``, ``older_than_seconds``, ``at_mirrors``; ``{}`` for no such
        policy. By default the stream keeps the one that it has. (templated)
    :param attaches: the script calls ``attach()`` and is submitted itself. (templated)
    :param spark_conn_id: an Airflow connection of type ``spark`` through which the driver is started. (templated)
    :param launcher: what starts the drivers: ``kubernetes``, ``yarn``, ``ssh``, ``emr-serverless``, ``emr-eks``, or
        one of another package; by default they run on the machine of the task. (templated)
    :param launcher_options: its options by name, as its how-to page lists them. (templated)
    :param launcher_conn_id: the Airflow connection by which it reaches its cluster; ``yarn`` takes none. (templated)
    :param pod_template: for ``kubernetes``: a pod as YAML or mapping, merged into the driver's. (templated)
    :param settings: settings of the agent in the driver.
    :param wait_until: ``healthy``: each query has committed a batch, or found no input; ``caught_up``: also no input is
        left to read; ``finished``: the stream has come to its end, since its triggers end each run, or its sources say
        that nothing follows; ``none``: return when the driver is launched. (templated)
    :param if_stopped: for ``wait_until="finished"``, where somebody stops, drains, kills or replaces the run before
        that: ``fail`` the task, without a retry, or ``wait`` for the end of what continues it: a resume, or another
        version. (templated)
    :param on_kill_action: what happens to the deployment when the waiting task is killed or marked: ``leave`` it,
        ``stop`` it with its state, ``drain`` it, or ``kill`` its driver.
    """

    taken: ClassVar[tuple[Term, ...]] = terms_of(UpgradeTerms, "deploy")
    template_fields: Sequence[str] = (
        *dict.fromkeys((*LaunchingOperator.template_fields, *UpgradeOperatorBase.template_fields)),
        "if_running",
        *names_of(taken),
        "application",
        "arguments",
        "master",
        "conf",
        "environment",
        "allow_literal_secrets",
        "py_files",
        "modules",
        "working_folder",
        "files",
        "packages",
        "jars",
        "start",
        "snapshot_id",
        "allow_state_loss",
        "allow_new_queries",
        "rename_queries",
        "move_sources",
        "accept_lost_input",
        "offsets",
        "begins_at",
        "accept_repeated_input",
        "max_snapshot_age_seconds",
        "assume_dead",
        "version_label",
        "snapshots",
        "on_query_failure",
        "restart_policy",
        "alert_rules",
        "stream_owner",
        "stream_labels",
        "stream_retention",
        "attaches",
        "spark_conn_id",
        "launcher",
        "launcher_options",
        "launcher_conn_id",
        "pod_template",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **ChangingOperator.template_fields_renderers,
        **renderers_of(taken),
        "offsets": "json",
        "accept_repeated_input": "json",
        "restart_policy": "json",
        "alert_rules": "json",
        "stream_labels": "json",
        "stream_retention": "json",
    }
    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = {
        **LaunchingOperator.literal_choices,
        **UpgradeOperatorBase.literal_choices,
        **choices_of(taken),
        "if_running": IF_RUNNING,
        "start": get_args(StartMode),
        "on_query_failure": ON_QUERY_FAILURE,
    }

    def __init__(
        self,
        *,
        application: str | Path,
        arguments: Sequence[str] | str = (),
        master: str | None = None,
        conf: Mapping[str, str] | str | None = None,
        py_files: Sequence[str] | str = (),
        files: Sequence[str] | str = (),
        packages: Sequence[str] | str = (),
        jars: Sequence[str] | str = (),
        start: str | None = None,
        snapshot_id: str | None = None,
        allow_state_loss: bool | str = False,
        allow_new_queries: Sequence[str] | str = (),
        rename_queries: Mapping[str, str] | str | None = None,
        move_sources: Mapping[str, str] | str | None = None,
        accept_lost_input: Sequence[str] | str = (),
        offsets: Mapping[str, Sequence[str]] | str | None = None,
        begins_at: str | None = None,
        accept_repeated_input: Sequence[str] | str = (),
        max_snapshot_age_seconds: float | str | None = None,
        assume_dead: bool | str = False,
        version_label: str = "",
        spark_conn_id: str | None = None,
        settings: AgentSettings | None = None,
        environment: Mapping[str, str] | str | None = None,
        allow_literal_secrets: bool | str = False,
        attaches: bool | str = False,
        snapshots: str = "",
        on_query_failure: str = "script",
        restart_policy: Mapping[str, Any] | str | None = None,
        alert_rules: Mapping[str, Any] | str | None = None,
        stream_owner: str | None = None,
        stream_labels: Mapping[str, str] | str | None = None,
        stream_retention: Mapping[str, Any] | str | None = None,
        modules: Sequence[str] | str | None = None,
        working_folder: str | Path | None = None,
        launcher: str | None = None,
        launcher_options: Mapping[str, Any] | str | None = None,
        launcher_conn_id: str | None = None,
        pod_template: Mapping[str, Any] | str | None = None,
        if_running: str = "fail",
        # terms
        allow_drain: bool | str = False,
        accept_hazards: bool | str = False,
        roll_back_if_slower: float | str | None = None,
        warm: bool | str = True,
        rehearsal_deadline_seconds: float | str = 300.0,
        healthy_batches: int | str = 3,
        healthy_deadline_seconds: float | str = 300.0,
        caught_up: bool | str = False,
        undo_command: Sequence[str] | str = (),
        # end of terms
        timeout_seconds: float | str = 600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout_seconds=timeout_seconds, **kwargs)
        self.if_running = if_running
        # terms
        self.allow_drain = allow_drain
        self.accept_hazards = accept_hazards
        self.roll_back_if_slower = roll_back_if_slower
        self.warm = warm
        self.rehearsal_deadline_seconds = rehearsal_deadline_seconds
        self.healthy_batches = healthy_batches
        self.healthy_deadline_seconds = healthy_deadline_seconds
        self.caught_up = caught_up
        self.undo_command = undo_command
        # end of terms
        self.launcher = launcher
        self.launcher_options = launcher_options
        self.launcher_conn_id = launcher_conn_id
        self.pod_template = pod_template
        self.application = str(application)
        self.arguments = arguments
        self.master = master
        self.conf = conf
        self.py_files = py_files
        self.files = files
        self.packages = packages
        self.jars = jars
        self.start = start
        self.snapshot_id = snapshot_id
        self.allow_state_loss = allow_state_loss
        self.allow_new_queries = allow_new_queries
        self.rename_queries = rename_queries
        self.move_sources = move_sources
        self.accept_lost_input = accept_lost_input
        self.offsets = offsets
        self.begins_at = begins_at
        self.accept_repeated_input = accept_repeated_input
        self.max_snapshot_age_seconds = max_snapshot_age_seconds
        self.assume_dead = assume_dead
        self.version_label = version_label
        self.spark_conn_id = spark_conn_id
        self.settings = settings
        self.environment = environment
        self.allow_literal_secrets = allow_literal_secrets
        self.attaches = attaches
        self.snapshots = snapshots
        self.on_query_failure = on_query_failure
        self.restart_policy = restart_policy
        self.alert_rules = alert_rules
        self.stream_owner = stream_owner
        self.stream_labels = stream_labels
        self.stream_retention = stream_retention
        self.modules = modules
        self.working_folder = None if working_folder is None else str(working_folder)
        self._built = True

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:

        request = self._request()
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
        from airflow_streamstate.triggers.events import read_event

        with told_to_airflow(self):
            is_upgrade = read_event(event).watch.wanted in ("upgrade", "free")
        if is_upgrade:
            return self._upgraded(context, super().execute_complete(context, event, deadline_at))
        return LaunchingOperator.execute_complete(self, context, event)

    def on_kill(self) -> None:
        """Airflow ends the task in its worker: an upgrade is finished or withdrawn, a wait ends as it was told."""
        if self._driven is not None:
            super().on_kill()
        else:
            LaunchingOperator.on_kill(self)

    def request_digest(self) -> str:
        return self._upgrade_request().digest

    def begin(self, hook: StreamStateHook, request_id: str) -> UpgradeView:
        from airflow_streamstate.control.upgrades import LEASE_SECONDS

        return hook.client.upgrades.begin(
            self._upgrade_request(), request_id, lease_seconds=LEASE_SECONDS, if_abandoned=self.after_stop()
        )

    def _running(self, hook: StreamStateHook, request: DeployRequest) -> StreamStatus | None:
        """The status of a stream that runs and is not to be deployed; None: deploy it.

        A deployment that this task began is deployed again, which finds it.
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
        from airflow_streamstate.declarations.comparing import differences

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

    def _upgrade_request(self) -> UpgradeRequest:
        from airflow_streamstate.controller.upgrade.requests import UpgradeRequest

        return UpgradeRequest(self._request(), rendered_terms(UpgradeTerms, self, self.taken))

    def _request(self) -> DeployRequest:
        from airflow_streamstate.controller.request.requests import deploy_request
        from airflow_streamstate.protocol.terms.start import START_MODES

        return deploy_request(
            str(self.stream_id),
            Path(str(self.application)),
            arguments=texts(self.arguments, "arguments"),
            master=optional_text(self.master),
            conf=text_mapping(self.conf, "conf"),
            py_files=tuple(Path(path) for path in texts(self.py_files, "py_files")),
            files=tuple(Path(path) for path in texts(self.files, "files")),
            modules=texts(self.modules, "modules") or None,
            working_folder=optional_path(self.working_folder),
            packages=texts(self.packages, "packages"),
            jars=texts(self.jars, "jars"),
            start=one_of(optional_text(self.start), (None, *START_MODES), "start"),
            snapshot_id=optional_text(self.snapshot_id),
            allow_state_loss=yes_or_no(self.allow_state_loss, "allow_state_loss"),
            allow_new_queries=texts(self.allow_new_queries, "allow_new_queries"),
            rename_queries=text_mapping(self.rename_queries, "rename_queries"),
            move_sources=text_mapping(self.move_sources, "move_sources"),
            accept_lost_input=texts(self.accept_lost_input, "accept_lost_input"),
            offsets=texts_by_name(self.offsets, "offsets"),
            begins_at=as_moment(self.begins_at, "begins_at"),
            accept_repeated_input=texts(self.accept_repeated_input, "accept_repeated_input"),
            accept_hazards=yes_or_no(self.accept_hazards, "accept_hazards"),
            max_snapshot_age_seconds=optional_seconds(self.max_snapshot_age_seconds, "max_snapshot_age_seconds"),
            reason=str(self.reason),
            version_label=str(self.version_label),
            spark_conn_id=optional_text(self.spark_conn_id),
            launcher=launcher_choice(self.launcher, self.launcher_options, self.launcher_conn_id, self.pod_template),
            settings=self.settings,
            assume_dead=yes_or_no(self.assume_dead, "assume_dead"),
            environment=text_mapping(self.environment, "environment"),
            allow_literal_secrets=yes_or_no(self.allow_literal_secrets, "allow_literal_secrets"),
            attaches=yes_or_no(self.attaches, "attaches"),
            snapshots=optional_text(self.snapshots) or "",
            on_query_failure=one_of(
                optional_text(self.on_query_failure) or "script", ON_QUERY_FAILURE, "on_query_failure"
            ),
            restart_policy=restart_policy(self.restart_policy, "restart_policy"),
            alert_rules=alert_rules(self.alert_rules, "alert_rules"),
            owner=_owner(self.stream_owner),
            labels=_labels(self.stream_labels),
            retention=retention(self.stream_retention, "stream_retention"),
        )


def _owner(given: object) -> str | None:
    """None for none given; native rendering gives None, plain rendering ``None``."""
    return None if given is None or str(given) == "None" else str(given)


def _labels(given: object) -> dict[str, str] | None:
    """None for none given."""
    is_given = given is not None and str(given).strip() not in ("", "None")
    return text_mapping(given, "stream_labels") if is_given else None
