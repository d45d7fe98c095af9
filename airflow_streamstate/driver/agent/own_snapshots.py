"""Snapshots of a running deployment, each at a committed batch, and their copies at mirrors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar, Union

from airflow_streamstate.driver.attempt.answers import accept, clean_up, ignore
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.attempt_snapshots import (
    checkpoint_names,
    positions_in,
    queries_to_capture,
    seal_in_background,
    seal_now,
    take_snapshot,
)
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.shutdown.stopping import (
    Ending,
    NotWaitedForError,
    carry_on,
    close_latch,
    end_at_barriers,
    running_queries,
)
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    DeadlineExceededError,
    FencedError,
    OutcomeUnknownError,
    SnapshotNotFoundError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.protocol.commands import Command, SnapshotRequest
from airflow_streamstate.protocol.events import Drained, Finished, Rejected, SnapshotMirrored, SnapshotReady, Stopped
from airflow_streamstate.protocol.ids import periodic_snapshot_id_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.snapshot.location import requested_snapshot
from airflow_streamstate.snapshot.mirror_copies import (
    carry_records,
    delete_partial_copies,
    is_mirrored,
    mirror_snapshot,
    refuse_same,
)
from airflow_streamstate.store.base import Store

PATIENCE_SECONDS = 60.0
Kept = Union[SnapshotReady, Stopped, Finished, Drained]
Result = TypeVar("Result")


class GaveWayError(UnavailableError):
    """A snapshot was abandoned because the deployment is being ended, which comes first."""


def while_all_stand(
    attempt: Attempt,
    order: Order,
    act: Callable[[Callable[[], None]], Result],
    is_enough: Callable[[], bool] = lambda: False,
) -> Result:
    """Bring every query to its barrier, act, and let the queries continue in any case.

    As in Malstrom, which snapshots at a barrier through the whole stream; here each query has its own.

    Args:
        act: gets a function that lets the queries continue, to be called as soon as they need not wait any more.
        is_enough: polled; True to stop waiting for the batches in flight. What it raises is raised.

    Raises:
        DeadlineExceededError: the batches in flight took too long; ``act`` was not called.
        ConflictError: a batch failed, or an ending has started; ``act`` was not called.
        FencedError: this attempt was replaced.
        and what ``act`` or ``is_enough`` raises.
    """
    if not close_latch(attempt, "snapshot", order) and attempt.latch.state != "snapshot":
        raise ConflictError("the deployment is being ended", next_step="Its end has its own snapshot.")
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
            "the batches in flight were not committed in time, so that the queries were never at one barrier",
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
        """Whether the command is late, so that no query waits for it any more; raises GaveWayError."""
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
            self._wait(left_seconds)  # a command asked for one in the meantime
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
        kept = (event for event in events if isinstance(event, (SnapshotReady, Stopped, Finished, Drained)))
        return next((event for event in kept if event.snapshot_id is not None), None)

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


# Copies the snapshots of a deployment, and of the one before it, to its mirrors, in rounds.
#
# A copy that fails is reported and tried again in a later round. Partial copies of removed snapshots are deleted.

ROUND_SECONDS = 10.0
FAILING_SECONDS = 60.0
"""Pause after an error of a mirror."""
CLEAR_SECONDS = 3_600.0
"""Pause between two polls for partial copies."""

OpenMirror = Callable[[str], Store]


class Mirroring:
    """The mirrors of one attempt."""

    def __init__(self, attempt: Attempt, open_mirror: OpenMirror) -> None:
        self._attempt = attempt
        self._open = open_mirror
        self._done: set[tuple[str, str]] = set()
        self._told: set[str] = set()
        self._said: dict[str, str] = {}
        self._quiet_until: dict[str, float] = {}
        self._lies_at: dict[str, str] = {}
        self._clear_at: dict[str, float] = {}

    def round(self) -> None:
        """Copy what is not at a mirror yet; errors of a store are reported, not raised."""
        attempt = self._attempt
        if attempt.fence.is_fenced:
            return
        try:
            snapshot_ids = self._snapshot_ids()
        except StreamStateError as error:
            attempt.reporter.outage("the list of snapshots", error)
            return
        for uri in attempt.spec.version.mirrors:
            if attempt.clock.monotonic_seconds() >= self._quiet_until.get(uri, 0.0):
                self._to(uri, snapshot_ids)

    def _snapshot_ids(self) -> list[str]:
        owners = (self._attempt.deployment_id, self._attempt.spec.start.predecessor_id)
        found = self._attempt.control.snapshot_ids()
        return [name for name in found if any(owner is not None and name.startswith(f"{owner}-") for owner in owners)]

    def _to(self, uri: str, snapshot_ids: list[str]) -> None:
        try:
            self._tell_of_this_attempt(uri)
        except StreamStateError as error:
            self._quiet_until[uri] = self._attempt.clock.monotonic_seconds() + FAILING_SECONDS
            self._fails(uri, "", error)
            return
        for snapshot_id in snapshot_ids:
            if (uri, snapshot_id) in self._done:
                continue
            try:
                self._copy(uri, snapshot_id)
            except SnapshotNotFoundError:
                self._done.add((uri, snapshot_id))  # pruned in the meantime
            except DataError as error:
                self._done.add((uri, snapshot_id))  # it stays damaged; the next attempt looks again
                self._fails(uri, snapshot_id, error)
            except StreamStateError as error:
                self._quiet_until[uri] = self._attempt.clock.monotonic_seconds() + FAILING_SECONDS
                self._fails(uri, snapshot_id, error)
                return
        self._clear(uri)

    def _clear(self, uri: str) -> None:
        attempt = self._attempt
        if attempt.clock.monotonic_seconds() < self._clear_at.get(uri, 0.0):
            return
        self._clear_at[uri] = attempt.clock.monotonic_seconds() + CLEAR_SECONDS
        try:
            delete_partial_copies(attempt.control, self._open(uri), f"{attempt.deployment_id} attempt {attempt.number}")
        except StreamStateError as error:
            self._fails(uri, "", error)

    def _tell_of_this_attempt(self, uri: str) -> None:
        if uri not in self._told:
            control, mirror = self._attempt.control, self._open(uri)
            refuse_same(control, mirror, self._attempt.checkpoints)
            carry_records(control, mirror, self._attempt.deployment_id)
            self._told.add(uri)

    def _copy(self, uri: str, snapshot_id: str) -> None:
        attempt = self._attempt
        if self._lies_quiet(snapshot_id):
            return
        manifest = attempt.control.manifest(snapshot_id)
        if manifest is None:
            return  # it is being taken
        self._lies_at[snapshot_id] = manifest.data_uri
        if self._lies_quiet(snapshot_id):
            return
        try:
            store = attempt.places.of(manifest)
        except StreamStateError as error:
            # The place of an older snapshot may be lost for good; a copy at the mirror is enough.
            if is_mirrored(attempt.control, self._open(uri), snapshot_id):
                self._done.add((uri, snapshot_id))
                return
            if manifest.data_uri not in self._quiet_until:
                self._fails(uri, snapshot_id, error)
            self._quiet_until[manifest.data_uri] = attempt.clock.monotonic_seconds() + FAILING_SECONDS
            return
        mirror = self._open(uri)
        mirrored = mirror_snapshot(
            attempt.control,
            store,
            mirror,
            snapshot_id,
            batch_bytes=attempt.spec.version.settings.fetch_batch_bytes,
            timeout_seconds=attempt.spec.version.settings.fetch_timeout_seconds,
            go_on=self._give_way,
        )
        self._done.add((uri, snapshot_id))
        self._said.pop(uri, None)
        if mirrored.files:
            attempt.reporter.write_soon(
                SnapshotMirrored,
                snapshot_id=snapshot_id,
                mirror_uri=mirror.uri,
                files=mirrored.files,
                size_bytes=mirrored.size_bytes,
            )

    def _lies_quiet(self, snapshot_id: str) -> bool:
        """Whether the snapshot's data is at a place that has just not answered."""
        quiet_until = self._quiet_until.get(self._lies_at.get(snapshot_id, ""), 0.0)
        return self._attempt.clock.monotonic_seconds() < quiet_until

    def _fails(self, uri: str, snapshot_id: str, error: StreamStateError) -> None:
        """Report an error once, until the mirror works again or fails for another reason."""
        if not self._attempt.latch.is_open or self._said.get(uri) == error.message:
            return
        self._said[uri] = error.message
        self._attempt.reporter.note(
            "a mirror does not take a snapshot", mirror_uri=uri, snapshot_id=snapshot_id, why=str(error)
        )

    def _give_way(self) -> None:
        if self._attempt.fence.is_fenced or not self._attempt.latch.is_open:
            raise UnavailableError("the deployment is being ended, and that comes first")
