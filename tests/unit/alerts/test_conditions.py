"""Which rule holds when, over a stream that a test plays."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from unit.alerts.conftest import Alerted, behind

from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import DrainFailed, Failed, SnapshotReady
from airflow_streamstate.protocol.positions import Heartbeat, QueryBeat
from airflow_streamstate.protocol.settings import AgentSettings
from support.sim_stage import STREAM, Stage


def test_a_driver_that_dies_is_told_once_and_its_successor_resolves_it(alerted: Alerted) -> None:
    """With the words that ``status`` has."""
    alerted.stage.end(state="gone")
    assert alerted.look(5) == ["raised driver_dead"]
    assert alerted.text.startswith("attempt 1 is failed: the driver has ended without a last event")
    assert alerted.look(600) == []
    alerted.stage.controller.resume(STREAM)
    assert alerted.look(5) == []  # what was started may fail at once
    alerted.stage.come_to_life(attempt=2, queries=("counts",))
    assert alerted.look(5) == []
    alerted.beat(attempt=2)
    assert alerted.look(5) == ["resolved driver_dead"]
    assert alerted.changes[0].alert == alerted.changes[1].alert


def test_a_failure_has_its_own_words_without_secrets(stage: Stage) -> None:
    """What the agent reported about it; a secret of the deployment is hidden. (Law 13)"""
    alerted = Alerted(stage, environment={"DB_PASSWORD": "hunter22"}, allow_literal_secrets=True)
    stage.say(Failed, error="OperationalError: no login with hunter22", traceback="…", query_name="")
    stage.end()
    assert alerted.look() == ["raised driver_dead"]
    assert "OperationalError: no login with ***" in alerted.text


def test_a_driver_that_is_silent_for_too_long_is_lost(alerted: Alerted) -> None:
    """Nothing is known of it, which a person has to hear."""
    alerted.stage.end(state="unknown")
    assert alerted.look(5) == []
    assert alerted.look(4_000) == ["raised driver_dead"]
    assert "is lost" in alerted.text


def test_a_driver_that_lives_and_says_nothing_is_told_after_two_minutes(alerted: Alerted) -> None:
    """What is not known of its queries is neither raised nor resolved; it may wake."""
    alerted.rules(state_rows_over=10)
    alerted.beat(state_rows=11, lags=behind(50))
    assert alerted.look() == ["raised state_rows"]
    assert alerted.look(119) == []
    assert alerted.look(2) == ["raised driver_silent"]
    assert alerted.text == "attempt 1 lives and has given no sign of life for 121 s, and 120 s at most"
    assert alerted.look(3_600) == []  # no rule of a query: the last sign of life is an hour old
    assert sorted(alerted.standing()) == ["driver_silent", "state_rows"]
    alerted.beat(state_rows=1)
    assert sorted(alerted.look()) == ["resolved driver_silent", "resolved state_rows"]


def test_a_driver_that_is_silent_while_it_is_stopped_is_told(alerted: Alerted) -> None:
    """The order waits for it; its threshold can be changed, and be none."""
    alerted.stage.controller.order("stop", STREAM)
    (slot,) = alerted.stage.control.journal("d-0001").commands()
    assert slot.command is not None
    alerted.stage.accept(slot.command)
    assert alerted.look(200) == ["raised driver_silent"]
    alerted.beat()
    assert alerted.look() == ["resolved driver_silent"]
    alerted.rules(driver_silent_seconds=None)
    assert alerted.look(2_000) == []


def test_a_restart_between_two_looks_is_told_and_resolved(stage: Stage) -> None:
    """A watcher that restarts within seconds hides no failure."""
    alerted = Alerted(stage, restart_policy={"on_failure": "restart", "initial_backoff_seconds": 0.0})
    alerted.look()
    stage.end(state="gone")
    watcher = stage.another_controller("watcher").watcher(print)
    for _ in range(3):
        watcher.tick()
        stage.clock.advance(3)
    stage.come_to_life(attempt=2, queries=("counts",))
    alerted.beat(attempt=2)
    assert alerted.look(20) == ["raised driver_dead"]
    assert alerted.text.startswith("attempt 2 was started, since the one before it failed: attempt 1 failed")
    assert alerted.look(20) == ["resolved driver_dead"]
    assert alerted.look(20) == []


def test_a_restart_that_is_given_up_is_an_alert_of_its_own(stage: Stage) -> None:
    """With the reason that the register has."""
    alerted = Alerted(
        stage, restart_policy={"on_failure": "restart", "initial_backoff_seconds": 0.0, "max_restarts": 1}
    )
    watcher = stage.another_controller("watcher").watcher(lambda _line: None)
    for attempt in (1, 2):
        stage.end(attempt=attempt, state="gone")
        for _ in range(30):
            stage.clock.advance(10)
            watcher.tick()
        if attempt == 1:
            stage.come_to_life(attempt=2)
    assert alerted.look() == ["raised gave_up", "raised driver_dead"]
    assert "1 restart within 3600 s did not help" in alerted.changes[0].alert.text


def test_a_query_that_failed_while_others_run_is_an_alert_of_its_own(alerted: Alerted) -> None:
    """By query; it ends with the deployment's failure, or when the query runs again."""
    alerted.stage.query_failed()
    assert alerted.look() == ["raised query_died"]
    alerted.stage.clock.advance(900)
    alerted.beat()
    assert (alerted.changes[0].alert.subject, alerted.look()) == ("counts", [])
    alerted.stage.start_query()
    assert alerted.look() == ["resolved query_died"]


@pytest.mark.parametrize(
    ("said", "seconds", "told"),
    [
        ({"lags": behind(50)}, 899, []),
        ({"lags": behind(50)}, 901, ["raised no_commit"]),
        ({}, 901, ["raised no_commit"]),  # an unknown lag is never none
        ({"lags": behind(0)}, 901, []),
        ({"is_idle": True}, 901, []),
        ({"is_active": False, "lags": behind(50)}, 901, []),
        ({"lags": behind(50), "batch_seconds": 400.0}, 901, []),
        ({"lags": behind(50), "batch_seconds": 400.0}, 1_201, ["raised no_commit"]),
    ],
)
def test_a_query_that_commits_nothing_although_input_waits(
    alerted: Alerted, said: dict[str, Any], seconds: float, told: list[str]
) -> None:
    """By the driver's clock alone; three batches are waited for at least."""
    committed_at = alerted.stage.clock.now()
    alerted.stage.clock.advance(seconds)
    alerted.beat(committed_at=committed_at, **said)
    assert alerted.look() == told


@pytest.mark.parametrize("minutes", [-5, 5])
def test_clocks_that_differ_make_no_alert(alerted: Alerted, minutes: int) -> None:
    """Of a driver whose clock is five minutes apart from the watcher's."""
    alerted.rules(no_commit_seconds=200.0, watermark_behind_seconds=200.0)
    at = alerted.stage.clock.now() + timedelta(minutes=minutes)
    beat = QueryBeat(3, at, is_active=True, lags=behind(50), watermark_at=at - timedelta(seconds=100))
    alerted.stage.control.put_heartbeat(Heartbeat(STREAM, "d-0001", 1, at, {"counts": beat}))
    assert alerted.look() == []


@pytest.mark.parametrize(
    ("rule", "said", "under", "over"),
    [
        ("lag_over", "lags", behind(100), behind(101)),
        ("state_rows_over", "state_rows", 100, 101),
        ("state_memory_bytes_over", "state_memory_bytes", 100, 101),
    ],
)
def test_a_threshold_is_told_above_it_and_resolved_at_it(
    alerted: Alerted, rule: str, said: str, under: Any, over: Any
) -> None:
    """No threshold, no alert; a value that is not known is none."""
    name = rule.removesuffix("_over").removesuffix("_bytes")
    alerted.beat(**{said: over})
    assert alerted.look(1) == []
    alerted.rules(**{rule: 100})
    assert alerted.look(1) == [f"raised {name}"]
    alerted.beat(**{said: under})
    assert alerted.look(1) == [f"resolved {name}"]
    alerted.beat()
    assert alerted.look(1) == []


def test_a_watermark_is_compared_with_the_drivers_clock(alerted: Alerted) -> None:
    """Only with a threshold: a stream of old data has an old watermark."""
    at = alerted.stage.clock.now() - timedelta(seconds=7_000)
    alerted.beat(watermark_at=at)
    assert alerted.look() == []
    alerted.rules(watermark_behind_seconds=3_600.0)
    assert alerted.look() == ["raised watermark"]
    assert alerted.text == "the watermark of query counts is 7,000 s behind, and 3,600 s at most"


def test_a_lag_that_grows_for_long_is_told_and_one_that_only_varies_is_not(alerted: Alerted) -> None:
    """It has to fall behind by its own trend, and be further behind than half of that time ago."""
    for minute in range(30):
        alerted.beat(lags=behind(1_000 + minute % 3))
        assert alerted.look(60) == []
    told = []
    for minute in range(15):
        alerted.beat(lags=behind(1_000 + 200 * minute, falls=True))
        told += alerted.look(60)
    assert told == ["raised lag_growing"]
    assert alerted.text.startswith("query counts falls further behind: ")
    alerted.beat(lags=behind(900))
    assert alerted.look(60) == ["resolved lag_growing"]


@pytest.mark.parametrize(("added", "told"), [(300, []), (900, ["raised state_growing"])])
def test_state_that_gets_more_rows_than_are_read_is_told(alerted: Alerted, added: int, told: list[str]) -> None:
    """Ten rows are read in a second, 600 in a minute."""
    found = []
    for minute in range(90):
        alerted.beat(state_rows=1_000 + added * minute, input_rows_per_second=10.0, lags=behind(0))
        found += alerted.look(60)
    assert found == told


def test_a_snapshot_is_old_after_three_times_its_schedule(stage: Stage) -> None:
    """A stream without a schedule has no such rule, unless one is given."""
    alerted = Alerted(stage, settings=AgentSettings(snapshot_every_seconds=100.0))
    alerted.stage.clock.advance(299)
    alerted.beat()
    assert alerted.look() == []
    assert alerted.look(2) == ["raised snapshot_age"]
    assert "has no snapshot" in alerted.text
    stage.say(SnapshotReady, snapshot_id="d-0001-live-000001", snapshot_kind="live", queries={})
    assert alerted.look(1) == ["resolved snapshot_age"]


def test_only_its_own_failure_is_told_of_a_drain(alerted: Alerted) -> None:
    """What else holds in the meantime is reported afterwards; what was reported before stays as it is."""
    alerted.rules(state_rows_over=10)
    alerted.beat(state_rows=11)
    assert alerted.look() == ["raised state_rows"]
    order = alerted.stage.controller.order("drain", STREAM)
    alerted.stage.accept(alerted.stage.drain_of())
    alerted.stage.query_failed()
    alerted.beat(state_rows=1)
    assert alerted.look(1) == []
    alerted.stage.say(
        DrainFailed, command_id=order.command_id, command_number=1, query_name="counts", error="flush: no space",
        withdrawn=True, then="runs_on",
    )  # fmt: skip
    assert sorted(alerted.look(1)) == ["raised drain_failed", "raised query_died", "resolved state_rows"]
    assert any(one.alert.text == "the drain failed: flush: no space" for one in alerted.changes)


def test_a_stream_that_was_stopped_or_retired_is_no_alert(alerted: Alerted) -> None:
    """Nothing of it is to run."""
    alerted.stage.end(state="gone")
    assert alerted.look() == ["raised driver_dead"]
    alerted.stage.controller.retention.retire(STREAM)
    assert alerted.look() == ["resolved driver_dead"]


def test_a_rule_that_is_off_is_not_told(alerted: Alerted) -> None:
    """An alert that stood is resolved."""
    alerted.stage.end(state="gone")
    alerted.look()
    alerted.rules(off=("driver_dead",))
    assert alerted.look() == ["resolved driver_dead"]
    assert alerted.look() == []


def test_a_stream_that_cannot_be_read_is_told_and_nothing_else_is_resolved(alerted: Alerted) -> None:
    """What is not known is not called well. (Law 7)"""
    alerted.rules(state_rows_over=10)
    alerted.beat(state_rows=11)
    assert alerted.look() == ["raised state_rows"]
    key = layout.register_key(STREAM)
    stored = alerted.stage.store.get(key)
    assert stored is not None
    alerted.stage.store.put(key, b"{")
    assert alerted.look() == ["raised unreadable"]
    assert alerted.look(600) == []
    alerted.stage.store.put(key, stored.body)
    alerted.beat(state_rows=11)
    assert alerted.look() == ["resolved unreadable"]
