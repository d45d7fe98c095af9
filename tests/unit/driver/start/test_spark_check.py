"""The driver's own check of its Spark, before anything of a query is touched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Drained, Failed, QueryStarted, Stopped
from airflow_streamstate.protocol.records import StartPlan
from support.simulated_driver import STREAM, SimulatedDriver, SimulatedStream, make_plan, waiting_script
from support.simulated_query import Phase, SimulatedPlan, SimulatedRun

TO_COME = "5.0.0"
"""Newer than every Spark that was measured: no rollback from it is known."""


def stopped(plan: SimulatedPlan, spark_version: str = TO_COME) -> tuple[SimulatedStream, str]:
    """A first deployment that ran on this Spark, and its last snapshot."""
    stream = SimulatedStream(spark_version=spark_version)
    stream.deploy()
    stream.order_at(2.1, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    return stream, stream.events_of(Stopped)[0].snapshot_id


def test_state_of_a_newer_spark_is_not_restored_by_an_older_one(plan: SimulatedPlan) -> None:
    """Refused at start(), with both versions; no checkpoint is built (Law 10)."""
    stream, snapshot_id = stopped(plan)
    assert stream.control.need_manifest(snapshot_id).spark_version == TO_COME
    stream.spark_version = "4.2.0"
    stream.deploy(2, StartPlan("restore", snapshot_id, "d-0001"))
    assert stream.run(waiting_script(plan), "d-0002") == 1
    failed = stream.events_of(Failed, "d-0002")[0]
    assert "IncompatibleUpgradeError" in failed.error
    assert TO_COME in failed.error
    assert stream.events_of(QueryStarted, "d-0002") == []
    checkpoint = Checkpoint(stream.checkpoints, layout.checkpoint_folder(STREAM, "d-0002", "counts"))
    assert list(stream.checkpoints.list_objects(checkpoint.prefix)) == []


def test_a_spark_on_which_no_stream_was_tried_starts_no_query(plan: SimulatedPlan) -> None:
    """Refused at start(), a fresh one, too: the barrier was never tried there (Law 10)."""
    stream = SimulatedStream(spark_version="3.4.4")
    stream.deploy()
    assert stream.run(waiting_script(plan)) == 1
    assert "streams need Spark 3.5 or newer, and this is Spark 3.4.4" in stream.events_of(Failed)[0].error
    assert list(stream.checkpoints.list_objects(layout.checkpoint_folder(STREAM, "d-0001", "counts"))) == []


def test_a_query_without_state_is_restored_and_resumed_on_an_older_spark() -> None:
    """From a snapshot and on its own checkpoint; nothing but its logs is read."""
    plan = make_plan(window_ms=None)
    stream, snapshot_id = stopped(plan, "4.3.0")
    stream.deploy(2, StartPlan("restore", snapshot_id, "d-0001"))
    stream.spark_version = "4.2.0"
    stream.order_at(2.1, StopRequest, "d-0002")
    assert stream.run(waiting_script(plan), "d-0002") == 0
    stream.spark_version = "4.1.4"
    number = stream.next_attempt("d-0002")
    stream.order_at(30.0, StopRequest, "d-0002", attempt=number)
    assert stream.run(waiting_script(plan), "d-0002", number) == 0
    assert [event.how for event in stream.events_of(QueryStarted, "d-0002")] == ["restored", "continued"]
    assert stream.events_of(Failed, "d-0002") == []


def test_a_deployment_is_not_resumed_on_an_older_spark(plan: SimulatedPlan) -> None:
    """Its own checkpoint was written by a newer one in the meantime; it is left as it is (Law 10)."""
    stream, _ = stopped(plan)
    checkpoint = Checkpoint(stream.checkpoints, layout.checkpoint_folder(STREAM, "d-0001", "counts"))
    entries = checkpoint.offset_ids()
    stream.spark_version = "4.2.0"
    number = stream.next_attempt()
    assert stream.run(waiting_script(plan), attempt=number) == 1
    assert checkpoint.offset_ids() == entries


@pytest.mark.parametrize(("phase", "is_refused"), [("run", False), ("sink", True), ("commit", True)])
def test_a_batch_that_a_newer_spark_wrote_and_never_committed_counts(
    plan: SimulatedPlan, phase: Phase, is_refused: bool
) -> None:
    """Where it has started to write state, an older Spark is refused (Law 10)."""
    stream, _ = stopped(plan, "4.2.0")
    stream.spark_version = TO_COME
    driver = SimulatedDriver(stream, attempt=stream.next_attempt())

    def kill(run: SimulatedRun, at: Phase) -> None:
        if at == phase:
            driver.kill()

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.startables[0].before_phase = kill
        driver.await_all()

    assert driver.run(script) is None
    stream.spark_version = "4.2.0"
    number = stream.next_attempt()
    stream.order_at(30.0, StopRequest, attempt=number)
    assert stream.run(waiting_script(plan), attempt=number) == is_refused
    said = [(TO_COME in event.error, "either of them" in event.error) for event in stream.events_of(Failed)]
    assert said == [(True, True)] * is_refused


def test_positions_are_seeded_on_any_spark() -> None:
    """A drained stream continues with fresh state wherever it is started."""
    stream, plan = SimulatedStream(spark_version=TO_COME), make_plan()
    stream.deploy()
    stream.order_at(2.1, DrainNotification)
    assert stream.run(waiting_script(plan)) == 0
    snapshot_id = stream.events_of(Drained)[0].snapshot_id
    stream.spark_version = "4.2.0"
    stream.deploy(2, replace(StartPlan("seed", snapshot_id, "d-0001"), allow_state_loss=True))
    stream.order_at(5.0, DrainNotification, "d-0002")
    assert stream.run(waiting_script(plan), "d-0002") == 0
    assert stream.events_of(QueryStarted, "d-0002")[0].how == "seeded"


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_start_snapshot_that_is_lost_lets_no_older_spark_go_on(plan: SimulatedPlan, is_damaged: bool) -> None:
    """It reported which Spark wrote the state; without it the one that continued from that state speaks (Law 10)."""
    stream, snapshot_id = stopped(plan)
    stream.deploy(2, StartPlan("restore", snapshot_id, "d-0001"))

    def killed(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.kill()

    assert stream.run(killed, "d-0002") is None
    (started,) = stream.events_of(QueryStarted, "d-0002")
    checkpoint = Checkpoint(stream.checkpoints, layout.checkpoint_folder(STREAM, "d-0002", "counts"))
    assert checkpoint.position().batch_id == started.batch_id
    if is_damaged:
        stream.checkpoints.put(layout.manifest_key(STREAM, snapshot_id), b"{")
    else:
        stream.checkpoints.delete(layout.manifest_key(STREAM, snapshot_id))
    stream.spark_version = "4.2.0"
    number = stream.next_attempt("d-0002")
    assert stream.run(waiting_script(plan), "d-0002", number) == 1
    assert TO_COME in stream.events_of(Failed, "d-0002")[-1].error
