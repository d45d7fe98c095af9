"""A driver in one thread: real attempt and agent, a function as the script, simulated queries."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from datetime import timedelta
from typing import Any, TypeVar

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.clock import Clock
from airflow_streamstate.control.presence import HomePresence
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.agent.agent import Agent, AttemptLife
from airflow_streamstate.driver.attempt.callbacks import Callbacks
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.shutdown.script_end import FENCED_STATUS, ScriptFailure, refusal_in
from airflow_streamstate.driver.start.claim import need_spec
from airflow_streamstate.errors import FencedError, StartRefusedError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL
from airflow_streamstate.protocol.commands import (
    CancelRequest,
    Command,
    DrainNotification,
    SnapshotRequest,
    StopRequest,
)
from airflow_streamstate.protocol.events import Event
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.policies import Restarts
from airflow_streamstate.protocol.records import DeploymentSpec, StartPlan, StreamRegister
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.terms.version import Artifact, OnQueryFailure, Version
from airflow_streamstate.snapshot.capture import QueryToCapture, capture
from airflow_streamstate.snapshot.location import OpenPlace
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.memory import MemoryStore
from support.acting_clock import ActingClock
from support.faulty_store import SimulatedCrash
from support.simulated_query import SimulatedPlan, SimulatedStartable
from support.simulated_sources import SimulatedSink, SimulatedSource, expected_counts

STREAM = "flights"
AnyEvent = TypeVar("AnyEvent", bound=Event)
Script = Callable[["SimulatedDriver"], None]


class ProcessEndedError(BaseException):
    """The process of a simulated driver was ended from within, with a status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class DriverKilledError(BaseException):
    """The process of a simulated driver was killed."""


class QueryFailedError(Exception):
    """What ``awaitTermination`` raises in a simulated script."""


@dataclass
class SimulatedStream:
    """One stream in a home: what a controller would have written before a driver is launched.

    Attributes:
        home, checkpoints: the stores; one and the same by default.
        spark_version: of the Spark that drivers find.
        launch_folder: of every driver; "" without one.
    """

    clock: ActingClock = field(default_factory=ActingClock)
    checkpoints: Store = field(default_factory=MemoryStore)
    home: Store | None = None
    said: list[str] = field(default_factory=list)
    spark_version: str = "4.2.0"
    launch_folder: str = ""

    @property
    def control(self) -> StreamControl:
        return StreamControl(self.home or self.checkpoints, STREAM, self.clock)

    def deploy(
        self,
        number: int = 1,
        start: StartPlan | None = None,
        settings: AgentSettings | None = None,
        conf: dict[str, str] | None = None,
        snapshots: str = "",
        request_id: str = "",
        on_query_failure: OnQueryFailure = "script",
    ) -> DeploymentSpec:
        """Record deployment ``d-000<number>`` with its first attempt, as the current one."""
        spec = DeploymentSpec(
            stream_id=STREAM,
            deployment_id=f"d-{number:04d}",
            fencing_token=number,
            version=Version(
                application=Artifact("job.py", "0" * 64),
                master="local[2]",
                conf=conf or {},
                settings=settings or AgentSettings(),
                snapshots=snapshots,
                on_query_failure=on_query_failure,
            ),
            start=start or StartPlan("fresh"),
            checkpoints_uri=self.checkpoints.uri,
            request_id=request_id or f"r-{number}",
            requested_by="tests",
            reason="",
            created_at=self.clock.now(),
        )
        HomePresence(self.home or self.checkpoints, self.clock).begin("tests")
        self.control.create_spec(spec)
        self.point_register(spec.deployment_id, 1, fencing_token=number)
        return spec

    def point_register(
        self,
        deployment_id: str,
        attempt: int,
        *,
        fencing_token: int | None = None,
        attempt_mode: str = "run",
        is_restart: bool = False,
    ) -> None:
        """Make this attempt the current one; ``is_restart``: a watcher has started it."""
        stored = self.control.register()
        token = fencing_token if fencing_token is not None else stored.value.fencing_token if stored else 1
        register = StreamRegister(
            stream_id=STREAM,
            fencing_token=token,
            deployment_id=deployment_id,
            attempt=attempt,
            attempt_mode="drain" if attempt_mode == "drain" else "run",
            intent=None,
            write_id=self.clock.new_uuid(),
            updated_at=self.clock.now(),
            updated_by="tests",
            restarts=Restarts(deployment_id, attempt, True, self.clock.now(), "here") if is_restart else None,
        )
        if stored is None:
            self.control.create_register(register)
        else:
            self.control.update_register(lambda _: register, by=register.updated_by)

    def events(self, deployment_id: str = "d-0001") -> list[Event]:
        """Every event of a deployment, in order."""
        return [entry.event for entry in self.control.journal(deployment_id).events() if entry.event is not None]

    def events_of(self, kind: type[AnyEvent], deployment_id: str = "d-0001") -> list[AnyEvent]:
        """Those of one kind."""
        return [event for event in self.events(deployment_id) if isinstance(event, kind)]

    def kinds(self, deployment_id: str = "d-0001") -> list[str]:
        """The kinds of all events, in order, without notes."""
        return [event.kind for event in self.events(deployment_id) if event.kind != "Noted"]

    def commands(self, deployment_id: str = "d-0001") -> list[str]:
        """The keys of the commands that are there."""
        return [slot.key for slot in self.control.journal(deployment_id).commands()]

    def order_at(
        self, seconds: float, kind: type[Command], deployment_id: str = "d-0001", *, attempt: int = 1, **terms: object
    ) -> None:
        """Write a command this many seconds from now; ``terms``: more fields of it."""
        self.clock.after(seconds, lambda: self.order(kind, deployment_id, attempt=attempt, **terms))

    def run(self, script: Script, deployment_id: str = "d-0001", attempt: int = 1) -> int | None:
        """Run one driver from its first line to its end; its exit status, None where it was killed."""
        return SimulatedDriver(self, deployment_id, attempt).run(script)

    def take_over(self, **known: Any) -> SnapshotManifest:
        """What a controller takes of the first life, which was cut; ``known`` of its query, as ``QueryToCapture``."""
        checkpoint = Checkpoint(self.checkpoints, layout.checkpoint_folder(STREAM, "d-0001", "counts"))
        return capture(
            self.control,
            self.checkpoints,
            snapshot_id="d-0001-stopped-000001",
            snapshot_kind="stopped",
            deployment_id="d-0001",
            attempt=1,
            fencing_token=1,
            taken_by="controller",
            queries={"counts": QueryToCapture(checkpoint, **known)},
        )

    def next_attempt(self, deployment_id: str = "d-0001", *, attempt_mode: str = "run") -> int:
        """Make the next attempt the current one; its number."""
        stored = self.control.need_register()
        number = stored.value.attempt + 1
        self.point_register(deployment_id, number, attempt_mode=attempt_mode)
        return number

    def order(
        self,
        kind: type[Command],
        deployment_id: str = "d-0001",
        *,
        attempt: int = 1,
        within_seconds: float | None = None,
        batches_within_seconds: float | None = None,
        **terms: object,
    ) -> Command:
        """Write a command; ``terms``: more fields of it."""
        command = make_command(kind, self.clock, deployment_id, attempt=attempt, within_seconds=within_seconds)
        if batches_within_seconds is not None:
            terms["batches_by_at"] = self.clock.now() + timedelta(seconds=batches_within_seconds)
        command = replace(command, **terms)  # type: ignore[arg-type]
        self.control.journal(deployment_id).write_command(command, NEWEST_PROTOCOL)
        return command


def make_command(
    kind: type[Command], clock: Clock, deployment_id: str, *, attempt: int = 1, within_seconds: float | None = None
) -> Command:
    """A command, not written yet."""
    deadline_at = None if within_seconds is None else clock.now() + timedelta(seconds=within_seconds)
    notification = DrainNotification(
        command_id=clock.new_uuid(),
        stream_id=STREAM,
        deployment_id=deployment_id,
        requested_at=clock.now(),
        deadline_at=deadline_at,
        requested_by="tests",
        reason="",
        rehearse=False,
    )
    if kind is DrainNotification:
        return notification
    if kind is CancelRequest:
        return CancelRequest(**{each.name: getattr(notification, each.name) for each in dataclass_fields(Command)})
    fields = {each.name: getattr(notification, each.name) for each in dataclass_fields(Command)}
    if kind is StopRequest:
        return StopRequest(**fields, attempt=attempt)
    return SnapshotRequest(**fields, attempt=attempt, request_id=f"r-{notification.command_id}", ttl_seconds=86_400.0)


class SimulatedDriver:
    """One driver process.

    Attributes:
        status: its exit status; None while it runs and where it was killed.
        callbacks: what its script registered for itself.
        queries: what its script started, by the order of its starts.
    """

    def __init__(
        self,
        stream: SimulatedStream,
        deployment_id: str = "d-0001",
        attempt: int = 1,
        *,
        checkpoints: Store | None = None,
        control: StreamControl | None = None,
        open_place: OpenPlace | None = None,
    ) -> None:
        self.stream = stream
        self.clock = stream.clock
        self.checkpoints = checkpoints or stream.checkpoints
        own = control or stream.control
        spec = need_spec(stream.control, deployment_id, self.clock)
        self.attempt_life = AttemptLife(
            own,
            self.checkpoints,
            spec,
            attempt,
            self.clock,
            lambda key: key,
            stream.said.append,
            do_at_once,
            open_place=open_place,
        )
        self.callbacks = self.attempt_life.attempt.callbacks = Callbacks()
        self.agent = Agent(self.attempt_life, self._end_process, launch_folder=stream.launch_folder)
        self.status: int | None = None
        self.queries: list[LogicalQuery] = []
        self.startables: list[SimulatedStartable] = []
        self._removals: list[Callable[[], None]] = []
        self._settings = spec.version.settings

    def run(self, script: Script) -> int | None:
        """Be the process from its first line to its end; its exit status, None where it was killed."""
        try:
            self.status = self._run(script)
        except ProcessEndedError as ended:
            self.status = ended.status
        except (DriverKilledError, SimulatedCrash):
            self.status = None
        self.vanish()
        return self.status

    def _run(self, script: Script) -> int:
        attempt = self.attempt_life.attempt
        try:
            self.attempt_life.claim(f"{attempt.deployment_id}-a{attempt.number:04d}", "host", 4711)
        except FencedError:
            return FENCED_STATUS
        self._removals.append(self.clock.every(self._settings.command_poll_seconds, self.agent.poll_commands_once))
        self._removals.append(self.clock.every(self._settings.heartbeat_seconds, self.agent.beat_once))
        self.attempt_life.session_started(self.stream.spark_version, "local-1")
        failure: ScriptFailure | None = None
        try:
            script(self)
        except Exception as error:
            failure = ScriptFailure(f"{type(error).__name__}: {error}", traceback.format_exc(), 1)
            if isinstance(error, StartRefusedError):
                failure = refusal_in(error)
        return self.attempt_life.script_ended(failure)

    def start(
        self, plan: SimulatedPlan, name: str | None = "counts", location: str | None = None, **changes: object
    ) -> LogicalQuery:
        """The script's ``start()``."""
        used = replace(plan, **changes) if changes else plan  # type: ignore[arg-type]
        return self.start_with(self.startable_of(used), name, location)

    def startable_of(self, plan: SimulatedPlan) -> SimulatedStartable:
        """The script's writer, before its ``start()``."""
        startable = SimulatedStartable(self.stream.checkpoints, self.clock, plan)
        self.startables.append(startable)
        return startable

    def start_with(
        self, startable: SimulatedStartable, name: str | None = "counts", location: str | None = None
    ) -> LogicalQuery:
        """The ``start()`` of this writer."""
        logical = self.attempt_life.start_query(name, location, startable)
        self.queries.append(logical)
        return logical

    def await_all(self) -> None:
        """The script's ``awaitTermination`` of all its queries; raises where one failed."""
        for query in list(self.queries):
            query.await_termination()
            failure = query.failure_to_raise()
            if failure is not None:
                raise QueryFailedError(failure)

    def kill(self) -> None:
        """End the process at once, from whatever runs just now."""
        raise DriverKilledError

    def vanish(self) -> None:
        """Nothing of it acts any more."""
        self.agent.stop()
        for remove in self._removals:
            remove()
        for startable in self.startables:
            for run in startable.runs:
                run.die()

    def _end_process(self, status: int) -> None:
        raise ProcessEndedError(status)


def do_at_once(work: Callable[[], None], *, gives_way: bool = True) -> None:
    """There is one thread in a simulation."""
    work()


def never_do(work: Callable[[], None], *, gives_way: bool = True) -> None:
    """A thread that comes to nothing."""


def make_plan(rows: int = 80, *, step_ms: int = 250, **changes: Any) -> SimulatedPlan:
    """A query that counts rows per second, over an input that has this many rows already."""
    source = SimulatedSource()
    source.add(*range(0, rows * step_ms, step_ms))
    return replace(SimulatedPlan([source], SimulatedSink()), **changes)


def waiting_script(*plans: SimulatedPlan, names: tuple[str, ...] = ("counts",)) -> Script:
    """A script that starts its queries and waits for all of them."""

    def script(driver: SimulatedDriver) -> None:
        for name, plan in zip(names, plans, strict=True):
            driver.start(plan, name)
        driver.await_all()

    return script


def ended_by(command: type[Command], plan: SimulatedPlan) -> SimulatedDriver:
    """A driver whose one query, ``counts``, read all its input, was ordered this, and ended by it."""
    stream = SimulatedStream()
    stream.deploy()
    stream.order_at(10.0, command)
    driver = SimulatedDriver(stream)
    assert driver.run(waiting_script(plan)) == 0
    return driver


def assert_nothing_lost(plan: SimulatedPlan) -> None:
    """Every input row was counted, and none twice (Laws 9, 12 and 14)."""
    assert plan.window_ms is not None
    rows = [row for source in plan.sources for row in source.rows]
    assert plan.sink.counts() == expected_counts(rows, plan.window_ms)
