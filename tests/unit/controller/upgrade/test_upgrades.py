"""Upgrades from outside: started once, held by one, advanced by any controller, observed, cancelled."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.drivers.driver_launch import LAUNCH
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.stream_guards import NotHeldError, refuse_during_upgrade
from airflow_streamstate.controller.upgrade.upgrades import RollbackRequest
from airflow_streamstate.errors import (
    ConflictError,
    DeadlineExceededError,
    InvalidRequestError,
    OutcomeUnknownError,
    StreamNotFoundError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.protocol import layout
from support.faulty_store import KILL_POINTS, Fault, FaultPlan, FaultyStore, SimulatedCrash
from support.sim_stage import STREAM, Stage
from support.upgrade_stage import UpgradeStage


def test_the_same_request_is_the_same_upgrade(upgraded: UpgradeStage) -> None:
    """Asked for twice, it is one (Law 2); another request under the id is refused."""
    view = upgraded.begin()
    assert upgraded.begin().upgrade_id == view.upgrade_id
    assert upgraded.steps(view) == ["begun"]
    with pytest.raises(ConflictError, match="used for something else"):
        upgraded.begin(mode="fresh")
    with pytest.raises(ConflictError, match="used for something else"):
        upgraded.begin(text="print('v3')\n")


def test_of_two_upgrades_at_once_one_wins_and_the_other_is_told_whose(upgraded: UpgradeStage) -> None:
    """Before anything of the second is recorded."""
    first = upgraded.begin()
    before = upgraded.outside()
    other = upgraded.stage.another_controller("ada").upgrades
    with pytest.raises(ConflictError, match="an upgrade of this stream is under way") as caught:
        other.begin(upgraded.request("print('v3')\n"), "up-2")
    assert (first.upgrade_id in str(caught.value), "requested_by=tests" in str(caught.value)) == (True, True)
    with pytest.raises(ConflictError, match="under way"):
        other.begin_rollback(RollbackRequest(STREAM), "back-2")
    assert upgraded.outside() == before
    assert UpgradeJournal(upgraded.stage.control).ids() == [first.upgrade_id]


def controller_of(upgraded: UpgradeStage, plan: FaultPlan, requested_by: str = "ada") -> Controller:
    """Another controller, whose calls go wrong as planned."""
    stage = upgraded.stage
    store = FaultyStore(stage.store, plan)
    return Controller(Home.of(store, store, stage.folder, stage.clock), stage.launcher, stage.clock, requested_by)


@pytest.mark.parametrize("fault", KILL_POINTS)
@pytest.mark.parametrize("number", range(1, 9))
def test_a_begin_that_dies_anywhere_is_begun_again_by_the_same_request(
    upgraded: UpgradeStage, fault: Fault, number: int
) -> None:
    """Between its records, its first step and its claim: nothing is left that could not continue (Laws 1 and 2)."""
    other = controller_of(upgraded, FaultPlan(at_write={number: fault}), "tests")
    request = upgraded.request()
    with suppress(SimulatedCrash, StreamStateError):
        other.upgrades.begin(request, "up-1")
    view = upgraded.upgrades.begin(request, "up-1")
    assert (view.state.phase, upgraded.held_by()) == ("begun", view.upgrade_id)
    assert view.state.upgrade.target.application.name == "v2.py"
    assert UpgradeJournal(upgraded.stage.control).ids() == [view.upgrade_id]


def test_a_request_that_died_before_a_move_is_refused_and_not_mistaken(upgraded: UpgradeStage) -> None:
    """It was recorded over a version that is not current any more: it gets just that answer, at every try."""
    plan = FaultPlan(at_write={3: Fault.CRASH_BEFORE})
    with pytest.raises(SimulatedCrash):
        controller_of(upgraded, plan).upgrades.begin(upgraded.request(), "up-1")
    upgraded.stage.controller.order("stop", STREAM)
    upgraded.stops()
    upgraded.stage.deploy("print('another')\n")
    with pytest.raises(ConflictError, match="another controller moved this stream since the upgrade was requested"):
        upgraded.begin("up-1")
    assert upgraded.begin("up-1").outcome == "refused"


def test_what_others_ask_for_meanwhile_is_refused(upgraded: UpgradeStage) -> None:
    """Every verb that moves the stream; a snapshot does not."""
    view = upgraded.begin()
    before = upgraded.outside()
    other = upgraded.stage.another_controller()
    for act in (
        lambda: other.order("stop", STREAM),
        lambda: other.order("drain", STREAM),
        lambda: other.deploy(upgraded.stage.request("print('v3')\n")),
        lambda: other.resume(STREAM),
    ):
        with pytest.raises(ConflictError) as caught:
            act()
        assert "under way" in str(caught.value) or "already" in str(caught.value)
    assert upgraded.outside() == before
    assert other.order("snapshot", STREAM).verb == "snapshot"
    assert upgraded.upgrades.view(STREAM, view.upgrade_id).state.phase == "begun"


def test_an_upgrade_whose_controller_died_is_finished_or_given_up_by_another(upgraded: UpgradeStage) -> None:
    """It does not block for ever: another controller, with nothing but the home, continues with it or cancels it."""
    view = upgraded.begin()
    upgraded.advance(view)
    other = upgraded.stage.another_controller().upgrades
    found = other.under_way(STREAM)
    assert found is not None
    assert found.upgrade_id == view.upgrade_id
    other.cancel(STREAM, found.upgrade_id, after_stop="rollback")
    assert other.run(STREAM, found.upgrade_id, 5.0).outcome == "refused"
    assert other.under_way(STREAM) is None
    assert upgraded.begin("up-2").state.phase == "begun"


def test_one_that_is_over_and_still_named_does_not_hold_the_stream(upgraded: UpgradeStage) -> None:
    """Its controller died between its last step and letting go (Law 4)."""
    view, control = upgraded.begin(), upgraded.stage.control
    tools, state = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    tools.take(state, "refused", "it died here")
    assert upgraded.held_by() == view.upgrade_id
    assert upgraded.upgrades.under_way(STREAM) is None
    with pytest.raises(NotHeldError):
        refuse_during_upgrade(control, control.need_register().value, view.upgrade_id)
    assert upgraded.stage.controller.order("stop", STREAM).verb == "stop"
    assert upgraded.begin("up-2").state.phase == "begun"
    upgraded.advance(view)
    assert upgraded.held_by() == upgraded.begin("up-2").upgrade_id


def test_a_home_that_turns_read_only_loses_nothing(upgraded: UpgradeStage) -> None:
    """In the middle, at each write: it is reported as what may pass, and continues when it has."""
    view = upgraded.begin()
    other = controller_of(upgraded, FaultPlan(every_write=Fault.NO_SPACE))
    before = upgraded.outside()
    with pytest.raises(UnavailableError):
        other.upgrades.advance(STREAM, view.upgrade_id)
    with pytest.raises(DeadlineExceededError, match="stays under way"):
        other.upgrades.run(STREAM, view.upgrade_id, 2.0)
    assert upgraded.outside() == before
    upgraded.advance(view)
    upgraded.rehearsed(view)
    upgraded.stops()
    with pytest.raises(UnavailableError):
        other.upgrades.advance(STREAM, view.upgrade_id)
    assert upgraded.advance(view).state.phase == "started"


def test_an_unknown_outcome_is_no_end(upgraded: UpgradeStage) -> None:
    """``run`` looks again, whatever reply was lost, also that of a launch (Law 8)."""
    view = upgraded.begin()
    for _ in range(LAUNCH.tries or 0):
        upgraded.stage.launcher.refusals.append(OutcomeUnknownError("no reply", next_step="Look again."))
    with pytest.raises(DeadlineExceededError):
        upgraded.upgrades.run(STREAM, view.upgrade_id, 3.0)
    assert upgraded.upgrades.view(STREAM, view.upgrade_id).state.phase == "rehearsing"


def test_a_stream_with_nothing_deployed_is_told(stage: Stage) -> None:
    """And nothing is left of it."""
    stage.home.begin("tests")
    upgraded = UpgradeStage(stage)
    with pytest.raises(StreamNotFoundError):
        upgraded.begin()
    with pytest.raises(StreamNotFoundError):
        upgraded.begin_rollback()
    assert list(stage.store.list_objects(f"{STREAM}/")) == []


def test_a_version_that_could_not_be_launched_is_refused_before_it_is_recorded(upgraded: UpgradeStage) -> None:
    """As a deploy would be."""
    before = upgraded.outside()
    upgraded.stage.launcher.complaint = InvalidRequestError("no such master", next_step="Name another.")
    with pytest.raises(InvalidRequestError, match="no such master"):
        upgraded.begin()
    assert upgraded.outside() == before
    assert UpgradeJournal(upgraded.stage.control).ids() == []


def test_with_nothing_new_it_is_a_restart(upgraded: UpgradeStage) -> None:
    """The running version itself, settings and all."""
    target = upgraded.begin(change={"application": None}).state.upgrade.target
    assert target == upgraded.stage.spec("d-0001").version


def test_a_look_changes_nothing_and_tells_whether_there_is_work(upgraded: UpgradeStage) -> None:
    """For a caller that waits without acting."""
    view = upgraded.begin()
    assert upgraded.upgrades.has_work(STREAM, view.upgrade_id)
    upgraded.advance(view)
    before = {info.key for info in upgraded.stage.store.list_objects(f"{STREAM}/")}
    assert not upgraded.upgrades.has_work(STREAM, view.upgrade_id)
    assert {info.key for info in upgraded.stage.store.list_objects(f"{STREAM}/")} == before
    upgraded.rehearsed(view)
    upgraded.stops()
    assert upgraded.upgrades.has_work(STREAM, view.upgrade_id)


def test_a_wait_that_is_over_leaves_it_under_way(upgraded: UpgradeStage) -> None:
    """And reports what it waited for, and what can be done (Law 6)."""
    view = upgraded.begin()
    lines: list[str] = []
    with pytest.raises(DeadlineExceededError, match="stays under way") as caught:
        upgraded.upgrades.run(STREAM, view.upgrade_id, 3.0, lines.append, upgraded.told.append)
    assert "its driver is running" in str(caught.value)
    assert lines
    assert [line.partition(":")[0] for line in upgraded.told] == ["begun", "rehearsing"]
    with pytest.raises(InvalidRequestError, match="no such upgrade"):
        upgraded.upgrades.view(STREAM, "u-000000000000")


def test_settle_leaves_no_version_between_two(upgraded: UpgradeStage) -> None:
    """Before the stop a cancelled one ends at once; after it the new version is started first."""
    view = upgraded.to_ready()
    upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="finish")
    assert upgraded.upgrades.settle(STREAM, view.upgrade_id, 1.0).state.phase == "stopping"
    upgraded.stops()
    assert upgraded.upgrades.settle(STREAM, view.upgrade_id, 1.0).state.phase == "started"
    assert upgraded.stage.control.need_register().value.deployment_id == "d-0002"


def test_of_two_that_were_recorded_at_once_the_claim_decides(upgraded: UpgradeStage, tmp_path: Path) -> None:
    """Both had seen a stream that nobody held: the second is refused, with the owner that it lost to, and stays so."""
    (tmp_path / "twin").mkdir()
    twin = UpgradeStage(Stage(tmp_path / "twin")).runs()
    counted = FaultPlan()
    controller_of(twin, counted).upgrades.begin(twin.request("x = 3\n"), "up-2")
    at = max(call.number for call in counted.calls if call.writes and call.key == layout.register_key(STREAM))
    request = upgraded.request("x = 3\n")

    def first_begins() -> None:
        upgraded.begin("up-1", text="x = 3\n")

    other = controller_of(upgraded, FaultPlan(meanwhile={at: first_begins}))
    with pytest.raises(ConflictError, match="under way"):
        other.upgrades.begin(request, "up-2")
    first = upgraded.upgrades.under_way(STREAM)
    assert first is not None
    assert (first.state.upgrade.request_id, upgraded.held_by()) == ("up-1", first.upgrade_id)
    again = upgraded.upgrades.begin(upgraded.request("x = 3\n"), "up-2")
    assert again.outcome == "refused"
    assert first.upgrade_id in again.state.text
