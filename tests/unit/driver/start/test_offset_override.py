"""A seed that starts elsewhere than where its predecessor ended."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_streamstate.driver.start.query_seed import begins_elsewhere
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Drained, Failed, QueryStarted, Repositioned, Stopped
from airflow_streamstate.protocol.records import StartPlan
from support.simulated_driver import SimulatedDriver, SimulatedStream, make_plan, waiting_script
from support.simulated_query import SimulatedPlan
from support.simulated_sources import WindowCount, expected_counts

BACK = {"counts": ('{"index":10}',)}
CONSENT = {"accept_lost_input": ("counts",), "accept_repeated_input": ("counts",)}


@pytest.fixture
def plan() -> SimulatedPlan:
    """A query over a hundred rows."""
    return make_plan(100)


def drained(stream: SimulatedStream, plan: SimulatedPlan) -> str:
    stream.order_at(4.1, DrainNotification)
    assert stream.run(waiting_script(plan)) == 0
    return stream.events_of(Drained)[0].snapshot_id


def seed(stream: SimulatedStream, plan: SimulatedPlan, snapshot_id: str, number: int = 2, **start: Any) -> int | None:
    stream.deploy(number, StartPlan("seed", snapshot_id, "d-0001", **start))
    stream.order_at(30.0, DrainNotification, f"d-{number:04d}")
    return stream.run(waiting_script(plan), f"d-{number:04d}")


def written_since(plan: SimulatedPlan, batches: int) -> dict[int, int]:
    """Window start -> rows, of what the sink was given after the given number of batches."""
    found: dict[int, int] = {}
    for _, rows in plan.sink.batches[batches:]:
        for row in rows:
            assert isinstance(row, WindowCount)
            found[row.window_start_ms] = found.get(row.window_start_ms, 0) + row.count
    return found


def test_it_reads_from_the_offsets_that_are_given_and_nothing_before(
    stream: SimulatedStream, plan: SimulatedPlan
) -> None:
    """Ids continue, what is read again is not late, and the move is reported before anything is built. (Laws 9, 14)"""
    snapshot_id = drained(stream, plan)
    batches, last = len(plan.sink.batches), plan.sink.batches[-1][0]
    assert seed(stream, plan, snapshot_id, offsets=BACK, **CONSENT) == 0
    (moved,) = stream.events_of(Repositioned, "d-0002")
    assert (moved.batch_id, moved.reason) == (last, "the offsets that were given")
    assert [move.to_offset for move in moved.moves] == ['{"index":10}']
    started = stream.events_of(QueryStarted, "d-0002")[0]
    assert (started.how, started.batch_id) == ("seeded", last)
    assert any("its watermark starts again" in remark for remark in started.repairs)
    (source,) = plan.sources
    assert written_since(plan, batches) == expected_counts(source.rows[10:], 1_000)


@pytest.mark.parametrize(
    ("consent", "missing"),
    [
        ({}, "--accept-lost-input counts and --accept-repeated-input counts"),
        ({"accept_lost_input": ("counts",)}, "deploy with --accept-repeated-input counts"),
        ({"accept_repeated_input": ("counts",)}, "deploy with --accept-lost-input counts"),
    ],
)
def test_law_5_nothing_is_passed_over_or_read_again_unasked(
    stream: SimulatedStream, plan: SimulatedPlan, consent: dict[str, Any], missing: str
) -> None:
    """Uncounted input counts as both; nothing is built, and the sink is not touched."""
    snapshot_id = drained(stream, plan)
    batches = list(plan.sink.batches)
    assert seed(stream, plan, snapshot_id, offsets=BACK, **consent) == 1
    (failed,) = stream.events_of(Failed, "d-0002")
    assert missing in failed.error
    assert stream.events_of(Repositioned, "d-0002") == []
    assert plan.sink.batches == batches


def test_where_it_stood_is_no_move_that_needs_consent(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    """The very offsets of the snapshot, word for word."""
    snapshot_id = drained(stream, plan)
    offsets = {"counts": stream.control.need_manifest(snapshot_id).queries["counts"].position.end_offsets}
    assert seed(stream, plan, snapshot_id, offsets=offsets) == 0
    assert sum(plan.sink.counts().values()) == 100


def test_law_16_state_is_dropped_only_where_that_was_asked_for(plan: SimulatedPlan, stream: SimulatedStream) -> None:
    """Of a stream that was stopped and not drained: its state belongs to other offsets."""
    stream.order_at(4.1, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    snapshot_id = stream.events_of(Stopped)[0].snapshot_id
    batches = len(plan.sink.batches)
    assert seed(stream, plan, snapshot_id, offsets=BACK, **CONSENT) == 1
    assert "would drop it" in stream.events_of(Failed, "d-0002")[0].error
    assert seed(stream, plan, snapshot_id, 3, offsets=BACK, allow_state_loss=True, **CONSENT) == 0
    (source,) = plan.sources
    assert written_since(plan, batches) == expected_counts(source.rows[10:], 1_000)


def test_a_driver_that_died_while_it_was_built_tells_it_once(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    """The next attempt builds it again, and reports nothing new. (Law 2)"""
    snapshot_id = drained(stream, plan)
    batches = len(plan.sink.batches)
    stream.deploy(2, StartPlan("seed", snapshot_id, "d-0001", offsets=BACK, **CONSENT))

    def dying(driver: SimulatedDriver) -> None:
        startable = driver.startable_of(plan)
        original = driver.attempt_life.attempt.reporter.write

        def write(kind: Any, **fields: Any) -> Any:
            event = original(kind, **fields)
            if kind is Repositioned:
                driver.kill()
            return event

        driver.attempt_life.attempt.reporter.write = write  # type: ignore[method-assign]
        driver.start_with(startable)

    assert stream.run(dying, "d-0002") is None
    attempt = stream.next_attempt("d-0002")
    stream.order_at(30.0, DrainNotification, "d-0002")
    assert stream.run(waiting_script(plan), "d-0002", attempt) == 0
    assert len(stream.events_of(Repositioned, "d-0002")) == 1
    assert written_since(plan, batches) == expected_counts(plan.sources[0].rows[10:], 1_000)


def test_a_source_that_knows_no_times_is_refused_by_name(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    """The error names what to give instead."""
    snapshot_id = drained(stream, plan)
    at = datetime(2026, 3, 1, tzinfo=timezone.utc)
    assert seed(stream, plan, snapshot_id, begins_at=at, **CONSENT) == 1
    error = stream.events_of(Failed, "d-0002")[0].error
    assert "this source cannot start at a time" in error
    assert "--offsets" in error
    assert begins_elsewhere(StartPlan("seed", begins_at=at), "any")
    assert not begins_elsewhere(replace(StartPlan("seed"), offsets=BACK), "other")
