"""Whether this attempt is still the one that the register names; once it is not, it writes nothing more (Law 4)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime

from airflow_streamstate.control.objects import Stored
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.attempt.reporting import Reporter
from airflow_streamstate.errors import DataError, FencedError, HomeAwayError, UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Fenced
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.register import StreamRegister


class Fence:
    """The look at the register, and what it found.

    Args:
        control: the stream's control objects.
        spec: the deployment.
        number: which attempt of it this is.
        reporter: of this attempt; silenced when the attempt is fenced.
        has_active_queries: whether Spark runs a query of this attempt.
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
        self._is_fenced = False
        self._register_version: str | None = None
        self._named_at: datetime | None = None

    @property
    def is_fenced(self) -> bool:
        """Whether it is known that this attempt was replaced."""
        return self._is_fenced

    def check(self) -> None:
        """Raise where it is known that this attempt was replaced; asks no store.

        Raises:
            FencedError: it was.
        """
        if self._is_fenced:
            raise self.error()

    def names_this(self, register: StreamRegister) -> bool:
        """Whether a register names this attempt."""
        return (register.deployment_id, register.attempt) == (self._spec.deployment_id, self._number)

    def note_named(self, register: StreamRegister) -> None:
        """Note that a register names this attempt: one that was written before that replaces it no more."""
        self._named_at = register.updated_at

    def check_current(self) -> None:
        """See that this attempt was not replaced; before every snapshot and every terminal event.

        A register counts in the home in which this attempt was claimed, and in one that was restored in its place and
        has gone on from it. The absence of a register replaces no attempt, nor does one that was written before it: it
        is a copy, put back.

        Raises:
            FencedError: it was; from now on nothing more is written (Law 4).
            UnavailableError: that cannot be told now.
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
            presence.need()  # else another home, in which this stream was begun anew
            self._refuse_earlier(stored.value)
        self.close(None if stored is None else stored.value)
        raise self.error()

    def close(self, register: StreamRegister | None) -> None:
        """Note that this attempt was replaced: one last event under its own keys, then silence.

        Args:
            register: the one that names another attempt; None where none was seen.
        """
        if not self._close():
            return
        current = ("", 0) if register is None else (register.deployment_id or "", register.attempt)
        self._reporter.say(f"this attempt has been replaced by {current[0]} attempt {current[1]}; it stops now")
        self._reporter.try_write(Fenced, current_deployment_id=current[0], current_attempt=current[1])

    def close_unclaimed(self) -> None:
        """Note that this driver is not the attempt: it wrote nothing, and writes nothing."""
        self._close()

    def error(self) -> FencedError:
        """The error that ends whatever this attempt was doing."""
        return FencedError(
            "this attempt has been replaced and will stop without writing",
            deployment_id=self._spec.deployment_id,
            attempt=self._number,
            next_step="`streamstate status` shows which deployment is current.",
        )

    def _close(self) -> bool:
        with self._guard:
            was_open, self._is_fenced = not self._is_fenced, True
        self._reporter.silenced = True
        return was_open

    def _check_claim(self) -> None:
        """See that a register which names this attempt means this driver: a stream that was deployed anew, in this
        home or in another one at its place, has an attempt of the same name."""
        presence = self._control.presence
        if not presence.is_bound or presence.has_own_claim():
            return
        if presence.claim_there() is None or not presence.has_own_record():
            raise self._not_our_home()
        self.close(None)
        raise self.error()

    def _refuse_lost_register(self) -> None:
        """Return only where the stream was deleted, and nothing of this attempt runs any more.

        Raises:
            UnavailableError: its home is not there, or lacks the register alone, or queries run.
        """
        self._control.presence.need()
        spec_key = layout.spec_key(self._spec.stream_id, self._spec.deployment_id)
        if self._control.home.head(spec_key) is not None or self._has_active_queries():
            raise UnavailableError(
                "the register of the stream is gone",
                key=layout.register_key(self._spec.stream_id),
                home=self._control.home.uri,
                next_step="`streamstate status` shows how it is brought back; the job runs on, and goes on with what"
                " it was told when it is there.",
            )

    def _refuse_earlier(self, register: StreamRegister) -> None:
        """Return only where a register that names what came before this attempt was written after one that names this
        attempt: of a stream that was deleted and begun anew.

        Raises:
            HomeAwayError: it is an earlier one, as in a copy of the home that was made before this attempt.
        """
        if self._named_at is not None and register.updated_at <= self._named_at:
            raise HomeAwayError(
                "the register of the stream was written before this attempt became current",
                home=self._control.home.uri,
                names=f"{register.deployment_id} attempt {register.attempt}",
                updated_at=register.updated_at,
                next_step="Bring the newer state of the home back; or end this driver by hand, then resume. It runs on"
                " without a sign of life.",
            )

    def _not_our_home(self) -> HomeAwayError:
        return HomeAwayError(
            "another home lies in the place of that in which this attempt was claimed",
            home=self._control.home.uri,
            next_step="Bring the home back, or end this driver by hand; it runs on, and writes nothing there.",
        )

    def _register(self) -> Stored[StreamRegister] | None:
        try:
            return self._control.register()
        except DataError as error:
            # It does not say which attempt is current: as good as a store that does not answer, until it is mended
            # (Law 7).
            raise UnavailableError(
                "the register of the stream cannot be read",
                reason=str(error.context.get("reason") or error.message),
                next_step="Mend stream.json; the job runs on, and goes on with what it was told when it is readable.",
            ) from error
