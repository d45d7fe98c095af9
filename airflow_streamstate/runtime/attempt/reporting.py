"""What a driver tells: events for the controllers, lines for whoever reads its log.

A store that does not answer never ends the job: events that must be written are tried until they are, notes wait for
better times, and the log says so once in a while.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable
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
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import Noted
from airflow_streamstate.protocol.redaction import redact_text, shortened

AnyEvent = TypeVar("AnyEvent", bound=Event)
Say = Callable[[str], None]

OUTAGES: tuple[type[StreamStateError], ...] = (
    UnavailableError,
    OutcomeUnknownError,
    ConflictError,
    InvalidRequestError,
)
"""What a store says while it is out of reach, overloaded, full, or forbidden for a while."""
PASSING = (UnavailableError, OutcomeUnknownError, StoreRefusedError)
"""What passes by itself, or by what an operator does to the store, once a query has run on its checkpoint."""
RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 5.0
OUTAGE_LINE_SECONDS = 30.0
MAX_WAITING = 100
MAX_TEXT_CHARACTERS = 8_000
MAX_REASON_CHARACTERS = 300
_FREE_TEXTS = ("error", "cause", "traceback", "text", "reason", "repairs", "choices", "facts", "explanation", "remarks")


def say_to_driver_log(text: str) -> None:
    """One line in the driver's log; one that its disk has no room for is lost, and takes no thread with it."""
    with contextlib.suppress(OSError, ValueError):  # full, or closed by the script
        print(f"streamstate: {text}", file=sys.stderr, flush=True)


class Reporter:
    """Writes the events of one attempt, and remembers all events of its deployment.

    Args:
        journal: the deployment's.
        attempt: this attempt.
        clock: for times, ids and waits.
        say: writes one line for people.
        secrets: values that no event and no line may show.
    """

    def __init__(
        self, journal: Journal, attempt: int, clock: Clock, say: Say = say_to_driver_log, secrets: Iterable[str] = ()
    ) -> None:
        self.journal = journal
        self.attempt = attempt
        self.clock = clock
        self.silenced = False
        self._say = say
        self._secrets = tuple(secrets)
        self._events: list[Event] = []
        self._last_number = 0
        self._waiting: list[Event] = []
        self._tried: set[str] = set()
        self._guard = threading.RLock()
        self._outage_said_at: float | None = None
        self._out_since: float | None = None

    @property
    def events(self) -> tuple[Event, ...]:
        """Every readable event of the deployment that is known here, also those of earlier attempts, in order."""
        return tuple(self._events)

    def load(self) -> None:
        """Read the events that there are; raises what the store raises."""
        for entry in self.journal.events(self._last_number):
            self._remember(entry)

    def redacted(self, text: str) -> str:
        """The text with every secret of the deployment hidden."""
        return redact_text(text, self._secrets)

    def shortened(self, text: str, characters: int, *, from_end: bool = False, in_a_line: bool = False) -> str:
        """At most so many characters of the text, as ``redaction.shortened`` cuts it."""
        return shortened(text, self._secrets, characters, from_end=from_end, in_a_line=in_a_line)

    def say(self, text: str) -> None:
        """One line for people."""
        self._say(self.redacted(text))

    def outage(self, doing: str, error: StreamStateError) -> None:
        """Say that the store does not do its part just now; at most twice a minute."""
        now = self.clock.monotonic_seconds()
        if self._out_since is None:
            self._out_since = now
        if self._outage_said_at is None or now - self._outage_said_at >= OUTAGE_LINE_SECONDS:
            self._outage_said_at = now
            self.say(f"the store is out of reach, the job goes on ({doing}: {error})")

    def answered(self) -> None:
        """The store did its part: said once after an outage."""
        since, self._out_since = self._out_since, None
        if since is not None and self._outage_said_at is not None:
            self._outage_said_at = None
            self.say(f"the store is within reach again, after {self.clock.monotonic_seconds() - since:.0f} s")

    def write(self, kind: type[AnyEvent], **fields: object) -> AnyEvent:
        """Write an event that must be there; comes back when it is.

        Raises:
            FencedError: this attempt was replaced and writes nothing more (Law 4).
        """
        event = self._event(kind, fields)
        pause = RETRY_SECONDS
        while True:
            self._refuse_if_silenced()
            try:
                self._flush()
                self._append(event)
            except OUTAGES as error:
                self.outage(f"event {kind.kind}", error)
            else:
                return event
            self.clock.sleep(pause)
            pause = min(pause * 2, MAX_RETRY_SECONDS)

    def try_write(self, kind: type[Event], **fields: object) -> bool:
        """Write an event once, also where this attempt is silenced; whether it is certain to be there."""
        try:
            self._append(self._event(kind, fields))
        except StreamStateError:
            return False
        return True

    def note(self, text: str, **facts: object) -> None:
        """Tell people something that changes no state: in the log now, as an event as soon as the store takes it."""
        self.say(text)
        if len(self._waiting) < MAX_WAITING:
            self.write_soon(Noted, text=text, facts=facts)

    def write_soon(self, kind: type[Event], **fields: object) -> None:
        """Write an event now, or once the store takes it, before any later one; never waits."""
        with self._guard:
            self._waiting.append(self._event(kind, fields))
        self.flush()

    def flush(self) -> None:
        """Write the events that wait, if the store takes them."""
        if self.silenced:
            return
        try:
            self._flush()
        except OUTAGES as error:
            self.outage("events that wait", error)

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
        if isinstance(value, tuple | list):
            return tuple(self._shown(item) for item in value)
        if isinstance(value, dict):
            return {name: self._shown(item) for name, item in value.items()}
        return value

    def _refuse_if_silenced(self) -> None:
        if self.silenced:
            raise FencedError("this attempt has been replaced and writes nothing more", attempt=self.attempt)
