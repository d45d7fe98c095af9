"""A driver that lives, by its launcher, and gives no sign of life: when it counts as silent, by which clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.controller.commands.forced_stop import ForcedStop
from airflow_streamstate.controller.observe.observer import Observer
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import ConflictError, DeadlineExceededError
from airflow_streamstate.protocol.events import Finished
from airflow_streamstate.protocol.positions import Heartbeat, QueryBeat, SourceLag
from support.clocked_store import ClockedStore
from support.fake_clock import FakeClock
from support.sim_stage import STREAM, Stage

LIMIT_SECONDS = 60.0


class Clocks:
    """The stage's machine, its store, and the driver's machine, each with a clock that may be wrong."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.store_ahead = self.driver_ahead = timedelta(0)
        self.stage = Stage(folder, ClockedStore(lambda: self.clock.now() + self.store_ahead), self.clock)
        self.stage.deploy()
        self.stage.come_to_life(queries=("counts",))

    def beat(self, attempt: int = 1, **said: Any) -> None:
        """A sign of life, dated by the driver."""
        at = self.clock.now() + self.driver_ahead
        query = QueryBeat(
            3, at, is_active=True, **{"lags": (SourceLag("file /in", 0, "files"),), "lags_at": at, **said}
        )
        self.stage.control.put_heartbeat(Heartbeat(STREAM, "d-0001", attempt, at, {"counts": query}))


@pytest.fixture
def clocks(tmp_path: Path) -> Clocks:
    return Clocks(tmp_path)


@pytest.fixture
def silent(clocks: Clocks) -> Stage:
    """A stream that had caught up, and has been silent for a minute and a half."""
    clocks.beat()
    clocks.clock.advance(90)
    return clocks.stage


@pytest.mark.parametrize("driver_ahead_seconds", [-3_600, 0, 3_600])
def test_silence_is_told_by_the_clock_of_the_home(clocks: Clocks, driver_ahead_seconds: int) -> None:
    """Whatever time it is on the driver's machine: a caller that looks once knows no more."""
    clocks.driver_ahead = timedelta(seconds=driver_ahead_seconds)
    clocks.beat()
    clocks.clock.advance(LIMIT_SECONDS)
    assert clocks.stage.seen().state == "running"
    clocks.clock.advance(1)
    seen = clocks.stage.seen()
    assert (seen.state, seen.heartbeat_age_seconds) == ("silent", LIMIT_SECONDS + 1)
    assert seen.why == ("its driver lives, and has given no sign of life for 61 s: what it does is unknown since then")


@pytest.mark.parametrize("store_ahead_seconds", [-3_600, 3_600])
def test_who_looks_again_and_again_is_misled_by_no_clock(clocks: Clocks, store_ahead_seconds: int) -> None:
    """A process counts for how long it has seen the same sign of life, and when it was another one."""
    clocks.store_ahead = timedelta(seconds=store_ahead_seconds)
    stage = clocks.stage
    observer = Observer(stage.home, stage.launchers, stage.clock)

    def looks(times: int, *, beats: bool) -> list[str]:
        found = []
        for _ in range(times):
            stage.clock.advance(10)
            if beats:
                clocks.beat()
            found.append(observer.observe(STREAM).state)
        return found

    assert set(looks(10, beats=True)[1:]) == {"running"}
    assert looks(8, beats=False).index("silent") in (5, 6)  # exact but for the pause between two polls
    assert looks(1, beats=True) == ["running"]


def test_only_a_claimed_driver_with_a_sign_of_life_is_silent(clocks: Clocks) -> None:
    """One that starts has terms of its own; one that cannot be asked is lost; one with a last event has ended."""
    stage = clocks.stage
    stage.clock.advance(3_600)
    assert stage.seen().state == "running"  # it has never reported that it lives
    clocks.beat(attempt=7)
    stage.clock.advance(3_600)
    assert stage.seen().state == "running"  # nor has this attempt
    clocks.beat()
    stage.clock.advance(3_600)
    assert stage.seen().state == "silent"
    stage.end(state="unknown")
    assert stage.seen().state == "lost"
    stage.end(state="running")
    stage.say(Finished, snapshot_id=None, queries={})
    assert stage.seen().state == "finished"


def test_nothing_is_known_of_a_silent_stream_but_since_when(silent: Stage) -> None:
    """Not that it has caught up, nor how far it is behind; with the ways that work."""
    status = silent.controller.status(STREAM)
    told = status.to_json()["queries"]
    assert isinstance(told, dict)
    query = told["counts"]
    assert (status.state, status.heartbeat_age_seconds) == ("silent", 90.0)
    assert {query[name] for name in ("caught_up", "behind", "behind_age_seconds", "seconds_to_zero")} == {None}
    assert (query["batch_id"], query["is_active"]) == (3, False)
    assert "streamstate kill orders" in status.next_step
    assert "streamstate resume orders" in status.next_step


def test_how_old_a_lag_is_does_not_hang_on_the_drivers_clock(clocks: Clocks) -> None:
    """Its age is that of the heartbeat, and how long before that the sources were asked."""
    clocks.driver_ahead = timedelta(hours=-1)
    asked_at = clocks.clock.now() + clocks.driver_ahead
    clocks.clock.advance(4)
    clocks.beat(lags_at=asked_at)
    clocks.clock.advance(5)
    status = clocks.stage.controller.status(STREAM)
    assert (status.heartbeat_age_seconds, status.queries["counts"].behind_age_seconds) == (5.0, 9.0)


@pytest.mark.parametrize("wanted", ["healthy", "caught_up"])
def test_a_wait_for_health_goes_on_and_is_not_fulfilled_by_an_old_sign(silent: Stage, wanted: Any) -> None:
    """Within its timeout the driver may wake; the last error reports what was seen. (Law 6)"""
    condition = WaitCondition(wanted, STREAM, "d-0001")
    with pytest.raises(DeadlineExceededError) as late:
        silent.controller.wait(condition, 30.0)
    assert "silent (its driver lives, and has given no sign of life for 1" in str(late.value.context["last_seen"])

    def wakes() -> None:
        silent.beat(counts=QueryBeat(3, silent.clock.now(), is_active=True, is_idle=True, idle_triggers=1))

    silent.clock.advance(1)
    wakes()
    assert silent.controller.wait(condition, 30.0)


@pytest.mark.parametrize(
    ("ask", "way"),
    [
        (lambda stage: stage.controller.order("stop", STREAM), "--on-deadline kill"),
        (lambda stage: stage.controller.order("drain", STREAM), "streamstate drain orders"),
        (lambda stage: stage.controller.resume(STREAM), "streamstate resume orders"),
        (lambda stage: stage.deploy("print('v2')\n"), "then deploy again"),
    ],
    ids=["stop", "drain", "resume", "deploy"],
)
def test_what_a_silent_driver_would_not_obey_is_refused_at_once(
    silent: Stage, ask: Callable[[Stage], object], way: str
) -> None:
    """With the way that works; nothing is ordered, and nothing is changed."""
    before = silent.control.need_register()
    with pytest.raises(ConflictError, match="the stream is silent: its driver lives") as refused:
        ask(silent)
    assert way in refused.value.next_step
    assert refused.value.context["silent_for_seconds"] == 90.0
    assert silent.control.journal("d-0001").commands() == []
    assert silent.control.need_register() == before


@pytest.mark.parametrize("verb", ["resume", "deploy", "drain"])
def test_after_a_kill_each_of_them_works(silent: Stage, verb: str) -> None:
    """As the refusals report."""
    silent.run_batches(3)
    silent.controller.kill(STREAM, grace_seconds=1.0)
    assert silent.seen().state == "failed"
    if verb == "deploy":
        assert silent.deploy("print('v2')\n").deployment_id == "d-0002"
    else:
        silent.controller.resume(STREAM) if verb == "resume" else silent.controller.order("drain", STREAM)
        assert silent.seen().attempt == 2


def test_a_stop_that_may_kill_is_ordered_and_keeps_the_end(silent: Stage) -> None:
    """The driver may wake until the deadline; then it is ended."""
    silent.run_batches(3)
    found: ForcedStop = silent.controller.forced_stops.stop(STREAM, deadline_seconds=20.0, on_deadline="kill")
    assert (found.outcome.outcome, found.outcome.state) == ("killed", "failed")
    assert found.outcome.snapshot_id is not None
    assert "kill d-0001-a0001" in silent.launcher.calls


def test_an_order_that_was_given_before_waits_for_the_driver_to_wake(clocks: Clocks) -> None:
    """It is not reported that nobody will obey it."""
    clocks.beat()
    clocks.stage.controller.order("stop", STREAM)
    clocks.clock.advance(90)
    (order,) = clocks.stage.controller.status(STREAM).orders
    assert order.why == "the driver is silent: it obeys when it wakes"
