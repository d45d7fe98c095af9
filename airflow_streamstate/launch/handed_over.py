"""The secrets that a driver on this machine was given, to hide them in its log."""

from __future__ import annotations

import json
from pathlib import Path

from airflow_streamstate.launch.command import DRIVER_CONFIG
from airflow_streamstate.launch.interface import LaunchHandle


def handed_over_secrets(handle: LaunchHandle | None) -> tuple[str, ...] | None:
    """The values of references to secrets at this launch, () for none.

    None if unknown: its folder is not here, or its files are damaged or not readable for this user.
    """
    folder = None if handle is None else handle.data.get("folder")
    if not isinstance(folder, str):
        return None
    try:
        raw = json.loads((Path(folder) / DRIVER_CONFIG).read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(raw, dict) or "launch_key" not in raw:
        return None
    values = raw.get("secrets", [])  # a release without references wrote none
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return None
    return tuple(values)
