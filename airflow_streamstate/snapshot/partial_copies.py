"""Deletes copies at a mirror of snapshots that the home removed: partial ones, and whole ones that are not kept.

The process that made such a copy may continue at any time, so the copy is closed before a file is deleted: a record
takes the place of its manifest, and no process completes it any more (Law 3). A file is deleted if no manifest refers
to it, at the mirror or in the home. The home's manifests are read first, as of one moment, then the snapshots that it
removes: one of the two names every copy, also one without a folder yet, so its files stay, or it is closed as well.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from airflow_streamstate.control.retention import Retention
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import DataError, ObjectExistsError, VersionConflictError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.retention import AbandonedSnapshot
from airflow_streamstate.retry import Retry
from airflow_streamstate.snapshot.deletion import READ, REMEMBERED_SECONDS, abandoned
from airflow_streamstate.snapshot.mirror import refuse_place
from airflow_streamstate.snapshot.places import keys_of
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.cleanup import clear_left, delete_below
from airflow_streamstate.store.transfer import keys_below

_CLOSE = Retry(tries=5)


def delete_partial_copies(control: StreamControl, mirror: Store, by: str, *, of_all: bool = False) -> int:
    """Delete from a mirror the partial copies of snapshots that the home has no more; calling it again continues.

    Args:
        control: the stream in its home.
        by: the caller, for the record.
        of_all: look at every folder of the mirror, and for what killed processes left there; else only at what the home
            removed a short while ago.

    Returns:
        How many files were deleted: none while a manifest of the home or of the mirror cannot be read (Law 7).

    Raises:
        UnavailableError, InvalidRequestError: home or mirror does not answer, or denies access.
    """
    refuse_place(control, mirror)
    if of_all:
        clear_left(mirror, control.stream_id, control.clock.now())
    try:
        return _PartialCopies(control, mirror, by).clear(of_all)
    except DataError:
        return 0


def close_copies(control: StreamControl, mirror: Store, by: str, snapshot_ids: Collection[str]) -> list[str]:
    """Make whole copies partial, so that no stream starts from them and ``delete_partial_copies`` deletes their files.

    Args:
        control: the stream in its home.
        by: the caller, for the record.
        snapshot_ids: those that the home has (again) are not touched.

    Returns:
        Those that were closed.

    Raises:
        DataError: a manifest of the home or of the mirror cannot be read: nothing was closed (Law 7).
        UnavailableError, InvalidRequestError: as ``delete_partial_copies``.
    """
    refuse_place(control, mirror)
    partial = _PartialCopies(control, mirror, by)
    partial.check_readable()
    return [one for one in snapshot_ids if partial.close_whole(one)]


class _PartialCopies:
    def __init__(self, control: StreamControl, mirror: Store, by: str) -> None:
        self._control = control
        self._mirror = mirror
        self._there = StreamControl(mirror, control.stream_id, control.clock)
        self._by = by

    def clear(self, of_all: bool) -> int:
        removed = set(Retention(self._control).read().condemned)
        seen = self._there.snapshot_ids()
        known = set(self._control.snapshot_ids())
        gone = [one for one in seen if one in removed or (of_all and one not in known)]
        partial = [one for one in gone if not self._is_whole(one)]
        if of_all:
            self._forget([one for one in partial if one not in removed])
        if not any(self._data_keys(one) for one in partial):
            return 0
        needed = self._needed_at_home()
        if needed is None:
            return 0  # the next call continues
        removed = set(Retention(self._control).read().condemned)
        partial = [one for one in partial if one in removed or self._control.manifest(one) is None]
        closed = [one for one in sorted({*partial, *removed}) if self._close(one)]
        needed |= _needed(self._there)
        return sum(self._delete(one, needed) for one in closed)

    def _needed_at_home(self) -> set[str] | None:
        """As of one moment; None where snapshots come and go all the time: a new one may refer to files of a removed
        one."""
        retention = Retention(self._control)
        for _ in READ.begin():
            generation = retention.read().generation
            needed = _needed(self._control)
            if retention.read().generation == generation:
                return needed
        return None

    def check_readable(self) -> None:
        """Raise DataError where it is not known which files are needed."""
        for control in (self._control, self._there):
            _needed(control)

    def close_whole(self, snapshot_id: str) -> bool:
        """Put a record in the place of the manifest of a whole copy; False where the home has the snapshot."""
        slot = self._there.snapshot_slot(snapshot_id)
        if slot is None or not isinstance(slot.value, SnapshotManifest):
            return False
        is_removed = snapshot_id in Retention(self._control).read().condemned
        if not is_removed and self._control.snapshot_slot(snapshot_id) is not None:
            return False
        key = layout.manifest_key(self._control.stream_id, snapshot_id)
        try:
            self._there.cells.replace(key, self._record(snapshot_id), slot.version)
        except VersionConflictError:
            return False  # another process has just closed it
        return True

    def _record(self, snapshot_id: str) -> AbandonedSnapshot:
        return abandoned(self._control, snapshot_id, 1, self._by)

    def _is_whole(self, snapshot_id: str) -> bool:
        return self._there.manifest(snapshot_id) is not None

    def _close(self, snapshot_id: str) -> bool:
        """Put a new record in the place of the manifest; False where the manifest is there after all."""
        key = layout.manifest_key(self._control.stream_id, snapshot_id)
        for _ in _CLOSE.begin():
            slot = self._there.snapshot_slot(snapshot_id)
            if slot is not None and isinstance(slot.value, SnapshotManifest):
                return False
            try:
                if slot is None:
                    self._there.cells.create(key, self._record(snapshot_id))
                else:
                    self._there.cells.replace(key, self._record(snapshot_id), slot.version)
            except (ObjectExistsError, VersionConflictError):
                continue  # another process has just completed or closed it
            return True
        return False

    def _delete(self, snapshot_id: str, needed: Collection[str]) -> int:
        keys = self._data_keys(snapshot_id)
        unneeded = [key for key in keys if key not in needed]
        for key in unneeded:
            self._mirror.delete(key)
        self._mirror.delete(layout.seal_key(self._control.stream_id, snapshot_id))
        if len(unneeded) == len(keys):
            manifest = layout.manifest_key(self._control.stream_id, snapshot_id).rpartition("/")[2]
            folder = layout.snapshot_folder(self._control.stream_id, snapshot_id)
            delete_below(self._mirror, folder, but=(manifest,))  # on a disk: the folders themselves
        return len(unneeded)

    def _data_keys(self, snapshot_id: str) -> list[str]:
        folder = layout.snapshot_folder(self._control.stream_id, snapshot_id)
        names = [name for name in self._mirror.list_folders(folder) if layout.take_of(name) is not None]
        return [key for name in names for key in keys_below(self._mirror, f"{folder}/{name}/")]

    def _forget(self, snapshot_ids: list[str]) -> None:
        """Remove old records of copies without data."""
        aged = self._control.clock.now() - timedelta(seconds=REMEMBERED_SECONDS)
        for snapshot_id in snapshot_ids:
            slot = self._there.snapshot_slot(snapshot_id)
            if slot is None or not isinstance(slot.value, AbandonedSnapshot) or slot.value.abandoned_at > aged:
                continue
            if not self._data_keys(snapshot_id):
                self._mirror.delete(layout.manifest_key(self._control.stream_id, snapshot_id), slot.version)


def _needed(control: StreamControl) -> set[str]:
    """The keys to which the manifests of a home or mirror refer; raises DataError where one cannot be read."""
    found: set[str] = set()
    for snapshot_id in control.snapshot_ids():
        manifest = control.manifest(snapshot_id)
        if manifest is not None:
            found.update(keys_of(manifest))
    return found
