"""Which stream a watcher looks at when, what that costs, and a home that goes away."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path

import pytest
from unit.controller.supervise.conftest import Supervised

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.supervise.watcher import LIST_SECONDS, RUNNING_SECONDS, Line
from airflow_streamstate.errors import HomeNotFoundError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import launch_key_for
from airflow_streamstate.protocol.policies import RetentionPolicy
from airflow_streamstate.protocol.positions import QueryBeat
from airflow_streamstate.store.base import MOST_EVENTS, SHORT_SECONDS
from airflow_streamstate.store.folder_lock import folder_lock
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from support.checkpoints import HookedStore
from support.faulty_store import FaultPlan, FaultyStore
from support.sim_stage import STREAM, Stage
from support.vanishing_store import ABSENCES, Absence, VanishingStore


def test_a_stream_that_runs_here_is_not_looked_at_by_the_store_between_two_looks(stage: Stage) -> None:
    """The launcher is asked about its process; the home is only listed for new streams."""
    supervised = Supervised(stage, hung_after_seconds=0)
    plan = FaultPlan()
    home = Home.of(FaultyStore(stage.store, plan), stage.store, stage.folder, stage.clock)
    watcher = Controller(home, stage.launcher, stage.clock, "watcher").watcher(supervised.lines.append)
    supervised.watch(5.0, watcher)
    plan.calls.clear()
    supervised.watch(RUNNING_SECONDS * 0.7, watcher)
    methods = {call.method for call in plan.calls}
    assert methods == {"list_folders"}
    assert len(plan.calls) <= RUNNING_SECONDS * 0.7 / LIST_SECONDS + 1
    supervised.die()
    supervised.watch(1.0, watcher)
    assert supervised.said[-1] == "recorded"  # its end is seen at the next tick


def test_the_heartbeat_of_a_stream_that_runs_here_is_read_four_times_in_the_silence_that_it_is_allowed(
    stage: Stage,
) -> None:
    """A driver that would be ended when it hangs: a poll every two and a half minutes by default."""
    supervised = Supervised(stage)
    plan = FaultPlan()
    home = Home.of(FaultyStore(stage.store, plan), stage.store, stage.folder, stage.clock)
    watcher = Controller(home, stage.launcher, stage.clock, "watcher").watcher(supervised.lines.append)
    for _ in range(360):
        stage.beat(counts=QueryBeat(3, stage.clock.now(), is_active=True))
        supervised.watch(10.0, watcher)
    reads = [call for call in plan.calls if call.key == layout.heartbeat_key(STREAM, "d-0001")]
    assert 3_600 / 150 - 1 <= len(reads) <= 3_600 / 120 + 1


@pytest.mark.parametrize("seconds", [600.0])
def test_a_stream_that_was_stopped_costs_one_read_a_minute(stage: Stage, seconds: float) -> None:
    """Only a write of its register can change what there is to do."""
    stage.deploy(restart_policy={"on_failure": "restart"})
    stage.stopped()
    plan = FaultPlan()
    home = Home.of(FaultyStore(stage.store, plan), stage.store, stage.folder, stage.clock)
    lines: list[Line] = []
    watcher = Controller(home, stage.launcher, stage.clock, "watcher").watcher(lines.append)
    watcher.tick()
    plan.calls.clear()
    for _ in range(int(seconds)):
        stage.clock.advance(1.0)
        watcher.tick()
    reads = [call for call in plan.calls if call.key == layout.register_key(STREAM)]
    assert 0 < len(reads) <= seconds / 48 + 1
    assert {call.method for call in plan.calls} <= {"get", "list_folders"}
    assert [line.sight for line in lines] == ["ended"]


@pytest.mark.parametrize("on_failure", ["restart", "nothing"])
def test_what_a_watcher_cannot_do_anything_about_costs_little(stage: Stage, on_failure: str) -> None:
    """A driver of a different machine, and a failure that is only shown: a poll a minute, not one at each tick."""
    supervised = Supervised(stage, on_failure=on_failure)
    stage.end(state="unknown" if on_failure == "restart" else "gone")
    plan = FaultPlan()
    home = Home.of(FaultyStore(stage.store, plan), stage.store, stage.folder, stage.clock)
    watcher = Controller(home, stage.launcher, stage.clock, "watcher").watcher(supervised.lines.append)
    supervised.watch(600.0, watcher)
    assert len([call for call in plan.calls if call.key == layout.register_key(STREAM)]) <= 600 / 48 + 2
    assert supervised.said == (["up", "lost"] if on_failure == "restart" else ["failed"])


def test_a_stream_that_is_new_is_found_and_one_that_is_gone_is_forgotten(supervised: Supervised) -> None:
    """The home is listed once a minute."""
    stage = supervised.stage
    supervised.watch()
    stage.controller.deploy(stage.request(stream_id="second"))
    supervised.watch(LIST_SECONDS + 5)
    assert {line.stream_id for line in supervised.lines} == {STREAM, "second"}
    for info in list(stage.store.list_objects("second/")):
        stage.store.delete(info.key)
    supervised.watch(LIST_SECONDS + 5)
    assert set(supervised.watcher.sights) == {STREAM}


def test_a_stream_that_cannot_be_read_does_not_hide_the_others(supervised: Supervised) -> None:
    """It is reported once, and looked at again. (Law 7)"""
    stage = supervised.stage
    stage.controller.deploy(stage.request(stream_id="second"))
    stage.store.put(layout.register_key("second"), b"{")
    supervised.watch(5.0)
    supervised.die()
    supervised.watch(20.0)
    assert supervised.register.attempt == 2
    assert [line.sight for line in supervised.lines if line.stream_id == "second"] == ["unreadable"]


def test_an_unexpected_error_at_one_stream_does_not_end_the_watch_of_the_others(tmp_path: Path) -> None:
    """It is reported in one line, without secrets, and the stream is looked at again after a pause. (Laws 6 and 7)"""
    store = HookedStore()
    stage = Stage(tmp_path, store)
    supervised = Supervised(stage)
    secret = {"environment": {"DB_PASSWORD": "hunter22"}, "allow_literal_secrets": True}
    stage.controller.deploy(stage.request(stream_id="second", **secret))
    supervised.watch(5.0)
    looks: list[float] = []

    def fail(_verb: str, key: str) -> None:
        if key == layout.register_key("second"):
            looks.append(stage.clock.monotonic_seconds())
            raise ZeroDivisionError("in the\nclient, with hunter22")

    store.before = fail
    supervised.die()
    supervised.watch(130.0)
    assert supervised.register.attempt == 2
    lines = [line for line in supervised.lines if line.stream_id == "second"]
    assert [line.sight for line in lines] == ["launching", "failed"]
    assert lines[1].text.startswith("nothing was done, for now: unexpected ZeroDivisionError (test_watcher.py:")
    assert lines[1].text.endswith("in the client, with ***")
    assert 3 <= len(looks) <= 10
    store.before = None
    supervised.watch(70.0)
    last = [line.text for line in supervised.lines if line.stream_id == "second"][-1]
    assert not last.startswith("nothing was done")


@pytest.mark.parametrize("absence", [one for one in ABSENCES if one != "read_only"])
def test_a_home_that_goes_away_is_said_once_and_watched_again(tmp_path: Path, absence: Absence) -> None:
    """A driver that dies then is restarted when the home is back; nothing is written in its place. (Law 6)"""
    store = VanishingStore(MemoryStore())
    stage = Stage(tmp_path, home_store=store)
    supervised = Supervised(stage)
    supervised.watch()
    store.vanish(absence)
    supervised.die()
    clock = stage.clock
    back_at = clock.monotonic_seconds() + 100

    def is_over() -> bool:
        if store.absence is not None and clock.monotonic_seconds() >= back_at:
            store.come_back()
        return clock.monotonic_seconds() >= back_at + 200

    supervised.watcher.run(is_over)
    assert (supervised.said.count("away"), supervised.said.count("back")) == (1, 1)
    assert store.left_in_its_place() == []
    assert supervised.register.attempt == 2


def test_a_home_that_was_never_there_is_refused(tmp_path: Path) -> None:
    """A single pass raises; a process that continues reports it once, and looks again. (Law 6)"""
    stage = Stage(tmp_path)
    lines: list[Line] = []
    watcher = stage.controller.watcher(lines.append)
    with pytest.raises(HomeNotFoundError):
        watcher.tick()
    until = stage.clock.monotonic_seconds() + 300
    watcher.run(lambda: stage.clock.monotonic_seconds() >= until)
    assert [line.sight for line in lines] == ["away"]


def test_an_end_that_is_asked_for_comes_between_two_streams(stage: Stage) -> None:
    """An act that has started is finished, and no other starts."""
    supervised = Supervised(stage, initial_backoff_seconds=0)
    stage.controller.deploy(stage.request(stream_id="second", restart_policy={"on_failure": "restart"}))
    asked: list[bool] = []

    def is_over() -> bool:
        asked.append(True)
        return len(asked) > 2

    supervised.watcher.run(is_over)
    assert len(supervised.lines) == 1


def test_a_watcher_prunes_what_has_a_recorded_retention_and_nothing_else(stage: Stage) -> None:
    """A restart waits for no prune: the ticks read nothing more than without one."""
    supervised = Supervised(stage)
    for number in range(1, 4):
        stage.keep("live", attempt=number)
    plan = FaultPlan()
    home = Home.of(FaultyStore(stage.store, plan), stage.store, stage.folder, stage.clock)
    watcher = Controller(home, stage.launcher, stage.clock, "watcher").watcher(supervised.lines.append)
    supervised.watch(5.0, watcher)
    watcher.prune_once()
    assert len(stage.control.snapshot_ids()) == 3
    stage.controller.details.change_retention(STREAM, RetentionPolicy(1))
    plan.calls.clear()
    supervised.watch(RUNNING_SECONDS, watcher)
    assert layout.retention_key(STREAM) not in {call.key for call in plan.calls}
    watcher.prune_once()
    assert [one for one in stage.control.snapshot_ids() if stage.control.manifest(one)] == ["d-0001-live-000003"]
    assert supervised.said == ["up", "pruned"]


def test_a_watch_prunes_in_a_thread_of_its_own_until_it_is_over(stage: Stage) -> None:
    """The watch of the others continues at the same time."""
    supervised = Supervised(stage, {"retention": {"keep": 1}})
    for number in range(1, 4):
        stage.keep("live", attempt=number)
    is_pruned, names = threading.Event(), set()
    asked = itertools.count()

    def say(line: Line) -> None:
        supervised.lines.append(line)
        if line.sight == "pruned":
            names.add(threading.current_thread().name)
            is_pruned.set()

    watcher = supervised.stage.another_controller("watcher").watcher(say)
    watcher.run(lambda: is_pruned.wait(0.01) or next(asked) > 3_000)
    watcher.finish_prune()
    assert supervised.said == ["up", "pruned"]
    assert names == {"streamstate-pruning"}
    assert "streamstate-pruning" not in {one.name for one in threading.enumerate()}


def test_a_watch_of_streams_without_a_retention_has_no_such_thread(supervised: Supervised) -> None:
    """It works as it did before there was one."""
    names: list[str] = []

    def is_over() -> bool:
        names.extend(one.name for one in threading.enumerate())
        return supervised.stage.clock.monotonic_seconds() > until

    until = supervised.stage.clock.monotonic_seconds() + 60
    supervised.watcher.run(is_over)
    assert supervised.said == ["up"]
    assert "streamstate-pruning" not in names


def test_a_stream_whose_lock_is_kept_holds_up_no_other(tmp_path: Path) -> None:
    """A driver on the same disk keeps it. Its stream is named with the holder and comes next time; nobody waits."""
    stage = Stage(tmp_path, LocalStore(tmp_path / "home", fsync=False))
    for name in ("aa", "bb", "zz"):
        stage.deploy(stream_id=name, restart_policy={"on_failure": "restart"})
        stage.launcher.states[launch_key_for("d-0001", 1)] = "gone"
    lines: list[Line] = []
    watcher = stage.controller.watcher(lines.append)
    with folder_lock(stage.store.root / "aa", SYSTEM_CLOCK), folder_lock(stage.store.root / "bb", SYSTEM_CLOCK):
        watcher.tick()
        assert stage.clock.monotonic_seconds() < 3 * SHORT_SECONDS
        assert [(line.stream_id, line.sight) for line in lines] == [
            ("aa", "failed"),
            ("bb", "failed"),
            ("zz", "recorded"),
        ]
        assert f'held_by="process {os.getpid()}"' in lines[0].text
    stage.clock.advance(2.0)
    watcher.tick()
    assert [(line.stream_id, line.sight) for line in lines[3:5]] == [("aa", "recorded"), ("bb", "recorded")]


def junk_events(stage: Stage, stream_id: str, count: int) -> None:
    """Objects with the keys of events, as a driver may write them without end."""
    for number in range(10, 10 + count):
        stage.store.put(layout.event_key(stream_id, "d-0001", number), b"{}")


def test_a_stream_of_too_many_events_holds_up_no_other_and_nothing_is_done_by_a_part(tmp_path: Path) -> None:
    """A poll reads a part of them, and reports how many are left; once all are read the stream is as any other."""
    stage = Stage(tmp_path)
    for name in ("aa", "zz"):
        stage.deploy(stream_id=name, restart_policy={"on_failure": "restart"})
    stage.launcher.states[launch_key_for("d-0001", 1)] = "gone"
    junk_events(stage, "aa", 2 * MOST_EVENTS + 10)
    plan, lines = FaultPlan(), list[Line]()
    home = Home.of(FaultyStore(stage.store, plan), stage.store, stage.folder, stage.clock)
    watcher = Controller(home, stage.launcher, stage.clock, "watcher").watcher(lines.append)
    said = []
    for _ in range(3):
        plan.calls.clear()
        watcher.tick()
        assert sum(call.method == "get" for call in plan.calls) < MOST_EVENTS + 50
        said.append([(line.stream_id, line.sight) for line in lines])
        lines.clear()
    assert said == [[("aa", "unreadable"), ("zz", "recorded")], [("aa", "unreadable")], [("aa", "recorded")]]
    assert stage.home.control("aa").need_register().value.restarts is not None


def test_what_is_left_of_too_many_events_is_said(tmp_path: Path) -> None:
    """And a single pass, which has no next poll, reads them all."""
    stage = Stage(tmp_path)
    stage.deploy(restart_policy={"on_failure": "restart"})
    stage.end(state="gone")
    junk_events(stage, STREAM, 2 * MOST_EVENTS)
    lines: list[Line] = []
    stage.another_controller("watcher").watcher(lines.append).tick()
    (line,) = lines
    assert "this stream has more events than one look reads, and nothing is done until all are read" in line.text
    assert f"not_read_yet={MOST_EVENTS}" in line.text
    stage.another_controller("once").watcher(lines.append, trusts_clocks=True).tick()
    assert [one.sight for one in lines[1:]] == ["recorded"]
    assert stage.another_controller("shell").status(STREAM).state == "failed"
