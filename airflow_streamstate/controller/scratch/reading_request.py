"""What a reading reads: the snapshot, its queries, and where an export may go. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_streamstate.errors import InvalidRequestError, SnapshotNotFoundError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.terms.reading import SHOWN_ROWS, ExportFormat, ReadingTerms
from airflow_streamstate.snapshot.data import query_of
from airflow_streamstate.snapshot.state_order import parse_exactly
from airflow_streamstate.snapshot.state_sizes import operators_in
from airflow_streamstate.store.open import local_folder
from airflow_streamstate.store.s3a import plain_uri, s3a_uri


@dataclass(frozen=True, kw_only=True)
class ReadingRequest(ReadingTerms):
    """A question about the state of a stream, with the terms of reading.

    Attributes:
        changes_since: an older snapshot, from which changes are compared or exported.
        key: columns of the state's keys and their values: these rows are shown.
        out: a folder or URI for exported tables; None for no export.
        format, overwrite: of the export, as in ``ExportTerms``.
        limit: the rows shown of each table, at most.
    """

    stream_id: str
    changes_since: str | None = None
    key: Mapping[str, Any] | None = None
    out: str | None = None
    format: ExportFormat = "parquet"
    overwrite: bool = False
    limit: int = SHOWN_ROWS


def newest_with_state(
    manifests: Sequence[SnapshotManifest], stream_id: str, query_name: str | None
) -> SnapshotManifest:
    """The newest snapshot, of these from oldest to newest, in which a query, or that query, was not flushed.

    Raises SnapshotNotFoundError.
    """
    for manifest in reversed(manifests):
        queries = manifest.queries if query_name is None else {query_name: manifest.queries.get(query_name)}
        if any(query is not None and not query.drained for query in queries.values()):
            return manifest
    raise SnapshotNotFoundError(
        "this stream has no snapshot with state" + (" of that query" if query_name else ""),
        stream_id=stream_id,
        **({"query_name": query_name} if query_name else {}),
        snapshots=[manifest.snapshot_id for manifest in manifests][-5:],
        next_step="Take one with `streamstate snapshot create`; what a drain leaves holds positions only.",
    )


def queries_with_state(manifest: SnapshotManifest, query_name: str | None) -> dict[str, QuerySnapshot]:
    """The queries of a snapshot that were not flushed.

    Raises:
        InvalidRequestError: it has no such query, or positions only.
    """
    queries = manifest.queries if query_name is None else {query_name: query_of(manifest, query_name)}
    found = {name: query for name, query in sorted(queries.items()) if not query.drained}
    if found or not queries:
        return found
    raise InvalidRequestError(
        "this snapshot holds positions only: its state was flushed by a drain",
        stream_id=manifest.stream_id,
        snapshot_id=manifest.snapshot_id,
        next_step="Read the snapshot of kind pre-drain beside it; `streamstate snapshot list` lists them.",
    )


def is_stateful(query: QuerySnapshot) -> bool:
    """Whether it has state that can be read."""
    return query.position.batch_id is not None and bool(operators_in(query.files))


def check_pair(before: SnapshotManifest, after: SnapshotManifest) -> None:
    """Refuse to compare a snapshot with itself."""
    if before.snapshot_id == after.snapshot_id:
        raise InvalidRequestError(
            "a snapshot cannot be compared with itself",
            snapshot_id=after.snapshot_id,
            next_step="Name two snapshots; `streamstate snapshot list` lists them.",
        )


def shared_queries(
    before: Mapping[str, QuerySnapshot], after: Mapping[str, QuerySnapshot]
) -> tuple[list[str], dict[str, str]]:
    """The queries with state in both; the others with ``before`` or ``after``. Raises InvalidRequestError for none."""
    first, second = ({name for name, query in side.items() if is_stateful(query)} for side in (before, after))
    alone = {name: ("before" if name in first else "after") for name in sorted(first ^ second)}
    if not first & second:
        raise InvalidRequestError(
            "these two snapshots share no query with state",
            before=sorted(before),
            after=sorted(after),
            next_step="Name two snapshots of the same queries.",
        )
    return sorted(first & second), alone


def parse_key(text: str) -> dict[str, Any]:
    """The columns and values in this JSON object; raises InvalidRequestError for another text, or an empty object."""
    try:
        found = parse_exactly(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and found:
        return found
    raise InvalidRequestError(
        "a key is given as a JSON object of key columns and values",
        key=text[:200],
        next_step="""For example --key '{"origin": "ATL"}'; `streamstate snapshot inspect` shows the columns.""",
    )


def export_uri(out: str, kept: Sequence[str]) -> str:
    """The folder or URI ``out`` as Spark needs it.

    Args:
        kept: the URIs of the home, of its places and mirrors: an export never overlaps with them (Law 4).

    Raises:
        InvalidRequestError: it lies in one of them, or one of them in it.
    """
    is_local = "://" not in out and not out.startswith("file:")
    uri = f"file://{local_folder(out)}" if is_local else s3a_uri(out)
    place = _plain(uri)
    for store_uri in kept:
        home = _plain(store_uri)
        if f"{place}/".startswith(f"{home}/") or f"{home}/".startswith(f"{place}/"):
            raise InvalidRequestError(
                "state cannot be exported to where streams, their snapshots or copies of them are kept",
                out=out,
                kept_there=store_uri,
                next_step="Name a place of its own.",
            )
    return uri.rstrip("/")


def _plain(uri: str) -> str:
    plain = plain_uri(uri)
    return str(Path(plain).resolve()) if plain.startswith("/") else plain
