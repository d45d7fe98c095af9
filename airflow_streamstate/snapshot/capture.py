"""Takes a snapshot: records it, links every file of a position, then writes the manifest (Laws 1 and 3)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from datetime import datetime, timedelta, timezone
from functools import partial

from airflow_streamstate.checkpoint.log import Checkpoint, OffsetEntry, Position
from airflow_streamstate.checkpoint.state_files import files_of
from airflow_streamstate.clock import Clock
from airflow_streamstate.control.objects import Lease
from airflow_streamstate.control.registers import MAKING_SECONDS, Begun, Retention
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    InvalidRequestError,
    ObjectExistsError,
    ObjectMissingError,
    SnapshotIncompleteError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.older_python import zipped
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import to_bytes
from airflow_streamstate.protocol.ids import SnapshotKind, check_id, is_scratch_id
from airflow_streamstate.protocol.manifest import FileEntry, QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.policies import AbandonedSnapshot
from airflow_streamstate.protocol.positions import QueryPosition, SourceIdentity, StateLeft, WatermarkSpec
from airflow_streamstate.protocol.terms.version import NO_SNAPSHOTS
from airflow_streamstate.retry import Retry
from airflow_streamstate.snapshot.checksums import companion_of, content_digest, is_of_bytes
from airflow_streamstate.snapshot.data import Bases, crc32_of, key_of, sizes_of
from airflow_streamstate.snapshot.deletion import leased
from airflow_streamstate.snapshot.location import SnapshotPlaces, no_snapshots, put_in_place, uri_of
from airflow_streamstate.store.base import Link, ListsKeys, ManyAtOnce, ObjectInfo, Store
from airflow_streamstate.store.transfer import delete_below, link_many, until_done, versions_below

# Records a snapshot before its first file, so that no prune removes what it is made of (Law 1), and completes it.
#
# The manifest completes it (Law 3). If it was abandoned since it took too long, a record is in the manifest's place:
# then nothing is completed, and the same snapshot starts again, in its own data folder.

log = logging.getLogger(__name__)

RENEW_AFTER_SHARE = 0.1
"""A share of the time after which it counts as abandoned: one large file may take the rest of it."""


@dataclass(frozen=True)
class SnapshotWriter:
    """One try to take a snapshot.

    Attributes:
        take: the number of its own data folder.
        bases: what it may share files with; None where no record can keep those files for it.
        place_uri: of the place of its data; "" for with the checkpoints.
        go_on: to be called between any two files: renews the record from time to time.
    """

    control: StreamControl
    take: int
    bases: Bases | None
    begun: Begun | None
    abandoned_version: str | None
    place_uri: str = ""
    go_on: Callable[[], None] = lambda: None

    def complete(self, manifest: SnapshotManifest) -> SnapshotManifest:
        """Write the manifest, or return the one that another process wrote first.

        Raises:
            UnavailableError: the snapshot was abandoned in the meantime; it has to be taken again.
        """
        try:
            self._need_record(manifest)
            self.control.create_manifest(manifest, over=self.abandoned_version)
        except ObjectExistsError:
            found = self.control.manifest(manifest.snapshot_id)
            if found is None:
                raise UnavailableError(
                    "this snapshot took so long that it was abandoned",
                    snapshot_id=manifest.snapshot_id,
                    next_step="Take it again.",
                ) from None
            manifest = found
        if self.begun is not None:
            with suppress(StreamStateError):  # a prune finds that it is complete, too
                Retention(self.control, manifest.taken_by).finish(self.begun, completed=manifest)
        return manifest

    def _need_record(self, manifest: SnapshotManifest) -> None:
        """Check that the record is still there: else the snapshot may have been removed, and its id forgotten.

        Raises:
            ObjectExistsError: it is gone.
        """
        if self.begun is None:
            return
        try:
            makings = Retention(self.control).read().makings
        except StreamStateError:
            return  # the manifest decides
        if self.begun.making_id not in makings:
            raise ObjectExistsError("the record that this snapshot is being taken is gone", key=manifest.snapshot_id)


@contextmanager
def snapshot_writer(
    control: StreamControl,
    snapshot_id: str,
    deployment_id: str,
    taken_by: str,
    needs: Collection[str],
    place_uri: str = "",
) -> Iterator[SnapshotWriter]:
    """Take a snapshot within this block, and end it with ``SnapshotWriter.complete``.

    The position that a rehearsal forks is not kept: it has no record, and shares no file.

    Args:
        deployment_id: of the checkpoints.
        taken_by: ``agent`` or ``controller``.
        needs: snapshots that it is also made of.
        place_uri: as in ``SnapshotWriter``; only snapshots at the same place share files.

    Raises:
        UnavailableError: the register of what is kept cannot be changed now.
    """
    if is_scratch_id(snapshot_id):
        yield SnapshotWriter(control, 1, None, None, None)
        return
    retention = Retention(control, taken_by)
    try:
        begun = retention.begin(snapshot_id, needs, place_uri)
    except DataError as error:
        log.warning(
            "the retention register of %s cannot be read, so all of %s is copied: %s",
            control.stream_id,
            snapshot_id,
            error,
        )
        yield _unrecorded(control, snapshot_id, place_uri)
        return
    manifests = {base: control.readable_manifest(base) for base in begun.base_ids}
    beside = {base: found for base, found in manifests.items() if found is not None and found.data_uri == place_uri}
    try:
        bases, go_on = Bases(deployment_id, beside), _Signs(retention, begun, control.clock).give
        yield SnapshotWriter(control, begun.take, bases, begun, begun.abandoned_version, place_uri, go_on)
    except Exception:
        with suppress(StreamStateError):  # it expires
            retention.finish(begun)
        raise


class _Signs:
    """Renews the record of a snapshot in progress."""

    def __init__(self, retention: Retention, begun: Begun, clock: Clock) -> None:
        self._retention = retention
        self._begun = begun
        self._lease = Lease(clock, MAKING_SECONDS, is_held=True)

    def give(self) -> None:
        """Renew it if it is due; a failure is tried again at the next file."""
        if not self._lease.is_due(RENEW_AFTER_SHARE):
            return
        with suppress(StreamStateError), self._lease.renewed() as expires_at:
            self._retention.keep_on(self._begun, expires_at)


def _unrecorded(control: StreamControl, snapshot_id: str, place_uri: str) -> SnapshotWriter:
    slot = control.snapshot_slot(snapshot_id)
    if slot is None or not isinstance(slot.value, AbandonedSnapshot):
        return SnapshotWriter(control, 1, None, None, None, place_uri)
    return SnapshotWriter(control, slot.value.take + 1, None, None, slot.version, place_uri)


BUFFER_BYTES = 1 << 18
LINKS_AT_ONCE = 256
"""Where a link is a copy, this many are under way or waiting at once."""


class DataFolder:
    """The folder of one query of a snapshot; ``go_on`` is called again and again while files are linked."""

    def __init__(self, checkpoints: Store, folder: str, go_on: Callable[[], None] = lambda: None) -> None:
        self._checkpoints = checkpoints
        self._folder = folder
        self._go_on = go_on
        self._place = ""

    def take(self, keys: Sequence[str], paths: Sequence[str]) -> tuple[FileEntry, ...]:
        """Link the objects at ``keys`` to ``paths`` in the folder; the entries of the links.

        Raises:
            ObjectMissingError: one of them is not there (any more).
            UnavailableError: it cannot be linked now.
        """
        checksums = self._put(keys, paths)
        sizes = {info.key: info.size_bytes for info in self._checkpoints.list_objects(f"{self._folder}/")}
        named, buffer = set(paths), bytearray(BUFFER_BYTES)
        entries = []
        for path, checksum in zipped(paths, checksums):
            self._go_on()
            key = f"{self._folder}/{path}"
            if key not in sizes:
                raise gone(key)
            companion = companion_of(path)
            crc32 = self._companion_crc32(companion, buffer) if companion in named else ""
            entries.append(FileEntry(path, sizes[key], crc32, checksum, shared_from=self._place))
        return tuple(entries)

    def _put(self, keys: Sequence[str], paths: Sequence[str]) -> list[str]:
        links = [Link(key, f"{self._folder}/{path}") for key, path in zipped(keys, paths)]
        at_once = LINKS_AT_ONCE if isinstance(self._checkpoints, ManyAtOnce) else 1
        checksums: list[str] = []
        for start in range(0, len(links), at_once):
            checksums += self._link(links[start : start + at_once])
            self._go_on()
        return checksums

    def _link(self, links: Sequence[Link]) -> list[str]:
        """Link some files; a server may take long for a large one, so it is asked from a separate thread."""
        if not isinstance(self._checkpoints, ManyAtOnce):
            return link_many(self._checkpoints, links)
        with ThreadPoolExecutor(1, "streamstate-link") as pool:
            return until_done(pool.submit(link_many, self._checkpoints, links), self._go_on)

    def _companion_crc32(self, path: str, buffer: bytearray) -> str:
        crc32 = crc32_of(self._checkpoints, f"{self._folder}/{path}", buffer)
        if crc32 is None:
            raise gone(f"{self._folder}/{path}")
        return crc32


class ReferredFolder(DataFolder):
    """The checkpoint of a query itself, whose files a snapshot only names."""

    def __init__(self, checkpoints: Store, stream_id: str, deployment_id: str, query_name: str) -> None:
        super().__init__(checkpoints, layout.checkpoint_folder(stream_id, deployment_id, query_name))
        self._place = layout.checkpoint_place(deployment_id)

    def _put(self, keys: Sequence[str], paths: Sequence[str]) -> list[str]:  # noqa: ARG002 - they stay where they are
        if not isinstance(self._checkpoints, ManyAtOnce):
            return [""] * len(keys)
        return [checksum or "" for checksum in self._checkpoints.checksums_of(list(keys))]


def gone(key: str) -> ObjectMissingError:
    """A file that is not there any more: the query has moved on."""
    return ObjectMissingError("a file went while it was being captured", key=key)


# The end of a capture: the data go to their place, and then comes the manifest (Law 3). Links on the way to another
# place are removed after the manifest; if that is cut short, a prune removes them.


def completed(
    made: SnapshotWriter, places: SnapshotPlaces, staged: SnapshotManifest, go_on: Callable[[], None] = lambda: None
) -> SnapshotManifest:
    """Complete a snapshot whose files were linked alongside the checkpoints, shared, or only named.

    Args:
        staged: its manifest, as if its data stayed where they are.
        go_on: called again and again while it is copied to another place; raises to abort.

    Raises:
        UnavailableError: the place does not answer, or the snapshot was abandoned in the meantime.
        SnapshotIncompleteError, SnapshotCorruptError: a link is not as captured any more.
    """
    control, checkpoints = made.control, places.checkpoints
    if not made.place_uri:
        if checkpoints is not control.home:
            # The next whole write of their store makes the links durable, before the manifest (Law 3).
            checkpoints.put(layout.data_note_key(control.stream_id, staged.snapshot_id), to_bytes(staged))
        return made.complete(staged)

    def step() -> None:
        made.go_on()
        go_on()

    try:
        placed = put_in_place(control, places, _with_shared(made, places, staged), made.place_uri, step)
        manifest = made.complete(placed)
    except StreamStateError:
        # Another process that takes the same snapshot may have been first, and removed what both had linked.
        found = control.readable_manifest(staged.snapshot_id)
        if found is None:
            raise
        manifest = found
    if not manifest.data_uri:
        return manifest  # another process was first and keeps it with the checkpoints, in the same folder
    folder = layout.snapshot_folder(control.stream_id, staged.snapshot_id)
    with suppress(StreamStateError):
        delete_below(checkpoints, f"{folder}/{layout.data_folder_name(staged.take)}")
    return manifest


def _with_shared(made: SnapshotWriter, places: SnapshotPlaces, staged: SnapshotManifest) -> SnapshotManifest:
    """The manifest without copies of files that an older snapshot has at the same place."""
    if made.bases is None:
        return staged
    bases, store = made.bases, places.need_own(made.control, made.place_uri)
    queries = {
        name: replace(query, files=bases.with_same_bytes(name, query.files, store))
        for name, query in staged.queries.items()
    }
    return replace(staged, queries=queries)


def take_over(
    made: SnapshotWriter,
    places: SnapshotPlaces,
    folder: DataFolder,
    query_name: str,
    carried: QuerySnapshot,
    source_id: str,
) -> QuerySnapshot:
    """Take a query that the deployment never started over from the snapshot that holds it.

    Its files are named where they are, or linked into the folder.

    Raises:
        SnapshotIncompleteError: the older snapshot is incomplete.
        UnavailableError: its place does not answer.
    """
    source = made.control.need_manifest(source_id)
    store = places.of(source)
    named = made.bases.carried(carried, source_id) if made.bases is not None else None
    if named is not None and (made.place_uri or not isinstance(store, ListsKeys)):
        there = sizes_of(store, source, query_name)
        for entry in carried.files:
            if key_of(source, query_name, entry) not in there:
                raise _lacks(source_id, query_name, entry.path)
        return named
    reader = f"a snapshot of {source.stream_id} that is being taken"
    with leased(made.control, source_id, reader, is_kept_anyhow=True) as lease:
        here = lease.landed(places, source, [query_name], made.go_on)
        files = here.queries[query_name].files
        keys = {entry.path: key_of(here, query_name, entry) for entry in files}
        try:
            taken = folder.take([*keys.values()], [*keys])
        except ObjectMissingError as error:
            paths = [path for path, key in keys.items() if key == error.context.get("key")]
            raise _lacks(source_id, query_name, *paths) from error
    # The manifest's checksums of the bytes stay; an entity tag is of one key only.
    known = (
        replace(was, checksum=was.checksum if is_of_bytes(was.checksum) else now.checksum)
        for was, now in zipped(carried.files, taken)
    )
    return replace(carried, files=tuple(replace(entry, shared_from="") for entry in known))


def _lacks(source_id: str, query_name: str, path: str = "") -> SnapshotIncompleteError:
    return SnapshotIncompleteError(
        "the snapshot that holds this query lacks a file",
        snapshot_id=source_id,
        query_name=query_name,
        path=path,
        next_step=f"`streamstate snapshot verify` of {source_id} names everything that is missing.",
    )


CAPTURE = Retry(tries=8, pause_seconds=0.05, growth=1.5)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class QueryToCapture:
    """One query, and what only its driver knows about it.

    Attributes:
        checkpoint: None where this deployment did not build one.
        carried: the query in the deployment's start snapshot, taken over if there is no whole checkpoint: a query that
            was not started yet never falls back to empty (Law 5).
        carried_snapshot_id: the id of that snapshot.
        identities_at: the identities of a position, by its last committed batch; in place of ``identities``.
        before: the query in an older snapshot: at the same position its files are listed again, whatever Spark has
            compacted in the meantime, as long as they are all there.
        drained: its flush is committed; a log that shows otherwise is refused.
        watermark_ms: the watermark of before the flush; None for that of the log.
        state_rows: by batch, the rows in the state after it.

    All others are as in ``QuerySnapshot`` and ``QueryPosition``.
    """

    checkpoint: Checkpoint | None = None
    carried: QuerySnapshot | None = None
    carried_snapshot_id: str | None = None
    sources: tuple[str, ...] = ()
    watermarks: tuple[WatermarkSpec, ...] = ()
    drained: bool = False
    watermark_ms: int | None = None
    state_rows: Mapping[int, int] = field(default_factory=dict)
    state_rows_left: int | None = None
    state_left: tuple[StateLeft, ...] = ()
    rows_written_early: int | None = None
    open_windows_from_at: datetime | None = None
    open_windows_until_at: datetime | None = None
    rows_dropped: int | None = None
    identities: tuple[SourceIdentity, ...] = ()
    identities_at: Callable[[int | None], tuple[SourceIdentity, ...]] | None = None
    before: QuerySnapshot | None = None

    def __post_init__(self) -> None:
        if self.carried is not None and not self.carried_snapshot_id:
            raise ValueError("a carried query needs the id of the snapshot that holds it")


def capture(
    control: StreamControl,
    checkpoints: Store,
    *,
    snapshot_id: str,
    snapshot_kind: SnapshotKind,
    deployment_id: str,
    attempt: int,
    fencing_token: int,
    taken_by: str,
    queries: Mapping[str, QueryToCapture],
    command_id: str = "",
    request_id: str = "",
    spark_version: str = "",
    places: SnapshotPlaces | None = None,
    kept_at: str = "",
    planned_of: Container[str] = (),
    when_linked: Callable[[], None] = lambda: None,
    go_on: Callable[[], None] = lambda: None,
) -> SnapshotManifest:
    """Take the snapshot of this id, or return the manifest of the existing one (Law 2).

    ``live`` holds the last committed batch of each query while it runs on; ``stopped`` and ``pre-drain`` also a batch
    that Spark planned and did not commit (1a.6). Of a query whose flush is committed every kind holds the log only.

    Args:
        checkpoints: the store of the checkpoints; the data stay there, or go from there to their place.
        snapshot_id: chosen before the first try (``snapshot_id_for``).
        deployment_id, attempt, fencing_token: of the checkpoints.
        taken_by: ``agent`` or ``controller``.
        queries: every query of the deployment, by name.
        command_id, request_id: of the command that asked; "" if not set.
        spark_version: "" where unknown.
        places: None where only the store of the checkpoints is known.
        kept_at: as ``DeploymentSpec.snapshots``; a position that a rehearsal forks is always kept with the checkpoints.
        planned_of: of ``live``: the queries that have ended, whose planned batch is kept, too.
        when_linked: called when the checkpoints are not needed any more, before anything is copied to another place.
        go_on: called again and again during that copy; raises to abort.

    Raises:
        InvalidRequestError: ``live``, and no query has committed a batch, or the deployment keeps no snapshots.
        ConflictError: a query that should be drained is not.
        SnapshotIncompleteError: the data of a carried query is incomplete.
        ObjectMissingError, DataError, UnsupportedCheckpointError: a checkpoint is damaged, or of an unknown format.
        UnavailableError: the disk is full, the store does not answer, or a query outran every try; there is no
            snapshot, and the same call may be repeated.
    """
    check_id(snapshot_id, "snapshot id")
    existing = control.manifest(snapshot_id)
    if existing is not None:
        return existing
    if is_scratch_id(snapshot_id):
        kept_at = ""
    elif kept_at == NO_SNAPSHOTS and snapshot_kind == "live":
        raise no_snapshots(deployment_id)
    places = places or SnapshotPlaces(checkpoints, clock=control.clock)
    needs = sorted({query.carried_snapshot_id for query in queries.values() if query.carried_snapshot_id is not None})
    with snapshot_writer(control, snapshot_id, deployment_id, taken_by, needs, uri_of(kept_at)) as made:
        bases = None if kept_at == NO_SNAPSHOTS else made.bases
        captured: dict[str, QuerySnapshot] = {}
        for query_name, query in sorted(queries.items()):
            key = layout.snapshot_data_folder(control.stream_id, snapshot_id, query_name, made.take)
            data = DataFolder(checkpoints, key, made.go_on)
            referred = ReferredFolder(checkpoints, control.stream_id, deployment_id, query_name)
            folder = referred if kept_at == NO_SNAPSHOTS else data
            carry = partial(take_over, made, places, data, query_name)
            shot = _Shot(checkpoints, control.clock, folder, query_name, query, bases, carry)
            captured[query_name] = shot.take(with_planned=snapshot_kind != "live" or query_name in planned_of)
        if snapshot_kind == "live" and not any(_has_begun(query.position) for query in captured.values()):
            raise InvalidRequestError(
                "nothing is committed yet, so there is nothing to snapshot",
                next_step="Wait until a batch is committed; `streamstate status` shows it.",
            )
        manifest = SnapshotManifest(
            snapshot_id=snapshot_id,
            snapshot_kind=snapshot_kind,
            stream_id=control.stream_id,
            deployment_id=deployment_id,
            attempt=attempt,
            fencing_token=fencing_token,
            taken_at=control.clock.now(),
            taken_by=taken_by,
            queries=captured,
            write_id=control.clock.new_uuid(),
            spark_version=spark_version,
            command_id=command_id,
            request_id=request_id,
            content_digest=content_digest(captured),
            take=made.take,
        )
        when_linked()
        return completed(made, places, manifest, go_on)


def _has_begun(position: QueryPosition) -> bool:
    return position.batch_id is not None or position.planned_batch_id is not None


@dataclass(frozen=True)
class _Shot:
    """One query on its way into a snapshot; ``carry`` takes it over from the snapshot of an id."""

    checkpoints: Store
    clock: Clock
    folder: DataFolder
    query_name: str
    query: QueryToCapture
    bases: Bases | None
    carry: Callable[[QuerySnapshot, str], QuerySnapshot]

    def take(self, *, with_planned: bool) -> QuerySnapshot:
        checkpoint, carried = self.query.checkpoint, self.query.carried
        if checkpoint is not None and checkpoint.exists():
            return self._take_checkpoint(checkpoint, with_planned=with_planned)
        if carried is not None:
            if checkpoint is not None:
                self._refuse_newer(checkpoint, carried)
            return self.carry(carried, str(self.query.carried_snapshot_id))
        if checkpoint is not None and next(checkpoint.store.list_objects(f"{checkpoint.prefix}/"), None) is not None:
            raise DataError(
                "this checkpoint is half built, and its source is not known",
                query_name=self.query_name,
                checkpoint=checkpoint.prefix,
                next_step="Resume the deployment: it builds the checkpoint again from its start snapshot.",
            )
        return self._snapshot("", QueryPosition(batch_id=None), (), watermark_ms=0, drained=self.query.drained)

    def _take_checkpoint(self, checkpoint: Checkpoint, *, with_planned: bool) -> QuerySnapshot:
        seen: list[int | None] = []
        missed: ObjectMissingError | None = None
        for _ in CAPTURE.begin(self.clock):
            position = checkpoint.position()
            seen.append(position.batch_id)
            kept = Position(position.batch_id, position.planned if with_planned else None)
            try:
                return self._take_position(checkpoint, kept)
            except ObjectMissingError as error:
                missed = error
        facts = {"query_name": self.query_name, "checkpoint": checkpoint.prefix, "last_seen": str(missed)}
        if seen[0] == seen[-1]:
            raise ObjectMissingError(
                "this checkpoint lacks a file that its last committed batch needs",
                **facts,
                batch_id=seen[-1],
                next_step="Deploy from the last snapshot that `streamstate snapshot verify` finds whole.",
            ) from missed
        raise UnavailableError(
            "the query moved on each time its files were linked",
            **facts,
            batch_ids=[batch_id for batch_id in seen if batch_id is not None],
            next_step="Try again; a larger spark.sql.streaming.minBatchesToRetain keeps files for longer.",
        ) from missed

    def _take_position(self, checkpoint: Checkpoint, position: Position) -> QuerySnapshot:
        entry = self._last_entry(checkpoint, position)
        drained = self._is_drained(position, entry)
        listed = self._list(checkpoint, position, entry, drained=drained)
        paths = [key[len(checkpoint.prefix) + 1 :] for key in listed]
        there = self._listed(checkpoint, paths)
        shared: dict[str, FileEntry] = {}
        if self.bases is not None:
            shared = self.bases.shared(self.query_name, set(paths), there, self.checkpoints)
        copied = [path for path in paths if path not in shared]
        taken = self.folder.take([checkpoint.key(path) for path in copied], copied)
        own = {entry.path: _noted(entry, there) for entry in taken}
        files = tuple(shared.get(path) or own[path] for path in paths)
        watermark_ms = self._watermark_ms(checkpoint, position, drained=drained)
        return self._snapshot(
            checkpoint.query_id() or "",
            self._position(position, entry, watermark_ms, drained=drained),
            files,
            watermark_ms=watermark_ms,
            drained=drained,
        )

    def _list(
        self, checkpoint: Checkpoint, position: Position, entry: OffsetEntry | None, *, drained: bool
    ) -> list[str]:
        before = self.query.before
        if before is not None and entry is not None and _is_at(before, position, entry, drained=drained):
            items = {checkpoint.key(file.path) for file in before.files}
            with suppress(ObjectMissingError):  # Spark has removed one since
                return files_of(checkpoint, position, with_state=not drained, among=items)
        return files_of(checkpoint, position, with_state=not drained)

    def _last_entry(self, checkpoint: Checkpoint, position: Position) -> OffsetEntry | None:
        if position.batch_id is None:
            return None
        entry = checkpoint.read_offset(position.batch_id)
        if entry is None:
            raise gone(checkpoint.offset_key(position.batch_id))
        return entry

    def _is_drained(self, position: Position, entry: OffsetEntry | None) -> bool:
        if entry is None:
            return self.query.drained
        drained = entry.mark is not None and entry.mark.kind == "drain"
        if self.query.drained and not drained:
            raise ConflictError(
                "this query is not drained: its last committed batch is no flush",
                query_name=self.query_name,
                batch_id=position.batch_id,
                next_step="Drain the deployment again.",
            )
        return drained

    def _position(
        self, position: Position, entry: OffsetEntry | None, watermark_ms: int, *, drained: bool
    ) -> QueryPosition:
        return QueryPosition(
            batch_id=position.batch_id,
            end_offsets=() if entry is None else entry.source_lines,
            planned_batch_id=position.planned_id,
            watermark_at=_EPOCH + timedelta(milliseconds=watermark_ms) if watermark_ms else None,
            state_rows_left=self._rows_left(position, drained=drained),
            state_left=self.query.state_left,
            rows_written_early=self.query.rows_written_early,
            open_windows_from_at=self.query.open_windows_from_at,
            open_windows_until_at=self.query.open_windows_until_at,
            rows_dropped=self.query.rows_dropped,
        )

    def _rows_left(self, position: Position, *, drained: bool) -> int | None:
        if drained or position.batch_id is None or self.query.state_rows_left is not None:
            return self.query.state_rows_left
        return self.query.state_rows.get(position.batch_id)

    def _watermark_ms(self, checkpoint: Checkpoint, position: Position, *, drained: bool) -> int:
        if position.batch_id is None:
            return 0
        if self.query.watermark_ms is not None:
            return self.query.watermark_ms
        # The watermark after the flush is the end of time: the batch before has the true one (1a.10).
        batch_id = position.batch_id - 1 if drained else position.batch_id
        entry = checkpoint.read_commit(batch_id)
        if entry is None:
            raise gone(checkpoint.commit_key(batch_id))
        return entry.next_batch_watermark_ms

    def _refuse_newer(self, checkpoint: Checkpoint, carried: QuerySnapshot) -> None:
        """Refuse a checkpoint with other batches than those that it was built of: it ran (Law 14)."""
        built_of = carried.position.batch_id
        later = [number for number in checkpoint.commit_ids() if built_of is None or number > built_of]
        if later:
            raise DataError(
                "this checkpoint has committed its own batches, but has no metadata",
                query_name=self.query_name,
                checkpoint=checkpoint.prefix,
                batches=later[-5:],
                next_step="Put its metadata back: one line of JSON, as in the snapshot that it was made of.",
            )

    def _listed(self, checkpoint: Checkpoint, paths: list[str]) -> dict[str, ObjectInfo]:
        """The files as they are before they are copied, by path, where the store reports versions of them."""
        found = versions_below(self.checkpoints, f"{checkpoint.prefix}/")
        return {path: found[key] for path in paths if (key := checkpoint.key(path)) in found}

    def _snapshot(
        self, query_id: str, position: QueryPosition, files: tuple[FileEntry, ...], *, watermark_ms: int, drained: bool
    ) -> QuerySnapshot:
        known_at = self.query.identities_at
        return QuerySnapshot(
            query_id=query_id,
            position=position,
            files=files,
            sources=self.query.sources,
            identities=self.query.identities if known_at is None else known_at(position.batch_id),
            watermarks=self.query.watermarks,
            watermark_ms=watermark_ms,
            drained=drained,
        )


def _is_at(before: QuerySnapshot, position: Position, entry: OffsetEntry, *, drained: bool) -> bool:
    # The state of a planned batch grows while it runs.
    kept = before.position
    at = (kept.batch_id, kept.planned_batch_id, kept.end_offsets, before.drained)
    return position.planned is None and at == (position.batch_id, None, entry.source_lines, drained)


def _noted(entry: FileEntry, there: Mapping[str, ObjectInfo]) -> FileEntry:
    """The copied file, with the version that the checkpoint's file had before."""
    before = there.get(entry.path)
    if before is None or before.size_bytes != entry.size_bytes:
        return entry
    return replace(entry, source_version=before.version)
