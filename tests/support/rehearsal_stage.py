"""A stream that has ended, and the rehearsal of what is to come after it, with simulated queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.rehearsal.committed_batches import RehearsedAttempt
from airflow_streamstate.driver.rehearsal.rehearsal_run import Rehearsing
from airflow_streamstate.driver.rehearsal.replay_run import Replaying
from airflow_streamstate.plan.record import recorded_plans
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Drained, Stopped
from airflow_streamstate.protocol.ids import scratch_id_for
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.protocol.scratch import Rehearsal, Replay, ScratchRun, ScratchVerdict, SeedTrial
from airflow_streamstate.protocol.terms.order import RehearsalTerms
from airflow_streamstate.snapshot.capture import QueryToCapture, capture
from support.recorded_specs import with_version
from support.simulated_driver import STREAM, SimulatedStream, do_at_once, waiting_script
from support.simulated_query import SimulatedPlan, SimulatedStartable

REHEARSAL = scratch_id_for("request", 1)
SECRET = "correct-horse"


@dataclass
class Stage:
    """A stream that has ended, and the rehearsal of what is to come after it."""

    stream: SimulatedStream = field(default_factory=SimulatedStream)

    def stopped(self, plan: SimulatedPlan, name: str = "counts", at_seconds: float = 2.1) -> str:
        """A first deployment, stopped; its snapshot."""
        self.stream.deploy()
        self.stream.order_at(at_seconds, StopRequest)
        assert self.stream.run(waiting_script(plan, names=(name,))) == 0
        return self.stream.events_of(Stopped)[0].snapshot_id

    def drained(self, plan: SimulatedPlan, at_seconds: float = 2.1) -> str:
        """A first deployment, drained; its snapshot."""
        self.stream.deploy()
        self.stream.order_at(at_seconds, DrainNotification)
        assert self.stream.run(waiting_script(plan)) == 0
        return self.stream.events_of(Drained)[0].snapshot_id

    def captured(self, name: str, *, keeps_planned: bool = True) -> str:
        """The position of a query, as the controller captures it for a rehearsal: with the planned batch of one that
        has failed."""
        capture(
            self.stream.control,
            self.stream.checkpoints,
            snapshot_id=REHEARSAL,
            snapshot_kind="live",
            deployment_id="d-0001",
            attempt=1,
            fencing_token=1,
            taken_by="controller",
            queries={name: QueryToCapture(self.old_checkpoint)},
            planned_of={name} if keeps_planned else (),
        )
        return REHEARSAL

    def rehearsing(
        self,
        snapshot_id: str | None,
        *,
        rehearse: bool = True,
        control: Any = None,
        waits_seconds: float | None = None,
        refuses: tuple[str, ...] = (),
        seeds: SeedTrial = "never",
        batches: int = 0,
        rows: int = 1_000,
        replay: Replay | None = None,
        **start: Any,
    ) -> Rehearsing:
        """The rehearsal of a version that would start from this snapshot."""
        clock = self.stream.clock
        own = control or self.stream.control
        spec = replace(
            with_version(self.stream.control.spec("d-0001"), arguments=("--password", SECRET)),
            deployment_id=REHEARSAL,
            start=StartPlan(
                start.pop("mode", "fresh" if snapshot_id is None else "restore"), snapshot_id, "d-0001", **start
            ),
        )
        until = None if waits_seconds is None else clock.now() + timedelta(seconds=waits_seconds)
        rehearsal = Rehearsal(RehearsalTerms(rehearse, batches, rows), waits_until=until, refuses=refuses, seeds=seeds)
        run = ScratchRun(
            STREAM, REHEARSAL, "d-0001", replay or rehearsal, clock.now(), clock.now() + timedelta(seconds=100),
            "tests", "request", "0" * 64, "w",
        )  # fmt: skip
        attempt = RehearsedAttempt(
            own, self.stream.checkpoints, spec, 1, clock, lambda key: key, self.stream.said.append, do_at_once
        )
        attempt.note_spark(self.stream.spark_version)

        def words(error: BaseException) -> str:
            return f"{type(error).__name__}: {error}"

        if replay is not None:
            return Replaying(attempt, run, words)
        return Rehearsing(attempt, run, words)

    def rehearsed(self, plan: SimulatedPlan, snapshot_id: str | None, name: str = "counts", **asked: Any) -> Rehearsing:
        """The rehearsal of a script that starts this one query, at its end."""
        rehearsing = self.rehearsing(snapshot_id, **asked)
        self.start(rehearsing, plan, name)
        rehearsing.script_ended(None)
        return rehearsing

    def replayed(
        self,
        plan: SimulatedPlan,
        batches: Mapping[str, tuple[int, ...]],
        out: str,
        name: str,
        compared_with: str = "",
        *,
        keeps_state: bool = False,
    ) -> Rehearsing:
        """The replay of a script that starts this one query, at its end."""
        return self.rehearsed(plan, None, name, replay=Replay(batches, out, compared_with, keeps_state))

    @property
    def old_checkpoint(self) -> Checkpoint:
        """The checkpoint of the query ``counts`` of the first deployment."""
        return Checkpoint(self.stream.checkpoints, layout.checkpoint_folder(STREAM, "d-0001", "counts"))

    @property
    def last_batch_id(self) -> int:
        """The last committed batch of it."""
        last = self.old_checkpoint.position().batch_id
        assert last is not None
        return last

    def forget(self) -> None:
        """Remove the verdict, so that the next rehearsal can give one."""
        self.stream.checkpoints.delete(layout.verdict_key(STREAM, REHEARSAL))

    @property
    def recorded(self) -> list[str]:
        """The queries whose plan is recorded."""
        return list(recorded_plans(self.stream.control, REHEARSAL))

    def start(self, rehearsing: Rehearsing, plan: SimulatedPlan, name: str = "counts") -> LogicalQuery:
        """The script's ``start()``."""
        return rehearsing.start_query(name, None, self.startable(plan))

    def startable(self, plan: SimulatedPlan) -> SimulatedStartable:
        """The script's writer."""
        return SimulatedStartable(self.stream.checkpoints, self.stream.clock, plan)

    @property
    def verdict(self) -> ScratchVerdict:
        found = self.stream.control.verdict(REHEARSAL)
        assert found is not None
        return found

    def outside(self) -> dict[str, bytes]:
        """Everything outside of the rehearsal's keys, but for the record of the last reads of snapshots."""
        own = (f"{layout.deployment_folder(STREAM, REHEARSAL)}/", layout.retention_key(STREAM))
        store = self.stream.checkpoints
        found = [info.key for info in store.list_objects("") if not info.key.startswith(own)]
        return {key: stored.body for key in found if (stored := store.get(key)) is not None}
