"""The control objects of one stream as one typed object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Union

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.artifacts import bounded_keys, sign_those_beside
from airflow_streamstate.control.journal import Journal
from airflow_streamstate.control.objects import AnyMessage, Cells, FeedWriter, Memory, Register, Stored, check_owner
from airflow_streamstate.control.presence import GuardedHome, HomePresence
from airflow_streamstate.control.signatures import Signatures
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    DeploymentNotFoundError,
    MalformedMessageError,
    ObjectExistsError,
    SnapshotNotFoundError,
    StreamNotFoundError,
    VersionConflictError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import to_bytes
from airflow_streamstate.protocol.events import Drained, Draining, Event, Finished, QueryStarted, SnapshotReady, Stopped
from airflow_streamstate.protocol.ids import (
    check_id,
    check_stream_id,
    fencing_token_of,
    is_deployment_id,
    is_id,
    is_scratch_id,
    is_snapshot_of,
    order_of,
)
from airflow_streamstate.protocol.manifest import (
    QuerySnapshot,
    SnapshotManifest,
    SnapshotSeal,
    SnapshotSlot,
    moved_query,
)
from airflow_streamstate.protocol.positions import Heartbeat, SourceIdentity
from airflow_streamstate.protocol.records import (
    Adoption,
    Claim,
    DeploymentSpec,
    FoundModule,
    LaunchRecord,
    RequestRecord,
    StartPlan,
    StreamRegister,
)
from airflow_streamstate.protocol.scratch import Handover, ScratchRun, ScratchVerdict, Waiting
from airflow_streamstate.protocol.script_reads import ScriptReads
from airflow_streamstate.protocol.signing import SigningKeys
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.transfer import keys_below


class StreamControl:
    """The register, records and beacons of one stream.

    Each ``create_…`` raises ObjectExistsError where the record exists; each reader checks its id (InvalidRequestError)
    and returns None if there is no record.

    Args:
        home: the store of the control objects.
        presence: of the home; None accepts whatever is there as the home, until it is bound.
        memory: of the home's messages; None for a separate one.
        feed: of the home; None: nothing is announced.
        keys: of the home, as in ``Cells``.
    """

    def __init__(
        self,
        home: Store,
        stream_id: str,
        clock: Clock,
        presence: HomePresence | None = None,
        memory: Memory | None = None,
        feed: FeedWriter | None = None,
        keys: SigningKeys | None = None,
    ) -> None:
        self.stream_id = check_stream_id(stream_id)
        self.home = home
        self.clock = clock
        self._keys = keys
        self.presence = presence or HomePresence(home, clock, is_open=True, keys=keys)
        self.cells = Cells(GuardedHome(self.presence), clock, memory, feed, keys)

    # the register

    def register(self) -> Stored[StreamRegister] | None:
        """The register as it is now; None where the stream was never deployed."""
        return self._register("").read()

    def need_register(self) -> Stored[StreamRegister]:
        """The register as it is now.

        Raises:
            StreamNotFoundError: there is no such stream, or no deployment was ever started.
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
        """The error for a stream that does not exist."""
        return StreamNotFoundError(
            "this home has no such stream",
            stream_id=self.stream_id,
            home=self.home.uri,
            next_step="`streamstate list` lists the streams of a home.",
        )

    def create_register(self, register: StreamRegister) -> Stored[StreamRegister]:
        return self._register("").create(register)

    def update_register(
        self,
        edit: Callable[[StreamRegister], StreamRegister],
        *,
        since: Stored[StreamRegister] | None = None,
        by: str,
    ) -> Stored[StreamRegister]:
        """Change the register in the name of ``by``, as ``Register.update``.

        Raises:
            StreamNotFoundError, MalformedMessageError: the register is missing, as ``need_register``.
        """
        return self._register(by).update(edit, since=since)

    def _register(self, by: str) -> Register[StreamRegister]:
        key = layout.register_key(self.stream_id)
        return Register(self.cells, key, StreamRegister, self._absent, by, stream_id=self.stream_id)

    def _absent(self) -> StreamRegister:
        raise lost_register(self) or self.not_found()

    # deployments

    def deployment_ids(self) -> list[str]:
        """Every deployment that has a folder, oldest first (folders without a spec were never started)."""
        names = filter(is_deployment_id, self.cells.store.list_folders(layout.deployments_folder(self.stream_id)))
        return sorted(names, key=order_of)

    def create_spec(self, spec: DeploymentSpec) -> None:
        self.cells.create(layout.spec_key(self.stream_id, spec.deployment_id), spec)

    def spec(self, deployment_id: str) -> DeploymentSpec:
        """What a deployment runs.

        Raises:
            DeploymentNotFoundError: there is no such deployment.
        """
        check_id(deployment_id, "deployment id")
        key = layout.spec_key(self.stream_id, deployment_id)
        spec = self._record(key, DeploymentSpec, deployment_id=deployment_id)
        if spec is None:
            raise DeploymentNotFoundError(
                "this stream has no such deployment",
                stream_id=self.stream_id,
                deployment_id=deployment_id,
                next_step="`streamstate status` shows the current one.",
            )
        return spec

    def create_found_module(self, found: FoundModule) -> None:
        self.cells.create(layout.found_module_key(self.stream_id, found.deployment_id, found.module.name), found)

    def found_module_keys(self, deployment_id: str) -> list[str]:
        """The records of the modules that drivers of this deployment found, sorted. Raises as ``bounded_keys``."""
        prefix = layout.found_modules_prefix(self.stream_id, deployment_id)
        return bounded_keys(prefix, (info.key for info in self.cells.store.list_objects(prefix)))

    def with_found_modules(self, spec: DeploymentSpec) -> DeploymentSpec:
        """The spec with the modules that its drivers found, too.

        Raises:
            DataError: a record cannot be read.
            SignatureError: the home has a signing key, and nobody has signed one of the records.
        """
        keys = self.found_module_keys(spec.deployment_id)
        if self._keys is not None:
            sign_those_beside(Signatures(self.cells.store, self._keys), spec, keys)
        found = (self._record(key, FoundModule, deployment_id=spec.deployment_id) for key in keys)
        known = {module.name for module in spec.version.modules}
        new = tuple(each.module for each in found if each is not None and each.module.name not in known)
        return replace(spec, version=replace(spec.version, modules=(*spec.version.modules, *new))) if new else spec

    def _record(self, key: str, kind: type[AnyMessage], **ids: object) -> AnyMessage | None:
        return self.cells.value(key, kind, stream_id=self.stream_id, **ids)

    def _by_id(
        self, what: str, value: str, key_of: Callable[[str, str], str], kind: type[AnyMessage]
    ) -> AnyMessage | None:
        check_id(value, what)
        return self._record(key_of(self.stream_id, value), kind, **{what.replace(" ", "_"): value})

    def journal(self, deployment_id: str) -> Journal:
        """The commands and events of a deployment."""
        check_id(deployment_id, "deployment id")
        return Journal(self.cells, self.stream_id, deployment_id)

    def create_claim(self, claim: Claim) -> None:
        self.cells.create(layout.claim_key(self.stream_id, claim.deployment_id, claim.attempt), claim)

    def claim(self, deployment_id: str, attempt: int) -> Claim | None:
        """The driver that is this attempt; None before its claim."""
        check_id(deployment_id, "deployment id")
        key = layout.claim_key(self.stream_id, deployment_id, attempt)
        return self._record(key, Claim, deployment_id=deployment_id, attempt=attempt)

    def put_heartbeat(self, heartbeat: Heartbeat) -> None:
        self.cells.put(layout.heartbeat_key(self.stream_id, heartbeat.deployment_id), heartbeat)

    def heartbeat(self, deployment_id: str) -> Heartbeat | None:
        """The last heartbeat; None if it is absent or unreadable (Law 7)."""
        stored = self.stored_heartbeat(deployment_id)
        return None if stored is None else stored.value

    def stored_heartbeat(self, deployment_id: str) -> Stored[Heartbeat] | None:
        """As ``heartbeat``, with the time at which the store got it."""
        check_id(deployment_id, "deployment id")
        key = layout.heartbeat_key(self.stream_id, deployment_id)
        try:
            return self.cells.read(key, Heartbeat, stream_id=self.stream_id, deployment_id=deployment_id)
        except DataError:
            return None

    # launches and requests

    def create_launch(self, record: LaunchRecord) -> None:
        key = layout.launch_record_key(self.stream_id, record.deployment_id, record.launch_key)
        self.cells.create(key, record)

    def launch(self, deployment_id: str, launch_key: str) -> LaunchRecord | None:
        check_id(deployment_id, "deployment id")
        check_id(launch_key, "launch key")
        key = layout.launch_record_key(self.stream_id, deployment_id, launch_key)
        return self._record(key, LaunchRecord, deployment_id=deployment_id, launch_key=launch_key)

    def create_request(self, record: RequestRecord) -> None:
        check_id(record.request_id, "request id")
        self.cells.create(layout.idempotency_key(self.stream_id, record.request_id), record)

    def request(self, request_id: str) -> RequestRecord | None:
        """What a request became; None where it is new."""
        return self._by_id("request id", request_id, layout.idempotency_key, RequestRecord)

    # scratch runs

    def scratch_ids(self) -> list[str]:
        """Every scratch run that has a folder, sorted."""
        return list(filter(is_scratch_id, self.cells.store.list_folders(layout.scratch_folder(self.stream_id))))

    def create_scratch_run(self, run: ScratchRun) -> None:
        self.cells.create(layout.scratch_run_key(self.stream_id, run.run_id), run)

    def scratch_run(self, run_id: str) -> ScratchRun | None:
        return self._by_id("run id", run_id, layout.scratch_run_key, ScratchRun)

    def create_verdict(self, verdict: ScratchVerdict) -> None:
        self.cells.create(layout.verdict_key(self.stream_id, verdict.run_id), verdict)

    def verdict(self, run_id: str) -> ScratchVerdict | None:
        """The verdict of a scratch run; None while it is under way."""
        return self._by_id("run id", run_id, layout.verdict_key, ScratchVerdict)

    def create_waiting(self, waiting: Waiting) -> None:
        self.cells.create(layout.waiting_key(self.stream_id, waiting.rehearsal_id), waiting)

    def waiting(self, rehearsal_id: str) -> Waiting | None:
        return self._by_id("rehearsal id", rehearsal_id, layout.waiting_key, Waiting)

    def create_handover(self, handover: Handover) -> None:
        self.cells.create(layout.handover_key(self.stream_id, handover.rehearsal_id), handover)

    def handover(self, rehearsal_id: str) -> Handover | None:
        """The attempt that a rehearsal's driver became."""
        return self._by_id("rehearsal id", rehearsal_id, layout.handover_key, Handover)

    # snapshots

    def create_manifest(self, manifest: SnapshotManifest, over: str | None = None) -> None:
        """Make a snapshot exist (Law 3).

        Args:
            over: the version of the tombstone in its place; None if not set.

        Raises:
            ObjectExistsError: it exists already, or was abandoned in the meantime.
        """
        key = layout.manifest_key(self.stream_id, manifest.snapshot_id)
        if over is None:
            self.cells.create(key, manifest)
            return
        try:
            self.cells.replace(key, manifest, over)
        except VersionConflictError:
            found = self.readable_manifest(manifest.snapshot_id)
            if found is None or found.write_id != manifest.write_id:  # else the reply of this write was lost
                raise ObjectExistsError(
                    "another writer took this snapshot, or it was abandoned again", key=key
                ) from None

    def snapshot_slot(self, snapshot_id: str) -> Stored[SnapshotSlot] | None:
        """The manifest, or the tombstone in its place."""
        check_id(snapshot_id, "snapshot id")
        key = layout.manifest_key(self.stream_id, snapshot_id)
        stored = self.cells.stored(key, SnapshotSlot.most_bytes)
        if stored is None:
            return None
        value = self.cells.decoded(stored, SnapshotSlot)
        check_owner(value, key, stream_id=self.stream_id, snapshot_id=snapshot_id)
        return Stored(value, stored.version)

    def manifest(self, snapshot_id: str) -> SnapshotManifest | None:
        """The manifest; None where the snapshot does not exist (Law 3)."""
        slot = self.snapshot_slot(snapshot_id)
        return slot.value if slot is not None and isinstance(slot.value, SnapshotManifest) else None

    def readable_manifest(self, snapshot_id: str) -> SnapshotManifest | None:
        """The manifest; None also where it cannot be read (Law 7): only for callers that do not depend on it."""
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
        self.cells.put(layout.seal_key(self.stream_id, seal.snapshot_id), seal)

    def seal(self, snapshot_id: str) -> SnapshotSeal | None:
        """The sha256 of a snapshot's files; None before it is sealed."""
        key = layout.seal_key(self.stream_id, snapshot_id)
        return self.cells.value(key, SnapshotSeal, snapshot_id=snapshot_id)


# No code restores a lost register by itself: what it named may run, and it alone named the current deployment.


def lost_register(control: StreamControl) -> MalformedMessageError | None:
    """The error for it, with a register that can be written by hand; None where no deployment was recorded.

    A deployment is recorded after the register (apart from an adoption's) and deleted before it.

    Args:
        control: a stream that was just read without a register.
    """
    recorded = [one for one in control.deployment_ids() if _is_there(control, layout.spec_key(control.stream_id, one))]
    is_adopting = len(recorded) == 1 and _is_of_adoption(control, recorded[0])
    if not recorded or is_adopting or _is_there(control, layout.register_key(control.stream_id)):
        return None  # the last: it was created in the meantime
    current, attempt = _newest_that_began(control, recorded)
    register = StreamRegister(
        stream_id=control.stream_id,
        fencing_token=fencing_token_of(recorded[-1]),
        deployment_id=current,
        attempt=attempt,
        attempt_mode="run",
        intent=None,
        write_id=control.clock.new_uuid(),
        updated_at=control.clock.now(),
        updated_by="written by hand",
    )
    key = layout.register_key(control.stream_id)
    return MalformedMessageError(
        "the register of this stream is gone, and its deployments are there",
        stream_id=control.stream_id,
        key=key,
        home=control.home.uri,
        newest_deployment_id=recorded[-1],
        register=to_bytes(register).decode(),
        next_step=f"Restore {key} from a copy of the home that names {current} attempt {attempt}; or if there"
        " is a mirror, `streamstate home restore --from MIRROR --stream"
        f" {control.stream_id}`. Without either: write to {key} what `streamstate status {control.stream_id}` shows as"
        " register; that the stream was retired, or an upgrade under way, is not in it. Where the home has a signing"
        " key, `streamstate home sign` then signs it.",
    )


def _is_there(control: StreamControl, key: str) -> bool:
    return control.home.head(key) is not None


def _is_of_adoption(control: StreamControl, deployment_id: str) -> bool:
    """Whether the first deployment of a stream may be that of an adoption.

    A late controller may have recorded it after the adoption was abandoned. Only an adoption's deployment starts from a
    snapshot of itself.
    """
    try:
        stored = control.cells.read(layout.adoption_key(control.stream_id), Adoption, stream_id=control.stream_id)
        if stored is None or stored.value.status != "given_up":
            return stored is not None
        start = control.spec(deployment_id).start
    except DataError:
        return True
    return start.snapshot_id is not None and is_snapshot_of(start.snapshot_id, deployment_id)


def _newest_that_began(control: StreamControl, recorded: list[str]) -> tuple[str, int]:
    """The newest deployment with a claim or an event, with its last attempt; else the newest one."""
    for deployment_id in reversed(recorded):
        attempt = max((*_claimed(control, deployment_id), *_attempts_in_events(control, deployment_id)), default=0)
        if attempt:
            return deployment_id, attempt
    return recorded[-1], 1


def _claimed(control: StreamControl, deployment_id: str) -> list[int]:
    prefix = layout.claim_key(control.stream_id, deployment_id, 1).rpartition("/")[0]
    numbers = (layout.number_of(info.key) for info in control.home.list_objects(f"{prefix}/"))
    return [number for number in numbers if number is not None]


def _attempts_in_events(control: StreamControl, deployment_id: str) -> list[int]:
    try:
        entries = list(control.journal(deployment_id).events())
    except DataError:
        return []
    return [entry.event.attempt for entry in entries if entry.event is not None]


# The register of a stream's adoption.


def adoption_register(control: StreamControl) -> Register[Adoption]:
    """The register of a stream's adoption; absent where the stream was never adopted."""

    def absent() -> Adoption:
        raise adoption_lost(control.stream_id)

    return Register(
        control.cells, layout.adoption_key(control.stream_id), Adoption, absent, stream_id=control.stream_id
    )


def adoption_lost(stream_id: str) -> ConflictError:
    """The error of a controller whose adoption lease another controller took."""
    return ConflictError(
        "another controller has continued with this adoption",
        stream_id=stream_id,
        next_step=f"`streamstate status {stream_id}` shows what became of it.",
    )


# Records of what scripts read, in a home: one for each query and attempt.


def record_reads(control: StreamControl, reads: ScriptReads) -> None:
    """Record what was read before the first start of a query in an attempt; a later start of it changes nothing.

    Raises:
        UnavailableError, OutcomeUnknownError: the store does not answer.
    """
    with suppress(ObjectExistsError):
        control.cells.create(
            layout.script_reads_key(control.stream_id, reads.deployment_id, reads.query_name, reads.attempt), reads
        )


def last_reads(control: StreamControl, deployment_id: str, query_name: str) -> ScriptReads | None:
    """The newest readable record of a query in a deployment; None without one (Law 7).

    Raises:
        UnavailableError: the store does not answer.
    """
    prefix = layout.script_reads_prefix(control.stream_id, deployment_id, query_name)
    for key in sorted(keys_below(control.cells.store, prefix), reverse=True):
        with suppress(DataError):
            found = control.cells.value(key, ScriptReads, stream_id=control.stream_id, deployment_id=deployment_id)
            if found is not None:
                return found
    return None


# The identities of a query's sources when a batch was planned, from its starts and snapshots.

ManifestOf = Callable[[str], Union[SnapshotManifest, None]]
"""The manifest of a snapshot; None if it is absent or unreadable."""


def identities_when_planned(
    events: Iterable[Event | None], query_name: str, batch_id: int | None, manifest_of: ManifestOf
) -> tuple[SourceIdentity, ...]:
    """The identities that hold for batches up to this one; () where unknown.

    A start speaks for the batches planned after it: if it found a planned batch, its sources need not be those of that
    batch. A snapshot speaks for its own batch and those after it. For a batch planned before all of them, the first
    start
    speaks.

    Args:
        events: of the deployment, all attempts, in order; None for unreadable ones.
        batch_id: the batch; None for no batch.
        manifest_of: reads the snapshots of the deployment.
    """
    known = [event for event in events if event is not None]
    starts = [event for event in known if isinstance(event, QueryStarted) and event.query_name == query_name]
    telling = [event for event in starts if event.identities]
    before = [event for event in telling if batch_id is not None and _newest_planned(event) < batch_id]
    # In a snapshot before its first start, a query is as it was before this deployment.
    oldest = max(map(_newest_planned, (*starts[:1], *before[-1:])), default=None)
    if batch_id is not None and oldest is not None:
        silent: set[int] = set()
        for attempt, snapshot_id in _snapshots_between(known, query_name, oldest, batch_id):
            if attempt in silent:
                continue
            manifest = manifest_of(snapshot_id)
            query = manifest.queries.get(query_name) if manifest is not None else None
            if query is None:
                continue
            if query.identities:
                return query.identities
            silent.add(attempt)  # it would have known at this batch what it knew at an older one
    return next((event.identities for event in (*reversed(before), *telling[:1])), ())


def _snapshots_between(events: Sequence[Event], query_name: str, after: int, upto: int) -> list[tuple[int, str]]:
    """(attempt, snapshot id) of the snapshots with the query at a batch in ``(after, upto]``, the newest position
    first.
    """
    found = []
    drained_from: set[str | None] = set()
    for number, event in enumerate(events):
        if isinstance(event, Draining):
            if event.snapshot_id in drained_from:
                continue  # its queries are flushed after others, and have read on since that snapshot
            drained_from.add(event.snapshot_id)
        snapshot_id, batch_id = _captured(event, query_name)
        if snapshot_id is not None and batch_id is not None and after < batch_id <= upto:
            found.append((batch_id, number, event.attempt, snapshot_id))
    return [(attempt, snapshot_id) for _, _, attempt, snapshot_id in sorted(found, reverse=True)]


def _captured(event: Event, query_name: str) -> tuple[str | None, int | None]:
    """The snapshot that an event reports, and the last committed batch of the query in it."""
    if isinstance(event, (SnapshotReady, Stopped, Finished, Drained)):
        position = event.queries.get(query_name)
        return event.snapshot_id, None if position is None else position.batch_id
    if isinstance(event, Draining) and query_name in event.flush_batch_ids:
        return event.snapshot_id, event.flush_batch_ids[query_name] - 1
    return None, None


def identities_taken_over(known: QuerySnapshot | None, query_name: str, start: StartPlan) -> tuple[SourceIdentity, ...]:
    """The identities of a query's sources in the snapshot that it continues from, where no start has reported them.

    Args:
        known: the query in that snapshot; None where it has none.
        start: of its deployment.
    """
    if known is None or known.drained:
        return ()  # a seed may have given the offsets to its sources in another order
    moved = moved_query(known, start.move_sources)
    if query_name in start.accept_lost_input:
        # The offsets may have been moved to another source of that name, whose marks are unknown.
        return tuple(replace(identity, marks={}) for identity in moved.identities)
    return moved.identities


def _newest_planned(event: QueryStarted) -> int:
    return max((number for number in (event.batch_id, event.planned_batch_id) if number is not None), default=-1)
