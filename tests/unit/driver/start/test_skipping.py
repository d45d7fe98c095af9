"""A batch that always fails is skipped before its query starts, or the request is rejected."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.driver.shutdown.script_end import FENCED_STATUS
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL
from airflow_streamstate.protocol.commands import DrainNotification, SkipRequest, StopRequest
from airflow_streamstate.protocol.events import Accepted, Drained, Failed, QueryStarted, Rejected, Skipped
from support.checkpoints import HookedStore, once
from support.simulated_driver import (
    DriverKilledError,
    SimulatedDriver,
    SimulatedStream,
    make_plan,
    waiting_script,
)
from support.simulated_query import SimulatedPlan, SimulatedStartable
from support.simulated_sources import SimulatedSink, expected_counts

pytestmark = pytest.mark.fast

BATCH = 3


def failed(stream: SimulatedStream, **changes: Any) -> SimulatedPlan:
    """A first attempt that failed over the rows of one batch."""
    plan = make_plan(80, **{"fails_on_rows_of": {BATCH}, **changes})
    assert stream.run(waiting_script(plan)) == 1
    assert stream.events_of(Failed)
    return plan


def ask(stream: SimulatedStream, batch_id: int = BATCH, **fields: Any) -> SkipRequest:
    """Write the request, as a controller does."""
    values: dict[str, Any] = {
        "command_id": stream.clock.new_uuid(),
        "stream_id": "flights",
        "deployment_id": "d-0001",
        "requested_at": stream.clock.now(),
        "deadline_at": None,
        "requested_by": "ada",
        "reason": "a bad row",
        "query_name": "counts",
        "batch_id": batch_id,
        **fields,
    }
    command = SkipRequest(**values)
    stream.control.journal("d-0001").write_command(command, NEWEST_PROTOCOL)
    return command


def run_next(stream: SimulatedStream, plan: SimulatedPlan, seconds: float = 20.0) -> int | None:
    """The next attempt, stopped after a while."""
    attempt = stream.next_attempt()
    stream.order_at(seconds, StopRequest, attempt=attempt)
    return stream.run(waiting_script(plan), attempt=attempt)


def assert_only_these_rows_are_missing(plan: SimulatedPlan, begin: int, end: int) -> None:
    """Every window that is out is that of all rows but these."""
    (source,) = plan.sources
    kept = [row for at, row in enumerate(source.rows) if not begin <= at < end]
    expected, found = expected_counts(kept, 1_000), plan.sink.counts()
    open_ones = sorted(expected)[-2:]
    assert {start: count for start, count in found.items() if start not in open_ones} == {
        start: count for start, count in expected.items() if start not in open_ones
    }


def test_only_the_rows_of_that_batch_are_missing(stream: SimulatedStream) -> None:
    """State and ids continue, and the skipped offsets are recorded. (Laws 9 and 14)"""
    plan = failed(stream)
    request = ask(stream)
    assert run_next(stream, plan) == 0
    (skipped,) = stream.events_of(Skipped)
    assert (skipped.command_id, skipped.requested_by, skipped.reason) == (request.command_id, "ada", "a bad row")
    (move,) = skipped.moves
    assert (move.from_offset, move.to_offset) == ('{"index":30}', '{"index":40}')
    assert stream.events_of(QueryStarted)[-1].batch_id == BATCH
    assert "skipped" in stream.events_of(QueryStarted)[-1].repairs[0]
    assert stream.commands() == []
    assert_only_these_rows_are_missing(plan, 30, 40)


@pytest.mark.parametrize(
    ("sink", "holds", "accepts", "said"),
    [
        ("idempotent", True, False, "holds batch 3 already, so its rows do not fail"),
        ("append", False, False, "it is not known whether"),
        ("append", False, True, None),
        ("idempotent", True, True, None),
    ],
)
def test_law_14_what_the_sink_may_hold_is_not_skipped_unasked(
    stream: SimulatedStream, sink: Any, holds: bool, accepts: bool, said: str | None
) -> None:
    """The request is rejected with the reason, and the attempt runs."""
    plan = failed(stream, sink=SimulatedSink(sink))
    if holds:
        plan.sink.add_batch(BATCH, ())
    ask(stream, accepts_written=accepts)
    if said is None:
        assert run_next(stream, plan) == 0
        assert len(stream.events_of(Skipped)) == 1
        return
    assert run_next(stream, plan) == 1
    (rejected,) = stream.events_of(Rejected)
    assert said in rejected.reason
    assert stream.events_of(Skipped) == stream.events_of(Accepted) == []
    assert stream.commands() == []


@pytest.mark.parametrize(("batch_id", "said"), [(1, "batch 1 is committed"), (7, "the planned one is 3")])
def test_only_the_planned_batch_is_skipped(stream: SimulatedStream, batch_id: int, said: str) -> None:
    """Another one has its rows in the state, or no bounds yet."""
    plan = failed(stream)
    ask(stream, batch_id)
    assert run_next(stream, plan) == 1
    assert said in stream.events_of(Rejected)[0].reason


def test_a_batch_that_fails_without_its_rows_is_not_skipped(stream: SimulatedStream) -> None:
    """Its rows are not the cause."""
    plan = failed(stream, fails_on_rows_of=set(), fails_at={BATCH})
    ask(stream)
    assert run_next(stream, plan) == 1
    (rejected,) = stream.events_of(Rejected)
    assert "an empty batch in its place fails as well" in rejected.reason
    assert "batch 3 failed" in rejected.reason


def test_an_attempt_that_was_replaced_skips_nothing(stream: SimulatedStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its successor may be running that very batch (Law 4)."""
    plan = failed(stream)
    ask(stream)
    run_empty = SimulatedStartable.run_trial_batch

    def replace_and_run(startable: SimulatedStartable, uri: str, *more: Any) -> Any:
        stream.next_attempt()
        return run_empty(startable, uri, *more)

    monkeypatch.setattr(SimulatedStartable, "run_trial_batch", replace_and_run)
    assert run_next(stream, plan) == FENCED_STATUS
    checkpoint = Checkpoint(stream.checkpoints, layout.checkpoint_folder("flights", "d-0001", "counts"))
    assert not checkpoint.is_committed(BATCH)
    assert stream.events_of(Skipped) == []


def test_a_request_for_a_query_that_runs_is_rejected(stream: SimulatedStream) -> None:
    """Spark has the batch in hand."""
    stream.clock.after(5.2, lambda: ask(stream) and None)
    stream.order_at(9.0, StopRequest)
    assert stream.run(waiting_script(make_plan(500))) == 0
    assert "a batch is skipped before a start" in stream.events_of(Rejected)[0].reason


def test_the_request_for_another_query_waits_for_that(stream: SimulatedStream) -> None:
    """The start of its own query obeys it."""
    plan = failed(stream)
    other = make_plan(20, window_ms=None)
    ask(stream)

    def script(driver: SimulatedDriver) -> None:
        driver.start(other, "other")
        driver.clock.sleep(2.0)
        driver.start(plan)
        driver.await_all()

    attempt = stream.next_attempt()
    stream.order_at(20.0, StopRequest, attempt=attempt)
    assert stream.run(script, attempt=attempt) == 0
    assert [event.query_name for event in stream.events_of(Skipped)] == ["counts"]


def test_a_driver_that_dies_anywhere_in_it_is_carried_on() -> None:
    """After each change of the store: the batch is skipped once, reported once, and no other row is lost. (Law 2)"""
    for count in itertools.count(1):
        store = HookedStore()
        stream = SimulatedStream(checkpoints=store)
        stream.deploy()
        plan = failed(stream)
        ask(stream)
        left = count

        def strike(verb: str, key: str, stream: SimulatedStream = stream) -> None:
            nonlocal left
            if verb in ("create", "link", "delete", "put", "replace") and not stream.events_of(Skipped):
                left -= 1
                if left == 0:
                    raise DriverKilledError

        attempt = stream.next_attempt()
        stream.order_at(10.0, StopRequest, attempt=attempt)
        store.after = strike
        outcome = stream.run(waiting_script(plan), attempt=attempt)
        store.after = None
        if left > 0:
            assert outcome == 0
            assert count > 15
            return
        assert outcome is None
        assert run_next(stream, plan) == 0
        assert len(stream.events_of(Skipped)) == 1
        assert len(stream.events_of(Accepted)) >= 1
        assert_only_these_rows_are_missing(plan, 30, 40)


CHECKPOINT = layout.checkpoint_folder("flights", "d-0001", "counts")


def die_at(stream: SimulatedStream, plan: SimulatedPlan, verb: str, part: str, *, attempt_mode: str = "run") -> None:
    """The next attempt, killed right after its first such change of the store."""
    assert isinstance(stream.checkpoints, HookedStore)

    def die() -> None:
        raise DriverKilledError

    attempt = stream.next_attempt(attempt_mode=attempt_mode)
    stream.checkpoints.after = once(die, verb, part)
    assert stream.run(waiting_script(plan), attempt=attempt) is None
    stream.checkpoints.after = None


def test_a_skip_that_was_committed_is_told_although_its_query_never_starts_again() -> None:
    """A gap has a name before the next attempt does anything, also where that attempt drains. (Laws 1 and 2)"""
    stream = SimulatedStream(checkpoints=HookedStore())
    stream.deploy()
    plan = failed(stream)
    request = ask(stream)
    die_at(stream, plan, "create", f"{CHECKPOINT}/commits/{BATCH}")
    assert stream.events_of(Skipped) == []
    stream.order(DrainNotification)
    assert stream.run(waiting_script(plan), attempt=stream.next_attempt(attempt_mode="drain")) == 0
    (skipped,) = stream.events_of(Skipped)
    assert (skipped.command_id, skipped.query_name, skipped.batch_id) == (request.command_id, "counts", BATCH)
    assert skipped.moves[0].to_offset == '{"index":40}'
    assert len(stream.events_of(Drained)) == 1
    assert stream.commands() == []


def test_a_batch_that_a_drain_ran_is_not_told_as_skipped() -> None:
    """The skip had started when its driver died; the drain commits the rows. (Law 2)"""
    stream = SimulatedStream(checkpoints=HookedStore())
    stream.deploy()
    plan = failed(stream)
    ask(stream)
    die_at(stream, plan, "create", f"{layout.building_folder('flights', 'd-0001', 'counts')}/offsets/{BATCH}")
    assert len(stream.events_of(Accepted)) == 1
    plan.fails_on_rows_of.clear()
    stream.order(DrainNotification)
    die_at(stream, plan, "create", f"{CHECKPOINT}/offsets/{BATCH + 1}", attempt_mode="drain")
    assert stream.run(waiting_script(plan), attempt=stream.next_attempt(attempt_mode="drain")) == 0
    assert len(stream.events_of(Drained)) == 1
    assert stream.events_of(Skipped) == []
    assert [event.reason for event in stream.events_of(Rejected)] == ["a drain runs this batch first"]
    assert plan.sink.counts() == expected_counts(plan.sources[0].rows[:40], 1_000)


def test_a_skip_that_was_begun_goes_on_without_its_object() -> None:
    """Else the batch would run with its rows, and be reported as skipped. (Laws 1 and 2)"""
    stream = SimulatedStream(checkpoints=HookedStore())
    stream.deploy()
    plan = failed(stream)
    request = ask(stream)
    die_at(stream, plan, "create", f"{layout.building_folder('flights', 'd-0001', 'counts')}/offsets/{BATCH}")
    stream.control.journal("d-0001").withdraw_command(request.command_id)
    assert stream.commands() == []
    plan.fails_on_rows_of.clear()
    assert run_next(stream, plan) == 0
    (skipped,) = stream.events_of(Skipped)
    assert skipped.command_id == request.command_id
    assert_only_these_rows_are_missing(plan, 30, 40)


def test_what_could_not_be_told_is_not_skipped(stream: SimulatedStream) -> None:
    """The entry before the batch is gone, and with it the start of the gap: the log is unchanged."""
    plan = failed(stream)
    ask(stream)
    stream.checkpoints.delete(f"{CHECKPOINT}/offsets/{BATCH - 1}")
    assert run_next(stream, plan) == 1
    assert stream.events_of(Accepted) == stream.events_of(Skipped) == []
    assert stream.checkpoints.head(f"{CHECKPOINT}/commits/{BATCH}") is None
