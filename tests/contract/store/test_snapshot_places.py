"""Snapshots at their own place, on every backend."""

from __future__ import annotations

from dataclasses import replace

from airflow_streamstate.control.registers import Retention
from airflow_streamstate.snapshot.data import check_complete
from airflow_streamstate.snapshot.deletion import Remover, leased
from airflow_streamstate.snapshot.verify import check_before_start, verify
from airflow_streamstate.store.base import Store
from support.snapshots import PLACE, QUERY, STREAM, Shelf, placed_shelf, run_stateful

IDS = ["d-0001-live-000001", "d-0001-live-000002"]


def test_snapshots_can_lie_anywhere(store: Store) -> None:
    """Taken there, verified by what this backend reports, at hand for a reader, and removed but for what is shared."""
    kept, _ = placed_shelf(3)
    shelf: Shelf = replace(kept, elsewhere={PLACE: store})
    shelf.places.claim(shelf.control, PLACE)
    for number, snapshot_id in enumerate(IDS):
        run_stateful(shelf.checkpoint(), 4 + number, first=4 + number)
        manifest = shelf.capture(kind="live", snapshot_id=snapshot_id, kept_at=PLACE)
        assert verify(shelf.control, store, snapshot_id) == []
        assert check_before_start(shelf.control, store, manifest) is None
        with leased(shelf.control, snapshot_id, "a test") as lease:
            here = lease.landed(shelf.places, manifest, [QUERY])
            check_complete(shelf.checkpoints, here, [QUERY])
    remover = Remover(shelf.control, shelf.places, "tests")
    manifests = {one: shelf.control.need_manifest(one) for one in IDS}
    assert remover.condemn(manifests, lambda _: IDS[:1]) == IDS[:1]
    assert remover.sweep().problems == []
    assert verify(shelf.control, store, IDS[1]) == []
    assert remover.condemn(manifests, lambda _: IDS[1:]) == IDS[1:]
    remover.sweep()
    assert [info.key for info in store.list_objects(f"{STREAM}/snapshots/")] == []
    assert Retention(shelf.control).read().places == ()
