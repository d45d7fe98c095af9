"""The manifest of a snapshot, written last (Law 3), and its seal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import Message, message
from airflow_streamstate.protocol.fields import (
    Attempt,
    Count,
    DeploymentId,
    Milliseconds,
    QueryName,
    RelativePath,
    SnapshotId,
    StreamId,
    Token,
    Word,
)
from airflow_streamstate.protocol.ids import SnapshotKind
from airflow_streamstate.protocol.layout import deployment_of_place
from airflow_streamstate.protocol.positions import QueryPosition, SourceIdentity, WatermarkSpec

MOST_BYTES = 64 << 20
"""Some 300,000 files."""


@dataclass(frozen=True)
class FileEntry:
    """One file of a snapshot.

    Attributes:
        path: relative to the query's folder.
        spark_crc32: hex digest over the bytes of Spark's own ``.crc`` companion; "" where Spark wrote none.
        checksum: the storing server's checksum of the copy, as ``store.base.ManyAtOnce.checksum_of``; "" on a disk.
        source_version: version of the checkpoint's file that was copied, where listings have versions: an unchanged
            file is not copied again.
        shared_from: the ``layout.data_place`` of an older snapshot that has it, or the ``layout.checkpoint_place`` of
            the checkpoint that it is a file of; "" for its own.
    """

    path: RelativePath
    size_bytes: Count
    spark_crc32: str = ""
    checksum: str = ""
    source_version: str = field(default="", compare=False)
    shared_from: str = field(default="", compare=False)


@dataclass(frozen=True)
class QuerySnapshot:
    """One query in a snapshot.

    Attributes:
        query_id: Spark's id, which goes on in every successor (Law 9).
        files: in one deterministic order.
        sources: what each source is, in Spark's words, in the order of the offsets; empty where unknown.
        watermarks: its ``withWatermark`` calls.
        watermark_ms: the watermark of before the flush, as Spark counts it; 0 for none.
        identities: what each source is, by its connector, in the order of the offsets; empty where unknown.
        drained: its state was flushed: a successor seeds it, else restores it with its state. (A query that was not
            started in the last attempt is carried on as it was, so one snapshot may hold both.)
    """

    query_id: str
    position: QueryPosition
    files: tuple[FileEntry, ...]
    sources: tuple[str, ...] = ()
    watermarks: tuple[WatermarkSpec, ...] = ()
    watermark_ms: Milliseconds = 0
    drained: bool = False
    identities: tuple[SourceIdentity, ...] = ()


class SnapshotSlot(Message):
    """The object at a manifest's key: a manifest, or the tombstone of an abandoned partial snapshot."""

    most_bytes = MOST_BYTES


@message
@dataclass(frozen=True)
class SnapshotManifest(SnapshotSlot):
    """The list that makes a snapshot exist.

    Attributes:
        snapshot_kind: ``live``, ``stopped``, ``pre-drain`` (with state) or ``drained`` (positions only).
        taken_by: ``agent`` or ``controller``.
        command_id, request_id: of the command that asked; "" for none.
        content_digest: sha256 over positions and items, equal for two snapshots of one position.
        take: which try of this snapshot its data are of, from 1.
        data_uri: the place of its files, under the keys of a home; "" for the store of the checkpoints.
    """

    is_digested = True

    snapshot_id: SnapshotId
    snapshot_kind: SnapshotKind
    stream_id: StreamId
    deployment_id: DeploymentId
    attempt: Attempt
    fencing_token: Token
    taken_at: datetime
    taken_by: str
    queries: Mapping[QueryName, QuerySnapshot]
    write_id: str
    content_digest: str
    spark_version: str = ""
    command_id: str = ""
    request_id: str = ""
    take: Count = 1
    data_uri: Word = ""

    @property
    def refers_to_checkpoints(self) -> bool:
        """Whether it refers to files of a checkpoint instead of copies."""
        return bool(self.referred_deployments)

    @property
    def referred_deployments(self) -> frozenset[str]:
        """The deployments of the checkpoints that it refers to."""
        places = {entry.shared_from for query in self.queries.values() for entry in query.files}
        return frozenset(found for place in places if (found := deployment_of_place(place)) is not None)

    @property
    def order(self) -> tuple[int, int, bool, datetime, str]:
        """Sort key: the order of what snapshots of a stream hold.

        Deployments and attempts decide, whatever the clocks say; within one attempt its end, which another machine may
        have taken, is the last.
        """
        is_end = self.snapshot_kind in ("stopped", "drained")
        return self.fencing_token, self.attempt, is_end, self.taken_at, self.snapshot_id

    @property
    def files_count(self) -> int:
        return sum(len(query.files) for query in self.queries.values())

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for query in self.queries.values() for entry in query.files)


@message
@dataclass(frozen=True)
class SnapshotSeal(Message):
    """The sha256 of every file, by query and path; written some time after the manifest, at low priority."""

    most_bytes = MOST_BYTES

    snapshot_id: SnapshotId
    sealed_at: datetime
    sha256: Mapping[str, Mapping[str, str]]
