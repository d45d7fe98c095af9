"""The intercepted start(): name, checkpoint, repair, run (1a.7, 1a.11, 1a.12)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_streamstate.checkpoint.barrier import put_fence
from airflow_streamstate.checkpoint.fork import wipe
from airflow_streamstate.checkpoint.log import Checkpoint, drain_entry, format_offset_entry
from airflow_streamstate.checkpoint.repair import Clean, RepairReport, repair_before_start
from airflow_streamstate.connectors.sink import HeldBatches
from airflow_streamstate.driver.attempt.ports import QueryRun
from airflow_streamstate.driver.shutdown.script_end import FENCED_STATUS
from airflow_streamstate.driver.start.query_start import describe_repairs
from airflow_streamstate.errors import ConflictError, DataError, FencedError, InvalidRequestError, UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Drained, Failed, Noted, QueryStarted, Started, Stopped
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from support.checkpoints import barrier_mark, memory_checkpoint, run_batches
from support.simulated_driver import STREAM, SimulatedDriver, SimulatedStream, make_plan, waiting_script
from support.simulated_query import SimulatedPlan


def test_a_fresh_query_gets_its_checkpoint_under_the_deployment(stream: SimulatedStream) -> None:
    """The script's own location is not used as a place (Law 4)."""
    plan = make_plan(20, trigger="available_now")

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(plan, None, "/somewhere/else/counts")
        assert query.name == "counts"
        assert query.checkpoint.prefix == "flights/deployments/d-0001/checkpoints/counts"
        driver.await_all()

    assert stream.run(script) == 0
    started = stream.events_of(QueryStarted)[0]
    assert (started.how, started.batch_id, started.query_name) == ("fresh", None, "counts")
    assert started.watermarks == plan.watermarks
    assert started.query_run_id


def test_a_name_that_looks_like_another_one_in_each_run_is_told_at_its_first_start(stream: SimulatedStream) -> None:
    """Before the next attempt cannot find it; not where the script gave it, nor where it was found again."""
    plan = make_plan(20, trigger="available_now")
    given = "/tmp/temporary-7d5b2c0e-5c0f-4a58-8a55-52ac66a1f0a1"

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan, None, given)
        driver.start(
            make_plan(5, trigger="available_now", fingerprint="b"), "7d5b2c0e5c0f4a588a5552ac66a1f0a2", "/tmp/x"
        )
        driver.start(make_plan(5, trigger="available_now", fingerprint="c"), None, "/data/tmp_of_orders")
        driver.await_all()

    assert stream.run(script) == 0
    assert stream.run(script, attempt=stream.next_attempt()) == 0
    told = [note.facts["query"] for note in stream.events_of(Noted) if "another name at the next start" in note.text]
    assert told == [given.rpartition("/")[2]]


def test_two_queries_of_one_name_at_the_same_time_are_refused(plan: SimulatedPlan, stream: SimulatedStream) -> None:
    """They would share one checkpoint."""

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        with pytest.raises(InvalidRequestError) as caught:
            driver.start(make_plan())
        assert "queryName" in caught.value.next_step

    assert stream.run(script) == 0
    assert len(stream.events_of(QueryStarted)) == 1


def test_a_second_unnamed_query_is_refused_and_a_restart_is_not() -> None:
    """query-1 is the only unnamed one; started again after its end it continues where it was (1a.12)."""
    stream = SimulatedStream()
    plan = make_plan(20, trigger="available_now")
    stream.deploy()

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan, None).await_termination()
        plan.sources[0].add(6_000, 7_000)
        driver.start(plan, None).await_termination()
        with pytest.raises(InvalidRequestError):
            driver.start(make_plan(fingerprint="another plan"), None)

    assert stream.run(script) == 0
    first, second = stream.events_of(QueryStarted)
    assert (first.query_name, second.query_name) == ("query-1", "query-1")
    assert (second.how, second.query_id) == ("continued", first.query_id)
    assert (second.batch_id or 0) > 0


def test_what_spark_raises_at_the_start_comes_through(stream: SimulatedStream) -> None:
    """The script sees Spark's own error, and the deployment is failed with it."""
    plan = make_plan(refuses_to_start=RuntimeError("no such topic"))
    assert stream.run(waiting_script(plan)) == 1
    assert stream.events_of(Failed)[0].error == "RuntimeError: no such topic"


def test_a_query_started_when_the_flush_has_begun_is_not_run(stream: SimulatedStream) -> None:
    """It reads nothing, ends with the drain, and a note names it (1a.11)."""
    plan, late = make_plan(20, batch_seconds=3), make_plan(20)
    stream.order_at(30.0, DrainNotification)

    def script(driver: SimulatedDriver) -> None:
        def start_late() -> None:  # as another thread of the script would
            if driver.attempt_life.attempt.latch.flush_has_begun and len(driver.queries) == 1:
                assert driver.start(late, "b").is_active()

        driver.start(plan, "a")
        driver.clock.every(0.1, start_late)
        driver.await_all()

    assert stream.run(script) == 0
    assert late.sources[0].reads == []
    assert stream.events_of(Noted)[0].facts == {"query": "b"}
    assert set(stream.events_of(Drained)[0].queries) == {"a", "b"}


def test_a_query_started_during_a_stop_is_over_with_it(stream: SimulatedStream) -> None:
    """Its handle speaks for the ending under way: active until it is complete, then over without failure (1a.11)."""
    plan = make_plan(500, batch_seconds=10)
    stream.order_at(3.0, StopRequest)

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan, "a")
        while driver.attempt_life.attempt.latch.is_open:
            driver.clock.sleep(0.1)
        driver.start(make_plan(), "b")
        driver.await_all()

    driver = SimulatedDriver(stream)
    assert driver.run(script) == 0
    assert stream.kinds()[-1] == "Stopped"
    assert driver.startables[1].runs == []


def test_repairs_are_told() -> None:
    """What was removed, its deployment (1a.1, 1a.7), and what was added to Spark's own entries."""
    report = RepairReport(Clean(1), (), (), "normal", 1, ("offsets/.0.3f0a-0.tmp",), pinned_ids=(0, 1))
    swept, pinned = describe_repairs(report)
    assert "offsets/.0.3f0a-0.tmp" in swept
    assert "partitions to entry 0, 1 of offset log 2" in pinned
    checkpoint = run_batches(memory_checkpoint(), 3)
    put_fence(checkpoint, barrier_mark("fence", deployment_id="d-0009"))
    words = describe_repairs(repair_before_start(checkpoint, "d-0001"))
    assert words == (
        "removed our entry at batch 4 from the offset log",
        "one of them named deployment d-0009 and was not obeyed",
    )


def test_a_start_that_cannot_ask_the_run_before_leaves_no_run_that_nobody_supervises(stream: SimulatedStream) -> None:
    """Else a stop would not end the new run (1a.11)."""
    plan = make_plan(20)
    is_away = [True]

    def no_answer() -> int:
        if is_away.pop(0) if is_away else False:
            raise UnavailableError("Spark's JVM does not answer")
        return 0

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan, trigger="available_now").await_termination()
        plan.sources[0].add(*range(200_000, 300_000, 250))
        driver.startables[0].runs[0].dropped_rows = no_answer  # type: ignore[method-assign]
        with pytest.raises(UnavailableError):
            driver.start(plan)
        assert driver.startables[1].runs == []
        assert driver.attempt_life.attempt.latch.is_open
        driver.clock.sleep(60)

    stream.order_at(25.0, StopRequest)
    assert stream.run(script) == 0
    (stopped,) = stream.events_of(Stopped)
    checkpoint = SimulatedDriver(stream).attempt_life.attempt.checkpoint_of("counts")
    assert checkpoint.position().batch_id == stopped.queries["counts"].batch_id


def test_the_folder_of_checkpoints_is_not_made_anew_once_a_query_has_started(tmp_path: Path) -> None:
    """Neither in this attempt nor in a later one: a disk that is not mounted gets no folder in its place (Law 5)."""
    root = tmp_path / "checkpoints"
    stream = SimulatedStream(home=MemoryStore("home"), checkpoints=LocalStore(root))
    stream.deploy()

    def script(driver: SimulatedDriver) -> None:
        driver.start(make_plan(20))
        root.rename(tmp_path / "away")
        with pytest.raises(UnavailableError, match="the folder of this store is not there"):
            driver.checkpoints.put("some/key", b"")
        (tmp_path / "away").rename(root)

    stream.order_at(10.0, StopRequest)
    assert stream.run(script) == 0

    def script_again(driver: SimulatedDriver) -> None:
        with pytest.raises(DataError, match="the checkpoint of this query is gone"):
            driver.start(make_plan(20))
        with pytest.raises(UnavailableError, match="the folder of this store is not there"):
            driver.checkpoints.put("some/key", b"")

    again = SimulatedDriver(stream, attempt=stream.next_attempt(), checkpoints=LocalStore(root))
    shutil.rmtree(root)
    again.run(script_again)
    assert not root.exists()


def test_a_start_that_was_replaced_while_it_was_prepared_runs_nothing(
    stream: SimulatedStream, plan: SimulatedPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preparing takes time, and a successor's batch ids must not be used (Law 4)."""

    def script(driver: SimulatedDriver) -> None:
        startable = driver.startable_of(plan)
        ask = startable.held_batches

        def replace_and_ask(query_id: str | None, from_batch_id: int) -> HeldBatches:
            stream.next_attempt()
            return ask(query_id, from_batch_id)

        monkeypatch.setattr(startable, "held_batches", replace_and_ask)
        with pytest.raises(FencedError):
            driver.start_with(startable)
        assert startable.runs == []

    assert stream.run(script) == FENCED_STATUS
    assert stream.events_of(QueryStarted) == []


def test_a_run_whose_attempt_was_replaced_while_it_started_is_stopped(
    stream: SimulatedStream, plan: SimulatedPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor found no log that it could fence (Law 4)."""

    def script(driver: SimulatedDriver) -> None:
        startable = driver.startable_of(plan)
        start = startable.start

        def replace_after_start(checkpoint_uri: str) -> QueryRun:
            run = start(checkpoint_uri)
            stream.next_attempt()
            return run

        monkeypatch.setattr(startable, "start", replace_after_start)
        with pytest.raises(FencedError):
            driver.start_with(startable)
        assert startable.runs[0].has_ended()

    assert stream.run(script) == FENCED_STATUS


def test_a_query_with_an_open_flush_is_not_started_as_before(stream: SimulatedStream) -> None:
    """It would read on with a watermark at the end of time, and every row would be late (1a.7, Law 11)."""
    plan = make_plan(20, trigger="available_now")

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(plan)
        query.await_termination()
        checkpoint = query.checkpoint
        last = checkpoint.position().batch_id
        assert last is not None
        base = checkpoint.read_offset(last)
        assert base is not None
        body = format_offset_entry(drain_entry(base, barrier_mark("drain")))
        checkpoint.store.create(checkpoint.offset_key(last + 1), body)
        with pytest.raises(ConflictError) as caught:
            driver.start(plan)
        assert "flush" in caught.value.message
        assert not checkpoint.is_committed(last + 1)

    assert stream.run(script) == 1
    assert len(stream.events_of(QueryStarted)) == 1


def test_a_missing_checkpoint_is_not_rebuilt(stream: SimulatedStream) -> None:
    """The query would start with nothing, or at an older position (Law 5)."""
    plan = make_plan(20, trigger="available_now")
    assert stream.run(waiting_script(plan)) == 0
    reads = list(plan.sources[0].reads)
    checkpoint = Checkpoint(stream.checkpoints, layout.checkpoint_folder(STREAM, "d-0001", "counts"))
    wipe(checkpoint)
    assert stream.run(waiting_script(plan), attempt=stream.next_attempt()) == 1
    assert "is gone" in stream.events_of(Failed)[-1].error
    assert not checkpoint.exists()
    assert plan.sources[0].reads == reads


def test_the_session_is_told_once(stream: SimulatedStream) -> None:
    """A script that makes several sessions has one Started."""

    def script(driver: SimulatedDriver) -> None:
        driver.attempt_life.session_started("4.2.0", "local-2", ["too late"])

    assert stream.run(script) == 0
    assert [event.application_id for event in stream.events_of(Started)] == ["local-1"]
    assert stream.events_of(Noted) == []
