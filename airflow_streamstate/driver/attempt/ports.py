"""What the supervisor needs of Spark, and nothing more: implemented on pyspark, and by the simulator.

The two are held together by one conformance suite that runs the same script of steps against both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from airflow_streamstate.connectors.sink import HeldBatches, Sink
from airflow_streamstate.connectors.source import Source, SparkDoor
from airflow_streamstate.connectors.undoing import FoundUndo, UndoMeans, UndoOrder
from airflow_streamstate.protocol.data_events import RepeatMeans
from airflow_streamstate.protocol.positions import WatermarkSpec

Told = TypeVar("Told")


@dataclass(frozen=True)
class OperatorRows:
    """Rows in the state of one operator.

    Attributes:
        name: Spark's name of the operator, e.g. ``stateStoreSave``.
        operator_id: its number in the plan.
        rows: rows in all its partitions.
    """

    name: str
    operator_id: int
    rows: int


@dataclass(frozen=True)
class Progress:
    """The last progress that a query reported.

    Attributes:
        batch_id: the batch it is about.
        input_rows: rows read.
        output_rows: rows given to the sink; None where Spark does not say.
        state: per stateful operator.
        watermark_at: event-time watermark; None where there is none.
        source_descriptions: what each source is, in Spark's words, in the order of the offset lines.
        end_offsets: per source, its end offset as JSON text; ``-`` for none.
        dropped_rows: rows dropped as late, over all operators.
        is_idle: the newest trigger came after that batch, and found no input.
        source_metrics: what each source says of itself, in the order of ``end_offsets``.
        triggered_at: when the trigger of that batch began, by the driver's clock; None where Spark did not say.
        durations_ms: what its parts took, by Spark's names.
        state_load_ms: what opening the state took, over all partitions; None where its state store does not measure it.
    """

    batch_id: int
    input_rows: int
    output_rows: int | None
    state: tuple[OperatorRows, ...]
    watermark_at: datetime | None
    source_descriptions: tuple[str, ...]
    end_offsets: tuple[str, ...]
    input_rows_per_second: float | None = None
    processed_rows_per_second: float | None = None
    dropped_rows: int = 0
    is_idle: bool = False
    source_metrics: tuple[Mapping[str, str], ...] = ()
    triggered_at: datetime | None = None
    durations_ms: Mapping[str, int] = field(default_factory=dict)
    state_load_ms: int | None = None

    @property
    def committed_at(self) -> datetime | None:
        """When the trigger of that batch was over; the commit is its last act. None where Spark did not say."""
        took_ms = self.durations_ms.get("triggerExecution")
        if self.triggered_at is None or took_ms is None:
            return None
        return self.triggered_at + timedelta(milliseconds=took_ms)


@dataclass(frozen=True)
class Skipped:
    """Batches that moved offsets on and read no row.

    Attributes:
        count: how many.
        newest: the ids of the last ten, ascending.
        first: the id of the first one; None for none.
    """

    count: int = 0
    newest: tuple[int, ...] = ()
    first: int | None = None


class NotWatchedError(Exception):
    """Spark has started a query, and it could not be watched: it was stopped at once, and may have written."""


class QueryRun(Protocol):
    """One run of a query: between one ``start()`` and its end. Implements ``checkpoint.barrier.QueryView`` too."""

    @property
    def query_id(self) -> str:
        """Spark's id, the same over restarts from one checkpoint."""

    @property
    def query_run_id(self) -> str:
        """Spark's id of this run."""

    def is_active(self) -> bool:
        """Spark's ``isActive``; ``stop()`` clears it before the query's thread has ended."""

    def has_ended(self) -> bool:
        """Whether the query's thread has ended, so that it writes nothing more (``awaitTermination`` came back)."""

    def is_trigger_active(self) -> bool:
        """Whether the query is inside a trigger just now (Spark's ``status.isTriggerActive``)."""

    def has_initialised(self) -> bool:
        """Whether this run has read its log and begun its own work (1a.2): before, no barrier may be put."""

    def has_running_tasks(self) -> bool:
        """Whether a task of it is at work still: of a run that was cut, some outlive its thread for a moment."""

    def stop(self) -> None:
        """Spark's ``stop()``: interrupts a running batch; returns when the query has ended."""

    def await_end(self, timeout_seconds: float) -> bool:
        """Wait for the end, at most so long; whether it has ended."""

    def failure(self) -> str | None:
        """Spark's words for why an ended query failed; None where it did not. A lost claim counts as failure here:
        what it means is decided by the log, never by this text (Law 13)."""

    def was_ended_by_script(self) -> bool:
        """Whether it ended because the script stopped Spark under it."""

    def last_progress(self) -> Progress | None:
        """The last progress of this run; None before the first."""

    def progress_of(self, batch_id: int) -> Progress | None:
        """The progress of an executed batch; None where Spark has none of it, or not any more (it keeps a hundred)."""

    def dropped_rows(self) -> int | None:
        """Rows that this run has dropped as late, over all its batches; None where Spark did not say."""

    def idle_triggers(self) -> int:
        """How many triggers of this run found no input, as far as known."""

    def skipped(self) -> Skipped:
        """Batches of this run whose offsets moved on while no row was read: how it looks when a sink skips a batch.
        Spark remembers a hundred reports: whoever counts has to look now and then."""


@dataclass(frozen=True)
class QuerySource:
    """One source of a plan.

    Attributes:
        planned: as the plan shows it.
        log_folder: the number of Spark's own log of it, below ``sources/``: two places of one source share it. Of a
            source that has a name, its number in the plan.
        name: that the script gave it, by which Spark finds its offset and its log; "" for none.
    """

    planned: Source
    log_folder: int
    name: str = ""

    @property
    def folder(self) -> str:
        """Of Spark's own log of it, below ``sources/``."""
        return self.name or str(self.log_folder)


@dataclass(frozen=True)
class WriterFacts:
    """What a script's writer says about its query.

    Attributes:
        sink: ``file:parquet``, ``memory``, ``foreachBatch``, ``console``, ``noop``, ``kafka``, ``table:NAME`` ….
        trigger: ``default``, ``processing_time``, ``once``, ``available_now``, ``continuous``, ``real_time``.
        output_mode: ``append``, ``update`` or ``complete``.
        watermarks: its ``withWatermark``s, in plan order.
        stateful: whether the plan has a stateful operator.
        sources_count: how many sources the plan has, as Spark counts offset lines; None where it cannot be told.
        plan_fingerprint: equal for the same plan built again in one script, mostly different for others; "" if unknown.
        sources: what they are, in the order of the offset lines; empty where that cannot be told.
    """

    sink: str
    trigger: str
    output_mode: str
    watermarks: tuple[WatermarkSpec, ...]
    stateful: bool
    sources_count: int | None = None
    plan_fingerprint: str = ""
    sources: tuple[QuerySource, ...] = ()

    @property
    def are_sources_named(self) -> bool:
        """Whether Spark finds the offsets of its sources by their names, and not by their places."""
        return any(source.name for source in self.sources)

    def in_line_order(self, told: tuple[Told, ...]) -> tuple[Told, ...]:
        """What Spark tells of each source in the order of the plan, in the order of the offset lines."""
        if not self.are_sources_named:
            return told
        places = [source.log_folder for source in self.sources]
        return tuple(told[place] for place in places) if sorted(places) == list(range(len(told))) else ()


@dataclass(frozen=True)
class AnalyzedPlan:
    """What a query is going to do, as Spark has understood the script.

    Attributes:
        text: Spark's JSON of the analyzed plan.
        sink: what is written to.
        partitioned_by: the columns by which the sink is partitioned.
    """

    text: str
    sink: Sink
    partitioned_by: tuple[str, ...] = ()


class StartableQuery(Protocol):
    """The script's writer, remembered: it can run the same plan again."""

    @property
    def facts(self) -> WriterFacts:
        """What the writer says about itself."""

    @property
    def door(self) -> SparkDoor:
        """What connectors of its sources are given."""

    def analyzed_plan(self) -> AnalyzedPlan:
        """The plan that its start would run. Raises what Spark raises."""

    def start(self, checkpoint_uri: str) -> QueryRun:
        """Start as the script wanted, on this checkpoint. Raises what Spark raises."""

    def start_once(self, checkpoint_uri: str) -> QueryRun:
        """Start on this checkpoint with ``Trigger.Once``, whatever trigger the script set: runs the batch that the
        log has planned, or one batch where it has none. Same sink."""

    def start_available(self, checkpoint_uri: str) -> QueryRun:
        """Start on this checkpoint with ``Trigger.AvailableNow``, whatever trigger the script set: reads what is there
        now, in as many batches as the script wants, and ends. Same sink."""

    def run_seed_batch(self, checkpoint_uri: str) -> Progress | None:
        """Run the planned batch 0 of a seed into a ``noop`` sink with ``Trigger.Once``, and wait for its end: creates
        the empty state of this plan. Raises what Spark raises. Returns its progress."""

    def run_trial_batch(self, checkpoint_uri: str, within_seconds: float | None = None) -> Progress | None:
        """Run the planned batch of a fork (``checkpoint.trial_batches``) into a ``noop`` sink with ``Trigger.Once``,
        and wait for its end: the script's own sink, and its ``foreachBatch``, is not asked. Raises what Spark raises.

        Args:
            checkpoint_uri: the fork.
            within_seconds: it is stopped then, wherever it is; None: it is waited for.

        Returns:
            Its progress; None where it was stopped before it had any.
        """

    def session_conf(self, names: Sequence[str]) -> Mapping[str, str]:
        """These settings in the script's session, Spark's default where the script set none; unknown ones left out."""

    def held_batches(self, query_id: str | None, from_batch_id: int) -> HeldBatches:
        """Which batches of this query the sink holds, at or above an id; a sink that cannot be asked cannot tell.

        May be called from any thread.

        Args:
            query_id: Spark's id; None for a query that has none yet.
            from_batch_id: the lowest id that is asked for.
        """

    def prepare_sink(self, next_batch_id: int) -> tuple[str, ...]:
        """Make the sink ready whose next batch has this id; what was done, in words.

        Raises:
            UnavailableError: it could not be done.
        """

    def warm_sink(self, query_id: str, scratch_uri: str) -> tuple[str, ...]:
        """Ask the sink what a start asks it, and load and compile what the first batch writes with. Changes nothing in
        the sink, and may be called from any thread.

        Args:
            query_id: Spark's id, or one that no query has.
            scratch_uri: a folder of its own, as Spark is to be told it, where a row of nulls may be written.

        Returns:
            What of it stayed cold, and why, in words.
        """

    def undo_means(self) -> UndoMeans:
        """What can be done about batches that the sink is to give back."""

    def repeat_means(self) -> RepeatMeans:
        """What the sink makes of a batch that it was given before; ``unknown`` where nobody can say what it is."""

    def undo_needs_query_id(self) -> bool:
        """Whether the sink remembers batches that were undone, so that the query has to go on under another id.

        Raises:
            ConflictError: the sink could not be looked at.
        """

    def find_undo(self, wish: UndoOrder) -> FoundUndo:
        """What there is to undo; see ``UndoingSink``. Changes nothing.

        Raises:
            InvalidRequestError: it cannot be exact.
            ConflictError: the sink could not be looked at.
        """

    def undo_batches(self, wish: UndoOrder, found: FoundUndo) -> None:
        """Undo it; done again after ``find_undo`` it is done once.

        Raises:
            ConflictError: it did not come to its end, or somebody else wrote to the sink meanwhile.
        """

    def sink_place(self) -> str:
        """Where the sink is, for people: a path, a table, or what it is."""

    def count_state_rows(self, checkpoint_uri: str) -> tuple[OperatorRows, ...]:
        """Rows in the state at the last committed batch, read from the checkpoint with Spark's state reader."""

    def open_windows(self, checkpoint_uri: str) -> tuple[datetime, datetime] | None:
        """Earliest start and latest end of the windows in the state at the last committed batch; None where there is
        no window. Raises whatever Spark raises."""

    def last_timer_ms(self, checkpoint_uri: str, timed_out_ids: Collection[int]) -> int | None:
        """When the last timer or timeout of processing time in the state at the last committed batch is due, in
        milliseconds since 1970; None where none is set. Raises whatever Spark raises.

        Args:
            checkpoint_uri: the query's checkpoint.
            timed_out_ids: the operators whose state carries a timeout of processing time; those with timers of their
                own say so themselves.
        """

    def cannot_flush_reason(self) -> str | None:
        """Why a drain of this query is known not to work (append-mode memory sink); None where nothing is known."""
