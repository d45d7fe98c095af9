"""``PlanUpgradeOperator``: compare a change with what runs, before anything is stopped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_streamstate.controller.rehearsal.planning import MOST_BATCHES
from airflow_streamstate.controller.rehearsal.rehearsals import Report
from airflow_streamstate.controller.rehearsal.replays import ReplayView
from airflow_streamstate.controller.scratch_driver import LATE_SECONDS
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.hooks.refusals import told_to_airflow
from airflow_streamstate.hooks.rendered import as_seconds, whole_number, yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import RETURN_KEY, request_id_of
from airflow_streamstate.operators.changing import ChangingOperator
from airflow_streamstate.plan.report import PlanReport, replay_sentences

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class PlanUpgradeOperator(ChangingOperator):
    """Say whether a change of a stream fits, before anything is stopped.

    The new script runs once in its own driver, with ``STREAMSTATE_REHEARSAL=1`` in its environment. Each query is
    compared with the running one, and tried with an empty batch on a fork of its state, without a sink. The stream, its
    positions and its sinks are not touched, and the rehearsal's files are removed. Omitted parameters stay as in the
    current deployment.

    With ``replay_batches`` the newest recorded batches then run in the recorded version and in a new one that fits: on
    forks of the state of before them, into temporary files of the worker, with Spark's master ``local[*]``. Their rows
    are compared, and a batch that fails in the new version refuses the change. The task waits for both runs in its
    worker, where the files are; ``deferrable`` is about the rehearsal alone.

    Returns the report, ``{stream_id, deployment_id, rehearsal_id, outcome, reason, verdict, queries{NAME:{verdict,
    differences}}, rehearsal{ok, seconds, error}, seed{ok, error}, replay{queries{NAME:{batches[{batch_id, rows_in,
    rows_out, comparison{same, only_old, only_new, samples_old, samples_new}}]}}, old}, not_replayed, notes}``; a failed
    task has the same XCom. ``replay`` is null where no batch was replayed, and ``not_replayed`` says why.

    :param application: path of the new PySpark script; None: unchanged. (templated)
    :param arguments: all arguments of the script; None: unchanged. (templated)
    :param conf: Spark configuration that overrides the current one; a value may be a reference to a secret. (templated)
    :param environment: variables for the driver that override the current ones. (templated)
    :param master: Spark's master. (templated)
    :param spark_conn_id: an Airflow connection of type ``spark`` through which the driver is started. (templated)
    :param py_files: Python files, folders, zips, eggs and wheels for the script; None: unchanged. (templated)
    :param modules: with ``application``: patterns below its folder: what is pinned of it, in place of what the script
        imports from there. (templated)
    :param working_folder: absolute folder that drivers run in; None: unchanged. (templated)
    :param files: files beside the script; None: unchanged. (templated)
    :param packages: Maven coordinates; None: unchanged. (templated)
    :param jars: jars; None: unchanged. (templated)
    :param allow_new_queries: queries that may start empty although the snapshot does not contain them. (templated)
    :param accept_lost_input: queries that may continue although input after their offsets is lost. (templated)
    :param allow_state_loss: drop state that the drain could not flush. (templated)
    :param allow_literal_secrets: accept literal values under secret-like names, and record them in the home.
        (templated)
    :param version_label: your own name of the new version; None: none for another script. (templated)
    :param on_query_failure: what a failed query does to the others, as in ``DeployStreamOperator``; None: unchanged.
        (templated)
    :param rehearse: run batches on a fork of the state; false compares only the plans, for which the script runs, too.
        (templated)
    :param rehearse_batches: so many of the newest batches of each query run again, with their rows and without a sink.
        (templated)
    :param rehearse_rows: about so many rows of these batches, at most. (templated)
    :param replay_batches: so many of the newest batches of each query run in both versions; 0: none. (templated)
    :param fail_on_changed_rows: with ``replay_batches``: fail the task unless each replayed batch has the same rows in
        both versions. Where nothing can be replayed, the plan alone decides. (templated)
    :param deadline_seconds: when the rehearsal is ended, and each of the two runs of a replay. The task waits until
        then, and has no ``timeout_seconds``. (templated)
    :param fail_unless_it_fits: fail the task if the verdict is neither ``same`` nor ``state-compatible``, or the
        rehearsal failed; false leaves the decision to later tasks. (templated)
    """

    template_fields: Sequence[str] = (
        *(name for name in ChangingOperator.template_fields if name != "timeout_seconds"),
        "deadline_seconds",
        "rehearse",
        "fail_unless_it_fits",
        "replay_batches",
        "fail_on_changed_rows",
    )

    def __init__(
        self,
        *,
        rehearse: bool | str = True,
        fail_unless_it_fits: bool | str = True,
        deadline_seconds: float | str = 600.0,
        replay_batches: int | str = 0,
        fail_on_changed_rows: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout_seconds=deadline_seconds, **kwargs)
        self.deadline_seconds = deadline_seconds
        self.rehearse = rehearse
        self.fail_unless_it_fits = fail_unless_it_fits
        self.replay_batches = replay_batches
        self.fail_on_changed_rows = fail_on_changed_rows
        # A DAG that asks for what cannot be is not parsed; what is a template is checked when it is rendered.
        batches = None if _is_template(replay_batches) else self._batches_to_replay()
        if not _is_template(fail_on_changed_rows) and batches is not None:
            self.replayed()
        self._begun: tuple[str, str] | None = None
        self._is_ended = False
        self._report: PlanReport | None = None

    def replayed(self) -> tuple[int, bool]:
        """How many batches of each query are replayed, and whether changed rows fail the task.

        Raises:
            InvalidRequestError: a field is invalid, or they contradict each other.
        """
        batches = self._batches_to_replay()
        fails = yes_or_no(self.fail_on_changed_rows, "fail_on_changed_rows")
        if fails and not batches:
            raise InvalidRequestError(
                "fail_on_changed_rows compares replayed batches, and none is replayed",
                next_step="Give replay_batches, too.",
            )
        return batches, fails

    def _batches_to_replay(self) -> int:
        batches = whole_number(self.replay_batches, "replay_batches")
        if not 0 <= batches <= MOST_BATCHES:
            raise InvalidRequestError(
                "so many batches cannot be replayed",
                replay_batches=batches,
                next_step=f"Give 0 to {MOST_BATCHES}.",
            )
        return batches

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        request, deadline_seconds = self.change(), as_seconds(self.deadline_seconds, "deadline_seconds")
        batches, rows = self.rehearsed()
        self.replayed()
        view = hook.client.plans.begin(
            request,
            request_id=request_id_of(context, request.digest),
            runs_batches=yes_or_no(self.rehearse, "rehearse"),
            batches=batches,
            rows=rows,
            deadline_seconds=deadline_seconds,
        )
        self._begun = (view.stream_id, view.rehearsal_id)
        watch = WaitCondition("rehearsed", view.stream_id, deployment_id=view.rehearsal_id)
        # The rehearsal ends itself at its deadline, and the wait sees that end.
        result = self.wait_until_done(hook, watch, timeout_seconds=deadline_seconds + 2 * LATE_SECONDS)
        return self._judged(context, result)

    def execute_complete(self, context: Context, event: Any = None) -> dict[str, Any]:
        result = super().execute_complete(context, event)
        with told_to_airflow():
            return self._judged(context, result)

    def result_from(self, watch: WaitCondition, observed: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        plans, (batches, _) = self.hook().client.plans, self.replayed()
        self._report = plans.report(watch.stream_id, watch.deployment_id)
        if batches:
            self._report = self.hook().client.replays.add_to(
                self._report,
                self.change(),
                batches,
                self._watched,
                deadline_seconds=as_seconds(self.deadline_seconds, "deadline_seconds"),
            )
            for text in replay_sentences(self._report):
                self.log.info("%s", text)
        return self._report.to_json()

    @contextmanager
    def _watched(self, view: ReplayView) -> Iterator[Report]:
        """Names the replay to ``on_kill`` while it is waited for."""
        self._begun = (view.stream_id, view.replay_id)
        self._refuse_to_go_on()
        for name, batch_ids in view.batches.items():
            self.log.info("%s replays batches %s of %s", view.replay_id, ", ".join(map(str, batch_ids)), name)
        yield lambda _text: None
        self._refuse_to_go_on()

    def _refuse_to_go_on(self) -> None:
        if self._is_ended:
            raise AirflowException("the task was ended, and its replay with it")

    def on_kill(self) -> None:
        """Airflow ends the task in its worker. The rehearsal of a deferred task ends at its deadline."""
        self._is_ended = True
        if self._begun is not None:
            self.hook().client.plans.give_up(*self._begun)

    def _judged(self, context: Context, result: dict[str, Any]) -> dict[str, Any]:
        if self._report is None:
            return result
        _, fails_on_changed_rows = self.replayed()
        error = self._report.as_error(fails_on_changed_rows=fails_on_changed_rows)
        if error is None or (not self._report.fits and not yes_or_no(self.fail_unless_it_fits, "fail_unless_it_fits")):
            return result
        context["ti"].xcom_push(key=RETURN_KEY, value=result)
        raise error


def _is_template(value: object) -> bool:
    return isinstance(value, str) and ("{{" in value or "{%" in value)
