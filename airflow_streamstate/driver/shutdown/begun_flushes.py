"""Flushes that this attempt or an earlier one has begun, found in the logs.

The sink may hold such a batch already, so the query is neither kept with its state nor seeded uncounted (Law 14).
"""

from __future__ import annotations

from airflow_streamstate.checkpoint.repair import DrainCommitted, DrainPending, Foreign, classify
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.snapshotting import checkpoint_names, retry_until_fenced
from airflow_streamstate.errors import ConflictError


def begun_flushes(attempt: Attempt) -> dict[str, DrainPending | DrainCommitted]:
    """The begun flush of each query of this deployment that has one. Waits for the store; raises DataError for a
    damaged log."""
    return retry_until_fenced(attempt, "the logs", lambda: _begun(attempt))


def _begun(attempt: Attempt) -> dict[str, DrainPending | DrainCommitted]:
    found = {}
    for name in checkpoint_names(attempt):
        checkpoint = attempt.checkpoint_of(name)
        if not checkpoint.exists():
            continue
        finding = classify(checkpoint, attempt.deployment_id)
        beneath = finding.beneath if isinstance(finding, Foreign) else finding
        if isinstance(beneath, DrainPending | DrainCommitted) and beneath.mark.deployment_id == attempt.deployment_id:
            found[name] = beneath
    return found


def refuse_carrying_on(attempt: Attempt, missing: list[str]) -> None:
    """Raise ConflictError if a query that the script does not start has a begun flush."""
    begun = begun_flushes(attempt)
    for name in missing:
        if name in begun:
            raise ConflictError(
                "the flush of this query was begun in an earlier attempt, and the script has not started the query",
                query_name=name,
                flush_batch_id=begun[name].drain_id,
                next_step="Resume the deployment with a script that starts it: the driver then completes its flush.",
            )


def refuse_pending_flush(attempt: Attempt) -> None:
    """Raise ConflictError if a flush is begun and not committed: that query has no position to keep (Law 14)."""
    for name, found in begun_flushes(attempt).items():
        if isinstance(found, DrainPending):
            raise ConflictError(
                "the flush of this query was begun and is not committed, so the sink may hold its batch already",
                query_name=name,
                flush_batch_id=found.drain_id,
                next_step=f"`streamstate drain {attempt.stream_id}` completes that batch.",
            )
