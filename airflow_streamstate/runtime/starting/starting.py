"""What happens at the intercepted ``start()``: the query gets its name, its checkpoint, its repair, and its run.

All of it under the latch's lock: a query either runs, and gets its barrier when the latch closes, or is not started.
"""

from __future__ import annotations

from functools import partial

from airflow_streamstate.checkpoint.guards import STATE_FORMAT, guard_state_format
from airflow_streamstate.checkpoint.log import Position
from airflow_streamstate.checkpoint.repair import RepairReport, repair_before_start
from airflow_streamstate.errors import (
    ConflictError,
    FencedError,
    InvalidRequestError,
    OutcomeUnknownError,
    UnavailableError,
)
from airflow_streamstate.protocol.events import Draining, QueryStarted
from airflow_streamstate.runtime.attempt.answering import call_off_drain
from airflow_streamstate.runtime.attempt.attempt import Attempt
from airflow_streamstate.runtime.attempt.auditing import note_gaps
from airflow_streamstate.runtime.attempt.logical_query import LogicalQuery
from airflow_streamstate.runtime.attempt.ports import QueryRun, StartableQuery
from airflow_streamstate.runtime.attempt.snapshotting import need_current, persist
from airflow_streamstate.runtime.starting.building import Builder, Built
from airflow_streamstate.runtime.starting.naming import NameBook
from airflow_streamstate.runtime.starting.plans import record_before_start
from airflow_streamstate.runtime.starting.sinks import check_sink, check_sink_before_flush
from airflow_streamstate.runtime.starting.skipping import skip_if_asked
from airflow_streamstate.runtime.starting.spark_check import check_spark
from airflow_streamstate.runtime.starting.undoing import undo_sink

LATE_START_SECONDS = 0.2


class Starter:
    """Starts the queries of an attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._names = NameBook()
        self._builder = Builder(attempt, partial(undo_sink, attempt))

    def start(
        self, requested_name: str | None, own_checkpoint_location: str | None, startable: StartableQuery
    ) -> LogicalQuery:
        """Start a query, or hand back one that is over because the latch is closed.

        Args:
            requested_name: ``queryName``, None where the script gave none.
            own_checkpoint_location: the ``checkpointLocation`` that the script had set; it is not used as a place.
            startable: the script's writer.

        Raises:
            InvalidRequestError: its name is not certain, a query of this name runs, or the snapshot that the
                deployment starts from does not know it (Law 5).
            UnsupportedCheckpointError: its trigger, settings or checkpoint are not known here (Law 10).
            FencedError: this attempt was replaced.
        """
        attempt = self._attempt
        if attempt.latch.is_released:
            attempt.clock.sleep(LATE_START_SECONDS)  # a loop that starts its query again and again is not to spin
        with attempt.latch.held():
            if attempt.is_fenced:
                raise attempt.fenced_error()
            name = self._names.name_of(requested_name, own_checkpoint_location, startable.facts.plan_fingerprint)
            self._refuse_twice(name)
            logical = LogicalQuery(attempt, name, startable, attempt.checkpoint_of(name))
            check_spark(attempt, name, logical.checkpoint)
            before = attempt.queries.get(name)
            if before is not None:
                # Not after the start: what Spark does not answer then would leave a run that nobody supervises.
                logical.continue_from(before)
            self._call_off_if_impossible(startable)
            if attempt.latch.is_open:
                self._start(logical)
            else:
                self._start_late(logical)
            attempt.queries[name] = logical
            attempt.last_start_at_seconds = attempt.clock.monotonic_seconds()
            return logical

    def _call_off_if_impossible(self, startable: StartableQuery) -> None:
        attempt = self._attempt
        if attempt.latch.state != "drain" or attempt.latch.is_released or attempt.queries:
            return
        if _flush_has_begun(attempt):
            return  # an earlier attempt began it: what it wrote cannot be called back
        reason = startable.cannot_flush_reason()
        if reason is not None:
            call_off_drain(attempt, reason)

    def _refuse_twice(self, name: str) -> None:
        before = self._attempt.queries.get(name)
        if before is not None and not before.ended and self._attempt.latch.is_open:
            raise InvalidRequestError(
                "a query of this name runs already in this script",
                query_name=name,
                next_step="Give each query its own .queryName(…), or stop the first one before starting it again.",
            )

    def _start(self, logical: LogicalQuery) -> None:
        attempt = self._attempt
        built = self._builder.ensure(logical.name, logical.startable)
        _check_state_format(logical)
        report = repair_before_start(logical.checkpoint, attempt.deployment_id, partitions=logical.session_partitions)
        if report.run == "nothing":
            # 1a.7: its flush is committed; the claim closes the latch where this is so, but never start it (Law 11).
            logical.end()
            return
        if report.run == "once":
            # Only a flush that an earlier attempt began: under the script's own trigger the query would read on with a
            # watermark at the end of time, and every row would be late (1a.7, Law 11).
            raise ConflictError(
                "a flush of this query was begun by an earlier attempt and is not finished",
                query_name=logical.name,
                flush_batch_id=report.batch_id,
                next_step=f"`streamstate drain {attempt.stream_id}` finishes it.",
            )
        position = logical.checkpoint.position()
        skipped = skip_if_asked(attempt, logical, position)
        if skipped:
            position = logical.checkpoint.position()
        note_gaps(attempt, [logical.name])
        prepared = check_sink(attempt, logical, position, is_fresh=built.how == "fresh")
        unread = record_before_start(attempt, logical.name, logical.startable)
        attempt.reporter.say(f"query {logical.name} starts ({built.how}, {_from_where(position)})")
        # Building took its time, and a driver may have been paused for longer: no successor's batch ids are taken.
        need_current(attempt)
        run = logical.startable.start(attempt.uri_of(logical.checkpoint))
        logical.add_run(run, planned_id=position.planned_id)
        attempt.queries[logical.name] = logical  # from its first moment on: whatever fails now, it gets its barrier
        self._report(logical, built, position, (*describe_repairs(report), *skipped, *prepared), unread)
        self._take_back_if_replaced(run)

    def _take_back_if_replaced(self, run: QueryRun) -> None:
        """Replaced while Spark was starting, and before there was a log that a successor could have fenced."""
        try:
            self._attempt.check_current()
        except FencedError:
            run.stop()
            raise
        except (UnavailableError, OutcomeUnknownError) as error:
            self._attempt.reporter.outage("the register", error)

    def _start_late(self, logical: LogicalQuery) -> None:
        attempt = self._attempt
        if attempt.latch.is_released:
            logical.end()
        elif attempt.latch.state == "drain" and not attempt.flush_has_begun:
            startable = logical.startable
            persist(attempt, "the checkpoint", lambda: self._builder.ensure_for_drain(logical.name, startable))
            persist(attempt, "the checkpoint", lambda: _check_state_format(logical))
            check_sink_before_flush(attempt, logical)
        elif attempt.latch.state == "drain":
            attempt.reporter.note("a query was started when the flush had begun; it is not run", query=logical.name)

    def _report(
        self,
        logical: LogicalQuery,
        built: Built,
        position: Position,
        repairs: tuple[str, ...],
        remarks: tuple[str, ...],
    ) -> None:
        run = logical.run
        facts = logical.startable.facts
        for word in (*repairs, *built.remarks, *remarks):
            self._attempt.reporter.say(f"query {logical.name}: {word}")
        self._attempt.reporter.write_soon(
            QueryStarted,
            query_name=logical.name,
            query_id=run.query_id if run is not None else "",
            query_run_id=run.query_run_id if run is not None else "",
            how=built.how,
            batch_id=position.batch_id,
            planned_batch_id=position.planned_id,
            repairs=(*repairs, *built.remarks),
            sink=facts.sink,
            trigger=facts.trigger,
            output_mode=facts.output_mode,
            sources=built.sources,
            identities=self._attempt.sources.identities(logical.name),
            remarks=(*self._attempt.sources.remarks(logical.name), *remarks),
            watermarks=facts.watermarks,
            snapshot_id=built.snapshot_id,
        )


def _check_state_format(logical: LogicalQuery) -> None:
    asked = logical.startable.session_conf((STATE_FORMAT,)).get(STATE_FORMAT, "1")
    guard_state_format(logical.checkpoint, asked)


def _flush_has_begun(attempt: Attempt) -> bool:
    command_id = attempt.latch.order.command_id
    return any(isinstance(event, Draining) and event.command_id == command_id for event in attempt.reporter.events)


def describe_repairs(report: RepairReport) -> tuple[str, ...]:
    """What was mended in a log before its start, in words (1a.7)."""
    numbers = ", ".join(str(batch_id) for batch_id in report.removed_ids)
    words = [f"removed our entry at batch {numbers} from the offset log"] if numbers else []
    if report.pinned_ids:
        entries = ", ".join(str(batch_id) for batch_id in report.pinned_ids)
        words.append(f"added the number of partitions to entry {entries} of offset log 2, where Spark had left it out")
    words.extend(f"one of them named deployment {mark.deployment_id} and was not obeyed" for mark in report.foreign)
    return tuple(words)


def _from_where(position: Position) -> str:
    if position.planned_id is not None:
        return f"runs the planned batch {position.planned_id} first"
    return "nothing committed yet" if position.batch_id is None else f"goes on after batch {position.batch_id}"
