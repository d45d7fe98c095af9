"""What every verb works with, and the one way in which a register is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.objects import Stored
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.drivers.launching import Drivers, SparkConnections
from airflow_streamstate.controller.drivers.secrets import LookUp
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.observe.observe import Observer
from airflow_streamstate.errors import ConflictError
from airflow_streamstate.launch.interface import Launcher, LaunchHandle, LaunchStatus
from airflow_streamstate.protocol.register import StreamRegister

# Proving that the driver of an attempt has ended: before its successor, and before the next attempt (1a.8).

AFTER_LAST_WORD_SECONDS = 15.0
"""How long a driver may live on after its terminal event, beside ``exit_grace_seconds``."""
POLL_SECONDS = 0.2


class EndProver:
    """Proves ends.

    Args:
        observer: asks the launcher.
        drivers: closes attempts that no driver has claimed.
        launcher: closes launches that no driver has begun.
        clock: for the bounded wait.
    """

    def __init__(self, observer: Observer, drivers: Drivers, launcher: Launcher, clock: Clock) -> None:
        self._observer = observer
        self._drivers = drivers
        self._launcher = launcher
        self._clock = clock

    def prove(self, control: StreamControl, seen: Observation, *, assume_dead: bool = False) -> None:
        """See that nothing of the observed attempt runs, and that nothing of it ever will.

        A driver that has said its last word is given a moment to be gone.

        Raises:
            ConflictError: it runs, or that is unknown (and ``assume_dead`` was not asked for).
        """
        if seen.is_closed:
            return
        if seen.handle is None:
            # Claimed, and launched by a controller that died before it recorded where.
            if seen.is_claimed and not assume_dead:
                raise _unknown(seen, "nobody recorded how it was launched")
        elif not self._is_only_assumed(seen.handle, seen, assume_dead=assume_dead):
            return
        if seen.claim is None and seen.terminal is None:
            self._close(control, seen)

    def _is_only_assumed(self, handle: LaunchHandle, seen: Observation, *, assume_dead: bool) -> bool:
        """Whether the end is taken on trust; False where it is proven, so that nothing else is to be done."""
        status = self._settled(handle, seen)
        if status.has_ended:
            return False
        if status.state == "unknown":
            if assume_dead:
                return True
            raise _unknown(seen, status.reason)
        raise ConflictError(
            "the driver is still running",
            stream_id=seen.stream_id,
            deployment_id=seen.deployment_id,
            attempt=seen.attempt,
            reason=status.reason,
            next_step=f"Wait, or end it: `streamstate kill {seen.stream_id}`.",
        )

    def _close(self, control: StreamControl, seen: Observation) -> None:
        if not self._drivers.close(
            control, seen.deployment_id, seen.attempt, "given up before a driver had claimed it"
        ):
            raise ConflictError(
                "the driver has just come to life",
                stream_id=seen.stream_id,
                deployment_id=seen.deployment_id,
                attempt=seen.attempt,
                next_step=f"`streamstate status {seen.stream_id}` shows it.",
            )

    def _settled(self, handle: LaunchHandle, seen: Observation) -> LaunchStatus:
        patience = seen.spec.settings.exit_grace_seconds + AFTER_LAST_WORD_SECONDS if seen.terminal is not None else 0.0
        deadline = self._clock.monotonic_seconds() + patience
        while True:
            status = self._observer.status(handle)
            if status.state == "pending":
                return self._launcher.kill(handle, 0.0)
            if status.state != "running" or self._clock.monotonic_seconds() >= deadline:
                return status
            self._clock.sleep(POLL_SECONDS)


def _unknown(seen: Observation, reason: str) -> ConflictError:
    return ConflictError(
        "nobody can say whether the old driver has ended",
        stream_id=seen.stream_id,
        deployment_id=seen.deployment_id,
        attempt=seen.attempt,
        reason=reason,
        next_step="Look on the machine where it ran. Only when it is surely dead: --assume-dead.",
    )


@dataclass(frozen=True)
class ControllerContext:
    """What the verbs of one controller share.

    Attributes:
        home: of the streams.
        launcher: starts drivers, and answers for them.
        clock: for times, ids and waits.
        requested_by: the caller, for records.
        observer: looks at deployments.
        drivers: launches attempts.
        endings: proves their ends.
    """

    home: Home
    launcher: Launcher
    clock: Clock
    requested_by: str
    observer: Observer
    drivers: Drivers
    endings: EndProver

    @classmethod
    def of(
        cls,
        home: Home,
        launcher: Launcher,
        clock: Clock,
        requested_by: str,
        spark_connections: SparkConnections | None,
        look_up: LookUp | None = None,
    ) -> ControllerContext:
        """The means over a home and a launcher."""
        observer = Observer(home, launcher, clock)
        drivers = Drivers(home, launcher, clock, spark_connections, look_up)
        endings = EndProver(observer, drivers, launcher, clock)
        return cls(home, launcher, clock, requested_by, observer, drivers, endings)

    def update_register(
        self,
        control: StreamControl,
        edit: Callable[[StreamRegister], StreamRegister],
        *,
        since: Stored[StreamRegister] | None = None,
    ) -> Stored[StreamRegister]:
        """Change the register in the name of this controller's caller, as ``StreamControl.update_register``."""
        return control.update_register(edit, since=since, by=self.requested_by)

    def signed(self) -> dict[str, Any]:
        """The writer, time and write id of a register that is begun (Law 8)."""
        return {
            "write_id": self.clock.new_uuid(),
            "updated_at": self.clock.now(),
            "updated_by": self.requested_by,
        }
