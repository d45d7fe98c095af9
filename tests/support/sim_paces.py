"""Streams whose input never pauses, and upgrades that are judged by their pace.

The source can be asked how far a query is behind (``support.simulated_connector`` must be installed), as Kafka can.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.request.requests import change_request, deploy_request
from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView
from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.terms.order import UpgradeTerms
from support.sim_processes import Process
from support.sim_world import SETTINGS, WatchedSink, World
from support.simulated_driver import STREAM, QueryFailedError, SimulatedDriver
from support.simulated_query import SimulatedPlan, SimulatedRun
from support.simulated_sources import SimulatedSource

UNBOUND_ROWS = 1_000_000
"""A batch takes all there is, as without ``maxOffsetsPerTrigger``."""
BUSY = replace(SETTINGS, heartbeat_seconds=60.0, lost_after_seconds=200.0)
"""So busy a machine that the sources are asked five times in 300 s."""
HANGS_SECONDS = 100_000.0
TICK_SECONDS = 0.1
"""Between two additions to the source."""


@dataclass(frozen=True)
class Version:
    """How fast one version of the script reads.

    Attributes:
        trigger_seconds: how long it sleeps after each.
        hangs_after: after this many of its batches are committed the next one never is; None: it never hangs.
    """

    rows_per_batch: int = UNBOUND_ROWS
    batch_seconds: float = 0.5
    trigger_seconds: float = 0.0
    hangs_after: int | None = None


@dataclass
class PacedUpgrade:
    """One stream, and one upgrade of it, under a source that gives rows as time passes.

    Attributes:
        rows_per_second: what comes, by how many seconds after the new version's first commit; before that with 0.
        warms_seconds: how long the old version runs before it is upgraded.
    """

    folder: Path
    old: Version
    new: Version
    rows_per_second: Callable[[float], float] = lambda _: 10.0
    warms_seconds: float = 150.0
    settings: AgentSettings = SETTINGS
    terms: UpgradeTerms = field(default_factory=lambda: UpgradeTerms(warm=False))

    def __post_init__(self) -> None:
        self.source = SimulatedSource("topic")
        self.sink = WatchedSink()
        self._new_began_at: float | None = None
        self._is_over = False
        scripts = {}
        for name, version in (("v1.py", self.old), ("v2.py", self.new)):
            (self.folder / name).write_text(f"print({name!r})\n")
            scripts[name] = self._script(version, is_new=name == "v2.py")
        self.world = World(self.folder, scripts, {"rows": self._plan(self.old)})

    def run(self) -> UpgradeView:
        """Live it to the end of the upgrade, and of the stream; the end of the upgrade."""
        schedule, found = self.world.schedule, list[UpgradeView]()
        schedule.start("producer", self._produce)
        process = schedule.start("orchestrator", lambda one: found.append(self._upgrade(one)))
        schedule.run_until(lambda: process.has_ended)
        if process.error is not None:
            raise process.error
        schedule.run_until(self.world.is_quiet)
        return found[0]

    def assert_each_row_came_once(self) -> None:
        """Whatever was judged (Law 9)."""
        assert [row.event_ms for row in self.sink.rows] == list(range(len(self.sink.rows)))
        assert len(self.sink.rows) > 0

    def _upgrade(self, process: Process) -> UpgradeView:
        controller = self.world.controller(process)
        controller.deploy(deploy_request(STREAM, self.folder / "v1.py", settings=self.settings))
        controller.wait(WaitCondition("healthy", STREAM, "d-0001"), 60.0)
        process.clock.sleep(self.warms_seconds)
        request = UpgradeRequest(change_request(STREAM, self.folder / "v2.py"), self.terms)
        begun = controller.upgrades.begin(request, "up")
        view = controller.upgrades.run(STREAM, begun.upgrade_id, 2_000.0)
        self._is_over = True
        self._end(controller)
        return view

    def _end(self, controller: Controller) -> None:
        order = controller.order("stop", STREAM, request_id="end")
        controller.wait(WaitCondition.of(order), 400.0)

    def _produce(self, process: Process) -> None:
        """Rows as time passes."""
        owed = 0.0
        while not self._is_over:
            began = self._new_began_at
            owed += TICK_SECONDS * self.rows_per_second(
                0.0 if began is None else process.clock.monotonic_seconds() - began
            )
            first = len(self.source.rows)
            self.source.add(*range(first, first + int(owed)))
            owed -= int(owed)
            process.clock.sleep(TICK_SECONDS)

    def _plan(self, version: Version) -> SimulatedPlan:
        source = SimulatedSource(self.source.description, max_rows_per_batch=version.rows_per_batch)
        source.rows = self.source.rows
        return SimulatedPlan(
            [source],
            self.sink,
            window_ms=None,
            delay_ms=None,
            batch_seconds=version.batch_seconds,
            trigger_seconds=version.trigger_seconds,
            shows_sources=True,
        )

    def _script(self, version: Version, *, is_new: bool) -> Callable[[SimulatedDriver], None]:
        def script(driver: SimulatedDriver) -> None:
            query = driver.start(self._plan(version), "rows")
            if isinstance(driver, SimulatedDriver):
                driver.clock.every(0.1, lambda: self._look(driver, version, is_new=is_new))
            while not query.ended:
                query.await_termination(0.1)
                failure = query.failure()
                if failure is not None:
                    raise QueryFailedError(failure)

        return script

    def _look(self, driver: SimulatedDriver, version: Version, *, is_new: bool) -> None:
        for startable in driver.startables:
            for run in startable.runs:
                if is_new and run.committed and self._new_began_at is None:
                    self._new_began_at = driver.clock.monotonic_seconds()
                if version.hangs_after is not None and len(run.committed) >= version.hangs_after:
                    _hang(run)


def _hang(run: SimulatedRun) -> None:
    run._plan = replace(run._plan, batch_seconds=HANGS_SECONDS)
