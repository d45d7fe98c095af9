"""The driver's interface to Spark, implemented on pyspark and by the simulator.

One conformance suite runs the same steps against both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol, TypeVar, Union

from airflow_streamstate.checkpoint.seed import StateIds
from airflow_streamstate.connectors.sink import FoundUndo, HeldBatches, Sink, UndoMeans, UndoOrder
from airflow_streamstate.connectors.source import Source, SparkDoor
from airflow_streamstate.migration import Migration, MigrationFile
from airflow_streamstate.protocol.events import RepeatMeans
from airflow_streamstate.protocol.positions import WatermarkSpec
from airflow_streamstate.protocol.scratch import RewrittenTable, RowComparison

Value = TypeVar("Value")


@dataclass(frozen=True)
class OperatorRows:
    """Rows in the state of one operator, over all its partitions.

    Attributes:
        name: Spark's name of the operator, e.g. ``stateStoreSave``.
        operator_id: its number in the plan.
    """

    name: str
    operator_id: int
    rows: int


@dataclass(frozen=True)
class QueryProgress:
    """The last progress that a query reported.

    Attributes:
        output_rows: None where Spark does not report it.
        state: one entry per stateful operator.
        watermark_at: the event-time watermark; None for a query without one.
        source_descriptions: each source in Spark's words, in the order of the offset lines.
        end_offsets: per source, its end offset as JSON text; ``-`` if it has none.
        dropped_rows: rows dropped as late, over all operators.
        is_idle: a newer trigger found no input.
        source_metrics: the metrics of each source, in the order of ``end_offsets``.
        triggered_at: the start of the batch's trigger by the driver's clock; None where Spark does not report it.
        durations_ms: the durations of its phases, by Spark's names.
        state_load_ms: the time to open the state, over all partitions; None where the state store does not measure it.
        state_memory_bytes: the memory of the state of all operators (``memoryUsedBytes``); None where not reported.
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
    state_memory_bytes: int | None = None

    @property
    def committed_at(self) -> datetime | None:
        """The end of the batch's trigger, whose last act is the commit; None where Spark does not report it."""
        took_ms = self.durations_ms.get("triggerExecution")
        if self.triggered_at is None or took_ms is None:
            return None
        return self.triggered_at + timedelta(milliseconds=took_ms)


@dataclass(frozen=True)
class SkippedBySink:
    """Batches that advanced offsets and read no row.

    Attributes:
        newest: the ids of the last ten, ascending.
        first: the id of the first one; None if no batch was skipped.
    """

    count: int = 0
    newest: tuple[int, ...] = ()
    first: int | None = None


@dataclass(frozen=True)
class WrittenBatch:
    """A batch whose rows were written into files.

    Attributes:
        progress: None where it was stopped before it had any.
        rows: in the files; None where it was stopped.
        files: their names.
    """

    progress: QueryProgress | None
    rows: int | None = None
    files: tuple[str, ...] = ()


class NotWatchedError(Exception):
    """Spark started a query that could not be watched: it was stopped at once, and may have written."""


class QueryRun(Protocol):
    """One run of a query: from one ``start()`` to its end. Implements ``checkpoint.barrier.QueryView`` too."""

    @property
    def query_id(self) -> str:
        """Spark's id of the query, the same for every run on one checkpoint."""

    @property
    def query_run_id(self) -> str:
        """Spark's id of this run."""

    def is_active(self) -> bool:
        """Spark's ``isActive``; ``stop()`` clears it before the query's thread has ended."""

    def has_ended(self) -> bool:
        """Whether the query's thread has ended (``awaitTermination`` returned), so that it writes nothing more."""

    def is_trigger_active(self) -> bool:
        """Spark's ``status.isTriggerActive``."""

    def has_initialised(self) -> bool:
        """Whether this run has read its log and started its own work; before that, no barrier may be put (1a.2)."""

    def has_running_tasks(self) -> bool:
        """Whether a task still runs: after a cut, some outlive the query's thread for a moment."""

    def stop(self) -> None:
        """Spark's ``stop()``: interrupts a running batch; returns when the query has ended."""

    def await_end(self, timeout_seconds: float) -> bool:
        """Wait for the end; whether it has ended."""

    def failure(self) -> str | None:
        """Spark's error text for an ended query; None where it did not fail.

        A lost claim of a batch counts as a failure here; the log decides what it means (Law 13).
        """

    def was_ended_by_script(self) -> bool:
        """Whether it ended because the script stopped Spark."""

    def last_progress(self) -> QueryProgress | None: ...

    def progress_of(self, batch_id: int) -> QueryProgress | None:
        """The progress of an executed batch; None where Spark has none any more (it keeps a hundred)."""

    def dropped_rows(self) -> int | None:
        """Rows that this run dropped as late, over all its batches; None where Spark does not report it."""

    def read_rows(self) -> int:
        """Rows of input that this run read, over all its batches, as far as Spark reported them."""

    def idle_triggers(self) -> int:
        """How many triggers of this run found no input, as far as known."""

    def skipped(self) -> SkippedBySink:
        """Batches of this run that advanced offsets and read no row, as when a sink skips a batch.

        Spark keeps a hundred reports, so the caller has to ask often enough.
        """


@dataclass(frozen=True)
class QuerySource:
    """One source of a plan.

    Attributes:
        planned: the source as the plan shows it.
        log_folder: the number of Spark's own log of it below ``sources/``, which two uses of one source share; for a
            named source its number in the plan.
        name: the name from the script, by which Spark finds its offset and its log; "" without one.
    """

    planned: Source
    log_folder: int
    name: str = ""

    @property
    def folder(self) -> str:
        """The folder of Spark's own log of it, below ``sources/``."""
        return self.name or str(self.log_folder)


@dataclass(frozen=True)
class WriterFacts:
    """The facts that a script's writer states about its query.

    Attributes:
        sink: ``file:parquet``, ``memory``, ``foreachBatch``, ``console``, ``noop``, ``kafka``, ``table:NAME`` ….
        trigger: ``default``, ``processing_time``, ``once``, ``available_now``, ``continuous``, ``real_time``.
        output_mode: ``append``, ``update`` or ``complete``.
        watermarks: each ``withWatermark``, in plan order.
        stateful: whether the plan has a stateful operator.
        sources_count: the number of offset lines; None where it is unknown.
        plan_fingerprint: equal for the same plan built again in one script, mostly different for others; "" if unknown.
        sources: the sources in the order of the offset lines; empty where they are unknown.
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
        """Whether Spark finds the offsets of the sources by name instead of by position."""
        return any(source.name for source in self.sources)

    def in_line_order(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """Reorder values from plan order to the order of the offset lines; () if that is not possible."""
        if not self.are_sources_named:
            return values
        places = [source.log_folder for source in self.sources]
        return tuple(values[place] for place in places) if sorted(places) == list(range(len(values))) else ()


@dataclass(frozen=True)
class OwnCheckpoint:
    """The checkpoint that a script names for a query, by ``checkpointLocation`` or the session's settings.

    Attributes:
        uri: with its scheme; of the local disk an absolute path.
        batch_id: the last committed batch; None if no batch is committed.
        written_at: when that was committed, by the clock of its file system; None if that is unknown.
        others: folders of the same parent that hold committed batches, too.
        unread_reason: why it could not be read; "" where it was.
    """

    uri: str
    batch_id: int | None = None
    written_at: datetime | None = None
    others: tuple[str, ...] = ()
    unread_reason: str = ""


@dataclass(frozen=True)
class AnalyzedPlan:
    """The analyzed plan of a query.

    Attributes:
        text: Spark's JSON of it.
        partitioned_by: the columns by which the sink is partitioned.
    """

    text: str
    sink: Sink
    partitioned_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class WrittenState:
    """The state of a fork in files.

    Attributes:
        tables: by the path of each table below the folder, the columns of its key.
        problems: what could not be read, and why; one line each.
    """

    tables: Mapping[str, tuple[str, ...]]
    problems: tuple[str, ...] = ()


MigratedState = Union[Mapping[str, object], None]
"""State as fields by name; None drops the row."""
MigrateRow = Callable[[Mapping[str, object], Mapping[str, object]], MigratedState]
"""From the key and the old state of a row to its new state."""


@dataclass(frozen=True)
class RewriteOrder:
    """State to be rewritten.

    Attributes:
        before_uri: a checkpoint that is at ``batch_id``, with the old state.
        state_format: of the old state: Spark's state checkpoint format, 1 or 2.
        is_rocksdb: the old state is RocksDB's.
        after_uri: a checkpoint whose batch 0 the new version has run; its state is replaced.
        partitions: of the new state, by operator.
        after_format: of the new state.
        migrations: by operator and the name of its table, what its rows go through.
        migration_file: what they were read from; None without.
        aggregates: by operator whose list of aggregates changed, the old and the new ones, normalised: their state is
            migrated without a function, as is state whose fields were widened, added or removed. None: nothing is
            migrated without a function.
        may_fill: such a migration may fill a field that the old state does not have; not in a rollback.
        on_written: called with the unique ids of the new state before anything of it is read; with None in format 1.
        is_verified: also compare the old with the new state, and run each function twice.
        samples: at most this many rows of each kind are shown.
        rewriter: the Spark that rewrites it where the job's own cannot, by its path; else "".
    """

    before_uri: str
    batch_id: int
    state_format: int
    is_rocksdb: bool
    after_uri: str
    partitions: Mapping[int, int]
    after_format: int
    migrations: Mapping[tuple[int, str], Migration] = field(default_factory=dict)
    migration_file: MigrationFile | None = None
    aggregates: Mapping[int, tuple[tuple[str, ...], tuple[str, ...]]] | None = None
    may_fill: bool = True
    on_written: Callable[[StateIds | None], None] = lambda _: None
    is_verified: bool = False
    samples: int = 0
    rewriter: str = ""


@dataclass(frozen=True)
class RewrittenState:
    """State that was rewritten.

    Attributes:
        tables: what was written.
        state_ids: by operator and partition, the unique ids of the new state's stores; None in format 1.
        rows_read: by operator whose rows were all written as they are, how many were read; others are left out.
    """

    tables: tuple[RewrittenTable, ...]
    state_ids: StateIds | None = None
    rows_read: Mapping[int, int] = field(default_factory=dict)


class StartableQuery(Protocol):
    """The script's writer, kept by the driver: it can run the same plan again. Methods that run Spark raise what it
    raises."""

    @property
    def facts(self) -> WriterFacts: ...

    @property
    def door(self) -> SparkDoor:
        """The access to Spark for the connectors of its sources."""

    def own_checkpoint(self) -> OwnCheckpoint | None:
        """The checkpoint that the script names for it, as it is now; None where it names none."""

    def analyzed_plan(self) -> AnalyzedPlan:
        """The plan that its start would run."""

    def start(self, checkpoint_uri: str) -> QueryRun:
        """Start with the script's own trigger on this checkpoint."""

    def start_once(self, checkpoint_uri: str) -> QueryRun:
        """Start with ``Trigger.Once`` and the script's sink: runs the batch that the log has planned, or else one new
        batch."""

    def start_available(self, checkpoint_uri: str) -> QueryRun:
        """Start with ``Trigger.AvailableNow`` and the script's sink: reads what is there now, and ends."""

    def run_seed_batch(self, checkpoint_uri: str) -> QueryProgress | None:
        """Run the planned batch 0 of a seed into a ``noop`` sink, and wait for its end: creates the plan's empty state.

        Returns its progress.
        """

    def run_trial_batch(self, checkpoint_uri: str, within_seconds: float | None = None) -> QueryProgress | None:
        """Run the planned batch of a fork (``checkpoint.fork``) into a ``noop`` sink, and wait for its end.

        The script's own sink and ``foreachBatch`` are not called. Raises what Spark raises.

        Args:
            within_seconds: stop it after this time; None: wait for its end.

        Returns:
            Its progress; None where it was stopped before it had any.
        """

    def write_trial_batch(
        self,
        checkpoint_uri: str,
        folder: str,
        within_seconds: float,
        *,
        calls_foreach_batch: bool = False,
        on_failure: Callable[[Exception], None] = lambda _: None,
    ) -> WrittenBatch:
        """As ``run_trial_batch``, into Parquet files in a new local folder, which appears when it is complete.

        Raises what the script or Spark raises.

        Args:
            calls_foreach_batch: call the script's own ``foreachBatch``, which is the query's sink, with the rows that
                were written and the id of the batch. The batch fails where it raises, and no folder appears.
            on_failure: called with what it raises, while the rows can still be read.
        """

    def compare_rows(self, old_folder: str, new_folder: str, keys: Sequence[str], samples: int) -> RowComparison:
        """Compare the rows in two folders of ``write_trial_batch``.

        Args:
            keys: columns of the key of a row, by which changed rows are recognised.
            samples: at most this many rows of each kind are shown.
        """

    def write_state(self, checkpoint_uri: str, batch_id: int, state_format: int, folder: str) -> WrittenState:
        """Write the state that a batch left, into Parquet files in a folder for each table below this new one.

        Args:
            state_format: Spark's state checkpoint format, 1 or 2.
        """

    def rewrite_state(self, order: RewriteOrder) -> RewrittenState:
        """Write the state of one checkpoint into another one.

        Raises:
            IncompatibleUpgradeError: the old state has no place in the new version, or a migration is not usable.
            UnsupportedCheckpointError: this Spark cannot do it.
            DataError: rows got lost on the way.
        """

    def missing_file(self, paths: Sequence[str]) -> str:
        """The first of these files that is not there; "" where all are, or if that is unknown.

        Args:
            paths: as the log of a file source has them.
        """

    def session_conf(self, names: Sequence[str]) -> Mapping[str, str]:
        """These settings of the script's session, or Spark's defaults; unknown ones are left out."""

    def held_batches(self, query_id: str | None, from_batch_id: int) -> HeldBatches:
        """The batches of this query, at or above an id, that the sink holds. May be called from any thread.

        Args:
            query_id: Spark's id; None for a query that has none yet.
        """

    def prepare_sink(self, next_batch_id: int) -> tuple[str, ...]:
        """Prepare the sink for a start whose next batch has this id; returns descriptions of what was done.

        Raises:
            UnavailableError: it could not be done.
        """

    def need_table(self) -> tuple[str, ...]:
        """Check that the table that a start writes to is there, or can be created; remarks on how long it lasts.

        Changes nothing. Of tables of files in Spark's own catalog; nothing is known of others.

        Raises:
            InvalidRequestError: Spark would refuse the start.
        """

    def try_sink(self, next_batch_id: int, scratch_uri: str) -> tuple[str, ...]:
        """Try what a start asks of the sink before its first batch, without changing it; human-readable remarks.

        Args:
            next_batch_id: of the batch that a start would plan next.
            scratch_uri: an own folder, as Spark names it, where a row of nulls may be written.

        Raises:
            InvalidRequestError: the start would be refused.
        """

    def warm_sink(self, query_id: str, scratch_uri: str) -> tuple[str, ...]:
        """Ask the sink what a start asks it, and load and compile the code that the first batch writes with.

        Changes nothing in the sink. May be called from any thread.

        Args:
            query_id: Spark's id, or an unused one.
            scratch_uri: an empty folder, as Spark names it, where a row of nulls may be written.

        Returns:
            Descriptions of what could not be warmed, and why.
        """

    def undo_means(self) -> UndoMeans:
        """How batches can be removed from the sink."""

    def repeat_means(self) -> RepeatMeans:
        """What the sink does with a batch that it already has; ``unknown`` if that cannot be determined."""

    def undo_needs_query_id(self) -> bool:
        """Whether the sink remembers undone batches, so that the query has to continue under another id.

        Raises:
            ConflictError: the sink could not be read.
        """

    def find_undo(self, order: UndoOrder, /) -> FoundUndo:
        """Find what there is to undo, see ``UndoingSink``. Changes nothing.

        Raises:
            InvalidRequestError: the undo would not be exact.
            ConflictError: the sink could not be read.
        """

    def undo_batches(self, order: UndoOrder, found: FoundUndo, /) -> None:
        """Undo it; idempotent after ``find_undo``.

        Raises:
            ConflictError: the undo did not complete, or another writer changed the sink in the meantime.
        """

    def sink_place(self) -> str:
        """The human-readable location of the sink: a path, a table, or its kind."""

    def count_state_rows(self, checkpoint_uri: str) -> tuple[OperatorRows, ...]:
        """Rows in the state at the last committed batch, read with Spark's state reader."""

    def open_windows(self, checkpoint_uri: str) -> tuple[datetime, datetime] | None:
        """Earliest start and latest end of the windows in the state at the last committed batch; None for no window."""

    def last_timer_ms(self, checkpoint_uri: str, timed_out_ids: Collection[int]) -> int | None:
        """The last processing-time timer or timeout in the state at the last committed batch, in milliseconds since
        1970.

        None where none is set. Raises what Spark raises.

        Args:
            timed_out_ids: the operators with a processing-time timeout; operators with timers identify themselves.
        """

    def cannot_flush_reason(self) -> str | None:
        """Why a drain of this query cannot work (append-mode memory sink); None where nothing is known."""
