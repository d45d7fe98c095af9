"""A whole life of a stream, as an orchestrator drives it: each step is tried again until it is done.

The orchestrator remembers which step it was at, as Airflow's database does, and nothing else: what a step has become is
found by its request id. Whatever its driver dies of, it resumes, or lets the next deploy take over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.request.requests import DeployRequest, deploy_request
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import (
    ConflictError,
    DeadlineExceededError,
    DeploymentFailedError,
    HomeNotFoundError,
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.protocol.terms.order import DrainTerms
from airflow_streamstate.protocol.terms.version import StartMode
from airflow_streamstate.protocol.upgrades import UpgradeMode
from support.faulty_store import SimulatedCrash
from support.sim_processes import Process
from support.sim_world import SETTINGS, WatchedSink, World, counting_plan
from support.simulated_driver import STREAM, QueryFailedError, SimulatedDriver
from support.simulated_query import SimulatedPlan
from support.simulated_sources import SimulatedSource

DEADLINE_SECONDS = 120.0
MAX_TRIES = 12
_OUTAGES = (UnavailableError, OutcomeUnknownError, HomeNotFoundError)
_REFUSALS = (DeploymentFailedError, ConflictError, DeadlineExceededError)
MAX_RESTARTS = 4
Recovery = Literal["resume", "takeover", "redeploy"]
Style = Literal["together", "tolerant", "ending", "late", "absent", "slow"]
"""What a script does with its two queries: it fails with either of them; it continues with the other; one of them ends
by itself, long before the other; one is started some time after the other; the second version does not start one; both
take their time until they have read their logs."""
LATE_SECONDS = 0.9
OTHER_RULE = "other.py"
"""A version whose state would be of a different rule than that of all the others: each start on theirs is refused."""
SCRIPTS = {"v1.py": 10, "v2.py": 7, "v3.py": 9}
"""The versions, and how many rows one batch of each takes: batches that are run again over other bounds are seen."""
GROWTH_ROWS = 60
"""So much that a batch is always under way when an order comes."""


@dataclass(frozen=True)
class Step:
    """One thing that an orchestrator does.

    Attributes:
        script: of a deploy, or of an upgrade.
        hurry_seconds: how long it waits after a deploy; None: until it is healthy.
        warm: of an upgrade or a rollback: the driver that takes over waits.
        warm_return: of an upgrade: a driver of the old version waits, too.
        partitions: of an upgrade: the state is rewritten into that number, in RocksDB.
        is_refused: of a deploy: it ends when its start is refused, and no sooner.
    """

    verb: Literal["deploy", "grow", "snapshot", "stop", "resume", "drain", "upgrade", "rollback"]
    script: str = ""
    hurry_seconds: float | None = None
    mode: UpgradeMode = "auto"
    warm: bool = False
    warm_return: bool = False
    partitions: int | None = None
    is_refused: bool = False


WHOLE_LIFE = (
    Step("deploy", "v1.py"),
    Step("grow"),
    Step("snapshot"),
    Step("stop"),
    Step("deploy", "v2.py"),
    Step("grow"),
    Step("drain"),
    Step("deploy", "v3.py"),
    Step("grow"),
    Step("drain"),
)


@dataclass
class Progress:
    """What the orchestrator remembers over its own death.

    Attributes:
        tries: how often each step was started again, after what it had ordered came to nothing.
    """

    step: int = 0
    tries: dict[int, int] = field(default_factory=dict)


@dataclass
class Life:
    """One life.

    Attributes:
        recovery: what follows when a driver dies while it has an order.
        assume_dead: a driver of unknown state is taken for dead.
        gives_up: whether the first refusal is taken for an answer.
        goes_on_unhealthy: a deployment that never gets healthy is left to run on.
        leaves: queries that its drains may leave unflushed.
        refusals: errors that the orchestrator met, for tests that look at them.
    """

    world: World
    recovery: Recovery = "resume"
    assume_dead: bool = False
    timeout_seconds: float = DEADLINE_SECONDS
    gives_up: bool = False
    goes_on_unhealthy: bool = False
    leaves: tuple[str, ...] = ()
    progress: Progress = field(default_factory=Progress)
    refusals: list[StreamStateError] = field(default_factory=list)

    steps: tuple[Step, ...] = WHOLE_LIFE

    def live(self) -> None:
        """Live it to its end, with as many orchestrators as it takes.

        Raises:
            AssertionError: it does not come to its end.
        """
        for restart in range(MAX_RESTARTS):
            if self._live_once(f"orchestrator-{restart}"):
                break
        else:
            raise AssertionError("the orchestrator died too often")
        # What the drivers still have to do after their last words.
        self.world.schedule.run_until(self.world.is_quiet)

    def _live_once(self, name: str) -> bool:
        process = self.world.schedule.start(name, self._orchestrate)
        self.world.schedule.run_until(lambda: process.has_ended)
        if process.error is not None and not isinstance(process.error, SimulatedCrash):
            raise process.error
        return process.error is None

    def _orchestrate(self, process: Process) -> None:
        self.drive(process, self.world.controller(process))

    def drive(self, process: Process, controller: Controller) -> None:
        """Be the orchestrator in this process, from the step that is remembered to the last."""
        while self.progress.step < len(self.steps):
            self._do(process, controller)
            self.progress.step += 1

    def _do(self, process: Process, controller: Controller) -> None:
        number = self.progress.step
        step = self.steps[number]
        for _ in range(MAX_TRIES):
            tries = self.progress.tries.setdefault(number, 0)
            try:
                self._order(controller, step, f"step-{number}", f"step-{number}-{tries}")
                return
            except _OUTAGES as error:
                self.refusals.append(error)  # the same again
            except _REFUSALS as error:
                self.refusals.append(error)
                if self.gives_up:
                    return
                if step.is_refused and self._is_refused(controller):
                    return
                with contextlib.suppress(*_OUTAGES, *_REFUSALS):  # then it is tried again from the top
                    if not self._goes_on(controller, step, number, error):
                        return
            process.clock.sleep(1.0)
        raise AssertionError(f"step {number} was tried too often: {[str(error) for error in self.refusals[-5:]]}")

    def _order(self, controller: Controller, step: Step, lasting_id: str, request_id: str) -> None:
        if step.verb == "deploy":
            self.deploy(controller, lasting_id, step)
        elif step.verb == "grow":
            self.grow(controller, lasting_id)
        elif step.verb == "resume":
            view = controller.resume(STREAM, request_id=lasting_id)
            controller.wait(WaitCondition("healthy", STREAM, view.deployment_id), self.timeout_seconds)
        else:
            terms = {"terms": DrainTerms(leave_queries=self.leaves)} if step.verb == "drain" else {}
            order = controller.order(step.verb, STREAM, request_id=request_id, **terms)
            controller.wait(WaitCondition.of(order), self.timeout_seconds)

    def _is_refused(self, controller: Controller) -> bool:
        """Whether the stream failed since the state follows a different rule."""
        for _ in range(MAX_TRIES):
            with contextlib.suppress(*_OUTAGES):
                status = controller.status(STREAM)
                return status.state == "failed" and "was made by another plan" in (status.error or "")
        return False

    def _goes_on(self, controller: Controller, step: Step, number: int, error: StreamStateError) -> bool:
        """Whether to give the order again; a job that cannot obey would answer the same one in the same way."""
        if step.verb in ("upgrade", "rollback") or "cannot obey this order" not in str(error):
            return self._recover(controller, step, number, error)
        self.progress.tries[number] += 1
        if "has failed in batch" in str(error):
            self._run_the_failed_again(controller, number)
        return True

    def _recover(self, controller: Controller, step: Step, number: int, error: StreamStateError) -> bool:
        """A driver died under an order, or the order met a stream that cannot take it; whether to give it again."""
        state = controller.status(STREAM).state
        if state == "lost" and self.assume_dead:
            return self._leave_the_lost(controller, number, error)
        if "the drain of this deployment" in str(error) or "a drain of this stream" in str(error):
            self.progress.tries[number] += 1
            request_id = f"finish-{number}-{self.progress.tries[number]}"
            order = controller.order(
                "drain", STREAM, request_id=request_id, terms=DrainTerms(leave_queries=self.leaves)
            )
            controller.wait(WaitCondition.of(order), self.timeout_seconds)
            return True
        if "no driver was started for it" in str(error):
            self._resume(controller, number)
            return True
        is_left_so = state == "degraded" or isinstance(error, DeadlineExceededError)
        if step.verb == "deploy" and is_left_so and self.goes_on_unhealthy:
            return False  # one query has failed, and the script continues with the other
        if step.verb in ("deploy", "resume") or state in ("launching", "running", "degraded", "draining", "stopping"):
            return True  # the same again; or another one started it in the meantime
        if self.recovery == "redeploy" and self._may_be_replaced(number):
            self.progress.step = self._next_deploy(number) - 1
            return False
        if step.verb == "stop" and self.recovery != "resume":
            return False  # the next deploy takes over from what died
        self.progress.tries[number] += 1
        if step.verb == "drain" and self.recovery != "resume":
            return True  # drain of what is dead: an attempt for the flush alone
        if state in ("failed", "fenced", "stopped", "finished"):
            self._resume(controller, number)
        return True

    def _resume(self, controller: Controller, number: int) -> None:
        controller.resume(STREAM, request_id=f"resume-{number}-{self.progress.tries[number]}")

    def _run_the_failed_again(self, controller: Controller, number: int) -> None:
        """A drain passes no batch over: a query that has failed is started again first, with all the others."""
        order = controller.order("stop", STREAM, request_id=f"stop-{number}-{self.progress.tries[number]}")
        controller.wait(WaitCondition.of(order), self.timeout_seconds)
        self._resume(controller, number)

    def _next_deploy(self, number: int) -> int:
        return next((at for at, one in enumerate(self.steps) if at > number and one.verb == "deploy"), 0)

    def _may_be_replaced(self, number: int) -> bool:
        """Whether a version comes after this one, and no drain waits: that would be finished first."""
        return self._next_deploy(number) > 0 and not self._leaves_a_drain()

    def _leave_the_lost(self, controller: Controller, number: int, error: StreamStateError) -> bool:
        """The state of the driver is unknown: the next version takes over, or the flush is run to its end."""
        if "the drain of this deployment" in str(error):
            self.progress.tries[number] += 1
            request_id = f"lost-{number}-{self.progress.tries[number]}"
            resumed = controller.resume(STREAM, request_id=request_id, assume_dead=True)
            controller.wait(WaitCondition("stopped", STREAM, resumed.deployment_id), self.timeout_seconds)
            return True
        self.progress.step = self._next_deploy(number) - 1
        return False

    # the steps

    def deploy(self, controller: Controller, request_id: str, step: Step) -> None:
        """Deploy a version, and wait as the step states; where it failed after a commit, resume it."""
        script = step.script
        start: StartMode | None = "restore" if self.assume_dead and self._leaves_a_drain() else None
        view = controller.deploy(self.request(script, f"{request_id}-{start}" if start else request_id, start))
        if view.state == "failed" and not (step.is_refused and self._is_refused(controller)):
            view = controller.resume(STREAM, request_id=f"{request_id}-resume-{view.attempt}")
        if step.hurry_seconds is None:
            controller.wait(WaitCondition("healthy", STREAM, view.deployment_id), self.timeout_seconds)
        else:
            controller.clock.sleep(step.hurry_seconds)

    def request(self, script: str, request_id: str, start: StartMode | None = None) -> DeployRequest:
        """The request that deploys a version."""
        return deploy_request(
            stream_id=STREAM,
            application=self.world.folder / script,
            settings=SETTINGS,
            version_label=script,
            request_id=request_id,
            assume_dead=self.assume_dead,
            start=start,
            snapshots=self.world.snapshots,
        )

    def _leaves_a_drain(self) -> bool:
        """Whether a drain of the current deployment was ordered and never answered: then it is left by name."""
        control = self.world.control
        register = control.register()
        current = None if register is None else register.value.deployment_id
        return current is not None and bool(control.journal(current).commands())

    def grow(self, controller: Controller, request_id: str) -> None:
        """More input, once, and time for some of it to be read."""
        if request_id not in self.world.grown:
            self.world.grown.add(request_id)
            grow(self.world.source, GROWTH_ROWS)
        controller.clock.sleep(1.3)


def grow(source: SimulatedSource, rows: int, step_ms: int = 250) -> None:
    """More rows, later than all before."""
    first = source.rows[-1].event_ms + step_ms if source.rows else 0
    source.add(*range(first, first + rows * step_ms, step_ms))


def make_world(folder: Path, style: Style = "together", rows: int = 60) -> World:
    """A world whose versions of a script all do the same with the same input, each in batches of its own size: one
    query counts rows per window, one passes them through, so that every row and every bound of a batch is seen."""
    # Batches of odd lengths: an order comes in the middle of one, and in a different part of one of the other.
    counting = replace(counting_plan(rows), batch_seconds=0.83)
    passing = SimulatedPlan([], WatchedSink(), window_ms=None, delay_ms=None, batch_seconds=0.61)
    if style == "ending":
        passing = replace(passing, trigger="available_now", batch_seconds=0.11)
    if style == "slow":
        counting, passing = replace(counting, initialise_seconds=0.57), replace(passing, initialise_seconds=0.91)
    scripts = {}
    for name, max_rows_per_batch in SCRIPTS.items():
        path = folder / name
        if not path.exists():
            path.write_text(f"print({name!r})\n")
        source = _view(counting.sources[0], max_rows_per_batch)
        plans = {"counts": replace(counting, sources=[source]), "rows": replace(passing, sources=[source])}
        if style == "absent" and name == "v2.py":
            del plans["rows"]
        scripts[name] = script_of(plans, style)
    other = folder / OTHER_RULE
    if not other.exists():
        other.write_text(f"print({OTHER_RULE!r})\n")
    by_other_rule = replace(counting, sources=[_view(counting.sources[0], 5)], delay_ms=5_000)
    scripts[OTHER_RULE] = script_of({"counts": by_other_rule}, style)
    return World(folder, scripts, {"counts": counting, "rows": replace(passing, sources=counting.sources)})


def script_of(plans: dict[str, SimulatedPlan], style: Style = "together") -> Callable[[SimulatedDriver], None]:
    """What a script does that starts these queries."""

    def script(driver: SimulatedDriver) -> None:
        queries = []
        for name, plan in plans.items():
            if queries and style == "late":
                driver.clock.sleep(LATE_SECONDS)
            queries.append(driver.start(plan, name))
        while not all(query.ended for query in queries):  # as awaitAnyTermination in a loop
            for query in queries:
                query.await_termination(0.1)
                failure = query.failure()
                if failure is not None and style != "tolerant":
                    raise QueryFailedError(failure)

    return script


def _view(source: SimulatedSource, max_rows_per_batch: int) -> SimulatedSource:
    """The same input, read in batches of a different size."""
    view = SimulatedSource(source.description, max_rows_per_batch=max_rows_per_batch)
    view.rows = source.rows
    return view
