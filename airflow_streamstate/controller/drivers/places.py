"""Where the driver of an attempt is, or would be. Every recorded launch becomes something to ask here, and only here.

A record says which driver it is about. Where to look for it comes from the reader's own configuration and from ids.
"""

from __future__ import annotations

from airflow_streamstate.allowed import AllowedPlace
from airflow_streamstate.controller.home import Home
from airflow_streamstate.errors import DataError, InvalidRequestError
from airflow_streamstate.launch.interface import LOCAL, LaunchHandle, LaunchPlace
from airflow_streamstate.launch.launchers import Launchers
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import check_id, is_scratch_id, launch_key_for
from airflow_streamstate.protocol.records import DeploymentSpec, LaunchRecord
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
