"""The secrets that a driver on this machine was given, so that its log can be shown without them."""

from __future__ import annotations

import json
from pathlib import Path

from airflow_streamstate.launch.command import DRIVER_CONFIG
from airflow_streamstate.launch.interface import LaunchHandle

_SECRETS = "secrets"


def handed_over_secrets(handle: LaunchHandle | None) -> tuple[str, ...] | None:
    """What references to secrets stood for at this launch.

    Returns:
        () where it was given none; None where nobody can tell: its folder is not here, or what lies in it is damaged or
        not ours to read.
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
    values = raw.get(_SECRETS, [])  # a release that knew no references wrote none
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return None
    return tuple(values)
