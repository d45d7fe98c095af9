"""What most tests of the driver begin with."""

from __future__ import annotations

import pytest

from support.simulated_driver import SimulatedStream


@pytest.fixture
def stream() -> SimulatedStream:
    """A stream with one deployment, which no driver has claimed."""
    stream = SimulatedStream()
    stream.deploy()
    return stream
