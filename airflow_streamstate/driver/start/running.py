"""Begins a run of a query in Spark: builds and repairs its checkpoint, checks its sink, starts it, reports the start.

Called under the latch's lock by the intercepted ``start()``, or after an ending that was called off.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial

from airflow_streamstate.checkpoint.guards import STATE_FORMAT, guard_state_format
from airflow_streamstate.checkpoint.log import Position
from airflow_streamstate.checkpoint.repair import RepairReport, repair_before_start
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.auditing import note_gaps
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.ports import QueryRun
from airflow_streamstate.driver.attempt.snapshotting import need_current
from airflow_streamstate.driver.start.building import Builder, Built
from airflow_streamstate.driver.start.continuing import Continuing, ReadPlan
from airflow_streamstate.driver.start.plans import UNREAD, record_before_start
from airflow_streamstate.driver.start.reads import record_after_start, what_changed
from airflow_streamstate.driver.start.repeating import tell_repeated
from airflow_streamstate.driver.start.rewriting import rewrite_of
from airflow_streamstate.driver.start.sinks import check_sink
from airflow_streamstate.driver.start.skipping import skip_if_asked
from airflow_streamstate.driver.start.undoing import undo_sink
from airflow_streamstate.errors import ConflictError, FencedError, OutcomeUnknownError, UnavailableError
from airflow_streamstate.protocol.events import QueryStarted


@dataclass(frozen=True)
class Prepared:
    """What was done before Spark was asked to start a query.

    Attributes:
        built_at: when the checkpoint was built.
        at: when everything was done.
        repairs: in words.
    """

    built: Built
    built_at: datetime
    at: datetime
    repairs: tuple[str, ...]


class Runs:
    """Begins the runs of an attempt's queries."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self.builder = Builder(attempt, partial(undo_sink, attempt))
        self.continuing = Continuing(attempt)

    def begin(self, logical: LogicalQuery) -> None:
        """Begin a run of this query; where its flush is committed, the query is over and nothing runs.

        Raises:
            StartRefusedError: its plan does not fit the state that it would continue (Law 17).
            ConflictError: a flush of the query was begun, and is not finished.
            FencedError: this attempt was replaced.
            and what the steps of a start raise.
        """
        attempt = self._attempt
        need_current(attempt)  # in a home that is missing no checkpoint may be built
        read = self.continuing.hold(logical.name, logical.startable)
        built = self.builder.ensure(logical.name, logical.startable)
        built_at = attempt.clock.now()
        check_state_format(logical)
        report = repair_before_start(logical.checkpoint, attempt.deployment_id, partitions=logical.session_partitions)
        if report.run == "nothing":
            # 1a.7, Law 11: its flush is committed. The claim normally closes the latch before this.
            logical.end()
            return
        if report.run == "once":
            # An earlier attempt began a flush: under the script's own trigger the query would read on with a watermark
            # at the end of time, and every row would be late (1a.7, Law 11).
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
        tell_repeated(attempt, logical, position.planned_id)
        done = check_sink(attempt, logical, position, is_fresh=built.how == "fresh")
        unread = (*read.remarks, *self._record(logical, read, built, position))
        attempt.reporter.say(f"query {logical.name} starts ({built.how}, {_from_where(position)})")
        need_current(attempt)  # again: building takes time, and a successor's batch ids must not be used
        prepared = Prepared(built, built_at, attempt.clock.now(), (*describe_repairs(report), *skipped, *done))
        run = logical.startable.start(attempt.uri_of(logical.checkpoint))
        logical.add_run(run, planned_id=position.planned_id)
        attempt.queries.add(logical)  # at once: if a later step fails, the query still gets its barrier
        changed = what_changed(attempt, logical.name)
        unkept = record_after_start(attempt, logical.name)
        self._report(logical, prepared, position, (*unread, *changed, *unkept))
        self._take_back_if_replaced(run)

    def _record(self, logical: LogicalQuery, read: ReadPlan, built: Built, position: Position) -> tuple[str, ...]:
        """Record the plan of a start that nothing refuses any more; a remark where that failed.

        Raises:
            UnavailableError: it could not be recorded that the user has accepted this plan, so the next attempt would
                be refused.
        """
        if read.problem:
            return (f"{UNREAD}: {read.problem}",)
        attempt, name = self._attempt, logical.name
        begins_here = built.how == "seeded" or (built.how == "restored" and rewrite_of(attempt, name) is not None)
        first = 0 if position.batch_id is None else position.batch_id + (0 if begins_here else 1)
        unread = record_before_start(attempt, name, logical.startable, read.plan, first)
        if unread and read.is_accepted:
            raise UnavailableError(
                "a plan that the user has accepted could not be recorded",
                query_name=name,
                reason=unread[0],
                next_step=f"`streamstate resume {attempt.stream_id} --accept-hazards` tries again.",
            )
        return unread

    def _take_back_if_replaced(self, run: QueryRun) -> None:
        """Stop the run if this attempt was replaced before there was a log that the successor could fence."""
        try:
            self._attempt.fence.check_current()
        except FencedError:
            run.stop()
            raise
        except (UnavailableError, OutcomeUnknownError) as error:
            self._attempt.reporter.outage("the register", error)

    def _report(
        self,
        logical: LogicalQuery,
        prepared: Prepared,
        position: Position,
        remarks: tuple[str, ...],
    ) -> None:
        run, built, repairs = logical.run, prepared.built, prepared.repairs
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
            remarks=(*logical.remarks, *self._attempt.sources.remarks(logical.name), *remarks),
            watermarks=facts.watermarks,
            snapshot_id=built.snapshot_id,
            built_at=prepared.built_at,
            prepared_at=prepared.at,
        )


def check_state_format(logical: LogicalQuery) -> None:
    """Check that the session's state format is that of the checkpoint (Law 10)."""
    asked = logical.startable.session_conf((STATE_FORMAT,)).get(STATE_FORMAT, "1")
    guard_state_format(logical.checkpoint, asked)


def describe_repairs(report: RepairReport) -> tuple[str, ...]:
    """The repairs of a log before a start, in words (1a.7)."""
    numbers = ", ".join(str(batch_id) for batch_id in report.removed_ids)
    words = [f"removed our entry at batch {numbers} from the offset log"] if numbers else []
    if report.swept_keys:
        words.append(f"removed what a failed claim of the first batch had left: {', '.join(report.swept_keys)}")
    if report.pinned_ids:
        entries = ", ".join(str(batch_id) for batch_id in report.pinned_ids)
        words.append(f"added the number of partitions to entry {entries} of offset log 2, where Spark had left it out")
    words.extend(f"one of them named deployment {mark.deployment_id} and was not obeyed" for mark in report.foreign)
    return tuple(words)


def _from_where(position: Position) -> str:
    if position.planned_id is not None:
        return f"runs the planned batch {position.planned_id} first"
    return "nothing committed yet" if position.batch_id is None else f"goes on after batch {position.batch_id}"
