"""The snapshots of a stream as they are listed, which mirrors have them, and which are still needed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import ClassVar

from airflow_streamstate.control.registers import Retention, is_held, known_good_of, last_use
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.control.upgrade_journal import UpgradeJournal, UpgradeState
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.snapshot_list import Snapshots
from airflow_streamstate.errors import DataError, DeploymentNotFoundError, StreamStateError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.events import SnapshotMirrored
from airflow_streamstate.protocol.forms import View, selected
from airflow_streamstate.protocol.ids import SnapshotKind, order_of
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.policies import RetentionRegister
from airflow_streamstate.protocol.records import StreamRegister
from airflow_streamstate.snapshot.data import shared_bytes

# Which snapshots a stream still needs: those that a start, a rollback or an undo may go back to.

_ENDS: tuple[SnapshotKind, ...] = ("stopped", "drained", "pre-drain")


@dataclass(frozen=True)
class Needs:
    """What a stream needs.

    Attributes:
        snapshots: by id, what a snapshot is needed for.
        deployments: those with records, plans and files that are needed.
        is_moving: a deploy or an upgrade is under way, so that no leftovers of deployments may be removed.
    """

    snapshots: Mapping[str, str]
    deployments: frozenset[str]
    is_moving: bool


def needs_of(
    control: StreamControl,
    register: StreamRegister,
    manifests: Mapping[str, SnapshotManifest],
    known_good: str | None,
) -> Needs:
    """What a stream needs by its register, deployments, upgrades and rehearsals.

    Args:
        manifests: its complete snapshots, by id.
        known_good: the deployment of its last known good version, or None.

    Raises:
        DataError: a record that decides this cannot be read; then nothing may be removed.
    """
    gathering = _Gathering(control, manifests)
    current = register.deployment_id
    if current is None:
        return Needs({}, frozenset(), is_moving=register.intent is not None)
    gathering.deployment(current, "the current deployment")
    spec = control.spec(current)
    if spec.start.predecessor_id is not None:
        gathering.deployment(spec.start.predecessor_id, "the deployment before the current one")
    if known_good is not None:
        gathering.known_good(known_good)
        for newer in (one for one in control.deployment_ids() if order_of(one) > order_of(known_good)):
            gathering.start(newer, f"{newer} started from it, and no version since is known to be good")
    gathering.upgrades(register)
    gathering.rehearsals()
    is_moving = register.intent is not None or bool(gathering.moving)
    return Needs(gathering.snapshots, frozenset(gathering.deployments), is_moving)


class _Gathering:
    """Reads the records, and keeps the first reason for each snapshot."""

    def __init__(self, control: StreamControl, manifests: Mapping[str, SnapshotManifest]) -> None:
        self._control = control
        self._manifests = manifests
        self.snapshots: dict[str, str] = {}
        self.deployments: set[str] = set()
        self.moving: list[str] = []

    def _need(self, snapshot_id: str | None, why: str) -> None:
        if snapshot_id is not None:
            self.snapshots.setdefault(snapshot_id, why)

    def _start_of(self, deployment_id: str) -> str | None:
        try:
            return self._control.spec(deployment_id).start.snapshot_id
        except DeploymentNotFoundError:
            return None

    def start(self, deployment_id: str, why: str) -> None:
        """The snapshot that a deployment started from."""
        self._need(self._start_of(deployment_id), why)

    def deployment(self, deployment_id: str, what: str) -> None:
        """The snapshots that a deployment started from, those at its ends, and its newest one."""
        self.deployments.add(deployment_id)
        self.start(deployment_id, f"{what}, {deployment_id}, started from it")
        own = self._own(deployment_id)
        for kind in _ENDS:
            ends = [manifest for manifest in own if manifest.snapshot_kind == kind]
            for manifest in ends[-1:]:
                self._need(manifest.snapshot_id, f"the last {kind} one of {what}, {deployment_id}")
        for manifest in own[-1:]:
            self._need(manifest.snapshot_id, f"the newest one of {what}, {deployment_id}")

    def known_good(self, deployment_id: str) -> None:
        """The snapshot from which the last known good version can be started again."""
        self.deployments.add(deployment_id)
        own = self._own(deployment_id)
        if own:
            self.snapshots[own[-1].snapshot_id] = f"last known good: the newest one of {deployment_id}"
        elif (started_from := self._start_of(deployment_id)) is not None:
            self.snapshots[started_from] = f"last known good: {deployment_id} started from it"

    def _own(self, deployment_id: str) -> list[SnapshotManifest]:
        own = [manifest for manifest in self._manifests.values() if manifest.deployment_id == deployment_id]
        return sorted(own, key=lambda manifest: manifest.order)

    def upgrades(self, register: StreamRegister) -> None:
        """The snapshots that an upgrade under way may go back to."""
        journal = UpgradeJournal(self._control)
        for upgrade_id in dict.fromkeys((*journal.ids(), *((register.upgrade_id,) if register.upgrade_id else ()))):
            upgrade = journal.upgrade(upgrade_id)
            state = journal.state(upgrade_id)
            if upgrade is None or (state is not None and state.is_over):
                continue
            self.moving.append(upgrade_id)
            self._need(upgrade.terms_of_return.snapshot_id, f"upgrade {upgrade_id} goes back to it")
            for deployment_id in _deployments_of(upgrade.old_deployment_id, state):
                self.deployment(deployment_id, f"a deployment of upgrade {upgrade_id}")
            if state is not None:
                self._need(state.snapshot_id, f"the handover of upgrade {upgrade_id}")

    def rehearsals(self) -> None:
        """The snapshots from which a rehearsal that is not over, or whose driver waits, starts."""
        for rehearsal_id in self._control.scratch_ids():
            with suppress(DataError):  # its driver holds its own lease
                if self._control.verdict(rehearsal_id) is None or self._control.waiting(rehearsal_id) is not None:
                    self.start(rehearsal_id, f"rehearsal {rehearsal_id} starts from it")


def _deployments_of(old_deployment_id: str, state: UpgradeState | None) -> Iterable[str]:
    found: Collection[str | None] = (old_deployment_id,)
    if state is not None:
        found = (old_deployment_id, state.new_deployment_id, state.returned_deployment_id)
    return dict.fromkeys(one for one in found if one is not None)


_POSITION = " ".join(
    [
        *(f"{name}=position.{name}" for name in ("batch_id", "planned_batch_id", "end_offsets", "watermark_at")),
        "drained",
    ]
)


@dataclass(frozen=True)
class KeptSnapshot(View):
    """A complete snapshot, and why it is kept.

    Attributes:
        shared_bytes: bytes that another snapshot, or on a disk the checkpoint, has as well.
        leases: its current readers.
        used_at: when it was taken or last read.
    """

    form: ClassVar[str] = (
        "snapshot_id=manifest.snapshot_id kind=manifest.snapshot_kind deployment_id=manifest.deployment_id"
        " taken_at=manifest.taken_at used_at files=manifest.files_count bytes=manifest.size_bytes shared_bytes place"
        " refers_to_checkpoint=manifest.refers_to_checkpoints pinned=is_pinned last_known_good=is_known_good leases"
        " request_id content_digest=manifest.content_digest queries"
    )

    manifest: SnapshotManifest
    shared_bytes: int
    is_pinned: bool
    is_known_good: bool
    leases: tuple[str, ...]
    used_at: str

    @property
    def place(self) -> str | None:
        """The place of its files, if that is not the store of checkpoints."""
        return self.manifest.data_uri or None

    @property
    def request_id(self) -> str | None:
        """The request that it answers; None: it was not requested."""
        return self.manifest.request_id or None

    @property
    def queries(self) -> dict[str, dict[str, object]]:
        """The position of each query."""
        return {name: selected(query, _POSITION) for name, query in self.manifest.queries.items()}


def kept_snapshots(context: ControllerContext, stream_id: str) -> list[KeptSnapshot]:
    """The complete snapshots of a stream, oldest first, with what keeps them. Raises StreamNotFoundError."""
    control = context.home.need_stream(stream_id)
    manifests = Snapshots(context).all(stream_id)
    shared = shared_bytes(context.home.checkpoints, manifests)
    kept, good = _looked(context, control, {one.snapshot_id: one for one in manifests})
    now = context.clock.now()
    leases = [lease for lease in kept.leases.values() if is_held(lease, now)]
    return [
        KeptSnapshot(
            manifest,
            shared[manifest.snapshot_id],
            manifest.snapshot_id in kept.pins,
            manifest.snapshot_id in good,
            tuple(sorted(lease.reader for lease in leases if lease.snapshot_id == manifest.snapshot_id)),
            format_time(last_use(manifest, kept)),
        )
        for manifest in manifests
        if manifest.snapshot_id not in kept.condemned
    ]


def mirrors_of(context: ControllerContext, stream_id: str) -> dict[str, list[str]]:
    """By snapshot, the mirrors that have it according to the drivers' events."""
    control = context.home.need_stream(stream_id)
    found: dict[str, list[str]] = {}
    for deployment_id in control.deployment_ids():
        for entry in context.observer.events(control, deployment_id):
            event = entry.event
            if isinstance(event, SnapshotMirrored) and event.mirror_uri not in found.get(event.snapshot_id, ()):
                found.setdefault(event.snapshot_id, []).append(event.mirror_uri)
    return found


def _looked(
    context: ControllerContext, control: StreamControl, manifests: dict[str, SnapshotManifest]
) -> tuple[RetentionRegister, set[str]]:
    """The retention register, and the snapshots kept for the last known good version; empty where it is damaged."""
    empty = RetentionRegister(control.stream_id, "", context.clock.now(), "")
    try:
        kept = Retention(control).read()
        needs = needs_of(control, control.need_register().value, manifests, known_good_of(kept))
    except StreamStateError:
        return empty, set()
    return kept, {one for one, why in needs.snapshots.items() if why.startswith("last known good")}
