"""Batches that ran again after a kill are named, with what their sink makes of that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_streamstate.checkpoint.log import format_offset_entry
from airflow_streamstate.control.registers import Retention
from airflow_streamstate.controller.observe.handovers import Repeat, describe, describe_repeats
from airflow_streamstate.controller.observe.lineage import lineage_of, repeats_to_come
from airflow_streamstate.plan.model import PlannedSink, RecordedPlan
from airflow_streamstate.plan.record import record_plan
from airflow_streamstate.protocol.events import BatchRepeated, QueryStarted
from airflow_streamstate.protocol.policies import SettledLineage
from airflow_streamstate.protocol.positions import SourceIdentity, SourceMove
from support.example_plan import EXAMPLE_PLAN
from support.sim_stage import STREAM, Stage
from support.snapshots import plan_stateful

KAFKA = SourceIdentity("kafka", "kafka subscribe in")


def killed_in_batch(stage: Stage, *sinks: PlannedSink) -> None:
    """Batches 0 to 3 are committed, batch 4 is planned over 20 rows of Kafka, and its driver was killed."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    checkpoint = stage.run_batches(3)
    plan_stateful(checkpoint, 4)
    for batch_id in (3, 4):
        entry = checkpoint.read_offset(batch_id)
        line = f'{{"in":{{"0":{batch_id * 10},"1":{batch_id * 10}}}}}'
        moved = replace(entry, source_lines=(line,))
        checkpoint.store.put(checkpoint.offset_key(batch_id), format_offset_entry(moved))
    for sink in sinks:
        record_plan(
            stage.control,
            RecordedPlan(STREAM, "d-0001", "counts", 1, 1, replace(EXAMPLE_PLAN, sink=sink), "w", stage.clock.now()),
        )
    stage.end(state="gone")
    stage.clock.sleep(5)


def started_again(stage: Stage, attempt: int, sink: str, planned: int | None = 4) -> None:
    """An attempt starts the query over what it finds planned."""
    stage.say(
        QueryStarted, attempt=attempt, query_name="counts", query_id="id", query_run_id=f"run-{attempt}",
        how="continued", batch_id=3, planned_batch_id=planned, repairs=(), sink=sink, trigger="default",
        output_mode="append", identities=(KAFKA,),
    )  # fmt: skip


def audited(stage: Stage) -> dict[str, Any]:
    return lineage_of(stage.home, STREAM).to_json()


def to_come(stage: Stage, attempt: int = 2) -> list[Repeat]:
    """What the next attempt would run again."""
    events = [entry.event for entry in stage.control.journal("d-0001").events() if entry.event is not None]
    return repeats_to_come(stage.control, "d-0001", attempt, events, {"counts": stage.checkpoint()})


def told_again(stage: Stage, attempt: int, batch_id: int = 4, means: str = "doubled", rows: int = 20) -> None:
    """The driver is about to run a batch again."""
    move = SourceMove("kafka subscribe in", '{"in":{"0":30}}', '{"in":{"0":37}}', rows, 0, "rows")
    stage.say(
        BatchRepeated, attempt=attempt, query_name="counts", batch_id=batch_id, sink="kafka copies", means=means,
        moves=(move,),
    )  # fmt: skip


def test_a_batch_that_runs_again_into_kafka_is_named_with_its_rows(stage: Stage) -> None:
    """Query, batch, attempt, sink, offsets, and so the rows at most."""
    killed_in_batch(stage, PlannedSink("kafka", "kafka", "copies", "kafka", "nothing"))
    started_again(stage, 1, "kafka", planned=None)
    (one,) = to_come(stage)
    assert (one.deployment_id, one.query_name, one.batch_id, one.attempt, one.at) == ("d-0001", "counts", 4, 2, "")
    assert (one.sink, one.means, one.rows_at_most) == ("kafka copies", "doubled", 20)
    (move,) = one.moves
    assert (move.from_offset, move.to_offset) == ('{"in":{"0":30,"1":30}}', '{"in":{"0":40,"1":40}}')


def test_each_attempt_that_ran_it_again_is_named(stage: Stage) -> None:
    """A batch that was killed twice may be there three times; the chain itself is complete, and reports it."""
    killed_in_batch(stage)
    for attempt in (2, 3):
        told_again(stage, attempt)
        started_again(stage, attempt, "kafka")
    found = audited(stage)
    assert [one["attempt"] for one in found["may_be_doubled"]] == [2, 3]
    assert [one["rows_at_most"] for one in found["may_be_doubled"]] == [20, 20]
    assert (found["not_doubled"], found["ok"], found["overlaps"]) == ([], True, [])


@pytest.mark.parametrize(
    ("sink", "means"),
    [
        (PlannedSink("foreachBatch", "foreachbatch"), "unknown"),
        (PlannedSink("file:parquet", "parquet", "/out", "file", "batch_id"), "skipped"),
        (PlannedSink("delta", "delta", "/t"), "skipped"),
        (PlannedSink("iceberg", "iceberg", "db.t"), "skipped"),
        (PlannedSink("iceberg", "iceberg", "db.t", options={"branch": "audit"}), "doubled"),
        (PlannedSink("table:db.t", "delta", "db.t"), "skipped"),
        (PlannedSink("table:db.t", ""), "unknown"),
        (PlannedSink("console", "console"), "doubled"),
        (PlannedSink("noop", "noop"), "skipped"),
        (PlannedSink("memory", "memory"), "skipped"),
        (PlannedSink("pulsar", "pulsar"), "unknown"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.kind} {value.format} {dict(value.options)}",
)
def test_what_each_sink_makes_of_it(stage: Stage, sink: PlannedSink, means: str) -> None:
    """By the sink in the recorded plan; one that no connector knows is not taken for one that can report it."""
    killed_in_batch(stage, sink)
    started_again(stage, 1, sink.kind, planned=None)
    (one,) = to_come(stage)
    assert (one.means, one.batch_id, one.may_be_doubled) == (means, 4, means != "skipped")


@pytest.mark.parametrize(
    ("sink", "words"),
    [
        (PlannedSink("foreachBatch", "foreachbatch", "foreachbatch"), "foreachBatch"),
        (PlannedSink("memory", "memory", "memory"), "memory"),
        (PlannedSink("file:parquet", "parquet", "/out", "file"), "file:parquet /out"),
        (PlannedSink("table:db.t", "delta", "db.t"), "table:db.t"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.kind,
)
def test_a_sink_is_named_once(stage: Stage, sink: PlannedSink, words: str) -> None:
    """A target that only repeats the kind is left out."""
    assert sink.described == words
    killed_in_batch(stage, sink)
    started_again(stage, 1, sink.kind, planned=None)
    assert [one.sink for one in to_come(stage)] == [words]


def test_a_start_over_committed_batches_alone_is_no_repeat(stage: Stage) -> None:
    """After a stop nothing is planned: nothing ran again."""
    killed_in_batch(stage)
    started_again(stage, 2, "kafka", planned=None)
    found = audited(stage)
    assert (found["may_be_doubled"], found["not_doubled"]) == ([], [])


def test_offsets_that_are_gone_are_not_guessed(stage: Stage) -> None:
    """Where the log of its driver did not reach back: the batch is named, its rows are unknown."""
    killed_in_batch(stage)
    stage.say(
        BatchRepeated, attempt=2, query_name="counts", batch_id=4, sink="kafka copies", means="doubled", moves=()
    )  # fmt: skip
    (one,) = audited(stage)["may_be_doubled"]
    assert (one["batch_id"], one["rows_at_most"], one["moves"]) == (4, None, [])


def repeat(means: str = "doubled", **changes: Any) -> Repeat:
    values: dict[str, Any] = {"at": "2026-03-01T10:00:00Z", **changes}
    return Repeat("d-0001", "copies", 7, 2, "kafka out", means, **values)


def test_one_sentence_names_what_may_be_doubled_before_what_is_not() -> None:
    """It is what `status` and `resume` report; three batches are named, the others counted."""
    assert describe_repeats("orders", []) == ""
    mixed = describe_repeats("orders", [repeat("skipped"), repeat()])
    assert mixed.startswith("rows may be doubled: batch 7 of copies ran again, into kafka out, which cannot detect it")
    assert describe_repeats("orders", [repeat("skipped")]) == (
        "nothing is doubled: batch 7 of copies ran again, into kafka out, where no batch is there twice"
    )
    assert "and 2 more, which `streamstate audit orders` lists" in describe_repeats("orders", [repeat()] * 5)


def test_how_much_is_told_where_every_source_tells_it() -> None:
    """In rows where all count rows, else in the units of each; a flush reads no input."""
    rows = SourceMove("kafka subscribe in", "a", "b", 1200, 0, "rows")
    files = SourceMove("file /in", "a", "b", 3, 0, "files")
    untold = SourceMove("rate", "1", "2")
    assert describe(repeat(moves=(rows, rows))).endswith("(input of at most 2,400 rows)")
    assert describe(repeat(moves=(rows, files))).endswith("(input of at most 1,200 rows and 3 files)")
    assert "input of" not in describe(repeat(moves=(rows, untold)))
    assert describe(repeat(is_flush=True, at="")).startswith("the flush, batch 7 of copies runs again first")


def test_a_batch_that_ran_again_is_named_after_its_evidence_was_pruned(stage: Stage) -> None:
    """Of a settled deployment the logs and plans may be gone: the events show them."""
    killed_in_batch(stage)
    told_again(stage, 2)
    told_again(stage, 3, batch_id=7)
    Retention(stage.control, "tests").change(
        lambda known: replace(known, settled=SettledLineage("d-0001", True, stage.clock.now()))
    )
    for info in list(stage.store.list_objects(f"{STREAM}/deployments/d-0001/checkpoints/")):
        stage.store.delete(info.key)
    told = audited(stage)
    assert told["deployments"][0]["queries"] == {}
    assert [(one["batch_id"], one["rows_at_most"]) for one in told["may_be_doubled"]] == [(4, 20), (7, 20)]
