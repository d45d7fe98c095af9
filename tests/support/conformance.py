"""One script of steps for a query, run on real Spark and on the simulated one: both must do the same.

Whatever is built on the simulation relies on these steps: if Spark changes, the real half fails; if the simulation is
kinder than Spark, the other half does. The idea of one suite over several implementations is dagster-pipes'.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from airflow_streamstate.checkpoint.barrier import (
    BatchFailed,
    Placed,
    exchange_for_drain,
)
from airflow_streamstate.checkpoint.log import BarrierKind, BarrierMark, Checkpoint, format_offset_entry, stop_entry
from airflow_streamstate.checkpoint.repair import repair_before_start
from airflow_streamstate.clock import Clock
from airflow_streamstate.driver.attempt.ports import QueryRun, StartableQuery
from support.checkpoints import end_offsets
from support.placing import place_barrier

BASE_SECONDS = 1_704_067_200  # 2024-01-01T00:00:00Z
WINDOW_SECONDS = 60
DELAY_SECONDS = 10
ROWS_PER_BATCH = 2
PATIENCE_SECONDS = 120.0


class Stage(Protocol):
    """One query that counts rows per minute behind a watermark of ten seconds, two rows a batch, and its world."""

    startable: StartableQuery
    checkpoint: Checkpoint
    uri: str
    clock: Clock

    def feed(self, first_second: int, second_second: int) -> None:
        """Input for one batch: two rows at these seconds of event time."""

    def counts(self) -> dict[int, int]:
        """What came out: second at which a window starts -> rows, parts added up."""

    def hold(self) -> None:
        """From now on batches do not come to their end."""

    def let_go(self) -> None:
        """They do again."""

    def spoil(self) -> None:
        """From now on batches with input fail."""

    def mend(self) -> None:
        """They do not fail any more."""


Step = Callable[[Stage], None]


def until(stage: Stage, is_so: Callable[[], bool], what: str) -> None:
    """Wait in the stage's own time."""
    end = stage.clock.monotonic_seconds() + PATIENCE_SECONDS
    while not is_so():
        assert stage.clock.monotonic_seconds() < end, f"waited {PATIENCE_SECONDS} s for {what}"
        stage.clock.sleep(0.05)


def until_committed(stage: Stage, batch_id: int) -> None:
    """Wait for a commit, and for the query to find nothing more to do."""
    until(stage, lambda: stage.checkpoint.is_committed(batch_id), f"batch {batch_id}")


def until_planned(stage: Stage, batch_id: int) -> None:
    """Wait until a batch is in the log."""
    until(stage, lambda: stage.checkpoint.read_offset(batch_id) is not None, f"the plan of batch {batch_id}")


def mark(stage: Stage, kind: BarrierKind = "stop") -> BarrierMark:
    """A mark of the one deployment that these steps know."""
    return BarrierMark(kind, "orders", "d-0001", 1, "", write_id=stage.clock.new_uuid())


def stopped(stage: Stage, run: QueryRun) -> Placed | BatchFailed:
    """Stop by the rules: barrier, then ``stop()``."""
    placed = place_barrier(stage.checkpoint, mark(stage), run, clock=stage.clock, deadline_seconds=PATIENCE_SECONDS)
    if isinstance(placed, Placed):
        run.stop()
    assert run.await_end(PATIENCE_SECONDS)
    return placed


def a_restart_goes_on(stage: Stage) -> None:
    """The same query under another run id, and the next batch; a watermark that moved brings a separate batch."""
    run = stage.startable.start(stage.uri)
    stage.feed(1, 2)
    until_committed(stage, 1)
    run.stop()
    assert run.await_end(PATIENCE_SECONDS)
    assert (run.failure(), run.is_active()) == (None, False)
    assert stage.checkpoint.commit_ids() == [0, 1]
    began_at = stage.clock.now()
    again = stage.startable.start(stage.uri)
    stage.feed(61, 62)
    until_committed(stage, 3)
    until(stage, lambda: getattr(again.last_progress(), "batch_id", 0) == 3, "its progress")
    progress = again.last_progress()
    assert progress is not None
    assert [operator.rows for operator in progress.state] == [2]
    first = again.progress_of(2)
    assert first is not None
    assert first.triggered_at is not None
    assert "addBatch" in first.durations_ms
    assert again.progress_of(1) is None
    assert progress.watermark_at is not None
    assert int(progress.watermark_at.timestamp()) == BASE_SECONDS + 62 - DELAY_SECONDS
    assert progress.committed_at is not None
    assert began_at <= progress.committed_at <= stage.clock.now()
    assert again.query_id == run.query_id
    assert again.query_run_id != run.query_run_id
    again.stop()
    assert again.await_end(PATIENCE_SECONDS)
    assert stage.counts() == {}
    assert stage.startable.count_state_rows(stage.uri) == progress.state


def an_idle_query_does_not_notice_a_barrier(stage: Stage) -> None:
    """It sleeps on above our entry; ``stop()`` ends it without a failure, and nothing ran."""
    run = stage.startable.start(stage.uri)
    stage.feed(1, 2)
    until_committed(stage, 1)
    until(stage, lambda: not run.is_trigger_active(), "the end of a trigger")
    placed = place_barrier(stage.checkpoint, mark(stage), run, clock=stage.clock, deadline_seconds=PATIENCE_SECONDS)
    assert placed.batch_id == 1
    stage.clock.sleep(1.0)
    assert run.is_active()
    assert not run.has_ended()
    run.stop()
    assert run.await_end(PATIENCE_SECONDS)
    assert run.failure() is None
    assert stage.checkpoint.commit_ids() == [0, 1]
    assert [barrier.batch_id for barrier in stage.checkpoint.position().barriers] == [2]


def a_running_batch_is_committed_under_a_barrier(stage: Stage) -> None:
    """The query then finds our entry and ends with its own error; no batch is cut (1a.4)."""
    run = stage.startable.start(stage.uri)
    stage.hold()
    stage.feed(1, 2)
    until_planned(stage, 0)
    until(stage, run.has_initialised, "its first trigger")
    body = format_offset_entry(stop_entry(stage.checkpoint.read_offset(0), mark(stage)))
    stage.checkpoint.store.create(stage.checkpoint.offset_key(1), body)
    assert run.is_active()
    stage.let_go()
    assert run.await_end(PATIENCE_SECONDS)
    assert run.failure() is not None
    assert stage.checkpoint.commit_ids() == [0]
    assert stage.checkpoint.position().batch_id == 0
    assert [barrier.batch_id for barrier in stage.checkpoint.position().barriers] == [1]


def an_entry_above_a_failed_batch_loses_it(stage: Stage) -> None:
    """What happens without our care: the next start takes ours, and never runs the batch below it (Law 12)."""
    run = stage.startable.start(stage.uri)
    stage.feed(1, 2)
    until_committed(stage, 1)
    stage.spoil()
    stage.feed(11, 12)
    assert run.await_end(PATIENCE_SECONDS)
    assert run.failure() is not None
    assert stage.checkpoint.position().planned_id == 2
    stage.mend()
    body = format_offset_entry(stop_entry(stage.checkpoint.read_offset(2), mark(stage)))
    stage.checkpoint.store.create(stage.checkpoint.offset_key(3), body)
    again = stage.startable.start(stage.uri)
    assert again.await_end(PATIENCE_SECONDS)
    assert again.failure() is not None  # it has state, which is one version short
    assert stage.checkpoint.commit_ids() == [0, 1]


def the_repair_saves_it(stage: Stage) -> None:
    """The same, with our care: the entry goes, the batch is run over its old bounds, each row counts once (1a.7)."""
    run = stage.startable.start(stage.uri)
    stage.feed(1, 2)
    until_committed(stage, 1)
    stage.hold()
    stage.spoil()
    stage.feed(11, 12)
    until_planned(stage, 2)
    bounds = stage.checkpoint.position().planned
    stage.let_go()
    assert stopped(stage, run) == BatchFailed(2)
    stage.mend()
    stage.feed(21, 22)
    report = repair_before_start(stage.checkpoint, "d-0001", stop_pending=True)
    assert (report.run, report.batch_id) == ("once", 2)
    again = stage.startable.start_once(stage.uri)
    assert again.await_end(PATIENCE_SECONDS)
    assert again.failure() is None
    assert bounds is not None
    assert end_offsets(stage.checkpoint) == bounds.source_lines
    assert stage.checkpoint.position().batch_id == 2
    progress = again.last_progress()
    assert progress is not None
    assert (progress.batch_id, progress.input_rows) == (2, 2)


def a_drain_flushes_and_reads_nothing(stage: Stage) -> None:
    """Stop, exchange, once: every window comes out, no state is left, unread input stays unread (1a.5)."""
    run = stage.startable.start(stage.uri)
    stage.feed(1, 2)
    stage.feed(61, 63)
    until_committed(stage, 2)
    placed = stopped(stage, run)
    assert isinstance(placed, Placed)
    before = end_offsets(stage.checkpoint)
    windows = stage.startable.open_windows(stage.uri)
    stage.feed(70, 71)
    flush_id = exchange_for_drain(stage.checkpoint, mark(stage, "drain"))
    assert flush_id == (placed.batch_id or 0) + 1
    query_id = stage.checkpoint.query_id()
    assert stage.startable.held_batches(query_id, flush_id).lacks(flush_id)
    flush = stage.startable.start_once(stage.uri)
    assert flush.await_end(PATIENCE_SECONDS)
    assert flush.failure() is None
    progress = flush.last_progress()
    assert progress is not None
    assert (progress.batch_id, progress.input_rows) == (flush_id, 0)
    assert [operator.rows for operator in progress.state] == [0]
    assert progress.output_rows
    assert list(stage.startable.held_batches(query_id, flush_id).batch_ids) == [flush_id]
    assert stage.counts() == {0: 2, 60: 2}
    assert windows is not None
    assert [int(moment.timestamp()) - BASE_SECONDS for moment in windows] == [0, 120]
    assert stage.checkpoint.position().batch_id == flush_id
    assert end_offsets(stage.checkpoint) == before


def late_rows_are_those_behind_the_watermark_before(stage: Stage) -> None:
    """The first row that comes too late is still taken, those of later batches are dropped and counted."""
    run = stage.startable.start(stage.uri)
    stage.feed(1, 600)
    until_committed(stage, 1)
    stage.feed(2, 601)
    until_committed(stage, 3)
    until(stage, lambda: getattr(run.last_progress(), "batch_id", 0) == 3, "its progress")
    assert (run.dropped_rows(), run.read_rows()) == (1, 4)
    run.stop()
    assert run.await_end(PATIENCE_SECONDS)
    assert stage.counts() == {0: 1}


def a_restart_without_input_tells_its_first_idle_trigger(stage: Stage) -> None:
    """At once, and not only after Spark's ten seconds: by it the driver knows that there is nothing to commit."""
    run = stage.startable.start(stage.uri)
    stage.feed(1, 2)
    until_committed(stage, 1)
    run.stop()
    assert run.await_end(PATIENCE_SECONDS)
    committed = stage.checkpoint.commit_ids()
    again = stage.startable.start(stage.uri)
    until(stage, lambda: again.idle_triggers() > 0, "a trigger that finds nothing")
    assert (again.read_rows(), stage.checkpoint.commit_ids()[: len(committed)]) == (0, committed)
    again.stop()
    assert again.await_end(PATIENCE_SECONDS)


STEPS: tuple[Step, ...] = (
    a_restart_goes_on,
    an_idle_query_does_not_notice_a_barrier,
    a_running_batch_is_committed_under_a_barrier,
    an_entry_above_a_failed_batch_loses_it,
    the_repair_saves_it,
    a_drain_flushes_and_reads_nothing,
    late_rows_are_those_behind_the_watermark_before,
    a_restart_without_input_tells_its_first_idle_trigger,
)
