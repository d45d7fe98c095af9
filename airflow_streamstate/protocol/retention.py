"""The register of what is kept of a stream, changed by compare-and-swap.

That a snapshot is taken, read, pinned or removed is decided in this one object, so that two changes have an order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from airflow_streamstate.protocol.codec import Message, message
from airflow_streamstate.protocol.manifest import SnapshotSlot


@dataclass(frozen=True)
class SnapshotInProgress:
    """A snapshot that is being taken.

    Attributes:
        base_ids: the snapshots whose files it may refer to; none of them is removed meanwhile.
        take: how often its id was begun anew after an abandoned partial one; from 1.
        begun_at, expires_at: after the latter it counts as abandoned.
    """

    snapshot_id: str
    base_ids: tuple[str, ...]
    take: int
    begun_at: datetime
    expires_at: datetime


@dataclass(frozen=True)
class LeaseRecord:
    """A reader uses a snapshot; until the lease expires, none of its files is removed."""

    snapshot_id: str
    reader: str
    taken_at: datetime
    expires_at: datetime


@dataclass(frozen=True)
class Pin:
    """The snapshot is kept until a user removes the pin."""

    pinned_at: datetime
    pinned_by: str


@dataclass(frozen=True)
class PendingDeletion:
    """A snapshot that is being removed.

    Attributes:
        condemned_at: when that was decided.
        take: its data up to this take are removed.
        data_uri: of the place of its data; "" for beside the checkpoints, or unknown from an earlier release.
    """

    condemned_at: datetime
    take: int = 1
    data_uri: str = ""


@dataclass(frozen=True)
class KnownGood:
    """The last version of the stream that was healthy."""

    deployment_id: str
    marked_at: datetime


@dataclass(frozen=True)
class SettledCustody:
    """The result of an audit whose evidence was pruned.

    Attributes:
        through: the deployment up to which every beginning was audited.
        is_whole: each of them was exact, apart from what was allowed by name.
    """

    through: str
    is_whole: bool
    audited_at: datetime


@message
@dataclass(frozen=True)
class RetentionRegister(Message):
    """What is kept of a stream, and for which reader.

    Attributes:
        generation: grows with every change of what may refer to a file: ``makings`` and ``condemned``. A reader that
            finds the same number before and after reading the manifests has read them as of one moment.
        newest_snapshot_id: the last completed one; the next one shares its files.
        makings: by the id of the try.
        leases: by id.
        pins, used, condemned: by snapshot; ``used``: when it was last read.
        halves: partial snapshots without a known writer, and since when that is known.
        unused_artifacts: by digest, since when no deployment runs them.
        known_good: None where none has been healthy yet.
        settled: of beginnings whose evidence is gone; None for none.
        places: URIs at which data of snapshots may lie, beside the store of the checkpoints.
    """

    stream_id: str
    write_id: str
    updated_at: datetime
    updated_by: str
    generation: int = 0
    newest_snapshot_id: str | None = None
    makings: Mapping[str, SnapshotInProgress] = field(default_factory=dict)
    leases: Mapping[str, LeaseRecord] = field(default_factory=dict)
    pins: Mapping[str, Pin] = field(default_factory=dict)
    used: Mapping[str, datetime] = field(default_factory=dict)
    condemned: Mapping[str, PendingDeletion] = field(default_factory=dict)
    halves: Mapping[str, datetime] = field(default_factory=dict)
    unused_artifacts: Mapping[str, datetime] = field(default_factory=dict)
    known_good: KnownGood | None = None
    settled: SettledCustody | None = None
    places: tuple[str, ...] = ()


@message
@dataclass(frozen=True)
class AbandonedSnapshot(SnapshotSlot):
    """Tombstone in the place of a manifest: this partial snapshot was abandoned; its writer must start over.

    Attributes:
        take: of the partial snapshot; the next one is begun under the next number.
    """

    stream_id: str
    snapshot_id: str
    take: int
    abandoned_at: datetime
    abandoned_by: str
    write_id: str
