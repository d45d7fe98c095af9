"""What operators that begin or end a deployment tell OpenLineage."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_streamstate.errors import StreamNotFoundError, StreamStateError
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.protocol.requesters import means_of

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors.base import OperatorLineage

    from airflow_streamstate.hooks.openlineage import Parent

log = logging.getLogger(__name__)


class TellsLineage:
    """Gives the task's events of OpenLineage their datasets, and sends the deployment's own events.

    Airflow's OpenLineage provider calls the methods in a process beside the task; without it nothing of this runs. What
    goes wrong here is logged, and changes nothing of the task.
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
        """As after success: a deployment may have begun, failed, or gone on."""
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
            log.warning("OpenLineage is told nothing of %s: %s", stream_id, error)
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
