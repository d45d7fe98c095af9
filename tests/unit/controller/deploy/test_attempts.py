"""Resume and kill: attempts of one deployment."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from airflow_streamstate.errors import ConflictError, InputLostError, StreamNotFoundError, UnavailableError
from airflow_streamstate.protocol.events import Drained, Failed, Finished
from airflow_streamstate.protocol.records import Claim
from support.sim_stage import STREAM, Stage
from support.snapshots import plan_stateful
from support.upgrade_stage import SOCKET


def test_a_stopped_deployment_is_resumed_as_its_next_attempt(stage: Stage) -> None:
    """Resume runs the recorded code (Law 15) as the next attempt of the same deployment; repeated, it is one attempt.
    (Law 2)"""
    stage.deploy("print('v1')\n")
    stage.stopped()
    stage.script("print('v2')\n")
    for _ in range(2):
        view = stage.controller.resume(STREAM, request_id="r-1")
        assert (view.deployment_id, view.attempt, view.state) == ("d-0001", 2, "launching")
    first, second = stage.launcher.requests.values()
    assert Path(second.application).read_text() == "print('v1')\n"
    assert first.application != second.application


def test_the_consent_to_a_hazard_is_one_for_that_attempt_alone(stage: Stage) -> None:
    """Law 17: neither the next attempt nor the next deployment has it, unless it is given once more."""

    def is_accepted() -> bool:
        return stage.control.need_register().value.attempt_accepts_hazards

    stage.deploy()
    stage.stopped()
    stage.controller.resume(STREAM, accept_hazards=True)
    assert is_accepted()
    stage.stopped(4, attempt=2)
    stage.controller.resume(STREAM)
    assert not is_accepted()
    stage.stopped(5, attempt=3)
    stage.controller.resume(STREAM, accept_hazards=True)
    stage.stopped(6, attempt=4)
    stage.deploy("print('v2')\n")
    assert not is_accepted()


def test_a_resume_of_a_deployment_that_was_replaced_is_a_conflict(stopped: Stage) -> None:
    """A resume that is repeated after a newer deployment names it. (Law 4)"""
    stopped.controller.resume(STREAM, request_id="r-1")
    stopped.come_to_life(attempt=2)
    stopped.end(attempt=2, state="gone")
    stopped.deploy("print('v2')\n")
    with pytest.raises(ConflictError, match="newer deployment"):
        stopped.controller.resume(STREAM, request_id="r-1")


def test_a_driver_that_said_stopped_and_lives_on_is_waited_for_and_then_refused(stopped: Stage) -> None:
    """The next attempt waits for the process of the one before, with a deadline. (1a.8, Law 6)"""
    stopped.end(state="running")
    with pytest.raises(ConflictError, match="still running"):
        stopped.controller.resume(STREAM)
    assert stopped.control.need_register().value.attempt == 1


def test_a_drained_deployment_is_never_resumed(running: Stage) -> None:
    """A drained checkpoint is never resumed. (Law 11)"""
    running.say(Drained, command_id="c", command_number=1, snapshot_id="s", queries={})
    running.end()
    with pytest.raises(ConflictError, match="never resumed"):
        running.controller.resume(STREAM)


@pytest.mark.parametrize("verb", ["resume", "deploy"])
def test_a_lost_driver_is_followed_only_by_name(running: Stage, verb: str) -> None:
    """Unknown never means dead. (1a.8)"""
    running.end(state="unknown")
    running.clock.advance(120)
    if verb == "resume":
        with pytest.raises(ConflictError, match="it is unknown"):
            running.controller.resume(STREAM)
        assert running.controller.resume(STREAM, assume_dead=True).attempt == 2
    else:
        with pytest.raises(ConflictError, match="it is unknown"):
            running.deploy("print('v2')\n")
        assert running.deploy("print('v2')\n", assume_dead=True).start.mode == "restore"


def test_an_attempt_without_a_driver_gets_one(stage: Stage) -> None:
    """A resume of what was recorded and never launched launches just that attempt. (Law 1)"""
    stage.launcher.refusal = UnavailableError("busy")
    with pytest.raises(UnavailableError):
        stage.deploy()
    assert stage.controller.resume(STREAM).attempt == 1
    assert list(stage.launcher.requests) == ["d-0001-a0001"]


def test_kill_ends_the_driver_once_or_says_that_it_cannot(running: Stage) -> None:
    """What runs elsewhere is not called dead (1a.8); killing what is dead changes nothing. (Law 2)"""
    running.launcher.dies_when_killed = False
    with pytest.raises(ConflictError, match="cannot be ended from here"):
        running.controller.kill(STREAM)
    running.launcher.dies_when_killed = True
    assert [running.controller.kill(STREAM).state for _ in range(2)] == ["failed", "failed"]
    assert running.controller.resume(STREAM).attempt == 2


def test_kill_of_what_was_never_launched_closes_it_for_good(stage: Stage) -> None:
    """A driver that starts after its attempt was abandoned finds it claimed. (1a.8)"""
    stage.launcher.refusal = UnavailableError("busy")
    with pytest.raises(UnavailableError):
        stage.deploy()
    assert stage.controller.kill(STREAM).state == "failed"
    claim = stage.control.claim("d-0001", 1)
    assert isinstance(claim, Claim)
    assert claim.pid == 0
    assert stage.deploy("print('v2')\n").deployment_id == "d-0002"


def test_an_unknown_stream_is_named(stage: Stage) -> None:
    """Resume and kill report a stream that is not there."""
    stage.home.begin("tests")
    for verb in (stage.controller.resume, stage.controller.kill):
        with pytest.raises(StreamNotFoundError):
            verb(STREAM)


def test_a_resume_that_failed_early_is_tried_again_also_after_older_commits(dead: Stage) -> None:
    """What counts is what the resume has committed, not what the deployment had before it. (Law 2)"""
    dead.controller.resume(STREAM, request_id="r-1")
    dead.come_to_life(attempt=2)
    dead.start_query("counts", attempt=2, batch_id=3)
    dead.say(Failed, attempt=2, error="no")
    dead.end(attempt=2)
    assert dead.controller.resume(STREAM, request_id="r-1").attempt == 3
    dead.come_to_life(attempt=3)
    dead.start_query("counts", attempt=3, batch_id=3)
    dead.run_batches(4)
    dead.say(Failed, attempt=3, error="no")
    dead.end(attempt=3)
    view = dead.controller.resume(STREAM, request_id="r-1")
    assert (view.attempt, view.state) == (3, "failed")


def test_a_resume_says_which_batch_runs_again_and_what_its_sink_makes_of_that(dead: Stage) -> None:
    """Before the driver is launched, which changes the log. ``status`` reports the same until then."""
    plan_stateful(dead.checkpoint(), 4)
    sentence = "nothing is doubled: batch 4 of counts runs again first, into file:parquet"
    assert sentence in dead.controller.status(STREAM).next_step
    (note,) = dead.controller.resume(STREAM).notes
    assert note.startswith(sentence)


def of_a_socket(folder: Path) -> Stage:
    """A deployment that read a socket up to batch 3, and whose driver was killed."""
    stage = Stage(folder, identities=(SOCKET,))
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    stage.end(state="gone")
    return stage


def test_a_resume_that_would_lose_input_is_refused_before_a_driver_is_launched(tmp_path: Path) -> None:
    """The offset means nothing to the next connection; ``status`` reports it. (Law 5)"""
    stage = of_a_socket(tmp_path)
    launched = list(stage.launcher.calls)
    with pytest.raises(InputLostError, match="no resume can continue from its offset") as refused:
        stage.controller.resume(STREAM)
    assert "Deploy with --accept-lost-input counts" in refused.value.next_step
    assert stage.launcher.calls == launched
    assert stage.control.need_register().value.attempt == 1
    next_step = stage.controller.status(STREAM).next_step
    assert "without a lost row" not in next_step
    assert next_step.startswith("`streamstate deploy orders` with --accept-lost-input counts")
    assert stage.deploy("print('v2')\n", accept_lost_input=("counts",)).start.mode == "restore"


def test_what_is_to_be_drained_is_resumed_whatever_its_source(tmp_path: Path) -> None:
    """The flush reads no input."""
    stage = of_a_socket(tmp_path)
    stage.launcher.states["d-0001-a0001"] = "running"
    stage.beat()
    stage.controller.order("drain", STREAM)
    stage.end(state="gone")
    assert stage.controller.resume(STREAM).attempt == 2


@pytest.mark.parametrize("attempt", [1, 2])
def test_the_reason_of_a_resume_is_kept_where_the_attempt_was_never_launched(stage: Stage, attempt: int) -> None:
    """Its number stays, and its reason is the one that was given last; twice is once."""
    silent = UnavailableError("the cluster does not answer")
    if attempt == 2:
        stage.deploy(reason="the first version")
        stage.stopped(3)
    stage.launcher.refusals = [silent, silent]
    with suppress(UnavailableError):
        if attempt == 2:
            stage.controller.resume(STREAM, reason="the first try")
        else:
            stage.deploy(reason="the first version")
    for _ in range(2):
        with suppress(UnavailableError):
            view = stage.controller.resume(STREAM, request_id="r-1", reason="the cluster is back")
    assert (view.attempt, stage.launcher.refusals) == (attempt, [])
    assert stage.controller.status(STREAM).attempt_reason == "the cluster is back"
    assert stage.control.need_register().value.attempt_reason == "the cluster is back"


@pytest.mark.parametrize("verb", ["resume", "deploy"])
def test_a_request_for_a_whole_run_is_repeated_until_an_attempt_has_finished(stage: Stage, verb: str) -> None:
    """Also where the failed attempt had committed batches, which a request for health leaves alone (Law 2)."""
    stage.deploy(request_id="r-1")
    if verb == "resume":
        stage.stopped()
        stage.controller.resume(STREAM, request_id="r-2")
    first = stage.seen().attempt

    def repeat(*, until_finished: bool) -> int:
        if verb == "deploy":
            return stage.controller.deploy(stage.request(request_id="r-1"), until_finished=until_finished).attempt
        return stage.controller.resume(STREAM, request_id="r-2", until_finished=until_finished).attempt

    for attempt in (first, first + 1):
        stage.come_to_life(attempt=attempt)
        stage.start_query(attempt=attempt, batch_id=3 * attempt, trigger="available_now")
        stage.run_batches(3 * attempt + 3)
        stage.say(Failed, attempt=attempt, error="ValueError: boom", traceback="")
        stage.end(attempt=attempt)
        assert repeat(until_finished=False) == attempt
        assert repeat(until_finished=True) == attempt + 1
    last = first + 2
    stage.come_to_life(attempt=last)
    stage.say(Finished, attempt=last, snapshot_id=None, queries={})
    stage.end(attempt=last)
    assert repeat(until_finished=True) == last
    # A later attempt that fails is another request's.
    stage.controller.resume(STREAM)
    stage.come_to_life(attempt=last + 1)
    stage.say(Failed, attempt=last + 1, error="ValueError: boom", traceback="")
    stage.end(attempt=last + 1)
    assert repeat(until_finished=True) == last + 1
