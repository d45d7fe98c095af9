"""The forced end of an attempt, while other writers change the register or the stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_streamstate.control.objects import EDIT_TRIES
from airflow_streamstate.controller.commands.forced_stop import ForcedEnd
from airflow_streamstate.controller.decide import INTENT_SECONDS
from airflow_streamstate.errors import ConflictError, UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.store.memory import MemoryStore
from support.checkpoints import HookedStore, once
from support.sim_stage import STREAM, Stage
from support.snapshots import plan_stateful


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A stage whose store can be watched."""
    return Stage(tmp_path, store=HookedStore())


def stuck(stage: Stage) -> ForcedEnd:
    """d-0001 is stuck in batch 4; the object that ends it."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    plan_stateful(stage.run_batches(3), 4)
    controller = stage.controller
    return ForcedEnd(
        controller._context, controller._attempts, controller._watching, stage.control, "d-0001", 1, command_id="c"
    )


def touched(stage: Stage) -> Callable[[], None]:
    """Another controller writes the register, without a change that matters."""
    key = layout.register_key(STREAM)

    def touch() -> None:
        stored = MemoryStore.get(stage.store, key)
        MemoryStore.replace(stage.store, key, stored.body + b" ", stored.version)

    return touch


def test_a_register_that_was_moved_is_looked_at_again(stage: Stage) -> None:
    """A controller that loses the compare-and-swap decides again, and ends the driver. (Law 4)"""
    forced = stuck(stage)
    stage.store.before = once(touched(stage), "replace", "stream.json")
    assert forced.come_to().outcome.outcome == "killed"
    assert len(stage.checkpoint().position().barriers) == 1


def test_a_register_that_never_rests_is_told(stage: Stage) -> None:
    """After its tries the error names the other writer. (Law 6)"""
    forced = stuck(stage)
    tries = []

    def always(verb: str, key: str) -> None:
        if verb == "replace" and key.endswith("stream.json"):
            tries.append(key)
            touched(stage)()

    stage.store.before = always
    with pytest.raises(UnavailableError, match=r"other writers keep changing this register.*updated_by="):
        forced.come_to()
    assert len(tries) == EDIT_TRIES


def test_a_fence_that_comes_after_a_resume_is_taken_back(stage: Stage) -> None:
    """Paused for longer than its intent is good for, it meets the next attempt: that one must not find the fence, and
    nothing is kept of what continues. (1a.2, 1a.8)"""
    forced = stuck(stage)

    def paused_for_long() -> None:
        stage.clock.advance(INTENT_SECONDS + 1)
        stage.another_controller().resume(STREAM)

    stage.store.before = once(paused_for_long, "create", "/offsets/5")
    with pytest.raises(ConflictError, match="moved since this stop was ordered"):
        forced.come_to()
    assert stage.control.need_register().value.attempt == 2
    assert stage.checkpoint().position().barriers == ()
    assert stage.control.manifest("d-0001-stopped-000001") is None


def test_an_old_intent_is_made_young_before_the_logs_are_touched(stage: Stage) -> None:
    """Ending a driver may take longer than an intent is good for. (1a.8)"""
    forced = stuck(stage)
    end = stage.launcher.kill

    def slowly(*words: object) -> object:
        stage.clock.advance(INTENT_SECONDS - 1)
        return end(*words)

    stage.launcher.kill = slowly
    ages: list[float] = []

    def look() -> None:
        intent = stage.control.need_register().value.intent
        ages.append((stage.clock.now() - intent.requested_at).total_seconds())

    stage.store.before = once(look, "create", "/offsets/5")
    assert forced.come_to().outcome.outcome == "killed"
    assert ages == [0.0]
