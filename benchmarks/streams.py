"""Real deployments for a benchmark: a home, its controller, and an end for every driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home, HomeConfig
from airflow_streamstate.controller.request.requests import deploy_request
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.launch.processes import read_stat
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Claimed, Event
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.terms.version import LauncherChoice
from benchmarks.results import BenchmarkError

JOBS = Path(__file__).resolve().parent / "jobs"
MASTER = "local[2]"
CONF = {"spark.ui.enabled": "false", "spark.log.level": "WARN"}
POLL_SECONDS = 0.05
EventT = TypeVar("EventT", bound=Event)


@dataclass(frozen=True)
class Drivers:
    """Where drivers run, and with what.

    Attributes:
        launcher: None for this machine.
        master: None for that of the launcher.
        conf: of Spark, in addition to that of every benchmark.
    """

    launcher: LauncherChoice | None = None
    master: str | None = MASTER
    conf: Mapping[str, str] = field(default_factory=dict)


HERE = Drivers()


class Streams:
    """The streams of one benchmark; as a context manager it ends what still runs."""

    def __init__(self, home: HomeConfig, drivers: Drivers = HERE) -> None:
        self.home = Home(home)
        self._drivers = drivers
        self.controller = Controller.local(self.home, clock=SYSTEM_CLOCK, requested_by="a benchmark")
        self._stream_ids: list[str] = []

    @classmethod
    def on_disk(cls, folder: Path, drivers: Drivers = HERE) -> Streams:
        """In this folder, which is made."""
        folder.mkdir(parents=True, exist_ok=True)
        return cls(HomeConfig(str(folder)), drivers)

    def __enter__(self) -> Streams:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream_id in self._stream_ids:
            self.end(stream_id)

    def deploy(
        self,
        stream_id: str,
        script: str,
        *arguments: str,
        conf: dict[str, str] | None = None,
        settings: AgentSettings | None = None,
        spark: str = "",
    ) -> Running:
        """Deploy a script of ``jobs/``, which starts with nothing."""
        self._stream_ids.append(stream_id)
        drivers = self._drivers
        view = self.controller.deploy(
            deploy_request(
                stream_id,
                JOBS / script,
                arguments,
                master=drivers.master,
                conf={**CONF, **drivers.conf, **(conf or {})},
                settings=settings,
                launcher=drivers.launcher,
                spark=spark,
            )
        )
        return Running(self, stream_id, view.deployment_id)

    def end(self, stream_id: str) -> None:
        """End the driver of a stream, if there is one that lives."""
        try:
            self.controller.kill(stream_id, grace_seconds=1.0)
        except StreamStateError as error:
            if self.controller.status(stream_id).state not in ("drained", "stopped", "finished", "failed"):
                raise BenchmarkError(f"the driver of {stream_id} could not be ended: {error}") from error


class Running:
    """One deployment."""

    def __init__(self, streams: Streams, stream_id: str, deployment_id: str) -> None:
        self.streams = streams
        self.controller = streams.controller
        self.stream_id = stream_id
        self.deployment_id = deployment_id

    def checkpoint(self, query_name: str) -> Checkpoint:
        """The log of a query."""
        folder = layout.checkpoint_folder(self.stream_id, self.deployment_id, query_name)
        return Checkpoint(self.streams.home.checkpoints, folder)

    def checkpoint_path(self, query_name: str) -> Path:
        """The folder that Spark writes."""
        return Path(self.streams.home.checkpoints.uri) / self.checkpoint(query_name).prefix

    def events(self) -> list[Event]:
        """Its events, oldest first."""
        found = self.controller.events(self.stream_id, self.deployment_id)
        return [entry.event for entry in found if entry.event is not None]

    def first(self, kind: type[EventT]) -> EventT:
        """Its first event of this kind."""
        found = next((event for event in self.events() if isinstance(event, kind)), None)
        if found is None:
            raise BenchmarkError(f"{self.stream_id} has no event {kind.__name__}")
        return found

    def python_pid(self) -> int | None:
        """The process that runs the script; None before it has claimed its attempt."""
        return next((event.pid for event in self.events() if isinstance(event, Claimed)), None)

    def session_id(self) -> int | None:
        """The session of its processes; None before it has claimed its attempt."""
        pid = self.python_pid()
        stat = None if pid is None else read_stat(pid)
        return None if stat is None else stat.session_id

    def wait_committed(self, query_name: str, batch_id: int, seconds: float) -> None:
        """Wait until a batch is committed."""
        checkpoint = self.checkpoint(query_name)
        self.wait(lambda: batch_id in checkpoint.commit_ids()[-3:], f"the commit of batch {batch_id}", seconds)

    def wait(self, is_there: Callable[[], bool], what: str, seconds: float) -> None:
        """Look until it is there.

        Raises:
            BenchmarkError: the driver ended before, or the time is up; with the end of its log.
        """
        until = SYSTEM_CLOCK.monotonic_seconds() + seconds
        next_look = 0.0
        while not is_there():
            now = SYSTEM_CLOCK.monotonic_seconds()
            if now > until:
                raise BenchmarkError(f"{what} was not there after {seconds:.0f} s\n{self.log_tail()}")
            if now > next_look:
                next_look = now + 1.0
                look = self.controller.look(WaitCondition("finished", self.stream_id, self.deployment_id))
                if look.outcome != "pending" and not is_there():
                    outcome = look.end
                    raise BenchmarkError(f"{self.stream_id} {outcome.state}: {outcome.reason}\n{self.log_tail()}")
            SYSTEM_CLOCK.sleep(POLL_SECONDS)

    def wait_exited(self, seconds: float) -> None:
        """Wait until its script has come to its end and its Python process is gone."""
        pid = self.python_pid()
        until = SYSTEM_CLOCK.monotonic_seconds() + seconds
        while pid is not None and (stat := read_stat(pid)) is not None and stat.is_alive:
            if SYSTEM_CLOCK.monotonic_seconds() > until:
                raise BenchmarkError(f"the driver of {self.stream_id} did not end in {seconds:.0f} s")
            SYSTEM_CLOCK.sleep(POLL_SECONDS)

    def log_tail(self) -> str:
        """The end of the driver's log."""
        return self.controller.logs(self.stream_id, self.deployment_id, tail_bytes=4_000)
