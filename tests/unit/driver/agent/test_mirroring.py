"""Snapshots that a running deployment copies to its mirrors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_streamstate.driver.agent.own_snapshots import FAILING_SECONDS, ROUND_SECONDS, Mirroring
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.errors import UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import SnapshotRequest, StopRequest
from airflow_streamstate.protocol.events import Noted, SnapshotMirrored, SnapshotReady
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.snapshot.deletion import Remover
from airflow_streamstate.snapshot.location import SnapshotPlaces
from airflow_streamstate.snapshot.mirror_copies import is_mirrored
from airflow_streamstate.snapshot.verify import verify
from airflow_streamstate.store.base import Store, StoredObject
from airflow_streamstate.store.memory import MemoryStore
from support.asked_store import AskedStore
from support.recorded_specs import with_version
from support.simulated_driver import STREAM, SimulatedDriver, SimulatedStream, make_plan, waiting_script
from support.snapshots import flip_byte

MIRROR = "memory://mirror"


class Places:
    """Mirrors by name; ``away`` do not answer."""

    def __init__(self) -> None:
        self.stores: dict[str, MemoryStore] = {}
        self.away: set[str] = set()
        self.opened = 0

    def open(self, uri: str) -> Store:
        self.opened += 1
        if uri in self.away:
            raise UnavailableError("the mirror is away")
        return self.stores.setdefault(uri, MemoryStore(uri.partition("://")[2]))


def run_with(
    places: Places, *mirrors: str, checkpoints: Store | None = None, settings: AgentSettings | None = None
) -> tuple[SimulatedStream, Attempt, Mirroring]:
    """A stream whose first attempt took a live snapshot and one at its end; its mirrors, not asked yet."""
    stream = SimulatedStream(checkpoints=checkpoints or MemoryStore())
    spec = with_version(stream.deploy(settings=settings), mirrors=mirrors)
    stream.order_at(3.0, SnapshotRequest)
    stream.order_at(9.0, StopRequest)
    driver = SimulatedDriver(stream)
    assert driver.run(waiting_script(make_plan(500))) == 0
    attempt = SimulatedDriver(stream).attempt_life.attempt
    attempt.spec = spec
    return stream, attempt, Mirroring(attempt, places.open)


def test_every_snapshot_is_copied_and_told_once() -> None:
    """Also the one that the attempt before took at its end; a second round does nothing more."""
    places = Places()
    stream, _, mirroring = run_with(places, MIRROR)
    mirroring.round()
    taken = [event.snapshot_id for event in stream.events_of(SnapshotReady)]
    told = stream.events_of(SnapshotMirrored)
    assert {event.snapshot_id for event in told} == {*taken, "d-0001-stopped-000001"}
    assert {event.mirror_uri for event in told} == {MIRROR}
    assert all(event.files > 0 for event in told)
    for event in told:
        assert verify(stream.control, places.stores[MIRROR], event.snapshot_id) == []
    opened = places.opened
    mirroring.round()
    assert (places.opened, len(stream.events_of(SnapshotMirrored))) == (opened, len(told))


def test_the_checkpoints_under_another_name_are_no_mirror() -> None:
    """It is reported, and no copy is."""
    places, checkpoints = Places(), MemoryStore()
    places.stores[MIRROR] = checkpoints
    stream, _, mirroring = run_with(places, MIRROR, checkpoints=checkpoints)
    mirroring.round()
    assert stream.events_of(SnapshotMirrored) == []
    assert any("by another name" in str(event.facts.get("why")) for event in stream.events_of(Noted))


def test_what_is_being_pruned_is_no_fault_of_a_mirror() -> None:
    """It goes; the others are copied in the same round, and nothing is noted."""
    places = Places()
    stream, _, mirroring = run_with(places, MIRROR)
    (gone,) = (event.snapshot_id for event in stream.events_of(SnapshotReady))
    remover = Remover(stream.control, SnapshotPlaces(stream.checkpoints), "test")
    remover.condemn({gone: stream.control.need_manifest(gone)}, lambda _register: [gone])
    mirroring.round()
    assert [event.snapshot_id for event in stream.events_of(SnapshotMirrored)] == ["d-0001-stopped-000001"]
    assert not [event for event in stream.events_of(Noted) if "mirror" in event.text]


def test_a_mirror_that_is_away_is_said_once_and_asked_again() -> None:
    """The other one has everything in the meantime; the job hears nothing of it."""
    places = Places()
    places.away.add(MIRROR)
    stream, attempt, mirroring = run_with(places, MIRROR, "memory://other")
    for _ in range(3):
        mirroring.round()
        attempt.clock.sleep(FAILING_SECONDS + 1)
    notes = [event for event in stream.events_of(Noted) if "mirror" in event.text]
    assert [event.facts["mirror_uri"] for event in notes] == [MIRROR]
    assert {event.mirror_uri for event in stream.events_of(SnapshotMirrored)} == {"memory://other"}
    places.away.clear()
    mirroring.round()
    assert MIRROR in {event.mirror_uri for event in stream.events_of(SnapshotMirrored)}


def test_a_damaged_snapshot_does_not_hold_up_the_others() -> None:
    """It is reported with its file, and is at no mirror."""
    places = Places()
    stream, _, mirroring = run_with(places, MIRROR)
    folder = layout.snapshot_data_folder(STREAM, "d-0001-live-000001", "counts")
    flip_byte(stream.checkpoints, f"{folder}/metadata")
    mirroring.round()
    assert not is_mirrored(stream.control, places.stores[MIRROR], "d-0001-live-000001")
    assert is_mirrored(stream.control, places.stores[MIRROR], "d-0001-stopped-000001")
    assert any("d-0001-live-000001" in str(event.facts) for event in stream.events_of(Noted))


@pytest.mark.parametrize("name", ["lost", "x" * 300], ids=["away", "refused"])
def test_a_place_that_is_lost_does_not_hold_up_what_lies_elsewhere(tmp_path: Path, name: str) -> None:
    """It is noted once, and asked again; the younger snapshots are at the mirror."""
    places = Places()
    stream, attempt, mirroring = run_with(places, MIRROR)
    manifest = stream.control.need_manifest("d-0001-live-000001")
    stream.checkpoints.delete(layout.manifest_key(STREAM, manifest.snapshot_id))
    stream.control.create_manifest(replace(manifest, data_uri=str(tmp_path / name)))
    for _ in range(2):
        mirroring.round()
        attempt.clock.sleep(FAILING_SECONDS + 1)
    assert [event.snapshot_id for event in stream.events_of(SnapshotMirrored)] == ["d-0001-stopped-000001"]
    [note] = [event for event in stream.events_of(Noted) if "mirror" in event.text]
    assert note.facts["snapshot_id"] == manifest.snapshot_id


def test_what_is_at_the_mirror_already_needs_no_place_that_is_lost(tmp_path: Path) -> None:
    """The next attempt finds it there, and has nothing to report about it."""
    places = Places()
    stream, attempt, mirroring = run_with(places, MIRROR)
    mirroring.round()
    manifest = stream.control.need_manifest("d-0001-live-000001")
    stream.checkpoints.delete(layout.manifest_key(STREAM, manifest.snapshot_id))
    stream.control.create_manifest(replace(manifest, data_uri=str(tmp_path / "lost")))
    Mirroring(attempt, places.open).round()
    assert [event for event in stream.events_of(Noted) if "mirror" in event.text] == []


def test_what_lies_at_a_lost_place_is_not_read_again_each_round(tmp_path: Path) -> None:
    """Each snapshot would cost a request in each round."""
    read: list[str] = []

    class Told(MemoryStore):
        def get(self, key: str) -> StoredObject | None:
            read.append(key)
            return super().get(key)

    _, attempt, mirroring = run_with(Places(), MIRROR, checkpoints=Told())
    kept = attempt.control.need_manifest("d-0001-live-000001")
    lost = [f"d-0001-live-{number:06}" for number in range(2, 7)]
    for snapshot_id in lost:
        attempt.control.create_manifest(replace(kept, snapshot_id=snapshot_id, data_uri=str(tmp_path)))
    counts = []
    for pause_seconds in (ROUND_SECONDS, FAILING_SECONDS + 1, ROUND_SECONDS):
        read.clear()
        mirroring.round()
        counts.append(sum(layout.manifest_key(STREAM, one) in read for one in lost))
        attempt.clock.sleep(pause_seconds)
    assert counts == [len(lost), 0, 1]


def test_a_mirror_hears_of_an_attempt_before_it_has_a_snapshot() -> None:
    """A restore from it then knows that something ran after its snapshots. (Law 14)"""
    places = Places()
    stream, _, mirroring = run_with(places, MIRROR)
    for snapshot_id in stream.control.snapshot_ids():
        stream.checkpoints.delete(layout.manifest_key(STREAM, snapshot_id))
    mirroring.round()
    mirror = places.stores[MIRROR]
    assert mirror.head(layout.spec_key(STREAM, "d-0001")) is not None
    assert list(mirror.list_objects(layout.events_prefix(STREAM, "d-0001")))


def test_it_fetches_as_the_deployment_is_set() -> None:
    """No piece is larger than its setting, and by default every file comes as one."""
    pieces = []
    for settings in (AgentSettings(), AgentSettings(fetch_batch_bytes=1_024)):
        checkpoints = AskedStore()
        _, _, mirroring = run_with(Places(), MIRROR, checkpoints=checkpoints, settings=settings)
        checkpoints.asked.clear()  # by the seal
        mirroring.round()
        pieces.append((checkpoints.later_pieces > 0, max(size for _, _, size in checkpoints.asked) > 1_025))
    assert pieces == [(False, True), (True, False)]


def test_a_store_that_is_silent_is_left_after_the_time_of_the_deployment() -> None:
    """By the attempt's clock. (Law 6)"""
    checkpoints = AskedStore()
    settings = AgentSettings(fetch_timeout_seconds=77)
    stream, attempt, mirroring = run_with(Places(), MIRROR, checkpoints=checkpoints, settings=settings)
    speak = checkpoints.fall_silent(attempt.clock, 77.5)
    try:
        mirroring.round()
    finally:
        speak()
    [note] = [event for event in stream.events_of(Noted) if "mirror" in event.text]
    assert "did not answer within 77 s" in str(note.facts)


def test_a_fenced_attempt_copies_nothing() -> None:
    """Its successor does. (Law 4)"""
    places = Places()
    _, attempt, mirroring = run_with(places, MIRROR)
    attempt.fence.close(None)
    mirroring.round()
    assert places.opened == 0
