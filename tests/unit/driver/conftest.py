"""What most tests of the driver start with."""

from __future__ import annotations

import pytest

from support.simulated_driver import SimulatedStream, make_plan
from support.simulated_query import SimulatedPlan


@pytest.fixture
def stream() -> SimulatedStream:
    """A stream with one deployment, which no driver has claimed."""
    stream = SimulatedStream()
    stream.deploy()
    return stream


@pytest.fixture
def plan() -> SimulatedPlan:
    """A query that counts rows per window."""
    return make_plan()
