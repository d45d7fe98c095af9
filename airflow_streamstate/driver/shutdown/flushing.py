"""The flush of one query: the drain entry runs as one batch, and the state that it leaves is counted (1a.5)."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TypeVar

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

Result = TypeVar("Result")


@dataclass(frozen=True)
class FlushFailure:
    """Why a flush is not committed.

    Attributes:
        withdrawn: the sink provably lacks the batch, and the entry is removed: the query stands where it stood.
        run: the run that failed; None where Spark refused to start.
    """

    error: str
    withdrawn: bool
    run: QueryRun | None


class Flush:
    """The flush of one query that stands at its barrier."""

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
        """The id of the flush batch; reads only. Raises what the checkpoint raises."""
        checkpoint = self.query.checkpoint
        found = classify(checkpoint, self._attempt.deployment_id)
        self.batch_id = found.batch_id if isinstance(found, DrainCommitted) else checkpoint.position().barrier_id
        return self.batch_id

    def look_ahead(self) -> str | None:
        """Determine the batch time of the flush; reads only. Returns why the state could not be read; None where it
        was.

        A flush that an earlier attempt has begun keeps the batch time of its entry.
        """
        checkpoint = self.query.checkpoint
        entry = self._retry("the offset log", lambda: checkpoint.read_offset(self.batch_id))
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
            moment = datetime.fromtimestamp(due_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")
            self._attempt.reporter.say(
                f"query {self.query.name}: its flush runs at {moment}, when its last timer is due"
            )
        return None

    def start(self) -> None:
        """Exchange the entry and start the flush, unless it is committed; returns while it runs."""
        checkpoint = self.query.checkpoint
        if self._retry("the commit log", lambda: checkpoint.is_committed(self.batch_id)):
            return
        need_current(self._attempt)
        # The drain entry is a copy of the entry before it, and Spark needs this setting in both.
        partitions = self.query.session_partitions
        self._retry("the offset log", lambda: pin_partitions(checkpoint, partitions))
        mark = self._attempt.mark("drain", self._command_id)
        time_ms = self._batch_time_ms
        self._retry(
            "the exchange for the drain", lambda: exchange_for_drain(checkpoint, mark, batch_timestamp_ms=time_ms)
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
        try:
            return self._run is None or self._run.has_ended()
        except UnavailableError:
            return False

    def conclude(self, *, may_withdraw: bool = True) -> None:
        """Judge the ended flush by the log (Law 13). ``may_withdraw``: remove its entry where the sink provably lacks
        the batch and nothing of it runs."""
        checkpoint = self.query.checkpoint
        if self._retry("the commit log", lambda: checkpoint.is_committed(self.batch_id)):
            if self._run is not None:
                self.query.last_end = replace(self.query.last_end, flushed_at=self._attempt.clock.now())
            return
        run = self._run
        error = self._refusal or (run.failure() if run is not None else None) or "the flush ended without a commit"
        withdrawn = may_withdraw and self._is_over() and self._sink_lacks_batch()
        if withdrawn:
            # State first: after a crash in between, the entry makes the next attempt flush again.
            version = self.batch_id + 1
            self._retry("the state of the flush", lambda: delete_version(checkpoint, version))
            self._retry("taking back the drain", lambda: withdraw(checkpoint, self.batch_id))
        self.failure = FlushFailure(error, withdrawn, run)

    def _retry(self, doing: str, act: Callable[[], Result]) -> Result:
        return retry_until_fenced(self._attempt, doing, act)

    def _is_over(self) -> bool:
        """Whether nothing of it writes any more: its thread has ended, and within the grace its tasks."""
        clock, run = self._attempt.clock, self._run
        until = clock.monotonic_seconds() + self._attempt.spec.version.settings.exit_grace_seconds
        while not self.has_ended() or (run is not None and self._retry("Spark", run.has_running_tasks)):
            if clock.monotonic_seconds() >= until:
                return False
            clock.sleep(POLL_SECONDS)
        return True

    def _sink_lacks_batch(self) -> bool:
        if self._run is None and self._is_first_try:
            return True  # Spark refused to start, so the sink never got this batch
        try:
            # A sink that is keyed by the query id cannot answer without it.
            query_id = self._retry("the checkpoint", self.query.checkpoint.query_id)
            held = self.query.startable.held_batches(query_id, self.batch_id)
            return query_id is not None and held.lacks(self.batch_id)
        except Exception:
            self._attempt.reporter.say(f"the sink of {self.query.name} could not be asked: {traceback.format_exc()}")
            return False

    def state_left(self) -> tuple[int | None, tuple[StateLeft, ...]]:
        """Rows left in the state, None where they could not be counted, and the operators that hold them."""
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
        """Rows that the flush gave to the sink; None where Spark does not report it."""
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
