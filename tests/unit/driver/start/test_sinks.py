"""The sink before the start (Law 14)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.connectors.sink import UndoMeans, known_sinks
from airflow_streamstate.driver.start.start_checks import listed
from airflow_streamstate.errors import FencedError, InvalidRequestError, UnavailableError
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import BatchesSkipped, Drained, Failed, Noted, QueryStarted, Stopped
from airflow_streamstate.protocol.records import StartPlan
from support.simulated_driver import (
    SimulatedDriver,
    SimulatedStream,
    assert_nothing_lost,
    make_plan,
    waiting_script,
)
from support.simulated_query import SimulatedRun


def _stopped_at(stream: SimulatedStream, seconds: float = 6.0) -> int:
    """A first deployment that ran, and was stopped; its last batch."""
    stream.deploy()
    stream.order_at(seconds, StopRequest)
    assert stream.run(waiting_script(make_plan(400))) == 0
    batch_id = stream.events_of(Stopped)[0].queries["counts"].batch_id
    assert batch_id is not None
    return batch_id


def test_a_fresh_start_into_a_sink_that_holds_its_ids_is_refused_and_nothing_is_touched() -> None:
    """Each of its batches would be skipped with all its rows: reported in one sentence, before Spark runs (Law 14)."""
    stream, plan = SimulatedStream(), make_plan(40)
    for batch_id in range(3):
        plan.sink.add_batch(batch_id, ())
    stream.deploy()

    def script(driver: SimulatedDriver) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            driver.start(plan)
        assert "would skip them" in caught.value.message
        assert caught.value.context["held_batches"] == "0 to 2"
        assert caught.value.context["next_batch_id"] == 0
        assert "new output" in caught.value.next_step
        assert driver.startables[0].runs == []
        raise caught.value

    assert stream.run(script) == 1
    assert stream.events_of(QueryStarted) == []
    assert "would skip them" in stream.events_of(Failed)[0].error
    assert not list(stream.checkpoints.list_objects("flights/deployments/d-0001/checkpoints/"))
    assert len(plan.sink.batches) == 3


def test_a_table_that_ends_with_the_session_is_named_at_the_first_start() -> None:
    """The next start would be refused, so people learn it while there is time; once for a deployment."""
    stream, plan = SimulatedStream(), replace(make_plan(40), table=("the catalog of table counts ends",))
    stream.deploy()
    stream.order_at(3.0, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    assert [event.text for event in stream.events_of(Noted)] == ["the catalog of table counts ends"]


def test_a_table_that_cannot_be_created_ends_the_start_before_spark_runs() -> None:
    """With our sentence, which reports what to do, and not with Spark's."""
    refused = InvalidRequestError("Spark's catalog does not know this table", next_step="Name its place.")
    stream = SimulatedStream()
    stream.deploy()
    assert stream.run(waiting_script(replace(make_plan(40), table=refused))) == 1
    assert stream.events_of(QueryStarted) == []
    assert "does not know this table" in stream.events_of(Failed)[0].error


def test_a_driver_that_was_replaced_learns_that_and_nothing_else() -> None:
    """The ids may be its successor's: it is fenced, and does not continue to its script's end (Law 4)."""
    stream, plan = SimulatedStream(), make_plan(40)
    plan.sink.add_batch(0, ())
    stream.deploy()

    def script(driver: SimulatedDriver) -> None:
        stream.point_register("d-0001", 2)
        with pytest.raises(FencedError):
            driver.start(plan)

    stream.run(script)
    assert stream.events_of(Failed) == []


@pytest.mark.parametrize("means", ["exact by undo", "by command"])
def test_ids_that_somebody_else_wrote_above_a_restored_position_are_found(means: UndoMeans) -> None:
    """They would swallow the successor's batches; the way to remove them is named (Law 14)."""
    stream = SimulatedStream()
    last = _stopped_at(stream)
    plan = make_plan(400)
    plan.sink.undo_means = means
    plan.sink.add_batch(last + 1, ())
    manifest = stream.events_of(Stopped)[0].snapshot_id
    stream.deploy(2, StartPlan("restore", manifest, "d-0001"))

    def script(driver: SimulatedDriver) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            driver.start(plan)
        assert caught.value.context["held_batches"] == str(last + 1)
        does = f"rollback flights --snapshot {manifest}" if means == "exact by undo" else "docs/how-to/sinks.md"
        assert does in caught.value.next_step

    assert stream.run(script, "d-0002") == 0


def test_a_batch_that_is_planned_may_be_held_and_is_no_alarm(stream: SimulatedStream) -> None:
    """The driver died between the sink and the commit: the next attempt runs the same bounds, and nothing is lost."""
    plan = make_plan(60)

    def dies_before_a_commit(driver: SimulatedDriver) -> None:
        def die(run: SimulatedRun, phase: str) -> None:
            if phase == "commit" and run.next_batch_id == 2:
                driver.kill()

        query = driver.start(plan)
        driver.startables[0].before_phase = die
        query.await_termination()

    assert stream.run(dies_before_a_commit) is None
    assert plan.sink.holds(2)
    stream.order_at(20.0, DrainNotification, attempt=2)
    assert stream.run(waiting_script(plan), attempt=stream.next_attempt()) == 0
    started = stream.events_of(QueryStarted)
    assert [event.planned_batch_id for event in started] == [None, 2]
    assert stream.events_of(Drained)
    assert stream.events_of(BatchesSkipped) == []
    assert_nothing_lost(plan)


def test_a_flush_into_a_sink_that_holds_its_id_is_refused() -> None:
    """A drain before the query ever ran: its windows would be skipped with the batch that flushes them (Law 14)."""
    stream = SimulatedStream()
    last = _stopped_at(stream)
    plan = make_plan(400)
    plan.sink.add_batch(last + 1, ())
    stream.deploy(2, StartPlan("restore", stream.events_of(Stopped)[0].snapshot_id, "d-0001"))
    stream.order(DrainNotification, "d-0002")

    def script(driver: SimulatedDriver) -> None:
        with pytest.raises(InvalidRequestError):
            driver.start(plan)

    stream.run(script, "d-0002")
    assert len(plan.sink.batches) == 1


@pytest.mark.parametrize(("method", "looks"), [("exists", 5), ("position", 5), ("query_id", 2)])
def test_a_store_that_does_not_answer_for_a_moment_ends_no_drain(
    method: str, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that is flushed without having run is looked at until the store answers."""
    asked = getattr(Checkpoint, method)
    for failing in range(1, looks + 1):
        stream = SimulatedStream()
        _stopped_at(stream)
        stream.deploy(2, StartPlan("restore", stream.events_of(Stopped)[0].snapshot_id, "d-0001"))
        stream.order(DrainNotification, "d-0002")
        calls = itertools.count(1)

        def once_away(self: Checkpoint, calls: Iterator[int] = calls, failing: int = failing) -> object:
            if next(calls) == failing:
                raise UnavailableError("the store does not answer")
            return asked(self)

        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, method, once_away)
            assert stream.run(waiting_script(make_plan(400)), "d-0002") == 0, (method, failing)
        assert stream.events_of(Drained, "d-0002"), (method, failing)


def test_a_skip_that_nobody_foresaw_is_told_at_once_and_counted(stream: SimulatedStream) -> None:
    """An event at the first, at each doubling, and at the end."""
    plan = make_plan(2_000)

    def fill() -> None:
        for batch_id in range(8, 30):
            plan.sink.add_batch(batch_id, ())

    stream.clock.after(4.0, fill)
    stream.order_at(60.0, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    told = stream.events_of(BatchesSkipped)
    assert len(told) > 1
    assert told[-1].count == 22
    assert told[-1].batch_ids == tuple(range(20, 30))
    counts = [event.count for event in told]
    assert all(later >= 2 * before for before, later in itertools.pairwise(counts[:-1]))
    heartbeat = stream.control.heartbeat("d-0001")
    assert heartbeat is not None
    assert heartbeat.queries["counts"].skipped_batches > 0


@pytest.fixture
def looked_for_anew() -> Iterator[None]:
    """Connectors are looked for once in a process."""
    known_sinks.cache_clear()
    yield
    known_sinks.cache_clear()


@pytest.mark.usefixtures("looked_for_anew")
def test_an_connector_that_cannot_be_used_is_told_once_and_stops_nothing(
    stream: SimulatedStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One note, for any number of queries."""
    metadata = tmp_path / "theirs-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[airflow_streamstate.sinks]\nlake = no_such_module:LakeSink\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plans = (make_plan(20, trigger="available_now"), make_plan(20, trigger="available_now"))
    assert stream.run(waiting_script(*plans, names=("a", "b"))) == 0
    told = [note.text for note in stream.events_of(Noted) if "lake" in note.text]
    assert len(told) == 1
    assert "cannot be used" in told[0]


@pytest.mark.parametrize(
    ("batch_ids", "words"),
    [
        ((3,), "3"),
        (range(14, 18), "14 to 17"),
        ((1, 3), "1, 3"),
        (tuple(range(0, 40, 2)), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, … 38"),
    ],
)
def test_ids_are_told_in_few_words(batch_ids: tuple[int, ...], words: str) -> None:
    """However many there are."""
    assert listed(batch_ids) == words
