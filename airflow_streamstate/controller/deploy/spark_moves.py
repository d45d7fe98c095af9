"""A deploy on a Spark that cannot read the predecessor's checkpoints is refused before anything is touched (Law 10)."""

from __future__ import annotations

from airflow_streamstate.checkpoint.log import Checkpoint, Position
from airflow_streamstate.checkpoint.spark_versions import offset_log_of, refuse_move, state_store_of
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.deploy.takeover import built_checkpoints, written_by
from airflow_streamstate.controller.drivers.launching import Drivers
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.errors import DataError
from airflow_streamstate.protocol.records import DeploymentSpec


def refuse_spark(home: Home, control: StreamControl, drivers: Drivers, spec: DeploymentSpec, seen: Observation) -> None:
    """Check that the Spark of a deployment can go on with the checkpoints of its predecessor ``seen``.

    Comes before all other refusals: a running stream should not be stopped for a deploy that is refused afterwards.
    A drained predecessor passes: any Spark reads its positions.

    Raises:
        IncompatibleUpgradeError: it cannot.
        InvalidRequestError: the deployment could not be launched.
    """
    if seen.drained is not None:
        return
    runs_on = drivers.spark_version(spec)
    if not runs_on:
        return  # unknown here: the driver checks it
    try:
        checkpoints = built_checkpoints(home, seen)
        positions = {name: checkpoint.position() for name, checkpoint in checkpoints.items()}
        before = written_by(control, seen, checkpoints, positions)
        committed_by = written_by(control, seen, checkpoints, positions, with_planned=False)
        formats = {_formats(checkpoints[name], position) for name, position in positions.items()} or {("", "")}
    except DataError:
        return  # a later step reports a damaged checkpoint
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


def _formats(checkpoint: Checkpoint, position: Position) -> tuple[str, str]:
    """The state store provider and the version of the offset log."""
    entry = position.planned if position.batch_id is None else checkpoint.read_offset(position.batch_id)
    return state_store_of(entry, has_state=checkpoint.has_state()), offset_log_of(entry)
