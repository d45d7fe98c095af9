"""What a person can do about a deployment that failed: not the same for every cause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.controller.observe.observation import State
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.controller.wait.watching import next_step_of
from airflow_streamstate.errors import DeploymentFailedError
from airflow_streamstate.launch.interface import LaunchStatus
from airflow_streamstate.protocol.events import DrainFailed, Failed, Stopped
from support.sim_stage import STREAM, Stage
from support.upgrade_stage import UpgradeStage

RESUME, ROLLBACK, SKIP, LOGS = (f"`streamstate {verb} {STREAM}`" for verb in ("resume", "rollback", "skip", "logs"))


def advice(stage: Stage, exit_code: int | None = None) -> str:
    """Of the current deployment, whose driver ended so."""
    seen = stage.seen()
    status = LaunchStatus("gone" if exit_code is None else "exited", exit_code, "it is over", stage.clock.now())
    return next_step_of(replace(seen, launch_status=status), "failed")


@pytest.mark.parametrize("exit_code", [None, 137, 143, 0])
def test_what_was_cut_off_is_resumed(stage: Stage, exit_code: int | None) -> None:
    """SIGKILL, or a machine that went away: there is nothing to mend, and nothing to go back from."""
    stage.deploy()
    stage.stopped()
    stage.deploy("print('v2')\n")
    stage.come_to_life("d-0002")
    told = advice(stage, exit_code)
    assert told.startswith(RESUME)
    assert "Mend" not in told
    assert "rollback" not in told


def test_a_driver_that_never_came_to_its_script_is_mended_first(stage: Stage) -> None:
    """No Java, no such package: the same again would end the same way."""
    stage.deploy()
    told = advice(stage, 1)
    assert told.startswith("Mend what the reason names")
    assert RESUME in told
    assert ROLLBACK not in told  # it is the first


def test_an_error_of_the_script_is_mended_in_the_script(stage: Stage) -> None:
    """Resume is for causes outside of it; and there is a version before."""
    stage.deploy()
    stage.stopped()
    stage.deploy("print('v2')\n")
    stage.come_to_life("d-0002")
    stage.say(Failed, "d-0002", error="ValueError: boom", traceback="Traceback …\nValueError: boom")
    told = advice(stage, 1)
    assert told.startswith("Mend the script and deploy it again")
    assert told.index(ROLLBACK) < told.index(RESUME) < told.index(LOGS)
    assert SKIP not in told  # no batch of it failed


@pytest.mark.parametrize("error", ["[STREAM_FAILED] Query [id = 1] terminated", "ValueError: poison"])
def test_a_batch_that_can_never_run_may_be_skipped(stage: Stage, error: str) -> None:
    """Where it was a query that failed."""
    stage.deploy()
    stage.come_to_life()
    name = "counts" if error.startswith("ValueError") else ""
    stage.say(Failed, error=error, traceback=f"Traceback …\n{error}", query_name=name)
    assert SKIP in advice(stage)


@pytest.mark.parametrize("planned_id", [None, 7])
def test_a_skip_is_offered_where_a_batch_is_planned_and_nowhere_else(stage: Stage, planned_id: int | None) -> None:
    """A query that failed between two batches has none that could be passed over."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.query_failed("counts", planned_id)
    stage.say(Failed, error="[STREAM_FAILED] Query [id = 1] terminated", traceback="Traceback …")
    assert (SKIP in advice(stage)) is (planned_id is not None)


@pytest.mark.parametrize("planned_id", [None, 7])
def test_a_degraded_stream_is_told_what_runs_its_failed_query_again(stage: Stage, planned_id: int | None) -> None:
    """An upgrade, or a stop and a resume; a skip only of a batch that is planned."""
    stage.deploy()
    stage.come_to_life(queries=("counts", "other"))
    stage.query_failed("counts", planned_id)
    told = stage.controller.status(STREAM).next_step
    assert f"`streamstate upgrade {STREAM}`" in told
    assert told.index(f"`streamstate stop {STREAM}`") < told.index(RESUME)
    assert (SKIP in told) is (planned_id is not None)


def test_what_the_runtime_refuses_is_not_resumed(stage: Stage) -> None:
    """A continuous trigger is refused again by each start of the same script."""
    stage.deploy()
    stage.come_to_life()
    stage.say(Failed, error="the trigger continuous knows no barrier.", is_refusal=True)
    told = advice(stage)
    assert told.startswith("Change what the error names, and deploy the script again")
    assert "resume" not in told


def test_what_is_mended_outside_of_the_script_is_resumed(stage: Stage) -> None:
    """Credentials that have run out, input that is lost: the error names what helps, and the same script goes on."""
    stage.deploy()
    stage.come_to_life()
    stage.say(Failed, error="the credentials have expired. bucket=b. Renew them.")
    told = advice(stage)
    assert told.startswith(f"Mend what the error names, then {RESUME}")
    assert "deploy the script again" not in told


def test_wrong_arguments_are_explained_in_the_log(stage: Stage) -> None:
    """argparse prints how it wants to be called, and leaves with 2: no error of the script, and nothing to resume."""
    stage.deploy()
    stage.come_to_life()
    stage.say(Failed, error="SystemExit: 2", traceback="")
    told = advice(stage, 2)
    assert "how its arguments are to be given, is in " + LOGS in told
    assert "resume" not in told
    assert "Mend the script" not in told


def test_nobody_is_sent_back_to_what_was_just_given_up(upgraded: UpgradeStage) -> None:
    """The version that came back has the bad one before it."""
    view = upgraded.to_started()
    upgraded.new_runs(5)
    upgraded.fails()
    assert ROLLBACK in advice(upgraded.stage)
    upgraded.rehearsed(upgraded.advance(view))
    upgraded.stage.come_to_life("d-0003")
    upgraded.stage.say(Failed, "d-0003", error="ValueError: boom", traceback="Traceback")
    assert "rollback" not in advice(upgraded.stage)


def test_status_and_the_error_of_a_wait_say_the_same(stage: Stage) -> None:
    """And a stream that has not failed needs no such advice."""
    stage.deploy()
    stage.come_to_life()
    assert stage.controller.status(STREAM).to_json()["next_step"] == ""
    stage.say(Failed, error="SystemExit: 2", traceback="")
    stage.end()
    with pytest.raises(DeploymentFailedError) as failed:
        stage.controller.wait(WaitCondition("finished", STREAM, "d-0001"), 1)
    assert failed.value.next_step == stage.controller.status(STREAM).next_step == advice(stage, 1)


def test_a_drain_that_failed_has_choices_of_its_own(stage: Stage) -> None:
    """Which the error names; the script is not what failed."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    order = stage.controller.drain(STREAM)
    stage.say(
        DrainFailed, command_id=order.command_id, command_number=1, query_name="counts", error="boom", withdrawn=True,
        choices=("drain again",), then="stop",
    )  # fmt: skip
    stage.say(Stopped, snapshot_id="s", queries={})
    stage.end()
    with pytest.raises(DeploymentFailedError, match="drain again") as failed:
        stage.controller.wait(WaitCondition.of(order), 1)
    assert failed.value.next_step.startswith("Do one of what the error names")


ONE_TIME = {"counts": {"socket h:1": "a socket sends each row once"}}


@pytest.mark.parametrize(
    ("state", "begins"),
    [("degraded", "Mend what the error names, then `streamstate upgrade"), ("failed", "`streamstate deploy")],
)
def test_what_no_resume_can_start_again_is_deployed_by_name(stage: Stage, state: State, begins: str) -> None:
    """A resume, a stop with a resume, and a rollback would be refused; the sentence says what is lost."""
    stage.deploy()
    stage.come_to_life()
    told = next_step_of(stage.seen(), state, one_time=ONE_TIME)
    assert told.startswith(begins)
    assert "--accept-lost-input counts" in told
    assert "is lost; a resume is refused (query counts reads socket h:1: a socket sends each row once)" in told
    assert "without a lost row" not in told
    assert (RESUME in told, ROLLBACK in told) == (False, False)


def test_where_nothing_is_wrong_nothing_has_to_be_done(stage: Stage) -> None:
    """A source that sends each row once is no fault."""
    stage.deploy()
    stage.come_to_life()
    assert next_step_of(stage.seen(), "running", one_time=ONE_TIME) == ""
