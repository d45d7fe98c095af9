"""A batch that always fails is skipped, as was asked for, before its query starts (``checkpoint.skipping``).

The sink is asked first: what it may hold of the batch would stay there (Law 14). What cannot be done is rejected, and
the query starts as if nothing had been asked. A driver that dies anywhere in it leaves the batch planned, or committed
and not yet told; the next attempt goes on from there (Law 2).
"""

from __future__ import annotations

from airflow_streamstate.checkpoint.fork import wipe
from airflow_streamstate.checkpoint.log import Checkpoint, Position
from airflow_streamstate.checkpoint.skipping import finish_skip, prepare_skip
from airflow_streamstate.connectors.measuring import moves_of_batch
from airflow_streamstate.control.command_status import begun_skips, pending_skip
from airflow_streamstate.driver.attempt.answering import accept, clean_up
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.latch import order_of
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.reporting import MAX_REASON_CHARACTERS
from airflow_streamstate.driver.attempt.snapshotting import need_current, own_identities, retry_until_fenced
from airflow_streamstate.errors import DataError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import SkipRequest
from airflow_streamstate.protocol.data_events import Skipped
from airflow_streamstate.protocol.events import Rejected
from airflow_streamstate.protocol.positions import SourceMove

BY_HAND = "--accept-written-rows skips it all the same, and what the sink holds of it stays there"


def skip_if_asked(attempt: Attempt, logical: LogicalQuery, position: Position) -> tuple[str, ...]:
    """Skip the planned batch of a query that is about to start, where somebody asked for it.

    Args:
        attempt: that is about to start the query.
        logical: the query, its checkpoint built and repaired.
        position: of that. A wish that cannot be meant for it is answered by the agent, when the query runs.

    Returns:
        What was done, in words.

    Raises:
        FencedError: this attempt was replaced.
        DataError: the checkpoint is damaged.
    """
    if position.planned_id is None and not begun_skips(attempt.commands()):
        return ()
    slots = retry_until_fenced(attempt, "the commands", attempt.journal.commands)
    found = pending_skip(attempt.commands(slots), attempt.deployment_id, logical.name)
    if found is None:
        return ()
    return _Skip(attempt, logical, *found).run(position)


def tell_committed_skips(attempt: Attempt) -> None:
    """Tell of the batches that an earlier attempt had skipped when it died: a gap has a name, whatever comes next.

    Before the script's first line: this attempt may be told to end before it starts that query, or to drain, which
    would run a batch that is still planned.

    Args:
        attempt: that was claimed just now.

    Raises:
        UnavailableError: the store does not answer.
    """
    for wish, number in begun_skips(attempt.commands()):
        checkpoint = attempt.checkpoint_of(wish.query_name)
        try:
            if checkpoint.exists() and checkpoint.position().batch_id == wish.batch_id:
                _tell(attempt, wish, number)
        except DataError as error:
            attempt.reporter.say(f"the log of query {wish.query_name} cannot be judged yet: {error}")


def give_up_skip(attempt: Attempt, query_name: str, batch_id: int | None) -> None:
    """Answer the skip of a batch that a flush is about to run with its rows, before it does: an earlier attempt began
    it and died, and whoever comes later would take the commit for its own.

    Args:
        attempt: that flushes.
        query_name: the query, which does not run.
        batch_id: planned there.
    """
    for wish, number in begun_skips(attempt.commands()):
        if (wish.query_name, wish.batch_id) == (query_name, batch_id):
            _reject(attempt, wish, number, "a drain runs this batch first")


class _Skip:
    """One batch's."""

    def __init__(self, attempt: Attempt, logical: LogicalQuery, wish: SkipRequest, number: int) -> None:
        self._attempt = attempt
        self._logical = logical
        self._wish = wish
        self._number = number
        folder = layout.building_folder(attempt.stream_id, attempt.deployment_id, logical.name)
        self._building = Checkpoint(attempt.checkpoints, folder)

    def run(self, position: Position) -> tuple[str, ...]:
        attempt, wish = self._attempt, self._wish
        if position.planned_id != wish.batch_id:
            was_ours = attempt.command_status(wish.command_id).is_begun
            if was_ours and position.batch_id == wish.batch_id:
                return self._told()  # committed by an attempt that died before it could say so
            return self._rejected(_not_planned(position, wish.batch_id))
        reason = self._why_not() or self._carry_over()
        return self._rejected(reason) if reason else self._told()

    def _why_not(self) -> str:
        """Why the sink forbids it; "" where it does not."""
        wish, startable = self._wish, self._logical.startable
        query_id = retry_until_fenced(self._attempt, "the checkpoint", self._logical.checkpoint.query_id)
        held = startable.held_batches(query_id, wish.batch_id)
        if wish.accepts_written or held.lacks(wish.batch_id):
            return ""
        place = startable.sink_place()
        if held.unknown_reason:
            return (
                f"nobody can tell whether {place} holds some of batch {wish.batch_id}: {held.unknown_reason}; {BY_HAND}"
            )
        return f"{place} holds batch {wish.batch_id} already: not its rows fail; {BY_HAND}"

    def _carry_over(self) -> str:
        """Carry the state over an empty batch, and commit; why that was not possible, "" where it was."""
        attempt, logical, batch_id = self._attempt, self._logical, self._wish.batch_id
        retry_until_fenced(
            attempt, "the log", lambda: _moves(attempt, self._wish)
        )  # what could not be told is not done
        accept(attempt, order_of(self._wish, self._number))
        retry_until_fenced(attempt, "the skip", lambda: prepare_skip(self._building, logical.checkpoint, batch_id))
        try:
            logical.startable.run_trial_batch(attempt.uri_of(self._building))
        except Exception as error:
            retry_until_fenced(attempt, "the skip", lambda: wipe(self._building))
            words = f"an empty batch in its place fails as well, so it is not its rows: {error}"
            return attempt.reporter.shortened(words, MAX_REASON_CHARACTERS, in_a_line=True)
        need_current(attempt)
        retry_until_fenced(attempt, "the skip", lambda: finish_skip(self._building, logical.checkpoint, batch_id))
        return ""

    def _told(self) -> tuple[str, ...]:
        return (_tell(self._attempt, self._wish, self._number),)

    def _rejected(self, reason: str) -> tuple[str, ...]:
        _reject(self._attempt, self._wish, self._number, reason)
        return ()


def _reject(attempt: Attempt, wish: SkipRequest, number: int, reason: str) -> None:
    attempt.reporter.write(Rejected, command_id=wish.command_id, command_number=number, key="", reason=reason)
    attempt.reporter.say(f"query {wish.query_name}: batch {wish.batch_id} is not skipped: {reason}")
    clean_up(attempt)


def _tell(attempt: Attempt, wish: SkipRequest, number: int) -> str:
    """Tell of a batch that is committed without its rows; in words."""
    moves = retry_until_fenced(attempt, "the log", lambda: _moves(attempt, wish))
    attempt.reporter.write(
        Skipped,
        command_id=wish.command_id,
        command_number=number,
        query_name=wish.query_name,
        batch_id=wish.batch_id,
        moves=moves,
        requested_by=wish.requested_by,
        reason=wish.reason,
    )
    clean_up(attempt)
    words = f"batch {wish.batch_id} is skipped, as {wish.requested_by} asked for ({wish.reason})"
    attempt.reporter.say(f"query {wish.query_name}: {words}")
    return words


def _moves(attempt: Attempt, wish: SkipRequest) -> tuple[SourceMove, ...]:
    checkpoint, name, batch_id = attempt.checkpoint_of(wish.query_name), wish.query_name, wish.batch_id
    identities = attempt.sources.identities(name) or own_identities(attempt, name, None, batch_id)
    moves = moves_of_batch(checkpoint, batch_id, identities)
    if moves is None:
        raise DataError("the entries of the skipped batch are gone", key=checkpoint.offset_key(batch_id))
    return moves


def _not_planned(position: Position, batch_id: int) -> str:
    if position.batch_id is not None and position.batch_id >= batch_id:
        return f"batch {batch_id} is committed"
    planned = "none is planned" if position.planned_id is None else f"the planned one is {position.planned_id}"
    return f"batch {batch_id} is not planned: {planned}"
