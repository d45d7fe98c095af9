"""Deletes snapshots, and no file that another snapshot needs; a lease keeps a snapshot while it is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.control.objects import Lease
from airflow_streamstate.control.registers import Retention, is_held, without
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import (
    DataError,
    InvalidRequestError,
    ObjectExistsError,
    SnapshotNotFoundError,
    StreamStateError,
    UnavailableError,
    VersionConflictError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import is_id, is_scratch_id
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.policies import (
    AbandonedSnapshot,
    PendingDeletion,
    RetentionRegister,
    SnapshotInProgress,
)
from airflow_streamstate.retry import Retry
from airflow_streamstate.snapshot.data import gathered, gathered_logs, keys_of, one_folder
from airflow_streamstate.snapshot.location import SnapshotPlaces, land
from airflow_streamstate.store.base import ListsKeys, Store
from airflow_streamstate.store.transfer import delete_below, delete_many, keys_below

PARTIAL_SECONDS = 3_600.0
"""How long a partial snapshot without a record that it is being taken is left alone."""
REMEMBERED_SECONDS = 86_400.0
"""How long a removed snapshot stays on record: its id is not reused while a process may still be deleting."""
READ = Retry(tries=10)

Condemn = Callable[[RetentionRegister], Collection[str]]


@dataclass
class Removed:
    """The result of a sweep.

    Attributes:
        files: how many were deleted, of snapshots and of partial ones.
        abandoned: snapshots that will never be completed.
        problems: why files were left that could have been deleted.
    """

    files: int = 0
    abandoned: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass
class _View:
    """The references of all manifests, as of one moment.

    Attributes:
        condemned: as in the register.
        needed: the keys to which manifests refer in the store of the checkpoints.
        needed_elsewhere: those at all other places, since one place may have two names.
        at_rest: by snapshot that is complete or abandoned, the last take that can no longer be completed.
        unreadable: snapshots whose manifest is damaged.
    """

    condemned: Mapping[str, PendingDeletion]
    needed: set[str] = field(default_factory=set)
    needed_elsewhere: set[str] = field(default_factory=set)
    at_rest: dict[str, int] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)


class Remover:
    """Removes snapshots of one stream.

    Args:
        by: the caller, for the record.
        before_deleting: called right before anything is condemned or deleted; raises to abort.
    """

    def __init__(
        self,
        control: StreamControl,
        places: SnapshotPlaces,
        by: str,
        before_deleting: Callable[[], None] = lambda: None,
    ) -> None:
        self._control = control
        self._checkpoints = places.checkpoints
        self._places = places
        self._clock = control.clock
        self._retention = Retention(control, by)
        self._by = by
        self._before_deleting = before_deleting

    def condemn(self, manifests: Mapping[str, SnapshotManifest], choose: Condemn) -> list[str]:
        """Record which snapshots will be deleted; from then on none of them can be newly read, pinned or shared.

        Args:
            manifests: of the stream, by id.
            choose: the ids that may be deleted, by the register at the moment of the change.

        Returns:
            Those that were condemned now. None of them is pinned, leased, or the base of one in progress.
        """
        before = set(self._retention.read().condemned)

        def edit(register: RetentionRegister) -> RetentionRegister:
            now = self._clock.now()
            held = {*held_in(register, now), *register.condemned}
            chosen = [one for one in choose(register) if one in manifests and one not in held]
            gone = {one: PendingDeletion(now, manifests[one].take, manifests[one].data_uri) for one in chosen}
            if not gone:
                return register
            self._before_deleting()
            return replace(register, condemned={**register.condemned, **gone}, generation=register.generation + 1)

        return sorted(set(self._retention.change(edit).condemned) - before)

    def sweep(self) -> Removed:
        """Delete what is condemned or abandoned, as far as no manifest refers to it; calling it again continues."""
        removed = Removed()
        stores, missing = self._places.all_of(self._control)
        removed.problems += missing
        removed.abandoned = self._abandon(stores)
        for snapshot_id in self._retention.read().condemned:
            self._remove_manifest(snapshot_id)
        view = self._view(removed, stores)
        if view is not None:
            answering = {uri: self._delete_at_rest(uri, store, view, removed) for uri, store in stores.items()}
            stores = {uri: store for uri, store in stores.items() if answering[uri]}
        self._forget(stores)
        return removed

    def _delete_at_rest(self, uri: str, store: Store, view: _View, removed: Removed) -> bool:
        """Whether the place answered to the end."""
        try:
            for folder in self._folders_at_rest(view, store):
                removed.files += self._delete_unneeded(store, folder, view.needed_elsewhere if uri else view.needed)
        except StreamStateError as error:
            if not uri:
                raise
            removed.problems.append(f"not everything was removed at {uri}: {error}")
            return False
        return True

    # partial snapshots

    def _abandon(self, stores: Mapping[str, Store]) -> list[str]:
        """Close snapshots that took too long, or that lacked a record for too long; note new ones without a record."""
        register, now = self._retention.read(), self._clock.now()
        listed = self._listed(stores)
        unknown = [one for one in listed if self._is_partial(register, one)]
        over = {key: made for key, made in register.makings.items() if made.expires_at <= now}
        late = [one for one in unknown if register.halves.get(one, now) <= now - timedelta(seconds=PARTIAL_SECONDS)]
        done = {key for key, made in register.makings.items() if self._control.readable_manifest(made.snapshot_id)}
        closed = [made.snapshot_id for key, made in over.items() if key not in done and self._close(made)]
        closed += [one for one in late if self._close_partial(one, stores)]

        def edit(before: RetentionRegister) -> RetentionRegister:
            makings = without(before.makings, {*over, *done})
            halves = {one: before.halves.get(one, now) for one in unknown if one not in closed}
            if (makings, halves) == (dict(before.makings), dict(before.halves)):
                return before
            return replace(before, makings=makings, halves=halves, generation=before.generation + 1)

        self._retention.change(edit)
        return sorted(closed)

    def _is_partial(self, register: RetentionRegister, snapshot_id: str) -> bool:
        if snapshot_id in register.condemned or _is_made(register, snapshot_id):
            return False
        try:
            return self._control.snapshot_slot(snapshot_id) is None
        except DataError:
            return False  # a manifest that cannot be read is reported, and never taken for a missing one

    def _close(self, made: SnapshotInProgress) -> bool:
        """Put a record in the place of the manifest; False where the manifest is there after all."""
        record = abandoned(self._control, made.snapshot_id, made.take, self._by)
        key = layout.manifest_key(self._control.stream_id, made.snapshot_id)
        try:
            slot = self._control.snapshot_slot(made.snapshot_id)
            if slot is None:
                self._control.cells.create(key, record)
            elif not isinstance(slot.value, AbandonedSnapshot):
                return False
            elif slot.value.take < made.take:  # else its writer has to start again anyway
                self._control.cells.replace(key, record, slot.version)
        except (ObjectExistsError, VersionConflictError, DataError):
            return False  # another process has just completed or abandoned it; or it is damaged since, and reported
        return True

    def _close_partial(self, snapshot_id: str, stores: Mapping[str, Store]) -> bool:
        folder = layout.snapshot_folder(self._control.stream_id, snapshot_id)
        names = {name for store in stores.values() for name in store.list_folders(folder)}
        take = max((found for name in names if (found := layout.take_of(name)) is not None), default=1)
        now = self._clock.now()
        return self._close(SnapshotInProgress(snapshot_id, (), take, now, now))

    # files

    def _remove_manifest(self, snapshot_id: str) -> None:
        key = layout.manifest_key(self._control.stream_id, snapshot_id)
        found = self._control.home.head(key)
        if found is not None:
            self._before_deleting()
            with suppress(VersionConflictError):  # of a new stream of this name
                self._control.home.delete(key, found.version)

    def _view(self, removed: Removed, stores: Mapping[str, Store]) -> _View | None:
        """The references as of one moment; None where they are not known."""
        for _ in READ.begin():
            before = self._retention.read()
            view = _View(condemned=before.condemned)
            for snapshot_id in self._listed(stores):
                if snapshot_id not in before.condemned:
                    self._look(snapshot_id, view)
            if self._retention.read().generation != before.generation:
                continue
            is_shared = len(stores) > 1 or not isinstance(self._checkpoints, ListsKeys)
            if view.unreadable and is_shared:
                removed.problems.append(
                    f"the manifest of {', '.join(view.unreadable)} cannot be read, so it is not known to which files"
                    " of others it refers: nothing is deleted while it is there"
                )
                return None
            if view.unreadable:
                view.at_rest.clear()  # restored from a server, it may name files in the folders of others
            return view
        removed.problems.append("snapshots are being taken all the time: the next prune continues")
        return None

    def _look(self, snapshot_id: str, view: _View) -> None:
        try:
            slot = self._control.snapshot_slot(snapshot_id)
        except DataError:
            view.unreadable.append(snapshot_id)
            return
        if slot is None:
            return
        if isinstance(slot.value, AbandonedSnapshot):
            view.at_rest[snapshot_id] = slot.value.take
        elif isinstance(slot.value, SnapshotManifest):
            manifest = slot.value
            view.at_rest[snapshot_id] = manifest.take
            needed = view.needed_elsewhere if manifest.data_uri else view.needed
            needed.update(keys_of(manifest))

    def _folders_at_rest(self, view: _View, store: Store) -> Iterator[str]:
        """Folders of data whose snapshot can no longer be completed."""
        takes = {**view.at_rest, **{one: condemned.take for one, condemned in view.condemned.items()}}
        for snapshot_id, last in sorted(takes.items()):
            folder = layout.snapshot_folder(self._control.stream_id, snapshot_id)
            for name in store.list_folders(folder):
                take = layout.take_of(name)
                if take is not None and take <= last:
                    yield f"{folder}/{name}"

    def _delete_unneeded(self, store: Store, folder: str, needed: Collection[str]) -> int:
        keys = keys_below(store, f"{folder}/")
        unneeded = [key for key in keys if key not in needed]
        if unneeded:
            self._before_deleting()
        delete_many(store, unneeded)
        if len(unneeded) == len(keys):
            delete_below(store, folder)  # on a disk: the folders themselves
        return len(unneeded)

    def _forget(self, stores: Mapping[str, Store]) -> None:
        """Remove the last objects of condemned snapshots without data; some time later, also their entries.

        Where its place did not answer, data of a snapshot may be left there.
        """
        stream_id, home = self._control.stream_id, self._control.home
        register, now = self._retention.read(), self._clock.now()
        empty = []
        for snapshot_id, condemned in register.condemned.items():
            folder = layout.snapshot_folder(stream_id, snapshot_id)
            if condemned.data_uri in stores and not any(has_data(store, folder) for store in stores.values()):
                empty.append(snapshot_id)
                self._before_deleting()
                for store in dict.fromkeys((home, *stores.values())):
                    delete_below(store, folder)
        there = set(self._listed(stores))
        left = {uri for uri, store in stores.items() if store.list_folders(layout.snapshots_folder(stream_id))}
        # Listed before the leases are read: a reader takes its lease before it gathers.
        gathered = self._checkpoints.list_folders(layout.gathered_folders(stream_id))

        def edit(before: RetentionRegister) -> RetentionRegister:
            aged = now - timedelta(seconds=REMEMBERED_SECONDS)
            over = [one for one in empty if one in before.condemned and before.condemned[one].condemned_at <= aged]
            leases = {key: lease for key, lease in before.leases.items() if is_held(lease, now)}
            known = there | {made.snapshot_id for made in before.makings.values()}
            lost = [one for one, pin in before.pins.items() if one not in known and pin.pinned_at <= aged]
            return replace(
                before,
                condemned=without(before.condemned, over),
                leases=leases,
                used={one: at for one, at in before.used.items() if one in known},
                pins=without(before.pins, lost),
                places=tuple(uri for uri in before.places if before.makings or uri in left or uri not in stores),
            )

        leases = self._retention.change(edit).leases
        for lease_id in gathered:
            if lease_id not in leases:
                delete_below(self._checkpoints, f"{layout.gathered_folders(stream_id)}/{lease_id}")

    def _listed(self, stores: Mapping[str, Store]) -> list[str]:
        """Every snapshot that has any object at any place."""
        folder = layout.snapshots_folder(self._control.stream_id)
        there = {name for store in stores.values() for name in filter(is_id, store.list_folders(folder))}
        return sorted({*self._control.snapshot_ids(), *there})


def abandoned(control: StreamControl, snapshot_id: str, take: int, by: str) -> AbandonedSnapshot:
    """A new record in place of the manifest of a snapshot that is abandoned up to a take."""
    return AbandonedSnapshot(
        stream_id=control.stream_id,
        snapshot_id=snapshot_id,
        take=take,
        abandoned_at=control.clock.now(),
        abandoned_by=by,
        write_id=control.clock.new_uuid(),
    )


def has_data(store: Store, folder: str) -> bool:
    """Whether the data folders below a snapshot's folder have any object."""
    takes = [name for name in store.list_folders(folder) if layout.take_of(name) is not None]
    return any(keys_below(store, f"{folder}/{name}/") for name in takes)


def _is_made(register: RetentionRegister, snapshot_id: str) -> bool:
    return any(made.snapshot_id == snapshot_id for made in register.makings.values())


def held_in(register: RetentionRegister, now: datetime) -> dict[str, str]:
    """Snapshots that the retention register keeps now, each with the reason."""
    held: dict[str, str] = {}
    for made in register.makings.values():
        held |= dict.fromkeys(made.base_ids, f"{made.snapshot_id}, which is being taken, shares its files")
        held[made.snapshot_id] = "it is being taken"
    for lease in register.leases.values():
        if is_held(lease, now):
            held[lease.snapshot_id] = f"leased until {lease.expires_at:%Y-%m-%d %H:%M:%SZ} by {lease.reader}"
    return held | dict.fromkeys(register.pins, "pinned")


# Leases: while a reader holds the lease of a snapshot, no prune removes anything of it.
#
# A living reader renews its lease; the lease of a dead one expires. A reading that cannot renew takes a longer lease.

LEASE_SECONDS = 900.0


class SnapshotLease:
    """The right to read one snapshot for a while; arguments as ``leased``."""

    def __init__(self, control: StreamControl, snapshot_id: str, reader: str, seconds: float = LEASE_SECONDS) -> None:
        self.lease_id = control.clock.new_uuid()
        self.snapshot_id = snapshot_id
        self._control = control
        self._retention = Retention(control, reader)
        self._reader = reader
        self._lease = Lease(control.clock, seconds, is_held=True)
        self._gathered: Store | None = None
        self._is_held = False

    def take(self) -> None:
        """Take it, or renew it now. Raises as ``leased``."""
        if is_scratch_id(self.snapshot_id):
            return  # it is removed with its rehearsal
        with self._lease.renewed() as until_at:
            try:
                self._retention.lease(self.lease_id, self.snapshot_id, self._reader, until_at)
            except SnapshotNotFoundError:
                raise
            except (DataError, InvalidRequestError):
                pass  # no prune works by a damaged register; and a reader without the right to write needs no lease
        self._is_held = True

    def renew(self) -> None:
        """Renew it if it is due; a failure is tried again at the next call."""
        if self._lease.is_due():
            with suppress(StreamStateError):
                self.take()

    def landed(
        self,
        places: SnapshotPlaces,
        manifest: SnapshotManifest,
        query_names: Collection[str],
        go_on: Callable[[], None] = lambda: None,
    ) -> SnapshotManifest:
        """The snapshot with these of its queries alongside the checkpoints, while the lease is held.

        Where it is at another place its files are copied; ``go_on`` is called while that runs.

        Raises:
            UnavailableError: the place does not answer.
            SnapshotIncompleteError, SnapshotCorruptError: the snapshot is incomplete.
        """
        if not manifest.data_uri:
            return manifest
        self._gather(places.checkpoints)

        def still_there() -> None:
            self.renew()
            go_on()

        return land(places, manifest, query_names, self.lease_id, still_there)

    def folder_of(self, checkpoints: Store, manifest: SnapshotManifest, query_name: str) -> Checkpoint:
        """One query of the snapshot as a folder that Spark can read, while the lease is held.

        Raises:
            ObjectMissingError, DataError: the snapshot is incomplete.
            UnavailableError: its files must be gathered, which needs a lease, and none can be taken now.
        """
        self._gather(checkpoints, is_needed=not one_folder(manifest, query_name))
        return gathered(checkpoints, manifest, query_name, self.lease_id)

    def logs_of(self, checkpoints: Store, manifest: SnapshotManifest, query_name: str) -> Checkpoint:
        """The same with its logs alone, which a drained query has, too."""
        self._gather(checkpoints, is_needed=not one_folder(manifest, query_name))
        return gathered_logs(checkpoints, manifest, query_name, self.lease_id)

    def _gather(self, checkpoints: Store, *, is_needed: bool = True) -> None:
        """Take the lease before files are gathered: a prune removes gathered files that have none."""
        if is_needed and not self._is_held:
            self.take()
        self._gathered = checkpoints

    def release(self) -> None:
        """Give it back, or let it expire if that fails."""
        with suppress(StreamStateError):
            if self._gathered is not None:
                folder = f"{layout.gathered_folders(self._control.stream_id)}/{self.lease_id}"
                delete_below(self._gathered, folder)
        if not is_scratch_id(self.snapshot_id):
            with suppress(StreamStateError):
                self._retention.release(self.lease_id)


@contextmanager
def leased(
    control: StreamControl,
    snapshot_id: str,
    reader: str,
    seconds: float = LEASE_SECONDS,
    *,
    is_kept_anyhow: bool = False,
) -> Iterator[SnapshotLease]:
    """Read a snapshot within the block: nothing of it is removed in the meantime, and its age counts from now on.

    Args:
        reader: the name that a prune reports where it leaves the snapshot.
        seconds: how long the lease lasts if it is not renewed.
        is_kept_anyhow: the snapshot is kept for another reason, e.g. the current deployment starts from it: then the
            lease only marks it as used, and the block runs without one where it cannot be taken now.

    Raises:
        SnapshotNotFoundError: the snapshot is being removed.
        UnavailableError: the register of what is kept cannot be changed now.
    """
    lease = SnapshotLease(control, snapshot_id, reader, seconds)
    try:
        lease.take()
    except UnavailableError:
        if not is_kept_anyhow:
            raise
    try:
        yield lease
    finally:
        lease.release()
