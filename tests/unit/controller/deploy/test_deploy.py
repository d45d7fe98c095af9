"""Deploy: in which order what is recorded, what is refused, and that trying twice is trying once."""

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
    """Whoever watches reads how it starts while the register still names the old version and nothing is launched."""
    told: list[tuple[str, str, list[str]]] = []

    def on_start(view: DeploymentView) -> None:
        assert stage.control.need_register().value.deployment_id == "d-0001"
        told.append((view.deployment_id, view.start.mode, list(stage.launcher.calls)))

    drained(stage)
    before = list(stage.launcher.calls)
    stage.controller.deploy(stage.request("print('v2')\n", discard_state=True), on_start)
    assert told == [("d-0002", "seed", before)]
    assert stage.launcher.calls != before


def test_what_is_launched_is_the_pinned_code(stage: Stage) -> None:
    """The driver runs the bytes that were deployed, whatever lies at the old path by now. (Law 15)"""
    stage.deploy("print('v1')\n")
    stage.script("print('something else')\n")
    request = stage.launcher.requests["d-0001-a0001"]
    assert request.application != str(stage.folder / "job.py")
    with open(request.application) as file:  # noqa: PTH123
        assert file.read() == "print('v1')\n"


def test_the_same_request_twice_is_one_deployment(stage: Stage) -> None:
    """A deploy with the same request id finds what it became. (Law 2)"""
    first = stage.deploy(request_id="r-1")
    second = stage.deploy(request_id="r-1")
    assert (first.deployment_id, first.attempt) == (second.deployment_id, second.attempt)
    assert len(stage.launcher.requests) == 1


def test_a_request_id_is_one_wish(stage: Stage) -> None:
    """The same request id with other code is a conflict, not a deployment. (Law 2)"""
    stage.deploy("print('v1')\n", request_id="r-1")
    with pytest.raises(ConflictError, match="used for something else"):
        stage.deploy("print('v2')\n", request_id="r-1")


def test_a_request_id_is_one_verb(stage: Stage) -> None:
    """A request id that stopped the stream cannot deploy it. (Law 2)"""
    stage.deploy()
    stage.controller.stop(STREAM, request_id="r-2")
    with pytest.raises(ConflictError, match="used for something else"):
        stage.deploy(request_id="r-2")


def test_a_running_stream_is_not_deployed_over(stage: Stage) -> None:
    """A deploy on what runs is refused with the way out, and leaves no trace. (Law 1)"""
    stage.deploy()
    stage.come_to_life()
    with pytest.raises(ConflictError, match="stop, drain or upgrade it first") as refused:
        stage.deploy("print('v2')\n", request_id="r-2")
    assert refused.value.next_step.startswith(f"`streamstate upgrade {STREAM}`")
    assert stage.control.request("r-2") is None
    assert stage.control.need_register().value.intent is None


def test_a_stopped_stream_is_restored(stage: Stage) -> None:
    """The snapshot at the end of a stopped deployment starts the next one with its state. (1a.9)"""
    stage.deploy()
    event = stage.stopped()
    view = stage.deploy("print('v2')\n")
    assert (view.deployment_id, view.start.mode, view.start.snapshot_id) == ("d-0002", "restore", event.snapshot_id)
    assert view.start.predecessor_id == "d-0001"


def test_a_drained_stream_is_seeded(stage: Stage) -> None:
    """The snapshot of a drain starts the next deployment with the offsets only. (Law 11; 1a.9)"""
    snapshot_id = drained(stage, state_rows_left=0)
    view = stage.deploy("print('v2')\n", snapshot_id=snapshot_id)
    assert (view.start.mode, view.start.snapshot_id) == ("seed", snapshot_id)


def test_state_that_a_drain_left_is_dropped_only_by_name(stage: Stage) -> None:
    """Rows that the flush left refuse a seed, unless they are discarded by name. (Law 16)"""
    left = (StateLeft("stateStoreSave", 0, 7, "it has no watermark"),)
    drained(stage, state_rows_left=7, state_left=left)
    with pytest.raises(IncompatibleUpgradeError, match="could not flush all state") as refused:
        stage.deploy("print('v2')\n")
    assert refused.value.context["state_left"] == {"counts": {"stateStoreSave": 7}}
    view = stage.deploy("print('v2')\n", discard_state=True)
    assert view.start.discard_state
    assert any("7" in note for note in view.notes)


@pytest.mark.parametrize("start", ["seed", "fresh"])
def test_a_start_that_contradicts_the_snapshot_is_refused(stage: Stage, start: str) -> None:
    """A stopped snapshot is never seeded; fresh is taken at its word, and said. (Law 5)"""
    stage.deploy()
    stage.stopped()
    if start == "seed":
        with pytest.raises(IncompatibleUpgradeError, match="can only be restored"):
            stage.deploy("print('v2')\n", start="seed")
    else:
        view = stage.deploy("print('v2')\n", start="fresh")
        assert (view.start.mode, view.start.snapshot_id) == ("fresh", None)
        assert "starts with empty state" in view.notes[0]


def test_a_drained_snapshot_is_never_restored(stage: Stage) -> None:
    """Restoring what was drained would drop every row as late. (Law 11)"""
    drained(stage, state_rows_left=0)
    with pytest.raises(IncompatibleUpgradeError, match="can only be seeded"):
        stage.deploy("print('v2')\n", start="restore")


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


def test_a_first_deployment_has_nothing_to_restore(stage: Stage) -> None:
    """Restoring a stream that never was is a mistake in its name. (Law 5)"""
    with pytest.raises(InvalidRequestError, match="never deployed"):
        stage.deploy(start="restore")
    assert list(stage.store.list_objects("")) == []


def test_a_retry_after_an_early_failure_is_the_next_attempt(stage: Stage) -> None:
    """The same request, after its deployment failed before its first commit, is its next attempt. (Law 2)"""
    stage.deploy(request_id="r-1")
    stage.come_to_life()
    stage.say(Failed, error="ValueError: no")
    stage.end()
    view = stage.deploy(request_id="r-1")
    assert (view.deployment_id, view.attempt, view.state) == ("d-0001", 2, "launching")
    assert "d-0001-a0002" in stage.launcher.requests


def test_a_retry_after_a_commit_finds_the_failure(stage: Stage) -> None:
    """The same request, after its deployment committed a batch and failed, starts nothing by itself. (Law 2)"""
    stage.deploy(request_id="r-1")
    stage.come_to_life(queries=("counts",))
    stage.run_batches(1)
    stage.say(Failed, error="ValueError: no")
    stage.end()
    view = stage.deploy(request_id="r-1")
    assert (view.attempt, view.state) == (1, "failed")


def test_a_clear_after_a_newer_deployment_is_a_conflict_that_names_it(stage: Stage) -> None:
    """A request whose deployment was replaced does not come back by itself. (Law 4)"""
    stage.deploy(request_id="r-1")
    stage.stopped()
    stage.deploy("print('v2')\n", request_id="r-2")
    with pytest.raises(ConflictError) as refused:
        stage.deploy(request_id="r-1")
    assert refused.value.context["current_deployment_id"] == "d-0002"


def test_somebody_elses_fresh_intent_is_respected(stage: Stage) -> None:
    """While one deploy is under way another is refused and told whose it is; an old intent is passed over. (1a.8)"""
    stage.deploy()
    stage.stopped()
    other = stage.another_controller()
    stage.launcher.refusal = None
    begun = stage.control.need_register()
    other._context.update_register(stage.control, lambda now: replace(now, intent=_intent(stage)), since=begun)
    with pytest.raises(ConflictError, match="under way") as refused:
        stage.deploy("print('v2')\n")
    assert refused.value.context["requested_by"] == "somebody else"
    with pytest.raises(ConflictError, match="under way"):
        stage.controller.resume(STREAM)
    stage.clock.advance(61)
    assert stage.deploy("print('v2')\n").deployment_id == "d-0003"


def _intent(stage: Stage) -> object:
    from airflow_streamstate.protocol.register import Intent

    return Intent("r-other", "d-0002", stage.clock.now(), "somebody else")


def test_a_launch_that_cannot_be_is_a_failed_deployment(stage: Stage) -> None:
    """What cannot run is told at once, and the deployment is failed, not launching for ever. (Law 1)"""
    stage.launcher.refusal = InvalidRequestError("no spark-submit was found")
    with pytest.raises(InvalidRequestError, match="spark-submit"):
        stage.deploy(request_id="r-1")
    status = stage.controller.status(STREAM)
    assert (status.state, "no spark-submit was found" in status.error) == ("failed", True)
    assert stage.deploy(request_id="r-1").attempt == 2


def test_a_crash_between_register_and_launch_is_mended_by_the_retry(stage: Stage) -> None:
    """A deployment that is current and was never launched is launched by the same request. (Laws 1 and 2)"""
    stage.launcher.refusal = UnavailableError("the machine is busy")
    with pytest.raises(UnavailableError):
        stage.deploy(request_id="r-1")
    assert stage.controller.status(STREAM).state == "launching"
    assert stage.deploy(request_id="r-1").attempt == 1
    assert list(stage.launcher.requests) == ["d-0001-a0001"]


def test_a_connection_that_only_airflow_knows_is_refused_first(stage: Stage) -> None:
    """A deployment through an Airflow connection is refused outside of Airflow before anything is recorded."""
    with pytest.raises(InvalidRequestError, match="Airflow connection"):
        stage.deploy(spark_conn_id="spark_default")
    assert list(stage.store.list_objects("")) == []


def test_a_deploy_looks_for_the_end_where_the_checkpoints_are(stage: Stage, tmp_path: Path) -> None:
    """Another checkpoints_uri is told with both values; only a fresh start may begin elsewhere. (Law 5)"""
    stage.deploy()
    stage.stopped()
    home = Home.of(stage.store, MemoryStore("elsewhere"), tmp_path, stage.clock)
    controller = Controller(home, stage.launcher, stage.clock, "tests")
    with pytest.raises(InvalidRequestError, match="lie elsewhere") as caught:
        controller.deploy(stage.request("print('v2')\n"))
    assert caught.value.context["checkpoints_uri"] == stage.store.uri
    assert caught.value.context["configured"] == home.checkpoints.uri
    assert stage.control.need_register().value.intent is None
    assert controller.deploy(stage.request("print('v2')\n", start="fresh")).start.mode == "fresh"


def test_who_deploys_beside_another_takes_his_checkpoints_for_no_namesakes(tmp_path: Path) -> None:
    """At whichever call of the one the other deploys and runs, the later one looks again, and is told who was first."""
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
