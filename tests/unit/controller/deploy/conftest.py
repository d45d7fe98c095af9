"""Lives of a first deployment which these tests start from."""

from __future__ import annotations

import pytest

from support.sim_stage import Stage


@pytest.fixture
def running(stage: Stage) -> Stage:
    """d-0001 runs, and has committed batch 3 of ``counts``."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    return stage


@pytest.fixture
def dead(running: Stage) -> Stage:
    """The driver of d-0001 ended after batch 3 without a last event."""
    running.end(state="gone")
    return running


@pytest.fixture
def stopped(stage: Stage) -> Stage:
    """d-0001 was stopped after batch 3, with a snapshot."""
    stage.deploy()
    stage.stopped()
    return stage


@pytest.fixture
def redeployed(stopped: Stage) -> Stage:
    """d-0002 was restored from the stop of d-0001."""
    stopped.deploy("print('v2')\n")
    return stopped
