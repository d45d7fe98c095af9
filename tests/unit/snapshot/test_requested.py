"""Which snapshot a request has become."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.codec import to_json
from airflow_streamstate.protocol.commands import SnapshotRequest
from airflow_streamstate.protocol.events import Accepted, Event, SnapshotReady
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import RequestRecord
from airflow_streamstate.snapshot.location import requested_snapshot
from support.snapshots import STREAM, Shelf

REQUEST = "r-1"


def kept(shelf: Shelf, snapshot_id: str, request_id: str = REQUEST, command_id: str = "") -> str:
    """A complete snapshot of this request."""
    deployment_id = snapshot_id[:6]
    shelf.control.create_manifest(
        SnapshotManifest(
            snapshot_id, "live", STREAM, deployment_id, 1, 1, shelf.clock.now(), "agent", {}, shelf.clock.new_uuid(),
            "", command_id=command_id, request_id=request_id,
        )
    )  # fmt: skip
    shelf.checkpoints.put(f"{STREAM}/deployments/{deployment_id}/spec.json", b"")
    return snapshot_id


def recorded(shelf: Shelf, deployment_id: str, command_id: str = "c-1") -> None:
    """The request was first asked of this deployment."""
    shelf.control.create_request(
        RequestRecord(REQUEST, STREAM, "snapshot", "0", deployment_id, "w", shelf.clock.now(), command_id)
    )


def begun(shelf: Shelf, number: int, command_id: str = "c-1", request_id: str = REQUEST) -> Event:
    """A command of the request that an attempt has taken up."""
    at = shelf.clock.now()
    command = SnapshotRequest(command_id, STREAM, "d-0002", at, None, "tests", "", 1, request_id, 300.0)
    return Accepted(STREAM, "d-0002", 1, at, "w", command_id, number, to_json(command))


def found(shelf: Shelf, *events: Event | None) -> str | None:
    manifest = requested_snapshot(shelf.control, REQUEST, "d-0002", events)
    return None if manifest is None else manifest.snapshot_id


def test_a_new_request_has_become_none() -> None:
    """Nothing of this deployment, and nothing of those before."""
    shelf = Shelf()
    recorded(shelf, "d-0002")
    kept(shelf, "d-0002-live-000001", "r-2")
    assert found(shelf, None, begun(shelf, 1, "c-9", "r-2"), begun(shelf, 2)) is None


def test_one_of_this_deployment_is_found_by_what_was_begun_or_told() -> None:
    """Without a call for any other snapshot; a manifest without an event counts (Law 3)."""
    shelf = Shelf()
    recorded(shelf, "d-0002")
    kept(shelf, "d-0002-live-000003")
    assert found(shelf, begun(shelf, 2), begun(shelf, 3)) == "d-0002-live-000003"
    at = shelf.clock.now()
    told = SnapshotReady(STREAM, "d-0002", 1, at, "w", "d-0002-live-000003", "live", {}, request_id=REQUEST)
    assert found(shelf, told) == "d-0002-live-000003"


def test_one_of_an_earlier_deployment_is_found_from_the_first_that_was_asked_on() -> None:
    """Of those that commands had asked for: periodic ones are not read, and none before the request."""
    shelf = Shelf()
    kept(shelf, "d-0000-live-000001")
    kept(shelf, "d-0001-live-a0001-000001")
    shelf.checkpoints.put(f"{STREAM}/deployments/d-0002/spec.json", b"")
    recorded(shelf, "d-0001")
    assert found(shelf) is None
    kept(shelf, "d-0001-live-000004")
    assert found(shelf) == "d-0001-live-000004"


def test_without_its_record_every_deployment_is_looked_at() -> None:
    """It was written by hand, or its record cannot be read (Law 7)."""
    shelf = Shelf()
    kept(shelf, "d-0000-live-000001")
    shelf.checkpoints.put(f"{STREAM}/deployments/d-0002/spec.json", b"")
    assert found(shelf) == "d-0000-live-000001"
    shelf.checkpoints.put(f"{STREAM}/idempotency/{REQUEST}.json", b"{")
    assert found(shelf) == "d-0000-live-000001"


def test_what_is_no_request_id_is_refused() -> None:
    """Before anything is read under it."""
    with pytest.raises(InvalidRequestError):
        requested_snapshot(Shelf().control, "../x", "d-0002", [])
