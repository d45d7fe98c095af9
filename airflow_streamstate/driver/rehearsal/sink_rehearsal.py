"""Asks the sink in a rehearsal what a start will ask it, without a change in it (Law 14).

The old version may write on meanwhile: the batches in its own log are its own, and only others are another writer's.
"""

from __future__ import annotations

from airflow_streamstate.checkpoint.log import Checkpoint, Position
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.start.sinks import listed
from airflow_streamstate.errors import InvalidRequestError, StartRefusedError
from airflow_streamstate.protocol import layout


def rehearse_sink(attempt: Attempt, name: str, startable: StartableQuery, deployment_id: str) -> tuple[str, ...]:
    """Check that a start on the built checkpoint will find its sink usable; remarks for people.

    Args:
        deployment_id: the current deployment, which may write on.

    Raises:
        InvalidRequestError: a start would be refused.
        and what Spark raises: it does not know the format, or cannot write such rows in it.
    """
    checkpoint = attempt.checkpoint_of(name)
    position = checkpoint.position() if checkpoint.exists() else Position(None)
    if position.barrier_id:
        _check_goes_on(startable)
        _check_held(attempt, name, startable, checkpoint, position.barrier_id, deployment_id)
    scratch = layout.warming_folder(attempt.stream_id, attempt.deployment_id, name)
    return startable.try_sink(position.next_batch_id, attempt.uri_of_key(scratch))


def _check_goes_on(startable: StartableQuery) -> None:
    if startable.facts.sink == "memory" and startable.facts.output_mode != "complete":
        raise InvalidRequestError(
            "Spark starts a memory sink from no checkpoint, except in output mode complete",
            output_mode=startable.facts.output_mode,
            next_step="Write into another sink.",
        )


def _check_held(
    attempt: Attempt, name: str, startable: StartableQuery, built: Checkpoint, next_planned: int, deployment_id: str
) -> None:
    """Refuse where the sink holds ids that are not in the log of the old version."""
    held = startable.held_batches(built.query_id(), next_planned)
    if not held.batch_ids:
        return
    # After the question, so that what the old version has written since is in its log.
    old = Checkpoint(attempt.checkpoints, layout.checkpoint_folder(attempt.stream_id, deployment_id, name))
    first_unknown = max(old.position().barrier_id if old.exists() else 0, next_planned)
    others = [batch_id for batch_id in held.batch_ids if batch_id >= first_unknown]
    if others:
        raise StartRefusedError(
            "the sink holds batch ids that this start would use again, and would skip them with all their new rows",
            query_name=name,
            sink=startable.sink_place(),
            held_batches=listed(others),
            next_batch_id=first_unknown,
            next_step="Write to a new output, or take those batches out of the output first (docs/how-to/sinks.md says"
            " how for each sink).",
        )
