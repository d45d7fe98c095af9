"""Which snapshots of a deployment still hold queries that it never started."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.errors import UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import to_bytes
from airflow_streamstate.protocol.commands import SnapshotRequest, StopRequest
from airflow_streamstate.protocol.events import SnapshotReady
from airflow_streamstate.snapshot.location import SnapshotPlaces, kept_by_own_snapshots
from airflow_streamstate.store.memory import MemoryStore
from support.simulated_driver import STREAM, SimulatedStream, make_plan, waiting_script


def test_the_newest_snapshot_that_has_a_query_whole_holds_it() -> None:
    """One that lacks a file of it does not; and what has its own place is asked of no snapshot (Laws 5 and 14)."""
    stream = SimulatedStream()
    stream.deploy()
    for seconds in (1.5, 3.0):
        stream.order_at(seconds, SnapshotRequest)
    stream.order_at(5.0, StopRequest)
    assert stream.run(waiting_script(make_plan(400), make_plan(400), names=("a", "b"))) == 0
    events = [entry.event for entry in stream.control.journal("d-0001").events()]
    older, newer = [event.snapshot_id for event in events if isinstance(event, SnapshotReady)]
    end = stream.control.need_manifest("d-0001-stopped-000001")

    def held(own: set[str], deployment_id: str = "d-0001") -> dict[str, str]:
        places = SnapshotPlaces(stream.checkpoints)
        found = kept_by_own_snapshots(stream.control, places, deployment_id, [*events, None], own)
        return {name: manifest.snapshot_id for name, manifest in found.items()}

    assert held(set()) == {"a": end.snapshot_id, "b": end.snapshot_id}
    assert held({"a"}) == {"b": end.snapshot_id}
    assert held({"a", "b"}) == held(set(), "d-0002") == {}
    folder = layout.snapshot_data_folder(STREAM, end.snapshot_id, "a")
    stream.checkpoints.delete(f"{folder}/{end.queries['a'].files[0].path}")
    assert held(set()) == {"a": newer, "b": end.snapshot_id}
    stream.checkpoints.put(layout.manifest_key(STREAM, newer), b"{")
    assert held(set()) == {"a": older, "b": end.snapshot_id}


def test_a_place_that_is_silent_for_a_moment_loses_no_query() -> None:
    """An older complete snapshot holds it as well; if there is no such snapshot, it is waited for (Law 5)."""
    stream = SimulatedStream()
    stream.deploy()
    stream.order_at(1.5, SnapshotRequest)
    stream.order_at(5.0, StopRequest)
    assert stream.run(waiting_script(make_plan(400), names=("a",))) == 0
    events = [entry.event for entry in stream.control.journal("d-0001").events()]
    (older,) = [event.snapshot_id for event in events if isinstance(event, SnapshotReady)]
    end = stream.control.need_manifest("d-0001-stopped-000001")
    away = to_bytes(replace(end, data_uri="memory://away"))
    stream.checkpoints.put(layout.manifest_key(STREAM, end.snapshot_id), away)
    places = SnapshotPlaces(stream.checkpoints, lambda _: MemoryStore("empty"))
    found = kept_by_own_snapshots(stream.control, places, "d-0001", events, set())
    assert {name: manifest.snapshot_id for name, manifest in found.items()} == {"a": older}
    stream.checkpoints.delete(layout.manifest_key(STREAM, older))
    with pytest.raises(UnavailableError, match="does not answer") as refused:
        kept_by_own_snapshots(stream.control, places, "d-0001", events, set())
    assert (refused.value.context["query_name"], refused.value.context["snapshot_id"]) == ("a", end.snapshot_id)
