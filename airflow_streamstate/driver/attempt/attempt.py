"""The state of one attempt that the driver's parts share: stores, clock, latch, queries."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from airflow_streamstate.checkpoint.log import BarrierKind, BarrierMark, Checkpoint
from airflow_streamstate.clock import Clock
from airflow_streamstate.control.command_status import NEVER_SEEN, CommandStatus, fold
from airflow_streamstate.control.journal import CommandSlot
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.attempt.callbacks import OF_THIS_PROCESS
from airflow_streamstate.driver.attempt.latch import Fence, Latch
from airflow_streamstate.driver.attempt.logical_query import AttemptQueries
from airflow_streamstate.driver.attempt.query_sources import SourceBook
from airflow_streamstate.driver.attempt.read_recorder import OF_THIS_SCRIPT
from airflow_streamstate.driver.attempt.reports import Reporter, Say, say_to_driver_log
from airflow_streamstate.errors import DataError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import TERMINAL_EVENTS
from airflow_streamstate.protocol.ids import SnapshotKind, snapshot_id_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import AttemptMode, DeploymentSpec
from airflow_streamstate.protocol.redaction import secrets_of
from airflow_streamstate.snapshot.location import OpenPlace, SnapshotPlaces
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import LocalStore

# Work in background threads.

LOWEST_PRIORITY = 19


class InBackground(Protocol):
    """Runs work in the background and returns at once."""

    def __call__(self, work: Callable[[], None], *, gives_way: bool = True) -> None: ...


def in_daemon_thread(work: Callable[[], None], *, gives_way: bool = True) -> None:
    """Run ``work`` in a daemon thread, at the lowest priority if it ``gives_way``.

    Work that another thread waits for must not give way: under full load such a thread hardly runs, and may hold the
    interpreter's lock in the meantime.
    """

    def run() -> None:
        if gives_way:
            with suppress(OSError):
                # Linux gives each thread a priority, under its native id.
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        work()

    threading.Thread(target=run, name="streamstate-background", daemon=True).start()


# The snapshot that a deployment starts from, as its driver sees it.


class StartSnapshot:
    """Reads the manifest once, at first use; ``snapshot_id`` is None for a fresh deployment."""

    def __init__(self, control: StreamControl, snapshot_id: str | None, reporter: Reporter) -> None:
        self._control = control
        self._snapshot_id = snapshot_id
        self._reporter = reporter
        self._manifest: SnapshotManifest | None = None
        self._is_gone = False
        self.is_damaged = False

    def manifest(self) -> SnapshotManifest | None:
        """The manifest; None for a fresh deployment, and where the snapshot is gone or damaged.

        A query with its own checkpoint does not need it (Law 7); everything else calls ``need``.
        """
        if self._snapshot_id is None or self._manifest is not None or self._is_gone:
            return self._manifest
        try:
            self._manifest = self._control.manifest(self._snapshot_id)
        except DataError as error:
            self.is_damaged = True
            self._reporter.say(f"the snapshot that this deployment started from cannot be read: {error}")
        self._is_gone = self._manifest is None
        return self._manifest

    def is_lost(self) -> bool:
        """Whether the start snapshot is gone or damaged."""
        return self._snapshot_id is not None and self.manifest() is None

    def need(self) -> SnapshotManifest | None:
        """The manifest; None for a fresh deployment.

        Raises:
            SnapshotNotFoundError: it is gone, and the driver builds nothing in its place (Law 5).
            DataError: it is damaged.
        """
        manifest = self.manifest()
        if manifest is None and self._snapshot_id is not None:
            return self._control.need_manifest(self._snapshot_id)
        return manifest


@dataclass
class ScriptState:
    """The end of the user's script.

    Attributes:
        has_ended: the script has ended, or the driver ends it because it ran on for too long.
        has_failed: it ended with an error or a status other than 0.
    """

    has_ended: bool = False
    has_failed: bool = False

    def note_ended(self, *, has_failed: bool) -> None:
        self.has_ended, self.has_failed = True, has_failed


class Attempt:
    """One attempt of a deployment, as the parts of its driver see it.

    Args:
        checkpoints: the store that holds Spark's checkpoints and the data of snapshots.
        number: the number of this attempt.
        checkpoint_uri_of: maps a key of ``checkpoints`` to the URI that Spark is given.
        say: writes one line to the driver's log.
        in_background: runs work in its own thread.
        looked_up: secrets that the spec only refers to; they are redacted from every text.
        open_place: opens the place of snapshots that are outside ``checkpoints``; None for places without options.

    Attributes:
        spark_version: the version of the running Spark; "" before there is a session.
        only_drains: this attempt was launched only to drain the deployment.
        oldest_stopped: it obeys the stops of this attempt and of later ones.
        accepts_hazards: the user has accepted that this attempt continues the state by a hazardous plan.
        ends_loops: end a script that waits in a loop for queries that have ended, as in a rehearsal.
        least_seed_batch_id: 1 where the drain is only assumed, so that its flush would take a separate batch id.
    """

    ends_loops = False
    least_seed_batch_id = 0
    _reporter_class = Reporter

    def __init__(
        self,
        control: StreamControl,
        checkpoints: Store,
        spec: DeploymentSpec,
        number: int,
        clock: Clock,
        checkpoint_uri_of: Callable[[str], str],
        say: Say = say_to_driver_log,
        in_background: InBackground = in_daemon_thread,
        looked_up: Sequence[str] = (),
        open_place: OpenPlace | None = None,
    ) -> None:
        self.control = control
        self.checkpoints = checkpoints
        self.places = SnapshotPlaces(checkpoints, open_place, clock)
        self.spec = spec
        self.stream_id, self.deployment_id = spec.stream_id, spec.deployment_id
        self.number = number
        self.clock = clock
        self.spark_version = ""
        self.only_drains = False
        self.oldest_stopped = number
        self.accepts_hazards = False
        self.in_background = in_background
        self._uri_of = checkpoint_uri_of
        secrets = secrets_of(spec.version.conf, spec.version.arguments, spec.version.environment, looked_up)
        self.journal = control.journal(spec.deployment_id)
        self.reporter = self._reporter_class(self.journal, number, clock, say, secrets)
        self.sources = SourceBook(self.reporter)
        self.callbacks = OF_THIS_PROCESS
        self.opened = OF_THIS_SCRIPT
        self.latch = Latch(clock)
        self.queries = AttemptQueries()
        self.script = ScriptState()
        self.start = StartSnapshot(control, spec.start.snapshot_id, self.reporter)
        self.fence = Fence(
            control, spec, number, self.reporter, lambda: any(query.is_active() for query in self.queries.all())
        )

    def note_spark(self, version: str) -> None:
        self.spark_version = version

    def note_mode(self, mode: AttemptMode) -> None:
        """Note the mode that the register gives this attempt."""
        self.only_drains = mode == "drain"

    def note_accepted(self, accepts_hazards: bool) -> None:
        """Note what the user has accepted of this attempt, by the register."""
        self.accepts_hazards = accepts_hazards

    def note_oldest_stopped(self, number: int) -> None:
        """Note the oldest attempt whose stops this one obeys, by the register."""
        self.oldest_stopped = number

    def commands(self, slots: Iterable[CommandSlot] = ()) -> dict[str, CommandStatus]:
        """The status of each command of the deployment that an event or one of these objects names."""
        return fold(slots, self.reporter.events)

    def command_status(self, command_id: str) -> CommandStatus:
        """The status of one command according to the events."""
        return self.commands().get(command_id, NEVER_SEEN)

    def checkpoint_of(self, query_name: str) -> Checkpoint:
        """The checkpoint of a query in this deployment; it may not exist."""
        return Checkpoint(self.checkpoints, layout.checkpoint_folder(self.stream_id, self.deployment_id, query_name))

    def expect_checkpoints(self) -> None:
        """A query has started: from now on a missing root folder means a disk that is not mounted, and is never
        recreated."""
        if isinstance(self.checkpoints, LocalStore):
            self.checkpoints.expect_root()

    def uri_of(self, checkpoint: Checkpoint) -> str:
        """The ``checkpointLocation`` for Spark."""
        return self.uri_of_key(checkpoint.prefix)

    def uri_of_key(self, key: str) -> str:
        return self._uri_of(key)

    def mark(self, kind: BarrierKind, command_id: str) -> BarrierMark:
        """A new mark for a barrier of this attempt."""
        return BarrierMark(
            kind, self.stream_id, self.deployment_id, self.number, command_id, write_id=self.clock.new_uuid()
        )

    def snapshot_id(self, kind: SnapshotKind, number: int | None = None) -> str:
        """The id of the snapshot at the end of this attempt, or of the ``live`` snapshot for command ``number``."""
        return snapshot_id_for(self.deployment_id, kind, self.number if number is None else number)

    @property
    def is_over(self) -> bool:
        """Whether the shutdown is complete and its terminal event is written."""
        return self.latch.is_released and any(
            isinstance(event, TERMINAL_EVENTS) and event.attempt == self.number for event in self.reporter.events
        )
