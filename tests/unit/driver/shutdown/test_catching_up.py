"""Queries that feed each other are drained in the order of their data."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from airflow_streamstate.checkpoint.log import PARTITIONS
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.shutdown.drain import stages_of
from airflow_streamstate.plan.model import PlannedSink
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Drained, DrainFailed, Draining, Failed, Stopped
from airflow_streamstate.protocol.records import StartPlan
from support.built_plans import plan
from support.scripted_rehearsal import keep_plan
from support.simulated_connector import install_connector
from support.simulated_driver import SimulatedDriver, SimulatedStream, make_plan
from support.simulated_query import CONF, Phase, SimulatedPlan, SimulatedRun
from support.simulated_sources import Row, SimulatedSink, SimulatedSource, WindowCount, expected_counts

pytestmark = pytest.mark.fast

LANDED = PlannedSink("file:json", "json", "/landed", "file", "batch_id")
DAILY_MS = 5_000
NO_STATE = 1_000_000
DAY_MS = 86_400_000
PHASES: tuple[Phase, ...] = ("initialise", "run", "state", "sink", "commit")


class Landed(SimulatedSource):
    """The output of a different query, one row for each window that it closed."""

    def __init__(self, upstream: SimulatedSink) -> None:
        self._upstream = upstream
        super().__init__("FileStreamSource[/landed]", max_rows_per_batch=3)

    @property
    def rows(self) -> list[Row]:  # type: ignore[override]
        closed = [row for row in self._upstream.rows if isinstance(row, WindowCount)]
        return [Row(row.window_start_ms, f"window {row.window_start_ms}") for row in closed]

    @rows.setter
    def rows(self, _: list[Row]) -> None:
        """Only the upstream writes there."""


def chained(rows: int = 80) -> tuple[SimulatedPlan, SimulatedPlan]:
    """Counts per second, and how many of those windows fall into each five seconds."""
    upstream = make_plan(rows)
    return upstream, SimulatedPlan([Landed(upstream.sink)], SimulatedSink(), window_ms=DAILY_MS)


def script_of(
    upstream: SimulatedPlan,
    downstream: SimulatedPlan,
    then: Callable[[SimulatedDriver], None] = lambda _: None,
    *,
    deployment_id: str = "d-0001",
) -> Callable[[SimulatedDriver], None]:
    def script(driver: SimulatedDriver) -> None:
        driver.start(downstream, "downstream")  # in whatever order they were started
        driver.start(upstream, "upstream")
        control = driver.attempt_life.attempt.control
        source = replace(plan().sources[0], format="json", adapter="file", identity="file /landed")
        # They name the files between the queries, which no simulated plan does; the state is of the simulated plans.
        keep_plan(control, deployment_id, "upstream", plan(sink=LANDED), NO_STATE)
        keep_plan(control, deployment_id, "downstream", plan(sources=(source,)), NO_STATE)
        then(driver)
        driver.await_all()

    return script


def assert_whole(upstream: SimulatedPlan, downstream: SimulatedPlan) -> None:
    """Every window of the upstream was counted by the downstream, once."""
    assert upstream.sink.counts() == expected_counts(upstream.sources, 1_000)
    assert downstream.sink.counts() == expected_counts(downstream.sources, DAILY_MS)
    assert len(downstream.sources[0].rows) == len(upstream.sink.counts())


@pytest.mark.parametrize("at_seconds", [0.05, 1.3, 3.0, 12.0, 60.0])
def test_the_downstream_reads_all_that_the_upstream_flushed_and_is_flushed_then(
    stream: SimulatedStream, at_seconds: float
) -> None:
    """Whenever the drain comes, the last rows of the upstream are in the windows that the downstream closes."""
    upstream, downstream = chained()
    stream.order_at(at_seconds, DrainNotification)
    assert stream.run(script_of(upstream, downstream)) == 0
    (drained,) = stream.events_of(Drained)
    assert {name: each.state_rows_left for name, each in drained.queries.items() if each.batch_id is not None}.keys()
    assert all(each.state_rows_left in (0, None) for each in drained.queries.values())
    read = upstream.sources[0].reads[-1][1] if upstream.sources[0].reads else 0
    assert sum(upstream.sink.counts().values()) == read
    assert sum(downstream.sink.counts().values()) == len(upstream.sink.counts())


def test_each_stage_is_announced_when_it_begins(stream: SimulatedStream) -> None:
    """With the one snapshot from before all of them; the upstream first."""
    upstream, downstream = chained()
    stream.order_at(8.0, DrainNotification)
    assert stream.run(script_of(upstream, downstream)) == 0
    said = stream.events_of(Draining)
    assert [sorted(event.flush_batch_ids) for event in said] == [["upstream"], ["downstream"]]
    assert {event.snapshot_id for event in said} == {"d-0001-pre-drain-000001"}
    (drained,) = stream.events_of(Drained)
    assert {name: said[number].flush_batch_ids[name] for number, name in enumerate(("upstream", "downstream"))} == {
        name: position.batch_id for name, position in drained.queries.items()
    }


def test_a_downstream_that_cannot_catch_up_leaves_the_rest_for_the_next_attempt(stream: SimulatedStream) -> None:
    """The upstream stays flushed; the script gets the failure, and a resume finishes the drain."""
    flush_batch_ids = drained_at(8.0)
    upstream, downstream = chained()
    stream.order_at(8.0, DrainNotification)
    downstream.fails_at.add(flush_batch_ids["downstream"] - 1)
    assert stream.run(script_of(upstream, downstream)) == 1
    assert [event.query_name for event in stream.events_of(DrainFailed)] == ["downstream"]
    assert stream.events_of(Drained) == []
    downstream.fails_at.clear()
    upstream.sources[0].add(90_000)
    assert stream.run(script_of(upstream, downstream), attempt=stream.next_attempt()) == 0
    assert stream.kinds()[-1] == "Drained"
    assert upstream.sources[0].reads[-1][1] == 80
    assert sum(downstream.sink.counts().values()) == len(upstream.sink.counts()) == 20


def drained_at(seconds: float) -> dict[str, int]:
    """The flush batch of each query in an undisturbed drain."""
    upstream, downstream = chained()
    stream = SimulatedStream()
    stream.deploy()
    stream.order_at(seconds, DrainNotification)
    assert stream.run(script_of(upstream, downstream)) == 0
    return {name: number for event in stream.events_of(Draining) for name, number in event.flush_batch_ids.items()}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("name", "behind"), [("upstream", 0), ("downstream", 0), ("downstream", 1), ("downstream", 2)])
def test_a_driver_killed_anywhere_in_it_is_finished_by_the_next_attempt(
    stream: SimulatedStream, phase: Phase, name: str, behind: int
) -> None:
    """In a flush, in a batch that catches up, before either: every window is written once, and counted once (1a.7)."""
    batch_id = drained_at(8.0)[name] - behind
    upstream, downstream = chained()
    stream.order_at(8.0, DrainNotification)
    driver = SimulatedDriver(stream)

    def kill(run: SimulatedRun, now: Phase) -> None:
        is_there = run.next_batch_id == batch_id or (now == "initialise" and run is not first_runs[name])
        if now == phase and is_there and not driver.attempt_life.attempt.latch.is_open:
            driver.kill()

    def script(driver: SimulatedDriver) -> None:
        for each in driver.startables:
            each.before_phase = kill if each.plan is plans[name] else each.before_phase
            first_runs["upstream" if each.plan is upstream else "downstream"] = each.runs[0]

    plans = {"upstream": upstream, "downstream": downstream}
    first_runs: dict[str, SimulatedRun] = {}
    status = driver.run(script_of(upstream, downstream, script))
    upstream.sources[0].add(90_000)
    assert status is None
    attempt = stream.next_attempt(attempt_mode="drain")
    assert stream.run(script_of(upstream, downstream), attempt=attempt) == 0
    (drained,) = stream.events_of(Drained)
    assert all(each.state_rows_left == 0 for each in drained.queries.values())
    assert upstream.sources[0].reads[-1][1] == 80  # nothing new was read
    assert upstream.sink.counts() == dict.fromkeys(range(0, 20000, 1000), 4)
    assert sum(downstream.sink.counts().values()) == 20


@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_downstream_that_never_started_reads_only_from_where_it_stood(
    stream: SimulatedStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_swapped: bool
) -> None:
    """A drain from before the start: the checkpoint was built for a flush and reads after all. A restore by position
    would give one source the other's offset."""
    install_connector(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    upstream, downstream = chained()
    other = SimulatedSource("other")
    other.add(*range(0, 10_000, 250))
    downstream = replace(downstream, sources=[*downstream.sources, other], shows_sources=True, delay_ms=DAY_MS)
    stream.order_at(8.0, StopRequest)
    assert stream.run(script_of(upstream, downstream)) == 0
    before = list(other.reads)
    stream.deploy(2, StartPlan("restore", stream.events_of(Stopped)[0].snapshot_id, "d-0001"))
    stream.order(DrainNotification, "d-0002")
    again = replace(downstream, sources=downstream.sources[::-1]) if is_swapped else downstream
    status = stream.run(script_of(upstream, again, deployment_id="d-0002"), "d-0002")
    if is_swapped:
        (failed,) = stream.events_of(Failed, "d-0002")  # the plans are compared before the flush
        assert (status, failed.refuses_start) == (1, True)
        assert "in that order" in failed.error
        assert other.reads == before
    else:
        assert (status, stream.kinds("d-0002")[-1]) == (0, "Drained")
        assert sum(downstream.sink.counts().values()) == len(upstream.sink.counts()) + len(other.rows)


def test_a_downstream_whose_offset_log_lacks_the_partitions_catches_up(stream: SimulatedStream) -> None:
    """It has no state, so the repair before its start asks the session for the setting that Spark 4.2 left out."""
    upstream, downstream = chained()
    downstream = replace(downstream, window_ms=None, delay_ms=None, offset_log="v2")
    stream.order_at(8.0, DrainNotification)
    driver = SimulatedDriver(stream)
    assert driver.run(script_of(upstream, downstream)) == 0
    (drained,) = stream.events_of(Drained)
    batch_id = drained.queries["downstream"].batch_id
    assert batch_id is not None
    run = next(run for run in driver.startables[0].runs if run.trigger == "available_now")
    before = run.checkpoint.read_offset(run.committed[0] - 1)
    assert before is not None
    assert [line for line in stream.said if "Traceback" in line] == []  # the agent tries again after an error
    assert (before.version, before.conf[PARTITIONS]) == ("v2", CONF[PARTITIONS])
    assert len(downstream.sink.rows) == len(upstream.sink.counts()) == 20


def test_queries_without_a_known_plan_come_first() -> None:
    """No query is known to feed them."""
    upstream, downstream = (cast(LogicalQuery, SimpleNamespace(name=name)) for name in ("upstream", "downstream"))
    source = replace(plan().sources[0], format="json", adapter="file", identity="file /landed")
    plans = {"upstream": plan(sink=LANDED), "downstream": plan(sources=(source,))}
    queries = [downstream, upstream]
    assert stages_of(queries, {}) == [queries]
    assert stages_of(queries, plans) == [[upstream], [downstream]]
    assert stages_of([downstream], plans) == [[downstream]]
    assert stages_of([], plans) == []
