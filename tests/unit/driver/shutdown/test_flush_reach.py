"""The reach of a flush, by the plan and the timers of its query."""

from __future__ import annotations

import pytest

from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.shutdown.flush import LIVES_ON, NOT_ASKED, NOT_FIRED, NOT_REACHED, FlushReach
from airflow_streamstate.plan.model import StateOperator, StateVariable
from airflow_streamstate.plan.record import recorded_plans
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Drained, DrainFailed, Stopped
from airflow_streamstate.protocol.terms.order import DrainMode
from support.built_plans import operator, plan, processor
from support.scripted_rehearsal import keep_plan
from support.simulated_driver import SimulatedDriver, ended_by, make_plan

DUE_MS = 4_102_444_800_000
TIMED = processor(StateVariable("total", "value"), time_mode="ProcessingTime")
TIMED_OUT = operator(1, "apply_in_pandas_with_state", timeout="ProcessingTimeTimeout")
EVENT_TIMED = processor(StateVariable("total", "value"), time_mode="EventTime")


def reach_of(driver: SimulatedDriver, mode: DrainMode | None = "default") -> FlushReach:
    order = Order("c-1")
    if mode is not None:
        moment = driver.clock.now()
        order = Order("c-1", 1, DrainNotification("c-1", "flights", "d-0001", moment, None, "ada", "", False, mode))
    attempt = driver.attempt_life.attempt
    return FlushReach(attempt, order, recorded_plans(attempt.control, "d-0001"))


@pytest.mark.parametrize(
    ("operators", "mode", "expected"),
    [
        ([TIMED], "default", DUE_MS + 1),
        ([TIMED_OUT], "default", DUE_MS + 1),
        ([TIMED], None, DUE_MS + 1),
        ([TIMED], "event_time", None),
        ([TIMED_OUT], "event_time", None),
        ([EVENT_TIMED], "default", None),
        ([operator()], "default", None),
        (None, "default", DUE_MS + 1),
    ],
)
def test_the_batch_time_moves_only_where_there_are_timers_of_processing_time(
    operators: list[StateOperator] | None, mode: DrainMode | None, expected: int | None
) -> None:
    """Just past the last timer; without a known plan the state decides."""
    driver = ended_by(StopRequest, make_plan(20, last_timer_ms=DUE_MS))
    query = driver.queries[0]
    if operators is not None:
        keep_plan(driver.attempt_life.attempt.control, "d-0001", query.name, plan(*operators))
    assert reach_of(driver, mode).batch_time_ms(query, query.checkpoint) == expected


def test_a_query_without_state_is_not_asked() -> None:
    """It has no timers."""
    driver = ended_by(StopRequest, make_plan(20, window_ms=None, last_timer_ms=RuntimeError("asked")))
    assert reach_of(driver).batch_time_ms(driver.queries[0], driver.queries[0].checkpoint) is None


@pytest.mark.parametrize(
    ("kept", "mode", "expected"),
    [
        (TIMED, "event_time", NOT_ASKED),
        (TIMED_OUT, "event_time", NOT_ASKED),
        (TIMED, "default", NOT_FIRED),
        (processor(StateVariable("seen", "map", has_ttl=True), time_mode="ProcessingTime"), "default", LIVES_ON),
        (operator(), "default", NOT_REACHED),
    ],
)
def test_why_rows_are_left_is_said_of_each_operator(kept: StateOperator, mode: DrainMode, expected: str) -> None:
    """Not asked for, with a time to live, or out of reach (Law 16)."""
    driver = ended_by(StopRequest, make_plan(20))
    query = driver.queries[0]
    keep_plan(driver.attempt_life.attempt.control, "d-0001", query.name, plan(kept))
    assert reach_of(driver, mode).why_left(query, kept.operator_id) == expected


def test_the_flush_runs_at_the_time_of_the_last_timer() -> None:
    """The entry holds it, so a later attempt runs the same batch."""
    driver = ended_by(DrainNotification, make_plan(20, last_timer_ms=DUE_MS))
    query = driver.queries[0]
    position = query.checkpoint.position()
    assert position.batch_id is not None
    entry = query.checkpoint.read_offset(position.batch_id)
    assert entry is not None
    assert entry.batch_timestamp_ms == DUE_MS + 1
    assert driver.stream.events_of(Drained)


def test_timers_that_are_due_already_move_no_time_back() -> None:
    """The batch time stays that of the batch before."""
    driver = ended_by(DrainNotification, make_plan(20, last_timer_ms=5))
    query = driver.queries[0]
    position = query.checkpoint.position()
    assert position.batch_id is not None
    flush, before = (query.checkpoint.read_offset(number) for number in (position.batch_id, position.batch_id - 1))
    assert flush is not None
    assert before is not None
    assert flush.batch_timestamp_ms == before.batch_timestamp_ms


def test_timers_that_cannot_be_read_leave_the_state_as_it_is() -> None:
    """The drain fails, nothing is flushed, and the stream ends stopped."""
    driver = ended_by(DrainNotification, make_plan(20, last_timer_ms=RuntimeError("the disk is gone")))
    (failed,) = driver.stream.events_of(DrainFailed)
    assert (failed.withdrawn, "the disk is gone" in failed.error) == (True, True)
    assert driver.stream.events_of(Drained) == []
    (kept,) = driver.stream.events_of(Stopped)
    assert kept.snapshot_id.startswith("d-0001-stopped-")
