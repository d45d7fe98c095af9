"""A driver whose machine asks it to end (a node that is drained, an eviction) orders its own stop, by a command.

The signal itself would end Spark's JVM in the middle of a batch. So what leads the driver's processes catches it, and
makes the file ``ASKED_TO_END``.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from airflow_streamstate.control.bell import ASKED_TO_END
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.protocol.commands import BY_THE_DRIVER, StopRequest
from airflow_streamstate.protocol.version import NEWEST_PROTOCOL

REASON = "its machine asks the driver to end"
_NAMESPACE = uuid.UUID("0f6ff0bb-8f0c-5d0a-9a57-3f0d2f5a1c7e")


class MachineStop:
    """Looks whether the machine asks the driver to end, and then writes the request, once an attempt.

    Args:
        folder: of the launch; "" for a driver that nothing leads.
    """

    def __init__(self, attempt: Attempt, folder: str) -> None:
        self._attempt = attempt
        self._file = Path(folder) / ASKED_TO_END if folder else None
        self._is_ordered = False

    def order_if_asked(self) -> None:
        """Order the stop if it is due.

        Raises:
            UnavailableError, OutcomeUnknownError: the store does not answer; call it again.
        """
        attempt = self._attempt
        if self._file is None or self._is_ordered or not attempt.latch.is_open or not self._file.exists():
            return
        place = f"{attempt.stream_id}/{attempt.deployment_id}/{attempt.number}"
        command = StopRequest(
            str(uuid.uuid5(_NAMESPACE, place)),
            attempt.stream_id,
            attempt.deployment_id,
            attempt.clock.now(),
            None,
            BY_THE_DRIVER,
            REASON,
            attempt=attempt.number,
        )
        attempt.journal.write_command(command, NEWEST_PROTOCOL)
        self._is_ordered = True
        attempt.reporter.say(REASON)
