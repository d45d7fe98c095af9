"""Launches the driver of an attempt. The launch key exists before the first try, and one key is one driver (Law 2)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.artifacts import check_pinned, materialise
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.drivers.driver_places import DriverPlaces, WarmHandovers
from airflow_streamstate.controller.drivers.secret_lookup import (
    LookUp,
    Resolved,
    environment_secrets,
    has_references,
    resolve,
)
from airflow_streamstate.controller.home import Home
from airflow_streamstate.errors import InvalidRequestError, ObjectExistsError, OutcomeUnknownError, StreamStateError
from airflow_streamstate.launch.command import sent_files
from airflow_streamstate.launch.folder import translated
from airflow_streamstate.launch.interface import LOCAL, PYTHON_ENV, LaunchHandle, LaunchRequest
from airflow_streamstate.launch.launchers import Launchers
from airflow_streamstate.launch.local import handed_over_secrets
from airflow_streamstate.launch.submit_options import SubmitOptions, own_disk_note
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL, OLDEST_PROTOCOL
from airflow_streamstate.protocol.ids import is_scratch_id, launch_key_for
from airflow_streamstate.protocol.records import Claim, DeploymentSpec, LaunchRecord
from airflow_streamstate.protocol.terms.version import Artifact
from airflow_streamstate.retry import Retry
from airflow_streamstate.snapshot.location import uri_of
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.options import ReachedBySpark

LAUNCH = Retry(tries=3, pause_seconds=0.5)
"""A repeated launch finds out whether the first one started a driver (Law 8)."""
GRACE_SECONDS = 5.0
_CODE = "code"


class SparkConnection(Protocol):
    """How an Airflow Spark connection starts drivers."""

    @property
    def master(self) -> str:
        """Spark's master URL."""

    @property
    def spark_submit(self) -> tuple[str, ...]:
        """The command with its first options, the master among them."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Additional variables of the launcher's process."""


SparkConnections = Callable[[str], SparkConnection]
NO_SCRIPT = "# reads state\n"
"""The script of a driver that reads state: a launch needs one, and it never runs."""
PlaceCode = Callable[[Artifact, Path], None]
"""Puts a pinned file, under its name, into a local folder."""


class Drivers:
    """Launches drivers, and records their handles.

    Args:
        spark_connections: resolves ``spark_conn_id``; None outside of Airflow.
        look_up: resolves references to secrets; None for those of this process's environment.
    """

    def __init__(
        self,
        home: Home,
        launcher: Launchers,
        clock: Clock,
        spark_connections: SparkConnections | None = None,
        look_up: LookUp | None = None,
    ) -> None:
        self._home = home
        self._launcher = launcher
        self._clock = clock
        self._spark_connections = spark_connections
        self.places = DriverPlaces(home, launcher)
        self._warm = WarmHandovers(self.places, launcher, clock)
        self._look_up = environment_secrets(os.environ) if look_up is None else look_up

    def check(self, spec: DeploymentSpec, attempt: int) -> None:
        """Check that an attempt could be launched; records nothing.

        Raises:
            InvalidRequestError: ``launch`` would refuse it, or a secret cannot be looked up.
            UnavailableError: the source of a secret does not answer.
        """
        self._launcher.check(self._unplaced_request(spec, attempt))

    def check_pinned(self, spec: DeploymentSpec) -> None:
        """Check the pinned files of a deployment, so that an attempt which cannot run them takes no number.

        Raises:
            DataError: one is missing or altered.
        """
        for artifact in self._home.control(spec.stream_id).with_found_modules(spec).artifacts:
            check_pinned(self._home.home, spec.stream_id, artifact)

    def spark_version(self, spec: DeploymentSpec) -> str:
        """The version of the Spark that would run a deployment; "" where it is unknown here. Raises as ``check``."""
        return self._launcher.spark_version(self._unplaced_request(spec, 1))

    def start(self, control: StreamControl, spec: DeploymentSpec, attempt: int, rehearsal_id: str | None) -> None:
        """Give an attempt the waiting driver of this rehearsal, else a new one. Raises as ``launch``."""
        if rehearsal_id is None or not self.hand_over(control, spec, attempt, rehearsal_id):
            self.launch(control, spec, attempt)

    def launch(
        self, control: StreamControl, spec: DeploymentSpec, attempt: int, order: Mapping[str, object] | None = None
    ) -> LaunchHandle:
        """Start the driver of an attempt, or find it, then record the handle; complete a handover that was started.

        Args:
            order: of a driver that reads state and runs no script: what to read (``snapshot.state_tables``).

        Raises:
            InvalidRequestError: the launcher refuses it, which closes the attempt as failed; or a secret cannot be
                looked up, which changes nothing.
            DataError: as ``check_pinned``.
            UnavailableError, OutcomeUnknownError: try again; a retry gives the same driver.
        """
        launch_key = launch_key_for(spec.deployment_id, attempt)
        handed_over = self._handed_over(control, spec, launch_key)
        if handed_over is not None:
            return handed_over
        secrets = self._resolved(spec)
        self._leave_witness(spec)

        def place(artifact: Artifact, folder: Path) -> None:
            # For its owner alone: configuration and arguments will be there, too.
            _make(self._launch_folder(spec, launch_key))
            if order is not None and artifact == spec.version.application:
                _place_nothing(artifact, folder)
                return
            materialise(self._home.home, spec.stream_id, artifact, folder)

        try:
            request = self._request(self._whole(control, spec, attempt), attempt, secrets, place)
            if order is not None:
                request = replace(request, driver_config={**request.driver_config, "reading": order})
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
            # Another controller recorded the same driver, or has handed the attempt over: then this driver, which
            # has no record, is ended.
            handed_over = self._handed_over(control, spec, launch_key)
            if handed_over is not None:
                self._launcher.kill(handle, GRACE_SECONDS)
                return handed_over
        return handle

    def hand_over(self, control: StreamControl, spec: DeploymentSpec, attempt: int, rehearsal_id: str) -> bool:
        """Make the waiting driver of a rehearsal the driver of this attempt, which the register names already.

        After an interruption the same call or ``launch`` completes it, without another driver.

        Returns:
            False where the driver does not wait or may soon end, runs other code than is pinned, or the attempt has a
            driver; call ``launch`` then.

        Raises:
            UnavailableError, OutcomeUnknownError: try again.
        """
        if not self._warm.offer(control, spec, attempt, rehearsal_id):
            return False
        record = control.launch(spec.deployment_id, launch_key_for(spec.deployment_id, attempt))
        if record is not None and not self._warm.can_be_asked(self.places.handle(spec, record)):
            # Its folder was removed in the meantime, so its end could never be proven.
            self.close(control, spec.deployment_id, attempt, "the driver that waited for it was abandoned")
        return True

    def _handed_over(self, control: StreamControl, spec: DeploymentSpec, launch_key: str) -> LaunchHandle | None:
        """The driver that waited for this attempt, its handover completed; None where it has none."""
        record = control.launch(spec.deployment_id, launch_key)
        return self._warm.complete(control, spec, record) if record is not None and record.rehearsal_id else None

    def handed_over(self, spec: DeploymentSpec, handle: LaunchHandle | None) -> tuple[str, ...] | None:
        """The secrets that a driver was given in addition to those in its record; None if they are unknown here.

        Those of a driver on another machine are looked up again.
        """
        if not has_references(spec):
            return ()
        if handle is None or handle.launcher == LOCAL:
            return handed_over_secrets(handle)
        try:
            return self._resolved(spec).values
        except StreamStateError:
            return None

    def place_note(self, spec: DeploymentSpec) -> str:
        """A warning where executors of this master may not reach the checkpoints' local folder; else ""."""
        checkpoints = self._home.checkpoints
        if not isinstance(checkpoints, LocalStore):
            return ""
        if spec.version.launcher is not None:
            return (
                f"checkpoints are in a folder of this machine ({checkpoints.root}), and drivers run where"
                f" {spec.version.launcher.name} starts them: they must see the same folder at the same path"
            )
        connection = self._connection(spec)
        return own_disk_note(connection.master if connection is not None else spec.version.master, checkpoints.root)

    def close(self, control: StreamControl, deployment_id: str, attempt: int, reason: str) -> bool:
        """Claim an attempt without a driver, so that a launch still under way finds it claimed and stops.

        Returns:
            False where a driver has claimed it.
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

    def _whole(self, control: StreamControl, spec: DeploymentSpec, attempt: int) -> DeploymentSpec:
        """The spec with what earlier attempts found; a first one has none."""
        return spec if attempt == 1 else control.with_found_modules(spec)

    def _launch(self, request: LaunchRequest) -> LaunchHandle:
        return LAUNCH.call(self._clock, lambda: self._launcher.launch(request), OutcomeUnknownError)

    def _resolved(self, spec: DeploymentSpec) -> Resolved:
        config = self._home.config
        return resolve(spec, self._look_up, config.allowed, config.keys)

    def _unplaced_request(self, spec: DeploymentSpec, attempt: int) -> LaunchRequest:
        return self._request(spec, attempt, self._resolved(spec), lambda _artifact, _folder: None)

    def _request(self, spec: DeploymentSpec, attempt: int, secrets: Resolved, place: PlaceCode) -> LaunchRequest:
        if spec.checkpoints_uri != self._home.checkpoints.uri:
            raise InvalidRequestError(
                "the checkpoints of this deployment are elsewhere",
                deployment_id=spec.deployment_id,
                checkpoints_uri=spec.checkpoints_uri,
                configured=self._home.checkpoints.uri,
                next_step="Give the checkpoints_uri that it was deployed with.",
            )
        self._check_stores(spec)
        launch_key = launch_key_for(spec.deployment_id, attempt)
        place_of_launch = self.places.place(spec, launch_key)
        folder = Path(place_of_launch.folder)
        connection = self._connection(spec)
        checkpoints = self._home.checkpoints
        reach = checkpoints.for_spark() if isinstance(checkpoints, ReachedBySpark) else None

        def code(artifact: Artifact, kind: str) -> str:
            place(artifact, folder / _CODE / kind)
            return str(folder / _CODE / kind / artifact.name)

        def module(artifact: Artifact) -> str:
            place(artifact, folder / _CODE)
            return artifact.name

        options = dict(place_of_launch.options)
        if spec.version.launcher is not None and spec.version.launcher.python_env is not None:
            options[PYTHON_ENV] = code(spec.version.launcher.python_env, "env")

        request = LaunchRequest(
            launch_key=launch_key,
            application=code(spec.version.application, ""),
            modules=tuple(map(module, spec.version.modules)),
            working_folder=spec.version.working_folder or None,
            arguments=secrets.arguments,
            master=spec.version.master or self._default_master(spec),
            # Written to a file for its owner alone, since it holds secrets; the deployment's own settings win.
            conf=secrets.conf if reach is None else {**reach.conf, **reach.secret_conf, **secrets.conf},
            environment={
                # By environment, never by a file of this machine or a command line.
                **self._of_environment(spec),
                **self._home.config.options.credentials(),
                **(connection.environment if connection is not None else {}),
                **secrets.environment,
            },
            py_files=tuple(code(artifact, "py-files") for artifact in spec.version.py_files),
            files=tuple(code(artifact, "files") for artifact in spec.version.files),
            packages=spec.version.packages,
            jars=tuple(jar if isinstance(jar, str) else code(jar, "jars") for jar in spec.version.jars),
            driver_config={**self._driver_config(spec, attempt), "secrets": list(secrets.values)},
            folder=str(folder),
            log_path=place_of_launch.log_path,
            work_dir=place_of_launch.work_dir,
            needs_s3=checkpoints.uri.startswith("s3://"),
            spark_submit=connection.spark_submit if connection is not None else None,
            # A rehearsal runs the script by streamstate's runner, under which ``attach()`` does nothing.
            attaches=spec.version.attaches and not is_scratch_id(spec.deployment_id),
            launcher=place_of_launch.launcher,
            scope=place_of_launch.scope,
            options=options,
            conn_id=place_of_launch.conn_id,
        )
        self._check_files(spec, request)
        return request

    def _check_files(self, spec: DeploymentSpec, request: LaunchRequest) -> None:
        """The launcher sends these files of this machine to another one."""
        if request.launcher == LOCAL:
            return
        options = SubmitOptions(request.conf, request.py_files, request.files, jars=request.jars)
        for path in sent_files(options, Path(request.folder)):
            self._home.config.allowed.check_file(str(path), stream_id=spec.stream_id)

    def _check_stores(self, spec: DeploymentSpec) -> None:
        """The driver is given what reaches these stores."""
        for uri in (*filter(None, [uri_of(spec.version.snapshots)]), *spec.version.mirrors):
            self._home.check_store(uri, stream_id=spec.stream_id)

    def _of_environment(self, spec: DeploymentSpec) -> dict[str, str]:
        """The variables by which this process reaches the stores of the deployment, for a driver on this machine."""
        if spec.version.launcher is not None and spec.version.launcher.name != LOCAL:
            return {}
        uris = (self._home.home.uri, self._home.checkpoints.uri, spec.version.snapshots, *spec.version.mirrors)
        return self._home.config.options.of_environment(uris, os.environ)

    def _default_master(self, spec: DeploymentSpec) -> str:
        return "" if spec.version.launcher is None else self._launcher.named(spec.version.launcher.name).default_master

    def _launch_folder(self, spec: DeploymentSpec, launch_key: str) -> Path:
        return self._home.launch_path(layout.launch_folder(spec.stream_id, spec.deployment_id, launch_key))

    def _driver_config(self, spec: DeploymentSpec, attempt: int) -> dict[str, object]:
        """What ``driver.config`` reads; the launcher adds launch key, application and arguments."""
        elsewhere: dict[str, object] = {}
        if spec.version.launcher is not None:
            elsewhere = {"home_id": self._home.identity or None, "has_witness": self._needs_witness}
        return {
            **elsewhere,
            "home_uri": self._home.home.uri,
            "checkpoints_uri": self._home.checkpoints.uri,
            "stream_id": spec.stream_id,
            "deployment_id": spec.deployment_id,
            "attempt": attempt,
            "script_path": spec.version.script_path or None,
            **self._home.config.options.settings(),
        }

    @property
    def _needs_witness(self) -> bool:
        """Whether the checkpoints are in a folder that the record of the home does not distinguish from others."""
        checkpoints = self._home.checkpoints
        return isinstance(checkpoints, LocalStore) and checkpoints is not self._home.home

    def _leave_witness(self, spec: DeploymentSpec) -> None:
        if spec.version.launcher is not None and self._needs_witness:
            with suppress(ObjectExistsError):
                self._home.checkpoints.create(layout.witness_key(spec.stream_id, spec.deployment_id), b"{}\n")

    def _connection(self, spec: DeploymentSpec) -> SparkConnection | None:
        if spec.version.spark_conn_id is None:
            return None
        self._home.config.allowed.check_spark_connection(spec.version.spark_conn_id, stream_id=spec.stream_id)
        if self._spark_connections is None:
            raise InvalidRequestError(
                "this deployment is launched through an Airflow connection, which only Airflow can look up",
                spark_conn_id=spec.version.spark_conn_id,
                next_step="Run this from Airflow, or deploy with a master instead.",
            )
        return self._spark_connections(spec.version.spark_conn_id)


def _place_nothing(artifact: Artifact, folder: Path) -> None:
    _make(folder)
    with translated(folder):
        (folder / artifact.name).write_text(NO_SCRIPT, encoding="utf-8")


def _make(folder: Path) -> None:
    with translated(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
