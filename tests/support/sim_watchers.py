"""A stream whose driver is killed again and again, under watchers that are killed, too; then it is drained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.supervise.watcher import Line
from airflow_streamstate.controller.wait.condition import WaitCondition
from support.faulty_store import SimulatedCrash
from support.sim_laws import assert_laws
from support.sim_life import WHOLE_LIFE, Life, grow, make_world
from support.sim_processes import Process
from support.sim_world import Strike, World
from support.simulated_driver import STREAM

POLICY: dict[str, Any] = {"on_failure": "restart", "initial_backoff_seconds": 2.0, "max_backoff_seconds": 8.0}
CLOSE_SECONDS = 120.0
PATIENCE_SECONDS = 90.0
"""For a restart: longer than an attempt that was started and never launched is left alone."""
TICK_SECONDS = 1.0
HUNG_AFTER_SECONDS = 60.0
STANDS_SECONDS = 1_200.0
GROWTHS = 6
SYSTEMD_SECONDS = 1.0
"""How long after its death a watcher is started again."""


@dataclass
class WatchedLife:
    """One life.

    Attributes:
        watchers: by name, how many seconds the wall clock of each is ahead; each runs on its own host.
        deaths: how often the driver is killed.
        died_at: when each attempt died, by its number.
        lines: what the watchers printed.
    """

    world: World
    watchers: dict[str, float] = field(default_factory=lambda: {"first": 0.0})
    deaths: int = 2
    policy: dict[str, Any] = field(default_factory=lambda: dict(POLICY))
    died_at: dict[int, float] = field(default_factory=dict)
    begun_at: dict[int, float] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    is_over: bool = False

    def live(self) -> WatchedLife:
        """Live it to its end, and check the laws."""
        world = self.world
        life = Life(world, steps=WHOLE_LIFE[:2])
        self.run("opening", lambda process: self._open(process, life))
        for name in self.watchers:
            self._start(name)
        self.run("killer", self._kill_and_wait)
        self.run("closing", lambda process: _close(world.calm_controller(process)))
        world.schedule.run_until(world.is_quiet)
        assert_laws(world, orders_may_lie=True)
        return self

    def run(self, name: str, body: Callable[[Process], object]) -> None:
        """A process, until its end."""
        process = self.world.schedule.start(name, body)
        self.world.schedule.run_until(lambda: process.has_ended)
        if process.error is not None:
            raise process.error

    def kill_driver(self) -> None:
        """The driver of the current attempt dies, at once and without a word."""
        attempt = self.world.control.need_register().value.attempt
        launched = self.world.machine.get(f"d-0001-a{attempt:04d}")
        if launched is not None and launched.process is not None and not launched.process.has_ended:
            self.died_at[attempt] = self.world.schedule.now_seconds
            launched.process.kill(SimulatedCrash("kill -9"))

    def _open(self, process: Process, life: Life) -> None:
        controller = self.world.calm_controller(process)
        life.drive(process, controller)
        controller.details.change_restart_policy(STREAM, self.policy)

    def _start(self, name: str) -> None:
        """A watcher under a systemd that starts it again."""

        def watch(process: Process) -> None:
            process.clock.wrong_seconds = self.watchers[name]
            controller = self.world.controller(process, "watcher", name)
            controller.watcher(self.lines.append, host=name).run(lambda: self.is_over, TICK_SECONDS)

        def keep(process: Process) -> None:
            while not self.is_over:
                watched = self.world.schedule.start(name, watch)
                while not watched.has_ended:
                    process.clock.sleep(SYSTEMD_SECONDS)
                if watched.error is not None and not isinstance(watched.error, SimulatedCrash):
                    raise watched.error

        self.world.schedule.start(f"systemd-{name}", keep)

    def _kill_and_wait(self, process: Process) -> None:
        for _ in range(self.deaths):
            before = self.world.control.need_register().value.attempt
            self.kill_driver()
            controller = self.world.calm_controller(process)
            until = process.clock.monotonic_seconds() + PATIENCE_SECONDS
            while process.clock.monotonic_seconds() < until:
                process.clock.sleep(0.5)
                self._note_begun()
                status = controller.status(STREAM)
                if status.attempt > before and status.state == "running":
                    break
            else:
                raise AssertionError(f"attempt {before} was not restarted: {[line.text for line in self.lines[-5:]]}")
            grow(self.world.source, 20)
            process.clock.sleep(3.0)
        self._wait_until_running(process)  # it may have been struck since
        self.is_over = True

    def _wait_until_running(self, process: Process) -> None:
        controller = self.world.calm_controller(process)
        until = process.clock.monotonic_seconds() + PATIENCE_SECONDS
        while controller.status(STREAM).state != "running":
            assert process.clock.monotonic_seconds() < until, [line.text for line in self.lines[-5:]]
            process.clock.sleep(0.5)
            self._note_begun()

    def _note_begun(self) -> None:
        for key in self.world.machine:
            self.begun_at.setdefault(int(key.rpartition("a")[2]), self.world.schedule.now_seconds)


@dataclass
class HangingLife(WatchedLife):
    """One in which a driver may hang, as after SIGSTOP, while its launcher reports that it lives.

    Attributes:
        opened, closing: how many calls of drivers and steps of Spark came before the watchers, and before the drain.
        seen_states: of the stream, while its driver stood still.
    """

    policy: dict[str, Any] = field(default_factory=lambda: {**POLICY, "hung_after_seconds": HUNG_AFTER_SECONDS})
    opened: dict[str, int] = field(default_factory=dict)
    closing: dict[str, int] = field(default_factory=dict)
    seen_states: set[str] = field(default_factory=set)

    def _counts(self) -> dict[str, int]:
        return {"driver": len(self.world.calls["driver"]), "spark": len(self.world.phases)}

    def _open(self, process: Process, life: Life) -> None:
        super()._open(process, life)
        self.opened = self._counts()

    def _kill_and_wait(self, process: Process) -> None:
        for _ in range(GROWTHS):
            grow(self.world.source, 20)
            process.clock.sleep(3.0)
            if self.world.paused:
                break
        until = process.clock.monotonic_seconds() + PATIENCE_SECONDS + 2 * HUNG_AFTER_SECONDS
        controller = self.world.calm_controller(process)
        while self.world.paused and self.world.control.need_register().value.attempt == 1:
            assert process.clock.monotonic_seconds() < until, [line.text for line in self.lines[-5:]]
            process.clock.sleep(0.5)
            status = controller.status(STREAM)
            self.seen_states.add(status.state)
        self.closing = self._counts()
        self._wait_until_running(process)
        self.is_over = True


def hanging(folder: Path, strike: Strike | None = None, **changes: Any) -> HangingLife:
    """A life in which the driver hangs at this strike, until long after the end."""

    def pause(process: Process) -> None:
        world.paused.add(process.name)
        process.pause_until(process.clock.monotonic_seconds() + STANDS_SECONDS)

    world = world_of(folder)
    if strike is not None:
        world.strikes = (replace(strike, meanwhile=pause),)
    life = HangingLife(world, **changes)
    life.live()
    return life


def world_of(folder: Path, *strikes: Strike) -> World:
    """A world with these strikes at its watchers."""
    world = make_world(folder)
    world.calls["watcher"], world.moments["watcher"] = [], []
    world.strikes = strikes
    return world


def watched(folder: Path, *strikes: Strike, **changes: Any) -> WatchedLife:
    """A life with these strikes."""
    return WatchedLife(world_of(folder, *strikes), **changes).live()


def _close(controller: Controller) -> None:
    status = controller.status(STREAM)
    controller.wait(WaitCondition("healthy", STREAM, status.deployment_id), CLOSE_SECONDS)
    order = controller.order("drain", STREAM)
    controller.wait(WaitCondition.of(order), CLOSE_SECONDS)
