"""What the sources of a query were when a batch was planned, by what was said at its starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from airflow_streamstate.protocol.events import Event, QueryStarted
from airflow_streamstate.protocol.manifest import QuerySnapshot
from airflow_streamstate.protocol.positions import SourceIdentity
from airflow_streamstate.protocol.records import StartPlan


def identities_when_planned(
    events: Iterable[Event | None], query_name: str, batch_id: int | None
) -> tuple[SourceIdentity, ...]:
    """What the last start before this batch said; of one that was planned before every start, what the first one said.

    A start that found a batch planned says what its sources are by then, which need not be what they were.

    Args:
        events: of the deployment, all attempts, in order; None for those that could not be read.
        query_name: the query.
        batch_id: the batch; None for none.

    Returns:
        () where no start said it.
    """
    starts = [event for event in events if isinstance(event, QueryStarted) and event.query_name == query_name]
    telling = [event for event in starts if event.identities]
    before = [event for event in telling if batch_id is not None and _newest_planned(event) < batch_id]
    return next((event.identities for event in (*reversed(before), *telling[:1])), ())


def identities_taken_over(known: QuerySnapshot | None, query_name: str, start: StartPlan) -> tuple[SourceIdentity, ...]:
    """What the sources of a query are of which no start said it, by the snapshot that it goes on from.

    Args:
        known: the query there; None where it is not in it.
        query_name: the query.
        start: of its deployment.
    """
    if known is None or known.drained:
        return ()  # a seed may have given the offsets to its sources in another order
    if query_name in start.accept_lost_input:
        # The offsets may have been moved on to another source of the name, whose marks nobody wrote down.
        return tuple(replace(identity, marks={}) for identity in known.identities)
    return known.identities


def _newest_planned(event: QueryStarted) -> int:
    return max((number for number in (event.batch_id, event.planned_batch_id) if number is not None), default=-1)
