"""A home made again from mirrors."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.mirrors import Restoring
from airflow_streamstate.errors import (
    ConflictError,
    MalformedMessageError,
    SnapshotCorruptError,
    SnapshotNotFoundError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Claimed
from airflow_streamstate.snapshot.deletion import Remover
from airflow_streamstate.snapshot.mirror_copies import carry_records, mirror_snapshot
from airflow_streamstate.snapshot.verify import verify
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.memory import MemoryStore
from support.asked_store import AskedStore
from support.fake_clock import FakeClock
from support.faulty_store import Fault, FaultPlan, FaultyStore
from support.sim_stage import STREAM, Stage
from support.snapshots import flip_byte

pytestmark = pytest.mark.fast


def new_home(stage: Stage, tmp_path: Path, store: Store | None = None) -> Home:
    made = store or MemoryStore("new")
    return Home.of(made, made, tmp_path / "new", stage.clock)


def mirrored(stage: Stage, snapshot_id: str, name: str = "mirror") -> MemoryStore:
    mirror = MemoryStore(name)
    mirror_snapshot(stage.control, stage.store, mirror, snapshot_id)
    return mirror


def stopped(stage: Stage, **more: object) -> str:
    stage.deploy(**more)
    return str(stage.stopped().snapshot_id)


def test_a_stream_is_deployed_from_what_was_restored(stage: Stage, tmp_path: Path) -> None:
    """The next deployment restores the mirrored end, with the next fencing token. An old driver that still runs finds
    another attempt in the register. (Law 4)"""
    snapshot_id = stopped(stage)
    home = new_home(stage, tmp_path)
    found = Restoring(home, [mirrored(stage, snapshot_id)], "me").restore(STREAM)
    assert (found.snapshot_id, found.is_end) == (snapshot_id, True)
    assert verify(home.control(STREAM), home.checkpoints, snapshot_id) == []
    controller = Controller(home, stage.launcher, stage.clock)
    assert controller.status(STREAM).state == "stopped"
    register = home.control(STREAM).need_register().value
    assert (register.deployment_id, register.attempt) == ("d-0001", 2)
    view = controller.deploy(stage.request("print('v2')\n"))
    assert (view.deployment_id, view.start.mode, view.start.snapshot_id) == ("d-0002", "restore", snapshot_id)


def test_an_older_end_is_taken_only_by_name(stage: Stage, tmp_path: Path) -> None:
    """Something is known to have run behind it: its rows would come again. (Law 14)"""
    snapshot_id = stopped(stage)
    mirror = mirrored(stage, snapshot_id)
    stage.say(Claimed, attempt=2, host="h", pid=1, fencing_token=1)
    carry_records(stage.control, mirror, "d-0001")
    home = new_home(stage, tmp_path)
    with pytest.raises(ConflictError, match="ran after"):
        Restoring(home, [mirror], "me").restore(STREAM)
    assert list(home.home.list_objects("")) == []
    found = Restoring(home, [mirror], "me").restore(STREAM, accept_duplicates=True)
    assert not found.is_end


def test_an_end_is_newer_than_what_was_taken_before_it_whatever_the_clocks_say(stage: Stage, tmp_path: Path) -> None:
    """A live one by a driver whose clock is ahead of the clock at the end (Law 14)."""
    stage.deploy()
    stage.run_batches(1)
    live = stage.keep("live").snapshot_id
    stage.clock.advance(-600)
    end = str(stage.stopped().snapshot_id)
    mirror = mirrored(stage, end)
    mirror_snapshot(stage.control, stage.store, mirror, live)
    found = Restoring(new_home(stage, tmp_path), [mirror], "me").restore(STREAM)
    assert (found.snapshot_id, found.is_end) == (end, True)


def test_a_newer_deployment_without_a_snapshot_ran_behind_it(stage: Stage, tmp_path: Path) -> None:
    """Its record is at the mirror from its start on; and its fencing token is never given again. (Laws 4 and 14)"""
    snapshot_id = stopped(stage)
    mirror = mirrored(stage, snapshot_id)
    stage.deploy("print('v2')\n")
    carry_records(stage.control, mirror, "d-0002")
    home = new_home(stage, tmp_path)
    with pytest.raises(ConflictError, match="ran after"):
        Restoring(home, [mirror], "me").restore(STREAM)
    Restoring(home, [mirror], "me").restore(STREAM, accept_duplicates=True)
    controller = Controller(home, stage.launcher, stage.clock)
    assert [one.files for one in controller.mirrors.copy(STREAM, [mirror])] == [0]  # it did not continue elsewhere
    view = controller.deploy(stage.request("print('v3')\n"))
    assert (view.deployment_id, view.start.snapshot_id) == ("d-0003", snapshot_id)


def test_a_mirror_that_heard_only_the_first_word_of_a_deployment_knows_of_it(stage: Stage, tmp_path: Path) -> None:
    """The machine was lost while its driver notified the mirror, which is about to run batches. (Laws 4 and 14)"""
    snapshot_id = stopped(stage)
    mirror = mirrored(stage, snapshot_id)
    stage.deploy("print('v2')\n")
    stage.come_to_life("d-0002", queries=("counts",))
    plan = FaultPlan(at_write={2: Fault.NO_SPACE})
    with pytest.raises(StreamStateError):
        carry_records(stage.control, FaultyStore(mirror, plan), "d-0002")
    with pytest.raises(ConflictError, match="ran after"):
        Restoring(new_home(stage, tmp_path), [mirror], "me").restore(STREAM)


def test_what_is_left_of_the_old_home_is_heard_too(stage: Stage) -> None:
    """Its register was lost, and no more: what it knows to have run behind the mirror's snapshot counts, and no fencing
    token is given again; what a restore that was cut short has reported there does not. (Laws 4 and 14)"""
    snapshot_id = stopped(stage)
    mirror = mirrored(stage, snapshot_id)
    stage.deploy("print('v2')\n")
    stage.store.delete(layout.register_key(STREAM))
    with pytest.raises(ConflictError, match="ran after"):
        Restoring(stage.home, [mirror], "me").restore(STREAM)
    for _ in range(2):
        assert not Restoring(stage.home, [mirror], "me").restore(STREAM, accept_duplicates=True).is_end
        stage.store.delete(layout.register_key(STREAM))
    Restoring(stage.home, [mirror], "me").restore(STREAM, accept_duplicates=True)
    assert stage.deploy("print('v3')\n").deployment_id == "d-0003"


def test_another_attempt_in_what_is_left_of_the_old_home_ran_behind_it(stage: Stage) -> None:
    """Of the same deployment. (Law 14)"""
    mirror = mirrored(stage, stopped(stage))
    stage.come_to_life(attempt=2, queries=("counts",))
    stage.store.delete(layout.register_key(STREAM))
    for _ in range(2):
        with pytest.raises(ConflictError, match="ran after"):
            Restoring(stage.home, [mirror], "me").restore(STREAM)
        Restoring(stage.home, [mirror], "me").restore(STREAM, accept_duplicates=True)
        stage.store.delete(layout.register_key(STREAM))


@pytest.mark.parametrize("is_swept", [False, True])
def test_what_a_prune_of_the_old_home_had_condemned_comes_back(stage: Stage, is_swept: bool) -> None:
    """Its register of what is kept was left: the restored snapshot starts the next deployment, and no prune removes it,
    whether the old one had reached its files or not."""
    snapshot_id = stopped(stage)
    mirror, remover = mirrored(stage, snapshot_id), Remover(stage.control, stage.home.places, "old")
    manifest = stage.control.need_manifest(snapshot_id)
    assert remover.condemn({snapshot_id: manifest}, lambda _register: [snapshot_id]) == [snapshot_id]
    if is_swept:
        remover.sweep()
    stage.store.delete(layout.register_key(STREAM))
    Restoring(stage.home, [mirror], "me").restore(STREAM)
    remover.sweep()
    assert verify(stage.control, stage.store, snapshot_id) == []
    assert stage.deploy("print('v2')\n").start.snapshot_id == snapshot_id


def test_a_damaged_register_of_what_is_kept_hinders_no_restore(stage: Stage) -> None:
    """Nothing is removed by it either."""
    snapshot_id = stopped(stage)
    mirror = mirrored(stage, snapshot_id)
    stage.store.delete(layout.register_key(STREAM))
    stage.store.put(layout.retention_key(STREAM), b"{")
    assert Restoring(stage.home, [mirror], "me").restore(STREAM).snapshot_id == snapshot_id


def test_no_stream_is_made_over_something_else_in_the_place_of_its_snapshot(stage: Stage) -> None:
    """A manifest that the disaster cut off: without a snapshot there would be nothing to start from. (Law 3)"""
    snapshot_id = stopped(stage)
    mirror = mirrored(stage, snapshot_id)
    stage.store.delete(layout.register_key(STREAM))
    stage.store.put(layout.manifest_key(STREAM, snapshot_id), b'{"kind": "SnapshotMan')
    with pytest.raises(ConflictError, match="another snapshot of this id"):
        Restoring(stage.home, [mirror], "me").restore(STREAM)
    assert stage.control.register() is None


def test_a_snapshot_of_the_same_name_at_another_mirror_is_not_mixed_in(stage: Stage, tmp_path: Path) -> None:
    """Of a stream that continued from an older mirror under the same ids: each is complete by itself. (Law 14)"""
    mirror = mirrored(stage, stopped(stage))
    other = Stage(tmp_path / "other", clock=FakeClock(stage.clock.now() + timedelta(days=1), seed=7))
    other.folder.mkdir()
    strange = mirrored(other, stopped(other), "strange")
    newer = other.control.need_manifest("d-0001-stopped-000001")
    home = new_home(stage, tmp_path)
    Restoring(home, [mirror, strange], "me").restore(STREAM)
    found = home.control(STREAM).need_manifest("d-0001-stopped-000001")
    assert found.write_id == newer.write_id
    assert home.control(STREAM).spec("d-0001").request_id == other.spec().request_id != stage.spec().request_id


def test_restored_anywhere_cut_short_is_no_stream_until_it_is_whole(stage: Stage, tmp_path: Path) -> None:
    """Killed at each of its writes the home has no such stream; the same call makes it whole. (Laws 2 and 3)"""
    mirror, counted = mirrored(stage, stopped(stage)), FaultPlan()
    Restoring(new_home(stage, tmp_path, FaultyStore(MemoryStore(), counted)), [mirror], "me").restore(STREAM)
    assert len(counted.writes) > 10
    for number in range(1, len(counted.writes) + 1):
        inner, plan = MemoryStore("new"), FaultPlan(at_write={number: Fault.NO_SPACE})
        with pytest.raises(StreamStateError):
            Restoring(new_home(stage, tmp_path, FaultyStore(inner, plan)), [mirror], "me").restore(STREAM)
        home = new_home(stage, tmp_path, inner)
        assert home.control(STREAM, begins=True).register() is None
        if 1 < number < len(counted.writes):  # before there is a home; else its register alone is missing, and is lost
            assert home.stream_ids() == []
        found = Restoring(home, [mirror], "me").restore(STREAM)
        assert verify(home.control(STREAM), home.checkpoints, found.snapshot_id) == []
        assert home.control(STREAM).need_register().value.attempt == 2


def test_damaged_at_one_mirror_it_comes_from_another(stage: Stage, tmp_path: Path) -> None:
    """And with no good copy anywhere nothing is restored."""
    snapshot_id = stopped(stage)
    bad, good = mirrored(stage, snapshot_id, "bad"), mirrored(stage, snapshot_id, "good")
    flip_byte(bad, f"{layout.snapshot_data_folder(STREAM, snapshot_id, 'counts')}/metadata")
    home = new_home(stage, tmp_path)
    Restoring(home, [bad, good], "me").restore(STREAM)
    assert verify(home.control(STREAM), home.checkpoints, snapshot_id) == []
    other = new_home(stage, tmp_path)
    with pytest.raises(SnapshotCorruptError):
        Restoring(other, [bad], "me").restore(STREAM)
    assert other.control(STREAM).register() is None


def test_a_record_that_is_damaged_at_one_mirror_comes_from_another(stage: Stage, tmp_path: Path) -> None:
    """Of the deployment; what no mirror has is reported."""
    snapshot_id = stopped(stage)
    bad, good = mirrored(stage, snapshot_id, "bad"), mirrored(stage, snapshot_id, "good")
    bad.put(layout.spec_key(STREAM, "d-0001"), b"{")
    home = new_home(stage, tmp_path)
    Restoring(home, [bad, good], "me").restore(STREAM)
    assert home.control(STREAM).spec("d-0001").identity == stage.control.spec("d-0001").identity
    with pytest.raises(MalformedMessageError):
        Restoring(new_home(stage, tmp_path), [bad], "me").restore(STREAM)


def test_an_unreadable_event_after_the_end_may_be_of_another_attempt(stage: Stage, tmp_path: Path) -> None:
    """Unless it can be read somewhere: so it is not continued from unasked (Laws 7 and 14)."""
    snapshot_id = stopped(stage)
    last = list(stage.control.journal("d-0001").events())[-1]
    mirror, other = mirrored(stage, snapshot_id), mirrored(stage, snapshot_id, "other")
    mirror.put(layout.event_key(STREAM, "d-0001", last.number - 1), b"{")  # before the end: nothing ran behind it
    assert Restoring(new_home(stage, tmp_path), [mirror], "me").restore(STREAM).is_end
    behind = layout.event_key(STREAM, "d-0001", last.number + 1)
    for one in (mirror, other):
        one.put(behind, b"{")
    with pytest.raises(ConflictError, match="batches ran after") as refused:
        Restoring(new_home(stage, tmp_path), [mirror, other], "me").restore(STREAM)
    assert refused.value.context["unreadable"] == [behind]


def test_a_mirror_that_is_away_is_left_out_and_named(stage: Stage, tmp_path: Path) -> None:
    """The others do; with none of them that is reported, and not called an absence."""
    snapshot_id = stopped(stage)
    plan = FaultPlan()
    away = FaultyStore(MemoryStore("away"), plan)

    def refuse() -> None:
        raise UnavailableError("it is away")

    plan.before_each = refuse
    found = Restoring(new_home(stage, tmp_path), [away, mirrored(stage, snapshot_id)], "me").restore(STREAM)
    assert [uri for uri, _ in found.dropped] == [away.uri]
    with pytest.raises(UnavailableError, match="no mirror answers"):
        Restoring(new_home(stage, tmp_path), [away], "me").restore(STREAM)


@pytest.mark.parametrize(("more", "is_cut"), [({}, False), ({"batch_bytes": 1_024}, True)])
def test_pieces_are_as_large_as_is_said(stage: Stage, tmp_path: Path, more: dict[str, int], is_cut: bool) -> None:
    """By default every file of this size comes as one."""
    snapshot_id, mirror = stopped(stage), AskedStore("mirror")
    mirror_snapshot(stage.control, stage.store, mirror, snapshot_id)
    Restoring(new_home(stage, tmp_path), [mirror], "me", **more).restore(STREAM)
    assert (mirror.later_pieces > 0) is is_cut


def test_a_mirror_that_falls_silent_is_left_after_the_time_that_is_said(stage: Stage, tmp_path: Path) -> None:
    """By the clock of the home, and the stream is none yet. (Laws 3 and 6)"""
    snapshot_id, mirror = stopped(stage), AskedStore("mirror")
    mirror_snapshot(stage.control, stage.store, mirror, snapshot_id)
    home, speak = new_home(stage, tmp_path), mirror.fall_silent(stage.clock, 77.5)
    try:
        with pytest.raises(UnavailableError) as caught:
            Restoring(home, [mirror], "me", timeout_seconds=77).restore(STREAM)
    finally:
        speak()
    assert "did not answer within 77 s" in str(caught.value)
    assert home.control(STREAM).register() is None


def test_what_is_there_is_not_written_over(stage: Stage, tmp_path: Path) -> None:
    """A stream that the home has, and one that no mirror has, are reported."""
    mirror = mirrored(stage, stopped(stage))
    home = new_home(stage, tmp_path)
    restoring = Restoring(home, [mirror], "me")
    assert restoring.stream_ids() == [STREAM]
    restoring.restore(STREAM)
    with pytest.raises(ConflictError, match="has the stream already"):
        restoring.restore(STREAM)
    with pytest.raises(SnapshotNotFoundError):
        restoring.restore("unknown")


def test_resume_does_not_begin_again_from_an_older_start(stage: Stage, tmp_path: Path) -> None:
    """Its checkpoints are gone with the old home: only a deploy continues, from the snapshot. (Law 5)"""
    stage.deploy()
    stage.start_query()
    snapshot_id = str(stage.stopped().snapshot_id)
    home = new_home(stage, tmp_path)
    Restoring(home, [mirrored(stage, snapshot_id)], "me").restore(STREAM)
    spec = home.control(STREAM).spec("d-0001")
    assert spec == replace(stage.spec(), checkpoints_uri=home.checkpoints.uri)


def test_a_snapshot_of_another_place_is_restored_beside_the_checkpoints(stage: Stage, tmp_path: Path) -> None:
    """The place is the lost home's: the new one keeps its own, and writes nothing there."""
    snapshot_id = stopped(stage, snapshots=str(tmp_path / "disk"))
    manifest, mirror = stage.control.need_manifest(snapshot_id), MemoryStore("mirror")
    assert manifest.data_uri == str(tmp_path / "disk")
    mirror_snapshot(stage.control, stage.home.places.of(manifest), mirror, snapshot_id)
    shutil.rmtree(tmp_path / "disk")
    home = new_home(stage, tmp_path)
    Restoring(home, [mirror], "me").restore(STREAM)
    control = home.control(STREAM)
    assert control.need_manifest(snapshot_id).data_uri == control.spec("d-0001").version.snapshots == ""
    assert verify(control, home.checkpoints, snapshot_id) == []
    view = Controller(home, stage.launcher, stage.clock).deploy(stage.request("print('v2')\n"))
    assert (view.start.mode, view.start.snapshot_id) == ("restore", snapshot_id)


def test_a_home_that_lost_the_register_alone_has_it_back(stage: Stage) -> None:
    """As the error about it reports: all else is there, and the stream continues from the same snapshot."""
    snapshot_id = stopped(stage)
    mirror = mirrored(stage, snapshot_id)
    stage.store.delete(layout.register_key(STREAM))
    with pytest.raises(MalformedMessageError, match="register of this stream is gone"):
        stage.deploy("print('v2')\n")
    with pytest.raises(MalformedMessageError, match="register of this stream is gone"):
        stage.controller.status(STREAM)
    found = Restoring(stage.home, [mirror], "ops").restore(STREAM)
    assert (found.snapshot_id, found.is_end) == (snapshot_id, True)
    assert stage.controller.status(STREAM).state == "stopped"
    assert stage.deploy("print('v2')\n").start.snapshot_id == snapshot_id
