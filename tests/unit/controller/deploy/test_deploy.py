"""Deploy: the order of its records, its refusals, and its retries."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.views import DeploymentView
from airflow_streamstate.errors import (
    ConflictError,
    IncompatibleUpgradeError,
    InvalidRequestError,
    SnapshotNotFoundError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.protocol.events import Drained, Failed
from airflow_streamstate.protocol.positions import StateLeft
from airflow_streamstate.protocol.records import Intent
from airflow_streamstate.store.memory import MemoryStore
from support.faulty_store import FaultPlan, FaultyStore
from support.sim_stage import STREAM, Stage


def drained(stage: Stage, **facts: object) -> str:
    """d-0001 ends drained; its snapshot."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    stage.flush()
    manifest = stage.keep("drained", drained=True, **facts)
    positions = {name: query.position for name, query in manifest.queries.items()}
    stage.say(Drained, command_id="c", command_number=1, snapshot_id=manifest.snapshot_id, queries=positions)
    stage.end()
    return manifest.snapshot_id


def test_a_first_deployment_starts_fresh_and_is_launched(stage: Stage) -> None:
    """The first deployment of a stream has nothing to fall back from: it starts fresh. (Law 5)"""
    view = stage.deploy()
    assert (view.deployment_id, view.attempt, view.state, view.start.mode) == ("d-0001", 1, "launching", "fresh")
    assert stage.launcher.calls == ["launch d-0001-a0001"]
    register = stage.control.need_register().value
    assert (register.fencing_token, register.intent) == (1, None)
    assert stage.control.launch("d-0001", "d-0001-a0001") is not None


def test_the_choice_of_the_start_is_told_before_anything_starts(stage: Stage) -> None:
    """``on_start`` is called while the register still names the old version and nothing is launched."""
    told: list[tuple[str, str, list[str]]] = []

    def on_start(view: DeploymentView) -> None:
        assert stage.control.need_register().value.deployment_id == "d-0001"
        told.append((view.deployment_id, view.start.mode, list(stage.launcher.calls)))

    drained(stage)
    before = list(stage.launcher.calls)
    stage.controller.deploy(stage.request("print('v2')\n", allow_state_loss=True), on_start)
    assert told == [("d-0002", "seed", before)]
    assert stage.launcher.calls != before


def test_a_request_id_is_one_request(stage: Stage) -> None:
    """Repeated, it finds its deployment; with other code, or by a different verb, it is a conflict. (Law 2)"""
    views = [stage.deploy(request_id="r-1") for _ in range(2)]
    assert [(view.deployment_id, view.attempt) for view in views] == [("d-0001", 1)] * 2
    assert len(stage.launcher.requests) == 1
    stage.controller.order("stop", STREAM, request_id="r-2")
    for text, request_id in (("print('v2')\n", "r-1"), ("print('v1')\n", "r-2")):
        with pytest.raises(ConflictError, match="used for something else"):
            stage.deploy(text, request_id=request_id)


def test_a_running_stream_is_not_deployed_over(running: Stage) -> None:
    """A deploy on what runs is refused with the way out, and leaves no trace. (Law 1)"""
    with pytest.raises(ConflictError, match="stop, drain or upgrade it first") as refused:
        running.deploy("print('v2')\n", request_id="r-2")
    assert refused.value.next_step.startswith(f"`streamstate upgrade {STREAM}`")
    assert running.control.request("r-2") is None
    assert running.control.need_register().value.intent is None


def test_a_stopped_stream_is_restored(stage: Stage) -> None:
    """The snapshot at the end of a stopped deployment starts the next one with its state. (1a.9)"""
    stage.deploy()
    event = stage.stopped()
    view = stage.deploy("print('v2')\n")
    assert (view.deployment_id, view.start.mode, view.start.snapshot_id) == ("d-0002", "restore", event.snapshot_id)
    assert view.start.predecessor_id == "d-0001"


def test_a_drained_stream_is_seeded(stage: Stage) -> None:
    """The snapshot of a drain starts the next deployment with the offsets only, never with the state. (Law 11; 1a.9)"""
    snapshot_id = drained(stage, state_rows_left=0)
    with pytest.raises(IncompatibleUpgradeError, match="can only be seeded"):
        stage.deploy("print('v2')\n", start="restore")
    view = stage.deploy("print('v2')\n", snapshot_id=snapshot_id)
    assert (view.start.mode, view.start.snapshot_id) == ("seed", snapshot_id)


def test_state_that_a_drain_left_is_dropped_only_by_name(stage: Stage) -> None:
    """Rows that the flush left refuse a seed, unless they are discarded by name. (Law 16)"""
    left = (StateLeft("stateStoreSave", 0, 7, "it has no watermark"),)
    drained(stage, state_rows_left=7, state_left=left)
    with pytest.raises(IncompatibleUpgradeError, match="could not flush all state") as refused:
        stage.deploy("print('v2')\n")
    assert refused.value.context["state_left"] == {"counts": {"stateStoreSave": 7}}
    view = stage.deploy("print('v2')\n", allow_state_loss=True)
    assert view.start.allow_state_loss
    assert any("7" in note for note in view.notes)


def test_a_start_that_contradicts_the_snapshot_is_refused(stopped: Stage) -> None:
    """A stopped snapshot is never seeded; a fresh start is done and noted. (Law 5)"""
    with pytest.raises(IncompatibleUpgradeError, match="can only be restored"):
        stopped.deploy("print('v2')\n", start="seed")
    view = stopped.deploy("print('v2')\n", start="fresh")
    assert (view.start.mode, view.start.snapshot_id) == ("fresh", None)
    assert "starts with empty state" in view.notes[0]


def test_an_older_snapshot_is_refused(stage: Stage) -> None:
    """Batches after an older snapshot would run under batch ids that the sink may hold. (Law 14; 1a.9)"""
    stage.deploy()
    first = stage.stopped()
    stage.deploy("print('v2')\n")
    stage.stopped(5, "d-0002")
    with pytest.raises(ConflictError, match="batch ids that the sink may hold") as refused:
        stage.deploy("print('v3')\n", snapshot_id=first.snapshot_id)
    assert refused.value.context["snapshot_at_its_end"] == "d-0002-stopped-000001"
    with pytest.raises(SnapshotNotFoundError):
        stage.deploy("print('v3')\n", snapshot_id="d-0001-stopped-000009")


@pytest.mark.parametrize(
    ("asked", "error"),
    [({"start": "restore"}, "never deployed"), ({"spark_conn_id": "spark_default"}, "Airflow connection")],
)
def test_a_first_deployment_that_cannot_be_leaves_no_trace(stage: Stage, asked: dict[str, str], error: str) -> None:
    """There is nothing to restore (Law 5), or only Airflow could launch it."""
    with pytest.raises(InvalidRequestError, match=error):
        stage.deploy(**asked)
    assert list(stage.store.list_objects("")) == []


@pytest.mark.parametrize(("has_committed", "attempt", "state"), [(False, 2, "launching"), (True, 1, "failed")])
def test_a_retry_after_a_failure(stage: Stage, has_committed: bool, attempt: int, state: str) -> None:
    """Before the first commit it is the next attempt; after it, nothing is started by itself. (Law 2)"""
    stage.deploy(request_id="r-1")
    stage.come_to_life(queries=("counts",))
    if has_committed:
        stage.run_batches(1)
    stage.say(Failed, error="ValueError: no")
    stage.end()
    view = stage.deploy(request_id="r-1")
    assert (view.deployment_id, view.attempt, view.state) == ("d-0001", attempt, state)
    assert len(stage.launcher.requests) == attempt


def test_a_clear_after_a_newer_deployment_is_a_conflict_that_names_it(stage: Stage) -> None:
    """A request whose deployment was replaced does not come back by itself. (Law 4)"""
    stage.deploy(request_id="r-1")
    stage.stopped()
    stage.deploy("print('v2')\n", request_id="r-2")
    with pytest.raises(ConflictError) as refused:
        stage.deploy(request_id="r-1")
    assert refused.value.context["current_deployment_id"] == "d-0002"


def test_a_fresh_intent_of_another_controller_is_respected(stopped: Stage) -> None:
    """While one deploy is under way another is refused with its owner; an expired intent is ignored. (1a.8)"""
    intent = Intent("r-other", "d-0002", stopped.clock.now(), "somebody else")
    stopped.another_controller()._context.update_register(
        stopped.control, lambda now: replace(now, intent=intent), since=stopped.control.need_register()
    )
    with pytest.raises(ConflictError, match="under way") as refused:
        stopped.deploy("print('v2')\n")
    assert refused.value.context["requested_by"] == "somebody else"
    with pytest.raises(ConflictError, match="under way"):
        stopped.controller.resume(STREAM)
    stopped.clock.advance(61)
    assert stopped.deploy("print('v2')\n").deployment_id == "d-0003"


def test_a_launch_that_cannot_be_is_a_failed_deployment(stage: Stage) -> None:
    """What cannot run is reported at once, and the deployment is failed, not launching for ever. (Law 1)"""
    stage.launcher.refusal = InvalidRequestError("no spark-submit was found")
    with pytest.raises(InvalidRequestError, match="spark-submit"):
        stage.deploy(request_id="r-1")
    status = stage.controller.status(STREAM)
    assert (status.state, "no spark-submit was found" in status.error) == ("failed", True)
    assert stage.deploy(request_id="r-1").attempt == 2


def test_a_deploy_looks_for_the_end_where_the_checkpoints_are(stopped: Stage, tmp_path: Path) -> None:
    """Another checkpoints_uri is reported with both values; only a fresh start may start elsewhere. (Law 5)"""
    home = Home.of(stopped.store, MemoryStore("elsewhere"), tmp_path, stopped.clock)
    controller = Controller(home, stopped.launcher, stopped.clock, "tests")
    with pytest.raises(InvalidRequestError, match="are elsewhere") as caught:
        controller.deploy(stopped.request("print('v2')\n"))
    assert caught.value.context["checkpoints_uri"] == stopped.store.uri
    assert caught.value.context["configured"] == home.checkpoints.uri
    assert stopped.control.need_register().value.intent is None
    assert controller.deploy(stopped.request("print('v2')\n", start="fresh")).start.mode == "fresh"


def test_checkpoints_of_a_deploy_at_the_same_time_are_not_those_of_another_stream(tmp_path: Path) -> None:
    """Before each call of one deploy another one deploys and runs: the later one looks again, and names the first."""
    said = []
    for number in count(1):
        stage = Stage(tmp_path)

        def other(stage: Stage = stage) -> None:
            theirs = stage.request("print('mine')\n", application=stage.script("print('other')\n", "other.py"))
            with suppress(StreamStateError):  # refused, where the other was first
                stage.another_controller().deploy(theirs)
                stage.come_to_life(queries=("counts",))
                stage.run_batches(2)

        plan = FaultPlan(meanwhile={number: other})
        store = FaultyStore(stage.store, plan)
        home = Home.of(store, store, tmp_path, stage.clock)
        request = stage.request("print('mine')\n")
        try:
            Controller(home, stage.launcher, stage.clock, "tests").deploy(request)
        except StreamStateError as error:
            said.append(str(error))
        if number > len(plan.calls):
            break
    assert said
    assert not [words for words in said if "another stream of this name" in words]


def test_what_is_launched_is_the_pinned_code(stage: Stage) -> None:
    """The driver runs the bytes that were deployed, whatever is at the old path by now. (Law 15)"""
    stage.deploy("print('v1')\n")
    stage.script("print('something else')\n")
    request = stage.launcher.requests["d-0001-a0001"]
    assert request.application != str(stage.folder / "job.py")
    with open(request.application) as file:  # noqa: PTH123
        assert file.read() == "print('v1')\n"


def test_a_crash_between_register_and_launch_is_mended_by_the_retry(stage: Stage) -> None:
    """A deployment that is current and was never launched is launched by the same request. (Laws 1 and 2)"""
    stage.launcher.refusal = UnavailableError("the machine is busy")
    with pytest.raises(UnavailableError):
        stage.deploy(request_id="r-1")
    assert stage.controller.status(STREAM).state == "launching"
    assert stage.deploy(request_id="r-1").attempt == 1
    assert list(stage.launcher.requests) == ["d-0001-a0001"]
