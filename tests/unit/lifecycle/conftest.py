"""A stage for every test of the lifecycle."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.sim_stage import Stage
from support.upgrade_stage import UpgradeStage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A stream, a controller, and the driver's part for the test to play."""
    return Stage(tmp_path)


@pytest.fixture
def upgraded(stage: Stage) -> UpgradeStage:
    """A stream whose first version runs, and is to be upgraded."""
    return UpgradeStage(stage).runs()
