"""Every launcher there is, as one fixture."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.launch.interface import Launcher
from airflow_streamstate.launch.local import LocalLauncher
from support.launches import nothing_left_behind


@pytest.fixture(params=["local"])
def launcher(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Launcher]:
    """A launcher, and nothing left of its drivers afterwards."""
    with nothing_left_behind(tmp_path):
        yield LocalLauncher(SYSTEM_CLOCK, environ=dict(os.environ))
