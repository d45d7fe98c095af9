"""Records a snapshot before its first file, so that no prune removes what it is made of (Law 1), and completes it.

The manifest completes it (Law 3). Where it took so long that it was abandoned, a record is in the manifest's place:
then nothing is completed, and the same snapshot begins anew, in a data folder of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.lease import Lease
from airflow_streamstate.control.retention import MAKING_SECONDS, Begun, Retention
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import DataError, ObjectExistsError, StreamStateError, UnavailableError
from airflow_streamstate.protocol.ids import is_scratch_id
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.retention import AbandonedSnapshot
from airflow_streamstate.snapshot.sharing import Bases

log = logging.getLogger(__name__)

RENEW_AFTER_SHARE = 0.1
"""A share of the time after which it counts as abandoned: one large file may take the rest of it."""


@dataclass(frozen=True)
class SnapshotWriter:
    """One try to take a snapshot.

    Attributes:
        take: the number of its own data folder.
        bases: what it may share files with; None where no record can keep those files for it.
        place_uri: of the place of its data; "" for with the checkpoints.
        go_on: to be called between any two files: renews the record from time to time.
    """

    control: StreamControl
    take: int
    bases: Bases | None
    begun: Begun | None
    abandoned_version: str | None
    place_uri: str = ""
    go_on: Callable[[], None] = lambda: None

    def complete(self, manifest: SnapshotManifest) -> SnapshotManifest:
        """Write the manifest, or return the one of another process that was first.

        Raises:
            UnavailableError: the snapshot was abandoned meanwhile; it has to be taken again.
        """
        try:
            self._need_record(manifest)
            self.control.create_manifest(manifest, over=self.abandoned_version)
        except ObjectExistsError:
            found = self.control.manifest(manifest.snapshot_id)
            if found is None:
                raise UnavailableError(
                    "this snapshot took so long that it was abandoned",
                    snapshot_id=manifest.snapshot_id,
                    next_step="Take it again.",
                ) from None
            manifest = found
        if self.begun is not None:
            with suppress(StreamStateError):  # a prune finds that it is complete, too
                Retention(self.control, manifest.taken_by).finish(self.begun, completed=manifest)
        return manifest

    def _need_record(self, manifest: SnapshotManifest) -> None:
        """Check that the record is still there: else the snapshot may have been removed, and its id forgotten.

        Raises:
            ObjectExistsError: it is gone.
        """
        if self.begun is None:
            return
        try:
            makings = Retention(self.control).read().makings
        except StreamStateError:
            return  # the manifest decides
        if self.begun.making_id not in makings:
            raise ObjectExistsError("the record that this snapshot is being taken is gone", key=manifest.snapshot_id)


@contextmanager
def snapshot_writer(
    control: StreamControl,
    snapshot_id: str,
    deployment_id: str,
    taken_by: str,
    needs: Collection[str],
    place_uri: str = "",
) -> Iterator[SnapshotWriter]:
    """Take a snapshot within this block, and end it with ``SnapshotWriter.complete``.

    The position that a rehearsal forks is not kept: it has no record, and shares no file.

    Args:
        deployment_id: of the checkpoints.
        taken_by: ``agent`` or ``controller``.
        needs: snapshots that it is also made of.
        place_uri: as in ``SnapshotWriter``; only snapshots at the same place share files.

    Raises:
        UnavailableError: the register of what is kept cannot be changed now.
    """
    if is_scratch_id(snapshot_id):
        yield SnapshotWriter(control, 1, None, None, None)
        return
    retention = Retention(control, taken_by)
    try:
        begun = retention.begin(snapshot_id, needs, place_uri)
    except DataError as error:
        log.warning(
            "the retention register of %s cannot be read, so all of %s is copied: %s",
            control.stream_id,
            snapshot_id,
            error,
        )
        yield _unrecorded(control, snapshot_id, place_uri)
        return
    manifests = {base: control.readable_manifest(base) for base in begun.base_ids}
    beside = {base: found for base, found in manifests.items() if found is not None and found.data_uri == place_uri}
    try:
        bases, go_on = Bases(deployment_id, beside), _Signs(retention, begun, control.clock).give
        yield SnapshotWriter(control, begun.take, bases, begun, begun.abandoned_version, place_uri, go_on)
    except Exception:
        with suppress(StreamStateError):  # it expires
            retention.finish(begun)
        raise


class _Signs:
    """Renews the record of a snapshot in progress."""

    def __init__(self, retention: Retention, begun: Begun, clock: Clock) -> None:
        self._retention = retention
        self._begun = begun
        self._lease = Lease(clock, MAKING_SECONDS, is_held=True)

    def give(self) -> None:
        """Renew it where that is due; a failure is tried again at the next file."""
        if not self._lease.is_due(RENEW_AFTER_SHARE):
            return
        with suppress(StreamStateError), self._lease.renewed() as expires_at:
            self._retention.keep_on(self._begun, expires_at)


def _unrecorded(control: StreamControl, snapshot_id: str, place_uri: str) -> SnapshotWriter:
    slot = control.snapshot_slot(snapshot_id)
    if slot is None or not isinstance(slot.value, AbandonedSnapshot):
        return SnapshotWriter(control, 1, None, None, None, place_uri)
    return SnapshotWriter(control, slot.value.take + 1, None, None, slot.version, place_uri)
