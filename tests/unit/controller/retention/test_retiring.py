"""Retiring a stream, and removing it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.decide import INTENT_SECONDS
from airflow_streamstate.controller.home import Home, HomeConfig
from airflow_streamstate.controller.retention.retiring import Retired, Retiring
from airflow_streamstate.controller.stream_guards import refuse_retired
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    InvalidRequestError,
    StreamNotFoundError,
    UnavailableError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.ids import launch_key_for
from airflow_streamstate.protocol.policies import RetentionPolicy
from airflow_streamstate.protocol.records import Intent, Retirement, StreamRegister
from airflow_streamstate.protocol.scratch import ScratchRun
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from support.checkpoints import HookedStore
from support.examples import example
from support.fake_clock import START_AT
from support.faulty_store import Fault, FaultPlan, FaultyStore, SimulatedCrash
from support.sim_stage import STREAM, Stage
from support.upgrade_stage import UpgradeStage
from support.uploading_store import UploadingStore


def retire(stage: Stage, *, deletes: bool = False, reason: str = "") -> Retired:
    return stage.controller.retention.retire(STREAM, reason=reason, deletes=deletes)


def ended(stage: Stage) -> Stage:
    stage.deploy()
    stage.stopped()
    return stage


def test_a_retirement_is_told_in_json(stage: Stage) -> None:
    """When, by whom, why; whether anything is left of it, and how much went."""
    ended(stage)
    at = format_time(stage.clock.now())
    told = {"stream_id": STREAM, "retired_at": at, "retired_by": "tests", "reason": ""}
    assert Retiring(stage.controller.retention._context).retire(STREAM).to_json() == {
        **told,
        "deleted": False,
        "objects": 0,
    }
    retirement = Retirement(START_AT, "ada", "it has ended", is_deleting=True)
    assert Retired("s", retirement, 7).to_json() == {
        "stream_id": "s",
        "retired_at": format_time(START_AT),
        "retired_by": "ada",
        "reason": "it has ended",
        "deleted": True,
        "objects": 7,
    }


def test_what_runs_is_not_retired(stage: Stage) -> None:
    """Nothing is changed; also where it is unknown whether it runs (1a.8)."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    with pytest.raises(ConflictError, match="the stream is running"):
        retire(stage)
    stage.end(state="unknown")
    stage.clock.sleep(600)
    with pytest.raises(ConflictError, match="it is unknown whether this stream has ended"):
        retire(stage, deletes=True)
    assert stage.control.need_register().value.retirement is None


def test_what_is_being_upgraded_is_not_retired(upgraded: UpgradeStage) -> None:
    """Its steps alone move the stream."""
    upgraded.begin()
    with pytest.raises(ConflictError, match="under way"):
        retire(upgraded.stage)


def test_a_retired_stream_starts_only_revived(stage: Stage) -> None:
    """Neither by a deploy nor by a resume; ``revive`` continues from its end, and it is retired no more."""
    ended(stage)
    first = retire(stage, reason="the shop has closed")
    assert (first.retirement.reason, retire(stage, reason="other words").retirement) == (
        "the shop has closed",
        first.retirement,
    )
    with pytest.raises(ConflictError, match="retired"):
        stage.deploy("print('v2')\n")
    with pytest.raises(ConflictError, match="retired"):
        stage.controller.resume(STREAM)
    view = stage.deploy("print('v2')\n", revive=True)
    assert view.start.snapshot_id == "d-0001-stopped-000001"
    register = stage.control.need_register().value
    refuse_retired(register)
    assert register.retirement is None


def test_deleted_it_leaves_no_upload_behind(tmp_path: Path) -> None:
    """What a killed process left of one is paid for, and seen by no later prune; retired alone it stays."""
    store = UploadingStore(STREAM)
    stage = ended(Stage(tmp_path, store=store))
    stage.clock.sleep(1)
    retire(stage)
    assert store.uploads
    retire(stage, deletes=True)
    assert not store.uploads


def test_deleted_nothing_of_it_stays_and_its_name_is_free(tmp_path: Path) -> None:
    """Also no empty folder; the next deploy is a first one."""
    (tmp_path / "home").mkdir()
    stage = ended(Stage(tmp_path / "home", store=LocalStore(tmp_path / "home", fsync=False)))
    answer = retire(stage, deletes=True)
    assert answer.retirement.is_deleting
    assert answer.objects > 20
    assert not (tmp_path / "home" / STREAM).exists()
    with pytest.raises(StreamNotFoundError):
        retire(stage, deletes=True)
    assert stage.deploy().deployment_id == "d-0001"


def test_a_watcher_of_a_deleted_stream_sees_the_new_one_of_its_name(tmp_path: Path) -> None:
    """A triggerer lives for weeks and remembers what never changes: of a stream of the same name that is another one's,
    deployments of the same ids among it (Law 7)."""
    stage = ended(Stage(tmp_path))
    watcher = stage.another_controller("triggerer")
    before = watcher.status(STREAM)
    assert (before.state, before.deployment_id) == ("stopped", "d-0001")
    retire(stage, deletes=True)
    stage.clock.sleep(60)
    stage.deploy("print('another')\n")
    stage.end(state="running")
    stage.come_to_life(queries=("counts",))
    assert watcher.status(STREAM).state == stage.another_controller().status(STREAM).state == "running"
    seen = watcher._context.observer.observe(STREAM)
    assert seen.spec == stage.spec()
    assert [entry.event for entry in seen.events] == [entry.event for entry in stage.control.journal("d-0001").events()]


def test_without_the_place_of_the_checkpoints_nothing_is_removed(tmp_path: Path) -> None:
    """They would stay there, and the next stream of this name would continue from them (Law 5)."""
    stage = ended(Stage(tmp_path, store=MemoryStore("data"), home_store=MemoryStore("home")))
    assert stage.home_store is not None
    home = Home.of(stage.home_store, stage.home_store, tmp_path, stage.clock)
    controller = Controller(home, stage.launcher, stage.clock, "without --checkpoints")
    for act in (
        lambda: controller.retention.prune(STREAM, RetentionPolicy(keep=0)),
        lambda: controller.retention.retire(STREAM, deletes=True),
    ):
        with pytest.raises(InvalidRequestError, match="are elsewhere"):
            act()
    assert stage.control.need_register().value.retirement is None
    retire(stage, deletes=True)
    assert not list(stage.store.list_objects(f"{STREAM}/"))
    assert not list(stage.home_store.list_objects(f"{STREAM}/"))


def test_a_home_without_a_place_for_checkpoints_retires_nothing(stage: Stage) -> None:
    """Reported before anything is written. (Law 10)"""
    ended(stage)
    home = Home(HomeConfig("memory://without"), stage.clock)
    keys = [info.key for info in stage.store.list_objects(f"{STREAM}/")]
    for key in (layout.home_key(), *keys):
        home.home.put(key, stage.store.get(key).body)
    before = home.home.get(layout.register_key(STREAM))
    with pytest.raises(InvalidRequestError, match="folder of this machine"):
        Controller(home, stage.launcher, stage.clock, "tests").retention.retire(STREAM)
    assert home.home.get(layout.register_key(STREAM)) == before


def test_a_stream_that_was_deployed_since_it_was_looked_at_is_not_retired(tmp_path: Path) -> None:
    """The new deployment runs: the register is changed only as it was seen. (Law 4)"""

    def retired(name: str, plan: FaultPlan) -> Stage:
        (tmp_path / name).mkdir()
        stage = stages[name] = ended(Stage(tmp_path / name))
        store = FaultyStore(stage.store, plan)
        home = Home.of(store, store, tmp_path / name, stage.clock)
        Controller(home, stage.launcher, stage.clock, "retires").retention.retire(STREAM)
        return stage

    stages: dict[str, Stage] = {}
    calm, key = FaultPlan(), layout.register_key(STREAM)
    assert retired("calm", calm).control.need_register().value.retirement is not None
    looked = next(call.number for call in calm.calls if call.key == key)
    moving = FaultPlan(meanwhile={looked + 1: lambda: stages["moved"].deploy("print('v2')\n") and None})
    with pytest.raises(ConflictError):
        retired("moved", moving)
    register = stages["moved"].control.need_register().value
    assert (register.deployment_id, register.retirement) == ("d-0002", None)


def test_no_deploy_goes_on_from_checkpoints_of_an_earlier_stream_of_its_name(stage: Stage) -> None:
    """A home was lost, or removed by hand, and its checkpoints are elsewhere: a first deployment that finds one in its
    place is refused before anything is recorded (Law 5)."""
    stage.run_batches(3)
    with pytest.raises(ConflictError, match="another stream of this name"):
        stage.deploy()
    assert not stage.home.is_there()


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_cut_short_anywhere_it_is_finished_by_the_next(tmp_path: Path, fault: Fault) -> None:
    """The register has the decision until the last object is gone; no deploy starts before (Law 1)."""
    plan = FaultPlan()
    probe = ended(Stage(tmp_path))
    home = Home.of(FaultyStore(probe.store, plan), FaultyStore(probe.store, plan), tmp_path, probe.clock)
    probe.controller.retention._home = home
    type(probe.controller)(home, probe.launcher, probe.clock, "tests").retention.retire(STREAM, deletes=True)
    for number in range(2, len(plan.writes) + 1, 5):
        stage = ended(Stage(tmp_path, store=MemoryStore()))
        dying = FaultyStore(stage.store, FaultPlan(at_write={number: fault}))
        controller = type(stage.controller)(
            Home.of(dying, dying, tmp_path, stage.clock), stage.launcher, stage.clock, "tests"
        )
        with pytest.raises(SimulatedCrash):
            controller.retention.retire(STREAM, deletes=True)
        if stage.store.head(layout.register_key(STREAM)) is None:
            continue
        with pytest.raises(ConflictError, match="being deleted"):
            stage.deploy(revive=True)
        retire(stage, deletes=True)
        assert list(stage.store.list_objects(f"{STREAM}/")) == []


def test_what_lies_at_a_place_of_its_own_is_deleted_too(tmp_path: Path) -> None:
    """And nothing of the stream goes before that place answers."""
    stage, disk = Stage(tmp_path), tmp_path / "disk"
    stage.deploy(snapshots=str(disk))
    stage.stopped()
    away = disk.rename(tmp_path / "unmounted")
    with pytest.raises(UnavailableError, match="is not the place"):
        retire(stage, deletes=True)
    assert stage.control.manifest("d-0001-stopped-000001") is not None
    assert stage.control.need_register().value.retirement is None
    assert retire(stage).retirement.is_deleting is False
    away.rename(disk)
    retire(stage, deletes=True)
    assert [path for path in disk.rglob("*") if path.is_file()] == []
    assert stage.deploy(snapshots=str(disk)).deployment_id == "d-0001"


def test_a_name_is_free_when_its_places_are(tmp_path: Path) -> None:
    """A deploy under it right after the register went finds no record that is about to go. (Law 4)"""
    disk, store = tmp_path / "disk", HookedStore()
    stage = Stage(tmp_path, store=store)
    stage.deploy(snapshots=str(disk))
    stage.stopped()
    record = disk / layout.place_record_key(STREAM)
    assert record.exists()
    found: list[bool] = []

    def look(verb: str, key: str) -> None:
        if (verb, key) == ("delete", layout.register_key(STREAM)):
            found.append(record.exists())

    store.before = look
    retire(stage, deletes=True)
    assert found[0] is False


def test_each_object_that_went_is_counted_wherever_it_lay(tmp_path: Path) -> None:
    """In the home, with the checkpoints, and at places of its own; not the records there, which are none of it."""
    stage = Stage(tmp_path, store=MemoryStore("data"), home_store=MemoryStore("home"))
    disks = [tmp_path / name for name in ("disk", "other")]
    for number, disk in enumerate(disks, 1):
        stage.deploy(f"print({number})\n", snapshots=str(disk))
        stage.stopped(deployment_id=f"d-000{number}")
    assert stage.home_store is not None
    key = layout.place_record_key(STREAM)
    stores = (stage.store, stage.home_store, *map(LocalStore, disks))
    count = sum(len([info for info in store.list_objects(f"{STREAM}/") if info.key != key]) for store in stores)
    answer = retire(stage, deletes=True, reason="it has ended")
    assert answer.objects == count
    assert answer.stream_id == STREAM
    assert (answer.retirement.reason, answer.retirement.retired_by) == ("it has ended", "tests")
    for store in stores:
        assert not list(store.list_objects(f"{STREAM}/"))


def test_what_is_being_deployed_is_not_retired(stage: Stage) -> None:
    """Until that was abandoned: then nothing of it is in the register any more. (Law 4)"""
    ended(stage)
    intent = Intent("r", "d-0002", stage.clock.now(), "ada")
    stage.control.update_register(lambda now: replace(now, intent=intent), by="test")
    with pytest.raises(ConflictError, match="another deployment of this stream is under way"):
        retire(stage)
    stage.clock.sleep(INTENT_SECONDS)
    retire(stage)
    assert stage.control.need_register().value.intent is None


def test_a_retirement_waits_for_a_driver_that_has_written_its_terminal_event(stage: Stage) -> None:
    """One that does not go is in the way; one that vanished without a word is not. (1a.8)"""
    ended(stage)
    stage.end(state="running")
    with pytest.raises(ConflictError, match="the driver is still running"):
        retire(stage)
    assert stage.control.need_register().value.retirement is None
    stage.end(state="unknown")  # its terminal event counts
    assert retire(stage).retirement.retired_by == "tests"


def test_a_stream_whose_records_cannot_be_read_is_not_removed_unseen(stage: Stage) -> None:
    """An upgrade of it may be under way. (Law 7)"""
    ended(stage)
    stage.control.home.put(layout.upgrade_key(STREAM, "u-0b8e3c525f0e"), b"{")
    with pytest.raises(DataError):
        retire(stage, deletes=True)
    assert stage.control.need_register().value.retirement is None


def test_a_rehearsal_of_a_deleted_stream_is_ended(stage: Stage) -> None:
    """Its driver would try a version of what is no more."""
    ended(stage)
    run = example(ScratchRun)
    assert isinstance(run, ScratchRun)
    key = launch_key_for(run.run_id, 1)
    stage.control.create_scratch_run(run)
    stage.control.create_spec(replace(stage.spec(), deployment_id=run.run_id))
    stage.launcher.states[key] = "running"
    retire(stage, deletes=True)
    assert f"kill {key}" in stage.launcher.calls
    assert not list(stage.store.list_objects(f"{STREAM}/"))


def test_what_was_never_deployed_is_deleted_as_any_other(stage: Stage) -> None:
    """A first deployment that was abandoned before it came to be."""
    intent = Intent("r", "d-0001", stage.clock.now(), "ada")
    register = StreamRegister(STREAM, 0, None, 0, "run", intent, "w", stage.clock.now(), "tests")
    stage.deploy()
    for info in list(stage.store.list_objects(f"{STREAM}/")):
        stage.store.delete(info.key)
    stage.control.create_register(register)
    stage.clock.sleep(INTENT_SECONDS)
    assert retire(stage, deletes=True).objects == 1
    assert not list(stage.store.list_objects(f"{STREAM}/"))


def test_a_place_that_is_another_home_s_by_now_is_left_alone(tmp_path: Path) -> None:
    """What is there is not this stream's. (Law 4)"""
    stage, disk = Stage(tmp_path), tmp_path / "disk"
    stage.deploy(snapshots=str(disk))
    stage.stopped()
    record = disk / layout.place_record_key(STREAM)
    text = json.loads(record.read_text())
    record.write_text(json.dumps({**text, "home_uri": "memory://of-another"}))
    kept = [path for path in disk.rglob("*") if path.is_file()]
    retire(stage, deletes=True)
    assert [path for path in disk.rglob("*") if path.is_file()] == kept
    assert not list(stage.store.list_objects(f"{STREAM}/"))


def test_the_register_is_the_last_object_of_a_home_beside_the_launches(tmp_path: Path) -> None:
    """Where files of launches are in the same folder: what is cut short is found by the next call. (Law 1)"""
    inner = LocalStore(tmp_path, fsync=False)
    stage = ended(Stage(tmp_path, store=inner))
    plan = FaultPlan()
    dying = FaultyStore(inner, plan)
    register = inner.path_of(layout.register_key(STREAM))
    seen: list[bool] = []

    def look() -> None:
        if plan.calls and plan.calls[-1].method == "delete":
            seen.append(register.exists())

    plan.before_each = look
    home = Home.of(dying, dying, tmp_path, stage.clock)
    Controller(home, stage.launcher, stage.clock, "tests").retention.retire(STREAM, deletes=True)
    is_last = [call.key for call in plan.calls if call.method == "delete"].index(layout.register_key(STREAM))
    assert all(seen[:is_last])
    assert not register.exists()
