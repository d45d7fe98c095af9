"""Writing a snapshot: it is recorded before its first file, so that no prune removes what it is made of (Law 1).

Its manifest completes it (Law 3). Where it took so long that it was abandoned, a record stands in the manifest's place:
then nothing is completed, and the same snapshot is begun anew, in a data folder of its own.
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
from airflow_streamstate.protocol.ids import is_rehearsal_id
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.retention import AbandonedSnapshot
from airflow_streamstate.snapshot.sharing import Bases

log = logging.getLogger(__name__)

RENEW_AFTER_SHARE = 0.1
"""Of the time after which it counts as abandoned: so that one large file may take the rest of it."""


@dataclass(frozen=True)
class SnapshotWriter:
    """One try to take a snapshot.

    Attributes:
        take: which data folder is its own.
        bases: what it may share files with; None where it copies all, because nothing can keep those files for it.
        place_uri: of the place of its data; "" for with the checkpoints.
        go_on: called between any two files: it records from time to time that the try goes on.
    """

    control: StreamControl
    take: int
    bases: Bases | None
    begun: Begun | None
    abandoned_version: str | None
    place_uri: str = ""
    go_on: Callable[[], None] = lambda: None

    def complete(self, manifest: SnapshotManifest) -> SnapshotManifest:
        """Write the manifest; the one that is there, where another was first.

        Raises:
            UnavailableError: it was abandoned meanwhile; the same call from its beginning takes it.
        """
        try:
            self._need_record(manifest)
            self.control.create_manifest(manifest, over=self.abandoned_version)
        except ObjectExistsError:
            found = self.control.manifest(manifest.snapshot_id)
            if found is None:
                raise UnavailableError(
                    "this snapshot was so long in the making that it was abandoned",
                    snapshot_id=manifest.snapshot_id,
                    next_step="Take it again.",
                ) from None
            manifest = found
        if self.begun is not None:
            with suppress(StreamStateError):  # it is complete, and a prune finds that, too
                Retention(self.control, manifest.taken_by).finish(self.begun, completed=manifest)
        return manifest

    def _need_record(self, manifest: SnapshotManifest) -> None:
        """See that it is still known as being taken: one that was abandoned, or that another one has completed, may
        have been removed since, and its id forgotten.

        Raises:
            ObjectExistsError: it is not.
        """
        if self.begun is None:
            return
        try:
            makings = Retention(self.control).read().makings
        except StreamStateError:
            return  # then it is as well known as before, and what counts is the manifest
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
    """Take a snapshot in this block, and end it with ``SnapshotWriter.complete``.

    The position of a running stream that a rehearsal forks is none that is kept: it has no record, and copies all.

    Args:
        control: the stream.
        snapshot_id: of it.
        deployment_id: whose checkpoints it is of.
        taken_by: ``agent`` or ``controller``.
        needs: snapshots that it is also made of.
        place_uri: as in ``SnapshotWriter``; only what lies at the same place shares files.

    Raises:
        UnavailableError: the register of what is kept cannot be changed now.
    """
    if is_rehearsal_id(snapshot_id):
        yield SnapshotWriter(control, 1, None, None, None)
        return
    retention = Retention(control, taken_by)
    try:
        begun = retention.begin(snapshot_id, needs, place_uri)
    except DataError as error:
        log.warning(
            "what is kept of %s cannot be read, so all of %s is copied: %s", control.stream_id, snapshot_id, error
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
    """Records from time to time that a snapshot is still being taken."""

    def __init__(self, retention: Retention, begun: Begun, clock: Clock) -> None:
        self._retention = retention
        self._begun = begun
        self._lease = Lease(clock, MAKING_SECONDS, is_held=True)

    def give(self) -> None:
        """Record it where that is due; where it fails it is tried again at the next file."""
        if not self._lease.is_due(RENEW_AFTER_SHARE):
            return
        with suppress(StreamStateError), self._lease.renewed() as expires_at:
            self._retention.keep_on(self._begun, expires_at)


def _unrecorded(control: StreamControl, snapshot_id: str, place_uri: str) -> SnapshotWriter:
    slot = control.snapshot_slot(snapshot_id)
    if slot is None or not isinstance(slot.value, AbandonedSnapshot):
        return SnapshotWriter(control, 1, None, None, None, place_uri)
    return SnapshotWriter(control, slot.value.take + 1, None, None, slot.version, place_uri)
