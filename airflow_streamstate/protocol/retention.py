"""What is kept of a stream: one register that snapshots, their readers and whoever prunes change by compare-and-swap.

That a snapshot is taken, read, pinned or removed is decided in this one object, so two who meet are always in an order.
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
        snapshot_id: which.
        base_ids: the snapshots whose files it may refer to; none of them is removed meanwhile.
        take: how often its id was begun anew after a partial one that was abandoned; from 1.
        begun_at, expires_at: behind the latter it counts as abandoned.
    """

    snapshot_id: str
    base_ids: tuple[str, ...]
    take: int
    begun_at: datetime
    expires_at: datetime


@dataclass(frozen=True)
class Lease:
    """Somebody reads a snapshot; until it expires, nothing of that is removed."""

    snapshot_id: str
    reader: str
    taken_at: datetime
    expires_at: datetime


@dataclass(frozen=True)
class Pin:
    """A snapshot that is kept until somebody takes the pin away."""

    pinned_at: datetime
    pinned_by: str


@dataclass(frozen=True)
class PendingDeletion:
    """A snapshot that is being removed.

    Attributes:
        condemned_at: when that was decided.
        take: up to which its data are removed.
        data_uri: of the place of its data; "" for with the checkpoints, or where an earlier release did not say.
    """

    condemned_at: datetime
    take: int = 1
    data_uri: str = ""


@dataclass(frozen=True)
class KnownGood:
    """The last version of the stream that has been healthy."""

    deployment_id: str
    marked_at: datetime


@dataclass(frozen=True)
class SettledCustody:
    """What an audit had found before the evidence was pruned.

    Attributes:
        through: the deployment up to which every beginning was audited.
        is_whole: whether each of them was exact, but for what was asked for by name.
        audited_at: when.
    """

    through: str
    is_whole: bool
    audited_at: datetime


@message
@dataclass(frozen=True)
class RetentionRegister(Message):
    """What is kept of a stream, and for whom.

    Attributes:
        generation: grows with every change of what may refer to a file: ``makings`` and ``condemned``. Who finds the
            same number before and after reading the manifests has read them as of one moment.
        newest_snapshot_id: the last one that was completed; the next one shares its files.
        makings: by the id of the try.
        leases: by id.
        pins, used, condemned: by snapshot; ``used``: when it was last read.
        halves: snapshots without a manifest that no process is known to be taking: since when that is known.
        unused_artifacts: by digest, since when no deployment runs them.
        known_good: the last known good version; None where none has been healthy yet.
        settled: of beginnings whose evidence is gone; None while there are none.
        places: URIs at which data of snapshots may lie, beside the store of the checkpoints.
    """

    stream_id: str
    write_id: str
    updated_at: datetime
    updated_by: str
    generation: int = 0
    newest_snapshot_id: str | None = None
    makings: Mapping[str, SnapshotInProgress] = field(default_factory=dict)
    leases: Mapping[str, Lease] = field(default_factory=dict)
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
