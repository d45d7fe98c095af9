"""How much room snapshots take."""

from __future__ import annotations

from pathlib import Path

from airflow_streamstate.snapshot.data import freed_bytes, shared_bytes
from airflow_streamstate.store.local import LocalStore
from support.snapshots import Shelf, run_stateful


def two(shelf: Shelf) -> tuple[Shelf, str, str]:
    for number in (1, 2):
        run_stateful(shelf.checkpoint(), 2 + number, first=0 if number == 1 else 4)
        shelf.capture(snapshot_id=f"d-0001-live-{number:06d}", kind="live")
    return shelf, "d-0001-live-000001", "d-0001-live-000002"


def test_what_two_snapshots_have_takes_room_once() -> None:
    """Where files are named by their places, each is counted once, and freed with the last that has it."""
    shelf, first, second = two(Shelf())
    manifests = [shelf.control.need_manifest(one) for one in (first, second)]
    shared = shared_bytes(shelf.checkpoints, manifests)
    assert shared[first] == shared[second] > 0
    alone = manifests[1].size_bytes - shared[second]
    assert freed_bytes(shelf.checkpoints, manifests[1:], manifests[:1]) == {second: alone}
    assert sum(freed_bytes(shelf.checkpoints, manifests, []).values()) == manifests[0].size_bytes + alone


def test_on_a_disk_the_links_tell(tmp_path: Path) -> None:
    """What the checkpoint or another snapshot still has takes no room of its own, and frees nothing."""
    shelf, first, _ = two(Shelf(LocalStore(tmp_path, fsync=False)))
    manifest = shelf.control.need_manifest(first)
    assert shared_bytes(shelf.checkpoints, [manifest]) == {first: manifest.size_bytes}
    assert freed_bytes(shelf.checkpoints, [manifest], []) == {first: 0}
    for info in list(shelf.checkpoints.list_objects(f"{shelf.checkpoint().prefix}/")):
        shelf.checkpoints.delete(info.key)
    alone = manifest.size_bytes - shared_bytes(shelf.checkpoints, [manifest])[first]
    assert freed_bytes(shelf.checkpoints, [manifest], []) == {first: alone}
    assert alone > 0
