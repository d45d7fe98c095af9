"""What every verb works with, and the one way in which a register is written."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.objects import Stored
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.drivers.launching import Drivers, SparkConnections
from airflow_streamstate.controller.drivers.secrets import LookUp
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observe import Observer
from airflow_streamstate.controller.proving_end import Endings
from airflow_streamstate.launch.interface import Launcher
from airflow_streamstate.protocol.register import StreamRegister


@dataclass(frozen=True)
class Means:
    """What the verbs of one controller share.

    Attributes:
        home: of the streams.
        launcher: starts drivers, and answers for them.
        clock: for times, ids and waits.
        requested_by: who asks, for records.
        observer: looks at deployments.
        drivers: launches attempts.
        endings: proves their ends.
        upgrade_id: the upgrade whose steps are taken with these; None for whatever is asked for by itself.
    """

    home: Home
    launcher: Launcher
    clock: Clock
    requested_by: str
    observer: Observer
    drivers: Drivers
    endings: Endings
    upgrade_id: str | None = None

    @classmethod
    def of(
        cls,
        home: Home,
        launcher: Launcher,
        clock: Clock,
        requested_by: str,
        spark_connections: SparkConnections | None,
        look_up: LookUp | None = None,
    ) -> Means:
        """The means over a home and a launcher."""
        observer = Observer(home, launcher, clock)
        drivers = Drivers(home, launcher, clock, spark_connections, look_up)
        endings = Endings(observer, drivers, launcher, clock)
        return cls(home, launcher, clock, requested_by, observer, drivers, endings)

    def replace_register(
        self, control: StreamControl, stored: Stored[StreamRegister], **changes: Any
    ) -> Stored[StreamRegister]:
        """Change the register by compare-and-swap, in the name of whoever asks.

        Raises:
            VersionConflictError: somebody else changed it first.
        """
        return control.replace_register(dataclasses.replace(stored.value, **changes, **self.signed()), stored.version)

    def signed(self) -> dict[str, Any]:
        """Who writes a register, when, and as which write (Law 8)."""
        return {
            "write_id": self.clock.new_uuid(),
            "updated_at": self.clock.now(),
            "updated_by": self.requested_by,
        }
