"""What watchers do about a stream, by its policy: over a real controller, with drivers that a test plays."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from unit.controller.supervise.conftest import Supervised

from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest
from airflow_streamstate.errors import (
    ConflictError,
    InvalidRequestError,
    StreamNotFoundError,
    UnavailableError,
)
from airflow_streamstate.plan.model import PlannedSink
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import to_json
from airflow_streamstate.protocol.commands import StopRequest
from airflow_streamstate.protocol.events import Failed, Finished, Ignored, QueryFailed, Stopped, Undone
from airflow_streamstate.protocol.ids import upgrade_id_for
from airflow_streamstate.protocol.policies import RestartPolicy
from airflow_streamstate.protocol.positions import QueryBeat
from support.checkpoints import HookedStore
from support.sim_stage import STREAM, Stage
from support.upgrade_stage import UpgradeStage


def fail_batch(
    supervised: Supervised, attempt: int, error: str = "ValueError: row 7 is bad", batch_id: int = 4
) -> None:
    """The query fails in a batch, and with it the driver."""
    stage = supervised.stage
    stage.say(
        QueryFailed, attempt=attempt, query_name="counts", query_id="id", query_run_id="run", batch_id=batch_id - 1,
        planned_batch_id=batch_id, error=error,
    )  # fmt: skip
    stage.say(Failed, attempt=attempt, error=error, query_name="counts")
    stage.end(attempt=attempt, state="exited")


def test_a_driver_that_died_is_followed_by_one_attempt_after_the_backoff(supervised: Supervised) -> None:
    """The failure is recorded first, with the jitter; the next attempt comes when that time has passed. (Law 2)"""
    supervised.watch()
    supervised.die()
    supervised.watch()
    record = supervised.record
    assert (record.attempt, record.is_started, record.failures) == (1, False, 1)
    assert 10.0 <= (record.backoff_seconds or 0) <= 12.0
    supervised.watch(9.0)
    assert supervised.register.attempt == 1
    supervised.watch(4.0)
    assert (supervised.register.attempt, supervised.record.is_started) == (2, True)
    assert list(supervised.stage.launcher.requests) == ["d-0001-a0001", "d-0001-a0002"]
    assert supervised.said[:3] == ["up", "recorded", "restarting"]


def test_a_backoff_of_nothing_restarts_at_once(stage: Stage) -> None:
    """Nothing is written but the move itself."""
    supervised = Supervised(stage, initial_backoff_seconds=0)
    supervised.die()
    supervised.watch()
    assert supervised.register.attempt == 2
    assert supervised.said == ["restarting"]


def test_each_backoff_is_longer_up_to_the_longest(stage: Stage) -> None:
    """10, 20, 40 … seconds by default, each with its jitter."""
    supervised = Supervised(stage, max_restarts=100, max_backoff_seconds=60)
    found = []
    for attempt in range(1, 6):
        supervised.die(attempt)
        supervised.watch()
        found.append(supervised.record.backoff_seconds or 0)
        supervised.watch(80.0)
        supervised.restarted(attempt + 1)
    for backoff, least in zip(found, (10, 20, 40, 60, 60), strict=True):
        assert least <= backoff <= least * 1.2


def test_too_many_restarts_leave_the_stream_failed_until_a_person_starts_it(stage: Stage) -> None:
    """The reason is in the register and in ``status``; a resume removes it. (Law 6)"""
    supervised = Supervised(stage, max_restarts=2, initial_backoff_seconds=1)
    for attempt in (1, 2):
        supervised.die(attempt)
        supervised.watch(10.0)
        supervised.restarted(attempt + 1)
    supervised.die(3)
    supervised.watch(500.0)
    assert supervised.register.attempt == 3
    assert supervised.record.gave_up.startswith("2 restarts within 3600 s did not help: attempt 3 failed")
    assert supervised.said.count("gave_up") == 1
    status = stage.controller.status(STREAM)
    assert (status.state, status.restarts) == ("failed", f"abandoned: {supervised.record.gave_up}")
    stage.controller.resume(STREAM)
    assert supervised.register.restarts is None
    supervised.restarted(4)
    supervised.watch(60.0)
    supervised.die(4)
    supervised.watch(20.0)
    assert supervised.register.attempt == 5


def test_a_deploy_by_a_person_clears_what_was_given_up_and_keeps_the_policy(stage: Stage) -> None:
    """The policy is the stream's, the count is the deployment's."""
    supervised = Supervised(stage, max_restarts=1, initial_backoff_seconds=0)
    supervised.die()
    supervised.watch()
    supervised.restarted(2)
    supervised.die(2)
    supervised.watch()
    assert supervised.record.gave_up
    stage.deploy("print('v2')\n")
    assert supervised.register.restarts is None
    assert supervised.register.restart_policy == RestartPolicy("restart", 0, max_restarts=1)


def test_restarts_that_are_older_than_the_window_do_not_count(stage: Stage) -> None:
    """The lives of the attempts add up, so the window passes. (Law 6)"""
    supervised = Supervised(stage, max_restarts=1, initial_backoff_seconds=0, restart_window_seconds=100)
    supervised.die()
    supervised.watch()
    supervised.restarted(2)
    stage.clock.advance(101)
    stage.beat(attempt=2, counts=QueryBeat(3, None, is_active=True))
    supervised.die(2)
    supervised.watch()
    assert supervised.register.attempt == 3


def test_an_attempt_that_was_healthy_for_long_makes_the_count_begin_again(stage: Stage) -> None:
    """It committed after its start, and lived as long as the policy requires."""
    supervised = Supervised(stage, healthy_for_seconds=60, max_restarts=3)
    for attempt in (1, 2):
        supervised.die(attempt)
        supervised.watch(40.0)
        supervised.restarted(attempt + 1)
    assert supervised.record.failures == 2
    stage.clock.advance(61)
    stage.beat(attempt=3, counts=QueryBeat(4, stage.clock.now(), is_active=True))
    supervised.die(3)
    supervised.watch()
    assert (supervised.record.failures, supervised.record.ages_seconds) == (1, ())


def test_an_attempt_that_lived_long_and_committed_nothing_was_not_healthy(stage: Stage) -> None:
    """A batch that fails after an hour is not a sign of health."""
    supervised = Supervised(stage, healthy_for_seconds=60)
    supervised.die()
    supervised.watch(20.0)
    supervised.restarted(2)
    stage.clock.advance(61)
    stage.beat(attempt=2, counts=QueryBeat(3, None, is_active=True))
    supervised.die(2)
    supervised.watch()
    assert supervised.record.failures == 2


def test_the_same_batch_with_the_same_error_three_times_is_given_up(stage: Stage) -> None:
    """Errors that differ in numbers alone are the same; the words name the batch and what to do. (Law 6)"""
    supervised = Supervised(stage, initial_backoff_seconds=0)
    for attempt in (1, 2, 3):
        fail_batch(supervised, attempt, f"ValueError: row {attempt} is bad", 4711)
        supervised.watch()
        if attempt < 3:
            supervised.restarted(attempt + 1)
    assert supervised.register.attempt == 3
    assert supervised.record.gave_up == (
        "batch 4711 of query counts fails, 3 times with the same error: `replay` it, or `skip` it."
        " ValueError: row 3 is bad"
    )


def test_secrets_are_hidden_in_all_that_is_said_and_recorded(stage: Stage) -> None:
    """An error that holds one is the same error in the next attempt. (Law 6)"""
    supervised = Supervised(
        stage, {"environment": {"DB_PASSWORD": "hunter22"}, "allow_literal_secrets": True}, initial_backoff_seconds=0
    )
    for attempt in (1, 2, 3):
        fail_batch(supervised, attempt, "ValueError: no login\nas ann with hunter22 at db://ann:ann22@host/")
        supervised.watch()
        if attempt < 3:
            supervised.restarted(attempt + 1)
    assert supervised.record.gave_up.endswith("ValueError: no login as ann with *** at db://***@host/")
    found = (str(supervised.lines), str(supervised.record))
    assert not any(secret in text for text in found for secret in ("hunter22", "ann22"))


def test_secrets_are_hidden_in_what_holds_a_stream(stage: Stage) -> None:
    """The order of a drain, for one. (Law 6)"""
    supervised = Supervised(
        stage, {"environment": {"DB_PASSWORD": "hunter22"}, "allow_literal_secrets": True}, initial_backoff_seconds=0
    )
    stage.another_controller("ann with hunter22").order("drain", STREAM)
    supervised.die()
    supervised.watch()
    assert supervised.lines[-1].text.startswith("ann with *** has ordered a drain")


@pytest.mark.parametrize(
    "errors",
    [
        (
            "no file part-00000-0b1c9a52-7b6d-4f0e-9d3e-4a1f00c2b7aa-c000",
            "no file part-00003-ffe0ba11-aaaa-4bbb-8ccc-0123456789ab-c000",
        ),
        ("lost block at 0x7ffe12", "lost block at 0xabcdef"),
        ("file _tmp_9f86d081884c7d65 is gone", "file _tmp_fa1afbe0c0ffee00 is gone"),
        ("cannot cast org.Row@6d06d69c", "cannot cast org.Row@beefa"),
        ("digest 9F86D081", "digest 2C26B46B68FF"),
    ],
)
def test_errors_of_one_cause_are_the_same(stage: Stage, errors: tuple[str, str]) -> None:
    """Random names and addresses do not distinguish them. (Law 6)"""
    supervised = Supervised(stage, initial_backoff_seconds=0)
    for attempt, error in enumerate((errors[0], errors[1], errors[0]), 1):
        fail_batch(supervised, attempt, error)
        supervised.watch()
        if attempt < 3:
            supervised.restarted(attempt + 1)
    assert "3 times with the same error" in supervised.record.gave_up


@pytest.mark.parametrize(
    ("error", "batch_id"), [("defaced row 7 is bad", 4), ("OSError: full", 4), ("ValueError: row 7 is bad", 5)]
)
def test_another_error_or_another_batch_is_another_failure(stage: Stage, error: str, batch_id: int) -> None:
    """Only the window of restarts counts them."""
    supervised = Supervised(stage, initial_backoff_seconds=0)
    fail_batch(supervised, 1)
    supervised.watch()
    supervised.restarted(2)
    fail_batch(supervised, 2, error, batch_id)
    supervised.watch()
    supervised.restarted(3)
    fail_batch(supervised, 3)
    supervised.watch()
    assert supervised.register.attempt == 4


@pytest.mark.parametrize("on_failure", ["alert", "nothing"])
def test_other_policies_start_nothing(stage: Stage, on_failure: str) -> None:
    """An alert is reported once, by one watcher; otherwise a failure is only shown."""
    supervised = Supervised(stage, on_failure=on_failure)
    supervised.die()
    supervised.watch(300.0)
    supervised.watch(300.0, supervised.another())
    assert supervised.register.attempt == 1
    assert supervised.said.count("alert") == (on_failure == "alert")
    assert "failed" in supervised.said


def ends(supervised: Supervised, how: str) -> None:
    """A way in which a deployment ends that is no failure."""
    stage = supervised.stage
    if how == "stopped":
        stage.say(Stopped, snapshot_id="s", queries={})
        stage.end(state="exited")
    elif how == "finished":
        stage.say(Finished, snapshot_id=None, queries={})
        stage.end(state="exited")
    elif how == "killed":
        stage.controller.kill(STREAM)
    elif how == "a stop was ordered":
        stage.controller.order("stop", STREAM)
        supervised.die()
    elif how == "a drain was ordered":
        stage.controller.order("drain", STREAM)
        supervised.die()
    elif how == "retired":
        stage.say(Stopped, snapshot_id="s", queries={})
        stage.end(state="exited")
        stage.controller.retention.retire(STREAM, reason="the shop has closed")
    else:
        stage.end(state="unknown")


@pytest.mark.parametrize(
    "how",
    ["stopped", "finished", "killed", "a stop was ordered", "a drain was ordered", "retired", "not known to be dead"],
)
def test_what_a_person_ended_or_may_run_stays_as_it_is(supervised: Supervised, how: str) -> None:
    """A stream that was ended by a person, has finished, or may still run is not started. (Law 1; 1a.8)"""
    supervised.watch()
    ends(supervised, how)
    supervised.watch(600.0)
    assert supervised.register.attempt == 1
    assert list(supervised.stage.launcher.requests) == ["d-0001-a0001"]


def interrupted(supervised: Supervised) -> None:
    """The script ends with status 0, as by a handler of SIGTERM, while its query runs."""
    ran = {"counts": "ran when the script ended"}
    supervised.stage.say(Finished, snapshot_id="s", queries={}, unfinished=ran)
    supervised.stage.end(state="exited")


def test_a_stream_whose_script_ended_before_its_input_is_restarted(supervised: Supervised) -> None:
    """Nobody had asked for that end, whatever status the script chose."""
    supervised.watch()
    interrupted(supervised)
    supervised.watch(600.0)
    assert supervised.register.attempt == 2
    assert "query counts ran when the script ended" in supervised.register.restarts.reason


def test_a_stop_of_such_a_stream_is_answered_and_holds(supervised: Supervised) -> None:
    """Its state is kept already, and no watcher starts it again."""
    supervised.watch()
    interrupted(supervised)
    outcome = supervised.stage.controller.order("stop", STREAM).outcome
    assert outcome is not None
    assert (outcome.outcome, outcome.snapshot_id) == ("stopped", "s")
    supervised.watch(600.0)
    assert supervised.register.attempt == 1


def test_a_stream_that_was_killed_stays_so_whatever_policy_it_gets_later(stage: Stage) -> None:
    """Until a person starts it. (Law 1)"""
    supervised = Supervised(stage, on_failure="nothing")
    stage.controller.kill(STREAM)
    stage.controller.details.change_restart_policy(STREAM, {"on_failure": "restart"})
    supervised.watch(600.0)
    assert supervised.register.attempt == 1
    assert supervised.said == ["gave_up"]
    stage.controller.resume(STREAM)
    supervised.restarted(2)
    supervised.die(2)
    supervised.watch(100.0)
    assert supervised.register.attempt == 3


def test_a_stop_of_a_stream_that_waits_for_its_restart_holds(supervised: Supervised) -> None:
    """There is nothing to stop, which is reported, and it is not started again. (Laws 1 and 6)"""
    stage = supervised.stage
    supervised.die()
    supervised.watch()
    for _ in range(2):
        with pytest.raises(ConflictError, match="nothing to stop: no watcher restarts it any more"):
            stage.controller.order("stop", STREAM, request_id="r-1")
    supervised.watch(600.0)
    assert supervised.register.attempt == 1
    assert stage.controller.status(STREAM).restarts == (
        "abandoned: it was stopped by tests: `streamstate resume orders` starts it again"
    )


def test_a_stop_does_not_hide_why_watchers_gave_up(stage: Stage) -> None:
    """That reason is what a person needs. (Law 6)"""
    supervised = Supervised(stage, initial_backoff_seconds=0, max_restarts=1)
    supervised.die()
    supervised.watch()
    supervised.restarted(2)
    supervised.die(2)
    supervised.watch()
    with pytest.raises(ConflictError):
        stage.controller.order("stop", STREAM)
    assert supervised.record.gave_up.startswith("1 restart within")


def test_a_stop_that_keeps_the_end_of_a_dead_driver_holds(supervised: Supervised) -> None:
    """``stop --on-deadline kill`` of a stream that waits for its restart. (Law 1)"""
    supervised.die()
    supervised.watch()
    supervised.stage.controller.forced_stops.stop(STREAM, deadline_seconds=5, on_deadline="kill")
    supervised.watch(600.0)
    assert supervised.register.attempt == 1


def test_a_watcher_may_act_anywhere_within_a_stop(tmp_path: Path) -> None:
    """The order holds for the attempt that it starts in the meantime, and if that dies first, none follows. (Law 1)"""
    for number in count(1):
        store = HookedStore()
        stage = Stage(tmp_path, store)
        supervised = Supervised(stage, initial_backoff_seconds=0)
        calls = count(1)

        def come(
            _verb: str, _key: str, supervised: Supervised = supervised, calls: Any = calls, at: int = number
        ) -> None:
            if next(calls) == at:
                supervised.die()
                supervised.watch()

        store.before = come
        with suppress(ConflictError):  # it had failed, and is kept ended
            stage.controller.order("stop", STREAM)
        store.before = None
        attempt = supervised.register.attempt
        if next(calls) <= number:
            return
        commands = [slot.command for slot in stage.control.journal("d-0001").commands()]
        assert all(
            isinstance(command, StopRequest) and command.attempt >= supervised.register.oldest_stopped_attempt
            for command in commands
        ), number
        if attempt == 2:
            supervised.restarted(2)
            supervised.die(2)
            supervised.watch(600.0)
        assert supervised.register.attempt == attempt, number


def test_a_watcher_may_act_anywhere_within_a_kill(tmp_path: Path) -> None:
    """The attempt that it starts in the meantime is the one that ends, and none follows. (Laws 1 and 2)"""
    for number in count(1):
        store = HookedStore()
        stage = Stage(tmp_path, store)
        supervised = Supervised(stage, initial_backoff_seconds=0)
        supervised.die()
        calls = count(1)

        def come(
            _verb: str, _key: str, supervised: Supervised = supervised, calls: Any = calls, at: int = number
        ) -> None:
            if next(calls) == at:
                supervised.watch()

        store.before = come
        killed = stage.controller.kill(STREAM)
        store.before = None
        supervised.watch(600.0)
        assert (stage.seen().state, supervised.register.attempt) == ("failed", killed.attempt), number
        assert "running" not in stage.launcher.states.values(), number
        assert supervised.record.gave_up.startswith("it was killed by tests"), number
        if next(calls) <= number:
            return


@pytest.mark.parametrize(("by", "attempt"), [(["the driver itself"], 2), (["the driver itself", "ann"], 1)])
def test_a_drain_that_the_driver_has_ordered_itself_is_finished_by_the_next_attempt(
    supervised: Supervised, by: list[str], attempt: int
) -> None:
    """All its input is read; only a drain from outside is left to the person who ordered it. (Law 6)"""
    for name in by:
        supervised.stage.another_controller(name).order("drain", STREAM)
    supervised.die()
    supervised.watch(60.0)
    assert supervised.register.attempt == attempt
    assert supervised.register.attempt_mode == "run"


def test_a_failed_stream_under_an_upgrade_is_left_to_it(supervised: Supervised) -> None:
    """Only the steps of an upgrade move the stream while it is under way. (Law 4)"""
    stage = supervised.stage
    request = UpgradeRequest(change_request(STREAM, application=stage.script("print('v2')\n")))
    stage.controller.upgrades.begin(request, "u-1")
    supervised.die()
    supervised.watch(100.0)
    assert supervised.register.attempt == 1
    assert supervised.said[-1] == "held"


def test_an_attempt_that_a_watcher_started_and_never_launched_is_launched_by_another(supervised: Supervised) -> None:
    """The watcher died between its write and the launch: the attempt is the same. (Laws 1 and 2)"""
    supervised.die()
    supervised.watch()
    supervised.stage.launcher.refusals = [UnavailableError("the process could not be started")] * 3
    supervised.watch(12.0)
    assert supervised.register.attempt == 2
    assert list(supervised.stage.launcher.requests) == ["d-0001-a0001"]
    supervised.watch(20.0, supervised.another())
    assert list(supervised.stage.launcher.requests) == ["d-0001-a0001", "d-0001-a0002"]
    assert supervised.register.attempt == 2


def test_an_attempt_that_a_person_did_not_launch_is_left_to_that_person(stage: Stage) -> None:
    """Its deploy may be on its way to the launch."""
    stage.launcher.refusals = [UnavailableError("no")]
    with pytest.raises(UnavailableError):
        stage.deploy(restart_policy={"on_failure": "restart"})
    lines: list[Any] = []
    watcher = stage.controller.watcher(lines.append)
    for _ in range(100):
        watcher.tick()
        stage.clock.advance(1.0)
    assert stage.launcher.requests == {}
    assert [line.sight for line in lines] == ["launching"]


def test_a_start_that_is_refused_counts_as_a_failure(stage: Stage) -> None:
    """What does not recover by itself ends in ``failed`` by the same rule, and no attempt takes a number. (Law 15)"""
    supervised = Supervised(stage, max_restarts=2, initial_backoff_seconds=1)
    stage.launcher.complaint = InvalidRequestError("this secret is not there", name="DB_PASSWORD")
    supervised.die()
    supervised.watch(30.0)
    assert supervised.register.attempt == 1
    assert supervised.record.gave_up.startswith("2 restarts within 3600 s did not help: this secret is not there")
    assert supervised.said[-1] == "gave_up"


def test_a_pinned_file_that_was_altered_is_never_run(stage: Stage) -> None:
    """The restart is refused before the attempt takes a number, and counts as a failure. (Law 15)"""
    supervised = Supervised(stage, max_restarts=1, initial_backoff_seconds=1)
    artifact = stage.spec().version.application
    stage.store.put(layout.artifact_key(STREAM, artifact.sha256, artifact.name), b"altered")
    supervised.die()
    supervised.watch(30.0)
    assert supervised.register.attempt == 1
    assert "did not help" in supervised.record.gave_up


def test_of_two_watchers_that_saw_the_same_one_restarts(supervised: Supervised) -> None:
    """The second loses the compare-and-swap, and reports it. (Law 2)"""
    supervised.die()
    supervised.watch()
    supervised.stage.clock.advance(20)
    supervision, control = supervised.stage.controller.supervision, supervised.stage.control
    stored = control.need_register()
    looks = [supervision.look(control, stored, waited_seconds=20.0, host=host) for host in ("one", "two")]
    first, second = (supervision.act(look) for look in looks)
    assert (first.sight, second.sight) == ("restarting", "held")
    assert supervised.register.attempt == 2
    assert len(supervised.stage.launcher.requests) == 2


def test_a_lost_checkpoint_is_named_with_the_way_back(stage: Stage) -> None:
    """By default nothing goes back to an older position: the driver refuses to start, and the words report what can be
    done. (Laws 5 and 14)"""
    supervised = Supervised(stage, max_restarts=1, initial_backoff_seconds=0)
    checkpoint = stage.checkpoint()
    supervised.die()
    for info in list(stage.store.list_objects(f"{checkpoint.prefix}/")):
        stage.store.delete(info.key)
    supervised.watch()
    stage.clock.advance(5)
    supervised.watch()
    supervised.restarted(2)
    supervised.die(2)
    supervised.watch()
    assert "the checkpoint of query counts is gone" in supervised.record.gave_up
    assert "rollback --snapshot ID" in supervised.record.gave_up


def test_a_lost_checkpoint_begins_the_way_back_where_the_policy_says_so(stage: Stage) -> None:
    """From the newest good snapshot, as a rollback that undoes the sinks; where they cannot be undone, nothing is
    changed, and the words report it. (Laws 2, 14)"""
    supervised = Supervised(stage, restore_lost_checkpoint=True, initial_backoff_seconds=1)
    manifest = stage.keep("live")
    checkpoint = stage.checkpoint()
    supervised.die()
    for info in list(stage.store.list_objects(f"{checkpoint.prefix}/")):
        stage.store.delete(info.key)
    supervised.watch(5.0)
    upgrade = stage.controller.upgrades.view(STREAM, upgrade_id_for("restart-d-0001-1")).state.upgrade
    back = upgrade.terms_of_return
    assert (upgrade.asked, back.strategy, back.snapshot_id) == (
        "rollback",
        "undo",
        manifest.snapshot_id,
    )
    assert any(f"back to {manifest.snapshot_id}, with the sinks undone" in line.text for line in supervised.lines)
    assert "no rollback is exact, so the stream was not changed" in supervised.record.gave_up
    assert supervised.register.attempt == 1


def lose_checkpoint(stage: Stage, deployment_id: str) -> None:
    """Everything of it is gone."""
    for info in list(stage.store.list_objects(f"{stage.checkpoint('counts', deployment_id).prefix}/")):
        stage.store.delete(info.key)


def test_a_lost_checkpoint_does_not_bring_back_a_version_that_was_rolled_back(stage: Stage) -> None:
    """Its snapshots are newer, and the state of the current version does not come from them. (Laws 5 and 14)"""
    upgraded = UpgradeStage(stage).runs()
    upgraded.sink = PlannedSink("file:parquet", "parquet", "/out", "file", "batch_id")
    upgraded.to_upgraded()
    stage.clock.advance(5)
    assert stage.keep("live", "d-0002").snapshot_id
    view = upgraded.begin_rollback(snapshot_id="d-0001-stopped-000001")
    upgraded.advance(view)
    stage.end("d-0002")
    upgraded.advance(view)
    stage.come_to_life("d-0003", queries=("counts",))
    stage.say(
        Undone, "d-0003", query_name="counts", sink="/out", means="undo", to_batch_id=3, first_batch_id=4,
        last_batch_id=6,
    )  # fmt: skip
    upgraded.new_runs(7, "d-0003")
    assert upgraded.advance(view).outcome == "rolled_back"
    policy = {"on_failure": "restart", "restore_lost_checkpoint": True, "initial_backoff_seconds": 1}
    stage.controller.details.change_restart_policy(STREAM, policy)
    stage.end("d-0003", state="gone")
    lose_checkpoint(stage, "d-0003")
    watcher = stage.another_controller("watcher").watcher(lambda _line: None)
    for _ in range(5):
        watcher.tick()
        stage.clock.advance(1)
    found = stage.controller.upgrades.view(STREAM, upgrade_id_for("restart-d-0003-1")).state.upgrade
    assert found.terms_of_return.snapshot_id == "d-0001-stopped-000001"


def test_a_lost_checkpoint_does_not_bring_back_what_a_start_with_nothing_gave_up(stage: Stage) -> None:
    """A person has asked for that start. (Law 5)"""
    policy = {"on_failure": "restart", "restore_lost_checkpoint": True, "initial_backoff_seconds": 1}
    stage.deploy(restart_policy=policy)
    stage.stopped()
    stage.deploy("print('v2')\n", start="fresh")
    stage.come_to_life("d-0002", queries=("counts",))
    stage.run_batches(2, deployment_id="d-0002")
    stage.end("d-0002", state="gone")
    lose_checkpoint(stage, "d-0002")
    watcher = stage.another_controller("watcher").watcher(lambda _line: None)
    for _ in range(5):
        watcher.tick()
        stage.clock.advance(1)
    record = stage.control.need_register().value.restarts
    assert record is not None
    assert record.gave_up.endswith("the stream has no good snapshot to go back to")


def test_without_a_snapshot_a_lost_checkpoint_is_given_up(stage: Stage) -> None:
    """It never starts with nothing. (Law 5)"""
    supervised = Supervised(stage, restore_lost_checkpoint=True, initial_backoff_seconds=1)
    supervised.die()
    for info in list(stage.store.list_objects(f"{stage.checkpoint().prefix}/")):
        stage.store.delete(info.key)
    supervised.watch(10.0)
    assert supervised.record.gave_up.endswith("the stream has no good snapshot to go back to")
    assert supervised.register.attempt == 1


# the policy


def test_the_policy_changes_what_is_given_alone(stage: Stage) -> None:
    """The rest stays, and nothing is started or ended."""
    stage.deploy()
    details = stage.controller.details
    assert details.restart_policy(STREAM) == RestartPolicy()
    details.change_restart_policy(STREAM, {"on_failure": "restart", "max_restarts": 7})
    assert details.change_restart_policy(STREAM, {"max_restarts": 3}) == RestartPolicy("restart", max_restarts=3)


def test_a_policy_of_no_stream_is_refused(stage: Stage) -> None:
    """One sentence names what is not there."""
    stage.deploy()
    with pytest.raises(StreamNotFoundError):
        stage.controller.details.change_restart_policy("nobody", {"on_failure": "restart"})


@pytest.mark.parametrize(
    ("given", "fact"),
    [
        ({"on_failure": "restat"}, r"on_failure=restat. Did you mean restart\? Use restart, alert or nothing\."),
        ({"max_restarts": 0}, "Use a whole number from 1 to 1,000,000"),
        ({"max_restarts": 1.5}, "Use a whole number from 1 to 1,000,000"),
        ({"max_restarts": True}, "Use a whole number from 1 to 1,000,000"),
        ({"backoff_factor": 0.5}, "backoff_factor=0.5. Use a number from 1 to 100"),
        ({"healthy_for_seconds": float("nan")}, "Use a number of seconds from 1 to 2,678,400"),
        ({"initial_backoff_seconds": -1}, "initial_backoff_seconds=-1. Use a number of seconds"),
        ({"initial_backoff_seconds": 400}, "shorter than the first"),
        ({"restore_lost_checkpoint": "yes"}, "true or false"),
        ({"colour": "red"}, "no such value"),
        ({"max_restart": 1}, r"Did you mean max_restarts\?"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_in_one_sentence(stage: Stage, given: dict[str, Any], fact: str) -> None:
    """Nothing is written: neither by the verb nor by a deploy."""
    stage.deploy()
    with pytest.raises(InvalidRequestError, match=fact):
        stage.controller.details.change_restart_policy(STREAM, given)
    with pytest.raises(InvalidRequestError, match=fact):
        stage.request(restart_policy=given)
    assert stage.control.need_register().value.restart_policy == RestartPolicy()


def test_a_stop_that_its_machine_asked_for_is_followed_by_the_next_attempt(supervised: Supervised) -> None:
    """A node that is drained wants its driver gone, not the stream; a stop that a person ordered stays one."""
    stage = supervised.stage
    for attempt, requested_by in ((1, "the driver itself"), (2, "alice (shell)")):
        if attempt == 2:
            supervised.restarted(2)
        number = f"00000000-0000-4000-8000-00000000000{attempt}"
        command = StopRequest(
            number, STREAM, "d-0001", stage.clock.now(), None, requested_by, "", attempt=attempt
        )  # fmt: skip
        stage.accept(command, attempt=attempt)
        stage.run_batches(3 * attempt, deployment_id="d-0001")
        manifest = stage.keep("stopped", "d-0001", attempt)
        positions = {name: query.position for name, query in manifest.queries.items()}
        stage.say(Stopped, attempt=attempt, snapshot_id=manifest.snapshot_id, queries=positions)
        stage.end(attempt=attempt)
        supervised.watch(20.0)
        assert supervised.register.attempt == 2, supervised.lines
    assert "its machine asked the driver to end" in supervised.record.reason
    assert supervised.said[-1] == "ended"


def test_a_stop_that_a_person_orders_after_the_machine_stays_one(supervised: Supervised) -> None:
    """The driver was stopping already, and ignored it; the order holds all the same."""
    stage = supervised.stage
    first, second = (
        StopRequest(
            f"00000000-0000-4000-8000-00000000000{number}", STREAM, "d-0001", stage.clock.now(), None, by, "", attempt=1
        )
        for number, by in ((1, "the driver itself"), (2, "alice (shell)"))
    )
    stage.accept(first)
    stage.run_batches(3, deployment_id="d-0001")
    manifest = stage.keep("stopped", "d-0001", 1)
    positions = {name: query.position for name, query in manifest.queries.items()}
    stage.say(Stopped, snapshot_id=manifest.snapshot_id, queries=positions)
    stage.say(
        Ignored, command_id=second.command_id, command_number=2, command=to_json(second), reason="it had stopped"
    )  # fmt: skip
    stage.end()
    supervised.watch(30.0)
    assert (supervised.register.attempt, supervised.said[-1]) == (1, "ended")
