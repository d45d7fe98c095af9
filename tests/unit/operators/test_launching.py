"""What a launching operator waits for, and what happens when Airflow ends its task."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import ConflictError
from airflow_streamstate.operators.deploy import DeployStreamOperator, ResumeStreamOperator, launched
from support import scripted_driver
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome


def deploy(script: Path, **more: object) -> DeployStreamOperator:
    values = {
        "stream_id": "flights",
        "application": script,
        "timeout_seconds": 30,
        "poll_interval_seconds": 0.1,
        **more,
    }
    return DeployStreamOperator(task_id="deploy", **values)  # type: ignore[arg-type]


def test_it_can_wait_for_health_for_the_end_or_not_at_all(
    named: NamedHome, context: MakeContext, tmp_path: Path
) -> None:
    """Three words, one result."""
    forever = scripted_driver.script(tmp_path, "runs", name="runs.py")
    ends = scripted_driver.script(tmp_path, "finishes", name="ends.py")
    healthy = deploy(forever).execute(context())
    assert (healthy["deployment_id"], healthy["state"]) == ("d-0001", "running")
    finished = deploy(ends, stream_id="other", wait_until="finished").execute(context())
    assert (finished["stream_id"], finished["state"]) == ("other", "finished")
    unwatched = deploy(forever, stream_id="third", wait_until="none").execute(context())
    assert set(healthy) == set(finished) == set(unwatched) == set(launched({}))


def test_a_driver_that_never_commits_ends_the_wait_and_not_the_driver(
    named: NamedHome, context: MakeContext, tmp_path: Path
) -> None:
    """The error reports what was last seen, and that it continues (Law 6)."""
    hangs = scripted_driver.script(tmp_path, "hangs")
    with pytest.raises(AirflowException, match="the work continues") as raised:
        deploy(hangs, timeout_seconds=2).execute(context())
    assert not isinstance(raised.value, AirflowFailException)
    assert named.hook().client.status("flights").state in ("launching", "running")


@pytest.mark.parametrize(("action", "state"), [("leave", "running"), ("stop", "stopped"), ("kill", "failed")])
def test_what_was_asked_for_happens_when_airflow_ends_the_task(
    named: NamedHome, context: MakeContext, tmp_path: Path, action: str, state: str
) -> None:
    """Marked failed, cleared, or out of its execution time."""
    operator = deploy(scripted_driver.script(tmp_path, "runs"), on_kill_action=action)
    operator.execute(context())
    operator.on_kill()
    hook = named.hook()
    for _ in range(200):
        if hook.client.status("flights").state == state:
            break
        hook.clock.sleep(0.05)
    assert hook.client.status("flights").state == state


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize(("verb", "how"), [("stop", "stopped"), ("drain", "drained"), ("kill", "killed")])
def test_a_run_that_somebody_ended_fails_the_task_that_waits_for_its_end(
    named: NamedHome, context: MakeContext, tmp_path: Path, verb: str, how: str, deferrable: bool
) -> None:
    """What comes after the task must not run on half the input, and no retry starts what a person has ended."""
    deploy(scripted_driver.script(tmp_path, "runs")).execute(context())
    hook = named.hook()
    hook.client.kill("flights") if verb == "kill" else hook.client.order(verb, "flights")
    for _ in range(200):
        if hook.client.status("flights").state in ("stopped", "drained", "failed"):
            break
        hook.clock.sleep(0.05)
    waits = deploy(scripted_driver.script(tmp_path, "runs"), wait_until="finished", deferrable=deferrable)
    watch = WaitCondition("finished", "flights", deployment_id="d-0001")
    with pytest.raises(ConflictError, match=f"the run was {how}"):
        waits.wait_until_done(hook, watch)


def test_a_task_that_is_ended_before_it_launched_anything_ends_nothing(named: NamedHome, tmp_path: Path) -> None:
    """Another version may be running."""
    named.stream().deploy().runs()
    deploy(scripted_driver.script(tmp_path, "runs"), on_kill_action="kill").on_kill()
    assert named.hook().client.status("flights").state == "running"


@pytest.mark.parametrize("field", ["wait_until", "if_stopped", "on_kill_action"])
def test_a_word_that_is_not_known_is_refused(
    named: NamedHome, context: MakeContext, tmp_path: Path, field: str
) -> None:
    """With the words that are."""
    task = deploy(scripted_driver.script(tmp_path, "runs"), **{field: "{{ params.word }}"})
    setattr(task, field, "later")  # as a template may give it
    with pytest.raises(AirflowFailException, match="a value that is not known"):
        task.execute(context())


def test_a_retry_of_a_run_that_failed_on_the_way_is_the_next_attempt(
    named: NamedHome, context: MakeContext, tmp_path: Path
) -> None:
    """What the run had committed is not read again; the task of the next run resumes it (Law 2)."""
    script = scripted_driver.script(tmp_path, "breaks")
    with pytest.raises(AirflowException, match="boom"):
        deploy(script, wait_until="finished").execute(context(task_id="deploy", try_number=1))
    with pytest.raises(AirflowException, match="attempt=2"):
        deploy(script, wait_until="finished").execute(context(task_id="deploy", try_number=2))
    for _ in range(2):
        done = deploy(script, wait_until="finished").execute(context(task_id="deploy", try_number=3))
        assert (done["deployment_id"], done["attempt"], done["state"]) == ("d-0001", 3, "finished")
    resume = ResumeStreamOperator(
        task_id="resume", stream_id="flights", wait_until="finished", timeout_seconds=30, poll_interval_seconds=0.1
    )
    again = resume.execute(context(task_id="resume"))
    assert (again["deployment_id"], again["attempt"], again["state"]) == ("d-0001", 4, "finished")
