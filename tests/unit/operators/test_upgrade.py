"""``UpgradeStreamOperator``."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred, redact

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView
from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import ConflictError
from airflow_streamstate.operators.base import request_id_of
from airflow_streamstate.operators.plan import PlanUpgradeOperator
from airflow_streamstate.operators.upgrade import UpgradeStreamOperator
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.terms.order import UpgradeTerms
from airflow_streamstate.triggers.streamstate import EventContent, StreamStateTrigger
from support import scripted_driver
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome
from support.airflow_upgrades import Pushed, deferral_of, event_of, phases, run_first_version, taken_by, turn

US = "airflow dag.task manual__1"


@pytest.fixture
def running(named: NamedHome, tmp_path: Path) -> NamedHome:
    """A stream that runs, by its own driver."""
    run_first_version(named, tmp_path)
    return named


def upgrade(script: Path | None, **more: Any) -> UpgradeStreamOperator:
    values = {
        "stream_id": "flights", "application": script, "warm": False, "healthy_deadline_seconds": 20,
        "timeout_seconds": 50, "poll_interval_seconds": 0.1, **more,
    }  # fmt: skip
    return UpgradeStreamOperator(task_id="upgrade", **values)


def new(folder: Path, *words: str) -> Path:
    return scripted_driver.script(folder, *words, name="new.py")


def view_of(home: NamedHome, upgrade_id: str) -> UpgradeView:
    return home.hook().client.upgrades.view("flights", upgrade_id)


def deferred_at(home: NamedHome, task: UpgradeStreamOperator, context: Any, phase: str) -> TaskDeferred:
    """Workers and triggerer take turns until the task is deferred in this phase."""
    deferred = deferral_of(task, context)
    while view_of(home, deferred.trigger.watch["deployment_id"]).state.phase != phase:
        deferred = deferral_of(task, context, event_of(deferred), deferred.kwargs)
    return deferred


def to_the_end(task: UpgradeStreamOperator, context: Any, found: Any) -> Any:
    """Workers and triggerer take turns until there is a result."""
    while isinstance(found, TaskDeferred):
        found = turn(task, context, event_of(found), found.kwargs)
    return found


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What a task logs, which Airflow's own logger hides outside of a task."""
    monkeypatch.setattr(UpgradeStreamOperator, "log", logging.getLogger("the task"))
    caplog.set_level(logging.INFO)
    return caplog


def test_a_stream_is_upgraded_and_each_step_is_in_the_log(
    running: NamedHome, ours: Any, pushed: Pushed, tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    """In one task, with its state; the XCom reports what became of it, and from the beginning what it is."""
    task = upgrade(new(tmp_path, "proves"), reason="new columns")
    result = task.execute(ours)
    assert (result["outcome"], result["mode"], result["verdict"]) == ("upgraded", "restore", "same")
    assert (result["old_deployment_id"], result["new_deployment_id"]) == ("d-0001", "d-0002")
    assert result["differences"] == []
    assert pushed["upgrade"] == {"stream_id": "flights", "upgrade_id": result["upgrade_id"]}
    assert pushed["_link_PlanReportLink"].endswith(f"/flights?deployment=d-0002&upgrade={pushed['upgrade_id']}#plan")
    assert "return_value" not in pushed
    assert running.hook().client.status("flights").deployment_id == "d-0002"
    told = [line.partition(":")[0] for line in logged.messages if line.partition(":")[0] in set(WAY)]
    assert list(dict.fromkeys(told)) == WAY


def test_a_version_that_may_be_slower_is_kept_and_said_in_the_log_and_the_result(
    running: NamedHome, ours: Any, tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    """The task succeeds; what is known of its pace by the end of its time is a warning."""
    task = upgrade(new(tmp_path, "lags"), healthy_deadline_seconds="10", roll_back_if_slower="2.5")
    result = task.execute(ours)
    assert (result["outcome"], result["reason"]) == ("upgraded", "")
    says = "query delays is 40 files behind, and was not looked at long enough to know whether it keeps up"
    assert result["warnings"] == [says]
    assert [one.message for one in logged.records if one.levelname == "WARNING"][
        -1
    ] == f"The new version is kept: {says}"
    asked = view_of(running, result["upgrade_id"]).state.upgrade.upgrade_terms
    assert asked == UpgradeTerms(warm=False, healthy_deadline_seconds=10.0, roll_back_if_slower=2.5)


WAY = ["begun", "rehearsing", "planned", "ready", "stopping", "ended", "started", "upgraded"]


def test_deferred_the_worker_acts_and_the_trigger_only_looks(running: NamedHome, ours: Any, tmp_path: Path) -> None:
    """Same result; every step is taken by the task, and none is handed over while the stream is stopped."""
    task = upgrade(new(tmp_path, "proves"), deferrable=True)
    found, waited_in = turn(task, ours), []
    while isinstance(found, TaskDeferred):
        upgrade_id = found.trigger.watch["deployment_id"]
        waited_in.append(view_of(running, upgrade_id).state.phase)
        found = turn(upgrade(new(tmp_path, "proves"), deferrable=True), ours, event_of(found), found.kwargs)
    assert (found["outcome"], found["new_deployment_id"]) == ("upgraded", "d-0002")
    assert taken_by(running, found["upgrade_id"]) == {US}
    assert phases(running, found["upgrade_id"]) == WAY
    assert waited_in[0] == "rehearsing"
    assert set(waited_in) <= {"rehearsing", "started"}


def test_a_trigger_waits_until_there_is_something_to_act_on(running: NamedHome, ours: Any, tmp_path: Path) -> None:
    """A person's word is such a thing; looking for it changes nothing."""
    task = upgrade(new(tmp_path, "proves"), deferrable=True, needs_approval=True)
    deferred = deferred_at(running, task, ours, "planned")
    hook, watch = running.hook(), WaitCondition.from_json(deferred.trigger.watch)
    before = phases(running, watch.deployment_id)
    assert hook.client.advance(watch).outcome == "pending"
    hook.client.upgrades.approve("flights", watch.deployment_id, is_approved=False, reason="not on a friday")
    assert hook.client.advance(watch).outcome == "done"
    assert phases(running, watch.deployment_id) == before
    with pytest.raises(AirflowFailException, match="not on a friday"):
        turn(task, ours, event_of(deferred), deferred.kwargs)
    assert hook.client.status("flights").state == "running"


def test_a_worker_looks_itself_where_the_triggerer_sees_nothing(running: NamedHome, ours: Any, tmp_path: Path) -> None:
    """The end of a trigger's own time is no end of the wait: it may be on a host that cannot see the driver."""
    task = upgrade(new(tmp_path, "stalls"), deferrable=True)
    deferred = deferred_at(running, task, ours, "started")
    end = (deferred.trigger.deadline_at, deferred.kwargs["deadline_at"])
    assert end[0] < end[1]
    watch = WaitCondition.from_json(deferred.trigger.watch)
    running.hook().client.kill("flights")
    blind = EventContent("deadline", watch, error=None).to_json() | {
        "error": {"type": "DeadlineExceededError", "message": "it did not happen", "context": {}}
    }
    with pytest.raises(AirflowFailException, match="old one is back"):
        to_the_end(task, ours, turn(task, ours, blind, deferred.kwargs))


def test_its_time_is_one_over_all_deferrals_and_a_retry_goes_on(running: NamedHome, ours: Any, tmp_path: Path) -> None:
    """A deadline is retryable: the upgrade stays under way in the meantime."""
    task = upgrade(new(tmp_path, "stalls"), deferrable=True, healthy_deadline_seconds=40)
    deferred = deferred_at(running, task, ours, "started")
    over = format_time(SYSTEM_CLOCK.now() - timedelta(seconds=1))
    watch = WaitCondition.from_json(deferred.trigger.watch)
    event = EventContent("done", watch, result={"upgrade_id": watch.deployment_id}).to_json()
    with pytest.raises(AirflowException, match="phase started") as raised:
        task.execute_complete(ours, event, deadline_at=over)
    assert type(raised.value) is AirflowException
    again = deferral_of(upgrade(new(tmp_path, "stalls"), deferrable=True, healthy_deadline_seconds=40), ours)
    assert again.trigger.watch == deferred.trigger.watch


def test_a_change_that_does_not_fit_is_refused_without_a_retry(
    running: NamedHome, ours: Any, pushed: Pushed, tmp_path: Path
) -> None:
    """Nothing was touched, and the report is the XCom; what is allowed by name is done."""
    script = new(tmp_path, "proves", "needs-drain")
    with pytest.raises(AirflowFailException, match="a drain was not allowed"):
        upgrade(script).execute(ours)
    refused = pushed["return_value"]
    assert (refused["outcome"], refused["verdict"], refused["new_deployment_id"]) == ("refused", "needs-drain", None)
    assert refused["differences"][0]["query"] == "delays"
    assert running.hook().client.status("flights").state == "running"
    drained = upgrade(script, allow_drain="True").execute(ours)
    assert (drained["outcome"], drained["mode"]) == ("upgraded", "drain")


@pytest.mark.parametrize("is_deferrable", [False, True])
def test_a_version_that_does_not_prove_itself_is_rolled_back_without_a_retry(
    running: NamedHome, ours: Any, pushed: Pushed, tmp_path: Path, is_deferrable: bool
) -> None:
    """In a worker or in the triggerer."""
    task = upgrade(new(tmp_path, "crashes"), deferrable=is_deferrable)
    with pytest.raises(AirflowFailException, match="old one is back"):
        to_the_end(task, ours, turn(task, ours))
    assert pushed["return_value"]["outcome"] == "given_up"
    assert pushed["return_value"]["way"] == "handover"


def test_a_try_goes_on_with_what_a_killed_worker_began(
    running: NamedHome, context: MakeContext, pushed: Pushed, tmp_path: Path
) -> None:
    """The same upgrade, though nothing of the first worker is left. (Law 2)"""
    script = new(tmp_path, "proves")
    first = deferral_of(upgrade(script, deferrable=True), context(try_number=1, xcom_push=pushed.push))
    result = upgrade(script).execute(context(try_number=2, xcom_push=pushed.push))
    assert result["upgrade_id"] == first.trigger.watch["deployment_id"]
    assert result["outcome"] == "upgraded"


def test_a_task_that_is_cleared_finds_its_upgrade_and_tries_a_refused_one_anew(
    running: NamedHome, context: MakeContext, ours: Any, pushed: Pushed, tmp_path: Path
) -> None:
    """What was done is not done again; what was refused may fit now."""
    asked = {"arguments": ["--rules", "2"]}
    lacking = new(tmp_path, "proves", "fails")
    with pytest.raises(AirflowFailException, match="No module named 'rules'"):
        upgrade(lacking, **asked).execute(ours)
    refused = pushed["return_value"]["upgrade_id"]
    cleared = context(xcom_push=pushed.push, try_number=2, max_tries=1)
    with pytest.raises(AirflowFailException, match="No module named 'rules'"):
        upgrade(lacking, **asked).execute(cleared)
    assert pushed["return_value"]["upgrade_id"] != refused
    fitting = new(tmp_path, "proves")
    cleared_again = context(xcom_push=pushed.push, try_number=3, max_tries=2)
    done = upgrade(fitting, **asked).execute(cleared_again)
    assert upgrade(fitting, **asked).execute(cleared_again) == done
    assert upgrade(fitting, **asked).execute(context(xcom_push=pushed.push, try_number=4, max_tries=3)) == done
    assert running.home.control("flights").deployment_ids() == ["d-0001", "d-0002"]


def test_a_try_behind_one_that_failed_for_good_gives_no_version_another_chance(
    running: NamedHome, context: MakeContext, pushed: Pushed, tmp_path: Path
) -> None:
    """Airflow runs one where it takes the end of a worker for the task's own; only a clear is a new order. (Law 2)"""
    script = new(tmp_path, "stalls")
    tries = {"healthy_deadline_seconds": 4, "retries": 5}  # the old one is healthy in it, too
    for number in (1, 2):
        with pytest.raises(AirflowFailException, match="the old one is back"):
            upgrade(script, **tries).execute(context(xcom_push=pushed.push, try_number=number, max_tries=5))
    assert running.home.control("flights").deployment_ids() == ["d-0001", "d-0002", "d-0003"]
    with pytest.raises(AirflowFailException, match="the old one is back"):
        upgrade(script, **tries).execute(context(xcom_push=pushed.push, try_number=3, max_tries=7))
    assert running.home.control("flights").deployment_ids()[3:] == ["d-0004", "d-0005"]


def test_a_task_that_is_killed_before_the_stop_leaves_the_stream_as_it_was(
    running: NamedHome, ours: Any, tmp_path: Path
) -> None:
    """Its rehearsal ends with it; a later try starts again."""
    task = upgrade(new(tmp_path, "hangs"), deferrable=True)
    deferred = deferral_of(task, ours)
    task.on_kill()
    upgrade_id = deferred.trigger.watch["deployment_id"]
    assert view_of(running, upgrade_id).outcome == "refused"
    assert running.hook().client.upgrades.under_way("flights") is None
    assert running.hook().client.status("flights").state == "running"
    assert not list(running.base.rglob("launches/r-*"))
    again = deferral_of(upgrade(new(tmp_path, "hangs"), deferrable=True), ours)
    assert again.trigger.watch["deployment_id"] != upgrade_id


@pytest.mark.full
def test_a_task_that_is_killed_after_the_stop_is_gone_on_with_as_asked(
    running: NamedHome, ours: Any, tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    """Rolled back at once; a version that is still to prove itself stays under way, and the log reports with whom."""
    finishing = upgrade(new(tmp_path, "stalls"), deferrable=True, on_kill_action="finish")
    deferred = deferred_at(running, finishing, ours, "started")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_streamstate.operators.upgrade.KILLED_SECONDS", 0.5)
        finishing.on_kill()
    upgrade_id = deferred.trigger.watch["deployment_id"]
    assert view_of(running, upgrade_id).state.phase == "started"
    assert "streamstate continue flights" in logged.text
    running.hook().client.upgrades.run("flights", upgrade_id, 60)
    returning = upgrade(new(tmp_path, "stalls"), deferrable=True, on_kill_action="rollback")
    deferred = deferred_at(running, returning, ours, "started")
    returning.on_kill()
    assert view_of(running, deferred.trigger.watch["deployment_id"]).outcome == "given_up"


def test_a_try_that_finds_its_upgrade_given_up_with_the_one_before_begins_anew(
    running: NamedHome, ours: Any, tmp_path: Path
) -> None:
    """A user clears a deferred task: its triggerer gives it up while the next try has it already."""
    task = upgrade(new(tmp_path, "proves"), deferrable=True, needs_approval=True)
    first = deferred_at(running, task, ours, "planned")
    second = deferral_of(upgrade(new(tmp_path, "proves"), deferrable=True, needs_approval=True), ours)
    assert second.trigger.watch == first.trigger.watch
    asyncio.run(StreamStateTrigger(**first.trigger.serialize()[1]).on_kill())
    third = deferral_of(task, ours, event_of(second), second.kwargs)
    assert view_of(running, first.trigger.watch["deployment_id"]).outcome == "refused"
    assert third.trigger.watch["deployment_id"] != first.trigger.watch["deployment_id"]
    assert running.hook().client.status("flights").state == "running"


def test_a_trigger_whose_task_is_ended_after_the_stop_records_that_and_starts_nothing(
    running: NamedHome, ours: Any, tmp_path: Path
) -> None:
    """It may be on a host where no driver can run; the next try does as was asked."""
    task = upgrade(new(tmp_path, "stalls"), deferrable=True, on_kill_action="rollback")
    deferred = deferred_at(running, task, ours, "started")
    upgrade_id = deferred.trigger.watch["deployment_id"]
    before = phases(running, upgrade_id)
    asyncio.run(StreamStateTrigger(**deferred.trigger.serialize()[1]).on_kill())
    assert phases(running, upgrade_id) == before
    assert running.hook().client.advance(WaitCondition.from_json(deferred.trigger.watch)).outcome == "done"
    next_try = upgrade(new(tmp_path, "stalls"), deferrable=True, on_kill_action="rollback")
    deferral_of(next_try, ours)
    assert "returned" in phases(running, upgrade_id)


def test_what_runs_is_what_was_planned(running: NamedHome, context: MakeContext, ours: Any, tmp_path: Path) -> None:
    """Another script under the same path, or another version that runs by now, is refused; a retry finds its own."""
    script = new(tmp_path, "proves")
    plan = PlanUpgradeOperator(task_id="plan", stream_id="flights", application=script, poll_interval_seconds=0.1)
    planned = plan.execute(context(task_id="plan"))["rehearsal_id"]
    new(tmp_path, "proves", "and", "more")
    with pytest.raises(AirflowFailException, match="is_same_change=false"):
        upgrade(script, rehearsal_id=planned).execute(ours)
    with pytest.raises(AirflowFailException, match="no such rehearsal"):
        upgrade(script, rehearsal_id=planned.replace("-0001", "-0007")).execute(ours)
    assert list(running.home.home.list_objects("flights/upgrades/")) == []
    new(tmp_path, "proves")
    done = upgrade(script, rehearsal_id=planned).execute(ours)
    assert done["outcome"] == "upgraded"
    assert upgrade(script, rehearsal_id=planned).execute(ours) == done
    with pytest.raises(AirflowFailException, match="current_deployment_id=d-0002"):
        upgrade(script, rehearsal_id=planned, reason="once more").execute(ours)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mode", "perhaps"),
        ("on_kill_action", "leave"),
        ("healthy_batches", "many"),
        ("healthy_batches", 0),
        ("healthy_deadline_seconds", "0"),
        ("roll_back_if_slower", "a lot"),
        ("roll_back_if_slower", 1),
        ("roll_back_if_slower", "nan"),
        ("warm", "lukewarm"),
        ("warm_return", "lukewarm"),
        ("timeout_seconds", "soon"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_recorded(
    running: NamedHome, context: MakeContext, tmp_path: Path, field: str, value: Any
) -> None:
    """A rendered field may be anything."""
    task = upgrade(new(tmp_path, "proves"), **{field: "{{ params.field }}"})
    setattr(task, field, value)
    with pytest.raises(AirflowFailException):
        task.execute(context())
    assert list(running.home.home.list_objects("flights/upgrades/")) == []


def test_with_nothing_given_it_is_a_restart(running: NamedHome, ours: Any) -> None:
    """The same version in a new driver."""
    result = upgrade(None).execute(ours)
    assert (result["outcome"], result["new_deployment_id"]) == ("upgraded", "d-0002")


def test_secrets_are_hidden_wherever_airflow_shows_them(tmp_path: Path) -> None:
    """By value, once they are rendered."""
    task = upgrade(tmp_path / "job.py", conf={"spark.hadoop.fs.s3a.secret.key": "{{ params.key }}"})
    task.conf = {"spark.hadoop.fs.s3a.secret.key": "battery-staple-11"}
    assert "battery-staple-11" not in str(redact("the key is battery-staple-11"))


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_task_that_is_gone_without_a_word_does_not_block_the_stream(
    running: NamedHome, context: MakeContext, pushed: Pushed, tmp_path: Path, deferrable: bool
) -> None:
    """Marked failed between triggerer and worker, in its rehearsal: another one is made; a retry starts again."""
    hanging = scripted_driver.script(tmp_path, "hangs", name="hangs.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_streamstate.hooks.task_upgrades.WAKING_SECONDS", -100.0)  # its time has passed at once
        first = deferral_of(upgrade(hanging, deferrable=True), context(task_id="first", xcom_push=pushed.push))
    upgrade_id = first.trigger.watch["deployment_id"]
    assert view_of(running, upgrade_id).state.phase == "rehearsing"
    ours = context(task_id="second", xcom_push=pushed.push)
    task = upgrade(new(tmp_path, "proves"), deferrable=deferrable)
    result = to_the_end(task, ours, turn(task, ours))
    assert (result["outcome"], result["old_deployment_id"]) == ("upgraded", "d-0001")
    assert view_of(running, upgrade_id).outcome == "refused"
    again = deferral_of(
        upgrade(hanging, deferrable=True), context(task_id="first", xcom_push=pushed.push, try_number=2)
    )
    assert again.trigger.watch["deployment_id"] != upgrade_id


def end_of(home: NamedHome, upgrade_id: str) -> UpgradeView:
    """An upgrade that is approved and brought to its end."""
    upgrades = home.hook().client.upgrades
    upgrades.approve("flights", upgrade_id, is_approved=True)
    return upgrades.run("flights", upgrade_id, 60)


def ids(home: NamedHome) -> list[str]:
    return UpgradeJournal(home.home.control("flights")).ids()


def test_a_second_upgrade_waits_for_the_first_if_it_is_told_to(
    running: NamedHome, context: MakeContext, pushed: Pushed, tmp_path: Path
) -> None:
    """Over deferrals, a retry and a clear: nothing is recorded of it before; its plan is about what runs then."""
    first = scripted_driver.script(tmp_path, "proves", name="first_new.py")
    waiting = upgrade(first, deferrable=True, needs_approval=True)
    deferred = deferred_at(running, waiting, context(task_id="first", xcom_push=pushed.push), "planned")
    upgrade_id = deferred.trigger.watch["deployment_id"]

    def second() -> UpgradeStreamOperator:
        return upgrade(new(tmp_path, "proves"), deferrable=True, if_busy="wait", retries=2)

    ours = context(task_id="second", xcom_push=pushed.push, max_tries=2)
    turned = deferral_of(second(), ours)
    assert WaitCondition.from_json(turned.trigger.watch) == WaitCondition("free", "flights", upgrade_id)
    assert turned.trigger.on_kill_action == "leave"
    for again in (
        context(task_id="second", xcom_push=pushed.push, try_number=2, max_tries=2),
        context(task_id="second", xcom_push=pushed.push, try_number=3, max_tries=4),
    ):
        turned = deferral_of(second(), again)
        assert ids(running) == [upgrade_id]
    assert end_of(running, upgrade_id).outcome == "upgraded"
    result = to_the_end(second(), again, turned)
    assert (result["outcome"], result["old_deployment_id"], result["new_deployment_id"]) == (
        "upgraded", "d-0002", "d-0003"
    )  # fmt: skip
    assert result["upgrade_id"] in ids(running)
    assert len(ids(running)) == 2
    assert second().execute(again) == result


def test_its_wait_ends_with_its_time_and_a_retry_waits_on(
    running: NamedHome, context: MakeContext, pushed: Pushed, tmp_path: Path
) -> None:
    """In a worker and in the triggerer; by default it is refused at once."""
    script = scripted_driver.script(tmp_path, "proves", name="first_new.py")
    first = upgrade(script, deferrable=True, needs_approval=True)
    deferred = deferred_at(running, first, context(task_id="first", xcom_push=pushed.push), "planned")
    ours = context(task_id="second", xcom_push=pushed.push)
    with pytest.raises(
        AirflowFailException, match=f"under way(?s:.*){deferred.trigger.watch['deployment_id']}(?s:.*)if_busy=.wait"
    ):
        upgrade(new(tmp_path, "proves")).execute(ours)
    for deferrable in (False, True):
        task = upgrade(new(tmp_path, "proves"), if_busy="wait", timeout_seconds=0.3, deferrable=deferrable)
        with pytest.raises(AirflowException, match="still holds the stream") as late:
            to_the_end(task, ours, turn(task, ours))
        assert not isinstance(late.value, AirflowFailException)
    assert len(ids(running)) == 1


def test_of_two_that_waited_the_one_that_came_second_to_the_stream_waits_again(
    running: NamedHome, context: MakeContext, pushed: Pushed, tmp_path: Path
) -> None:
    """It was recorded already, and has ended with that; the same request continues under another id. (Law 2)"""
    ours = context(task_id="second", xcom_push=pushed.push)
    task = upgrade(new(tmp_path, "proves"), if_busy="wait", timeout_seconds=50)
    upgrades, control = running.hook().client.upgrades, running.home.control("flights")
    lost = task.begin(running.hook(), request_id_of(ours, task.request_digest()))
    control.update_register(lambda now: replace(now, upgrade_id=None), by="test")
    other = scripted_driver.script(tmp_path, "proves", name="other.py")
    winner = upgrades.begin(
        UpgradeRequest(change_request("flights", application=other), UpgradeTerms(warm=False)), "winner"
    )
    with pytest.raises(ConflictError, match="under way"):
        upgrades.advance("flights", lost.upgrade_id)
    assert upgrades.run("flights", winner.upgrade_id, 60).outcome == "upgraded"
    result = task.execute(ours)
    assert (result["outcome"], result["old_deployment_id"]) == ("upgraded", "d-0002")
    assert view_of(running, lost.upgrade_id).outcome == "refused"
