"""Copies the snapshots of a deployment, and of the one before it, to its mirrors, in rounds.

A copy that fails is reported and tried again in a later round. Partial copies of removed snapshots are deleted.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.errors import DataError, SnapshotNotFoundError, StreamStateError, UnavailableError
from airflow_streamstate.protocol.events import SnapshotMirrored
from airflow_streamstate.snapshot.mirror import carry_records, is_mirrored, mirror_snapshot, refuse_same
from airflow_streamstate.snapshot.partial_copies import delete_partial_copies
from airflow_streamstate.store.base import Store

ROUND_SECONDS = 10.0
FAILING_SECONDS = 60.0
"""Pause after an error of a mirror."""
CLEAR_SECONDS = 3_600.0
"""Pause between two looks for partial copies."""

OpenMirror = Callable[[str], Store]


class Mirroring:
    """The mirrors of one attempt."""

    def __init__(self, attempt: Attempt, open_mirror: OpenMirror) -> None:
        self._attempt = attempt
        self._open = open_mirror
        self._done: set[tuple[str, str]] = set()
        self._told: set[str] = set()
        self._said: dict[str, str] = {}
        self._quiet_until: dict[str, float] = {}
        self._lies_at: dict[str, str] = {}
        self._clear_at: dict[str, float] = {}

    def round(self) -> None:
        """Copy what is not at a mirror yet; errors of a store are reported, not raised."""
        attempt = self._attempt
        if attempt.fence.is_fenced:
            return
        try:
            snapshot_ids = self._snapshot_ids()
        except StreamStateError as error:
            attempt.reporter.outage("the list of snapshots", error)
            return
        for uri in attempt.spec.version.mirrors:
            if attempt.clock.monotonic_seconds() >= self._quiet_until.get(uri, 0.0):
                self._to(uri, snapshot_ids)

    def _snapshot_ids(self) -> list[str]:
        owners = (self._attempt.deployment_id, self._attempt.spec.start.predecessor_id)
        found = self._attempt.control.snapshot_ids()
        return [name for name in found if any(owner is not None and name.startswith(f"{owner}-") for owner in owners)]

    def _to(self, uri: str, snapshot_ids: list[str]) -> None:
        try:
            self._tell_of_this_attempt(uri)
        except StreamStateError as error:
            self._quiet_until[uri] = self._attempt.clock.monotonic_seconds() + FAILING_SECONDS
            self._fails(uri, "", error)
            return
        for snapshot_id in snapshot_ids:
            if (uri, snapshot_id) in self._done:
                continue
            try:
                self._copy(uri, snapshot_id)
            except SnapshotNotFoundError:
                self._done.add((uri, snapshot_id))  # pruned meanwhile
            except DataError as error:
                self._done.add((uri, snapshot_id))  # it stays damaged; the next attempt looks again
                self._fails(uri, snapshot_id, error)
            except StreamStateError as error:
                self._quiet_until[uri] = self._attempt.clock.monotonic_seconds() + FAILING_SECONDS
                self._fails(uri, snapshot_id, error)
                return
        self._clear(uri)

    def _clear(self, uri: str) -> None:
        attempt = self._attempt
        if attempt.clock.monotonic_seconds() < self._clear_at.get(uri, 0.0):
            return
        self._clear_at[uri] = attempt.clock.monotonic_seconds() + CLEAR_SECONDS
        try:
            delete_partial_copies(attempt.control, self._open(uri), f"{attempt.deployment_id} attempt {attempt.number}")
        except StreamStateError as error:
            self._fails(uri, "", error)

    def _tell_of_this_attempt(self, uri: str) -> None:
        if uri not in self._told:
            control, mirror = self._attempt.control, self._open(uri)
            refuse_same(control, mirror, self._attempt.checkpoints)
            carry_records(control, mirror, self._attempt.deployment_id)
            self._told.add(uri)

    def _copy(self, uri: str, snapshot_id: str) -> None:
        attempt = self._attempt
        if self._lies_quiet(snapshot_id):
            return
        manifest = attempt.control.manifest(snapshot_id)
        if manifest is None:
            return  # it is being taken
        self._lies_at[snapshot_id] = manifest.data_uri
        if self._lies_quiet(snapshot_id):
            return
        try:
            store = attempt.places.of(manifest)
        except StreamStateError as error:
            # The place of an older snapshot may be lost for good; a copy at the mirror is enough.
            if is_mirrored(attempt.control, self._open(uri), snapshot_id):
                self._done.add((uri, snapshot_id))
                return
            if manifest.data_uri not in self._quiet_until:
                self._fails(uri, snapshot_id, error)
            self._quiet_until[manifest.data_uri] = attempt.clock.monotonic_seconds() + FAILING_SECONDS
            return
        mirror = self._open(uri)
        mirrored = mirror_snapshot(
            attempt.control,
            store,
            mirror,
            snapshot_id,
            batch_bytes=attempt.spec.version.settings.fetch_batch_bytes,
            timeout_seconds=attempt.spec.version.settings.fetch_timeout_seconds,
            go_on=self._give_way,
        )
        self._done.add((uri, snapshot_id))
        self._said.pop(uri, None)
        if mirrored.files:
            attempt.reporter.write_soon(
                SnapshotMirrored,
                snapshot_id=snapshot_id,
                mirror_uri=mirror.uri,
                files=mirrored.files,
                size_bytes=mirrored.size_bytes,
            )

    def _lies_quiet(self, snapshot_id: str) -> bool:
        """Whether the snapshot's data is at a place that has just not answered."""
        quiet_until = self._quiet_until.get(self._lies_at.get(snapshot_id, ""), 0.0)
        return self._attempt.clock.monotonic_seconds() < quiet_until

    def _fails(self, uri: str, snapshot_id: str, error: StreamStateError) -> None:
        """Report an error once, until the mirror works again or fails for another reason."""
        if not self._attempt.latch.is_open or self._said.get(uri) == error.message:
            return
        self._said[uri] = error.message
        self._attempt.reporter.note(
            "a mirror does not take a snapshot", mirror_uri=uri, snapshot_id=snapshot_id, why=str(error)
        )

    def _give_way(self) -> None:
        if self._attempt.fence.is_fenced or not self._attempt.latch.is_open:
            raise UnavailableError("the deployment is being ended, and that comes first")
