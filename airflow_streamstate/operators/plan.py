"""``PlanUpgradeOperator``: compare a change with what runs, before anything is stopped; and its approval."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred
from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator

from airflow_streamstate.errors import ConflictError
from airflow_streamstate.hooks.refusals import told_to_airflow
from airflow_streamstate.hooks.rendered import yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import (
    RETURN_KEY,
    ChangingOperator,
    StreamStateOperator,
    choices_of,
    names_of,
    rendered_terms,
    rendered_values,
    renderers_of,
    request_id_of,
    taken_terms,
)
from airflow_streamstate.protocol.ids import is_same_person
from airflow_streamstate.protocol.terms.declaration import Term, check_given, terms_of
from airflow_streamstate.protocol.terms.order import PlanTerms, RehearsalTerms

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_streamstate.controller.scratch.replays import ReplayView
    from airflow_streamstate.controller.scratch.run import Report
    from airflow_streamstate.controller.wait.condition import WaitCondition
    from airflow_streamstate.plan.report import PlanReport


class PlanUpgradeOperator(ChangingOperator):
    """Check whether a change of a stream fits, before anything is stopped.

    The new script runs once in its own driver, with ``STREAMSTATE_REHEARSAL=1`` in its environment. Each query is
    compared with the running one, and tried with an empty batch on a fork of its state, without a sink. The stream, its
    positions and its sinks are not touched, and the rehearsal's files are removed. Omitted parameters stay as in the
    current deployment, ``conf``, ``environment`` and ``launcher_options`` name by name; only the label of a version is
    that of its script.

    The task waits until ``deadline_seconds``, and has no ``timeout_seconds``.

    With ``replay_batches`` the newest recorded batches then run in the recorded version and in a new one that fits: on
    forks of the state of before them, into temporary files of the worker, with Spark's master ``local[*]``. Their rows
    are compared, and a batch that fails in the new version refuses the change. If a deferred task continues on another
    machine than that of the files, both versions run there once more, and the task waits for them in its worker.

    Returns the report, ``{stream_id, deployment_id, rehearsal_id, outcome, reason, verdict, queries{NAME:{verdict,
    differences}}, rehearsal{ok, seconds, error}, seed{ok, error}, replay{queries{NAME:{batches[{batch_id, rows_in,
    rows_out, seconds, comparison{same, changed, only_old, only_new, keys, samples_changed, samples_old, samples_new,
    changed_rows[{key, old, new}]}}], state}}, old, speed}, not_replayed, notes}``; a failed task has the same XCom.
    ``replay`` is null where no batch was replayed, and ``not_replayed`` states why.

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
    :param rehearse: try each query on a fork of its state, without a sink: with an empty batch, then with its newest
        batches; else only compare the plans. The script runs once in both, with ``STREAMSTATE_REHEARSAL=1`` in its
        environment. (templated)
    :param rehearse_batches: this many of the newest batches of each query run again, with their rows and without a
        sink. (templated)
    :param rehearse_rows: about this many rows of these batches, at most. (templated)
    :param replay_batches: the newest batches of each query, this many, also run in the recorded version and in the new
        one, into files, and their rows are compared; 0 replays none. (templated)
    :param fail_on_changed_rows: with ``replay_batches``: fail unless each replayed batch has the same rows in both
        versions. If nothing can be replayed, the plan alone decides. (templated)
    :param deadline_seconds: seconds until the rehearsal is ended, and each of the two runs of a replay. (templated)

    :param fail_unless_it_fits: fail the task if the verdict is neither ``same`` nor ``state-compatible``, or the
        rehearsal failed; false leaves the decision to later tasks. (templated)
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(
        ChangingOperator.taken, terms_of(RehearsalTerms), terms_of(PlanTerms)
    )
    template_fields: Sequence[str] = (
        *(name for name in StreamStateOperator.template_fields if name != "timeout_seconds"),
        *names_of(taken),
        "fail_unless_it_fits",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = renderers_of(taken)
    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = choices_of(taken)

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
        rehearse: bool | str = True,
        rehearse_batches: int | str = 1,
        rehearse_rows: int | str = 100_000,
        replay_batches: int | str = 0,
        fail_on_changed_rows: bool | str = False,
        deadline_seconds: float | str = 300.0,
        # end of terms
        fail_unless_it_fits: bool | str = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout_seconds=deadline_seconds, **kwargs)
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
        self.rehearse = rehearse
        self.rehearse_batches = rehearse_batches
        self.rehearse_rows = rehearse_rows
        self.replay_batches = replay_batches
        self.fail_on_changed_rows = fail_on_changed_rows
        self.deadline_seconds = deadline_seconds
        # end of terms
        self.fail_unless_it_fits = fail_unless_it_fits
        # A DAG that asks for what cannot be is not parsed; what is a template is checked when it is rendered.
        literal = [one for one in terms_of(PlanTerms) if not _is_template(getattr(self, one.name))]
        check_given(PlanTerms, rendered_values(self, literal, PlanTerms))
        if len(literal) == len(terms_of(PlanTerms)):
            self.plan_terms()
        self._begun: tuple[str, str] | None = None
        self._is_ended = False
        self._rehearsal_id = ""
        self._report: PlanReport | None = None
        self._built = True

    def plan_terms(self) -> PlanTerms:
        """The rendered terms of the plan; raises InvalidRequestError if one is wrong, or contradicts another."""
        return rendered_terms(PlanTerms, self, self.taken)

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        from airflow_streamstate.controller.scratch.run import LATE_SECONDS
        from airflow_streamstate.controller.wait.condition import WaitCondition

        request, deadline_seconds = self.change(), self.plan_terms().deadline_seconds
        view = hook.client.plans.begin(
            request,
            request_id=request_id_of(context, request.digest),
            terms=rendered_terms(RehearsalTerms, self, self.taken),
            deadline_seconds=deadline_seconds,
        )
        self._begun = (view.stream_id, view.rehearsal_id)
        self.tell_known(context, hook, rehearsal_id=view.rehearsal_id)
        watch = WaitCondition("rehearsed", view.stream_id, deployment_id=view.rehearsal_id)
        # The rehearsal ends itself at its deadline, and the wait sees that end.
        result = self.wait_until_done(hook, watch, timeout_seconds=deadline_seconds + 2 * LATE_SECONDS)
        return self._judged(context, result)

    def execute_complete(self, context: Context, event: Any = None) -> dict[str, Any]:
        """Continue in a worker: the rehearsal has ended, or one of the two runs of a replay."""
        with told_to_airflow():
            request_id = request_id_of(context, self.change().digest)
            known = self.hook().client.plans.begun_by(str(self.stream_id), [request_id])
            self._rehearsal_id = known[-1] if known else ""
            return self._judged(context, super().execute_complete(context, event))

    def result_from(self, watch: WaitCondition, observed: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        hook = self.hook()
        self._begun = (watch.stream_id, watch.deployment_id)
        self._refuse_to_continue()
        last = hook.client.replays.find(*self._begun)
        if last is None:
            self._rehearsal_id = watch.deployment_id
            self._report = hook.client.plans.report(*self._begun)
            if not self.plan_terms().replay_batches:
                return self._report.to_json()
        return self._replayed(hook, last)

    def _replayed(self, hook: StreamStateHook, last: ReplayView | None) -> dict[str, Any]:
        """Take the next step of the replay after this run: wait for the run that was started, or end with it."""
        from airflow_streamstate.controller.scratch.replays import PlannedReplay, ReplayView
        from airflow_streamstate.controller.scratch.run import LATE_SECONDS
        from airflow_streamstate.controller.wait.condition import WaitCondition

        view, replays, terms = last, hook.client.replays, self.plan_terms()
        try:
            report = self._report_again(hook)
            planned = PlannedReplay(report, self.change(), terms.replay_batches, terms.deadline_seconds)
            step = replays.advance(planned, last, self._watched)
            if not isinstance(step, ReplayView):
                return self._told(step)
            view = step
            with self._watched(view):
                watch = WaitCondition("rehearsed", view.stream_id, deployment_id=view.replay_id)
                return self.wait_until_done(hook, watch, timeout_seconds=terms.deadline_seconds + 2 * LATE_SECONDS)
        except TaskDeferred:
            raise
        except BaseException:
            if view is not None:
                replays.discard(view)
            raise

    def _report_again(self, hook: StreamStateHook) -> PlanReport:
        """The report of the rehearsal, which another worker may have had."""
        if self._report is None:
            if not self._rehearsal_id:
                raise ConflictError(
                    "the script, or a file of it, was changed while it was planned",
                    stream_id=str(self.stream_id),
                    next_step="Clear the task: it plans again.",
                )
            self._report = hook.client.plans.report(str(self.stream_id), self._rehearsal_id)
        return self._report

    def _told(self, report: PlanReport) -> dict[str, Any]:
        from airflow_streamstate.plan.report import replay_sentences

        self._report = report
        for text in replay_sentences(report):
            self.log.info("%s", text)
        return report.to_json()

    @contextmanager
    def _watched(self, view: ReplayView) -> Iterator[Report]:
        """Names the replay to ``on_kill`` while it is waited for."""
        self._begun = (view.stream_id, view.replay_id)
        self._refuse_to_continue()
        for name, batch_ids in view.batches.items():
            self.log.info("%s replays batches %s of %s", view.replay_id, ", ".join(map(str, batch_ids)), name)
        yield lambda _text: None
        self._refuse_to_continue()

    def _refuse_to_continue(self) -> None:
        if self._is_ended:
            raise AirflowException("the task was ended, and its rehearsal or replay with it")

    def on_kill(self) -> None:
        """Airflow ends the task in its worker. The rehearsal or replay of a deferred task ends at its deadline."""
        self._is_ended = True
        if self._begun is not None:
            self.hook().client.plans.give_up(*self._begun)

    def _judged(self, context: Context, result: dict[str, Any]) -> dict[str, Any]:
        if self._report is None:
            return result
        error = self._report.as_error(fails_on_changed_rows=self.plan_terms().fail_on_changed_rows)
        if error is None or (not self._report.fits and not yes_or_no(self.fail_unless_it_fits, "fail_unless_it_fits")):
            return result
        context["ti"].xcom_push(key=RETURN_KEY, value=result)
        raise error


def _is_template(value: object) -> bool:
    """Also what another task returns, or a parameter of the DAG: there is no value until the task runs."""
    if isinstance(value, str):
        return any(mark in value for mark in ("{{", "{%", "{#"))
    return value is not None and not isinstance(value, int | float)


# Another person approves: Airflow's own form, which refuses the user who has triggered the run.


class ApprovalByAnotherOperator(ApprovalOperator):
    """As Airflow's ``ApprovalOperator``; an approval by the user who has triggered the run fails the task.

    A rejection may come from anybody. A run that no user has triggered, e.g. a scheduled one, may be approved by any
    user. After a failure another user clears the task and answers.

    Its parameters are those of ``ApprovalOperator``.
    """

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        if self.APPROVE in (event.get("chosen_options") or ()):
            problem = problem_of_answer(event.get("responded_by_user"), context.get("dag_run"))
            if problem:
                raise AirflowFailException(problem)
        return super().execute_complete(context, event)


def answer_within(timeout: timedelta) -> dict[str, Any]:
    """The arguments by which an ``ApprovalOperator`` waits this long for an answer, in any release of its provider."""
    knows = "response_timeout" in inspect.signature(HITLOperator.__init__).parameters
    # The standard provider of Airflow 3.1 takes the timeout of the task for that of the answer.
    return {"response_timeout" if knows else "execution_timeout": timeout}


def problem_of_answer(answered_by: Any, dag_run: Any) -> str:
    """Why this user's approval of a run does not count; "" where it does.

    Args:
        answered_by: the user as Airflow's form gives it, with an id and a name; None where nobody has answered.
    """
    name = answered_by.get("name") if isinstance(answered_by, dict) else getattr(answered_by, "name", None)
    user = getattr(dag_run, "triggering_user_name", None) or ""
    step = "Another user clears this task, and approves."
    if not name:
        return f"another person has to approve this, and nobody has answered. {step}"
    if user and is_same_person(str(name), user):
        return f"{name} has triggered this run, and another person has to approve it. {step}"
    return ""
