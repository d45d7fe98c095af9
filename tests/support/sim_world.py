"""A world for whole lives of a stream: stores, a machine with drivers, orchestrators, a watched sink.

Nothing of the package is replaced but what is outside of it: the store below everything keeps objects in memory, the
launcher starts simulated drivers, Spark is ``simulated_query``. Each actor sees the store through faults of its own.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from airflow_streamstate.control.presence import HomePresence
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.launch.interface import (
    LOCAL,
    LaunchHandle,
    LaunchPlace,
    LaunchRequest,
    LaunchStatus,
    check_same,
)
from airflow_streamstate.protocol.events import Drained, Finished, Stopped
from airflow_streamstate.protocol.ids import is_scratch_id
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.signing import SigningKeys
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.memory import MemoryStore
from support.fake_clock import FakeClock
from support.faulty_store import Call, Fault, FaultPlan, FaultyStore, SimulatedCrash
from support.sim_processes import Process, Schedule
from support.sim_rehearsal import Judged, rehearse
from support.sim_stage import ANY_SECRET
from support.sim_watch import WatchedStore
from support.simulated_driver import STREAM, DriverKilledError, SimulatedDriver, SimulatedStream
from support.simulated_query import Phase, QueryDiedError, SimulatedPlan, SimulatedRun, SimulatedStartable
from support.simulated_sources import OutputRow, SimulatedSink, SimulatedSource
from support.vanishing_store import Absence, VanishingStore

SETTINGS = AgentSettings(
    command_poll_seconds=0.4, heartbeat_seconds=5.0, lost_after_seconds=20.0, exit_grace_seconds=5.0
)
LIMIT_SECONDS = 3_000.0
LINGER_SECONDS = 2.0
"""How long a process lives on after the last event of its driver."""
_LASTING: tuple[Phase, ...] = ("look", "rename", "state", "sink", "commit")
"""The phases of a query before which it can be killed to some effect."""


class WatchedSink(SimulatedSink):
    """A sink that is idempotent by batch id, and remembers what it was offered under which id (Law 14)."""

    def __init__(self) -> None:
        super().__init__("idempotent")
        self.given: Counter[int] = Counter()
        self.offered: dict[int, set[tuple[OutputRow, ...]]] = {}
        self.added = 0

    def add_batch(self, batch_id: int, rows: tuple[OutputRow, ...]) -> bool:
        self.added += 1
        self.given[batch_id] += 1
        self.offered.setdefault(batch_id, set()).add(rows)
        return super().add_batch(batch_id, rows)


@dataclass
class Strike:
    """One fault in a whole life: at the call of that number of an actor, counted over all its processes.

    Attributes:
        actor: ``controller`` or ``driver``; ``spark``: the driver is killed before that step of a query, of all steps
            that last; ``batch``: the query fails there.
        fault: what happens; None to do ``meanwhile`` instead.
    """

    actor: str
    number: int
    fault: Fault | None = Fault.CRASH_BEFORE
    meanwhile: Callable[[Process], None] | None = None


@dataclass(frozen=True)
class Away:
    """A home that vanishes, in seconds of simulated time."""

    at_seconds: float
    for_seconds: float
    absence: Absence


@dataclass
class Launched:
    """One driver on the machine."""

    request: LaunchRequest
    process: Process | None = None
    closed: bool = False
    driver: SimulatedDriver | None = None


@dataclass
class World:
    """Everything that outlives the processes.

    Attributes:
        folder: where the scripts are; other lives have theirs there, too.
        launches: for working files of launches, of this life alone: what another one removes is not seen.
        scripts: script file name -> what that script does.
        plans: what every version of the script reads and writes, by query.
        store: what everything is stored in; another one may be put in its place before a life starts.
        watched: the one that judges what is written; nothing is, in another one.
        moments: of ``controller``, ``driver`` and ``spark``, what ``durable`` was at each call or step.
        unreachable: launch keys of drivers of unknown state.
        paused: those that were out of reach once, and were taken for dead.
        snapshots: where its versions keep their snapshots.
        place: what any other place of snapshots is.
        away: when the home vanishes, for how long and how; None for never. The checkpoints stay: they are elsewhere.
        mount_point: what is written in the home's place in the meantime.
        failing: launch keys of drivers with a query that failed: the script may cut the others.
        warm: launch keys of attempts whose driver had waited.
        keys: of the controllers; None: nothing is signed.
        verdicts: script file name -> what becomes of the verdict of its rehearsal.
    """

    folder: Path
    scripts: dict[str, Callable[[SimulatedDriver], None]]
    plans: dict[str, SimulatedPlan]
    strikes: tuple[Strike, ...] = ()
    schedule: Schedule = field(default_factory=lambda: Schedule(LIMIT_SECONDS))
    machine: dict[str, Launched] = field(default_factory=dict)
    calls: dict[str, list[Call]] = field(default_factory=lambda: {"controller": [], "driver": []})
    phases: list[tuple[str, Phase]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    unreachable: set[str] = field(default_factory=set)
    paused: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)
    warm: list[str] = field(default_factory=list)
    running_on: dict[str, tuple[str, SimulatedRun]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    grown: set[str] = field(default_factory=set)
    snapshots: str = ""
    place: MemoryStore = field(default_factory=lambda: MemoryStore("place"))
    away: Away | None = None
    mount_point: MemoryStore = field(default_factory=lambda: MemoryStore("mount point"))
    keys: SigningKeys | None = None
    verdicts: dict[str, Judged] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.launches = Path(tempfile.mkdtemp(prefix="launches-", dir=self.folder))
        weakref.finalize(self, shutil.rmtree, self.launches, ignore_errors=True)
        self.moments: dict[str, list[int]] = {"controller": [], "driver": [], "spark": []}
        self.watched = WatchedStore(self.live_run)
        self.watched.violations = self.violations
        self.watched.place = self.place
        self.store: Store = self.watched

    def plan_of(self, actor: str, process: Process) -> FaultPlan:
        """The faults of a new process of an actor; its calls are counted on from those before."""
        plan = FaultPlan()
        plan.calls = self.calls[actor]
        if actor in self.moments:
            plan.before_each = lambda: self.moments[actor].append(self.durable())
        for strike in self.strikes:
            if strike.actor != actor or strike.number <= len(plan.calls):
                continue
            if strike.fault is not None:
                plan.at[strike.number] = strike.fault
            elif strike.meanwhile is not None:
                plan.meanwhile[strike.number] = functools.partial(strike.meanwhile, process)
        return plan

    def has_come_to(self, strike: Strike) -> bool:
        """Whether this life came to the moment of the strike: one that strikes nothing shows nothing."""
        reached = self.phases if strike.actor in ("spark", "batch") else self.calls[strike.actor]
        return strike.number <= len(reached)

    def durable(self) -> int:
        """Grows with all that outlives a death: objects, launches, what the sinks hold."""
        held = sum(plan.sink.added for plan in self.plans.values() if isinstance(plan.sink, WatchedSink))
        begun = sum(1 for launched in self.machine.values() if launched.process is not None)
        return self.watched.changes + held + begun + len(self.machine)

    def controller(
        self,
        process: Process,
        actor: str = "controller",
        name: str = "orchestrator",
        before_each: Callable[[], None] | None = None,
        calls: list[Call] | None = None,
    ) -> Controller:
        """A controller in a process; without memory of any other."""
        plan = self.plan_of(actor, process) if actor else FaultPlan()
        plan.calls = plan.calls if calls is None else calls
        plan.before_each = before_each or plan.before_each
        store = self.seen_by(plan)
        home = Home.of(
            self.home_of(store),
            store,
            self.launches,
            process.clock,
            lambda uri: self.place_seen_by(plan, uri),
            allowed=ANY_SECRET,
            keys=self.keys,
        )
        return Controller(home, self.launcher_of(process, plan), process.clock, name)

    def launcher_of(self, process: Process, plan: FaultPlan) -> SimulatedLauncher:
        """The launcher of a process."""
        return SimulatedLauncher(self, process, plan)

    def seen_by(self, plan: FaultPlan) -> Store:
        """The store, through the faults of an actor."""
        return FaultyStore(self.store, plan)

    def place_seen_by(self, plan: FaultPlan, uri: str) -> Store:
        """Another store of snapshots, through the faults of an actor."""
        return FaultyStore(self.place, plan)

    def home_of(self, store: Store) -> Store:
        """The home, as seen through this store."""
        return store if self.away is None else VanishingStore(store, self._absence, self.mount_point)

    def _absence(self) -> Absence | None:
        if self.away is None:
            return None
        since_seconds = self.schedule.now_seconds - self.away.at_seconds
        return self.away.absence if 0 <= since_seconds < self.away.for_seconds else None

    def calm_controller(self, process: Process) -> Controller:
        """A controller to which nothing happens."""
        return self.controller(process, actor="")

    @property
    def source(self) -> SimulatedSource:
        """The input of every query."""
        return self.plans["counts"].sources[0]

    @property
    def control(self) -> StreamControl:
        """The stream, as a reader of the store sees it."""
        return StreamControl(self.store, STREAM, FakeClock())

    # what drivers do

    def run_driver(self, launched: Launched, process: Process) -> int | None:
        """The body of a driver's process; its exit status, None where it was killed."""
        config = launched.request.driver_config
        key = launched.request.launch_key
        stream = SimulatedStream(clock=process.clock, checkpoints=self.store, said=self.said)
        plan = self.plan_of("driver", process)
        store = self.seen_by(plan)
        script = self.scripts[Path(launched.request.application).name]
        deployment_id, attempt = str(config["deployment_id"]), int(str(config["attempt"]))
        home = self.home_of(store)
        control = StreamControl(home, STREAM, process.clock, HomePresence(home, process.clock, is_expected=True))
        if is_scratch_id(deployment_id):
            judged = self.verdicts.get(Path(launched.request.application).name)
            handover = rehearse(control, deployment_id, process.clock, script, judged)
            if handover is None:
                return 0
            deployment_id, attempt, key = handover.deployment_id, handover.attempt, handover.launch_key
            self.machine[key] = launched
            self.warm.append(key)
        driver = _WatchedDriver(
            self,
            key,
            stream,
            deployment_id,
            attempt,
            checkpoints=store,
            control=control,
            open_place=lambda uri: self.place_seen_by(plan, uri),
        )
        launched.driver = driver
        status = driver.run(script)
        if status is not None:
            if self.store is self.watched:
                self._judge_end(key)
            process.clock.sleep(LINGER_SECONDS)
        return status

    def before_phase(self, launch_key: str, run: SimulatedRun, phase: Phase) -> None:
        """See that no rule is broken by this step, count it, and kill the driver or fail the query where wanted."""
        # What judges reads, too: in a store that fails, or is counted, it would be a part of what it looks at.
        if phase == "initialise" and self.store is self.watched:
            self._judge_start(launch_key, run)
        if phase == "look" and self.store is self.watched:
            self._judge_claim(launch_key, run)
        if phase not in _LASTING:
            return
        self.phases.append((launch_key, phase))
        self.moments["spark"].append(self.durable())
        for strike in self.strikes:
            if strike.actor not in ("spark", "batch") or strike.number != len(self.phases):
                continue
            if strike.actor == "batch":
                self.failing.add(launch_key)
                raise QueryDiedError(f"the query died before {phase}")
            if strike.meanwhile is None:
                raise SimulatedCrash(f"killed before {phase}")
            process = self.machine[launch_key].process
            assert process is not None
            strike.meanwhile(process)

    def _judge_start(self, launch_key: str, run: SimulatedRun) -> None:
        """No two live drivers of one stream (1a.8); nothing drained, and no entry of ours but a flush, is started
        (1a.7, Laws 11 and 12)."""
        prefix = run.checkpoint.prefix
        for other in self.machine:
            if other == launch_key or not self._is_alive(other) or {other, launch_key} & self.paused:
                continue
            if is_scratch_id(other.rpartition("-a")[0]):
                continue  # it starts nothing
            driver = self.machine[other].driver
            if driver is not None and driver.attempt_life.attempt.fence.is_fenced and not driver.startables:
                continue  # launched too late, which it learns at its claim
            if other.rpartition("-")[0] == launch_key.rpartition("-")[0] or not self._has_kept_its_end(other):
                self.violations.append(f"1a.8: {launch_key} starts {prefix} while {other} is alive")
        self.running_on[prefix] = (launch_key, run)
        position = run.checkpoint.position()
        last = None if position.batch_id is None else run.checkpoint.read_offset(position.batch_id)
        if last is not None and last.mark is not None and last.mark.kind == "drain":
            self.violations.append(f"Law 11: {launch_key} starts {prefix}, which is drained")
        kinds = [barrier.entry.mark.kind for barrier in position.barriers if barrier.entry.mark is not None]
        if kinds and (kinds != ["drain"] or position.planned is not None or run.trigger != "once"):
            self.violations.append(f"1a.7: {launch_key} starts {prefix} ({run.trigger}) under {kinds}")

    def _has_kept_its_end(self, launch_key: str) -> bool:
        deployment_id, _, attempt = launch_key.rpartition("-a")
        words = [entry.event for entry in self.control.journal(deployment_id).events()]
        return any(isinstance(word, Stopped | Drained | Finished) and word.attempt == int(attempt) for word in words)

    def _judge_claim(self, launch_key: str, run: SimulatedRun) -> None:
        """A driver that was replaced finds a fence where its next batch would be (1a.8)."""
        register = self.control.need_register().value
        is_replaced = not launch_key.startswith(f"{register.deployment_id}-")
        if is_replaced and not any(id_ >= run.next_batch_id for id_ in run.checkpoint.offset_ids()):
            self.violations.append(f"1a.8: nothing bars {launch_key} from batch {run.next_batch_id}")

    def _judge_end(self, launch_key: str) -> None:
        """A driver that ended by itself leaves no barrier over a batch that failed (Law 12)."""
        for key, run in self.running_on.values():
            position = run.checkpoint.position()
            kinds = [barrier.entry.mark.kind for barrier in position.barriers if barrier.entry.mark is not None]
            if key == launch_key and position.planned is not None and "fence" not in kinds and kinds:
                self.violations.append(f"Law 12: {launch_key} leaves {kinds} over batch {position.planned_id}")

    def before_stop(self, launch_key: str, run: SimulatedRun) -> None:
        """``stop()`` is safe between two batches only, and not while one is being claimed (1a.3, 1a.4)."""
        driver = self.machine[launch_key].driver
        assert driver is not None
        is_lost_anyway = launch_key in self.failing or driver.attempt_life.attempt.fence.is_fenced
        if run.is_in_batch() and not is_lost_anyway:
            self.violations.append(f"1a.4: stop() of {run.checkpoint.prefix} in {launch_key} before {run.phase}")

    def live_run(self, prefix: str) -> SimulatedRun | None:
        """The run of a live driver that uses this checkpoint just now."""
        launch_key, run = self.running_on.get(prefix, ("", None))
        is_live = run is not None and not run.has_ended() and self._is_alive(launch_key)
        return run if is_live and launch_key not in self.unreachable else None

    def is_quiet(self) -> bool:
        """Whether no driver acts any more."""
        return not any(self._is_alive(launch_key) for launch_key in self.machine)

    def _is_alive(self, launch_key: str) -> bool:
        launched = self.machine.get(launch_key)
        return launched is not None and launched.process is not None and not launched.process.has_ended


class _WatchedDriver(SimulatedDriver):
    """A simulated driver whose queries report to the world before each step."""

    def __init__(self, world: World, launch_key: str, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        self._world = world
        self._launch_key = launch_key

    def start(
        self, plan: SimulatedPlan, name: str | None = "counts", location: str | None = None, **changes: object
    ) -> LogicalQuery:
        used = replace(plan, **changes) if changes else plan  # type: ignore[arg-type]
        startable = SimulatedStartable(self.stream.checkpoints, self.clock, used)
        startable.before_phase = lambda run, phase: self._world.before_phase(self._launch_key, run, phase)
        startable.before_stop = lambda run: self._world.before_stop(self._launch_key, run)
        self.startables.append(startable)
        logical = self.attempt_life.start_query(name, location, startable)
        self.queries.append(logical)
        return logical


class SimulatedLauncher:
    """A ``Launcher`` for simulated drivers. One for each process that uses it; the machine is the world's."""

    name = LOCAL
    default_master = "local[*]"
    limits: ClassVar[Mapping[str, str]] = {}
    reaching: ClassVar[Collection[str]] = ()

    def __init__(self, world: World, process: Process, plan: FaultPlan) -> None:
        self._world = world
        self._process = process
        self._plan = plan

    def check(self, request: LaunchRequest) -> None:
        """As ``Launcher.check``: any driver can be started here."""

    def spark_version(self, request: LaunchRequest) -> str:
        """As ``Launcher.spark_version``: unknown."""
        return ""

    def launch(self, request: LaunchRequest) -> LaunchHandle:
        """As ``Launcher.launch``: an intent first, then the driver; a crash in between leaves it ``pending``."""
        key, machine = request.launch_key, self._world.machine

        def intend() -> None:
            machine.setdefault(key, Launched(request))

        def begin() -> None:
            launched = machine[key]
            if launched.process is None and not launched.closed:
                launched.process = self._world.schedule.start(
                    key, lambda process: self._world.run_driver(launched, process)
                )

        self._plan.run("intend", key, intend, writes=True)
        self._plan.run("launch", key, begin, writes=True)
        return LaunchHandle(self.name, key, {"folder": request.folder, "log_path": request.log_path})

    def find(self, place: LaunchPlace) -> LaunchHandle | None:
        """As ``Launcher.find``."""
        key = place.launch_key
        known = self._plan.run("find", key, lambda: key in self._world.machine, writes=False)
        return LaunchHandle(self.name, key, {"folder": place.folder}) if known else None

    def handle_at(self, place: LaunchPlace, recorded: LaunchHandle) -> LaunchHandle:
        """As ``Launcher.handle_at``; like the real ones it refuses a record that names another place."""
        found: dict[str, object] = {"folder": place.folder, "log_path": place.log_path}
        check_same(place, recorded, found)
        return LaunchHandle(self.name, place.launch_key, found)

    def status(self, handle: LaunchHandle) -> LaunchStatus:
        """As ``Launcher.status``."""
        return self._plan.run("status", handle.launch_key, lambda: self._status(handle), writes=False)

    def kill(self, handle: LaunchHandle, grace_seconds: float) -> LaunchStatus:
        """As ``Launcher.kill``."""

        def end() -> LaunchStatus:
            launched = self._world.machine[handle.launch_key]
            launched.closed = launched.process is None
            if launched.process is not None:
                launched.process.kill(DriverKilledError())
            return self._status(handle)

        return self._plan.run("kill", handle.launch_key, end, writes=True)

    def logs(self, handle: LaunchHandle, tail_bytes: int) -> str:
        """As ``Launcher.logs``."""
        return "\n".join(self._world.said)[-tail_bytes:]

    def links(self, handle: LaunchHandle) -> Mapping[str, str]:
        """As ``Launcher.links``: there are none."""
        return {}

    def forget(self, handle: LaunchHandle) -> None:
        """As ``Launcher.forget``: nothing is kept elsewhere."""

    def _status(self, handle: LaunchHandle) -> LaunchStatus:
        now = self._process.clock.now()
        launched = self._world.machine[handle.launch_key]
        if launched.closed:
            return LaunchStatus("gone", None, "closed before a driver had started", now)
        if launched.process is None:
            return LaunchStatus("pending", None, "", now)
        if handle.launch_key in self._world.unreachable:
            return LaunchStatus("unknown", None, "its machine does not answer", now)
        if not launched.process.has_ended:
            return LaunchStatus("running", None, "", now)
        status = launched.process.result
        if isinstance(status, int):
            return LaunchStatus("exited", status, f"it ended with status {status}", now)
        return LaunchStatus("gone", None, "it was killed", now)


def counting_plan(rows: int, *, step_ms: int = 250, max_rows_per_batch: int = 10) -> SimulatedPlan:
    """A query that counts rows per second into a watched sink, over an input that has this many rows already."""
    source = SimulatedSource(max_rows_per_batch=max_rows_per_batch)
    source.add(*range(0, rows * step_ms, step_ms))
    return SimulatedPlan([source], WatchedSink())
