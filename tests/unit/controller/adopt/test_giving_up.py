"""Giving an adoption up."""

from __future__ import annotations

from contextlib import suppress

import pytest

from airflow_streamstate.allowed import Allowed
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.controller.adopt.adoptions import AdoptRequest
from airflow_streamstate.errors import ConflictError, DeadlineExceededError, InvalidRequestError, StreamNotFoundError
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.memory import MemoryStore
from support.adopting import FIRST, PLACE, URI, AdoptingStage
from support.checkpoints import write_with_crc
from support.faulty_store import Fault, FaultPlan, SimulatedCrash
from support.snapshots import plan_stateful, run_stateful


def killed(adopting: AdoptingStage, plan: FaultPlan) -> None:
    """An adoption of the stopped query is killed by this plan."""
    with pytest.raises(SimulatedCrash):
        adopting.adoptions(plan).adopt(adopting.wanted(is_stopped=True))


def test_what_was_cut_short_is_taken_back(adopting: AdoptingStage) -> None:
    """The query may be started again as before, and be adopted later."""
    killed(adopting, FaultPlan(at_write={4: Fault.CRASH_AFTER}))
    assert adopting.barriers() == [4]
    with pytest.raises(ConflictError, match="under way"):
        adopting.adoptions().give_up("orders")
    adopting.clock.sleep(61)
    given = adopting.adoptions().give_up("orders")
    assert given.to_json() == {"stream_id": "orders", "given_up": {"counts": URI}, "missing": {}, "retired": False}
    assert adopting.barriers() == []
    adopting.run_foreign()
    adopting.clock.sleep(10)
    assert adopting.ran[0] == 4
    adopting.adopt()
    adopting.clock.sleep(10)
    adopting.assert_taken()


def test_a_stream_that_never_ran_is_retired(adopting: AdoptingStage) -> None:
    """It is not deployed from the snapshot of a query that runs on. (Law 14)"""
    adopting.adopt(is_stopped=True)
    with pytest.raises(ConflictError, match="a driver of this stream is"):
        adopting.adoptions().give_up("orders")
    adopting.launcher.states["d-0002-a0001"] = "exited"
    given = adopting.adoptions().give_up("orders")
    assert given.is_retired
    assert adopting.barriers() == []
    with pytest.raises(ConflictError, match="retired"):
        adopting.deploy("print('v2')\n")
    with pytest.raises(ConflictError, match="was abandoned"):
        adopting.deploy("print('v2')\n", revive=True)
    assert list(adopting.launcher.requests) == ["d-0002-a0001"]


@pytest.mark.parametrize("is_reported", [True, False])
def test_what_has_run_is_not_given_up(adopting: AdoptingStage, is_reported: bool) -> None:
    """By its events, or by its log alone: the same batches would run twice. (Law 14)"""
    adopting.adopt(is_stopped=True)
    if is_reported:
        adopting.come_to_life("d-0002", queries=("counts",))
    else:
        adopting.run_batches(4, deployment_id="d-0002")
    adopting.launcher.states["d-0002-a0001"] = "exited"
    with pytest.raises(ConflictError, match="continued with"):
        adopting.adoptions().give_up("orders")
    assert adopting.barriers() == [4]


def test_nothing_is_given_up_that_was_not_begun(adopting: AdoptingStage) -> None:
    """Reported in one sentence."""
    adopting.home.begin("tests")
    with pytest.raises(StreamNotFoundError, match="this stream has no adoption"):
        adopting.adoptions().give_up("orders")


def test_one_that_was_cut_short_takes_back_all_the_same(adopting: AdoptingStage) -> None:
    """Killed at any write, it leaves no barrier that a later adoption would take for another one's. (Law 2)"""
    for number in range(1, 6):
        killed(adopting, FaultPlan(at_write={3: Fault.CRASH_AFTER}))
        adopting.clock.sleep(61)
        with suppress(SimulatedCrash):
            adopting.adoptions(FaultPlan(at_write={number: Fault.CRASH_AFTER})).give_up("orders")
        adopting.clock.sleep(61)
        adopting.adoptions().give_up("orders")
        assert adopting.barriers() == []
    adopting.adopt(is_stopped=True)
    adopting.assert_taken()


def test_no_snapshot_of_it_is_taken_for_one_of_a_later_stream(adopting: AdoptingStage) -> None:
    """A stream that gets the name afterwards stops at its own snapshot. (Law 2)"""
    killed(adopting, FaultPlan({adopt_calls(adopting, "manifest.json"): Fault.CRASH_AFTER}))
    adopting.clock.sleep(61)
    adopting.adoptions().give_up("orders")
    adopting.deploy()
    stopped = adopting.stopped(last=7)
    assert adopting.control.need_manifest(str(stopped.snapshot_id)).queries["counts"].position.batch_id == 7


def test_a_stream_that_came_later_is_not_retired(adopting: AdoptingStage) -> None:
    """Abandoned once more, by mistake."""
    with pytest.raises(DeadlineExceededError):
        adopting.adopt()
    adopting.adoptions().give_up("orders")
    adopting.deploy()
    adopting.launcher.states["d-0001-a0001"] = "exited"
    assert adopting.adoptions().give_up("orders").is_retired is False
    assert adopting.control.need_register().value.retirement is None


def test_a_barrier_that_came_too_late_is_taken_back_by_the_same_call(adopting: AdoptingStage) -> None:
    """The adopter slept at the put, woke up when the adoption was abandoned, and was killed. (Law 12)"""
    put = adopt_calls(adopting, "counts/offsets/4")

    def meanwhile() -> None:
        adopting.clock.sleep(61)
        adopting.adoptions().give_up("orders")

    killed(adopting, FaultPlan({put: Fault.CRASH_AFTER}, meanwhile={put: meanwhile}))
    assert adopting.barriers() == [4]
    adopting.adoptions().give_up("orders")
    assert adopting.barriers() == []


def test_a_log_that_is_damaged_elsewhere_gives_its_barrier_back(adopting: AdoptingStage) -> None:
    """A power failure damaged the batch below the barrier: its repair must not find the barrier. (Law 12)"""
    plan_stateful(adopting.foreign, 4)
    killed(adopting, FaultPlan({adopt_calls(adopting, "counts/offsets/5"): Fault.CRASH_AFTER}))
    adopting.lake.put("counts/offsets/4", b"")
    adopting.clock.sleep(61)
    adopting.adoptions().give_up("orders")
    assert adopting.foreign.offset_ids()[-1] == 4


def test_of_a_checkpoint_that_was_removed_nothing_is_taken_back(adopting: AdoptingStage) -> None:
    """The name is free again; but not where the only copy of its state would go. (Law 16)"""
    with pytest.raises(DeadlineExceededError):
        adopting.adopt()
    kept = {info.key: adopting.lake.get(info.key) for info in adopting.lake.list_objects("")}
    for key in kept:
        adopting.lake.delete(key)
    for _ in range(2):
        given = adopting.adoptions().give_up("orders")
        assert (given.checkpoints, given.missing) == ({}, {"counts": URI})
    for key, stored in kept.items():
        assert stored is not None
        adopting.lake.put(key, stored.body)
    killed(adopting, FaultPlan({adopt_calls(adopting, "manifest.json"): Fault.CRASH_AFTER}))
    adopting.clock.sleep(61)
    for info in list(adopting.lake.list_objects("")):
        adopting.lake.delete(info.key)
    with pytest.raises(ConflictError, match="could not be withdrawn") as told:
        adopting.adoptions().give_up("orders")
    assert "the only copy" in str(told.value)


def adopt_calls(adopting: AdoptingStage, key: str) -> int:
    """At which call of an adoption of a query that has stopped this key is written first."""
    calm, plan = AdoptingStage(adopting.folder), FaultPlan()
    calm.foreign = adopting.foreign
    calm.lake = copied(adopting.lake)
    calm.store = copied(adopting.store)
    calm.adoptions(plan).adopt(calm.wanted(is_stopped=True))
    return next(call.number for call in plan.calls if call.writes and call.key.endswith(key))


def copied(store: Store) -> MemoryStore:
    """Another with the same objects."""
    other = MemoryStore(store.uri.rpartition("/")[2])
    for info in store.list_objects(""):
        found = store.get(info.key)
        assert found is not None
        other.put(info.key, found.body)
    return other


def test_one_that_is_gone_does_not_keep_the_others_barred(adopting: AdoptingStage) -> None:
    """Two queries of one application. (Law 12)"""
    second = run_stateful(Checkpoint(adopting.lake, "sums"), FIRST)
    write_with_crc(second.store, second.metadata_key, b'{"id":"another"}')
    both = AdoptRequest(adopting.request(), {"counts": URI, "sums": f"{PLACE}/sums"}, is_stopped=True)
    adopting.launcher.refusals = [InvalidRequestError("no such master")]
    adoptions = adopting.adoptions()
    adoptions._open_place = lambda _uri: adopting.lake
    with pytest.raises(InvalidRequestError, match="no such master"):
        adoptions.adopt(both)
    for info in list(adopting.lake.list_objects("counts/")):
        adopting.lake.delete(info.key)
    with pytest.raises(ConflictError, match="could not be withdrawn"):
        adopting.adoptions().give_up("orders")
    assert second.position().barriers == ()


def test_a_stream_that_is_revived_meanwhile_keeps_its_barrier(adopting: AdoptingStage) -> None:
    """A deploy arrives while the barrier is being withdrawn: the barrier is put back. (Law 14)"""
    adopting.adopt(is_stopped=True)
    adopting.launcher.states["d-0002-a0001"] = "exited"

    def revive() -> None:
        if plan.calls and plan.calls[-1].method == "delete" and not revived:
            revived.append(adopting.deploy("print('v2')\n", revive=True).deployment_id)

    plan, revived = FaultPlan(), list[str]()
    plan.before_each = revive
    with pytest.raises(ConflictError, match="a driver of this stream is"):
        adopting.adoptions(plan).give_up("orders")
    assert revived == ["d-0003"]
    assert adopting.barriers() == [4]


def test_a_record_leads_to_no_place_that_is_not_allowed(adopting: AdoptingStage) -> None:
    """The attack: a record names the checkpoint of a query that runs elsewhere, so that abandoning it takes its barrier
    away, or puts one into its log, which ends it. The error has the line to add."""
    killed(adopting, FaultPlan(at_write={4: Fault.CRASH_AFTER}))
    adopting.clock.sleep(61)
    entries = sorted(info.key for info in MemoryStore("lake").list_objects(""))
    adopting.allowed = Allowed(stores=("memory://other",), where="the list")
    with pytest.raises(InvalidRequestError, match="this place is not allowed") as refused:
        adopting.adoptions().give_up("orders")
    assert refused.value.next_step.endswith(f"add \"{URI}\" to 'stores' in the list.")
    assert adopting.barriers() == [4]
    assert sorted(info.key for info in MemoryStore("lake").list_objects("")) == entries
    adopting.clock.sleep(61)
    adopting.allowed = Allowed(stores=(URI,))
    adopting.adoptions().give_up("orders")
    assert adopting.barriers() == []
