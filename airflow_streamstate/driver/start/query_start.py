"""Starts a query in Spark: its checkpoint, its checks, its skipped batches, and its first report."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial

from airflow_streamstate.checkpoint.fork import wipe
from airflow_streamstate.checkpoint.guards import STATE_FORMAT, guard_state_format
from airflow_streamstate.checkpoint.log import Checkpoint, Position
from airflow_streamstate.checkpoint.repair import RepairReport, repair_before_start
from airflow_streamstate.checkpoint.seed import finish_skip, prepare_skip
from airflow_streamstate.connectors.registry import moves_of_batch
from airflow_streamstate.control.command_status import begun_skips, pending_skip
from airflow_streamstate.driver.attempt.answers import accept, clean_up, note_gaps
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.attempt_snapshots import need_current, own_identities, retry_until_fenced
from airflow_streamstate.driver.attempt.latch import order_of
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.ports import QueryRun
from airflow_streamstate.driver.attempt.reports import MAX_REASON_CHARACTERS
from airflow_streamstate.driver.start.checkpoints import Builder, Built, Continuing, ReadPlan, tell_repeated
from airflow_streamstate.driver.start.recorded_plans import (
    UNREAD,
    record_after_start,
    record_before_start,
    what_changed,
)
from airflow_streamstate.driver.start.sink_undo import undo_sink
from airflow_streamstate.driver.start.start_checks import check_sink
from airflow_streamstate.driver.start.state_rewrite import rewrite_of
from airflow_streamstate.errors import ConflictError, DataError, FencedError, OutcomeUnknownError, UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import SkipRequest
from airflow_streamstate.protocol.events import QueryStarted, Rejected, Skipped
from airflow_streamstate.protocol.positions import SourceMove

# Skips a batch before its query starts, as a ``SkipRequest`` asks (``checkpoint.seed``).
#
# A sink that may hold some of the batch forbids it (Law 14). A request that cannot be obeyed is rejected, and the
# query starts. After a crash the batch is planned, or committed and not reported; the next attempt continues (Law 2).

BY_HAND = "--accept-written-rows skips it all the same, and what the sink holds of it stays there"


def skip_if_asked(attempt: Attempt, logical: LogicalQuery, position: Position) -> tuple[str, ...]:
    """Skip the planned batch of a query about to start, if a command asks for it; returns what was done, as text.

    The agent answers a request for another position, when the query runs.

    Raises:
        FencedError: this attempt was replaced.
        DataError: the checkpoint is damaged.
    """
    if position.planned_id is None and not begun_skips(attempt.commands()):
        return ()
    slots = retry_until_fenced(attempt, "the commands", attempt.journal.commands)
    found = pending_skip(attempt.commands(slots), attempt.deployment_id, logical.name)
    if found is None:
        return ()
    return _Skip(attempt, logical, *found).run(position)


def tell_committed_skips(attempt: Attempt) -> None:
    """Write ``Skipped`` for the batches that an earlier attempt skipped before it died.

    Called before the script's first line, since this attempt may end before it starts that query.

    Raises:
        UnavailableError: the store does not answer.
    """
    for request, number in begun_skips(attempt.commands()):
        checkpoint = attempt.checkpoint_of(request.query_name)
        try:
            if checkpoint.exists() and checkpoint.position().batch_id == request.batch_id:
                _tell(attempt, request, number)
        except DataError as error:
            attempt.reporter.say(f"the log of query {request.query_name} cannot be judged yet: {error}")


def give_up_skip(attempt: Attempt, query_name: str, batch_id: int | None) -> None:
    """Reject the skip of a batch that a flush is about to run, where an earlier attempt started that skip: a later
    attempt would take the flush's commit for the skip's."""
    for request, number in begun_skips(attempt.commands()):
        if (request.query_name, request.batch_id) == (query_name, batch_id):
            _reject(attempt, request, number, "a drain runs this batch first")


class _Skip:
    """Obeys one request."""

    def __init__(self, attempt: Attempt, logical: LogicalQuery, request: SkipRequest, number: int) -> None:
        self._attempt = attempt
        self._logical = logical
        self._request = request
        self._number = number
        folder = layout.building_folder(attempt.stream_id, attempt.deployment_id, logical.name)
        self._building = Checkpoint(attempt.checkpoints, folder)

    def run(self, position: Position) -> tuple[str, ...]:
        attempt, request = self._attempt, self._request
        if position.planned_id != request.batch_id:
            was_ours = attempt.command_status(request.command_id).is_begun
            if was_ours and position.batch_id == request.batch_id:
                return self._told()  # an earlier attempt committed it, and did not report it
            return self._rejected(_not_planned(position, request.batch_id))
        reason = self._why_not() or self._carry_over()
        return self._rejected(reason) if reason else self._told()

    def _why_not(self) -> str:
        """Why the sink forbids it; "" where it does not."""
        request, startable = self._request, self._logical.startable
        query_id = retry_until_fenced(self._attempt, "the checkpoint", self._logical.checkpoint.query_id)
        held = startable.held_batches(query_id, request.batch_id)
        if request.accepts_written or held.lacks(request.batch_id):
            return ""
        place = startable.sink_place()
        if held.unknown_reason:
            unknown = f"it is not known whether {place} holds some of batch {request.batch_id}"
            return f"{unknown}: {held.unknown_reason}; {BY_HAND}"
        return f"{place} holds batch {request.batch_id} already, so its rows do not fail; {BY_HAND}"

    def _carry_over(self) -> str:
        """Carry the state over an empty batch, and commit; the reason if that is not possible, else ""."""
        attempt, logical, batch_id = self._attempt, self._logical, self._request.batch_id
        # For its errors: a skip that could not be reported is not started.
        retry_until_fenced(attempt, "the log", lambda: _moves(attempt, self._request))
        accept(attempt, order_of(self._request, self._number))
        retry_until_fenced(attempt, "the skip", lambda: prepare_skip(self._building, logical.checkpoint, batch_id))
        try:
            logical.startable.run_trial_batch(attempt.uri_of(self._building))
        except Exception as error:
            retry_until_fenced(attempt, "the skip", lambda: wipe(self._building))
            words = f"an empty batch in its place fails as well, so its rows are not the cause: {error}"
            return attempt.reporter.shortened(words, MAX_REASON_CHARACTERS, in_a_line=True)
        need_current(attempt)
        retry_until_fenced(attempt, "the skip", lambda: finish_skip(self._building, logical.checkpoint, batch_id))
        return ""

    def _told(self) -> tuple[str, ...]:
        return (_tell(self._attempt, self._request, self._number),)

    def _rejected(self, reason: str) -> tuple[str, ...]:
        _reject(self._attempt, self._request, self._number, reason)
        return ()


def _reject(attempt: Attempt, request: SkipRequest, number: int, reason: str) -> None:
    attempt.reporter.write(Rejected, command_id=request.command_id, command_number=number, key="", reason=reason)
    attempt.reporter.say(f"query {request.query_name}: batch {request.batch_id} is not skipped: {reason}")
    clean_up(attempt)


def _tell(attempt: Attempt, request: SkipRequest, number: int) -> str:
    """Write ``Skipped``; returns the same as text."""
    moves = retry_until_fenced(attempt, "the log", lambda: _moves(attempt, request))
    attempt.reporter.write(
        Skipped,
        command_id=request.command_id,
        command_number=number,
        query_name=request.query_name,
        batch_id=request.batch_id,
        moves=moves,
        requested_by=request.requested_by,
        reason=request.reason,
    )
    clean_up(attempt)
    words = f"batch {request.batch_id} is skipped, as {request.requested_by} asked for ({request.reason})"
    attempt.reporter.say(f"query {request.query_name}: {words}")
    return words


def _moves(attempt: Attempt, request: SkipRequest) -> tuple[SourceMove, ...]:
    checkpoint, name, batch_id = attempt.checkpoint_of(request.query_name), request.query_name, request.batch_id
    identities = attempt.sources.identities(name) or own_identities(attempt, name, None, batch_id)
    moves = moves_of_batch(checkpoint, batch_id, identities)
    if moves is None:
        raise DataError("the entries of the skipped batch are gone", key=checkpoint.offset_key(batch_id))
    return moves


def _not_planned(position: Position, batch_id: int) -> str:
    if position.batch_id is not None and position.batch_id >= batch_id:
        return f"batch {batch_id} is committed"
    planned = "none is planned" if position.planned_id is None else f"the planned one is {position.planned_id}"
    return f"batch {batch_id} is not planned: {planned}"


@dataclass(frozen=True)
class Prepared:
    """What was done before Spark was asked to start a query.

    Attributes:
        built_at: when the checkpoint was built.
        at: when everything was done.
        repairs: as text.
    """

    built: Built
    built_at: datetime
    at: datetime
    repairs: tuple[str, ...]


class Runs:
    """Starts the runs of an attempt's queries."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self.builder = Builder(attempt, partial(undo_sink, attempt))
        self.continuing = Continuing(attempt)

    def begin(self, logical: LogicalQuery) -> None:
        """Start a run of this query; where its flush is committed, the query has ended and nothing runs.

        Raises:
            StartRefusedError: its plan does not fit the state that it would continue (Law 17).
            ConflictError: a flush of the query was started, and is not finished.
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
            # An earlier attempt started a flush: under the script's own trigger the query would read on with a
            # watermark at the end of time, and every row would be late (1a.7, Law 11).
            raise ConflictError(
                "a flush of this query was started by an earlier attempt and is not finished",
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
        """Record the plan of a start that nothing refuses any more; a remark if that failed.

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
    """The repairs of a log before a start, as text (1a.7)."""
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
    return "nothing committed yet" if position.batch_id is None else f"continues after batch {position.batch_id}"
