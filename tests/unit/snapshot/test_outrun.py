"""A driver that was taken for dead, and lived (1a.8)."""

from __future__ import annotations

from airflow_streamstate.checkpoint.barrier import put_fence
from airflow_streamstate.snapshot.location import batches_after
from support.checkpoints import barrier_mark, commit_batch
from support.snapshots import QUERY, Shelf, plan_stateful, run_stateful


def test_a_fenced_log_has_nothing_after_its_end() -> None:
    """The fence itself, and the batch that was planned at the end, are no news."""
    shelf = Shelf()
    run_stateful(shelf.checkpoint(), 3)
    plan_stateful(shelf.checkpoint(), 4)
    put_fence(shelf.checkpoint(), barrier_mark("fence"))
    assert batches_after(shelf.checkpoints, shelf.capture()) == {}


def test_batches_claimed_or_committed_after_the_end_are_named() -> None:
    """A claim over the fence is reported as a commit is: the sink may hold that batch already."""
    shelf = Shelf()
    run_stateful(shelf.checkpoint(), 3)
    plan_stateful(shelf.checkpoint(), 4)
    put_fence(shelf.checkpoint(), barrier_mark("fence"))
    manifest = shelf.capture()
    commit_batch(shelf.checkpoint(), 4)
    assert batches_after(shelf.checkpoints, manifest) == {QUERY: (4,)}
    plan_stateful(shelf.checkpoint(), 5)
    assert batches_after(shelf.checkpoints, manifest) == {QUERY: (4, 5)}


def test_a_query_that_had_committed_nothing_can_be_outrun_too() -> None:
    """Of a query without a position every batch comes after the end."""
    shelf = Shelf()
    manifest = shelf.capture()
    run_stateful(shelf.checkpoint(), 1)
    assert batches_after(shelf.checkpoints, manifest) == {QUERY: (0, 1)}
