"""Two controllers over one stream, in any interleaving of their calls; then it is drained, and the laws hold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.pending_orders import OrderVerb
from airflow_streamstate.controller.observe.views import DeploymentView
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import ConflictError, StreamStateError
from support.faulty_store import Call
from support.sim_laws import assert_laws
from support.sim_life import WHOLE_LIFE, Life, Step, make_world
from support.sim_processes import Process
from support.sim_turns import NAMES, Turns
from support.sim_world import World
from support.simulated_driver import STREAM

Act = Callable[["Race", Controller], object]
RUNNING = WHOLE_LIFE[:2]
STOPPED = WHOLE_LIFE[:4]
RESUMED = (*STOPPED, Step("resume"), Step("grow"))
CLOSE_SECONDS = 120.0
PATIENCE = 30


@dataclass(frozen=True)
class Scene:
    """What is the case when two meet."""

    steps: tuple[Step, ...]
    is_killed: bool = False


SCENES = {
    "running": Scene(RUNNING),
    "dead": Scene(RUNNING, is_killed=True),
    "stopped": Scene(STOPPED),
    "resumed and dead": Scene(RESUMED, is_killed=True),
}


@dataclass
class Race:
    """What came of it.

    Attributes:
        answers: of the first and of the second; an error where it was refused.
    """

    world: World
    life: Life
    answers: dict[str, object] = field(default_factory=dict)
    calls: dict[str, list[Call]] = field(default_factory=lambda: {name: [] for name in NAMES})

    @property
    def deployed(self) -> list[DeploymentView]:
        """The deployments and attempts that were started."""
        return [answer for answer in self.answers.values() if isinstance(answer, DeploymentView)]

    @property
    def refused(self) -> list[StreamStateError]:
        """The refusals."""
        return [answer for answer in self.answers.values() if isinstance(answer, StreamStateError)]

    def act(self, process: Process, act: Act, turns: Turns) -> None:
        """Be one of the two."""
        name = process.name
        try:
            controller = self.world.controller(process, "", name, lambda: turns.before_call(process), self.calls[name])
            self.answers[name] = act(self, controller)
        except StreamStateError as error:
            self.answers[name] = error
        finally:
            turns.ended.add(name)


def race(
    folder: Path,
    scene: Scene,
    first: Act,
    second: Act,
    turns: Sequence[tuple[int, float]],
    *,
    fences_may_stray: bool = False,
) -> Race:
    """Play it to its end.

    Args:
        folder: as ``make_world``.
        first, second: what the two do; ``first`` starts.
        turns: as ``Turns``; none at all: only the first acts.
        fences_may_stray: as ``WatchedStore``.
    """
    world = make_world(folder)
    world.watched.fences_may_stray = fences_may_stray
    found = Race(world, Life(world, steps=scene.steps))
    schedule = world.schedule
    _run(world, "opening", lambda process: found.life.drive(process, world.calm_controller(process)))
    if scene.is_killed:
        _run(world, "killer", lambda process: world.calm_controller(process).kill(STREAM))
    played = Turns(turns)
    acts = dict(zip(NAMES, (first, second) if turns else (first,), strict=False))
    actors = [
        schedule.start(name, lambda process, act=act: found.act(process, act, played))  # type: ignore[misc]
        for name, act in acts.items()
    ]
    schedule.run_until(lambda: all(actor.has_ended for actor in actors))
    for actor in actors:
        if actor.error is not None:
            raise actor.error
    _run(world, "closing", lambda process: _close(world.calm_controller(process)))
    schedule.run_until(world.is_quiet)
    assert_laws(world, orders_may_lie=True)
    return found


def _run(world: World, name: str, body: Callable[[Process], object]) -> None:
    process = world.schedule.start(name, body)
    world.schedule.run_until(lambda: process.has_ended)
    if process.error is not None:
        raise process.error


def _close(controller: Controller) -> None:
    """Drain what is current."""
    for _ in range(PATIENCE):
        status = controller.status(STREAM)
        with contextlib.suppress(ConflictError):  # an order of the race may end it first; an intent may be there
            if status.state in ("launching", "running"):
                controller.wait(WaitCondition("healthy", STREAM, status.deployment_id), CLOSE_SECONDS)
            order = controller.order("drain", STREAM)
            controller.wait(WaitCondition.of(order), CLOSE_SECONDS)
            return
        controller.clock.sleep(5.0)
    raise AssertionError("the stream cannot be drained")


def deploys(script: str, request_id: str) -> Act:
    """Deploy this version."""
    return lambda found, controller: controller.deploy(found.life.request(script, request_id))


def resumes(request_id: str) -> Act:
    """Start the next attempt."""
    return lambda _, controller: controller.resume(STREAM, request_id=request_id)


def orders(verb: OrderVerb, request_id: str) -> Act:
    """An order."""
    return lambda _, controller: controller.order(verb, STREAM, request_id=request_id)


def takes_back(request_id: str) -> Act:
    """Drain, and think better of it."""

    def act(_: Race, controller: Controller) -> object:
        controller.order("drain", STREAM, request_id=f"{request_id}-drain")
        return controller.order("cancel", STREAM, request_id=request_id)

    return act


def kills() -> Act:
    """Kill the driver."""
    return lambda _, controller: controller.kill(STREAM)


def watches(seconds: float = 20.0) -> Act:
    """Give the stream a policy, and watch it for this long."""

    def act(_: Race, controller: Controller) -> object:
        controller.details.change_restart_policy(STREAM, {"on_failure": "restart", "initial_backoff_seconds": 1.0})
        until = controller.clock.monotonic_seconds() + seconds
        controller.watcher(lambda _line: None, host="watcher").run(
            lambda: controller.clock.monotonic_seconds() >= until, tick_seconds=1.0
        )
        return None

    return act


def forces(request_id: str, within_seconds: float = 0.3) -> Act:
    """Stop it by a deadline, or end its driver."""
    return lambda _, controller: controller.forced_stops.stop(
        STREAM, deadline_seconds=within_seconds, on_deadline="kill", request_id=request_id
    )


def patiently(act: Act) -> Act:
    """The same again, with the same request, while another one is in its way."""

    def again(found: Race, controller: Controller) -> object:
        for _ in range(PATIENCE):
            try:
                return act(found, controller)
            except ConflictError as error:
                refused = error
            controller.clock.sleep(5.0)
        raise refused

    return again
