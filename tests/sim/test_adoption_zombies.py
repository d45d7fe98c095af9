"""A controller sleeps at any call of an adoption for longer than its lease, while another one takes over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_streamstate.errors import ConflictError, StreamStateError
from support.adopting import FIRST, AdoptingStage
from support.faulty_store import Fault, FaultPlan, SimulatedCrash

Sweep = Callable[..., None]
ASLEEP_SECONDS = 61.0


def adopt(stage: AdoptingStage, plan: FaultPlan | None = None) -> bool:
    """One call of the verb; whether it came to a deployment."""
    try:
        stage.adoptions(plan).adopt(stage.wanted(is_stopped=stage.query is None))
    except (StreamStateError, SimulatedCrash):
        return False
    return True


def give_up(stage: AdoptingStage, plan: FaultPlan | None = None) -> bool:
    """Whether it was abandoned."""
    try:
        stage.adoptions(plan).give_up("orders")
    except StreamStateError:
        return False
    return True


def calls_of(stage: AdoptingStage, act: Callable[[AdoptingStage, FaultPlan], bool]) -> FaultPlan:
    """What is called where nothing happens."""
    plan = FaultPlan()
    assert act(stage, plan)
    return plan


@contextmanager
def asleep_at(stage: AdoptingStage, number: int, act: Callable[[], object]) -> Iterator[FaultPlan]:
    """Before that call another has its way, after the hold has ended.

    The call may be of a thread that only reads: the verb can have ended before that thread wakes up, so it is waited
    for.
    """
    sleeps, is_awake = threading.Event(), threading.Event()

    def meanwhile() -> None:
        sleeps.set()
        try:
            stage.clock.sleep(ASLEEP_SECONDS)
            act()
        finally:
            is_awake.set()

    yield FaultPlan(meanwhile={number: meanwhile})
    assert not sleeps.is_set() or is_awake.wait(60)


def assert_free(stage: AdoptingStage) -> None:
    """Nothing of ours is in the way of the query, and no driver of ours continues with it, now or later (Law 14)."""
    assert stage.barriers() == [], "the controller that gave it up was notified that the query may be started"
    assert list(stage.launcher.requests) == []
    try:
        stage.deploy()
    except ConflictError:
        return
    assert stage.control.spec("d-0001").start.mode == "fresh"


def cut_at(folder: Path, key: str, nth: int) -> AdoptingStage:
    """An adoption that was killed behind its nth write to this key."""
    calm = calls_of(AdoptingStage(folder), adopt)
    stage = AdoptingStage(folder)
    found = [n for n, call in enumerate(calm.writes, 1) if call.key.endswith(key)]
    assert not adopt(stage, FaultPlan(at_write={found[nth - 1]: Fault.CRASH_AFTER}))
    stage.clock.sleep(ASLEEP_SECONDS)
    return stage


def staged(folder: Path, *, runs: bool) -> AdoptingStage:
    """A query that has stopped; or one that runs, and is started again whenever it ends."""
    stage = AdoptingStage(folder)
    if runs:
        stage.is_supervised = True
        stage.run_foreign()
    return stage


@pytest.mark.timeout(900)
@pytest.mark.parametrize("runs", [False, True], ids=["stopped", "running"])
def test_an_adopter_wakes_up_after_it_was_given_up(folder: Path, sweep: Sweep, runs: bool) -> None:
    """It puts nothing into the log, or withdraws it, and starts nothing; the query continues by itself, and misses no
    batch (Laws 4, 12 and 14)."""
    calm = calls_of(staged(folder, runs=runs), adopt)
    record = next(call.number for call in calm.calls if call.writes and call.key.endswith("adoption.json"))

    def live(_: int, number: int) -> None:
        stage = staged(folder, runs=runs)
        given: list[bool] = []
        with asleep_at(stage, number, lambda: given.append(give_up(stage))) as plan:
            done = adopt(stage, plan)
        if given == [True]:
            assert not done
            assert_free(stage)
            before = len(stage.ran)
            stage.clock.sleep(5)
            assert stage.ran == list(range(FIRST + 1, FIRST + 1 + len(stage.ran)))
            assert (len(stage.ran) > before) == runs
        else:
            stage.assert_taken()

    sweep([call.number for call in calm.calls if call.number > record], live, every=7 if runs else 3)


@pytest.mark.timeout(900)
def test_an_adopter_wakes_up_after_another_has_adopted(folder: Path, sweep: Sweep) -> None:
    """One deployment, from one snapshot, behind one barrier (Laws 1, 2 and 4)."""
    calm = calls_of(AdoptingStage(folder), adopt)

    def live(_: int, number: int) -> None:
        stage = AdoptingStage(folder)
        with asleep_at(stage, number, lambda: adopt(stage)) as plan:
            adopt(stage, plan)
        stage.clock.sleep(ASLEEP_SECONDS)
        assert adopt(stage)
        stage.assert_taken()

    sweep([call.number for call in calm.calls], live, every=3)


CUTS = (("counts/offsets/4", 1), ("manifest.json", 1), ("adoption.json", 3), ("stream.json", 1))


@pytest.mark.timeout(900)
def test_an_adopter_that_failed_wakes_up_after_another_has_adopted(folder: Path, sweep: Sweep) -> None:
    """While it withdraws what it put, and removes what it copied: both are another's by now (Laws 4 and 14)."""
    calm = calls_of(AdoptingStage(folder), adopt)
    struck = next(call.number for call in calm.calls if call.writes and call.key.endswith("manifest.json"))
    failing = FaultPlan({struck: Fault.UNAVAILABLE})
    assert not adopt(AdoptingStage(folder), failing)

    def live(_: int, number: int) -> None:
        stage = AdoptingStage(folder)
        with asleep_at(stage, number, lambda: adopt(stage)) as plan:
            plan.at = {struck: Fault.UNAVAILABLE}
            assert not adopt(stage, plan)
        stage.clock.sleep(ASLEEP_SECONDS)
        assert adopt(stage)
        stage.assert_taken()
        assert stage.control.spec("d-0001")
        assert stage.control.manifest(str(stage.control.spec("d-0002").start.snapshot_id))

    sweep([call.number for call in failing.calls if call.number > struck], live)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("key", "nth"), CUTS, ids=[key for key, _ in CUTS])
def test_who_gives_up_wakes_up_after_another_has(folder: Path, sweep: Sweep, key: str, nth: int) -> None:
    """It is abandoned, whatever ordered that: nothing of ours is in the way (Law 12)."""
    calm = calls_of(cut_at(folder, key, nth), give_up)

    def live(_: int, number: int) -> None:
        stage = cut_at(folder, key, nth)
        with asleep_at(stage, number, lambda: give_up(stage)) as plan:
            give_up(stage, plan)
        assert_free(stage)

    sweep([call.number for call in calm.calls], live, every=2)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("key", "nth"), CUTS, ids=[key for key, _ in CUTS])
def test_who_gives_up_wakes_up_after_another_has_adopted(folder: Path, sweep: Sweep, key: str, nth: int) -> None:
    """The barrier of a stream that continues stays where it is, and so does its snapshot (Laws 4 and 14)."""
    calm = calls_of(cut_at(folder, key, nth), give_up)

    def live(_: int, number: int) -> None:
        stage = cut_at(folder, key, nth)
        adopted: list[bool] = []
        with asleep_at(stage, number, lambda: adopted.append(adopt(stage))) as plan:
            given = give_up(stage, plan)
        if stage.launcher.requests:
            stage.assert_taken()
            assert not given
        else:
            stage.clock.sleep(ASLEEP_SECONDS)
            assert give_up(stage)
            assert_free(stage)

    # Behind the last write but one, which records that, it is abandoned, and may be adopted again.
    given_up = calm.writes[-2].number
    sweep([call.number for call in calm.calls if call.number <= given_up], live, every=2)
