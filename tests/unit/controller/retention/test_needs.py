"""What a stream needs, by its records alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from airflow_streamstate.controller.retention.kept_snapshots import Needs, needs_of
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import SnapshotKind, deployment_id_for, fencing_token_of, snapshot_id_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import DeploymentSpec, Intent, StartPlan, StreamRegister
from airflow_streamstate.protocol.scratch import ScratchRun, ScratchVerdict, Waiting
from airflow_streamstate.protocol.upgrades import (
    Decision,
    NewDeployed,
    OldEnded,
    OldReturned,
    Phase,
    Upgrade,
    UpgradeStep,
)
from airflow_streamstate.store.memory import MemoryStore
from support.asked_upgrades import on_return
from support.examples import AT, example
from support.fake_clock import FakeClock

STREAM = "orders"
OTHER = "u-0b8e3c525f0f"


@pytest.fixture
def control() -> StreamControl:
    """A stream of four deployments, each but the first started from the end of the one before."""
    control = StreamControl(MemoryStore(), STREAM, FakeClock())
    begin(control, "d-0001", None, None)
    for number in range(2, 5):
        begin(control, deployment_id_for(number), stopped(number - 1), deployment_id_for(number - 1))
    return control


def begin(control: StreamControl, deployment_id: str, snapshot_id: str | None, before: str | None) -> None:
    """Record what a deployment, or the version of a rehearsal, started from."""
    spec = example(DeploymentSpec)
    assert isinstance(spec, DeploymentSpec)
    start = StartPlan("fresh" if snapshot_id is None else "restore", snapshot_id, before)
    control.create_spec(replace(spec, deployment_id=deployment_id, start=start))


def stopped(number: int, attempt: int = 1) -> str:
    return snapshot_id_for(deployment_id_for(number), "stopped", attempt)


def manifest(number: int, kind: SnapshotKind = "stopped", attempt: int = 1) -> SnapshotManifest:
    deployment_id = deployment_id_for(number)
    token = fencing_token_of(deployment_id)
    snapshot_id = snapshot_id_for(deployment_id, kind, attempt)
    return SnapshotManifest(snapshot_id, kind, STREAM, deployment_id, attempt, token, AT, "agent", {}, "w", "")


def register(current: int | None = 4, **changes: object) -> StreamRegister:
    deployment_id = None if current is None else deployment_id_for(current)
    found = StreamRegister(STREAM, current or 0, deployment_id, 1, "run", None, "w", AT, "tests")
    return replace(found, **changes)  # type: ignore[arg-type]


def needs(
    control: StreamControl, *manifests: SnapshotManifest, known_good: str | None = None, **changes: object
) -> Needs:
    of = {one.snapshot_id: one for one in manifests}
    return needs_of(control, register(**changes), of, known_good)  # type: ignore[arg-type]


def test_the_current_deployment_and_the_one_before_need_their_starts_and_ends(control: StreamControl) -> None:
    """Of each kind of end the last, and the newest snapshot of all; each by its first reason. (Law 14)"""
    found = needs(
        control,
        *(manifest(3, kind, attempt) for kind in ("stopped", "pre-drain", "live") for attempt in (2, 1)),
        manifest(3, "drained", 3),
        manifest(4, "live", 1),
        manifest(4, "live", 2),
        manifest(1),
    )
    assert found == Needs(
        {
            stopped(3): "the current deployment, d-0004, started from it",
            "d-0004-live-000002": "the newest one of the current deployment, d-0004",
            stopped(2): "the deployment before the current one, d-0003, started from it",
            stopped(3, 2): "the last stopped one of the deployment before the current one, d-0003",
            "d-0003-drained-000003": "the last drained one of the deployment before the current one, d-0003",
            "d-0003-pre-drain-000002": "the last pre-drain one of the deployment before the current one, d-0003",
        },
        frozenset({"d-0003", "d-0004"}),
        is_moving=False,
    )


def test_a_first_deployment_needs_its_own_alone(control: StreamControl) -> None:
    """It started from nothing, and there is no deployment before it."""
    found = needs(control, manifest(1, "live"), current=1)
    assert found.snapshots == {"d-0001-live-000001": "the newest one of the current deployment, d-0001"}
    assert found.deployments == {"d-0001"}


@pytest.mark.parametrize("is_moving", [False, True])
def test_a_stream_that_was_never_deployed_needs_nothing(control: StreamControl, is_moving: bool) -> None:
    """It may be about to be."""
    intent = Intent("r", "d-0001", AT, "ada") if is_moving else None
    assert needs(control, current=None, intent=intent) == Needs({}, frozenset(), is_moving)


def test_a_record_that_is_gone_needs_nothing(control: StreamControl) -> None:
    """The deployment before the current one may have been removed whole."""
    control.home.delete(layout.spec_key(STREAM, "d-0003"))
    assert needs(control).snapshots == {stopped(3): "the current deployment, d-0004, started from it"}


@pytest.mark.parametrize(
    ("known_good", "own", "needed"),
    [
        (
            "d-0001",
            (manifest(1, "live", 1), manifest(1, "live", 2)),
            {
                "d-0001-live-000002": "last known good: the newest one of d-0001",
                stopped(1): "d-0002 started from it, and no version since is known to be good",
            },
        ),
        ("d-0001", (), {stopped(1): "d-0002 started from it, and no version since is known to be good"}),
        ("d-0002", (manifest(2, "live"),), {"d-0002-live-000001": "last known good: the newest one of d-0002"}),
        ("d-0002", (), {stopped(1): "last known good: d-0002 started from it"}),
        ("d-0004", (manifest(4, "live"),), {"d-0004-live-000001": "last known good: the newest one of d-0004"}),
        ("d-0004", (), {stopped(3): "last known good: d-0004 started from it"}),
        ("d-0009", (), {}),
        (None, (), {}),
    ],
)
def test_the_last_known_good_version_can_be_brought_back(
    control: StreamControl, known_good: str | None, own: tuple[SnapshotManifest, ...], needed: dict[str, str]
) -> None:
    """From its newest snapshot, or from what it started from; and what any version since then started from. (Law 14)"""
    found = needs(control, *own, known_good=known_good)
    of_current = {
        stopped(3): "the current deployment, d-0004, started from it",
        stopped(2): "the deployment before the current one, d-0003, started from it",
    }
    assert found.snapshots == of_current | needed
    assert found.deployments == {"d-0003", "d-0004"} | ({known_good} if known_good is not None else set())


# upgrades


def upgrade(
    control: StreamControl, *phases: Phase, upgrade_id: str = "u-0b8e3c525f0e", decision: Decision | None = None
) -> None:
    """An upgrade of d-0001 that went through these phases; the last step has this decision."""
    asked = example(Upgrade)
    assert isinstance(asked, Upgrade)
    journal = UpgradeJournal(control)
    asked = on_return(replace(asked, upgrade_id=upgrade_id, old_deployment_id="d-0001"), snapshot_id="s-asked")
    journal.create(asked)
    silent = UpgradeStep(STREAM, upgrade_id, 1, "begun", AT, "tests", "w")
    for number, phase in enumerate(phases, 1):
        is_last = number == len(phases)
        journal.take(replace(silent, number=number, phase=phase, decision=decision if is_last else None))


def test_an_upgrade_that_is_not_over_can_go_back(control: StreamControl) -> None:
    """To the handover, to what was asked for, and to each version that it is about; nothing else moves then."""
    upgrade(control, "rehearsing", "started", decision=NewDeployed("d-0002", "s-handover"))
    found = needs(control, manifest(1), manifest(2))
    assert found.is_moving
    assert found.deployments == {"d-0001", "d-0002", "d-0003", "d-0004"}
    assert found.snapshots["s-asked"] == "upgrade u-0b8e3c525f0e goes back to it"
    assert found.snapshots["s-handover"] == "the handover of upgrade u-0b8e3c525f0e"
    assert found.snapshots[stopped(1)] == ("the last stopped one of a deployment of upgrade u-0b8e3c525f0e, d-0001")
    returned = StreamControl(MemoryStore(), STREAM, FakeClock())
    begin(returned, "d-0004", None, None)
    upgrade(returned, "returning", decision=OldReturned("d-0002", {}, {}))
    assert needs(returned).deployments == {"d-0001", "d-0002", "d-0004"}


def test_an_upgrade_that_is_over_needs_nothing_more(control: StreamControl) -> None:
    """However many there were; one that is not among them counts all the same."""
    upgrade(control, "rehearsing", "refused", decision=OldEnded("s-handover"))
    assert not needs(control).is_moving
    assert needs(control).deployments == {"d-0003", "d-0004"}
    upgrade(control, "rehearsing", upgrade_id=OTHER)
    found = needs(control)
    assert found.is_moving
    assert found.snapshots["s-asked"] == f"upgrade {OTHER} goes back to it"


def test_an_upgrade_that_is_recorded_and_not_begun_is_under_way(control: StreamControl) -> None:
    """Its first step comes; the register may name one that is not recorded (any more), which is nothing."""
    upgrade(control)
    assert needs(control).is_moving
    assert "d-0001" in needs(control).deployments
    empty = StreamControl(MemoryStore(), STREAM, FakeClock())
    begin(empty, "d-0001", None, None)
    assert not needs(empty, current=1, upgrade_id=OTHER).is_moving


def test_a_deploy_that_is_under_way_moves_the_stream(control: StreamControl) -> None:
    """Its intent is in the register."""
    assert needs(control, intent=Intent("r", "d-0005", AT, "ada")).is_moving


# rehearsals


@pytest.mark.parametrize(
    ("has_verdict", "waits", "is_needed"),
    [(False, False, True), (True, False, False), (True, True, True)],
)
def test_what_a_rehearsal_starts_from_is_needed_until_it_is_over(
    control: StreamControl, has_verdict: bool, waits: bool, is_needed: bool
) -> None:
    """And as long as its driver waits to be handed the stream."""
    run, verdict, waiting = example(ScratchRun), example(ScratchVerdict), example(Waiting)
    assert isinstance(run, ScratchRun)
    assert isinstance(verdict, ScratchVerdict)
    assert isinstance(waiting, Waiting)
    control.create_scratch_run(run)
    begin(control, run.run_id, stopped(1), "d-0001")
    if has_verdict:
        control.create_verdict(verdict)
    if waits:
        control.create_waiting(waiting)
    why = f"rehearsal {run.run_id} starts from it"
    assert needs(control).snapshots.get(stopped(1)) == (why if is_needed else None)


def test_a_rehearsal_that_cannot_be_read_hides_no_other(control: StreamControl) -> None:
    """Its driver has its own lease."""
    run = example(ScratchRun)
    assert isinstance(run, ScratchRun)
    damaged, whole = "r-0b8e3c525f0e-0001", "r-0b8e3c525f0e-0002"
    for rehearsal_id in (damaged, whole):
        control.create_scratch_run(replace(run, run_id=rehearsal_id))
        begin(control, rehearsal_id, stopped(1), "d-0001")
    control.home.put(layout.verdict_key(STREAM, damaged), b"{")
    assert needs(control).snapshots[stopped(1)] == f"rehearsal {whole} starts from it"
