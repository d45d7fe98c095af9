"""Snapshots that the agent takes every ``snapshot_every_seconds``."""

from __future__ import annotations

from collections.abc import Callable

from airflow_streamstate.driver.agent.live_snapshots import report_ready
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.sealing import seal_now
from airflow_streamstate.driver.attempt.snapshotting import positions_in, queries_to_capture, take_snapshot
from airflow_streamstate.errors import FencedError, OutcomeUnknownError, StreamStateError, UnavailableError
from airflow_streamstate.protocol.events import Drained, Finished, SnapshotReady, Stopped
from airflow_streamstate.protocol.ids import periodic_snapshot_id_for

Kept = SnapshotReady | Stopped | Finished | Drained


class PeriodicSnapshots:
    """Takes a snapshot when the newest one is old enough, and a batch was committed since.

    The thread that obeys commands calls it, so that two snapshots are never taken at once.
    """

    def __init__(self, attempt: Attempt, give_way: Callable[[], None]) -> None:
        self._attempt = attempt
        self._give_way = give_way
        self._every_seconds = attempt.spec.settings.snapshot_every_seconds
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
            self._wait(min(every, attempt.spec.settings.heartbeat_seconds))
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
