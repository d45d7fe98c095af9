"""The verb adopt: stopped and running queries, refusals, and barriers that are withdrawn."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from airflow_streamstate.controller.adopt.adopted_stream import HOLD_SECONDS, RENEW_SECONDS
from airflow_streamstate.controller.adopt.adoptions import Adoptions, AdoptRequest
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.deploy.attempts import Attempts
from airflow_streamstate.controller.deploy.deployment import Deployer
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.retention.pruning import Retaining
from airflow_streamstate.errors import (
    ConflictError,
    DeadlineExceededError,
    InvalidRequestError,
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.store import transfer
from airflow_streamstate.store.base import Link
from airflow_streamstate.store.memory import MemoryStore
from airflow_streamstate.store.options import SparkSettings
from support.adopting import URI, AdoptingStage
from support.checkpoints import commit_batch
from support.faulty_store import Fault, FaultPlan, FaultyStore, SimulatedCrash
from support.server_store import ServerStore
from support.snapshots import plan_stateful


class FillingStore(MemoryStore):
    """Full from the third file of a checkpoint on."""

    is_full: bool | None = False

    def put(self, key: str, body: bytes) -> str:
        if "/checkpoints/" in key and self.is_full is False:
            self.is_full = len(list(self.list_objects("orders/deployments/"))) >= 2
        self._refuse(key)
        return super().put(key, body)

    def create(self, key: str, body: bytes) -> str:
        self._refuse(key)
        return super().create(key, body)

    def replace(self, key: str, body: bytes, version: str) -> str:
        self._refuse(key)
        return super().replace(key, body, version)

    def _refuse(self, key: str) -> None:
        if self.is_full:
            raise UnavailableError("the disk is full", key=key)


def test_a_stopped_query_goes_on_from_its_last_batch(adopting: AdoptingStage) -> None:
    """Its checkpoint is copied, the original keeps every byte and gets the barrier; the fields in JSON are pinned."""
    before = {info.key: adopting.lake.get(info.key) for info in adopting.lake.list_objects("")}
    view = adopting.adopt(is_stopped=True)
    assert (view.deployment_id, view.start.mode) == ("d-0002", "restore")
    query = {"checkpoint": URI, "query_id": adopting.foreign.query_id(), "batch_id": 3, "planned_batch_id": None}
    assert view.to_json()["adopted"] == {
        "deployment_id": "d-0001",
        "snapshot_id": view.start.snapshot_id,
        "queries": {"counts": query},
    }
    adopting.assert_taken()
    after = {info.key: adopting.lake.get(info.key) for info in adopting.lake.list_objects("")}
    assert after.pop("counts/offsets/4") is not None
    assert after == before


def test_the_same_request_again_is_the_same_deployment(adopting: AdoptingStage) -> None:
    """Also when the old folder is gone. (Law 2)"""
    first = adopting.adopt(is_stopped=True)
    assert adopting.adopt(is_stopped=True).deployment_id == first.deployment_id
    adopting.assert_taken()
    for info in list(adopting.lake.list_objects("")):
        adopting.lake.delete(info.key)
    assert adopting.adopt(is_stopped=True).adopted == first.adopted


def test_an_idle_query_is_left_as_it_is(adopting: AdoptingStage) -> None:
    """An idle query does not notice a barrier, so none is put."""
    adopting.has_input = False
    adopting.run_foreign()
    with pytest.raises(DeadlineExceededError, match="idle"):
        adopting.adopt()
    assert adopting.barriers() == []
    assert adopting.control.register() is None
    adopting.has_input = True
    adopting.adopt()
    adopting.assert_taken()


def test_a_failed_batch_ends_in_a_log_without_a_barrier(adopting: AdoptingStage) -> None:
    """Where it is not started again. (Law 12)"""
    adopting.fails = {4}
    adopting.run_foreign()
    with pytest.raises(DeadlineExceededError, match="not committed"):
        adopting.adopt()
    assert adopting.barriers() == []
    assert adopting.foreign.position().planned_id == 4


def test_a_query_that_is_said_to_be_stopped_and_runs_is_refused(adopting: AdoptingStage) -> None:
    """Its log moves between the two checks; the barrier is withdrawn."""
    adopting.run_foreign()
    plan = FaultPlan()
    plan.before_each = lambda: adopting.clock.sleep(0.1)
    with pytest.raises(StreamStateError, match="not stopped"):
        adopting.adoptions(plan).adopt(adopting.wanted(is_stopped=True))
    assert adopting.barriers() == []
    assert adopting.control.register() is None


def test_a_query_that_commits_while_it_is_copied_is_refused(tmp_path: Path) -> None:
    """Its copy lacks that batch, which the stream would run again. (Law 14)"""
    adopting, plan = AdoptingStage(tmp_path, planned=True), FaultPlan()

    def commit_behind_the_barrier() -> None:
        if adopting.barriers() and not adopting.foreign.is_committed(4):
            commit_batch(adopting.foreign, 4, watermark_ms=5000)

    plan.before_each = commit_behind_the_barrier
    with pytest.raises(ConflictError, match="its log moved while it was copied"):
        adopting.adoptions(plan).adopt(adopting.wanted(is_stopped=True))
    assert adopting.barriers() == []
    assert adopting.control.register() is None


def test_a_removed_barrier_is_noticed_before_the_driver_starts(adopting: AdoptingStage) -> None:
    """The old query may have run those batches in the meantime. (Law 14)"""
    adopting.launcher.refusals = [InvalidRequestError("no such master")]
    with pytest.raises(InvalidRequestError):
        adopting.adopt(is_stopped=True)
    adopting.lake.delete("counts/offsets/4")
    adopting.control.home.delete(f"{adopting.control.stream_id}/stream.json")
    with pytest.raises(ConflictError, match="the barrier of this adoption was removed"):
        adopting.adopt(is_stopped=True)


def test_a_snapshot_of_elsewhere_in_the_log_is_not_taken_for_this_one(adopting: AdoptingStage, tmp_path: Path) -> None:
    """A call was cut short after its snapshot, and the query ran on: the next call takes a new snapshot. (Law 14)"""
    (tmp_path / "calm").mkdir()
    plan, calm = FaultPlan(), AdoptingStage(tmp_path / "calm", planned=True)
    calm.adoptions(plan).adopt(calm.wanted(is_stopped=True))
    taken = next(n for n, call in enumerate(plan.writes, 1) if call.key.endswith("manifest.json"))
    plan_stateful(adopting.foreign, 4)
    cut = FaultPlan(at_write={taken: Fault.CRASH_AFTER})
    with pytest.raises(SimulatedCrash):
        adopting.adoptions(cut).adopt(adopting.wanted(is_stopped=True))
    adopting.clock.sleep(61)
    adopting.is_supervised = True
    adopting.run_foreign()
    assert adopting.adopt().start.snapshot_id == "d-0001-stopped-000002"
    adopting.clock.sleep(20)
    adopting.assert_taken()


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_home_that_is_full_leaves_no_barrier(adopting: AdoptingStage, is_stopped: bool) -> None:
    """Nothing can be written from the first copied file on: the barrier is withdrawn at once, and what was copied is
    removed. (Law 12)"""
    adopting.store = store = FillingStore()
    if not is_stopped:
        adopting.run_foreign()
    with pytest.raises(UnavailableError, match="full"):
        adopting.adopt(is_stopped=is_stopped)
    assert adopting.barriers() == []
    assert list(store.list_objects("orders/deployments/")) == []
    store.is_full = None
    adopting.clock.sleep(HOLD_SECONDS)
    adopting.adopt(is_stopped=True)
    assert adopting.barriers() != []


def test_one_log_is_not_two_queries(adopting: AdoptingStage) -> None:
    """Under two names, or with its copy: both would continue under one query id. (Law 9)"""
    both = AdoptRequest(adopting.request(), {"counts": URI, "again": f"{URI}/"}, is_stopped=True)
    with pytest.raises(InvalidRequestError, match="of one query"):
        adopting.adoptions().adopt(both)
    assert adopting.barriers() == []


def test_a_barrier_is_taken_back_as_soon_as_its_store_answers(adopting: AdoptingStage) -> None:
    """The store is silent after the copy failed, and no other controller would come back for the barrier. (Law 12)"""
    adopting.lake.delete("counts/state/0/0/3.delta")
    copying = FaultPlan()
    with pytest.raises(StreamStateError):
        adopting.adoptions(copying).adopt(adopting.wanted(is_stopped=True))
    assert adopting.barriers() == []
    put = next(call.number for call in copying.calls if call.key == "counts/offsets/4" and call.writes)
    reads = [call.number for call in copying.calls if call.number > put and call.key.startswith("counts")]
    adopting.clock.sleep(HOLD_SECONDS)
    plan = FaultPlan(dict.fromkeys(range(reads[-1] - 2, reads[-1] + 4), Fault.UNAVAILABLE))
    with pytest.raises(StreamStateError):
        adopting.adoptions(plan).adopt(adopting.wanted(is_stopped=True))
    assert adopting.barriers() == []


@pytest.mark.parametrize("is_twice", [False, True])
def test_an_interrupt_that_leaves_a_barrier_says_so(adopting: AdoptingStage, is_twice: bool) -> None:
    """The log cannot be written, or a second ctrl-c comes while the barrier is being withdrawn. (Law 12)"""

    def interrupt(_words: str) -> None:
        if is_twice:
            plan.before_each = again
        else:
            plan.every_write = Fault.UNAVAILABLE
        raise KeyboardInterrupt

    def again() -> None:
        if plan.calls[-1].key == "counts/offsets/4":
            plan.before_each = lambda: None
            raise KeyboardInterrupt

    plan = FaultPlan()
    with pytest.raises(OutcomeUnknownError, match="interrupted") as told:
        adopting.adoptions(plan).adopt(adopting.wanted(is_stopped=True), report=interrupt)
    assert "--give-up" in told.value.next_step
    assert adopting.barriers() == [4]


@pytest.mark.parametrize("words", ["the file system is read-only", "permission denied"])
def test_a_home_that_refuses_leaves_no_barrier(adopting: AdoptingStage, words: str) -> None:
    """A disk that was mounted again after an error, or credentials that expired during the copy. (Law 12)"""

    def refuse() -> None:
        if adopting.barriers():
            raise InvalidRequestError(words)

    home_plan = FaultPlan()
    adoptions = adopting.adoptions(home_plan)
    store = adoptions._home.home
    assert isinstance(store, FaultyStore)
    store.plan = FaultPlan()
    store.plan.before_each = refuse
    with pytest.raises(InvalidRequestError, match=words) as told:
        adoptions.adopt(adopting.wanted(is_stopped=True))
    assert adopting.barriers() == []
    assert "--give-up" not in told.value.next_step


def test_an_entry_that_spark_wrote_over_ours_is_not_called_a_barrier(adopting: AdoptingStage) -> None:
    """The query claims its next batch while the barrier is being withdrawn: no barrier is left."""

    def claim() -> None:
        if plan.calls and plan.calls[-1].key == "counts/offsets/4" and adopting.barriers():
            reads.append(1)
            if len(reads) == 2:
                plan_stateful(adopting.foreign, 4)

    def fail(_words: str) -> None:
        plan.before_each = claim
        raise InvalidRequestError("something else")

    plan, reads = FaultPlan(), [1]
    with pytest.raises(InvalidRequestError, match="something else") as told:
        adopting.adoptions(plan).adopt(adopting.wanted(is_stopped=True), report=fail)
    assert adopting.foreign.position().planned_id == 4
    assert told.value.next_step == ""


class ServedLake(MemoryStore):
    """On a server, which may ignore the condition of a put."""

    heeds = True

    def for_spark(self) -> SparkSettings:
        return SparkSettings({}, {})

    def create(self, key: str, body: bytes) -> str:
        return super().create(key, body) if self.heeds else self.put(key, body)


def test_a_server_that_ignores_conditions_gets_no_barrier(adopting: AdoptingStage) -> None:
    """It could replace Spark's own entry; the check is a create that changes nothing."""
    lake = ServedLake("lake")
    for info in adopting.lake.list_objects(""):
        found = adopting.lake.get(info.key)
        assert found is not None
        lake.put(info.key, found.body)
    before = {info.key: lake.get(info.key) for info in lake.list_objects("")}
    adoptions = adopting.adoptions()
    adoptions._open_place = lambda _uri: lake
    lake.heeds = False
    with pytest.raises(InvalidRequestError, match="no conditional create"):
        adoptions.adopt(adopting.wanted(is_stopped=True))
    assert {info.key: lake.get(info.key) for info in lake.list_objects("")} == before
    lake.heeds = True
    adopting.clock.sleep(HOLD_SECONDS)
    adoptions.adopt(adopting.wanted(is_stopped=True))
    assert lake.get("counts/offsets/4") is not None


def test_what_fails_once_it_is_taken_says_that_the_query_has_ended(adopting: AdoptingStage) -> None:
    """Nothing runs then, which the refusal of the launch alone would not report."""
    adopting.launcher.refusals = [InvalidRequestError("no such master")]
    with pytest.raises(InvalidRequestError, match="no such master") as told:
        adopting.adopt(is_stopped=True)
    assert "has ended, and its barrier stays" in told.value.next_step
    assert adopting.barriers() == [4]


def test_an_adoption_is_held_while_its_snapshot_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a server a link is a copy, which may outlast the lease: it is renewed in the meantime."""
    monkeypatch.setattr(transfer, "LOOK_SECONDS", 0.001)
    stage = AdoptingStage(tmp_path)
    renewed = threading.Event()

    class Slow(ServerStore):
        """Copies until the lease is renewed."""

        def replace(self, key: str, body: bytes, version: str) -> str:
            written = super().replace(key, body, version)
            if key.endswith("/adoption.json"):
                renewed.set()
            return written

        def link_many(self, links: Sequence[Link]) -> list[str]:
            renewed.clear()
            stage.clock.advance(RENEW_SECONDS)
            assert renewed.wait(20)
            return super().link_many(links)

    store = Slow()
    context = ControllerContext.of(
        Home.of(store, store, tmp_path, stage.clock), stage.launcher, stage.clock, "tests", None
    )
    adoptions = Adoptions(
        context,
        Deployer(context, Attempts(context)),
        partial(Retaining(context).retire, deletes=True),
        lambda _uri: stage.lake,
    )
    assert adoptions.adopt(stage.wanted(is_stopped=True)).deployment_id == "d-0002"
    assert store.lists
