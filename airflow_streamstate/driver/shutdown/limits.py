"""What ends a drain before its end: a deadline of it, or somebody who takes it back.

Samza gives a drain a timeout of its own for what is in flight; here the batches in flight have one, and the flush.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_streamstate.driver.attempt.answering import clean_up
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.cancelling import describe_cancelled, holding_requests
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.commands import CancelRequest, DrainNotification, OnDrainDeadline
from airflow_streamstate.protocol.events import DrainFailure, Draining, Rejected


@dataclass(frozen=True)
class CallOff:
    """Why a drain is called off.

    Attributes:
        cause: as in ``DrainFailed``.
        on_deadline: what is to be done; ``fail`` for one that is taken back.
        why: in words.
        answers: the requests that this answers.
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
    """The limits of one drain.

    Args:
        attempt: this attempt.
        order: the drain; one whose command is not known any more has none.
    """

    def __init__(self, attempt: Attempt, order: Order) -> None:
        self._attempt = attempt
        self._number = order.command_number
        self._command_id = order.command_id
        self._drain = order.command if isinstance(order.command, DrainNotification) else None
        self._flush_began_at_seconds: float | None = None
        self._looked_at_seconds: float | None = None
        self._reached: CallOff | None = None

    def is_enough(self) -> bool:
        """Whether it must be called off before its flush; what is so stays so."""
        self._reached = self._reached or self._cancelled() or self._late_batches()
        return self._reached is not None

    def check(self) -> None:
        """Raises CalledOffError: it must be called off before its flush."""
        if self.is_enough() and self._reached is not None:
            raise CalledOffError(self._reached)

    def check_cancelled(self) -> None:
        """Raises CalledOffError: it was taken back before its flush, whose batches are committed by now."""
        self._reached = self._reached or self._cancelled()
        if self._reached is not None:
            raise CalledOffError(self._reached)

    @property
    def reached(self) -> CallOff | None:
        """Why it is called off; None where it is not."""
        return self._reached

    def begin_flush(self) -> None:
        """From here on it cannot be taken back, and has its second deadline."""
        if self._flush_began_at_seconds is None:
            clock, said = self._attempt.clock, self._announced_at()
            before_seconds = 0.0 if said is None else max(0.0, (clock.now() - said).total_seconds())
            self._flush_began_at_seconds = clock.monotonic_seconds() - before_seconds

    def _announced_at(self) -> datetime | None:
        """When this attempt first said that it flushes: a look that was cut short does not give it more time."""
        said = [
            event.at
            for event in self._attempt.reporter.events
            if isinstance(event, Draining)
            and event.command_id == self._command_id
            and event.attempt == self._attempt.number
        ]
        return said[0] if said else None

    def is_flush_late(self) -> bool:
        """Whether the flush has taken too long; answers whoever would take it back now."""
        for request, number in self._requests():
            self._refuse(request, number)
        drain, began = self._drain, self._flush_began_at_seconds
        if self._reached is None and drain is not None and began is not None and drain.flush_within_seconds is not None:
            taken_seconds = self._attempt.clock.monotonic_seconds() - began
            if taken_seconds > drain.flush_within_seconds:
                why = f"its flush was not committed within {drain.flush_within_seconds:g} s"
                self._reached = CallOff("flush_deadline", drain.on_flush_deadline, why)
        return self._reached is not None

    def flush_left_seconds(self) -> float | None:
        """How long until the flush is late, a second at the least; None where it never is."""
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
        """Whoever wants to take it back; looked up as often as commands are, and no outage is a reason to wait."""
        attempt, now = self._attempt, self._attempt.clock.monotonic_seconds()
        poll_seconds = attempt.spec.settings.command_poll_seconds
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
