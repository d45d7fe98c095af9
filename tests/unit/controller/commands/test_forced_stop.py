"""``stop --deadline``: withdrawn, or the driver ended and its end kept; the same verb continues after any crash."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.checkpoint.repair import repair_before_start
from airflow_streamstate.controller.commands.forced_stop import KILL_GRACE_SECONDS, ForcedStop
from airflow_streamstate.errors import (
    ConflictError,
    DeadlineExceededError,
    DeploymentFailedError,
    UnavailableError,
)
from airflow_streamstate.launch.interface import LaunchHandle, LaunchStatus
from airflow_streamstate.protocol.commands import StopRequest
from airflow_streamstate.protocol.events import Draining, Event, Expired, Failed, Finished, Stopped
from airflow_streamstate.protocol.records import Intent
from support.acting_clock import ActingClock
from support.faulty_store import KILL_POINTS, Fault, FaultPlan, FaultyStore, SimulatedCrash
from support.sim_stage import STREAM, Stage
from support.snapshots import plan_stateful

pytestmark = pytest.mark.fast

SNAPSHOT = "d-0001-stopped-000001"


@pytest.fixture
def fresh(tmp_path: Path) -> Stage:
    """A stage on which drivers and other controllers act during a wait."""
    return Stage(tmp_path, clock=ActingClock())


@pytest.fixture
def stage(fresh: Stage) -> Stage:
    """The same, stuck."""
    return stuck(fresh)


def stuck(stage: Stage) -> Stage:
    """d-0001 runs, has committed batch 3, and is in batch 4 for ever."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    plan_stateful(stage.run_batches(3), 4)
    return stage


def stop(stage: Stage, **more: Any) -> ForcedStop:
    """Stop it within ten seconds."""
    return stage.controller.forced_stops.stop(STREAM, **{"deadline_seconds": 10, **more})


def kill(stage: Stage, **more: Any) -> ForcedStop:
    """Stop it within ten seconds, or end it."""
    return stop(stage, on_deadline="kill", **more)


def command(stage: Stage) -> StopRequest:
    """The one order in the journal."""
    (slot,) = stage.control.journal("d-0001").commands()
    return slot.command


def obeys(stage: Stage) -> None:
    """The driver accepts the order."""
    stage.accept(command(stage))


def killed(stage: Stage) -> bool:
    return any(call.startswith("kill") for call in stage.launcher.calls)


def is_untouched(stage: Stage) -> bool:
    """Whether there is neither a fence nor a snapshot of the end, nor an intent."""
    has_fence = bool(stage.checkpoint().position().barriers)
    return (
        not has_fence
        and stage.control.manifest(SNAPSHOT) is None
        and stage.control.need_register().value.intent is None
    )


@pytest.mark.parametrize("on_deadline", ["fail", "kill"])
def test_a_stream_that_stops_in_time_ends_like_in_any_stop(stage: Stage, on_deadline: Any) -> None:
    """Nothing is killed, nothing is cut, and the snapshot is the driver's own. (Law 6)"""

    def stops() -> None:
        stage.say(Stopped, snapshot_id=SNAPSHOT, queries={}, command_id=command(stage).command_id, command_number=1)

    stage.clock.after(4, stops)
    found = stop(stage, on_deadline=on_deadline, reason="because")
    assert (found.outcome.outcome, found.outcome.snapshot_id, found.cut_batches) == ("stopped", SNAPSHOT, {})
    assert found.to_json()["cut_batches"] == {}
    assert not killed(stage)
    assert stage.clock.monotonic_seconds() < 10


@pytest.mark.parametrize("on_deadline", ["fail", "kill"])
def test_what_has_ended_is_answered_at_once(fresh: Stage, on_deadline: Any) -> None:
    """Asked again after its end, nothing is ordered and nothing is ended. (Law 2)"""
    fresh.deploy()
    event = fresh.stopped()
    found = stop(fresh, on_deadline=on_deadline)
    assert (found.outcome.outcome, found.outcome.snapshot_id) == ("stopped", event.snapshot_id)
    assert fresh.control.journal("d-0001").commands() == []
    assert fresh.clock.monotonic_seconds() == 0


def test_an_order_that_no_driver_obeys_is_withdrawn(stage: Stage) -> None:
    """The agent is silent: at the deadline the order is gone, and the stream runs on. (Law 6)"""
    with pytest.raises(DeadlineExceededError, match="the order is withdrawn, and the stream runs on") as late:
        stop(stage)
    context = late.value.context
    assert (context["order"], context["state"], context["deadline_seconds"]) == ("withdrawn", "running", 10)
    assert "last event QueryStarted" in str(context["last_seen"])
    assert stage.control.journal("d-0001").commands() == []
    assert stage.clock.monotonic_seconds() == pytest.approx(10, abs=0.5)
    assert stage.controller.status(STREAM).state == "running"


@pytest.mark.parametrize("is_earlier", [False, True])
def test_an_order_that_is_obeyed_is_named(stage: Stage, is_earlier: bool) -> None:
    """A stopping driver cannot be ordered to run on: this order or an earlier one is being obeyed. (Law 6)"""
    if is_earlier:
        stage.controller.order("stop", STREAM)
        obeys(stage)
    else:
        stage.clock.after(3, lambda: obeys(stage))
    says = "an earlier one is being obeyed" if is_earlier else "the order stays in effect"
    with pytest.raises(DeadlineExceededError, match=says) as late:
        stop(stage)
    context = late.value.context
    assert (context["order"], context["state"]) == ("withdrawn" if is_earlier else "stands", "stopping")
    assert "--on-deadline kill" in late.value.next_step
    assert len(stage.control.journal("d-0001").commands()) == int(is_earlier)


def test_a_lost_driver_is_named(stage: Stage) -> None:
    """Whether it runs on is not known. (Law 6)"""
    stage.end(state="unknown")
    stage.clock.after(1, lambda: stage.clock.advance(stage.spec().version.settings.lost_after_seconds + 1))
    with pytest.raises(DeadlineExceededError, match="whether its driver runs is not known"):
        stop(stage)


def test_an_order_that_would_be_withdrawn_is_not_begun_after_its_deadline(stage: Stage) -> None:
    """The controller may be dead by then: the driver itself does not start the order. (Law 6; 1a.13)"""
    stage.controller.forced_stops.order(STREAM, deadline_seconds=10, request_id="r-1")
    order = command(stage)
    assert (order.deadline_at - order.requested_at).total_seconds() == 10


def test_a_driver_that_read_it_too_late_has_not_begun_it(stage: Stage) -> None:
    """Its clock may be ahead: its event counts."""
    stage.clock.after(9, lambda: stage.say(Expired, command_id=command(stage).command_id, command_number=1, command={}))
    with pytest.raises(DeadlineExceededError, match="was not started"):
        stop(stage, request_id="r-1")
    with pytest.raises(DeadlineExceededError, match="was not started"):
        kill(stage, request_id="r-1")
    assert not killed(stage)


def test_a_withdrawn_order_can_be_given_again(stage: Stage) -> None:
    """A retry of the same request orders again, with all its time. (Law 2)"""
    for _ in range(2):
        began = stage.clock.monotonic_seconds()
        with pytest.raises(DeadlineExceededError, match="withdrawn"):
            stop(stage, request_id="r-1")
        assert stage.clock.monotonic_seconds() - began == pytest.approx(10, abs=0.5)


def test_a_stop_that_comes_true_at_the_deadline_is_no_failure(stage: Stage) -> None:
    """Between the last poll and the withdrawal the driver may stop."""
    store = stage.store
    delete = store.delete

    def delete_late(key: str, version: str | None = None) -> None:
        stage.say(Stopped, snapshot_id=SNAPSHOT, queries={}, command_id=command(stage).command_id, command_number=1)
        delete(key, version)

    store.delete = delete_late
    assert stop(stage).outcome.outcome == "stopped"


def test_a_failure_before_the_deadline_is_told_as_in_any_stop(stage: Stage) -> None:
    """Without ``kill`` the error is that of the failure. (Law 6)"""

    def fails() -> None:
        stage.say(Failed, error="ValueError: no")
        stage.end()

    stage.clock.after(3, fails)
    with pytest.raises(DeploymentFailedError):
        stop(stage)
    with pytest.raises(ConflictError, match="command not sent"):
        stop(stage)


def test_a_stuck_driver_is_ended_and_its_end_is_kept(stage: Stage) -> None:
    """At the deadline: killed, fenced, and the last committed batch in a snapshot; the batch that was cut is named, and
    the next start has it. (1a.6, 1a.8)"""
    stage.clock.after(3, lambda: obeys(stage))
    found = kill(stage)
    assert found.outcome.outcome == "killed"
    assert (found.outcome.snapshot_id, found.cut_batches) == (SNAPSHOT, {"counts": 4})
    assert "batch 4 of query counts" in found.outcome.reason
    assert stage.launcher.calls[-1] == "kill d-0001-a0001"
    assert stage.clock.monotonic_seconds() == pytest.approx(10, abs=0.5)
    (fence,) = stage.checkpoint().position().barriers
    assert fence.entry.mark.kind == "fence"
    position = stage.control.need_manifest(SNAPSHOT).queries["counts"].position
    assert (position.batch_id, position.planned_batch_id) == (3, 4)
    assert stage.control.need_register().value.intent is None
    deployed = stage.deploy("print('v2')\n")
    assert (deployed.start.mode, deployed.start.snapshot_id) == ("restore", SNAPSHOT)
    assert any("first runs batch 4" in note for note in deployed.notes)


@pytest.mark.parametrize(
    ("kind", "fields", "outcome"),
    [
        (Finished, {"snapshot_id": SNAPSHOT, "queries": {}}, "finished"),
        (Failed, {"error": "Py4JNetworkError"}, "killed"),
    ],
)
def test_what_the_driver_says_while_it_is_ended(
    stage: Stage, kind: type[Event], fields: dict[str, Any], outcome: str
) -> None:
    """A clean end was not forced (Law 13); a script that Spark left was killed, as recorded before the act. (Law 1)"""
    ends_with(stage, lambda: stage.say(kind, **fields))
    for _ in range(2):
        assert kill(stage).outcome.outcome == outcome
    assert is_untouched(stage) is (outcome == "finished")


def ends_with(stage: Stage, word: Callable[[], object]) -> None:
    """The driver writes this event when it is ended."""
    end = stage.launcher.kill

    def kill(handle: LaunchHandle, grace_seconds: float) -> LaunchStatus:
        assert grace_seconds == KILL_GRACE_SECONDS
        if stage.launcher.states[handle.launch_key] == "running":
            word()
        return end(handle, grace_seconds)

    stage.launcher.kill = kill


@pytest.mark.parametrize(("has_last_word", "is_gone"), [(False, True), (True, True), (True, False)])
def test_the_end_of_a_failed_driver_is_kept(stage: Stage, has_last_word: bool, is_gone: bool) -> None:
    """Without a wait, and once the driver is proven dead; the outcome is a failure, with its cause. (1a.8)"""
    if has_last_word:
        stage.say(Failed, error="ValueError: no")
    if is_gone:
        stage.end(state="gone")
    found = kill(stage)
    assert (found.outcome.outcome, found.outcome.state, found.outcome.snapshot_id) == ("failed", "failed", SNAPSHOT)
    assert ("ValueError: no" if has_last_word else "it is gone") in found.outcome.reason
    assert stage.launcher.states["d-0001-a0001"] == "gone"
    assert stage.clock.monotonic_seconds() == 0
    assert stage.control.journal("d-0001").commands() == []


def test_the_end_of_a_driver_that_dies_meanwhile_is_kept_at_once(stage: Stage) -> None:
    """Without waiting for the deadline."""
    stage.clock.after(3, lambda: stage.end(state="gone"))
    assert kill(stage).outcome.outcome == "failed"
    assert stage.clock.monotonic_seconds() < 5


def test_an_attempt_that_never_got_a_driver_is_given_up(fresh: Stage) -> None:
    """It never started a query: the snapshot at its end holds none."""
    fresh.launcher.refusal = UnavailableError("busy")
    with pytest.raises(UnavailableError):
        fresh.deploy()
    found = kill(fresh)
    assert (found.outcome.outcome, found.outcome.queries, found.cut_batches) == ("killed", {}, {})
    assert fresh.seen().is_closed


def test_an_end_is_proven_before_anything_is_taken_over(stage: Stage) -> None:
    """A kill is no proof: while the launcher reports it as running, no log is touched. (1a.8)"""
    stage.launcher.kill = lambda *_: LaunchStatus("gone", None, "killed", stage.clock.now())
    with pytest.raises(ConflictError, match="the driver is still running"):
        kill(stage)
    assert is_untouched(stage)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_what_cannot_be_ended_from_here_is_refused_and_the_order_stands(stage: Stage, elsewhere: bool) -> None:
    """Launched by another launcher, or elsewhere: nothing is taken over until it was ended there. (Law 2; 1a.8)"""
    if elsewhere:
        stage.launcher.name = "another"
    else:
        stage.launcher.dies_when_killed = False
    with pytest.raises(ConflictError, match="cannot be ended from here") as refused:
        kill(stage)
    assert refused.value.context["order"] == "stands"
    assert refused.value.next_step.startswith("End it where it runs")
    assert command(stage).attempt == 1
    assert is_untouched(stage)
    if not elsewhere:
        stage.end(state="gone")
        assert kill(stage).outcome.snapshot_id == SNAPSHOT


def test_a_drain_in_its_flush_is_ended_and_finished_by_a_drain(fresh: Stage) -> None:
    """The sink may hold its batch: no snapshot is made, and the next step finishes the drain. (Law 14)"""
    fresh.deploy()
    fresh.come_to_life(queries=("counts",))
    fresh.run_batches(3)
    drain = fresh.controller.order("drain", STREAM)
    fresh.accept(fresh.drain_of())
    fresh.put_barrier("drain")
    fresh.say(Draining, command_id=drain.command_id, snapshot_id=None, flush_batch_ids={"counts": 4})
    with pytest.raises(ConflictError, match="cut short in its flush") as refused:
        kill(fresh)
    assert "streamstate drain orders" in refused.value.next_step
    assert fresh.launcher.states["d-0001-a0001"] == "gone"
    assert fresh.control.manifest(SNAPSHOT) is None
    assert fresh.control.need_register().value.intent is None


def test_a_resume_after_it_goes_on_from_the_log(stage: Stage) -> None:
    """The fence is removed: the deployment resumes as after any death. (1a.7)"""
    kill(stage)
    assert stage.controller.resume(STREAM).attempt == 2
    report = repair_before_start(stage.checkpoint(), "d-0001")
    assert (report.run, stage.checkpoint().position().planned_id) == ("normal", 4)
    assert stage.checkpoint().position().barriers == ()


def test_a_stop_of_one_attempt_never_ends_the_next(stage: Stage) -> None:
    """A driver that was resumed in the meantime runs on. (Law 4)"""

    def dies_and_is_resumed() -> None:
        stage.end(state="gone")
        stage.another_controller().resume(STREAM)

    stage.clock.after(3, dies_and_is_resumed)
    for _ in range(2):
        with pytest.raises(ConflictError, match="moved since this stop was ordered"):
            kill(stage, request_id="r-1")
    assert stage.launcher.states["d-0001-a0002"] == "running"
    assert stage.control.manifest(SNAPSHOT) is None


def test_a_request_never_ends_a_later_deployment(stage: Stage) -> None:
    """A request keeps the deployment that it was recorded for. (Law 2)"""
    first = kill(stage, request_id="r-1")
    stage.deploy("print('v2')\n")
    stage.end("d-0002", state="gone")
    with pytest.raises(ConflictError, match="cannot happen"):
        kill(stage, request_id="r-1")
    assert stage.control.manifest("d-0002-stopped-000001") is None
    assert first.outcome.deployment_id == "d-0001"


def test_a_request_id_of_another_verb_is_refused(stage: Stage) -> None:
    """One id is one request, also for a dead stream. (Law 2)"""
    stage.controller.order("drain", STREAM, request_id="r-1")
    stage.end(state="gone")
    with pytest.raises(ConflictError, match="used for something else"):
        kill(stage, request_id="r-1")
    assert stage.control.manifest(SNAPSHOT) is None


def test_a_deploy_that_is_under_way_is_not_disturbed(stage: Stage) -> None:
    """Another controller holds the intent to take it over. (1a.8)"""
    stage.end(state="gone")
    intent = Intent("other", "d-0002", stage.clock.now(), "another")
    stage.control.update_register(lambda now: replace(now, intent=intent), by="another")
    with pytest.raises(ConflictError, match="under way"):
        kill(stage)
    assert stage.control.need_register().value.intent == intent
    assert stage.checkpoint().position().barriers == ()


def test_no_resume_or_deploy_while_its_driver_is_being_ended(stage: Stage) -> None:
    """The intent is in the register before the act, and gone after it. (Law 1; 1a.8)"""

    def others_try() -> None:
        stage.end(state="gone")
        for verb in (lambda: stage.another_controller().resume(STREAM), lambda: stage.deploy("print('v2')\n")):
            with pytest.raises(ConflictError, match="under way"):
                verb()

    ends_with(stage, others_try)
    assert kill(stage).outcome.outcome == "killed"
    assert stage.deploy("print('v2')\n").start.snapshot_id == SNAPSHOT


def test_the_deadline_counts_from_the_order(stage: Stage) -> None:
    """A retry has what is left, not all of it again. (Law 2)"""
    stage.controller.forced_stops.order(STREAM, deadline_seconds=10, on_deadline="kill", request_id="r-1")
    assert command(stage).deadline_at is None
    stage.clock.advance(8)
    assert kill(stage, request_id="r-1").outcome.outcome == "killed"
    assert stage.clock.monotonic_seconds() == pytest.approx(10, abs=0.5)


def test_two_at_once_are_one(stage: Stage) -> None:
    """While one ends the driver, another comes with the same: one kill is recorded, one snapshot, one fence. (Law 2)"""
    others: list[ForcedStop] = []

    def meanwhile() -> None:
        stage.end(state="gone")
        forced = stage.another_controller().forced_stops
        others.append(forced.stop(STREAM, deadline_seconds=1, on_deadline="kill"))

    ends_with(stage, meanwhile)
    found = kill(stage)
    (other,) = others
    assert other.cut_batches == found.cut_batches == {"counts": 4}
    assert (other.outcome.outcome, found.outcome.outcome) == ("killed", "killed")
    assert other.outcome.snapshot_id == found.outcome.snapshot_id == SNAPSHOT
    assert len(stage.checkpoint().position().barriers) == 1
    assert stage.control.need_register().value.intent is None


def struck(folder: Path, number: int, fault: Fault, on_deadline: Any) -> tuple[Stage, FaultPlan]:
    """A stuck stream, and a controller that is struck at this write; 0: at none."""
    folder.mkdir(parents=True)
    stage = Stage(folder, clock=ActingClock())
    stuck(stage)
    plan = FaultPlan(at_write={number: fault} if number else {})
    store = FaultyStore(stage.store, plan)
    dying = Stage(folder, store=store, clock=stage.clock)
    dying.launcher = stage.launcher
    controller = type(stage.controller)(dying.home, stage.launcher, stage.clock, "tests")
    with contextlib.suppress(SimulatedCrash, UnavailableError, DeadlineExceededError):
        controller.forced_stops.stop(STREAM, deadline_seconds=10, on_deadline=on_deadline, request_id="r-1")
    return stage, plan


@pytest.mark.full
@pytest.mark.parametrize("same_request", [True, False])
@pytest.mark.parametrize("fault", KILL_POINTS)
def test_a_crash_at_any_write_is_continued_by_the_same_verb(tmp_path: Path, fault: Fault, same_request: bool) -> None:
    """Killed before or after any write, or its reply lost: the same request, or another one, ends the driver once and
    keeps one end. (Laws 1, 2, 3 and 8)"""
    _, calm = struck(tmp_path / "calm", 0, fault, "kill")
    assert len(calm.writes) > 8
    for number in range(1, len(calm.writes) + 1):
        stage, _ = struck(tmp_path / str(number), number, fault, "kill")
        found = kill(stage, request_id="r-1" if same_request else None)
        assert (found.outcome.outcome, found.outcome.snapshot_id) == ("killed", SNAPSHOT), number
        assert found.cut_batches == {"counts": 4}
        assert len(stage.checkpoint().position().barriers) == 1
        assert stage.control.need_register().value.intent is None
        assert stage.deploy("print('v2')\n").start.snapshot_id == SNAPSHOT


@pytest.mark.parametrize("fault", KILL_POINTS)
def test_a_crash_while_it_is_withdrawn_leaves_no_order_to_begin(tmp_path: Path, fault: Fault) -> None:
    """After its deadline no driver starts an order, whether its object exists or not. (Laws 1 and 6)"""
    _, calm = struck(tmp_path / "calm", 0, fault, "fail")
    for number in range(1, len(calm.writes) + 1):
        stage, _ = struck(tmp_path / str(number), number, fault, "fail")
        for slot in stage.control.journal("d-0001").commands():
            assert slot.command.deadline_at is not None
        stage.clock.advance(60)
        for _ in range(2):
            with pytest.raises(DeadlineExceededError, match="withdrawn"):
                stop(stage, request_id="r-1")
        assert stage.control.journal("d-0001").commands() == []
