"""The flush of one query: the drain entry runs as one batch, and what it left behind is counted (1a.5)."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from airflow_streamstate.checkpoint.barrier import exchange_for_drain, withdraw
from airflow_streamstate.checkpoint.missing_pin import pin_partitions
from airflow_streamstate.checkpoint.repair import DrainCommitted, classify
from airflow_streamstate.checkpoint.state_files import delete_version
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.logical_query import POLL_SECONDS, LogicalQuery
from airflow_streamstate.driver.attempt.ports import NotWatchedError, OperatorRows, QueryRun
from airflow_streamstate.driver.attempt.snapshotting import need_current, retry_until_fenced
from airflow_streamstate.driver.shutdown.flush_reach import FlushReach
from airflow_streamstate.driver.start.repeating import tell_repeated
from airflow_streamstate.errors import FencedError, StreamStateError, UnavailableError
from airflow_streamstate.protocol.positions import StateLeft


@dataclass(frozen=True)
class FlushFailure:
    """Why a flush is not committed.

    Attributes:
        withdrawn: the sink provably lacks the batch, and the entry is taken back: the query stands where it stood.
        run: the run that failed; None where Spark refused to start.
    """

    error: str
    withdrawn: bool
    run: QueryRun | None


class Flush:
    """One query on its way from its barrier to its flush.

    Args:
        attempt: this attempt.
        query: it stands at its barrier.
        command_id: the drain.
        reach: what the flush reaches.
    """

    def __init__(self, attempt: Attempt, query: LogicalQuery, command_id: str, reach: FlushReach) -> None:
        self._attempt = attempt
        self.query = query
        self._command_id = command_id
        self._reach = reach
        self._batch_time_ms: int | None = None
        self._run: QueryRun | None = None
        self._refusal: str | None = None
        self._is_first_try = False
        self.batch_id = -1
        self.failure: FlushFailure | None = None

    def prepare(self) -> int:
        """The batch that flushes; reads only. Raises what the checkpoint raises."""
        checkpoint = self.query.checkpoint
        found = classify(checkpoint, self._attempt.deployment_id)
        self.batch_id = found.batch_id if isinstance(found, DrainCommitted) else checkpoint.position().barrier_id
        return self.batch_id

    def look_ahead(self) -> str | None:
        """See how far the batch time has to be moved; reads only. Why the state could not be read, None where it was.

        Not where an earlier attempt has begun the flush: its entry says how far.
        """
        checkpoint = self.query.checkpoint
        entry = retry_until_fenced(self._attempt, "the offset log", lambda: checkpoint.read_offset(self.batch_id))
        self._is_first_try = entry is None or entry.mark is None or entry.mark.kind != "drain"
        if not self._is_first_try or entry is None:
            return None
        try:
            due_ms = self._reach.batch_time_ms(self.query, checkpoint)
        except FencedError:
            raise
        except Exception as error:
            self._attempt.reporter.say(traceback.format_exc())
            return f"its timers of processing time could not be read: {type(error).__name__}: {error}"
        if due_ms is not None:
            self._batch_time_ms = due_ms
            moment = datetime.fromtimestamp(due_ms / 1000, UTC).isoformat(timespec="milliseconds")
            self._attempt.reporter.say(
                f"query {self.query.name}: its flush runs at {moment}, when its last timer is due"
            )
        return None

    def start(self) -> None:
        """Exchange the entry and start the flush, unless it is committed already. Comes back while it runs."""
        checkpoint = self.query.checkpoint
        if retry_until_fenced(self._attempt, "the commit log", lambda: checkpoint.is_committed(self.batch_id)):
            return
        need_current(self._attempt)
        # The drain entry is a copy of the one before it, and Spark wants this setting in both.
        partitions = self.query.session_partitions
        retry_until_fenced(self._attempt, "the offset log", lambda: pin_partitions(checkpoint, partitions))
        mark = self._attempt.mark("drain", self._command_id)
        retry_until_fenced(
            self._attempt,
            "the exchange for the drain",
            lambda: exchange_for_drain(checkpoint, mark, batch_timestamp_ms=self._batch_time_ms),
        )
        if not self._is_first_try:
            tell_repeated(self._attempt, self.query, self.batch_id, is_flush=True)
        self._attempt.reporter.say(f"query {self.query.name}: batch {self.batch_id} flushes")
        try:
            self._run = self.query.startable.start_once(self._attempt.uri_of(checkpoint))
        except FencedError:
            raise
        except Exception as error:
            self._is_first_try = self._is_first_try and not isinstance(error, NotWatchedError)
            self._refusal = f"{type(error).__name__}: {error}"
            self._attempt.reporter.say(traceback.format_exc())
        else:
            self.query.add_run(self._run, once=True)

    def has_ended(self) -> bool:
        """Whether nothing of it runs any more."""
        try:
            return self._run is None or self._run.has_ended()
        except UnavailableError:
            return False

    def conclude(self, *, may_withdraw: bool = True) -> None:
        """After its end: the log says whether it worked (Law 13).

        Args:
            may_withdraw: its entry is taken back, where the sink provably lacks the batch and nothing runs any more.
        """
        checkpoint = self.query.checkpoint
        if retry_until_fenced(self._attempt, "the commit log", lambda: checkpoint.is_committed(self.batch_id)):
            if self._run is not None:
                self.query.last_end = replace(self.query.last_end, flushed_at=self._attempt.clock.now())
            return
        run = self._run
        error = self._refusal or (run.failure() if run is not None else None) or "the flush ended without a commit"
        withdrawn = may_withdraw and self._is_over() and self._sink_lacks_batch()
        if withdrawn:
            # First what it left of the state: with the entry still there, whoever comes after a crash flushes again.
            version = self.batch_id + 1
            retry_until_fenced(self._attempt, "the state of the flush", lambda: delete_version(checkpoint, version))
            retry_until_fenced(self._attempt, "taking back the drain", lambda: withdraw(checkpoint, self.batch_id))
        self.failure = FlushFailure(error, withdrawn, run)

    def _is_over(self) -> bool:
        """Whether nothing of it writes any more: its thread has ended, and with a little patience its tasks."""
        clock, run = self._attempt.clock, self._run
        until = clock.monotonic_seconds() + self._attempt.spec.settings.exit_grace_seconds
        while not self.has_ended() or (
            run is not None and retry_until_fenced(self._attempt, "Spark", run.has_running_tasks)
        ):
            if clock.monotonic_seconds() >= until:
                return False
            clock.sleep(POLL_SECONDS)
        return True

    def _sink_lacks_batch(self) -> bool:
        if self._run is None and self._is_first_try:
            return True  # Spark refused to start: nobody ever gave the sink this batch
        try:
            # Without it a sink that is keyed by it would hold nothing, which is no proof of anything.
            query_id = retry_until_fenced(self._attempt, "the checkpoint", self.query.checkpoint.query_id)
            held = self.query.startable.held_batches(query_id, self.batch_id)
            return query_id is not None and held.lacks(self.batch_id)
        except Exception:
            self._attempt.reporter.say(f"the sink of {self.query.name} could not be asked: {traceback.format_exc()}")
            return False

    def state_left(self) -> tuple[int | None, tuple[StateLeft, ...]]:
        """Rows that are left in the state, None where nobody could count, and which operators hold them."""
        operators = self._operators()
        if operators is None:
            return None, ()
        left = tuple(
            StateLeft(one.name, one.operator_id, one.rows, self._reach.why_left(self.query, one.operator_id))
            for one in operators
            if one.rows
        )
        return sum(one.rows for one in left), left

    def rows_written(self) -> int | None:
        """Rows that the flush gave to the sink; None where Spark did not say."""
        progress = self._run.last_progress() if self._run is not None else None
        return progress.output_rows if progress is not None and progress.batch_id == self.batch_id else None

    def _operators(self) -> tuple[OperatorRows, ...] | None:
        try:
            progress = self._run.last_progress() if self._run is not None else None
            if progress is not None and progress.batch_id == self.batch_id:
                return progress.state
            if not self.query.startable.facts.stateful:
                return ()
            return self.query.startable.count_state_rows(self._attempt.uri_of(self.query.checkpoint))
        except StreamStateError as error:
            why = str(error)
        except Exception:
            why = traceback.format_exc()
        self._attempt.reporter.note("the rows left in the state could not be counted", query=self.query.name, why=why)
        return None
