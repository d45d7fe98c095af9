"""One attempt, as every part of the deciding half sees it: its stores, its clock, its latch and its queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from airflow_streamstate.checkpoint.entries import BarrierKind, BarrierMark
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.clock import Clock
from airflow_streamstate.control.command_status import NEVER_SEEN, CommandStatus, fold
from airflow_streamstate.control.journal import CommandSlot
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.attempt.background import InBackground, in_daemon_thread
from airflow_streamstate.driver.attempt.callbacks import OF_THIS_PROCESS
from airflow_streamstate.driver.attempt.fence import Fence
from airflow_streamstate.driver.attempt.latch import Latch
from airflow_streamstate.driver.attempt.queries import AttemptQueries
from airflow_streamstate.driver.attempt.reporting import Reporter, Say, say_to_driver_log
from airflow_streamstate.driver.attempt.source_book import SourceBook
from airflow_streamstate.driver.attempt.start_snapshot import StartSnapshot
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import TERMINAL_EVENTS
from airflow_streamstate.protocol.ids import SnapshotKind, snapshot_id_for
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.redaction import secrets_of
from airflow_streamstate.protocol.register import AttemptMode
from airflow_streamstate.snapshot.placing import OpenPlace, SnapshotPlaces
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import LocalStore


@dataclass
class ScriptState:
    """What is known of the script's own end.

    Attributes:
        has_ended: whether it is over, or is ended because it ran on for too long.
        has_failed: whether it ended with an error or a status other than 0.
    """

    has_ended: bool = False
    has_failed: bool = False

    def note_ended(self, *, has_failed: bool) -> None:
        """Note that the script is over."""
        self.has_ended, self.has_failed = True, has_failed


class Attempt:
    """What the parts share. Each thing that changes has one owner here, which alone changes it.

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

    Attributes:
        latch: whether queries may read input, and what closed it.
        queries: those that the script has started.
        script: how far the script is.
        start: the snapshot that the deployment starts from.
        fence: whether the register still names this attempt.
        ends_loops: whether a script that waits again and again for queries that are over is ended.
        least_seed_batch_id: 1 where a drain is only assumed: its flush would be a batch of its own.
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
        self.number = number
        self.clock = clock
        self.in_background = in_background
        self._uri_of = checkpoint_uri_of
        secrets = secrets_of(spec.conf, spec.arguments, spec.environment, looked_up)
        self.journal = control.journal(spec.deployment_id)
        self.reporter = self._reporter_class(self.journal, number, clock, say, secrets)
        self.sources = SourceBook(self.reporter)
        self.callbacks = OF_THIS_PROCESS
        self.latch = Latch(clock)
        self.queries = AttemptQueries()
        self.script = ScriptState()
        self.start = StartSnapshot(control, spec.start.snapshot_id, self.reporter)
        self.fence = Fence(control, spec, number, self.reporter, self._has_active_queries)
        self._spark_version = ""
        self._only_drains = False

    @property
    def stream_id(self) -> str:
        """The stream."""
        return self.spec.stream_id

    @property
    def deployment_id(self) -> str:
        """The deployment."""
        return self.spec.deployment_id

    @property
    def spark_version(self) -> str:
        """The version of the Spark that runs here; "" before there is a session."""
        return self._spark_version

    @property
    def only_drains(self) -> bool:
        """Whether this attempt was launched to drain the deployment, and for nothing else."""
        return self._only_drains

    def note_spark(self, version: str) -> None:
        """Note the version of the Spark whose session has started."""
        self._spark_version = version

    def note_mode(self, mode: AttemptMode) -> None:
        """Note what the register says that this attempt is for."""
        self._only_drains = mode == "drain"

    def commands(self, slots: Iterable[CommandSlot] = ()) -> dict[str, CommandStatus]:
        """The status of each command of the deployment that an event names, or that lies in one of these objects."""
        return fold(slots, self.reporter.events)

    def command_status(self, command_id: str) -> CommandStatus:
        """The status of one command, as far as events tell."""
        return self.commands().get(command_id, NEVER_SEEN)

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

    @property
    def is_over(self) -> bool:
        """Whether the ending is complete and its terminal event is written."""
        return self.latch.is_released and any(
            isinstance(event, TERMINAL_EVENTS) and event.attempt == self.number for event in self.reporter.events
        )

    def _has_active_queries(self) -> bool:
        return any(query.is_active() for query in self.queries.all())
