"""Where a query began and ended in one deployment: by its logs as far as they reach, else by what was written down.

Nothing is believed that can be read: each edge says by what it is known (``evidence``).
"""

from __future__ import annotations

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.controller.lineage.handovers import Edge
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.manifest import QuerySnapshot


def end_of(holder: Checkpoint | None, known: QuerySnapshot | None) -> Edge | None:
    """Where a query had ended: by the log of who ran it last, else by the manifest of the time; None: nobody knows."""
    identities = () if known is None else known.identities
    if holder is None:
        if known is None:
            return None
        position = known.position
        return Edge(position.batch_id, position.end_offsets, (), identities, evidence="records")
    found = holder.position()
    entry = None if found.batch_id is None else holder.read_offset(found.batch_id)
    return Edge(
        found.batch_id,
        entry.source_lines if entry is not None else (),
        entry.source_names if entry is not None else (),
        identities,
        found.planned_id,
        found.planned.source_lines if found.planned is not None else (),
    )


def end_in_snapshot(holder: Checkpoint | None, known: QuerySnapshot) -> Edge:
    """Where a query stood in a snapshot, however far its deployment went on behind it."""
    position = known.position
    entry = None if holder is None or position.batch_id is None else holder.read_offset(position.batch_id)
    planned_id = position.planned_batch_id
    planned = None if holder is None or planned_id is None else holder.read_offset(planned_id)
    return Edge(
        position.batch_id,
        position.end_offsets if entry is None else entry.source_lines,
        () if entry is None else entry.source_names,
        known.identities,
        planned_id,
        planned.source_lines if planned is not None and not planned.is_ours else (),
        "records" if entry is None and position.batch_id is not None else "logs",
    )


def start_of(
    checkpoint: Checkpoint | None, first: QueryStarted, known: QuerySnapshot | None, end: Edge | None
) -> Edge | None:
    """Where a query began: by its own log where that reaches back so far, else by what was written down."""
    batch_id = None if known is None else known.position.batch_id
    if first.how != "continued":
        batch_id = first.batch_id  # of a start that told nothing, a later one is the first that is known
    elif known is None:
        return None
    entry = None if checkpoint is None or batch_id is None else checkpoint.read_offset(batch_id)
    planned_id = None if end is None else end.planned_batch_id
    planned = None if checkpoint is None or planned_id is None else checkpoint.read_offset(planned_id)
    recorded = () if known is None else known.position.end_offsets
    return Edge(
        batch_id,
        entry.source_lines if entry is not None else recorded,
        entry.source_names if entry is not None else (),
        first.identities if entry is not None or known is None else known.identities,
        planned_id,
        planned.source_lines if planned is not None and not planned.is_ours else (),
        "logs" if entry is not None or batch_id is None else "records",
    )
