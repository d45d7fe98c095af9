"""A snapshot at a second place, and which place that may be."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_streamstate.control.objects import RENEW_SHARE
from airflow_streamstate.control.registers import Retention
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import ConflictError, SnapshotCorruptError, SnapshotNotFoundError, StreamStateError
from airflow_streamstate.protocol import layout
from airflow_streamstate.snapshot.deletion import LEASE_SECONDS, Remover
from airflow_streamstate.snapshot.location import SnapshotPlaces
from airflow_streamstate.snapshot.mirror_copies import (
    artifact_keys,
    carry_records,
    is_mirrored,
    mirror_snapshot,
    refuse_left_behind,
)
from airflow_streamstate.snapshot.verify import verify
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from airflow_streamstate.store.transfer import PIECE_BYTES
from support.fake_clock import FakeClock
from support.faulty_store import Fault, FaultPlan, FaultyStore
from support.sim_stage import STREAM, Stage
from support.snapshots import flip_byte


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A stream whose driver's part the test plays."""
    return Stage(tmp_path)


def stopped(stage: Stage) -> str:
    stage.deploy()
    return str(stage.stopped().snapshot_id)


def test_a_mirror_has_what_a_deploy_needs(stage: Stage) -> None:
    """Data, manifest, what was run and reported: plain objects under the keys of the home, and nothing else."""
    snapshot_id, mirror = stopped(stage), MemoryStore("mirror")
    done = mirror_snapshot(stage.control, stage.store, mirror, snapshot_id)
    assert done.files > 0
    kept = {info.key: mirror.get(info.key).body for info in mirror.list_objects("")}
    assert kept == {key: stage.store.get(key).body for key in kept}
    rooms = {key.split("/")[1] for key in kept}
    assert rooms == {"artifacts", "deployments", "snapshots"}
    assert not any("/claims/" in key or "heartbeat" in key or "/checkpoints/" in key for key in kept)
    again = mirror_snapshot(stage.control, stage.store, mirror, snapshot_id)
    assert (again.files, again.size_bytes) == (0, 0)


@pytest.mark.fast
def test_a_mirror_cut_short_anywhere_is_none_until_it_is_whole(stage: Stage) -> None:
    """Killed at each of its writes, it has no manifest; the next try makes it whole. (Laws 2 and 3)"""
    snapshot_id = stopped(stage)
    counted = FaultPlan()
    mirror_snapshot(stage.control, stage.store, FaultyStore(MemoryStore(), counted), snapshot_id)
    assert len(counted.writes) > 10
    for number in range(1, len(counted.writes) + 1):
        inner, plan = MemoryStore("mirror"), FaultPlan(at_write={number: Fault.NO_SPACE})
        with pytest.raises(StreamStateError):
            mirror_snapshot(stage.control, stage.store, FaultyStore(inner, plan), snapshot_id)
        assert not is_mirrored(stage.control, inner, snapshot_id)
        mirror_snapshot(stage.control, stage.store, inner, snapshot_id)
        assert is_mirrored(stage.control, inner, snapshot_id)
        there = {info.key for info in inner.list_objects(layout.snapshots_folder(STREAM))}
        assert there == {info.key for info in stage.store.list_objects(layout.snapshots_folder(STREAM))}


def test_what_is_damaged_does_not_become_a_mirror(stage: Stage) -> None:
    """It is reported by its key; the snapshot itself is left as it is."""
    snapshot_id, mirror = stopped(stage), MemoryStore("mirror")
    flip_byte(stage.store, f"{layout.snapshot_data_folder(STREAM, snapshot_id, 'counts')}/metadata")
    problems = verify(stage.control, stage.store, snapshot_id)
    assert problems
    with pytest.raises(SnapshotCorruptError):
        mirror_snapshot(stage.control, stage.store, mirror, snapshot_id)
    assert not is_mirrored(stage.control, mirror, snapshot_id)


def test_what_is_being_copied_is_not_pruned(stage: Stage) -> None:
    """A copy is a reader, however long it takes: a prune alongside it leaves the snapshot, and names the reader."""
    snapshot_id, inner, plan = stopped(stage), MemoryStore("mirror"), FaultPlan()
    manifest, remover = (
        stage.control.need_manifest(snapshot_id),
        Remover(stage.control, SnapshotPlaces(stage.store), "test"),
    )
    began_at, held = stage.clock.now(), set[str]()

    def prune() -> None:
        if threading.current_thread() is threading.main_thread():
            stage.clock.sleep(LEASE_SECONDS * RENEW_SHARE)
        if any(call.writes for call in plan.calls) and not is_mirrored(stage.control, inner, snapshot_id):
            assert remover.condemn({snapshot_id: manifest}, lambda _register: [snapshot_id]) == []
            held.update(lease.reader for lease in Retention(stage.control).read().leases.values())

    plan.before_each = prune
    mirror_snapshot(stage.control, stage.store, FaultyStore(inner, plan), snapshot_id)
    assert (stage.clock.now() - began_at).total_seconds() > 3 * LEASE_SECONDS
    assert held == {"the copy to memory://mirror"}
    assert verify(StreamControl(inner, STREAM, stage.clock), inner, snapshot_id) == []
    assert not Retention(stage.control).read().leases


def test_what_is_being_removed_is_not_copied(stage: Stage) -> None:
    """It is reported as gone, and the mirror does not have it (Law 3)."""
    snapshot_id, mirror = stopped(stage), MemoryStore("mirror")
    manifest = stage.control.need_manifest(snapshot_id)
    Remover(stage.control, SnapshotPlaces(stage.store), "test").condemn(
        {snapshot_id: manifest}, lambda _register: [snapshot_id]
    )
    with pytest.raises(SnapshotNotFoundError):
        mirror_snapshot(stage.control, stage.store, mirror, snapshot_id)
    assert not is_mirrored(stage.control, mirror, snapshot_id)


# which place may be a mirror of a stream


def lies_there(store: Store) -> dict[str, object]:
    return {info.key: store.get(info.key) for info in store.list_objects("")}


def test_another_stream_of_the_same_name_is_not_taken_for_this_one(stage: Stage, tmp_path: Path) -> None:
    """Two homes with one mirror, or a name that was free again: it is reported as another stream's, and nothing is
    mixed into it."""
    snapshot_id, mirror = stopped(stage), MemoryStore("mirror")
    mirror_snapshot(stage.control, stage.store, mirror, snapshot_id)
    before = lies_there(mirror)
    other = another(stage, tmp_path)
    assert stopped(other) == snapshot_id
    with pytest.raises(ConflictError, match="another deployment"):
        mirror_snapshot(other.control, other.store, mirror, snapshot_id)
    with pytest.raises(ConflictError, match="another deployment"):
        carry_records(other.control, mirror, "d-0001")
    assert lies_there(mirror) == before


def another(stage: Stage, tmp_path: Path) -> Stage:
    folder = tmp_path / "other"
    folder.mkdir()
    return Stage(folder, clock=FakeClock(stage.clock.now(), seed=7))


def test_only_a_newer_deployment_that_this_home_lacks_says_that_the_stream_went_on_elsewhere(stage: Stage) -> None:
    """Of older ones the home may have let go; and a deploy that was abandoned left one that is newer here, too."""
    stage.deploy()
    stage.stopped()
    key = layout.register_key(STREAM)
    at_first = stage.store.get(key)
    stage.deploy("print('v2')\n")
    mirror = MemoryStore("mirror")
    for deployment_id in ("d-0001", "d-0002"):
        carry_records(stage.control, mirror, deployment_id)
    stage.store.delete(layout.spec_key(STREAM, "d-0001"))
    refuse_left_behind(stage.control, mirror)
    stage.store.put(key, at_first.body)
    refuse_left_behind(stage.control, mirror)
    for info in list(stage.store.list_objects(f"{STREAM}/deployments/d-0002/")):
        stage.store.delete(info.key)
    with pytest.raises(ConflictError, match="continued elsewhere"):
        refuse_left_behind(stage.control, mirror)


def test_a_deploy_that_was_given_up_here_is_not_taken_for_the_one_that_runs_elsewhere(stage: Stage) -> None:
    """Both homes called it by the next free id."""
    stage.deploy()
    stage.stopped()
    mirror = MemoryStore("mirror")
    carry_records(stage.control, mirror, "d-0001")
    given_up = replace(stage.spec(), deployment_id="d-0002", request_id="given up")
    stage.control.create_spec(given_up)
    there = StreamControl(mirror, STREAM, stage.clock)
    there.create_spec(replace(given_up, request_id="in the new home"))
    with pytest.raises(ConflictError, match="another deployment of this id"):
        refuse_left_behind(stage.control, mirror)


def test_the_jars_of_a_deployment_are_carried_however_large_they_are(tmp_path: Path) -> None:
    """A stream continues from the mirror alone; what is larger than a piece comes in pieces. (Law 15)"""
    stage, mirror = Stage(tmp_path, store=LocalStore(tmp_path / "home")), LocalStore(tmp_path / "mirror")
    small, large = tmp_path / "small.jar", tmp_path / "large.jar"
    small.write_bytes(b"classes")
    large.write_bytes(b"x" * (2 * PIECE_BYTES))
    stage.deploy(jars=(str(small), "s3a://jars/x.jar", str(large)))
    carry_records(stage.control, mirror, "d-0001")
    carried = {key for key in artifact_keys(stage.spec()) if key.endswith(".jar")}
    assert {Path(key).name for key in carried} == {"small.jar", "large.jar"}
    assert {key: mirror.get(key) for key in carried} == {key: stage.store.get(key) for key in carried}
