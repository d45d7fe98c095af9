"""Prunes: list, prune and pin snapshots, by callers and by watchers, in the home and at its mirrors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass as mutable_dataclass
from dataclasses import field, replace
from datetime import datetime
from threading import Lock
from typing import ClassVar, Literal

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.registers import Retention, known_good_of, last_use
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.mirrors import Mirrors, no_mirrors
from airflow_streamstate.controller.observe.lineage import lineage_of
from airflow_streamstate.controller.observe.views import CommandView
from airflow_streamstate.controller.retention.kept_snapshots import Needs, needs_of
from airflow_streamstate.controller.retention.retiring import Leftover, Leftovers, Retired, Retiring, SameStream
from airflow_streamstate.controller.scratch.run import ScratchRuns
from airflow_streamstate.controller.wait.condition import has_proven_itself
from airflow_streamstate.errors import DataError, DeploymentNotFoundError, StreamNotFoundError, StreamStateError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.ids import order_of, snapshot_id_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.policies import LastPrune, RetentionPolicy, RetentionRegister, SettledLineage
from airflow_streamstate.protocol.records import DeploymentSpec, StreamRegister
from airflow_streamstate.protocol.redaction import shortened
from airflow_streamstate.protocol.terms.version import NO_SNAPSHOTS
from airflow_streamstate.snapshot.data import freed_bytes
from airflow_streamstate.snapshot.deletion import Removed, Remover, held_in
from airflow_streamstate.snapshot.mirror_copies import (
    close_copies,
    delete_partial_copies,
    refuse_left_behind,
    refuse_same,
)
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.transfer import clear_left

# Which snapshots a prune removes: a pure function of the snapshots, the needs of the stream, and the policy.


@dataclass(frozen=True)
class Fate:
    """Whether a prune removes one snapshot, and each reason as text."""

    goes: bool
    why: tuple[str, ...]


def decide_fates(
    manifests: Mapping[str, SnapshotManifest],
    needed: Mapping[str, str],
    register: RetentionRegister,
    policy: RetentionPolicy,
    now: datetime,
) -> dict[str, Fate]:
    """The fate of each snapshot of a stream, newest first.

    Args:
        manifests: the complete snapshots, by id.
        needed: by id, what the stream needs a snapshot for.
        register: the pins, leases and snapshots in progress.
    """
    held = held_in(register, now)
    newest_first = sorted(manifests.values(), key=lambda one: one.order, reverse=True)
    fates = {}
    for number, manifest in enumerate(newest_first, 1):
        one = manifest.snapshot_id
        age_seconds = (now - last_use(manifest, register)).total_seconds()
        kept = [words[one] for words in (held, needed) if one in words]
        if number <= policy.kept_count:
            kept.append(f"one of the newest {policy.kept_count}")
        if policy.older_than_seconds is not None and age_seconds <= policy.older_than_seconds:
            kept.append(f"used {age_seconds:,.0f} s ago, which is not longer than {policy.older_than_seconds:,.0f} s")
        gone = (f"number {number} from the newest, used {age_seconds:,.0f} s ago; nothing needs it",)
        fates[one] = Fate(not kept, tuple(kept) or gone)
    return fates


class _Decided(View):
    """The rows of a prune at one place: a snapshot each."""

    removed: Mapping[str, tuple[str, ...]]
    freed: Mapping[str, int]
    kept: Mapping[str, tuple[str, ...]]

    @property
    def removed_rows(self) -> list[dict[str, object]]:
        """Those that go, with the bytes that this frees."""
        return [
            {"snapshot_id": one, "why": why, "freed_bytes": self.freed.get(one, 0)} for one, why in self.removed.items()
        ]

    @property
    def kept_rows(self) -> list[dict[str, object]]:
        """Those that stay."""
        return [{"snapshot_id": one, "why": why} for one, why in self.kept.items()]


@dataclass(frozen=True)
class PrunedMirror(_Decided):
    """What a prune did, or would do, at one mirror.

    Attributes:
        removed, kept: by snapshot, why its copy goes or stays.
        freed: by removed snapshot, the bytes that no other copy there has.
        files: the number of removed files.
        problem: why the prune there is not complete, or "".
    """

    form: ClassVar[str] = "mirror=uri removed=removed_rows kept=kept_rows files problem"

    uri: str
    removed: Mapping[str, tuple[str, ...]]
    freed: Mapping[str, int]
    kept: Mapping[str, tuple[str, ...]]
    files: int = 0
    problem: str = ""


@dataclass(frozen=True)
class HomeView:
    """What the home keeps after its prune.

    Attributes:
        spec: of the current deployment.
        ids: every snapshot of which there is anything, except those that go.
        manifests: the complete ones among them.
        unreadable: those with an unreadable manifest.
        needed: by id, what the stream needs a snapshot for.
        register: the pins, leases and snapshots in progress.
    """

    spec: DeploymentSpec
    ids: Collection[str]
    manifests: Collection[SnapshotManifest]
    unreadable: Collection[str]
    needed: Mapping[str, str]
    register: RetentionRegister


class Copies:
    """Prunes the mirrors of one stream.

    Args:
        control: the stream in its home.
        is_dry: only report what would be removed.
    """

    def __init__(
        self, context: ControllerContext, control: StreamControl, policy: RetentionPolicy, *, is_dry: bool
    ) -> None:
        self._context = context
        self._control = control
        self._policy = replace(policy, keep=max(1, policy.kept_count))
        self._is_dry = is_dry

    def prune(self, uri: str, home: HomeView) -> PrunedMirror:
        """Remove the unneeded copies from one mirror; the next call finishes one that was cut short."""
        try:
            return self._prune(Mirrors(self._context).open(uri), home)
        except StreamStateError as error:
            return PrunedMirror(uri, {}, {}, {}, problem=f"the prune there is not complete: {error}")

    def _prune(self, mirror: Store, home: HomeView) -> PrunedMirror:
        there = StreamControl(mirror, self._control.stream_id, self._control.clock)
        self._refuse_another(there, home.spec)
        if home.unreadable:
            raise DataError(
                "a manifest of the home cannot be read, so it is unknown which copies its snapshot needs",
                stream_id=self._control.stream_id,
                snapshot_ids=list(home.unreadable),
                next_step=f"`streamstate snapshot verify {self._control.stream_id}` shows what is wrong with it.",
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
        """The copies that go and those that stay, each with the reasons."""
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
        """Refuse a mirror of a different stream, by the record of the current deployment; and a mirror from which
        another home was restored, where the stream has continued."""
        try:
            found: DeploymentSpec | None = there.spec(spec.deployment_id)
        except DeploymentNotFoundError:
            found = None
        if found is None or found.identity != spec.identity:
            raise DataError(
                "the mirror does not know the current deployment, so it may be of another stream",
                stream_id=spec.stream_id,
                deployment_id=spec.deployment_id,
                mirror=there.home.uri,
                next_step="`streamstate home mirror` copies the deployment there.",
            )
        refuse_left_behind(self._control, there.home)


def settle(home: Home, control: StreamControl, retention: Retention, through: str | None) -> None:
    """Audit the lineage up to ``through`` and record the result, before its evidence is removed; None: do nothing."""
    before = retention.read().settled
    if through is None or (before is not None and order_of(before.through) >= order_of(through)):
        return
    is_whole = lineage_of(home, control.stream_id, through=through).is_whole
    settled = SettledLineage(through, is_whole, home.clock.now())

    def edit(register: RetentionRegister) -> RetentionRegister:
        now = register.settled
        if now is not None and order_of(now.through) >= order_of(through):
            return register
        return replace(register, settled=settled)

    retention.change(edit)


PolicySource = Literal["given", "recorded", "default"]


@dataclass(frozen=True)
class Pruned(_Decided):
    """What a prune did, or would do.

    Attributes:
        policy: by which it was decided.
        policy_source: ``given`` by the caller, ``recorded`` with the stream, or the ``default``.
        removed, kept: by snapshot, why it goes or stays.
        freed: by removed snapshot, the bytes that no other snapshot has.
        leftovers: what else was removed.
        swept: removed files and partial snapshots.
        temporaries: the number of removed temporary files and multipart uploads.
        notes: human-readable notes.
    """

    form: ClassVar[str] = (
        "stream_id dry_run=is_dry policy=policy_shown removed=removed_rows kept=kept_rows leftovers"
        " abandoned=swept.abandoned files=swept.files temporary_files=temporaries notes mirrors"
    )

    stream_id: str
    is_dry: bool
    policy: RetentionPolicy
    policy_source: PolicySource
    removed: dict[str, tuple[str, ...]]
    freed: dict[str, int]
    kept: dict[str, tuple[str, ...]]
    leftovers: tuple[Leftover, ...] = ()
    swept: Removed = field(default_factory=Removed)
    temporaries: int = 0
    notes: tuple[str, ...] = ()
    mirrors: tuple[PrunedMirror, ...] = ()

    @property
    def policy_shown(self) -> dict[str, object]:
        """The policy, what it keeps, and where it is from."""
        return {**vars(self.policy), "keep": self.policy.kept_count, "source": self.policy_source}


def _until(control: StreamControl, register: StreamRegister, kept: RetentionRegister, needs: Needs) -> str | None:
    """The last deployment whose evidence of its beginning may be removed, or None.

    The evidence of the current deployment stays, as does the snapshot that it started from.
    """
    good = known_good_of(kept)
    if needs.is_moving or good is None:
        return None
    ids = [one for one in control.deployment_ids() if order_of(one) <= order_of(good)]
    behind = [one for one in ids if one != register.deployment_id]
    return behind[-1] if behind else None


def _notes(needs: Needs, kept: RetentionRegister) -> tuple[str, ...]:
    if needs.is_moving:
        return ("a deploy or an upgrade is under way: what deployments left stays for now",)
    if kept.known_good is None:
        return ("no version has proven itself yet: what deployments left stays for now",)
    return ()


class Retaining:
    """The snapshots and leftovers of the streams of one home."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._home = context.home

    def prune(
        self,
        stream_id: str,
        policy: RetentionPolicy | None = None,
        *,
        is_dry: bool = False,
        at_mirrors: bool | None = None,
    ) -> Pruned:
        """Remove unneeded snapshots and what old deployments left; the next call finishes one that was cut short.

        Args:
            policy: None: the one that is recorded with the stream, or the default.
            is_dry: only report what would be removed, and why.
            at_mirrors: prune the stream's mirrors as well; one that does not answer does not stop the others. None: by
                the policy.

        Raises:
            StreamNotFoundError: there is no such stream.
            InvalidRequestError: its checkpoints are in another store than this home's; or it has no mirrors.
            DataError: a record of what is needed cannot be read; then nothing is removed.
            ConflictError: the stream was deleted in the meantime.
        """
        control = self._home.need_stream(stream_id)
        register = control.need_register().value
        source: PolicySource = "given"
        if policy is None:
            source = "default" if register.retention is None else "recorded"
            policy = register.retention or RetentionPolicy()
        if at_mirrors is not None:
            policy = replace(policy, at_mirrors=at_mirrors)
        spec = control.spec(str(register.deployment_id))
        self._home.check_place(spec)
        if at_mirrors and not spec.version.mirrors:
            raise no_mirrors(stream_id)
        return self._prune(control, register, spec, policy, source, is_dry=is_dry)

    def prune_as_recorded(self, stream_id: str) -> Pruned | None:
        """As ``prune``, by the recorded policy alone; None where none is recorded, or the stream is retired."""
        control = self._home.need_stream(stream_id)
        register = control.need_register().value
        if register.retention is None or register.retirement is not None or register.deployment_id is None:
            return None
        spec = control.spec(register.deployment_id)
        self._home.check_place(spec)
        return self._prune(control, register, spec, register.retention, "recorded", is_dry=False)

    def _prune(
        self,
        control: StreamControl,
        register: StreamRegister,
        spec: DeploymentSpec,
        policy: RetentionPolicy,
        source: PolicySource,
        *,
        is_dry: bool,
    ) -> Pruned:
        stream_id = control.stream_id
        same = SameStream(control, spec)
        remover = Remover(control, self._home.places, self._context.requested_by, same.check)
        if not is_dry:
            self._mark_known_good(control)
            ScratchRuns(self._context).sweep(stream_id)
        retention = Retention(control, self._context.requested_by)
        kept_register = retention.read()
        manifests, _ = self._manifests(control, kept_register)
        needs = needs_of(control, register, manifests, known_good_of(kept_register))
        now = self._context.clock.now()
        fates = decide_fates(manifests, needs.snapshots, kept_register, policy, now)
        notes = _notes(needs, kept_register)
        removed = {one: fate.why for one, fate in fates.items() if fate.goes}
        if not is_dry:
            settle(self._home, control, retention, _until(control, register, kept_register, needs))
            removed = self._condemned(control, remover, manifests, policy, fates)
        stays = [manifest for one, manifest in manifests.items() if one not in removed]
        freed = freed_bytes(self._home.checkpoints, [manifests[one] for one in removed], stays)
        swept = Removed() if is_dry else remover.sweep()
        notes = (*notes, *swept.problems)
        # A snapshot completed since may be the only one that stays and refers to a deployment's checkpoint.
        found, unreadable = self._manifests(control, retention.read())
        stays = [manifest for one, manifest in found.items() if one not in removed]
        is_blind = bool(unreadable) and self._names_checkpoints(control)
        if unreadable:
            stays_too = ": what deployments left stays" if is_blind else ", and is neither kept nor removed"
            notes = (*notes, f"the manifest of {', '.join(unreadable)} cannot be read{stays_too}")
        leftovers = Leftovers(
            self._context,
            control,
            needs,
            stays,
            spec.deployment_id,
            known_good_of(kept_register),
            same,
            is_dry=is_dry,
            is_blind=is_blind,
        ).remove()
        places, _ = self._home.places.all_of(control)
        stores = dict.fromkeys((self._home.home, *places.values()))
        temporaries = sum(clear_left(store, stream_id, now, is_dry=is_dry) for store in stores)
        kept = {one: fate.why for one, fate in fates.items() if one not in removed}
        mirrors: tuple[PrunedMirror, ...] = ()
        if policy.at_mirrors and spec.version.mirrors:
            ids = {*control.snapshot_ids()} - {*removed, *retention.read().condemned}
            view = HomeView(spec, ids, stays, unreadable, needs.snapshots, kept_register)
            copies = Copies(self._context, control, policy, is_dry=is_dry)
            mirrors = tuple(copies.prune(uri, view) for uri in spec.version.mirrors)
        if policy.at_mirrors and not spec.version.mirrors:
            notes = (*notes, "the policy is for its mirrors, too, and it has none")
        if policy == register.retention and not is_dry and not needs.is_moving:
            self._record_prune(retention, policy, kept_register.newest_snapshot_id)
        return Pruned(
            stream_id,
            is_dry,
            policy,
            source,
            removed,
            freed,
            kept,
            tuple(leftovers),
            swept,
            temporaries,
            notes,
            mirrors,
        )

    def _record_prune(self, retention: Retention, policy: RetentionPolicy, newest_snapshot_id: str | None) -> None:
        """Record a prune by the policy of the stream: watchers need not prune it again so soon."""
        last = LastPrune(self._context.clock.now(), policy, newest_snapshot_id)
        retention.change(lambda register: replace(register, last_prune=last))

    def _condemned(
        self,
        control: StreamControl,
        remover: Remover,
        manifests: dict[str, SnapshotManifest],
        policy: RetentionPolicy,
        fates: dict[str, Fate],
    ) -> dict[str, tuple[str, ...]]:
        """Decide again by the current records, and record the decision.

        Each new user of a snapshot takes a lease first: either this poll sees its record, or the retention register
        has changed and the compare-and-swap looks again.
        """

        def choose(register: RetentionRegister) -> list[str]:
            now = self._context.clock.now()
            needs = needs_of(control, control.need_register().value, manifests, known_good_of(register))
            again = decide_fates(manifests, needs.snapshots, register, policy, now)
            return [one for one, fate in again.items() if fate.goes and fates[one].goes]

        return {one: fates[one].why for one in remover.condemn(manifests, choose) if one in fates}

    def _mark_known_good(self, control: StreamControl) -> None:
        """Mark the current version as known good, if it is healthy: no caller may have waited for that."""
        seen = self._context.observer.observe(control.stream_id)
        if seen.register.upgrade_id is None and has_proven_itself(self._context, seen):
            Retention(control, self._context.requested_by).mark_good(seen.deployment_id)

    def _manifests(
        self, control: StreamControl, kept: RetentionRegister
    ) -> tuple[dict[str, SnapshotManifest], list[str]]:
        """The complete snapshots that are not condemned, by id; and the ids of unreadable ones."""
        found, unreadable = {}, []
        for snapshot_id in control.snapshot_ids():
            if snapshot_id in kept.condemned:
                continue  # by an earlier prune that was cut short
            try:
                manifest = control.manifest(snapshot_id)
            except DataError:
                unreadable.append(snapshot_id)  # what it refers to stays as long as it is there
                continue
            if manifest is not None:
                found[snapshot_id] = manifest
        return found, unreadable

    def _names_checkpoints(self, control: StreamControl) -> bool:
        """Whether a deployment keeps no snapshots: its end and its predecessor's may name files of a checkpoint."""
        for deployment_id in control.deployment_ids():
            try:
                if control.spec(deployment_id).version.snapshots == NO_SNAPSHOTS:
                    return True
            except DeploymentNotFoundError:
                continue
            except DataError:
                return True
        return False

    def retire(self, stream_id: str, *, reason: str = "", deletes: bool = False) -> Retired:
        """As ``Retiring.retire``."""
        return Retiring(self._context).retire(stream_id, reason=reason, deletes=deletes)

    # pins

    def pin(self, stream_id: str, snapshot_id: str, *, is_promised: bool = False) -> None:
        """Keep a snapshot until ``unpin``; idempotent.

        Args:
            snapshot_id: a complete snapshot; with ``is_promised`` one that was ordered.

        Raises:
            SnapshotNotFoundError: it does not exist, or it is being removed.
        """
        control = self._home.need_stream(stream_id)
        if not is_promised:
            control.need_manifest(snapshot_id)
        Retention(control, self._context.requested_by).pin(snapshot_id)

    def pin_ordered(self, order: CommandView) -> None:
        """Pin the snapshot that a command makes, or that answers it. Raises SnapshotNotFoundError: it is being removed.
        The pin of a snapshot that is never made keeps nothing."""
        if order.outcome is not None and order.outcome.snapshot is not None:
            self.pin(order.stream_id, order.outcome.snapshot.snapshot_id)
        elif order.number is not None:
            snapshot_id = snapshot_id_for(order.deployment_id, "live", order.number)
            self.pin(order.stream_id, snapshot_id, is_promised=True)

    def unpin(self, stream_id: str, snapshot_id: str) -> None:
        """Remove a pin, if there is one. Raises SnapshotNotFoundError: there is no such snapshot."""
        control = self._home.need_stream(stream_id)
        retention = Retention(control, self._context.requested_by)
        if snapshot_id not in retention.read().pins:
            control.need_manifest(snapshot_id)
        retention.unpin(snapshot_id)


# Pruning that no caller asks for: watchers prune the streams whose retention is recorded.
#
# A look is one read of a stream's retention register, once an hour. A prune follows where a snapshot is new since the
# last one, and once a day for what has grown old since. All looks and prunes of a watcher come one after the other,
# with pauses between them, so that a thousand streams cost few calls of the store.

LOOK_SECONDS = 3_600.0
"""How often a stream is looked at, and pruned at most."""
WHOLE_SECONDS = 86_400.0
"""How often it is pruned where no snapshot is new."""
AWAY_SECONDS = 60.0
PAUSE_SECONDS = 3.0
"""After a poll."""
PRUNE_PAUSE_SECONDS = 20.0
"""After a prune, which costs about 120 calls of the store for a stream with ten snapshots."""
MOST_AT_ONCE = 20
"""Prunes of a single pass."""
_TICK_SECONDS = 0.2
_MOST_CHARACTERS = 500
Say = Callable[[str, str, str], None]
"""Gets a stream, ``pruned`` or ``not_pruned``, and one line about it."""


def is_due(register: RetentionRegister, policy: RetentionPolicy, now_seconds: float) -> bool:
    """Whether a prune by the recorded policy may remove anything that the last one left.

    Args:
        now_seconds: the present, as a POSIX timestamp.
    """
    last = register.last_prune
    if last is None or last.policy != policy:
        return True
    since_seconds = abs(now_seconds - last.at.timestamp())  # the clock of a different machine may be far ahead
    is_new = register.newest_snapshot_id != last.newest_snapshot_id
    return since_seconds >= (LOOK_SECONDS if is_new else WHOLE_SECONDS)


@mutable_dataclass
class _Known:
    """What is remembered of a stream with a recorded retention; ``due_at`` in monotonic seconds."""

    policy: RetentionPolicy
    due_at: float
    said: str = ""


class AutomaticPruning:
    """Prunes the streams of a home whose retention is recorded, and no others.

    ``notice`` and ``forget`` may be called in another thread than the rest.
    """

    def __init__(self, context: ControllerContext, retaining: Retaining, say: Say) -> None:
        self._home = context.home
        self._clock: Clock = context.clock
        self._retaining = retaining
        self._say = say
        self._known: dict[str, _Known] = {}
        self._lock = Lock()

    @property
    def has_streams(self) -> bool:
        """Whether the retention of any stream is recorded."""
        return bool(self._known)

    def notice(self, stream_id: str, register: StreamRegister) -> None:
        """Take up the register of a stream, which was just read."""
        policy = None if register.retirement is not None else register.retention
        with self._lock:
            known = self._known.get(stream_id)
            if policy is None:
                self._known.pop(stream_id, None)
            elif known is None or known.policy != policy:
                self._known[stream_id] = _Known(policy, self._clock.monotonic_seconds())

    def forget(self, stream_id: str) -> None:
        """The stream is gone."""
        with self._lock:
            self._known.pop(stream_id, None)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Prune until ``is_over``, which is asked between two streams."""
        while not is_over():
            until = self._clock.monotonic_seconds() + self.step()
            while not is_over() and (left := until - self._clock.monotonic_seconds()) > 0:
                self._clock.sleep(min(left, _TICK_SECONDS))

    def once(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Look at each stream at once, and prune some of those that are due; the next call continues."""
        left = MOST_AT_ONCE
        for stream_id in sorted(self._known):
            if left == 0 or is_over():
                return
            left -= self._look(stream_id)

    def step(self) -> float:
        """Look at the stream that has been due for longest, if any is; how many seconds to pause then."""
        now = self._clock.monotonic_seconds()
        with self._lock:
            due = min(self._known, key=lambda name: self._known[name].due_at, default=None)
            if due is None or self._known[due].due_at > now:
                return PAUSE_SECONDS
        return PRUNE_PAUSE_SECONDS if self._look(due) else PAUSE_SECONDS

    def _look(self, stream_id: str) -> bool:
        """Look at a stream, and prune it where it is due; whether that cost more than the look."""
        known = self._known.get(stream_id)
        if known is None:
            return False
        known.due_at = self._clock.monotonic_seconds() + LOOK_SECONDS
        try:
            register = Retention(self._home.control(stream_id)).read()
            if not is_due(register, known.policy, self._clock.now().timestamp()):
                return False
            pruned = self._retaining.prune_as_recorded(stream_id)
        except Exception as error:  # the other streams are pruned on
            self._failed(stream_id, known, error)
            return True
        if pruned is None:
            self.forget(stream_id)  # until its register asks for it again
            return False
        self._tell(stream_id, known, pruned)
        return True

    def _failed(self, stream_id: str, known: _Known, error: Exception) -> None:
        if isinstance(error, StreamNotFoundError):
            self.forget(stream_id)
            return
        text = f"it is not pruned, for now: unexpected {type(error).__name__}: {error}"
        if isinstance(error, StreamStateError):
            text = f"it is not pruned, for now: {error}"
            try:
                self._home.is_there()
            except StreamStateError:  # the home does not answer, which the watcher reports
                known.due_at = self._clock.monotonic_seconds() + AWAY_SECONDS
                return
        self._tell_once(stream_id, known, text)

    def _tell(self, stream_id: str, known: _Known, pruned: Pruned) -> None:
        removed = [*pruned.removed, *(f"{which} at {one.uri}" for one in pruned.mirrors for which in one.removed)]
        leftovers = len(pruned.leftovers)
        found = [
            *([", ".join(removed)] if removed else []),
            *([f"{leftovers} leftover{'' if leftovers == 1 else 's'} of deployments"] if leftovers else []),
        ]
        if found:
            self._say(stream_id, "pruned", _line(f"removed: {' and '.join(found)}; it {pruned.policy.words}"))
        problems = [f"at {one.uri}: {one.problem}" for one in pruned.mirrors if one.problem]
        self._tell_once(stream_id, known, "; ".join((*pruned.swept.problems, *problems)))

    def _tell_once(self, stream_id: str, known: _Known, text: str) -> None:
        if text and text != known.said:
            self._say(stream_id, "not_pruned", _line(text))
        known.said = text


def _line(text: str) -> str:
    return shortened(text, (), _MOST_CHARACTERS, in_a_line=True)
