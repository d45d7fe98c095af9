"""A query as the script sees it: over all its runs, its flush and its snapshot (1a.11).

Spark's own query ends at a barrier with an error. The script's waits end when the stop or drain is complete, without an
error. The log decides what the end of a run means, never the text of its error (Law 13).
"""

from __future__ import annotations

import threading
from typing import Protocol

from airflow_streamstate.checkpoint.log import PARTITIONS, Checkpoint
from airflow_streamstate.clock import Clock
from airflow_streamstate.driver.attempt.latch import Fence, Latch
from airflow_streamstate.driver.attempt.ports import QueryProgress, QueryRun, SkippedBySink, StartableQuery
from airflow_streamstate.driver.attempt.reports import Reporter
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol.positions import QueryEnd
from airflow_streamstate.protocol.records import DeploymentSpec

WAIT_SLICE_SECONDS = 0.5
POLL_SECONDS = 0.05
SHOWN_BATCHES = 10
MAX_VAIN_WAITS = 10
"""This many waits for a query that has ended count as a loop."""


class RunView:
    """A run as a barrier sees it (``checkpoint.barrier.QueryView``); None counts as ended."""

    def __init__(self, run: QueryRun | None) -> None:
        self._run = run

    def has_ended(self) -> bool:
        return self._run is None or self._run.has_ended()

    def is_trigger_active(self) -> bool:
        return self._run is not None and self._run.is_trigger_active()

    def has_initialised(self) -> bool:
        return self._run is None or self._run.has_initialised()


class QueryOwner(Protocol):
    """What a query uses of the attempt that started it."""

    clock: Clock
    spec: DeploymentSpec
    latch: Latch
    fence: Fence
    reporter: Reporter
    queries: AttemptQueries
    ends_loops: bool


class LogicalQuery:
    """One query of the script, from a ``start()`` to its end.

    Attributes:
        name: its name in the deployment (1a.12).
        startable: the script's writer; it can run the same plan again.
        checkpoint: its checkpoint; missing where the latch was closed before its first start.
        run: the current or last run; None where Spark was not asked to start.
        runs: all of them, flushes too.
        runs_once: the last run is one of the driver's, runs a single batch, and must not be stopped.
        is_over: it has ended for the script, as far as known; ``ended`` checks.
        has_ended_itself: it came to its own end during a shutdown, so calling that off does not restart it.
        failed_run: the run whose exception the waits raise; None where it did not fail, or failed without a run.
        last_end: when its last run with the script's own trigger reached its barrier and its end, as far as seen.
        has_failed_itself: it failed, and the script had not stopped it.
        is_failure_told: its failure is written as an event, or is about to be.
        is_failure_given: a wait of the script raised its failure, or ``exception()`` returned it.
        remarks: human-readable, on its name.
        met_barrier: a barrier of the driver ended its last run, which had not come to its end.
    """

    def __init__(self, attempt: QueryOwner, name: str, startable: StartableQuery, checkpoint: Checkpoint) -> None:
        self._attempt = attempt
        self.name = name
        self.startable = startable
        self.checkpoint = checkpoint
        self.run: QueryRun | None = None
        self.runs: list[QueryRun] = []
        self.runs_once = False
        self.is_over = False
        self.has_ended_itself = False
        self.failed_run: QueryRun | None = None
        self.last_end = QueryEnd()
        self.has_failed_itself = False
        self.is_failure_told = False
        self.is_failure_given = False
        self.remarks: tuple[str, ...] = ()
        self.met_barrier = False
        self._stopped_run: QueryRun | None = None
        self._vain_waits = 0
        self._failure: str | None = None
        self._last_progress: QueryProgress | None = None
        self._dropped_before: int | None = None
        self._skipped_before = SkippedBySink()
        self._planned_ids: dict[QueryRun, int | None] = {}

    @property
    def ended(self) -> bool:
        """Whether it has ended for the script."""
        if not self.is_over:
            self._look()
        return self.is_over

    def is_active(self) -> bool:
        """Spark's ``isActive``, for the script."""
        return not self.ended

    def failure(self) -> str | None:
        """Why it failed; None while it runs, and after a clean end, a stop or a drain."""
        return self._failure if self.ended else None

    def failure_to_raise(self) -> str | None:
        """The failure that the waits raise; None after a stop or a drain of a deployment with ``on_query_failure``
        ``degrade``."""
        is_over = self._attempt.latch.outcome in ("stopped", "drained")
        return None if is_over and self._lets_others_run else self.give_failure()

    def give_failure(self) -> str | None:
        """``failure``, noted as given to the script."""
        text = self.failure()
        self.is_failure_given = self.is_failure_given or text is not None
        return text

    @property
    def is_held_back(self) -> bool:
        """Whether no wait raises its failure yet, because the end of the other queries is not decided."""
        latch = self._attempt.latch
        if not self._lets_others_run or not self.is_over or latch.is_released:
            return False
        if not latch.is_open:
            return True
        return any(not query.ended for query in self._attempt.queries.all() if query is not self)

    @property
    def _lets_others_run(self) -> bool:
        return self.has_failed_itself and self._attempt.spec.version.on_query_failure == "degrade"

    def await_termination(self, timeout_seconds: float | None = None) -> bool:
        """Wait until it has ended; False at the timeout. Raises FencedError if this attempt was replaced."""
        clock, was_over = self._attempt.clock, self.is_over and not self.is_held_back
        end = None if timeout_seconds is None else clock.monotonic_seconds() + timeout_seconds
        while not self.ended or self.is_held_back:
            self._attempt.fence.check()
            left = WAIT_SLICE_SECONDS if end is None else end - clock.monotonic_seconds()
            if left <= 0:
                return False
            self._wait(min(left, WAIT_SLICE_SECONDS))
        if was_over:
            self.wait_in_vain()
        return True

    def wait_in_vain(self) -> None:
        """Slow down a loop around a wait for a query that had ended before; where ``Attempt.ends_loops``, end it by
        SystemExit(0)."""
        attempt = self._attempt
        if not attempt.latch.is_released and not attempt.ends_loops:
            return
        self._vain_waits += 1
        if self._vain_waits > 1:
            attempt.clock.sleep(WAIT_SLICE_SECONDS)
        if attempt.ends_loops and self._vain_waits >= MAX_VAIN_WAITS:
            attempt.reporter.note(
                "the script waits in a loop for a query that has ended; the driver ends it", query=self.name
            )
            raise SystemExit(0)

    def stop(self) -> None:
        """The script's own ``stop()``: as in plain Spark; during a shutdown it waits for that instead."""
        # Without the latch's lock: a listener of the script may call this from within a start().
        while not self.is_over:
            if self._attempt.latch.is_open:
                if self.run is not None:
                    if not self.run.has_ended():
                        self._stopped_run = self.run
                    self.run.stop()
                return
            self.has_ended_itself = True  # in case the shutdown is called off
            if self.await_termination(WAIT_SLICE_SECONDS):
                return

    def await_another_run(self, run: QueryRun | None) -> bool:
        """Wait until another run replaces this one, as after a shutdown that was called off; False where the query ends
        instead."""
        while not self.ended:
            if self._attempt.latch.is_open and self.run is not run:
                return True
            self.await_termination(POLL_SECONDS)
        return False

    def add_run(self, run: QueryRun, *, once: bool = False, planned_id: int | None = None) -> None:
        """Make this the query's current run.

        ``once``: it runs one batch that is planned already. ``planned_id``: the batch planned before its start, which
        it runs first.
        """
        if not once:
            self._planned_ids[run] = planned_id
            self.last_end = QueryEnd()
        self.run = run
        self.runs_once = once
        self.met_barrier = False
        self.runs.append(run)

    def end(self, failure: str | None = None, failed_run: QueryRun | None = None) -> None:
        """End it for the script."""
        if not self.is_over:
            self._failure, self.failed_run = failure, failed_run
            self.is_over = True

    def fail(self, failure: str, run: QueryRun | None = None) -> None:
        """End it for the script with a failure, which is its own unless the script had stopped this run."""
        if not self.is_over:
            is_stopped = run is not None and (run.was_ended_by_script() or run is self._stopped_run)
            self.has_failed_itself = not is_stopped
            self.end(failure, run)

    @property
    def was_stopped_by_script(self) -> bool:
        """Whether the script stopped its last run while that ran."""
        return self.run is not None and self.run is self._stopped_run

    @property
    def query_id(self) -> str | None:
        """Spark's id, the same over all runs; None where it never had a checkpoint."""
        try:
            return self.run.query_id if self.run is not None else self.checkpoint.query_id()
        except StreamStateError:
            return None

    def session_partitions(self) -> str:
        """The number of partitions in the script's session conf; "" where Spark does not report it."""
        return self.startable.session_conf((PARTITIONS,)).get(PARTITIONS, "")

    @property
    def plans_batch_by_batch(self) -> bool:
        """Whether each batch takes its offsets when it is planned, instead of all at the start of a run."""
        return self.startable.facts.trigger not in ("once", "available_now")

    def newest_batch_id(self) -> int:
        """The newest batch that was executed in this attempt, as far as seen; otherwise -1."""
        progress = self.last_progress()
        return -1 if progress is None else progress.batch_id

    @property
    def view(self) -> RunView:
        return RunView(self.run)

    def has_stopped_running(self) -> bool:
        """Whether Spark runs nothing of it, whatever the script sees."""
        return self.view.has_ended()

    def last_progress(self) -> QueryProgress | None:
        """The last progress of any of its runs."""
        found = self.run.last_progress() if self.run is not None else None
        if found is not None:
            self._last_progress = found
        return self._last_progress

    def rows_dropped(self) -> int | None:
        """Rows dropped as late in this attempt, over all its runs; None where Spark does not report it."""
        counts = [run.dropped_rows() for run in self.runs]
        known = [count for count in counts if count is not None]
        return self._dropped_before if not known else sum(known) + (self._dropped_before or 0)

    def rows_read(self) -> int:
        """Rows of input that its runs have read in this attempt since its last start, as far as Spark reported them."""
        return sum(run.read_rows() for run in self.runs)

    def skipped(self) -> SkippedBySink:
        """Batches of this attempt that advanced offsets and read nothing, over all its runs.

        Without a batch that was planned before a start: a sink that holds it skips it rightly.
        """
        found = self._skipped_before
        for run, planned_id in self._planned_ids.items():
            its = run.skipped()
            count = its.count - (planned_id is not None and its.first == planned_id)
            newest = tuple(batch_id for batch_id in its.newest if batch_id != planned_id)
            found = SkippedBySink(found.count + count, (*found.newest, *newest)[-SHOWN_BATCHES:])
        return found

    def progress_of(self, batch_id: int) -> QueryProgress | None:
        """The progress of a batch of this attempt; None where Spark has none any more."""
        return next((found for run in self.runs if (found := run.progress_of(batch_id)) is not None), None)

    def continue_from(self, before: LogicalQuery) -> None:
        """Take over the counts of the same query's earlier start in this attempt."""
        self._dropped_before = before.rows_dropped()
        self._skipped_before = before.skipped()

    def _wait(self, seconds: float) -> None:
        run = self.run
        if run is not None and self._attempt.latch.is_open and not self.is_over:
            run.await_end(seconds)
        else:
            self._attempt.clock.sleep(min(seconds, POLL_SECONDS))

    def _look(self) -> None:
        latch = self._attempt.latch
        if latch.is_released:
            self.end()
            return
        run = self.run
        if not latch.is_open or self._attempt.fence.is_fenced or run is None or not run.has_ended():
            return
        with latch.held(wait=False) as is_ours:  # otherwise a start() is under way
            if is_ours and latch.is_open and run is self.run:
                self.settle()

    def settle(self) -> None:
        """End the query if its run ended without a barrier of the driver."""
        run = self.run
        if run is None or self.is_over or not run.has_ended():
            return
        failure = run.failure()
        if failure is not None and self._was_fenced() and self._is_replaced():
            return
        if failure is None:
            self.end()
        else:
            self.fail(failure, run)

    def _was_fenced(self) -> bool:
        try:
            barriers = self.checkpoint.position().barriers
            return any(barrier.entry.mark is not None and barrier.entry.mark.kind == "fence" for barrier in barriers)
        except StreamStateError:
            return False

    def _is_replaced(self) -> bool:
        """Whether the fence is a successor's: not so where the register names this attempt without an intent."""
        if self._attempt.fence.close_unless_named():
            return True
        self._attempt.reporter.note(
            "a fence is in the log of this query although no deployment replaces this attempt: a controller put it"
            " after the deployment had been resumed; resume it again, which removes the fence",
            query=self.name,
        )
        return False


class AttemptQueries:
    """The queries that an attempt has started, by name: the script's thread adds them, the agent's thread reads them.

    Attributes:
        first_failed: the query whose failure was reported first; None before the first failure.
        last_start_at_seconds: the monotonic time of the script's last ``start()``; None before the first.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, LogicalQuery] = {}
        self._guard = threading.Lock()
        self.first_failed: LogicalQuery | None = None
        self.last_start_at_seconds: float | None = None

    def __getitem__(self, name: str) -> LogicalQuery:
        return self._by_name[name]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> LogicalQuery | None:
        return self._by_name.get(name)

    def names(self) -> list[str]:
        """The names, in the order of their first starts."""
        return list(self._by_name)

    def all(self) -> list[LogicalQuery]:
        """A copy: queries that are added later do not change it."""
        return list(self._by_name.values())

    def add(self, query: LogicalQuery) -> None:
        """Add a query; it replaces an earlier one of the same name."""
        self._by_name[query.name] = query

    def note_start(self, at_seconds: float) -> None:
        self.last_start_at_seconds = at_seconds

    def begin_to_tell(self, query: LogicalQuery) -> bool:
        """Whether this call may report the failure of a query: two threads may poll at once."""
        with self._guard:
            is_first, query.is_failure_told = not query.is_failure_told, True
            return is_first

    def note_failed(self, query: LogicalQuery) -> None:
        if self.first_failed is None:
            self.first_failed = query
