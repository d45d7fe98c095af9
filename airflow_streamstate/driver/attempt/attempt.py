"""One attempt, as every part of the deciding half sees it: its stores, its clock, its latch and its queries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_streamstate.checkpoint.entries import BarrierKind, BarrierMark
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.clock import Clock
from airflow_streamstate.control.objects import Stored
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.attempt.background import InBackground, in_daemon_thread
from airflow_streamstate.driver.attempt.callbacks import OF_THIS_PROCESS
from airflow_streamstate.driver.attempt.latch import Latch
from airflow_streamstate.driver.attempt.reporting import Reporter, Say, say_to_driver_log
from airflow_streamstate.driver.attempt.source_book import SourceBook
from airflow_streamstate.errors import DataError, FencedError, HomeAwayError, UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import TERMINAL_EVENTS, Fenced
from airflow_streamstate.protocol.ids import SnapshotKind, snapshot_id_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.redaction import secrets_of
from airflow_streamstate.protocol.register import StreamRegister
from airflow_streamstate.snapshot.placing import OpenPlace, SnapshotPlaces
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import LocalStore

if TYPE_CHECKING:
    from airflow_streamstate.driver.attempt.logical_query import LogicalQuery


class Attempt:
    """What the parts share.

    Args:
        control: the stream's control objects.
        checkpoints: the store that holds Spark's checkpoints and the data of snapshots.
        spec: the deployment.
        number: which attempt of it this is.
        clock: for everything that takes time.
        checkpoint_uri_of: what Spark calls a key of ``checkpoints``.
        say: writes one line for people.
        in_background: does something in a thread of its own.
        looked_up: secrets that the record only refers to, to be taken out of what is said.
        open_place: opens where snapshots lie elsewhere; None for places that need no options.
    """

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
        self.number = number
        self.clock = clock
        self.in_background = in_background
        self._uri_of = checkpoint_uri_of
        secrets = secrets_of(spec.conf, spec.arguments, spec.environment, looked_up)
        self.journal = control.journal(spec.deployment_id)
        self.reporter = Reporter(self.journal, number, clock, say, secrets)
        self.sources = SourceBook(self.reporter)
        self.callbacks = OF_THIS_PROCESS
        self.latch = Latch(clock)
        self.queries: dict[str, LogicalQuery] = {}
        self.told_guard = threading.Lock()
        self.first_failed: LogicalQuery | None = None
        self.is_failing = False
        self.ends_loops = False
        self.least_seed_batch_id = 0  # 1 where a drain is only assumed: its flush would be a batch of its own
        self.spark_version = ""
        self.only_drains = False
        self.script_has_ended = False
        self.script_has_failed = False
        self.flush_has_begun = False
        self.last_start_at_seconds: float | None = None
        self.is_fenced = False
        self._fence_guard = threading.Lock()
        self._register_version: str | None = None
        self._named_at: datetime | None = None
        self._start_manifest: SnapshotManifest | None = None
        self._start_is_gone = False
        self.start_is_damaged = False

    @property
    def stream_id(self) -> str:
        """The stream."""
        return self.spec.stream_id

    @property
    def deployment_id(self) -> str:
        """The deployment."""
        return self.spec.deployment_id

    def checkpoint_of(self, query_name: str) -> Checkpoint:
        """A query's own checkpoint in this deployment, there or not."""
        return Checkpoint(self.checkpoints, layout.checkpoint_folder(self.stream_id, self.deployment_id, query_name))

    def expect_checkpoints(self) -> None:
        """A query has started on its checkpoint: the folder of that store is never made anew, as for a disk that is not
        mounted."""
        if isinstance(self.checkpoints, LocalStore):
            self.checkpoints.expect_root()

    def uri_of(self, checkpoint: Checkpoint) -> str:
        """What Spark is given as ``checkpointLocation``."""
        return self.uri_of_key(checkpoint.prefix)

    def uri_of_key(self, key: str) -> str:
        """What Spark calls a place in the checkpoints store."""
        return self._uri_of(key)

    def mark(self, kind: BarrierKind, command_id: str) -> BarrierMark:
        """The mark of a barrier that this attempt puts now."""
        return BarrierMark(
            kind, self.stream_id, self.deployment_id, self.number, command_id, write_id=self.clock.new_uuid()
        )

    def snapshot_id(self, kind: SnapshotKind, number: int | None = None) -> str:
        """The id of a snapshot at the end of this attempt, or for ``live`` of the command with this number."""
        return snapshot_id_for(self.deployment_id, kind, self.number if number is None else number)

    def start_manifest(self) -> SnapshotManifest | None:
        """The snapshot that this deployment started from; None for a fresh one, and where it is gone or damaged.

        What stands on a checkpoint of its own does not need it (Law 7); for all else there is ``need_start_manifest``.
        """
        snapshot_id = self.spec.start.snapshot_id
        if snapshot_id is None or self._start_manifest is not None or self._start_is_gone:
            return self._start_manifest
        try:
            self._start_manifest = self.control.manifest(snapshot_id)
        except DataError as error:
            self.start_is_damaged = True
            self.reporter.say(f"the snapshot that this deployment started from cannot be read: {error}")
        self._start_is_gone = self._start_manifest is None
        return self._start_manifest

    def is_start_lost(self) -> bool:
        """Whether this deployment started from a snapshot that is gone or damaged."""
        return self.spec.start.snapshot_id is not None and self.start_manifest() is None

    def need_start_manifest(self) -> SnapshotManifest | None:
        """The same for what cannot be without it.

        Raises:
            SnapshotNotFoundError: it is gone. Nothing is built from nothing in its place (Law 5).
            DataError: it is damaged.
        """
        manifest, snapshot_id = self.start_manifest(), self.spec.start.snapshot_id
        return self.control.need_manifest(snapshot_id) if manifest is None and snapshot_id is not None else manifest

    @property
    def is_over(self) -> bool:
        """Whether the ending is complete and its terminal event is written."""
        return self.latch.is_released and any(
            isinstance(event, TERMINAL_EVENTS) and event.attempt == self.number for event in self.reporter.events
        )

    # being replaced

    def is_current(self, register: StreamRegister) -> bool:
        """Whether the register still names this attempt."""
        return (register.deployment_id, register.attempt) == (self.deployment_id, self.number)

    def note_named(self, register: StreamRegister) -> None:
        """Note that a register names this attempt: one that was written before that replaces it no more."""
        self._named_at = register.updated_at

    def check_current(self) -> None:
        """See that this attempt was not replaced; before every snapshot and every terminal event.

        A register counts in the home in which this attempt was claimed, and in one that was restored in its place and
        has gone on from it. The absence of a register replaces no attempt, nor does one that was written before it: it
        is a copy, put back.

        Raises:
            FencedError: it was; from now on nothing more is written (Law 4).
            UnavailableError: that cannot be told now.
        """
        if self.is_fenced:
            raise self.fenced_error()
        stored = self._register()
        presence = self.control.presence
        if stored is not None and self.is_current(stored.value):
            if stored.version != self._register_version:
                self._check_claim()
                self._register_version = stored.version
                self.note_named(stored.value)
            presence.note_seen()
            return
        if stored is None:
            self._refuse_lost_register()
        elif (stored.value.fencing_token, stored.value.attempt) <= (self.spec.fencing_token, self.number):
            presence.need()  # else another home, in which this stream was begun anew
            self._refuse_earlier(stored.value)
        self.fence(None if stored is None else stored.value)
        raise self.fenced_error()

    def _check_claim(self) -> None:
        """See that a register which names this attempt means this driver: a stream that was deployed anew, in this
        home or in another one at its place, has an attempt of the same name."""
        presence = self.control.presence
        if not presence.is_bound or presence.has_own_claim():
            return
        if presence.claim_there() is None or not presence.has_own_record():
            raise self._not_our_home()
        self.fence(None)
        raise self.fenced_error()

    def _refuse_lost_register(self) -> None:
        """Return only where the stream was deleted, and nothing of this attempt runs any more.

        Raises:
            UnavailableError: its home is not there, or lacks the register alone, or queries run.
        """
        presence = self.control.presence
        presence.need()
        is_left = self.control.home.head(layout.spec_key(self.stream_id, self.deployment_id)) is not None
        if is_left or any(query.is_active() for query in list(self.queries.values())):
            raise UnavailableError(
                "the register of the stream is gone",
                key=layout.register_key(self.stream_id),
                home=self.control.home.uri,
                next_step="`streamstate status` shows how it is brought back; the job runs on, and goes on with what"
                " it was told when it is there.",
            )

    def _refuse_earlier(self, register: StreamRegister) -> None:
        """Return only where a register that names what came before this attempt was written after one that names this
        attempt: of a stream that was deleted and begun anew.

        Raises:
            HomeAwayError: it is an earlier one, as in a copy of the home that was made before this attempt.
        """
        if self._named_at is not None and register.updated_at <= self._named_at:
            raise HomeAwayError(
                "the register of the stream was written before this attempt became current",
                home=self.control.home.uri,
                names=f"{register.deployment_id} attempt {register.attempt}",
                updated_at=register.updated_at,
                next_step="Bring the newer state of the home back; or end this driver by hand, then resume. It runs on"
                " without a sign of life.",
            )

    def _not_our_home(self) -> HomeAwayError:
        return HomeAwayError(
            "another home lies in the place of that in which this attempt was claimed",
            home=self.control.home.uri,
            next_step="Bring the home back, or end this driver by hand; it runs on, and writes nothing there.",
        )

    def _register(self) -> Stored[StreamRegister] | None:
        try:
            return self.control.register()
        except DataError as error:
            # It does not say who is current: as good as a store that does not answer, until somebody mends it (Law 7).
            raise UnavailableError(
                "the register of the stream cannot be read",
                reason=str(error.context.get("reason") or error.message),
                next_step="Mend stream.json; the job runs on, and goes on with what it was told when it is readable.",
            ) from error

    def fence(self, register: StreamRegister | None) -> None:
        """Note that this attempt was replaced: one last event under its own keys, then silence."""
        with self._fence_guard:
            if self.is_fenced:
                return
            self.is_fenced = True
        self.reporter.silenced = True
        current = ("", 0) if register is None else (register.deployment_id or "", register.attempt)
        self.reporter.say(f"this attempt has been replaced by {current[0]} attempt {current[1]}; it stops now")
        self.reporter.try_write(Fenced, current_deployment_id=current[0], current_attempt=current[1])

    def fenced_error(self) -> FencedError:
        """The error that ends whatever this attempt was doing."""
        return FencedError(
            "this attempt has been replaced and will stop without writing",
            deployment_id=self.deployment_id,
            attempt=self.number,
            next_step="`streamstate status` shows which deployment is current.",
        )
