"""Stop (1a.4): the batches in flight commit, every query ends between two batches, and a snapshot is taken."""

from __future__ import annotations

import threading
import traceback
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from airflow_streamstate.checkpoint.barrier import (
    BarrierPlacement,
    BatchFailed,
    Certain,
    NotInitialised,
    Overwritten,
    Placed,
    Step,
)
from airflow_streamstate.checkpoint.log import Position
from airflow_streamstate.control.command_status import pending_drain
from airflow_streamstate.control.objects import ASKED_TO_END
from airflow_streamstate.driver.attempt.answers import (
    accept,
    audit_at_end,
    clean_up,
    failed_queries,
    tell_failed_queries,
)
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.attempt_snapshots import (
    need_checkpoint,
    need_current,
    positions_in,
    retry_until_fenced,
    take_final_snapshot,
)
from airflow_streamstate.driver.attempt.callbacks import Callback, JobEnd
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.attempt.logical_query import POLL_SECONDS, LogicalQuery
from airflow_streamstate.driver.attempt.ports import QueryRun
from airflow_streamstate.driver.attempt.reports import PASSING
from airflow_streamstate.driver.shutdown.flush import refuse_pending_flush
from airflow_streamstate.driver.start.checkpoints import has_positions
from airflow_streamstate.driver.start.query_start import Runs
from airflow_streamstate.errors import DataError, FencedError, OutcomeUnknownError, StreamStateError, UnavailableError
from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL
from airflow_streamstate.protocol.commands import BY_THE_DRIVER, StopRequest
from airflow_streamstate.protocol.events import Failed, FunctionCalled, Noted, Occasion, Stopped
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.positions import QueryEnd

# Calls the functions that the script registered for the job's end.

MAX_ERROR_CHARACTERS = 1_000


def call_functions(
    attempt: Attempt, occasion: Occasion, manifest: SnapshotManifest, *, within_seconds: float | None = None
) -> dict[str, str]:
    """Call the script's functions for this occasion, each once per end over all attempts; returns the errors by name.

    ``manifest`` is the snapshot at this end; ``within_seconds`` limits each call, in addition to its own limit.
    """
    positions = {name: query.position for name, query in manifest.queries.items()}
    end = JobEnd(occasion, attempt.stream_id, attempt.deployment_id, manifest.snapshot_id, positions)
    done = {
        event.name
        for event in attempt.reporter.events
        if isinstance(event, FunctionCalled)
        and not event.error
        and event.occasion == occasion
        # A deployment is drained once, whichever snapshot records it.
        and (occasion == "drain" or event.snapshot_id == manifest.snapshot_id)
    }
    failures: dict[str, str] = {}
    for callback in attempt.callbacks.named[occasion]:
        if callback.name in done:
            continue
        attempt.reporter.say(f"the driver calls {callback.name} for the job's {occasion}")
        limit = callback.within_seconds if within_seconds is None else min(callback.within_seconds, within_seconds)
        error = attempt.reporter.shortened(_called(attempt, callback, end, limit), MAX_ERROR_CHARACTERS)
        attempt.reporter.write(
            FunctionCalled, name=callback.name, occasion=occasion, snapshot_id=manifest.snapshot_id, error=error
        )
        if error:
            failures[callback.name] = error
    return failures


def _called(attempt: Attempt, callback: Callback, end: JobEnd, within_seconds: float) -> str:
    """Its error; "" where it succeeded."""
    found: list[str] = []
    is_over = threading.Event()

    def call() -> None:
        try:
            callback.function(end)
        except (Exception, SystemExit) as error:
            attempt.reporter.say(traceback.format_exc())
            found.append("".join(traceback.format_exception_only(type(error), error)).strip())
        finally:
            is_over.set()

    attempt.in_background(call, gives_way=False)
    until = attempt.clock.monotonic_seconds() + within_seconds
    while not is_over.is_set():
        attempt.fence.check()
        if attempt.clock.monotonic_seconds() >= until:
            return f"it did not return within {within_seconds:g} s"
        attempt.clock.sleep(POLL_SECONDS)
    return found[0] if found else ""


PROGRESS_LINE_SECONDS = 10.0


class NotWaitedForError(Exception):
    """Internal: a caller stopped waiting for queries to reach their barriers; ``endings`` has all of these queries."""

    def __init__(self, endings: Sequence[Ending]) -> None:
        super().__init__([ending.query.name for ending in endings if not ending.done])
        self.endings = endings

    @property
    def waiting(self) -> list[Ending]:
        """Those that are at no barrier yet."""
        return [ending for ending in self.endings if not ending.done]

    @property
    def failures(self) -> dict[str, str]:
        return failures_of(self.endings)


class Ending:
    """One query on its way to its barrier.

    Attributes:
        failure: why it ended with its batch not committed; None where it did not.
        done: it is at its barrier, or has failed.
    """

    def __init__(self, attempt: Attempt, query: LogicalQuery, command_id: str) -> None:
        self._attempt = attempt
        self.query = query
        self.failure: str | None = None
        self.done = False
        self.last_seen: object = "nothing yet"
        self._is_stopped_here = False
        if query.last_end.ended_at is None:
            query.last_end = QueryEnd()  # of a barrier that was removed
        self._placement = BarrierPlacement(
            query.checkpoint,
            attempt.mark("stop", command_id),
            query.view,
            partial(need_checkpoint, attempt, query.name),
        )

    def step(self) -> Step | None:
        """Look and act once; None where the store did not answer, or the log is damaged. Never blocks, except for
        Spark's ``stop()`` of a query that runs nothing."""
        run = self.query.run
        try:
            self.last_seen = seen = self._placement.step()
            self._act_on(seen)
        except PASSING as error:
            self._attempt.reporter.outage(f"barrier of {self.query.name}", error)
        except FencedError:
            self._attempt.fence.close(None)
            raise
        except DataError as error:
            self.failure, self.done = str(error), True
            if run is not None:
                run.stop()
        else:
            return seen
        return None

    def _act_on(self, seen: Step) -> None:
        run = self.query.run
        if isinstance(seen, (Certain, Placed)) and self.query.last_end.barrier_at is None:
            self.query.last_end = replace(self.query.last_end, barrier_at=self._attempt.clock.now())
        if isinstance(seen, BatchFailed):
            # The script's own stop() in the middle of a batch is no failure: the next start runs the batch again.
            self.failure = run.failure() if run is not None else None
            self.query.has_ended_itself = run is not None and self.failure is None
            self.done = True
        elif isinstance(seen, Placed):
            if run is not None and not run.has_ended():
                self._is_stopped_here = True
                run.stop()  # safe now, and not before (1a.4)
            self.done = run is None or run.has_ended()
            if self.done and run is not None:
                self._note_end()
                self.query.met_barrier = self._is_stopped_here or run.failure() is not None
            if run is not None and self.done and not self._is_stopped_here and run.failure() is None:
                self.query.has_ended_itself = self.query.has_ended_itself or not self.query.runs_once

    def _note_end(self) -> None:
        """Once: a query at its barrier is brought there again before its flush."""
        if self.query.last_end.ended_at is None:
            self.query.last_end = replace(self.query.last_end, ended_at=self._attempt.clock.now())

    def goes_on(self) -> bool | None:
        """One step of removing the barrier under a running query; never blocks.

        Returns:
            True: it runs on as if there had been no barrier. False: it is at its barrier and has to be started
                again.
            None: not known yet.
        """
        if self.done or self.query.run is None:
            return False
        seen = self.step()
        if self.done:
            return False
        if isinstance(seen, Certain):
            # If the query met the barrier already, the next step puts it again and ends the query there.
            return self._placement.take_back() or None
        if isinstance(seen, (NotInitialised, Overwritten)):
            return None if self._has_barrier() else True
        return None

    def _has_barrier(self) -> bool:
        """Whether an entry of this deployment is in the log."""
        barriers = self.query.checkpoint.position().barriers
        marks = (barrier.entry.mark for barrier in barriers)
        return any(mark is not None and mark.deployment_id == self._attempt.deployment_id for mark in marks)


def end_at_barriers(
    attempt: Attempt,
    queries: Sequence[LogicalQuery],
    command_id: str,
    *,
    is_enough: Callable[[], bool] = lambda: False,
) -> dict[str, str]:
    """End running queries between two batches, all at the same time; returns the failures of their last batches, by
    name.

    Waits for the batches in flight; raises NotWaitedForError once ``is_enough``.
    """
    endings = [Ending(attempt, query, command_id) for query in queries]
    said = attempt.clock.monotonic_seconds()
    while True:
        attempt.fence.check()
        for ending in endings:
            if not ending.done:
                ending.step()
        waiting = [ending for ending in endings if not ending.done]
        if not waiting:
            return failures_of(endings)
        if is_enough():
            raise NotWaitedForError(endings)
        now = attempt.clock.monotonic_seconds()
        if now - said >= PROGRESS_LINE_SECONDS:
            said = now
            attempt.reporter.say("; ".join(f"waiting for {e.query.name} ({e.last_seen})" for e in waiting))
        attempt.clock.sleep(POLL_SECONDS)


def failures_of(endings: Sequence[Ending]) -> dict[str, str]:
    return {ending.query.name: ending.failure for ending in endings if ending.failure is not None}


def cut(attempt: Attempt, query: LogicalQuery) -> None:
    """Stop a query in the middle of its batch, which the next start runs again."""
    attempt.reporter.say(f"query {query.name} is stopped in the middle of a batch, which the next start runs again")
    if query.run is not None:
        query.run.stop()


def cut_runs(attempt: Attempt, queries: Sequence[LogicalQuery]) -> list[str]:
    """Cut these queries; returns the names of those that have not ended ``exit_grace_seconds`` later.

    Spark's ``stop()`` waits until the batch is interrupted, which user code may prevent: so it runs in the background.
    """
    for query in queries:
        attempt.in_background(partial(cut, attempt, query), gives_way=False)
    until = attempt.clock.monotonic_seconds() + attempt.spec.version.settings.exit_grace_seconds
    left = list(queries)
    while left and attempt.clock.monotonic_seconds() < until:
        left = [query for query in left if not retry_until_fenced(attempt, "Spark", query.has_stopped_running)]
        if left:
            attempt.clock.sleep(POLL_SECONDS)
    return [query.name for query in left]


def close_latch(attempt: Attempt, state: Literal["stop", "drain", "snapshot"], order: Order) -> bool:
    """Close the latch; False if it was closed already."""
    latch = attempt.latch
    with latch.held():
        for query in attempt.queries.all():
            query.settle()  # what ended before the latch closed ended by itself
        is_closed = latch.close(state, order)
    if is_closed:
        tell_failed_queries(attempt, is_last_look=True)
    return is_closed


def running_queries(attempt: Attempt) -> list[LogicalQuery]:
    """The queries that Spark runs now."""
    return [query for query in attempt.queries.all() if not query.has_stopped_running()]


def position_of(attempt: Attempt, query: LogicalQuery) -> Position:
    """The position of a query in its log. Waits for the store."""
    return retry_until_fenced(attempt, "the log", query.checkpoint.position)


def wait_until_ended(attempt: Attempt, run: QueryRun, is_enough: Callable[[], bool] = lambda: False) -> bool:
    """Wait for a run that ends by itself; False if ``is_enough`` came first."""
    while not retry_until_fenced(attempt, "Spark", run.has_ended):
        if is_enough():
            return False
        attempt.clock.sleep(POLL_SECONDS)
    return True


def stop_deployment(attempt: Attempt, order: Order) -> None:
    """Obey a stop: from closing the latch, or from where this was interrupted, to releasing the script's waits."""
    if attempt.latch.is_open:
        close_latch(attempt, "stop", order)
    if attempt.latch.state != "stop" or attempt.latch.order != order:
        return
    accept(attempt, order)
    running = running_queries(attempt)
    attempt.reporter.say(f"stopping {len(running)} running queries")
    failures = end_at_barriers(attempt, running, order.command_id)
    if failures:
        fail_queries(attempt, failures)
        return
    finish_stopped(attempt, order)


def finish_stopped(attempt: Attempt, order: Order, take: Callable[[], SnapshotManifest] | None = None) -> None:
    """Every query has ended at a committed batch: take the snapshot, write the event, release the waits.

    ``order`` has no command where a drain ends as a stop; ``take`` replaces ``take_final_snapshot``.
    """
    try:
        refuse_pending_flush(attempt)
        manifest = take() if take is not None else take_final_snapshot(attempt, "stopped", order.command_id)
    except (FencedError, UnavailableError, OutcomeUnknownError):
        raise
    except StreamStateError as error:
        fail_without_snapshot(attempt, error)
        return
    call_functions(attempt, "stop", manifest)  # a failure is an event only: the state is safe
    note_at_end(attempt, manifest)
    need_current(attempt)
    attempt.reporter.write(
        Stopped,
        snapshot_id=manifest.snapshot_id,
        queries=positions_in(manifest),
        command_id=order.command_id,
        command_number=order.command_number,
        ends=ends_of(attempt),
    )
    attempt.reporter.say(f"stopped; snapshot {manifest.snapshot_id}")
    clean_up(attempt)
    attempt.latch.release("stopped")


def ends_of(attempt: Attempt) -> dict[str, QueryEnd]:
    """When the queries of this attempt came to their ends, as far as seen."""
    found = {query.name: query.last_end for query in attempt.queries.all()}
    return {name: end for name, end in found.items() if end != QueryEnd()}


def note_at_end(attempt: Attempt, manifest: SnapshotManifest) -> None:
    """Note queries that this attempt never started (1a.12), failed queries, a pending drain, and the audit's
    findings."""
    kept = [name for name, query in manifest.queries.items() if has_positions(query) and name not in attempt.queries]
    if kept:
        attempt.reporter.note("queries that were not started are carried on unchanged", queries=sorted(kept))
    failed = sorted(query.name for query in failed_queries(attempt))
    if failed:
        attempt.reporter.note(
            "queries that had failed are kept at their position; the next start first runs what they had planned",
            queries=failed,
        )
    note_overtaken_drain(attempt)
    audit_at_end(attempt)


def note_overtaken_drain(attempt: Attempt) -> None:
    """Note once, before the last event of an attempt, that it has not started a pending drain of the deployment."""
    found = pending_drain(
        attempt.commands(retry_until_fenced(attempt, "the commands", attempt.journal.commands)),
        stream_id=attempt.stream_id,
        deployment_id=attempt.deployment_id,
        now=attempt.clock.now(),
    )
    if found is None:
        return
    drain, _number = found
    is_told = any(
        event.facts.get("overtaken_command_id") == drain.command_id
        for event in attempt.reporter.events
        if isinstance(event, Noted) and event.attempt == attempt.number
    )
    if not is_told:
        attempt.reporter.note(
            "a drain was ordered and not started before this end: the next attempt of this deployment obeys it",
            overtaken_command_id=drain.command_id,
            requested_by=drain.requested_by,
            reason=drain.reason,
        )


def fail_without_snapshot(attempt: Attempt, error: StreamStateError) -> None:
    """The snapshot cannot be taken: write ``Failed``, and change nothing more."""
    for query in attempt.queries.all():
        query.end(str(error))
    need_current(attempt)
    attempt.reporter.write(Failed, error=f"the final snapshot could not be taken: {error}")
    attempt.latch.release("failed")


def fail_queries(attempt: Attempt, failures: dict[str, str]) -> None:
    """Batches failed on the way to a barrier: end the shutdown; the script's waits return or raise, and its end writes
    the last event."""
    end_failed(attempt, failures)
    attempt.reporter.note(
        "a batch failed on the way to its barrier, so this shutdown failed; the next start runs that batch first",
        queries=sorted(failures),
    )
    attempt.latch.release("failed")


def end_failed(attempt: Attempt, failures: dict[str, str]) -> None:
    """End the queries whose last batch failed, and write their events."""
    for name, failure in failures.items():
        attempt.queries[name].fail(failure, attempt.queries[name].run)
    tell_failed_queries(attempt, is_last_look=True)


# A shutdown that is called off: the queries run on in the same driver.
#
# A query that is still in its batch loses the barrier and notices nothing. A query that has ended at its barrier is
# started again there, as a resume would start it.


def carry_on(attempt: Attempt, endings: Iterable[Ending] = (), command_id: str = "") -> None:
    """Take the barriers back, start the queries that ended at one, and open the latch.

    The logs hold no drain entry; ``endings`` were on their way to their barriers.
    """
    known = {ending.query.name: ending for ending in endings}
    live = []
    for query in running_queries(attempt):
        if query.runs_once and query.run is not None:
            wait_until_ended(attempt, query.run)  # a planned batch, which belongs to the query
        else:
            live.append(known.get(query.name) or Ending(attempt, query, command_id))
    while live:
        attempt.fence.check()
        live = [ending for ending in live if _is_undecided(attempt, ending)]
        if live:
            attempt.clock.sleep(POLL_SECONDS)
    with attempt.latch.held():
        runs = Runs(attempt)
        for query in attempt.queries.all():
            if query.is_over:
                continue
            if query.has_ended_itself:
                _end(query)
            elif query.has_stopped_running():
                _begin_again(attempt, runs, query)
        attempt.latch.reopen()
    tell_failed_queries(attempt)


def _is_undecided(attempt: Attempt, ending: Ending) -> bool:
    try:
        return ending.goes_on() is None
    except (UnavailableError, OutcomeUnknownError) as error:
        attempt.reporter.outage(f"barrier of {ending.query.name}", error)
        return True


def _end(query: LogicalQuery) -> None:
    """End a query that the script stopped, or that came to its own end, during the shutdown."""
    if query.run is not None and not query.run.has_ended():
        query.run.stop()
    query.end()


def _begin_again(attempt: Attempt, runs: Runs, query: LogicalQuery) -> None:
    """Start a query again; an error is the query's failure, as at any other start."""
    run = query.run
    failure = run.failure() if run is not None else None
    try:
        if failure is not None and position_of(attempt, query).planned is not None:
            query.fail(failure, run)  # its batch failed, not its claim (Law 13)
            return
        retry_until_fenced(attempt, "the start of a query", lambda: runs.begin(query))
    except FencedError:
        raise
    except Exception as error:
        attempt.reporter.say(traceback.format_exc())
        query.fail(f"{type(error).__name__}: {error}")


# A driver whose machine asks it to end (a node that is drained, an eviction) orders its own stop, by a command.
#
# The signal itself would end Spark's JVM in the middle of a batch. So what leads the driver's processes catches it,
# and makes the file ``ASKED_TO_END``.

REASON = "its machine asks the driver to end"
_NAMESPACE = uuid.UUID("0f6ff0bb-8f0c-5d0a-9a57-3f0d2f5a1c7e")


class MachineStop:
    """Looks whether the machine asks the driver to end, and then writes the request, once an attempt.

    Args:
        folder: of the launch; "" for a driver that nothing leads.
    """

    def __init__(self, attempt: Attempt, folder: str) -> None:
        self._attempt = attempt
        self._file = Path(folder) / ASKED_TO_END if folder else None
        self._is_ordered = False

    def order_if_asked(self) -> None:
        """Order the stop if it is due.

        Raises:
            UnavailableError, OutcomeUnknownError: the store does not answer; call it again.
        """
        attempt = self._attempt
        if self._file is None or self._is_ordered or not attempt.latch.is_open or not self._file.exists():
            return
        place = f"{attempt.stream_id}/{attempt.deployment_id}/{attempt.number}"
        command = StopRequest(
            str(uuid.uuid5(_NAMESPACE, place)),
            attempt.stream_id,
            attempt.deployment_id,
            attempt.clock.now(),
            None,
            BY_THE_DRIVER,
            REASON,
            attempt=attempt.number,
        )
        attempt.journal.write_command(command, NEWEST_PROTOCOL)
        self._is_ordered = True
        attempt.reporter.say(REASON)
