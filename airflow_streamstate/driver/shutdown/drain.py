"""Drain (1a.5): a stop, then each query flushes in one batch that reads nothing, then the deployment ends."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property

from airflow_streamstate.connectors.source import FinishingConnector
from airflow_streamstate.control.command_status import of_kind
from airflow_streamstate.driver.attempt.answers import accept, audit_at_end, cancel_drains, clean_up, failed_queries
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.attempt_snapshots import (
    need_current,
    positions_in,
    retry_until_fenced,
    seal_positions,
)
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.attempt.logical_query import POLL_SECONDS, LogicalQuery
from airflow_streamstate.driver.attempt.reports import PASSING
from airflow_streamstate.driver.shutdown.barriers import (
    CalledOffError,
    CallOff,
    Limits,
    QueryFailedError,
    are_all_started,
    bring_to_barrier,
    catch_up,
    describe_unstarted,
    has_committed,
    never_started,
    note_left,
    stands_at_barrier,
    starts_no_more,
    unstarted,
)
from airflow_streamstate.driver.shutdown.flush import (
    DrainSnapshots,
    Flush,
    FlushReach,
    OpenWindows,
    begun_flushes,
    foresee,
    refuse_pending_flush,
)
from airflow_streamstate.driver.shutdown.stopping import (
    Ending,
    NotWaitedForError,
    call_functions,
    carry_on,
    close_latch,
    cut_runs,
    end_at_barriers,
    ends_of,
    fail_queries,
    finish_stopped,
    position_of,
    running_queries,
    wait_until_ended,
)
from airflow_streamstate.errors import DataError, FencedError, StreamStateError
from airflow_streamstate.older_python import zipped
from airflow_streamstate.plan.datasets import in_stages
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.record import recorded_plans
from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL
from airflow_streamstate.protocol.commands import BY_THE_DRIVER, Command, DrainNotification
from airflow_streamstate.protocol.events import AfterDrain, Drained, DrainFailed, DrainFailure, Draining, Failed
from airflow_streamstate.protocol.redaction import cause_in
from airflow_streamstate.protocol.terms.order import DEFAULT_DRAIN

# A deployment whose sources are all read to their end orders its own drain, like anybody else, by a command.

LOOK_SECONDS = 1.0
_NAMESPACE = uuid.UUID("b2f6c7de-5f3c-5b0e-8c55-2f6fb0a7c1d4")


def self_drain_reason(command: Command | None) -> str:
    """Why a deployment ordered its own drain; "" for a drain that was ordered from outside."""
    return command.reason if command is not None and command.requested_by == BY_THE_DRIVER else ""


def _may_finish(attempt: Attempt, query: LogicalQuery) -> bool:
    """By the kinds of its sources, without reading anything."""
    sources = attempt.sources.sources(query.name)
    return bool(sources) and all(isinstance(source.connector, FinishingConnector) for source in sources)


def finished_parts(attempt: Attempt, query: LogicalQuery) -> int | None:
    """How many parts the sources of a query have, if its last committed batch has read each to its end; else None."""
    position = query.checkpoint.position()
    if not _may_finish(attempt, query) or position.batch_id is None or position.planned is not None:
        return None
    entry = query.checkpoint.read_offset(position.batch_id)
    sources = attempt.sources.sources(query.name)
    if entry is None or len(entry.source_lines) != len(sources):
        return None
    total = 0
    for source, line in zipped(sources, entry.source_lines):
        count = source.connector.finished_parts(line) if isinstance(source.connector, FinishingConnector) else None
        if count is None:
            return None
        total += count
    return total


class SelfDrain:
    """Looks whether every source of every query is finished, and then writes the notification, once a deployment."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._next_look_seconds = 0.0
        self._is_ordered = False

    def order_if_finished(self) -> None:
        """Order the drain if it is due.

        Raises:
            UnavailableError, OutcomeUnknownError: the store does not answer; call it again.
        """
        attempt, now_seconds = self._attempt, self._attempt.clock.monotonic_seconds()
        if self._is_ordered or attempt.spec.version.settings.keep_running or not attempt.latch.is_open:
            return
        if now_seconds < self._next_look_seconds:
            return
        self._next_look_seconds = now_seconds + LOOK_SECONDS
        queries = attempt.queries.all()
        if not queries or not all(_may_finish(attempt, query) for query in queries):
            return
        parts = [finished_parts(attempt, query) for query in queries]
        if any(count is None for count in parts) or not are_all_started(attempt):
            return
        if set(unstarted(attempt, Order())) - set(never_started(attempt)):
            return  # queries of this version that have not come to the end of their input
        self._order(sum(count or 0 for count in parts))

    def _order(self, parts: int) -> None:
        attempt = self._attempt
        self._is_ordered = True
        command_id = str(uuid.uuid5(_NAMESPACE, f"{attempt.stream_id}/{attempt.deployment_id}"))
        if attempt.command_status(command_id).is_ended:
            return  # of an earlier attempt, and refused
        reason = f"self-drained: all {parts} parts finished" if parts != 1 else "self-drained: its only part finished"
        command = DrainNotification(
            command_id,
            attempt.stream_id,
            attempt.deployment_id,
            attempt.clock.now(),
            None,
            BY_THE_DRIVER,
            reason,
            rehearse=DEFAULT_DRAIN.rehearse,
            leave_queries=tuple(never_started(attempt)),
        )
        try:
            attempt.journal.write_command(command, NEWEST_PROTOCOL)
        except Exception:
            self._is_ordered = False
            raise
        attempt.reporter.say(reason)


# The ends of a drain: drained, failed, abandoned or called off. Each writes its events once.


class DrainEnds:
    """Writes the end of one drain."""

    def __init__(self, attempt: Attempt, order: Order, snapshots: DrainSnapshots) -> None:
        self._attempt = attempt
        self._order = order
        self._snapshots = snapshots

    def said(self) -> DrainFailed | None:
        """The event by which this attempt called the drain off; None where it did not."""
        for event in reversed(self._attempt.reporter.events):
            if isinstance(event, DrainFailed) and event.command_id == self._order.command_id:
                return event if event.cause != "flush" and event.attempt == self._attempt.number else None
        return None

    def drained(self, flushes: Sequence[Flush], windows: OpenWindows, left_seconds: float | None = None) -> None:
        """Every flush is committed; ``left_seconds`` is the time until the deadline of the flush, None without one."""
        attempt = self._attempt
        refuse_pending_flush(attempt)
        manifest = self._snapshots.take("drained", flushes, windows)
        failures = call_functions(attempt, "drain", manifest, within_seconds=left_seconds)
        if failures:
            self._own_part_failed(failures)
            return
        also_answers = self._asked_too()
        audit_at_end(attempt)
        need_current(attempt)
        attempt.reporter.write(
            Drained,
            command_id=self._order.command_id,
            command_number=self._order.command_number,
            snapshot_id=manifest.snapshot_id,
            queries=positions_in(manifest),
            also_answers=also_answers,
            ends=ends_of(attempt),
            reason=self_drain_reason(self._order.command),
        )
        attempt.reporter.say(f"drained; snapshot {manifest.snapshot_id}")
        clean_up(attempt)
        seal_positions(attempt, manifest)
        attempt.latch.release("drained")

    def _own_part_failed(self, failures: Mapping[str, str]) -> None:
        errors = "; ".join(f"{name}: {why}" for name, why in failures.items())
        error = f"a function of the job failed at its drain: {errors}"
        self._write_failed("", error, CHOICES_OWN_PART, withdrawn=False)
        self._fail_all(error)

    def _asked_too(self) -> tuple[str, ...]:
        """Drains that were ordered in the meantime: the same event answers them."""
        attempt = self._attempt
        slots = retry_until_fenced(attempt, "the commands", attempt.journal.commands)
        return tuple(
            drain.command_id
            for drain, status in of_kind(attempt.commands(slots), DrainNotification)
            if status.slot is not None
            and not status.is_ended
            and drain.command_id != self._order.command_id
            and (drain.stream_id, drain.deployment_id) == (attempt.stream_id, attempt.deployment_id)
        )

    def called_off(self, call_off: CallOff, then: AfterDrain) -> None:
        """Write that the drain is called off before any flush; the caller does what follows."""
        if call_off.cause == "cancelled":
            attempt, command_id = self._attempt, self._order.command_id
            retry_until_fenced(attempt, "the commands", lambda: cancel_drains(attempt, but=command_id))
        choices = () if then == "runs_on" else CHOICES_WITHDRAWN
        if call_off.cause == "not_started":
            choices = CHOICES_NOT_STARTED
        self._write_failed("", call_off.why, choices, withdrawn=True, call_off=call_off, then=then)
        clean_up(self._attempt)

    def flush_called_off(self, failed: Sequence[Flush], call_off: CallOff) -> None:
        """Write that flushes were called off and the queries run on."""
        for flush in failed:
            self._write_failed(flush.query.name, call_off.why, (), withdrawn=True, call_off=call_off, then="runs_on")
        clean_up(self._attempt)

    def flush_failed(
        self,
        failed: Sequence[Flush],
        flushed: Sequence[Flush],
        windows: OpenWindows | None,
        call_off: CallOff | None = None,
    ) -> None:
        """Flushes failed, or were cut at their deadline; others may be committed."""
        withdrawn = all(flush.failure is not None and flush.failure.withdrawn for flush in failed)
        choices = CHOICES_UNDECIDED
        if withdrawn:
            choices = CHOICES_PARTLY if flushed else CHOICES_WITHDRAWN
        for flush in failed:
            if flush.failure is not None:
                error = flush.failure.error if call_off is None else call_off.why
                self._write_failed(
                    flush.query.name, error, choices, withdrawn=flush.failure.withdrawn, call_off=call_off
                )
        if withdrawn:
            self._finish_stopped(flushed, windows)
            return
        first = failed[0]
        error = first.failure.error if first.failure is not None else ""
        for flush in failed:
            if flush.failure is not None:
                flush.query.end(flush.failure.error, flush.failure.run)
        self._fail(f"the flush of query {first.query.name} failed: {error}", first.query.name)

    def kept_all(self, unread: Mapping[str, str], flushed: Sequence[Flush], windows: OpenWindows | None) -> None:
        """These queries must not be flushed, or their timers could not be read: they keep their state."""
        for name, why in unread.items():
            self._write_failed(name, why, CHOICES_PARTLY if flushed else CHOICES_WITHDRAWN, withdrawn=True)
        self._finish_stopped(flushed, windows)

    def stopped_part_way(self, call_off: CallOff, flushed: Sequence[Flush], windows: OpenWindows | None) -> None:
        """Stop between two stages: flushed queries stay flushed, the others keep their state."""
        self._write_failed("", call_off.why, CHOICES_PARTLY, withdrawn=True, call_off=call_off)
        self._finish_stopped(flushed, windows)

    def _finish_stopped(self, flushed: Sequence[Flush], windows: OpenWindows | None) -> None:
        finish_stopped(self._attempt, Order(), lambda: self._snapshots.take_stopped(flushed, windows))

    def given_up(self, failures: Mapping[str, str]) -> None:
        """A batch failed before the flush: the drain has failed, the script gets the failure."""
        try:
            choices = CHOICES_BEGUN if begun_flushes(self._attempt) else CHOICES_WITHDRAWN
        except DataError:
            choices = CHOICES_BEGUN  # also right for a log that cannot be read
        for name, error in failures.items():
            self._write_failed(name, error, choices, withdrawn=True)
        clean_up(self._attempt)
        fail_queries(self._attempt, dict(failures))

    def broken_off(self, error: StreamStateError) -> None:
        """A log or a snapshot is damaged or missing: nothing more is changed."""
        self._write_failed("", str(error), CHOICES_UNDECIDED, withdrawn=False)
        self._fail_all(str(error))

    def not_cut(self, names: Sequence[str]) -> None:
        """Queries do not end although their batches are cut: the driver process has to end."""
        self._fail_all(f"the batch in flight of {', '.join(names)} could not be cut; the driver is ended")

    def _fail_all(self, error: str) -> None:
        for query in self._attempt.queries.all():
            query.end(error)
        self._fail(error, "")

    def _fail(self, error: str, query_name: str) -> None:
        attempt = self._attempt
        need_current(attempt)
        attempt.reporter.write(Failed, error=attempt.reporter.shortened(error, 1_000), query_name=query_name)
        clean_up(attempt)
        attempt.latch.release("failed")

    def _write_failed(
        self,
        query_name: str,
        error: str,
        choices: tuple[str, ...],
        *,
        withdrawn: bool,
        call_off: CallOff | None = None,
        then: AfterDrain = "",
    ) -> None:
        attempt = self._attempt
        cause: DrainFailure = "flush" if call_off is None else call_off.cause
        attempt.reporter.write(
            DrainFailed,
            command_id=self._order.command_id,
            command_number=self._order.command_number,
            query_name=query_name,
            error=attempt.reporter.shortened(error, 1_000, in_a_line=True),
            withdrawn=withdrawn,
            choices=choices,
            cause=cause,
            then=then,
            also_answers=() if call_off is None else call_off.answers,
        )
        of = f" at query {query_name}" if query_name else ""
        attempt.reporter.say(f"the drain {'failed' if call_off is None else 'is called off'}{of}: {error}")


CHOICES_WITHDRAWN = (
    "resume the deployment: it continues with its state, as if no drain had been ordered",
    "deploy a version that fixes the cause: it starts with the state of the snapshot that was taken",
)
CHOICES_NOT_STARTED = (
    "fix what keeps the script from starting it, and drain again",
    "drain with --leave-query NAME: its state stays as it is, and the next deployment continues with it",
)
CHOICES_PARTLY = (
    "resume the deployment: the flushed queries stay flushed, and the other queries are drained too",
    "deploy a version that fixes the cause: the flushed queries start at their offsets with fresh state, the others "
    "with the state of the snapshot that was taken",
)
CHOICES_BEGUN = (
    "resume the deployment: the flushed queries stay flushed, and the drain continues with the other queries",
)
CHOICES_OWN_PART = (
    "drain the deployment again: every flush is committed, and the functions that failed are called again",
)
CHOICES_UNDECIDED = (
    "resume the deployment: it runs the same flush batch again, exact where the sink is idempotent by batch id",
    "check whether the sink holds the flush batch before you start anything else from the snapshot pre-drain",
)


def stages_of(queries: list[LogicalQuery], plans: dict[str, QueryPlan]) -> list[list[LogicalQuery]]:
    """Queries in the order of their data: a query that reads what another one writes comes behind it. Queries without a
    known plan come first."""
    named = {query.name: query for query in queries}
    stages = in_stages({name: plan for name, plan in plans.items() if name in named})
    placed = {name for stage in stages for name in stage}
    unknown = [query for query in queries if query.name not in placed]
    found = [[named[name] for name in stage] for stage in stages] or [[]]
    found[0] += unknown
    return [stage for stage in found if stage]


def call_off(attempt: Attempt, ends: DrainEnds, order: Order, then: AfterDrain, endings: Sequence[Ending] = ()) -> None:
    """Do what follows on a drain that is called off before any flush; the next poll repeats this if it is interrupted.

    ``then`` is "" where the attempt only drains, and so ends; ``endings`` were on their way to their barriers.
    """
    if then == "runs_on":
        carry_on(attempt, endings, order.command_id)
        attempt.reporter.say("the queries run on, as if no drain had been ordered")
        return
    if then == "kill":
        running = running_queries(attempt)
        not_cut = cut_runs(attempt, running)
        if not_cut:
            ends.not_cut(not_cut)
            return
        end_at_barriers(attempt, running, order.command_id)  # removes our entries above what was cut
        finish_stopped(attempt, Order())
        return
    failures = _failures_of_planned(attempt)
    if then != "stop" and not failures:
        attempt.latch.release("superfluous")
        return
    failures |= end_at_barriers(attempt, running_queries(attempt), order.command_id)
    if failures:
        fail_queries(attempt, failures)
        return
    finish_stopped(attempt, Order())


def _failures_of_planned(attempt: Attempt) -> dict[str, str]:
    """Wait for runs of planned batches; why batches failed, by query."""
    failures = {}
    for query in attempt.queries.all():
        run = query.run
        if query.runs_once and run is not None:
            wait_until_ended(attempt, run)
            failure = run.failure()
            if failure is not None and position_of(attempt, query).planned is not None:
                failures[query.name] = failure
    return failures


def cannot_drain_reason(attempt: Attempt, order: Order) -> str | None:
    """Why a drain cannot work; None where nothing is known."""
    missing = unstarted(attempt, order) if starts_no_more(attempt) else []
    if missing:
        return f"{describe_unstarted(missing)}: --leave-query NAME leaves its state as it is"
    for query in attempt.queries.all():
        reason = query.startable.cannot_flush_reason()
        if reason is not None:
            return f"query {query.name} cannot be flushed: {reason}"
    for query in failed_queries(attempt):
        try:
            planned_id = query.checkpoint.position().planned_id
        except DataError as error:
            return (
                f"query {query.name} has failed, and its log, which states what a drain would have to run first, cannot"
                f" be read: {error} Stop the stream; repair that log, or deploy from an earlier snapshot; then drain"
            )
        if planned_id is not None:
            return (
                f"query {query.name} has failed in batch {planned_id}, which a drain would have to run first:"
                f" {cause_in(query.failure() or '')}; stop the stream, then fix the cause and resume, or deploy a"
                " fixed version, or skip that batch; then drain"
            )
    return None


def drain_deployment(attempt: Attempt, order: Order, *, tried: frozenset[str] = frozenset()) -> None:
    """Obey a drain: from closing the latch, or from where this was interrupted, to releasing the script's waits.

    The flush of the queries in ``tried`` was tried while they ran; the others are tried at their barriers.
    """
    if attempt.latch.is_open:
        close_latch(attempt, "drain", order)
    if attempt.latch.state == "drain" and attempt.latch.order == order:
        _Drain(attempt, order, tried).run()


class _Drain:
    def __init__(self, attempt: Attempt, order: Order, tried: frozenset[str]) -> None:
        self._attempt = attempt
        self._order = order
        self._tried = tried
        self._limits = Limits(attempt, order)
        self._snapshots = DrainSnapshots(attempt, order)
        self._ends = DrainEnds(attempt, order, self._snapshots)

    def run(self) -> None:
        endings: list[Ending] = []
        try:
            accept(self._attempt, self._order)
            said = self._ends.said()
            if said is not None and said.then:
                call_off(self._attempt, self._ends, self._order, said.then)  # it was interrupted
                return
            self._run(endings)
        except (FencedError, *PASSING):
            raise  # replaced, or the next poll continues by the log
        except QueryFailedError as failed:
            self._ends.given_up(failed.failures)
        except CalledOffError as off:
            self._ends.called_off(off.call_off, then := self._then(off))
            call_off(self._attempt, self._ends, self._order, then, endings)
        except StreamStateError as error:
            self._ends.broken_off(error)

    def _then(self, off: CalledOffError) -> AfterDrain:
        if off.call_off.on_deadline != "fail":
            return off.call_off.on_deadline
        return "" if self._attempt.only_drains else "runs_on"

    def _run(self, endings: list[Ending]) -> None:
        attempt, limits = self._attempt, self._limits
        for query in attempt.queries.all():
            # A flush is never stopped before its deadline.
            if query.runs_once and query.run is not None and not wait_until_ended(attempt, query.run, self._is_enough):
                limits.check()
        at_barrier = running_queries(attempt)
        try:
            failures = end_at_barriers(attempt, at_barrier, self._order.command_id, is_enough=self._is_enough)
        except NotWaitedForError as late:
            endings += late.endings
            failures = late.failures
            if failures:  # of other queries: give the batches in flight some time to end
                self._wait_a_while([ending.query for ending in late.waiting])
        if failures:
            raise QueryFailedError(failures)
        self._check()
        if not self._are_all_started():
            return
        with attempt.latch.held():
            if attempt.latch.state != "drain":
                return  # a start() called it off
            attempt.latch.begin_flush()
            queries = [query for query in attempt.queries.all() if query.checkpoint.exists()]
        for query in queries:
            if query not in at_barrier or not stands_at_barrier(attempt, query):
                bring_to_barrier(attempt, query, self._order.command_id, self._is_enough)
                self._check()
        self._flush(queries)

    def _are_all_started(self) -> bool:
        """As ``are_all_started``; raises CalledOffError for queries that the drain would leave out unasked."""
        if not are_all_started(self._attempt):
            return False
        missing = unstarted(self._attempt, self._order)
        if missing and not self._has_begun():
            raise CalledOffError(CallOff("not_started", "fail", describe_unstarted(missing)))
        return True

    def _wait_a_while(self, queries: list[LogicalQuery]) -> None:
        clock, began = self._attempt.clock, self._attempt.clock.monotonic_seconds()
        grace = self._attempt.spec.version.settings.exit_grace_seconds
        with suppress(NotWaitedForError):
            end_at_barriers(
                self._attempt,
                queries,
                self._order.command_id,
                is_enough=lambda: clock.monotonic_seconds() - began > grace,
            )

    def _is_enough(self) -> bool:
        return not self._has_begun() and self._limits.is_enough()

    def _check(self) -> None:
        if not self._has_begun():
            self._limits.check()

    def _check_cancelled(self) -> None:
        if not self._has_begun():
            self._limits.check_cancelled()

    def _has_begun(self) -> bool:
        """A flush that this attempt or an earlier one has started only goes forward."""
        return bool(self._said()) or self._lies_begun

    @cached_property
    def _lies_begun(self) -> bool:
        """Whether an earlier drain failed and left a flush in a log; every flush is announced before it starts."""
        is_said = any(isinstance(event, Draining) for event in self._attempt.reporter.events)
        return is_said and bool(begun_flushes(self._attempt))

    def _flush(self, queries: list[LogicalQuery]) -> None:
        attempt = self._attempt
        plans = retry_until_fenced(attempt, "the plans", lambda: recorded_plans(attempt.control, attempt.deployment_id))
        reach = FlushReach(attempt, self._order, plans)
        untried = [each for each in queries if each.name not in self._tried and has_committed(attempt, each)]
        if untried and not self._has_begun():
            foreseen = foresee(attempt, self._order, untried)
            if foreseen.problems:
                self._ends.kept_all(foreseen.problems, [], None)
                return
            self._check()
        stages = stages_of(queries, plans) or [[]]
        kept_id = self._keep_before(queries)
        self._limits.begin_flush()
        windows = OpenWindows(attempt, kept_id, stages[0])  # later stages read on before they flush
        done: list[Flush] = []
        for number, stage in enumerate(stages):
            if number > 0 and not catch_up(
                attempt, stage, self._order.command_id, self._announced(), self._limits.is_flush_late
            ):
                self._stop_part_way(stages[number:], done, windows)
                return
            standing = [query for query in stage if has_committed(attempt, query)]
            flushes = [Flush(attempt, query, self._order.command_id, reach) for query in standing]
            self._announce(
                {flush.query.name: retry_until_fenced(attempt, "the log", flush.prepare) for flush in flushes}
            )
            unread = {flush.query.name: why for flush in flushes if (why := flush.look_ahead()) is not None}
            if unread:
                self._ends.kept_all(unread, done, windows)
                return
            failed = self._run_flushes(flushes)
            if failed:
                committed = [*done, *(flush for flush in flushes if flush.failure is None)]
                self._end_failed(failed, committed, windows)
                return
            done += flushes
        missing = unstarted(attempt, self._order)
        if missing:  # of a flush that an earlier attempt had started
            self._ends.kept_all({name: describe_unstarted([name]) for name in missing}, done, windows)
            return
        note_left(attempt)
        self._ends.drained(done, windows, self._limits.flush_left_seconds())

    def _run_flushes(self, flushes: list[Flush]) -> list[Flush]:
        """Run the flushes side by side; returns those that failed, or were cut at their deadline."""
        attempt, limits = self._attempt, self._limits
        for flush in flushes:
            flush.start()
        while not all(flush.has_ended() for flush in flushes):
            attempt.fence.check()
            if limits.is_flush_late():
                cut_runs(attempt, [flush.query for flush in flushes if not flush.has_ended()])
                break
            attempt.clock.sleep(POLL_SECONDS)
        is_killed = limits.reached is not None and limits.reached.on_deadline == "kill"
        for flush in flushes:
            flush.conclude(may_withdraw=not is_killed)
        return [flush for flush in flushes if flush.failure is not None]

    def _end_failed(self, failed: list[Flush], committed: list[Flush], windows: OpenWindows) -> None:
        reached = self._limits.reached
        is_undone = all(flush.failure is not None and flush.failure.withdrawn for flush in failed)
        can_run_on = is_undone and not committed and not self._attempt.only_drains
        if reached is not None and reached.on_deadline == "fail" and can_run_on:
            self._ends.flush_called_off(failed, reached)
            call_off(self._attempt, self._ends, self._order, "runs_on")
        else:
            self._ends.flush_failed(failed, committed, windows, reached)

    def _stop_part_way(self, behind: list[list[LogicalQuery]], done: list[Flush], windows: OpenWindows) -> None:
        """The flush is late while a later stage reads what the earlier ones flushed."""
        attempt, reached = self._attempt, self._limits.reached
        running = [query for stage in behind for query in stage if not query.has_stopped_running()]
        not_cut = cut_runs(attempt, running) if reached is not None and reached.on_deadline == "kill" else []
        if not_cut:
            self._ends.not_cut(not_cut)
            return
        failures = end_at_barriers(attempt, running, self._order.command_id)
        if failures:
            raise QueryFailedError(failures)
        if reached is not None:
            self._ends.stopped_part_way(reached, done, windows)

    def _said(self) -> list[Draining]:
        command_id = self._order.command_id
        return [
            event
            for event in self._attempt.reporter.events
            if isinstance(event, Draining) and event.command_id == command_id
        ]

    def _announced(self) -> dict[str, int]:
        """The announced flush batch, by query."""
        announced: dict[str, int] = {}
        for event in self._said():
            announced |= event.flush_batch_ids
        return announced

    def _keep_before(self, queries: list[LogicalQuery]) -> str | None:
        """The id of the ``pre-drain`` snapshot, which is taken once per drain, before any flush."""
        if said := self._said():
            return said[-1].snapshot_id
        if not any(has_committed(self._attempt, query) for query in queries):
            return None
        return self._snapshots.take("pre-drain", check=self._check_cancelled).snapshot_id

    def _announce(self, batch_ids: dict[str, int]) -> None:
        """Write which queries are flushed now, and in which batches; once."""
        announced, said = self._announced(), self._said()
        if said and all(announced.get(name) == batch_id for name, batch_id in batch_ids.items()):
            return
        made = self._snapshots.made_before_flush()
        self._attempt.reporter.write(
            Draining,
            command_id=self._order.command_id,
            snapshot_id=said[-1].snapshot_id if said else None if made is None else made.snapshot_id,
            flush_batch_ids=batch_ids,
        )
