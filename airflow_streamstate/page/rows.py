"""The rows of the table of streams, made of what ``status`` says. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from airflow_streamstate.controller.observe.observation import ALIVE
from airflow_streamstate.controller.observe.views import QueryStatus, StreamStatus
from airflow_streamstate.protocol.views import selected

BEGINNING_OF_TIME_YEAR = 1970
"""Spark's watermark before it has seen a row."""


@dataclass(frozen=True)
class BatchTime:
    """How long batches took when a batch had been committed."""

    batch_id: int
    seconds: float


def row_of(status: StreamStatus, times: deque[BatchTime], now: datetime) -> dict[str, object]:
    """The row of a stream.

    Args:
        times: of the looks before; the one of this look is added where a batch was committed since.
    """
    queries = status.queries
    slowest = max(queries.values(), key=lambda query: query.batch_seconds or -1.0, default=None)
    if slowest is not None and slowest.batch_seconds is not None and slowest.batch_id is not None:
        one = BatchTime(slowest.batch_id, slowest.batch_seconds)
        if not times or times[-1].batch_id != one.batch_id:
            times.append(one)
    last = status.last_event
    return {
        **selected(status, "stream_id state"),
        "why": status.error or status.why,
        "version": status.version_label or status.application,
        **selected(status, "deployment_id attempt"),
        "restarts": max(status.attempt - 1, 0),
        "restart_policy": status.restarts,
        "lags": lags_of(queries.values()),
        "watermark_delay_seconds": watermark_delay_seconds(status, now),
        "batch_seconds": None if slowest is None else slowest.batch_seconds,
        "batch_times": [one.seconds for one in times],
        **selected(status, "heartbeat_age_seconds snapshot_id snapshot_age_seconds"),
        "last_event": None if last is None else selected(last, "kind at"),
        **selected(status, "upgrade owner labels"),
    }


def unread_row(stream_id: str) -> dict[str, object]:
    """The row of a stream of which no more than its name is known yet."""
    return {"stream_id": stream_id, "state": "", "why": "it is being read"}


def unreadable_row(stream_id: str, why: str) -> dict[str, object]:
    """The row of a stream whose records cannot be read."""
    return {"stream_id": stream_id, "state": "unreadable", "why": why}


def lags_of(queries: Iterable[QueryStatus]) -> dict[str, int] | None:
    """By unit, how much all sources of the queries are ahead; None where none tells."""
    found: dict[str, int] = {}
    for query in queries:
        for lag in query.lags if query.behind_age_seconds is not None else ():
            if lag.behind is not None:
                found[lag.unit] = found.get(lag.unit, 0) + lag.behind
    return found or None


def watermark_delay_seconds(status: StreamStatus, now: datetime) -> float | None:
    """How far the oldest watermark of a stream that runs is behind the clock; None for none."""
    if status.state not in ALIVE:
        return None
    marks = [query.watermark_at for query in status.queries.values() if query.watermark_at is not None]
    told = [mark for mark in marks if mark.year > BEGINNING_OF_TIME_YEAR]
    return None if not told else round((now - min(told)).total_seconds(), 3)
