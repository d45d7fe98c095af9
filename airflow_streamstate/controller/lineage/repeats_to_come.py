"""The batches that the next attempt of an ended deployment runs again, by its checkpoints and recorded plans.

Apart from ``repeats``: every status has those, and this imports what reads checkpoints and knows sinks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.connectors.measuring import moves_of_batch
from airflow_streamstate.connectors.sink import Sink, known_sinks, repeat_means
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.lineage.repeats import Repeat
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.recorded import recorded_plans
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.positions import SourceMove

_TABLE = "table:"


def repeats_to_come(
    control: StreamControl, deployment_id: str, attempt: int, events: Iterable[Event], logs: Mapping[str, Checkpoint]
) -> list[Repeat]:
    """The batches that the next attempt of an ended deployment runs again first; ``logs``: its checkpoints by query.

    Raises:
        DataError, UnsupportedCheckpointError: a log cannot be read.
        UnavailableError: the store does not answer.
    """
    starts = {event.query_name: event for event in events if isinstance(event, QueryStarted)}
    planned = {name: logs[name].position().planned_id for name in sorted(logs) if name in starts}
    if all(batch_id is None for batch_id in planned.values()):
        return []
    plans = recorded_plans(control, deployment_id)
    return [
        _derived(starts[name], batch_id, plans, logs[name], attempt)
        for name, batch_id in planned.items()
        if batch_id is not None
    ]


def _derived(
    start: QueryStarted,
    batch_id: int,
    plans: Mapping[str, QueryPlan],
    checkpoint: Checkpoint,
    attempt: int,
) -> Repeat:
    """From a start of the query, its plan and its log; ``attempt``: the one that will run it again."""
    sink, place = _sink_of(start.sink, plans.get(start.query_name))
    moves: tuple[SourceMove, ...] | None = None
    with suppress(StreamStateError):  # its offsets are unknown then
        moves = moves_of_batch(checkpoint, batch_id, start.identities)
    return Repeat(
        start.deployment_id,
        start.query_name,
        batch_id,
        attempt,
        place,
        repeat_means(sink, known_sinks().connectors),
        moves or (),
    )


def _sink_of(kind: str, plan: QueryPlan | None) -> tuple[Sink, str]:
    """The sink of a query, and its description: by the recorded plan, else by the kind that its writer reported."""
    planned = None if plan is None else plan.sink
    if planned is not None and planned.kind == kind:
        place = kind if kind.startswith(_TABLE) else planned.described
        return Sink(planned.format, planned.target or None, None, planned.options), place
    return Sink("" if kind.startswith(_TABLE) else kind.rpartition(":")[2].lower()), kind
