"""A foreign query, by its log alone, and a home whose controller adopts it: one thread, simulated time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.controller.adopt.adoptions import AdoptedView, Adoptions, AdoptRequest
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.deploy.attempts import Attempts
from airflow_streamstate.controller.deploy.deployment import Deployer
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.retention.pruning import Retaining
from airflow_streamstate.store.memory import MemoryStore
from support.acting_clock import ActingClock
from support.checkpoints import SimulatedQuery
from support.faulty_store import FaultPlan, FaultyStore
from support.sim_stage import Stage
from support.snapshots import plan_stateful, run_stateful

PLACE = "memory://lake"
URI = f"{PLACE}/counts"
FIRST = 3
"""The last batch that is committed before anything starts."""


class ForeignRun(SimulatedQuery):
    """As Spark: over an entry without sources it refuses to start. With a state, and a supervisor if it has one."""

    def initialise(self) -> None:
        ids = self.checkpoint.offset_ids()
        entry = self.checkpoint.read_offset(ids[-1])
        if entry is not None and not entry.source_lines:
            self._end()
            return
        super().initialise()

    def rename(self) -> None:
        super().rename()
        plan_stateful(self.checkpoint, self._batch_id)

    def commit(self) -> None:
        run_stateful(self.checkpoint, self._batch_id, first=self._batch_id)
        self.ran.append(self._batch_id)
        self._batch_id += 1
        self._running = False


class AdoptingStage(Stage):
    """A stream that is adopted.

    Attributes:
        lake: holds the checkpoint that is not ours.
        ran: every batch that the foreign query has committed since.
        fails: batches that fail the first time that they run.
        has_input: whether the foreign query finds any.
        is_supervised: whether it is restarted when it has ended.
    """

    def __init__(self, folder: Path, planned: bool = False) -> None:
        super().__init__(folder, clock=ActingClock(limit_seconds=100_000))
        self.lake = MemoryStore("lake")
        self.foreign = Checkpoint(self.lake, "counts")
        run_stateful(self.foreign, FIRST)
        if planned:
            plan_stateful(self.foreign, FIRST + 1)
        self.query: ForeignRun | None = None
        self.ran: list[int] = []
        self.fails: set[int] = set()
        self.has_input = True
        self.is_supervised = False
        self.step_seconds = 0.3

    def script(self, text: str = "print('v1')\n", name: str = "job.py") -> Path:
        """As it is there: lives in several processes share it, and none may find it half written."""
        path = self.folder / name
        return path if path.is_file() and path.read_text() == text else super().script(text, name)

    def run_foreign(self) -> None:
        """Let it run from now on."""
        self.query = ForeignRun(self.foreign)
        assert isinstance(self.clock, ActingClock)
        self.clock.every(self.step_seconds, self._act)

    def _act(self) -> None:
        if self.query is None:
            return
        if self.query.ended:
            if self.is_supervised:
                self.query = ForeignRun(self.foreign)
            return
        actions = self.query.actions()
        action = actions[0]
        if action == "begin_trigger" and not self.has_input:
            return
        if action == "commit" and self.query._batch_id in self.fails:
            self.fails.discard(self.query._batch_id)
            action = "fail"
        self.query.act(action)
        if action == "commit":
            self.ran.append(self.query.ran[-1])

    def adoptions(self, plan: FaultPlan | None = None, requested_by: str = "tests") -> Adoptions:
        """The verb, of one actor whose calls may go wrong."""
        store, lake = self.store, self.lake
        faulty = FaultyStore(store, plan), FaultyStore(lake, plan)
        home = Home.of(faulty[0], faulty[0], self.folder, self.clock, allowed=self.allowed)
        context = ControllerContext.of(home, self.launcher, self.clock, requested_by, None)
        return Adoptions(
            context,
            Deployer(context, Attempts(context)),
            partial(Retaining(context).retire, deletes=True),
            lambda _uri: faulty[1],
        )

    def wanted(self, *, is_stopped: bool = False, deadline_seconds: float = 60.0, **changes: Any) -> AdoptRequest:
        """What is asked for."""
        return AdoptRequest(self.request(**changes), {"counts": URI}, is_stopped, deadline_seconds)

    def adopt(self, **changes: Any) -> AdoptedView:
        """Adopt it, and nothing goes wrong."""
        return self.adoptions().adopt(self.wanted(**changes))

    def barriers(self) -> list[int]:
        """Where entries of ours are in the log that is not ours."""
        return [one.batch_id for one in self.foreign.position().barriers]

    def assert_taken(self) -> None:
        """The laws of an adoption that is done: nothing ran twice, nothing is left out, and the barrier stays."""
        control = self.control
        manifest = control.need_manifest(str(control.spec("d-0002").start.snapshot_id))
        position = manifest.queries["counts"].position
        found = self.foreign.position()
        assert (position.batch_id, position.planned_batch_id) == (found.batch_id, found.planned_id)
        assert self.barriers() == [found.barrier_id], "it stays, and nothing is above it"
        assert self.ran == list(range(FIRST + 1, FIRST + 1 + len(self.ran))), "each batch once, in order"
        assert list(self.launcher.requests) == ["d-0002-a0001"], "one driver of ours"
        register = control.need_register().value
        assert (register.deployment_id, register.fencing_token) == ("d-0002", 2)
