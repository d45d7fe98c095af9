"""The checkpoints that a snapshot of an attempt holds (1a.11)."""

from __future__ import annotations

import pytest

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.attempt_snapshots import (
    checkpoint_names,
    last_known,
    queries_to_capture,
    retry_until_fenced,
    take_final_snapshot,
)
from airflow_streamstate.errors import DataError, FencedError, UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import Command, DrainNotification, SnapshotRequest, StopRequest
from airflow_streamstate.protocol.events import Drained, QueryStarted, SnapshotReady, Stopped
from airflow_streamstate.protocol.records import StartPlan
from support.simulated_driver import STREAM, SimulatedDriver, SimulatedStream, make_plan, waiting_script


@pytest.fixture
def attempt(stream: SimulatedStream) -> Attempt:
    """Deployment d-0002, which starts from a snapshot with the queries a and b, and has built neither."""
    stream.order_at(2.1, StopRequest)
    assert stream.run(waiting_script(make_plan(), make_plan(), names=("a", "b"))) == 0
    stream.deploy(2, StartPlan("restore", stream.events_of(Stopped)[0].snapshot_id, "d-0001"))
    return SimulatedDriver(stream, "d-0002").attempt_life.attempt


def test_a_query_that_was_not_built_yet_is_carried_on(attempt: Attempt) -> None:
    """It is taken from the start snapshot: nothing falls back to empty (Law 5)."""
    wanted = queries_to_capture(attempt)
    assert set(wanted) == {"a", "b"}
    manifest = take_final_snapshot(attempt, "stopped", "")
    start = attempt.start.manifest()
    assert start is not None
    assert manifest.queries == start.queries


def test_what_is_no_checkpoint_among_the_checkpoints_is_passed_over(stream: SimulatedStream, attempt: Attempt) -> None:
    """A folder whose name no query has is ignored (Law 7)."""
    folder = layout.checkpoints_folder(STREAM, "d-0002")
    stream.checkpoints.put(f"{folder}/%41/x", b"")
    stream.checkpoints.put(f"{folder}/counts/metadata", b'{"id":"x"}')
    assert checkpoint_names(attempt) == ["counts"]


def test_what_the_sources_are_is_known_from_the_last_snapshot(attempt: Attempt) -> None:
    """A query without progress in this attempt keeps the sources that an earlier one recorded."""
    known = last_known(attempt, "a")
    assert known is not None
    assert known.sources == ("Simulated[flights]",)
    assert last_known(attempt, "other") is None


def test_a_replaced_attempt_takes_no_final_snapshot(stream: SimulatedStream, attempt: Attempt) -> None:
    """The register is checked just before: a successor may be reading these checkpoints (Law 4)."""
    stream.point_register("d-0003", 1, fencing_token=3)
    with pytest.raises(FencedError):
        take_final_snapshot(attempt, "stopped", "")
    assert stream.control.manifest("d-0002-stopped-000001") is None


def test_what_must_be_done_is_tried_until_it_works(attempt: Attempt) -> None:
    """An outage is waited for; any other error is raised at once."""
    failures = [UnavailableError("away"), UnavailableError("away")]

    def act() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert retry_until_fenced(attempt, "this", act) == "done"
    failures[:] = [DataError("broken")]  # type: ignore[list-item]
    with pytest.raises(DataError):
        retry_until_fenced(attempt, "this", act)


def test_a_snapshot_that_cannot_be_read_stops_no_start(stream: SimulatedStream) -> None:
    """An attempt that continues in its own checkpoint needs none; older snapshots still count (Law 7)."""
    plan = make_plan()
    stream.order_at(2.1, SnapshotRequest)
    stream.order_at(20.0, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    for event in (*stream.events_of(SnapshotReady), *stream.events_of(Stopped)):
        stream.checkpoints.put(layout.manifest_key(STREAM, event.snapshot_id), b'{"kind": "SnapshotManifest", "pro')
    attempt = stream.next_attempt()
    stream.order_at(30.0, SnapshotRequest, attempt=attempt)
    driver = SimulatedDriver(stream, attempt=attempt)
    stream.clock.after(60.0, driver.kill)
    assert driver.run(waiting_script(plan)) is None
    assert stream.events_of(QueryStarted)[-1].attempt == attempt
    assert stream.events_of(SnapshotReady)[-1].attempt == attempt


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("order", [StopRequest, DrainNotification])
def test_the_end_holds_what_was_never_started_though_the_start_snapshot_is_lost(
    order: type[Command], is_damaged: bool
) -> None:
    """An earlier snapshot of the deployment has it: nothing is dropped (1a.12, Law 5)."""
    stream, plan = SimulatedStream(spark_version="4.2.1"), make_plan(400)
    stream.deploy()
    stream.order_at(2.1, StopRequest)
    assert stream.run(waiting_script(plan, make_plan(40), names=("counts", "late"))) == 0
    start_id = stream.events_of(Stopped)[0].snapshot_id
    start = stream.control.need_manifest(start_id)
    stream.deploy(2, StartPlan("restore", start_id, "d-0001"))
    stream.order_at(1.5, SnapshotRequest, "d-0002")

    def killed(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.clock.after(4.1, driver.kill)
        driver.await_all()

    assert stream.run(killed, "d-0002") is None
    assert sorted(stream.events_of(SnapshotReady, "d-0002")[0].queries) == ["counts", "late"]
    if is_damaged:
        stream.checkpoints.put(layout.manifest_key(STREAM, start_id), b'{"kind": "SnapshotManifest", "pro')
    else:
        # As after a prune: what the younger snapshot shares with it is still there.
        stream.checkpoints.delete(layout.manifest_key(STREAM, start_id))
    number = stream.next_attempt("d-0002")
    left = {"leave_queries": ("late",)} if order is DrainNotification else {}
    stream.order_at(2.1, order, "d-0002", attempt=number, **left)
    assert stream.run(waiting_script(plan), "d-0002", number) == 0
    ended = stream.events_of(Stopped if order is StopRequest else Drained, "d-0002")[0]
    end = stream.control.need_manifest(ended.snapshot_id)
    assert end.queries["late"] == start.queries["late"]
    assert end.queries["counts"].drained == (order is DrainNotification)
    assert end.spark_version == "4.2.1"


def test_a_resumed_deployment_whose_checkpoint_is_gone_does_not_start_empty(stream: SimulatedStream) -> None:
    """The driver refuses the next attempt, and reads nothing from the beginning again (Laws 5, 14)."""
    plan = make_plan(500)
    stream.order_at(2.1, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    written = list(plan.sink.batches)
    folder = layout.checkpoint_folder(STREAM, "d-0001", "counts")
    for info in list(stream.checkpoints.list_objects(f"{folder}/")):
        stream.checkpoints.delete(info.key)
    number = stream.next_attempt()
    stream.order_at(2.1, StopRequest, attempt=number)
    assert stream.run(waiting_script(plan), attempt=number) != 0
    assert list(plan.sink.batches) == written
