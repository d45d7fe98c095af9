"""The last acts of taking a snapshot: its data put where they are to be kept, and then its manifest (Law 3).

What was linked on the way to a place elsewhere goes when the manifest is there; where that is cut short, ``prune``
removes it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import to_bytes
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.snapshot.making import Making
from airflow_streamstate.snapshot.placing import SnapshotPlaces, put_in_place
from airflow_streamstate.store.trees import delete_below


def completed(
    made: Making, places: SnapshotPlaces, staged: SnapshotManifest, go_on: Callable[[], None] = lambda: None
) -> SnapshotManifest:
    """Complete a snapshot whose files were linked beside the checkpoints, or shared, or are only named.

    Args:
        made: the try.
        places: of the home.
        staged: its manifest, as if its data stayed where they are.
        go_on: called again and again while it is copied to a place elsewhere; raises to give up.

    Raises:
        UnavailableError: the place does not answer, or it was abandoned meanwhile.
        SnapshotIncompleteError, SnapshotCorruptError: what was linked is not as captured any more.
    """
    control, checkpoints = made.control, places.checkpoints
    if not made.place_uri:
        if checkpoints is not control.home:
            # Links are made durable by the next whole write of their store: not after the manifest (Law 3).
            checkpoints.put(layout.data_note_key(control.stream_id, staged.snapshot_id), to_bytes(staged))
        return made.complete(staged)

    def step() -> None:
        made.go_on()
        go_on()

    try:
        placed = put_in_place(control, places, _with_shared(made, places, staged), made.place_uri, step)
        manifest = made.complete(placed)
    except StreamStateError:
        # Another one that takes the very same snapshot may have been first, and removed what both had linked.
        found = control.readable_manifest(staged.snapshot_id)
        if found is None:
            raise
        manifest = found
    if not manifest.data_uri:
        return manifest  # another one was first, who keeps it with the checkpoints: in the very folder
    folder = layout.snapshot_folder(control.stream_id, staged.snapshot_id)
    with suppress(StreamStateError):
        delete_below(checkpoints, f"{folder}/{layout.data_folder_name(staged.take)}")
    return manifest


def _with_shared(made: Making, places: SnapshotPlaces, staged: SnapshotManifest) -> SnapshotManifest:
    """Without copies of what an older snapshot has at the same place, byte for byte."""
    if made.bases is None:
        return staged
    bases, store = made.bases, places.need_own(made.control, made.place_uri)
    queries = {
        name: replace(query, files=bases.with_same_bytes(name, query.files, store))
        for name, query in staged.queries.items()
    }
    return replace(staged, queries=queries)
