"""Snapshots of a running deployment, each at a committed batch: by command, and every ``snapshot_every_seconds``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from airflow_streamstate.driver.attempt.answering import accept, clean_up, ignore
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.attempt.sealing import seal_in_background, seal_now
from airflow_streamstate.driver.attempt.snapshotting import (
    checkpoint_names,
    positions_in,
    queries_to_capture,
    take_snapshot,
)
from airflow_streamstate.driver.shutdown.carrying_on import carry_on
from airflow_streamstate.driver.shutdown.stopping import (
    Ending,
    NotWaitedForError,
    close_latch,
    end_at_barriers,
    running_queries,
)
from airflow_streamstate.errors import (
    ConflictError,
    DeadlineExceededError,
    FencedError,
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.protocol.commands import Command, SnapshotRequest
from airflow_streamstate.protocol.events import Drained, Finished, Rejected, SnapshotReady, Stopped
from airflow_streamstate.protocol.ids import periodic_snapshot_id_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.snapshot.requested import requested_snapshot

PATIENCE_SECONDS = 60.0
Kept = SnapshotReady | Stopped | Finished | Drained
Result = TypeVar("Result")


class GaveWayError(UnavailableError):
    """A snapshot was given up for the end of the deployment, which comes first."""


def while_all_stand(
    attempt: Attempt,
    order: Order,
    act: Callable[[Callable[[], None]], Result],
    is_enough: Callable[[], bool] = lambda: False,
) -> Result:
    """Bring every query to its barrier, act, and let the queries continue in any case.

    As in Malstrom, which snapshots at a barrier through the whole stream; here each query has its own.

    Args:
        act: gets a function that lets the queries continue, to be called as soon as they need not stand any more.
        is_enough: polled; True to stop waiting for the batches in flight. What it raises is raised.

    Raises:
        DeadlineExceededError: the batches in flight took too long; ``act`` was not called.
        ConflictError: a batch failed, or an ending has begun; ``act`` was not called.
        FencedError: this attempt was replaced.
        and what ``act`` or ``is_enough`` raises.
    """
    if not close_latch(attempt, "snapshot", order) and attempt.latch.state != "snapshot":
        raise ConflictError("the deployment is being ended", next_step="Its end has a snapshot of its own.")
    endings: Sequence[Ending] = ()
    stand = True
    why: list[StreamStateError] = []

    def enough() -> bool:
        # Not raised through end_at_barriers, whose own error has the endings that let_go needs.
        try:
            return is_enough()
        except StreamStateError as error:
            why.append(error)
            return True

    def let_go() -> None:
        nonlocal stand
        if stand and not attempt.fence.is_fenced:
            stand = False
            carry_on(attempt, endings, order.command_id)

    try:
        failures = end_at_barriers(attempt, running_queries(attempt), order.command_id, is_enough=enough)
        if failures:
            raise ConflictError(
                "a batch failed on its way to the barrier",
                queries=sorted(failures),
                next_step="`streamstate status` shows why; where the other queries run on, ask again: the snapshot then"
                " holds a failed query at its last commit.",
            )
        return act(let_go)
    except NotWaitedForError as late:
        endings = late.endings
        if why:
            raise why[0] from None
        raise DeadlineExceededError(
            "the batches in flight were not committed in time, so that the queries never stood at one barrier",
            queries=[ending.query.name for ending in late.waiting],
            next_step="Ask again with a longer --ttl or --expires-in, or without --consistent.",
        ) from None
    finally:
        let_go()


class LiveSnapshots:
    """Takes the snapshots that commands ask for.

    Args:
        give_way: called while a snapshot is copied; raises GaveWayError where the deployment is to end.
    """

    def __init__(self, attempt: Attempt, give_way: Callable[[], None]) -> None:
        self._attempt = attempt
        self._give_way = give_way
        self._first_tried: dict[str, float] = {}
        self._has_commits = False
        self._too_early: set[str] = set()

    def take(self, order: Order, key: str) -> None:
        """Try once; an unavailable store or disk is tried again by later polls, until ``PATIENCE_SECONDS``. Before the
        first commit the order stays as it is, for a later poll."""
        attempt = self._attempt
        attempt.fence.check_current()
        snapshot_id = attempt.snapshot_id("live", order.command_number)
        request_id = order.command.request_id if isinstance(order.command, SnapshotRequest) else ""
        try:
            if self._has_become_one(order, request_id) or self._is_too_early(order):
                return
            accept(attempt, order)

            def take(when_linked: Callable[[], None] = lambda: None) -> SnapshotManifest:
                queries = queries_to_capture(attempt)
                return take_snapshot(
                    attempt,
                    snapshot_id,
                    "live",
                    order.command_id,
                    queries,
                    request_id,
                    when_linked=when_linked,
                    go_on=self._give_way,
                )

            if isinstance(order.command, SnapshotRequest) and order.command.consistent:
                manifest = while_all_stand(attempt, order, take, lambda: self._is_enough(order.command))
            else:
                manifest = take()
        except FencedError:
            raise
        except GaveWayError as error:
            self._reject(order, key, error)
        except (UnavailableError, OutcomeUnknownError) as error:
            attempt.reporter.outage(f"snapshot {snapshot_id}", error)
            if self._is_hopeless(order):
                self._reject(order, key, error)
        except StreamStateError as error:
            self._reject(order, key, error)
        else:
            report_ready(
                attempt,
                manifest,
                command_id=order.command_id,
                command_number=order.command_number,
                request_id=request_id,
            )
            clean_up(attempt)
            seal_in_background(attempt, manifest.snapshot_id)

    def _has_become_one(self, order: Order, request_id: str) -> bool:
        """Ignore a command whose request has become a snapshot by another command (Law 2); whether that is so."""
        attempt, command = self._attempt, order.command
        if command is None or not request_id or attempt.command_status(order.command_id).is_begun:
            return False
        found = requested_snapshot(attempt.control, request_id, attempt.deployment_id, attempt.reporter.events)
        if found is None:
            return False
        ignore(attempt, command, order.command_number, f"its request has become snapshot {found.snapshot_id} already")
        return True

    def _is_too_early(self, order: Order) -> bool:
        """Whether nothing is committed yet, so that a snapshot would hold nothing."""
        attempt = self._attempt
        if self._has_commits or attempt.command_status(order.command_id).is_begun:
            return False
        start = attempt.start.manifest()
        is_carried = start is not None and any(one.batch_id is not None for one in positions_in(start).values())
        names = () if is_carried else checkpoint_names(attempt)
        self._has_commits = is_carried or any(attempt.checkpoint_of(name).commit_ids() for name in names)
        if not self._has_commits and order.command_id not in self._too_early:
            self._too_early.add(order.command_id)
            attempt.reporter.say("nothing is committed yet: the snapshot is taken after the first commit")
        return not self._has_commits

    def _is_enough(self, command: Command | None) -> bool:
        """Whether the command is late, so that no query stands for it; raises GaveWayError."""
        self._give_way()
        now = self._attempt.clock.now()
        if command is None or (command.deadline_at is not None and now > command.deadline_at):
            return True
        ttl_seconds = command.ttl_seconds if isinstance(command, SnapshotRequest) else None
        return ttl_seconds is not None and now > command.requested_at + timedelta(seconds=ttl_seconds)

    def _is_hopeless(self, order: Order) -> bool:
        clock = self._attempt.clock
        first = self._first_tried.setdefault(order.command_id, clock.monotonic_seconds())
        deadline_at = order.command.deadline_at if order.command is not None else None
        late = deadline_at is not None and clock.now() > deadline_at
        return late or clock.monotonic_seconds() - first > PATIENCE_SECONDS

    def _reject(self, order: Order, key: str, error: StreamStateError) -> None:
        self._attempt.reporter.write(
            Rejected,
            command_id=order.command_id,
            command_number=order.command_number,
            key=key,
            reason=str(error),
        )
        self._attempt.reporter.say(f"the snapshot was not taken: {error}")
        clean_up(self._attempt)


def report_ready(attempt: Attempt, manifest: SnapshotManifest, **asked_by: object) -> None:
    """Write ``SnapshotReady``, with the command that asked for the snapshot, and log it."""
    attempt.reporter.write(
        SnapshotReady,
        snapshot_id=manifest.snapshot_id,
        snapshot_kind=manifest.snapshot_kind,
        queries=positions_in(manifest),
        **asked_by,
    )
    attempt.reporter.say(f"snapshot {manifest.snapshot_id}: {manifest.files_count} files, {manifest.size_bytes} bytes")


class PeriodicSnapshots:
    """Takes a snapshot when the newest one is old enough, and a batch was committed since.

    The thread that obeys commands calls it, so that two snapshots are never taken at once.
    """

    def __init__(self, attempt: Attempt, give_way: Callable[[], None]) -> None:
        self._attempt = attempt
        self._give_way = give_way
        self._every_seconds = attempt.spec.version.settings.snapshot_every_seconds
        self._due_seconds = attempt.clock.monotonic_seconds() + (self._every_seconds or 0.0)
        self._is_sealing = False
        self._has_complained = False

    def take_if_due(self) -> None:
        """Take a snapshot if one is due.

        Raises:
            FencedError: this attempt was replaced.
        """
        attempt, every = self._attempt, self._every_seconds
        if every is None or not attempt.latch.is_open or attempt.script.has_ended:
            return
        if attempt.clock.monotonic_seconds() < self._due_seconds:
            return
        newest = self._newest()
        left_seconds = self._left_seconds(newest, every)
        if left_seconds > 0:
            self._wait(left_seconds)  # a command asked for one meanwhile
        elif self._has_news(newest):
            self._try(every)

    def _try(self, every: float) -> None:
        attempt = self._attempt
        snapshot_id = periodic_snapshot_id_for(attempt.deployment_id, attempt.number, self._taken() + 1)
        try:
            attempt.fence.check_current()
            queries = queries_to_capture(attempt)
            manifest = take_snapshot(attempt, snapshot_id, "live", "", queries, go_on=self._give_way)
        except FencedError:
            raise
        except (UnavailableError, OutcomeUnknownError) as error:
            attempt.reporter.outage(f"snapshot {snapshot_id}", error)
            self._wait(min(every, attempt.spec.version.settings.heartbeat_seconds))
        except StreamStateError as error:
            self._complain(snapshot_id, error)
            self._wait(every)
        else:
            self._has_complained = False
            report_ready(attempt, manifest)
            self._wait(every)
            self._seal(snapshot_id)

    def _complain(self, snapshot_id: str, error: StreamStateError) -> None:
        """Report the first failure as an event, and the next ones in the log, until a snapshot is taken."""
        if not self._has_complained:
            self._attempt.reporter.note("a periodic snapshot was not taken", snapshot_id=snapshot_id, why=str(error))
        else:
            self._attempt.reporter.say(f"snapshot {snapshot_id} was not taken: {error}")
        self._has_complained = True

    def _seal(self, snapshot_id: str) -> None:
        """Seal one snapshot at a time; the next driver, or ``verify``, seals the others."""
        if self._is_sealing:
            return
        self._is_sealing = True

        def work() -> None:
            try:
                seal_now(self._attempt, snapshot_id)
            finally:
                self._is_sealing = False

        self._attempt.in_background(work)

    def _wait(self, seconds: float) -> None:
        self._due_seconds = self._attempt.clock.monotonic_seconds() + seconds

    def _newest(self) -> Kept | None:
        """The newest event about a snapshot of this deployment."""
        events = reversed(self._attempt.reporter.events)
        return next((event for event in events if isinstance(event, Kept) and event.snapshot_id is not None), None)

    def _left_seconds(self, newest: Kept | None, every: float) -> float:
        """How long until the newest snapshot of this attempt is old enough; 0 for one of an earlier attempt."""
        if newest is None or newest.attempt != self._attempt.number:
            return 0.0
        age_seconds = (self._attempt.clock.now() - newest.at).total_seconds()
        return every - age_seconds if age_seconds >= 0 else 0.0  # the clock was put back

    def _has_news(self, newest: Kept | None) -> bool:
        """Whether a query has committed a batch that the newest snapshot does not hold."""
        held = self._held(newest)
        return any(query.newest_batch_id() > held.get(query.name, -1) for query in self._attempt.queries.all())

    def _held(self, newest: Kept | None) -> dict[str, int]:
        if newest is not None:
            positions = newest.queries
        else:
            start = self._attempt.start.manifest()
            positions = {} if start is None else positions_in(start)
        return {name: position.batch_id for name, position in positions.items() if position.batch_id is not None}

    def _taken(self) -> int:
        """How many this attempt has taken, by which the next one has the same id at each try (Law 2)."""
        return sum(
            1
            for event in self._attempt.reporter.events
            if isinstance(event, SnapshotReady) and event.attempt == self._attempt.number and not event.command_id
        )
