"""A checkpoint that was there and is gone: the driver neither starts nor captures its query (Law 5)."""

from __future__ import annotations

from airflow_streamstate.control.evidence import had_checkpoint, missing_checkpoint
from airflow_streamstate.driver.attempt.attempt import Attempt


def need_checkpoint(attempt: Attempt, query_name: str) -> None:
    """Raise DataError for a missing checkpoint on which, by an event, the query was started."""
    checkpoint = attempt.checkpoint_of(query_name)
    if checkpoint.exists():
        return
    if had_checkpoint(attempt.reporter.events, query_name):
        raise missing_checkpoint(query_name, checkpoint.prefix)
