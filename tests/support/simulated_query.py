"""A simulated streaming query on a real checkpoint: the part of Spark that the life of an attempt needs.

It obeys what was measured of Spark 4.2, and nothing else may be built upon:

- the query's id is written before ``start()`` returns;
- when it starts it takes the *latest* entry of the offset log, whatever is below it: a batch that is planned and not
  committed is run first, word for word, with that entry's watermark and bounds; and with an entry of ours above a batch
  that never committed, that batch is skipped in silence (a stateful query then fails, its state being one version
  short);
- it claims a batch by look-then-rename, two steps: what is put between the two is overwritten; a claim that finds the
  entry there ends the query with an error, at a batch boundary;
- a batch runs, writes its state, gives its rows to the sink, and commits: four steps, and it can die between any two;
- an idle query, or one that sleeps until its next trigger, notices no barrier;
- ``stop()`` cuts the batch that runs, and clears ``isActive`` first;
- ``Trigger.Once`` runs the planned batch alone, else one new batch;
- rows are late by the watermark of the batch before, windows close by that of the batch itself; a watermark that moved
  brings a batch without input;
- an entry keeps the settings that the one before it pins;
- the query id stays with the checkpoint, and entries never carry our mark on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Literal

from airflow_streamstate.checkpoint.guards import HDFS_BACKED_PROVIDER
from airflow_streamstate.checkpoint.log import (
    NO_OFFSET,
    PARTITIONS,
    Checkpoint,
    CommitEntry,
    OffsetEntry,
    format_commit_entry,
    format_offset_entry,
)
from airflow_streamstate.checkpoint.seed import PINNED_CONF_KEYS
from airflow_streamstate.connectors.sink import FoundUndo, HeldBatches, Sink, UndoMeans, UndoOrder
from airflow_streamstate.connectors.source import Source
from airflow_streamstate.driver.attempt.ports import (
    AnalyzedPlan,
    OperatorRows,
    OwnCheckpoint,
    QueryProgress,
    QueryRun,
    QuerySource,
    RewriteOrder,
    RewrittenState,
    SkippedBySink,
    WriterFacts,
    WrittenBatch,
    WrittenState,
)
from airflow_streamstate.protocol.events import RepeatMeans
from airflow_streamstate.protocol.positions import WatermarkSpec
from airflow_streamstate.protocol.scratch import RewrittenTable, RowComparison
from airflow_streamstate.store.base import Store
from support.acting_clock import ActingClock
from support.simulated_connector import SimulatedDoor
from support.simulated_plan import analyzed_json
from support.simulated_sources import OutputRow, Row, SimulatedSink, SimulatedSource, WindowCount

CONF = {
    **dict.fromkeys(PINNED_CONF_KEYS, "2"),
    "spark.sql.streaming.stateStore.providerClass": HDFS_BACKED_PROVIDER,
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "false",
}
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
STEP_SECONDS = 0.05
OPERATOR = {
    "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
    "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 1}],
}
Phase = Literal["initialise", "idle", "construct", "look", "rename", "run", "state", "sink", "commit"]
Trigger = Literal["processing_time", "once", "available_now"]


class QueryDiedError(Exception):
    """What ends a simulated query with an error."""


@dataclass
class SimulatedPlan:
    """What a script's writer reports: the same over all its starts.

    Attributes:
        window_ms: counts rows per window of this length; None: passes rows through, without state.
        delay_ms: of its watermark; None: no watermark, so that its windows never close.
        trigger_seconds: how long it sleeps after a trigger.
        initialise_seconds: how long it takes from its start until it has read its log.
        cannot_flush: why it cannot be flushed, if that is known beforehand.
        fails_on_rows_of: batch ids whose run fails over its rows: an empty one of that id does not.
        refuses_to_start: what ``start`` raises.
        last_timer_ms: when its last timer of processing time is due, or why its timers cannot be read; its plan shows
            nothing then, so that its state is asked.
        table: what is remarked on the table that it writes to, or why that cannot be created.
        stays_cold: what of its sink cannot be warmed, as text.
        shows_sources: its plan shows what its sources are (``support.simulated_connector`` knows them).
        offset_log: the version of its entries; "v2" leaves out the number of partitions, as Spark 4.2 does.
    """

    sources: list[SimulatedSource]
    sink: SimulatedSink
    window_ms: int | None = 1_000
    delay_ms: int | None = 0
    trigger: Trigger = "processing_time"
    batch_seconds: float = 0.5
    trigger_seconds: float = 0.0
    initialise_seconds: float = 0.0
    cannot_flush: str | None = None
    fails_at: set[int] = field(default_factory=set)
    fails_on_rows_of: set[int] = field(default_factory=set)
    failure_words: str = "division by zero"
    refuses_to_start: Exception | None = None
    fingerprint: str = "plan"
    shows_sources: bool = False
    last_timer_ms: int | Exception | None = None
    table: tuple[str, ...] | Exception = ()
    stays_cold: tuple[str, ...] = ()
    offset_log: Literal["v1", "v2"] = "v1"
    foreach_batch: Callable[[list[int], int], None] | None = None
    state_tables: tuple[str, ...] = ("0-counts/rows",)
    state_problems: tuple[str, ...] = ()
    own_checkpoint: OwnCheckpoint | None = None
    before_comparing: Callable[[str], None] = lambda _: None

    @property
    def watermarks(self) -> tuple[WatermarkSpec, ...]:
        return () if self.delay_ms is None else (WatermarkSpec("at", self.delay_ms),)


@dataclass(frozen=True)
class _Batch:
    batch_id: int
    start_lines: tuple[str, ...]
    end_lines: tuple[str, ...]
    watermark_ms: int
    late_ms: int


@dataclass(frozen=True)
class _Result:
    state: dict[int, int]
    before: dict[int, int]
    output: tuple[OutputRow, ...]
    next_watermark_ms: int
    input_rows: int
    dropped_rows: int


class SimulatedStartable:
    """A script's writer. ``uri`` is the key of the checkpoint in the store.

    Attributes:
        runs: every run that was ever started.
        before_phase: called before each step of each run with its phase; may raise to make the query die there.
        before_stop: called when a run is stopped.
        before_undo: called before each batch that is taken out of the sink; may raise to make the driver die there.
        after_undo: called when all of them are out.
        before_warming: called with the query id where its sink is warmed; may raise.
    """

    def __init__(self, store: Store, clock: ActingClock, plan: SimulatedPlan) -> None:
        self.store = store
        self.clock = clock
        self.plan = plan
        self.runs: list[SimulatedRun] = []
        self.before_phase: Callable[[SimulatedRun, Phase], None] = _nothing
        self.before_stop: Callable[[SimulatedRun], None] = _nothing
        self.before_undo: Callable[[int], None] = _nothing
        self.after_undo: Callable[[], None] = _nothing
        self.before_warming: Callable[[str], None] = _nothing

    @property
    def facts(self) -> WriterFacts:
        plan = self.plan
        return WriterFacts(
            sink=f"simulated:{plan.sink.mode}" if plan.foreach_batch is None else "foreachBatch",
            trigger=plan.trigger,
            output_mode="append",
            watermarks=plan.watermarks,
            stateful=plan.window_ms is not None,
            sources_count=len(plan.sources),
            plan_fingerprint=plan.fingerprint,
            sources=tuple(
                QuerySource(Source("simulated", {"name": source.description}), number)
                for number, source in enumerate(plan.sources)
            )
            if plan.shows_sources
            else (),
        )

    @property
    def door(self) -> SimulatedDoor:
        return SimulatedDoor({source.description: source for source in self.plan.sources})

    def analyzed_plan(self) -> AnalyzedPlan:
        plan = self.plan
        if plan.last_timer_ms is not None:
            raise ValueError("this plan is unreadable")
        descriptions = [source.description for source in plan.sources]
        text = analyzed_json(descriptions, plan.window_ms, plan.delay_ms)
        return AnalyzedPlan(text, Sink(f"simulated:{plan.sink.mode}"))

    def start(self, checkpoint_uri: str) -> QueryRun:
        if self.plan.refuses_to_start is not None:
            raise self.plan.refuses_to_start
        return self._start(checkpoint_uri, self.plan.trigger)

    def start_once(self, checkpoint_uri: str) -> QueryRun:
        if self.plan.refuses_to_start is not None:
            raise self.plan.refuses_to_start
        return self._start(checkpoint_uri, "once")

    def start_available(self, checkpoint_uri: str) -> QueryRun:
        if self.plan.refuses_to_start is not None:
            raise self.plan.refuses_to_start
        return self._start(checkpoint_uri, "available_now")

    def _start(self, checkpoint_uri: str, trigger: Trigger) -> QueryRun:
        run = SimulatedRun(self, Checkpoint(self.store, checkpoint_uri), trigger, self.plan.sink)
        run.write_metadata()
        self.runs.append(run)
        run.live()
        return run

    def run_seed_batch(self, checkpoint_uri: str) -> QueryProgress | None:
        return self.run_trial_batch(checkpoint_uri)

    def run_trial_batch(self, checkpoint_uri: str, within_seconds: float | None = None) -> QueryProgress | None:
        run = SimulatedRun(self, Checkpoint(self.store, checkpoint_uri), "once", SimulatedSink("append"))
        while not run.has_ended():
            run.step(in_haste=True)
        if run.failure() is not None:
            raise QueryDiedError(run.failure())
        return run.last_progress()

    def write_trial_batch(
        self,
        checkpoint_uri: str,
        folder: str,
        within_seconds: float,
        *,
        calls_foreach_batch: bool = False,
        on_failure: Callable[[Exception], None] = lambda _: None,
    ) -> WrittenBatch:
        sink = SimulatedSink("append")
        run = SimulatedRun(self, Checkpoint(self.store, checkpoint_uri), "once", sink)
        while not run.has_ended():
            run.step(in_haste=True)
        if run.failure() is not None:
            raise QueryDiedError(run.failure())
        rows = [row for _, rows in sink.batches for row in rows]
        if calls_foreach_batch:
            assert self.plan.foreach_batch is not None, "the query has another sink"
            try:
                self.plan.foreach_batch([batch_id for batch_id, _ in sink.batches], len(rows))
            except Exception as error:
                on_failure(error)
                raise
        Path(folder).mkdir(parents=True)
        (Path(folder) / "part-0.parquet").write_text(repr(rows))
        return WrittenBatch(run.last_progress(), len(rows), ("part-0.parquet",))

    def compare_rows(self, old_folder: str, new_folder: str, keys: Sequence[str], samples: int) -> RowComparison:
        self.plan.before_comparing(old_folder)
        old, new = ((Path(folder) / "part-0.parquet").read_text() for folder in (old_folder, new_folder))
        return RowComparison(1, 0, 0) if old == new else RowComparison(0, 1, 1, (old,)[:samples], (new,)[:samples])

    def write_state(self, checkpoint_uri: str, batch_id: int, state_format: int, folder: str) -> WrittenState:
        for path in self.plan.state_tables:
            (Path(folder) / path).mkdir(parents=True)
            (Path(folder) / path / "part-0.parquet").write_text(str(batch_id))
        return WrittenState(dict.fromkeys(self.plan.state_tables, ("key",)), self.plan.state_problems)

    def rewrite_state(self, order: RewriteOrder) -> RewrittenState:
        before, after = Checkpoint(self.store, order.before_uri), Checkpoint(self.store, order.after_uri)
        state = read_state(before, order.batch_id + 1)
        write_state(after, 1, {}, state)
        return RewrittenState((RewrittenTable(0, "0-stateStoreSave/rows", len(state), order.partitions[0]),))

    def missing_file(self, paths: Sequence[str]) -> str:
        return ""

    def session_conf(self, names: Sequence[str]) -> Mapping[str, str]:
        return {name: CONF[name] for name in names if name in CONF}

    def held_batches(self, query_id: str | None, from_batch_id: int) -> HeldBatches:
        if self.plan.sink.mode == "append":
            return HeldBatches(unknown_reason="it takes everything again")
        held = sorted({batch_id for batch_id, _ in self.plan.sink.batches if batch_id >= from_batch_id})
        return HeldBatches(tuple(held))

    def own_checkpoint(self) -> OwnCheckpoint | None:
        return self.plan.own_checkpoint

    def prepare_sink(self, next_batch_id: int) -> tuple[str, ...]:
        return ()

    def need_table(self) -> tuple[str, ...]:
        if isinstance(self.plan.table, Exception):
            raise self.plan.table
        return self.plan.table

    def try_sink(self, next_batch_id: int, scratch_uri: str) -> tuple[str, ...]:
        return self.need_table()

    def warm_sink(self, query_id: str, scratch_uri: str) -> tuple[str, ...]:
        self.before_warming(query_id)
        return self.plan.stays_cold

    def undo_means(self) -> UndoMeans:
        return self.plan.sink.undo_means or ("exact by undo" if self.plan.sink.mode == "idempotent" else "only doubled")

    def repeat_means(self) -> RepeatMeans:
        return "skipped" if self.plan.sink.mode == "idempotent" else "doubled"

    def undo_needs_query_id(self) -> bool:
        return self.plan.sink.undo_needs_query_id

    def find_undo(self, wish: UndoOrder) -> FoundUndo:
        sink = self.plan.sink
        held = tuple(sorted({batch_id for batch_id, _ in sink.batches if batch_id > wish.to_batch_id}))
        return FoundUndo(held, tuple(f"rows of batch {batch_id}" for batch_id in held), "before" if held else "")

    def undo_batches(self, wish: UndoOrder, found: FoundUndo) -> None:
        sink = self.plan.sink
        for batch_id in reversed(found.batch_ids):
            self.before_undo(batch_id)
            sink.batches[:] = [batch for batch in sink.batches if batch[0] != batch_id]
        self.after_undo()

    def sink_place(self) -> str:
        return f"a sink that is {self.plan.sink.mode}"

    def count_state_rows(self, checkpoint_uri: str) -> tuple[OperatorRows, ...]:
        if self.plan.window_ms is None:
            return ()
        checkpoint = Checkpoint(self.store, checkpoint_uri)
        batch_id = checkpoint.position().batch_id
        state = {} if batch_id is None else read_state(checkpoint, batch_id + 1)
        return (OperatorRows("stateStoreSave", 0, len(state)),)

    def open_windows(self, checkpoint_uri: str) -> tuple[datetime, datetime] | None:
        checkpoint = Checkpoint(self.store, checkpoint_uri)
        batch_id = checkpoint.position().batch_id
        if self.plan.window_ms is None or batch_id is None:
            return None
        starts = list(read_state(checkpoint, batch_id + 1))
        if not starts:
            return None
        return EPOCH + timedelta(milliseconds=min(starts)), EPOCH + timedelta(
            milliseconds=max(starts) + self.plan.window_ms
        )

    def last_timer_ms(self, checkpoint_uri: str, timed_out_ids: Collection[int]) -> int | None:
        if isinstance(self.plan.last_timer_ms, Exception):
            raise self.plan.last_timer_ms
        return self.plan.last_timer_ms

    def cannot_flush_reason(self) -> str | None:
        return self.plan.cannot_flush


def _nothing(*_: object) -> None:
    """The default of ``before_phase`` and ``before_stop``."""


class SimulatedRun:
    """One run of a simulated query; ``step`` is the next thing that it does without a pause."""

    def __init__(
        self, startable: SimulatedStartable, checkpoint: Checkpoint, trigger: Trigger, sink: SimulatedSink
    ) -> None:
        self.checkpoint = checkpoint
        self.phase: Phase = "initialise"
        self.committed: list[int] = []
        self._startable = startable
        self._clock = startable.clock
        self._plan = startable.plan
        self._trigger = trigger
        self._output = sink
        self._query_id = checkpoint.query_id() or self._clock.new_uuid()
        self._query_run_id = self._clock.new_uuid()
        self._has_ended = False
        self._is_active = True
        self._in_trigger = False
        self._initialised = False
        self._failure: str | None = None
        self._progress: QueryProgress | None = None
        self._reports: dict[int, QueryProgress] = {}
        self._triggered_at = self._clock.now()
        self._idle_triggers = 0
        self._dropped_rows = 0
        self._skipped: list[int] = []
        self._remove: Callable[[], None] = lambda: None
        self._batch_id = 0
        self._lines: tuple[str, ...] = (NO_OFFSET,) * len(self._plan.sources)
        self._watermark_ms = 0
        self._last_watermark_ms = 0
        self._batch: _Batch | None = None
        self._result: _Result | None = None
        self._wakes_at = self._reads_log_at = 0.0
        self._paused_until = 0.0
        self._ran_once = False
        self._upto = [len(source.rows) for source in self._plan.sources] if trigger == "available_now" else None

    # what the life of an attempt sees

    @property
    def query_id(self) -> str:
        return self._query_id

    @property
    def query_run_id(self) -> str:
        return self._query_run_id

    def is_active(self) -> bool:
        return self._is_active

    def has_ended(self) -> bool:
        return self._has_ended

    def is_trigger_active(self) -> bool:
        return self._in_trigger and not self._has_ended

    def has_initialised(self) -> bool:
        return self._initialised

    def has_running_tasks(self) -> bool:
        return False

    def was_ended_by_script(self) -> bool:
        return False

    def stop(self) -> None:
        if not self._has_ended:
            self._startable.before_stop(self)
        self._end(None)

    def await_end(self, timeout_seconds: float) -> bool:
        end = self._clock.monotonic_seconds() + timeout_seconds
        while not self._has_ended and self._clock.monotonic_seconds() < end:
            self._clock.sleep(min(STEP_SECONDS, timeout_seconds))
        return self._has_ended

    def failure(self) -> str | None:
        return self._failure if self._has_ended else None

    def last_progress(self) -> QueryProgress | None:
        return self._progress

    def progress_of(self, batch_id: int) -> QueryProgress | None:
        return self._reports.get(batch_id)

    def dropped_rows(self) -> int | None:
        return self._dropped_rows

    def read_rows(self) -> int:
        return sum(report.input_rows for report in self._reports.values())

    def idle_triggers(self) -> int:
        return self._idle_triggers

    def skipped(self) -> SkippedBySink:
        return SkippedBySink(
            len(self._skipped), tuple(self._skipped[-10:]), self._skipped[0] if self._skipped else None
        )

    @property
    def trigger(self) -> Trigger:
        """How it was started."""
        return self._trigger

    @property
    def next_batch_id(self) -> int:
        """The batch that it runs, or would claim next."""
        return self._batch_id

    def is_in_batch(self) -> bool:
        """Whether a batch is being claimed, or is planned and not committed."""
        return not self._has_ended and self._batch is not None and self.phase != "look"

    # its life

    def write_metadata(self) -> None:
        """Spark writes the query's id before ``start()`` returns, and refuses a log that has lost it."""
        checkpoint = self.checkpoint
        if checkpoint.exists():
            return
        if checkpoint.offset_ids():
            raise QueryDiedError("there are offsets but no metadata")
        metadata = json.dumps({"id": self._query_id}, separators=(",", ":")).encode()
        checkpoint.store.put(checkpoint.metadata_key, metadata)

    def live(self) -> None:
        """From now on it takes its steps as time passes."""
        self._reads_log_at = self._clock.monotonic_seconds() + self._plan.initialise_seconds
        self._remove = self._clock.every(STEP_SECONDS, self.step)

    def die(self) -> None:
        """Its driver was killed: it does nothing more."""
        self._remove()

    def pause(self, seconds: float) -> None:
        """It does nothing for this long, wherever it is: between look and rename, for example."""
        self._paused_until = self._clock.monotonic_seconds() + seconds

    def _is_paused(self) -> bool:
        return self._clock.monotonic_seconds() < self._paused_until

    def step(self, *, in_haste: bool = False) -> None:
        """The next thing that it does; ``in_haste`` without waiting for a batch to take its time."""
        if self._has_ended:
            return
        if in_haste:
            self._wakes_at = 0.0
        try:
            if not self._is_paused():
                self._startable.before_phase(self, self.phase)
            if not self._is_paused():
                getattr(self, f"_{self.phase}")()
        except QueryDiedError as error:
            self._end(str(error))

    def _end(self, failure: str | None) -> None:
        self._is_active = False
        if not self._has_ended:
            self._has_ended, self._in_trigger, self._failure = True, False, failure
            self._remove()

    def _initialise(self) -> None:
        if self._clock.monotonic_seconds() < self._reads_log_at:
            return
        checkpoint = self.checkpoint
        ids, commits = checkpoint.offset_ids(), checkpoint.commit_ids()
        if ids:
            self._take_up(ids[-1], commits)
        self.phase = "run" if self._batch is not None else "construct"
        self._in_trigger = self._initialised = True
        self._triggered_at = self._clock.now()
        self._wakes_at = self._clock.monotonic_seconds() + self._plan.batch_seconds

    def _take_up(self, latest: int, commits: list[int]) -> None:
        entry = self._need_entry(latest)
        before = self._need_entry(latest - 1) if latest > 0 else None
        if len(entry.source_lines) != len(self._plan.sources):
            found, wanted = len(entry.source_lines), len(self._plan.sources)
            raise QueryDiedError(f"There are [{found}] sources in the checkpoint offsets and now there are [{wanted}]")
        if commits and commits[-1] == latest:
            commit = self.checkpoint.read_commit(latest)
            assert commit is not None
            self._batch_id, self._lines = latest + 1, entry.source_lines
            self._watermark_ms, self._last_watermark_ms = commit.next_batch_watermark_ms, entry.batch_watermark_ms
            return
        # Not committed: it runs, whatever is missing below it. This is how a batch is lost (Law 12).
        start = before.source_lines if before is not None else (NO_OFFSET,) * len(entry.source_lines)
        late_ms = before.batch_watermark_ms if before is not None else 0
        self._batch_id, self._lines = latest, start
        self._watermark_ms = entry.batch_watermark_ms
        self._batch = _Batch(latest, start, entry.source_lines, entry.batch_watermark_ms, late_ms)

    def _need_entry(self, batch_id: int) -> OffsetEntry:
        entry = self.checkpoint.read_offset(batch_id)
        if entry is None:
            raise QueryDiedError(f"batch {batch_id} doesn't exist")
        return entry

    def _idle(self) -> None:
        if self._clock.monotonic_seconds() >= self._wakes_at:
            self._in_trigger, self.phase = True, "construct"
            self._triggered_at = self._clock.now()

    def _construct(self) -> None:
        upto = self._upto or [None] * len(self._plan.sources)
        lines = tuple(
            source.end_line(line, upto=end)
            for source, line, end in zip(self._plan.sources, self._lines, upto, strict=True)
        )
        closes = self._plan.window_ms is not None and self._watermark_ms > self._last_watermark_ms
        if lines == self._lines and not closes:
            self._idle_triggers += 1
            if self._progress is not None:
                self._progress = replace(self._progress, is_idle=True)
            self._end_trigger()
            return
        self._batch = _Batch(self._batch_id, self._lines, lines, self._watermark_ms, self._last_watermark_ms)
        self.phase = "look"

    def _end_trigger(self) -> None:
        self._in_trigger, self._ran_once = False, True
        if self._trigger == "once" or (self._trigger == "available_now" and self._batch is None):
            self._end(None)
            return
        self.phase = "idle"
        pause = self._plan.trigger_seconds if self._trigger == "processing_time" else 0.0
        self._wakes_at = self._clock.monotonic_seconds() + pause

    def _look(self) -> None:
        if self.checkpoint.store.head(self.checkpoint.offset_key(self._batch_id)) is not None:
            raise QueryDiedError("CONCURRENT_STREAM_LOG_UPDATE")
        self.phase = "rename"

    def _rename(self) -> None:
        batch = self._need_batch()
        now_ms = int(self._clock.now().timestamp() * 1000)
        before = self.checkpoint.read_offset(batch.batch_id - 1) if batch.batch_id else None
        pinned = {} if before is None or self._plan.offset_log == "v2" else before.conf
        entry = OffsetEntry(batch.watermark_ms, now_ms, {**CONF, **pinned}, batch.end_lines)
        if self._plan.offset_log == "v2":
            conf = {name: value for name, value in CONF.items() if name != PARTITIONS}
            keys = tuple(str(number) for number in range(len(batch.end_lines)))
            entry = replace(entry, conf=conf, version="v2", source_keys=keys)
        self.checkpoint.store.put(self.checkpoint.offset_key(batch.batch_id), format_offset_entry(entry))
        self.phase = "run"
        self._wakes_at = self._clock.monotonic_seconds() + self._plan.batch_seconds

    def _run(self) -> None:
        if self._clock.monotonic_seconds() < self._wakes_at:
            return
        batch = self._need_batch()
        fails_on_rows = batch.batch_id in self._plan.fails_on_rows_of and batch.start_lines != batch.end_lines
        if batch.batch_id in self._plan.fails_at or fails_on_rows:
            raise QueryDiedError(f"batch {batch.batch_id} failed: {self._plan.failure_words}")
        self._result = self._compute(batch)
        self.phase = "state"

    def _state(self) -> None:
        batch, result = self._need_batch(), self._need_result()
        if self._plan.window_ms is not None:
            write_state(self.checkpoint, batch.batch_id + 1, result.before, result.state)
        self.phase = "sink"

    def _sink(self) -> None:
        batch, result = self._need_batch(), self._need_result()
        # A batch that is skipped reads nothing, and its offsets move on all the same.
        if not self._output.add_batch(batch.batch_id, result.output) and batch.start_lines != batch.end_lines:
            self._skipped.append(batch.batch_id)
        self.phase = "commit"

    def _commit(self) -> None:
        batch, result = self._need_batch(), self._need_result()
        commit = format_commit_entry(CommitEntry(result.next_watermark_ms))
        self.checkpoint.store.put(self.checkpoint.commit_key(batch.batch_id), commit)
        self.committed.append(batch.batch_id)
        self._progress = self._reports[batch.batch_id] = self._report(batch, result)
        self._dropped_rows += result.dropped_rows
        self._batch_id, self._lines = batch.batch_id + 1, batch.end_lines
        self._last_watermark_ms, self._watermark_ms = batch.watermark_ms, result.next_watermark_ms
        self._end_trigger()
        self._batch = self._result = None

    def _report(self, batch: _Batch, result: _Result) -> QueryProgress:
        has_state = self._plan.window_ms is not None
        took_ms = round((self._clock.now() - self._triggered_at).total_seconds() * 1000)
        return QueryProgress(
            batch_id=batch.batch_id,
            input_rows=result.input_rows,
            output_rows=len(result.output),
            state=(OperatorRows("stateStoreSave", 0, len(result.state)),) if has_state else (),
            watermark_at=EPOCH + timedelta(milliseconds=batch.watermark_ms) if self._plan.watermarks else None,
            source_descriptions=tuple(source.description for source in self._plan.sources),
            end_offsets=batch.end_lines,
            input_rows_per_second=1.0,
            processed_rows_per_second=1.0,
            dropped_rows=result.dropped_rows,
            triggered_at=self._triggered_at,
            durations_ms={"addBatch": int(self._plan.batch_seconds * 1000), "triggerExecution": took_ms},
        )

    def _compute(self, batch: _Batch) -> _Result:
        rows = [
            row
            for source, start, end in zip(self._plan.sources, batch.start_lines, batch.end_lines, strict=True)
            for row in source.read(start, end)
        ]
        moved = [row.event_ms - self._plan.delay_ms for row in rows] if self._plan.delay_ms is not None else []
        next_ms = max([batch.watermark_ms, *moved])
        window_ms = self._plan.window_ms
        if window_ms is None:
            return _Result({}, {}, tuple(rows), next_ms, len(rows), 0)
        before = read_state(self.checkpoint, batch.batch_id)
        kept = [row for row in rows if _start_of(row, window_ms) + window_ms > batch.late_ms]
        state = dict(before)
        for row in kept:
            start = _start_of(row, window_ms)
            state[start] = state.get(start, 0) + 1
        has_watermark = self._plan.delay_ms is not None
        closed = sorted(start for start in state if has_watermark and start + window_ms <= batch.watermark_ms)
        output = tuple(WindowCount(start, state.pop(start)) for start in closed)
        return _Result(state, before, output, next_ms, len(rows), len(rows) - len(kept))

    def _need_batch(self) -> _Batch:
        assert self._batch is not None
        return self._batch

    def _need_result(self) -> _Result:
        assert self._result is not None
        return self._result


def _start_of(row: Row, window_ms: int) -> int:
    return row.event_ms // window_ms * window_ms


def write_state(checkpoint: Checkpoint, version: int, before: dict[int, int], after: dict[int, int]) -> None:
    """What a batch leaves of its state: the difference to the version before, as the HDFS-backed store does it."""
    store = checkpoint.store
    if store.head(checkpoint.key("state/0/_metadata/metadata")) is None:
        store.put(checkpoint.key("state/0/_metadata/metadata"), f"v1\n{json.dumps(OPERATOR)}".encode())
    put = {str(start): count for start, count in after.items() if before.get(start) != count}
    removed = [start for start in before if start not in after]
    body = json.dumps({"put": put, "removed": removed}, sort_keys=True).encode()
    store.put(checkpoint.key(f"state/0/0/{version}.delta"), body)


def read_state(checkpoint: Checkpoint, version: int) -> dict[int, int]:
    """The state at a version: the newest whole one, and the differences above it."""
    state: dict[int, int] = {}
    for at in range(version, 0, -1):
        stored = checkpoint.store.get(checkpoint.key(f"state/0/0/{at}.snapshot"))
        if stored is not None:
            state = {int(start): count for start, count in json.loads(stored.body)["put"].items()}
            break
    else:
        at = 0
    for number in range(at + 1, version + 1):
        stored = checkpoint.store.get(checkpoint.key(f"state/0/0/{number}.delta"))
        if stored is None:
            raise QueryDiedError(f"Error reading delta file state/0/0/{number}.delta: it does not exist")
        change = json.loads(stored.body)
        state.update({int(start): count for start, count in change["put"].items()})
        for start in change["removed"]:
            state.pop(start, None)
    return state
