"""A stream under a watcher, on a stage where a test plays its drivers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from airflow_streamstate.controller.supervise.watcher import Line, Watcher
from airflow_streamstate.protocol.policies import Restarts
from airflow_streamstate.protocol.records import StreamRegister
from support.sim_stage import Stage

BACKOFF_SECONDS = 10.0


class Supervised:
    """A deployment that runs, and a watcher of its home.

    Args:
        changes: of the request that deploys it.

    Attributes:
        lines: what the watcher has reported.
    """

    def __init__(self, stage: Stage, changes: Mapping[str, Any] | None = None, **policy: Any) -> None:
        self.stage = stage
        self.lines: list[Line] = []
        stage.deploy(restart_policy={"on_failure": "restart", **policy}, **(changes or {}))
        stage.come_to_life(queries=("counts",))
        stage.run_batches(3)
        self.watcher = self.another()

    def another(self, **named: Any) -> Watcher:
        """Another watcher, which remembers nothing."""
        return self.stage.another_controller("watcher").watcher(self.lines.append, **named)

    @property
    def register(self) -> StreamRegister:
        return self.stage.control.need_register().value

    @property
    def record(self) -> Restarts:
        """What is recorded of the failures."""
        assert self.register.restarts is not None
        return self.register.restarts

    @property
    def said(self) -> list[str]:
        """The words for what was seen, in order."""
        return [line.sight for line in self.lines]

    def watch(self, seconds: float = 0.0, watcher: Watcher | None = None) -> None:
        """Let the watcher tick for the given time, at least once."""
        clock = self.stage.clock
        until = clock.monotonic_seconds() + seconds
        while True:
            (watcher or self.watcher).tick()
            if clock.monotonic_seconds() >= until:
                return
            clock.advance(1.0)

    def die(self, attempt: int = 1) -> None:
        """The driver is killed."""
        self.stage.end(attempt=attempt, state="gone")

    def restarted(self, attempt: int) -> None:
        """The driver of the next attempt comes to life, and is seen to run."""
        assert self.register.attempt == attempt, self.lines[-3:]
        self.stage.come_to_life(attempt=attempt, queries=("counts",))
        self.watch(3.0)


@pytest.fixture
def supervised(stage: Stage) -> Supervised:
    """A stream that is restarted as by default."""
    return Supervised(stage)
