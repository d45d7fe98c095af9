"""What a rollback goes back to: the version before the current one, or the one that an older snapshot was taken of."""

from __future__ import annotations

from contextlib import suppress

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import Means
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.observe.snapshot_age import refuse_old
from airflow_streamstate.controller.upgrade.requests import RollbackRequest
from airflow_streamstate.errors import DataError, DeploymentNotFoundError, InvalidRequestError
from airflow_streamstate.protocol.ids import return_request_id_for, upgrade_of_return
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.snapshot.leases import SnapshotLease


def version_to_return_to(means: Means, control: StreamControl, request: RollbackRequest, request_id: str) -> str:
    """The deployment whose code is to run again.

    Args:
        means: of the controller.
        control: the stream.
        request: the rollback that is asked for; a snapshot that it names is held by a lease from here on.
        request_id: of it.

    Raises:
        InvalidRequestError: there was no deployment before; or the current one is itself a way back, and before it
            was what somebody has given up, or the same code.
        SnapshotNotFoundError: there is no such snapshot, or it is being removed.
        IncompatibleUpgradeError: it is older than was allowed.
    """
    if request.snapshot_id is None:
        return _before(control, means.observer.observe(control.stream_id))
    manifest, bound = control.need_manifest(request.snapshot_id), request.max_snapshot_age_seconds
    refuse_old(manifest.taken_at, manifest.snapshot_id, bound, means.clock.now())
    # A prune that looked before this is recorded must not remove it behind that: the lease runs out by itself, long
    # after whoever prunes reads the record.
    SnapshotLease(control, request.snapshot_id, f"the rollback {request_id}").take()
    return manifest.deployment_id


def _before(control: StreamControl, seen: Observation) -> str:
    before = seen.spec.start.predecessor_id
    if before is None:
        raise InvalidRequestError(
            "this is the stream's first deployment, so there is nothing to go back to",
            stream_id=seen.stream_id,
            deployment_id=seen.deployment_id,
            next_step="Upgrade it to a version that is well.",
        )
    given_up_by = upgrade_of_return(seen.spec.request_id)
    if given_up_by is not None and _is_same_anew(control, seen.spec, before, given_up_by):
        raise InvalidRequestError(
            "an upgrade that was given up has deployed this version anew, so what ran before it is the same code",
            stream_id=seen.stream_id,
            deployment_id=seen.deployment_id,
            same_code=before,
            given_up_by=given_up_by,
            next_step=f"`streamstate upgrade {seen.stream_id}` with the application of an older version runs that on"
            f" the state as it is; `streamstate rollback {seen.stream_id} --snapshot ID` goes back to an older state.",
        )
    if given_up_by is not None:
        raise InvalidRequestError(
            "the stream has gone back already: what ran before its current deployment is what was given up",
            stream_id=seen.stream_id,
            deployment_id=seen.deployment_id,
            given_up=before,
            given_up_by=given_up_by,
            next_step=f"`streamstate rollback {seen.stream_id} --snapshot ID` goes further back; `streamstate upgrade "
            f"{seen.stream_id}` with the application of {before} runs that again.",
        )
    return before


def _is_same_anew(control: StreamControl, spec: DeploymentSpec, before: str, upgrade_id: str) -> bool:
    """Whether an upgrade that never came to its new version has deployed the old one anew, over what it had left."""
    with suppress(DataError, DeploymentNotFoundError):
        is_anew = spec.request_id == return_request_id_for(upgrade_id, "anew")
        return is_anew and control.spec(before).application == spec.application
    return False
