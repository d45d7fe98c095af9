"""Drain (1a.5): a stop, then each query flushes in one batch that reads nothing, then the deployment is over.

Every part asks the log and the events what is done already, so that the next attempt goes on wherever this one was
killed: before the barrier, between pre-drain snapshot and exchange, within the flush, before the snapshot, before the
event.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property

from airflow_streamstate.checkpoint.repair import DrainCommitted, DrainPending, classify, repair_before_start
from airflow_streamstate.driver.attempt.answering import accept
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.attempt.logical_query import POLL_SECONDS, LogicalQuery
from airflow_streamstate.driver.attempt.query_failures import failed_queries
from airflow_streamstate.driver.attempt.reporting import PASSING
from airflow_streamstate.driver.attempt.snapshotting import need_current, retry_until_fenced
from airflow_streamstate.driver.shutdown.begun_flushes import begun_flushes
from airflow_streamstate.driver.shutdown.carrying_on import carry_on
from airflow_streamstate.driver.shutdown.cutting import cut_runs
from airflow_streamstate.driver.shutdown.drain_ends import DrainEnds
from airflow_streamstate.driver.shutdown.drain_rehearsal import foresee
from airflow_streamstate.driver.shutdown.drain_snapshots import DrainSnapshots
from airflow_streamstate.driver.shutdown.flush_reach import FlushReach
from airflow_streamstate.driver.shutdown.flushing import Flush
from airflow_streamstate.driver.shutdown.gathering import (
    QueryFailedError,
    are_all_started,
    bring_to_barrier,
    has_committed,
    stands_at_barrier,
)
from airflow_streamstate.driver.shutdown.limits import CalledOffError, Limits
from airflow_streamstate.driver.shutdown.open_windows import OpenWindows
from airflow_streamstate.driver.shutdown.stopping import (
    Ending,
    NotWaitedForError,
    close_latch,
    end_at_barriers,
    fail_queries,
    finish_stopped,
    running_queries,
    wait_until_ended,
)
from airflow_streamstate.driver.start.building import Builder
from airflow_streamstate.errors import DataError, FencedError, StreamStateError
from airflow_streamstate.plan.feeding import in_stages
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.recorded import recorded_plans
from airflow_streamstate.protocol.causes import cause_in
from airflow_streamstate.protocol.events import AfterDrain, Draining

# A query that reads what another one writes: it is flushed after that one, with all of its flush read.


def stages_of(queries: list[LogicalQuery], plans: dict[str, QueryPlan]) -> list[list[LogicalQuery]]:
    """Queries in the order of their data; one without a known plan is fed by nobody."""
    named = {query.name: query for query in queries}
    stages = in_stages({name: plan for name, plan in plans.items() if name in named})
    placed = {name for stage in stages for name in stage}
    unknown = [query for query in queries if query.name not in placed]
    found = [[named[name] for name in stage] for stage in stages] or [[]]
    found[0] += unknown
    return [stage for stage in found if stage]


def catch_up(
    attempt: Attempt,
    queries: list[LogicalQuery],
    command_id: str,
    announced: dict[str, int],
    is_enough: Callable[[], bool] = lambda: False,
) -> bool:
    """Have queries read all that there is for them now, and bring them back to their barriers.

    Not those whose flush was announced for the very place where they stand, or was begun: an earlier attempt has had
    them read everything.

    Args:
        attempt: this attempt, whose latch is closed for a drain.
        queries: each stands at its barrier; what feeds them is flushed.
        command_id: the drain.
        announced: the batch that flushes, by query, as announced so far.
        is_enough: asked again and again; whether to wait no longer.

    Returns:
        Whether they have; where not, some may be reading still.

    Raises:
        QueryFailedError: a batch failed.
        FencedError: this attempt was replaced.
    """
    behind = [query for query in queries if _is_behind(attempt, query, announced)]
    failures: dict[str, str] = {}
    for query in behind:
        attempt.reporter.say(f"query {query.name} reads what was flushed before it")
        checkpoint, partitions = query.checkpoint, query.session_partitions
        retry_until_fenced(
            attempt,
            "the repair",
            lambda checkpoint=checkpoint, partitions=partitions: repair_before_start(  # type: ignore[misc]
                checkpoint, attempt.deployment_id, partitions=partitions()
            ),
        )
        need_current(attempt)
        try:
            if query.run is None:
                _look_at_sources(attempt, query)
            query.add_run(query.startable.start_available(attempt.uri_of(checkpoint)), once=True)
        except FencedError:
            raise
        except Exception as error:
            attempt.reporter.say(traceback.format_exc())
            failures[query.name] = f"{type(error).__name__}: {error}"
    for query in behind:
        if query.name not in failures and query.run is not None:
            if not wait_until_ended(attempt, query.run, is_enough):
                return False
            failure = query.run.failure()
            if failure is not None:
                failures[query.name] = failure
    failures |= end_at_barriers(attempt, [query for query in behind if query.name not in failures], command_id)
    if failures:
        raise QueryFailedError(failures)
    return True


def _look_at_sources(attempt: Attempt, query: LogicalQuery) -> None:
    """Its checkpoint was built for a flush, which reads nothing; as before any start, now that it reads after all."""
    builder = Builder(attempt)
    retry_until_fenced(attempt, "the sources", lambda: builder.ensure(query.name, query.startable))


def _is_behind(attempt: Attempt, query: LogicalQuery, announced: dict[str, int]) -> bool:
    checkpoint = query.checkpoint
    found = retry_until_fenced(attempt, "the log", lambda: classify(checkpoint, attempt.deployment_id))
    if isinstance(found, DrainCommitted | DrainPending):
        return False
    return announced.get(query.name) != retry_until_fenced(attempt, "the log", checkpoint.position).barrier_id


# A drain that is called off before it flushed anything: its queries run on, stop, or are cut, as was asked for.


def call_off(attempt: Attempt, ends: DrainEnds, order: Order, then: AfterDrain, endings: Sequence[Ending] = ()) -> None:
    """Do what follows on a drain that is called off; where this is interrupted, the next look begins it again.

    Args:
        attempt: this attempt, whose latch is closed.
        ends: of the drain.
        order: the drain.
        then: what was said that follows; "" where the attempt was there for the drain alone, and is over.
        endings: the queries that were on their way to their barriers.

    Raises:
        FencedError: this attempt was replaced.
    """
    if then == "runs_on":
        carry_on(attempt, endings, order.command_id)
        attempt.reporter.say("the queries run on, as if no drain had been asked for")
        return
    if then == "kill":
        running = running_queries(attempt)
        not_cut = cut_runs(attempt, running)
        if not_cut:
            ends.not_cut(not_cut)
            return
        end_at_barriers(attempt, running, order.command_id)  # takes our entries back from above what was cut
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
    """Wait for what runs a batch that was planned before; why batches failed, by query."""
    failures = {}
    for query in attempt.queries.all():
        run = query.run
        if query.runs_once and run is not None:
            wait_until_ended(attempt, run)
            failure = run.failure()
            if (
                failure is not None
                and retry_until_fenced(attempt, "the log", query.checkpoint.position).planned is not None
            ):
                failures[query.name] = failure
    return failures


def cannot_drain_reason(attempt: Attempt) -> str | None:
    """Why a drain is known not to work; None where nothing is known."""
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
                f" be judged: {error} Stop the stream; mend that log, or deploy from an earlier snapshot; then drain"
            )
        if planned_id is not None:
            return (
                f"query {query.name} has failed in batch {planned_id}, which a drain would have to run first:"
                f" {cause_in(query.failure() or '')}; stop the stream, then mend the cause and resume, or deploy a"
                " mended version, or skip that batch; then drain"
            )
    return None


def drain_deployment(attempt: Attempt, order: Order, *, tried: frozenset[str] = frozenset()) -> None:
    """Obey a drain, from the closing of the latch (or from where it was cut short) to the release of the waits.

    Args:
        attempt: this attempt.
        order: the drain.
        tried: the queries whose flush was tried while they ran; that of others is tried at their barriers.

    Raises:
        FencedError: this attempt was replaced.
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
                call_off(self._attempt, self._ends, self._order, said.then)  # where it was interrupted
                return
            self._run(endings)
        except (FencedError, *PASSING):
            raise  # replaced, or tried again from where the log says it is
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
            if failures:  # of others: what is in its batch still has some time to come to its end
                self._wait_a_while([ending.query for ending in late.waiting])
        if failures:
            raise QueryFailedError(failures)
        self._check()
        if not are_all_started(attempt):
            return
        with attempt.latch.held():
            if attempt.latch.state != "drain":
                return  # called off by a start()
            attempt.latch.begin_flush()
            queries = [query for query in attempt.queries.all() if query.checkpoint.exists()]
        for query in queries:
            if query not in at_barrier or not stands_at_barrier(attempt, query):
                bring_to_barrier(attempt, query, self._order.command_id, self._is_enough)
                self._check()
        self._flush(queries)

    def _wait_a_while(self, queries: list[LogicalQuery]) -> None:
        clock, began = self._attempt.clock, self._attempt.clock.monotonic_seconds()
        grace = self._attempt.spec.settings.exit_grace_seconds
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
        """What was begun to be flushed, in this attempt or an earlier one, only goes forward."""
        return bool(self._said()) or self._lies_begun

    @cached_property
    def _lies_begun(self) -> bool:
        """Whether a drain before this one has failed, and left a flush in a log. None is begun before it is said."""
        is_said = any(isinstance(event, Draining) for event in self._attempt.reporter.events)
        return is_said and bool(begun_flushes(self._attempt))

    # the flush

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
        windows = OpenWindows(attempt, kept_id, stages[0])  # those behind read on before they flush
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
        self._ends.drained(done, windows, self._limits.flush_left_seconds())

    def _run_flushes(self, flushes: list[Flush]) -> list[Flush]:
        """Side by side; those that failed, or were cut at their deadline."""
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
        """The flush was late while a later stage read what the earlier ones had flushed."""
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
        """The batch that flushes, by query, as far as it was announced."""
        announced: dict[str, int] = {}
        for event in self._said():
            announced |= event.flush_batch_ids
        return announced

    def _keep_before(self, queries: list[LogicalQuery]) -> str | None:
        """The snapshot pre-drain, once per drain, before anything is flushed: its id."""
        if said := self._said():
            return said[-1].snapshot_id
        if not any(has_committed(self._attempt, query) for query in queries):
            return None
        return self._snapshots.take("pre-drain", check=self._check_cancelled).snapshot_id

    def _announce(self, batch_ids: dict[str, int]) -> None:
        """Say which queries are flushed now, and in which batches; once."""
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
