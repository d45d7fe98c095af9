"""A deploy on a Spark that cannot read what the predecessor's wrote is refused while nothing has been touched."""

from __future__ import annotations

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.spark_versions import offset_log_of, refuse_move, state_store_of
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.deploy.takeover import built_checkpoints, written_by
from airflow_streamstate.controller.drivers.launching import Drivers
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.errors import DataError
from airflow_streamstate.protocol.records import DeploymentSpec


def refuse_spark(home: Home, control: StreamControl, drivers: Drivers, spec: DeploymentSpec, seen: Observation) -> None:
    """See that the Spark that would run a deployment can go on with the state of the one before it.

    Asked first of all, also of one that still runs: whoever is told to stop it and deploy again must not be told
    afterwards that this was in vain. A drained one left positions, which go anywhere.

    Args:
        home: of the stream.
        control: the stream.
        drivers: know which Spark they would start.
        spec: the deployment that is wanted.
        seen: the one before it.

    Raises:
        IncompatibleUpgradeError: it cannot.
        InvalidRequestError: it could not be launched at all.
    """
    if seen.drained is not None:
        return
    runs_on = drivers.spark_version(spec)
    if not runs_on:
        return  # the driver itself looks again
    try:
        checkpoints = built_checkpoints(home, seen)
        before = written_by(control, seen, checkpoints)
        committed_by = written_by(control, seen, checkpoints, with_planned=False)
        formats = {_formats(checkpoint) for checkpoint in checkpoints.values()} or {("", "")}
    except DataError:
        return  # a damaged checkpoint has an error of its own
    for provider, offset_log in sorted(formats):
        refuse_move(
            before,
            runs_on,
            provider,
            offset_log,
            committed_by=committed_by,
            stream_id=seen.stream_id,
            deployment_id=seen.deployment_id,
        )


def _formats(checkpoint: Checkpoint) -> tuple[str, str]:
    """State store and version of the offset log."""
    position = checkpoint.position()
    entry = position.planned if position.batch_id is None else checkpoint.read_offset(position.batch_id)
    return state_store_of(entry, has_state=checkpoint.has_state()), offset_log_of(entry)
