"""Leases: while a reader holds the lease of a snapshot, no prune removes anything of it.

A living reader renews its lease; the lease of a dead one expires. A reading that cannot renew takes a longer lease.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.control.lease import Lease
from airflow_streamstate.control.retention import Retention
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import (
    DataError,
    InvalidRequestError,
    SnapshotNotFoundError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import is_scratch_id
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.snapshot.places import gathered, gathered_logs, one_folder
from airflow_streamstate.snapshot.placing import SnapshotPlaces, land
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.cleanup import delete_below

LEASE_SECONDS = 900.0


class SnapshotLease:
    """The right to read one snapshot for a while; arguments as ``leased``."""

    def __init__(self, control: StreamControl, snapshot_id: str, reader: str, seconds: float = LEASE_SECONDS) -> None:
        self.lease_id = control.clock.new_uuid()
        self.snapshot_id = snapshot_id
        self._control = control
        self._retention = Retention(control, reader)
        self._reader = reader
        self._lease = Lease(control.clock, seconds, is_held=True)
        self._gathered: Store | None = None
        self._is_held = False

    def take(self) -> None:
        """Take it, or renew it now. Raises as ``leased``."""
        if is_scratch_id(self.snapshot_id):
            return  # it is removed with its rehearsal
        with self._lease.renewed() as until_at:
            try:
                self._retention.lease(self.lease_id, self.snapshot_id, self._reader, until_at)
            except SnapshotNotFoundError:
                raise
            except (DataError, InvalidRequestError):
                pass  # no prune works by a damaged register; and a reader without the right to write needs no lease
        self._is_held = True

    def renew(self) -> None:
        """Renew it where that is due; a failure is tried again at the next call."""
        if self._lease.is_due():
            with suppress(StreamStateError):
                self.take()

    def landed(
        self,
        places: SnapshotPlaces,
        manifest: SnapshotManifest,
        query_names: Collection[str],
        go_on: Callable[[], None] = lambda: None,
    ) -> SnapshotManifest:
        """The snapshot with these of its queries beside the checkpoints, while the lease is held.

        Where it lies at another place its files are copied; ``go_on`` is called meanwhile.

        Raises:
            UnavailableError: the place does not answer.
            SnapshotIncompleteError, SnapshotCorruptError: the snapshot is not whole.
        """
        if not manifest.data_uri:
            return manifest
        self._gather(places.checkpoints)

        def still_there() -> None:
            self.renew()
            go_on()

        return land(places, manifest, query_names, self.lease_id, still_there)

    def folder_of(self, checkpoints: Store, manifest: SnapshotManifest, query_name: str) -> Checkpoint:
        """One query of the snapshot as a folder that Spark can read, while the lease is held.

        Raises:
            ObjectMissingError, DataError: the snapshot is not whole.
            UnavailableError: its files must be gathered, which needs a lease, and none can be taken now.
        """
        self._gather(checkpoints, is_needed=not one_folder(manifest, query_name))
        return gathered(checkpoints, manifest, query_name, self.lease_id)

    def logs_of(self, checkpoints: Store, manifest: SnapshotManifest, query_name: str) -> Checkpoint:
        """The same with its logs alone, which a drained query has, too."""
        self._gather(checkpoints, is_needed=not one_folder(manifest, query_name))
        return gathered_logs(checkpoints, manifest, query_name, self.lease_id)

    def _gather(self, checkpoints: Store, *, is_needed: bool = True) -> None:
        """Take the lease before files are gathered: a prune removes gathered files that have none."""
        if is_needed and not self._is_held:
            self.take()
        self._gathered = checkpoints

    def release(self) -> None:
        """Give it back, or let it expire where that fails."""
        with suppress(StreamStateError):
            if self._gathered is not None:
                folder = f"{layout.gathered_folders(self._control.stream_id)}/{self.lease_id}"
                delete_below(self._gathered, folder)
        if not is_scratch_id(self.snapshot_id):
            with suppress(StreamStateError):
                self._retention.release(self.lease_id)


@contextmanager
def leased(
    control: StreamControl,
    snapshot_id: str,
    reader: str,
    seconds: float = LEASE_SECONDS,
    *,
    is_kept_anyhow: bool = False,
) -> Iterator[SnapshotLease]:
    """Read a snapshot within the block: nothing of it is removed meanwhile, and its age counts from now on.

    Args:
        reader: the name that a prune reports where it leaves the snapshot.
        seconds: how long the lease lasts if it is not renewed.
        is_kept_anyhow: the snapshot is kept for another reason, e.g. the current deployment starts from it: then the
            lease only marks it as used, and the block runs without one where it cannot be taken now.

    Raises:
        SnapshotNotFoundError: the snapshot is being removed.
        UnavailableError: the register of what is kept cannot be changed now.
    """
    lease = SnapshotLease(control, snapshot_id, reader, seconds)
    try:
        lease.take()
    except UnavailableError:
        if not is_kept_anyhow:
            raise
    try:
        yield lease
    finally:
        lease.release()
