"""Skips a batch before its query starts, as a ``SkipRequest`` asks (``checkpoint.skipping``).

A sink that may hold some of the batch forbids it (Law 14). A request that cannot be obeyed is rejected, and the query
starts. After a crash the batch is planned, or committed and not reported; the next attempt continues (Law 2).
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
    """Skip the planned batch of a query that is about to start, where a command asks for it; what was done, in words.

    The agent answers a request for another position, when the query runs.

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
    """Write ``Skipped`` for the batches that an earlier attempt skipped before it died.

    Called before the script's first line, since this attempt may end before it starts that query.

    Raises:
        UnavailableError: the store does not answer.
    """
    for request, number in begun_skips(attempt.commands()):
        checkpoint = attempt.checkpoint_of(request.query_name)
        try:
            if checkpoint.exists() and checkpoint.position().batch_id == request.batch_id:
                _tell(attempt, request, number)
        except DataError as error:
            attempt.reporter.say(f"the log of query {request.query_name} cannot be judged yet: {error}")


def give_up_skip(attempt: Attempt, query_name: str, batch_id: int | None) -> None:
    """Reject the skip of a batch that a flush is about to run, where an earlier attempt began that skip: a later
    attempt would take the flush's commit for the skip's."""
    for request, number in begun_skips(attempt.commands()):
        if (request.query_name, request.batch_id) == (query_name, batch_id):
            _reject(attempt, request, number, "a drain runs this batch first")


class _Skip:
    """Obeys one request."""

    def __init__(self, attempt: Attempt, logical: LogicalQuery, request: SkipRequest, number: int) -> None:
        self._attempt = attempt
        self._logical = logical
        self._request = request
        self._number = number
        folder = layout.building_folder(attempt.stream_id, attempt.deployment_id, logical.name)
        self._building = Checkpoint(attempt.checkpoints, folder)

    def run(self, position: Position) -> tuple[str, ...]:
        attempt, request = self._attempt, self._request
        if position.planned_id != request.batch_id:
            was_ours = attempt.command_status(request.command_id).is_begun
            if was_ours and position.batch_id == request.batch_id:
                return self._told()  # an earlier attempt committed it, and did not report it
            return self._rejected(_not_planned(position, request.batch_id))
        reason = self._why_not() or self._carry_over()
        return self._rejected(reason) if reason else self._told()

    def _why_not(self) -> str:
        """Why the sink forbids it; "" where it does not."""
        request, startable = self._request, self._logical.startable
        query_id = retry_until_fenced(self._attempt, "the checkpoint", self._logical.checkpoint.query_id)
        held = startable.held_batches(query_id, request.batch_id)
        if request.accepts_written or held.lacks(request.batch_id):
            return ""
        place = startable.sink_place()
        if held.unknown_reason:
            unknown = f"it is not known whether {place} holds some of batch {request.batch_id}"
            return f"{unknown}: {held.unknown_reason}; {BY_HAND}"
        return f"{place} holds batch {request.batch_id} already, so its rows do not fail; {BY_HAND}"

    def _carry_over(self) -> str:
        """Carry the state over an empty batch, and commit; the reason where that is not possible, else ""."""
        attempt, logical, batch_id = self._attempt, self._logical, self._request.batch_id
        # For its errors: a skip that could not be reported is not begun.
        retry_until_fenced(attempt, "the log", lambda: _moves(attempt, self._request))
        accept(attempt, order_of(self._request, self._number))
        retry_until_fenced(attempt, "the skip", lambda: prepare_skip(self._building, logical.checkpoint, batch_id))
        try:
            logical.startable.run_trial_batch(attempt.uri_of(self._building))
        except Exception as error:
            retry_until_fenced(attempt, "the skip", lambda: wipe(self._building))
            words = f"an empty batch in its place fails as well, so its rows are not the cause: {error}"
            return attempt.reporter.shortened(words, MAX_REASON_CHARACTERS, in_a_line=True)
        need_current(attempt)
        retry_until_fenced(attempt, "the skip", lambda: finish_skip(self._building, logical.checkpoint, batch_id))
        return ""

    def _told(self) -> tuple[str, ...]:
        return (_tell(self._attempt, self._request, self._number),)

    def _rejected(self, reason: str) -> tuple[str, ...]:
        _reject(self._attempt, self._request, self._number, reason)
        return ()


def _reject(attempt: Attempt, request: SkipRequest, number: int, reason: str) -> None:
    attempt.reporter.write(Rejected, command_id=request.command_id, command_number=number, key="", reason=reason)
    attempt.reporter.say(f"query {request.query_name}: batch {request.batch_id} is not skipped: {reason}")
    clean_up(attempt)


def _tell(attempt: Attempt, request: SkipRequest, number: int) -> str:
    """Write ``Skipped``; the same in words."""
    moves = retry_until_fenced(attempt, "the log", lambda: _moves(attempt, request))
    attempt.reporter.write(
        Skipped,
        command_id=request.command_id,
        command_number=number,
        query_name=request.query_name,
        batch_id=request.batch_id,
        moves=moves,
        requested_by=request.requested_by,
        reason=request.reason,
    )
    clean_up(attempt)
    words = f"batch {request.batch_id} is skipped, as {request.requested_by} asked for ({request.reason})"
    attempt.reporter.say(f"query {request.query_name}: {words}")
    return words


def _moves(attempt: Attempt, request: SkipRequest) -> tuple[SourceMove, ...]:
    checkpoint, name, batch_id = attempt.checkpoint_of(request.query_name), request.query_name, request.batch_id
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
