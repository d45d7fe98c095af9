"""The latch (1a.11), which ends reading, and the fence: a replaced attempt writes nothing more (Law 4)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.objects import Stored
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.attempt.reports import Reporter
from airflow_streamstate.errors import DataError, FencedError, HomeAwayError, StreamStateError, UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import Command
from airflow_streamstate.protocol.events import Fenced
from airflow_streamstate.protocol.records import DeploymentSpec, StreamRegister

LatchState = Literal["open", "stop", "drain", "snapshot"]
EndedAs = Literal["stopped", "drained", "failed", "finished", "superfluous"]


@dataclass(frozen=True)
class Order:
    """What closed the latch.

    Attributes:
        command_id, command_number: "" and 0 where it was no command.
        command: its content; None where it was no command, or its content is lost.
    """

    command_id: str = ""
    command_number: int = 0
    command: Command | None = None


def order_of(command: Command, number: int) -> Order:
    return Order(command.command_id, number, command)


class Latch:
    """Open while queries may read input; closed for a stop, drain or snapshot; released when the shutdown is complete.

    After a snapshot, or a drain that was called off, it is reopened.

    Attributes:
        flush_has_begun: a query that starts now is not run any more.
        is_failing: it was closed because a query failed.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._owner: int | None = None
        self.state: LatchState = "open"
        self.order = Order()
        self.outcome: EndedAs | None = None
        self.released_at_seconds: float | None = None
        self.flush_has_begun = False
        self.is_failing = False

    @contextmanager
    def held(self, *, wait: bool = True) -> Iterator[bool]:
        """The lock of ``start()``, reentrant per thread. Without ``wait``: yields False if another thread holds it."""
        if not self._lock.acquire(blocking=wait):
            yield False
            return
        before, self._owner = self._owner, threading.get_ident()
        try:
            yield True
        finally:
            self._owner = before
            self._lock.release()

    @property
    def is_held_here(self) -> bool:
        """Whether this thread is inside ``held``; the simulator has one thread for all, and waits then."""
        return self._owner == threading.get_ident()

    @property
    def is_open(self) -> bool:
        """Whether queries may read input."""
        return self.state == "open"

    @property
    def is_released(self) -> bool:
        """Whether the shutdown is complete, so that every wait of the script returns."""
        return self.released_at_seconds is not None

    def close(self, state: Literal["stop", "drain", "snapshot"], order: Order) -> bool:
        """Close it; False if it was closed already."""
        with self.held():
            if not self.is_open:
                return False
            self.state, self.order = state, order
            return True

    def reopen(self) -> None:
        """The order cannot be obeyed, and nothing was done yet: the queries run on."""
        with self.held():
            self.state, self.order, self.flush_has_begun = "open", Order(), False

    def begin_flush(self) -> None:
        self.flush_has_begun = True

    def note_failing(self) -> None:
        self.is_failing = True

    def release(self, outcome: EndedAs) -> None:
        """Flush, snapshot and terminal event are done."""
        self.outcome = outcome
        if self.released_at_seconds is None:
            self.released_at_seconds = self._clock.monotonic_seconds()


# Whether the register still names this attempt; a replaced attempt writes nothing more (Law 4).


class Fence:
    """Checks the register for one attempt.

    Args:
        reporter: silenced when the attempt is fenced.
        has_active_queries: whether Spark runs a query of this attempt.

    Attributes:
        is_fenced: this attempt is known to be replaced.
    """

    def __init__(
        self,
        control: StreamControl,
        spec: DeploymentSpec,
        number: int,
        reporter: Reporter,
        has_active_queries: Callable[[], bool],
    ) -> None:
        self._control = control
        self._spec = spec
        self._number = number
        self._reporter = reporter
        self._has_active_queries = has_active_queries
        self._guard = threading.Lock()
        self.is_fenced = False
        self._register_version: str | None = None
        self._named_at: datetime | None = None

    def check(self) -> None:
        """Raise FencedError if this attempt is known to be replaced; does not read the store."""
        if self.is_fenced:
            raise self.error()

    def names_this(self, register: StreamRegister) -> bool:
        return (register.deployment_id, register.attempt) == (self._spec.deployment_id, self._number)

    def note_named(self, register: StreamRegister) -> None:
        """Note that a register names this attempt: an earlier register replaces it no more."""
        self._named_at = register.updated_at

    def check_current(self) -> None:
        """Check that this attempt was not replaced; before every snapshot and every terminal event.

        A missing register, or one older than this attempt, does not replace it: that is a damaged home, or a restored
        copy.

        Raises:
            FencedError: it was replaced; from now on nothing more is written (Law 4).
            UnavailableError: that cannot be decided now.
        """
        self.check()
        stored = self._register()
        presence = self._control.presence
        if stored is not None and self.names_this(stored.value):
            if stored.version != self._register_version:
                self._check_claim()
                self._register_version = stored.version
                self.note_named(stored.value)
            presence.note_seen()
            return
        if stored is None:
            self._refuse_lost_register()
        elif (stored.value.fencing_token, stored.value.attempt) <= (self._spec.fencing_token, self._number):
            presence.need()  # excludes another home, in which this stream was started from scratch
            self._refuse_earlier(stored.value)
        self.close(None if stored is None else stored.value)
        raise self.error()

    def close(self, register: StreamRegister | None) -> None:
        """Silence this attempt after one last event under its own keys; ``register`` names another attempt."""
        if not self.close_unclaimed():
            return
        current = ("", 0) if register is None else (register.deployment_id or "", register.attempt)
        self._reporter.say(f"this attempt has been replaced by {current[0]} attempt {current[1]}; it stops now")
        self._reporter.try_write(Fenced, current_deployment_id=current[0], current_attempt=current[1])

    def close_unless_named(self) -> bool:
        """Silence this attempt, unless the register names it and no replacement is intended; whether it did."""
        try:
            stored = self._control.register()
        except StreamStateError:
            stored = None
        if stored is not None and self.names_this(stored.value) and stored.value.intent is None:
            return False
        self.close(None)
        return True

    def close_unclaimed(self) -> bool:
        """Silence this attempt without an event, as for a driver that does not own it; False where it was silent."""
        with self._guard:
            was_open, self.is_fenced = not self.is_fenced, True
        self._reporter.silenced = True
        return was_open

    def error(self) -> FencedError:
        return FencedError(
            "this attempt has been replaced and will stop without writing",
            deployment_id=self._spec.deployment_id,
            attempt=self._number,
            next_step="`streamstate status` shows which deployment is current.",
        )

    def _check_claim(self) -> None:
        """Check that the claim is this driver's: a stream that was deployed again, here or in another home at this
        place, has an attempt of the same name."""
        presence = self._control.presence
        if not presence.is_bound or presence.has_own_claim():
            return
        if presence.claim_there() is None or not presence.has_own_record():
            raise HomeAwayError(
                "another home is in the place of the home in which this attempt was claimed",
                home=self._control.home.uri,
                next_step="Restore the home, or end this driver by hand. The driver runs on, and writes nothing there.",
            )
        self.close(None)
        raise self.error()

    def _refuse_lost_register(self) -> None:
        """Return only where the stream was deleted, and no query of this attempt runs.

        Raises:
            UnavailableError: the home is missing, or only its register, or queries run.
        """
        self._control.presence.need()
        spec_key = layout.spec_key(self._spec.stream_id, self._spec.deployment_id)
        if self._control.home.head(spec_key) is not None or self._has_active_queries():
            raise UnavailableError(
                "the register of the stream is gone",
                key=layout.register_key(self._spec.stream_id),
                home=self._control.home.uri,
                next_step="`streamstate status` shows how to restore it. The job runs on, and the driver obeys pending"
                " commands when the register is back.",
            )

    def _refuse_earlier(self, register: StreamRegister) -> None:
        """Return only if the register, which names an earlier attempt, was written after one that named this attempt:
        the stream was deleted and started again.

        Raises:
            HomeAwayError: it is older, as in a copy of the home that was made before this attempt.
        """
        if self._named_at is not None and register.updated_at <= self._named_at:
            raise HomeAwayError(
                "the register of the stream was written before this attempt became current",
                home=self._control.home.uri,
                names=f"{register.deployment_id} attempt {register.attempt}",
                updated_at=register.updated_at,
                next_step="Restore the newer state of the home; or end this driver by hand, then resume. It runs"
                " on without a heartbeat.",
            )

    def _register(self) -> Stored[StreamRegister] | None:
        try:
            return self._control.register()
        except DataError as error:
            # Without knowing the current attempt the driver waits, as for a store that does not answer (Law 7).
            raise UnavailableError(
                "the register of the stream cannot be read",
                reason=str(error.context.get("reason") or error.message),
                next_step="Repair stream.json. The job runs on; the driver obeys pending commands when it is readable.",
            ) from error
