"""The end of the script, by itself or not."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.shutdown.script_end import MAX_TRACEBACK_CHARACTERS, end_script, refusal_in
from airflow_streamstate.errors import (
    HomeNotFoundError,
    InputLostError,
    InvalidRequestError,
    ReadOnlyError,
    StoreRefusedError,
    UnsupportedCheckpointError,
)
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Failed, Finished, Noted, QueryFailed
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.store.memory import MemoryStore
from support.simulated_driver import (
    QueryFailedError,
    SimulatedDriver,
    SimulatedStream,
    assert_nothing_lost,
    make_plan,
    waiting_script,
)
from support.simulated_query import SimulatedPlan
from support.vanishing_store import VanishingStore


def finish_later(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    attempt = stream.next_attempt()
    stream.order_at(60.0, DrainNotification)
    assert stream.run(waiting_script(plan), attempt=attempt) == 0


def test_a_job_that_ends_by_itself_leaves_a_final_snapshot(stream: SimulatedStream) -> None:
    """Available-now: a ``stopped`` snapshot, then ``Finished``; the next attempt continues there."""
    plan = make_plan(45, trigger="available_now")
    assert stream.run(waiting_script(plan)) == 0
    finished = stream.events_of(Finished)[0]
    assert finished.snapshot_id == "d-0001-stopped-000001"
    assert finished.queries["counts"].end_offsets == ('{"index":45}',)
    assert finished.unfinished == {}
    assert stream.kinds()[-1] == "Finished"
    plan.sources[0].add(*range(20_000, 22_000, 250))
    finish_later(stream, replace(plan, trigger="processing_time"))
    assert_nothing_lost(plan)


def test_a_script_without_a_query_just_finishes(stream: SimulatedStream) -> None:
    """It needs no snapshot."""
    assert stream.run(lambda driver: driver.clock.sleep(1.0)) == 0
    finished = stream.events_of(Finished)[0]
    assert finished.snapshot_id is None
    assert finished.queries == {}


def returns(driver: SimulatedDriver, plan: SimulatedPlan) -> None:
    driver.start(plan)
    driver.clock.sleep(3.0)


def stops_its_query(driver: SimulatedDriver, plan: SimulatedPlan) -> None:
    query = driver.start(plan)
    driver.clock.sleep(3.0)
    query.stop()


def stops_it_behind_the_back(driver: SimulatedDriver, plan: SimulatedPlan) -> None:
    query = driver.start(plan)
    driver.clock.sleep(3.0)
    assert query.run is not None
    query.run.stop()


def swallows_a_failure(driver: SimulatedDriver, plan: SimulatedPlan) -> None:
    driver.start(replace(plan, fails_at={2}))
    with pytest.raises(QueryFailedError):
        driver.await_all()


@pytest.mark.parametrize("trigger", ["processing_time", "available_now"])
@pytest.mark.parametrize(
    ("script", "what"),
    [
        (returns, "ran when the script ended"),
        (stops_its_query, "was stopped by the script"),
        (stops_it_behind_the_back, "has planned batch|never ends a run"),
        (swallows_a_failure, "had failed: "),
    ],
)
def test_a_script_that_ends_before_its_input_says_which_query_had_not_come_to_its_end(
    stream: SimulatedStream, trigger: str, script: Callable[[SimulatedDriver, SimulatedPlan], None], what: str
) -> None:
    """It is no end of the stream, whatever status the script ends with; the state is kept all the same."""
    plan = make_plan(5_000, trigger=trigger)
    assert stream.run(lambda driver: script(driver, plan)) == 0
    (finished,) = stream.events_of(Finished)
    assert list(finished.unfinished) == ["counts"]
    assert re.match(what, finished.unfinished["counts"])
    assert finished.snapshot_id == "d-0001-stopped-000001"


@pytest.mark.parametrize(("trigger", "is_end"), [("processing_time", False), ("available_now", True)])
def test_a_script_that_ends_before_it_starts_its_query_again_ends_no_stream(
    stream: SimulatedStream, trigger: str, is_end: bool
) -> None:
    """As by a signal in its first lines; a job whose runs end by themselves may have had nothing to do."""
    plan = make_plan(45, trigger=trigger)
    stream.order_at(30.0, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    attempt = stream.next_attempt()
    assert stream.run(lambda driver: driver.clock.sleep(1.0), attempt=attempt) == 0
    finished = stream.events_of(Finished)[-1]
    assert finished.attempt == attempt
    assert finished.unfinished == ({} if is_end else {"counts": "was not started"})


def test_a_new_version_that_starts_nothing_ends_no_stream(stream: SimulatedStream) -> None:
    """What it started from has state."""
    stream.order_at(30.0, StopRequest)
    assert stream.run(waiting_script(make_plan(500))) == 0
    stream.deploy(2, StartPlan("restore", "d-0001-stopped-000001", "d-0001"))
    assert stream.run(lambda driver: driver.clock.sleep(1.0), "d-0002") == 0
    assert stream.events_of(Finished, "d-0002")[0].unfinished == {"counts": "was not started"}


def test_a_run_that_came_to_its_end_before_the_script_stopped_it_is_an_end(stream: SimulatedStream) -> None:
    """As where a script cleans up."""
    plan = make_plan(45, trigger="available_now")

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(plan)
        driver.await_all()
        query.stop()

    assert stream.run(script) == 0
    assert stream.events_of(Finished)[0].unfinished == {}


def test_a_script_that_ends_without_waiting_has_its_queries_stopped_cleanly(stream: SimulatedStream) -> None:
    """Plain Spark would kill them in the middle of a batch: here they end at a commit, and a note reports it."""
    plan = make_plan(500)

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.clock.sleep(3.0)

    assert stream.run(script) == 0
    assert stream.events_of(Noted)[0].facts == {"queries": ["counts"]}
    held = [batch_id for batch_id, _ in plan.sink.batches]
    assert stream.events_of(Finished)[0].queries["counts"].batch_id == held[-1]


def test_a_script_that_fails_keeps_its_traceback_and_status() -> None:
    """``Failed`` carries the script's own error, cut to size and without secrets; the process ends with its status."""
    stream, plan = SimulatedStream(), make_plan(500)
    stream.deploy(conf={"spark.hadoop.fs.s3a.secret.key": "hunter2-secret"})

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.clock.sleep(3.0)
        raise ValueError("cannot log in with hunter2-secret " + "broken" * 3_000)

    assert stream.run(script) == 1
    failed = stream.events_of(Failed)[0]
    assert failed.error.startswith("ValueError: cannot log in with *** broken")
    assert "hunter2" not in failed.error + failed.traceback
    assert len(failed.traceback) == MAX_TRACEBACK_CHARACTERS
    assert stream.kinds()[-1] == "Failed"
    finish_later(stream, plan)
    rows = plan.sources[0].reads[-1][1]
    assert sum(plan.sink.counts().values()) == rows


def test_a_failed_script_does_not_wait_for_an_endless_batch(stream: SimulatedStream) -> None:
    """The driver cuts the batch after the grace; the next start runs it again, over the same bounds (1a.6)."""
    plan = make_plan(30, batch_seconds=1_000)

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.clock.sleep(3.0)
        raise ValueError("broken")

    assert stream.run(script) == 1
    assert 30 <= stream.clock.monotonic_seconds() < 40
    plan.batch_seconds = 0.5
    finish_later(stream, plan)
    assert plan.sources[0].reads[0] == (0, 10)
    assert_nothing_lost(plan)


def test_a_script_that_swallows_a_failure_finishes(stream: SimulatedStream) -> None:
    """It was given the failure, so its exit status counts; the final snapshot has the planned batch (1a.6)."""
    plan = make_plan(fails_at={2})

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        with pytest.raises(QueryFailedError):
            driver.await_all()

    assert stream.run(script) == 0
    finished = stream.events_of(Finished)[0]
    assert (finished.queries["counts"].batch_id, finished.queries["counts"].planned_batch_id) == (1, 2)


def sleeps(driver: SimulatedDriver, plan: SimulatedPlan) -> None:
    driver.start(plan)
    driver.await_all()
    driver.clock.sleep(3_000.0)


def starts_again(driver: SimulatedDriver, plan: SimulatedPlan) -> None:
    while True:
        driver.start(plan).await_termination()


def waits_again(driver: SimulatedDriver, plan: SimulatedPlan) -> None:
    query = driver.start(plan)
    while True:
        query.await_termination(9.0)


@pytest.mark.parametrize("script", [sleeps, starts_again, waits_again])
def test_a_script_that_never_ends_is_ended_after_its_grace(
    stream: SimulatedStream, script: Callable[[SimulatedDriver, SimulatedPlan], None]
) -> None:
    """With status 0 and a note, also where a successor is current by then. A loop reads nothing more and does not spin
    (1a.11)."""
    plan = make_plan()
    stream.order_at(2.0, StopRequest)
    if script is waits_again:
        stream.clock.after(20.0, lambda: stream.point_register("d-0002", 1))
    driver = SimulatedDriver(stream)
    assert driver.run(lambda driver: script(driver, plan)) == 0
    assert 32 <= stream.clock.monotonic_seconds() <= 35
    assert stream.kinds()[-1] == "Stopped"
    assert "ran on for 30 s" in stream.events_of(Noted)[-1].text
    assert len(driver.queries) < 300
    assert sum(query._vain_waits for query in driver.queries) < 300
    assert sum(len(startable.runs) for startable in driver.startables) == 1


def test_a_query_that_failed_under_a_barrier_and_a_script_that_hangs_end_failed(stream: SimulatedStream) -> None:
    """``Failed`` names the query although the script never raises its failure."""
    plan = make_plan(fails_at={2})
    stream.order_at(1.9, StopRequest)

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.clock.sleep(3_000.0)

    assert stream.run(script) == 1
    failed = stream.events_of(Failed)[0]
    assert (failed.query_name, "division by zero" in failed.error) == ("counts", True)


def test_a_script_that_fails_after_its_drain_does_not_change_the_end(stream: SimulatedStream) -> None:
    """``Drained`` stays the last event; the failure is noted, and the status is the script's own."""
    plan = make_plan(40)
    stream.order_at(10.0, DrainNotification)

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.await_all()
        raise ValueError("report could not be sent")

    assert stream.run(script) == 1
    assert stream.kinds()[-1] == "Drained"
    assert "report could not be sent" in stream.events_of(Noted)[-1].text


def test_a_secret_is_hidden_before_a_failure_is_cut() -> None:
    """Redaction does not recognise its first half."""
    words = "x" * 970 + " hunter2-secret"
    stream, plan = SimulatedStream(), make_plan(500, fails_at={2}, failure_words=words)
    stream.deploy(conf={"spark.x.password": "hunter2-secret"})

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.clock.sleep(1.9)

    stream.run(script)
    (failed,) = stream.events_of(QueryFailed)
    assert "x" * 970 in failed.error
    assert "hunter" not in failed.error + failed.traceback


def carried(stream: SimulatedStream, deployment_id: str) -> list[object]:
    notes = stream.events_of(Noted, deployment_id)
    return [note.facts["queries"] for note in notes if "carried on unchanged" in note.text]


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_query_that_was_not_started_is_carried_on_and_named(stream: SimulatedStream, is_stopped: bool) -> None:
    """The new version starts one query of two: the other keeps its state, and a note names it (1a.12)."""
    a, b = make_plan(45, trigger="available_now"), make_plan(45, trigger="available_now")
    assert stream.run(waiting_script(a, b, names=("a", "b"))) == 0
    before = stream.control.need_manifest("d-0001-stopped-000001")
    assert carried(stream, "d-0001") == []
    stream.deploy(2, StartPlan("restore", before.snapshot_id, "d-0001"))
    trigger = "processing_time" if is_stopped else "available_now"
    if is_stopped:
        stream.order_at(30.0, StopRequest, "d-0002")
    assert stream.run(waiting_script(replace(a, trigger=trigger), names=("a",)), "d-0002") == 0
    assert stream.kinds("d-0002")[-1] == ("Stopped" if is_stopped else "Finished")
    assert carried(stream, "d-0002") == [["b"]]
    assert stream.control.need_manifest("d-0002-stopped-000001").queries["b"] == before.queries["b"]


def test_the_end_of_a_script_waits_for_what_is_called_off(stream: SimulatedStream) -> None:
    """A snapshot at one barrier, or a cancelled drain, reopens the latch: then the script's end counts."""
    attempt = SimulatedDriver(stream).attempt_life.attempt
    attempt.latch.close("snapshot", Order())
    stream.clock.after(5.0, attempt.latch.reopen)
    assert end_script(attempt, None) == 0
    assert stream.clock.monotonic_seconds() >= 5.0
    assert stream.kinds()[-1] == "Finished"


def test_a_rehearsal_ends_a_loop_around_a_wait(stream: SimulatedStream) -> None:
    """Its queries have ended at once; the second pass of the script waits for a handover behind such a loop."""
    plan = make_plan(45, trigger="available_now")

    def script(driver: SimulatedDriver) -> None:
        driver.attempt_life.attempt.ends_loops = True
        query = driver.start(plan)
        while True:
            query.await_termination(9.0)

    with pytest.raises(SystemExit) as ended:
        stream.run(script)
    assert ended.value.code == 0


def test_a_script_without_a_query_has_a_last_word_where_the_checkpoints_are_refused() -> None:
    """The final snapshot needs them: the driver writes ``Failed``."""
    store = VanishingStore(MemoryStore("checkpoints"))
    stream = SimulatedStream(home=MemoryStore("home"), checkpoints=store)
    stream.deploy()
    stream.order_at(10.0, StopRequest)
    assert stream.run(waiting_script(make_plan(50))) == 0
    attempt = stream.next_attempt()
    assert stream.run(lambda _driver: store.vanish("refused"), attempt=attempt) == 1
    assert stream.kinds()[-1] == "Failed"
    assert "permission denied" in stream.events_of(Failed)[0].error


@pytest.mark.parametrize(
    ("error", "is_refusal"),
    [
        (UnsupportedCheckpointError("the trigger continuous knows no barrier"), True),
        (InvalidRequestError("a query of this name runs already in this script"), True),
        (StoreRefusedError("the credentials have expired"), False),
        (ReadOnlyError("the file system is read-only"), False),
        (HomeNotFoundError("there is no home here"), False),
        (InputLostError("input that this query has not read is lost at its source"), False),
    ],
)
def test_what_is_mended_outside_of_a_script_is_no_refusal_of_it(error: Exception, is_refusal: bool) -> None:
    """Each is one sentence without a traceback; only a refusal of the script's request needs another script."""
    failure = refusal_in(error)
    assert failure is not None
    assert (failure.error, failure.traceback, failure.is_refusal) == (str(error), "", is_refusal)


def test_a_defect_of_a_script_has_its_traceback() -> None:
    """As Python prints it."""
    assert refusal_in(ValueError("broken")) is None
