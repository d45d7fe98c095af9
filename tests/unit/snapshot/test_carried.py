"""Queries that were never started, in the snapshots of a deployment."""

from __future__ import annotations

import pytest

from airflow_streamstate.protocol.records import NO_SNAPSHOTS
from airflow_streamstate.snapshot.capture import QueryToCapture
from airflow_streamstate.snapshot.data import data_files
from airflow_streamstate.snapshot.verify import verify
from support.snapshots import PLACE, QUERY, placed_shelf


@pytest.mark.parametrize("kept_at", [PLACE, "", NO_SNAPSHOTS])
def test_a_query_that_was_never_started_is_carried_from_one_place_to_another(kept_at: str) -> None:
    """Whole, and refused where it is not (Law 5)."""
    shelf, place = placed_shelf(3)
    source = shelf.capture(snapshot_id="s-1", kept_at=PLACE)
    queries = {QUERY: QueryToCapture(None, source.queries[QUERY], "s-1")}
    manifest = shelf.capture(queries, snapshot_id="s-2", kept_at=kept_at)
    assert verify(shelf.control, shelf.places.of(manifest), "s-2") == []
    place.delete(data_files(source, QUERY)["offsets/3"])
    with pytest.raises(Exception, match=r"lacks a file|at no place"):
        shelf.capture(queries, snapshot_id="s-3", kept_at=kept_at)
    assert shelf.control.manifest("s-3") is None
