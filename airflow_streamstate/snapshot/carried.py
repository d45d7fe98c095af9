"""A query that a deployment never started, taken over into its snapshots from the one that holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import ObjectMissingError, SnapshotIncompleteError
from airflow_streamstate.protocol.manifest import QuerySnapshot
from airflow_streamstate.snapshot.checksums import is_of_bytes
from airflow_streamstate.snapshot.copying import DataFolder
from airflow_streamstate.snapshot.leases import leased
from airflow_streamstate.snapshot.places import key_of, sizes_of
from airflow_streamstate.snapshot.placing import SnapshotPlaces
from airflow_streamstate.snapshot.sharing import Bases
from airflow_streamstate.store.listing import ListsKeys


class Carrying:
    """Takes queries over.

    Args:
        control: the stream.
        places: of the home.
        bases: what the new snapshot may share files with; None for nothing.
        uri: of the place of the new snapshot; "" for with the checkpoints.
        go_on: called again and again while files are on their way.
    """

    def __init__(
        self,
        control: StreamControl,
        places: SnapshotPlaces,
        bases: Bases | None,
        uri: str,
        go_on: Callable[[], None] = lambda: None,
    ) -> None:
        self._control = control
        self._places = places
        self._bases = bases
        self._uri = uri
        self._go_on = go_on

    def take(self, query_name: str, carried: QuerySnapshot, source_id: str, folder: DataFolder) -> QuerySnapshot:
        """One query as the older snapshot has it: named where it lies, or linked into this folder.

        Raises:
            SnapshotIncompleteError: the older snapshot is not whole.
            UnavailableError: the place of that does not answer.
        """
        source = self._control.need_manifest(source_id)
        store = self._places.of(source)
        named = self._bases.carried(carried, source_id) if self._bases is not None else None
        if named is not None and (self._uri or not isinstance(store, ListsKeys)):
            there = sizes_of(store, source, query_name)
            for entry in carried.files:
                if key_of(source, query_name, entry) not in there:
                    raise _lacks(source_id, query_name, entry.path)
            return named
        reader = f"a snapshot of {source.stream_id} that is being taken"
        with leased(self._control, source_id, reader, is_kept_anyhow=True) as lease:
            here = lease.landed(self._places, source, [query_name], self._go_on)
            files = here.queries[query_name].files
            keys = {entry.path: key_of(here, query_name, entry) for entry in files}
            try:
                taken = folder.take([*keys.values()], [*keys])
            except ObjectMissingError as error:
                paths = [path for path, key in keys.items() if key == error.context.get("key")]
                raise _lacks(source_id, query_name, *paths) from error
        # What the manifest knows of the bytes stays; an entity tag says something of the one key only.
        pairs = zip(carried.files, taken, strict=True)
        known = [
            replace(was, checksum=was.checksum if is_of_bytes(was.checksum) else now.checksum) for was, now in pairs
        ]
        return replace(carried, files=tuple(replace(entry, shared_from="") for entry in known))


def _lacks(source_id: str, query_name: str, path: str = "") -> SnapshotIncompleteError:
    return SnapshotIncompleteError(
        "the snapshot that this query is carried on from lacks a file",
        snapshot_id=source_id,
        query_name=query_name,
        path=path,
        next_step=f"`streamstate verify` of {source_id} names everything that is missing.",
    )
