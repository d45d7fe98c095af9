"""The manifest of a snapshot, written last (Law 3), and its seal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from airflow_streamstate.protocol.codec import Message, message
from airflow_streamstate.protocol.ids import SnapshotKind
from airflow_streamstate.protocol.layout import deployment_of_place
from airflow_streamstate.protocol.positions import QueryPosition, SourceIdentity, WatermarkSpec
from airflow_streamstate.protocol.version import OLDEST_PROTOCOL, PLACED_PROTOCOL


@dataclass(frozen=True)
class FileEntry:
    """One file of a snapshot.

    Attributes:
        path: relative to the query's folder.
        size_bytes: its size.
        spark_crc32: hex digest over the bytes of Spark's own ``.crc`` companion; "" where Spark wrote none.
        checksum: what the server that keeps the file said of its bytes when it had copied them, as
            ``store.base.ManyAtOnce.checksum_of``; "" where the store keeps none, as a disk.
        source_version: the version of the checkpoint's file that it was copied from, where the store's listings tell
            versions: what still has it is not copied again.
        shared_from: the ``layout.data_place`` of an older snapshot in which it lies, or the ``layout.checkpoint_place``
            of the checkpoint that it is a file of; "" for its own.
    """

    path: str
    size_bytes: int
    spark_crc32: str = ""
    checksum: str = ""
    source_version: str = field(default="", compare=False)
    shared_from: str = field(default="", compare=False)


@dataclass(frozen=True)
class QuerySnapshot:
    """One query in a snapshot.

    Attributes:
        query_id: Spark's id, which goes on in every successor (Law 9).
        position: where it stands.
        files: in one deterministic order.
        sources: what each source is, in Spark's words, in the order of the offsets; empty where unknown.
        watermarks: its ``withWatermark``s.
        watermark_ms: the watermark of before the flush, as Spark counts it; 0 for none.
        identities: what each source is, by its connector, in the order of the offsets; empty where unknown.
        drained: its state was flushed: a successor seeds it. False: a successor restores it with its state. (A query
            that was not started in the attempt that ended is carried on as it was, so one snapshot may hold both.)
    """

    query_id: str
    position: QueryPosition
    files: tuple[FileEntry, ...]
    sources: tuple[str, ...] = ()
    watermarks: tuple[WatermarkSpec, ...] = ()
    watermark_ms: int = 0
    drained: bool = False
    identities: tuple[SourceIdentity, ...] = ()


class SnapshotSlot(Message):
    """What may lie in the place of a manifest: that, or the record of a half that nobody completes any more."""


@message
@dataclass(frozen=True)
class SnapshotManifest(SnapshotSlot):
    """The list that makes a snapshot exist.

    Attributes:
        kind of the snapshot is ``snapshot_kind``: ``live``, ``stopped``, ``pre-drain`` (with state) or ``drained``
            (positions only).
        taken_by: ``agent`` or ``controller``.
        command_id: the command that asked; "" for none.
        request_id: what it was asked under; "" for nothing.
        content_digest: sha256 over positions and items, equal for two snapshots of one position; "" in older manifests.
        take: which try of this snapshot its data are of; more than 1 behind a half that was abandoned.
        data_uri: the place in which its files lie, under the keys of a home; "" for the store of the checkpoints.
    """

    is_digested = True
    readable_protocol: ClassVar[int] = PLACED_PROTOCOL

    snapshot_id: str
    snapshot_kind: SnapshotKind
    stream_id: str
    deployment_id: str
    attempt: int
    fencing_token: int
    taken_at: datetime
    taken_by: str
    queries: Mapping[str, QuerySnapshot]
    write_id: str
    spark_version: str = ""
    command_id: str = ""
    request_id: str = ""
    content_digest: str = ""
    take: int = 1
    data_uri: str = ""

    @property
    def needed_protocol(self) -> int:
        """Higher where an earlier release would look for the files in the wrong place, and miss them."""
        return PLACED_PROTOCOL if self.data_uri or self.refers_to_checkpoints else OLDEST_PROTOCOL

    @property
    def refers_to_checkpoints(self) -> bool:
        """Whether files of it are those of a checkpoint itself, and of nothing that was kept apart."""
        return bool(self.referred_deployments)

    @property
    def referred_deployments(self) -> frozenset[str]:
        """The deployments whose checkpoints files of it are part of."""
        places = {entry.shared_from for query in self.queries.values() for entry in query.files}
        return frozenset(found for place in places if (found := deployment_of_place(place)) is not None)

    @property
    def order(self) -> tuple[int, int, bool, datetime, str]:
        """By this, snapshots of a stream are in the order of what they hold.

        Deployments and attempts say that, whatever the clocks of those who took them say; within one attempt, whose
        end may be taken by another machine, that end is the last.
        """
        is_end = self.snapshot_kind in ("stopped", "drained")
        return self.fencing_token, self.attempt, is_end, self.taken_at, self.snapshot_id

    @property
    def files_count(self) -> int:
        """How many files the snapshot has."""
        return sum(len(query.files) for query in self.queries.values())

    @property
    def size_bytes(self) -> int:
        """How many bytes its files have."""
        return sum(entry.size_bytes for query in self.queries.values() for entry in query.files)


@message
@dataclass(frozen=True)
class SnapshotSeal(Message):
    """The sha256 of every file, by query and path; it follows the manifest at low priority."""

    snapshot_id: str
    sealed_at: datetime
    sha256: Mapping[str, Mapping[str, str]]
