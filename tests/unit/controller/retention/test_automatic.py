"""Streams that watchers prune without being asked: which, when, and at what cost."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.control.registers import Retention
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.retention import pruning
from airflow_streamstate.controller.retention.pruning import (
    AWAY_SECONDS,
    LOOK_SECONDS,
    PAUSE_SECONDS,
    PRUNE_PAUSE_SECONDS,
    WHOLE_SECONDS,
    AutomaticPruning,
    is_due,
)
from airflow_streamstate.errors import UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.policies import LastPrune, RetentionPolicy, RetentionRegister
from airflow_streamstate.protocol.records import Intent, StreamRegister
from airflow_streamstate.snapshot.verify import verify
from support.faulty_store import Fault, FaultPlan, FaultyStore, SimulatedCrash
from support.sim_stage import STREAM, Stage

pytestmark = pytest.mark.fast

KEEP_TWO = {"keep": 2}


class Pruned:
    """A stream with live snapshots, and the pruning of a watcher, through a store that counts and fails."""

    def __init__(self, stage: Stage, **asked: Any) -> None:
        self.stage = stage
        self.plan = FaultPlan()
        self.told: list[tuple[str, str, str]] = []
        self.taken = 0
        stage.deploy(**asked)
        stage.come_to_life(queries=("counts",))
        self.pruning = self.another()

    def another(self) -> AutomaticPruning:
        """Another one, which remembers nothing."""
        stage = self.stage
        home = Home.of(FaultyStore(stage.store, self.plan), stage.store, stage.folder, stage.clock)
        controller = Controller(home, stage.launcher, stage.clock, "watcher")
        return AutomaticPruning(controller._context, controller.retention, lambda *said: self.told.append(said))

    @property
    def register(self) -> StreamRegister:
        return self.stage.control.need_register().value

    @property
    def snapshots(self) -> list[str]:
        return [one for one in self.stage.control.snapshot_ids() if self.stage.control.readable_manifest(one)]

    def take(self, count: int = 1) -> None:
        for _ in range(count):
            self.taken += 1
            self.stage.run_batches(3 * self.taken)
            self.stage.keep("live", attempt=self.taken)

    def look(self, pruning: AutomaticPruning | None = None) -> int:
        """What a watcher does with a register that it has read; how many calls of the store the step cost."""
        pruning = pruning or self.pruning
        pruning.notice(STREAM, self.register)
        self.plan.calls.clear()
        pruning.step()
        return len(self.plan.calls)


@pytest.fixture
def pruned(stage: Stage) -> Pruned:
    """A stream that keeps two, with five snapshots."""
    found = Pruned(stage, retention=KEEP_TWO)
    found.take(5)
    return found


def test_a_stream_without_a_recorded_retention_is_never_pruned(stage: Stage) -> None:
    """Nor is one looked at."""
    found = Pruned(stage)
    found.take(12)
    for _ in range(3):
        assert found.look() == 0
        stage.clock.advance(WHOLE_SECONDS)
    assert len(found.snapshots) == 12
    assert not found.pruning.has_streams


def test_a_recorded_retention_is_kept(pruned: Pruned) -> None:
    """And what went is reported in one line."""
    pruned.look()
    assert pruned.snapshots == [f"d-0001-live-{number:06d}" for number in (4, 5)]
    ((stream_id, sight, text),) = pruned.told
    assert (stream_id, sight) == (STREAM, "pruned")
    assert text == "removed: d-0001-live-000001, d-0001-live-000002, d-0001-live-000003; it keeps the newest 2"


def test_a_new_snapshot_is_followed_by_a_prune_once_an_hour(pruned: Pruned) -> None:
    """Between two polls nothing is read, and a poll that finds nothing new is one read."""
    pruned.look()
    pruned.take(2)
    pruned.stage.clock.advance(LOOK_SECONDS - 1)
    assert pruned.look() == 0
    assert len(pruned.snapshots) == 4
    pruned.stage.clock.advance(1)
    assert pruned.look() > 1
    assert len(pruned.snapshots) == 2
    for _ in range(3):
        pruned.stage.clock.advance(LOOK_SECONDS)
        assert pruned.look() == 1
    assert [call.key for call in pruned.plan.calls] == [layout.retention_key(STREAM)]


def test_what_grows_old_goes_within_a_day(stage: Stage) -> None:
    """Without a new snapshot, too."""
    found = Pruned(stage, retention={"older_than_seconds": LOOK_SECONDS})
    found.take(3)
    found.look()
    assert len(found.snapshots) == 3
    stage.clock.advance(WHOLE_SECONDS)
    found.look()
    assert len(found.snapshots) < 3


def test_a_watcher_that_begins_anew_knows_what_another_one_has_pruned(pruned: Pruned) -> None:
    """By what the prune has recorded; before that it reads once whether this version reads the home."""
    pruned.look()
    pruned.take(1)
    assert pruned.look(pruned.another()) == 2
    assert [call.key for call in pruned.plan.calls] == [layout.home_key(), layout.retention_key(STREAM)]
    pruned.stage.clock.advance(LOOK_SECONDS)
    assert pruned.look(pruned.another()) > 1
    assert len(pruned.snapshots) == 2


def test_a_change_of_the_retention_holds_at_once(pruned: Pruned) -> None:
    """One that was removed, or a stream that was retired, since the watcher read the register, prunes nothing."""
    details = pruned.stage.controller.details
    pruned.look()
    details.change_retention(STREAM, RetentionPolicy(1))
    pruned.look()
    assert len(pruned.snapshots) == 1
    pruned.take(3)
    details.change_retention(STREAM, RetentionPolicy(0))
    pruned.pruning.notice(STREAM, pruned.register)
    details.change_retention(STREAM, None)
    pruned.pruning.step()
    assert len(pruned.snapshots) == 4
    assert not pruned.pruning.has_streams


def test_a_retired_stream_is_left_as_it_is(stage: Stage) -> None:
    """What is kept of it is a person's to remove."""
    stage.deploy(retention={"keep": 0})
    stage.stopped()
    stage.controller.retention.retire(STREAM)
    found = Pruned.__new__(Pruned)
    found.stage, found.plan, found.told = stage, FaultPlan(), []
    assert found.look(found.another()) == 0
    assert stage.controller.retention.prune_as_recorded(STREAM) is None


def test_a_prune_that_fails_is_told_once_and_tried_again(pruned: Pruned) -> None:
    """A damaged record: nothing is removed. (Law 7)"""
    key = layout.retention_key(STREAM)
    whole = pruned.stage.store.get(key)
    assert whole is not None
    pruned.stage.store.put(key, b"{")
    for _ in range(3):
        pruned.look()
        pruned.stage.clock.advance(LOOK_SECONDS)
    ((_, sight, text),) = pruned.told
    assert (sight, len(pruned.snapshots)) == ("not_pruned", 5)
    assert "this object is not what its key states" in text
    pruned.stage.store.put(key, whole.body)
    pruned.look()
    assert len(pruned.snapshots) == 2


def test_an_unexpected_error_ends_no_pruning(pruned: Pruned, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported as one."""

    def fail(_register: RetentionRegister, _policy: RetentionPolicy, _now: float) -> bool:
        raise ZeroDivisionError("in the\nclient")

    with monkeypatch.context() as patched:
        patched.setattr(pruning, "is_due", fail)
        pruned.look()
    assert pruned.told == [
        (STREAM, "not_pruned", "it is not pruned, for now: unexpected ZeroDivisionError: in the client")
    ]
    pruned.stage.clock.advance(LOOK_SECONDS)
    pruned.look()
    assert len(pruned.snapshots) == 2


def test_a_home_that_is_away_is_not_told_of_for_each_stream(pruned: Pruned) -> None:
    """The watcher reports it; a minute later the stream is looked at again. (Law 6)"""

    def fail() -> None:
        raise UnavailableError("no answer")

    pruned.plan.before_each = fail
    pruned.look()
    assert pruned.told == []
    pruned.plan.before_each = lambda: None
    pruned.stage.clock.advance(AWAY_SECONDS)
    pruned.look()
    assert len(pruned.snapshots) == 2


def test_what_a_watcher_leaves_that_dies_is_finished_by_the_next_one(tmp_path: Path) -> None:
    """At any write: no manifest names what is gone, and nothing that stays is touched. (Laws 1, 2 and 3)"""

    def begun(number: int) -> Pruned:
        folder = tmp_path / str(number)
        folder.mkdir()
        found = Pruned(Stage(folder), retention=KEEP_TWO)
        found.take(4)
        return found

    counted = begun(0)
    counted.look()
    writes = sum(call.writes for call in counted.plan.calls)
    assert writes > 2
    for number, fault in itertools.product(range(1, writes + 1), (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)):
        dying = begun(len(list(tmp_path.iterdir())))
        dying.plan.at_write = {number: fault}
        with pytest.raises(SimulatedCrash):
            dying.look()
        stage = dying.stage
        assert all(verify(stage.control, stage.store, one) == [] for one in dying.snapshots)
        dying.plan = FaultPlan()
        stage.clock.advance(LOOK_SECONDS)
        dying.look(dying.another())
        assert dying.snapshots == counted.snapshots
        assert all(verify(stage.control, stage.store, one) == [] for one in dying.snapshots)


def test_streams_come_one_after_the_other(pruned: Pruned) -> None:
    """The one that is due for longest first, with a pause after each."""
    stage = pruned.stage
    stage.controller.deploy(stage.request(stream_id="second", retention=KEEP_TWO))
    stage.clock.advance(1)
    pruned.pruning.notice("second", stage.controller.home.control("second").need_register().value)
    stage.clock.advance(1)
    pruned.pruning.notice(STREAM, pruned.register)
    assert pruned.pruning.step() == PRUNE_PAUSE_SECONDS
    assert len(pruned.snapshots) == 5
    assert pruned.pruning.step() == PRUNE_PAUSE_SECONDS
    assert len(pruned.snapshots) == 2
    assert pruned.pruning.step() == PAUSE_SECONDS
    pruned.pruning.forget("second")
    stage.clock.advance(LOOK_SECONDS)
    assert pruned.look() == 1


def test_a_thousand_streams_cost_few_calls(pruned: Pruned) -> None:
    """Looks and prunes of an hour, each with its pause: within a quarter of what a triggerer may take (P6)."""
    prune_calls = pruned.look()
    most_looks, most_prunes = 60 / PAUSE_SECONDS, 60 / PRUNE_PAUSE_SECONDS
    assert most_looks + most_prunes * prune_calls <= 1_500 / 4


def test_a_single_pass_prunes_so_many_and_the_next_one_goes_on(pruned: Pruned, monkeypatch: pytest.MonkeyPatch) -> None:
    """For cron."""
    monkeypatch.setattr(pruning, "MOST_AT_ONCE", 1)
    stage = pruned.stage
    stage.controller.deploy(stage.request(stream_id="a-first", retention=KEEP_TWO))
    for expected in (5, 2):
        single = pruned.another()
        single.notice(STREAM, pruned.register)
        single.notice("a-first", stage.controller.home.control("a-first").need_register().value)
        single.once()
        assert len(pruned.snapshots) == expected


POLICY = RetentionPolicy(2)


@pytest.mark.parametrize(
    ("last", "newest", "is_expected"),
    [
        (None, "s-1", True),
        (LastPrune, "s-1", False),
        (LastPrune, "s-2", True),
        (WHOLE_SECONDS, "s-1", True),
        (LOOK_SECONDS - 1, "s-2", False),
        (-WHOLE_SECONDS, "s-1", True),
    ],
)
def test_when_a_prune_is_due(stage: Stage, last: object, newest: str, is_expected: bool) -> None:
    """A snapshot that is new, and an hour; or a day, also by a clock that was ahead."""
    now = stage.clock.now()
    register = RetentionRegister(STREAM, "w", now, "tests", newest_snapshot_id=newest)
    if last is not None:
        age = last if isinstance(last, float) else LOOK_SECONDS
        register = replace(register, last_prune=LastPrune(now - timedelta(seconds=age), POLICY, "s-1"))
    assert is_due(register, POLICY, now.timestamp()) is is_expected
    assert is_due(register, RetentionPolicy(3), now.timestamp())


def test_a_prune_beside_a_deploy_is_not_the_last_one(pruned: Pruned) -> None:
    """What deployments left stays then, so the next poll prunes again."""
    control, clock = pruned.stage.control, pruned.stage.clock
    intent = Intent("r", "d-0002", clock.now(), "ada")
    control.update_register(lambda now: replace(now, intent=intent), by="test")
    pruned.look()
    assert (len(pruned.snapshots), Retention(control).read().last_prune) == (2, None)
    control.update_register(lambda now: replace(now, intent=None), by="test")
    clock.advance(LOOK_SECONDS)
    pruned.look()
    last = Retention(control).read().last_prune
    assert last == LastPrune(clock.now(), RetentionPolicy(2), "d-0001-live-000005")
