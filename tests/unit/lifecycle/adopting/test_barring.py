"""Waiting for a query's end from outside.

With it what it stands on: airflow_streamstate.lifecycle.adopting.taking and
airflow_streamstate.lifecycle.adopting.holding.
"""

from __future__ import annotations

import pytest

from airflow_streamstate.checkpoint.outside import OutsideBarrier
from airflow_streamstate.errors import ConflictError
from airflow_streamstate.lifecycle.adopting.barring import LEAST_PATIENCE_SECONDS, SETTLE_SECONDS, bar
from airflow_streamstate.lifecycle.adopting.holding import HOLD_SECONDS, RENEW_SECONDS
from airflow_streamstate.lifecycle.adopting.taking import Barred, bar_stopped, refuse_moved
from support.adopting import URI, AdoptingStage
from support.checkpoints import barrier_mark, commit_batch
from support.snapshots import plan_stateful


def test_what_was_found_over_a_committed_batch_is_waited_for(adopting: AdoptingStage) -> None:
    """A barrier of a call that was cut short: nobody saw its batch uncommitted, so it is trusted only after a while
    (1a.3)."""
    mark = barrier_mark("fence")
    OutsideBarrier(adopting.foreign, mark).put_over(adopting.foreign.position())
    began = adopting.clock.monotonic_seconds()
    placed = bar(OutsideBarrier(adopting.foreign, mark), adopting.clock, 1.0)
    assert (placed.batch_id, placed.barrier_id) == (3, 4)
    assert adopting.clock.monotonic_seconds() - began >= SETTLE_SECONDS


def test_a_failed_batch_is_told_while_it_is_waited(adopting: AdoptingStage) -> None:
    """Taken back after its patience, not at the deadline."""
    adopting.fails, adopting.is_supervised = {4}, True
    adopting.run_foreign()
    said: list[str] = []
    began = adopting.clock.monotonic_seconds()
    bar(OutsideBarrier(adopting.foreign, barrier_mark("fence")), adopting.clock, 500, report=said.append)
    assert any("batch 4 was not committed; the barrier was taken back" in text for text in said)
    assert adopting.clock.monotonic_seconds() - began < 3 * LEAST_PATIENCE_SECONDS


def test_a_log_that_moved_is_refused(adopting: AdoptingStage) -> None:
    """The second look."""
    plan_stateful(adopting.foreign, 4)
    barrier = OutsideBarrier(adopting.foreign, barrier_mark("fence"))
    barred = bar_stopped({"counts": barrier}, {"counts": URI})
    assert barred == {"counts": Barred(barrier, barred["counts"].position, 5)}
    refuse_moved(barred)
    commit_batch(adopting.foreign, 4)
    with pytest.raises(ConflictError, match="moved while it was copied"):
        refuse_moved(barred)


def test_a_hold_is_renewed_long_before_it_ends() -> None:
    """One renewal may be lost."""
    assert 2 * RENEW_SECONDS < HOLD_SECONDS
