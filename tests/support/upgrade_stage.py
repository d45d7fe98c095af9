"""A stream under upgrade, whose drivers (old, rehearsing, new) a test plays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.controller.upgrade.upgrade_views import Telling, UpgradeView
from airflow_streamstate.controller.upgrade.upgrades import RollbackRequest, UpgradeRequest, Upgrades
from airflow_streamstate.plan.model import PlannedSink, QueryPlan
from airflow_streamstate.protocol.commands import Command
from airflow_streamstate.protocol.events import Drained, Draining, Failed, Stopped
from airflow_streamstate.protocol.ids import launch_key_for
from airflow_streamstate.protocol.positions import QueryBeat, SourceIdentity
from airflow_streamstate.protocol.scratch import RehearsedQuery, ScratchRun, ScratchVerdict, Waiting
from airflow_streamstate.protocol.terms.order import RollbackTerms, UpgradeTerms
from airflow_streamstate.protocol.upgrades import Phase
from support.built_plans import plan
from support.scripted_rehearsal import SPARKS_WORDS, keep_plan
from support.sim_stage import STREAM, Stage

TERMS = {"warm": False, "healthy_batches": 2, "healthy_deadline_seconds": 100.0}
KAFKA = PlannedSink("kafka", "kafka", "alarms", "kafka", "nothing")
FILES = PlannedSink("file:parquet", "parquet", "/out", "file", "batch_id")
SOCKET = SourceIdentity("socket", "socket 127.0.0.1:9999")
BESIDE = ("upgrades/", "scratch/", "artifacts/", "idempotency/")
"""Where an upgrade that is refused may have written."""


@dataclass
class UpgradeStage:
    """One stream with a running first version, and upgrades of it.

    Attributes:
        told: what was reported about the steps.
        sink: where new versions write; by default it cannot be undone.
    """

    stage: Stage
    told: list[str] = field(default_factory=list)
    sink: PlannedSink = KAFKA

    @property
    def upgrades(self) -> Upgrades:
        """The verbs."""
        return self.stage.controller.upgrades

    # beginning

    def runs(self, last: int = 3) -> UpgradeStage:
        """The first version, which has committed batches up to this one."""
        self.stage.deploy()
        self.stage.come_to_life(queries=("counts",))
        self.stage.run_batches(last)
        keep_plan(self.stage.control, "d-0001", "counts")
        return self

    def request(
        self, text: str = "print('v2')\n", change: dict[str, Any] | None = None, **asked: Any
    ) -> UpgradeRequest:
        """An upgrade to a script of this content."""
        values: dict[str, Any] = {"application": self.stage.script(text, "v2.py"), **(change or {})}
        return UpgradeRequest(change_request(STREAM, **values), UpgradeTerms(**{**TERMS, **asked}))

    def begin(self, request_id: str = "up-1", **asked: Any) -> UpgradeView:
        """Record it."""
        return self.upgrades.begin(self.request(**asked), request_id)

    def begin_rollback(self, request_id: str = "back-1", **asked: Any) -> UpgradeView:
        """Record a rollback."""
        return self.upgrades.begin_rollback(RollbackRequest(STREAM, RollbackTerms(**{**TERMS, **asked})), request_id)

    def advance(self, view: UpgradeView) -> UpgradeView:
        """Every step that can be taken now."""
        return self.upgrades.advance(STREAM, view.upgrade_id, Telling(self.told.append))

    def phases(self, view: UpgradeView) -> list[Phase]:
        """The phases it went through, each where it was entered."""
        found: list[Phase] = []
        for step in self.steps(view):
            if not found or found[-1] != step:
                found.append(step)
        return found

    def rehearsal(self, view: UpgradeView) -> ScratchRun:
        """The last one that was started."""
        state = self.upgrades.view(STREAM, view.upgrade_id).state
        found = self.stage.control.scratch_run(str(state.rehearsal_id))
        assert found is not None
        return found

    def texts(self, view: UpgradeView) -> list[str]:
        """The text of each step that has one."""
        return [step.text for step in UpgradeJournal(self.stage.control).steps(view.upgrade_id) if step.text]

    def is_warm(self, deployment_id: str, rehearsal_id: str | None) -> bool:
        """Whether the driver of this rehearsal was handed this deployment, and no other was launched for it."""
        handover = self.stage.control.handover(str(rehearsal_id))
        launched = f"launch {launch_key_for(deployment_id, 1)}" in self.stage.launcher.calls
        return handover is not None and handover.deployment_id == deployment_id and not launched

    def steps(self, view: UpgradeView) -> list[Phase]:
        """The phase of each step."""
        return [step.phase for step in UpgradeJournal(self.stage.control).steps(view.upgrade_id)]

    # the drivers' parts

    def rehearsed(
        self,
        view: UpgradeView,
        *names: str,
        plan: QueryPlan | None = None,
        refused: bool = False,
        waits: bool = False,
        rehearsal_id: str = "",
        **facts: Any,
    ) -> UpgradeView:
        """The rehearsing driver gives its verdict, and ends, or comes to its first start; then all that follows.

        ``rehearsal_id``: which; "" for the last one that was started of the version that is to come, or to come back.
        """
        rehearsal_id = rehearsal_id or self.rehearsal(view).run_id
        queries = names or ("counts",)
        for name in queries:
            keep_plan(self.stage.control, rehearsal_id, name, plan)
        clock = self.stage.clock
        query = (
            RehearsedQuery("failed", "restored", 0.5, SPARKS_WORDS)
            if refused
            else RehearsedQuery("accepted", "restored")
        )
        values: dict[str, Any] = {"outcome": "done", "queries": dict.fromkeys(queries, query), "error": "", **facts}
        self.stage.control.create_verdict(
            ScratchVerdict(
                stream_id=STREAM, run_id=rehearsal_id, seconds=1.0, given_by="driver", given_at=clock.now(),
                write_id=clock.new_uuid(), **values,
            )
        )  # fmt: skip
        if waits:
            self.advance(view)
            waiting = Waiting(STREAM, rehearsal_id, clock.now(), clock.new_uuid(), queries[0])
            self.stage.control.create_waiting(waiting)
        else:
            self.stage.launcher.states[launch_key_for(rehearsal_id, 1)] = "exited"
        return self.advance(view)

    def order(self, deployment_id: str = "d-0001") -> Command:
        """The one order that is there."""
        (slot,) = self.stage.control.journal(deployment_id).commands()
        assert slot.command is not None
        return slot.command

    def stops(self, deployment_id: str = "d-0001", attempt: int = 1) -> None:
        """It obeys, keeps its end, and ends."""
        command = self.order(deployment_id)
        manifest = self.stage.keep("stopped", deployment_id, attempt)
        positions = {name: query.position for name, query in manifest.queries.items()}
        self._obeyed(deployment_id, attempt)
        self.stage.say(
            Stopped, deployment_id, attempt, snapshot_id=manifest.snapshot_id, queries=positions,
            command_id=command.command_id, command_number=1,
        )  # fmt: skip
        self.stage.end(deployment_id, attempt)

    def drains(self, deployment_id: str = "d-0001", attempt: int = 1, *, state_rows_left: int = 0) -> None:
        """It obeys, keeps what it has, flushes, and ends."""
        command = self.order(deployment_id)
        kept = self.stage.keep("pre-drain", deployment_id, attempt)
        flush_batch_id = self.stage.flush(deployment_id=deployment_id)
        self.stage.say(
            Draining, deployment_id, attempt, command_id=command.command_id, snapshot_id=kept.snapshot_id,
            flush_batch_ids={"counts": flush_batch_id},
        )  # fmt: skip
        manifest = self.stage.keep("drained", deployment_id, attempt, state_rows_left=state_rows_left)
        positions = {name: query.position for name, query in manifest.queries.items()}
        self._obeyed(deployment_id, attempt)
        self.stage.say(
            Drained, deployment_id, attempt, snapshot_id=manifest.snapshot_id, queries=positions,
            command_id=command.command_id, command_number=1,
        )  # fmt: skip
        self.stage.end(deployment_id, attempt)

    def _obeyed(self, deployment_id: str, attempt: int) -> None:
        for slot in self.stage.control.journal(deployment_id).commands():
            self.stage.store.delete(slot.key)

    def new_runs(self, last: int, deployment_id: str = "d-0002", *, attempt: int = 1, **beat: Any) -> None:
        """A version that has come to life and committed batches up to this one, and reports it."""
        if self.stage.control.claim(deployment_id, attempt) is None:
            self.stage.come_to_life(deployment_id, attempt, ("counts",))
        keep_plan(self.stage.control, deployment_id, "counts", plan(sink=self.sink))
        self.stage.run_batches(last, deployment_id=deployment_id)
        self.beats(last, deployment_id, attempt, **beat)

    def beats(self, batch_id: int | None, deployment_id: str = "d-0002", attempt: int = 1, **beat: Any) -> None:
        """Its sign of life."""
        committed_at = None if batch_id is None else self.stage.clock.now()
        self.stage.beat(deployment_id, attempt, counts=QueryBeat(batch_id, committed_at, is_active=True, **beat))

    def fails(self, deployment_id: str = "d-0002", attempt: int = 1) -> None:
        """Its driver fails."""
        if self.stage.control.claim(deployment_id, attempt) is None:
            self.stage.come_to_life(deployment_id, attempt)
        self.stage.say(Failed, deployment_id, attempt, error="ValueError: boom", traceback="")
        self.stage.end(deployment_id, attempt)

    # whole ways

    def to_ready(self, request_id: str = "up-1", **asked: Any) -> UpgradeView:
        """Started, rehearsed and found to fit; the old one has its order."""
        view = self.begin(request_id, **asked)
        self.advance(view)
        return self.rehearsed(view)

    def to_started(self, request_id: str = "up-1", **asked: Any) -> UpgradeView:
        """And the new version is launched."""
        view = self.to_ready(request_id, **asked)
        self.stops()
        return self.advance(view)

    def to_upgraded(self) -> UpgradeView:
        """And healthy."""
        view = self.to_started()
        self.new_runs(4)
        self.advance(view)
        self.new_runs(6)
        return self.advance(view)

    # what is there

    def outside(self) -> dict[str, bytes]:
        """Everything of the stream that a refused upgrade leaves as it was; of the register without author and time."""
        found = {}
        for info in self.stage.store.list_objects(f"{STREAM}/"):
            key = info.key.removeprefix(f"{STREAM}/")
            if not key.startswith(BESIDE) and key != "stream.json":
                found[key] = self.stage.store.get(info.key).body  # type: ignore[union-attr]
        register = self.stage.control.need_register().value
        kept = (
            register.deployment_id,
            register.attempt,
            register.fencing_token,
            register.attempt_mode,
            register.intent,
        )
        return {**found, "stream.json": repr(kept).encode()}

    def held_by(self) -> str | None:
        """The upgrade that the register names."""
        return self.stage.control.need_register().value.upgrade_id
