"""Seals: the sha256 of a snapshot's files, computed in the background.

A snapshot with state at the end of an attempt is sealed by the stream's next driver, because a successor waits for this
one to go. A ``drained`` snapshot holds positions only, and is sealed at once.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.errors import DataError, StreamStateError, UnavailableError
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.snapshot.leases import leased
from airflow_streamstate.snapshot.seal import needs_seal, seal

SEAL_OLDER_AFTER_SECONDS = 30.0
"""By then a driver has started its queries."""
AT_ONCE_BYTES = 1 << 22


def seal_positions(attempt: Attempt, manifest: SnapshotManifest) -> None:
    """Seal a small snapshot, such as one of positions only; a larger one is left to the next driver."""
    if manifest.size_bytes <= AT_ONCE_BYTES:
        _seal(attempt, manifest.snapshot_id, lambda: None)


def seal_in_background(attempt: Attempt, snapshot_id: str) -> None:
    """Seal a snapshot at low priority; gives up once the deployment is being ended."""
    attempt.in_background(lambda: seal_now(attempt, snapshot_id))


def seal_now(attempt: Attempt, snapshot_id: str) -> None:
    """The same, in the calling thread."""
    _seal(attempt, snapshot_id, lambda: _give_way(attempt))


def seal_older(attempt: Attempt) -> None:
    """Seal the unsealed snapshots of this deployment and of its predecessor."""
    owners = [attempt.deployment_id, attempt.spec.start.predecessor_id]
    try:
        snapshot_ids = attempt.control.snapshot_ids()
    except StreamStateError as error:
        attempt.reporter.outage("the list of snapshots", error)
        return
    for snapshot_id in snapshot_ids:
        if any(owner is not None and snapshot_id.startswith(f"{owner}-") for owner in owners):
            _seal(attempt, snapshot_id, lambda: _give_way(attempt))


def _seal(attempt: Attempt, snapshot_id: str, before_each: Callable[[], None]) -> None:
    """Report a problem and never raise it: a missing seal must not fail the job."""
    try:
        manifest = attempt.control.manifest(snapshot_id)
        if manifest is not None and needs_seal(manifest) and attempt.control.seal(snapshot_id) is None:
            with leased(attempt.control, snapshot_id, f"the seal by {attempt.deployment_id}") as lease:

                def before() -> None:
                    before_each()
                    lease.renew()

                seal(attempt.control, attempt.places.of(manifest), snapshot_id, before_each=before)
    except DataError as error:
        attempt.reporter.note("a snapshot is not whole, so it is not sealed", snapshot_id=snapshot_id, why=str(error))
    except StreamStateError as error:
        attempt.reporter.say(f"snapshot {snapshot_id} is not sealed: {error}")


def _give_way(attempt: Attempt) -> None:
    if attempt.fence.is_fenced or not attempt.latch.is_open:
        raise UnavailableError("the deployment is being ended, and that comes first")
