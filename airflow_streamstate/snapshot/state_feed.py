"""Whether Spark's change feed reaches from one snapshot to a later one of the same deployment.

The feed is read from what each batch left: ``<v>.delta`` of the HDFS-backed store, ``<v>.changelog`` of RocksDB with
changelog checkpointing. A snapshot holds those since its newest full version, and batch N leaves version N + 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_streamstate.protocol.manifest import QuerySnapshot

_VERSION = re.compile(r"(state/[0-9]+/[0-9]+(?:/[^/]+)?)/([1-9][0-9]*)(?:_[0-9a-f-]+)?\.(zip|changelog|delta|snapshot)")
_CHANGES = ("changelog", "delta")


def feed_gap(before: QuerySnapshot, after: QuerySnapshot, *, same_deployment: bool) -> str:
    """Why the feed cannot tell what happened between two snapshots of a query, in words; "" where it can.

    Args:
        before: of the query, in the older snapshot.
        after: of the query, in the newer one.
        same_deployment: both were taken of one deployment, so that the one came from the other.
    """
    first, last = before.position.batch_id, after.position.batch_id
    if first is None or last is None or not same_deployment:
        return "the feed is of one deployment's batches"
    if last <= first:
        return "the feed goes from an older batch to a newer one"
    folders = _versions(after)
    if not folders:
        return "there is no state"
    for folder, versions in sorted(folders.items()):
        for version in range(first + 2, last + 2):
            if version not in versions:
                return f"the snapshot does not hold what batch {version - 1} changed in {folder}"
    return ""


def _versions(query: QuerySnapshot) -> Mapping[str, set[int]]:
    """Of each store's folder the versions whose changes are there; ways of another try of a batch may be among them."""
    found: dict[str, set[int]] = {}
    for entry in query.files:
        match = _VERSION.fullmatch(entry.path)
        if match is not None:
            versions = found.setdefault(match[1], set())
            if match[3] in _CHANGES:
                versions.add(int(match[2]))
    return found
