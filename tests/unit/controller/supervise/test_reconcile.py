"""The pure decision: windows, backoffs and counts over any run of failures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.supervise.reconcile import (
    JITTER,
    LAUNCH_AGAIN_SECONDS,
    Action,
    Desired,
    LaunchCurrent,
    Leave,
    Observed,
    Record,
    StartNext,
    after_failure,
    fresh_record,
    reconcile,
)
from airflow_streamstate.launch.interface import LaunchState
from airflow_streamstate.protocol.events import Failed
from airflow_streamstate.protocol.policies import RestartPolicy, Restarts
from support.fake_clock import START_AT
from support.sim_stage import Stage

POLICIES = st.builds(
    RestartPolicy,
    on_failure=st.just("restart"),
    initial_backoff_seconds=st.floats(0, 20),
    backoff_factor=st.floats(1, 100),
    max_backoff_seconds=st.floats(20, 400),
    max_restarts=st.integers(1, 6),
    restart_window_seconds=st.floats(10, 4000),
)


@pytest.fixture
def dead(tmp_path: Path) -> Observation:
    """A deployment whose driver was killed."""
    stage = Stage(tmp_path)
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.end(state="gone")
    return stage.seen()


def test_a_refused_plan_is_not_started_again(tmp_path: Path) -> None:
    """Law 17: the same driver would be refused for ever; a person decides."""
    stage = Stage(tmp_path)
    stage.deploy()
    stage.come_to_life()
    stage.say(
        Failed, error="another plan made the state", is_refusal=True, refuses_start=True, next_step="Put it back."
    )
    stage.end()
    seen = stage.seen()
    action = reconcile(Desired(RestartPolicy(on_failure="restart"), None, False), Observed(seen), START_AT, 0.0)
    assert isinstance(action, Record)
    assert action.sight == "gave_up"
    assert "another plan made the state" in action.record.gave_up


def decided(seen: Observation, record: Restarts | None = None, **observed: Any) -> Action:
    """What a watcher does under the policy ``restart``."""
    is_retired = observed.pop("is_retired", False)
    desired = Desired(RestartPolicy(on_failure="restart", initial_backoff_seconds=0), record, is_retired)
    return reconcile(desired, Observed(seen, **observed), START_AT, 0.0)


def test_a_retired_stream_is_left_alone(dead: Observation) -> None:
    """Law 2: whoever retired it wants no driver; an attempt of a watcher would only be refused."""
    assert isinstance(decided(dead), StartNext)
    assert decided(dead, is_retired=True) == Leave("ended", "it is retired")


@pytest.mark.parametrize(
    ("state", "has_said_its_last_word", "sight"),
    [("unknown", False, "lost"), ("unknown", True, "lost"), ("running", True, "ending"), ("pending", True, "ending")],
)
def test_nothing_follows_a_driver_whose_end_is_not_proven(
    tmp_path: Path, state: LaunchState, has_said_its_last_word: bool, sight: str
) -> None:
    """Law 4: two drivers would write the same checkpoints."""
    stage = Stage(tmp_path)
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    if has_said_its_last_word:
        stage.say(Failed, error="no space left")
    stage.clock.advance(3_600)
    stage.end(state=state)
    left = decided(stage.seen())
    assert isinstance(left, Leave)
    assert left.sight == sight
    stage.end(state="gone")
    assert isinstance(decided(stage.seen()), StartNext)


def test_what_one_watcher_launches_no_other_one_launches_at_once(tmp_path: Path) -> None:
    """Law 2: an attempt that was started, and has no launch yet, is its watcher's for some seconds."""
    stage = Stage(tmp_path)
    stage.deploy()
    stage.end(state="pending")
    seen = stage.seen()
    record = replace(fresh_record(Observed(seen), START_AT, "it failed"), is_started=True)
    left = decided(seen, record, waited_seconds=LAUNCH_AGAIN_SECONDS - 1)
    assert left == Leave("launching", "a watcher is launching it", 1.0)
    assert isinstance(decided(seen, record, waited_seconds=LAUNCH_AGAIN_SECONDS), LaunchCurrent)


def after(seen: Observation, record: Restarts | None) -> Observation:
    """The same end of the attempt that the record names as started."""
    if record is None:
        return seen
    register = replace(seen.register, attempt=record.attempt, restarts=record)
    return replace(seen, register=register, attempt=record.attempt)


@settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(policy=POLICIES, chances=st.lists(st.floats(0, 0.999), min_size=1, max_size=12))
def test_attempts_that_die_at_once_keep_window_and_backoff(
    dead: Observation, policy: RestartPolicy, chances: list[float]
) -> None:
    """No more restarts in any window than the policy allows, each backoff within its bounds, and then the reason: by
    the record alone, whatever any wall clock shows. (Laws 2 and 6)"""
    record: Restarts | None = None
    now_seconds, restarts = 0.0, list[float]()
    for number, chance in enumerate(chances):
        seen = after(dead, record)
        found = after_failure(Desired(policy, record, False), Observed(seen), START_AT, chance)
        if found.gave_up:
            inside = [at for at in restarts if now_seconds - at < policy.restart_window_seconds + 0.1]
            assert len(inside) >= policy.max_restarts
            return
        growth = min(policy.initial_backoff_seconds * policy.backoff_factor**number, policy.max_backoff_seconds)
        backoff = found.backoff_seconds or 0.0
        assert growth * 0.999 - 0.001 <= backoff <= growth * (1 + JITTER) + 0.001
        waited = replace(found, recorded_on="elsewhere")
        action = reconcile(
            Desired(policy, waited, False),
            Observed(after_recorded(seen, waited), waited_seconds=backoff),
            START_AT,
            chance,
        )
        assert isinstance(action, StartNext)
        now_seconds += backoff
        restarts.append(now_seconds)
        assert len([at for at in restarts if now_seconds - at < policy.restart_window_seconds * 0.999]) <= (
            policy.max_restarts
        )
        record = action.record
        assert record.attempt == seen.attempt + 1


def after_recorded(seen: Observation, record: Restarts) -> Observation:
    """As it is seen when its failure is in the register."""
    return replace(seen, register=replace(seen.register, restarts=record))


def test_the_backoff_is_not_over_before_this_watcher_has_seen_it_pass(dead: Observation) -> None:
    """How long the caller has waited decides, not the time of day. (Law 2)"""
    policy = RestartPolicy("restart")
    first = reconcile(Desired(policy, None, False), Observed(dead), START_AT, 0.5)
    assert isinstance(first, Record)
    assert first.record.backoff_seconds == 11.0
    seen = after_recorded(dead, first.record)
    for waited, starts in ((0.0, False), (10.9, False), (11.0, True)):
        found = reconcile(Desired(policy, first.record, False), Observed(seen, waited_seconds=waited), START_AT, 0.0)
        assert isinstance(found, StartNext) is starts
