"""A stream with snapshot requests: real controllers, a real command handler, and drivers that die."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.observe.views import Outcome
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.driver.agent.agent import AttemptLife
from airflow_streamstate.driver.agent.command_loop import CommandHandler
from airflow_streamstate.errors import ConflictError
from airflow_streamstate.protocol.commands import SnapshotRequest
from airflow_streamstate.protocol.events import Event
from airflow_streamstate.protocol.ids import launch_key_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from support.faulty_store import Fault, FaultPlan, FaultyStore, SimulatedCrash
from support.sim_stage import STREAM, Stage
from support.simulated_driver import do_at_once

REQUEST = "r-1"
LAST_BATCH = 3


class AskedStream:
    """One stream with one query.

    Args:
        committed: whether its query has committed a batch.

    Attributes:
        desk: of the driver that lives; None where none does.
    """

    def __init__(self, folder: Path, *, committed: bool = True) -> None:
        self.stage = Stage(folder)
        self.stage.deploy()
        self.versions = 1
        self.desk: CommandHandler | None = None
        self._faults = FaultPlan()
        self.begin(committed=committed)

    @property
    def deployment_id(self) -> str:
        """The current deployment."""
        return str(self.stage.control.need_register().value.deployment_id)

    @property
    def attempt(self) -> int:
        """The current attempt."""
        return self.stage.control.need_register().value.attempt

    def begin(self, *, committed: bool = True) -> None:
        """The driver of the current attempt comes to life."""
        stage, self._faults = self.stage, FaultPlan()
        store = FaultyStore(stage.store, self._faults)
        control = StreamControl(store, STREAM, stage.clock)
        spec = control.spec(self.deployment_id)
        said: list[str] = []
        attempt_life = AttemptLife(
            control, store, spec, self.attempt, stage.clock, lambda key: key, said.append, do_at_once
        )
        attempt_life.claim(launch_key_for(self.deployment_id, self.attempt), "here", 4711)
        attempt_life.session_started("4.2.0", "local-1")
        if committed and not stage.checkpoint(deployment_id=self.deployment_id).exists():
            stage.run_batches(LAST_BATCH, deployment_id=self.deployment_id)
        self.desk = CommandHandler(attempt_life.attempt)

    def polls(self, dies_after_calls: int | None = None) -> None:
        """It looks at its commands, and dies at that call to its store, where it comes to that."""
        if self.desk is None:
            return
        if dies_after_calls is not None:
            self._faults.calls.clear()
            self._faults.at[dies_after_calls] = Fault.CRASH_AFTER
        try:
            self.desk.poll()
        except SimulatedCrash:
            self.dies()
        self._faults.at.clear()

    def calls_up_to_manifest(self) -> int:
        """After a poll in which a snapshot was taken: which of its calls made it one."""
        return max(call.number for call in self._faults.calls if call.writes and call.key.endswith("/manifest.json"))

    def dies(self) -> None:
        """Without a last event."""
        self.desk = None
        self.stage.end(self.deployment_id, self.attempt, "gone")

    def resumes(self) -> None:
        """The next attempt, if this one is dead."""
        if self.desk is None:
            self.stage.controller.resume(STREAM)
            self.begin()

    def is_redeployed(self) -> None:
        """Another version takes over, if this one is dead."""
        if self.desk is None:
            self.versions += 1
            self.stage.deploy(f"print('v{self.versions}')\n")
            self.begin()

    def ask(self, **more: object) -> None:
        """Ask from a separate process."""
        self.stage.another_controller().order("snapshot", STREAM, request_id=REQUEST, **more)  # type: ignore[arg-type]

    def try_to_ask(self) -> None:
        """The same, if there may be no driver to obey."""
        with suppress(ConflictError):
            self.ask()

    def look(self) -> Outcome | None:
        """Look from another, waiting process."""
        condition = WaitCondition("snapshot", STREAM, "", request_id=REQUEST)
        seen = self.stage.another_controller().advance(condition)
        return None if seen.outcome == "pending" else seen.end

    # what there is

    def requests(self) -> list[SnapshotRequest]:
        """The requests that wait for the current deployment."""
        slots = self.stage.control.journal(self.deployment_id).commands()
        return [slot.command for slot in slots if isinstance(slot.command, SnapshotRequest)]

    def taken(self) -> list[SnapshotManifest]:
        """The complete snapshots that the request has become."""
        return [one for one in self.stage.controller.snapshots.all(STREAM) if one.request_id == REQUEST]

    def events_of(self, kind: type[Event], deployment_id: str | None = None) -> list[Event]:
        """The events of a kind that a deployment reported."""
        events = self.stage.control.journal(deployment_id or self.deployment_id).events()
        return [entry.event for entry in events if isinstance(entry.event, kind)]
