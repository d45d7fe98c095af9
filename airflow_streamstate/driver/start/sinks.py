"""Checks the sink before a start: a sink silently skips batch ids that it holds, with all their new rows (Law 14)."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_streamstate.checkpoint.log import Position
from airflow_streamstate.connectors.sink import known_sinks
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.auditing import note_once
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.reporting import MAX_REASON_CHARACTERS
from airflow_streamstate.driver.attempt.snapshotting import need_current, retry_until_fenced
from airflow_streamstate.driver.start.used_checkpoint import adopt_command
from airflow_streamstate.errors import StartRefusedError

CANNOT_TELL = "its sink cannot tell which batches it holds"


def check_sink(attempt: Attempt, logical: LogicalQuery, position: Position, *, is_fresh: bool) -> tuple[str, ...]:
    """Check that the sink holds no batch id that is not planned yet, and prepare it for the next ones; remarks.

    A planned batch is not checked: it runs over the same bounds, so a sink that holds it skips just what it has.

    Raises:
        StartRefusedError: the sink holds ids that this start would use again.
        InvalidRequestError: it is a table that cannot be created.
        FencedError: this attempt was replaced.
        UnavailableError: the sink could not be prepared.
    """
    for problem in known_sinks().problems:
        note_once(attempt, attempt.reporter.shortened(problem, MAX_REASON_CHARACTERS, in_a_line=True))
    startable = logical.startable
    for remark in startable.need_table():
        note_once(attempt, remark)
    next_planned = position.barrier_id  # the id above the last planned batch
    query_id = retry_until_fenced(attempt, "the checkpoint", logical.checkpoint.query_id)
    held = startable.held_batches(query_id, next_planned)
    if held.batch_ids:
        need_current(attempt)  # the ids may be a successor's
        raise _refusal(attempt, logical, next_planned, held.batch_ids, is_fresh=is_fresh)
    if held.unknown_reason:
        why = attempt.reporter.shortened(held.unknown_reason, MAX_REASON_CHARACTERS, in_a_line=True)
        attempt.reporter.say(f"query {logical.name}: {CANNOT_TELL}: {why}")
    return startable.prepare_sink(position.next_batch_id)


def check_sink_before_flush(attempt: Attempt, logical: LogicalQuery) -> None:
    """As ``check_sink`` for a query that is flushed without having run, waiting for the store.

    A flush that an earlier attempt began is not checked: it runs again over the same bounds.
    """
    checkpoint = logical.checkpoint
    position = retry_until_fenced(attempt, "the log", lambda: checkpoint.position() if checkpoint.exists() else None)
    if position is not None and not position.barriers:
        for word in check_sink(attempt, logical, position, is_fresh=False):
            attempt.reporter.note(word, query=logical.name)


def _refusal(
    attempt: Attempt, logical: LogicalQuery, next_planned: int, batch_ids: Sequence[int], *, is_fresh: bool
) -> StartRefusedError:
    snapshot_id = attempt.spec.start.snapshot_id
    if is_fresh:
        next_step = f"Write to a new output; or go on with the query that wrote there: {_going_on(attempt, logical)}."
    elif snapshot_id is not None and logical.startable.undo_means() == "exact by undo":
        next_step = (
            f"`streamstate rollback {attempt.stream_id} --snapshot {snapshot_id}` takes those batches out of it and"
            " runs their input again; or start from the snapshot at the end of the deployment that wrote them."
        )
    else:
        next_step = (
            "Write to a new output, start from the snapshot at the end of the deployment that wrote those batches, or"
            " take those batches out of the output first (docs/how-to/sinks.md says how for each sink)."
        )
    return StartRefusedError(
        "the sink holds batch ids that this start would use again, and would skip them with all their new rows",
        query_name=logical.name,
        sink=logical.startable.sink_place(),
        held_batches=listed(batch_ids),
        next_batch_id=next_planned,
        next_step=next_step,
    )


def _going_on(attempt: Attempt, logical: LogicalQuery) -> str:
    """How batch ids go on after a fresh start was refused, by what is known of who wrote there."""
    if attempt.control.snapshot_ids():
        return f"`streamstate rollback {attempt.stream_id}` with --snapshot goes back to a snapshot of this stream"
    own = logical.startable.own_checkpoint()
    uri = "FOLDER" if own is None or own.batch_id is None else own.uri
    words = adopt_command(attempt.spec, attempt.control.home.uri, logical.name, uri)
    return f"where it ran without streamstate, `{words}`" + (
        ", with its checkpointLocation as FOLDER" if uri == "FOLDER" else ""
    )


def listed(batch_ids: Sequence[int]) -> str:
    """Ids for people: ``14 to 17``, or the first of them one by one."""
    if len(batch_ids) > 1 and batch_ids[-1] - batch_ids[0] == len(batch_ids) - 1:
        return f"{batch_ids[0]} to {batch_ids[-1]}"
    shown = ", ".join(str(batch_id) for batch_id in batch_ids[:10])
    return shown if len(batch_ids) <= 10 else f"{shown}, … {batch_ids[-1]}"
