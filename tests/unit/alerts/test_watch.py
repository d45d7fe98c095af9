"""What is reported once, by however many processes, and what is reported where the home does not answer."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from unit.alerts.conftest import Alerted, behind, staged

from airflow_streamstate.alerts.alert_watch import HOME_AWAY_SECONDS, WHOLE_SECONDS, AlertWatch
from airflow_streamstate.alerts.conditions import MAX_OWED, TELL_AGAIN_AFTER, AlertChange
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.registers import AlertBook
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home
from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Stopped
from airflow_streamstate.protocol.ids import launch_key_for
from airflow_streamstate.store.base import MOST_EVENTS, SHORT_SECONDS
from airflow_streamstate.store.folder_lock import folder_lock
from airflow_streamstate.store.local import LocalStore
from support.checkpoints import HookedStore
from support.faulty_store import KILL_POINTS, Fault, FaultPlan, FaultyStore, SimulatedCrash
from support.sim_stage import STREAM, Stage
from support.upgrade_stage import UpgradeStage
from support.vanishing_store import VanishingStore


def test_two_watches_tell_each_alert_once(alerted: Alerted) -> None:
    """Raised by one of them, resolved by the other."""
    other = alerted.another()
    other.look()
    alerted.stage.end(state="gone")
    assert alerted.look(5) == ["raised driver_dead"]
    assert alerted.look(5, other) == []
    alerted.rules(off=("driver_dead",))
    assert alerted.look(5, other) == ["resolved driver_dead"]
    assert alerted.look(5) == []


def test_an_alert_says_whose_the_stream_is(alerted: Alerted) -> None:
    """In its line and in its JSON, as it is recorded when the alert is reported."""
    alerted.stage.controller.details.change_ownership(STREAM, "ada", {"team": "payments"})
    alerted.stage.end(state="gone")
    assert alerted.look(5) == ["raised driver_dead"]
    change = alerted.changes[-1]
    assert change.line.startswith(f"{STREAM}: driver_dead: ")
    assert change.line.endswith(" (owner ada)")
    assert (change.to_json()["owner"], change.to_json()["labels"]) == ("ada", {"team": "payments"})
    alerted.stage.controller.details.change_ownership(STREAM, "")
    alerted.rules(off=("driver_dead",))
    assert alerted.look(5) == ["resolved driver_dead"]
    assert "owner" not in alerted.changes[-1].line


@pytest.mark.parametrize("other_looks_at", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
def test_two_watches_at_once_tell_each_alert_once(tmp_path: Path, other_looks_at: int) -> None:
    """Whichever writes first; the other one reads again. (Law 1)"""
    store = HookedStore()
    alerted = Alerted(Stage(tmp_path, store))
    alerted.look()
    other = alerted.another()
    other.look()
    alerted.stage.end(state="gone")
    calls = 0

    def meanwhile(_verb: str, _key: str) -> None:
        nonlocal calls
        calls += 1
        if calls == other_looks_at:
            other.look()

    store.before = meanwhile
    alerted.watch.look()
    store.before = None
    other.look()
    assert alerted.words() == ["raised driver_dead"]
    assert alerted.standing() == ["driver_dead"]


def test_a_process_that_begins_anew_repeats_nothing(alerted: Alerted) -> None:
    """What was reported is in the home; what changed in the meantime is reported."""
    alerted.rules(state_rows_over=10, state_memory_bytes_over=10)
    alerted.beat(state_rows=11, state_memory_bytes=11)
    assert alerted.look() == ["raised state_rows", "raised state_memory"]
    alerted.beat(state_rows=10, state_memory_bytes=12)
    assert alerted.look(60, alerted.another()) == ["resolved state_rows"]
    assert alerted.look(60, alerted.another()) == []
    assert alerted.standing() == ["state_memory"]


def test_each_audience_is_told_for_itself(alerted: Alerted) -> None:
    """A webhook and Airflow are both notified; neither hides an alert from the other."""
    alerted.stage.end(state="gone")
    assert alerted.look() == ["raised driver_dead"]
    assert alerted.look(0, alerted.another("airflow")) == ["raised driver_dead"]
    assert alerted.look(0, alerted.another("airflow")) == []
    assert (alerted.standing("watch"), alerted.standing("airflow")) == (["driver_dead"], ["driver_dead"])


def test_growth_is_seen_by_single_looks_too(alerted: Alerted) -> None:
    """A process that looks once and ends keeps what it compares with in the home."""
    told = []
    for minute in range(20):
        alerted.beat(lags=behind(1_000 + 200 * minute, falls=True))
        told += alerted.look(60, alerted.another("airflow", remembers=False))
    assert told == ["raised lag_growing"]


LAST_CALL = 19
"""How many calls of the store a first poll makes if it raises an alert."""


def counted(alerted: Alerted, plan: FaultPlan) -> AlertWatch:
    """A watch whose calls of the store a plan counts, and may strike."""
    stage = alerted.stage
    home = Home.of(FaultyStore(stage.store, plan), stage.store, stage.folder, stage.clock)
    return AlertWatch(Controller(home, stage.launcher, stage.clock, "watcher"), "watch", alerted.changes.append)


def test_a_quiet_stream_costs_no_write(alerted: Alerted) -> None:
    """What only growth is measured by stays in the process."""
    plan = FaultPlan()
    watch = counted(alerted, plan)
    for _ in range(60):
        alerted.beat(lags=behind(50))
        alerted.look(60, watch)
    assert plan.writes == []


def test_a_round_without_news_reads_one_object_of_a_running_stream_and_none_of_others(alerted: Alerted) -> None:
    """In addition to the list of streams and three folders of the feed; what only the heartbeat has is reported too."""
    stage, plan = alerted.stage, FaultPlan()
    alerted.rules(state_rows_over=10)
    for name in ("stopped-1", "stopped-2", "stopped-3"):
        stage.controller.deploy(stage.request(stream_id=name))
        end = Stopped(name, "d-0001", 1, stage.clock.now(), stage.clock.new_uuid(), "d-0001-stopped-000001", {})
        stage.home.control(name).journal("d-0001").append(end)
    watch = counted(alerted, plan)
    alerted.look(0, watch)
    alerted.look(0, watch)
    for _ in range(5):
        alerted.beat()
        before = len(plan.calls)
        assert alerted.look(60, watch) == []
        called = [(call.method, call.key) for call in plan.calls[before:]]
        assert [key for _, key in called if not key.startswith(layout.FEED_FOLDER)] == [
            "", layout.heartbeat_key(STREAM, "d-0001"),
        ]  # fmt: skip
        assert len(called) == 5
    alerted.beat(state_rows=11)
    assert alerted.look(60, watch) == ["raised state_rows"]


def test_a_stream_is_looked_at_as_a_whole_from_time_to_time(tmp_path: Path) -> None:
    """An entry of the feed may be missing: here it has none about the failure."""
    alerted = Alerted(Stage(tmp_path))
    alerted.look()
    alerted.stage.query_failed()
    alerted.stage.clock.advance(60)
    alerted.beat()
    assert alerted.look() == []
    alerted.stage.clock.advance(WHOLE_SECONDS)
    alerted.beat()
    assert alerted.look() == ["raised query_died"]


@pytest.mark.parametrize("fault", [*KILL_POINTS, Fault.UNAVAILABLE], ids=lambda fault: fault.name)
@pytest.mark.parametrize("number", range(1, LAST_CALL + 2))
def test_a_watch_that_dies_at_any_call_loses_no_alert(alerted: Alerted, number: int, fault: Fault) -> None:
    """Another one reports the alert minutes later, at most once more and with the same id. (Laws 1 and 8)"""
    alerted.stage.end(state="gone")
    plan = FaultPlan(at={number: fault})
    watch = counted(alerted, plan)
    with contextlib.suppress(SimulatedCrash, UnavailableError):
        watch.look()
    told = len(alerted.changes)
    assert told <= 1
    assert (number <= LAST_CALL) == (len(plan.calls) >= number)  # the sweep reaches every call
    alerted.look()
    alerted.look(TELL_AGAIN_AFTER.total_seconds())
    alerted.look(TELL_AGAIN_AFTER.total_seconds())
    assert 1 <= len(alerted.changes) <= told + 1
    assert len({one.message_id for one in alerted.changes}) == 1
    assert alerted.standing() == ["driver_dead"]
    assert alerted.owed() == []
    if fault is Fault.REPLY_LOST and number <= LAST_CALL:
        count = len(alerted.changes)
        assert alerted.look(60, watch) == []  # it continues, and repeats nothing
        assert len(alerted.changes) == count


def test_a_watch_that_is_killed_while_it_tells_loses_no_alert(alerted: Alerted) -> None:
    """Between the record and the message: the next one waits for some minutes, since the first may be slow."""

    def dies(_change: AlertChange) -> None:
        raise SimulatedCrash("killed")

    alerted.stage.end(state="gone")
    with pytest.raises(SimulatedCrash):
        AlertWatch(alerted.stage.another_controller("watcher"), "watch", dies).look()
    other = alerted.another(remembers=False)
    assert alerted.look(TELL_AGAIN_AFTER.total_seconds() - 1, other) == []
    assert alerted.owed() == ["raised driver_dead"]
    assert alerted.look(1, other) == ["raised driver_dead"]
    assert alerted.owed() == []
    assert alerted.look(600, other) == []


def test_what_is_on_its_way_is_owed_until_it_has_arrived(alerted: Alerted) -> None:
    """A receiver that is away for long gets it from the process that has it, and from no other."""
    on_its_way: set[str] = set()
    watch = alerted.another(waiting=lambda: on_its_way)
    alerted.stage.end(state="gone")
    on_its_way |= {"something else"}
    alerted.look(0, watch)
    (change,) = alerted.changes
    assert alerted.owed() == []
    alerted.rules(off=("driver_dead",))
    on_its_way |= {f"{change.alert.alert_id}/resolved"}
    assert alerted.look(60, watch) == ["resolved driver_dead"]
    for _ in range(10):
        assert alerted.look(60, watch) == []
        assert alerted.look(60) == []
        assert alerted.owed() == ["resolved driver_dead"]
    on_its_way.clear()
    alerted.look(60, watch)
    assert alerted.owed() == []


def test_what_has_not_arrived_at_the_end_of_a_process_is_told_by_the_next_one_at_once(alerted: Alerted) -> None:
    """A single pass whose receiver does not answer, as cron runs it."""
    on_its_way: set[str] = set()
    watch = alerted.another(remembers=False, waiting=lambda: on_its_way)
    alerted.stage.end(state="gone")
    watch._tell = lambda change: (alerted.changes.append(change), on_its_way.add(change.message_id))[0]
    assert alerted.look(0, watch) == ["raised driver_dead"]
    watch.settle()
    assert alerted.owed() == ["raised driver_dead"]
    assert alerted.look(1, alerted.another(remembers=False)) == ["raised driver_dead"]
    assert alerted.changes[0].message_id == alerted.changes[1].message_id
    assert alerted.owed() == []


def test_of_messages_that_nothing_takes_the_oldest_are_given_up(alerted: Alerted) -> None:
    """An alert that comes and goes while a receiver is away for days does not make the record grow without end."""
    on_its_way: set[str] = set()
    watch = alerted.another(waiting=lambda: on_its_way)
    watch._tell = lambda change: (alerted.changes.append(change), on_its_way.add(change.message_id))[0]
    alerted.stage.end(state="gone")
    for number in range(MAX_OWED + 3):
        alerted.rules(off=("driver_dead",) if number % 2 else ())
        assert alerted.look(1, watch) == [f"{'resolved' if number % 2 else 'raised'} driver_dead"]
    owed = [(one.alert.alert_id, one.kind) for one in alerted.told().owed]
    assert owed == [(one.alert.alert_id, one.kind) for one in alerted.changes[3:]]


def test_a_home_that_does_not_answer_is_told_after_a_minute_and_once(tmp_path: Path) -> None:
    """And when it answers again; the alerts of its streams stay as they are."""
    inner = VanishingStore(HookedStore())
    alerted = Alerted(Stage(tmp_path, home_store=inner))
    alerted.look()
    inner.vanish("renamed")
    for _ in range(10):
        with pytest.raises(UnavailableError):
            alerted.look(HOME_AWAY_SECONDS / 3)
    assert alerted.words() == ["raised home_unreachable"]
    assert alerted.changes[0].line.startswith("the home: home_unreachable: the home does not answer: ")
    inner.come_back()
    assert alerted.look(5) == ["resolved home_unreachable"]


def test_a_watch_without_the_right_to_write_tells_what_it_sees_itself(tmp_path: Path) -> None:
    """It remembers in its own process what it has reported."""
    inner = VanishingStore(HookedStore())
    alerted = Alerted(Stage(tmp_path, home_store=inner))
    alerted.stage.end(state="gone")
    inner.vanish("read_only")
    assert alerted.look() == ["raised driver_dead"]
    assert alerted.look(60) == []


def test_a_right_to_write_that_is_withdrawn_repeats_nothing(tmp_path: Path) -> None:
    """What is recorded is older than what this process reported, until another one writes there."""
    inner = VanishingStore(HookedStore())
    alerted = Alerted(Stage(tmp_path, home_store=inner))
    alerted.rules(state_rows_over=10)
    alerted.beat(state_rows=11)
    assert alerted.look() == ["raised state_rows"]
    alerted.stage.end(state="gone")
    inner.vanish("read_only")
    assert alerted.look() == ["resolved state_rows", "raised driver_dead"]
    for _ in range(20):
        assert alerted.look(60) == []
    inner.come_back()
    alerted.rules(off=("driver_dead",))
    assert alerted.look(WHOLE_SECONDS) == ["resolved state_rows"]


def test_a_damaged_register_of_alerts_is_left_as_it_is(alerted: Alerted) -> None:
    """The usual rules count, and this process remembers what it reported. (Law 7)"""
    alerted.stage.store.put(layout.alerts_key(STREAM), b"{")
    alerted.stage.end(state="gone")
    assert alerted.look() == ["raised driver_dead"]
    assert alerted.look(60) == []
    stored = alerted.stage.store.get(layout.alerts_key(STREAM))
    assert stored is not None
    assert stored.body == b"{"


def test_a_stream_that_is_gone_is_forgotten_and_a_new_one_found(alerted: Alerted) -> None:
    """Each at the next poll."""
    stage = alerted.stage
    stage.controller.deploy(stage.request(stream_id="second"))
    alerted.look()
    assert set(alerted.watch.streams) == {STREAM, "second"}
    for info in list(stage.store.list_objects(f"{STREAM}/")):
        stage.store.delete(info.key)
    alerted.look()
    assert set(alerted.watch.streams) == {"second"}


def test_an_upgrade_is_silent_but_for_its_own_failure(tmp_path: Path) -> None:
    """The old driver ends, the new one fails, the old one is back: one alert, which the next good upgrade resolves."""
    upgraded = UpgradeStage(staged(tmp_path)).runs()
    alerted = Alerted(upgraded.stage, runs=True)
    alerted.rules(state_rows_over=10)
    alerted.look()
    view = upgraded.to_started()
    assert alerted.look(5) == []
    upgraded.fails()
    assert alerted.look(5) == []
    view = upgraded.advance(view)
    assert alerted.look(5) == []
    upgraded.new_runs(4, "d-0003", state_rows=11)
    view = upgraded.advance(view)
    for _ in range(5):
        if view.is_over:
            break
        upgraded.stage.clock.advance(60)
        upgraded.beats(6, "d-0003", state_rows=11)
        view = upgraded.advance(view)
    assert view.outcome == "given_up"
    assert sorted(alerted.look(5)) == ["raised state_rows", "raised upgrade_failed"]
    failed = next(one.alert for one in alerted.changes if one.alert.rule == "upgrade_failed")
    assert failed.subject == view.upgrade_id
    assert "the new version did not become healthy, and the old one is back" in failed.text
    assert alerted.look(60) == []
    fresh = alerted.another("airflow")
    assert "raised upgrade_failed" in alerted.look(0, fresh)  # seen by what runs, although it did not see the upgrade
    assert upgraded.stage.launcher.states[launch_key_for("d-0003", 1)] == "running"


def test_an_upgrade_that_is_refused_is_told_and_resolved_by_the_next_one(tmp_path: Path) -> None:
    """The stream runs on; a person should know that the version did not come."""
    upgraded = UpgradeStage(staged(tmp_path)).runs()
    alerted = Alerted(upgraded.stage, runs=True)
    alerted.look()
    view = upgraded.begin()
    upgraded.advance(view)
    assert alerted.look() == []
    view = upgraded.rehearsed(view, refused=True)
    assert view.outcome == "refused"
    assert alerted.look() == ["raised upgrade_failed"]
    assert "was refused, and the stream runs on" in alerted.text
    assert alerted.look(60) == []
    upgraded.to_started("up-2")
    alerted.look()
    upgraded.new_runs(4)
    second = upgraded.advance(upgraded.upgrades.under_way(STREAM))  # type: ignore[arg-type]
    upgraded.new_runs(6)
    second = upgraded.advance(second)
    assert second.is_what_was_asked
    assert alerted.look() == ["resolved upgrade_failed"]


def test_a_change_is_plain_json_and_one_line(alerted: Alerted) -> None:
    """With the same id when it is resolved."""
    alerted.stage.end(state="gone")
    alerted.look()
    found: AlertChange = alerted.changes[0]
    assert found.to_json() == {
        "message_id": f"{found.alert.alert_id}/raised", "kind": "raised", "alert_id": found.alert.alert_id,
        "stream_id": STREAM, "deployment_id": "d-0001", "owner": "", "labels": {},
        "rule": "driver_dead", "subject": "", "raised_at": "2026-03-01T10:00:00.000Z",
        "at": "2026-03-01T10:00:00.000Z", "text": found.alert.text,
    }  # fmt: skip
    assert found.line == f"{STREAM}: driver_dead: {found.alert.text}"


def test_rules_that_make_no_sense_are_refused(alerted: Alerted) -> None:
    """With the nearest known name; nothing is written."""
    before = AlertBook(alerted.stage.control).rules()
    for given, fact in (
        ({"lag_ovr": 3}, "Did you mean lag_over?"),
        ({"off": ("driver_ded",)}, "Did you mean driver_dead?"),
        ({"lag_over": -1}, "Use a whole number from 0"),
        ({"lag_over": 1.5}, "Use a whole number"),
        ({"no_commit_seconds": float("nan")}, "Use a number of seconds from 1"),
        ({"no_commit_seconds": True}, "Use a number of seconds from 1"),
    ):
        with pytest.raises(InvalidRequestError, match=fact.replace("?", r"\?")):
            alerted.rules(**given)
    assert AlertBook(alerted.stage.control).rules() == before


def test_a_stream_whose_lock_is_kept_holds_up_no_alert_of_another(tmp_path: Path) -> None:
    """It is looked at again in the next round."""
    stage = Stage(tmp_path, LocalStore(tmp_path / "home", fsync=False))
    stage.deploy(stream_id="aa")
    alerted = Alerted(stage)
    alerted.look()
    stage.end(state="gone")
    began = stage.clock.monotonic_seconds()
    with folder_lock(stage.store.root / "aa", SYSTEM_CLOCK):
        assert alerted.look() == ["raised driver_dead"]
        assert stage.clock.monotonic_seconds() - began < 2 * SHORT_SECONDS
        assert alerted.changes[-1].alert.rule == "driver_dead"
        assert alerted.changes[-1].stream_id == STREAM
    assert alerted.look() == ["raised driver_dead"]
    assert alerted.changes[-1].stream_id == "aa"


def test_a_stream_of_too_many_events_is_no_alert_until_all_are_read(tmp_path: Path) -> None:
    """Neither that it cannot be read, nor a count of only a part of them; a single pass reads them all."""
    stage = Stage(tmp_path)
    stage.deploy()
    for number in range(10, 2 * MOST_EVENTS):
        stage.store.put(layout.event_key(STREAM, "d-0001", number), b"{}")
    stage.end(state="gone")
    alerted = Alerted(stage, runs=True)
    single = alerted.another("once", remembers=False)
    assert alerted.look() == []
    assert alerted.look() == ["raised driver_dead"]
    assert alerted.look(watch=single) == ["raised driver_dead"]
