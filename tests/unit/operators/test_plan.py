"""``PlanUpgradeOperator``."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    DAG,
    AirflowException,
    AirflowFailException,
    BaseOperator,
    TaskDeferred,
    redact,
)

from airflow_streamstate.controller.scratch.run import ScratchRuns
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.operators.plan import PlanUpgradeOperator
from airflow_streamstate.protocol.scratch import Replay
from airflow_streamstate.triggers.streamstate import EventContent, StreamStateTrigger
from support import scripted_driver
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome
from support.airflow_upgrades import Pushed
from support.scripted_rehearsal import SPARKS_WORDS, keep_batches, keep_plan
from support.scripted_stream import QUERY


def plan(script: Path | None, **more: Any) -> PlanUpgradeOperator:
    values = {
        "stream_id": "flights",
        "application": script,
        "deadline_seconds": 60,
        "poll_interval_seconds": 0.1,
        **more,
    }
    return PlanUpgradeOperator(task_id="plan", **values)


@pytest.fixture
def running(named: NamedHome) -> NamedHome:
    """A stream that runs, with its plan recorded."""
    stream = named.stream()
    stream.deploy().runs()
    keep_plan(stream.control, "d-0001", QUERY)
    return named


@pytest.fixture
def with_batches(running: NamedHome, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> NamedHome:
    """The same with the batches 0 to 3, and batch 4 planned; temporary files are in a folder of the test."""
    keep_batches(running.home.checkpoints, "flights", QUERY)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return running


def left_of_replays(home: NamedHome, tmp_path: Path) -> list[Path]:
    """What replays have left on this machine."""
    return [*(tmp_path / "tmp").glob("streamstate-replay-*"), *home.base.rglob("launches/r-*")]


def over(home: NamedHome, trigger: StreamStateTrigger) -> dict[str, Any]:
    """The trigger's event, once what it waits for has ended."""
    hook, watch = home.hook(), WaitCondition.from_json(trigger.watch)
    for _ in range(600):
        if hook.client.plans.is_over("flights", watch.deployment_id):
            break
        hook.clock.sleep(0.05)
    return EventContent("done", watch, result=hook.client.advance(watch).result).to_json()


def test_a_change_that_fits_is_reported(running: NamedHome, context: MakeContext, tmp_path: Path) -> None:
    """As the XCom; nothing of the stream has moved, and nothing but the report is left."""
    result = plan(scripted_driver.script(tmp_path, "fits"), reason="try it").execute(context())
    assert (result["outcome"], result["verdict"], result["rehearsal"]["ok"]) == ("fits", "same", True)
    assert result["queries"][QUERY]["rehearsal"]["start"] == "restored"
    control = running.stream().control
    assert control.deployment_ids() == ["d-0001"]
    assert control.scratch_ids() == [result["rehearsal_id"]]
    rehearsal = control.scratch_run(result["rehearsal_id"])
    assert rehearsal is not None
    assert rehearsal.requested_by == "airflow dag.task manual__1"
    assert not list(running.base.rglob("launches/r-*"))


@pytest.mark.parametrize(
    ("word", "kind", "text"),
    [
        ("needs-drain", AirflowFailException, r"Sum\(v\) is computed"),
        ("refused", AirflowFailException, "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"),
        ("fails", AirflowException, "No module named 'rules'"),
        ("dies", AirflowException, "(?s)without a verdict.*no such package"),
    ],
)
def test_a_change_that_does_not_fit_fails_the_task_and_its_report_is_pushed(
    running: NamedHome, ours: Any, pushed: Pushed, tmp_path: Path, word: str, kind: type[Exception], text: str
) -> None:
    """No retry makes it fit; a script that failed may find tomorrow what it missed."""
    task = plan(scripted_driver.script(tmp_path, word))
    with pytest.raises(kind, match=text) as raised:
        task.execute(ours)
    assert (type(raised.value) is AirflowFailException) is (kind is AirflowFailException)
    report = pushed["return_value"]
    assert report["outcome"] == ("refused" if kind is AirflowFailException else "failed")
    assert (report["verdict"] == "needs-drain") is (word == "needs-drain")


def test_the_report_alone_where_what_follows_decides(running: NamedHome, context: MakeContext, tmp_path: Path) -> None:
    """A branch takes the drain, or asks a person."""
    result = plan(scripted_driver.script(tmp_path, "refused"), fail_unless_it_fits="False").execute(context())
    assert (result["outcome"], result["queries"][QUERY]["rehearsal"]["error"]) == ("refused", SPARKS_WORDS)


def test_the_result_is_the_same_for_whoever_waits(
    running: NamedHome, context: MakeContext, ours: Any, pushed: Pushed, tmp_path: Path
) -> None:
    """Deferred, looked at by the trigger, and continued in another worker."""
    script = scripted_driver.script(tmp_path, "needs-drain")
    with pytest.raises(TaskDeferred) as deferred:
        plan(script, deferrable=True).execute(context())
    trigger = deferred.value.trigger
    assert isinstance(trigger, StreamStateTrigger)
    assert (trigger.watch["wanted"], trigger.on_kill_action) == ("rehearsed", "leave")
    event = over(running, trigger)
    result = plan(script, deferrable=True, fail_unless_it_fits=False).execute_complete(context(), event)
    assert (result["outcome"], result["verdict"]) == ("refused", "needs-drain")
    with pytest.raises(AirflowFailException, match="does not fit"):
        plan(script, deferrable=True).execute_complete(ours, event)
    assert pushed["return_value"] == result


def test_a_hang_ends_at_its_time_and_leaves_nothing(
    running: NamedHome, context: MakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver is killed, and the report shows it (Law 6)."""
    monkeypatch.setattr("airflow_streamstate.controller.scratch.run.LATE_SECONDS", 0.5)
    task = plan(scripted_driver.script(tmp_path, "hangs"), deadline_seconds=1)
    with pytest.raises(AirflowException, match="not over at its deadline"):
        task.execute(context(xcom_push=Pushed().push))
    assert not list(running.base.rglob("launches/r-*"))


def test_a_task_that_is_killed_ends_its_rehearsal(running: NamedHome, context: MakeContext, tmp_path: Path) -> None:
    """The wait has ended."""
    task = plan(scripted_driver.script(tmp_path, "hangs"), deferrable=True)
    with pytest.raises(TaskDeferred):
        task.execute(context())
    task.on_kill()
    control = running.stream().control
    (rehearsal_id,) = control.scratch_ids()
    assert control.verdict(rehearsal_id) is not None
    assert not list(running.base.rglob("launches/r-*"))


def test_a_task_that_is_cleared_rehearses_anew(running: NamedHome, context: MakeContext, tmp_path: Path) -> None:
    """What was missing may be there now; a try that comes while it lasts waits on (Law 2)."""
    script = scripted_driver.script(tmp_path, "fits")
    first = plan(script).execute(context(try_number=1))
    again = plan(script).execute(context(try_number=2))
    assert again["rehearsal_id"] == first["rehearsal_id"].replace("-0001", "-0002")


def test_a_stream_that_was_never_deployed_cannot_be_changed(
    named: NamedHome, context: MakeContext, tmp_path: Path
) -> None:
    """Reported by name, and nothing is recorded."""
    with pytest.raises(AirflowFailException, match="no such stream"):
        plan(scripted_driver.script(tmp_path, "fits")).execute(context())
    assert [info.key for info in named.home.home.list_objects("")] == ["home.json"]


def test_what_is_not_given_stays_as_it_is(running: NamedHome) -> None:
    """None, in native rendering or as text, is no value; an empty list is one."""
    change = plan(None, arguments="None", packages="None", jars=[], conf='{"spark.a": "1"}').change()
    values = change.patch.values
    assert values.keys().isdisjoint({"application", "arguments", "packages"})
    assert (values["jars"], values["conf"]) == ((), {"spark.a": "1"})


def test_secrets_are_hidden_wherever_airflow_shows_them(tmp_path: Path) -> None:
    """By value, once they are rendered."""
    task = plan(tmp_path / "job.py", conf={"spark.hadoop.fs.s3a.secret.key": "{{ params.key }}"})
    task.conf = {"spark.hadoop.fs.s3a.secret.key": "battery-staple-10"}
    assert "battery-staple-10" not in str(redact("the key is battery-staple-10"))


def in_turns(
    home: NamedHome, context: Any, script: Path, between: Callable[[], None] = lambda: None, **more: Any
) -> dict[str, Any]:
    """The result of a task that is deferred again and again, each time continued by another worker."""
    task = plan(script, deferrable=True, **more)
    event: Any = None
    for _ in range(4):
        try:
            return task.execute(context) if event is None else task.execute_complete(context, event)
        except TaskDeferred as deferred:
            trigger = deferred.trigger
            assert isinstance(trigger, StreamStateTrigger)
            event, task = over(home, trigger), plan(script, deferrable=True, **more)
            between()
    raise AssertionError("it is deferred more often than it has runs")


@pytest.mark.parametrize("deferrable", [False, True])
def test_replayed_batches_are_in_the_report(
    with_batches: NamedHome, context: MakeContext, tmp_path: Path, deferrable: bool
) -> None:
    """Wherever the rehearsal and the two runs are waited for; nothing is left. (Law 4)"""
    script = scripted_driver.script(tmp_path, "changes")
    if deferrable:
        result = in_turns(with_batches, context(), script, replay_batches="2")
    else:
        result = plan(script, replay_batches="2").execute(context())
    assert (result["outcome"], result["not_replayed"]) == ("fits", None)
    batches = result["replay"]["queries"][QUERY]["batches"]
    assert [(each["batch_id"], each["comparison"]["only_new"]) for each in batches] == [(3, 1), (4, 1)]
    assert [each["rows_out"] for each in result["replay"]["old"]["queries"][QUERY]["batches"]] == [34, 34]
    assert left_of_replays(with_batches, tmp_path) == []
    assert len(with_batches.stream().control.scratch_ids()) == 3


def test_rows_on_another_machine_are_made_again_on_this_one(
    with_batches: NamedHome, context: MakeContext, tmp_path: Path
) -> None:
    """The worker that continues does not see those of the first run: it runs both."""

    def elsewhere() -> None:
        for folder in (tmp_path / "tmp").glob("streamstate-replay-*"):
            shutil.rmtree(folder)

    script = scripted_driver.script(tmp_path, "changes")
    result = in_turns(with_batches, context(), script, elsewhere, replay_batches=1)
    (batch,) = result["replay"]["queries"][QUERY]["batches"]
    assert batch["comparison"]["only_new"] == 1
    assert left_of_replays(with_batches, tmp_path) == []


def test_a_script_that_changes_between_two_workers_fails_the_task(
    with_batches: NamedHome, context: MakeContext, tmp_path: Path
) -> None:
    """What a person approves is what was planned; nothing is left."""
    script = scripted_driver.script(tmp_path, "fits")

    def changed() -> None:
        script.write_text("changes\n")

    with pytest.raises(AirflowFailException, match="was changed while it was planned"):
        in_turns(with_batches, context(), script, changed, replay_batches=1)
    assert left_of_replays(with_batches, tmp_path) == []


def test_what_was_told_of_the_rehearsal_is_told_at_the_end(
    with_batches: NamedHome, context: MakeContext, tmp_path: Path
) -> None:
    """By the last worker, too, when what it was known by is removed: here a library with a known bug."""
    script = scripted_driver.script(tmp_path, "fits")
    more = {"packages": ["org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1"], "replay_batches": 1}
    results = [
        plan(script, **more).execute(context()),
        in_turns(with_batches, context(run_id="manual__2"), script, **more),
    ]
    assert [sum("SPARK-57438" in note for note in result["notes"]) for result in results] == [1, 1]


@pytest.mark.parametrize(
    ("word", "more", "text"),
    [
        ("divides", {}, "batch 4 fails: ZeroDivisionError"),
        ("changes", {"fail_on_changed_rows": "True"}, f"gives other rows.*3 of {QUERY}"),
        ("changes", {"fail_on_changed_rows": True, "fail_unless_it_fits": False}, "gives other rows"),
    ],
)
def test_what_a_replay_shows_can_fail_the_task(
    with_batches: NamedHome, ours: Any, pushed: Pushed, tmp_path: Path, word: str, more: dict[str, Any], text: str
) -> None:
    """No retry changes it; its report is pushed."""
    task = plan(scripted_driver.script(tmp_path, word), replay_batches=2, **more)
    with pytest.raises(AirflowFailException, match=text):
        task.execute(ours)
    assert pushed["return_value"]["outcome"] == ("refused" if word == "divides" else "fits")
    assert left_of_replays(with_batches, tmp_path) == []


def test_a_task_that_is_killed_ends_its_replay(
    with_batches: NamedHome, context: MakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the recorded version runs: the new one does not, and nothing is left."""
    script = scripted_driver.script(tmp_path, "fits")
    task = plan(script, replay_batches=2)
    control = with_batches.stream().control
    is_over = ScratchRuns.is_over

    def killed(runs: ScratchRuns, stream_id: str, run_id: str) -> bool:
        run = control.scratch_run(run_id)
        if run is not None and isinstance(run.what, Replay):
            task.on_kill()
        return is_over(runs, stream_id, run_id)

    monkeypatch.setattr(ScratchRuns, "is_over", killed)
    with pytest.raises(AirflowException, match="the task was ended"):
        task.execute(context())
    runs = [run for run in map(control.scratch_run, control.scratch_ids()) if run is not None]
    (replay,) = [run for run in runs if isinstance(run.what, Replay)]
    assert control.verdict(replay.run_id) is not None
    assert left_of_replays(with_batches, tmp_path) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"replay_batches": "many"}, "no whole number"),
        ({"replay_batches": -1}, "replay_batches cannot have this value"),
        ({"replay_batches": 101}, "replay_batches cannot have this value"),
        ({"replay_batches": 2, "fail_on_changed_rows": "perhaps"}, "neither true nor false"),
        ({"fail_on_changed_rows": True}, "none is replayed"),
    ],
)
def test_a_replay_that_cannot_be_is_refused_when_the_dag_is_parsed(more: dict[str, Any], said: str) -> None:
    """A template is refused when it is rendered."""
    with pytest.raises(InvalidRequestError, match=said):
        plan(None, **more)
    if len(more) == 1 and "replay_batches" in more:  # the other fields may be templates
        with pytest.raises(InvalidRequestError, match=said):
            plan(None, **more, fail_on_changed_rows="{{ params.fails }}")
    task = plan(None, replay_batches="{{ params.replay }}", fail_on_changed_rows="{{ params.fails }}")
    task.replay_batches = more.get("replay_batches", 0)
    task.fail_on_changed_rows = more.get("fail_on_changed_rows", False)
    with pytest.raises(InvalidRequestError, match=said):
        task.plan_terms()


@pytest.mark.parametrize("name", ["deadline_seconds", "replay_batches", "fail_on_changed_rows"])
def test_what_another_task_returns_is_read_when_the_task_runs(name: str) -> None:
    """The DAG is parsed, and the task comes after that one."""
    with DAG("d"):
        before = BaseOperator(task_id="before")
        task = plan(None, **{name: before.output})
    assert task.upstream_task_ids == {"before"}
    setattr(task, name, "many")
    with pytest.raises(InvalidRequestError, match=name):
        task.plan_terms()
