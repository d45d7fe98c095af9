"""``UpgradeStreamOperator``: upgrade a stream, with a rehearsal before and a way back after a failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_streamstate.hooks.rendered import one_of, optional_text
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.changing import ChangingOperator
from airflow_streamstate.operators.driving import UpgradeOperatorBase
from airflow_streamstate.operators.term_fields import choices_of, names_of, rendered_terms, renderers_of, taken_terms
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.upgrade import UpgradeTerms
from airflow_streamstate.protocol.upgrades import AfterStop

if TYPE_CHECKING:
    from airflow_streamstate.controller.upgrade.requests import UpgradeRequest
    from airflow_streamstate.controller.upgrade.views import UpgradeView

AFTER_STOP: tuple[AfterStop, ...] = ("finish", "rollback")


class UpgradeStreamOperator(UpgradeOperatorBase, ChangingOperator):
    """Upgrade a stream to another version: rehearse it, stop the old one, start the new one, wait until it is healthy.

    The new version is rehearsed on a fork of the real state while the old one runs; if it cannot work, the task fails
    and nothing was touched. If the new version fails or makes no progress, the old one continues without a lost or
    doubled row, and the task fails. A retry tries neither again. A version that is only slower is kept: the log and
    ``warnings`` have both rates. Omitted parameters stay as they are, ``conf``, ``environment`` and
    ``launcher_options`` name by name; only the label of a version is that of its script. Without any the upgrade is a
    restart.

    Idempotent: a retry, or a cleared task, continues the upgrade that it began. If that was refused or given up, a
    cleared task begins anew.

    Returns ``{upgrade_id, stream_id, phase, outcome, mode, old_deployment_id, new_deployment_id,
    returned_deployment_id, way, bad_batches, begun_batches, downtime_seconds, downtime_by_query,
    downtimes, not_running_seconds, verdict, differences, audit_ok, cancelled_by,
    reason, driver, warnings, waits_for}``; a failed task has the same XCom. The XCom ``upgrade``,
    ``{stream_id, upgrade_id}``, is pushed at the begin.

    :param application: the PySpark script, unmodified. (templated)
    :param arguments: the script's arguments. An argument, or its value after ``--name=``, may be a reference to a
        secret: ``env://NAME``, ``secret://airflow-connection/ID#password`` (or login, host, port, schema, extra.KEY),
        ``secret://airflow-variable/KEY``. It is looked up at each launch, and only the reference is recorded.
        (templated)
    :param master: Spark's master. (templated)
    :param conf: Spark configuration. A value may be a reference to a secret. (templated)
    :param environment: variables for the driver's environment; a value may be a reference to a secret. (templated)
    :param py_files: Python files, folders, zips, eggs and wheels for the script; pinned. (templated)
    :param files: files beside the script; pinned. (templated)
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
    :param partitions: write the state again in this number of partitions of each stateful operator: Spark keeps the
        number that a checkpoint began with. ``streamstate rescale --suggest`` suggests one. (templated)
    :param state_store: write the state again into this state store: rocksdb. (templated)
    :param checkpoint_format: write the state again in Spark's state checkpoint format 1 or 2. (templated)
    :param migration: a Python file with functions from old to new state (airflow_streamstate.migration). (templated)
    :param auto_migrate: migrate state without a function where that is safe: an aggregate added, which begins with no
        rows, or removed, others in another order, a wider type, a field added to a state variable. (templated)
    :param mode: how the state is handed over: auto restores it if it fits, else drains with ``allow_drain``; only fresh
        starts with empty state. (templated)
    :param allow_drain: drain if the state does not fit: open windows are written early. (templated)
    :param needs_approval: wait until a person approves the plan. (templated)
    :param approved_by_another: as ``needs_approval``, by another person. (templated)
    :param roll_back_if_slower: give up a version that falls behind its input and is slower than the version before by
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
    :param warm: launch the next driver while the other runs, also on the way back: needs room for two. (templated)
    :param rehearsal_deadline_seconds: seconds until the rehearsal must have ended. (templated)
    :param healthy_batches: batches that each query must commit past the handover. Of a query with the trigger
        availableNow or once the end of its run counts instead. (templated)
    :param healthy_deadline_seconds: seconds from its launch until it must be healthy. After that it is given up.
        (templated)
    :param caught_up: healthy only when no input is left to read, or no more than the version before had left.
        (templated)
    :param undo_command: the command that undoes what a foreachBatch wrote, if there is no other way back. (templated)

    :param rehearsal_id: the approved rehearsal of ``PlanUpgradeOperator``; refused if the change, or what runs, is
        another one by now. (templated)
    :param on_kill_action: what happens to the upgrade when the task is killed, marked or cleared after the old version
        was told to stop: ``finish`` or ``rollback``. Before that nothing has happened. (templated)

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
        partitions: int | str | None = None,
        state_store: str | None = None,
        checkpoint_format: int | str | None = None,
        migration: str | Path | None = None,
        auto_migrate: bool | str = False,
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
        self.partitions = partitions
        self.state_store = state_store
        self.checkpoint_format = checkpoint_format
        self.migration = str(migration) if isinstance(migration, Path) else migration
        self.auto_migrate = auto_migrate
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
        from airflow_streamstate.control.upgrades import LEASE_SECONDS
        from airflow_streamstate.hooks.upgrading import refuse_unless_planned, upgrade_of

        request, rehearsal_id = self._request(), optional_text(self.rehearsal_id)
        if rehearsal_id is not None and upgrade_of(hook.client, request.stream_id, request_id) is None:
            refuse_unless_planned(hook.client, self.change(), rehearsal_id)
        return hook.client.upgrades.begin(
            request, request_id, lease_seconds=LEASE_SECONDS, if_abandoned=self.after_stop()
        )

    def after_stop(self) -> AfterStop:
        return one_of(self.on_kill_action, AFTER_STOP, "on_kill_action")

    def _request(self) -> UpgradeRequest:
        from airflow_streamstate.controller.upgrade.requests import UpgradeRequest

        return UpgradeRequest(self.change(), rendered_terms(UpgradeTerms, self, self.taken))
