"""The manifest of a snapshot, written last (Law 3), its seal, and file sources whose folder was moved since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from datetime import datetime
from itertools import combinations
from types import MappingProxyType

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import (
    Attempt,
    Count,
    DeploymentId,
    Message,
    Milliseconds,
    QueryName,
    RelativePath,
    SnapshotId,
    StreamId,
    Token,
    Word,
    message,
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
        query_id: Spark's id, which every successor keeps (Law 9).
        files: in one deterministic order.
        sources: what each source is, in Spark's words, in the order of the offsets; empty where unknown.
        watermarks: its ``withWatermark`` calls.
        watermark_ms: the watermark of before the flush, as Spark counts it; 0 if not set.
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
        command_id, request_id: of the command that asked; "" if not set.
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

        Deployments and attempts decide, whatever the clocks report; within one attempt its end, which another machine
        may have taken, is the last.
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


# Sources of files whose folder was moved: the same files, under the same names below another folder.
#
# A move is OLD -> NEW, both in the spelling of ``store.s3a.plain_uri``. No folder of a move is within another one, so
# a move that is made twice is made once.

Moves = Mapping[str, str]
"""Folder before -> folder now."""
NO_MOVES: Moves = MappingProxyType({})
FILE = "file"
"""The connector of file sources; its identity is this word and the path."""


def check_moves(moves: Moves) -> None:
    """Check that each path of a file has one place before and one after these moves.

    Raises:
        InvalidRequestError: it does not.
    """
    folders = [*moves, *moves.values()]
    for folder in folders:
        _, sign, rest = folder.partition("://")
        path = rest if sign else folder
        if (not sign and not path.startswith("/")) or {"", ".", ".."} & set(path.strip("/").split("/")):
            raise InvalidRequestError(
                "a folder of a moved source is no absolute path",
                folder=folder,
                next_step="Write both as --move-source /old/folder=/new/folder, or with s3a://, without . and ..",
            )
        if any(sign in folder for sign in "*?[]{}"):
            raise InvalidRequestError(
                "a folder of a moved source is a pattern",
                folder=folder,
                next_step="Name the folder above the pattern, in both places.",
            )
    for one, other in combinations(folders, 2):
        if is_within(one, other) or is_within(other, one):
            raise InvalidRequestError(
                "one folder of the moved sources is within another one",
                folders=[one, other],
                next_step="Move the files to a place outside of the old folder; name each folder once.",
            )
    for old, new in moves.items():
        if "://" in old and "://" not in new:
            raise InvalidRequestError(
                "a folder of a moved source has no scheme, and the folder before it has one",
                folders=[old, new],
                next_step="Write the new one with its scheme, as s3a:// or file://.",
            )


def is_within(place: str, folder: str) -> bool:
    """Whether a place is a folder, or below it."""
    return place == folder or place.startswith(f"{folder}/")


def moved_place(place: str, moves: Moves) -> str:
    """A path or pattern, in the same spelling as the moves, at its new place."""
    for old, new in moves.items():
        if is_within(place, old):
            return f"{new}{place[len(old) :]}"
    return place


def place_of(identity: SourceIdentity) -> str | None:
    """The path or pattern that a file source reads; None for any other source."""
    kind, _, place = identity.what.partition(" ")
    return place if identity.adapter == FILE and kind == FILE else None


def moved_identity(identity: SourceIdentity, moves: Moves) -> SourceIdentity:
    """A source at its new place."""
    place = place_of(identity)
    return identity if place is None else replace(identity, what=f"{FILE} {moved_place(place, moves)}")


def moved_query(known: QuerySnapshot, moves: Moves) -> QuerySnapshot:
    """A query of a snapshot with its sources at their new places; the files of the snapshot are as they were."""
    if not moves:
        return known
    return replace(known, identities=tuple(moved_identity(identity, moves) for identity in known.identities))
