"""Waiting for a query's end from outside.

With it what it stands on: airflow_streamstate.controller.adopt.taking and
airflow_streamstate.controller.adopt.holding.
"""

from __future__ import annotations

import pytest

from airflow_streamstate.checkpoint.outside import OutsideBarrier
from airflow_streamstate.controller.adopt.adoptions import Adoptions
from airflow_streamstate.controller.adopt.barring import LEAST_PATIENCE_SECONDS, SETTLE_SECONDS, bar
from airflow_streamstate.controller.adopt.holding import (
    HOLD_SECONDS,
    PATIENCE_SECONDS,
    RENEW_SECONDS,
    SURE_SECONDS,
    take_hold,
)
from airflow_streamstate.controller.adopt.taking import Barred, bar_stopped, refuse_moved
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.deploy.attempts import Attempts
from airflow_streamstate.controller.deploy.deploy import Deployer
from airflow_streamstate.controller.home import Home
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
    assert 2 * RENEW_SECONDS <= PATIENCE_SECONDS < SURE_SECONDS < HOLD_SECONDS


def test_a_batch_that_commits_as_its_barrier_is_taken_back_is_told(adopting: AdoptingStage) -> None:
    """Its query may have ended there, and nothing of ours is in its way. (Law 6)"""
    checkpoint = run_batches(memory_checkpoint(), 3)
    store = checkpoint.store
    assert isinstance(store, HookedStore)
    barrier = OutsideBarrier(checkpoint, barrier_mark("fence"))
    barrier.step()
    plan_batch(checkpoint, 4)
    confirmed: list[bool] = []

    def confirm() -> None:
        confirmed.append(True)
        commit_batch(checkpoint, 4)

    with pytest.raises(DeadlineExceededError, match="committed just as"):
        bar(barrier, adopting.clock, LEAST_PATIENCE_SECONDS / 2, confirm=confirm)
    assert confirmed == [True]
    assert checkpoint.position().barriers == ()


def test_nothing_is_taken_back_by_one_who_does_not_hold_it(adopting: AdoptingStage) -> None:
    """Another may have gone on with it while this one slept. (Law 4)"""
    checkpoint = run_batches(memory_checkpoint(), 3)
    barrier = OutsideBarrier(checkpoint, barrier_mark("fence"))
    barrier.step()
    plan_batch(checkpoint, 4)

    def confirm() -> None:
        raise ConflictError("another controller has gone on with this adoption")

    with pytest.raises(ConflictError, match="another"):
        bar(barrier, adopting.clock, 60.0, confirm=confirm)
    assert [one.batch_id for one in checkpoint.position().barriers] == [5]


def test_a_store_that_does_not_answer_is_waited_for(adopting: AdoptingStage) -> None:
    """The barrier lies there, and nobody else takes it back. (Law 12)"""
    checkpoint = run_batches(memory_checkpoint(), 3)
    store = checkpoint.store
    assert isinstance(store, HookedStore)
    barrier = OutsideBarrier(checkpoint, barrier_mark("fence"))
    barrier.step()
    plan_batch(checkpoint, 4)
    silent = [True] * 40

    def refuse(verb: str, key: str) -> None:
        if verb == "get" and "commits" in key and silent:
            silent.pop()
            raise UnavailableError("the store does not answer")
        if not silent:
            store.before = None
            commit_batch(checkpoint, 4)

    store.before = refuse
    said: list[str] = []
    assert bar(barrier, adopting.clock, 60.0, report=said.append).barrier_id == 5
    assert any("cannot be read now" in words for words in said)


def test_what_nobody_else_can_have_is_held_while_the_home_is_silent(adopting: AdoptingStage) -> None:
    """For as long as it was held last, by both clocks; an answer that was lost is found (Law 8); a machine that slept
    asks first."""
    store = HookedStore()
    home = Home.of(store, store, adopting.folder, adopting.clock)
    context = ControllerContext.of(home, adopting.launcher, adopting.clock, "tests", None)
    adoptions = Adoptions(context, Deployer(context, Attempts(context)))
    hold = take_hold(context, home.control("orders", begins=True), adoptions._wanted(adopting.wanted()))

    def refuse(verb: str, key: str) -> None:
        if verb == "replace":
            raise UnavailableError("the store does not answer", key=key)

    store.before = refuse
    adopting.clock.sleep(PATIENCE_SECONDS - 1)
    hold.keep()
    adopting.clock.sleep(2)
    with pytest.raises(UnavailableError):
        hold.keep()
    hold.confirm()
    adopting.clock.sleep(HOLD_SECONDS)
    with pytest.raises(UnavailableError):
        hold.confirm()
    store.before = None
    another = take_hold(context, home.control("orders", begins=True), adoptions._wanted(adopting.wanted()))
    with pytest.raises(ConflictError, match="another controller has gone on"):
        hold.confirm()
    another.confirm()


def test_a_write_that_took_long_is_as_old_as_its_beginning(adopting: AdoptingStage) -> None:
    """Until when it is held was said before the write was sent: by the answer half of it may be over. (Law 4)"""
    store = HookedStore()
    home = Home.of(store, store, adopting.folder, adopting.clock)
    context = ControllerContext.of(home, adopting.launcher, adopting.clock, "tests", None)
    adoptions = Adoptions(context, Deployer(context, Attempts(context)))
    slow = [True]

    def take_time(verb: str, key: str) -> None:
        if verb in ("create", "replace"):
            if not slow.pop():
                raise UnavailableError("the store does not answer", key=key)
            slow.append(False)
            adopting.clock.sleep(30)

    home.begin("tests")
    store.before = take_time
    hold = take_hold(context, home.control("orders", begins=True), adoptions._wanted(adopting.wanted()))
    adopting.clock.sleep(SURE_SECONDS - 30)
    with pytest.raises(UnavailableError):
        hold.confirm()
