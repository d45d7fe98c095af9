"""The journal of an upgrade: steps that are taken once, and their sum."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.control.upgrade_journal import UpgradeJournal, UpgradeState, rehearsal_ids_in, state_of
from airflow_streamstate.errors import InvalidRequestError, ObjectExistsError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.upgrades import (
    OVER,
    Approval,
    Cancellation,
    CancelledByUser,
    Decision,
    DriverLaunchedLater,
    DriverWaits,
    NewDeployed,
    NewRehearsed,
    NoStandby,
    OldEnded,
    OldRehearsed,
    Phase,
    Planned,
    Returning,
    Standby,
    Upgrade,
    UpgradePlan,
    UpgradeStep,
    WayDecided,
)
from airflow_streamstate.store.memory import MemoryStore
from support.asked_upgrades import of_kind, with_terms
from support.examples import AT, DECISIONS, example
from support.fake_clock import FakeClock

UPGRADE = example(Upgrade)
assert isinstance(UPGRADE, Upgrade)
ID = UPGRADE.upgrade_id
FIRST = UpgradeStep("orders", ID, 1, "begun", AT, "tests", "w-1")


@pytest.fixture
def journal() -> UpgradeJournal:
    return UpgradeJournal(StreamControl(MemoryStore(), "orders", FakeClock()))


def step(number: int, phase: Phase, **facts: object) -> UpgradeStep:
    """A step, at this number of seconds after the first."""
    taken_at = AT + timedelta(seconds=number - 1)
    return replace(FIRST, number=number, phase=phase, taken_at=taken_at, write_id=f"w-{number}", **facts)  # type: ignore[arg-type]


def test_the_sum_of_the_steps_keeps_what_a_later_one_does_not_say() -> None:
    """A fact stays until another step replaces it; the reason is that of the last step alone."""
    steps = [
        FIRST,
        step(2, "planned", decision=Planned(UpgradePlan("same", {}), "drain"), text="it is known"),
        step(3, "started", decision=NewDeployed("d-0004", None)),
    ]
    state = state_of(UPGRADE, steps)
    assert (state.mode, state.new_deployment_id, state.text) == ("drain", "d-0004", "")
    assert (state.phase, state.last.number, state.is_over) == ("started", 3, False)


CHANGES: dict[str, set[str]] = {
    "NewRehearsed": {"rehearsal_id"},
    "Planned": {"plan", "mode"},
    "Standby": {"standby"},
    "NoStandby": {"standby"},
    "Ready": {"driver"},
    "Stopping": {"old_beats"},
    "OldOrdered": {"command_id"},
    "OldEnded": {"snapshot_id"},
    "NewDeployed": {"new_deployment_id", "snapshot_id"},
    "QueriesStarted": {"has_begun", "not_running_seconds", "downtimes"},
    "NewGivenUp": {"new_deployment_id"},
    "CancelledByUser": {"cancelled_by", "new_deployment_id"},
    "OldRehearsed": {"rehearsal_id"},
    "WayDecided": {"way", "rehearsal_id", "is_way_decided"},
    "Returning": {"way", "driver", "rehearsal_id"},
    "NewOrdered": {"bad_command_id"},
    "OldReturned": {"returned_deployment_id", "bad_batches", "begun_batches"},
    "UpgradeResult": {"plan", "cancelled_by", "not_running_seconds", "downtimes", "bad_batches", "result"},
}


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda one: type(one).__name__)
def test_each_decision_changes_what_it_is_about_and_nothing_else(decision: Decision) -> None:
    """And what it reports is in the sum."""
    before = state_of(UPGRADE, [FIRST])
    after = state_of(UPGRADE, [FIRST, step(2, "begun", decision=decision)])
    changed = {name for name, value in vars(after).items() if value != vars(before)[name]} - {"last"}
    assert changed == CHANGES[type(decision).__name__]


def decided(*decisions: Decision) -> UpgradeState:
    """The sum of steps with these decisions."""
    return state_of(UPGRADE, [FIRST, *(step(number, "begun", decision=one) for number, one in enumerate(decisions, 2))])


@pytest.mark.parametrize(
    ("decisions", "facts"),
    [
        ([OldEnded("s-1"), NewDeployed("d-0004", None)], {"snapshot_id": "s-1"}),
        ([OldEnded("s-1"), NewDeployed("d-0004", "s-2")], {"snapshot_id": "s-2"}),
        ([WayDecided("undo", "r-1"), OldRehearsed("r-2")], {"is_way_decided": False, "rehearsal_id": "r-2"}),
        ([Standby("r-1"), NoStandby("it died")], {"standby_id": None, "standby": NoStandby("it died")}),
        ([Standby("r-1")], {"standby_id": "r-1", "rehearsal_id": None}),
        ([NewRehearsed("r-1"), Returning("undo", DriverLaunchedLater("late"))], {"rehearsal_id": "r-1"}),
        ([NewRehearsed("r-1"), Returning("undo", DriverWaits("r-2"))], {"rehearsal_id": "r-2"}),
    ],
)
def test_a_later_decision_replaces_an_earlier_one(decisions: list[Decision], facts: dict[str, Any]) -> None:
    """A fresh start leaves the handover on record; a driver that is launched later leaves the rehearsal."""
    state = decided(*decisions)
    assert {name: getattr(state, name) for name in facts} == facts


def test_what_is_known_at_the_end_is_what_the_steps_say() -> None:
    """Folding its own result again changes nothing but the result."""
    state = decided(*DECISIONS[:-1])
    ended = decided(*DECISIONS[:-1], state.result_so_far)
    assert replace(ended, result=None, last=state.last) == state


def test_the_rehearsals_that_steps_name() -> None:
    """Not the driver that is only kept ready; that one is named once it takes over."""
    said = (NewRehearsed("r-1"), Standby("r-2"), OldRehearsed("r-3"), WayDecided("undo", "r-4"))
    steps = [step(number, "begun", decision=one) for number, one in enumerate(said, 2)]
    assert rehearsal_ids_in([FIRST, *steps]) == {"r-1", "r-3", "r-4"}
    back = step(9, "returning", decision=Returning("undo", DriverWaits("r-2")))
    cold = step(9, "returning", decision=Returning("undo", DriverLaunchedLater("")))
    assert (rehearsal_ids_in([back]), rehearsal_ids_in([cold])) == ({"r-2"}, set())


def test_a_phase_that_is_entered_again_counts_anew_and_is_known_since_it_was_first_entered() -> None:
    """A step that only adds a fact to its phase does not start it again."""
    steps = [FIRST, step(2, "unhealthy"), step(3, "returning"), step(4, "unhealthy"), step(5, "unhealthy")]
    state = state_of(UPGRADE, steps)
    assert state.since["unhealthy"] == AT + timedelta(seconds=1)
    assert state.phase_since == AT + timedelta(seconds=3)


def test_a_step_is_taken_once(journal: UpgradeJournal) -> None:
    """Of two that take the step of one number at once, one comes first (Laws 1 and 2)."""
    journal.create(UPGRADE)
    assert journal.take(FIRST)
    assert not journal.take(replace(FIRST, phase="failed", write_id="w-9"))
    assert journal.need_state(ID).phase == "begun"
    assert [taken.number for taken in journal.steps(ID)] == [1]


def test_an_upgrade_is_recorded_once(journal: UpgradeJournal) -> None:
    """What was asked for never changes."""
    journal.create(UPGRADE)
    with pytest.raises(ObjectExistsError):
        journal.create(with_terms(UPGRADE, allow_drain=False))
    assert journal.upgrade(ID) == UPGRADE
    assert journal.ids() == [ID]


@pytest.mark.parametrize("over", sorted(OVER))
def test_what_is_not_begun_or_over_is_not_under_way(journal: UpgradeJournal, over: Phase) -> None:
    """An unknown id, a record without a first step, and an ended upgrade block nothing."""
    assert not journal.is_under_way(None)
    assert not journal.is_under_way(ID)
    journal.create(UPGRADE)
    assert journal.state(ID) is None
    assert not journal.is_under_way(ID)
    with pytest.raises(InvalidRequestError, match="no such upgrade"):
        journal.need_state(ID)
    journal.take(FIRST)
    assert journal.is_under_way(ID)
    journal.take(step(2, over))
    assert journal.need_state(ID).is_over
    assert not journal.is_under_way(ID)


def test_one_that_cannot_be_read_is_taken_for_under_way(journal: UpgradeJournal) -> None:
    """No command moves a stream that a newer release may be moving (Law 7)."""
    journal.create(UPGRADE)
    journal.take(FIRST)
    store = journal._cells.store
    store.put(layout.upgrade_step_key("orders", ID, 2), b'{"kind": "UpgradeStep", "protocol": 99}')
    assert journal.is_under_way(ID)


def test_the_first_word_counts(journal: UpgradeJournal) -> None:
    """A yes after a no changes nothing, nor does a second cancellation."""
    approval, cancellation = example(Approval), example(Cancellation)
    assert isinstance(approval, Approval)
    assert isinstance(cancellation, Cancellation)
    assert (journal.approval(ID), journal.cancellation(ID)) == (None, None)
    first = replace(approval, is_approved=False, write_id="w-1")
    assert journal.approve(first) == first
    assert journal.approve(approval) == first
    assert journal.approval(ID) == first
    assert journal.cancel(cancellation) == cancellation
    assert journal.cancel(replace(cancellation, after_stop="finish", write_id="w-2")) == cancellation


@pytest.mark.parametrize(
    ("phase", "asked", "cancelled_by", "name"),
    [
        ("unhealthy", "upgrade", None, "unhealthy"),
        ("unhealthy", "upgrade", "ada", "going back"),
        ("unhealthy", "rollback", None, "going back"),
        ("refused", "upgrade", None, "refused"),
        ("refused", "upgrade", "ada", "cancelled"),
        ("started", "upgrade", "ada", "started"),
    ],
)
def test_nothing_is_called_unhealthy_because_a_user_wanted_to_go_back(
    phase: Phase, asked: str, cancelled_by: str | None, name: str
) -> None:
    """In the steps, and in ``status``."""
    upgrade = of_kind(UPGRADE, asked)
    cancelled = None if cancelled_by is None else CancelledByUser(cancelled_by, None)
    assert state_of(upgrade, [FIRST, step(2, phase, decision=cancelled)]).phase_for_people == name
