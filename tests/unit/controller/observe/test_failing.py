"""What can be done about a deployment that failed, by its cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_streamstate.cli.session import REFUSED, exit_status_of
from airflow_streamstate.controller.observe.observation import State
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.controller.wait.watching import next_step_of
from airflow_streamstate.errors import DeploymentFailedError, DeploymentRefusedError, Remedy
from airflow_streamstate.launch.interface import LaunchStatus
from airflow_streamstate.protocol.events import DrainFailed, Failed, Stopped
from support.sim_stage import STREAM, Stage
from support.upgrade_stage import UpgradeStage

RESUME, ROLLBACK, SKIP, LOGS = (f"`streamstate {verb} {STREAM}`" for verb in ("resume", "rollback", "skip", "logs"))


def running(stage: Stage, *queries: str) -> None:
    stage.deploy()
    stage.come_to_life(queries=queries)


def advice(stage: Stage, exit_code: int | None = None) -> str:
    """For the current deployment, whose driver ended with this exit code."""
    seen = stage.seen()
    status = LaunchStatus("gone" if exit_code is None else "exited", exit_code, "it has ended", stage.clock.now())
    return next_step_of(replace(seen, launch_status=status), "failed")


def second_version(stage: Stage) -> None:
    stage.deploy()
    stage.stopped()
    stage.deploy("print('v2')\n")
    stage.come_to_life("d-0002")


@pytest.mark.parametrize("exit_code", [None, 137, 143, 0])
def test_what_was_cut_off_is_resumed(stage: Stage, exit_code: int | None) -> None:
    """SIGKILL, or a machine that went away: there is nothing to fix, and no reason to roll back."""
    second_version(stage)
    told = advice(stage, exit_code)
    assert told.startswith(RESUME)
    assert "Fix" not in told
    assert "rollback" not in told


def test_a_driver_that_never_came_to_its_script_is_mended_first(stage: Stage) -> None:
    """No Java, no such package: another try would end the same way."""
    stage.deploy()
    told = advice(stage, 1)
    assert told.startswith("Fix what the reason names")
    assert RESUME in told
    assert ROLLBACK not in told  # it is the first


def test_an_error_of_the_script_is_mended_in_the_script(stage: Stage) -> None:
    """A rollback, else a resume for causes outside of the script; no skip, since no batch failed."""
    second_version(stage)
    stage.say(Failed, "d-0002", error="ValueError: boom", traceback="Traceback …\nValueError: boom")
    told = advice(stage, 1)
    assert told.startswith("Fix the script and deploy it again")
    assert told.index(ROLLBACK) < told.index(RESUME) < told.index(LOGS)
    assert SKIP not in told


@pytest.mark.parametrize(
    ("said", "begins", "has_not"),
    [
        (  # a continuous trigger is refused again by each start of the same script
            {"error": "the trigger continuous knows no barrier.", "is_refusal": True},
            "Change what the error names, and deploy the script again",
            "resume",
        ),
        (  # credentials that have run out, input that is lost: the same script continues
            {"error": "the credentials have expired. bucket=b. Renew them."},
            f"Fix what the error names, then {RESUME}",
            "deploy the script again",
        ),
        (  # argparse prints how the script wants to be called, and exits with 2
            {"error": "SystemExit: 2", "traceback": ""},
            f"The script ended itself: what it printed, such as how its arguments must be given, is in {LOGS}",
            "resume",
        ),
    ],
)
def test_other_errors_are_mended_where_they_are(stage: Stage, said: dict[str, Any], begins: str, has_not: str) -> None:
    """A refusal in the script, a cause outside of it with a resume, wrong arguments in the log."""
    running(stage)
    stage.say(Failed, **said)
    told = advice(stage, 2)
    assert told.startswith(begins)
    assert has_not not in told


@pytest.mark.parametrize("planned_id", [None, 7])
def test_a_skip_is_offered_where_a_batch_is_planned_and_nowhere_else(stage: Stage, planned_id: int | None) -> None:
    """A query that failed between two batches has none that could be passed over."""
    running(stage, "counts")
    stage.query_failed("counts", planned_id)
    stage.say(Failed, error="[STREAM_FAILED] Query [id = 1] terminated", traceback="Traceback …")
    assert (SKIP in advice(stage)) is (planned_id is not None)


@pytest.mark.parametrize("planned_id", [None, 7])
def test_a_degraded_stream_is_told_what_runs_its_failed_query_again(stage: Stage, planned_id: int | None) -> None:
    """An upgrade, or a stop and a resume; a skip only of a batch that is planned."""
    running(stage, "counts", "other")
    stage.query_failed("counts", planned_id)
    told = stage.controller.status(STREAM).next_step
    assert f"`streamstate upgrade {STREAM}`" in told
    assert told.index(f"`streamstate stop {STREAM}`") < told.index(RESUME)
    assert (SKIP in told) is (planned_id is not None)


def test_a_rollback_never_leads_back_to_the_version_just_left(upgraded: UpgradeStage) -> None:
    """The version after a rollback has the bad one before it."""
    view = upgraded.to_started()
    upgraded.new_runs(5)
    upgraded.fails()
    assert ROLLBACK in advice(upgraded.stage)
    upgraded.rehearsed(upgraded.advance(view))
    upgraded.stage.come_to_life("d-0003")
    upgraded.stage.say(Failed, "d-0003", error="ValueError: boom", traceback="Traceback")
    assert "rollback" not in advice(upgraded.stage)


def test_status_and_the_error_of_a_wait_say_the_same(stage: Stage) -> None:
    """A stream that has not failed has no advice."""
    running(stage)
    assert stage.controller.status(STREAM).to_json()["next_step"] == ""
    stage.say(Failed, error="SystemExit: 2", traceback="")
    stage.end()
    with pytest.raises(DeploymentFailedError) as failed:
        stage.controller.wait(WaitCondition("finished", STREAM, "d-0001"), 1)
    assert failed.value.next_step == stage.controller.status(STREAM).next_step == advice(stage, 1)


def test_a_refused_start_is_refused_by_the_waiting_verb_too(stage: Stage) -> None:
    """Exit status 4; the driver's own next step, and no retry by Airflow."""
    stage.deploy()
    stage.come_to_life(queries=())
    stage.say(Failed, error="the start would double rows. a=1.", is_refusal=True, refuses_start=True, next_step="Do X.")
    stage.end()
    with pytest.raises(DeploymentRefusedError) as refused:
        stage.controller.wait(WaitCondition("healthy", STREAM, "d-0001"), 1)
    assert exit_status_of(refused.value) == REFUSED
    assert refused.value.remedy is Remedy.FIX
    assert refused.value.context["error"] == "the start would double rows. a=1."
    assert refused.value.next_step == stage.controller.status(STREAM).next_step == "Do X."


def test_a_drain_that_failed_has_choices_of_its_own(stage: Stage) -> None:
    """They are the next step, word by word."""
    running(stage, "counts")
    order = stage.controller.order("drain", STREAM)
    stage.say(
        DrainFailed, command_id=order.command_id, command_number=1, query_name="counts", error="boom", withdrawn=True,
        choices=("drain again",), then="stop",
    )  # fmt: skip
    stage.say(Stopped, snapshot_id="s", queries={})
    stage.end()
    with pytest.raises(DeploymentFailedError, match="Drain again") as failed:
        stage.controller.wait(WaitCondition.of(order), 1)
    assert failed.value.next_step == f"Drain again. {LOGS} has the whole log."


ONE_TIME = {"counts": {"socket h:1": "a socket sends each row once"}}


@pytest.mark.parametrize(
    ("state", "begins"),
    [("degraded", "Fix what the error names, then `streamstate upgrade"), ("failed", "`streamstate deploy")],
)
def test_what_no_resume_can_start_again_is_deployed_by_name(stage: Stage, state: State, begins: str) -> None:
    """A resume, a stop with a resume, and a rollback would be refused; the sentence reports what is lost."""
    running(stage)
    told = next_step_of(stage.seen(), state, one_time=ONE_TIME)
    assert told.startswith(begins)
    assert "--accept-lost-input counts" in told
    assert "is lost; a resume is refused (query counts reads socket h:1: a socket sends each row once)" in told
    assert "without a lost row" not in told
    assert (RESUME in told, ROLLBACK in told) == (False, False)


def test_where_nothing_is_wrong_nothing_has_to_be_done(stage: Stage) -> None:
    """A source that sends each row once is no fault."""
    running(stage)
    assert next_step_of(stage.seen(), "running", one_time=ONE_TIME) == ""
