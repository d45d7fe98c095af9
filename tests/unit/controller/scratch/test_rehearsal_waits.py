"""A driver that waits is left alone until its time ends, and is then ended and removed like any rehearsal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from airflow_streamstate.controller.scratch.run import LATE_SECONDS
from airflow_streamstate.protocol.ids import launch_key_for
from airflow_streamstate.protocol.scratch import QueryOutcome
from support.sim_stage import STREAM, Stage
from support.warm import WarmStage

REPORT = {"run.json", "verdict.json"}


@pytest.fixture
def warm(stage: Stage) -> WarmStage:
    """A rehearsal whose driver is to wait until 60 seconds from now."""
    return WarmStage(stage).begin()


def is_waiting(warm: WarmStage) -> bool:
    return warm.rehearsals.is_waiting(STREAM, warm.rehearsal_id)


def end(warm: WarmStage) -> str:
    return warm.rehearsals.waiting_end(STREAM, warm.rehearsal_id)


def test_it_waits_once_it_says_so(warm: WarmStage) -> None:
    """Not while it rehearses, not between the two passes, and not while its state is unknown."""
    run = warm.stage.control.scratch_run(warm.rehearsal_id)
    assert run is not None
    assert run.rehearsal.waits_until == run.created_at + timedelta(seconds=60)
    assert (is_waiting(warm), end(warm)) == (False, "")
    warm.gives()
    assert (is_waiting(warm), end(warm)) == (False, "")
    warm.says_that_it_waits()
    assert (is_waiting(warm), end(warm)) == (True, "")
    warm.driver("unknown")
    assert (is_waiting(warm), end(warm)) == (False, "")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda warm: warm.waits().driver("exited"), "its driver has ended: it is exited"),
        (lambda warm: warm.waits().stage.clock.advance(60), "it waited until "),
        (lambda warm: warm.stage.clock.advance(100 + LATE_SECONDS), "not over at its deadline"),
        (lambda warm: warm.waits().old_one_stops().deploy(), "it was handed over"),
    ],
)
def test_why_it_never_will_is_told(warm: WarmStage, spoil: Callable[[WarmStage], object], words: str) -> None:
    """So that no upgrade waits for it in vain (Law 6)."""
    spoil(warm)
    assert words in end(warm)
    assert not is_waiting(warm)


def test_a_script_that_never_ends_by_itself_is_named_as_the_reason(warm: WarmStage) -> None:
    """No second pass can wait behind its own loop, so that the upgrade launches another driver (Law 6)."""
    warm.gives(notes=("the script ran on for 30 s after its last start; it was ended",))
    warm.stage.launcher.states[warm.launch_key] = "exited"
    assert end(warm).startswith("its driver has ended: the script ran on for 30 s after its last start; it was ended")


def test_a_report_a_sweep_and_another_rehearsal_leave_it_alone(warm: WarmStage) -> None:
    """Before it waits, and while it does; the same request finds it instead of beginning another one (Law 2)."""
    warm.gives()
    before = warm.names()
    for _ in range(2):
        warm.rehearsals.report(STREAM, warm.rehearsal_id)
        warm.rehearsals.sweep(STREAM)
        waiting = warm.rehearsal_id
        assert warm.begin().rehearsal_id == waiting
        assert warm.names() == before
        assert warm.stage.launcher.states[warm.launch_key] == "running"


def test_one_that_is_given_up_is_ended_at_once_and_leaves_its_report(warm: WarmStage) -> None:
    """It is killed without patience, since it would wait on. The stream has no new event; an unknown id is no error."""
    warm.waits()
    events = list(warm.stage.control.journal("d-0001").events())
    before = warm.stage.clock.now()
    warm.rehearsals.give_up(STREAM, "r-000000000000-0001")
    warm.rehearsals.give_up(STREAM, warm.rehearsal_id)
    assert warm.stage.clock.now() == before
    assert warm.stage.launcher.states[warm.launch_key] == "gone"
    assert warm.names() == REPORT
    assert list(warm.stage.control.journal("d-0001").events()) == events


@pytest.mark.parametrize("state", ["running", "exited"])
def test_a_waiting_driver_is_removed_after_its_time(warm: WarmStage, state: str) -> None:
    """Dead before it, or alive after it: the next sweep ends it."""
    warm.waits()
    if state == "exited":
        warm.driver("exited")
    else:
        warm.stage.clock.advance(60)
    warm.rehearsals.sweep(STREAM)
    assert warm.stage.launcher.states[launch_key_for(warm.rehearsal_id, 1)] != "running"
    assert warm.names() == REPORT


@pytest.mark.parametrize(
    ("waits_seconds", "outcome", "why"),
    [
        (None, "accepted", "it was not asked to wait"),
        (60.0, "refused", "was not accepted"),
        (60.0, "failed", "was not accepted"),
    ],
)
def test_a_driver_that_is_not_to_wait_is_ended_with_its_report(
    warm: WarmStage, waits_seconds: float | None, outcome: QueryOutcome, why: str
) -> None:
    """Only the report stays of its rehearsal."""
    warm.begin(waits_seconds, "plan-2").gives(outcome)
    assert not is_waiting(warm)
    assert why in end(warm)
    warm.rehearsals.report(STREAM, warm.rehearsal_id)
    assert warm.stage.launcher.states[warm.launch_key] == "gone"
    assert warm.names() == REPORT
