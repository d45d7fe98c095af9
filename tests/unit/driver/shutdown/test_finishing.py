"""The end of the script, by itself or not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.shutdown.finishing import MAX_TRACEBACK_CHARACTERS, end_script, refusal_in
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


def test_a_job_that_ends_by_itself_leaves_a_final_snapshot() -> None:
    """availableNow: a snapshot stopped, then finished; the next attempt goes on where it ended."""
    stream, plan = SimulatedStream(), make_plan(45, trigger="available_now")
    stream.deploy()
    assert stream.run(waiting_script(plan)) == 0
    finished = stream.events_of(Finished)[0]
    assert finished.snapshot_id == "d-0001-stopped-000001"
    assert finished.queries["counts"].end_offsets == ('{"index":45}',)
    assert stream.kinds()[-1] == "Finished"
    plan.sources[0].add(*range(20_000, 22_000, 250))
    finish_later(stream, replace(plan, trigger="processing_time"))
    assert_nothing_lost(plan)


def test_a_script_without_a_query_just_finishes() -> None:
    """No query, no snapshot, and a clear end."""
    stream = SimulatedStream()
    stream.deploy()
    assert stream.run(lambda driver: driver.clock.sleep(1.0)) == 0
    finished = stream.events_of(Finished)[0]
    assert finished.snapshot_id is None
    assert finished.queries == {}


def test_a_script_that_ends_without_waiting_has_its_queries_stopped_cleanly() -> None:
    """Spark would kill them in the middle of a batch: here they end at a commit, and a note says so."""
    stream, plan = SimulatedStream(), make_plan(500)
    stream.deploy()

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.clock.sleep(3.0)

    assert stream.run(script) == 0
    assert stream.events_of(Noted)[0].facts == {"queries": ["counts"]}
    held = [batch_id for batch_id, _ in plan.sink.batches]
    assert stream.events_of(Finished)[0].queries["counts"].batch_id == held[-1]


def test_a_script_that_fails_keeps_its_traceback_and_status() -> None:
    """Failed carries the script's own words, cut to size, and the process its own exit status."""
    stream, plan = SimulatedStream(), make_plan(500)
    stream.deploy()

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.clock.sleep(3.0)
        raise ValueError("broken" * 3_000)

    assert stream.run(script) == 1
    failed = stream.events_of(Failed)[0]
    assert failed.error.startswith("ValueError: broken")
    assert len(failed.traceback) == MAX_TRACEBACK_CHARACTERS
    assert stream.kinds()[-1] == "Failed"
    finish_later(stream, plan)
    rows = plan.sources[0].reads[-1][1]
    assert sum(plan.sink.counts().values()) == rows


def test_a_failed_script_does_not_wait_for_an_endless_batch() -> None:
    """After the grace a batch is cut; the next start runs it again, over the same bounds (1a.6)."""
    stream, plan = SimulatedStream(), make_plan(30, batch_seconds=1_000)
    stream.deploy()

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


def test_a_query_that_fails_by_itself_fails_the_script_as_without_us() -> None:
    """The waits raise what Spark raised; the log is left for the next attempt."""
    stream, plan = SimulatedStream(), make_plan(fails_at={2})
    stream.deploy()
    assert stream.run(waiting_script(plan)) == 1
    assert "division by zero" in stream.events_of(Failed)[0].error
    plan.fails_at.clear()
    finish_later(stream, plan)
    assert_nothing_lost(plan)


def test_a_script_that_swallows_a_failure_finishes() -> None:
    """It was given the failure, so its exit status is its own; the final snapshot has the planned batch (1a.6)."""
    stream, plan = SimulatedStream(), make_plan(fails_at={2})
    stream.deploy()

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        with pytest.raises(QueryFailedError):
            driver.await_all()

    assert stream.run(script) == 0
    finished = stream.events_of(Finished)[0]
    assert (finished.queries["counts"].batch_id, finished.queries["counts"].planned_batch_id) == (1, 2)


def test_a_script_that_never_ends_is_ended_after_its_grace() -> None:
    """A complete stop does not hang on a script that does something else; it is ended with status 0, and said."""
    stream, plan = SimulatedStream(), make_plan()
    stream.deploy()
    stream.order_at(2.0, StopRequest)

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.await_all()
        driver.clock.sleep(3_000.0)

    assert stream.run(script) == 0
    assert 32 <= stream.clock.monotonic_seconds() <= 35
    assert stream.kinds()[-1] == "Stopped"
    assert "ran on for 30 s" in stream.events_of(Noted)[-1].text


def test_a_loop_that_starts_its_query_again_and_again_is_ended_too() -> None:
    """while True: start(); awaitTermination(): after the stop it reads nothing, does not spin, and ends (1a.11)."""
    stream, plan = SimulatedStream(), make_plan()
    stream.deploy()
    stream.order_at(2.0, StopRequest)

    def script(driver: SimulatedDriver) -> None:
        while True:
            driver.start(plan).await_termination()

    driver = SimulatedDriver(stream)
    assert driver.run(script) == 0
    assert len(driver.queries) < 300
    assert sum(len(startable.runs) for startable in driver.startables) == 1


def test_a_query_that_failed_under_a_barrier_and_a_script_that_hangs_end_failed() -> None:
    """The failure is told although the script never comes to raise it."""
    stream, plan = SimulatedStream(), make_plan(fails_at={2})
    stream.deploy()
    stream.order_at(1.9, StopRequest)

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.clock.sleep(3_000.0)

    assert stream.run(script) == 1
    failed = stream.events_of(Failed)[0]
    assert (failed.query_name, "division by zero" in failed.error) == ("counts", True)


def test_a_script_that_fails_after_its_drain_does_not_change_the_end() -> None:
    """Drained stays the last word; the failure is noted, and the status is the script's own."""
    stream, plan = SimulatedStream(), make_plan(40)
    stream.deploy()
    stream.order_at(10.0, DrainNotification)

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.await_all()
        raise ValueError("report could not be sent")

    assert stream.run(script) == 1
    assert stream.kinds()[-1] == "Drained"
    assert "report could not be sent" in stream.events_of(Noted)[-1].text


def test_a_secret_never_reaches_the_traceback_of_an_event() -> None:
    """A password that a script prints in its error is hidden in the event."""
    stream = SimulatedStream()
    stream.deploy(conf={"spark.hadoop.fs.s3a.secret.key": "hunter2-secret"})

    def script(driver: SimulatedDriver) -> None:
        raise ValueError("cannot log in with hunter2-secret")

    assert stream.run(script) == 1
    failed = stream.events_of(Failed)[0]
    assert "hunter2" not in failed.error + failed.traceback
    assert "***" in failed.error


def test_a_secret_is_hidden_before_a_failure_is_cut() -> None:
    """Its first half would be known to nobody, and shown."""
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
def test_a_query_that_was_not_started_is_carried_on_and_named(is_stopped: bool) -> None:
    """The new version starts one query of two: the other stays as it was, and an event says so (1a.12)."""
    stream = SimulatedStream()
    a, b = make_plan(45, trigger="available_now"), make_plan(45, trigger="available_now")
    stream.deploy()
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


def test_the_end_of_a_script_waits_for_what_is_called_off() -> None:
    """A snapshot at one barrier, or a drain that is taken back, opens the latch again: then the script's end is one."""
    stream = SimulatedStream()
    stream.deploy()
    attempt = SimulatedDriver(stream).supervisor.attempt
    attempt.latch.close("snapshot", Order())
    stream.clock.after(5.0, attempt.latch.reopen)
    assert end_script(attempt, None) == 0
    assert stream.clock.monotonic_seconds() >= 5.0
    assert stream.kinds()[-1] == "Finished"


def test_a_loop_around_a_wait_is_ended_after_a_stop_and_never_called_fenced() -> None:
    """By then a successor may be current: it replaced nothing, the driver ends with status 0, and does not spin."""
    stream, plan, rounds = SimulatedStream(), make_plan(500), 0
    stream.deploy()
    stream.order_at(5.0, StopRequest)
    stream.clock.after(20.0, lambda: stream.point_register("d-0002", 1))

    def script(driver: SimulatedDriver) -> None:
        nonlocal rounds
        query = driver.start(plan)
        while True:
            query.await_termination(9.0)
            rounds += 1

    assert stream.run(script) == 0
    assert stream.kinds()[-1] == "Stopped"
    assert "ran on for 30 s" in stream.events_of(Noted)[-1].text
    assert rounds < 100


def test_a_rehearsal_ends_a_loop_around_a_wait() -> None:
    """Its queries are over at once: only so a second pass of the script can wait for a handover behind such a loop."""
    stream, plan = SimulatedStream(), make_plan(45, trigger="available_now")
    stream.deploy()

    def script(driver: SimulatedDriver) -> None:
        driver.supervisor.attempt.ends_loops = True
        query = driver.start(plan)
        while True:
            query.await_termination(9.0)

    with pytest.raises(SystemExit) as ended:
        stream.run(script)
    assert ended.value.code == 0


def test_a_script_without_a_query_has_a_last_word_where_the_checkpoints_are_refused() -> None:
    """The final snapshot needs them: ``Failed``, and not a driver that ended without a word."""
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
        (HomeNotFoundError("no home lies here"), False),
        (InputLostError("input that this query has not read is lost at its source"), False),
    ],
)
def test_what_is_mended_outside_of_a_script_is_no_refusal_of_it(error: Exception, is_refusal: bool) -> None:
    """Each is one sentence without a traceback; only a refusal of what the script asks for needs another script."""
    failure = refusal_in(error)
    assert failure is not None
    assert (failure.error, failure.traceback, failure.is_refusal) == (str(error), "", is_refusal)


def test_a_defect_of_a_script_has_its_traceback() -> None:
    """What the runtime did not refuse is shown as Python shows it."""
    assert refusal_in(ValueError("broken")) is None
