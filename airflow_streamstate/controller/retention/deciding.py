"""Which snapshots a prune removes: a pure function of the snapshots, the needs of the stream, and the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from airflow_streamstate.control.retention import last_use
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.retention import RetentionPolicy, RetentionRegister
from airflow_streamstate.snapshot.deletion import held_in


@dataclass(frozen=True)
class Fate:
    """Whether a prune removes one snapshot, and each reason in words."""

    goes: bool
    why: tuple[str, ...]


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
