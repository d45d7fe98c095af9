"""A deployment as a run of OpenLineage: what it reads and writes, and its state.

Every event is made from what the home has recorded, under one run id and with the times of that record, so that any
task may send it again. ``openlineage-python`` is imported when the first event is made.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.plan.datasets import DatasetName, datasets_of
from airflow_streamstate.plan.record import recorded_plans
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.events import (
    TERMINAL_EVENTS,
    Drained,
    Event,
    Failed,
    Finished,
    Started,
    Stopped,
)
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.redaction import redact_uri

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent

PRODUCER = "https://pypi.org/project/airflow-streamstate"


@dataclass(frozen=True)
class Parent:
    """The run of a DAG, as OpenLineage knows it."""

    namespace: str
    name: str
    run_id: str


def datasets(client: Controller, stream_id: str, deployment_id: str) -> tuple[list[Any], list[Any]]:
    """What the queries of a deployment read, and what they write, as datasets of OpenLineage.

    Before its own plans are recorded, those of the version before count.
    """
    from openlineage.client.event_v2 import InputDataset, OutputDataset

    control = client.home.control(stream_id)
    plans = recorded_plans(control, deployment_id)
    before = control.spec(deployment_id).start.predecessor_id
    if not plans and before is not None:
        plans = recorded_plans(control, before)
    read, written = datasets_of(plans)
    return _as(InputDataset, read), _as(OutputDataset, written)


def _as(kind: Any, found: Iterable[DatasetName]) -> list[Any]:
    return [kind(namespace=each.namespace, name=each.name) for each in found]


def home_namespace(home_uri: str) -> str:
    """The namespace of the streams of a home, as jobs; without credentials."""
    return f"streamstate://{redact_uri(home_uri).replace('://', '/').strip('/')}"


def run_id_of(spec: DeploymentSpec, home_uri: str) -> str:
    """The run id of a deployment: the same for every sender."""
    words = (
        home_namespace(home_uri),
        spec.stream_id,
        spec.deployment_id,
        spec.request_id,
        format_time(spec.created_at),
    )
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "\n".join(words)))


def run_events(client: Controller, stream_id: str, deployment_id: str, parent: Parent | None = None) -> list[RunEvent]:
    """The events of a deployment so far, oldest first: START, RUNNING for each attempt, and its end.

    A stop, a drain and an end by itself are COMPLETE; a failure is FAIL, and a deployment that was replaced without a
    last event, or was fenced, ABORT. A failed attempt that another one followed is no end.

    Args:
        parent: the DAG run that asked for the deployment; None where another one did, or none.
    """
    from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import job_type_job, parent_run, processing_engine_run

    control = client.home.control(stream_id)
    spec, register = control.spec(deployment_id), control.need_register().value
    events = [entry.event for entry in client.events(stream_id, deployment_id) if entry.event is not None]
    read, written = datasets(client, stream_id, deployment_id)
    facets: dict[str, Any] = {"streamstate_deployment": _deployment_facet(spec)}
    spark = next((event.spark_version for event in reversed(events) if isinstance(event, Started)), None)
    if spark is not None:
        facets["processing_engine"] = processing_engine_run.ProcessingEngineRunFacet(version=spark, name="spark")
    if parent is not None:
        facets["parent"] = parent_run.ParentRunFacet(
            run=parent_run.Run(runId=parent.run_id), job=parent_run.Job(namespace=parent.namespace, name=parent.name)
        )
    job = Job(
        namespace=home_namespace(client.home.config.home_uri),
        name=stream_id,
        facets={
            "jobType": job_type_job.JobTypeJobFacet(processingType="STREAMING", integration="SPARK", jobType="JOB")
        },
    )
    is_current = register.deployment_id == deployment_id

    def event(state: RunState, at: datetime, more: Mapping[str, Any] | None = None) -> RunEvent:
        run = Run(runId=run_id_of(spec, client.home.config.home_uri), facets={**facets, **(more or {})})
        return RunEvent(
            eventType=state, eventTime=format_time(at), run=run, job=job, inputs=read, outputs=written,
            producer=PRODUCER,
        )  # fmt: skip

    found = [event(RunState.START, spec.created_at)]
    found += [event(RunState.RUNNING, each.at) for each in events if isinstance(each, Started)]
    last = _last_word(events, register.attempt if is_current else None)
    if last is not None:
        found.append(event(_state_of(last), last.at, _error_facets(last)))
    elif not is_current:
        beat = control.heartbeat(deployment_id)
        found.append(event(RunState.ABORT, spec.created_at if beat is None else beat.at))
    return found


def _last_word(events: list[Event], attempt: int | None) -> Event | None:
    """The event that ended the last attempt; None while it runs."""
    newest = attempt if attempt is not None else max((event.attempt for event in events), default=1)
    ends = [event for event in events if isinstance(event, TERMINAL_EVENTS) and event.attempt == newest]
    return ends[-1] if ends else None


def _state_of(last: Event) -> Any:
    from openlineage.client.event_v2 import RunState

    if isinstance(last, Failed) or (isinstance(last, Finished) and last.unfinished):
        return RunState.FAIL
    return RunState.COMPLETE if isinstance(last, Drained | Stopped | Finished) else RunState.ABORT


def _error_facets(last: Event) -> dict[str, Any]:
    from openlineage.client.facet_v2 import error_message_run

    if isinstance(last, Finished) and last.unfinished:
        facet = error_message_run.ErrorMessageRunFacet(message=last.sentence, programmingLanguage="python")
        return {"errorMessage": facet}
    if not isinstance(last, Failed):
        return {}
    return {
        "errorMessage": error_message_run.ErrorMessageRunFacet(
            message=last.sentence, programmingLanguage="python", stackTrace=last.traceback or None
        )
    }


def _deployment_facet(spec: DeploymentSpec) -> Any:
    from openlineage.client.facet_v2 import RunFacet

    facet = RunFacet()
    return facet.with_additional_properties(
        stream_id=spec.stream_id,
        deployment_id=spec.deployment_id,
        fencing_token=spec.fencing_token,
        start_mode=spec.start.mode,
        snapshot_id=spec.start.snapshot_id,
        predecessor_id=spec.start.predecessor_id,
        version_label=spec.version.version_label,
    )
