"""The kill-point sweep over an adoption: after a crash at any call the next one continues, without a lost batch.

An adoption is done once to count its calls; then once for each call and each way in which it can go wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from airflow_streamstate.control.stream import adoption_register
from airflow_streamstate.errors import ConflictError, DeadlineExceededError, StreamStateError
from support.adopting import FIRST, AdoptingStage
from support.faulty_store import KILL_POINTS, Fault, FaultPlan, SimulatedCrash
from support.sim_stage import STREAM

Sweep = Callable[..., None]


@dataclass(frozen=True)
class Scene:
    """What is adopted.

    Attributes:
        is_stopped: nothing runs, and the request states that; ``planned``: a batch of it was cut by a kill.
        fails: batches that fail the first time; its supervisor starts the query again.
    """

    name: str
    is_stopped: bool = False
    planned: bool = False
    fails: tuple[int, ...] = ()


SCENES = (
    Scene("stopped", is_stopped=True),
    Scene("killed in a batch", is_stopped=True, planned=True),
    Scene("running"),
    Scene("running, and failing", fails=(FIRST + 1,)),
)


def staged(folder: Path, scene: Scene) -> AdoptingStage:
    """As it is before the adoption."""
    stage = AdoptingStage(folder, planned=scene.planned)
    if not scene.is_stopped:
        stage.fails, stage.is_supervised = set(scene.fails), bool(scene.fails)
        stage.run_foreign()
    return stage


def adopt(stage: AdoptingStage, scene: Scene, plan: FaultPlan | None = None) -> str:
    """One call of the verb; how it ended."""
    try:
        stage.adoptions(plan).adopt(stage.wanted(is_stopped=scene.is_stopped))
    except (StreamStateError, SimulatedCrash) as error:
        return type(error).__name__
    return ""


def counted(folder: Path, scene: Scene) -> FaultPlan:
    """An adoption to which nothing happens."""
    stage, plan = staged(folder, scene), FaultPlan()
    assert adopt(stage, scene, plan) == ""
    stage.clock.sleep(30)
    stage.assert_taken()
    return plan


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_the_adopter_may_die_at_every_write(folder: Path, sweep: Sweep, scene: Scene) -> None:
    """Killed before or after any write, or its reply lost: the same call continues, each batch of the foreign query
    runs once and in order, by one driver, and one deployment of ours follows it (Laws 1, 2, 3, 8, 9, 12, 13 and 14)."""
    calm = counted(folder, scene)

    def live(_: int, case: tuple[int, Fault]) -> None:
        number, fault = case
        stage = staged(folder, scene)
        adopt(stage, scene, FaultPlan(at_write={number: fault}))
        stage.clock.sleep(61)
        finish(stage, scene)

    sweep(product(range(1, len(calm.writes) + 1), KILL_POINTS), live)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_every_read_may_go_unanswered(folder: Path, sweep: Sweep, scene: Scene) -> None:
    """A call that fails at a read leaves no barrier behind, or continues when it is repeated (Laws 2 and 12)."""
    calm = counted(folder, scene)

    def live(_: int, number: int) -> None:
        stage = staged(folder, scene)
        ended = adopt(stage, scene, FaultPlan({number: Fault.UNAVAILABLE}))
        assert ended in ("", "UnavailableError"), "the home's record is a read as any other: unanswered is not absent"
        begun = adoption_register(
            stage.home.control(STREAM, begins=True)
        ).read()  # a first adoption may not have got so far
        if ended and (begun is None or begun.value.status == "open"):
            assert stage.barriers() == [], "nothing of ours is left where it came to nothing"
        stage.clock.sleep(61)
        finish(stage, scene)

    sweep([call.number for call in calm.calls if not call.writes], live, every=3 if scene.is_stopped else 23)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_an_adopter_that_died_may_be_given_up(folder: Path, sweep: Sweep, scene: Scene) -> None:
    """Killed at any write, then abandoned: the foreign query continues by itself, and misses no batch (Law 12)."""
    calm = counted(folder, scene)

    def live(_: int, number: int) -> None:
        stage = staged(folder, scene)
        adopt(stage, scene, FaultPlan(at_write={number: Fault.CRASH_AFTER}))
        stage.clock.sleep(61)
        register = stage.control.register()
        if register is not None and register.value.deployment_id == "d-0002":
            stage.controller.kill("orders")
        stage.adoptions().give_up("orders")
        assert stage.barriers() == []
        stage.is_supervised = True
        if scene.is_stopped:
            stage.run_foreign()
        stage.clock.sleep(10)
        assert stage.ran == list(range(FIRST + 1, FIRST + 1 + len(stage.ran)))
        assert stage.ran

    record = next(n for n, call in enumerate(calm.writes, 1) if call.key.endswith("adoption.json"))
    sweep(range(record, len(calm.writes) + 1), live)


@pytest.mark.timeout(900)
def test_two_may_adopt_at_once(folder: Path, sweep: Sweep) -> None:
    """Before each call of one, another does all of it: one of them learns it; there is one driver (Laws 1 and 2)."""
    scene = SCENES[0]
    calm = counted(folder, scene)

    def live(_: int, number: int) -> None:
        stage = staged(folder, scene)
        plan = FaultPlan(meanwhile={number: lambda: adopt(stage, scene)})
        adopt(stage, scene, plan)
        stage.clock.sleep(61)
        finish(stage, scene)

    sweep([call.number for call in calm.calls], live)


@pytest.mark.timeout(900)
def test_a_deploy_of_the_same_name_may_come_at_any_moment(folder: Path, sweep: Sweep) -> None:
    """Before each call of an adoption another controller deploys a script as that stream, and it runs: one of the two
    is refused, no checkpoint of a deployment is touched, and no barrier is left (Laws 4, 5 and 12)."""
    scene = SCENES[0]
    calm = counted(folder, scene)
    staged(folder, scene).script("print('another')\n", "another.py")  # lives share the folder

    def live(_: int, number: int) -> None:
        stage = staged(folder, scene)
        deployed: list[str] = []

        def deploy() -> None:
            with suppress(ConflictError):
                another = stage.script("print('another')\n", "another.py")
                deployed.append(stage.deploy(application=another).deployment_id)
                stage.run_batches(9, deployment_id=deployed[0])

        ended = adopt(stage, scene, FaultPlan(meanwhile={number: deploy}))
        if deployed and deployed != ["d-0002"]:
            assert ended
            assert stage.checkpoint().position().batch_id == 9
            assert stage.barriers() == []
        else:
            assert stage.barriers() == [FIRST + 1]

    sweep([call.number for call in calm.calls], live)


def finish(stage: AdoptingStage, scene: Scene) -> None:
    """Call again until it is done; a query that has ended at our barrier is stopped."""
    for _ in range(3):
        try:
            is_stopped = scene.is_stopped or (stage.query is not None and stage.query.ended)
            stage.adoptions().adopt(stage.wanted(is_stopped=is_stopped))
            break
        except DeadlineExceededError:
            continue
    stage.clock.sleep(30)
    stage.assert_taken()
