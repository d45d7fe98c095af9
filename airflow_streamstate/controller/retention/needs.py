"""Which snapshots a stream still needs: those that a start, a rollback or an undo may go back to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.control.upgrades import UpgradeJournal, UpgradeState
from airflow_streamstate.errors import DataError, DeploymentNotFoundError
from airflow_streamstate.protocol.ids import SnapshotKind, order_of
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.register import StreamRegister

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
        known_good: the deployment of its last known good version; None for none.

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
            with suppress(DataError):  # its driver holds a lease of its own
                if self._control.verdict(rehearsal_id) is None or self._control.waiting(rehearsal_id) is not None:
                    self.start(rehearsal_id, f"rehearsal {rehearsal_id} starts from it")


def _deployments_of(old_deployment_id: str, state: UpgradeState | None) -> Iterable[str]:
    found: Collection[str | None] = (old_deployment_id,)
    if state is not None:
        found = (old_deployment_id, state.new_deployment_id, state.returned_deployment_id)
    return dict.fromkeys(one for one in found if one is not None)
