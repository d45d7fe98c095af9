"""The one loop under every wait: looks, pauses, and an end (Law 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from airflow_streamstate.clock import Clock

Result = TypeVar("Result")


def poll(
    clock: Clock, look: Callable[[], Result | None], *, timeout_seconds: float, pause_seconds: Callable[[], float]
) -> Result | None:
    """Look again and again until there is something to see; None where the time was up first.

    Args:
        clock: for the waiting.
        look: one look; None for nothing yet. It looks at least once, and once more when the time is up.
        timeout_seconds: how long.
        pause_seconds: asked for before each pause.

    Raises:
        whatever ``look`` raises.
    """
    end = clock.monotonic_seconds() + timeout_seconds
    while True:
        result = look()
        if result is not None:
            return result
        left = end - clock.monotonic_seconds()
        if left <= 0:
            return None
        clock.sleep(min(pause_seconds(), left))
