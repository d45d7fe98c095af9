"""A rehearsal from the controller's side: what is recorded, what is launched, and what is removed."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.checkpoint.log import delete_with_crc
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.controller.scratch.rehearsal import (
    Rehearsals,
    RehearsalView,
    start_of,
)
from airflow_streamstate.controller.scratch.run import KEPT_REPORTS, LATE_SECONDS
from airflow_streamstate.errors import (
    ConflictError,
    IncompatibleUpgradeError,
    InvalidRequestError,
    SnapshotNotFoundError,
    StreamNotFoundError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Drained, Failed, QueryFailed, Stopped
from airflow_streamstate.protocol.ids import launch_key_for
from airflow_streamstate.protocol.scratch import RehearsedQuery, ScratchVerdict
from airflow_streamstate.protocol.terms.order import RehearsalTerms
from support.checkpoints import plan_batch
from support.faulty_store import KILL_POINTS, Fault, FaultPlan, FaultyStore, SimulatedCrash
from support.sim_stage import STREAM, Stage

pytestmark = pytest.mark.fast


class Rehearsed:
    """A stream with a running first deployment, and rehearsals of what is to follow it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        context = ControllerContext.of(stage.home, stage.launcher, stage.clock, "tests", None)
        self.rehearsals = Rehearsals(context)
        stage.deploy(conf={"spark.a": "1"})

    def runs(self, last: int = 3) -> Rehearsed:
        self.stage.come_to_life(queries=("counts",))
        self.stage.run_batches(last)
        return self

    def begin(self, request_id: str = "plan-1", *, rehearse: bool = True, **change: Any) -> RehearsalView:
        if "application" not in change:
            change["application"] = self.stage.script("print('v2')\n", "v2.py")
        return self.rehearsals.begin(
            change_request(STREAM, **change), request_id, terms=RehearsalTerms(rehearse=rehearse), deadline_seconds=100
        )

    def gives(self, view: RehearsalView, **facts: Any) -> None:
        """The driver gives its verdict, and ends."""
        values: dict[str, Any] = {
            "outcome": "done", "queries": {"counts": RehearsedQuery("accepted", "restored")}, "error": "", **facts
        }  # fmt: skip
        clock = self.stage.clock
        self.stage.control.create_verdict(
            ScratchVerdict(
                stream_id=STREAM, run_id=view.rehearsal_id, seconds=1.0, given_by="driver",
                given_at=clock.now(), write_id=clock.new_uuid(), **values,
            )
        )  # fmt: skip
        self.stage.launcher.states[launch_key_for(view.rehearsal_id, 1)] = "exited"

    def names(self, view: RehearsalView) -> set[str]:
        """What is right below the rehearsal."""
        folder = f"{layout.deployment_folder(STREAM, view.rehearsal_id)}/"
        keys = [info.key for info in self.stage.store.list_objects(folder)]
        return {key[len(folder) :].partition("/")[0] for key in keys}

    def outside(self) -> dict[str, bytes]:
        """Everything of the stream, but rehearsals and pinned files."""
        found = {}
        for info in self.stage.store.list_objects(f"{STREAM}/"):
            if not info.key.startswith((f"{STREAM}/scratch/", f"{STREAM}/artifacts/")):
                found[info.key] = self.stage.store.get(info.key).body  # type: ignore[union-attr]
        return found


@pytest.fixture
def rehearsed(stage: Stage) -> Rehearsed:
    return Rehearsed(stage)


def test_a_rehearsal_of_a_running_stream_forks_its_position_and_touches_nothing(rehearsed: Rehearsed) -> None:
    """A record first, the newest committed batch by links, its own driver; all else stays as it was."""
    rehearsed.runs(3)
    before = rehearsed.outside()
    view = rehearsed.begin(conf={"spark.b": "2"})
    assert rehearsed.outside() == before
    control = rehearsed.stage.control
    run, spec = control.scratch_run(view.rehearsal_id), control.spec(view.rehearsal_id)
    assert run is not None
    assert (run.deployment_id, run.rehearsal.terms.rehearse) == ("d-0001", True)
    assert run.deadline_at - run.created_at == timedelta(seconds=100)
    assert (spec.start.mode, spec.start.snapshot_id) == ("restore", view.rehearsal_id)
    manifest = control.need_manifest(view.rehearsal_id)
    assert manifest.queries["counts"].position.batch_id == 3
    request = rehearsed.stage.launcher.requests[launch_key_for(view.rehearsal_id, 1)]
    assert request.driver_config["deployment_id"] == view.rehearsal_id
    assert request.conf == {"spark.a": "1", "spark.b": "2"}
    assert request.application.endswith("/v2.py")
    assert f"/scratch/{view.rehearsal_id}/" in request.folder
    assert rehearsed.rehearsals.is_over(STREAM, view.rehearsal_id) is False


def test_the_batch_at_which_a_query_failed_is_forked_with_it(rehearsed: Rehearsed) -> None:
    """Every start runs it first. Of a query that runs, the planned batch is the one that is under way."""
    rehearsed.runs(3)
    stage = rehearsed.stage
    plan_batch(stage.checkpoint(), 4)

    def planned(request_id: str) -> int | None:
        manifest = stage.control.need_manifest(rehearsed.begin(request_id).rehearsal_id)
        return manifest.queries["counts"].position.planned_batch_id

    assert planned("plan-1") is None
    stage.say(
        QueryFailed, query_name="counts", query_id="id", query_run_id="run", batch_id=3, planned_batch_id=4, error="e"
    )
    assert planned("plan-2") == 4  # of a stream whose other queries run on
    stage.say(Failed, error="e")
    assert planned("plan-3") == 4


def test_a_stream_that_failed_in_its_first_batch_is_forked_with_it(rehearsed: Rehearsed) -> None:
    """Nothing is committed, and the new version would start with that batch, too."""
    rehearsed.stage.come_to_life(queries=("counts",))
    checkpoint = rehearsed.stage.run_batches(0)
    delete_with_crc(checkpoint.store, checkpoint.commit_key(0))
    rehearsed.stage.say(Failed, error="e")
    view = rehearsed.begin()
    position = rehearsed.stage.control.need_manifest(view.rehearsal_id).queries["counts"].position
    assert (view.start.mode, position.batch_id, position.planned_batch_id) == ("restore", None, 0)


def test_what_it_made_is_removed_and_the_report_is_kept(rehearsed: Rehearsed) -> None:
    """Once it has ended; twice is once."""
    view = rehearsed.runs().begin()
    assert {"data", "manifest.json", "spec.json", "launches"} <= rehearsed.names(view)
    rehearsed.gives(view)
    assert rehearsed.rehearsals.is_over(STREAM, view.rehearsal_id)
    for _ in range(2):
        _, verdict = rehearsed.rehearsals.conclude(STREAM, view.rehearsal_id)
        assert verdict.outcome == "done"
        assert rehearsed.names(view) == {"run.json", "verdict.json"}
    folder = rehearsed.stage.home.launch_path(layout.deployment_folder(STREAM, view.rehearsal_id))
    assert not folder.exists()


def test_a_stream_that_was_stopped_is_rehearsed_from_the_snapshot_at_its_end(rehearsed: Rehearsed) -> None:
    """Just what a deploy would start from (1a.9): nothing is captured, and no event of the stream is written."""
    rehearsed.stage.stopped(3)
    view = rehearsed.begin()
    assert view.start.snapshot_id == "d-0001-stopped-000001"
    assert "data" not in rehearsed.names(view)
    *_, last = rehearsed.stage.control.journal("d-0001").events()
    assert isinstance(last.event, Stopped)
    assert list(rehearsed.stage.control.journal(view.rehearsal_id).events()) == []


def test_a_snapshot_that_is_gone_is_told_and_nothing_is_left(rehearsed: Rehearsed) -> None:
    """Nothing is rehearsed on anything else (Law 5)."""
    event = rehearsed.stage.stopped(3)
    rehearsed.stage.store.delete(layout.manifest_key(STREAM, str(event.snapshot_id)))
    with pytest.raises(SnapshotNotFoundError):
        rehearsed.begin()
    assert rehearsed.stage.control.scratch_ids() == []


def test_state_that_a_drain_left_refuses_the_change_as_a_deploy_would(rehearsed: Rehearsed) -> None:
    """Unless the user drops it by name (Law 16)."""
    stage = rehearsed.runs().stage
    stage.flush()
    manifest = stage.keep("drained", state_rows_left=7)
    positions = {name: query.position for name, query in manifest.queries.items()}
    stage.say(Drained, command_id="c", command_number=1, snapshot_id=manifest.snapshot_id, queries=positions)
    stage.end()
    with pytest.raises(IncompatibleUpgradeError, match="could not flush"):
        rehearsed.begin()
    assert stage.control.scratch_ids() == []
    assert rehearsed.begin(allow_state_loss=True).start.mode == "seed"


def test_the_position_is_forked_once(rehearsed: Rehearsed) -> None:
    """A start that is continued rehearses what the first try found (Law 2)."""
    rehearsed.runs(3)
    stage, change = rehearsed.stage, change_request(STREAM)
    for _ in range(2):
        start = start_of(stage.home, stage.control, stage.seen(), change, "r-0b8e3c525f0e-0001")
        assert start.plan.snapshot_id == "r-0b8e3c525f0e-0001"
        stage.run_batches(4)
    manifest = stage.control.need_manifest("r-0b8e3c525f0e-0001")
    assert (manifest.snapshot_kind, manifest.queries["counts"].position.batch_id) == ("live", 3)


def test_nothing_committed_yet_is_rehearsed_with_nothing(rehearsed: Rehearsed) -> None:
    """There is no state that could refuse it."""
    rehearsed.stage.come_to_life()
    view = rehearsed.begin()
    assert (view.start.mode, view.start.snapshot_id) == ("fresh", None)


def test_the_same_request_is_the_same_rehearsal_while_it_lasts(rehearsed: Rehearsed) -> None:
    """A retry waits on; one that has ended is started again; another request under the id is refused (Law 2)."""
    first = rehearsed.runs().begin()
    assert rehearsed.begin().rehearsal_id == first.rehearsal_id
    assert len([call for call in rehearsed.stage.launcher.requests if call.startswith("r-")]) == 1
    with pytest.raises(ConflictError, match="used for something else"):
        rehearsed.begin(conf={"spark.b": "3"})
    assert rehearsed.begin("plan-2", conf={"spark.b": "3"}).rehearsal_id != first.rehearsal_id
    rehearsed.gives(first)
    assert rehearsed.begin().rehearsal_id == first.rehearsal_id.replace("-0001", "-0002")


def test_a_begin_that_was_cut_short_is_gone_on_with(rehearsed: Rehearsed) -> None:
    """The store or the machine was away: what is recorded is used, and a driver is launched once."""
    rehearsed.runs()
    rehearsed.stage.launcher.refusal = UnavailableError("the disk is full")
    with pytest.raises(UnavailableError):
        rehearsed.begin()
    (rehearsal_id,) = rehearsed.stage.control.scratch_ids()
    assert rehearsed.begin().rehearsal_id == rehearsal_id


def test_what_cannot_be_launched_leaves_nothing(rehearsed: Rehearsed) -> None:
    """A wrong master, a file that is not there, a stream or a rehearsal that is not there."""
    rehearsed.runs().stage.launcher.complaint = InvalidRequestError("no such master")
    with pytest.raises(InvalidRequestError, match="no such master"):
        rehearsed.begin()
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        rehearsed.begin(application=rehearsed.stage.folder / "missing.py")
    assert rehearsed.stage.control.scratch_ids() == []
    with pytest.raises(StreamNotFoundError):
        rehearsed.rehearsals.begin(change_request("nowhere"), "p", deadline_seconds=10)
    with pytest.raises(InvalidRequestError, match="no such rehearsal"):
        rehearsed.rehearsals.conclude(STREAM, "r-000000000000-0001")


def test_a_driver_that_dies_without_a_verdict_has_failed(rehearsed: Rehearsed) -> None:
    """The end of its log reports more; its secrets do not show."""
    view = rehearsed.runs().begin()
    rehearsed.stage.launcher.log = "Exception in thread main\nno such package\n"
    rehearsed.stage.launcher.states[launch_key_for(view.rehearsal_id, 1)] = "exited"
    assert rehearsed.rehearsals.is_over(STREAM, view.rehearsal_id)
    _, verdict = rehearsed.rehearsals.conclude(STREAM, view.rehearsal_id)
    assert (verdict.outcome, verdict.given_by) == ("failed", "controller")
    assert "ended without a verdict" in verdict.error
    assert verdict.log_tail.endswith("no such package")
    assert rehearsed.names(view) == {"run.json", "verdict.json"}


def test_a_driver_that_hangs_is_killed_after_its_deadline(rehearsed: Rehearsed) -> None:
    """It is given the time to end itself (Law 6)."""
    view = rehearsed.runs().begin()
    rehearsed.stage.clock.advance(100 + LATE_SECONDS - 1)
    assert not rehearsed.rehearsals.is_over(STREAM, view.rehearsal_id)
    rehearsed.stage.clock.advance(2)
    assert rehearsed.rehearsals.is_over(STREAM, view.rehearsal_id)
    _, verdict = rehearsed.rehearsals.conclude(STREAM, view.rehearsal_id)
    assert verdict.outcome == "deadline"
    assert f"kill {launch_key_for(view.rehearsal_id, 1)}" in rehearsed.stage.launcher.calls
    assert rehearsed.names(view) == {"run.json", "verdict.json"}


def test_the_next_controller_removes_what_a_dead_one_left(rehearsed: Rehearsed) -> None:
    """By the record: what has ended, and what is late; not what may still continue."""
    left = rehearsed.runs().begin("plan-1")
    rehearsed.stage.launcher.states[launch_key_for(left.rehearsal_id, 1)] = "gone"
    others = rehearsed.begin("plan-2")
    assert rehearsed.names(left) == {"run.json", "verdict.json"}
    rehearsed.rehearsals.sweep(STREAM)
    assert "spec.json" in rehearsed.names(others)
    rehearsed.gives(others)
    rehearsed.rehearsals.sweep(STREAM)
    assert rehearsed.names(others) == {"run.json", "verdict.json"}


@pytest.mark.parametrize("what", ["object", "launch"])
def test_what_a_late_driver_or_another_machine_left_is_removed(rehearsed: Rehearsed, what: str) -> None:
    """A driver that could not be ended writes into a removed folder; launches belong to one machine."""
    view = rehearsed.runs().begin()
    rehearsed.gives(view)
    rehearsed.rehearsals.conclude(STREAM, view.rehearsal_id)
    folder = layout.deployment_folder(STREAM, view.rehearsal_id)
    launch = rehearsed.stage.home.launch_path(f"{folder}/launches/key")
    if what == "object":
        rehearsed.stage.store.put(f"{folder}/checkpoints/counts/metadata", b"{}")
    else:
        launch.mkdir(parents=True)
    rehearsed.rehearsals.sweep(STREAM)
    assert rehearsed.names(view) == {"run.json", "verdict.json"}
    assert not launch.exists()


def test_a_sweep_leaves_a_folder_without_a_record(rehearsed: Rehearsed) -> None:
    """Its record was removed just now, and a run of the same request may have started in it since."""
    view = rehearsed.runs().begin()
    record = layout.scratch_run_key(STREAM, view.rehearsal_id)
    stored = rehearsed.stage.store.get(record)
    assert stored is not None
    rehearsed.stage.store.delete(record)
    before = rehearsed.names(view)
    rehearsed.rehearsals.sweep(STREAM)
    assert rehearsed.names(view) == before


def test_old_reports_are_not_kept_for_ever(rehearsed: Rehearsed) -> None:
    """The newest of them are."""
    rehearsed.runs()
    views = []
    for number in range(KEPT_REPORTS + 2):
        views.append(rehearsed.begin(f"plan-{number}"))
        rehearsed.gives(views[-1])
        rehearsed.rehearsals.conclude(STREAM, views[-1].rehearsal_id)
        rehearsed.stage.clock.advance(60)
    rehearsed.rehearsals.sweep(STREAM)
    kept = set(rehearsed.stage.control.scratch_ids())
    assert kept == {view.rehearsal_id for view in views[2:]}


@pytest.mark.parametrize("fault", KILL_POINTS)
def test_a_controller_that_dies_anywhere_leaves_a_stream_as_it_was(tmp_path: Path, fault: Fault) -> None:
    """At each call of a start, and at each of a conclusion: the next one removes all that is left, and no stream, no
    checkpoint and no event has changed (Laws 1 and 4)."""
    number = 0
    while True:
        number += 1
        stage = Stage(tmp_path / f"{fault.name}-{number}")
        stage.folder.mkdir()
        rehearsed = Rehearsed(stage).runs(3)
        before = rehearsed.outside()
        plan = FaultPlan({number: fault})
        store = FaultyStore(stage.store, plan)
        dying = Rehearsed.__new__(Rehearsed)
        dying.stage = stage
        home = Home.of(store, store, stage.folder, stage.clock)
        dying.rehearsals = Rehearsals(ControllerContext.of(home, stage.launcher, stage.clock, "tests", None))
        with suppress(SimulatedCrash, StreamStateError):
            view = dying.begin()
            dying.rehearsals.conclude(STREAM, view.rehearsal_id)
        stage.clock.advance(100 + LATE_SECONDS + 1)
        rehearsed.rehearsals.sweep(STREAM)
        for rehearsal_id in stage.control.scratch_ids():
            folder = f"{layout.deployment_folder(STREAM, rehearsal_id)}/"
            left = {info.key[len(folder) :] for info in stage.store.list_objects(folder)}
            assert left == {"run.json", "verdict.json"}, (number, left)
            key = launch_key_for(rehearsal_id, 1)
            assert stage.launcher.states.get(key, "gone") in ("gone", "exited"), number
        assert rehearsed.outside() == before, number
        if number > len(plan.calls):
            break
    assert number > 20
