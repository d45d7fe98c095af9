"""Drain (1a.5): a stop, then each query flushes in one batch that reads nothing, then the deployment ends.

Every step reads from the log and the events what is done already, so the next attempt continues wherever this one died.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property

from airflow_streamstate.driver.attempt.answering import accept
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.attempt.logical_query import POLL_SECONDS, LogicalQuery
from airflow_streamstate.driver.attempt.query_failures import failed_queries
from airflow_streamstate.driver.attempt.reporting import PASSING
from airflow_streamstate.driver.attempt.snapshotting import retry_until_fenced
from airflow_streamstate.driver.shutdown.begun_flushes import begun_flushes
from airflow_streamstate.driver.shutdown.carrying_on import carry_on
from airflow_streamstate.driver.shutdown.drain_ends import DrainEnds
from airflow_streamstate.driver.shutdown.drain_rehearsal import foresee
from airflow_streamstate.driver.shutdown.drain_snapshots import DrainSnapshots
from airflow_streamstate.driver.shutdown.flush_reach import FlushReach
from airflow_streamstate.driver.shutdown.flushing import Flush
from airflow_streamstate.driver.shutdown.gathering import (
    QueryFailedError,
    are_all_started,
    bring_to_barrier,
    catch_up,
    describe_unstarted,
    has_committed,
    note_left,
    stands_at_barrier,
    starts_no_more,
    unstarted,
)
from airflow_streamstate.driver.shutdown.limits import CalledOffError, CallOff, Limits
from airflow_streamstate.driver.shutdown.open_windows import OpenWindows
from airflow_streamstate.driver.shutdown.stopping import (
    Ending,
    NotWaitedForError,
    close_latch,
    cut_runs,
    end_at_barriers,
    fail_queries,
    finish_stopped,
    position_of,
    running_queries,
    wait_until_ended,
)
from airflow_streamstate.errors import DataError, FencedError, StreamStateError
from airflow_streamstate.plan.feeding import in_stages
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.recorded import recorded_plans
from airflow_streamstate.protocol.causes import cause_in
from airflow_streamstate.protocol.events import AfterDrain, Draining


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
    """Do what follows on a drain that is called off before any flush; the next look repeats this if it is interrupted.

    ``then`` is "" where the attempt only drains, so it is over; ``endings`` were on their way to their barriers.
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
                f"query {query.name} has failed, and its log, which says what a drain would have to run first, cannot"
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
            raise  # replaced, or the next look continues by the log
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
        """A flush that this attempt or an earlier one has begun only goes forward."""
        return bool(self._said()) or self._lies_begun

    @cached_property
    def _lies_begun(self) -> bool:
        """Whether an earlier drain failed and left a flush in a log; every flush is announced before it begins."""
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
        if missing:  # of a flush that an earlier attempt had begun
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
