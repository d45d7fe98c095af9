"""Stop (1a.4): the batches in flight are committed, every query ends between two batches, the state is kept aside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from airflow_streamstate.checkpoint.barrier import BarrierPlacement, BatchFailed, Placed, Step
from airflow_streamstate.errors import DataError, FencedError, OutcomeUnknownError, StreamStateError, UnavailableError
from airflow_streamstate.protocol.events import Failed, Stopped
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.runtime.attempt.answering import accept, clean_up
from airflow_streamstate.runtime.attempt.attempt import Attempt
from airflow_streamstate.runtime.attempt.auditing import audit_at_end
from airflow_streamstate.runtime.attempt.latch import Order
from airflow_streamstate.runtime.attempt.logical_query import POLL_SECONDS, LogicalQuery
from airflow_streamstate.runtime.attempt.ports import QueryRun
from airflow_streamstate.runtime.attempt.snapshotting import need_current, persist, positions_in, take_final_snapshot
from airflow_streamstate.runtime.ending.begun_flushes import refuse_pending_flush
from airflow_streamstate.runtime.starting.building import has_positions

PROGRESS_LINE_SECONDS = 10.0


class Ending:
    """One query on its way to its barrier.

    Attributes:
        failure: why it ended with its batch not committed; None where it did not.
        done: whether it stands at its barrier, or has failed.
    """

    def __init__(self, attempt: Attempt, query: LogicalQuery, command_id: str) -> None:
        self._attempt = attempt
        self.query = query
        self.failure: str | None = None
        self.done = False
        self.last_seen: object = "nothing yet"
        self._placement = BarrierPlacement(query.checkpoint, attempt.mark("stop", command_id), query.view)

    def step(self) -> None:
        """Look and act once; never blocks, but for Spark's own ``stop()`` of a query that runs nothing."""
        run = self.query.run
        try:
            self.last_seen = seen = self._placement.step()
            self._act_on(seen)
        except (UnavailableError, OutcomeUnknownError) as error:
            self._attempt.reporter.outage(f"barrier of {self.query.name}", error)
        except FencedError:
            self._attempt.fence(None)
            raise
        except DataError as error:
            self.failure, self.done = str(error), True
            if run is not None:
                run.stop()
            return

    def _act_on(self, seen: Step) -> None:
        run = self.query.run
        if isinstance(seen, BatchFailed):
            # Ended by the script's own stop() in the middle of a batch, it has no failure: the batch is run again.
            self.failure = run.failure() if run is not None else None
            self.done = True
        elif isinstance(seen, Placed):
            if run is not None and not run.has_ended():
                run.stop()  # safe now, and not before (1a.4)
            self.done = run is None or run.has_ended()


def end_at_barriers(
    attempt: Attempt, queries: Sequence[LogicalQuery], command_id: str, *, give_up_after_seconds: float | None = None
) -> dict[str, str]:
    """End running queries between two batches, all at the same time.

    Bounded by the batches in flight: nothing else ends a query without cutting one.

    Args:
        attempt: this attempt.
        queries: those that run.
        command_id: goes into the marks.
        give_up_after_seconds: stop them the hard way then; None for never.

    Returns:
        The failures of those whose last batch failed, by name.

    Raises:
        FencedError: this attempt was replaced.
    """
    endings = [Ending(attempt, query, command_id) for query in queries]
    began = said = attempt.clock.monotonic_seconds()
    while True:
        if attempt.is_fenced:
            raise attempt.fenced_error()
        for ending in endings:
            if not ending.done:
                ending.step()
        waiting = [ending for ending in endings if not ending.done]
        if not waiting:
            break
        now = attempt.clock.monotonic_seconds()
        if give_up_after_seconds is not None and now - began > give_up_after_seconds:
            _stop_hard(attempt, waiting)
            break
        if now - said >= PROGRESS_LINE_SECONDS:
            said = now
            attempt.reporter.say("; ".join(f"waiting for {e.query.name} ({e.last_seen})" for e in waiting))
        attempt.clock.sleep(POLL_SECONDS)
    return {ending.query.name: ending.failure for ending in endings if ending.failure is not None}


def _stop_hard(attempt: Attempt, waiting: Sequence[Ending]) -> None:
    for ending in waiting:
        attempt.reporter.say(
            f"query {ending.query.name} is stopped in the middle of a batch, which the next start runs again"
        )
        if ending.query.run is not None:
            ending.query.run.stop()


def close_latch(attempt: Attempt, state: Literal["stop", "drain"], order: Order) -> bool:
    """Close the latch; False where it was closed already."""
    latch = attempt.latch
    with latch.held():
        for query in list(attempt.queries.values()):
            query.settle()  # what ended before the latch closed ended by itself
        return latch.close(state, order)


def running_queries(attempt: Attempt) -> list[LogicalQuery]:
    """The queries that Spark runs just now."""
    return [query for query in list(attempt.queries.values()) if not query.has_stopped_running()]


def wait_until_ended(attempt: Attempt, run: QueryRun) -> None:
    """Wait for a run that ends by itself: one batch.

    Raises:
        FencedError: this attempt was replaced.
    """
    while not persist(attempt, "Spark", run.has_ended):
        attempt.clock.sleep(POLL_SECONDS)


def stop_deployment(attempt: Attempt, order: Order) -> None:
    """Obey a stop, from the closing of the latch (or from where it was cut short) to the release of the waits.

    Raises:
        FencedError: this attempt was replaced.
    """
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
    """Every query has ended at a committed batch: snapshot, event, release.

    Args:
        attempt: this attempt.
        order: the stop; one of no command where a drain ended in this.
        take: takes the snapshot, where more is known about it than every checkpoint of the deployment.
    """
    try:
        refuse_pending_flush(attempt)
        manifest = take() if take is not None else take_final_snapshot(attempt, "stopped", order.command_id)
    except (FencedError, UnavailableError, OutcomeUnknownError):
        raise
    except StreamStateError as error:
        fail_without_snapshot(attempt, error)
        return
    note_at_end(attempt, manifest)
    need_current(attempt)
    attempt.reporter.write(
        Stopped,
        snapshot_id=manifest.snapshot_id,
        queries=positions_in(manifest),
        command_id=order.command_id,
        command_number=order.command_number,
    )
    attempt.reporter.say(f"stopped; snapshot {manifest.snapshot_id}")
    clean_up(attempt)
    attempt.latch.release("stopped")


def note_at_end(attempt: Attempt, manifest: SnapshotManifest) -> None:
    """Tell what a person should know of this end: queries with a position that this attempt never started are kept as
    they were (1a.12), and what an audit finds.

    Args:
        attempt: this attempt, at its end.
        manifest: its final snapshot.
    """
    kept = [name for name, query in manifest.queries.items() if has_positions(query) and name not in attempt.queries]
    if kept:
        attempt.reporter.note("queries that were not started are carried on unchanged", queries=sorted(kept))
    audit_at_end(attempt)


def fail_without_snapshot(attempt: Attempt, error: StreamStateError) -> None:
    """A checkpoint or the start snapshot is not what it must be: said, and nothing more is touched."""
    for query in list(attempt.queries.values()):
        query.end(str(error))
    need_current(attempt)
    attempt.reporter.write(Failed, error=f"the final snapshot could not be taken: {error}")
    attempt.latch.release("failed")


def fail_queries(attempt: Attempt, failures: dict[str, str]) -> None:
    """Hand the real failure of a query to the script; the ending is over, and what follows is the script's end."""
    for name, failure in failures.items():
        query = attempt.queries[name]
        query.end(failure, query.run)
    attempt.reporter.note(
        "a batch failed under a barrier; the barrier is taken back and the failure goes to the script",
        queries=sorted(failures),
    )
    attempt.latch.release("failed")
