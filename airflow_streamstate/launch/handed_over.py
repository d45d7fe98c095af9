"""The secrets that a driver on this machine was given, to hide them in its log."""

from __future__ import annotations

import json
from pathlib import Path

from airflow_streamstate.errors import UntrustedRecordError
from airflow_streamstate.launch.folder import LaunchFolder
from airflow_streamstate.launch.interface import DRIVER_CONFIG, LaunchHandle


def folder_of(handle: LaunchHandle) -> LaunchFolder | None:
    """The folder of a launch on this machine; None where its handle names none."""
    path, top = handle.data.get("folder"), handle.data.get("work_dir")
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        return None
    return LaunchFolder(Path(path), Path(top) if isinstance(top, str) and top else None)


def handed_over_secrets(handle: LaunchHandle | None) -> tuple[str, ...] | None:
    """The values of references to secrets at this launch, () for none.

    None if unknown: its folder is not here, or its files are damaged or not readable for this user.
    """
    folder = None if handle is None else folder_of(handle)
    if folder is None:
        return None
    try:
        raw = json.loads(folder.read(DRIVER_CONFIG) or b"")
    except (OSError, ValueError, RecursionError, UntrustedRecordError):
        return None
    if not isinstance(raw, dict) or "launch_key" not in raw:
        return None
    values = raw.get("secrets", [])  # a release without references wrote none
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return None
    return tuple(values)
