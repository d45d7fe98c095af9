"""The limits of a drain: its deadlines, and requests to cancel it.

Samza has a drain timeout for what is in flight; here the batches in flight and the flush have one each.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_streamstate.driver.attempt.answering import clean_up
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.cancelling import describe_cancelled, holding_requests
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.commands import CancelRequest, DrainNotification
from airflow_streamstate.protocol.events import DrainFailure, Draining, Rejected
from airflow_streamstate.protocol.terms.order import OnDrainDeadline


@dataclass(frozen=True)
class CallOff:
    """Why a drain is called off.

    Attributes:
        cause: as in ``DrainFailed``.
        on_deadline: the action that follows; ``fail`` where it was cancelled.
        why: the reason, for people.
        answers: the ids of the requests that this answers.
    """

    cause: DrainFailure
    on_deadline: OnDrainDeadline
    why: str
    answers: tuple[str, ...] = ()


class CalledOffError(Exception):
    """Internal: the drain is called off."""

    def __init__(self, call_off: CallOff) -> None:
        super().__init__(call_off.why)
        self.call_off = call_off


class Limits:
    """The limits of one drain, none where the content of its command is lost; ``reached`` says why it is called off."""

    def __init__(self, attempt: Attempt, order: Order) -> None:
        self._attempt = attempt
        self._number = order.command_number
        self._command_id = order.command_id
        self._drain = order.command if isinstance(order.command, DrainNotification) else None
        self._flush_began_at_seconds: float | None = None
        self._looked_at_seconds: float | None = None
        self.reached: CallOff | None = None

    def is_enough(self) -> bool:
        """Whether the drain must be called off before its flush; never turns back."""
        self.reached = self.reached or self._cancelled() or self._late_batches()
        return self.reached is not None

    def check(self) -> None:
        """Raise CalledOffError if the drain must be called off before its flush."""
        if self.is_enough() and self.reached is not None:
            raise CalledOffError(self.reached)

    def check_cancelled(self) -> None:
        """Raise CalledOffError if the drain was cancelled before its flush, after its batches were committed."""
        self.reached = self.reached or self._cancelled()
        if self.reached is not None:
            raise CalledOffError(self.reached)

    def begin_flush(self) -> None:
        """From now on the drain cannot be cancelled, and the deadline of its flush counts."""
        if self._flush_began_at_seconds is not None:
            return
        # Counted from this attempt's first announcement: a look that was cut short gives no more time.
        attempt = self._attempt
        said_at = next(
            (
                event.at
                for event in attempt.reporter.events
                if isinstance(event, Draining)
                and (event.command_id, event.attempt) == (self._command_id, attempt.number)
            ),
            None,
        )
        past_seconds = 0.0 if said_at is None else max(0.0, (attempt.clock.now() - said_at).total_seconds())
        self._flush_began_at_seconds = attempt.clock.monotonic_seconds() - past_seconds

    def is_flush_late(self) -> bool:
        """Whether the flush has taken too long; rejects requests to cancel the drain."""
        for request, number in self._requests():
            self._refuse(request, number)
        drain, began = self._drain, self._flush_began_at_seconds
        if self.reached is None and drain is not None and began is not None and drain.flush_within_seconds is not None:
            taken_seconds = self._attempt.clock.monotonic_seconds() - began
            if taken_seconds > drain.flush_within_seconds:
                why = f"its flush was not committed within {drain.flush_within_seconds:g} s"
                self.reached = CallOff("flush_deadline", drain.on_flush_deadline, why)
        return self.reached is not None

    def flush_left_seconds(self) -> float | None:
        """The time until the flush is late, at least a second; None without a deadline."""
        drain, began = self._drain, self._flush_began_at_seconds
        if drain is None or began is None or drain.flush_within_seconds is None:
            return None
        return max(1.0, drain.flush_within_seconds - (self._attempt.clock.monotonic_seconds() - began))

    def _late_batches(self) -> CallOff | None:
        drain = self._drain
        if drain is None or drain.batches_by_at is None or self._attempt.clock.now() <= drain.batches_by_at:
            return None
        why = f"a batch in flight was not committed by {format_time(drain.batches_by_at)}"
        return CallOff("deadline", drain.on_deadline, why)

    def _cancelled(self) -> CallOff | None:
        requests = self._requests()
        if not requests:
            return None
        newest = requests[-1][0]
        return CallOff(
            "cancelled", "fail", describe_cancelled(newest), tuple(request.command_id for request, _ in requests)
        )

    def _requests(self) -> list[tuple[CancelRequest, int]]:
        """Requests to cancel the drain, read as often as commands are; empty while the store does not answer."""
        attempt, now = self._attempt, self._attempt.clock.monotonic_seconds()
        poll_seconds = attempt.spec.version.settings.command_poll_seconds
        if self._looked_at_seconds is not None and now - self._looked_at_seconds < poll_seconds:
            return []
        self._looked_at_seconds = now
        try:
            return holding_requests(attempt, above=self._number)
        except StreamStateError as error:
            attempt.reporter.outage("a look at the commands", error)
            return []

    def _refuse(self, request: CancelRequest, number: int) -> None:
        self._attempt.reporter.write(
            Rejected,
            command_id=request.command_id,
            command_number=number,
            key="",
            reason="the flush of the drain has begun, and is not taken back; `streamstate status` shows it",
        )
        clean_up(self._attempt)
