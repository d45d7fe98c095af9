"""A checkpoint that was there and is gone: nothing starts, and nothing is captured, as if it had never been (Law 5)."""

from __future__ import annotations

from airflow_streamstate.control.evidence import had_checkpoint, missing_checkpoint
from airflow_streamstate.driver.attempt.attempt import Attempt


def need_checkpoint(attempt: Attempt, query_name: str) -> None:
    """See that a checkpoint which is not there never held anything.

    Raises:
        DataError: the deployment's events say that the query was started on it.
    """
    checkpoint = attempt.checkpoint_of(query_name)
    if checkpoint.exists():
        return
    if had_checkpoint(attempt.reporter.events, query_name):
        raise missing_checkpoint(query_name, checkpoint.prefix)
