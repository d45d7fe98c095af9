"""Runs the batch that a failed query had planned, first and over its own bounds, as every start would (1a.6).

It runs on the rehearsal's own fork and into no sink. A ``foreachBatch`` is code of the user that may write anywhere, so
it is not called.
"""

from __future__ import annotations

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.missing_pin import PARTITIONS
from airflow_streamstate.checkpoint.repair import repair_before_start
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.rehearsal.batches_again import BatchFailedError, RanAgain
from airflow_streamstate.driver.start.building import Built
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol.causes import cause_in
from airflow_streamstate.protocol.scratch import Rehearsal

FOREACH_BATCH = "foreachBatch"


def run_planned_batch(
    attempt: Attempt,
    name: str,
    startable: StartableQuery,
    built: Built,
    rehearsal: Rehearsal,
    within_seconds: float,
    ran: RanAgain,
) -> None:
    """Run the planned batch of the built checkpoint, if it has one.

    Args:
        within_seconds: it is stopped if it is not over by then, and noted.
        ran: what ran and what did not.

    Raises:
        BatchFailedError: it fails; the fork then stands before it.
    """
    checkpoint = attempt.checkpoint_of(name)
    if built.how == "seeded" or not checkpoint.exists():
        return
    make_ready(attempt, checkpoint, startable)
    batch_id = checkpoint.position().planned_id
    if batch_id is None:
        return
    which = f"batch {batch_id}, which is planned and runs first at a start,"
    if not rehearsal.batches:
        ran.notes.append(f"{which} was not run: no batch with rows was asked for")
        return
    attempt.reporter.say(f"query {name}: the planned batch {batch_id} runs first")
    begun = attempt.clock.monotonic_seconds()
    try:
        progress = startable.run_trial_batch(attempt.uri_of(checkpoint), within_seconds)
    except StreamStateError:
        raise
    except Exception as error:
        gone = attempt.sources.explain(str(error))
        words = f"the source does not have its rows any more ({gone})" if gone else cause_in(str(error))
        raise BatchFailedError(f"{which} fails: {words or type(error).__name__}") from error
    ran.seconds += attempt.clock.monotonic_seconds() - begun
    if not checkpoint.is_committed(batch_id):
        ran.notes.append(f"{which} was not over within {within_seconds:.0f} s, and was stopped")
        return
    ran.add(batch_id, progress)
    if startable.facts.sink == FOREACH_BATCH:
        ran.notes.append(
            f"{which} was run without its foreachBatch, which may write anywhere: whether that function fails is not"
            " known; `streamstate replay --call-foreach-batch` calls it"
        )


def make_ready(attempt: Attempt, checkpoint: Checkpoint, startable: StartableQuery) -> None:
    """Repair the log of a built checkpoint as a start does (1a.7)."""
    if checkpoint.position().batch_id is None and checkpoint.position().planned is None:
        return
    repair_before_start(
        checkpoint,
        attempt.deployment_id,
        partitions=lambda: startable.session_conf((PARTITIONS,)).get(PARTITIONS, ""),
    )
