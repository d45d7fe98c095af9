"""One stream's control objects as one typed object."""

from __future__ import annotations

from collections.abc import Callable

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.journal import Journal
from airflow_streamstate.control.lost_register import lost_register
from airflow_streamstate.control.objects import Cells, Register, Stored, check_owner
from airflow_streamstate.control.presence import GuardedHome, HomePresence
from airflow_streamstate.errors import (
    DataError,
    DeploymentNotFoundError,
    ObjectExistsError,
    SnapshotNotFoundError,
    StreamNotFoundError,
    VersionConflictError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import from_bytes
from airflow_streamstate.protocol.heartbeat import Heartbeat
from airflow_streamstate.protocol.ids import (
    check_id,
    check_stream_id,
    is_deployment_id,
    is_id,
    is_reading_id,
    is_rehearsal_id,
    order_of,
)
from airflow_streamstate.protocol.manifest import SnapshotManifest, SnapshotSeal, SnapshotSlot
from airflow_streamstate.protocol.readings import StateReading
from airflow_streamstate.protocol.records import Claim, DeploymentSpec, LaunchRecord, RequestRecord
from airflow_streamstate.protocol.register import StreamRegister
from airflow_streamstate.protocol.rehearsals import Handover, Rehearsal, RehearsalVerdict, Waiting
from airflow_streamstate.store.base import Store


class StreamControl:
    """The register, records and beacons of one stream.

    Args:
        home: the store that holds control objects.
        stream_id: the stream.
        clock: for waits between read-backs.
        presence: whether the home is there; None for one that takes whatever is there for the home, until it is bound.

    Raises:
        InvalidRequestError: the stream id is not one.
    """

    def __init__(self, home: Store, stream_id: str, clock: Clock, presence: HomePresence | None = None) -> None:
        self.stream_id = check_stream_id(stream_id)
        self.home = home
        self.clock = clock
        self.presence = presence or HomePresence(home, clock, is_open=True)
        self.cells = Cells(GuardedHome(self.presence), clock)

    # the register

    def register(self) -> Stored[StreamRegister] | None:
        """The register as it is now; None where the stream was never deployed."""
        return self._register("").read()

    def need_register(self) -> Stored[StreamRegister]:
        """The register as it is now.

        Raises:
            StreamNotFoundError: there is none, or no deployment was ever begun.
            MalformedMessageError: it is gone, and deployments are there.
        """
        stored = self.register_or_lost()
        if stored is None or stored.value.deployment_id is None:
            raise self.not_found()
        return stored

    def register_or_lost(self) -> Stored[StreamRegister] | None:
        """The register as it is now; None where the stream was never deployed.

        Raises:
            MalformedMessageError: it is gone, and deployments are there.
        """
        stored = self.register()
        if stored is not None:
            return stored
        lost = lost_register(self)
        if lost is not None:
            raise lost
        return self.register()

    def not_found(self) -> StreamNotFoundError:
        """The error of a stream that is not there."""
        return StreamNotFoundError(
            "this home has no such stream",
            stream_id=self.stream_id,
            home=self.home.uri,
            next_step="`streamstate list` lists the streams of a home.",
        )

    def create_register(self, register: StreamRegister) -> Stored[StreamRegister]:
        """Create the register; raises ObjectExistsError where there is one."""
        return self._register("").create(register)

    def update_register(
        self,
        edit: Callable[[StreamRegister], StreamRegister],
        *,
        since: Stored[StreamRegister] | None = None,
        by: str,
    ) -> Stored[StreamRegister]:
        """Change the register, in the name of ``by``; the rest is as in ``Register.update``.

        Raises:
            StreamNotFoundError, MalformedMessageError: there is none, as ``need_register``.
        """
        return self._register(by).update(edit, since=since)

    def _register(self, by: str) -> Register[StreamRegister]:
        key = layout.register_key(self.stream_id)
        return Register(self.cells, key, StreamRegister, self._absent, by, stream_id=self.stream_id)

    def _absent(self) -> StreamRegister:
        raise lost_register(self) or self.not_found()

    # deployments

    def deployment_ids(self) -> list[str]:
        """Every deployment that has a folder, oldest first (folders without a spec were never begun)."""
        names = filter(is_deployment_id, self.cells.store.list_folders(layout.deployments_folder(self.stream_id)))
        return sorted(names, key=order_of)

    def create_spec(self, spec: DeploymentSpec) -> None:
        """Record a deployment; raises ObjectExistsError where it is recorded already."""
        self.cells.create(layout.spec_key(self.stream_id, spec.deployment_id), spec)

    def spec(self, deployment_id: str) -> DeploymentSpec:
        """What a deployment runs.

        Raises:
            DeploymentNotFoundError: there is no such deployment.
        """
        check_id(deployment_id, "deployment id")
        key = layout.spec_key(self.stream_id, deployment_id)
        stored = self.cells.read(key, DeploymentSpec, stream_id=self.stream_id, deployment_id=deployment_id)
        if stored is None:
            raise DeploymentNotFoundError(
                "this stream has no such deployment",
                stream_id=self.stream_id,
                deployment_id=deployment_id,
                next_step="`streamstate status` shows the current one.",
            )
        return stored.value

    def journal(self, deployment_id: str) -> Journal:
        """The commands and events of a deployment; raises InvalidRequestError where the id is none."""
        check_id(deployment_id, "deployment id")
        return Journal(self.cells, self.stream_id, deployment_id)

    def create_claim(self, claim: Claim) -> None:
        """Claim an attempt; raises ObjectExistsError where another driver is it."""
        self.cells.create(layout.claim_key(self.stream_id, claim.deployment_id, claim.attempt), claim)

    def claim(self, deployment_id: str, attempt: int) -> Claim | None:
        """The driver that is this attempt; None while there is none."""
        check_id(deployment_id, "deployment id")
        key = layout.claim_key(self.stream_id, deployment_id, attempt)
        ids = {"stream_id": self.stream_id, "deployment_id": deployment_id, "attempt": attempt}
        stored = self.cells.read(key, Claim, **ids)
        return None if stored is None else stored.value

    def put_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Write the beacon."""
        self.cells.put(layout.heartbeat_key(self.stream_id, heartbeat.deployment_id), heartbeat)

    def heartbeat(self, deployment_id: str) -> Heartbeat | None:
        """The last sign of life; None where there is none, or none that can be read (Law 7)."""
        check_id(deployment_id, "deployment id")
        key = layout.heartbeat_key(self.stream_id, deployment_id)
        try:
            stored = self.cells.read(key, Heartbeat, stream_id=self.stream_id, deployment_id=deployment_id)
        except DataError:
            return None
        return None if stored is None else stored.value

    # launches and requests

    def create_launch(self, record: LaunchRecord) -> None:
        """Record a launch; raises ObjectExistsError where it is recorded already."""
        key = layout.launch_record_key(self.stream_id, record.deployment_id, record.launch_key)
        self.cells.create(key, record)

    def launch(self, deployment_id: str, launch_key: str) -> LaunchRecord | None:
        """The recorded launch; None where there is none."""
        check_id(deployment_id, "deployment id")
        check_id(launch_key, "launch key")
        key = layout.launch_record_key(self.stream_id, deployment_id, launch_key)
        ids = {"stream_id": self.stream_id, "deployment_id": deployment_id, "launch_key": launch_key}
        stored = self.cells.read(key, LaunchRecord, **ids)
        return None if stored is None else stored.value

    def create_request(self, record: RequestRecord) -> None:
        """Record what a request becomes; raises ObjectExistsError where it is recorded already."""
        check_id(record.request_id, "request id")
        self.cells.create(layout.idempotency_key(self.stream_id, record.request_id), record)

    def request(self, request_id: str) -> RequestRecord | None:
        """What a request became; None where it is new."""
        check_id(request_id, "request id")
        key = layout.idempotency_key(self.stream_id, request_id)
        stored = self.cells.read(key, RequestRecord, stream_id=self.stream_id, request_id=request_id)
        return None if stored is None else stored.value

    # readings of state

    def reading_ids(self) -> list[str]:
        """Every reading of which anything is left, sorted."""
        return list(filter(is_reading_id, self.cells.store.list_folders(layout.readings_folder(self.stream_id))))

    def create_reading(self, reading: StateReading) -> None:
        """Record a reading; raises ObjectExistsError where it is recorded already."""
        self.cells.create(layout.reading_key(self.stream_id, reading.reading_id), reading)

    def reading(self, reading_id: str) -> StateReading | None:
        """What a reading is; None where there is none."""
        check_id(reading_id, "reading id")
        key = layout.reading_key(self.stream_id, reading_id)
        stored = self.cells.read(key, StateReading, stream_id=self.stream_id, reading_id=reading_id)
        return None if stored is None else stored.value

    # rehearsals

    def rehearsal_ids(self) -> list[str]:
        """Every rehearsal of which anything is left, sorted."""
        return list(filter(is_rehearsal_id, self.cells.store.list_folders(layout.rehearsals_folder(self.stream_id))))

    def create_rehearsal(self, rehearsal: Rehearsal) -> None:
        """Record a rehearsal; raises ObjectExistsError where it is recorded already."""
        self.cells.create(layout.rehearsal_key(self.stream_id, rehearsal.rehearsal_id), rehearsal)

    def rehearsal(self, rehearsal_id: str) -> Rehearsal | None:
        """What a rehearsal is; None where there is none."""
        check_id(rehearsal_id, "rehearsal id")
        key = layout.rehearsal_key(self.stream_id, rehearsal_id)
        stored = self.cells.read(key, Rehearsal, stream_id=self.stream_id, rehearsal_id=rehearsal_id)
        return None if stored is None else stored.value

    def create_verdict(self, verdict: RehearsalVerdict) -> None:
        """End a rehearsal; raises ObjectExistsError where it is over already."""
        self.cells.create(layout.verdict_key(self.stream_id, verdict.rehearsal_id), verdict)

    def verdict(self, rehearsal_id: str) -> RehearsalVerdict | None:
        """What became of a rehearsal; None while it is under way."""
        check_id(rehearsal_id, "rehearsal id")
        key = layout.verdict_key(self.stream_id, rehearsal_id)
        stored = self.cells.read(key, RehearsalVerdict, stream_id=self.stream_id, rehearsal_id=rehearsal_id)
        return None if stored is None else stored.value

    def create_waiting(self, waiting: Waiting) -> None:
        """Say that the driver of a rehearsal waits; raises ObjectExistsError where that is said already."""
        self.cells.create(layout.waiting_key(self.stream_id, waiting.rehearsal_id), waiting)

    def waiting(self, rehearsal_id: str) -> Waiting | None:
        """Since when the driver of a rehearsal waits; None where it never did."""
        check_id(rehearsal_id, "rehearsal id")
        key = layout.waiting_key(self.stream_id, rehearsal_id)
        stored = self.cells.read(key, Waiting, stream_id=self.stream_id, rehearsal_id=rehearsal_id)
        return None if stored is None else stored.value

    def create_handover(self, handover: Handover) -> None:
        """Make the driver that waits an attempt; raises ObjectExistsError where it is one already."""
        self.cells.create(layout.handover_key(self.stream_id, handover.rehearsal_id), handover)

    def handover(self, rehearsal_id: str) -> Handover | None:
        """Which attempt the driver of a rehearsal has become; None where it is none."""
        check_id(rehearsal_id, "rehearsal id")
        key = layout.handover_key(self.stream_id, rehearsal_id)
        stored = self.cells.read(key, Handover, stream_id=self.stream_id, rehearsal_id=rehearsal_id)
        return None if stored is None else stored.value

    # snapshots

    def create_manifest(self, manifest: SnapshotManifest, over: str | None = None) -> None:
        """Make a snapshot exist (Law 3).

        Args:
            manifest: of it.
            over: the version of the tombstone of an abandoned one in its place; None where nothing does.

        Raises:
            ObjectExistsError: it exists already, or was abandoned meanwhile.
        """
        key = layout.manifest_key(self.stream_id, manifest.snapshot_id)
        if over is None:
            self.cells.create(key, manifest)
            return
        try:
            self.cells.replace(key, manifest, over)
        except VersionConflictError:
            found = self.readable_manifest(manifest.snapshot_id)
            if found is None or found.write_id != manifest.write_id:  # else a lost reply: it is this very write
                raise ObjectExistsError("another took this snapshot, or it was abandoned anew", key=key) from None

    def snapshot_slot(self, snapshot_id: str) -> Stored[SnapshotSlot] | None:
        """What lies in the place of a manifest; None for nothing."""
        check_id(snapshot_id, "snapshot id")
        key = layout.manifest_key(self.stream_id, snapshot_id)
        stored = self.cells.store.get(key)
        if stored is None:
            return None
        value = from_bytes(stored.body, key=key, expected=SnapshotSlot)
        check_owner(value, key, stream_id=self.stream_id, snapshot_id=snapshot_id)
        return Stored(value, stored.version)

    def manifest(self, snapshot_id: str) -> SnapshotManifest | None:
        """The manifest; None where the snapshot does not exist (Law 3)."""
        slot = self.snapshot_slot(snapshot_id)
        return slot.value if slot is not None and isinstance(slot.value, SnapshotManifest) else None

    def readable_manifest(self, snapshot_id: str) -> SnapshotManifest | None:
        """The manifest; None also where what lies there cannot be read: for what does not depend on it (Law 7)."""
        try:
            return self.manifest(snapshot_id)
        except DataError:
            return None

    def need_manifest(self, snapshot_id: str) -> SnapshotManifest:
        """The manifest.

        Raises:
            SnapshotNotFoundError: no such snapshot was ever completed.
        """
        manifest = self.manifest(snapshot_id)
        if manifest is None:
            raise SnapshotNotFoundError(
                "there is no complete snapshot of this id",
                stream_id=self.stream_id,
                snapshot_id=snapshot_id,
                next_step="`streamstate snapshot list` lists the complete ones.",
            )
        return manifest

    def snapshot_ids(self) -> list[str]:
        """Every snapshot that has a folder in the home, complete or not, sorted."""
        return list(filter(is_id, self.cells.store.list_folders(layout.snapshots_folder(self.stream_id))))

    def put_seal(self, seal: SnapshotSeal) -> None:
        """Write the sha256 of a snapshot's files."""
        self.cells.put(layout.seal_key(self.stream_id, seal.snapshot_id), seal)

    def seal(self, snapshot_id: str) -> SnapshotSeal | None:
        """The sha256 of a snapshot's files; None while it is not sealed."""
        key = layout.seal_key(self.stream_id, snapshot_id)
        stored = self.cells.read(key, SnapshotSeal, snapshot_id=snapshot_id)
        return None if stored is None else stored.value
