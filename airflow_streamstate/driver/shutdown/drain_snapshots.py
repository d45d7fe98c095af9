"""The snapshots of one drain: before the flush, after it, and at an end where only some queries are flushed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.attempt.snapshotting import queries_to_capture, retry_until_fenced, take_snapshot
from airflow_streamstate.driver.shutdown.flushing import Flush
from airflow_streamstate.driver.shutdown.open_windows import OpenWindows
from airflow_streamstate.errors import DataError
from airflow_streamstate.protocol.ids import SnapshotKind, snapshot_id_for, snapshot_number_of
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.snapshot.capture import QueryToCapture


class DrainSnapshots:
    """Takes the snapshots of one drain; each is taken once over all attempts."""

    def __init__(self, attempt: Attempt, order: Order) -> None:
        self._attempt = attempt
        self._order = order

    def take(
        self,
        kind: SnapshotKind,
        flushed: Sequence[Flush] = (),
        windows: OpenWindows | None = None,
        *,
        check: Callable[[], None] = lambda: None,
    ) -> SnapshotManifest:
        """The snapshot of this kind for this drain; an earlier attempt may have taken it.

        ``check`` runs before each try and during the copy to its place; it raises to give up.
        """
        attempt = self._attempt

        def take() -> SnapshotManifest:
            attempt.fence.check_current()
            made = self._made_before(kind)
            if made is not None:
                return made
            check()
            queries = self._to_capture(flushed, windows)
            return take_snapshot(attempt, self._free_id(kind), kind, self._order.command_id, queries, go_on=check)

        return retry_until_fenced(attempt, f"snapshot {kind}", take)

    def made_before_flush(self) -> SnapshotManifest | None:
        """The ``pre-drain`` snapshot, if it was taken."""
        return self._made_before("pre-drain")

    def take_stopped(self, flushed: Sequence[Flush], windows: OpenWindows | None) -> SnapshotManifest:
        """The snapshot of an end where some queries are flushed and the others keep their state."""
        attempt = self._attempt

        def take() -> SnapshotManifest:
            attempt.fence.check_current()
            queries = self._to_capture(flushed, windows)
            return take_snapshot(attempt, attempt.snapshot_id("stopped"), "stopped", "", queries)

        return retry_until_fenced(attempt, "snapshot stopped", take)

    def _to_capture(self, flushed: Sequence[Flush], windows: OpenWindows | None) -> dict[str, QueryToCapture]:
        queries = queries_to_capture(self._attempt)
        for flush in flushed:
            name = flush.query.name
            rows, left = flush.state_left()
            bounds = windows.of(name) if windows is not None else None
            queries[name] = replace(
                queries[name],
                drained=True,
                state_rows_left=rows,
                state_left=left,
                rows_written_early=flush.rows_written(),
                open_windows_from_at=bounds[0] if bounds else None,
                open_windows_until_at=bounds[1] if bounds else None,
            )
        return queries

    def _made_before(self, kind: SnapshotKind) -> SnapshotManifest | None:
        for manifest in self._of_kind(kind).values():
            if manifest is not None and manifest.command_id == self._order.command_id:
                return manifest
        return None

    def _free_id(self, kind: SnapshotKind) -> str:
        """An id behind all existing ones: several drains of an attempt may be called off, and ids of pruned snapshots
        are not reused."""
        taken = [snapshot_number_of(snapshot_id) for snapshot_id in self._of_kind(kind)]
        number = max((self._attempt.number, *(one + 1 for one in taken if one is not None)))
        return snapshot_id_for(self._attempt.deployment_id, kind, number)

    def _of_kind(self, kind: SnapshotKind) -> dict[str, SnapshotManifest | None]:
        """The complete snapshots of this kind, by id; None where the manifest cannot be read."""
        control, found = self._attempt.control, dict[str, SnapshotManifest | None]()
        for snapshot_id in control.snapshot_ids():
            if snapshot_id.startswith(f"{self._attempt.deployment_id}-{kind}-"):
                try:
                    manifest = control.manifest(snapshot_id)
                except DataError:
                    found[snapshot_id] = None
                else:
                    if manifest is not None:
                        found[snapshot_id] = manifest
        return found
