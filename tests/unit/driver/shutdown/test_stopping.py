"""Stop (1a.4), batches that are cut, and drains that another end overtakes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.shutdown.script_end import FENCED_STATUS
from airflow_streamstate.driver.shutdown.stopping import cut_runs, end_at_barriers, note_overtaken_drain
from airflow_streamstate.errors import FencedError
from airflow_streamstate.protocol.commands import Command, DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Accepted, Drained, Failed, Noted, QueryStarted, Stopped
from airflow_streamstate.protocol.ids import SnapshotKind
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.snapshot.location import SnapshotPlaces
from airflow_streamstate.store.memory import MemoryStore
from support.faulty_store import Fault, FaultPlan, FaultyStore
from support.simulated_driver import (
    STREAM,
    SimulatedDriver,
    SimulatedStream,
    assert_nothing_lost,
    make_plan,
    waiting_script,
)
from support.simulated_query import SimulatedPlan, SimulatedRun
from support.vanishing_store import VanishingStore

pytestmark = pytest.mark.fast


def stopped_stream(stream: SimulatedStream, plan: SimulatedPlan, at_seconds: float = 2.1) -> Stopped:
    stream.order_at(at_seconds, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    return stream.events_of(Stopped)[0]


def resume_and_drain(stream: SimulatedStream, plan: SimulatedPlan, after_seconds: float = 30.0) -> None:
    attempt = stream.next_attempt()
    stream.order_at(after_seconds, DrainNotification)
    assert stream.run(waiting_script(plan), attempt=attempt) == 0


@pytest.mark.parametrize("at_seconds", [0.1, 0.4, 0.85, 1.3, 2.1, 2.45, 3.9])
def test_the_batch_in_flight_completes_and_nothing_is_lost(stream: SimulatedStream, at_seconds: float) -> None:
    """Whenever a stop comes, the query ends at a committed batch, and the next attempt continues there (1a.4)."""
    plan = make_plan()
    stopped = stopped_stream(stream, plan, at_seconds)
    batch_id = stopped.queries["counts"].batch_id
    assert stopped.queries["counts"].planned_batch_id is None, "a batch was cut"
    run_ids = [held for held, _ in plan.sink.batches]
    assert run_ids == list(range(len(run_ids)))
    assert batch_id == (run_ids[-1] if run_ids else None)
    resume_and_drain(stream, plan)
    assert_nothing_lost(plan)


def test_a_stop_keeps_the_state_and_says_where_it_is(stream: SimulatedStream) -> None:
    """``Stopped`` names snapshot, command and the times of the end, without a note; the command is cleaned up (1a.4,
    1a.13)."""
    plan = make_plan()
    stopped = stopped_stream(stream, plan)
    manifest = stream.control.need_manifest(stopped.snapshot_id)
    assert manifest.snapshot_kind == "stopped"
    assert any(entry.path.startswith("state/") for entry in manifest.queries["counts"].files)
    assert manifest.queries["counts"].sources == ("Simulated[flights]",)
    assert manifest.queries["counts"].watermarks == plan.watermarks
    assert stopped.queries["counts"].rows_dropped == 0
    assert stopped.command_number == 1
    assert stream.commands() == []
    assert [event.kind for event in stream.events()] == ["Claimed", "Started", "QueryStarted", "Accepted", "Stopped"]
    end = stopped.ends["counts"]
    assert end.barrier_at is not None
    assert end.ended_at is not None
    assert stream.events_of(Accepted)[0].at <= end.barrier_at <= end.ended_at <= stopped.at
    assert end.flushed_at is None


@pytest.mark.parametrize("plan", [make_plan(5), make_plan(trigger_seconds=3_600)], ids=["idle", "hourly"])
def test_an_attempt_that_knows_that_it_was_replaced_puts_no_barrier(
    stream: SimulatedStream, plan: SimulatedPlan
) -> None:
    """Whichever of its threads has noticed; the log is its successor's (Law 4)."""

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(plan)
        driver.clock.sleep(2.0)
        attempt = driver.attempt_life.attempt
        attempt.fence.close_unclaimed()
        with pytest.raises(FencedError):
            end_at_barriers(attempt, attempt.queries.all(), "c-1")
        assert query.checkpoint.position().barriers == ()

    assert stream.run(script) == FENCED_STATUS


def test_an_idle_query_ends_at_once(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    """A query without input, or between two triggers, notices no barrier, and is stopped when it is safe (1a.4)."""
    stopped_stream(stream, plan, 10.0)
    assert stream.clock.monotonic_seconds() < 11.0
    resume_and_drain(stream, plan)


def test_long_batches_of_several_queries_overlap(stream: SimulatedStream) -> None:
    """All queries get their barriers at the same time: a stop takes the longest batch, not the sum (1a.11)."""
    plans = [make_plan(500, batch_seconds=20) for _ in range(3)]
    stream.order_at(25.0, StopRequest)
    assert stream.run(waiting_script(*plans, names=("a", "b", "c"))) == 0
    assert stream.clock.monotonic_seconds() < 50
    assert set(stream.events_of(Stopped)[0].queries) == {"a", "b", "c"}


def test_the_repair_before_the_next_start_is_told(stream: SimulatedStream) -> None:
    """``QueryStarted`` describes the repairs of the log (1a.7)."""
    plan = make_plan()
    batch_id = stopped_stream(stream, plan).queries["counts"].batch_id
    resume_and_drain(stream, plan)
    started = stream.events_of(QueryStarted)[1]
    assert started.how == "continued"
    assert started.batch_id == batch_id
    assert started.repairs == (f"removed our entry at batch {(batch_id or 0) + 1} from the offset log",)


def test_an_entry_that_spark_overwrites_is_put_again_above_it(stream: SimulatedStream) -> None:
    """Look-then-rename can overwrite the barrier; nothing is lost, the driver puts it again at the new end (1a.3)."""
    plan = make_plan()
    driver = SimulatedDriver(stream)
    seen: list[str] = []

    def between_look_and_rename(run: SimulatedRun, phase: str) -> None:
        if phase == "rename" and run.committed[-1:] == [1] and not seen:
            seen.append(phase)
            stream.order(StopRequest)
            run.pause(0.6)  # the agent puts its entry just now

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(plan)
        driver.startables[0].before_phase = between_look_and_rename
        query.await_termination()

    assert driver.run(script) == 0
    assert seen == ["rename"]
    assert stream.kinds()[-1] == "Stopped"
    resume_and_drain(stream, plan)
    assert_nothing_lost(plan)


def test_a_stop_goes_on_through_an_outage_of_the_store(stream: SimulatedStream) -> None:
    """The stop waits for the store; it neither fails nor loses a batch."""
    plan = make_plan()
    faults = FaultPlan()
    store = FaultyStore(stream.checkpoints, faults)
    many = dict.fromkeys(range(1, 5_000), Fault.UNAVAILABLE)
    stream.clock.after(2.15, lambda: faults.at.update(many))
    stream.clock.after(60.0, faults.at.clear)
    stream.order_at(2.1, StopRequest)
    driver = SimulatedDriver(stream, checkpoints=store, control=StreamControl(store, STREAM, stream.clock))
    assert driver.run(waiting_script(plan)) == 0
    assert stream.kinds()[-1] == "Stopped"
    assert any("out of reach" in line for line in stream.said)
    resume_and_drain(stream, plan)
    assert_nothing_lost(plan)


def test_a_stop_before_the_first_query_carries_everything_on(stream: SimulatedStream) -> None:
    """Nothing falls back to empty: the new snapshot holds what the start snapshot holds (Law 5)."""
    plan = make_plan()
    first = stopped_stream(stream, plan)
    stream.deploy(2, StartPlan("restore", first.snapshot_id, "d-0001"))
    stream.order_at(1.0, StopRequest, "d-0002")

    def script(driver: SimulatedDriver) -> None:
        driver.clock.sleep(5.0)
        query = driver.start(plan)
        assert not query.is_active()
        assert query.await_termination(0.0)

    assert stream.run(script, "d-0002") == 0
    stopped = stream.events_of(Stopped, "d-0002")[0]
    assert stopped.queries == first.queries
    assert len(plan.sink.batches) == (first.queries["counts"].batch_id or 0) + 1


def test_a_query_whose_log_is_damaged_fails_and_the_others_are_stopped(stream: SimulatedStream) -> None:
    """A damaged log gets no barrier, is not changed, and is named in the failure (Law 10)."""
    plan, other = make_plan(), make_plan()
    key = "flights/deployments/d-0001/checkpoints/counts/offsets/7"
    stream.clock.after(1.0, lambda: stream.checkpoints.put(key, b"v1\n{"))
    stream.order_at(1.2, StopRequest)
    assert stream.run(waiting_script(plan, other, names=("counts", "other"))) == 1
    failed = stream.events_of(Failed)[0]
    assert "damaged" in failed.error


def test_the_final_snapshot_that_cannot_be_taken_is_a_failure(stream: SimulatedStream) -> None:
    """A checkpoint that lacks a file of its state is not snapshotted, and the script is released (Law 3)."""
    plan = make_plan()
    state = "flights/deployments/d-0001/checkpoints/counts/state/0/0/1.delta"
    stream.clock.after(2.0, lambda: stream.checkpoints.delete(state))
    stream.order_at(2.1, StopRequest)
    assert stream.run(waiting_script(plan)) == 1
    assert stream.kinds()[-1] == "Failed"
    kinds: tuple[SnapshotKind, ...] = ("stopped", "live")
    assert [stream.control.manifest(f"d-0001-{kind}-000001") for kind in kinds] == [None, None]


@pytest.mark.parametrize(("changes", "rows"), [({"delay_ms": None}, 5), ({"window_ms": None}, 0)])
def test_a_stop_tells_the_rows_that_it_keeps(stream: SimulatedStream, changes: dict[str, None], rows: int) -> None:
    """``Stopped`` has the number of rows in the state after the last batch, from Spark's progress (1a.4)."""
    stopped = stopped_stream(stream, make_plan(20, **changes), 10.0)
    assert stopped.queries["counts"].state_rows_left == rows


def test_a_stop_without_a_batch_tells_the_rows_that_were_there_before(stream: SimulatedStream) -> None:
    """A count belongs to one batch; while that is the last one, the count of an earlier end holds."""
    plan = make_plan(20, delay_ms=None)
    stopped_stream(stream, plan, 10.0)
    attempt = stream.next_attempt()
    stream.order_at(30.0, StopRequest, attempt=2)
    assert stream.run(waiting_script(plan), attempt=attempt) == 0
    again = stream.events_of(Stopped)[1]
    assert (again.attempt, again.queries["counts"].state_rows_left) == (2, 5)


def refusing(stream: SimulatedStream, place: VanishingStore) -> SimulatedDriver:
    """A driver whose snapshots are at a place that will refuse access."""
    SnapshotPlaces(stream.checkpoints, lambda _uri: place, stream.clock).claim(stream.control, place.uri)
    stream.deploy(snapshots=place.uri)
    return SimulatedDriver(stream, open_place=lambda _uri: place)


@pytest.mark.parametrize("command", [StopRequest, DrainNotification])
def test_a_place_that_refuses_the_snapshot_fails_the_end_after_a_while(command: type[Command]) -> None:
    """No order waits forever, an event has the store's error at once, and a resume continues with the state (Law 6)."""
    stream, plan, place = SimulatedStream(), make_plan(100), VanishingStore(MemoryStore("place"))
    driver = refusing(stream, place)
    stream.clock.after(15.0, lambda: place.vanish("refused"))
    stream.order_at(20.0, command)
    assert driver.run(waiting_script(plan)) == 1
    assert 80 <= stream.clock.monotonic_seconds() < 90
    assert [note for note in stream.events_of(Noted) if "permission denied" in str(note.facts.get("reason"))]
    [failed] = stream.events_of(Failed)
    assert "permission denied" in failed.error
    assert "`streamstate resume flights`" in failed.error
    assert len([line for line in stream.said if "out of reach" in line]) <= 3
    assert not [line for line in stream.said if "within reach" in line or "the job continues" in line]
    place.come_back()
    attempt = stream.next_attempt()
    stream.order_at(60.0, DrainNotification)
    again = SimulatedDriver(stream, attempt=attempt, open_place=lambda _uri: place)
    assert again.run(waiting_script(plan)) == 0
    assert stream.kinds()[-1] == "Drained"
    assert_nothing_lost(plan)


def test_a_place_that_refuses_for_a_moment_only_delays_a_stop() -> None:
    """Such as a token that is renewed: the log reports that the store is within reach again."""
    stream, place = SimulatedStream(), VanishingStore(MemoryStore("place"))
    driver = refusing(stream, place)
    stream.order_at(20.0, StopRequest)
    stream.clock.after(15.0, lambda: place.vanish("refused"))
    stream.clock.after(50.0, place.come_back)
    assert driver.run(waiting_script(make_plan(100))) == 0
    assert stream.kinds()[-1] == "Stopped"
    assert [line for line in stream.said if "within reach again" in line]


def test_a_stop_before_the_first_query_fails_where_the_checkpoints_are_refused() -> None:
    """The store may never have given access; the stop is answered all the same."""
    store = VanishingStore(MemoryStore("checkpoints"))
    stream = SimulatedStream(home=MemoryStore("home"), checkpoints=store)
    stream.deploy()
    stream.order_at(5.0, StopRequest)
    stream.clock.after(4.0, lambda: store.vanish("refused"))
    assert stream.run(lambda driver: driver.clock.sleep(20.0)) == 1
    assert "permission denied" in stream.events_of(Failed)[0].error


@pytest.mark.parametrize("command", [StopRequest, DrainNotification])
def test_no_barrier_goes_into_an_empty_log_where_a_checkpoint_was(command: type[Command]) -> None:
    """A disk that is not mounted gets no log; the end fails, and a resume continues when it is back (Law 5)."""
    stream, plan = SimulatedStream(home=MemoryStore("home")), make_plan(100)
    stream.deploy()
    store = VanishingStore(stream.checkpoints)
    stream.clock.after(19.0, lambda: store.vanish("unmounted"))
    stream.order_at(20.0, command)
    assert SimulatedDriver(stream, checkpoints=store).run(waiting_script(plan)) == 1
    assert store.left_in_its_place() == []
    assert stream.kinds()[-1] == "Failed"
    assert "the checkpoint" in stream.events_of(Failed)[0].error
    resume_and_drain(stream, plan)
    assert_nothing_lost(plan)


def never_done(_work: Callable[[], None], *, gives_way: bool = True) -> None:
    """A drain rehearsal, or Spark's ``stop()``, that does not come back."""
    assert not gives_way, "the driver waits for it"


def test_a_batch_is_cut_and_run_again_by_the_next_start(stream: SimulatedStream) -> None:
    """The log still plans it (1a.6, Law 12)."""

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(make_plan(batch_seconds=5.0))
        driver.clock.sleep(7.0)
        assert cut_runs(driver.attempt_life.attempt, [query]) == []
        assert query.has_stopped_running()
        assert query.checkpoint.position().planned_id == 1

    assert stream.run(script) == 0


def test_a_batch_that_cannot_be_cut_is_named_after_the_grace(stream: SimulatedStream) -> None:
    """User code ignores its interruption: the query is named after ``exit_grace_seconds`` (Law 6)."""

    def script(driver: SimulatedDriver) -> None:
        query, attempt = driver.start(make_plan(batch_seconds=600.0)), driver.attempt_life.attempt
        driver.clock.sleep(1.0)
        attempt.in_background = never_done
        began = driver.clock.monotonic_seconds()
        assert cut_runs(attempt, [query]) == ["counts"]
        assert driver.clock.monotonic_seconds() - began >= attempt.spec.version.settings.exit_grace_seconds
        driver.startables[0].runs[0].stop()

    assert stream.run(script) == 0


def overtaken(stream: SimulatedStream) -> list[object]:
    """The drains that notes name as not started."""
    found = (event.facts.get("overtaken_command_id") for event in stream.events_of(Noted))
    return [command_id for command_id in found if command_id is not None]


def is_tried_for_ever(driver: SimulatedDriver) -> None:
    """A script during which the rehearsal of the drain has no result."""
    driver.start(make_plan(400))
    driver.attempt_life.attempt.in_background = never_done
    driver.await_all()


def test_a_drain_that_a_stop_overtook_is_told_and_done_by_the_next_attempt(stream: SimulatedStream) -> None:
    """The drain holds for the deployment, and a note reports it once, before the end (1a.11)."""
    stream.order_at(7.7, DrainNotification, rehearse=True)
    stream.order_at(8.0, StopRequest)
    driver = SimulatedDriver(stream)
    assert driver.run(is_tried_for_ever) == 0
    (slot,) = stream.control.journal("d-0001").commands()
    assert slot.command is not None
    command_id = slot.command.command_id
    assert overtaken(stream) == [command_id]
    assert stream.events_of(Noted)[0].at <= stream.events_of(Stopped)[0].at
    note_overtaken_drain(driver.attempt_life.attempt)
    assert overtaken(stream) == [command_id]
    assert stream.run(waiting_script(make_plan(400)), attempt=stream.next_attempt()) == 0
    assert [event.command_id for event in stream.events_of(Drained)] == [command_id]
    assert overtaken(stream) == [command_id]


def test_a_drain_that_a_failure_overtook_is_told_too(stream: SimulatedStream) -> None:
    """The script fails while the drain is rehearsed: the note reports that the drain is still pending."""
    stream.order_at(7.7, DrainNotification, rehearse=True)

    def fails(driver: SimulatedDriver) -> None:
        driver.start(make_plan(400))
        driver.attempt_life.attempt.in_background = never_done
        driver.clock.sleep(10.0)
        raise ValueError("boom")

    assert stream.run(fails) == 1
    (slot,) = stream.control.journal("d-0001").commands()
    assert slot.command is not None
    assert overtaken(stream) == [slot.command.command_id]
    assert stream.kinds()[-1] == "Failed"


def test_a_drain_past_its_deadline_is_not_told_as_overtaken(stream: SimulatedStream) -> None:
    """It does not hold for the next attempt."""
    deadline_at = stream.clock.now() + timedelta(seconds=7.9)
    stream.order_at(7.7, DrainNotification, rehearse=True, deadline_at=deadline_at)
    stream.order_at(8.0, StopRequest)
    assert stream.run(is_tried_for_ever) == 0
    assert stream.events_of(Stopped)
    assert stream.events_of(Drained) == []
    assert overtaken(stream) == []
