"""A snapshot in the making: recorded before its first file, so that nobody removes what it is made of (Law 1).

Its manifest completes it (Law 3). Where it took so long that it was abandoned, a record stands in the manifest's place:
then nothing is completed, and the same snapshot is begun anew, in a data folder of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from airflow_streamstate.control.retention import MAKING_SECONDS, Begun, Retention
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import DataError, ObjectExistsError, StreamStateError, UnavailableError
from airflow_streamstate.protocol.ids import is_rehearsal_id
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.retention import AbandonedSnapshot
from airflow_streamstate.snapshot.sharing import Bases

log = logging.getLogger(__name__)
RENEW_AFTER_SECONDS = MAKING_SECONDS / 4


@dataclass(frozen=True)
class Making:
    """One try to take a snapshot.

    Attributes:
        take: which data folder is its own.
        bases: what it may share files with; None where it copies all, because nobody can keep those files for it.
        place_uri: of the place of its data; "" for with the checkpoints.
    """

    control: StreamControl
    take: int
    bases: Bases | None
    begun: Begun | None
    abandoned_version: str | None
    place_uri: str = ""

    def complete(self, manifest: SnapshotManifest) -> SnapshotManifest:
        """Write the manifest; the one that is there, where another was first.

        Raises:
            UnavailableError: it was abandoned meanwhile; the same call from its beginning takes it.
        """
        try:
            self.control.create_manifest(manifest, over=self.abandoned_version)
        except ObjectExistsError:
            found = self.control.manifest(manifest.snapshot_id)
            if found is None:
                raise UnavailableError(
                    "this snapshot was so long in the making that it was abandoned",
                    snapshot_id=manifest.snapshot_id,
                    next_step="Take it again.",
                ) from None
            manifest = found
        if self.begun is not None:
            with suppress(StreamStateError):  # it is complete; who prunes finds that, too
                Retention(self.control, manifest.taken_by).finish(self.begun, completed=manifest)
        return manifest


class Renewal:
    """Keeps a try from being abandoned for as long as it goes on.

    Args:
        made: the try, which has just begun.
    """

    def __init__(self, made: Making) -> None:
        self._made = made
        self._clock = made.control.clock
        self._renewed_at_seconds = self._clock.monotonic_seconds()

    def renew(self) -> None:
        """Where that is due; called again and again.

        Raises:
            UnavailableError: it was abandoned already; the same call from its beginning takes it.
        """
        now_seconds, begun = self._clock.monotonic_seconds(), self._made.begun
        if begun is None or now_seconds - self._renewed_at_seconds < RENEW_AFTER_SECONDS:
            return
        if not Retention(self._made.control).renew(begun):
            raise UnavailableError(
                "this snapshot was so long in the making that it was abandoned",
                stream_id=self._made.control.stream_id,
                next_step="Take it again.",
            )
        self._renewed_at_seconds = now_seconds


@contextmanager
def making(
    control: StreamControl,
    snapshot_id: str,
    deployment_id: str,
    taken_by: str,
    needs: Collection[str],
    place_uri: str = "",
) -> Iterator[Making]:
    """Take a snapshot in here, and end with ``Making.complete``.

    The position of a running stream that a rehearsal forks is none that is kept: it has no record, and copies all.

    Args:
        control: the stream.
        snapshot_id: of it.
        deployment_id: whose checkpoints it is of.
        taken_by: ``agent`` or ``controller``.
        needs: snapshots that it is also made of.
        place_uri: as in ``Making``; only what lies at the same place shares files.

    Raises:
        UnavailableError: the register of what is kept cannot be changed now.
    """
    if is_rehearsal_id(snapshot_id):
        yield Making(control, 1, None, None, None)
        return
    retention = Retention(control, taken_by)
    try:
        begun = retention.begin(snapshot_id, needs, place_uri)
    except DataError as error:
        log.warning(
            "what is kept of %s cannot be read, so all of %s is copied: %s", control.stream_id, snapshot_id, error
        )
        yield _unrecorded(control, snapshot_id, place_uri)
        return
    manifests = {base: control.readable_manifest(base) for base in begun.base_ids}
    beside = {base: found for base, found in manifests.items() if found is not None and found.data_uri == place_uri}
    try:
        yield Making(control, begun.take, Bases(deployment_id, beside), begun, begun.abandoned_version, place_uri)
    except Exception:
        with suppress(StreamStateError):  # it expires
            retention.finish(begun)
        raise


def _unrecorded(control: StreamControl, snapshot_id: str, place_uri: str) -> Making:
    slot = control.snapshot_slot(snapshot_id)
    if slot is None or not isinstance(slot.value, AbandonedSnapshot):
        return Making(control, 1, None, None, None, place_uri)
    return Making(control, slot.value.take + 1, None, None, slot.version, place_uri)
