"""A deploy whose first attempt goes to a waiting driver, as in an upgrade, or is launched cold."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.deploy.attempts import Attempts
from airflow_streamstate.controller.deploy.deployment import Deployer
from airflow_streamstate.controller.drivers.driver_launch import Drivers
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.views import DeploymentView
from airflow_streamstate.controller.request.requests import DeployRequest, change_request, deploy_request
from airflow_streamstate.controller.scratch.rehearsal import Rehearsals, RehearsalView
from airflow_streamstate.launch.interface import Launcher, LaunchState
from airflow_streamstate.launch.launchers import Launchers
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Stopped
from airflow_streamstate.protocol.ids import launch_key_for
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.scratch import QueryOutcome, RehearsedQuery, ScratchVerdict, Waiting
from support.sim_stage import STREAM, Stage


class HandingOver(Drivers):
    """Drivers that keep what became of a handover.

    Attributes:
        is_warm: whether an attempt was handed over; None while no handover was due.
    """

    is_warm: bool | None = None

    def hand_over(self, control: StreamControl, spec: DeploymentSpec, attempt: int, rehearsal_id: str) -> bool:
        self.is_warm = super().hand_over(control, spec, attempt, rehearsal_id)
        return self.is_warm


@dataclass
class WarmDeployer:
    """Deploys so."""

    home: Home
    launcher: Launcher
    clock: Clock
    drivers: HandingOver = field(init=False)

    def __post_init__(self) -> None:
        self.drivers = HandingOver(self.home, Launchers.of(self.launcher, self.clock), self.clock)

    def deploy(self, request: DeployRequest, request_id: str, rehearsal_id: str) -> DeploymentView:
        """Move the stream to this version; the driver of this rehearsal must be its first attempt."""
        context = ControllerContext.of(self.home, self.launcher, self.clock, "tests", None)
        vars(context)["drivers"] = self.drivers
        resolved = replace(request, rehearsal_id=rehearsal_id)
        return Deployer(context, Attempts(context)).deploy(resolved, request_id, lambda _: None)


class WarmStage:
    """A first version that runs, and a second one whose driver a test plays.

    Attributes:
        view: of the rehearsal that was started.
    """

    view: RehearsalView

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.rehearsals = Rehearsals(ControllerContext.of(stage.home, stage.launcher, stage.clock, "tests", None))
        stage.deploy()
        stage.come_to_life(queries=("counts",))
        stage.run_batches(3)

    @property
    def rehearsal_id(self) -> str:
        return self.view.rehearsal_id

    @property
    def launch_key(self) -> str:
        """Of the driver that waits."""
        return launch_key_for(self.rehearsal_id, 1)

    def begin(self, waits_seconds: float | None = 60.0, request_id: str = "plan") -> WarmStage:
        """The rehearsal is under way; it has 100 seconds."""
        change = change_request(STREAM, self.stage.script("v2\n", "v2.py"))
        self.view = self.rehearsals.begin(change, request_id, deadline_seconds=100, waits_seconds=waits_seconds)
        return self

    def gives(self, outcome: QueryOutcome = "accepted", notes: tuple[str, ...] = ()) -> WarmStage:
        """The verdict; the driver lives on."""
        clock = self.stage.clock
        queries = {"counts": RehearsedQuery(outcome, "restored")}
        self.stage.control.create_verdict(
            ScratchVerdict(
                STREAM,
                self.rehearsal_id,
                "done",
                queries,
                "",
                1.0,
                "driver",
                clock.now(),
                clock.new_uuid(),
                notes=notes,
            )
        )
        return self

    def waits(self) -> WarmStage:
        """Accepted, and at its first start."""
        return self.gives().says_that_it_waits()

    def says_that_it_waits(self) -> WarmStage:
        """It is at its first start."""
        clock = self.stage.clock
        self.stage.control.create_waiting(Waiting(STREAM, self.rehearsal_id, clock.now(), clock.new_uuid(), "counts"))
        return self

    def driver(self, state: LaunchState) -> WarmStage:
        """How the driver is from now on."""
        self.stage.launcher.states[self.launch_key] = state
        return self

    def old_one_stops(self) -> WarmStage:
        """The first version has come to its end."""
        manifest = self.stage.keep("stopped")
        positions = {name: query.position for name, query in manifest.queries.items()}
        self.stage.say(Stopped, snapshot_id=manifest.snapshot_id, queries=positions)
        self.stage.end()
        return self

    @property
    def request(self) -> DeployRequest:
        """To deploy just what waits."""
        return deploy_request(STREAM, self.stage.script("v2\n", "v2.py"), request_id="deploy")

    def deploy(self, home: Home | None = None) -> bool | None:
        """The second version is deployed; whether it was handed over."""
        deployer = WarmDeployer(home or self.stage.home, self.stage.launcher, self.stage.clock)
        deployer.deploy(self.request, "deploy", self.rehearsal_id)
        return deployer.drivers.is_warm

    def names(self) -> set[str]:
        """What is right below the rehearsal, folders of its launch too."""
        folder = layout.deployment_folder(STREAM, self.rehearsal_id)
        keys = [info.key for info in self.stage.store.list_objects(f"{folder}/")]
        found = {key[len(folder) + 1 :].partition("/")[0] for key in keys}
        path = self.stage.home.launch_path(folder)
        return found | ({child.name for child in path.iterdir()} if path.exists() else set())
