"""Whether a query ever had a checkpoint in its deployment, by the deployment's events (Laws 5 and 14).

A folder that is gone (another disk, a wrong setting, a clean-up by hand) looks like one that never existed. The events
tell, and no query starts empty, or from an older position, against them.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_streamstate.errors import DataError
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import QueryStarted


def had_checkpoint(events: Iterable[Event | None], query_name: str) -> bool:
    """Whether the query was ever started in this deployment, by the events of all its attempts.

    Spark writes the checkpoint's ``metadata`` before ``start()`` returns, and the event comes after that.
    """
    return any(isinstance(event, QueryStarted) and event.query_name == query_name for event in events)


def missing_checkpoint(query_name: str, prefix: str) -> DataError:
    """The error for a checkpoint that should exist and does not."""
    return DataError(
        "the checkpoint of this query is gone, and going on without it would start empty or from an older position",
        query_name=query_name,
        checkpoint=prefix,
        next_step="Bring the folder back (is another disk mounted, another checkpoints_uri set?), "
        "or start anew by name with `deploy --start fresh`.",
    )
