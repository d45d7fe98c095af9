"""Which snapshots a stream keeps: its policy, and the register of what is kept, changed by compare-and-swap.

That a snapshot is taken, read, pinned or removed is decided in this one object, so that two changes have an order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from typing import Any, ClassVar

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import Message, message
from airflow_streamstate.protocol.fields import Count, DeploymentId, Seconds, SnapshotId, StreamId, Word
from airflow_streamstate.protocol.manifest import SnapshotSlot
from airflow_streamstate.protocol.terms.declaration import check_names, check_terms, term
from airflow_streamstate.protocol.views import View

KEPT_SNAPSHOTS = 10
"""The number of snapshots kept by default."""
MAX_AGE_SECONDS = 100 * 365 * 86_400.0


@dataclass(frozen=True)
class RetentionPolicy:
    """How many snapshots to keep, and for how long.

    Raises:
        InvalidRequestError: a value is out of its range.
    """

    keep: int | None = term(
        None, help="so many of the newest snapshots stay at any age; 0 if left out beside {older_than_seconds}", least=0
    )
    older_than_seconds: Seconds | None = term(
        None,
        help="only snapshots that were taken, and last read, longer ago than this are removed",
        least=0,
        most=MAX_AGE_SECONDS,
    )
    at_mirrors: bool = term(False, help="copies at its mirrors that newer snapshots have replaced are removed, too")

    def __post_init__(self) -> None:
        check_terms(self)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> RetentionPolicy | None:
        """The policy to record with a stream, of values by name; None of no values: no policy.

        Raises:
            InvalidRequestError: there is no such value, one is out of its range, or no value says what stays.
        """
        if not given:
            return None
        check_names(cls, given, "the retention has no such value")
        policy = cls(**given)
        if policy.keep is None and policy.older_than_seconds is None:
            raise InvalidRequestError(
                "the retention does not say which snapshots stay",
                next_step="Give keep, older_than_seconds or both.",
            )
        return policy

    @property
    def kept_count(self) -> int:
        """How many of the newest stay at any age."""
        if self.keep is not None:
            return self.keep
        return KEPT_SNAPSHOTS if self.older_than_seconds is None else 0

    @property
    def words(self) -> str:
        """The policy in one line, for people."""
        stays = [f"the newest {self.kept_count:,}"] if self.kept_count else []
        if self.older_than_seconds is not None:
            stays.append(f"what was used in the last {self.older_than_seconds:,.0f} s")
        found = f"keeps {' and '.join(stays)}" if stays else "keeps nothing but what is needed"
        return f"{found}; at its mirrors, too" if self.at_mirrors else found


@dataclass(frozen=True)
class LastPrune:
    """The last prune by the policy that is recorded with the stream.

    Attributes:
        policy: that policy, as it was.
        newest_snapshot_id: the newest snapshot that the prune knew.
    """

    at: datetime
    policy: RetentionPolicy
    newest_snapshot_id: SnapshotId | None = None


@dataclass(frozen=True)
class SnapshotInProgress:
    """A snapshot that is being taken.

    Attributes:
        base_ids: the snapshots whose files it may refer to; none of them is removed meanwhile.
        take: how often its id was begun anew after an abandoned partial one; from 1.
        begun_at, expires_at: after the latter it counts as abandoned.
    """

    snapshot_id: SnapshotId
    base_ids: tuple[SnapshotId, ...]
    take: Count
    begun_at: datetime
    expires_at: datetime


@dataclass(frozen=True)
class LeaseRecord:
    """A reader uses a snapshot; until the lease expires, none of its files is removed."""

    snapshot_id: SnapshotId
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
        data_uri: of the place of its data; "" for beside the checkpoints.
    """

    condemned_at: datetime
    take: Count = 1
    data_uri: Word = ""


@dataclass(frozen=True)
class KnownGood:
    """The last version of the stream that was healthy."""

    deployment_id: DeploymentId
    marked_at: datetime


@dataclass(frozen=True)
class SettledCustody(View):
    """The result of an audit whose evidence was pruned.

    Attributes:
        through: the deployment up to which every beginning was audited.
        is_whole: each of them was exact, apart from what was allowed by name.
    """

    form: ClassVar[str] = "through ok=is_whole audited_at"

    through: DeploymentId
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
        last_prune: by the recorded policy; None for none.
    """

    stream_id: StreamId
    write_id: str
    updated_at: datetime
    updated_by: str
    generation: int = 0
    newest_snapshot_id: SnapshotId | None = None
    makings: Mapping[str, SnapshotInProgress] = field(default_factory=dict)
    leases: Mapping[str, LeaseRecord] = field(default_factory=dict)
    pins: Mapping[SnapshotId, Pin] = field(default_factory=dict)
    used: Mapping[SnapshotId, datetime] = field(default_factory=dict)
    condemned: Mapping[SnapshotId, PendingDeletion] = field(default_factory=dict)
    halves: Mapping[str, datetime] = field(default_factory=dict)
    unused_artifacts: Mapping[str, datetime] = field(default_factory=dict)
    known_good: KnownGood | None = None
    settled: SettledCustody | None = None
    places: tuple[Word, ...] = ()
    last_prune: LastPrune | None = None


@message
@dataclass(frozen=True)
class AbandonedSnapshot(SnapshotSlot):
    """Tombstone in the place of a manifest: this partial snapshot was abandoned; its writer must start over.

    Attributes:
        take: of the partial snapshot; the next one is begun under the next number.
    """

    stream_id: StreamId
    snapshot_id: SnapshotId
    take: Count
    abandoned_at: datetime
    abandoned_by: str
    write_id: str
