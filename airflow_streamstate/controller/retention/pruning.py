"""The verbs of retention: prune, pin, and what there is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from airflow_streamstate.control.retention import Retention, is_held
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.lineage.lineage import lineage_of
from airflow_streamstate.controller.mirrors import Mirrors, no_mirrors
from airflow_streamstate.controller.observe.views import CommandView
from airflow_streamstate.controller.rehearsal.rehearsals import Rehearsals
from airflow_streamstate.controller.retention.deciding import Fate, RetentionPolicy, decide_fates, last_use
from airflow_streamstate.controller.retention.leftovers import Leftover, Leftovers
from airflow_streamstate.controller.retention.needs import Needs, needs_of
from airflow_streamstate.controller.retention.recreated_stream import SameStream
from airflow_streamstate.controller.retention.retiring import Retired, Retiring
from airflow_streamstate.controller.snapshots import Snapshots
from airflow_streamstate.controller.state_reader.readings import Readings
from airflow_streamstate.controller.wait.known_good import has_proven_itself
from airflow_streamstate.errors import DataError, DeploymentNotFoundError, StreamStateError
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.ids import order_of, snapshot_id_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import NO_SNAPSHOTS, DeploymentSpec
from airflow_streamstate.protocol.register import StreamRegister
from airflow_streamstate.protocol.retention import RetentionRegister, SettledCustody
from airflow_streamstate.snapshot.deletion import Removed, Remover
from airflow_streamstate.snapshot.mirror import refuse_left_behind, refuse_same
from airflow_streamstate.snapshot.partial_copies import close_copies, delete_partial_copies
from airflow_streamstate.snapshot.sharing import freed_bytes, shared_bytes
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.cleanup import clear_left

# Pruning at the mirrors: whole copies of snapshots that the home has let go of.
#
# A mirror is what is left where the home is lost, so it is never emptied after the home: only what the home has
# replaced by a newer snapshot of its own goes, and the newest copies stay, as many as were asked for and at least
# one.


@dataclass(frozen=True)
class PrunedMirror:
    """What a prune did at one mirror, or would do.

    Attributes:
        uri: of it.
        removed: by snapshot whose copy goes, why.
        freed: by snapshot that goes, how many bytes no other copy there has.
        kept: by snapshot, why its copy stays.
        files: how many went.
        problem: why not everything, or nothing, was done; "" for none.
    """

    uri: str
    removed: Mapping[str, tuple[str, ...]]
    freed: Mapping[str, int]
    kept: Mapping[str, tuple[str, ...]]
    files: int = 0
    problem: str = ""

    def to_json(self) -> dict[str, object]:
        """``mirror removed[] kept[] files problem``."""
        return {
            "mirror": self.uri,
            "removed": [
                {"snapshot_id": one, "why": list(why), "freed_bytes": self.freed.get(one, 0)}
                for one, why in self.removed.items()
            ],
            "kept": [{"snapshot_id": one, "why": list(why)} for one, why in self.kept.items()],
            "files": self.files,
            "problem": self.problem,
        }


@dataclass(frozen=True)
class HomeView:
    """What the home keeps, as the prune left it.

    Attributes:
        spec: of the current deployment.
        ids: every snapshot of which there is anything, but for those that go.
        manifests: the complete ones among them.
        unreadable: those of which the manifest cannot be read.
        needed: by id, what the stream needs it for.
        register: of what is kept.
    """

    spec: DeploymentSpec
    ids: Collection[str]
    manifests: Collection[SnapshotManifest]
    unreadable: Collection[str]
    needed: Mapping[str, str]
    register: RetentionRegister


class Copies:
    """Prunes mirrors of one stream.

    Args:
        means: of the controller.
        control: the stream in its home.
        policy: how much is to be kept, here as in the home.
        is_dry: only say what would go.
    """

    def __init__(
        self, context: ControllerContext, control: StreamControl, policy: RetentionPolicy, *, is_dry: bool
    ) -> None:
        self._context = context
        self._control = control
        self._policy = replace(policy, keep=max(1, policy.kept_count))
        self._is_dry = is_dry

    def prune(self, uri: str, home: HomeView) -> PrunedMirror:
        """Remove the copies that nothing needs from one mirror; again, it goes on where it was cut short."""
        try:
            return self._prune(Mirrors(self._context).open(uri), home)
        except StreamStateError as error:
            return PrunedMirror(uri, {}, {}, {}, problem=f"nothing, or not everything, was removed there: {error}")

    def _prune(self, mirror: Store, home: HomeView) -> PrunedMirror:
        there = StreamControl(mirror, self._control.stream_id, self._control.clock)
        self._refuse_another(there, home.spec)
        if home.unreadable:
            raise DataError(
                "a manifest of the home cannot be read, so nobody knows which copies its snapshot needs",
                stream_id=self._control.stream_id,
                snapshot_ids=list(home.unreadable),
                next_step=f"`streamstate snapshot verify {self._control.stream_id}` tells what is wrong with it.",
            )
        if not self._is_dry:
            refuse_same(self._control, mirror, self._context.home.checkpoints)
        found = {one: there.manifest(one) for one in there.snapshot_ids()}
        copies = {one: manifest for one, manifest in found.items() if manifest is not None}
        removed, kept = self._decide(copies, home)
        files = 0
        if not self._is_dry:
            by = self._context.requested_by
            closed = close_copies(self._control, mirror, by, removed)
            files = delete_partial_copies(self._control, mirror, by, of_all=True)
            removed = {one: why for one, why in removed.items() if one in closed}
        stays = [manifest for one, manifest in copies.items() if one not in removed]
        freed = freed_bytes(mirror, [copies[one] for one in removed], stays)
        return PrunedMirror(mirror.uri, removed, freed, kept, files)

    def _decide(
        self, copies: Mapping[str, SnapshotManifest], home: HomeView
    ) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
        """The copies that go, and those that stay; of each, why."""
        removed, kept = {}, {}
        newest = max((manifest.order for manifest in home.manifests), default=None)
        fates = decide_fates(copies, home.needed, home.register, self._policy, self._context.clock.now())
        for one, fate in fates.items():
            stays = fate.why if not fate.goes else ()
            if one in home.ids:
                stays = ("the home has it", *stays)
            elif newest is None or newest <= copies[one].order:
                stays = ("the home has none that is newer", *stays)
            if stays:
                kept[one] = stays
            else:
                removed[one] = fate.why
        return removed, kept

    def _refuse_another(self, there: StreamControl, spec: DeploymentSpec) -> None:
        """See that the mirror is of this very stream, by the record of its current deployment; and that the stream has
        not gone on elsewhere, in a home that was restored from there."""
        try:
            found: DeploymentSpec | None = there.spec(spec.deployment_id)
        except DeploymentNotFoundError:
            found = None
        if found is None or found.identity != spec.identity:
            raise DataError(
                "the mirror does not know the current deployment, so what lies there may be of another stream",
                stream_id=spec.stream_id,
                deployment_id=spec.deployment_id,
                mirror=there.home.uri,
                next_step="`streamstate home mirror` brings it there.",
            )
        refuse_left_behind(self._control, there.home)


# Before evidence goes, what it proves is recorded: the chain of custody up to the last known good version.


def settle(home: Home, control: StreamControl, retention: Retention, through: str | None) -> None:
    """Audit the beginnings of deployments whose evidence is about to go, and record what came of it.

    Args:
        home: of the stream.
        control: the stream.
        retention: what is kept of it.
        through: the last deployment whose evidence may go; None for none.
    """
    before = retention.read().settled
    if through is None or (before is not None and order_of(before.through) >= order_of(through)):
        return
    is_whole = lineage_of(home, control.stream_id, through=through).is_whole
    settled = SettledCustody(through, is_whole, home.clock.now())

    def edit(register: RetentionRegister) -> RetentionRegister:
        now = register.settled
        if now is not None and order_of(now.through) >= order_of(through):
            return register
        return replace(register, settled=settled)

    retention.change(edit)


@dataclass(frozen=True)
class KeptSnapshot:
    """A complete snapshot, and why it is kept.

    Attributes:
        manifest: of it.
        shared_bytes: how many of its bytes another snapshot, or on a disk the checkpoint, has as well.
        is_pinned, is_known_good: whether it is.
        leases: who reads it now.
        used_at: when it was taken, or last read.
    """

    manifest: SnapshotManifest
    shared_bytes: int
    is_pinned: bool
    is_known_good: bool
    leases: tuple[str, ...]
    used_at: str


@dataclass(frozen=True)
class Pruned:
    """What a prune did, or would do.

    Attributes:
        removed: by snapshot, why.
        freed: by snapshot that goes, how many bytes nothing else has.
        kept: by snapshot, why.
        leftovers: what else goes.
        swept: files and halves that went.
        temporaries: temporary files, and uploads in parts, that went.
        notes: what a person should know.
        mirrors: what was done at each mirror.
    """

    stream_id: str
    is_dry: bool
    removed: dict[str, tuple[str, ...]]
    freed: dict[str, int]
    kept: dict[str, tuple[str, ...]]
    leftovers: tuple[Leftover, ...] = ()
    swept: Removed = field(default_factory=Removed)
    temporaries: int = 0
    notes: tuple[str, ...] = ()
    mirrors: tuple[PrunedMirror, ...] = ()

    def to_json(self) -> dict[str, object]:
        """``stream_id dry_run removed[] kept[] leftovers[] abandoned[] files temporary_files notes[] mirrors[]``."""
        return {
            "stream_id": self.stream_id,
            "dry_run": self.is_dry,
            "removed": [
                {"snapshot_id": one, "why": list(why), "freed_bytes": self.freed.get(one, 0)}
                for one, why in self.removed.items()
            ],
            "kept": [{"snapshot_id": one, "why": list(why)} for one, why in self.kept.items()],
            "leftovers": [one.to_json() for one in self.leftovers],
            "abandoned": list(self.swept.abandoned),
            "files": self.swept.files,
            "temporary_files": self.temporaries,
            "notes": list(self.notes),
            "mirrors": [one.to_json() for one in self.mirrors],
        }


class Retaining:
    """Looks after what is kept.

    Args:
        means: of the controller.
    """

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._home = context.home

    def prune(
        self, stream_id: str, policy: RetentionPolicy, *, is_dry: bool = False, at_mirrors: bool = False
    ) -> Pruned:
        """Remove the snapshots that nothing needs, and what deployments left; again, it goes on where it was cut short.

        Args:
            stream_id: the stream.
            policy: how much is to be kept.
            is_dry: only say what would go, and why; nothing is changed.
            at_mirrors: at its mirrors, too. One that does not answer holds nobody up.

        Raises:
            StreamNotFoundError: there is none.
            InvalidRequestError: its checkpoints lie elsewhere than this home has them; or it has no mirrors.
            DataError: a record that says what is needed cannot be read: then nothing is removed.
            ConflictError: the stream was deleted meanwhile.
        """
        control = self._home.need_stream(stream_id)
        register = control.need_register().value
        spec = control.spec(str(register.deployment_id))
        self._home.check_place(spec)
        if at_mirrors and not spec.mirrors:
            raise no_mirrors(stream_id)
        same = SameStream(control, spec)
        if not is_dry:
            self._mark_known_good(control)
            Rehearsals(self._context).sweep(stream_id)
            Readings(self._context).sweep(stream_id)
        retention = Retention(control, self._context.requested_by)
        kept_register = retention.read()
        manifests, _ = self._manifests(control, kept_register)
        needs = self._needs(control, register, manifests, kept_register)
        now = self._context.clock.now()
        fates = decide_fates(manifests, needs.snapshots, kept_register, policy, now)
        notes = self._notes(needs, kept_register)
        removed = {one: fate.why for one, fate in fates.items() if fate.goes}
        if not is_dry:
            settle(self._home, control, retention, self._until(control, register, kept_register, needs))
            removed = self._condemned(control, self._remover(control, same), manifests, policy, fates)
        stays = [manifest for one, manifest in manifests.items() if one not in removed]
        freed = freed_bytes(self._home.checkpoints, [manifests[one] for one in removed], stays)
        swept = Removed() if is_dry else self._remover(control, same).sweep()
        notes = (*notes, *swept.problems)
        current = str(register.deployment_id)
        good = None if kept_register.known_good is None else kept_register.known_good.deployment_id
        # What was completed since may refer to a checkpoint to which, of the others, only one refers that goes now.
        found, unreadable = self._manifests(control, retention.read())
        stays = [manifest for one, manifest in found.items() if one not in removed]
        is_blind = bool(unreadable) and self._names_checkpoints(control)
        if unreadable:
            stays_too = ": what deployments left stays" if is_blind else ", and is neither kept nor removed"
            notes = (*notes, f"the manifest of {', '.join(unreadable)} cannot be read{stays_too}")
        leftovers = Leftovers(
            self._context, control, needs, stays, current, good, same, is_dry=is_dry, is_blind=is_blind
        ).remove()
        places, _ = self._home.places.all_of(control)
        stores = dict.fromkeys((self._home.home, *places.values()))
        temporaries = sum(clear_left(store, stream_id, now, is_dry=is_dry) for store in stores)
        kept = {one: fate.why for one, fate in fates.items() if one not in removed}
        mirrors: tuple[PrunedMirror, ...] = ()
        if at_mirrors:
            ids = {*control.snapshot_ids()} - {*removed, *retention.read().condemned}
            view = HomeView(spec, ids, stays, unreadable, needs.snapshots, kept_register)
            copies = Copies(self._context, control, policy, is_dry=is_dry)
            mirrors = tuple(copies.prune(uri, view) for uri in spec.mirrors)
        return Pruned(stream_id, is_dry, removed, freed, kept, tuple(leftovers), swept, temporaries, notes, mirrors)

    def _condemned(
        self,
        control: StreamControl,
        remover: Remover,
        manifests: dict[str, SnapshotManifest],
        policy: RetentionPolicy,
        fates: dict[str, Fate],
    ) -> dict[str, tuple[str, ...]]:
        """Decide by the records as they are in the moment of the act, and record it.

        Whoever wants a snapshot since the last look has had a lease on it, so either his record is seen here, or the
        register has changed, and it is looked again.
        """

        def choose(register: RetentionRegister) -> list[str]:
            now = self._context.clock.now()
            needs = self._needs(control, control.need_register().value, manifests, register)
            again = decide_fates(manifests, needs.snapshots, register, policy, now)
            return [one for one, fate in again.items() if fate.goes and fates[one].goes]

        return {one: fates[one].why for one in remover.condemn(manifests, choose) if one in fates}

    def _remover(self, control: StreamControl, same: SameStream) -> Remover:
        return Remover(control, self._home.places, self._context.requested_by, same.check)

    def _needs(
        self,
        control: StreamControl,
        register: StreamRegister,
        manifests: dict[str, SnapshotManifest],
        kept: RetentionRegister,
    ) -> Needs:
        return needs_of(
            control, register, manifests, None if kept.known_good is None else kept.known_good.deployment_id
        )

    def _until(
        self, control: StreamControl, register: StreamRegister, kept: RetentionRegister, needs: Needs
    ) -> str | None:
        """Up to which deployment evidence of its beginning may go; None for none.

        That of the last known good version goes only with the snapshot that it started from, which the current
        deployment keeps.
        """
        if needs.is_moving or kept.known_good is None:
            return None
        good = kept.known_good.deployment_id
        ids = [one for one in control.deployment_ids() if order_of(one) <= order_of(good)]
        behind = [one for one in ids if one != register.deployment_id]
        return behind[-1] if behind else None

    def _notes(self, needs: Needs, kept: RetentionRegister) -> tuple[str, ...]:
        if needs.is_moving:
            return ("a deploy or an upgrade is under way: what deployments left stays for now",)
        if kept.known_good is None:
            return ("no version has proven itself yet: what deployments left stays for now",)
        return ()

    def _mark_known_good(self, control: StreamControl) -> None:
        """Where nobody waited for the current version to be healthy, the prune looks itself."""
        seen = self._context.observer.observe(control.stream_id)
        if seen.register.upgrade_id is None and has_proven_itself(self._context, seen):
            Retention(control, self._context.requested_by).mark_good(seen.deployment_id)

    def _manifests(
        self, control: StreamControl, kept: RetentionRegister
    ) -> tuple[dict[str, SnapshotManifest], list[str]]:
        """Those that stay as far as the register says, by id; and the ids of those that cannot be read."""
        found, unreadable = {}, []
        for snapshot_id in control.snapshot_ids():
            if snapshot_id in kept.condemned:
                continue  # a prune that was cut short had decided on it
            try:
                manifest = control.manifest(snapshot_id)
            except DataError:
                unreadable.append(snapshot_id)  # told by ``verify``; what it refers to stays as long as it is there
                continue
            if manifest is not None:
                found[snapshot_id] = manifest
        return found, unreadable

    def _names_checkpoints(self, control: StreamControl) -> bool:
        """Whether a deployment was told to keep no snapshots: its end, and that of the one before it, may name files of
        a checkpoint itself."""
        for deployment_id in control.deployment_ids():
            try:
                if control.spec(deployment_id).snapshots == NO_SNAPSHOTS:
                    return True
            except DeploymentNotFoundError:
                continue
            except DataError:
                return True
        return False

    # what there is

    def all(self, stream_id: str) -> list[KeptSnapshot]:
        """The complete snapshots of a stream, oldest first, with what keeps them.

        Raises:
            StreamNotFoundError: there is no such stream.
        """
        control = self._home.need_stream(stream_id)
        manifests = Snapshots(self._context).all(stream_id)
        shared = shared_bytes(self._home.checkpoints, manifests)
        kept, good = self._looked(control, {one.snapshot_id: one for one in manifests})
        now = self._context.clock.now()
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

    def _looked(
        self, control: StreamControl, manifests: dict[str, SnapshotManifest]
    ) -> tuple[RetentionRegister, set[str]]:
        """What is kept, and which snapshots for the last known good version; damage of it hides no snapshot."""
        empty = RetentionRegister(control.stream_id, "", self._context.clock.now(), "")
        try:
            kept = Retention(control).read()
            needs = self._needs(control, control.need_register().value, manifests, kept)
        except StreamStateError:
            return empty, set()
        return kept, {one for one, why in needs.snapshots.items() if why.startswith("last known good")}

    def retire(self, stream_id: str, *, reason: str = "", deletes: bool = False) -> Retired:
        """As ``Retiring.retire``."""
        return Retiring(self._context).retire(stream_id, reason=reason, deletes=deletes)

    # pins

    def pin(self, stream_id: str, snapshot_id: str, *, is_promised: bool = False) -> None:
        """Keep a snapshot until ``unpin``; twice is once.

        Args:
            stream_id: the stream.
            snapshot_id: a complete one.
            is_promised: it is still to be taken: an order for it was given.

        Raises:
            SnapshotNotFoundError: there is none, or it is being removed.
        """
        control = self._home.need_stream(stream_id)
        if not is_promised:
            control.need_manifest(snapshot_id)
        Retention(control, self._context.requested_by).pin(snapshot_id)

    def pin_ordered(self, order: CommandView) -> None:
        """Pin the snapshot that an order makes, or that answers it; one that never comes to be pins nothing.

        Raises:
            SnapshotNotFoundError: it is being removed.
        """
        if order.outcome is not None and order.outcome.snapshot is not None:
            self.pin(order.stream_id, order.outcome.snapshot.snapshot_id)
        elif order.number is not None:
            snapshot_id = snapshot_id_for(order.deployment_id, "live", order.number)
            self.pin(order.stream_id, snapshot_id, is_promised=True)

    def unpin(self, stream_id: str, snapshot_id: str) -> None:
        """Take a pin away; where there is none, nothing is changed.

        Raises:
            SnapshotNotFoundError: there is no such snapshot.
        """
        control = self._home.need_stream(stream_id)
        retention = Retention(control, self._context.requested_by)
        if snapshot_id not in retention.read().pins:
            control.need_manifest(snapshot_id)
        retention.unpin(snapshot_id)
