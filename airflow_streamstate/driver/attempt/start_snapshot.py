"""The snapshot that a deployment starts from, as its driver sees it."""

from __future__ import annotations

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.attempt.reporting import Reporter
from airflow_streamstate.errors import DataError
from airflow_streamstate.protocol.manifest import SnapshotManifest


class StartSnapshot:
    """Reads the manifest once, at first use; ``snapshot_id`` is None for a fresh deployment."""

    def __init__(self, control: StreamControl, snapshot_id: str | None, reporter: Reporter) -> None:
        self._control = control
        self._snapshot_id = snapshot_id
        self._reporter = reporter
        self._manifest: SnapshotManifest | None = None
        self._is_gone = False
        self.is_damaged = False

    def manifest(self) -> SnapshotManifest | None:
        """The manifest; None for a fresh deployment, and where the snapshot is gone or damaged.

        A query with a checkpoint of its own does not need it (Law 7); everything else calls ``need``.
        """
        if self._snapshot_id is None or self._manifest is not None or self._is_gone:
            return self._manifest
        try:
            self._manifest = self._control.manifest(self._snapshot_id)
        except DataError as error:
            self.is_damaged = True
            self._reporter.say(f"the snapshot that this deployment started from cannot be read: {error}")
        self._is_gone = self._manifest is None
        return self._manifest

    def is_lost(self) -> bool:
        """Whether the start snapshot is gone or damaged."""
        return self._snapshot_id is not None and self.manifest() is None

    def need(self) -> SnapshotManifest | None:
        """The manifest; None for a fresh deployment.

        Raises:
            SnapshotNotFoundError: it is gone, and the driver builds nothing in its place (Law 5).
            DataError: it is damaged.
        """
        manifest = self.manifest()
        if manifest is None and self._snapshot_id is not None:
            return self._control.need_manifest(self._snapshot_id)
        return manifest
