"""The snapshots of one drain."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_streamstate.driver.attempt.latch import order_of
from airflow_streamstate.driver.shutdown.flush import DrainSnapshots
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import CancelRequest, DrainNotification
from airflow_streamstate.protocol.events import Drained, DrainFailed
from airflow_streamstate.snapshot.deletion import Remover
from airflow_streamstate.snapshot.location import SnapshotPlaces
from airflow_streamstate.store.memory import MemoryStore
from support.simulated_driver import (
    STREAM,
    SimulatedDriver,
    SimulatedStream,
    assert_nothing_lost,
    make_command,
    make_plan,
    waiting_script,
)
from support.snapshots import PLACE


def damage(stream: SimulatedStream, snapshot_ids: list[str]) -> None:
    stream.checkpoints.put(layout.manifest_key(STREAM, snapshot_ids[1]), b"{")


def prune(stream: SimulatedStream, snapshot_ids: list[str]) -> None:
    remover = Remover(stream.control, SnapshotPlaces(stream.checkpoints), "test")
    first = stream.control.need_manifest(snapshot_ids[0])
    assert remover.condemn({snapshot_ids[0]: first}, lambda _register: snapshot_ids[:1]) == snapshot_ids[:1]
    remover.sweep()


@pytest.mark.parametrize("harm", [damage, prune])
def test_each_drain_of_an_attempt_keeps_its_own_state_aside(
    stream: SimulatedStream, harm: Callable[[SimulatedStream, list[str]], None]
) -> None:
    """The snapshot of an earlier drain is not reused, nor its id, though it is damaged or pruned (Law 2)."""
    taken: list[str] = []

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(make_plan(80))
        for number in range(3):
            driver.clock.sleep(1.2)
            order = order_of(make_command(DrainNotification, driver.clock, "d-0001"), number + 1)
            snapshots = DrainSnapshots(driver.attempt_life.attempt, order)
            assert snapshots.made_before_flush() is None
            manifest = snapshots.take("pre-drain")
            assert snapshots.take("pre-drain") == manifest == snapshots.made_before_flush()
            taken.append(manifest.snapshot_id)
            if number == 1:
                harm(stream, taken)
        query.stop()

    assert stream.run(script) == 0
    assert taken == [f"d-0001-pre-drain-{number:06d}" for number in (1, 2, 3)]


def test_a_drain_that_waits_for_the_place_of_its_snapshot_can_be_taken_back() -> None:
    """Nothing is flushed yet, so the query runs on (Law 6)."""
    stream, place, plan = SimulatedStream(), MemoryStore("place"), make_plan(500)
    places = SnapshotPlaces(stream.checkpoints, lambda _: place, stream.clock)
    stream.deploy(snapshots=PLACE)
    places.claim(stream.control, PLACE)
    key = layout.place_record_key(STREAM)
    record = place.get(key)
    assert record is not None
    place.delete(key)
    stream.order_at(10.0, DrainNotification, flush_within_seconds=30.0)
    stream.order_at(60.0, CancelRequest)
    stream.clock.after(100.0, lambda: place.put(key, record.body))
    stream.order_at(150.0, DrainNotification, flush_within_seconds=30.0)
    driver = SimulatedDriver(stream, open_place=lambda _: place)
    assert driver.run(waiting_script(plan)) == 0
    (failed,) = stream.events_of(DrainFailed)
    assert (failed.cause, failed.then) == ("cancelled", "runs_on")
    assert len(stream.events_of(Drained)) == 1
    assert_nothing_lost(plan)
