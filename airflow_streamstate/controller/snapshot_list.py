"""List and verify the snapshots of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.errors import DataError, StreamStateError
from airflow_streamstate.protocol.manifest import SnapshotManifest

if TYPE_CHECKING:
    from airflow_streamstate.snapshot.verify import Problem


class Snapshots:
    """The snapshots of the streams of one home."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def all(self, stream_id: str) -> list[SnapshotManifest]:
        """The complete snapshots of a stream, oldest first; those with a readable manifest (Law 3).

        Raises StreamNotFoundError.
        """
        control = self._context.home.need_stream(stream_id)
        found = []
        for snapshot_id in control.snapshot_ids():
            try:
                manifest = control.manifest(snapshot_id)
            except StreamStateError:
                continue
            if manifest is not None:
                found.append(manifest)
        return sorted(found, key=lambda manifest: manifest.order)

    def unreadable(self, stream_id: str) -> list[str]:
        """The ids of snapshots with an unreadable manifest; ``verify`` reports why. Raises StreamNotFoundError."""
        control = self._context.home.need_stream(stream_id)
        found = []
        for snapshot_id in control.snapshot_ids():
            try:
                control.manifest(snapshot_id)
            except DataError:
                found.append(snapshot_id)
        return found

    def verify(self, stream_id: str, snapshot_id: str) -> list[Problem]:
        """Read every byte of a snapshot, and list what is missing, altered or unreadable. Seals a complete snapshot.

        For the snapshot that the current deployment started from, also lists what the predecessor's driver did after
        it.

        Raises:
            SnapshotNotFoundError: the snapshot has no manifest.
            UnavailableError: the store of its data does not answer.
        """
        from airflow_streamstate.controller.deploy.attempts import is_start_of_another, outrun_problems
        from airflow_streamstate.snapshot.deletion import leased
        from airflow_streamstate.snapshot.verify import examine, seal_as_read

        home = self._context.home
        control = home.need_stream(stream_id)
        with leased(control, snapshot_id, f"verify, {self._context.requested_by}") as lease:
            store = home.places.of(control.need_manifest(snapshot_id))
            examined = examine(control, store, snapshot_id, before_each=lease.renew)
            problems = examined.problems
            if not problems and control.seal(snapshot_id) is None:
                seal_as_read(control, snapshot_id, examined.sha256)
        if is_start_of_another(control, snapshot_id):
            problems += outrun_problems(home, control, snapshot_id)
        return problems
