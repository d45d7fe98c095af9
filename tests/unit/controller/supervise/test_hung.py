"""A driver that hangs under a watcher: it is ended, its end is proven, and only then the next attempt starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.controller.supervise.conftest import Supervised

from airflow_streamstate.controller.supervise.watcher import Watcher
from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.launch.interface import LaunchHandle, LaunchStatus
from airflow_streamstate.protocol.policies import RestartPolicy
from airflow_streamstate.protocol.positions import QueryBeat
from support.checkpoints import HookedStore
from support.sim_stage import STREAM, Stage
from support.vanishing_store import VanishingStore

BEAT_SECONDS = 10.0
KILLED = "kill d-0001-a0001"


def beat(stage: Stage, attempt: int = 1) -> None:
    stage.beat(attempt=attempt, counts=QueryBeat(3, stage.clock.now(), is_active=True))


def work(supervised: Supervised, seconds: float, watcher: Watcher | None = None) -> None:
    """The driver writes its heartbeats, under the watcher."""
    until = supervised.stage.clock.monotonic_seconds() + seconds
    while supervised.stage.clock.monotonic_seconds() < until:
        beat(supervised.stage, supervised.register.attempt)
        supervised.watch(BEAT_SECONDS, watcher)


def hang(supervised: Supervised, seconds: float, watcher: Watcher | None = None) -> None:
    """It writes none."""
    supervised.watch(seconds, watcher)


def hanging(stage: Stage, **policy: Any) -> Supervised:
    """A stream under a watcher, whose driver has worked for a while."""
    supervised = Supervised(stage, initial_backoff_seconds=5.0, **policy)
    work(supervised, 60.0)
    return supervised


def test_a_driver_that_hangs_is_ended_and_restarted(stage: Stage) -> None:
    """After the silence that the policy allows; the record of why comes before the kill. (Laws 1 and 2)"""
    supervised = hanging(stage)
    at = stage.clock.monotonic_seconds()
    hang(supervised, 570.0)
    assert (KILLED in stage.launcher.calls, supervised.register.restarts) == (False, None)
    assert supervised.said == ["up", "silent"]
    hang(supervised, 60.0)
    assert stage.launcher.calls.count(KILLED) == 1
    assert stage.clock.monotonic_seconds() - at < 650
    assert supervised.register.attempt == 2
    assert supervised.said[:5] == ["up", "silent", "recorded", "waiting", "restarting"]
    assert supervised.record.reason.startswith("attempt 1 hung: its driver lived, and gave no sign of life for 6")
    assert (supervised.record.is_started, supervised.record.is_hung) == (True, False)
    supervised.restarted(2)
    work(supervised, 100.0)
    assert supervised.said[-1] == "up"


def test_a_driver_that_works_is_never_ended(stage: Stage) -> None:
    """Neither one that pauses for some minutes, nor one that starts and has not reported anything yet."""
    supervised = hanging(stage)
    for _ in range(3):
        hang(supervised, 500.0)  # a JVM that collects garbage
        work(supervised, 200.0)
    assert supervised.said == ["up", "silent"] * 3 + ["up"]
    assert not any(call.startswith("kill") for call in stage.launcher.calls)
    assert supervised.register.restarts is None
    other = stage.controller.deploy(stage.request(stream_id="second", restart_policy={"on_failure": "restart"}))
    assert other.state == "launching"
    for _ in range(200):
        beat(stage)
        supervised.watch(BEAT_SECONDS)
    assert not any(call.startswith("kill") for call in stage.launcher.calls)


@pytest.mark.parametrize("policy", [{"hung_after_seconds": 0}, {"on_failure": "alert"}, {"on_failure": "nothing"}])
def test_without_such_a_policy_it_is_only_shown(stage: Stage, policy: dict[str, Any]) -> None:
    """As silent, for as long as it is."""
    supervised = hanging(stage, **policy)
    hang(supervised, 5_000.0)
    assert supervised.said[-1] == "silent"
    assert not any(call.startswith("kill") for call in stage.launcher.calls)


def test_nothing_starts_before_its_end_is_proven(stage: Stage) -> None:
    """A driver that cannot be ended from here is tried again, and may have woken in the meantime. (1a.8)"""
    supervised = hanging(stage)
    stage.launcher.dies_when_killed = False
    hang(supervised, 700.0)
    assert stage.launcher.calls.count(KILLED) > 1
    assert (supervised.register.attempt, supervised.record.is_hung) == (1, True)
    assert "it could not be ended from here" in supervised.lines[-1].text
    assert stage.controller.status(STREAM).state == "silent"
    beat(stage)
    supervised.watch(30.0)
    assert (supervised.said[-1], supervised.register.restarts) == ("up", None)  # the record is void
    supervised.die()
    supervised.watch(10.0)
    assert supervised.register.attempt == 2
    assert supervised.record.reason.startswith("attempt 1 failed: the driver has ended without a last event")


def test_an_end_that_is_only_reported_is_waited_for(stage: Stage) -> None:
    """Of a cluster that cannot prove it: until the silence counts. (1a.8)"""
    supervised = hanging(stage)
    kill = stage.launcher.kill

    def report(handle: LaunchHandle, grace_seconds: float) -> LaunchStatus:
        kill(handle, grace_seconds)
        stage.launcher.states[handle.launch_key] = "unknown"
        stage.launcher.reported.add(handle.launch_key)
        return stage.launcher.status(handle)

    stage.launcher.kill = report  # type: ignore[method-assign]
    hang(supervised, 640.0)
    assert KILLED in stage.launcher.calls
    hang(supervised, 200.0)
    assert supervised.register.attempt == 2


@pytest.mark.parametrize("order", ["stop", "drain"])
def test_one_that_is_stopped_or_drained_is_left_to_its_owner(stage: Stage, order: str) -> None:
    """Its end would not be theirs; a flush that takes long is not hung as long as the driver reports that it lives."""
    supervised = hanging(stage)
    stage.controller.order(order, STREAM)
    (slot,) = stage.control.journal("d-0001").commands()
    assert slot.command is not None
    stage.accept(slot.command)
    hang(supervised, 2_000.0)
    assert supervised.said[-1] in ("silent", "held")
    assert not any(call.startswith("kill") for call in stage.launcher.calls)


def test_a_home_that_was_away_for_all_ends_no_driver(tmp_path: Path) -> None:
    """The drivers could not write either: after its return each has the time to report that it lives."""
    inner = VanishingStore(HookedStore())
    stage = Stage(tmp_path, home_store=inner)
    supervised = hanging(stage)
    inner.vanish("renamed")
    for _ in range(1_000):
        with contextlib.suppress(UnavailableError):
            supervised.watcher.tick()
        stage.clock.advance(1.0)
    inner.come_back()
    supervised.watch(30.0)
    beat(stage)
    work(supervised, 300.0)
    assert not any(call.startswith("kill") for call in stage.launcher.calls)
    assert supervised.said[-1] == "up"


def test_a_watcher_that_was_frozen_itself_ends_no_driver(stage: Stage) -> None:
    """It wakes after an hour, with its machine: what it has not seen, it does not know."""
    supervised = hanging(stage)
    stage.clock.advance(3_600)
    supervised.watch(100.0)
    assert not any(call.startswith("kill") for call in stage.launcher.calls)
    work(supervised, 100.0)
    assert supervised.said[-1] == "up"


def test_several_watchers_end_it_and_restart_it_once(stage: Stage) -> None:
    """The record is one compare-and-swap; a kill may be repeated. (Laws 1 and 2)"""
    supervised = hanging(stage)
    watchers = [supervised.another(host=name) for name in ("second", "third")]
    for _ in range(700):
        supervised.watcher.tick()
        for watcher in watchers:
            watcher.tick()
        stage.clock.advance(1.0)
    assert supervised.register.attempt == 2
    assert list(stage.launcher.requests) == ["d-0001-a0001", "d-0001-a0002"]
    assert supervised.record.reason.startswith("attempt 1 hung")


def passes(supervised: Supervised, count: int) -> Iterator[list[str]]:
    """Single passes of ``watch --once``, a minute apart."""
    for _ in range(count):
        supervised.another(trusts_clocks=True).tick()
        yield supervised.stage.launcher.calls
        supervised.stage.clock.advance(60.0)


def test_a_single_pass_sees_the_silence_itself_before_it_ends_a_driver(stage: Stage) -> None:
    """It looks on for as long as that takes, and only where the silence is due by the clocks."""
    supervised = Supervised(stage)
    beat(stage)
    stage.clock.advance(500)
    before = stage.clock.monotonic_seconds()
    next(passes(supervised, 1))
    assert stage.clock.monotonic_seconds() - before < 5
    stage.clock.advance(200)
    assert KILLED in next(passes(supervised, 1))
    list(passes(supervised, 2))
    assert supervised.register.attempt == 2


def test_a_single_pass_that_sees_it_wake_ends_nothing(stage: Stage) -> None:
    """For one after the suspend of a laptop, where everything seems old."""
    supervised = Supervised(stage)
    beat(stage)
    stage.clock.advance(5_000)
    sleep = stage.clock.sleep

    def wakes(seconds: float) -> None:
        sleep(seconds)
        beat(stage)

    stage.clock.sleep = wakes  # type: ignore[method-assign]
    next(passes(supervised, 1))
    assert KILLED not in stage.launcher.calls
    assert supervised.said[-1] == "up"


def test_too_many_ends_like_that_give_it_up_and_leave_the_driver(stage: Stage) -> None:
    """No attempt would follow, so nothing is won by ending it; the reason is reported."""
    supervised = hanging(stage, max_restarts=1)
    hang(supervised, 700.0)
    supervised.restarted(2)
    work(supervised, 60.0)
    hang(supervised, 1_500.0)
    assert "kill d-0001-a0002" not in stage.launcher.calls
    assert "1 restart within 3600 s did not help: attempt 2 hung" in supervised.record.gave_up
    beat(stage, 2)
    supervised.watch(30.0)
    assert (supervised.said[-1], supervised.record.gave_up, supervised.record.is_started) == ("up", "", True)


def test_the_policy_takes_zero_and_no_negative_number() -> None:
    """0 is off."""
    assert RestartPolicy().changed({"hung_after_seconds": 0}).hung_after_seconds == 0
    with pytest.raises(InvalidRequestError, match="cannot have this value"):
        RestartPolicy().changed({"hung_after_seconds": -1})
