"""The context that every verb of one controller shares, and the proof that a driver has ended (1a.8)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.objects import Stored
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.observe.observer import Observer
from airflow_streamstate.errors import ConflictError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.interface import Launcher, LaunchHandle, LaunchStatus
from airflow_streamstate.launch.launchers import Launchers
from airflow_streamstate.protocol.records import StreamRegister

if TYPE_CHECKING:
    from airflow_streamstate.controller.drivers.driver_launch import Drivers, SparkConnections
    from airflow_streamstate.controller.drivers.secret_lookup import LookUp

AFTER_LAST_WORD_SECONDS = 15.0
"""How long a driver may live on after its terminal event, in addition to ``exit_grace_seconds``."""
POLL_SECONDS = 0.2
SILENCE_POLL_SECONDS = 2.0
SILENCE_MARGIN_SECONDS = 15.0
"""Beyond ``lost_after_seconds``: processes that end take their last heartbeat some seconds after the report."""


class EndProver:
    """Proves that the driver of an attempt has ended, before its successor or the next attempt starts (1a.8)."""

    def __init__(self, observer: Observer, drivers: Drivers, launcher: Launcher, clock: Clock) -> None:
        self._observer = observer
        self._drivers = drivers
        self._launcher = launcher
        self._clock = clock

    def prove(self, control: StreamControl, seen: Observation, *, assume_dead: bool = False) -> None:
        """Make sure that no driver of the observed attempt runs or ever will.

        Waits a bounded time for a driver that has written its terminal event, and for the silence of one whose end its
        cluster only reports.

        Raises:
            ConflictError: the driver runs, or its state is unknown and ``assume_dead`` is false.
        """
        if seen.is_closed:
            return
        if seen.handle is None:
            # The controller that launched it died before it recorded the launch.
            if seen.is_claimed and not assume_dead:
                raise _unknown(seen, "no launch of it is recorded")
        else:
            status = self._settled(seen.handle, seen)
            if status.reported_end and not assume_dead:
                status = self.silent(control, seen, status)
            if status.has_ended:
                return
            if status.state != "unknown":
                next_step = f"Wait, or end it: `streamstate kill {seen.stream_id}`."
                raise _conflict("the driver is still running", seen, next_step, reason=status.reason)
            if not assume_dead:
                raise _unknown(seen, status.reason)
        if seen.claim is None and seen.terminal is None:
            why = "abandoned before a driver had claimed it"
            if not self._drivers.close(control, seen.deployment_id, seen.attempt, why):
                next_step = f"`streamstate status {seen.stream_id}` shows it."
                raise _conflict("the driver has just started", seen, next_step)

    def silent(self, control: StreamControl, seen: Observation, status: LaunchStatus) -> LaunchStatus:
        """Wait until a driver of a reported end counts as ended by its silence (``with_believed_end``), or shows life.

        Returns:
            The status by then: ``gone``, or ``unknown`` for one that still writes.
        """
        limit_seconds = seen.spec.version.settings.lost_after_seconds
        deadline = self._clock.monotonic_seconds() + limit_seconds + SILENCE_MARGIN_SECONDS
        while status.reported_end and self._clock.monotonic_seconds() < deadline:
            now = self._observer.look(control, control.need_register(), seen.deployment_id)
            if now.attempt != seen.attempt or now.launch_status is None:
                return status
            status = now.launch_status
            if status.reported_end:
                self._clock.sleep(min(SILENCE_POLL_SECONDS, limit_seconds))
        return status

    def _settled(self, handle: LaunchHandle, seen: Observation) -> LaunchStatus:
        patience = (
            seen.spec.version.settings.exit_grace_seconds + AFTER_LAST_WORD_SECONDS
            if seen.terminal is not None
            else 0.0
        )
        deadline = self._clock.monotonic_seconds() + patience
        while True:
            status = self._observer.status(handle)
            if status.state == "pending":
                return self._launcher.kill(handle, 0.0)
            if status.state != "running" or self._clock.monotonic_seconds() >= deadline:
                return status
            self._clock.sleep(POLL_SECONDS)


def _unknown(seen: Observation, reason: str) -> ConflictError:
    next_step = "Look on the machine where it ran. Only when it is surely dead: --assume-dead."
    return _conflict("it is unknown whether the old driver has ended", seen, next_step, reason=reason)


def _conflict(fact: str, seen: Observation, next_step: str, **facts: str) -> ConflictError:
    return ConflictError(
        fact,
        stream_id=seen.stream_id,
        deployment_id=seen.deployment_id,
        attempt=seen.attempt,
        **facts,
        next_step=next_step,
    )


@dataclass(frozen=True)
class ControllerContext:
    """What the verbs of one controller share.

    Attributes:
        requested_by: the caller's name, for records.
        spark_connections: resolves ``spark_conn_id``; None if there is no Airflow to ask.
        look_up: resolves references to secrets; None for this process's environment alone.
    """

    home: Home
    launcher: Launchers
    clock: Clock
    requested_by: str
    observer: Observer
    spark_connections: SparkConnections | None = None
    look_up: LookUp | None = None

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
        """The context of a controller over this home and launcher."""
        launchers = Launchers.of(launcher, clock)
        observer = Observer(home, launchers, clock)
        return cls(home, launchers, clock, requested_by, observer, spark_connections, look_up)

    @cached_property
    def drivers(self) -> Drivers:
        """Launches drivers; imported when it is first used: a verb that only looks launches none."""
        from airflow_streamstate.controller.drivers.driver_launch import Drivers

        return Drivers(self.home, self.launcher, self.clock, self.spark_connections, self.look_up)

    @cached_property
    def endings(self) -> EndProver:
        """Proves that drivers have ended."""
        return EndProver(self.observer, self.drivers, self.launcher, self.clock)

    def update_register(
        self,
        control: StreamControl,
        edit: Callable[[StreamRegister], StreamRegister],
        *,
        since: Stored[StreamRegister] | None = None,
    ) -> Stored[StreamRegister]:
        """``StreamControl.update_register`` in the name of this controller's caller."""
        return control.update_register(edit, since=since, by=self.requested_by)

    def signed(self) -> dict[str, Any]:
        """The write id, time and writer of a new register (Law 8)."""
        return {
            "write_id": self.clock.new_uuid(),
            "updated_at": self.clock.now(),
            "updated_by": self.requested_by,
        }
