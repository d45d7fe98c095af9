"""Where the driver of an attempt is, or would be."""

from __future__ import annotations

from airflow_streamstate.controller.home import Home
from airflow_streamstate.launch.interface import LOCAL, LaunchPlace
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.records import DeploymentSpec, LauncherChoice


def launch_place(home: Home, spec: DeploymentSpec, launch_key: str) -> LaunchPlace:
    """The place of a deployment's driver, by its launch key; raises as ``Home.identity``."""
    launcher = spec.launcher or LauncherChoice(LOCAL)
    return LaunchPlace(
        launcher=launcher.name,
        # The folder of a launch on this machine is unique by itself.
        scope="" if launcher.name == LOCAL else f"{home.identity}/{spec.stream_id}",
        launch_key=launch_key,
        folder=str(home.launch_path(layout.launch_folder(spec.stream_id, spec.deployment_id, launch_key))),
        options=launcher.options,
        conn_id=launcher.conn_id,
    )
