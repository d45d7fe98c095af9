"""The last committed batch of queries whose driver left no last word about them, by their own checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress

from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observation import ALIVE, Observation
from airflow_streamstate.controller.observe.repeating import checkpoint_of
from airflow_streamstate.controller.observe.views import QueryStatus
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol.events import Drained, Finished, QueryStarted, Stopped


def with_commits(home: Home, seen: Observation, queries: Mapping[str, QueryStatus]) -> dict[str, QueryStatus]:
    """The queries with what their logs say, unless the driver lives or has told where it ended.

    A heartbeat may be older than the last commits. A log that cannot be read leaves what the heartbeat said.
    """
    found = dict(queries)
    end = seen.drained or seen.terminal
    if seen.state in ALIVE or isinstance(end, Drained | Stopped | Finished):
        return found
    for name in {*found, *(event.query_name for event in seen.of_kind(QueryStarted))}:
        with suppress(StreamStateError):
            committed = checkpoint_of(home, seen, name).commit_ids()
            if committed:
                found[name] = _committed(found.get(name), committed[-1])
    return found


def with_newer(queries: Mapping[str, QueryStatus], before: Mapping[str, QueryStatus]) -> dict[str, QueryStatus]:
    """The queries, with the batches that an earlier look at the logs had found."""
    found = dict(queries)
    for name, earlier in before.items():
        if earlier.batch_id is not None and not earlier.is_active:
            found[name] = _committed(found.get(name), earlier.batch_id)
    return found


def _committed(known: QueryStatus | None, batch_id: int) -> QueryStatus:
    if known is None:
        return QueryStatus(batch_id)
    if known.batch_id is not None and known.batch_id >= batch_id:
        return known
    return dataclasses.replace(known, batch_id=batch_id, committed_at=None, state_rows=None, watermark_at=None)
