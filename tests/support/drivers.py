"""Deployments without a controller: home, spec, register and commands by hand, drivers by the real launcher.

What runs in such a driver is the real runtime on real Spark, from the zip that travels; nothing is installed there.
"""

from __future__ import annotations

import json
import os
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.presence import HomePresence
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.launch.interface import LaunchHandle, LaunchRequest
from airflow_streamstate.launch.local import LocalLauncher
from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL
from airflow_streamstate.protocol.commands import Command, DrainNotification, SnapshotRequest, StopRequest
from airflow_streamstate.protocol.events import Event
from airflow_streamstate.protocol.layout import checkpoint_folder
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import DeploymentSpec, StartPlan, StreamRegister
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.terms.version import Artifact, Version
from airflow_streamstate.store.local import LocalStore
from support import quick_jvm
from support.file_sink import rows_in
from support.sparks import Spark

STREAM = "orders"
NO_SCRIPT = Artifact(name="job.py", sha256="0" * 64)
CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "600m",
    "spark.driver.extraJavaOptions": quick_jvm.OPTIONS,
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.log.level": "ERROR",
}
AnyEvent = TypeVar("AnyEvent", bound=Event)

WINDOWED_COUNTS = """
import sys
from pyspark.sql import SparkSession, functions as F

base = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("t timestamp, k string, v int").option("maxFilesPerTrigger", 1).json(base + "/in")
windows = rows.withWatermark("t", "10 seconds").groupBy(F.window("t", "10 seconds"), "k")
counts = windows.agg(F.count("*").alias("n"), F.sum("v").alias("s")).select("window.start", "k", "n", "s")
"""
"""A windowed aggregation over JSON files: the head of many scripts."""


class Driver:
    """One attempt that was launched."""

    def __init__(self, launcher: LocalLauncher, handle: LaunchHandle, log_path: Path) -> None:
        self.launcher = launcher
        self.handle = handle
        self.log_path = log_path

    @property
    def log(self) -> str:
        """Everything that it printed."""
        return self.log_path.read_text() if self.log_path.exists() else ""

    def exit_status(self, seconds: float = 240.0) -> int | None:
        """Its exit status, once it has ended; None where it was killed."""
        wait_until(
            lambda: self.launcher.status(self.handle).has_ended, lambda: f"the end of the driver:\n{self.log}", seconds
        )
        return self.launcher.status(self.handle).exit_code

    def kill(self) -> None:
        """Kill -9, everything."""
        self.launcher.kill(self.handle, grace_seconds=0)


SNAPSHOT_TTL_SECONDS = 300.0


class Deployments:
    """One stream in its own home; use as a context manager, which ends every driver.

    Args:
        base: an empty folder. ``in`` below it is the input, ``out`` the usual output.
        attaches: its scripts are submitted themselves, and attach.
        spark: the Spark of its drivers, where that is not the one of the tests.
    """

    def __init__(self, base: Path, *, attaches: bool = False, spark: Spark | None = None) -> None:
        self.base = base
        self._attaches = attaches
        self._spark = spark
        self.home = LocalStore(base / "home")
        self.control = StreamControl(self.home, STREAM, SYSTEM_CLOCK)
        self._drivers: list[Driver] = []
        self._fed = 0
        (base / "in").mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Deployments:
        return self

    def __exit__(self, *_: object) -> None:
        for driver in self._drivers:
            driver.kill()

    # input and output

    def count_fed(self, files: int) -> None:
        """``files`` input files are there already: the next one is named after them."""
        self._fed = files

    def feed(self, *rows: Mapping[str, object]) -> None:
        """One more input file, whole at once, younger than those before it."""
        self._fed += 1
        hidden = self.base / "in" / f".{self._fed:05d}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(hidden, (1_700_000_000 + self._fed,) * 2)
        hidden.rename(self.base / "in" / f"{self._fed:05d}.json")

    def output(self, name: str = "out") -> list[dict[str, object]]:
        """The committed rows of a JSON file sink, by its own log."""
        return rows_in(self.base / name)

    # deployments

    def deploy(
        self,
        script: str,
        *arguments: str,
        start: StartPlan | None = None,
        settings: AgentSettings | None = None,
        conf: Mapping[str, str] | None = None,
    ) -> Driver:
        """A new deployment of this script, current at once, and its first attempt."""
        return self._launch(self.record(script, *arguments, start=start, settings=settings, conf=conf), 1)

    def record(
        self,
        script: str,
        *arguments: str,
        start: StartPlan | None = None,
        settings: AgentSettings | None = None,
        conf: Mapping[str, str] | None = None,
    ) -> str:
        """The same without launching it; its id."""
        before = self.control.register()
        token = 1 if before is None else before.value.fencing_token + 1
        deployment_id = f"d-{token:04d}"
        application = self.base / "scripts" / deployment_id / "job.py"
        application.parent.mkdir(parents=True)
        application.write_text(textwrap.dedent(script))
        HomePresence(self.control.home, self.control.clock).begin("tests")
        self.control.create_spec(
            DeploymentSpec(
                stream_id=STREAM,
                deployment_id=deployment_id,
                fencing_token=token,
                version=Version(
                    application=NO_SCRIPT,
                    arguments=arguments,
                    master="local[2]",
                    conf={**CONF, **self._quick_options(), **(conf or {})},
                    settings=settings or AgentSettings(command_poll_seconds=0.1, heartbeat_seconds=1.0),
                ),
                start=start or StartPlan("fresh"),
                checkpoints_uri=self.home.uri,
                request_id=f"r-{token}",
                requested_by="test",
                reason="",
                created_at=SYSTEM_CLOCK.now(),
            )
        )
        self._make_current(deployment_id, token, 1, "run")
        return deployment_id

    def _quick_options(self) -> dict[str, str]:
        return {} if self._spark is None else {"spark.driver.extraJavaOptions": quick_jvm.PLAIN}

    def launch(self, deployment_id: str, attempt: int = 1) -> Driver:
        """The driver of a recorded attempt; its script is where ``record`` puts one."""
        return self._launch(deployment_id, attempt)

    def resume(self, *, to_drain: bool = False) -> Driver:
        """The next attempt of the current deployment; ``to_drain``: for the flush alone, which is ordered before."""
        register = self.control.need_register().value
        assert register.deployment_id is not None
        attempt = register.attempt + 1
        self._make_current(register.deployment_id, register.fencing_token, attempt, "drain" if to_drain else "run")
        if to_drain:
            self.drain()
        return self._launch(register.deployment_id, attempt)

    def _make_current(self, deployment_id: str, token: int, attempt: int, mode: str) -> None:
        register = StreamRegister(
            stream_id=STREAM,
            fencing_token=token,
            deployment_id=deployment_id,
            attempt=attempt,
            attempt_mode="drain" if mode == "drain" else "run",
            intent=None,
            write_id=SYSTEM_CLOCK.new_uuid(),
            updated_at=SYSTEM_CLOCK.now(),
            updated_by="test",
        )
        stored = self.control.register()
        if stored is None:
            self.control.create_register(register)
        else:
            self.control.update_register(lambda _: register, by=register.updated_by)

    def _launch(self, deployment_id: str, attempt: int) -> Driver:
        spec = self.control.spec(deployment_id)
        key = f"{deployment_id}-a{attempt}"
        folder = self.base / "launches" / key
        launcher = LocalLauncher(SYSTEM_CLOCK)
        handle = launcher.launch(
            LaunchRequest(
                launch_key=key,
                application=str(self.base / "scripts" / deployment_id / "job.py"),
                arguments=spec.version.arguments,
                master=spec.version.master,
                conf=spec.version.conf,
                environment={} if self._spark is None else self._spark.environment,
                driver_config={
                    "home_uri": self.home.uri,
                    "checkpoints_uri": self.home.uri,
                    "stream_id": STREAM,
                    "deployment_id": deployment_id,
                    "attempt": attempt,
                },
                folder=str(folder),
                log_path=str(folder / "driver.log"),
                attaches=self._attaches,
            )
        )
        driver = Driver(launcher, handle, folder / "driver.log")
        self._drivers.append(driver)
        return driver

    # the protocol

    @property
    def deployment_id(self) -> str:
        """The current deployment."""
        return self.control.need_register().value.deployment_id or ""

    def order(self, kind: type[Command], deployment_id: str | None = None, **more: object) -> str:
        """Give an order to the current attempt, with these fields of its own; its command id."""
        register = self.control.need_register().value
        fields: dict[str, object] = {
            "command_id": SYSTEM_CLOCK.new_uuid(),
            "stream_id": STREAM,
            "deployment_id": deployment_id or register.deployment_id,
            "requested_at": SYSTEM_CLOCK.now(),
            "deadline_at": None,
            "requested_by": "test",
            "reason": "",
            **more,
        }
        if kind in (StopRequest, SnapshotRequest):
            fields["attempt"] = register.attempt
        if kind is SnapshotRequest:
            fields = {"request_id": SYSTEM_CLOCK.new_uuid(), "ttl_seconds": SNAPSHOT_TTL_SECONDS, **fields}
        command = kind(**fields)  # type: ignore[arg-type]
        self.control.journal(str(fields["deployment_id"])).write_command(command, NEWEST_PROTOCOL)
        return command.command_id

    def stop(self) -> str:
        """Order a stop."""
        return self.order(StopRequest)

    def drain(self, **more: object) -> str:
        """Order a drain, by default without its rehearsal."""
        return self.order(DrainNotification, **{"rehearse": False, **more})

    def order_by_name(self, name: str) -> str:
        """Order a ``stop``, a ``drain`` or a ``snapshot``."""
        return {"stop": self.stop, "drain": self.drain, "snapshot": self.snapshot}[name]()

    def snapshot(self) -> str:
        """Order a snapshot."""
        return self.order(SnapshotRequest)

    def events(self, kind: type[AnyEvent], deployment_id: str | None = None) -> list[AnyEvent]:
        """The events of this kind, in order."""
        found = [entry.event for entry in self.control.journal(deployment_id or self.deployment_id).events()]
        return [event for event in found if isinstance(event, kind)]

    def wait_event(self, kind: type[AnyEvent], driver: Driver, count: int = 1, seconds: float = 240.0) -> AnyEvent:
        """The ``count``-th event of this kind; fails, with the driver's log, where it does not come."""
        wait_until(
            lambda: len(self.events(kind)) >= count or driver.launcher.status(driver.handle).has_ended,
            lambda: f"{kind.__name__}:\n{driver.log}",
            seconds,
        )
        found = self.events(kind)
        assert len(found) >= count, f"the driver ended without {kind.__name__}:\n{driver.log}"
        return found[count - 1]

    def manifest(self, snapshot_id: str) -> SnapshotManifest:
        """A snapshot's manifest."""
        return self.control.need_manifest(snapshot_id)

    def checkpoint_folder(self, query: str, deployment_id: str | None = None) -> Path:
        """A query's checkpoint."""
        return self.base / "home" / self.checkpoint_key(query, deployment_id)

    def checkpoint_key(self, query: str, deployment_id: str | None = None) -> str:
        """The same as a key of the home."""
        return checkpoint_folder(STREAM, deployment_id or self.deployment_id, query)

    def committed(self, query: str, deployment_id: str | None = None) -> list[int]:
        """The batches in a query's commit log."""
        names = [path.name for path in (self.checkpoint_folder(query, deployment_id) / "commits").glob("[0-9]*")]
        return sorted(int(name) for name in names)

    def wait_committed(self, query: str, batch_id: int, driver: Driver, seconds: float = 240.0) -> None:
        """Wait until that batch is committed."""
        wait_until(
            lambda: batch_id in self.committed(query) or driver.launcher.status(driver.handle).has_ended,
            lambda: f"batch {batch_id} of {query} (committed: {self.committed(query)}):\n{driver.log}",
            seconds,
        )
        assert batch_id in self.committed(query), f"the driver ended before batch {batch_id}:\n{driver.log}"


def wait_until(is_so: Callable[[], bool], what: Callable[[], str], seconds: float) -> None:
    """Wait until it is so.

    Raises:
        AssertionError: it was not so in time.
    """
    deadline = time.monotonic() + seconds  # noqa: TID251 - a real driver lives in real time
    while not is_so():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what()}"  # noqa: TID251
        time.sleep(0.05)  # noqa: TID251


def seconds_of(minute: int, second: int) -> str:
    """An event time."""
    return f"2026-01-01T00:{minute:02d}:{second:02d}.000Z"
