"""A stream whose drivers a test plays, and watches of its alerts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.alerts.alert_watch import AlertWatch
from airflow_streamstate.alerts.conditions import AlertChange
from airflow_streamstate.control.objects import FeedWriter
from airflow_streamstate.control.registers import AlertBook
from airflow_streamstate.protocol.policies import Told
from airflow_streamstate.protocol.positions import LagTrend, QueryBeat, SourceLag
from support.clocked_store import ClockedStore
from support.fake_clock import FakeClock
from support.sim_stage import STREAM, Stage


class Alerted:
    """A stream that runs, and watches of it.

    Args:
        runs: it does already.
        request: of its deployment.

    Attributes:
        changes: what was reported, by any watch.
    """

    def __init__(self, stage: Stage, *, runs: bool = False, **request: Any) -> None:
        self.stage = stage
        self.changes: list[AlertChange] = []
        if not runs:
            stage.deploy(**request)
            stage.come_to_life(queries=("counts",))
        self.beat()
        self.watch = self.another()

    def another(self, audience: str = "watch", **named: Any) -> AlertWatch:
        """A watch that remembers nothing."""
        return AlertWatch(self.stage.another_controller("watcher"), audience, self.changes.append, **named)

    def rules(self, **given: Any) -> None:
        """Change the rules of the stream."""
        AlertBook(self.stage.control, "tests").change_rules(given)

    def beat(self, deployment_id: str = "d-0001", attempt: int = 1, **said: Any) -> None:
        """A sign of life of the query, which has just committed unless the caller sets it otherwise."""
        known = {"batch_id": 3, "committed_at": self.stage.clock.now(), "is_active": True, **said}
        self.stage.beat(deployment_id, attempt, counts=QueryBeat(**known))

    def look(self, seconds: float = 0.0, watch: AlertWatch | None = None) -> list[str]:
        """Let time pass and poll once; what was reported of it, as ``raised RULE``."""
        self.stage.clock.advance(seconds)
        self.flush()
        count = len(self.changes)
        (watch or self.watch).look()
        return self.words(count)

    def flush(self) -> None:
        """Wait until all that was written is readable in the feed of the home."""
        if self.stage.feed is not None:
            self.stage.feed.flush(20)

    def words(self, since: int = 0) -> list[str]:
        """What was reported, in order."""
        return [f"{one.kind} {one.alert.rule}" for one in self.changes[since:]]

    @property
    def text(self) -> str:
        """Of the last alert."""
        return self.changes[-1].alert.text

    def standing(self, audience: str = "watch") -> list[str]:
        """The rules of the alerts that are raised, by the register."""
        return [alert.rule for alert in self.told(audience).standing]

    def owed(self, audience: str = "watch") -> list[str]:
        """What the register does not record as reported."""
        return [f"{one.kind} {one.alert.rule}" for one in self.told(audience).owed]

    def told(self, audience: str = "watch") -> Told:
        """What the register reports of an audience."""
        stored = AlertBook(self.stage.control).read()
        assert stored is not None
        return stored.value.audiences[audience]


def behind(left: int, *, falls: bool = False) -> tuple[SourceLag, ...]:
    """A source with so much left, to which more comes than is read, or not."""
    before, came = (left // 2, 2_000) if falls else (left, 900)
    return (SourceLag("kafka t", left, "rows", trend=LagTrend(10, 1_000, 100.0, came, 100.0, before, left, left)),)


def staged(folder: Path) -> Stage:
    """A stage whose home has a feed."""
    clock = FakeClock()
    store = ClockedStore(clock.now)
    return Stage(folder, store, clock, feed=FeedWriter(store, clock))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A stream, a controller, and the driver's part for the test to play; the home has a feed."""
    return staged(tmp_path)


@pytest.fixture
def alerted(stage: Stage) -> Alerted:
    """A stream that runs, with the usual rules."""
    made = Alerted(stage)
    assert made.look() == []
    assert STREAM in made.watch.streams
    return made
