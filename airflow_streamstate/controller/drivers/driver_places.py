"""Where the driver of an attempt is, and warm drivers: those that wait after a rehearsal to be handed over."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta

from airflow_streamstate.allowed import AllowedPlace
from airflow_streamstate.clock import Clock
from airflow_streamstate.control.objects import TO_DRIVER, Bell
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.home import Home
from airflow_streamstate.errors import DataError, DeploymentNotFoundError, InvalidRequestError, ObjectExistsError
from airflow_streamstate.launch.interface import LOCAL, LaunchHandle, LaunchPlace
from airflow_streamstate.launch.launchers import Launchers
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import check_id, is_scratch_id, launch_key_for, rehearsal_id_in
from airflow_streamstate.protocol.records import DeploymentSpec, LaunchRecord
from airflow_streamstate.protocol.scratch import Handover, Rehearsal, ScratchRun, ScratchVerdict
from airflow_streamstate.protocol.terms.version import LauncherChoice

ATTEMPT = 1
"""A scratch run has one driver."""


class DriverPlaces:
    """The places of the drivers of one home."""

    def __init__(self, home: Home, launchers: Launchers) -> None:
        self._home = home
        self._launchers = launchers

    def place(self, spec: DeploymentSpec, launch_key: str, owner_id: str = "") -> LaunchPlace:
        """The place of a deployment's driver, by its launch key.

        Args:
            owner_id: the rehearsal whose driver it is; "" for the deployment itself.

        Raises:
            InvalidRequestError: the reader of the home allows no driver there.
            DataError, UnavailableError, StoreRefusedError: as ``Home.identity``.
        """
        launcher = spec.version.launcher or LauncherChoice(LOCAL)
        self._check_allowed(spec, launcher)
        owner_id = check_id(owner_id or spec.deployment_id, "deployment id")
        check_id(launch_key, "launch key")
        return LaunchPlace(
            launcher=launcher.name,
            # The folder of a launch on this machine is unique by itself.
            scope="" if launcher.name == LOCAL else f"{self._home.identity}/{spec.stream_id}",
            launch_key=launch_key,
            folder=str(self._home.launch_path(layout.launch_folder(spec.stream_id, owner_id, launch_key))),
            log_path=str(self._home.launch_path(layout.driver_log_key(spec.stream_id, owner_id, launch_key))),
            work_dir=str(self._home.work_dir),
            options=launcher.options,
            conn_id=launcher.conn_id,
        )

    def handle(self, spec: DeploymentSpec, record: LaunchRecord) -> LaunchHandle:
        """The handle by which a recorded driver may be asked. One that may not be asked is ``refused``, which counts
        as unknown everywhere: it is neither asked, nor killed, nor forgotten, and has no log.

        A driver that was handed over keeps the launch key of its rehearsal, and so does one that still waits for it,
        whose own record it is.

        Args:
            spec: of its deployment; of a driver that waits, of the one that it may be handed.

        Raises:
            UnavailableError, StoreRefusedError: as ``Home.identity``.
        """
        launch_key, owner_id = record.launch_key, ""
        rehearsal_id = record.rehearsal_id or (record.deployment_id if is_scratch_id(record.deployment_id) else "")
        if rehearsal_id:
            launch_key, owner_id = launch_key_for(rehearsal_id, ATTEMPT), rehearsal_id
        recorded = LaunchHandle(launcher=record.launcher, launch_key=launch_key, data=record.data)
        try:
            if owner_id and not is_scratch_id(owner_id):
                return refused(recorded, "its record names a rehearsal whose id is none")
            return self._launchers.handle_at(self.place(spec, launch_key, owner_id), recorded)
        except (DataError, InvalidRequestError) as error:
            return refused(recorded, str(error))

    def _check_allowed(self, spec: DeploymentSpec, launcher: LauncherChoice) -> None:
        reaching = self._launchers.reaching_of(launcher.name)
        place = AllowedPlace.of(launcher.name, launcher.conn_id, launcher.options, reaching)
        self._home.config.allowed.check_place(place, stream_id=spec.stream_id, deployment_id=spec.deployment_id)


def refused(handle: LaunchHandle, reason: str) -> LaunchHandle:
    """The handle of a driver that nobody asks about: without a place it is unknown."""
    return LaunchHandle(launcher=handle.launcher, launch_key=handle.launch_key, data={}, refused=reason)


# Warm handovers: the driver of an accepted rehearsal waits, and becomes an attempt of the deployment that follows.
#
# Two records in this order: the ``LaunchRecord`` of the attempt, by which any controller finds its driver, and the
# ``Handover``, which the driver waits for. A controller that finds only the first writes the second.

MARGIN_SECONDS = 5.0
"""A driver gets no attempt in the last seconds of its wait: it may be about to end."""


def waits_until(run: ScratchRun) -> datetime | None:
    """Until when the driver of an accepted rehearsal waits; None: it ends with its verdict, as in any other run."""
    return run.what.waits_until if isinstance(run.what, Rehearsal) else None


def is_to_wait(run: ScratchRun, verdict: ScratchVerdict | None, now: datetime) -> bool:
    """Whether the driver of a rehearsal with a verdict waits for an attempt, or is about to."""
    until = waits_until(run)
    return until is not None and verdict is not None and verdict.can_take_over and now < until


def is_handed_over(control: StreamControl, rehearsal_id: str) -> bool:
    """Whether the driver of a rehearsal belongs to a deployment, also where its handover is not complete."""
    if control.handover(rehearsal_id) is not None:
        return True
    register = control.register()
    if register is None or register.value.deployment_id is None:
        return False
    deployment_id = register.value.deployment_id
    record = control.launch(deployment_id, launch_key_for(deployment_id, register.value.attempt))
    return record is not None and record.rehearsal_id == rehearsal_id


def awaits_handover(control: StreamControl, handle: LaunchHandle) -> bool:
    """Whether this driver was recorded as an attempt's own, and its handover is not written."""
    rehearsal_id = rehearsal_id_in(handle.launch_key)
    return rehearsal_id is not None and control.handover(rehearsal_id) is None


class WarmHandovers:
    """Hands waiting drivers over to attempts."""

    def __init__(self, places: DriverPlaces, launcher: Launchers, clock: Clock) -> None:
        self._places = places
        self._launcher = launcher
        self._clock = clock

    def offer(self, control: StreamControl, spec: DeploymentSpec, attempt: int, rehearsal_id: str) -> bool:
        """Record the waiting driver as the attempt's, then write the handover; returns as ``Drivers.hand_over``."""
        launch_key = launch_key_for(spec.deployment_id, attempt)
        record = control.launch(spec.deployment_id, launch_key)
        if record is None:
            record = self._waiting_launch(control, spec, attempt, rehearsal_id)
            if record is None:
                return False
            try:
                control.create_launch(record)
            except ObjectExistsError:
                record = control.launch(spec.deployment_id, launch_key)
        if record is None or record.rehearsal_id != rehearsal_id:
            return False
        self.complete(control, spec, record)
        return True

    def complete(self, control: StreamControl, spec: DeploymentSpec, record: LaunchRecord) -> LaunchHandle:
        """Write the handover that the waiting driver polls for. Idempotent."""
        handover = Handover(
            stream_id=record.stream_id,
            rehearsal_id=record.rehearsal_id,
            deployment_id=record.deployment_id,
            attempt=record.attempt,
            launch_key=record.launch_key,
            handed_over_at=self._clock.now(),
            write_id=self._clock.new_uuid(),
        )
        with suppress(ObjectExistsError):  # from an earlier try: only one attempt can record this driver
            control.create_handover(handover)
        handle = self._places.handle(spec, record)
        Bell.of_launch(handle.data, TO_DRIVER).ring()
        return handle

    def can_be_asked(self, handle: LaunchHandle) -> bool:
        """Whether the launcher knows this driver, dead or alive; false once its folder was removed."""
        if handle.launcher != LOCAL:
            return True  # a cluster that does not answer for a moment loses no driver
        return self._launcher.status(handle).state != "unknown"

    def _waiting_launch(
        self, control: StreamControl, spec: DeploymentSpec, attempt: int, rehearsal_id: str
    ) -> LaunchRecord | None:
        """The attempt's launch record for the waiting driver; None where it may not be handed over."""
        launch_key = launch_key_for(spec.deployment_id, attempt)
        place = self._places.place(spec, launch_key)
        if self._launcher.find(place) is not None or control.claim(spec.deployment_id, attempt):
            return None  # the attempt has a driver, launched by a controller that died before it recorded the launch
        if control.waiting(rehearsal_id) is None or control.handover(rehearsal_id) is not None:
            return None
        if not self._has_time(control.scratch_run(rehearsal_id)) or not _runs_the_same(control, spec, rehearsal_id):
            return None
        launch = control.launch(rehearsal_id, launch_key_for(rehearsal_id, ATTEMPT))
        if launch is None or self._launcher.status(self._places.handle(spec, launch)).state != "running":
            return None
        return LaunchRecord(
            stream_id=spec.stream_id,
            deployment_id=spec.deployment_id,
            attempt=attempt,
            launch_key=launch_key,
            launcher=launch.launcher,
            data=launch.data,
            log_path=launch.log_path,
            launched_at=launch.launched_at,
            write_id=self._clock.new_uuid(),
            rehearsal_id=rehearsal_id,
        )

    def _has_time(self, run: ScratchRun | None) -> bool:
        until = None if run is None else waits_until(run)
        return until is not None and self._clock.now() + timedelta(seconds=MARGIN_SECONDS) < until


def _runs_the_same(control: StreamControl, spec: DeploymentSpec, rehearsal_id: str) -> bool:
    """Whether the waiting driver runs exactly what the deployment pins (Law 15)."""
    try:
        rehearsed = control.spec(rehearsal_id)
    except DeploymentNotFoundError:
        return False
    return _what_runs(rehearsed) == _what_runs(spec)


def _what_runs(spec: DeploymentSpec) -> tuple[str, ...]:
    version = spec.version
    return version.code_digest, version.script_path, version.working_folder, spec.checkpoints_uri
