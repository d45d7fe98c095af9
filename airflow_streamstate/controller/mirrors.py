"""The mirrors of a stream: list the snapshots there, and copy the missing ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.errors import (
    DataError,
    InvalidRequestError,
    SnapshotNotFoundError,
    StreamStateError,
)
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.snapshot.copy import CopyProgress
from airflow_streamstate.snapshot.mirror import (
    Mirrored,
    is_mirrored,
    mirror_snapshot,
    refuse_another,
    refuse_left_behind,
    refuse_same,
)
from airflow_streamstate.snapshot.partial_copies import delete_partial_copies
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
    ) -> Iterator[tuple[str, Mirrored]]:
        """Copy every complete snapshot of a stream to these mirrors, oldest first; yields each URI and result.

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
    ) -> Iterator[tuple[str, Mirrored]]:
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
    ) -> Iterator[tuple[str, Mirrored]]:
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
                    yield mirror.uri, Mirrored(snapshot_id, 0, 0)
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
                continue  # it was removed meanwhile
            except DataError as error:
                failures.append(error)  # newer snapshots may be whole
                continue
            yield mirror.uri, done


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
