"""A stream on a folder of files whose next version waits in its own driver, and takes over warm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.home import Home, HomeConfig
from airflow_streamstate.controller.observe.views import DeploymentView
from airflow_streamstate.controller.request.requests import DeployRequest, change_request, deploy_request
from airflow_streamstate.controller.scratch.rehearsal import Rehearsals, RehearsalView
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.launch.local import LocalLauncher
from support.drivers import CONF, WINDOWED_COUNTS, wait_until
from support.launches import end_processes
from support.warm import WarmDeployer
from support.window_rows import WindowRows

STREAM = "orders"
MASTER = "local[2]"
COUNTS = (
    WINDOWED_COUNTS
    + """
import os
is_rehearsed = "STREAMSTATE_REHEARSAL" in os.environ
open(base + "/passes", "a").write(f"VERSION {is_rehearsed} {sys.argv[1:] == [base]} {__name__}\\n")
counts.writeStream.queryName("counts").format("json").start(base + "/out").awaitTermination()
"""
)


@dataclass
class Life:
    """A stream on a folder of files, and versions that follow each other.

    Attributes:
        conf: in addition to what drivers of tests are given.
    """

    base: Path
    conf: Mapping[str, str] = field(default_factory=dict)
    home: Home = field(init=False)
    rows: WindowRows = field(init=False)

    def __post_init__(self) -> None:
        self.home = Home(HomeConfig(str(self.base / "home")))
        self.launcher = LocalLauncher(SYSTEM_CLOCK)
        self.controller = Controller(self.home, self.launcher, SYSTEM_CLOCK, "tests")
        self.rehearsals = Rehearsals(ControllerContext.of(self.home, self.launcher, SYSTEM_CLOCK, "tests", None))
        self.deployer = WarmDeployer(self.home, self.launcher, SYSTEM_CLOCK)
        self.control = self.home.control(STREAM)
        self.rows = WindowRows(self.base)

    def script(self, version: str, text: str = COUNTS) -> Path:
        """A version of the job."""
        path = self.base / version / "job.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("VERSION", version))
        return path

    def wish(self, script: Path, request_id: str) -> DeployRequest:
        """To deploy it."""
        return deploy_request(
            STREAM, script, arguments=(str(self.base),), master=MASTER, conf={**CONF, **self.conf},
            request_id=request_id,
        )  # fmt: skip

    def runs(self, version: str, files: int, text: str = COUNTS) -> None:
        """The first version, which has read this many files."""
        for _ in range(files):
            self.rows.feed()
        self.controller.deploy(self.wish(self.script(version, text), f"deploy-{version}"))
        self.wait_closed(files - 1)

    def wait_closed(self, windows: int) -> None:
        """Wait until this many windows are written: each file but the last."""
        wait_until(lambda: len(self.rows.found()) >= 2 * windows, lambda: f"{self.rows.found()}\n{self.log()}", 120)

    def waits(self, version: str, text: str = COUNTS, waits_seconds: float = 300.0) -> RehearsalView:
        """Another version, rehearsed; its driver waits by now."""
        view = self.controller.plans.begin(
            change_request(STREAM, self.script(version, text)),
            request_id=f"plan-{version}",
            waits_seconds=waits_seconds,
        )
        report = self.controller.plans.wait(view)
        assert (report.outcome, report.verdict) == ("fits", "same"), report
        wait_until(
            lambda: self.rehearsals.is_waiting(STREAM, view.rehearsal_id),
            lambda: self.rehearsals.waiting_end(STREAM, view.rehearsal_id) + self.log_of(view),
            60,
        )
        return view

    def stop(self) -> None:
        """The old one gets its barrier, and has ended."""
        deployment_id = self.control.need_register().value.deployment_id or ""
        command = self.controller.order("stop", STREAM, request_id=f"stop-{deployment_id}")
        self.controller.wait(WaitCondition.of(command), 120)

    def deploy(self, version: str, view: RehearsalView) -> DeploymentView:
        """The version that waits, at once."""
        script = self.base / version / "job.py"
        return self.deployer.deploy(self.wish(script, f"deploy-{version}"), f"deploy-{version}", view.rehearsal_id)

    def folder_of(self, view: RehearsalView) -> Path:
        return self.base / "home" / STREAM / "scratch" / view.rehearsal_id

    def launch_of(self, view: RehearsalView) -> Path:
        """The folder of its driver."""
        return self.folder_of(view) / "launches" / f"{view.rehearsal_id}-a0001"

    def log_of(self, view: RehearsalView) -> str:
        """What the driver of a rehearsal printed; "" if that was removed."""
        log = self.launch_of(view) / "driver.log"
        return log.read_text() if log.exists() else ""

    def log(self) -> str:
        """The end of the current driver's log."""
        return self.controller.log_reader(STREAM).read_all()

    def passes(self) -> list[str]:
        """What each pass of a script found."""
        return self.told("passes")

    def told(self, name: str) -> list[str]:
        """The lines that scripts wrote under this name."""
        return (self.base / name).read_text().splitlines()

    def end(self) -> None:
        """No driver is left of it."""
        for folder in (self.base / "home").rglob("launches/[dr]-*"):
            if folder.is_dir():
                end_processes(str(folder))
