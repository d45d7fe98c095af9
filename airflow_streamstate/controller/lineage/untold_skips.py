"""Batches that were skipped by a driver that died before it could tell, and that no later attempt has told of.

The next attempt does; but where a successor is deployed instead there is none, and the gap has a name all the same.
"""

from __future__ import annotations

from collections.abc import Collection

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.connectors.measuring import moves_of_batch
from airflow_streamstate.control.command_status import begun_skips
from airflow_streamstate.protocol.data_events import Skipped
from airflow_streamstate.protocol.event import Event


def untold_skips(events: Collection[Event], query_name: str, checkpoint: Checkpoint | None) -> list[Skipped]:
    """What would have been told of them, with attempt 0 and the time of asking: nobody said it.

    Args:
        events: of a deployment, all attempts.
        query_name: the query.
        checkpoint: its own in that deployment; None where it is gone.

    Raises:
        DataError, UnsupportedCheckpointError: an entry of its logs cannot be read.
    """
    if checkpoint is None:
        return []
    return [
        Skipped(
            stream_id=wish.stream_id,
            deployment_id=wish.deployment_id,
            attempt=0,
            at=wish.requested_at,
            write_id="",
            command_id=wish.command_id,
            command_number=number,
            query_name=query_name,
            batch_id=wish.batch_id,
            moves=moves_of_batch(checkpoint, wish.batch_id, ()) or (),
            requested_by=wish.requested_by,
            reason=wish.reason,
        )
        for wish, number in begun_skips(events)
        if wish.query_name == query_name and checkpoint.is_committed(wish.batch_id)
    ]
