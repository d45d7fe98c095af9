"""Only the upgrade that holds a stream may move it, and only while it holds it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_streamstate.control.upgrade_journal import ABANDONED, LEASE_SECONDS, UpgradeJournal
from airflow_streamstate.controller.scratch import rehearsal
from airflow_streamstate.controller.stream_guards import (
    BusyError,
    NotHeldError,
    refuse_another_upgrade,
    refuse_during_upgrade,
)
from airflow_streamstate.controller.upgrade.steps import Tools
from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView
from airflow_streamstate.controller.upgrade.upgrades import ACT_SECONDS
from airflow_streamstate.errors import ConflictError, UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.positions import QueryBeat
from airflow_streamstate.protocol.upgrades import Planned, UpgradePlan, UpgradeStep
from support.sim_stage import STREAM
from support.upgrade_stage import UpgradeStage


def test_the_one_that_holds_it_moves_it_alone(upgraded: UpgradeStage) -> None:
    """All others are refused."""
    view, control = upgraded.begin(), upgraded.stage.control
    register = control.need_register().value
    refuse_during_upgrade(control, register, view.upgrade_id)
    refuse_another_upgrade(control, register, view.upgrade_id)
    for other in (None, "u-000000000000"):
        with pytest.raises(ConflictError, match=r"under way|does not hold"):
            refuse_during_upgrade(control, register, other)
        with pytest.raises(ConflictError, match="under way"):
            refuse_another_upgrade(control, register, other)


def late(upgraded: UpgradeStage) -> Tools:
    """The tools of a controller that slept until its upgrade had ended."""
    view = upgraded.begin()
    tools, _ = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="rollback")
    assert upgraded.advance(view).is_over
    return tools


def test_law_4_one_that_is_over_moves_nothing_any_more(upgraded: UpgradeStage) -> None:
    """A controller that slept in the middle of a step stops, deploys and resumes nothing, also while another upgrade
    holds the stream."""
    tools = late(upgraded)
    before = upgraded.outside()
    with pytest.raises(NotHeldError):
        tools.order("stop", "d-0001", "end", "")
    upgraded.stage.end()
    with pytest.raises(NotHeldError):
        tools.deploy(tools.target("restore"), tools.request_id("new"))
    with pytest.raises(NotHeldError):
        tools.resume("back")
    assert upgraded.outside() == before
    upgraded.begin("up-2")
    with pytest.raises(NotHeldError):
        tools.deploy(tools.target("restore"), tools.request_id("new"))


def test_status_says_which_upgrade_holds_the_stream(upgraded: UpgradeStage) -> None:
    """With its phase and owner, or that it cannot be read; nothing once it has ended."""
    controller, control = upgraded.stage.controller, upgraded.stage.control
    assert controller.status(STREAM).upgrade == ""
    view = upgraded.begin()
    assert controller.status(STREAM).upgrade == f"{view.upgrade_id} begun, by {view.state.upgrade.requested_by}"
    step = layout.upgrade_step_key(STREAM, view.upgrade_id, 1)
    stored = upgraded.stage.store.get(step)
    assert stored is not None
    upgraded.stage.store.put(step, b"half a")
    assert controller.status(STREAM).upgrade == f"{view.upgrade_id}, which cannot be read"
    upgraded.stage.store.put(step, stored.body)
    upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="finish")
    upgraded.advance(view)
    assert controller.status(STREAM).upgrade == ""
    assert control.need_register().value.upgrade_id is None


def test_the_end_of_a_dead_driver_is_not_forced_while_an_upgrade_holds_the_stream(upgraded: UpgradeStage) -> None:
    """It is the upgrade that takes it over."""
    upgraded.begin()
    upgraded.fails("d-0001")
    before = upgraded.outside()
    with pytest.raises(ConflictError, match="under way"):
        upgraded.stage.controller.forced_stops.stop(STREAM, deadline_seconds=10, on_deadline="kill")
    assert upgraded.outside() == before


def abandoned(upgraded: UpgradeStage, **asked: Any) -> UpgradeView:
    """An upgrade that a task started, silent since its lease ran out; it is being rehearsed."""
    view = upgraded.upgrades.begin(upgraded.request(**asked), "up-1", lease_seconds=LEASE_SECONDS)
    upgraded.advance(view)
    upgraded.stage.clock.advance(LEASE_SECONDS + 1)
    upgraded.stage.beat(counts=QueryBeat(3, upgraded.stage.clock.now(), is_active=True))  # the old version lives
    return view


def test_an_upgrade_whose_task_is_gone_before_the_stop_holds_nothing_up(upgraded: UpgradeStage) -> None:
    """Marked failed while neither a worker nor a triggerer had it: the next upgrade starts, and the first has ended."""
    first = abandoned(upgraded)
    assert "its task is gone since" in upgraded.stage.controller.status(STREAM).upgrade
    second = upgraded.begin("up-2")
    assert upgraded.held_by() == second.upgrade_id
    ended = upgraded.upgrades.view(STREAM, first.upgrade_id)
    assert ended.outcome == "refused"
    assert ABANDONED in ended.state.text
    assert "nothing has happened to the stream" in ended.state.text
    rehearsal_id = f"scratch/{UpgradeJournal(upgraded.stage.control).state(first.upgrade_id).rehearsal_id}"  # type: ignore[union-attr]
    left = {info.key.rpartition("/")[2] for info in upgraded.stage.store.list_objects(f"{STREAM}/{rehearsal_id}/")}
    assert left <= {"run.json", "verdict.json"}


@pytest.mark.parametrize("verb", ["stop", "drain", "deploy"])
def test_every_verb_goes_on_past_an_upgrade_whose_task_is_gone(upgraded: UpgradeStage, verb: str) -> None:
    """Not upgrades alone were blocked by it."""
    first = abandoned(upgraded)
    controller = upgraded.stage.controller
    if verb == "deploy":
        controller.order("stop", STREAM, request_id="s-1")
        upgraded.stops()
        assert upgraded.stage.deploy().deployment_id == "d-0002"
    else:
        controller.order(verb, STREAM, request_id="o-1")
        assert upgraded.order().reason == ""
    assert upgraded.upgrades.view(STREAM, first.upgrade_id).outcome == "refused"


def test_a_task_that_lives_is_not_taken_for_gone(upgraded: UpgradeStage) -> None:
    """Each look of a worker moves the lease on; so does the time that a task leaves to its triggerer."""
    view = upgraded.upgrades.begin(upgraded.request(), "up-1", lease_seconds=LEASE_SECONDS)
    for _ in range(3):
        upgraded.stage.clock.advance(LEASE_SECONDS - 1)
        upgraded.upgrades.keeps_lease(STREAM, view.upgrade_id)()
        with pytest.raises(BusyError):
            upgraded.begin("up-2")
    upgraded.upgrades.hold(STREAM, view.upgrade_id, 600)
    upgraded.stage.clock.advance(590)
    with pytest.raises(BusyError):
        upgraded.begin("up-2")


def test_an_upgrade_of_the_shell_is_given_up_by_a_word_alone(upgraded: UpgradeStage) -> None:
    """It has no lease: its caller may come back at any time, and approve of its plan."""
    view = upgraded.begin()
    upgraded.advance(view)
    upgraded.stage.clock.advance(100_000)
    with pytest.raises(BusyError):
        upgraded.begin("up-2")


def test_past_the_stop_a_task_that_is_gone_holds_the_stream(upgraded: UpgradeStage) -> None:
    """No version may run then: the upgrade has to be brought to its end first."""
    view = upgraded.upgrades.begin(upgraded.request(), "up-1", lease_seconds=LEASE_SECONDS)
    upgraded.advance(view)
    upgraded.rehearsed(view)
    upgraded.stage.clock.advance(LEASE_SECONDS + 1)
    assert upgraded.upgrades.view(STREAM, view.upgrade_id).state.phase == "stopping"
    with pytest.raises(BusyError):
        upgraded.begin("up-2")
    assert upgraded.upgrades.holder(STREAM) is not None


def test_law_2_a_task_that_was_only_slow_finds_that_its_upgrade_is_over(upgraded: UpgradeStage) -> None:
    """It takes no other step, and touches nothing."""
    first = abandoned(upgraded)
    tools, state = upgraded.upgrades._tools(STREAM, first.upgrade_id)
    upgraded.begin("up-2")
    tools.take(state, "planned", decision=Planned(UpgradePlan("same", {}), "restore"))
    assert upgraded.upgrades.advance(STREAM, first.upgrade_id).outcome == "refused"


def test_law_2_where_the_slow_task_was_faster_its_step_counts(upgraded: UpgradeStage) -> None:
    """Of two next steps the first one counts."""
    first = abandoned(upgraded)
    journal = UpgradeJournal(upgraded.stage.control)
    tools, state = upgraded.upgrades._tools(STREAM, first.upgrade_id)
    taken = journal.take

    def late(step: UpgradeStep) -> bool:
        tools.take(state, "stopping")
        return taken(step)

    journal.take = late  # type: ignore[method-assign]
    assert journal.end_abandoned(first.upgrade_id) is False
    assert journal.is_under_way(first.upgrade_id)
    assert journal.cancellation(first.upgrade_id) is None, "a later try would take its end for no answer"


def slow_begin(upgraded: UpgradeStage, monkeypatch: pytest.MonkeyPatch, seconds: float, meanwhile: Any) -> None:
    """The next rehearsal takes as long to start, and this is done in that time."""
    start_of = rehearsal.start_of

    def slow(*args: Any) -> Any:
        monkeypatch.setattr(rehearsal, "start_of", start_of)
        upgraded.stage.clock.advance(seconds)
        upgraded.beats(3, "d-0001")
        meanwhile()
        return start_of(*args)

    monkeypatch.setattr(rehearsal, "start_of", slow)


def test_a_worker_within_a_long_act_is_not_taken_for_gone(
    upgraded: UpgradeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The capture of a large state takes longer than its lease; behind the act the lease is short again."""
    view = upgraded.upgrades.begin(upgraded.request(), "up-1", lease_seconds=LEASE_SECONDS)
    busy: list[object] = []

    def somebody_asks() -> None:
        with pytest.raises(BusyError) as refused:
            upgraded.begin("up-2")
        busy.append(refused.value)

    slow_begin(upgraded, monkeypatch, LEASE_SECONDS + 30, somebody_asks)
    assert upgraded.advance(view).state.phase == "rehearsing"
    assert len(busy) == 1
    upgraded.stage.clock.advance(LEASE_SECONDS + 1)
    assert upgraded.upgrades.holder(STREAM) is None


def test_a_lease_behind_an_act_is_no_shorter_than_it_was(upgraded: UpgradeStage) -> None:
    """A task that is deferred has left its triggerer more time than an act takes."""
    view = upgraded.upgrades.begin(upgraded.request(), "up-1", lease_seconds=LEASE_SECONDS)
    upgraded.upgrades.hold(STREAM, view.upgrade_id, 500.0)
    upgraded.advance(view)
    upgraded.stage.clock.advance(490)
    assert upgraded.upgrades.holder(STREAM) is not None


def test_a_driver_that_a_late_worker_launched_is_ended_by_it(
    upgraded: UpgradeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command has ended its upgrade in the meantime, and no step names the rehearsal."""
    view = upgraded.upgrades.begin(upgraded.request(), "up-1", lease_seconds=LEASE_SECONDS)
    slow_begin(upgraded, monkeypatch, ACT_SECONDS + 1, lambda: upgraded.begin("up-2"))
    ended = upgraded.advance(view)
    assert (ended.outcome, ended.state.rehearsal_id) == ("refused", None)
    (launched,) = [key for key in upgraded.stage.launcher.states if key.startswith("r-")]
    assert upgraded.stage.launcher.states[launched] == "gone"


def test_a_driver_whose_worker_died_before_it_named_it_is_ended_with_the_upgrade(
    upgraded: UpgradeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launched, and not recorded by a step."""
    view = upgraded.upgrades.begin(upgraded.request(), "up-1", lease_seconds=LEASE_SECONDS)

    def dies(*_: Any, **__: Any) -> None:
        raise UnavailableError("no answer", next_step="Try again.")

    with monkeypatch.context() as patch:
        patch.setattr(Tools, "take", dies)
        with pytest.raises(UnavailableError):
            upgraded.advance(view)
    upgraded.stage.clock.advance(ACT_SECONDS + 1)
    upgraded.beats(3, "d-0001")
    upgraded.begin("up-2")
    (launched, *_) = [key for key in upgraded.stage.launcher.states if key.startswith("r-")]
    assert upgraded.stage.launcher.states[launched] == "gone"
