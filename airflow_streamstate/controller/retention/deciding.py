"""Which snapshots a prune removes: a pure function of the snapshots, the needs of the stream, and the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.retention import RetentionRegister
from airflow_streamstate.snapshot.deletion import held_in

KEPT_SNAPSHOTS = 10
"""The number of snapshots kept by default."""


@dataclass(frozen=True)
class RetentionPolicy:
    """How many snapshots to keep, and for how long.

    Attributes:
        keep: this many of the newest snapshots stay; None: only their age counts, or the default number.
        older_than_seconds: only snapshots taken and last read longer ago than this go; None: no minimum age.

    Raises:
        InvalidRequestError: a number is out of range.
    """

    keep: int | None = None
    older_than_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep < 0:
            raise InvalidRequestError(
                "the number of snapshots to keep is negative", keep=self.keep, next_step="Give a number from 0 on."
            )
        if self.older_than_seconds is not None and not 0 <= self.older_than_seconds < float("inf"):
            raise InvalidRequestError(
                "the age is out of range",
                older_than_seconds=self.older_than_seconds,
                next_step="Give a number of seconds from 0 on.",
            )

    @property
    def kept_count(self) -> int:
        """How many of the newest stay at any age."""
        if self.keep is not None:
            return self.keep
        return KEPT_SNAPSHOTS if self.older_than_seconds is None else 0


@dataclass(frozen=True)
class Fate:
    """Whether a prune removes one snapshot, and each reason in words."""

    goes: bool
    why: tuple[str, ...]


def last_use(manifest: SnapshotManifest, register: RetentionRegister) -> datetime:
    """When a snapshot was taken or last read."""
    return max(manifest.taken_at, register.used.get(manifest.snapshot_id, manifest.taken_at))


def decide_fates(
    manifests: Mapping[str, SnapshotManifest],
    needed: Mapping[str, str],
    register: RetentionRegister,
    policy: RetentionPolicy,
    now: datetime,
) -> dict[str, Fate]:
    """The fate of each snapshot of a stream, newest first.

    Args:
        manifests: the complete snapshots, by id.
        needed: by id, what the stream needs a snapshot for.
        register: the pins, leases and snapshots in progress.
    """
    held = held_in(register, now)
    newest_first = sorted(manifests.values(), key=lambda one: one.order, reverse=True)
    fates = {}
    for number, manifest in enumerate(newest_first, 1):
        one = manifest.snapshot_id
        age_seconds = (now - last_use(manifest, register)).total_seconds()
        kept = [words[one] for words in (held, needed) if one in words]
        if number <= policy.kept_count:
            kept.append(f"one of the newest {policy.kept_count}")
        if policy.older_than_seconds is not None and age_seconds <= policy.older_than_seconds:
            kept.append(f"used {age_seconds:,.0f} s ago, which is not longer than {policy.older_than_seconds:,.0f} s")
        gone = (f"number {number} from the newest, used {age_seconds:,.0f} s ago; nothing needs it",)
        fates[one] = Fate(not kept, tuple(kept) or gone)
    return fates
