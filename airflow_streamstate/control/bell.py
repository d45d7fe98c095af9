"""Wakes a process of this machine that waits for another one: a file in the launch folder of a driver that is touched.

A bell says "look now" and nothing else: what there is to see is in the home. Where it is not heard (another machine, a
full disk), the next look comes after the usual pause.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_streamstate.clock import Clock

if TYPE_CHECKING:
    from typing_extensions import Self

ASKED_TO_END = "asked_to_end"
"""A file in the folder of a driver, made by what leads its processes when the machine asks these to end (SIGTERM)."""
LISTENS_EVERY_SECONDS = 0.01
TO_DRIVER, OF_DRIVER = "to_driver.bell", "of_driver.bell"
"""Rung by a controller that has written something for the driver, and by the driver for controllers."""


class Bell:
    """One bell.

    Args:
        path: of the file, which need not exist; None for a bell that rings and is heard nowhere.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._heard = self._rung_at()

    @classmethod
    def of_launch(cls, data: Mapping[str, object] | None, name: str) -> Self:
        """A bell of the driver that a launch handle's ``data`` describes; silent where that names no folder."""
        folder = None if data is None else data.get("folder")
        return cls(Path(folder) / name if isinstance(folder, str) and folder else None)

    def ring(self) -> None:
        """Touch the file; raises nothing."""
        if self._path is None:
            return
        with suppress(OSError):
            descriptor = os.open(
                self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600
            )
            try:
                os.utime(descriptor)
            finally:
                os.close(descriptor)

    def pause(self, clock: Clock, seconds: float) -> None:
        """Sleep so long, or until the bell rings; at once where it rang since the last pause."""
        if self._path is None:
            clock.sleep(seconds)
            return
        until = clock.monotonic_seconds() + seconds
        while not self._has_rung() and (left := until - clock.monotonic_seconds()) > 0:
            clock.sleep(min(left, LISTENS_EVERY_SECONDS))

    def _has_rung(self) -> bool:
        before, self._heard = self._heard, self._rung_at()
        return self._heard != before

    def _rung_at(self) -> int:
        with suppress(OSError):
            return 0 if self._path is None else self._path.stat().st_mtime_ns
        return 0
