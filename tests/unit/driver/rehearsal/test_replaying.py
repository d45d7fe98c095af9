"""Recorded batches that a replay runs again into files, with simulated queries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.scratch import RehearsedQuery, Replay, RowComparison, StateComparison
from support.rehearsal_stage import REHEARSAL, Stage
from support.simulated_driver import STREAM, make_plan
from support.simulated_query import SimulatedPlan


def replayed(stage: Stage, plan: SimulatedPlan, out: Path, *batch_ids: int, name: str = "counts") -> RehearsedQuery:
    """The outcome of the one query."""
    stage.replayed(plan, {"counts": batch_ids}, str(out), name)
    return stage.verdict.queries[name]


def test_batches_run_again_into_files_and_into_no_sink(stage: Stage, plan: SimulatedPlan, tmp_path: Path) -> None:
    """Over their own bounds, on a fork that is gone afterwards; nothing else is touched. (Law 4)"""
    stage.stopped(plan)
    last, written, before = stage.last_batch_id, list(plan.sink.batches), stage.outside()
    found = replayed(stage, plan, tmp_path, last - 1, last)
    assert (found.outcome, [batch.batch_id for batch in found.replayed]) == ("accepted", [last - 1, last])
    for batch in found.replayed:
        folder = tmp_path / "counts" / f"batch={batch.batch_id}"
        assert (batch.folder, batch.files) == (str(folder), ("part-0.parquet",))
        rows = [rows for batch_id, rows in written if batch_id == batch.batch_id]
        assert (folder / "part-0.parquet").read_text() == repr(list(*rows))
        assert batch.rows_in
    assert plan.sink.batches == written
    assert stage.outside() == before
    trial = layout.trial_folder(STREAM, REHEARSAL, "counts")
    assert list(stage.stream.checkpoints.list_objects(f"{trial}/")) == []


def test_a_batch_that_was_planned_and_never_committed_runs_as_it_was_planned(
    stage: Stage, plan: SimulatedPlan, tmp_path: Path
) -> None:
    """The one that failed: it fails again with the script's own error, and runs in a version that is fixed."""
    stage.stopped(plan)
    checkpoint, last = stage.old_checkpoint, stage.last_batch_id
    checkpoint.store.delete(checkpoint.commit_key(last))
    for batch_id in checkpoint.offset_ids():
        if batch_id > last:
            checkpoint.store.delete(checkpoint.offset_key(batch_id))
    assert checkpoint.position().planned_id == last
    found = replayed(stage, replace(plan, fails_on_rows_of={last}), tmp_path / "a", last)
    (batch,) = found.replayed
    assert (found.outcome, batch.error) == ("failed", f"batch {last} failed: division by zero")
    assert found.error == f"batch {last} fails: batch {last} failed: division by zero"
    assert "division by zero" in batch.traceback
    assert list((tmp_path / "a").rglob("batch=*")) == []


def test_what_did_not_run_is_told(stage: Stage, plan: SimulatedPlan, tmp_path: Path) -> None:
    """The batches after the one that fails have no state to start with."""
    stage.stopped(plan)
    last = stage.last_batch_id
    found = replayed(stage, replace(plan, fails_on_rows_of={last - 1}), tmp_path, last - 1, last)
    assert [batch.batch_id for batch in found.replayed] == [last - 1]
    assert found.notes == (f"not run: batch {last}",)


def test_rows_are_compared_with_those_of_another_version(stage: Stage, plan: SimulatedPlan, tmp_path: Path) -> None:
    """Batch by batch; where the other has no rows, none are."""
    stage.stopped(plan)
    last = stage.last_batch_id
    old = replayed(stage, plan, tmp_path / "old", last)
    assert old.replayed[0].comparison is None
    stage.forget()
    stage.replayed(plan, {"counts": (last - 1, last)}, str(tmp_path / "new"), "counts", str(tmp_path / "old"))
    first, second = stage.verdict.queries["counts"].replayed
    assert first.comparison is None
    assert second.comparison == RowComparison(1, 0, 0)


def test_the_state_afterwards_is_compared_where_both_versions_came_to_their_end(
    stage: Stage, plan: SimulatedPlan, tmp_path: Path
) -> None:
    """Table by table; where the recorded version failed, a note reports why not."""
    stage.stopped(plan)
    last = stage.last_batch_id
    failing = replace(plan, fails_on_rows_of={last})
    for out, version in (("good", plan), ("bad", failing)):
        stage.replayed(version, {"counts": (last,)}, str(tmp_path / out), "counts", keeps_state=True)
        assert (tmp_path / out / "counts" / "_state").is_dir() == (out == "good")
        assert stage.verdict.queries["counts"].state == ()
        stage.forget()
    stage.replayed(plan, {"counts": (last,)}, str(tmp_path / "a"), "counts", str(tmp_path / "good"), keeps_state=True)
    found = stage.verdict.queries["counts"]
    assert found.state == (StateComparison("0-counts/rows", RowComparison(1, 0, 0)),)
    assert found.notes == ()
    stage.forget()
    stage.replayed(plan, {"counts": (last,)}, str(tmp_path / "b"), "counts", str(tmp_path / "bad"), keeps_state=True)
    found = stage.verdict.queries["counts"]
    assert (found.outcome, found.state) == ("accepted", ())
    assert found.notes[0].startswith("its state was not compared: the recorded version did not end")


def test_each_table_of_state_is_compared_or_named(stage: Stage, plan: SimulatedPlan, tmp_path: Path) -> None:
    """One that fails stops no other, and one that a version does not have is reported, whichever it is."""
    stage.stopped(plan)
    last, out = stage.last_batch_id, str(tmp_path / "old")
    older = replace(plan, state_tables=("0-a/rows", "0-counts/rows", "1-gone/rows", "1-unread/rows"))
    stage.replayed(older, {"counts": (last,)}, out, "counts", keeps_state=True)
    (tmp_path / "old" / "counts" / "_state" / "1-gone" / ".half.partial").mkdir()
    stage.forget()

    def fail(old_folder: str) -> None:
        if "0-a" in old_folder:
            raise ValueError("no order")

    newer = replace(
        plan,
        state_tables=("0-a/rows", "0-counts/rows", "2-new/rows"),
        state_problems=("1-unread/rows: no schema",),
        before_comparing=fail,
    )
    stage.replayed(newer, {"counts": (last,)}, str(tmp_path / "new"), "counts", out, keeps_state=True)
    found = stage.verdict.queries["counts"]
    assert found.state == (StateComparison("0-counts/rows", RowComparison(1, 0, 0)),)
    assert found.notes == (
        "its state could not be read: 1-unread/rows: no schema",
        "its state 0-a/rows was not compared: no order",
        "its state 1-gone/rows was not compared: the new version has none of that name",
        "its state 2-new/rows was not compared: the recorded version has none of that name",
    )


def test_batches_that_have_run_are_told_where_the_deadline_passes_in_a_comparison(
    stage: Stage, plan: SimulatedPlan, tmp_path: Path
) -> None:
    """The one that is compared, too; the rest is noted."""
    stage.stopped(plan)
    last, out = stage.last_batch_id, str(tmp_path / "old")
    stage.replayed(plan, {"counts": (last - 1, last)}, out, "counts")
    stage.forget()
    terms = Replay({"counts": (last - 1, last)}, str(tmp_path / "new"), out)
    rehearsing = stage.rehearsing(None, replay=terms)

    def late(old_folder: str) -> None:
        stage.stream.clock.sleep(200)
        rehearsing.end_if_overdue()

    stage.start(rehearsing, replace(plan, before_comparing=late))
    assert stage.verdict.outcome == "deadline"
    found = stage.verdict.queries["counts"]
    assert [batch.batch_id for batch in found.replayed] == [last - 1]
    assert found.notes == (f"not run: batch {last}",)


def test_a_function_is_called_only_where_there_is_one(stage: Stage, plan: SimulatedPlan, tmp_path: Path) -> None:
    """A query with another sink reports it."""
    stage.stopped(plan)
    terms = Replay({"counts": (stage.last_batch_id,)}, str(tmp_path), calls_foreach_batch=True)
    stage.rehearsed(plan, None, "counts", replay=terms)
    (note,) = stage.verdict.queries["counts"].notes
    assert note.startswith("it has no foreachBatch to call: its sink is ")


def test_a_function_that_fails_is_looked_into_while_its_rows_are_there(
    stage: Stage, plan: SimulatedPlan, tmp_path: Path
) -> None:
    """It is called once, with the rows of the batch; where it fails, its values are reported."""
    stage.stopped(plan)
    called: list[tuple[list[int], int]] = []

    def keep(batch_ids: list[int], rows: int) -> None:
        called.append((batch_ids, rows))
        if len(called) > 1:
            raise ValueError("no room")

    last = stage.last_batch_id
    terms = Replay({"counts": (last - 1, last)}, str(tmp_path), calls_foreach_batch=True)
    stage.rehearsed(replace(plan, foreach_batch=keep), None, "counts", replay=terms)
    found = stage.verdict.queries["counts"]
    first, second = found.replayed
    assert called == [([last - 1], first.rows_out), ([last], called[1][1])]
    assert (first.error, first.failed_at, second.error) == ("", "", "no room")
    assert ", in keep: batch_ids=" in second.failed_at
    assert "ValueError: no room" in second.traceback


def test_no_function_is_called_unless_it_is_asked_for(stage: Stage, plan: SimulatedPlan, tmp_path: Path) -> None:
    """Nor is it looked into where another one fails."""
    stage.stopped(plan)

    def keep(batch_ids: list[int], rows: int) -> None:
        raise AssertionError

    last = stage.last_batch_id
    asked = replace(plan, foreach_batch=keep)
    assert replayed(stage, asked, tmp_path / "a", last).outcome == "accepted"
    stage.forget()
    (batch,) = replayed(stage, replace(asked, fails_on_rows_of={last}), tmp_path / "b", last).replayed
    assert (batch.error, batch.failed_at) == (f"batch {last} failed: division by zero", "")


def test_state_that_is_gone_meanwhile_refuses(stage: Stage, plan: SimulatedPlan, tmp_path: Path) -> None:
    """A running query has moved on since the batches were chosen."""
    stage.stopped(plan)
    checkpoint = stage.old_checkpoint
    for info in list(checkpoint.store.list_objects(checkpoint.key("state/"))):
        if info.key.endswith((".delta", ".snapshot", ".zip")):
            checkpoint.store.delete(info.key)
    found = replayed(stage, plan, tmp_path, stage.last_batch_id)
    assert found.outcome == "refused"
    assert found.error.startswith("the log or the state of before these batches was cleaned up in the meantime")


def test_a_version_that_reads_other_sources_is_refused(stage: Stage, plan: SimulatedPlan, tmp_path: Path) -> None:
    """The entry of the batch has no bounds for them."""
    stage.stopped(plan)
    other = replace(plan, sources=[*plan.sources, *make_plan().sources])
    found = replayed(stage, other, tmp_path, stage.last_batch_id)
    assert found.outcome == "refused"
    assert found.error.startswith("this version reads another number of sources than the batch did")


def test_a_query_that_was_not_asked_for_is_not_run(stage: Stage, plan: SimulatedPlan, tmp_path: Path) -> None:
    """Its ``start()`` returns a query that has ended."""
    stage.stopped(plan)
    found = replayed(stage, plan, tmp_path, stage.last_batch_id, name="raw")
    assert (found.outcome, found.notes) == ("not_run", ("no batch of it was asked for",))
    assert list(tmp_path.iterdir()) == []
