"""A waiting driver becomes an attempt: once, wherever the controller dies, and never alongside another driver."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_streamstate.controller.drivers.driver_launch import Drivers
from airflow_streamstate.controller.drivers.driver_places import MARGIN_SECONDS
from airflow_streamstate.controller.home import Home
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.launch.interface import LaunchHandle, LaunchStatus
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.records import LaunchRecord
from support.faulty_store import KILL_POINTS, Fault, FaultPlan, FaultyStore, SimulatedCrash
from support.sim_stage import STREAM, Stage
from support.warm import WarmStage

pytestmark = pytest.mark.fast

COLD = "launch d-0002-a0001"
KEPT = {"run.json", "verdict.json", "waiting.json", "handover.json", "launches"}


@pytest.fixture
def warm(stage: Stage) -> WarmStage:
    """A driver waits for 60 seconds, and the first version has ended."""
    return WarmStage(stage).begin().waits().old_one_stops()


def launch_of(warm: WarmStage) -> LaunchRecord:
    record = warm.stage.control.launch("d-0002", "d-0002-a0001")
    assert record is not None
    return record


def test_the_driver_that_waits_is_the_attempts_own(warm: WarmStage) -> None:
    """No other is launched; by its recorded launch it is asked about, its log is read, and it is killed."""
    warm.stage.launcher.log_paths[warm.launch_key] = str(warm.stage.folder / "driver.log")
    assert warm.deploy()
    handover, record = warm.stage.control.handover(warm.rehearsal_id), launch_of(warm)
    assert handover is not None
    assert (handover.deployment_id, handover.attempt, handover.launch_key) == ("d-0002", 1, "d-0002-a0001")
    assert (record.rehearsal_id, record.launch_key) == (warm.rehearsal_id, "d-0002-a0001")
    assert COLD not in warm.stage.launcher.calls
    seen = warm.stage.seen()
    assert seen.handle is not None
    assert (seen.handle.launch_key, warm.stage.controller.status(STREAM).state) == (warm.launch_key, "launching")
    warm.stage.come_to_life("d-0002")
    assert warm.stage.controller.status(STREAM).state == "running"
    assert warm.stage.controller.kill(STREAM).state == "failed"
    assert warm.stage.launcher.states[warm.launch_key] == "gone"


def test_handed_over_twice_is_handed_over_once(warm: WarmStage) -> None:
    """By the same call, and by a launch of the attempt. (Law 2)"""
    warm.deploy()
    stage, spec, drivers = warm.stage, warm.stage.spec("d-0002"), drivers_of(warm)
    before = stage.control.handover(warm.rehearsal_id), launch_of(warm)
    warm.driver("gone")
    assert drivers.hand_over(stage.control, spec, 1, warm.rehearsal_id)
    assert drivers.launch(stage.control, spec, 1).launch_key == warm.launch_key
    assert (stage.control.handover(warm.rehearsal_id), launch_of(warm)) == before
    assert COLD not in stage.launcher.calls


def drivers_of(warm: WarmStage) -> Drivers:
    return Drivers(warm.stage.home, warm.stage.launchers, warm.stage.clock)


def other_code(warm: WarmStage) -> None:
    key = layout.spec_key(STREAM, warm.rehearsal_id)
    stored = warm.stage.store.get(key)
    assert stored is not None
    warm.stage.store.put(key, stored.body.replace(b"local[*]", b"local[7]"))


SPOILS: dict[str, Callable[[WarmStage], object]] = {
    "dead": lambda warm: warm.driver("exited"),
    "unknown": lambda warm: warm.driver("unknown"),
    "late": lambda warm: warm.stage.clock.advance(60 - MARGIN_SECONDS),
    "given up": lambda warm: warm.rehearsals.give_up(STREAM, warm.rehearsal_id),
    "does not wait yet": lambda warm: warm.stage.store.delete(layout.waiting_key(STREAM, warm.rehearsal_id)),
    "other code": other_code,
    "the attempt was launched": lambda warm: warm.stage.launcher.states.update({"d-0002-a0001": "running"}),
    "the attempt is claimed": lambda warm: drivers_of(warm).close(warm.stage.control, "d-0002", 1, "as if"),
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_what_cannot_take_over_is_left_out(warm: WarmStage, spoil: Callable[[WarmStage], object]) -> None:
    """A driver that is dead, cannot be asked, is about to end or runs other code (Law 15): a cold one is launched."""
    spoil(warm)
    assert warm.deploy() is False
    assert warm.stage.control.handover(warm.rehearsal_id) is None
    assert launch_of(warm).rehearsal_id == ""
    assert COLD in warm.stage.launcher.calls


def test_an_attempt_is_handed_over_to_one_driver_only(warm: WarmStage) -> None:
    """Not to a second waiting driver; and a driver that has an attempt gets no other one."""
    warm.deploy()
    first, stage, drivers = warm.rehearsal_id, warm.stage, drivers_of(warm)
    warm.begin(request_id="plan-2").waits()
    assert not drivers.hand_over(stage.control, stage.spec("d-0002"), 1, warm.rehearsal_id)
    assert not drivers.hand_over(stage.control, stage.spec("d-0002"), 2, first)


def test_a_driver_that_dies_before_its_claim_leaves_a_failed_attempt_and_the_next_is_cold(warm: WarmStage) -> None:
    """Asked again, the deploy continues with attempt 2, as after any driver that died before its first commit."""
    assert warm.deploy()
    warm.driver("gone")
    assert warm.stage.controller.status(STREAM).state == "failed"
    warm.deploy()
    assert warm.stage.launcher.calls[-1] == "launch d-0002-a0002"
    warm.stage.come_to_life("d-0002", 2)
    assert warm.stage.controller.status(STREAM).state == "running"


def test_two_that_launch_in_one_moment_leave_one_driver(warm: WarmStage) -> None:
    """Handed over while another controller launches a cold one: the record decides, and the other driver is ended."""
    stage = warm.stage
    warm.deploy()
    spec, record = stage.spec("d-0002"), launch_of(warm)
    key = layout.launch_record_key(STREAM, "d-0002", "d-0002-a0001")
    stage.store.delete(key)
    plan = FaultPlan()

    def recorded_meanwhile() -> None:
        if "d-0002-a0001" in stage.launcher.states and stage.store.head(key) is None:
            stage.control.create_launch(record)

    plan.before_each = recorded_meanwhile
    home = Home.of(FaultyStore(stage.store, plan), stage.store, stage.folder, stage.clock)
    handle = Drivers(home, stage.launchers, stage.clock).launch(home.control(STREAM), spec, 1)
    assert handle.launch_key == warm.launch_key
    assert stage.launcher.states["d-0002-a0001"] == "gone"
    assert stage.launcher.states[warm.launch_key] == "running"


def test_one_that_is_given_up_as_it_is_handed_over_is_proven_ended(warm: WarmStage) -> None:
    """Its folder is gone, so its state is unknown for ever: the attempt is closed, and the next one continues."""
    stage = warm.stage
    status, looks = stage.launcher.status, list[LaunchHandle]()

    def gone_after_the_first_look(handle: LaunchHandle) -> LaunchStatus:
        looks.extend([handle] if handle.launch_key == warm.launch_key else [])
        if len(looks) == 2:
            warm.driver("unknown")
        return status(handle)

    stage.launcher.status = gone_after_the_first_look  # type: ignore[method-assign]
    assert warm.deploy()
    assert stage.controller.status(STREAM).state == "failed"
    warm.deploy()
    assert stage.launcher.calls[-1] == "launch d-0002-a0002"


def _deployed(folder: Path, plan: FaultPlan) -> WarmStage:
    """A warm deploy by a controller that this happens to."""
    stage = Stage(folder)
    stage.folder.mkdir()
    warm = WarmStage(stage).begin().waits().old_one_stops()
    store = FaultyStore(stage.store, plan)
    with suppress(SimulatedCrash, StreamStateError):
        warm.deploy(Home.of(store, store, stage.folder, stage.clock))
    return warm


@pytest.mark.parametrize("again", ["warm", "cold"])
@pytest.mark.parametrize("fault", KILL_POINTS)
def test_a_controller_that_dies_anywhere_in_a_handover_leaves_one_driver(
    tmp_path: Path, fault: Fault, again: str
) -> None:
    """At each call from the register's move on: the next call, also without the rehearsal, leaves one deployment with
    one driver, and giving the rehearsal up ends a driver that was not handed over. (Laws 1, 2, 8)"""
    whole = FaultPlan()
    _deployed(tmp_path / "whole", whole)
    first = max(call.number for call in whole.calls if call.writes and call.key == layout.register_key(STREAM))
    ends = set()
    for number in range(first, len(whole.calls) + 1):
        warm = _deployed(tmp_path / f"{number}", FaultPlan({number: fault}))
        stage = warm.stage
        if again == "warm":
            warm.deploy()
        else:
            stage.controller.deploy(warm.request)
        assert stage.control.need_register().value.deployment_id == "d-0002", number
        handover, record = stage.control.handover(warm.rehearsal_id), launch_of(warm)
        assert (
            (handover is not None) is (record.rehearsal_id == warm.rehearsal_id) is (COLD not in stage.launcher.calls)
        )
        warm.rehearsals.give_up(STREAM, warm.rehearsal_id)
        running = [key for key, state in stage.launcher.states.items() if state == "running"]
        assert running == [warm.launch_key if handover is not None else "d-0002-a0001"], number
        assert stage.controller.status(STREAM).state == "launching", number
        ends.add(handover is not None)
    assert len(whole.calls) - first > 5
    assert ends == ({True} if again == "warm" else {True, False})


def test_what_is_handed_over_but_not_told_yet_is_not_given_up(warm: WarmStage) -> None:
    """Its controller died between the two records: the driver belongs to the attempt, and a resume completes it."""
    warm.deploy()
    warm.stage.store.delete(layout.handover_key(STREAM, warm.rehearsal_id))
    warm.rehearsals.give_up(STREAM, warm.rehearsal_id)
    warm.rehearsals.sweep(STREAM)
    assert warm.stage.launcher.states[warm.launch_key] == "running"
    assert warm.stage.controller.resume(STREAM).state == "launching"
    assert warm.stage.control.handover(warm.rehearsal_id) is not None
    assert COLD not in warm.stage.launcher.calls


def test_one_that_was_never_told_and_has_died_is_followed_by_the_next_attempt(warm: WarmStage) -> None:
    """Its attempt has failed."""
    warm.deploy()
    warm.stage.store.delete(layout.handover_key(STREAM, warm.rehearsal_id))
    warm.driver("exited")
    assert warm.stage.controller.resume(STREAM).attempt == 2


def test_what_was_handed_over_is_kept_with_its_deployment(warm: WarmStage) -> None:
    """Its launch and its log; all else of the rehearsal is removed."""
    warm.deploy()
    launched = warm.stage.home.launch_path(layout.launch_folder(STREAM, warm.rehearsal_id, warm.launch_key))
    launched.mkdir(parents=True, exist_ok=True)
    for tidy in (
        lambda: warm.rehearsals.give_up(STREAM, warm.rehearsal_id),
        lambda: warm.rehearsals.report(STREAM, warm.rehearsal_id),
        lambda: warm.rehearsals.sweep(STREAM),
    ):
        tidy()
        assert warm.names() == KEPT
        assert launched.exists()
        assert warm.stage.launcher.states[warm.launch_key] == "running"
    warm.stage.store.put(f"{layout.checkpoint_folder(STREAM, warm.rehearsal_id, 'counts')}/metadata", b"{}")
    warm.stage.clock.advance(3_600)
    warm.rehearsals.sweep(STREAM)
    assert warm.names() == KEPT
