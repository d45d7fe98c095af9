"""A stream whose drivers do what a test orders, for the controller's side alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from airflow_streamstate.allowed import Allowed, AllowedPlace
from airflow_streamstate.checkpoint.log import Checkpoint, drain_entry, format_offset_entry, stop_entry
from airflow_streamstate.control.objects import FeedWriter
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.observe.observer import Observer
from airflow_streamstate.controller.observe.views import DeploymentView
from airflow_streamstate.controller.request.requests import DeployRequest, deploy_request
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.launch.interface import (
    LOCAL,
    LaunchHandle,
    LaunchPlace,
    LaunchRequest,
    LaunchState,
    LaunchStatus,
    check_launch,
)
from airflow_streamstate.launch.launchers import Launchers
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL, OLDEST_PROTOCOL, to_json
from airflow_streamstate.protocol.commands import Command, DrainNotification
from airflow_streamstate.protocol.events import (
    Accepted,
    Claimed,
    Event,
    QueryFailed,
    QueryStart,
    QueryStarted,
    Started,
    Stopped,
)
from airflow_streamstate.protocol.ids import SnapshotKind, fencing_token_of, launch_key_for, snapshot_id_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.positions import Heartbeat, QueryBeat, SourceIdentity, WatermarkSpec
from airflow_streamstate.protocol.records import Claim, DeploymentSpec
from airflow_streamstate.snapshot.capture import QueryToCapture, capture
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.memory import MemoryStore
from support.checkpoints import barrier_mark, commit_batch
from support.fake_clock import FakeClock
from support.snapshots import run_stateful

STREAM = "orders"
ANY_SECRET = Allowed(
    secrets=("env://*", "secret://*"), spark_connections=("spark_default", "c"), stores=("/", "memory://", "s3://")
)
"""What tests allow whose subject is not what is allowed."""
AnyEvent = TypeVar("AnyEvent", bound=Event)


ANY_LAUNCHER = replace(
    ANY_SECRET,
    launchers=tuple(AllowedPlace(name) for name in ("local", "yarn", "ssh", "kubernetes", "emr-serverless", "emr-eks")),
)
"""What tests allow whose subject is not what is allowed."""


@dataclass
class StillLauncher:
    """A ``Launcher`` whose drivers are in the state that ``states`` gives; ``running`` once launched.

    Attributes:
        requests: what was launched, by launch key, in order.
        refusal: raised by the next ``launch``, before anything is started.
        refusals: raised by the next ones, each once.
        complaint: raised by every ``check``.
        calls: every call, as ``verb key``.
        reported: keys whose end is only reported; their state is ``unknown``.
        exit_code: of every driver that has exited.
        lost: raised by every ``find``.
    """

    clock: FakeClock
    requests: dict[str, LaunchRequest] = field(default_factory=dict)
    states: dict[str, LaunchState] = field(default_factory=dict)
    refusal: StreamStateError | None = None
    refusals: list[StreamStateError] = field(default_factory=list)
    complaint: StreamStateError | None = None
    log: str = ""
    calls: list[str] = field(default_factory=list)
    dies_when_killed: bool = True
    spark: str = "4.2.0"
    log_paths: dict[str, str] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    exit_code: int = 1
    lost: StreamStateError | None = None
    name = LOCAL
    default_master = "local[*]"
    limits: ClassVar[Mapping[str, str]] = {}
    reaching: ClassVar[Collection[str]] = ()

    def check(self, request: LaunchRequest) -> None:
        if self.complaint is not None:
            raise self.complaint

    def spark_version(self, request: LaunchRequest) -> str:
        return self.spark

    def launch(self, request: LaunchRequest) -> LaunchHandle:
        self.calls.append(f"launch {request.launch_key}")
        if self.refusals:
            raise self.refusals.pop(0)
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        self.requests.setdefault(request.launch_key, request)
        if self.states.get(request.launch_key, "pending") == "pending":
            self.states[request.launch_key] = "running"
        return self._handle(request.launch_key)

    def find(self, place: LaunchPlace) -> LaunchHandle | None:
        assert place.folder.endswith(place.launch_key)
        if self.lost is not None:
            raise self.lost
        return self._handle(place.launch_key) if place.launch_key in self.states else None

    def handle_at(self, place: LaunchPlace, recorded: LaunchHandle) -> LaunchHandle:
        check_launch(place, recorded)
        assert Path(place.folder).parts[-3:] == (place.launch_key.rpartition("-a")[0], "launches", place.launch_key)
        return self._handle(place.launch_key)

    def status(self, handle: LaunchHandle) -> LaunchStatus:
        state = self.states[handle.launch_key]
        return LaunchStatus(
            state,
            self.exit_code if state == "exited" else None,
            f"it is {state}",
            self.clock.now(),
            handle.launch_key in self.reported,
        )

    def kill(self, handle: LaunchHandle, grace_seconds: float) -> LaunchStatus:
        self.calls.append(f"kill {handle.launch_key}")
        if self.dies_when_killed and self.states[handle.launch_key] in ("running", "pending"):
            self.states[handle.launch_key] = "gone"
        return self.status(handle)

    def logs(self, handle: LaunchHandle, tail_bytes: int) -> str:
        return self.log[-tail_bytes:]

    def links(self, handle: LaunchHandle) -> Mapping[str, str]:
        return {}

    def forget(self, handle: LaunchHandle) -> None:
        self.calls.append(f"forget {handle.launch_key}")

    def _handle(self, launch_key: str) -> LaunchHandle:
        path = self.log_paths.get(launch_key)
        data = {} if path is None else {"log_path": path, "folder": str(Path(path).parent)}
        return LaunchHandle(self.name, launch_key, data)


@dataclass
class Stage:
    """One stream, one controller, and the driver's part for a test to play.

    Attributes:
        identities: what the sources of every query are, as drivers and snapshots report from now on.
        feed: where writers report what is new; None for nowhere.
        allowed: what objects of the home may name beyond it.
    """

    folder: Path
    store: Store = field(default_factory=MemoryStore)
    clock: FakeClock = field(default_factory=FakeClock)
    home_store: Store | None = None
    identities: tuple[SourceIdentity, ...] = ()
    feed: FeedWriter | None = None
    allowed: Allowed = ANY_LAUNCHER

    def __post_init__(self) -> None:
        self.launcher = StillLauncher(self.clock)
        self.launchers = Launchers.of(self.launcher, self.clock)
        self.home = Home.of(
            self.home_store or self.store, self.store, self.folder, self.clock, feed=self.feed, allowed=self.allowed
        )
        self.controller = Controller(self.home, self.launcher, self.clock, "tests")

    def another_controller(self, requested_by: str = "another") -> Controller:
        """Another controller over the same home and machine."""
        return Controller(self.home, self.launcher, self.clock, requested_by)

    @property
    def control(self) -> StreamControl:
        return self.home.control(STREAM)

    # the controller's side

    def script(self, text: str = "print('v1')\n", name: str = "job.py") -> Path:
        """A script of this content."""
        path = self.folder / name
        path.write_text(text)
        return path

    def request(self, text: str = "print('v1')\n", **changes: Any) -> DeployRequest:
        """A request to deploy a script of this content."""
        values: dict[str, Any] = {"stream_id": STREAM, "application": self.script(text), **changes}
        return deploy_request(**values)

    def deploy(self, text: str = "print('v1')\n", **changes: Any) -> DeploymentView:
        """Deploy it."""
        return self.controller.deploy(self.request(text, **changes))

    def seen(self, deployment_id: str | None = None) -> Observation:
        """What a controller sees."""
        return Observer(self.home, self.launchers, self.clock).observe(STREAM, deployment_id)

    def spec(self, deployment_id: str = "d-0001") -> DeploymentSpec:
        """What a deployment runs."""
        return self.control.spec(deployment_id)

    # the driver's side

    def say(self, kind: type[AnyEvent], deployment_id: str = "d-0001", attempt: int = 1, **fields: Any) -> AnyEvent:
        """Write an event as the attempt."""
        event = kind(
            stream_id=STREAM,
            deployment_id=deployment_id,
            attempt=attempt,
            at=self.clock.now(),
            write_id=self.clock.new_uuid(),
            **fields,
        )
        self.control.journal(deployment_id).append(event)
        return event

    def come_to_life(
        self,
        deployment_id: str = "d-0001",
        attempt: int = 1,
        queries: tuple[str, ...] = (),
        spark_version: str = "4.2.0",
    ) -> None:
        """Claim the attempt, start the session and these queries."""
        self.control.create_claim(
            Claim(
                stream_id=STREAM,
                deployment_id=deployment_id,
                attempt=attempt,
                launch_key=launch_key_for(deployment_id, attempt),
                host="here",
                pid=4711,
                oldest_protocol=OLDEST_PROTOCOL,
                newest_protocol=NEWEST_PROTOCOL,
                agent_version="0",
                write_id=self.clock.new_uuid(),
                claimed_at=self.clock.now(),
            )
        )
        self.say(Claimed, deployment_id, attempt, host="here", pid=4711, fencing_token=1)
        self.say(Started, deployment_id, attempt, spark_version=spark_version, application_id="local-1")
        for name in queries:
            self.start_query(name, deployment_id, attempt)

    def start_query(
        self,
        name: str = "counts",
        deployment_id: str = "d-0001",
        attempt: int = 1,
        batch_id: int | None = None,
        how: QueryStart = "fresh",
        planned_batch_id: int | None = None,
        trigger: str = "default",
    ) -> None:
        """Report that a query was started."""
        self.say(
            QueryStarted,
            deployment_id,
            attempt,
            query_name=name,
            query_id="id",
            query_run_id="run",
            how=how,
            batch_id=batch_id,
            planned_batch_id=planned_batch_id,
            repairs=(),
            sink="file:parquet",
            trigger=trigger,
            output_mode="append",
            sources=("FileStreamSource[/in]",),
            watermarks=(WatermarkSpec("at", 60_000),),
            identities=self.identities,
        )

    def query_failed(
        self, name: str = "counts", planned_batch_id: int | None = 7, deployment_id: str = "d-0001"
    ) -> None:
        """Report that a query has failed while the others run."""
        self.say(
            QueryFailed,
            deployment_id,
            query_name=name,
            query_id="id",
            query_run_id=self.clock.new_uuid(),
            batch_id=6,
            planned_batch_id=planned_batch_id,
            error="Unlucky: batch of bad luck",
            traceback="[STREAM_FAILED] …",
        )

    def beat(self, deployment_id: str = "d-0001", attempt: int = 1, **queries: QueryBeat) -> None:
        """Write a sign of life."""
        self.control.put_heartbeat(Heartbeat(STREAM, deployment_id, attempt, self.clock.now(), queries))

    def accept(self, command: Command, deployment_id: str = "d-0001", attempt: int = 1) -> None:
        """Report that a command is obeyed."""
        self.say(
            Accepted,
            deployment_id,
            attempt,
            command_id=command.command_id,
            command_number=1,
            command=to_json(command),
        )

    def checkpoint(self, name: str = "counts", deployment_id: str = "d-0001") -> Checkpoint:
        """A query's checkpoint, there or not."""
        return Checkpoint(self.store, layout.checkpoint_folder(STREAM, deployment_id, name))

    def run_batches(self, last: int, name: str = "counts", deployment_id: str = "d-0001") -> Checkpoint:
        """Batches up to this one, committed, with state."""
        return run_stateful(self.checkpoint(name, deployment_id), last)

    def put_barrier(self, kind: str, name: str = "counts", deployment_id: str = "d-0001") -> int:
        """Our entry on top of the log, as the driver puts it; its place."""
        checkpoint = self.checkpoint(name, deployment_id)
        position = checkpoint.position()
        base = checkpoint.read_offset(position.batch_id) if position.batch_id is not None else None
        mark = barrier_mark(kind, deployment_id=deployment_id)  # type: ignore[arg-type]
        assert base is not None
        entry = drain_entry(base, mark) if kind == "drain" else stop_entry(base, mark)
        checkpoint.store.put(checkpoint.offset_key(position.barrier_id), format_offset_entry(entry))
        return position.barrier_id

    def flush(self, name: str = "counts", deployment_id: str = "d-0001") -> int:
        """The flush of a drain, committed; its batch."""
        checkpoint = self.checkpoint(name, deployment_id)
        batch_id = self.put_barrier("drain", name, deployment_id)
        commit_batch(checkpoint, batch_id, watermark_ms=253402128000000)
        return batch_id

    def keep(
        self,
        kind: SnapshotKind = "stopped",
        deployment_id: str = "d-0001",
        attempt: int = 1,
        names: tuple[str, ...] = ("counts",),
        **facts: Any,
    ) -> SnapshotManifest:
        """The snapshot at the end of an attempt, taken by its agent."""
        facts = {"identities": self.identities, **facts}
        return capture(
            self.control,
            self.store,
            snapshot_id=snapshot_id_for(deployment_id, kind, attempt),
            snapshot_kind=kind,
            deployment_id=deployment_id,
            attempt=attempt,
            fencing_token=fencing_token_of(deployment_id),
            taken_by="agent",
            queries={name: QueryToCapture(self.checkpoint(name, deployment_id), **facts) for name in names},
            places=self.home.places,
            kept_at=self.spec(deployment_id).version.snapshots,
        )

    def end(self, deployment_id: str = "d-0001", attempt: int = 1, state: LaunchState = "exited") -> None:
        """The driver's process ends."""
        self.launcher.states[launch_key_for(deployment_id, attempt)] = state

    def stopped(self, last: int = 3, deployment_id: str = "d-0001", attempt: int = 1, **named: Any) -> Stopped:
        """A whole life of an attempt that was stopped after this batch; its last event."""
        self.come_to_life(deployment_id, attempt, ("counts",))
        self.run_batches(last, deployment_id=deployment_id)
        manifest = self.keep("stopped", deployment_id, attempt)
        positions = {name: query.position for name, query in manifest.queries.items()}
        event = self.say(Stopped, deployment_id, attempt, snapshot_id=manifest.snapshot_id, queries=positions, **named)
        self.end(deployment_id, attempt)
        return event

    def drain_of(self, deployment_id: str = "d-0001") -> DrainNotification:
        """The drain notification that is there."""
        (slot,) = self.control.journal(deployment_id).commands()
        assert isinstance(slot.command, DrainNotification)
        return slot.command
