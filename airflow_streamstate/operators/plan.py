"""``PlanUpgradeOperator``: what a change would do, before anything is stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_streamstate.hooks.observing import Watch
from airflow_streamstate.hooks.refusals import told_to_airflow
from airflow_streamstate.hooks.rendered import as_seconds, optional_text, text_mapping, texts, yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.lifecycle.changes import ChangeRequest
from airflow_streamstate.lifecycle.rehearsals import LATE_SECONDS
from airflow_streamstate.operators.base import StreamStateOperator, request_id_of
from airflow_streamstate.operators.deploy import mask_secrets_of
from airflow_streamstate.plan.report import PlanReport

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

RETURN_KEY = "return_value"
_PLACES = ("application", "py_files", "files", "jars", "packages", "master")
_MAY_BE_SECRET = frozenset({"conf", "arguments", "environment", *_PLACES})


class PlanUpgradeOperator(StreamStateOperator):
    """Say whether a change of a stream fits, before anything is stopped.

    The new script runs once in a driver of its own, with ``STREAMSTATE_REHEARSAL=1`` in its environment; each of its
    queries is compared with the one that runs now, and tried with an empty batch on a fork of its state, into no sink.
    Neither the stream nor any position or sink is touched, and what the rehearsal made is removed. What is not given
    stays as the current deployment has it.

    Returns the report, ``{stream_id, deployment_id, rehearsal_id, outcome, reason, verdict, queries{NAME:{verdict,
    differences}}, rehearsal{ok, seconds, error}, notes}``, as its XCom also where it fails the task.

    :param application: path of the new PySpark script; None: as it is, with other settings. (templated)
    :param arguments: its arguments, all of them; None: as they are. (templated)
    :param conf: Spark's configuration, laid over the present one; a value may be a reference to a secret. (templated)
    :param environment: variables for the driver, in the same way. (templated)
    :param master: Spark's master. (templated)
    :param spark_conn_id: an Airflow connection of type ``spark`` through which the driver is started. (templated)
    :param py_files: Python files and zips for the script; None: as they are. (templated)
    :param files: files beside the script; None: as they are. (templated)
    :param packages: Maven coordinates; None: as they are. (templated)
    :param jars: jars; None: as they are. (templated)
    :param fresh_queries: queries that may start with nothing, although the snapshot does not know them. (templated)
    :param accept_lost_input: queries that may go on although input behind their offsets is lost. (templated)
    :param discard_state: drop state that the drain could not flush. (templated)
    :param allow_literal_secrets: take values under secret-like names as they are, recorded in the home. (templated)
    :param rehearse: run the empty batches; else the plans alone are compared, by a run of the script all the same.
        (templated)
    :param fail_unless_it_fits: fail the task where the verdict is neither ``same`` nor ``state-compatible``, or the
        rehearsal did not go well; else the report is all, and what follows decides by it. (templated)

    .. seealso:: :ref:`howto/operator:PlanUpgradeOperator`
    """

    template_fields: Sequence[str] = (
        *StreamStateOperator.template_fields,
        "application",
        "arguments",
        "conf",
        "environment",
        "master",
        "spark_conn_id",
        "py_files",
        "files",
        "packages",
        "jars",
        "fresh_queries",
        "accept_lost_input",
        "discard_state",
        "allow_literal_secrets",
        "rehearse",
        "fail_unless_it_fits",
    )

    def __init__(
        self,
        *,
        application: str | Path | None = None,
        arguments: Sequence[str] | str | None = None,
        conf: Mapping[str, str] | str | None = None,
        environment: Mapping[str, str] | str | None = None,
        master: str | None = None,
        spark_conn_id: str | None = None,
        py_files: Sequence[str] | str | None = None,
        files: Sequence[str] | str | None = None,
        packages: Sequence[str] | str | None = None,
        jars: Sequence[str] | str | None = None,
        fresh_queries: Sequence[str] | str = (),
        accept_lost_input: Sequence[str] | str = (),
        discard_state: bool | str = False,
        allow_literal_secrets: bool | str = False,
        rehearse: bool | str = True,
        fail_unless_it_fits: bool | str = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.application = None if application is None else str(application)
        self.arguments = arguments
        self.conf = conf
        self.environment = environment
        self.master = master
        self.spark_conn_id = spark_conn_id
        self.py_files = py_files
        self.files = files
        self.packages = packages
        self.jars = jars
        self.fresh_queries = fresh_queries
        self.accept_lost_input = accept_lost_input
        self.discard_state = discard_state
        self.allow_literal_secrets = allow_literal_secrets
        self.rehearse = rehearse
        self.fail_unless_it_fits = fail_unless_it_fits
        self._begun: tuple[str, str] | None = None
        self._report: PlanReport | None = None
        self._built = True

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        # As ``DeployStreamOperator``: what is set again is rendered, and shown from then on.
        if name in _MAY_BE_SECRET and self.__dict__.get("_built"):
            shown = self.__dict__
            mask_secrets_of(shown.get("conf"), shown.get("arguments"), shown.get("environment"))
            for place in _PLACES:
                value = shown.get(place)
                mask_secrets_of(None, [value] if isinstance(value, str) else value)

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        request = self._request()
        view = hook.controller.plans.begin(
            request,
            # One id is one wish, as for a deploy; one that is over is begun anew when the task is cleared.
            request_id=request_id_of(context, request.digest),
            runs_batches=yes_or_no(self.rehearse, "rehearse"),
            deadline_seconds=as_seconds(self.wait_seconds, "wait_seconds"),
        )
        self._begun = (view.stream_id, view.rehearsal_id)
        watch = Watch("rehearsed", view.stream_id, deployment_id=view.rehearsal_id)
        # The rehearsal ends itself at its deadline; whoever waits sees that end.
        result = self.wait_until_done(hook, watch, beyond_seconds=2 * LATE_SECONDS)
        return self._judged(context, result)

    def execute_complete(self, context: Context, event: Any = None) -> dict[str, Any]:
        result = super().execute_complete(context, event)
        with told_to_airflow():
            return self._judged(context, result)

    def result_from(self, watch: Watch, observed: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        self._report = self.hook().controller.plans.report(watch.stream_id, watch.deployment_id)
        return self._report.to_json()

    def on_kill(self) -> None:
        """Airflow ends the task while it waits in a worker; in the triggerer the rehearsal ends at its deadline."""
        if self._begun is not None:
            self.hook().controller.plans.give_up(*self._begun)

    def _judged(self, context: Context, result: dict[str, Any]) -> dict[str, Any]:
        if self._report is None or not yes_or_no(self.fail_unless_it_fits, "fail_unless_it_fits"):
            return result
        error = self._report.as_error()
        if error is not None:
            context["ti"].xcom_push(key=RETURN_KEY, value=result)  # a task that fails returns nothing
            raise error
        return result

    def _request(self) -> ChangeRequest:
        application = optional_text(self.application)
        py_files, files = self._listed("py_files"), self._listed("files")
        return ChangeRequest(
            stream_id=str(self.stream_id),
            application=None if application is None else Path(application),
            arguments=self._listed("arguments"),
            conf=text_mapping(self.conf, "conf"),
            environment=text_mapping(self.environment, "environment"),
            master=optional_text(self.master),
            spark_conn_id=optional_text(self.spark_conn_id),
            py_files=None if py_files is None else tuple(map(Path, py_files)),
            files=None if files is None else tuple(map(Path, files)),
            packages=self._listed("packages"),
            jars=self._listed("jars"),
            fresh_queries=texts(self.fresh_queries, "fresh_queries"),
            accept_lost_input=texts(self.accept_lost_input, "accept_lost_input"),
            discard_state=yes_or_no(self.discard_state, "discard_state"),
            allow_literal_secrets=yes_or_no(self.allow_literal_secrets, "allow_literal_secrets"),
            reason=str(self.reason),
        )

    def _listed(self, name: str) -> tuple[str, ...] | None:
        """None, or what templates make of it, is what stays as it is."""
        value = getattr(self, name)
        is_given = value is not None and (not isinstance(value, str) or optional_text(value) is not None)
        return texts(value, name) if is_given else None
