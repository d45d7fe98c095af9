"""A stream with one deployment."""

from __future__ import annotations

import pytest

from support.simulated_driver import SimulatedStream


@pytest.fixture
def stream() -> SimulatedStream:
    """The deployment ``d-0001`` is current, and its driver has not started."""
    stream = SimulatedStream()
    stream.deploy()
    return stream
