"""Committed batches that a rehearsal runs again with their rows, with simulated queries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.scratch import RehearsedQuery
from support.rehearsal_stage import REHEARSAL, Stage
from support.simulated_connector import install_connector
from support.simulated_driver import STREAM, make_plan, waiting_script
from support.simulated_query import SimulatedPlan


def rehearsed(stage: Stage, plan: SimulatedPlan, snapshot_id: str, **asked: Any) -> RehearsedQuery:
    """The outcome of the one query; two batches are asked for, unless ``batches`` is set otherwise."""
    stage.rehearsed(plan, snapshot_id, **{"batches": 2, "rows": 1_000, **asked})
    return stage.verdict.queries["counts"]


def test_the_last_batches_run_again_with_their_rows(stage: Stage, plan: SimulatedPlan) -> None:
    """Over their own bounds, into no sink, on a fork that is gone afterwards; nothing else is touched. (Law 4)"""
    snapshot_id = stage.stopped(plan)
    written, before = list(plan.sink.batches), stage.outside()
    found = rehearsed(stage, plan, snapshot_id)
    last = stage.last_batch_id
    assert (found.outcome, found.batch_ids) == ("accepted", (last - 1, last))
    assert found.rows_in
    assert plan.sink.batches == written
    assert stage.outside() == before
    trial = layout.trial_folder(STREAM, REHEARSAL, "counts")
    assert list(stage.stream.checkpoints.list_objects(f"{trial}/")) == []


def test_without_rows_a_version_that_fails_on_one_is_accepted(stage: Stage, plan: SimulatedPlan) -> None:
    """Its empty batch runs: only rows show the failure."""
    snapshot_id = stage.stopped(plan)
    last = stage.last_batch_id
    broken = replace(plan, fails_on_rows_of={last})
    assert rehearsed(stage, broken, snapshot_id, batches=0).outcome == "accepted"


def test_a_version_that_fails_on_a_row_is_named_with_its_batch(stage: Stage, plan: SimulatedPlan) -> None:
    """The first batch that ran before it is reported, too."""
    snapshot_id = stage.stopped(plan)
    last = stage.last_batch_id
    found = rehearsed(stage, replace(plan, fails_on_rows_of={last}), snapshot_id)
    assert (found.outcome, found.batch_ids, found.fails_with_rows) == ("failed", (last - 1,), True)
    assert (
        found.error == f"batch {last} of d-0001, run again with its rows, fails: batch {last} failed: division by zero"
    )


def test_rows_are_bounded(stage: Stage, plan: SimulatedPlan) -> None:
    """No batch starts once the given number of rows was read; what did not run is reported."""
    snapshot_id = stage.stopped(plan)
    last = stage.last_batch_id
    found = rehearsed(stage, plan, snapshot_id, rows=1)
    assert found.batch_ids == (last - 1,)
    assert found.notes == (f"batch {last} was not run again: 1 rows had passed",)


@pytest.fixture
def with_connector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connector of simulated sources is installed."""
    install_connector(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("with_connector")
def test_a_batch_with_more_rows_is_read_in_part(stage: Stage) -> None:
    """By its source's own offsets, from its beginning; how much is reported, and the batch after it does not run."""
    plan = make_plan(shows_sources=True)
    snapshot_id = stage.stopped(plan)
    last = stage.last_batch_id
    found = rehearsed(stage, plan, snapshot_id, rows=4)
    assert (found.outcome, found.batch_ids, found.rows_in) == ("accepted", (last - 1,), 4)
    assert found.notes == (f"batch {last - 1} has 10 rows: about 4 of them were read",)


def test_without_the_state_of_before_the_rows_go_into_the_newest(stage: Stage, plan: SimulatedPlan) -> None:
    """Spark has cleaned up in the meantime; the verdict reports it."""
    snapshot_id = stage.stopped(plan)
    checkpoint = stage.old_checkpoint
    last = checkpoint.position().batch_id
    for info in list(checkpoint.store.list_objects(checkpoint.key("state/"))):
        if info.key.endswith((".delta", ".snapshot", ".zip")):
            checkpoint.store.delete(info.key)
    found = rehearsed(stage, plan, snapshot_id)
    assert (found.outcome, found.batch_ids) == ("accepted", (last,))
    assert found.notes == (f"the state of before batch {last} is not there any more: its rows were read into the newest"
                           " state",)  # fmt: skip


def test_a_version_after_a_drain_gets_rows_too(stage: Stage, plan: SimulatedPlan) -> None:
    """Its seed holds no state, and reads the last batch that read anything."""
    snapshot_id = stage.drained(plan)
    found = rehearsed(stage, plan, snapshot_id, mode="seed")
    assert (found.outcome, found.start) == ("accepted", "seeded")
    assert len(found.batch_ids) == 1
    assert found.rows_in


def test_a_stream_that_has_read_nothing_runs_an_empty_batch_alone(stage: Stage) -> None:
    """And the verdict reports it."""
    plan = make_plan(rows=0)
    snapshot_id = stage.stopped(plan)
    found = rehearsed(stage, plan, snapshot_id)
    assert found.outcome == "accepted"
    assert found.batch_ids == ()


def failed(stage: Stage, plan: SimulatedPlan, at: int = 3) -> str:
    """A deployment that fails over the rows of this batch; a snapshot of it as a rehearsal takes it."""
    stage.stream.deploy()
    stage.stream.run(waiting_script(replace(plan, fails_on_rows_of={at})))
    return stage.captured("counts")


def test_the_batch_at_which_a_stream_failed_runs_first(stage: Stage, plan: SimulatedPlan) -> None:
    """Over its own bounds and into no sink: a version that fails there, too, would be started for nothing."""
    snapshot_id = failed(stage, plan)
    written, before = list(plan.sink.batches), stage.outside()
    found = rehearsed(stage, plan, snapshot_id, batches=1)
    assert (found.outcome, found.batch_ids) == ("accepted", (3, 2))
    assert (plan.sink.batches, stage.outside()) == (written, before)


def test_a_version_that_fails_at_the_planned_batch_is_named_with_it(stage: Stage, plan: SimulatedPlan) -> None:
    """Its state fits, so a drain would not help."""
    found = rehearsed(stage, replace(plan, fails_on_rows_of={3}), failed(stage, plan))
    assert (found.outcome, found.batch_ids, found.fails_with_rows) == ("failed", (), True)
    assert found.error == (
        "batch 3, which is planned and runs first at a start, fails: batch 3 failed: division by zero"
    )


def test_state_that_does_not_fit_is_not_taken_for_rows_that_fail(stage: Stage, plan: SimulatedPlan) -> None:
    """The empty batch in the place of the planned one fails as well: a drain may help."""
    found = rehearsed(stage, replace(plan, fails_at={3}), failed(stage, plan))
    assert (found.outcome, found.fails_with_rows) == ("failed", False)
    assert "planned" not in found.error


def test_without_rows_the_planned_batch_is_named_and_not_run(stage: Stage, plan: SimulatedPlan) -> None:
    """As the caller asked."""
    found = rehearsed(stage, replace(plan, fails_on_rows_of={3}), failed(stage, plan), batches=0)
    assert (found.outcome, found.batch_ids) == ("accepted", ())
    assert found.notes == (
        "batch 3, which is planned and runs first at a start, was not run: no batch with rows was asked for",
    )
