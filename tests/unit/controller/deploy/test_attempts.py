"""Resume and kill: attempts of one deployment."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from airflow_streamstate.errors import ConflictError, InputLostError, StreamNotFoundError, UnavailableError
from airflow_streamstate.protocol.data_events import BatchRepeated
from airflow_streamstate.protocol.events import Drained, Failed
from airflow_streamstate.protocol.records import Claim
from support.sim_stage import STREAM, Stage
from support.snapshots import plan_stateful
from support.upgrade_stage import SOCKET


def test_a_stopped_deployment_is_resumed_as_its_next_attempt(stage: Stage) -> None:
    """Resume runs the recorded code again, as the next attempt of the same deployment. (Law 15)"""
    stage.deploy("print('v1')\n")
    stage.stopped()
    stage.script("print('v2')\n")
    view = stage.controller.resume(STREAM)
    assert (view.deployment_id, view.attempt, view.state) == ("d-0001", 2, "launching")
    first, second = (stage.launcher.requests[key] for key in ("d-0001-a0001", "d-0001-a0002"))
    with open(second.application) as file:  # noqa: PTH123
        assert file.read() == "print('v1')\n"
    assert first.application != second.application


def test_the_same_resume_twice_is_one_attempt(stage: Stage) -> None:
    """A resume with the same request id finds the attempt that it became. (Law 2)"""
    stage.deploy()
    stage.stopped()
    assert [stage.controller.resume(STREAM, request_id="r-1").attempt for _ in range(2)] == [2, 2]
    assert len(stage.launcher.requests) == 2


def test_a_resume_that_failed_early_is_tried_again_by_its_retry(stage: Stage) -> None:
    """The same resume, after its attempt failed before its first commit, is the next attempt. (Law 2)"""
    stage.deploy()
    stage.come_to_life()
    stage.end(state="gone")
    stage.controller.resume(STREAM, request_id="r-1")
    stage.come_to_life(attempt=2)
    stage.say(Failed, attempt=2, error="no")
    stage.end(attempt=2)
    assert stage.controller.resume(STREAM, request_id="r-1").attempt == 3


def test_a_resume_of_a_deployment_that_was_replaced_is_a_conflict(stage: Stage) -> None:
    """A resume that is repeated after a newer deployment names it. (Law 4)"""
    stage.deploy()
    stage.stopped()
    stage.controller.resume(STREAM, request_id="r-1")
    stage.come_to_life(attempt=2)
    stage.end(attempt=2, state="gone")
    stage.deploy("print('v2')\n")
    with pytest.raises(ConflictError, match="newer deployment"):
        stage.controller.resume(STREAM, request_id="r-1")


def test_what_runs_is_not_resumed(stage: Stage) -> None:
    """Attempt k+1 starts only when k is proven ended. (1a.8)"""
    stage.deploy()
    stage.come_to_life()
    with pytest.raises(ConflictError, match="running already"):
        stage.controller.resume(STREAM)


def test_a_driver_that_said_stopped_and_lives_on_is_waited_for_and_then_refused(stage: Stage) -> None:
    """The next attempt waits for the process of the one before, with a deadline. (1a.8, Law 6)"""
    stage.deploy()
    stage.stopped()
    stage.end(state="running")
    with pytest.raises(ConflictError, match="still running"):
        stage.controller.resume(STREAM)
    assert stage.control.need_register().value.attempt == 1


def test_a_drained_deployment_is_never_resumed(stage: Stage) -> None:
    """A drained checkpoint is never resumed. (Law 11)"""
    stage.deploy()
    stage.come_to_life()
    stage.say(Drained, command_id="c", command_number=1, snapshot_id="s", queries={})
    stage.end()
    with pytest.raises(ConflictError, match="never resumed"):
        stage.controller.resume(STREAM)


def test_a_lost_driver_is_resumed_only_by_name(stage: Stage) -> None:
    """Unknown never means dead. (1a.8)"""
    stage.deploy()
    stage.come_to_life()
    stage.end(state="unknown")
    stage.clock.advance(120)
    with pytest.raises(ConflictError, match="it is unknown"):
        stage.controller.resume(STREAM)
    assert stage.controller.resume(STREAM, assume_dead=True).attempt == 2


def test_an_attempt_without_a_driver_gets_one(stage: Stage) -> None:
    """A resume of what was recorded and never launched launches just that attempt. (Law 1)"""
    stage.launcher.refusal = UnavailableError("busy")
    with pytest.raises(UnavailableError):
        stage.deploy()
    assert stage.controller.resume(STREAM).attempt == 1
    assert list(stage.launcher.requests) == ["d-0001-a0001"]


def test_kill_ends_the_driver_once(stage: Stage) -> None:
    """Kill ends the driver; killing what is dead changes nothing. (Law 2)"""
    stage.deploy()
    stage.come_to_life()
    assert stage.controller.kill(STREAM).state == "failed"
    assert stage.controller.kill(STREAM).state == "failed"
    assert stage.controller.resume(STREAM).attempt == 2


def test_kill_of_what_was_never_launched_closes_it_for_good(stage: Stage) -> None:
    """A driver that comes to life after its attempt was given up finds it claimed. (1a.8)"""
    stage.launcher.refusal = UnavailableError("busy")
    with pytest.raises(UnavailableError):
        stage.deploy()
    assert stage.controller.kill(STREAM).state == "failed"
    claim = stage.control.claim("d-0001", 1)
    assert isinstance(claim, Claim)
    assert claim.pid == 0
    assert stage.deploy("print('v2')\n").deployment_id == "d-0002"


def test_kill_says_when_it_cannot(stage: Stage) -> None:
    """What runs elsewhere is not called dead. (1a.8)"""
    stage.deploy()
    stage.come_to_life()
    stage.launcher.dies_when_killed = False
    with pytest.raises(ConflictError, match="cannot be ended from here"):
        stage.controller.kill(STREAM)


def test_an_unknown_stream_is_named(stage: Stage) -> None:
    """Resume and kill of a stream that is not there say so."""
    stage.home.begin("tests")
    with pytest.raises(StreamNotFoundError):
        stage.controller.resume(STREAM)
    with pytest.raises(StreamNotFoundError):
        stage.controller.kill(STREAM)


def test_a_resume_that_failed_early_is_tried_again_also_after_older_commits(stage: Stage) -> None:
    """What counts is what the resume has committed, not what the deployment had before it. (Law 2)"""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    stage.end(state="gone")
    stage.controller.resume(STREAM, request_id="r-1")
    stage.come_to_life(attempt=2)
    stage.start_query("counts", attempt=2, batch_id=3)
    stage.say(Failed, attempt=2, error="no")
    stage.end(attempt=2)
    assert stage.controller.resume(STREAM, request_id="r-1").attempt == 3
    stage.come_to_life(attempt=3)
    stage.start_query("counts", attempt=3, batch_id=3)
    stage.run_batches(4)
    stage.say(Failed, attempt=3, error="no")
    stage.end(attempt=3)
    view = stage.controller.resume(STREAM, request_id="r-1")
    assert (view.attempt, view.state) == (3, "failed")


def test_a_resume_says_which_batch_runs_again_and_what_its_sink_makes_of_that(stage: Stage) -> None:
    """Before the driver is launched: from then on the log says other things. `status` says the same until then."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    plan_stateful(stage.run_batches(3), 4)
    stage.end(state="gone")
    sentence = "nothing is doubled: batch 4 of counts runs again first, into file:parquet"
    assert sentence in stage.controller.status(STREAM).next_step
    (note,) = stage.controller.resume(STREAM).notes
    assert note.startswith(sentence)


def test_status_says_what_ran_again(stage: Stage) -> None:
    """One sentence for people, and the batches as they are for programs."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.say(BatchRepeated, query_name="counts", batch_id=4, sink="kafka copies", means="doubled")
    found = stage.controller.status(STREAM).to_json()
    assert str(found["repeats"]).startswith("rows may be doubled: batch 4 of counts ran again, into kafka copies")
    assert [one["batch_id"] for one in found["may_be_doubled"]] == [4]  # type: ignore[attr-defined]


def of_a_socket(folder: Path) -> Stage:
    """A deployment that read a socket up to batch 3, and whose driver was killed."""
    stage = Stage(folder, identities=(SOCKET,))
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    stage.end(state="gone")
    return stage


def test_a_resume_that_would_lose_input_is_refused_before_a_driver_is_launched(tmp_path: Path) -> None:
    """Its checkpoint is never changed, its offset means nothing to the next connection; ``status`` says so (Law 5)."""
    stage = of_a_socket(tmp_path)
    launched = list(stage.launcher.calls)
    with pytest.raises(InputLostError, match="no resume can go on from its offset") as refused:
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
    stage.controller.drain(STREAM)
    stage.end(state="gone")
    assert stage.controller.resume(STREAM).attempt == 2


@pytest.mark.parametrize("attempt", [1, 2])
def test_the_reason_of_a_resume_is_kept_where_the_attempt_was_never_launched(stage: Stage, attempt: int) -> None:
    """Its number stays, and what is said of it is what was asked for last; twice is once."""
    stage.launcher.refusal = UnavailableError("the cluster does not answer", next_step="Try again.")
    if attempt == 2:
        stage.launcher.refusal = None
        stage.deploy(reason="the first version")
        stage.stopped(3)
        stage.launcher.refusal = UnavailableError("the cluster does not answer", next_step="Try again.")
        with pytest.raises(UnavailableError):
            stage.controller.resume(STREAM, reason="the first try")
    else:
        with pytest.raises(UnavailableError):
            stage.deploy(reason="the first version")
    stage.launcher.refusals = [UnavailableError("the cluster does not answer", next_step="Try again.")]
    for _ in range(2):
        with suppress(UnavailableError):
            view = stage.controller.resume(STREAM, request_id="r-1", reason="the cluster is back")
    assert view.attempt == attempt
    assert stage.controller.status(STREAM).attempt_reason == "the cluster is back"
    assert stage.control.need_register().value.attempt_reason == "the cluster is back"
