"""``ApplyStreamsOperator``: waves that leave their worker while their streams wait."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.declarations.diff import StreamDifference
from airflow_streamstate.errors import DeadlineExceededError, InvalidRequestError
from airflow_streamstate.operators.declared import ApplyStreamsOperator, CompareStreamsOperator
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.streams_dag import StreamsDag
from airflow_streamstate.triggers.streamstate import EventContent
from support import scripted_driver
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome
from support.airflow_upgrades import Pushed, deferral_of, event_of, taken_by, turn

US = "airflow dag.apply manual__1"
TIME_IS_UP = DeadlineExceededError("it did not happen in time")


@pytest.fixture
def folder(named: NamedHome, tmp_path: Path) -> Path:
    """Of the files."""
    (tmp_path / "streams").mkdir()
    return tmp_path / "streams"


@pytest.fixture
def ours(context: MakeContext, pushed: Pushed) -> Any:
    """The context of the task, with its XComs."""
    return context(task_id="apply", xcom_push=pushed.push)


def declare(folder: Path, stream_id: str, *words: str, **more: Any) -> None:
    """The file of a stream whose driver behaves so."""
    name = "-".join((stream_id, *words)) + ".py"
    scripted_driver.script(folder.parent, *words, name=name)
    values = {
        "id": stream_id, "application": f"../{name}", "master": "local[1]",
        "upgrade": {"warm": False, "healthy_batches": 1, "healthy_deadline_seconds": 60}, **more,
    }  # fmt: skip
    (folder / f"{stream_id}.yaml").write_text(yaml.safe_dump(values))


@pytest.fixture
def wave(folder: Path, context: MakeContext) -> Callable[..., Callable[[], ApplyStreamsOperator]]:
    """Compares, and gives what makes the operator of a wave; each worker makes its own."""

    def compared(number: int = 0, *, wave: int = 2, prune: bool = False, **more: Any) -> Any:
        compare = CompareStreamsOperator(
            task_id="compare",
            streams=str(folder),
            rehearse=False,
            wave=wave,
            prune=prune,
            canary=more.get("canary", ""),
        )
        found = json.loads(json.dumps(compare.execute(context(task_id="compare"))))
        values = {"timeout_seconds": 60, "poll_interval_seconds": 0.1, "deferrable": True, **more}
        return lambda: ApplyStreamsOperator(
            task_id="apply", streams=str(folder), compared=found, wave=found["waves"][number], **values
        )

    return compared


def to_the_end(make: Callable[[], ApplyStreamsOperator], context: Any) -> tuple[dict[str, Any], list[set[str]]]:
    """Workers and triggerer take turns; the results by stream, and what each deferral waited for."""
    found, waited_for = turn(make(), context), []
    while isinstance(found, TaskDeferred):
        watches = [found.trigger.watch, *found.trigger.or_watches]
        waited_for.append({f"{one['wanted']} {one['stream_id']}" for one in watches})
        kwargs = json.loads(json.dumps(found.kwargs))  # as a database keeps them
        found = turn(make(), context, event_of(found), kwargs)
    return {one["stream_id"]: one for one in found["streams"]}, waited_for


def test_a_wave_leaves_its_worker_while_its_streams_start(named: NamedHome, folder: Path, wave: Any, ours: Any) -> None:
    """One trigger waits for all of them; the result is that of a wave that stays in its worker."""
    for stream_id in ("a", "b"):
        declare(folder, stream_id, "proves")
    make = wave()
    found, waited_for = to_the_end(make, ours)
    assert waited_for[0] == {"healthy a", "healthy b"}
    assert {name: (one["step"], one["result"]) for name, one in found.items()} == {
        "a": ("deploy", "done"), "b": ("deploy", "done")
    }  # fmt: skip
    again = turn(make(), ours)
    assert [(one["step"], one["result"], one["deployment_id"]) for one in again["streams"]] == [
        ("deploy", "done", "d-0001"), ("deploy", "done", "d-0001")
    ]  # fmt: skip


def test_the_next_run_waits_for_a_driver_that_was_launched(
    named: NamedHome, folder: Path, wave: Any, ours: Any
) -> None:
    """What an ended run has launched is in a wave again, and fails it if it does not become well."""
    declare(folder, "a", "hangs")
    deferral_of(wave()(), ours)  # its run ends here
    make = wave()
    deferred = deferral_of(make(), ours)
    assert (deferred.trigger.watch["wanted"], deferred.trigger.watch["stream_id"]) == ("healthy", "a")
    named.hook().client.kill("a")
    with pytest.raises(AirflowException, match="a: failed: the deployment failed"):
        turn(make(), ours, event_of(deferred), json.loads(json.dumps(deferred.kwargs)))


def test_an_upgrade_is_stepped_in_workers_and_found_again_by_a_retry(
    named: NamedHome, folder: Path, wave: Any, ours: Any
) -> None:
    """What a killed worker has started is this task's own, with the result of a task that was not killed. (Law 2)"""
    declare(folder, "a", "proves")
    to_the_end(wave(), ours)
    declare(folder, "a", "proves", conf={"spark.x": "1"})
    make = wave()
    first = deferral_of(make(), ours)
    upgrade_id = first.trigger.watch["deployment_id"]
    assert first.trigger.watch["wanted"] == "upgrade"
    found, waited_for = to_the_end(make, ours)  # nothing is left of the first worker
    assert (found["a"]["step"], found["a"]["result"]) == ("upgrade", "done")
    assert (found["a"]["upgrade_id"], found["a"]["deployment_id"]) == (upgrade_id, "d-0002")
    assert taken_by(named, upgrade_id, "a") == {US}
    assert set().union(*waited_for) <= {"upgrade a"}


def test_what_is_left_of_a_change_is_no_other_change(named: NamedHome, folder: Path, wave: Any, ours: Any) -> None:
    """A worker that dies between an upgrade and the restart policy leaves the policy to the retry. (Law 2)"""
    declare(folder, "a", "proves")
    to_the_end(wave(), ours)
    declare(folder, "a", "proves", conf={"spark.x": "1"}, restart={"on_failure": "restart"})
    make = wave()
    both = turn(make(), ours)
    client = named.hook().client
    client.upgrades.run("a", both.trigger.watch["deployment_id"], 60)
    assert client.details.restart_policy("a").on_failure == "nothing"
    found, _ = to_the_end(make, ours)
    assert (found["a"]["result"], found["a"]["deployment_id"]) == ("done", "d-0002")
    assert client.details.restart_policy("a").on_failure == "restart"


def test_a_version_that_fails_is_the_failure_of_its_wave(
    named: NamedHome, folder: Path, wave: Any, ours: Any, pushed: Pushed
) -> None:
    """Not of the waves before, and with its reason; the old version runs."""
    declare(folder, "a", "proves")
    to_the_end(wave(), ours)
    declare(folder, "a", "crashes")
    with pytest.raises(AirflowException, match="the old one is back"):
        to_the_end(wave(), ours)
    (one,) = pushed["return_value"]["streams"]
    assert (one["result"], "--again" in one["reason"]) == ("failed", False)
    assert named.hook().client.status("a").state == "running"


def test_the_streams_of_a_wave_are_watched_by_the_trigger(
    named: NamedHome, folder: Path, wave: Any, ours: Any, pushed: Pushed
) -> None:
    """Until the time is up, or one of them is not well any more: it has failed."""
    for stream_id in ("a", "b", "c"):
        declare(folder, stream_id, "proves")
    found, waited_for = to_the_end(wave(wave=1, healthy_for_seconds=0.5), ours)
    assert (waited_for[-1], found["a"]["result"]) == ({"unwell a"}, "done")
    make = wave(wave=1, healthy_for_seconds=60)
    watched = turn(make(), ours)
    while watched.trigger.watch["wanted"] != "unwell":
        watched = turn(make(), ours, event_of(watched), watched.kwargs)
    deadline = EventContent("deadline", WaitCondition.from_json(watched.trigger.watch), error=TIME_IS_UP).to_json()
    assert turn(make(), ours, deadline)["streams"][0]["result"] == "done"  # ``dag.test()`` drops the kwargs
    named.hook().client.kill(watched.trigger.watch["stream_id"])
    with pytest.raises(AirflowException, match="it was changed, and is failed now"):
        turn(make(), ours, event_of(watched), watched.kwargs)
    assert pushed["return_value"]["streams"][0]["result"] == "failed"


def test_a_stream_that_no_file_declares_is_stopped_without_a_worker(
    named: NamedHome, folder: Path, wave: Any, ours: Any
) -> None:
    """Its wave waits for the end of its driver."""
    for stream_id in ("a", "b"):
        declare(folder, stream_id, "proves")
    to_the_end(wave(), ours)
    (folder / "b.yaml").unlink()
    found, waited_for = to_the_end(wave(prune=True), ours)
    assert (found["b"]["step"], found["b"]["result"]) == ("stop", "done")
    assert waited_for in ([], [{"stopped b"}])
    assert named.hook().client.status("b").state == "stopped"


def test_its_time_is_one_over_all_deferrals(named: NamedHome, folder: Path, wave: Any, ours: Any) -> None:
    """A stream that does not start fails at its deadline, whoever waits; the error reports what was seen. (Law 6)"""
    declare(folder, "a", "hangs")
    make = wave(timeout_seconds=600)
    deferred = deferral_of(make(), ours)
    kwargs = json.loads(json.dumps(deferred.kwargs))
    kwargs["begun"]["under_way"][0]["until_at"] = format_time(SYSTEM_CLOCK.now())
    event = EventContent("done", WaitCondition.from_json(deferred.trigger.watch), result={}).to_json()
    with pytest.raises(AirflowException, match="did not happen in time"):
        turn(make(), ours, event, kwargs)


def test_a_triggerer_that_cannot_look_ends_the_wait(named: NamedHome, folder: Path, wave: Any, ours: Any) -> None:
    """It would fire again at once: its error is the task's. What waits is no answer of a different release, either."""
    declare(folder, "a", "hangs")
    make = wave()
    deferred = deferral_of(make(), ours)
    error = InvalidRequestError("there is no such connection", conn_id="streamstate_default")
    event = EventContent("over", WaitCondition.from_json(deferred.trigger.watch), error=error).to_json()
    with pytest.raises(AirflowFailException, match="there is no such connection"):
        turn(make(), ours, event, deferred.kwargs)
    with pytest.raises(AirflowFailException, match="this is not what a wave waits for"):
        turn(make(), ours, event, {"begun": {"number": 0}})


def test_who_applies_files_says_what_they_may_not_leave(folder: Path, ours: Any) -> None:
    """The author of a file does not decide it; a DAG's root is one from the folder of the DAG's file."""
    declare(folder, "flights")
    found = CompareStreamsOperator(task_id="compare", streams=str(folder), root=str(folder), rehearse=False)
    (one,) = found.execute(ours)["streams"]
    assert one["kind"] == "refused"
    assert "this path leaves the root of these files" in one["reason"]
    dag = StreamsDag(".", root="..", dag_id="declared")
    assert dag.task_dict["compare"].root == str(Path(__file__).parent / "..")
    assert dag.task_dict["apply"].partial_kwargs["root"] == str(Path(__file__).parent / "..")


def test_a_wave_may_be_larger_than_what_is_changed_at_a_time(folder: Path) -> None:
    """Pruned streams are one wave, however many: as many of them as there may be are stopped at a time."""
    ids = [f"s{number}" for number in range(1_001)]
    gone = [StreamDifference(name, "not declared", "stop").to_json() for name in ids]
    wave = {"number": 0, "streams": ids}
    declare(folder, "one")
    compared = {"streams": gone, "waves": [wave]}
    task = ApplyStreamsOperator(task_id="apply", streams=str(folder), compared=compared, wave=wave)
    (targets,), terms = task._waves()
    assert (len(targets), terms.wave) == (1_001, 1_000)
