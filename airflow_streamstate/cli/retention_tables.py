"""What a person reads of ``snapshots``, ``prune``, ``pin`` and ``retire``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from airflow_streamstate.cli.tables import plain_table, shown
from airflow_streamstate.controller.retention.pruning import KeptSnapshot
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.manifest import QuerySnapshot
from airflow_streamstate.snapshot.checksums import content_digest

Row = Mapping[str, Any]


def snapshot_row(kept: KeptSnapshot) -> dict[str, object]:
    """One snapshot as the row that every listing shows."""
    manifest = kept.manifest
    return {
        "snapshot_id": manifest.snapshot_id,
        "kind": manifest.snapshot_kind,
        "deployment_id": manifest.deployment_id,
        "taken_at": format_time(manifest.taken_at),
        "used_at": kept.used_at,
        "files": manifest.files_count,
        "bytes": manifest.size_bytes,
        "shared_bytes": kept.shared_bytes,
        "place": manifest.data_uri or None,
        "refers_to_checkpoint": manifest.refers_to_checkpoints,
        "pinned": kept.is_pinned,
        "last_known_good": kept.is_known_good,
        "leases": list(kept.leases),
        "request_id": manifest.request_id or None,
        "content_digest": manifest.content_digest or content_digest(manifest.queries),
        "queries": {name: _position(query) for name, query in manifest.queries.items()},
    }


def _position(query: QuerySnapshot) -> dict[str, object]:
    position = query.position
    return {
        "batch_id": position.batch_id,
        "planned_batch_id": position.planned_batch_id,
        "end_offsets": list(position.end_offsets),
        "watermark_at": None if position.watermark_at is None else format_time(position.watermark_at),
        "drained": query.drained,
    }


def snapshots(console: Console, stream_id: str, rows: Sequence[Row], unreadable: Sequence[str]) -> None:
    """After snapshots, oldest first."""
    for snapshot_id in unreadable:
        words = f"{snapshot_id} cannot be read: `streamstate verify {stream_id} {snapshot_id}` says why"
        console.print(shown(words, "red"))
    if not rows:
        console.print("no complete snapshots")
        return
    table = plain_table("snapshot", "kind", "taken at", ">files", ">bytes", ">shared", "batches", "kept for")
    for row in rows:
        batches = " ".join(f"{name}={_batch(query)}" for name, query in row["queries"].items())
        table.add_row(
            row["snapshot_id"],
            row["kind"],
            row["taken_at"],
            str(row["files"]),
            f"{row['bytes']:,}",
            f"{row['shared_bytes']:,}",
            shown(batches),
            shown(_kept_for(row)),
        )
    console.print(table)


def _batch(query: Row) -> str:
    return "-" if query["batch_id"] is None else str(query["batch_id"])


def _kept_for(row: Row) -> str:
    words = ["pinned"] * row["pinned"] + ["last known good"] * row["last_known_good"]
    return ", ".join((*words, *(f"leased by {reader}" for reader in row["leases"])))


def pruned(console: Console, row: Row) -> None:
    """After prune: each thing that goes, and why; then what stays."""
    verb = "would go" if row["dry_run"] else "removed"
    for one in row["removed"]:
        console.print(shown(f"{one['snapshot_id']} {verb}, {one['freed_bytes']:,} bytes: {'; '.join(one['why'])}"))
    for one in row["leftovers"]:
        console.print(shown(f"{one['what']} {one['which']} {verb}: {one['why']}"))
    for one in row["abandoned"]:
        console.print(shown(f"{one} was never completed, and is removed"))
    for one in row["kept"]:
        console.print(shown(f"{one['snapshot_id']} is kept: {'; '.join(one['why'])}"))
    for note in row["notes"]:
        console.print(shown(note))
    if not row["removed"] and not row["leftovers"]:
        console.print("nothing to remove")
    for mirror in row["mirrors"]:
        _pruned_mirror(console, mirror, verb)


def _pruned_mirror(console: Console, row: Row, verb: str) -> None:
    for one in row["removed"]:
        why = "; ".join(one["why"])
        console.print(shown(f"at {row['mirror']}: {one['snapshot_id']} {verb}, {one['freed_bytes']:,} bytes: {why}"))
    for one in row["kept"]:
        console.print(shown(f"at {row['mirror']}: {one['snapshot_id']} is kept: {'; '.join(one['why'])}"))
    if row["problem"]:
        console.print(shown(f"at {row['mirror']}: {row['problem']}"))
    elif not row["removed"]:
        console.print(shown(f"at {row['mirror']}: nothing to remove"))


def pinned(console: Console, row: Row) -> None:
    """After pin."""
    console.print(shown(f"{row['snapshot_id']} is {'pinned' if row['pinned'] else 'not pinned any more'}"))


def retired(console: Console, row: Row) -> None:
    """After retire."""
    if row["deleted"]:
        console.print(shown(f"{row['stream_id']} is gone: {row['objects']:,} objects were removed"))
        return
    why = f": {row['reason']}" if row["reason"] else ""
    console.print(shown(f"{row['stream_id']} is retired since {row['retired_at']}, by {row['retired_by']}{why}"))
