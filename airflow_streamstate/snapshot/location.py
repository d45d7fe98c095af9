"""Where snapshots are stored, and finding those of a request or a deployment (Law 5, 1a.8)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.control.objects import Cells
from airflow_streamstate.control.registers import Retention
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    InvalidRequestError,
    ObjectExistsError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.older_python import zipped
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import to_bytes
from airflow_streamstate.protocol.events import Accepted, Event, Finished, SnapshotReady, Stopped
from airflow_streamstate.protocol.ids import is_snapshot_by_command, snapshot_id_for
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.records import SnapshotPlace
from airflow_streamstate.protocol.terms.version import NO_SNAPSHOTS
from airflow_streamstate.snapshot.copies import copy_snapshot
from airflow_streamstate.snapshot.copy import COPY_BATCH_BYTES
from airflow_streamstate.snapshot.data import check_complete, data_files
from airflow_streamstate.store.base import ManyAtOnce, Store
from airflow_streamstate.store.open import open_store

LONE_TIMEOUT_SECONDS = 120.0
"""The timeout of a piece: it has no other source."""
OpenPlace = Callable[[str], Store]


def uri_of(kept_at: str) -> str:
    """The place of new snapshots, by ``DeploymentSpec.snapshots``."""
    return "" if kept_at == NO_SNAPSHOTS else kept_at


def no_snapshots(deployment_id: str) -> InvalidRequestError:
    """The error for a snapshot of a running deployment that keeps none."""
    return InvalidRequestError(
        "this deployment was deployed with --snapshots none: no snapshot is taken of it while it runs",
        deployment_id=deployment_id,
        next_step="Stop it, which keeps its position; or deploy with a place for snapshots.",
    )


def known_places(control: StreamControl) -> list[str]:
    """The URIs of all other places where data of a stream's snapshots may be.

    They are in manifests, in the retention register, and in the specs of deployments: a release that knows no places
    may have written the register since.

    Raises:
        DataError: the register is damaged.
    """
    found = set(Retention(control).read().places)
    for snapshot_id in control.snapshot_ids():
        manifest = control.readable_manifest(snapshot_id)
        found.add("" if manifest is None else manifest.data_uri)
    for deployment_id in control.deployment_ids():
        with suppress(StreamStateError):
            found.add(uri_of(control.spec(deployment_id).version.snapshots))
    return sorted(found - {""})


class SnapshotPlaces:
    """The places of one home.

    Args:
        checkpoints: the store of the checkpoints, which is the place of a manifest that names none.
        open_place: opens the store of a place's URI; None for ``open_store`` without options.
    """

    def __init__(self, checkpoints: Store, open_place: OpenPlace | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.checkpoints = checkpoints
        self._clock = clock
        self._open = open_place or partial(open_store, clock=clock)
        self._opened: dict[str, Store] = {}

    def at(self, uri: str) -> Store:
        """The store of a place, whatever it holds; raises InvalidRequestError for a bad URI."""
        if not uri:
            return self.checkpoints
        if uri not in self._opened:
            self._opened[uri] = self._open(uri)
        return self._opened[uri]

    def need(self, stream_id: str, uri: str) -> Store:
        """The store of a place, which has the place's record.

        Raises:
            UnavailableError: it does not answer, or what answers is not the place.
        """
        store = self.at(uri)
        if not uri:
            return store
        try:
            reason = "its record is missing" if self._record(store, stream_id) is None else ""
        except DataError as error:
            reason = f"its record cannot be read: {error.message}"
        if reason:
            raise UnavailableError(
                "what answers there is not the place of these snapshots",
                stream_id=stream_id,
                place=uri,
                key=layout.place_record_key(stream_id),
                reason=reason,
                next_step="Mount or reach the place again; nothing was written or removed there.",
            )
        return store

    def of(self, manifest: SnapshotManifest) -> Store:
        """The store of a snapshot's files; raises as ``need``."""
        return self.need(manifest.stream_id, manifest.data_uri)

    def claim(self, control: StreamControl, kept_at: str) -> None:
        """Claim the place that ``DeploymentSpec.snapshots`` names, if any, for a stream; twice is once.

        Raises:
            ConflictError: it holds the snapshots of a stream of this name in another home, or a mirror of one.
            UnavailableError: it does not answer, or what answers is not the place that it was.
            InvalidRequestError: it cannot be written, or is that of the checkpoints under another name.
        """
        uri = uri_of(kept_at)
        if not uri:
            return
        store, key = self.at(uri), layout.place_record_key(control.stream_id)
        found, noted = self._record(store, control.stream_id), _noted(control, uri)
        if found is None:
            _refuse_lost(control, uri)
            _refuse_used(control, store)
            noted = noted or _note(
                control,
                uri,
                SnapshotPlace(control.stream_id, control.home.uri, control.clock.now(), control.clock.new_uuid()),
            )
            try:
                Cells(store, control.clock).create(key, noted)
                found = noted
            except ObjectExistsError:
                found = self._record(store, control.stream_id)
        if found is not None and (noted is None or noted.write_id != found.write_id):
            raise _of_another_home(control, uri, found)
        beside = self._record(self.checkpoints, control.stream_id)
        if found is not None and beside is not None and found.write_id == beside.write_id:
            store.delete(key)
            raise InvalidRequestError(
                "this place is where the checkpoints are, by another name",
                stream_id=control.stream_id,
                place=uri,
                checkpoints_uri=self.checkpoints.uri,
                next_step="Leave it out, or name another disk, bucket or region.",
            )

    def need_own(self, control: StreamControl, uri: str) -> Store:
        """The store of a place in which this home may write and delete.

        Raises:
            UnavailableError: it does not answer, or what answers is not the place.
            ConflictError: it is that of a different home.
        """
        store = self.need(control.stream_id, uri)
        record = self._record(store, control.stream_id) if uri else None
        if record is not None and record.home_uri != control.home.uri:
            raise _of_another_home(control, uri, record)
        return store

    def all_of(self, control: StreamControl) -> tuple[dict[str, Store], list[str]]:
        """The stores of a stream's places by URI ("" for the checkpoints'), and for each missing one the reason.

        Raises:
            DataError: the places are not known.
        """
        found, missing = {"": self.checkpoints}, []
        for uri in known_places(control):
            try:
                found[uri] = self.need_own(control, uri)
            except StreamStateError as error:
                missing.append(f"nothing is removed at {uri}: {error}")
        return found, missing

    def _record(self, store: Store, stream_id: str) -> SnapshotPlace | None:
        key = layout.place_record_key(stream_id)
        stored = Cells(store, self._clock).read(key, SnapshotPlace, stream_id=stream_id)
        return None if stored is None else stored.value


def _noted(control: StreamControl, uri: str) -> SnapshotPlace | None:
    key = layout.claimed_place_key(control.stream_id, uri)
    stored = control.cells.read(key, SnapshotPlace, stream_id=control.stream_id)
    return None if stored is None else stored.value


def _note(control: StreamControl, uri: str, record: SnapshotPlace) -> SnapshotPlace:
    """Write the record of a place into the home, before the place has it (Law 1); returns an earlier one instead."""
    try:
        control.cells.create(layout.claimed_place_key(control.stream_id, uri), record)
    except ObjectExistsError:
        return _noted(control, uri) or record
    return record


def _refuse_lost(control: StreamControl, uri: str) -> None:
    """Refuse a place that has snapshots and no record: recreated where its disk is not mounted, it would be two.

    Raises:
        UnavailableError: it has.
    """
    known = set[str]()
    with suppress(DataError):  # no prune works by a damaged register
        known.update(Retention(control).read().places)
    manifests = map(control.readable_manifest, control.snapshot_ids())
    if uri in known or any(manifest is not None and manifest.data_uri == uri for manifest in manifests):
        raise UnavailableError(
            "snapshots are at this place, and what answers there is not that place: its record is missing",
            stream_id=control.stream_id,
            place=uri,
            key=layout.place_record_key(control.stream_id),
            next_step="Mount or reach it again; if it is lost for good, name another folder or prefix.",
        )


def _refuse_used(control: StreamControl, store: Store) -> None:
    """Refuse a mirror or another home as a place: copies and records are deleted there by other rules.

    Raises:
        ConflictError: the place has records of deployments of a stream of this name.
    """
    found = next(iter(store.list_objects(f"{layout.deployments_folder(control.stream_id)}/")), None)
    if found is not None and store.uri != control.home.uri:
        raise ConflictError(
            "a mirror of a stream of this name, or a home with one, is at this place",
            stream_id=control.stream_id,
            place=store.uri,
            key=found.key,
            next_step="Name a separate folder or prefix.",
        )


def _of_another_home(control: StreamControl, uri: str, found: SnapshotPlace) -> ConflictError:
    is_namesake = found.home_uri == control.home.uri
    for known in known_places(control) if is_namesake else ():
        noted = _noted(control, known)
        if noted is not None and noted.write_id == found.write_id:
            return ConflictError(
                "this place is known by another name",
                stream_id=control.stream_id,
                place=uri,
                known_as=known,
                next_step="Name it so (where it has moved, a link is enough), or name a separate folder or prefix.",
            )
    where = "another home of the same URI, or in this one before" if is_namesake else "another home"
    return ConflictError(
        f"this place holds the snapshots of a stream of the same name in {where}",
        stream_id=control.stream_id,
        place=uri,
        other_home=found.home_uri,
        claimed_at=found.created_at,
        next_step="Name a separate folder or prefix.",
    )


def put_in_place(
    control: StreamControl,
    places: SnapshotPlaces,
    staged: SnapshotManifest,
    uri: str,
    go_on: Callable[[], None] = lambda: None,
) -> SnapshotManifest:
    """Copy the linked files of a snapshot from the checkpoints' store to its place; the manifest with that place.

    Each file is verified as it arrives. Files shared with an older snapshot are there already.

    Args:
        staged: the manifest, not yet written anywhere.
        uri: of the place.
        go_on: called again and again; raises to abort.

    Raises:
        UnavailableError: the place does not answer.
        ConflictError: it is that of a different home.
        SnapshotIncompleteError, SnapshotCorruptError: a link is not there, or not as captured.
    """
    store = places.need_own(control, uri)
    own = replace(
        staged,
        queries={
            name: replace(query, files=tuple(entry for entry in query.files if not entry.shared_from))
            for name, query in staged.queries.items()
        },
    )
    copy_snapshot(
        own,
        {},
        [places.checkpoints],
        store,
        batch_bytes=COPY_BATCH_BYTES,
        timeout_seconds=LONE_TIMEOUT_SECONDS,
        go_on=go_on,
    )
    placed = replace(as_kept_in(staged, store, but_shared=True), data_uri=uri)
    store.put(layout.data_note_key(staged.stream_id, staged.snapshot_id), to_bytes(placed))
    return placed


def as_kept_in(manifest: SnapshotManifest, store: Store, *, but_shared: bool = False) -> SnapshotManifest:
    """The manifest with the checksums that this store, which has the files, keeps of them.

    With ``but_shared`` files shared with an older snapshot keep the checksums that the same store gave then.
    """
    queries = {}
    for name, query in manifest.queries.items():
        keys = data_files(manifest, name)
        asked = [entry.path for entry in query.files if not (but_shared and entry.shared_from)]
        wanted = [keys[path] for path in asked]
        told = store.checksums_of(wanted) if isinstance(store, ManyAtOnce) else [""] * len(wanted)
        checksums = {path: checksum or "" for path, checksum in zipped(asked, told)}
        files = tuple(replace(entry, checksum=checksums.get(entry.path, entry.checksum)) for entry in query.files)
        queries[name] = replace(query, files=files)
    return replace(manifest, queries=queries)


def land(
    places: SnapshotPlaces,
    manifest: SnapshotManifest,
    query_names: Collection[str],
    lease_id: str,
    go_on: Callable[[], None] = lambda: None,
) -> SnapshotManifest:
    """The manifest of a snapshot alongside the checkpoints: itself, or one of copies that are removed with the lease.

    Args:
        query_names: the queries to copy.
        lease_id: of the reader's lease.
        go_on: called whenever a file has arrived.

    Raises:
        UnavailableError: the place does not answer.
        SnapshotIncompleteError, SnapshotCorruptError: a file is not there, or not what was captured.
    """
    if not manifest.data_uri:
        return manifest
    wanted = replace(manifest, queries={name: query for name, query in manifest.queries.items() if name in query_names})
    place = layout.gathered_place(lease_id)
    here = replace(
        wanted, data_uri="", queries={name: _in_place(query, place) for name, query in wanted.queries.items()}
    )
    copy_snapshot(
        wanted,
        {},
        [places.of(manifest)],
        places.checkpoints,
        batch_bytes=COPY_BATCH_BYTES,
        timeout_seconds=LONE_TIMEOUT_SECONDS,
        arrives_as=here,
        go_on=go_on,
    )
    return here


def _in_place(query: QuerySnapshot, place: str) -> QuerySnapshot:
    # The checksums of the other store were compared on the way.
    return replace(query, files=tuple(replace(entry, shared_from=place, checksum="") for entry in query.files))


# Finds the snapshots of a deployment that still hold the queries it never started (Law 5).


def kept_by_own_snapshots(
    control: StreamControl,
    places: SnapshotPlaces,
    deployment_id: str,
    events: Sequence[Event | None],
    own: Collection[str],
) -> dict[str, SnapshotManifest]:
    """For each query that a deployment never started, its newest snapshot that has the query whole.

    Args:
        events: of the deployment, all attempts, in order; None for those that could not be read.
        own: the queries that were started in it, or have a checkpoint there.

    Raises:
        UnavailableError: a query is held only by snapshots whose place does not answer: it is not lost yet.
    """
    found: dict[str, SnapshotManifest] = {}
    silent: dict[str, tuple[SnapshotManifest, UnavailableError]] = {}
    for event in reversed(events):
        if not isinstance(event, (SnapshotReady, Stopped, Finished)) or event.snapshot_id is None:
            continue
        if set(event.queries) <= {*own, *found}:
            continue
        manifest = control.readable_manifest(event.snapshot_id)
        if manifest is None or manifest.deployment_id != deployment_id:
            continue
        for name in sorted({*manifest.queries} - {*own, *found}):
            try:
                check_complete(places.of(manifest), manifest, [name])
            except DataError:
                continue  # an older one may be whole
            except UnavailableError as error:
                silent.setdefault(name, (manifest, error))
                continue
            found[name] = manifest
    for name in sorted(set(silent) - set(found)):
        raise _silent(control, name, *silent[name])
    return found


def _silent(
    control: StreamControl, query_name: str, manifest: SnapshotManifest, error: UnavailableError
) -> UnavailableError:
    key = layout.manifest_key(control.stream_id, manifest.snapshot_id)
    return UnavailableError(
        "a query that was never started is held by a snapshot whose place does not answer",
        stream_id=control.stream_id,
        query_name=query_name,
        snapshot_id=manifest.snapshot_id,
        place=manifest.data_uri,
        reason=error.message,
        next_step=f"Mount or reach it; if it is lost for good, so is the query: delete {key} from the home.",
    )


# Finds the snapshot of a request, so that the same request to any deployment or attempt takes no second one.


def requested_snapshot(
    control: StreamControl, request_id: str, deployment_id: str, events: Sequence[Event | None]
) -> SnapshotManifest | None:
    """The complete snapshot of a request; None while it is not complete.

    Its manifest counts (Law 3): a driver that died right after it sent no event. In this deployment the commands that
    were started name the candidates. In the deployments between the first that was asked and this one, every snapshot
    is a candidate that a command asked for.

    Args:
        deployment_id: the deployment that is asked now.
        events: of that deployment, all attempts, in order; None for those that could not be read.

    Raises:
        InvalidRequestError: this is no request id.
    """
    try:
        record = control.request(request_id)
    except DataError:
        record = None  # then the first deployment is not known
    for snapshot_id in _here(request_id, deployment_id, events):
        manifest = control.readable_manifest(snapshot_id)
        if manifest is not None and manifest.request_id == request_id:
            return manifest
    if record is not None and record.deployment_id == deployment_id:
        return None
    since = None if record is None else record.deployment_id
    for snapshot_id in _elsewhere(control, since, deployment_id):
        manifest = control.readable_manifest(snapshot_id)
        if manifest is not None and manifest.request_id == request_id:
            return manifest
    return None


def _here(request_id: str, deployment_id: str, events: Iterable[Event | None]) -> list[str]:
    found = []
    for event in events:
        if isinstance(event, SnapshotReady) and event.request_id == request_id:
            found.append(event.snapshot_id)
        elif isinstance(event, Accepted) and event.command.get("request_id") == request_id:
            found.append(snapshot_id_for(deployment_id, "live", event.command_number))
    return found


def _elsewhere(control: StreamControl, since: str | None, deployment_id: str) -> list[str]:
    """Snapshots of other deployments that commands asked for, those of the newest deployment first."""
    known = control.deployment_ids()
    begin = known.index(since) if since in known else 0
    end = known.index(deployment_id) if deployment_id in known else len(known)
    asked = known[begin:end]
    if not asked:
        return []
    there = control.snapshot_ids()
    return [one for other in reversed(asked) for one in reversed(there) if is_snapshot_by_command(one, other)]


# Finds batches that a driver ran after it was taken for dead and its end was captured (1a.8).
#
# A fence ends such a driver at its next batch, unless Spark's own rename overwrote the fence during a claim. Then the
# successor runs the same batches: its state is right, and the sink may hold them twice, which can only be reported.

OUTRUN = "the driver of this deployment continued after its end was taken: the sink may hold these batches twice"


def batches_after(checkpoints: Store, manifest: SnapshotManifest) -> dict[str, tuple[int, ...]]:
    """Per query, the batches that its deployment claimed or committed after the snapshot at its end.

    Queries without such a batch are left out. This is odd only for a snapshot that a successor starts from.

    Raises:
        DataError, UnsupportedCheckpointError: an entry cannot be read.
    """
    found = {}
    for name, query in manifest.queries.items():
        folder = layout.checkpoint_folder(manifest.stream_id, manifest.deployment_id, name)
        later = _later(Checkpoint(checkpoints, folder), query)
        if later:
            found[name] = later
    return found


def _later(checkpoint: Checkpoint, query: QuerySnapshot) -> tuple[int, ...]:
    last, planned = query.position.batch_id, query.position.planned_batch_id
    committed = {number for number in checkpoint.commit_ids() if last is None or number > last}
    claimed = set()
    for number in checkpoint.offset_ids():
        if number != planned and (last is None or number > last):
            entry = checkpoint.read_offset(number)
            if entry is not None and not entry.is_ours:
                claimed.add(number)
    return tuple(sorted(committed | claimed))
