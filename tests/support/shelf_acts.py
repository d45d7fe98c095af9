"""Concurrent acts on the snapshots of one stream, for ``interleaved``, and what must hold after them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_streamstate.control.registers import MAKING_SECONDS, Retention
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.mirrors import Restoring
from airflow_streamstate.errors import SnapshotNotFoundError, StreamStateError, UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.policies import RetentionRegister
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.snapshot.data import key_of
from airflow_streamstate.snapshot.deletion import Remover, leased
from airflow_streamstate.snapshot.mirror_copies import close_copies, delete_partial_copies, mirror_snapshot
from airflow_streamstate.snapshot.verify import verify
from airflow_streamstate.store.base import Store, StoredObject
from airflow_streamstate.store.memory import MemoryStore
from support.examples import EXAMPLES
from support.faulty_store import FaultyStore
from support.interleaved import Actor
from support.recorded_specs import with_version
from support.snapshots import DEPLOYMENT, STREAM, Shelf, run_stateful

Act = Callable[[Store], object]
IDS = [f"d-0001-live-{number:06d}" for number in range(1, 5)]


def shelf_with(count: int) -> Shelf:
    """A shelf of ``count`` live snapshots of a stream, each a batch after the one before."""
    shelf = Shelf(GuardedStore())
    for number in range(count):
        run_stateful(shelf.checkpoint(), 2 + number, first=0 if number == 0 else 2 + number)
        shelf.capture(snapshot_id=IDS[number], kind="live")
    return shelf


class GuardedStore(MemoryStore):
    """Objects in memory; nothing is deleted that a snapshot which exists, and is not condemned, refers to."""

    def delete(self, key: str, version: str | None = None) -> None:
        if "/data" in key and "/snapshots/" in key:
            broken = [one for one, manifest in kept(Shelf(self)).items() if key in keys_of(manifest)]
            assert not broken, f"{key} is deleted, and {broken} have it"
        super().delete(key, version)


def kept(shelf: Shelf) -> dict[str, SnapshotManifest]:
    """Every complete snapshot that no act removes."""
    condemned = Retention(shelf.control).read().condemned
    found = {one: shelf.control.manifest(one) for one in shelf.control.snapshot_ids() if one not in condemned}
    return {one: manifest for one, manifest in found.items() if manifest is not None}


def keys_of(manifest: SnapshotManifest) -> set[str]:
    """The files of a snapshot, wherever they are."""
    return {key_of(manifest, name, entry) for name, query in manifest.queries.items() for entry in query.files}


def all_but(*ids: str) -> Callable[[RetentionRegister], list[str]]:
    """What ``Remover.condemn`` is asked for."""
    return lambda _register: [one for one in IDS if one not in ids]


def prune(shelf: Shelf, *keep: str) -> list[str]:
    """Remove all but these; which were condemned now."""
    remover = Remover(shelf.control, shelf.places, "test")
    condemned = remover.condemn(kept(shelf), all_but(*keep))
    remover.sweep()
    return condemned


def data_keys(shelf: Shelf, snapshot_id: str) -> list[str]:
    """What is in the folders of a snapshot's data."""
    folder = layout.snapshot_folder(STREAM, snapshot_id)
    return [info.key for info in shelf.checkpoints.list_objects(f"{folder}/data")]


def assert_whole(shelf: Shelf) -> None:
    """Each snapshot that no act removes has every file as it was captured."""
    for snapshot_id in kept(shelf):
        assert verify(shelf.control, shelf.checkpoints, snapshot_id) == [], snapshot_id


def assert_no_defect(actors: list[Actor]) -> None:
    """An actor may be refused; that a file goes which something refers to is a defect, and so is anything else."""
    for actor in actors:
        if actor.error is not None and not isinstance(actor.error, StreamStateError):
            raise actor.error


def taking(shelf: Shelf, snapshot_id: str, batch_id: int) -> Act:
    """A batch is committed, and a snapshot of it taken."""

    def act(store: Store) -> object:
        mine = Shelf(store, clock=shelf.clock)
        run_stateful(Shelf(shelf.checkpoints).checkpoint(), batch_id, first=batch_id)
        try:
            return mine.capture(snapshot_id=snapshot_id, kind="live")
        except UnavailableError:
            return mine.capture(snapshot_id=snapshot_id, kind="live")

    return act


def pruning(shelf: Shelf, *keep: str) -> Act:
    """All but these are removed."""
    return lambda store: prune(Shelf(store, clock=shelf.clock), *keep)


def reading(shelf: Shelf, snapshot_id: str, findings: list[str]) -> Act:
    """A holder of a lease reads the complete snapshot."""

    def act(store: Store) -> None:
        mine = Shelf(store, clock=shelf.clock)
        try:
            with leased(mine.control, snapshot_id, "reader", 1e6):
                if mine.control.manifest(snapshot_id) is not None:
                    found = verify(mine.control, store, snapshot_id)
                    findings.extend(problem.detail or problem.path for problem in found)
        except SnapshotNotFoundError:
            pass

    return act


def pinning(shelf: Shelf, snapshot_id: str) -> Act:
    """Pin it."""

    def act(store: Store) -> None:
        mine = Shelf(store, clock=shelf.clock)
        try:
            Retention(mine.control, "pin").pin(snapshot_id)
        except SnapshotNotFoundError:
            return

    return act


def waiting(shelf: Shelf) -> Act:
    """Time passes: what is in the making counts as abandoned."""

    def act(store: Store) -> None:
        store.head("nothing")
        shelf.clock.sleep(MAKING_SECONDS + 1)

    return act


# other places


class _Place(FaultyStore):
    """Another store in the hands of the same actor; what its readers' threads read is neither counted nor struck."""

    def get(self, key: str) -> StoredObject | None:
        is_reader = threading.current_thread().name == "streamstate-fetch"
        return self.inner.get(key) if is_reader else super().get(key)


def _turn(store: Store) -> Callable[..., None]:
    """A call at which others may have their turn."""

    def turn(*_: object) -> None:
        store.head("turn.json")

    return turn


def _plan_of(store: Store) -> Any:
    assert isinstance(store, FaultyStore)
    return store.plan


def mirroring(shelf: Shelf, snapshot_id: str, mirror: Store) -> Act:
    """A snapshot is fetched from the home to a mirror."""

    def act(store: Store) -> None:
        mine, target = Shelf(store, clock=shelf.clock), _Place(mirror, _plan_of(store))
        mirror_snapshot(mine.control, shelf.checkpoints, target, snapshot_id, go_on=_turn(store))

    return act


def restoring(shelf: Shelf, mirror: Store, new: Store) -> Act:
    """The newest snapshot is fetched from the home and a mirror to a new place."""

    def act(store: Store) -> object:
        plan = _plan_of(store)
        sources = [_Place(shelf.checkpoints, plan), _Place(mirror, plan)]
        return restore(shelf, sources, _Place(new, plan), _turn(store))

    return act


def restore(shelf: Shelf, sources: list[Any], new: Store, on_progress: Callable[..., None] = lambda *_: None) -> object:
    """A home is made again, from whatever is there."""
    home = Home.of(new, new, Path("nowhere"), shelf.clock)
    return Restoring(home, sources, "test").restore(STREAM, accept_duplicates=True, on_progress=on_progress)


def clearing(shelf: Shelf, mirror: Store, *, of_all: bool = False) -> Act:
    """What was half fetched is removed from a mirror."""

    def act(store: Store) -> object:
        mine = Shelf(store, clock=shelf.clock)
        return delete_partial_copies(mine.control, _Place(mirror, _plan_of(store)), "test", of_all=of_all)

    return act


def closing(shelf: Shelf, mirror: Store, *snapshot_ids: str) -> Act:
    """Complete copies of what the home has let go of are removed from a mirror."""

    def act(store: Store) -> object:
        mine, place = Shelf(store, clock=shelf.clock), _Place(mirror, _plan_of(store))
        close_copies(mine.control, place, "test", snapshot_ids)
        return delete_partial_copies(mine.control, place, "test", of_all=True)

    return act


def with_spec(shelf: Shelf) -> Shelf:
    """The record of its deployment, which a mirror gets, too."""
    spec = next(one for one in EXAMPLES if isinstance(one, DeploymentSpec))
    shelf.control.create_spec(replace(with_version(spec, snapshots=""), stream_id=STREAM, deployment_id=DEPLOYMENT))
    return shelf


def data_there(store: Store) -> set[str]:
    """Every file of every snapshot at a place."""
    keys = [info.key for info in store.list_objects(f"{layout.snapshots_folder(STREAM)}/")]
    return {key for key in keys if layout.take_of(key.split("/")[3]) is not None}


def data_needed(store: Store) -> set[str]:
    """Those to which its complete snapshots refer."""
    return set().union(*(keys_of(manifest) for manifest in kept(Shelf(store)).values()), set())
