"""A stage for every test of the lifecycle."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.adopting import AdoptingStage
from support.sim_stage import Stage
from support.upgrade_stage import UpgradeStage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A stream, a controller, and the driver's part for the test to play."""
    return Stage(tmp_path)


@pytest.fixture
def upgraded(stage: Stage) -> UpgradeStage:
    """A stream whose first version runs, and will be upgraded."""
    return UpgradeStage(stage).runs()


@pytest.fixture
def adopting(tmp_path: Path) -> AdoptingStage:
    """A query that is not ours, and a home that adopts it: batches 0 to 3 are committed; nothing runs."""
    return AdoptingStage(tmp_path)
