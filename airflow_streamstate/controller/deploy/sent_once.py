"""A start from offsets of a source that cannot be read again: refused before anything is done, unless accepted."""

from __future__ import annotations

from airflow_streamstate.connectors.measuring import known_sources
from airflow_streamstate.connectors.replaying import sending_once
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.errors import InputLostError
from airflow_streamstate.protocol.manifest import SnapshotManifest


def refuse_sent_once(request: DeployRequest, manifest: SnapshotManifest) -> tuple[str, ...]:
    """See that no query would go on from an offset of a source that sends each row once.

    Args:
        request: what was asked for.
        manifest: the snapshot that is started from.

    Returns:
        What was accepted, in sentences.

    Raises:
        InputLostError: a query would, and ``accept_lost_input`` does not name it.
    """
    notes = []
    for name, query in sorted(manifest.queries.items()):
        lines = request.offsets.get(name, query.position.end_offsets)
        found = sending_once(query.identities, lines, known_sources().adapters)
        if not found:
            continue
        if name not in request.accept_lost_input:
            raise InputLostError(
                "a source of this query cannot be read again, so that no start goes on from its offset",
                query_name=name,
                sources=found,
                snapshot_id=manifest.snapshot_id,
                offsets=list(lines),
                next_step=f"Say --accept-lost-input {name}: it then reads what is sent from its start on, and what was"
                " sent since, or was read and not committed, is lost. A fresh start leaves its state behind.",
            )
        notes += [
            f"query {name} reads {what} from its start on ({why}): what was sent since is lost, as was accepted"
            for what, why in sorted(found.items())
        ]
    return tuple(notes)
