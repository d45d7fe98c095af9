"""Seeding a query that was drained: fresh state, the drained offsets, ids continuing (1a.10)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.driver.start.query_seed import check_same_sources
from airflow_streamstate.errors import IncompatibleUpgradeError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import DrainNotification
from airflow_streamstate.protocol.events import Drained, Failed, QueryStarted
from airflow_streamstate.protocol.manifest import QuerySnapshot
from airflow_streamstate.protocol.positions import QueryPosition
from airflow_streamstate.protocol.records import StartPlan
from support.simulated_driver import (
    STREAM,
    SimulatedDriver,
    SimulatedStream,
    assert_nothing_lost,
    make_plan,
    waiting_script,
)
from support.simulated_query import SimulatedPlan
from support.simulated_sources import SimulatedSource


@pytest.fixture
def plan() -> SimulatedPlan:
    """A query over forty rows."""
    return make_plan(40)


def drained(stream: SimulatedStream, plan: SimulatedPlan) -> str:
    stream.order_at(4.1, DrainNotification)
    assert stream.run(waiting_script(plan)) == 0
    return stream.events_of(Drained)[0].snapshot_id


def run_second(
    stream: SimulatedStream, plan: SimulatedPlan, snapshot_id: str, number: int = 2, *, allow_state_loss: bool = False
) -> int | None:
    stream.deploy(number, StartPlan("seed", snapshot_id, "d-0001", allow_state_loss=allow_state_loss))
    stream.order_at(30.0, DrainNotification, f"d-{number:04d}")
    return stream.run(waiting_script(plan), f"d-{number:04d}")


def test_a_seeded_query_goes_on_at_the_drained_offsets_with_the_same_ids(stream: SimulatedStream) -> None:
    """Another window length is no hindrance; query id and batch ids continue, and no row is lost (Law 9)."""
    plan = make_plan(200)
    snapshot_id = drained(stream, plan)
    last = plan.sink.batches[-1][0]
    new = replace(plan, window_ms=3_000)
    assert run_second(stream, new, snapshot_id) == 0
    started = stream.events_of(QueryStarted, "d-0002")[0]
    assert (started.how, started.batch_id) == ("seeded", last)
    assert started.query_id == stream.events_of(QueryStarted)[0].query_id
    assert started.sources == ("Simulated[flights]",)
    ids = [batch_id for batch_id, _ in plan.sink.batches]
    assert ids == list(range(len(ids)))
    assert sum(plan.sink.counts().values()) == 200


def test_the_seed_batch_never_touches_the_sink(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    """Fresh state is made by an empty batch into no sink (1a.10)."""
    snapshot_id = drained(stream, plan)
    batches = list(plan.sink.batches)
    stream.deploy(2, StartPlan("seed", snapshot_id, "d-0001"))

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        assert plan.sink.batches == batches

    assert stream.run(script, "d-0002") == 0
    building = f"{layout.building_folder(STREAM, 'd-0002', 'counts')}/"
    assert list(stream.checkpoints.list_objects(building)) == []


def test_a_row_that_was_late_stays_late(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    """The watermark of before the flush is kept, so that no written window is opened again (1a.10)."""
    snapshot_id = drained(stream, plan)
    counted = sum(plan.sink.counts().values())
    plan.sources[0].add(100, 20_000)
    assert run_second(stream, plan, snapshot_id) == 0
    position = stream.events_of(Drained, "d-0002")[0].queries["counts"]
    assert position.rows_dropped == 1
    assert sum(plan.sink.counts().values()) == counted + 1


def test_another_watermark_delay_begins_a_watermark_anew_and_says_so(
    stream: SimulatedStream, plan: SimulatedPlan
) -> None:
    """Where column or delay changed, the old watermark means nothing (1a.10)."""
    snapshot_id = drained(stream, plan)
    plan.sources[0].add(100, 20_000)
    assert run_second(stream, replace(plan, delay_ms=500), snapshot_id) == 0
    assert any("watermark" in word for word in stream.events_of(QueryStarted, "d-0002")[0].repairs)
    assert_nothing_lost(plan)


@pytest.mark.parametrize(
    "sources",
    [
        [SimulatedSource("Simulated[other]")],
        [SimulatedSource("Simulated[flights]"), SimulatedSource("Simulated[more]")],
        [],
    ],
    ids=["another", "one more", "none"],
)
def test_other_sources_than_were_drained_are_refused(
    stream: SimulatedStream, plan: SimulatedPlan, sources: list[SimulatedSource]
) -> None:
    """Offsets belong to what they were of: by number and by what each source is."""
    snapshot_id = drained(stream, plan)
    assert run_second(stream, replace(plan, sources=sources), snapshot_id) == 1
    assert "IncompatibleUpgradeError" in stream.events_of(Failed, "d-0002")[0].error
    assert not Checkpoint(stream.checkpoints, layout.checkpoint_folder(STREAM, "d-0002", "counts")).exists()
    assert all(source.reads == [] for source in sources)


def test_sources_in_another_order_are_refused(stream: SimulatedStream) -> None:
    """Swapped, each would continue at the other's offset."""
    first, second = SimulatedSource("Simulated[a]"), SimulatedSource("Simulated[b]")
    first.add(*range(0, 10_000, 250))
    second.add(*range(0, 5_000, 250))
    plan = make_plan(0, sources=[first, second])
    snapshot_id = drained(stream, plan)
    assert run_second(stream, replace(plan, sources=[second, first]), snapshot_id) == 1
    assert "another order" in stream.events_of(Failed, "d-0002")[0].error


def test_state_that_the_drain_left_is_not_dropped_unasked(stream: SimulatedStream) -> None:
    """A seed would drop it: refused, unless the user asked for just that, which is then reported (Law 16)."""
    plan = make_plan(40, delay_ms=None)
    snapshot_id = drained(stream, plan)
    assert run_second(stream, plan, snapshot_id) == 1
    assert "--allow-state-loss" in stream.events_of(Failed, "d-0002")[0].error
    assert run_second(stream, plan, snapshot_id, 3, allow_state_loss=True) == 0
    assert any("discarded" in word for word in stream.events_of(QueryStarted, "d-0003")[0].repairs)


def test_a_driver_killed_while_it_builds_a_seed_is_followed_by_one_that_builds_it_again(
    stream: SimulatedStream, plan: SimulatedPlan
) -> None:
    """Half built is built again: the last act puts it in place (1a.10)."""
    snapshot_id = drained(stream, plan)
    plan.sources[0].add(*range(10_000, 12_000, 250))
    stream.deploy(2, StartPlan("seed", snapshot_id, "d-0001"))
    folder = layout.checkpoint_folder(STREAM, "d-0002", "counts")
    building = layout.building_folder(STREAM, "d-0002", "counts")
    for prefix in (folder, building):
        stream.checkpoints.put(f"{prefix}/offsets/0", b"half built")
        stream.checkpoints.put(f"{prefix}/state/0/0/1.delta", b"half built")
    stream.order_at(30.0, DrainNotification, "d-0002")
    assert stream.run(waiting_script(plan), "d-0002") == 0
    assert_nothing_lost(plan)


PYTHON_SOURCE = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream"


def check(before: str, now: str) -> None:
    """Check a source in Spark's words against those of a snapshot."""
    known = QuerySnapshot(query_id="q", position=QueryPosition(4), files=(), sources=(before,))
    check_same_sources("counts", known, (now,))


def test_a_source_in_python_is_the_same_at_each_start() -> None:
    """Spark calls it by its class and the number of a Java object."""
    check(f"{PYTHON_SOURCE}@5607029d", f"{PYTHON_SOURCE}@5c64d864")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (f"{PYTHON_SOURCE}@5607029d", f"{PYTHON_SOURCE}WithAdmissionControl@5607029d"),
        ("FileStreamSource[file:/in@5607029d]", "FileStreamSource[file:/in@5c64d864]"),
        ("FileStreamSource[file:/in]", "FileStreamSource[file:/other]"),
    ],
)
def test_another_source_is_refused(before: str, now: str) -> None:
    """Its offsets mean nothing to this one."""
    with pytest.raises(IncompatibleUpgradeError, match="reads other sources"):
        check(before, now)
