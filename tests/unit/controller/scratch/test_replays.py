"""A replay from the controller's side: what is recorded, what is launched, what is removed, and the report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.controller.scratch.replays import PlannedReplay, ReplayRequest, ReplayView
from airflow_streamstate.controller.scratch.run import Report
from airflow_streamstate.errors import (
    ConflictError,
    DeploymentNotFoundError,
    InvalidRequestError,
    StreamNotFoundError,
)
from airflow_streamstate.plan.replay_report import NOT_STARTED, replay_report
from airflow_streamstate.plan.report import PlanReport, QueryReport
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import launch_key_for
from airflow_streamstate.protocol.scratch import (
    RehearsedQuery,
    Replay,
    ReplayedBatch,
    ScratchRun,
    ScratchVerdict,
)
from airflow_streamstate.protocol.terms.version import LauncherChoice
from support.sim_stage import STREAM, Stage


@pytest.fixture
def running(stage: Stage) -> Stage:
    """A stream that runs and has committed the batches 0 to 3."""
    stage.deploy(conf={"spark.a": "1"})
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    return stage


def request_for(out: Path, *, conf: dict[str, str] | None = None, **asked: Any) -> ReplayRequest:
    change = change_request(STREAM, master="local[*]", conf=conf or {})
    return ReplayRequest(change=change, out=str(out), **{"deadline_seconds": 100, **asked})


def begin(stage: Stage, out: Path, **asked: Any) -> ReplayView:
    return stage.controller.replays.begin(request_for(out, **asked))


def outside(stage: Stage) -> dict[str, bytes]:
    """Everything of the stream, but rehearsals and pinned files."""
    own = (f"{STREAM}/scratch/", f"{STREAM}/artifacts/")
    keys = [info.key for info in stage.store.list_objects(f"{STREAM}/") if not info.key.startswith(own)]
    return {key: stored.body for key in keys if (stored := stage.store.get(key)) is not None}


def verdict_of(view: ReplayView, stage: Stage, **facts: Any) -> ScratchVerdict:
    """``facts``: what is not as of a replay whose one query has run one batch."""
    values: dict[str, Any] = {
        "outcome": "done",
        "queries": {"counts": RehearsedQuery("accepted", replayed=(ReplayedBatch(3, 10, 2, 0.5, "/o", ("a",)),))},
        "error": "",
        **facts,
    }
    return ScratchVerdict(
        stream_id=STREAM, run_id=view.replay_id, seconds=1.0, given_by="driver",
        given_at=stage.clock.now(), write_id=stage.clock.new_uuid(), **values,
    )  # fmt: skip


def test_a_running_stream_is_replayed_beside_it(running: Stage, tmp_path: Path) -> None:
    """A record with its deadline first, a driver of the recorded version, and all else as it was. (Law 1, Law 4)"""
    before = outside(running)
    view = begin(running, tmp_path / "out", conf={"spark.b": "2"}, last=2)
    assert outside(running) == before
    assert (view.deployment_id, view.batches, view.out) == ("d-0001", {"counts": (2, 3)}, str(tmp_path / "out"))
    run = running.control.scratch_run(view.replay_id)
    assert run is not None
    assert run.what == Replay({"counts": (2, 3)}, str(tmp_path / "out"))
    assert run.deadline_at - run.created_at == timedelta(seconds=100)
    spec, recorded = running.control.spec(view.replay_id), running.control.spec("d-0001")
    runs, ran = spec.version, recorded.version
    assert (runs.application, runs.arguments) == (ran.application, ran.arguments)
    assert (runs.master, runs.conf) == ("local[*]", {"spark.a": "1", "spark.b": "2"})
    request = running.launcher.requests[launch_key_for(view.replay_id, 1)]
    assert request.driver_config["deployment_id"] == view.replay_id
    assert not (tmp_path / "out").exists()


def test_a_stream_that_runs_elsewhere_is_replayed_on_this_machine(stage: Stage, tmp_path: Path) -> None:
    """The rows must be in a folder of this machine."""
    stage.deploy(launcher=LauncherChoice("kubernetes", {"image": "spark:1"}))
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    assert stage.spec().version.launcher is not None
    spec = stage.control.spec(begin(stage, tmp_path / "out").replay_id)
    assert (spec.version.launcher, spec.version.master) == (None, "local[*]")


def test_what_it_made_is_removed_and_its_answer_is_kept(running: Stage, tmp_path: Path) -> None:
    """As of a rehearsal."""
    view = begin(running, tmp_path / "out")
    running.control.create_verdict(verdict_of(view, running))
    running.launcher.states[launch_key_for(view.replay_id, 1)] = "exited"
    report = running.controller.replays.wait(view)
    assert report.outcome == "done"
    assert report.to_json()["queries"]["counts"]["batches"][0]["rows_out"] == 2
    folder = f"{layout.deployment_folder(STREAM, view.replay_id)}/"
    keys = {info.key.removeprefix(folder) for info in running.store.list_objects(folder)}
    assert keys == {"run.json", "verdict.json"}


def test_a_driver_that_cannot_be_launched_leaves_nothing(running: Stage, tmp_path: Path) -> None:
    """The record goes, too."""
    running.launcher.refusal = InvalidRequestError("there is no spark-submit here")
    with pytest.raises(InvalidRequestError, match="no spark-submit"):
        begin(running, tmp_path / "out")
    assert running.control.scratch_ids() == []


def test_a_replay_that_is_given_up_leaves_its_reports_alone(running: Stage, tmp_path: Path) -> None:
    """Its driver is ended."""
    view = begin(running, tmp_path / "out")
    running.controller.replays.give_up(STREAM, view.replay_id)
    assert f"kill {launch_key_for(view.replay_id, 1)}" in running.launcher.calls


def test_what_does_not_exist_is_told(running: Stage, tmp_path: Path) -> None:
    """Before anything is recorded."""
    with pytest.raises(DeploymentNotFoundError):
        begin(running, tmp_path / "out", deployment_id="d-0009")
    with pytest.raises(InvalidRequestError, match="has not planned this batch"):
        begin(running, tmp_path / "out", batch_id=4)
    with pytest.raises(StreamNotFoundError):
        running.controller.replays.begin(ReplayRequest(change=change_request("nowhere")))
    assert running.control.scratch_ids() == []


def test_of_the_queries_of_a_plan_those_with_a_batch_are_replayed(running: Stage, tmp_path: Path) -> None:
    """The others are noted; without any of them nothing is recorded."""
    unused = running.checkpoint("raw", "d-0001")
    unused.store.put(unused.metadata_key, b'{"id":"7d444840-9dc0-41d1-b245-5ffdce74fad2"}')
    with pytest.raises(InvalidRequestError, match="none has read rows yet"):
        begin(running, tmp_path / "out")
    view = begin(running, tmp_path / "out", among=("counts", "raw"))
    assert view.batches == {"counts": (3,)}
    run = running.control.scratch_run(view.replay_id)
    assert run is not None
    (note,) = run.notes
    assert note.startswith("query raw: no batch of this query can be replayed")
    with pytest.raises(InvalidRequestError, match="no query of this deployment has a checkpoint whose batches"):
        begin(running, tmp_path / "other", among=("nothing",))
    assert running.control.scratch_ids() == [view.replay_id]


def test_what_interrupts_the_wait_ends_the_replay(running: Stage, tmp_path: Path) -> None:
    """Its driver is killed, and its launch is gone."""

    @contextmanager
    def interrupted(_view: ReplayView) -> Iterator[Report]:
        yield lambda _text: None
        raise KeyboardInterrupt

    request = request_for(tmp_path / "out", deadline_seconds=1)
    with pytest.raises(KeyboardInterrupt):
        running.controller.replays.run(request, interrupted)
    (replay_id,) = running.control.scratch_ids()
    assert f"kill {launch_key_for(replay_id, 1)}" in running.launcher.calls


def test_a_script_that_changed_since_its_rehearsal_is_not_replayed(running: Stage) -> None:
    """What a person approves is what was planned."""
    script = running.script("v2", "v2.py")
    change = change_request(STREAM, script)
    view = running.controller.plans.begin(change)
    query = QueryReport("same", rehearsed=RehearsedQuery("accepted", "restored"))
    report = PlanReport(STREAM, view.rehearsal_id, "d-0001", "fits", "", "same", {"counts": query}, True, 1.0)
    running.script("v3", "v2.py")
    known = running.control.scratch_ids()
    with pytest.raises(ConflictError, match="was changed while it was planned"):
        running.controller.replays.add_to(PlannedReplay(report, change_request(STREAM, script), 1), nullcontext)
    assert running.control.scratch_ids() == known


@pytest.mark.parametrize(
    ("facts", "outcome", "error"),
    [
        ({}, "done", ""),
        ({"queries": {"counts": RehearsedQuery("failed", error="batch 3 fails: KeyError: 'k'")}}, "failed", "KeyError"),
        ({"queries": {"counts": RehearsedQuery("refused", error="the rows are gone")}}, "refused", "rows are gone"),
        ({"queries": {}}, "failed", NOT_STARTED),
        ({"queries": {}, "outcome": "failed", "error": "ImportError: no rules"}, "failed", "ImportError"),
        ({"queries": {}, "outcome": "deadline", "error": "it was not over"}, "deadline", "it was not over"),
    ],
)
def test_the_report_says_what_became_of_each_query(
    stage: Stage, facts: dict[str, Any], outcome: str, error: str
) -> None:
    """A query that was asked for and never started is a failure of the script."""
    view = ReplayView(STREAM, "r-0b8e3c525f0e-0001", "d-0001", {"counts": (3,)}, "/out", stage.clock.now())
    replay, now = Replay(view.batches, view.out), stage.clock.now()
    run = ScratchRun(STREAM, view.replay_id, "d-0001", replay, now, now, "tests", "request", "0" * 64, "w")
    report = replay_report(run, verdict_of(view, stage, **facts))
    assert (report.outcome, report.queries["counts"].outcome) == (outcome, outcome)
    assert error in report.queries["counts"].error
