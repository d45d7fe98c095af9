"""Starting the driver of an attempt, and ending one: the only acts on the world outside the stores.

A launch has its key before the first try, and the same key twice is the same driver (Law 2): whoever finds an attempt
without a driver may launch it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.artifacts import materialise
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.drivers.secrets import LookUp, Resolved, environment_secrets, resolve
from airflow_streamstate.controller.drivers.warm import WarmHandovers, handle_of
from airflow_streamstate.controller.home import Home
from airflow_streamstate.errors import InvalidRequestError, ObjectExistsError, OutcomeUnknownError
from airflow_streamstate.launch.folder import translated
from airflow_streamstate.launch.interface import Launcher, LaunchHandle, LaunchRequest
from airflow_streamstate.launch.master import own_disk_note
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import is_rehearsal_id, launch_key_for
from airflow_streamstate.protocol.records import Artifact, Claim, DeploymentSpec, LaunchRecord
from airflow_streamstate.protocol.version import NEWEST_PROTOCOL, OLDEST_PROTOCOL
from airflow_streamstate.retry import Retry
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.s3a import ReachedBySpark

LAUNCH = Retry(tries=3, pause_seconds=0.5)
"""The same call again tells whether the first one launched a driver (Law 8)."""
GRACE_SECONDS = 5.0
_CODE = "code"


class SparkConnection(Protocol):
    """How an Airflow Spark connection wants drivers to be started."""

    @property
    def master(self) -> str:
        """Spark's master URL."""

    @property
    def spark_submit(self) -> tuple[str, ...]:
        """The command with its first options; it names the master already."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that it needs beside the launcher's own."""


SparkConnections = Callable[[str], SparkConnection]
PlaceCode = Callable[[Artifact, Path], None]
"""Puts a pinned file, under its name, into a local folder."""


class Drivers:
    """Starts drivers, and records who they are.

    Args:
        home: of the streams.
        launcher: starts them.
        clock: for times and waits.
        spark_connections: resolves ``spark_conn_id``; None where nobody can.
        look_up: resolves references to secrets; None for those of this process's environment alone.
    """

    def __init__(
        self,
        home: Home,
        launcher: Launcher,
        clock: Clock,
        spark_connections: SparkConnections | None = None,
        look_up: LookUp | None = None,
    ) -> None:
        self._home = home
        self._launcher = launcher
        self._clock = clock
        self._spark_connections = spark_connections
        self._warm = WarmHandovers(home, launcher, clock)
        self._look_up = environment_secrets(os.environ) if look_up is None else look_up

    def check(self, spec: DeploymentSpec, attempt: int) -> None:
        """See whether an attempt could be launched, before anything is recorded of it.

        Raises:
            InvalidRequestError: ``launch`` would refuse it; a secret cannot be looked up.
            UnavailableError: whoever knows a secret does not answer.
        """
        secrets = resolve(spec, self._look_up)
        self._launcher.check(self._request(spec, attempt, secrets, lambda _artifact, _folder: None))

    def spark_version(self, spec: DeploymentSpec) -> str:
        """The version of the Spark that would run a deployment; "" where that is not to be seen from here.

        Raises:
            InvalidRequestError, UnavailableError: as ``check``.
        """
        secrets = resolve(spec, self._look_up)
        return self._launcher.spark_version(self._request(spec, 1, secrets, lambda _artifact, _folder: None))

    def start(self, control: StreamControl, spec: DeploymentSpec, attempt: int, rehearsal_id: str | None) -> None:
        """Give an attempt its driver: that of this rehearsal, if it waits for it; else one of its own. Raises as
        ``launch``."""
        if rehearsal_id is None or not self.hand_over(control, spec, attempt, rehearsal_id):
            self.launch(control, spec, attempt)

    def launch(self, control: StreamControl, spec: DeploymentSpec, attempt: int) -> LaunchHandle:
        """Start the driver of an attempt, or find it; then record the handle. One that waited is told, if it was not.

        Raises:
            InvalidRequestError: it cannot run as it was asked for. The attempt is closed then: it has failed. Or a
                secret cannot be looked up from here: then nothing was done.
            UnavailableError, OutcomeUnknownError: try again; it stays the same driver.
        """
        launch_key = launch_key_for(spec.deployment_id, attempt)
        handed_over = self._handed_over(control, spec.deployment_id, launch_key)
        if handed_over is not None:
            return handed_over
        self._home.complete_record()
        secrets = resolve(spec, self._look_up)
        try:
            request = self._request(spec, attempt, secrets, self._code_placer(spec, launch_key))
            handle = self._launch(request)
        except InvalidRequestError as error:
            self.close(control, spec.deployment_id, attempt, f"its launch was refused: {error.message}")
            raise
        record = LaunchRecord(
            stream_id=spec.stream_id,
            deployment_id=spec.deployment_id,
            attempt=attempt,
            launch_key=launch_key,
            launcher=handle.launcher,
            data=handle.data,
            log_path=request.log_path,
            launched_at=self._clock.now(),
            write_id=self._clock.new_uuid(),
        )
        try:
            control.create_launch(record)
        except ObjectExistsError:
            # Recorded by another who launched the same driver; or who handed the attempt over in this very moment: one
            # of the two drivers is too many, and the one that nobody would find is ended.
            handed_over = self._handed_over(control, spec.deployment_id, launch_key)
            if handed_over is not None:
                self._launcher.kill(handle, GRACE_SECONDS)
                return handed_over
        return handle

    def launch_reader(self, spec: DeploymentSpec, order: Mapping[str, object]) -> LaunchHandle:
        """Start a driver that reads state, and runs nothing of a deployment's own.

        Args:
            spec: Spark's configuration, packages, jars and environment, under the id of the reading.
            order: what is read (``snapshot.state_order``).

        Raises:
            InvalidRequestError: it cannot run as it was asked for, or a secret cannot be looked up from here.
            UnavailableError, OutcomeUnknownError: try again; it stays the same driver.
        """
        secrets = resolve(spec, self._look_up)
        request = self._request(spec, 1, secrets, _place_nothing)
        self._launcher.check(request)
        request = replace(request, driver_config={**request.driver_config, "reading": order})
        return self._launch(request)

    def hand_over(self, control: StreamControl, spec: DeploymentSpec, attempt: int, rehearsal_id: str) -> bool:
        """Make the driver of a rehearsal that waits the driver of this attempt, once the register names it.

        Cut short anywhere, the same call or ``launch`` goes on with it; another driver is never launched then. A driver
        that dies before it claims leaves a failed attempt, as a cold one would.

        Returns:
            False where it does not wait (any more), is no longer sure to, runs other code than is pinned, or the
            attempt has a driver: ``launch`` is to be called then.

        Raises:
            UnavailableError, OutcomeUnknownError: try again.
        """
        if not self._warm.offer(control, spec, attempt, rehearsal_id):
            return False
        record = control.launch(spec.deployment_id, launch_key_for(spec.deployment_id, attempt))
        if record is not None and not self._warm.can_be_asked(handle_of(record)):
            # Given up in this very moment, folder and all: nobody could ever prove its end.
            self.close(control, spec.deployment_id, attempt, "the driver that waited for it was given up")
        return True

    def _handed_over(self, control: StreamControl, deployment_id: str, launch_key: str) -> LaunchHandle | None:
        """The driver that waited for this attempt, told by now; None where it is one that is launched for it."""
        record = control.launch(deployment_id, launch_key)
        return self._warm.complete(control, record) if record is not None and record.rehearsal_id else None

    def place_note(self, spec: DeploymentSpec) -> str:
        """What a person should know of where the checkpoints lie, with such a master; "" where it is well."""
        checkpoints = self._home.checkpoints
        if not isinstance(checkpoints, LocalStore):
            return ""
        connection = self._connection(spec.spark_conn_id) if spec.spark_conn_id is not None else None
        return own_disk_note(connection.master if connection is not None else spec.master, checkpoints.root)

    def close(self, control: StreamControl, deployment_id: str, attempt: int, reason: str) -> bool:
        """Take the place of the driver of an attempt that nobody has claimed, so that none can ever be it.

        A launch that is still on its way somewhere then finds the attempt claimed and stops. False where a driver was
        first.
        """
        tombstone = Claim(
            stream_id=control.stream_id,
            deployment_id=deployment_id,
            attempt=attempt,
            launch_key=launch_key_for(deployment_id, attempt),
            host="controller",
            pid=0,
            oldest_protocol=OLDEST_PROTOCOL,
            newest_protocol=NEWEST_PROTOCOL,
            agent_version=reason,
            write_id=self._clock.new_uuid(),
            claimed_at=self._clock.now(),
        )
        try:
            control.create_claim(tombstone)
        except ObjectExistsError:
            there = control.claim(deployment_id, attempt)
            return there is not None and there.pid == 0
        return True

    def _launch(self, request: LaunchRequest) -> LaunchHandle:
        return LAUNCH.call(self._clock, lambda: self._launcher.launch(request), OutcomeUnknownError)

    def _request(self, spec: DeploymentSpec, attempt: int, secrets: Resolved, place: PlaceCode) -> LaunchRequest:
        if spec.checkpoints_uri != self._home.checkpoints.uri:
            raise InvalidRequestError(
                "the checkpoints of this deployment lie elsewhere",
                deployment_id=spec.deployment_id,
                checkpoints_uri=spec.checkpoints_uri,
                configured=self._home.checkpoints.uri,
                next_step="Give the checkpoints_uri that it was deployed with.",
            )
        launch_key = launch_key_for(spec.deployment_id, attempt)
        folder = self._launch_folder(spec, launch_key)
        log_path = self._home.launch_path(layout.driver_log_key(spec.stream_id, spec.deployment_id, launch_key))
        connection = self._connection(spec.spark_conn_id) if spec.spark_conn_id is not None else None
        checkpoints = self._home.checkpoints
        reach = checkpoints.for_spark() if isinstance(checkpoints, ReachedBySpark) else None

        def code(artifact: Artifact, kind: str) -> str:
            place(artifact, folder / _CODE / kind)
            return str(folder / _CODE / kind / artifact.name)

        return LaunchRequest(
            launch_key=launch_key,
            application=code(spec.application, ""),
            arguments=secrets.arguments,
            master=spec.master,
            # To a file for its owner alone, with the secrets among it; what the deployment says itself wins.
            conf=secrets.conf if reach is None else {**reach.conf, **reach.secret_conf, **secrets.conf},
            environment={
                **self._credentials(),
                **(connection.environment if connection is not None else {}),
                **secrets.environment,
            },
            py_files=tuple(code(artifact, "py-files") for artifact in spec.py_files),
            files=tuple(code(artifact, "files") for artifact in spec.files),
            packages=spec.packages,
            jars=spec.jars,
            driver_config={**self._driver_config(spec, attempt), "secrets": list(secrets.values)},
            folder=str(folder),
            log_path=str(log_path),
            needs_s3=checkpoints.uri.startswith("s3://"),
            spark_submit=connection.spark_submit if connection is not None else None,
            # A rehearsal runs the script by our runner: under it ``attach()`` has nothing to do.
            attaches=spec.attaches and not is_rehearsal_id(spec.deployment_id),
        )

    def _code_placer(self, spec: DeploymentSpec, launch_key: str) -> PlaceCode:
        def place(artifact: Artifact, folder: Path) -> None:
            # Configuration and arguments will lie there, too: for their owner alone.
            _make(self._launch_folder(spec, launch_key))
            materialise(self._home.home, spec.stream_id, artifact, folder)

        return place

    def _launch_folder(self, spec: DeploymentSpec, launch_key: str) -> Path:
        return self._home.launch_path(layout.launch_folder(spec.stream_id, spec.deployment_id, launch_key))

    def _driver_config(self, spec: DeploymentSpec, attempt: int) -> dict[str, object]:
        """What ``runtime.driver_config`` reads; the launcher adds launch key, application and arguments."""
        s3 = self._home.config.s3
        return {
            "home_uri": self._home.home.uri,
            "checkpoints_uri": self._home.checkpoints.uri,
            "stream_id": spec.stream_id,
            "deployment_id": spec.deployment_id,
            "attempt": attempt,
            "s3_endpoint_url": None if s3 is None else s3.endpoint_url,
            "s3_region": None if s3 is None else s3.region,
            "s3_profile_name": None if s3 is None else s3.profile_name,
        }

    def _credentials(self) -> dict[str, str]:
        """Credentials that the home was opened with travel by environment, never by a file or a command line."""
        s3 = self._home.config.s3
        if s3 is None:
            return {}
        named = {
            "AWS_ACCESS_KEY_ID": s3.access_key_id,
            "AWS_SECRET_ACCESS_KEY": s3.secret_access_key,
            "AWS_SESSION_TOKEN": s3.session_token,
            "AWS_PROFILE": s3.profile_name,
        }
        return {name: value for name, value in named.items() if value}

    def _connection(self, spark_conn_id: str) -> SparkConnection:
        if self._spark_connections is None:
            raise InvalidRequestError(
                "this deployment is launched through an Airflow connection, which only Airflow can look up",
                spark_conn_id=spark_conn_id,
                next_step="Run this from Airflow, or deploy with a master instead.",
            )
        return self._spark_connections(spark_conn_id)


def _place_nothing(artifact: Artifact, folder: Path) -> None:
    """A driver is launched for a script; one that reads state never runs it."""
    _make(folder)
    with translated(folder):
        (folder / artifact.name).write_text("# reads state\n", encoding="utf-8")


def _make(folder: Path) -> None:
    with translated(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
