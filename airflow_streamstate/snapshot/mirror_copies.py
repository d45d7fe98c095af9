"""Copies snapshots to mirrors, and deletes copies there that are not needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import timedelta
from typing import ClassVar

from airflow_streamstate.control.registers import Retention
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    DeploymentNotFoundError,
    InvalidRequestError,
    ObjectExistsError,
    ObjectMissingError,
    SnapshotNotFoundError,
    StreamStateError,
    VersionConflictError,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.ids import deployment_id_for, order_of
from airflow_streamstate.protocol.manifest import SnapshotManifest, SnapshotSlot
from airflow_streamstate.protocol.policies import AbandonedSnapshot
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.retry import Retry
from airflow_streamstate.snapshot.copies import copy_snapshot, sealed_in
from airflow_streamstate.snapshot.copy import COPY_BATCH_BYTES, COPY_TIMEOUT_SECONDS, CopyProgress
from airflow_streamstate.snapshot.data import keys_of
from airflow_streamstate.snapshot.deletion import READ, REMEMBERED_SECONDS, abandoned, leased
from airflow_streamstate.store.base import Store, bounded_get
from airflow_streamstate.store.transfer import PIECE_BYTES, clear_left, delete_below, keys_below, pieces_of, put_pieces


@dataclass(frozen=True)
class Mirrored(View):
    """What was copied to a mirror, by its URI: 0 files where the snapshot was there already."""

    form: ClassVar[str] = "snapshot_id mirror files bytes=size_bytes"

    snapshot_id: str
    mirror: str
    files: int
    size_bytes: int


def is_mirrored(control: StreamControl, mirror: Store, snapshot_id: str) -> bool:
    """Whether a snapshot is complete at a mirror; a manifest that cannot be read counts, and is never overwritten."""
    try:
        slot = StreamControl(mirror, control.stream_id, control.clock).snapshot_slot(snapshot_id)
    except DataError:
        return True
    return slot is not None and not isinstance(slot.value, AbandonedSnapshot)


def mirror_snapshot(
    control: StreamControl,
    checkpoints: Store,
    mirror: Store,
    snapshot_id: str,
    *,
    batch_bytes: int = COPY_BATCH_BYTES,
    timeout_seconds: float = COPY_TIMEOUT_SECONDS,
    on_progress: Callable[[CopyProgress], None] = lambda _progress: None,
    go_on: Callable[[], None] = lambda: None,
) -> Mirrored:
    """Copy a complete snapshot to a mirror, under a lease; calling it again continues (Law 2).

    Args:
        checkpoints: where its data are (``SnapshotPlaces.of``).
        batch_bytes, timeout_seconds, on_progress, go_on: as in ``copy``, by the clock of ``control``.

    Raises:
        SnapshotNotFoundError: there is no complete snapshot of this id (any more); the mirror has no manifest.
        SnapshotIncompleteError, SnapshotCorruptError: it is not what was captured; the mirror has no manifest.
        ConflictError: the partial copy was closed in the meantime, or the mirror has another stream of this name.
        UnavailableError, OutcomeUnknownError: home or mirror does not answer; the same call may be repeated.
    """
    refuse_another(control, mirror, control.spec(control.need_manifest(snapshot_id).deployment_id))
    if is_mirrored(control, mirror, snapshot_id):
        carry(control.home, mirror, layout.seal_key(control.stream_id, snapshot_id))  # it may have arrived later
        return Mirrored(snapshot_id, mirror.uri, 0, 0)
    with leased(control, snapshot_id, f"the copy to {mirror.uri}") as lease:

        def still_there() -> None:
            lease.renew()
            go_on()

        closed = mirror.get(layout.manifest_key(control.stream_id, snapshot_id))  # a record of an older partial copy
        manifest = control.need_manifest(snapshot_id)
        try:
            copied = copy_snapshot(
                manifest,
                sealed_in(control, snapshot_id),
                [checkpoints],
                mirror,
                batch_bytes=batch_bytes,
                timeout_seconds=timeout_seconds,
                clock=control.clock,
                on_progress=on_progress,
                go_on=still_there,
            )
        except DataError:
            control.need_manifest(snapshot_id)  # after an expired lease it may be removed, not damaged
            raise
        carry_records(control, mirror, manifest.deployment_id, still_there)
        still_there()
        carry(control.home, mirror, layout.seal_key(control.stream_id, snapshot_id))
        _complete(control, mirror, snapshot_id, None if closed is None else closed.version)
    return Mirrored(snapshot_id, mirror.uri, copied.files, copied.size_bytes)


def _complete(control: StreamControl, mirror: Store, snapshot_id: str, closed_version: str | None) -> None:
    """Put the manifest there, unless the snapshot was removed or the copy was closed in the meantime."""
    key = layout.manifest_key(control.stream_id, snapshot_id)
    control.need_manifest(snapshot_id)
    stored = bounded_get(control.home, key, SnapshotSlot.most_bytes)
    if stored is None:
        raise SnapshotNotFoundError(
            "the snapshot was removed while it was copied",
            stream_id=control.stream_id,
            snapshot_id=snapshot_id,
            next_step="`streamstate snapshot list` lists those that are kept; `streamstate home mirror` deletes partial"
            " ones.",
        )
    try:
        if closed_version is None:
            mirror.create(key, stored.body)
        else:
            mirror.replace(key, stored.body, closed_version)
    except (ObjectExistsError, VersionConflictError):
        if not is_mirrored(control, mirror, snapshot_id):
            raise ConflictError(
                "this partial copy was closed while it was made",
                stream_id=control.stream_id,
                snapshot_id=snapshot_id,
                mirror=mirror.uri,
                next_step="Copy it again.",
            ) from None


def carry_records(
    control: StreamControl, mirror: Store, deployment_id: str, go_on: Callable[[], None] = lambda: None
) -> None:
    """Copy a deployment's events until now, the plans and reads of its queries, its artifacts and its spec to a mirror.

    An attempt calls this at its start, so that a mirror knows of every run after its snapshots. Events come first: with
    them alone a mirror knows the deployment and its attempts. ``go_on`` is called before each object; it may raise.

    Raises:
        ConflictError: the mirror has another stream of this name.
    """
    spec = control.with_found_modules(control.spec(deployment_id))
    refuse_another(control, mirror, spec)
    for prefix in (
        layout.found_modules_prefix(control.stream_id, deployment_id),
        layout.events_prefix(control.stream_id, deployment_id),
        layout.plans_prefix(control.stream_id, deployment_id),
        layout.script_reads_prefix(control.stream_id, deployment_id),
    ):
        there = {info.key for info in mirror.list_objects(prefix)}
        for info in control.home.list_objects(prefix):
            if info.key not in there:
                go_on()
                carry(control.home, mirror, info.key)
    for key in (*artifact_keys(spec), layout.spec_key(control.stream_id, deployment_id)):
        go_on()
        carry(control.home, mirror, key)


def artifact_keys(spec: DeploymentSpec) -> list[str]:
    """The keys of the files that a deployment runs."""
    return [layout.artifact_key(spec.stream_id, artifact.sha256, artifact.name) for artifact in spec.artifacts]


def carry(source: Store, target: Store, key: str) -> None:
    """Copy one object that never changes, where it is missing at the target."""
    if target.head(key) is not None:
        return
    info = source.head(key)
    if info is None:
        return
    try:
        if info.size_bytes > PIECE_BYTES:
            put_pieces(target, key, pieces_of(source, key), info.size_bytes)
        elif (stored := bounded_get(source, key, PIECE_BYTES)) is not None:
            target.create(key, stored.body)
    except (ObjectMissingError, ObjectExistsError):
        return  # it is gone; or another process has just done the same


# A mirror is not the stream's home or place of snapshots, not of a different stream, and not ahead of the home.


def refuse_place(control: StreamControl, mirror: Store) -> None:
    """Refuse the place of the stream's snapshots as its mirror: new snapshots would be deleted there as partial copies.

    Raises:
        InvalidRequestError: it is that place.
    """
    key = layout.place_record_key(control.stream_id)
    if mirror.head(key) is not None:
        raise InvalidRequestError(
            "a mirror is another place than that of the snapshots",
            stream_id=control.stream_id,
            mirror=mirror.uri,
            key=key,
            next_step="Name another disk, bucket or region.",
        )


def refuse_same(control: StreamControl, mirror: Store, checkpoints: Store) -> None:
    """Refuse the home or the checkpoints under another name as a mirror (a symlink, a bind mount, another spelling).

    There every snapshot would count as copied, or a new one as a partial copy. Called once for each mirror, before
    anything else is done there.

    Raises:
        InvalidRequestError: it is one of them.
        UnavailableError: a store does not answer, or cannot be written.
    """
    key, body = layout.mirror_trial_key(control.stream_id), json.dumps(control.clock.new_uuid()).encode()
    mirror.put(key, body)
    try:
        found = [(store, store.get(key)) for store in (control.home, checkpoints)]
    finally:
        with suppress(StreamStateError):  # some mirrors allow no deletion
            mirror.delete(key)
    same = next((store for store, stored in found if stored is not None and stored.body == body), None)
    if same is not None:
        raise InvalidRequestError(
            "a mirror is another place than the home, and this is the same one by another name",
            stream_id=control.stream_id,
            mirror=mirror.uri,
            same_as=same.uri,
            next_step="Name another disk, bucket or region.",
        )


def refuse_another(control: StreamControl, mirror: Store, spec: DeploymentSpec) -> None:
    """Refuse a mirror that has another deployment of this id.

    Raises:
        ConflictError: it has.
        InvalidRequestError: as ``refuse_place``.
    """
    refuse_place(control, mirror)
    try:
        there = StreamControl(mirror, control.stream_id, control.clock).spec(spec.deployment_id)
    except (DeploymentNotFoundError, DataError):  # a restore reports a damaged one
        return
    if there.identity != spec.identity:
        raise ConflictError(
            "the mirror has another deployment of this id, of another stream of this name",
            stream_id=control.stream_id,
            deployment_id=spec.deployment_id,
            mirror_uri=mirror.uri,
            created_at=there.created_at,
            created_here_at=spec.created_at,
            next_step="Mirror to another place, or move away what is there.",
        )


def refuse_left_behind(control: StreamControl, mirror: Store) -> None:
    """Refuse a mirror whose stream continued elsewhere, in a home that was restored from it: copies from there would be
    deleted as partial, with files that later copies share.

    A home that was itself restored from before its newest deployment knows that deployment by its fencing token.

    Raises:
        ConflictError: it continued elsewhere.
        InvalidRequestError: as ``refuse_place``.
        StreamNotFoundError: the stream was deleted in the meantime.
    """
    there = StreamControl(mirror, control.stream_id, control.clock).deployment_ids()
    register, known = control.need_register().value, set(control.deployment_ids())  # last, after any new deploy
    reached = order_of(deployment_id_for(register.fencing_token))
    newer = [one for one in there if order_of(one) > reached]
    for deployment_id in known.intersection(newer):  # abandoned here, and maybe another one of the same id there
        with suppress(DeploymentNotFoundError):
            refuse_another(control, mirror, control.spec(deployment_id))
    newer = [one for one in newer if one not in known]
    if newer:
        raise ConflictError(
            "the mirror has a newer deployment, which is not in this home: the stream continued elsewhere",
            stream_id=control.stream_id,
            deployment_id=register.deployment_id,
            newest_deployment_id=newer[-1],
            mirror=mirror.uri,
            next_step="Do this from the home in which it runs, or mirror to another place.",
        )


# Deletes copies at a mirror of snapshots that the home removed: partial ones, and whole ones that are not kept.
#
# The process that made such a copy may continue at any time, so the copy is closed before a file is deleted: a record
# takes the place of its manifest, and no process completes it any more (Law 3). A file is deleted if no manifest
# refers to it, at the mirror or in the home. The home's manifests are read first, as of one moment, then the
# snapshots that it removes: one of the two names every copy, also one without a folder yet, so its files stay, or it
# is closed as well.

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
    """Make complete copies partial: no stream starts from them, and ``delete_partial_copies`` deletes their files.

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
        """Put a record in the place of the manifest of a complete copy; False where the home has the snapshot."""
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
