"""Events for the controllers, and lines for the driver's log.

A store outage never ends the job: required events are retried until the store takes them, notes wait.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.journal import Journal, NumberedEvent
from airflow_streamstate.errors import (
    ConflictError,
    FencedError,
    InvalidRequestError,
    OutcomeUnknownError,
    StoreRefusedError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.protocol.events import Event, Noted
from airflow_streamstate.protocol.redaction import redact_text, shortened
from airflow_streamstate.retry import Retry

AnyEvent = TypeVar("AnyEvent", bound=Event)
Say = Callable[[str], None]

OUTAGES: tuple[type[StreamStateError], ...] = (
    UnavailableError,
    OutcomeUnknownError,
    ConflictError,
    InvalidRequestError,
)
"""The errors of a store that is out of reach, overloaded, full, or forbidden for a while."""
PASSING = (UnavailableError, OutcomeUnknownError, StoreRefusedError)
"""Errors that pass by themselves or when an operator repairs the store, once a query has run on its checkpoint."""
UNTIL_TAKEN = Retry(pause_seconds=0.5, growth=2, most_pause_seconds=5.0)
"""Retry until the store takes it, or the attempt is replaced."""
OUTAGE_LINE_SECONDS = 30.0
MAX_WAITING = 100
MAX_TEXT_CHARACTERS = 8_000
MAX_REASON_CHARACTERS = 300
_FREE_TEXTS = (
    "error",
    "cause",
    "traceback",
    "text",
    "reason",
    "repairs",
    "choices",
    "facts",
    "explanation",
    "remarks",
    "next_step",
)


def say_to_driver_log(text: str) -> None:
    """Write one line to the driver's log; a line that cannot be written is lost."""
    with contextlib.suppress(OSError, ValueError):  # full, or closed by the script
        print(f"streamstate: {text}", file=sys.stderr, flush=True)


@dataclass
class _Outage:
    """The activities that fail with one error message, in monotonic seconds."""

    since: float
    last_at: float
    is_of_store: bool
    doings: set[str] = field(default_factory=set)
    is_said: bool = False


class Reporter:
    """Writes the events of one attempt, and keeps all events of its deployment.

    Args:
        say: writes one line to the driver's log.
        secrets: values to redact from every event and line.

    Attributes:
        when_written: called after each event that is written; raises nothing.
    """

    def __init__(
        self, journal: Journal, attempt: int, clock: Clock, say: Say = say_to_driver_log, secrets: Iterable[str] = ()
    ) -> None:
        self.journal = journal
        self.attempt = attempt
        self.clock = clock
        self.silenced = False
        self.when_written: Callable[[], None] = lambda: None
        self._say = say
        self._secrets = tuple(secrets)
        self._events: list[Event] = []
        self._last_number = 0
        self._waiting: list[Event] = []
        self._tried: set[str] = set()
        self._guard = threading.RLock()
        self._outages: dict[str, _Outage] = {}
        self._outages_said_at: dict[str, float] = {}

    @property
    def events(self) -> tuple[Event, ...]:
        """The readable events of the deployment known so far, of earlier attempts too, in order."""
        return tuple(self._events)

    def load(self) -> None:
        """Read new events; raises what the store raises."""
        for entry in self.journal.events(self._last_number):
            self._remember(entry)

    def redacted(self, text: str) -> str:
        return redact_text(text, self._secrets)

    def shortened(self, text: str, characters: int, *, from_end: bool = False, in_a_line: bool = False) -> str:
        """As ``protocol.redaction.shortened``, with the deployment's secrets."""
        return shortened(text, self._secrets, characters, from_end=from_end, in_a_line=in_a_line)

    def say(self, text: str) -> None:
        self._say(self.redacted(text))

    def outage(self, doing: str, error: StreamStateError) -> None:
        """Report that something fails for now and is retried, at most twice a minute per error message.

        ``answered`` with the same ``doing`` ends the outage.
        """
        now = self.clock.monotonic_seconds()
        found = self._outages.get(error.message)
        if found is None or now - found.last_at > OUTAGE_LINE_SECONDS:
            found = self._outages[error.message] = _Outage(now, now, isinstance(error, OUTAGES))
        found.last_at = now
        found.doings.add(doing)
        said_at = self._outages_said_at.get(error.message)
        if said_at is None or now - said_at >= OUTAGE_LINE_SECONDS:
            self._outages_said_at[error.message] = now
            found.is_said = True
            what = (
                "the store is out of reach, and is asked again"
                if found.is_of_store
                else "this failed and is tried again"
            )
            self.say(f"{what} ({doing}: {error})")

    def answered(self, doing: str) -> None:
        """An activity succeeded: report it once if it had failed before."""
        for message, found in list(self._outages.items()):
            if doing in found.doings and self._outages.pop(message, None) is not None and found.is_said:
                what = "the store is within reach again" if found.is_of_store else "this works again"
                self.say(f"{what}, after {self.clock.monotonic_seconds() - found.since:.0f} s ({doing})")

    def write(self, kind: type[AnyEvent], **fields: object) -> AnyEvent:
        """Write a required event; returns when it is written. Raises FencedError once silenced (Law 4)."""
        event = self._event(kind, fields)

        def append() -> None:
            self._refuse_if_silenced()
            self._flush()
            self._append(event)

        doing = f"event {kind.kind}"
        UNTIL_TAKEN.call(self.clock, append, OUTAGES, lambda error: self.outage(doing, error))
        self.answered(doing)
        return event

    def try_write(self, kind: type[Event], **fields: object) -> bool:
        """Write an event once, even where this attempt is silenced; whether it is certainly written."""
        try:
            self._append(self._event(kind, fields))
        except StreamStateError:
            return False
        return True

    def note(self, text: str, **facts: object) -> None:
        """Report something that changes no state: in the log now, as an event as soon as the store takes it."""
        self.say(text)
        if len(self._waiting) < MAX_WAITING:
            self.write_soon(Noted, text=text, facts=facts)

    def write_soon(self, kind: type[Event], **fields: object) -> None:
        """Write an event now or as soon as the store takes it, before any later one; never waits."""
        with self._guard:
            self._waiting.append(self._event(kind, fields))
        self.flush()

    def flush(self) -> None:
        """Write the waiting events if the store takes them."""
        if self.silenced:
            return
        try:
            self._flush()
        except OUTAGES as error:
            self.outage("events that wait", error)
        else:
            self.answered("events that wait")

    def _flush(self) -> None:
        with self._guard:
            while self._waiting:
                self._append(self._waiting[0])
                del self._waiting[0]

    def _append(self, event: Event) -> None:
        with self._guard:
            if event.write_id in self._tried:
                self.load()  # the earlier try may have landed (Law 8)
                if any(known.write_id == event.write_id for known in self._events):
                    return
            self._tried.add(event.write_id)
            self._last_number = self.journal.append(event, after=self._last_number)
            self._events.append(event)
        self.when_written()

    def _remember(self, entry: NumberedEvent) -> None:
        with self._guard:
            if entry.number > self._last_number:
                self._last_number = entry.number
                if entry.event is not None:
                    self._events.append(entry.event)

    def _event(self, kind: type[AnyEvent], fields: dict[str, object]) -> AnyEvent:
        shown = {name: self._shown(value) if name in _FREE_TEXTS else value for name, value in fields.items()}
        return kind(
            stream_id=self.journal.stream_id,
            deployment_id=self.journal.deployment_id,
            attempt=self.attempt,
            at=self.clock.now(),
            write_id=self.clock.new_uuid(),
            **shown,
        )

    def _shown(self, value: object) -> object:
        if isinstance(value, str):
            return self.shortened(value, MAX_TEXT_CHARACTERS)
        if isinstance(value, (tuple, list)):
            return tuple(self._shown(item) for item in value)
        if isinstance(value, dict):
            return {name: self._shown(item) for name, item in value.items()}
        return value

    def _refuse_if_silenced(self) -> None:
        if self.silenced:
            raise FencedError("this attempt has been replaced and writes nothing more", attempt=self.attempt)
