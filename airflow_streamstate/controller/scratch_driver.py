"""Short-lived drivers beside a stream: those of rehearsals and of state readings.

The record of each is written first and removed last. It names the deadline at which the driver ends itself, so that
any later controller can clean up after one that died.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.drivers.places import ATTEMPT
from airflow_streamstate.controller.wait.waiting import poll
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.launch.interface import LaunchHandle
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import launch_key_for
from airflow_streamstate.store.cleanup import delete_below

LATE_SECONDS = 15.0
"""A live driver has ended itself this long after its deadline, by its own clock."""
END_SECONDS = 10.0
"""How long to wait for a driver that has answered: a JVM that ends by itself removes its own temporary files."""
GRACE_SECONDS = 5.0
LAUNCHES = "launches"
"""The folder of the driver's launch; kept where the driver has become an attempt."""
POLL_SECONDS = 0.2


def is_late(deadline_at: datetime, now: datetime) -> bool:
    """Whether a driver with this deadline has ended itself, if both clocks agree."""
    return now >= deadline_at + timedelta(seconds=LATE_SECONDS)


class ScratchDriver:
    """The driver of one rehearsal or reading, and what it leaves in the home and on this machine.

    Args:
        scratch_id: the id of the rehearsal or the reading.
        record: the file name of its record.
    """

    def __init__(self, context: ControllerContext, control: StreamControl, scratch_id: str, record: str) -> None:
        self._context = context
        self._control = control
        self._scratch_id = scratch_id
        self._record = record
        self.folder = layout.deployment_folder(control.stream_id, scratch_id)

    @property
    def launch_folder(self) -> Path:
        """The folder of its launch on this machine."""
        key = launch_key_for(self._scratch_id, ATTEMPT)
        return self._context.home.launch_path(layout.launch_folder(self._control.stream_id, self._scratch_id, key))

    def handle(self) -> LaunchHandle | None:
        """The driver's launch, or None."""
        return self._context.observer.handle(self._control, self._scratch_id, ATTEMPT)

    def has_ended(self) -> bool:
        """Whether it was launched and has ended; a reported end counts, since it writes its own trial alone."""
        handle = self.handle()
        status = None if handle is None else self._context.observer.status(handle)
        return status is not None and (status.has_ended or status.reported_end)

    def end(self, patience_seconds: float = 0.0) -> None:
        """Kill the driver, unless it ends by itself first. A driver of another launcher is left to its deadline."""
        handle = self.handle()
        if handle is None or not self._context.launcher.knows(handle):
            return

        def is_gone() -> bool | None:
            return True if self._context.observer.status(handle).state not in ("running", "unknown") else None

        poll(self._context.clock, is_gone, timeout_seconds=patience_seconds, pause_seconds=lambda: POLL_SECONDS)
        self._context.launcher.kill(handle, GRACE_SECONDS)

    def remove(self, kept: Collection[str] = ()) -> None:
        """Remove what the driver made, except the objects and folders of these names directly below its folder."""
        home, handle = self._context.home, self.handle()
        if handle is not None and LAUNCHES not in kept:
            with suppress(StreamStateError):  # a cluster that is away keeps its objects, and the launcher tidies later
                self._context.launcher.forget(handle)
        delete_below(home.checkpoints, self.folder, but=(*kept, self._record))
        if LAUNCHES not in kept:
            home.remove_launches(self.folder)
        if home.checkpoints is not home.home or self._record not in kept:
            delete_below(home.home, self.folder, but=kept)
