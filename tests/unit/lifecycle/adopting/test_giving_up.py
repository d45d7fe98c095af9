"""Giving an adoption up."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import ConflictError, StreamNotFoundError
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
