"""Records that a planned batch runs again, before it does (Law 1).

The sink may hold the batch in part or whole. A sink that does not skip it has rows twice, and this event is the only
record of which rows.
"""

from __future__ import annotations

from contextlib import suppress

from airflow_streamstate.connectors.measuring import moves_of_batch
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.plan.model import PlannedSink
from airflow_streamstate.protocol.data_events import BatchRepeated
from airflow_streamstate.protocol.positions import SourceMove


def tell_repeated(attempt: Attempt, query: LogicalQuery, batch_id: int | None, *, is_flush: bool = False) -> None:
    """Write ``BatchRepeated``, waiting for the store.

    Args:
        batch_id: the planned batch; None for none: then nothing is written.
        is_flush: the batch is the flush of a drain that an earlier attempt began.

    Raises:
        FencedError: this attempt was replaced.
    """
    if batch_id is None:
        return
    kind, place = query.startable.facts.sink, query.startable.sink_place()
    moves: tuple[SourceMove, ...] = ()
    with suppress(StreamStateError):  # the event then lacks the number of rows
        moves = moves_of_batch(query.checkpoint, batch_id, attempt.sources.identities(query.name)) or ()
    attempt.reporter.write(
        BatchRepeated,
        query_name=query.name,
        batch_id=batch_id,
        sink=attempt.reporter.redacted(PlannedSink(kind, target=place).described),
        means=query.startable.repeat_means(),
        moves=() if is_flush else moves,
        is_flush=is_flush,
    )
