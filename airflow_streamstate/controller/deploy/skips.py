"""Skipping a batch that always fails: the controller records the order, the next attempt carries it out (Law 1)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.connectors.registry import moves_of_batch
from airflow_streamstate.control.command_status import begun_skips, fold, pending_skip
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.decide import Refused, decide_resume
from airflow_streamstate.controller.deploy.attempts import Attempts
from airflow_streamstate.controller.deploy.takeover import built_checkpoints
from airflow_streamstate.controller.observe.observation import ALIVE, Observation, pending_drain
from airflow_streamstate.controller.observe.outcomes import decide_command_outcome
from airflow_streamstate.controller.observe.views import CommandView, Outcome
from airflow_streamstate.controller.stream_guards import check_same_request, refuse_during_upgrade, request_id_or_new
from airflow_streamstate.controller.wait.watching import Watching
from airflow_streamstate.errors import ConflictError, DataError, InvalidRequestError
from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL
from airflow_streamstate.protocol.commands import SkipRequest
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.positions import SourceMove
from airflow_streamstate.protocol.terms.order import SkipTerms
from airflow_streamstate.protocol.terms.version import digest_of

_NAMESPACE = uuid.UUID("c2b0f1de-5f8e-5b5a-8a55-0d7d2f0f6f1c")


@dataclass(frozen=True)
class SkipOrder:
    """An order to skip one batch.

    Attributes:
        terms: the batch, planned and not committed; without a query it is the only one with that batch planned.
        reason: recorded with the gap.
        assume_dead: treat a driver of unknown state as ended.
    """

    stream_id: str
    terms: SkipTerms
    reason: str
    assume_dead: bool = False

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise InvalidRequestError(
                "a skip needs a reason: it is recorded with the gap", next_step="Say why the batch is skipped."
            )


@dataclass(frozen=True)
class SkipView(View):
    """The input that a skip passes over; ``moves``: the skipped offsets of each source."""

    form: ClassVar[str] = "stream_id deployment_id query=query_name batch_id moves"

    stream_id: str
    deployment_id: str
    query_name: str
    batch_id: int
    moves: tuple[SourceMove, ...]


class Skips:
    """Orders skips of batches."""

    def __init__(self, context: ControllerContext, attempts: Attempts, watching: Watching) -> None:
        self._context = context
        self._attempts = attempts
        self._watching = watching

    def look(self, order: SkipOrder) -> SkipView:
        """The input that would be passed over; changes nothing.

        Raises:
            StreamNotFoundError: there is no such stream.
            InvalidRequestError: no query has that batch planned, or several have.
        """
        return self._look(self._context.observer.observe(order.stream_id), order, None)

    def skip(
        self, order: SkipOrder, request_id: str | None = None, on_view: Callable[[SkipView], None] = lambda _: None
    ) -> CommandView:
        """Start an attempt that commits a batch without its rows, for a batch that always fails.

        Args:
            request_id: the same for all tries of one request; None for a new one.
            on_view: gets the skipped input before anything is recorded.

        Raises:
            StreamNotFoundError, InvalidRequestError: as ``look``.
            ConflictError: the stream runs, is drained or lost, or a drain of it is not finished.
        """
        request_id = request_id_or_new(request_id, self._context.clock)
        control = self._context.home.control(order.stream_id)
        command_id = str(uuid.uuid5(_NAMESPACE, f"{order.stream_id}/{request_id}"))
        digest = digest_of({"verb": "skip", **vars(order.terms)})
        record = control.request(request_id)
        seen = self._context.observer.observe(order.stream_id, None if record is None else record.deployment_id)
        is_ordered = False
        if record is not None:
            check_same_request(record, digest)
            end = decide_command_outcome(seen, command_id, SkipRequest.kind)
            if end is not None and seen.command_status(command_id).is_ended:
                return _view(seen, command_id, self._watching.outcome(seen, end, command_id))
            if not seen.is_current:
                raise ConflictError(
                    "a newer deployment is current than the one whose batch this request was to skip",
                    stream_id=seen.stream_id,
                    deployment_id=record.deployment_id,
                    current_deployment_id=seen.register.deployment_id,
                    next_step="Skip with a new request id, if the current one fails over it, too.",
                )
            is_ordered = self._is_ordered(control, seen, command_id)
            if is_ordered and seen.state in ALIVE and not seen.is_unlaunched:
                return _view(seen, command_id)
        if not is_ordered:
            self._refuse(control, seen, order)
        view = self._look(seen, order, command_id)
        if not is_ordered:
            self._refuse_second(control, seen, view.query_name, command_id)
        on_view(view)
        if not seen.is_unlaunched:  # all refusals come before the first record
            self._context.drivers.check(seen.spec, seen.attempt + 1)
            self._context.drivers.check_pinned(seen.spec)
            self._context.endings.prove(control, seen, assume_dead=order.assume_dead)
        if record is None:
            self._attempts.record_request(control, request_id, "skip", digest, seen, command_id)
        return self._order(control, seen, order, view, command_id)

    def _order(
        self, control: StreamControl, seen: Observation, order: SkipOrder, view: SkipView, command_id: str
    ) -> CommandView:
        command = SkipRequest(
            command_id=command_id,
            stream_id=seen.stream_id,
            deployment_id=seen.deployment_id,
            requested_at=self._context.clock.now(),
            deadline_at=None,
            requested_by=self._context.requested_by,
            reason=order.reason,
            query_name=view.query_name,
            batch_id=order.terms.batch_id,
            accepts_written=order.terms.accept_written_rows,
        )
        journal = control.journal(seen.deployment_id)
        number, key = journal.write_command(command, NEWEST_PROTOCOL)
        try:
            self._refuse_second(control, seen, view.query_name, command_id)
        except ConflictError:
            journal.withdraw_command(command_id)
            raise
        if seen.is_unlaunched:
            self._context.drivers.launch(control, seen.spec, seen.attempt)
        elif self._move(control, seen, order, command_id):
            self._context.drivers.launch(control, seen.spec, seen.attempt + 1)
        seen = self._context.observer.observe(seen.stream_id, seen.deployment_id)
        return CommandView(seen.stream_id, seen.deployment_id, command_id, number, key, seen.state, "skip")

    def _move(self, control: StreamControl, seen: Observation, order: SkipOrder, command_id: str) -> bool:
        """As ``Attempts.move``; False where another controller has just started an attempt, which finds the order.

        A refusal withdraws the order, so that no later attempt carries it out.
        """
        try:
            self._attempts.move(control, seen, "run", assume_dead=order.assume_dead, reason=order.reason)
        except (ConflictError, DataError, InvalidRequestError):
            now = control.need_register().value
            if now.deployment_id == seen.deployment_id and now.attempt > seen.attempt:
                return False
            control.journal(seen.deployment_id).withdraw_command(command_id)
            raise
        return True

    def _is_ordered(self, control: StreamControl, seen: Observation, command_id: str) -> bool:
        """Whether the command was written and not withdrawn."""
        slots = control.journal(seen.deployment_id).commands()
        if any(slot.command is not None and slot.command.command_id == command_id for slot in slots):
            return True
        return any(getattr(entry.event, "command_id", "") == command_id for entry in seen.events)

    def _refuse_second(self, control: StreamControl, seen: Observation, query_name: str, command_id: str) -> None:
        """Refuse the second of two skips at once: the attempt carries out the one with the lower number.

        Called before an order is recorded, and again after its own number is visible to the other controller.
        """
        journal = control.journal(seen.deployment_id)
        events = [entry.event for entry in journal.events()]
        first = pending_skip(fold(journal.commands(), events), seen.deployment_id, query_name)
        if first is not None and first[0].command_id != command_id:
            raise ConflictError(
                "another skip of this query was asked for first",
                stream_id=seen.stream_id,
                deployment_id=seen.deployment_id,
                query_name=query_name,
                batch_id=first[0].batch_id,
                requested_by=first[0].requested_by,
                reason=first[0].reason,
                next_step=f"The next attempt does it: `streamstate resume {seen.stream_id}`, if none runs by then.",
            )

    def _refuse(self, control: StreamControl, seen: Observation, order: SkipOrder) -> None:
        refuse_during_upgrade(control, seen.register, None)
        drain = pending_drain(seen, control.journal(seen.deployment_id).commands())
        if drain is not None:
            raise ConflictError(
                "a drain of this stream is not finished, and it would run that batch",
                stream_id=seen.stream_id,
                deployment_id=seen.deployment_id,
                command_id=drain.command_id,
                next_step=f"`streamstate drain {seen.stream_id}` finishes it, or fails and ends it; then skip.",
            )
        state = seen.state
        if state in ALIVE and not seen.is_unlaunched:
            raise ConflictError(
                f"the stream is {state}: a batch is skipped before its query starts",
                stream_id=seen.stream_id,
                deployment_id=seen.deployment_id,
                attempt=seen.attempt,
                state=state,
                next_step=f"Stop it, or `streamstate kill {seen.stream_id}`; then skip.",
            )
        decision = decide_resume(seen, "", assume_dead=order.assume_dead, has_drain=False)
        if isinstance(decision, Refused):
            raise decision.error

    def _look(self, seen: Observation, order: SkipOrder, command_id: str | None) -> SkipView:
        checkpoints, batch_id = built_checkpoints(self._context.home, seen), order.terms.batch_id
        if order.terms.query_name is not None:
            checkpoints = {name: each for name, each in checkpoints.items() if name == order.terms.query_name}
        positions = {name: checkpoint.position() for name, checkpoint in checkpoints.items()}
        # The driver may have committed the skip and died before its event: the next attempt only reports it.
        untold = {one.query_name for one, _ in begun_skips(seen.commands) if one.command_id == command_id}
        names = [
            name
            for name, position in positions.items()
            if position.planned_id == batch_id or (name in untold and position.batch_id == batch_id)
        ]
        if len(names) != 1:
            planned = {
                name: "none is planned" if position.planned_id is None else f"batch {position.planned_id}"
                for name, position in sorted(positions.items())
            }
            raise InvalidRequestError(
                "no query has this batch planned and not committed"
                if not names
                else "several queries have this batch planned",
                stream_id=seen.stream_id,
                deployment_id=seen.deployment_id,
                query_name=order.terms.query_name,
                batch_id=order.terms.batch_id,
                planned=planned,
                next_step="Only the batch that the next start would run first can be skipped; --query names its query.",
            )
        moves = _moves(seen, names[0], checkpoints[names[0]], order.terms.batch_id)
        return SkipView(seen.stream_id, seen.deployment_id, names[0], order.terms.batch_id, moves)


def _view(seen: Observation, command_id: str, outcome: Outcome | None = None) -> CommandView:
    return CommandView(seen.stream_id, seen.deployment_id, command_id, None, None, seen.state, "skip", outcome)


def _moves(seen: Observation, name: str, checkpoint: Checkpoint, batch_id: int) -> tuple[SourceMove, ...]:
    started = (event for event in seen.of_kind(QueryStarted, any_attempt=True) if event.query_name == name)
    told = next(started, None)
    return moves_of_batch(checkpoint, batch_id, () if told is None else told.identities) or ()
