"""Whether the driver of a rehearsal waits to be handed over, may yet, or never will."""

from __future__ import annotations

from collections.abc import Callable

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.drivers.warm import ATTEMPT, is_handed_over, is_to_wait
from airflow_streamstate.controller.observe.observe import Observer
from airflow_streamstate.launch.interface import LaunchStatus
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.rehearsals import Rehearsal

RAN_ON = "the script ran on"
"""With this begins the note of a rehearsal whose script never ended by itself, so that no second pass could wait."""


class RehearsalWaits:
    """Looks at drivers that wait; changes nothing.

    Args:
        observer: asks the launcher.
        clock: for times.
        is_late: whether no verdict of a rehearsal's driver can come any more.
    """

    def __init__(self, observer: Observer, clock: Clock, is_late: Callable[[Rehearsal], bool]) -> None:
        self._observer = observer
        self._clock = clock
        self._is_late = is_late

    def is_waiting(self, control: StreamControl, rehearsal: Rehearsal) -> bool:
        """As ``Rehearsals.is_waiting``."""
        if self.end_of(control, rehearsal) or control.waiting(rehearsal.rehearsal_id) is None:
            return False
        status = self._status(control, rehearsal)
        return status is not None and status.state == "running"

    def end_of(self, control: StreamControl, rehearsal: Rehearsal) -> str:
        """As ``Rehearsals.waiting_end``."""
        verdict, now = control.verdict(rehearsal.rehearsal_id), self._clock.now()
        if rehearsal.waits_until is None:
            return "it was not asked to wait"
        if is_handed_over(control, rehearsal.rehearsal_id):
            return "it was handed over"
        if verdict is not None and not verdict.can_take_over:
            return f"its rehearsal was not accepted: {verdict.why_not}".removesuffix(": ")
        if verdict is None and self._is_late(rehearsal):
            return "its rehearsal was not over at its deadline"
        if now >= rehearsal.waits_until:
            return f"it waited until {format_time(rehearsal.waits_until)}"
        status = self._status(control, rehearsal)
        if status is None or not status.has_ended:
            return ""
        ran_on = [] if verdict is None else [note for note in verdict.notes if note.startswith(RAN_ON)]
        return f"its driver has ended: {'; '.join((*ran_on, status.reason))}"

    def is_left_alone(self, control: StreamControl, rehearsal: Rehearsal) -> bool:
        """Whether its driver, although there is a verdict, is to live on: it waits, or is about to."""
        if not is_to_wait(rehearsal, control.verdict(rehearsal.rehearsal_id), self._clock.now()):
            return False
        if is_handed_over(control, rehearsal.rehearsal_id):
            return False
        status = self._status(control, rehearsal)
        return status is None or not status.has_ended

    def _status(self, control: StreamControl, rehearsal: Rehearsal) -> LaunchStatus | None:
        handle = self._observer.handle(control, rehearsal.rehearsal_id, ATTEMPT)
        return None if handle is None else self._observer.status(handle)
