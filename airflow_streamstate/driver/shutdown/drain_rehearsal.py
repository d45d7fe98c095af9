"""The rehearsal of a drain: each flush runs on a fork of the state into no sink, while the queries run on.

The fork links to the query's files, has an id of its own, and is removed again. The effects of user functions that run
when a timer fires are real.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from airflow_streamstate.checkpoint.files import files_of
from airflow_streamstate.checkpoint.fork import fork, wipe
from airflow_streamstate.checkpoint.log import Checkpoint, Position
from airflow_streamstate.checkpoint.trial_batches import plan_flush
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.snapshotting import retry_until_fenced
from airflow_streamstate.driver.shutdown.flush_reach import FlushReach
from airflow_streamstate.errors import (
    FencedError,
    ObjectMissingError,
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.plan.recorded import recorded_plans
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import DrainNotification

FORK_TRIES = 5
TRIAL_SECONDS = 1_800.0
"""A trial that takes longer ends the drain (Law 6)."""
MAX_WORDS_CHARACTERS = 600


@dataclass(frozen=True)
class Foreseen:
    """The result of the trials.

    Attributes:
        tried: the queries whose flush was tried, or that have no state to flush.
        problems: why a query must not be flushed, by query.
    """

    tried: frozenset[str] = frozenset()
    problems: Mapping[str, str] = field(default_factory=dict)


def foresee(attempt: Attempt, order: Order, queries: Sequence[LogicalQuery]) -> Foreseen:
    """Try the flush of each query that has state, if the drain asks for a rehearsal; they run, or stand at their
    barriers.

    Raises UnavailableError or OutcomeUnknownError where the store does not answer.
    """
    command = order.command
    if not isinstance(command, DrainNotification) or not command.rehearse:
        return Foreseen(frozenset(query.name for query in queries))
    plans = retry_until_fenced(attempt, "the plans", lambda: recorded_plans(attempt.control, attempt.deployment_id))
    reach = FlushReach(attempt, order, plans)
    tried, problems = set[str](), {}
    for query in queries:
        if query.startable.facts.stateful:
            attempt.reporter.say(f"query {query.name}: its flush is tried on a fork of its state")
            problem = _tried(attempt, query, reach, command)
            if problem is None:
                continue
            if problem:
                problems[query.name] = problem
                attempt.reporter.say(f"query {query.name}: {problem}")
        tried.add(query.name)
    return Foreseen(frozenset(tried), problems)


def _tried(attempt: Attempt, query: LogicalQuery, reach: FlushReach, command: DrainNotification) -> str | None:
    """Why its flush must not be done; "" where it may, or where the drain's deadline came first; None where there is no
    commit to try it on."""
    by_at = command.batches_by_at
    left_seconds = TRIAL_SECONDS if by_at is None else (by_at - attempt.clock.now()).total_seconds()
    if left_seconds <= 0:
        return ""
    folder = layout.trial_folder(attempt.stream_id, attempt.deployment_id, query.name)
    trial = Checkpoint(attempt.checkpoints, folder)
    try:
        wipe(trial)  # of a trial that died
        if not _forked(attempt, query.checkpoint, trial):
            return None
        flush_batch_id = plan_flush(trial, reach.batch_time_ms(query, trial))
    except (FencedError, UnavailableError, OutcomeUnknownError):
        raise
    except Exception as error:
        return f"its flush could not be tried: {_words(attempt, error)}"
    try:
        progress = query.startable.run_trial_batch(attempt.uri_of(trial), min(left_seconds, TRIAL_SECONDS))
        if not trial.is_committed(flush_batch_id):
            if left_seconds < TRIAL_SECONDS:
                return ""
            return f"its flush could not be tried within {TRIAL_SECONDS:g} s"
        rows = progress.state if progress is not None else query.startable.count_state_rows(attempt.uri_of(trial))
    except (FencedError, UnavailableError, OutcomeUnknownError):
        raise
    except Exception as error:
        return f"its flush fails: {_words(attempt, error)}"
    finally:
        with suppress(StreamStateError):  # the next trial wipes it, too
            wipe(trial)
    left = [each for each in rows if each.rows]
    if command.allow_state_loss or not left:
        return ""
    rows_left = "; ".join(
        f"{each.rows} rows of {each.name}: {reach.why_left(query, each.operator_id)}" for each in left
    )
    return f"a flush would leave state that a seed drops: {rows_left} (--allow-state-loss)"


def _words(attempt: Attempt, error: Exception) -> str:
    return attempt.reporter.shortened(f"{type(error).__name__}: {error}", MAX_WORDS_CHARACTERS, in_a_line=True)


def _forked(attempt: Attempt, checkpoint: Checkpoint, trial: Checkpoint) -> bool:
    """Link the files of the last committed batch; False where there is no committed batch."""
    for number in range(FORK_TRIES):
        batch_id = checkpoint.position().batch_id
        if batch_id is None:
            return False
        try:
            keys = files_of(checkpoint, Position(batch_id))
            files = {key.removeprefix(f"{checkpoint.prefix}/"): key for key in keys}
            # Spark ends a running query when another one starts with the same id.
            metadata = json.dumps({"id": attempt.clock.new_uuid()}).encode()
            fork(attempt.checkpoints, files, trial, {"metadata": metadata})
        except ObjectMissingError:
            if number == FORK_TRIES - 1:
                raise
            wipe(trial)  # the query went on meanwhile
        else:
            return True
    return False
