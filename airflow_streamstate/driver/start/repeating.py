"""A batch that was planned and not committed runs again: told before it does, with what its sink makes of that (Law 1).

The run before may have given the batch to the sink, in part or whole. A sink that knows its batches skips it; another
one has its rows twice, and then this event is the only record that says which rows those are.
"""

from __future__ import annotations

from contextlib import suppress

from airflow_streamstate.connectors.measuring import moves_of_batch
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol.data_events import BatchRepeated
from airflow_streamstate.protocol.positions import SourceMove


def tell_repeated(attempt: Attempt, query: LogicalQuery, batch_id: int | None, *, is_flush: bool = False) -> None:
    """Write ``BatchRepeated``; waits for the store.

    Args:
        attempt: that is about to run it.
        query: the query, with its checkpoint.
        batch_id: the planned batch; None: there is none, and nothing is told.
        is_flush: it is the flush of a drain, begun by an earlier attempt.

    Raises:
        FencedError: this attempt was replaced.
    """
    if batch_id is None:
        return
    kind, place = query.startable.facts.sink, query.startable.sink_place()
    moves: tuple[SourceMove, ...] = ()
    with suppress(StreamStateError):  # how much it is cannot be told then; that it runs again can
        moves = moves_of_batch(query.checkpoint, batch_id, attempt.sources.identities(query.name)) or ()
    attempt.reporter.write(
        BatchRepeated,
        query_name=query.name,
        batch_id=batch_id,
        sink=attempt.reporter.redacted(kind if place == kind else f"{kind} {place}"),
        means=query.startable.repeat_means(),
        moves=() if is_flush else moves,
        is_flush=is_flush,
    )
