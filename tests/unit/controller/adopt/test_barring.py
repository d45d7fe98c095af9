"""Waiting for a query's end from outside, with the lease and the checks that it uses."""

from __future__ import annotations

from functools import partial

import pytest

from airflow_streamstate.checkpoint.barrier import OutsideBarrier
from airflow_streamstate.controller.adopt.adopted_stream import (
    HOLD_SECONDS,
    PATIENCE_SECONDS,
    RENEW_SECONDS,
    SURE_SECONDS,
    Barred,
    Hold,
    bar_stopped,
    refuse_moved,
    take_hold,
)
from airflow_streamstate.controller.adopt.adoptions import Adoptions
from airflow_streamstate.controller.adopt.foreign import LEAST_PATIENCE_SECONDS, SETTLE_SECONDS, bar
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.deploy.attempts import Attempts
from airflow_streamstate.controller.deploy.deployment import Deployer
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.retention.pruning import Retaining
from airflow_streamstate.errors import ConflictError, DeadlineExceededError, UnavailableError
from support.adopting import URI, AdoptingStage
from support.checkpoints import (
    HookedStore,
    barrier_mark,
    commit_batch,
    memory_checkpoint,
    plan_batch,
    run_batches,
)
from support.snapshots import plan_stateful


def test_what_was_found_over_a_committed_batch_is_waited_for(adopting: AdoptingStage) -> None:
    """The barrier of an interrupted call is certain only after a while: its batch was not seen uncommitted. (1a.3)"""
    mark = barrier_mark("fence")
    OutsideBarrier(adopting.foreign, mark).put_over(adopting.foreign.position())
    began = adopting.clock.monotonic_seconds()
    placed = bar(OutsideBarrier(adopting.foreign, mark), adopting.clock, 1.0)
    assert (placed.batch_id, placed.barrier_id) == (3, 4)
    assert adopting.clock.monotonic_seconds() - began >= SETTLE_SECONDS


def test_a_failed_batch_is_told_while_it_is_waited(adopting: AdoptingStage) -> None:
    """Withdrawn after its patience, not at the deadline."""
    adopting.fails, adopting.is_supervised = {4}, True
    adopting.run_foreign()
    said: list[str] = []
    began = adopting.clock.monotonic_seconds()
    bar(OutsideBarrier(adopting.foreign, barrier_mark("fence")), adopting.clock, 500, report=said.append)
    assert any("batch 4 was not committed; the barrier was withdrawn" in text for text in said)
    assert adopting.clock.monotonic_seconds() - began < 3 * LEAST_PATIENCE_SECONDS


def test_a_log_that_moved_is_refused(adopting: AdoptingStage) -> None:
    """A batch was committed after the barrier was put."""
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
    assert 2 * RENEW_SECONDS <= PATIENCE_SECONDS < SURE_SECONDS < HOLD_SECONDS


@pytest.fixture
def barrier() -> OutsideBarrier:
    """Over a query that has just planned batch 4."""
    checkpoint = run_batches(memory_checkpoint(), 3)
    barrier = OutsideBarrier(checkpoint, barrier_mark("fence"))
    barrier.step()
    plan_batch(checkpoint, 4)
    return barrier


def test_a_batch_that_commits_as_its_barrier_is_taken_back_is_told(
    adopting: AdoptingStage, barrier: OutsideBarrier
) -> None:
    """Its query may have ended there, and its log is as before. (Law 6)"""
    confirmed: list[bool] = []

    def confirm() -> None:
        confirmed.append(True)
        commit_batch(barrier.checkpoint, 4)

    with pytest.raises(DeadlineExceededError, match="committed just as"):
        bar(barrier, adopting.clock, LEAST_PATIENCE_SECONDS / 2, confirm=confirm)
    assert confirmed == [True]
    assert barrier.checkpoint.position().barriers == ()


def test_nothing_is_taken_back_without_the_hold(adopting: AdoptingStage, barrier: OutsideBarrier) -> None:
    """Another controller may have taken the adoption in the meantime. (Law 4)"""

    def confirm() -> None:
        raise ConflictError("another controller has continued with this adoption")

    with pytest.raises(ConflictError, match="another"):
        bar(barrier, adopting.clock, 60.0, confirm=confirm)
    assert [one.batch_id for one in barrier.checkpoint.position().barriers] == [5]


def test_a_store_that_does_not_answer_is_waited_for(adopting: AdoptingStage, barrier: OutsideBarrier) -> None:
    """It holds the barrier, and no other controller takes it back. (Law 12)"""
    store = barrier.checkpoint.store
    assert isinstance(store, HookedStore)
    silent = [True] * 40

    def refuse(verb: str, key: str) -> None:
        if verb == "get" and "commits" in key and silent:
            silent.pop()
            raise UnavailableError("the store does not answer")
        if not silent:
            store.before = None
            commit_batch(barrier.checkpoint, 4)

    store.before = refuse
    said: list[str] = []
    assert bar(barrier, adopting.clock, 60.0, report=said.append).barrier_id == 5
    assert any("cannot be read now" in words for words in said)


class Holding:
    """A controller that takes the hold of an adoption, in a home whose store the test interrupts."""

    def __init__(self, adopting: AdoptingStage) -> None:
        self.store = HookedStore()
        self.home = Home.of(self.store, self.store, adopting.folder, adopting.clock)
        self._context = ControllerContext.of(self.home, adopting.launcher, adopting.clock, "tests", None)
        self._adoptions = Adoptions(
            self._context,
            Deployer(self._context, Attempts(self._context)),
            partial(Retaining(self._context).retire, deletes=True),
        )
        self._request = adopting.wanted()

    def take(self) -> Hold:
        control = self.home.control("orders", begins=True)
        return take_hold(self._context, control, self._adoptions._wanted(self._request))


def test_a_hold_lasts_while_the_home_is_silent(adopting: AdoptingStage) -> None:
    """As long as its lease, by both clocks; a lost answer is read back (Law 8); after that it has to be confirmed."""
    holding = Holding(adopting)
    hold = holding.take()

    def refuse(verb: str, key: str) -> None:
        if verb == "replace":
            raise UnavailableError("the store does not answer", key=key)

    holding.store.before = refuse
    adopting.clock.sleep(PATIENCE_SECONDS - 1)
    hold.keep()
    adopting.clock.sleep(2)
    with pytest.raises(UnavailableError):
        hold.keep()
    hold.confirm()
    adopting.clock.sleep(HOLD_SECONDS)
    with pytest.raises(UnavailableError):
        hold.confirm()
    holding.store.before = None
    another = holding.take()
    with pytest.raises(ConflictError, match="another controller has continued"):
        hold.confirm()
    another.confirm()


def test_a_write_that_took_long_is_as_old_as_its_beginning(adopting: AdoptingStage) -> None:
    """The lease counts from before the write: at the answer half of it may have ended. (Law 4)"""
    holding = Holding(adopting)
    slow = [True]

    def take_time(verb: str, key: str) -> None:
        if verb in ("create", "replace"):
            if not slow.pop():
                raise UnavailableError("the store does not answer", key=key)
            slow.append(False)
            adopting.clock.sleep(30)

    holding.home.begin("tests")
    holding.store.before = take_time
    hold = holding.take()
    adopting.clock.sleep(SURE_SECONDS - 30)
    with pytest.raises(UnavailableError):
        hold.confirm()
