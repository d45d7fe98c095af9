"""One stream whose verbs are typed in the shell, in a simulated world in which every write is traced."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from airflow_streamstate.allowed import Allowed
from airflow_streamstate.cli.main import run
from airflow_streamstate.cli.session import Human, Report, ShellSession
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.views import StreamStatus
from airflow_streamstate.declarations import apply
from airflow_streamstate.launch.interface import LaunchHandle, LaunchRequest, LaunchStatus
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import is_scratch_id
from airflow_streamstate.protocol.scratch import RehearsedQuery, Replay, ReplayedBatch, ScratchRun, ScratchVerdict
from airflow_streamstate.snapshot import copy as copying
from airflow_streamstate.snapshot.state_tables import RESULT
from airflow_streamstate.store import open as opening
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.memory import MemoryStore
from support.faulty_store import FaultPlan, SimulatedCrash
from support.sim_life import Life as SimulatedLife
from support.sim_life import Step, grow, make_world, script_of
from support.sim_processes import Process
from support.sim_rehearsal import SECONDS
from support.sim_upgrades import make_ascent
from support.sim_watch import WatchedStore
from support.sim_world import Launched, SimulatedLauncher, WatchedSink, World
from support.simulated_driver import STREAM
from support.trace import Trace, TracedStore

RENAMED, WIDER, REFUSED, BROKEN = "renamed.py", "wider.py", "refused.py", "broken.py"
"""Versions that call a query by another name, that have one more, that Spark refuses, and that do not run at all."""
PLACES = ("place", "mirror", "lake")
"""Stores alongside the home, as ``memory://place``."""


@dataclass
class TracedWorld(World):
    """A world in which each write and launch is traced.

    Attributes:
        trace: where.
        others: the stores alongside the home.
    """

    trace: Trace = field(default_factory=Trace)
    others: dict[str, MemoryStore] = field(default_factory=lambda: {name: MemoryStore(name) for name in PLACES})

    def seen_by(self, plan: FaultPlan) -> Store:
        return TracedStore(super().seen_by(plan), self.trace)

    def place_seen_by(self, plan: FaultPlan, uri: str) -> Store:
        return self.other(uri.removeprefix("memory://"))

    def other(self, name: str) -> Store:
        """A store alongside the home."""
        return TracedStore(self.others[name], self.trace, name)

    def run_driver(self, launched: Launched, process: Process) -> int | None:
        config = launched.request.driver_config
        order = config.get("reading")
        if isinstance(order, dict):
            return _read(order, process)
        deployment_id = str(config["deployment_id"])
        if is_scratch_id(deployment_id):
            control = StreamControl(self.seen_by(FaultPlan()), STREAM, process.clock)
            run = control.scratch_run(deployment_id)
            if run is not None and isinstance(run.what, Replay):
                return _replay(control, run, run.what, process)
        return super().run_driver(launched, process)

    def launcher_of(self, process: Process, plan: FaultPlan) -> SimulatedLauncher:
        return TracedLauncher(self, process, plan)


def _read(order: Mapping[str, Any], process: Process) -> int:
    """The life of a driver that reads state: each query has one table of three rows."""
    process.clock.sleep(SECONDS)
    table = {"table": "0-stateStoreSave/rows", "name": "rows", "kind": "rows", "has_ttl": False}
    names = order["places"]
    if order["verb"] == "diff":
        counts = {"added": 1, "changed": 0, "gone": 2, "examples": {"added": [], "changed": [], "gone": []}}
        answer = {"queries": {name: {"tables": [{**table, **counts}], "problems": []} for name in names}}
    else:
        columns = {"key": "struct<k:string>", "value": "struct<n:bigint>"}
        counted = {**table, "rows": 3, "rows_by_partition": [3, 0], "columns": columns, "timers": None}
        answer = {"queries": {name: {"tables": [counted], "rows": [], "problems": []} for name in names}}
        about = (order.get("export") or {}).get("about")
        written = {"rows": 3, "path": "counts/rows"}
        answer["export"] = None if about is None else {**about, "complete": True, "tables": [written], "problems": []}
    (Path(order["folder"]) / RESULT).write_text(json.dumps({"result": answer}))
    return 0


def _replay(control: StreamControl, run: ScratchRun, replay: Replay, process: Process) -> int:
    """The life of a driver that runs recorded batches again."""
    process.clock.sleep(SECONDS)
    queries = {
        name: RehearsedQuery(
            "accepted",
            replayed=tuple(
                ReplayedBatch(batch_id, 10, 3, 0.5, f"{replay.out}/{name}/batch={batch_id}", ("part-0.parquet",))
                for batch_id in batch_ids
            ),
        )
        for name, batch_ids in replay.batches.items()
    }
    control.create_verdict(
        ScratchVerdict(
            stream_id=control.stream_id,
            run_id=run.run_id,
            outcome="done",
            queries=queries,
            error="",
            seconds=SECONDS,
            given_by="driver",
            given_at=process.clock.now(),
            write_id=process.clock.new_uuid(),
            spark_version="4.2.0",
        )
    )
    return 0


class TracedLauncher(SimulatedLauncher):
    """As ``SimulatedLauncher``, each call traced that changes something."""

    _world: TracedWorld

    def launch(self, request: LaunchRequest) -> LaunchHandle:
        self._world.trace.launched("launch", request.launch_key, request.to_json())
        return super().launch(request)

    def kill(self, handle: LaunchHandle, grace_seconds: float) -> LaunchStatus:
        self._world.trace.launched(f"kill, {grace_seconds:g} s for", handle.launch_key)
        return super().kill(handle, grace_seconds)

    def forget(self, handle: LaunchHandle) -> None:
        self._world.trace.launched("forget", handle.launch_key)
        super().forget(handle)


@dataclass
class TracedSession(ShellSession):
    """One command, in one process of the world; what it prints is kept."""

    world: TracedWorld | None = None
    process: Process | None = None
    printed: dict[str, Any] = field(default_factory=dict)

    def controller(self) -> Controller:
        assert self.world is not None
        assert self.process is not None
        return self.world.controller(self.process, actor="", name=self.requested_by)

    def home(self) -> Home:
        return self.controller().home

    def status(self, stream_id: str, deployment_id: str | None = None) -> StreamStatus:
        return self.controller().status(stream_id, deployment_id)

    @property
    def requested_by(self) -> str:
        return "a-person (shell)"

    def allow(self, named: Allowed, **_: Any) -> None:
        """All that lives name is allowed."""

    def emit(self, value: Mapping[str, object], human: Human) -> None:
        self.printed = dict(value)

    def fail(self, error: Mapping[str, Any]) -> None:
        self.printed = {"error": dict(error)}

    def note(self, line: str) -> None:
        """Nothing is printed."""

    def say(self, human: Human) -> None:
        """Nothing is printed."""

    def call(self, line: str) -> None:
        """Nothing is printed."""

    @contextmanager
    def progress(self, title: str) -> Iterator[Report]:
        yield lambda _text: None


def _run_outside(world: World, process: Process) -> None:
    """A stream is started, and its driver killed."""
    controller = world.calm_controller(process)
    SimulatedLife(world, steps=(Step("deploy", "v1.py", hurry_seconds=3.0),)).drive(process, controller)
    controller.kill(STREAM)


class _ThreadAtOnce:
    """Instead of the threads of ``apply``: what another one would do is done at its start, in this process."""

    def __init__(self, target: Callable[..., object], args: tuple[object, ...] = (), **_: object) -> None:
        self._do = lambda: target(*args)

    def start(self) -> None:
        self._do()

    def join(self, timeout: float | None = None) -> None:
        """It has ended."""


@dataclass
class Stage:
    """The commands in which a life is written.

    Attributes:
        verbs: that were typed.
        process: in which the next command runs.
    """

    world: TracedWorld
    process: Process
    verbs: set[str] = field(default_factory=set)

    @property
    def trace(self) -> Trace:
        return self.world.trace

    @property
    def folder(self) -> Path:
        """Where scripts and files are."""
        return self.world.folder

    def script(self, name: str) -> str:
        """The path of a script."""
        return str(self.folder / name)

    def shell(self, *words: object, fails: bool | None = False) -> dict[str, Any]:
        """Run ``streamstate WORDS``; gives what it prints with ``--json``.

        Args:
            fails: whether its exit status must be another one than 0; None: either.
        """
        texts = [str(word) for word in words]
        self.verbs.add(" ".join(texts[: 2 if texts[0] in ("snapshot", "home") else 1]))
        self.trace.note(f"$ streamstate {' '.join(texts)}")
        session = TracedSession(
            self.world.store.uri, as_json=True, clock=self.process.clock, world=self.world, process=self.process
        )
        status = run(texts, session)
        error = session.printed.get("error")
        kind = error.get("type", "") if isinstance(error, dict) else ""
        self.trace.note(f"= {status} {kind}".rstrip())
        assert fails in (bool(status), None), f"{' '.join(texts)}: {status} {session.printed}"
        return session.printed

    def kill_driver(self) -> None:
        """The driver that runs dies, at once and without a word."""
        for launched in self.world.machine.values():
            if launched.process is not None and not launched.process.has_ended:
                launched.process.kill(SimulatedCrash("kill -9"))

    def lose_driver(self) -> None:
        """The machine of the driver that runs is gone, so that nobody can know whether it lives."""
        running = self.world.machine.items()
        self.world.unreachable |= {key for key, one in running if one.process and not one.process.has_ended}
        self.kill_driver()

    def lose_home(self) -> None:
        """Everything of the home is gone."""
        self.world.store = self.world.watched = WatchedStore(self.world.live_run)
        self.world.watched.place, self.world.watched.may_prune = self.world.place, True
        self.trace.note("the home is gone")

    def run_outside(self, place: str) -> None:
        """A query of the same script ran without streamstate, with its checkpoints there; it was killed."""
        with tempfile.TemporaryDirectory() as folder:
            outside = make_world(Path(folder))
            begun = outside.schedule.start("outside", lambda process: _run_outside(outside, process))
            outside.schedule.run_until(lambda: begun.has_ended)
            if begun.error is not None:
                raise begun.error
            prefix = f"{layout.checkpoints_folder(STREAM, 'd-0001')}/"
            for info in outside.store.list_objects(prefix):
                found = outside.store.get(info.key)
                assert found is not None
                self.world.others[place].put(info.key.removeprefix(prefix), found.body)

    def fail_batch(self, batch_id: int) -> None:
        """From now on this batch of ``counts`` fails."""
        self._change(fails_at={batch_id})

    def slow_down(self, batch_seconds: float) -> None:
        """From now on a batch of ``counts`` takes this long."""
        self._change(batch_seconds=batch_seconds)

    def _change(self, **changes: Any) -> None:
        for launched in self.world.machine.values():
            for startable in [] if launched.driver is None else launched.driver.startables[:1]:
                startable.plan = replace(startable.plan, **changes)
                for run_of_query in startable.runs:
                    run_of_query._plan = startable.plan

    def declare(self, text: str | None) -> None:
        """Give the stream a file with this text; None: there is no such file any more."""
        path = self.folder / "streams" / f"{STREAM}.yaml"
        path.parent.mkdir(exist_ok=True)
        for script in self.folder.glob("v*.py"):
            (path.parent / script.name).write_bytes(script.read_bytes())
        if text is None:
            path.unlink()
        else:
            path.write_text(text)

    def pass_time(self, seconds: float) -> None:
        """Let the drivers work."""
        self.process.clock.sleep(seconds)

    def grow(self, rows: int = 60, seconds: float = 1.3) -> None:
        """More input, and time for some of it to be read."""
        grow(self.world.source, rows)
        self.pass_time(seconds)

    def at_the_same_time(self, *words: object, after_seconds: float = 0.0, fails: bool = False) -> None:
        """Another person types this, while the next commands of this one run."""

        def type_it(process: Process) -> None:
            process.clock.sleep(after_seconds)
            Stage(self.world, process, self.verbs).shell(*words, fails=fails)

        self._started.append(self.world.schedule.start("another shell", type_it))

    _started: list[Process] = field(default_factory=list)


Life = Callable[[Stage], None]


@contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _world(folder: Path) -> TracedWorld:
    """As of ``sim_upgrades``, with more versions: each has its own thing that an upgrade has to judge."""
    made = make_ascent(folder)
    world = TracedWorld(folder, made.scripts, made.plans)
    counts, rows = (made.plans[name] for name in ("counts", "rows"))
    world.scripts |= {
        RENAMED: script_of({"totals": counts, "rows": rows}),
        WIDER: script_of({"counts": counts, "rows": rows, "late": replace(rows, sink=WatchedSink())}),
        REFUSED: made.scripts["v2.py"],
        BROKEN: made.scripts["v2.py"],
    }
    for name in (RENAMED, WIDER, REFUSED, BROKEN):
        (folder / name).write_text(f"print({name!r})\n")
    world.verdicts = {REFUSED: _refused, BROKEN: _broken}
    return world


def _refused(verdict: ScratchVerdict) -> ScratchVerdict:
    words = "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match"
    refused = RehearsedQuery("failed", "restored", 0.5, words)
    return replace(verdict, queries={**verdict.queries, "counts": refused}, seeded={})


def _broken(verdict: ScratchVerdict) -> ScratchVerdict:
    error = "ModuleNotFoundError: No module named 'rules'"
    return replace(verdict, outcome="failed", queries={}, seeded={}, error=error, traceback=f"Traceback ...\n{error}")


def traced(life: Life, folder: Path) -> tuple[str, set[str]]:
    """Live it; its trace, and the verbs that were typed in it.

    Args:
        folder: an empty one, for its scripts.
    """
    world = _world(folder)
    world.trace.names = {
        str(world.launches): "<launches>",
        str(folder): "<code>",
        str(Path(__file__).resolve().parents[2]): "<sources>",
        sys.executable: "<python>",
    }
    verbs: set[str] = set()
    stages: list[Stage] = []

    def live(process: Process) -> None:
        stages.append(Stage(world, process, verbs))
        life(stages[0])

    world.watched.may_prune = True
    world.others["place"] = world.place
    known: dict[str, Store] = {name: world.other(name) for name in PLACES}
    with (
        _in_folder(folder),
        mock.patch.dict(opening._memory_stores, known, clear=True),
        mock.patch.object(apply, "threading", SimpleNamespace(Thread=_ThreadAtOnce)),
        mock.patch.object(copying, "READERS", 1),
        mock.patch("socket.gethostname", return_value="this-machine"),
        mock.patch("os.getpid", return_value=4711),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        process = world.schedule.start("shell", live)
        world.schedule.run_until(lambda: process.has_ended)
        if process.error is not None:
            raise process.error
        world.schedule.run_until(world.is_quiet)
    for other in stages[0]._started:
        if other.error is not None:
            raise other.error
    assert not world.violations, world.violations
    return world.trace.text(), verbs
