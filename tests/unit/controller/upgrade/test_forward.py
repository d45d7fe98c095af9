"""The way to the new version, phase by phase, with drivers that do what a test specifies."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from airflow_streamstate.controller.upgrade.forward import CONFLICT_SECONDS, MAX_DRAIN_TRIES
from airflow_streamstate.controller.upgrade.steps import MIN_HANDOVER_PAUSE_SECONDS, SILENCE_SECONDS
from airflow_streamstate.errors import ConflictError, InvalidRequestError, UnavailableError
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Rejected
from airflow_streamstate.protocol.positions import LagTrend, SourceLag
from airflow_streamstate.protocol.scratch import RehearsedQuery
from airflow_streamstate.protocol.upgrades import AfterStop, Phase
from support.scripted_rehearsal import keep_plan, with_an_aggregate_more
from support.sim_stage import STREAM, Stage
from support.upgrade_stage import SOCKET, UpgradeStage

pytestmark = pytest.mark.fast

SEEDED = {"counts": RehearsedQuery("accepted", "seeded", 0.5)}


def test_an_upgrade_goes_through_each_phase_once(upgraded: UpgradeStage) -> None:
    """It holds the stream from its start to its end, and looks often while the stream may be stopped."""
    view = upgraded.to_ready()
    assert upgraded.held_by() == view.upgrade_id
    assert isinstance(upgraded.order(), StopRequest)
    assert view.pause_seconds == MIN_HANDOVER_PAUSE_SECONDS
    upgraded.stops()
    upgraded.advance(view)
    start = upgraded.stage.spec("d-0002").start
    assert (start.mode, start.snapshot_id, start.predecessor_id) == ("restore", "d-0001-stopped-000001", "d-0001")
    upgraded.new_runs(4)
    assert "committed 1 of 2 batches" in upgraded.advance(view).waits_for
    upgraded.new_runs(5)
    view = upgraded.advance(view)
    assert (view.outcome, view.is_what_was_asked, view.as_error()) == ("upgraded", True, None)
    assert upgraded.phases(view) == [
        "begun", "rehearsing", "planned", "ready", "stopping", "ended", "started", "upgraded",
    ]  # fmt: skip
    assert upgraded.held_by() is None


UNTRIED = {"counts": RehearsedQuery("not_run", "restored")}


@pytest.mark.parametrize(
    ("names", "facts", "reason"),
    [
        ((), {"plan": with_an_aggregate_more()}, "a drain was not allowed"),
        ((), {"plan": with_an_aggregate_more(), "queries": UNTRIED}, "a drain was not allowed"),
        ((), {"refused": True}, "STATE_STORE_VALUE_SCHEMA"),
        ((), {"outcome": "failed", "queries": {}, "error": "ModuleNotFoundError: rules"}, "ModuleNotFoundError"),
        ((), {"queries": {}}, "without having started a query"),
        (("others",), {}, ""),
    ],
)
def test_a_version_that_the_rehearsal_refuses_changes_nothing(
    upgraded: UpgradeStage, names: tuple[str, ...], facts: dict[str, Any], reason: str
) -> None:
    """The plan needs a drain, Spark refuses the state, the script fails, starts no query, or starts one that the state
    does not know, which would start with empty state (Law 5). The plan alone decides without a drain."""
    before = upgraded.outside()
    view = upgraded.begin()
    upgraded.advance(view)
    rehearsal = upgraded.rehearsal(view).rehearsal
    assert (rehearsal.seeds, set(rehearsal.refuses)) == ("never", {"hazardous", "needs-drain"})
    view = upgraded.rehearsed(view, *names, **facts)
    assert (view.outcome, upgraded.held_by(), upgraded.outside()) == ("refused", None, before)
    assert reason in view.state.text
    assert "refused, and the stream runs on" in str(view.as_error())


def test_an_upgrade_that_drains_is_handed_over_to_the_driver_that_tried_the_seed(upgraded: UpgradeStage) -> None:
    """Spark refuses the old state, and takes what a drain would leave: that driver waits; the journal reports it."""
    view = upgraded.begin(allow_drain=True, warm=True)
    upgraded.advance(view)
    rehearsal = upgraded.rehearsal(view).rehearsal
    assert (rehearsal.seeds, rehearsal.refuses) == ("if_needed", ("hazardous",))
    view = upgraded.rehearsed(view, refused=True, seeded=SEEDED, waits=True)
    assert (view.state.phase, view.state.mode) == ("stopping", "drain")
    assert isinstance(upgraded.order(), DrainNotification)
    upgraded.drains()
    view = upgraded.advance(view)
    start = upgraded.stage.spec("d-0002").start
    assert (view.state.phase, start.mode, start.snapshot_id) == ("started", "seed", "d-0001-drained-000001")
    assert upgraded.is_warm("d-0002", upgraded.rehearsal(view).run_id)
    assert upgraded.texts(view) == ["the new driver waits"]
    assert view.to_json()["driver"] == "waits"


@pytest.mark.parametrize("asked", [{"allow_drain": True}, {"mode": "drain"}])
def test_a_version_that_could_not_be_started_after_the_drain_is_refused_before_it(
    upgraded: UpgradeStage, asked: dict[str, object]
) -> None:
    """Nothing is drained for what would be refused then; both reasons are reported."""
    before = upgraded.outside()
    view = upgraded.begin(**asked)  # type: ignore[arg-type]
    upgraded.advance(view)
    bad = {"counts": RehearsedQuery("refused", "", 0.1, "another number of sources")}
    view = upgraded.rehearsed(view, refused=True, seeded=bad)
    assert view.outcome == "refused"
    assert "STATE_STORE_VALUE_SCHEMA" in view.state.text
    assert "after a drain the new version could not be started either" in view.state.text
    assert "another number of sources" in view.state.text
    assert upgraded.outside() == before


def test_a_drain_whose_driver_dies_is_gone_on_with_some_times(upgraded: UpgradeStage) -> None:
    """The next attempt flushes; where each dies, the old version is brought back over what it left."""
    view = upgraded.to_ready(mode="drain")
    for attempt in range(1, MAX_DRAIN_TRIES + 1):
        assert view.state.phase == "stopping"
        assert upgraded.stage.control.need_register().value.attempt == attempt
        upgraded.fails("d-0001", attempt)
        view = upgraded.advance(view)
    assert view.state.phase == "returned"
    start = upgraded.stage.spec("d-0002").start
    assert (start.mode, start.predecessor_id) == ("restore", "d-0001")
    assert upgraded.stage.spec("d-0002").version.application == upgraded.stage.spec("d-0001").version.application


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_dead_version_whose_flush_cannot_be_launched_is_given_up(
    upgraded: UpgradeStage, monkeypatch: pytest.MonkeyPatch, *, is_cancelled: bool
) -> None:
    """At once where it is cancelled: it is resumed, never drained. Else after CONFLICT_SECONDS (Law 6)."""

    def refuses(*_: object) -> None:
        raise InvalidRequestError("there is no such master")

    view = upgraded.begin(mode="drain")
    upgraded.advance(view)
    with monkeypatch.context() as patch:
        patch.setattr(type(upgraded.stage.launcher), "check", refuses)
        upgraded.fails("d-0001")
        with pytest.raises(InvalidRequestError, match="no such master"):
            upgraded.rehearsed(view)
        if not is_cancelled:
            upgraded.stage.clock.advance(CONFLICT_SECONDS)
            view = upgraded.advance(view)
            assert "unhealthy" in upgraded.phases(view)
            assert "no such master" in view.state.text
            return
    upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="rollback")
    view = upgraded.advance(view)
    assert (view.state.phase, view.state.way) == ("returned", "resume")
    assert upgraded.stage.control.need_register().value.attempt == 2


def test_a_drain_that_the_old_version_rejects_is_a_refusal(upgraded: UpgradeStage) -> None:
    """Its flush was tried on a fork and would leave state: it runs on as if nothing had been asked."""
    view = upgraded.to_ready(mode="drain")
    order = upgraded.order()
    assert isinstance(order, DrainNotification)
    assert (order.rehearse, order.allow_state_loss) == (True, False)
    upgraded.stage.say(
        Rejected, command_id=order.command_id, command_number=1, key="", reason="a flush would leave 7 rows"
    )
    upgraded.beats(3, "d-0001")
    view = upgraded.advance(view)
    assert (view.outcome, upgraded.held_by()) == ("refused", None)
    assert "would leave 7 rows" in view.state.text
    register = upgraded.stage.control.need_register().value
    assert (register.deployment_id, register.attempt) == ("d-0001", 1)


@pytest.mark.parametrize("approves", [True, False])
def test_an_upgrade_waits_for_approval(upgraded: UpgradeStage, *, approves: bool) -> None:
    """Nothing is stopped before the plan is approved; the first answer counts, and a rejection is a refusal."""
    before = upgraded.outside()
    view = upgraded.to_ready(needs_approval=True)
    assert (view.state.phase, view.waits_for) == ("planned", "a person has to approve the plan")
    assert upgraded.outside() == before
    upgraded.upgrades.approve(STREAM, view.upgrade_id, is_approved=approves, reason="looked at it")
    upgraded.upgrades.approve(STREAM, view.upgrade_id, is_approved=not approves)
    view = upgraded.advance(view)
    if approves:
        assert view.state.phase == "stopping"
        return
    assert (view.outcome, view.state.text) == ("refused", "tests rejected the plan: looked at it")
    assert upgraded.outside() == before
    assert isinstance(view.as_error(), ConflictError)


@pytest.mark.parametrize(
    ("phase", "after_stop"), [("begun", "finish"), ("rehearsing", "rollback"), ("planned", "finish")]
)
def test_cancelled_before_the_stop_nothing_has_happened(
    upgraded: UpgradeStage, phase: str, after_stop: AfterStop
) -> None:
    """Whatever ``after_stop`` is; what the rehearsal made is removed, its driver ended."""
    before = upgraded.outside()
    view = upgraded.begin(needs_approval=True)
    if phase != "begun":
        view = upgraded.advance(view)
    if phase == "planned":
        view = upgraded.rehearsed(view)
    assert view.state.phase == phase
    upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop=after_stop, reason="not tonight")
    view = upgraded.advance(view)
    assert (view.outcome, upgraded.held_by()) == ("refused", None)
    assert view.state.text == "cancelled by tests: not tonight; the stream was not touched"
    assert view.state.cancelled_by == "tests"
    assert upgraded.told[-1] == "cancelled: the stream runs on as before"
    assert upgraded.outside() == before
    assert [key for key, state in upgraded.stage.launcher.states.items() if state == "running"] == ["d-0001-a0001"]


@pytest.mark.parametrize("phase", ["stopping", "ended", "started"])
def test_cancelled_after_the_stop_it_is_rolled_back_where_that_is_asked(upgraded: UpgradeStage, phase: str) -> None:
    """Never left between: the old version runs again, from where it had ended."""
    view = upgraded.to_ready()
    if phase == "stopping":
        upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="rollback")
        assert upgraded.advance(view).state.phase == "stopping"
    upgraded.stops()
    if phase == "started":
        assert upgraded.advance(view).state.phase == "started"
    if phase != "stopping":
        upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="rollback")
    view = upgraded.advance(view)
    if phase == "started":
        assert (view.state.phase, view.state.way) == ("returning", "handover")
        upgraded.stage.launcher.states["d-0002-a0001"] = "gone"  # it dies of the order before it came to life
        view = upgraded.advance(view)
        upgraded.stage.come_to_life("d-0003", queries=("counts",))
    else:
        assert (view.state.phase, view.state.way) == ("returned", "resume")
        upgraded.stage.come_to_life("d-0001", 2, ("counts",))
    back = ("d-0003", 1) if phase == "started" else ("d-0001", 2)
    assert view.state.returned_deployment_id == back[0]
    upgraded.beats(4, *back)
    view = upgraded.advance(view)
    assert (view.outcome, upgraded.held_by()) == ("given_up", None)
    assert upgraded.stage.spec(back[0]).version.code_digest == upgraded.stage.spec("d-0001").version.code_digest
    assert view.state.cancelled_by == "tests"
    assert not [line for line in upgraded.told if "unhealthy" in line]


@pytest.mark.parametrize("phase", ["stopping", "started"])
def test_cancelled_after_the_stop_it_is_finished_where_that_is_asked(upgraded: UpgradeStage, phase: str) -> None:
    """The shortest way out of what was started."""
    view = upgraded.to_ready() if phase == "stopping" else upgraded.to_started()
    upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="finish")
    if phase == "stopping":
        upgraded.advance(view)
        upgraded.stops()
        upgraded.advance(view)
    upgraded.new_runs(5)
    upgraded.advance(view)
    assert upgraded.advance(view).outcome == "upgraded"


def test_an_old_version_that_fails_instead_of_stopping_is_taken_over(upgraded: UpgradeStage) -> None:
    """From its last commit: an order that a dying driver could not obey holds nothing up."""
    view = upgraded.to_ready()
    upgraded.fails("d-0001")
    view = upgraded.advance(view)
    assert (view.state.phase, view.state.new_deployment_id) == ("started", "d-0002")
    assert upgraded.stage.spec("d-0002").start.mode == "restore"


def test_a_stream_that_was_stopped_before_is_upgraded_from_its_end(upgraded: UpgradeStage) -> None:
    """Nothing is ordered of what has ended."""
    upgraded.stage.controller.order("stop", STREAM)
    upgraded.stops()
    view = upgraded.to_ready()
    assert (view.state.phase, view.state.command_id) == ("started", None)


def test_a_launch_that_is_refused_brings_the_old_version_back(upgraded: UpgradeStage) -> None:
    """The register has moved by then: the old code continues from the handover, which no batch used."""
    view = upgraded.to_ready()
    upgraded.stops()
    upgraded.stage.launcher.refusal = InvalidRequestError("there is no such queue", next_step="Name another.")
    view = upgraded.advance(view)
    assert (view.state.phase, view.state.way) == ("returned", "handover")
    assert view.state.bad_batches == {}
    start = upgraded.stage.spec("d-0003").start
    assert (start.mode, start.snapshot_id) == ("restore", "d-0001-stopped-000001")


def test_a_conflict_at_the_handover_is_waited_for_and_then_is_an_answer(upgraded: UpgradeStage) -> None:
    """The old driver has failed, and its process does not end: the old version is asked back when it has."""
    view = upgraded.to_ready()
    upgraded.fails("d-0001")
    upgraded.stage.launcher.states["d-0001-a0001"] = "running"
    with pytest.raises(ConflictError, match="still running"):
        upgraded.advance(view)
    upgraded.stage.clock.advance(CONFLICT_SECONDS)
    with pytest.raises(ConflictError):
        upgraded.advance(view)
    assert upgraded.phases(view)[-1] == "returning"
    upgraded.stage.end()
    view = upgraded.advance(view)
    assert (view.state.phase, view.state.way) == ("returned", "resume")


def paced(read: int, least_before: int, least: int) -> tuple[SourceLag, ...]:
    """A source of 10 rows/s, of which so much was read in 100 s."""
    return (
        SourceLag("t", least + 50, "rows", trend=LagTrend(9, read, 100.0, 1_000, 100.0, least_before, least, least)),
    )


@pytest.mark.parametrize(("factor", "outcome"), [(None, "upgraded"), (2.0, "given_up")])
def test_a_version_that_is_only_slower_is_kept_with_both_rates(
    upgraded: UpgradeStage, factor: float | None, outcome: str
) -> None:
    """Compared with what the old one read before it was ordered to end, by its last sign of life; abandoned
    where its factor was asked for, and only when its time is up."""
    upgraded.beats(3, "d-0001", lags=paced(1_000, 20, 20))
    view = upgraded.to_started(healthy_batches=2, healthy_deadline_seconds=100.0, roll_back_if_slower=factor)
    upgraded.beats(3, "d-0001", lags=paced(1, 20, 20))  # what it reports while it ends is not what it read
    clock = upgraded.stage.clock
    upgraded.new_runs(4)
    upgraded.advance(view)
    clock.advance(30.0)
    upgraded.new_runs(6, lags=paced(400, 300, 500))
    view = upgraded.advance(view)
    says = "query counts falls behind: it reads 4 rows/s while 10 rows/s arrive, and the version before read 10 rows/s"
    assert says in view.waits_for
    clock.advance(80.0)
    upgraded.beats(7, lags=paced(400, 500, 900))
    view = upgraded.advance(view)
    if outcome == "upgraded":
        assert (view.outcome, view.state.text, view.as_error()) == ("upgraded", "", None)
        assert says in (view.state.warnings or ("",))[0]
    else:
        assert "unhealthy" in upgraded.phases(view)
        steps = UpgradeJournal(upgraded.stage.control).steps(view.upgrade_id)
        assert says in next(step.text for step in steps if step.phase == "unhealthy")


def test_where_the_place_of_the_handover_stays_silent_the_old_version_goes_on(tmp_path: Path) -> None:
    """On its own checkpoint, for which nothing is asked of that place (Law 6)."""
    stage, place = Stage(tmp_path), tmp_path / "place"
    upgraded = UpgradeStage(stage)
    stage.deploy(snapshots=str(place))
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    keep_plan(stage.control, "d-0001", "counts")
    stage.keep("live")
    view = upgraded.to_ready()
    shutil.rmtree(place)
    stage.end()  # killed, as it waits for the place and keeps no end
    with pytest.raises(UnavailableError):
        upgraded.advance(view)
    stage.clock.advance(SILENCE_SECONDS)
    view = upgraded.advance(view)
    assert (view.state.phase, view.state.way) == ("returned", "resume")
    assert stage.seen().attempt == 2


@pytest.mark.parametrize("rehearse", [True, False])
def test_an_upgrade_that_would_lose_input_is_refused_before_the_stop(tmp_path: Path, *, rehearse: bool) -> None:
    """With and without a rehearsal: no start continues from an offset of a socket unless that is accepted (Law 5)."""
    upgraded = UpgradeStage(Stage(tmp_path, identities=(SOCKET,))).runs()
    before = upgraded.outside()
    view = upgraded.advance(upgraded.begin(rehearse=rehearse))
    assert view.outcome == "refused"
    assert "--accept-lost-input counts" in view.state.text
    assert upgraded.outside() == before
    accepted = upgraded.begin("up-2", rehearse=rehearse, change={"accept_lost_input": ("counts",)})
    assert upgraded.advance(accepted).state.phase == "rehearsing"


@pytest.mark.parametrize("phase", ["ready", "stopping"])
def test_the_upgrade_waits_for_an_old_driver_of_unknown_state(upgraded: UpgradeStage, phase: Phase) -> None:
    """Before the stop, and in it before the order: an upgrade never starts alongside a driver that may live (1a.8)."""
    upgraded.stage.launcher.states["d-0001-a0001"] = "unknown"
    upgraded.stage.clock.advance(600.0)
    view = upgraded.to_ready()
    if phase == "stopping":
        tools, state = upgraded.upgrades._tools(STREAM, view.upgrade_id)
        tools.take(state, "stopping")
        view = upgraded.advance(view)
    assert (view.state.phase, view.waits_for) == (phase, "it is unknown whether the old driver lives")
    upgraded.stage.launcher.states["d-0001-a0001"] = "gone"
    assert upgraded.advance(view).state.phase == "started"


def test_a_rehearsal_that_hangs_is_ended_at_its_deadline(upgraded: UpgradeStage) -> None:
    """And the upgrade is refused."""
    before = upgraded.outside()
    view = upgraded.begin(rehearsal_deadline_seconds=50.0)
    upgraded.advance(view)
    upgraded.stage.clock.advance(70.0)
    view = upgraded.advance(view)
    assert view.outcome == "refused"
    assert "deadline" in view.state.text
    assert upgraded.outside() == before
    rehearsal_id = view.state.rehearsal_id
    assert upgraded.stage.launcher.states[f"{rehearsal_id}-a0001"] == "gone"


def test_an_upgrade_to_nothing_is_one_by_name(upgraded: UpgradeStage) -> None:
    """Mode fresh: whatever the plan reports, it starts with nothing (Law 5)."""
    view = upgraded.begin(mode="fresh")
    upgraded.advance(view)
    rehearsal_id = str(upgraded.upgrades.view(STREAM, view.upgrade_id).state.rehearsal_id)
    assert upgraded.stage.control.spec(rehearsal_id).start.mode == "fresh"
    view = upgraded.rehearsed(view, plan=with_an_aggregate_more())
    upgraded.stops()
    view = upgraded.advance(view)
    assert upgraded.stage.spec("d-0002").start.mode == "fresh"


def test_an_old_driver_that_is_lost_in_its_stop_is_waited_for(upgraded: UpgradeStage) -> None:
    """It is ordered to end when it can be; what nobody can ask about is not taken for ended."""
    view = upgraded.begin(needs_approval=True)
    upgraded.advance(view)
    view = upgraded.rehearsed(view)
    upgraded.upgrades.approve(STREAM, view.upgrade_id, is_approved=True)
    tools, state = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    tools.take(state, "ready")
    state = upgraded.upgrades.view(STREAM, view.upgrade_id).state
    tools.take(state, "stopping")
    upgraded.stage.launcher.states["d-0001-a0001"] = "unknown"
    upgraded.stage.clock.advance(600.0)
    view = upgraded.advance(view)
    assert (view.state.phase, view.waits_for) == ("stopping", "it is unknown whether the old driver lives")
