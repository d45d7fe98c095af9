"""Giving an adoption up."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from airflow_streamstate.errors import ConflictError, DeadlineExceededError, StreamNotFoundError
from support.adopting import URI, AdoptingStage
from support.faulty_store import Fault, FaultPlan, SimulatedCrash


def test_what_was_cut_short_is_taken_back(adopting: AdoptingStage) -> None:
    """The query may be started again as it was, and be adopted later."""
    plan = FaultPlan(at_write={3: Fault.CRASH_AFTER})
    with pytest.raises(SimulatedCrash):
        adopting.adoptions(plan).adopt(adopting.wanted(is_stopped=True))
    assert adopting.barriers() == [4]
    with pytest.raises(ConflictError, match="under way"):
        adopting.adoptions().give_up("orders")
    adopting.clock.sleep(61)
    given = adopting.adoptions().give_up("orders")
    assert given.to_json() == {"stream_id": "orders", "given_up": {"counts": URI}, "retired": False}
    assert adopting.barriers() == []
    adopting.run_foreign()
    adopting.clock.sleep(10)
    assert adopting.ran[0] == 4
    adopting.adopt()
    adopting.clock.sleep(10)
    adopting.assert_taken()


def test_a_stream_that_never_ran_is_retired(adopting: AdoptingStage) -> None:
    """Nobody deploys it from a snapshot of a query that runs on. (Law 14)"""
    adopting.adopt(is_stopped=True)
    with pytest.raises(ConflictError, match="a driver of this stream is"):
        adopting.adoptions().give_up("orders")
    adopting.launcher.states["d-0002-a0001"] = "exited"
    given = adopting.adoptions().give_up("orders")
    assert given.is_retired
    assert adopting.barriers() == []
    with pytest.raises(ConflictError, match="retired"):
        adopting.deploy("print('v2')\n")


def test_what_has_run_is_not_given_up(adopting: AdoptingStage) -> None:
    """The same batches would run twice. (Law 14)"""
    adopting.adopt(is_stopped=True)
    adopting.come_to_life("d-0002", queries=("counts",))
    adopting.launcher.states["d-0002-a0001"] = "exited"
    with pytest.raises(ConflictError, match="gone on with"):
        adopting.adoptions().give_up("orders")
    assert adopting.barriers() == [4]


def test_nothing_is_given_up_that_was_not_begun(adopting: AdoptingStage) -> None:
    """Told in one sentence."""
    with pytest.raises(StreamNotFoundError, match="nobody has begun"):
        adopting.adoptions().give_up("orders")


def test_one_that_was_cut_short_takes_back_all_the_same(adopting: AdoptingStage) -> None:
    """Killed at any write of it: no barrier is left that a later adoption would take for somebody else's. (Law 2)"""
    for number in range(1, 6):
        plan = FaultPlan(at_write={3: Fault.CRASH_AFTER})
        with pytest.raises(SimulatedCrash):
            adopting.adoptions(plan).adopt(adopting.wanted(is_stopped=True))
        adopting.clock.sleep(61)
        with suppress(SimulatedCrash):
            adopting.adoptions(FaultPlan(at_write={number: Fault.CRASH_AFTER})).give_up("orders")
        adopting.clock.sleep(61)
        adopting.adoptions().give_up("orders")
        assert adopting.barriers() == []
    adopting.adopt(is_stopped=True)
    adopting.assert_taken()


def test_a_driver_that_died_before_it_said_so_has_run_it(adopting: AdoptingStage) -> None:
    """Its log tells what it had no time to tell. (Law 14)"""
    adopting.adopt(is_stopped=True)
    adopting.run_batches(4, deployment_id="d-0002")
    adopting.launcher.states["d-0002-a0001"] = "exited"
    with pytest.raises(ConflictError, match="gone on with"):
        adopting.adoptions().give_up("orders")
    assert adopting.barriers() == [4]


def test_no_snapshot_of_it_is_taken_for_one_of_a_later_stream(adopting: AdoptingStage, tmp_path: Path) -> None:
    """A stream that gets the name afterwards stops at a snapshot of its own. (Law 2)"""
    (tmp_path / "calm").mkdir()
    plan, calm = FaultPlan(), AdoptingStage(tmp_path / "calm")
    calm.adoptions(plan).adopt(calm.wanted(is_stopped=True))
    taken = next(n for n, call in enumerate(plan.writes, 1) if call.key.endswith("manifest.json"))
    cut = FaultPlan(at_write={taken: Fault.CRASH_AFTER})
    with pytest.raises(SimulatedCrash):
        adopting.adoptions(cut).adopt(adopting.wanted(is_stopped=True))
    adopting.clock.sleep(61)
    adopting.adoptions().give_up("orders")
    adopting.deploy()
    stopped = adopting.stopped(last=7)
    assert adopting.control.need_manifest(str(stopped.snapshot_id)).queries["counts"].position.batch_id == 7


def test_a_stream_that_came_later_is_not_retired(adopting: AdoptingStage) -> None:
    """Given up once more, by mistake."""
    with pytest.raises(DeadlineExceededError):
        adopting.adopt()
    adopting.adoptions().give_up("orders")
    adopting.deploy()
    adopting.launcher.states["d-0001-a0001"] = "exited"
    assert adopting.adoptions().give_up("orders").is_retired is False
    assert adopting.control.need_register().value.retirement is None
