"""Mirrors of a stream: list and copy snapshots there, and restore a home from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

from airflow_streamstate.control.journal import NumberedEvent
from airflow_streamstate.control.registers import Retention
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.home import Home, is_stream_id
from airflow_streamstate.controller.stream_guards import create_unadopted
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    DeploymentNotFoundError,
    InvalidRequestError,
    ObjectExistsError,
    SnapshotNotFoundError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Drained, Event, Finished, Stopped
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.ids import check_stream_id, fencing_token_of
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import DeploymentSpec, StreamRegister
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.terms.version import NO_SNAPSHOTS
from airflow_streamstate.snapshot.copies import copy_snapshot, sealed_in
from airflow_streamstate.snapshot.copy import CopyProgress
from airflow_streamstate.snapshot.location import as_kept_in
from airflow_streamstate.snapshot.mirror_copies import (
    Mirrored,
    artifact_keys,
    carry,
    delete_partial_copies,
    is_mirrored,
    mirror_snapshot,
    refuse_another,
    refuse_left_behind,
    refuse_same,
)
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.open import open_store


class Mirrors:
    """The mirrors of the streams of one home."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def open(self, uri: str) -> Store:
        """The store of a mirror. Raises InvalidRequestError for a URI of no store, of the home itself, or of a place
        that is not allowed."""
        home = self._context.home
        mirror = open_store(uri, options=home.config.options, clock=self._context.clock)
        if mirror.uri in (home.home.uri, home.checkpoints.uri):
            raise InvalidRequestError(
                "a mirror must be another place than the home",
                mirror=mirror.uri,
                next_step="Name another disk, bucket or region.",
            )
        home.check_store(mirror.uri)
        return mirror

    def of(self, stream_id: str) -> tuple[str, ...]:
        """The mirrors of a stream's current deployment."""
        spec = _current_spec(self._context.home.need_stream(stream_id))
        return () if spec is None else spec.version.mirrors

    def chosen(self, stream_id: str, uris: Sequence[str] = ()) -> list[Store]:
        """The stores of these mirrors, or of the mirrors of the stream's current deployment.

        Raises:
            StreamNotFoundError: there is no such stream.
            InvalidRequestError: the stream has no mirrors; or as ``open``.
        """
        wanted = tuple(uris) or self.of(stream_id)
        if not wanted:
            raise no_mirrors(stream_id)
        return [self.open(uri) for uri in wanted]

    def copy(
        self,
        stream_id: str,
        mirrors: Sequence[Store],
        *,
        batch_bytes: int | None = None,
        timeout_seconds: float | None = None,
        on_progress: Callable[[str, str, CopyProgress], None] = lambda _uri, _snapshot_id, _progress: None,
    ) -> Iterator[Mirrored]:
        """Copy every complete snapshot of a stream to these mirrors, oldest first; yields each result.

        Removes partial copies of snapshots that are gone from each mirror. A damaged snapshot, a store of snapshots or
        a mirror that does not answer, and a mirror that is refused do not stop the others: the first of these errors
        is raised at the end.

        Args:
            batch_bytes, timeout_seconds: as in ``snapshot.copy.copy``; None: the settings of the current deployment.
            on_progress: called with the mirror's URI, the snapshot id, and the progress.

        Raises:
            StreamNotFoundError: there is no such stream.
            InvalidRequestError: ``batch_bytes`` or ``timeout_seconds`` is out of range; or as ``refuse_same``.
            ConflictError: as ``refuse_another`` and ``refuse_left_behind``.
            UnavailableError, SnapshotIncompleteError, SnapshotCorruptError: as ``mirror_snapshot``.
        """
        control = self._context.home.need_stream(stream_id)
        spec = _current_spec(control)
        settings = (AgentSettings() if spec is None else spec.version.settings).fetching(batch_bytes, timeout_seconds)
        failures: list[StreamStateError] = []
        for mirror in mirrors:
            try:
                yield from self._copy_to(control, spec, settings, mirror, on_progress, failures)
            except StreamStateError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _copy_to(
        self,
        control: StreamControl,
        spec: DeploymentSpec | None,
        settings: AgentSettings,
        mirror: Store,
        on_progress: Callable[[str, str, CopyProgress], None],
        failures: list[StreamStateError],
    ) -> Iterator[Mirrored]:
        refuse_same(control, mirror, self._context.home.checkpoints)
        if spec is not None:
            refuse_another(control, mirror, spec)
            refuse_left_behind(control, mirror)
        yield from self._copy_snapshots(control, settings, mirror, on_progress, failures)
        if spec is not None:
            refuse_left_behind(control, mirror)  # again: the copies may have taken long
        delete_partial_copies(control, mirror, self._context.requested_by, of_all=True)

    def _copy_snapshots(
        self,
        control: StreamControl,
        settings: AgentSettings,
        mirror: Store,
        on_progress: Callable[[str, str, CopyProgress], None],
        failures: list[StreamStateError],
    ) -> Iterator[Mirrored]:
        home, lost = self._context.home, dict[str, StreamStateError]()
        for snapshot_id in control.snapshot_ids():
            manifest = control.readable_manifest(snapshot_id)
            if manifest is None:
                continue

            def report(progress: CopyProgress, snapshot_id: str = snapshot_id) -> None:
                on_progress(mirror.uri, snapshot_id, progress)

            try:
                if manifest.data_uri in lost:
                    raise lost[manifest.data_uri]
                store = home.places.of(manifest)
            except StreamStateError as error:
                lost[manifest.data_uri] = error
                if is_mirrored(control, mirror, snapshot_id):
                    yield Mirrored(snapshot_id, mirror.uri, 0, 0)
                else:
                    failures.append(error)  # snapshots in other stores are still copied
                continue
            try:
                done = mirror_snapshot(
                    control,
                    store,
                    mirror,
                    snapshot_id,
                    batch_bytes=settings.fetch_batch_bytes,
                    timeout_seconds=settings.fetch_timeout_seconds,
                    on_progress=report,
                )
            except SnapshotNotFoundError:
                continue  # it was removed in the meantime
            except DataError as error:
                failures.append(error)  # newer snapshots may be whole
                continue
            yield done


def no_mirrors(stream_id: str) -> InvalidRequestError:
    """The error of a request about the mirrors of a stream without mirrors."""
    return InvalidRequestError(
        "this stream has no mirrors",
        stream_id=stream_id,
        next_step="Name one with --to URI (`home mirror`), or deploy with --mirror URI.",
    )


def _current_spec(control: StreamControl) -> DeploymentSpec | None:
    deployment_id = control.need_register().value.deployment_id
    return None if deployment_id is None else control.spec(deployment_id)


# Restore a home from mirrors: what a deploy needs to continue from each stream's newest snapshot there.
#
# In this order, each step safe to repeat: the data; the deployment's artifacts, plans and events; the manifest; one
# event that ends the deployment at that snapshot; its spec; and last the register. A partial restore has no register,
# so that nothing uses it, and the same call continues with it.


@dataclass(frozen=True)
class RestoredStream(View):
    """One stream that can be deployed again.

    Attributes:
        snapshot_id, snapshot_kind: the snapshot that its next deployment starts from.
        is_end: no later batch is known to have run. False: the rows of later batches come again.
        files, size_bytes: what was fetched.
        dropped: mirrors that were abandoned, each with the reason.
    """

    form: ClassVar[str] = (
        "stream_id deployment_id snapshot_id kind=snapshot_kind is_end files bytes=size_bytes dropped=dropped_rows"
    )

    stream_id: str
    deployment_id: str
    snapshot_id: str
    snapshot_kind: str
    is_end: bool
    files: int
    size_bytes: int
    dropped: tuple[tuple[str, str], ...] = ()

    @property
    def dropped_rows(self) -> list[dict[str, str]]:
        """``dropped``, with names."""
        return [{"mirror": uri, "why": why} for uri, why in self.dropped]


@dataclass(frozen=True)
class _Found:
    """The newest snapshot of a stream at the mirrors, the mirrors that have it, and the keys of later events that no
    mirror has readable."""

    manifest: SnapshotManifest
    holders: tuple[StreamControl, ...]
    is_end: bool
    fencing_token: int
    unread: tuple[str, ...]


class Restoring:
    """Restores streams into a home.

    Args:
        home: the new home, or what is left of the old one.
        mirrors: a file may come from any of them.
        batch_bytes, timeout_seconds: as in ``snapshot.copy.copy``; None: the default settings.

    Raises:
        InvalidRequestError: ``batch_bytes`` or ``timeout_seconds`` is out of range.
    """

    def __init__(
        self,
        home: Home,
        mirrors: Sequence[Store],
        requested_by: str,
        *,
        batch_bytes: int | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        self._home = home
        self._mirrors = tuple(mirrors)
        self._requested_by = requested_by
        self._settings = AgentSettings().fetching(batch_bytes, timeout_seconds)
        self._silent: dict[str, str] = {}

    def stream_ids(self) -> list[str]:
        """The streams with anything in a mirror, sorted. Raises UnavailableError: no mirror answers."""
        found = self._asked(lambda mirror: [name for name in mirror.list_folders("") if is_stream_id(name)])
        return sorted({name for names in found.values() for name in names})

    def restore(
        self,
        stream_id: str,
        *,
        accept_duplicates: bool = False,
        on_progress: Callable[[CopyProgress], None] = lambda _progress: None,
    ) -> RestoredStream:
        """Restore one stream; idempotent.

        Args:
            accept_duplicates: also restore from a snapshot after which batches ran; their rows come again (Law 14).
            on_progress: called with the progress of the data.

        Raises:
            ConflictError: the home has this stream; or batches ran after the newest snapshot, without
                ``accept_duplicates``.
            SnapshotNotFoundError: no mirror has a complete snapshot of it.
            UnavailableError, SnapshotIncompleteError, SnapshotCorruptError: as ``copy``.
        """
        check_stream_id(stream_id)
        control = self._home.control(stream_id, begins=True)
        if control.register() is not None:
            raise ConflictError(
                "this home has the stream already",
                stream_id=stream_id,
                home=self._home.home.uri,
                next_step="Deploy it as it is; to restore it from a mirror, give another home, or move this stream"
                " away.",
            )
        found = self._newest(stream_id)
        manifest = found.manifest
        if not found.is_end and not accept_duplicates:
            raise ConflictError(
                "batches ran after the newest snapshot that a mirror has: their rows would be written again",
                stream_id=stream_id,
                snapshot_id=manifest.snapshot_id,
                taken_at=manifest.taken_at,
                **({"unreadable": list(found.unread)} if found.unread else {}),
                next_step="Look for a newer one (another mirror, the old home); --accept-duplicates uses this one.",
            )
        self._home.begin(self._requested_by)
        with suppress(DataError):  # an unreadable retention record removes nothing
            Retention(control, self._requested_by).spare(manifest.snapshot_id)  # it may be condemned in the old home
        sealed = sealed_in(found.holders[0], manifest.snapshot_id)
        fetched = copy_snapshot(
            manifest,
            sealed,
            [holder.home for holder in found.holders],
            self._home.checkpoints,
            batch_bytes=self._settings.fetch_batch_bytes,
            timeout_seconds=self._settings.fetch_timeout_seconds,
            clock=self._home.clock,
            on_progress=on_progress,
        )
        self._bring_records(control, found)
        self._end(control, found)
        dropped = dict((*self._silent.items(), *fetched.dropped))
        return RestoredStream(
            stream_id=stream_id,
            deployment_id=manifest.deployment_id,
            snapshot_id=manifest.snapshot_id,
            snapshot_kind=manifest.snapshot_kind,
            is_end=found.is_end,
            files=fetched.files,
            size_bytes=fetched.size_bytes,
            dropped=tuple(dropped.items()),
        )

    # what the mirrors have

    def _newest(self, stream_id: str) -> _Found:
        found = self._asked(lambda mirror: _manifests(StreamControl(mirror, stream_id, self._home.clock)))
        manifests = [manifest for those in found.values() for manifest in those]
        if not manifests:
            raise SnapshotNotFoundError(
                "no mirror has a complete snapshot of this stream",
                stream_id=stream_id,
                mirrors=[mirror.uri for mirror in self._mirrors],
                not_answering=sorted(self._silent),
                next_step="Check the stream's name and the URI of the mirror.",
            )
        newest = max(manifests, key=lambda one: one.order)
        # A snapshot with the same id and another write id is of a stream that continued from an older mirror.
        holders = tuple(
            StreamControl(mirror, stream_id, self._home.clock, keys=self._home.config.keys)
            for number, mirror in enumerate(self._mirrors)
            if any(one.write_id == newest.write_id for one in found.get(number, ()))
        )
        tokens = self._asked(lambda mirror: _tokens(StreamControl(mirror, stream_id, self._home.clock)))
        # The rest of the old home may know of later deployments than any mirror.
        own = _tokens(self._home.control(stream_id, begins=True))
        token = max((newest.fencing_token, *own, *(token for those in tokens.values() for token in those)))
        entries = self._entries(stream_id, newest.deployment_id)
        unread = _unread_behind(entries, newest)
        keys = tuple(layout.event_key(stream_id, newest.deployment_id, number) for number in unread or ())
        is_end = token == newest.fencing_token and unread == []
        return _Found(newest, holders, is_end, token, keys)

    def _entries(self, stream_id: str, deployment_id: str) -> list[NumberedEvent]:
        """The events in all mirrors and in the rest of the old home: each may have some that the others lack."""

        def told(store: Store) -> list[NumberedEvent]:
            return list(StreamControl(store, stream_id, self._home.clock).journal(deployment_id).events())

        asked = self._asked(told).values()
        return [entry for those in (*asked, told(self._home.home)) for entry in those if not _is_said_here(entry.event)]

    def _asked(self, ask: Callable[[Store], Sequence[object]]) -> Mapping[int, Sequence]:  # type: ignore[type-arg]
        """The answer of each mirror by its index; a silent mirror is left out from then on.

        Raises:
            UnavailableError: no mirror answers.
        """
        answers: dict[int, Sequence[object]] = {}
        for number, mirror in enumerate(self._mirrors):
            if mirror.uri in self._silent:
                continue
            try:
                answers[number] = ask(mirror)
            except DataError:
                raise
            except StreamStateError as error:
                self._silent[mirror.uri] = str(error)
        if not answers:
            raise UnavailableError(
                "no mirror answers", mirrors=self._silent, next_step="Try again when one does, or name another."
            )
        return answers

    # what the home gets

    def _bring_records(self, control: StreamControl, found: _Found) -> None:
        manifest, deployment_id = found.manifest, found.manifest.deployment_id
        holder = found.holders[0]
        for key in artifact_keys(_spec_at(found)):
            for one in found.holders:
                carry(one.home, control.home, key)
        for one in found.holders:
            for info in one.home.list_objects(layout.found_modules_prefix(control.stream_id, deployment_id)):
                carry(one.home, control.home, info.key)
            for info in one.home.list_objects(layout.plans_prefix(control.stream_id, deployment_id)):
                carry(one.home, control.home, info.key)
            for info in one.home.list_objects(layout.script_reads_prefix(control.stream_id, deployment_id)):
                carry(one.home, control.home, info.key)
            for info in one.home.list_objects(layout.events_prefix(control.stream_id, deployment_id)):
                carry(one.home, control.home, info.key)
        carry(holder.home, control.home, layout.seal_key(control.stream_id, manifest.snapshot_id))
        kept_here = replace(as_kept_in(manifest, self._home.checkpoints), data_uri="")
        with suppress(ObjectExistsError):  # by an earlier call that was cut short
            control.create_manifest(kept_here)
        there = control.readable_manifest(manifest.snapshot_id)
        if there is None or there.write_id != manifest.write_id:
            raise ConflictError(
                "the home has another snapshot of this id",
                stream_id=control.stream_id,
                snapshot_id=manifest.snapshot_id,
                key=layout.manifest_key(control.stream_id, manifest.snapshot_id),
                next_step="Move what is left of the stream in this home away, or restore into another home.",
            )

    def _end(self, control: StreamControl, found: _Found) -> None:
        """End the deployment at the snapshot, as an attempt without a driver; then write its spec and, right after,
        the register: a spec alone would look like a stream that lost its register.

        A driver of it that still runs somewhere finds another attempt in the register, and ends.
        """
        manifest = found.manifest
        journal = control.journal(manifest.deployment_id)
        entries = list(journal.events())
        last = entries[-1].event if entries else None
        attempts = [entry.event.attempt for entry in entries if entry.event is not None]
        attempt = max((manifest.attempt, *attempts)) + 1
        if last is not None and _is_said_here(last):
            attempt = last.attempt  # an earlier call, cut short, wrote the event
        else:
            journal.append(
                Stopped(
                    stream_id=control.stream_id,
                    deployment_id=manifest.deployment_id,
                    attempt=attempt,
                    at=self._home.clock.now(),
                    write_id=self._home.clock.new_uuid(),
                    snapshot_id=manifest.snapshot_id,
                    queries={name: query.position for name, query in manifest.queries.items()},
                    command_id=_RESTORED,
                ),
                after=entries[-1].number if entries else 0,
            )
        register = StreamRegister(
            stream_id=control.stream_id,
            fencing_token=found.fencing_token,
            deployment_id=manifest.deployment_id,
            attempt=attempt,
            attempt_mode="run",
            intent=None,
            write_id=self._home.clock.new_uuid(),
            updated_at=self._home.clock.now(),
            updated_by=self._requested_by,
        )
        spec = _spec_at(found)
        with suppress(ObjectExistsError):
            control.create_spec(_as_run_here(spec, self._home.checkpoints.uri))
        try:
            create_unadopted(control, register)
        except ObjectExistsError:
            raise ConflictError(
                "another controller has just restored this stream",
                stream_id=control.stream_id,
                next_step="Deploy it; `streamstate status` shows it.",
            ) from None


_RESTORED = "restore-home"
"""Takes the place of a command's id in the event of a restore."""


def _spec_at(found: _Found) -> DeploymentSpec:
    """The spec of the deployment from the first mirror that has it; raises the error of the last one."""
    *others, last = found.holders
    for holder in others:
        with suppress(DataError, DeploymentNotFoundError):
            return holder.spec(found.manifest.deployment_id)
    return last.spec(found.manifest.deployment_id)


def _manifests(control: StreamControl) -> list[SnapshotManifest]:
    found = (control.readable_manifest(snapshot_id) for snapshot_id in control.snapshot_ids())
    return [manifest for manifest in found if manifest is not None]


def _tokens(control: StreamControl) -> list[int]:
    """The fencing tokens of all known deployments, from their ids."""
    found = []
    for deployment_id in control.deployment_ids():
        with suppress(InvalidRequestError):
            found.append(fencing_token_of(deployment_id))
    return found


def _is_said_here(event: Event | None) -> bool:
    """Whether a restore, and no driver, wrote this event."""
    return isinstance(event, Stopped) and event.command_id == _RESTORED


def _unread_behind(entries: Sequence[NumberedEvent], manifest: SnapshotManifest) -> list[int] | None:
    """The unreadable events, maybe of a later attempt, after the event by which the last known attempt ended at this
    snapshot. None if there is no such event."""
    last = max((entry.event.attempt for entry in entries if entry.event is not None), default=0)
    ends = [
        entry.number
        for entry in entries
        if isinstance(entry.event, Stopped | Drained | Finished)
        and (entry.event.attempt, entry.event.snapshot_id) == (last, manifest.snapshot_id)
    ]
    if not ends:
        return None
    read = {entry.number for entry in entries if entry.event is not None}
    return sorted({entry.number for entry in entries if entry.number > max(ends)} - read)


def _as_run_here(spec: DeploymentSpec, checkpoints_uri: str) -> DeploymentSpec:
    """Without the place of its snapshots, which is another home's."""
    snapshots = spec.version.snapshots if spec.version.snapshots == NO_SNAPSHOTS else ""
    return replace(spec, checkpoints_uri=checkpoints_uri, version=replace(spec.version, snapshots=snapshots))
