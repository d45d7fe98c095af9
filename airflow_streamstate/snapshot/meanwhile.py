"""Waiting for what another thread does with a large file, while somebody is told that it goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

Result = TypeVar("Result")

LOOK_SECONDS = 1.0


def until_done(task: Future[Result], go_on: Callable[[], None]) -> Result:
    """The result of a task, or what it raised; ``go_on`` is called again and again until it is there.

    Raises:
        Exception: what ``go_on`` raised to give up; the task is not waited for then.
    """
    while not wait([task], LOOK_SECONDS).done:
        go_on()
    return task.result()
