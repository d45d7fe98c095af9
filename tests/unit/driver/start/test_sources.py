"""Which offset belongs to which source, and what is lost after it (Law 5), with a third-party connector."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.driver.start.start_checks import LOOK_AGAIN_SECONDS
from airflow_streamstate.protocol.commands import CancelRequest, DrainNotification, SnapshotRequest, StopRequest
from airflow_streamstate.protocol.events import Drained, Failed, Noted, QueryStarted, SnapshotReady, Stopped
from airflow_streamstate.protocol.positions import SourceIdentity
from airflow_streamstate.protocol.records import StartPlan
from support.simulated_connector import install_connector
from support.simulated_driver import SimulatedDriver, SimulatedStream, assert_nothing_lost, waiting_script
from support.simulated_query import Phase, SimulatedPlan, SimulatedRun, SimulatedStartable
from support.simulated_sources import SimulatedSink, SimulatedSource

pytestmark = pytest.mark.fast


@pytest.fixture(autouse=True)
def _connector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_connector(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()


def a_source(name: str, rows: int = 40) -> SimulatedSource:
    source = SimulatedSource(name)
    source.add(*range(0, rows * 250, 250))
    return source


def a_plan(*sources: SimulatedSource, sink: SimulatedSink | None = None, **changes: Any) -> SimulatedPlan:
    plan = SimulatedPlan(list(sources), sink or SimulatedSink(), delay_ms=3_600_000, shows_sources=True)
    return replace(plan, **changes)


def first(stream: SimulatedStream, plan: SimulatedPlan, kind: type = DrainNotification) -> StartPlan:
    """A life until it is drained, or stopped; how the next one starts."""
    stream.deploy()
    stream.order_at(2.1, kind)
    assert stream.run(waiting_script(plan)) == 0
    if kind is StopRequest:
        return StartPlan("restore", stream.events_of(Stopped)[0].snapshot_id, "d-0001")
    return StartPlan("seed", stream.events_of(Drained)[0].snapshot_id, "d-0001")


def second(stream: SimulatedStream, plan: SimulatedPlan, start: StartPlan) -> int | None:
    stream.deploy(2, start)
    stream.order_at(60.0, DrainNotification, "d-0002")
    return stream.run(waiting_script(plan), "d-0002")


def accepted(stream: SimulatedStream, plan: SimulatedPlan, start: StartPlan) -> int | None:
    """A third deployment, which accepts what is lost."""
    stream.deploy(3, replace(start, accept_lost_input=("counts",)))
    stream.order_at(120.0, DrainNotification, "d-0003")
    return stream.run(waiting_script(plan), "d-0003")


def failure(stream: SimulatedStream) -> str:
    (failed,) = stream.events_of(Failed, "d-0002")
    return failed.error


def test_swapped_sources_take_their_own_offsets() -> None:
    """By their places each would continue at the other's offset: rows lost and rows doubled."""
    stream, sink = SimulatedStream(), SimulatedSink()
    few, many = a_source("few", 7), a_source("many", 60)
    start = first(stream, a_plan(few, many, sink=sink))
    few.add(20_000)
    plan = a_plan(many, few, sink=sink)
    assert second(stream, plan, start) == 0
    started = stream.events_of(QueryStarted, "d-0002")[0]
    assert [identity.what for identity in started.identities] == ["simulated many", "simulated few"]
    assert_nothing_lost(plan)
    assert few.reads[-1] == (7, 8)


def test_a_source_may_come_and_another_may_go() -> None:
    """The new one starts where its options specify, the old one is left at its offset, and both are reported."""
    stream, sink = SimulatedStream(), SimulatedSink()
    old, kept = a_source("old", 7), a_source("kept", 60)
    start = first(stream, a_plan(old, kept, sink=sink))
    plan = a_plan(kept, sink=sink)
    assert second(stream, plan, start) == 0
    left_at = stream.control.need_manifest(str(start.snapshot_id)).queries["counts"].position.end_offsets[0]
    said = f"simulated old is not read any more; it is left at {left_at}"
    assert said in " ".join(stream.events_of(QueryStarted, "d-0002")[0].repairs)

    stream, sink = SimulatedStream(), SimulatedSink()
    kept = a_source("kept", 30)
    start = first(stream, a_plan(kept, sink=sink))
    plan = a_plan(a_source("new", 5), kept, sink=sink)
    assert second(stream, plan, start) == 0
    assert "simulated new is new" in " ".join(stream.events_of(QueryStarted, "d-0002")[0].repairs)
    assert_nothing_lost(plan)


def test_the_same_source_twice_keeps_its_order() -> None:
    """Two lines of one identity stay in the order in which they were."""
    stream, sink = SimulatedStream(), SimulatedSink()
    twice = a_source("twice", 30)
    start = first(stream, a_plan(twice, twice, sink=sink))
    end_offsets = stream.events_of(Drained)[0].queries["counts"].end_offsets
    assert second(stream, a_plan(twice, twice, sink=sink), start) == 0
    (started,) = stream.events_of(QueryStarted, "d-0002")
    assert started.how == "seeded"
    assert stream.events_of(Drained, "d-0002")[0].queries["counts"].end_offsets == end_offsets


def test_a_source_in_anothers_place_is_refused_by_both_names() -> None:
    """Another topic would be read from its beginning, or from its end: only when asked for by name (Law 5)."""
    stream, sink = SimulatedStream(), SimulatedSink()
    start = first(stream, a_plan(a_source("before"), sink=sink))
    other = a_source("after")
    assert second(stream, a_plan(other, sink=sink), start) == 1
    assert "simulated before" in failure(stream)
    assert "simulated after" in failure(stream)
    assert "--accept-lost-input counts" in failure(stream)
    assert other.reads == []
    assert accepted(stream, a_plan(other, sink=sink), start) == 0
    assert other.reads[0][0] == 0


def test_whoever_reads_more_goes_on_at_the_same_offset() -> None:
    """A connector may know that a changed source reads on from the offset."""
    stream, sink = SimulatedStream(), SimulatedSink()
    source = a_source("topic", 12)
    start = first(stream, a_plan(source, sink=sink))
    source.description = "topic-and-more"
    source.add(9_000)
    assert second(stream, a_plan(source, sink=sink), start) == 0
    assert source.reads[-1] == (12, 13)


@pytest.mark.parametrize("kind", [DrainNotification, StopRequest])
def test_rows_that_are_gone_are_refused_and_counted(kind: type) -> None:
    """Before anything is built: how many, where, and the choice; what was accepted by name is skipped, and reported."""
    stream, sink = SimulatedStream(), SimulatedSink()
    source = a_source("topic", 200)
    start = first(stream, a_plan(source, sink=sink), kind)
    read = source.reads[-1][1]
    source.removed_below = read + 25
    assert second(stream, a_plan(source, sink=sink), start) == 1
    assert "25 rows removed at the source" in failure(stream)
    assert "--accept-lost-input counts" in failure(stream)
    assert not [key for key in _keys(stream) if "/d-0002/checkpoints/" in key]
    assert source.reads[-1][1] == read
    assert accepted(stream, a_plan(source, sink=sink), start) == 0
    assert next(begin for begin, _ in source.reads if begin >= read) == read + 25
    said = " ".join(stream.events_of(QueryStarted, "d-0003")[0].repairs)
    assert "passed over, as was asked for: topic: 25 rows" in said


def test_a_source_made_anew_is_told_from_the_old_one() -> None:
    """By the marks that were kept with its offset, though it has more rows than before."""
    stream, sink = SimulatedStream(), SimulatedSink()
    start = first(stream, a_plan(a_source("topic", 10), sink=sink), StopRequest)
    anew = a_source("topic", 500)
    anew.made = "2"
    assert second(stream, a_plan(anew, sink=sink), start) == 1
    assert "made since the offset was kept" in failure(stream)
    assert anew.reads == []


def test_a_resume_is_looked_at_too() -> None:
    """An attempt that continues in its own checkpoint is refused; its offsets are not touched."""
    stream, sink = SimulatedStream(), SimulatedSink()
    source = a_source("topic", 200)
    first(stream, a_plan(source, sink=sink), StopRequest)
    source.removed_below = source.reads[-1][1] + 3
    attempt = stream.next_attempt()
    assert stream.run(waiting_script(a_plan(source, sink=sink)), attempt=attempt) == 1
    (failed,) = stream.events_of(Failed)
    assert "3 rows removed" in failed.error


def test_a_consent_moves_no_continued_checkpoint() -> None:
    """It was given for the start of the deployment; later losses are refused by its attempts (Laws 5 and 14)."""
    stream, sink = SimulatedStream(), SimulatedSink()
    source = a_source("topic", 200)
    start = first(stream, a_plan(source, sink=sink), StopRequest)
    stream.deploy(2, replace(start, accept_lost_input=("counts",)))
    stream.order_at(2.1, StopRequest, "d-0002")
    assert stream.run(waiting_script(a_plan(source, sink=sink)), "d-0002") == 0
    source.removed_below = source.reads[-1][1] + 3
    attempt = stream.next_attempt("d-0002")
    assert stream.run(waiting_script(a_plan(source, sink=sink)), "d-0002", attempt) == 1
    assert "3 rows removed" in failure(stream)


def test_a_restore_with_other_sources_is_refused() -> None:
    """State and offsets go by place: a seed could sort them, a restore can not."""
    stream, sink = SimulatedStream(), SimulatedSink()
    one, two = a_source("one", 60), a_source("two", 60)
    start = first(stream, a_plan(one, two, sink=sink), StopRequest)
    assert second(stream, a_plan(two, one, sink=sink), start) == 1
    assert "made by another plan" in failure(stream)
    assert "Drain and seed: each source keeps its position" in stream.events_of(Failed, "d-0002")[0].next_step


def test_a_drain_that_is_called_off_before_the_first_start_lets_no_other_sources_in() -> None:
    """No checkpoint is built for a flush over other sources."""
    stream, sink = SimulatedStream(), SimulatedSink()
    one, two = a_source("one", 60), a_source("two", 60)
    two.max_rows_per_batch = 2
    start = first(stream, a_plan(one, two, sink=sink), StopRequest)
    before = list(one.reads), list(two.reads)
    stream.deploy(2, start)
    stream.order(DrainNotification, "d-0002")

    def script(driver: SimulatedDriver) -> None:
        driver.start(a_plan(two, one, sink=sink))
        stream.order(CancelRequest, "d-0002")
        driver.await_all()

    assert stream.run(script, "d-0002") == 1
    assert "made by another plan" in failure(stream)
    assert (one.reads, two.reads) == before


def test_an_connector_that_fails_stops_nothing() -> None:
    """What it would have reported is unknown, which is reported once; the query runs."""
    stream, sink = SimulatedStream(), SimulatedSink()
    plan = a_plan(a_source("broken topic"), sink=sink)
    start = first(stream, plan, StopRequest)
    assert second(stream, plan, start) == 0
    noted = [event.text for event in stream.events_of(Noted, "d-0002") if "could not be asked" in event.text]
    assert noted
    assert len(noted) == len(set(noted))
    assert "it does not answer" in noted[0]
    assert_nothing_lost(plan)


def test_a_failure_is_explained_by_who_knows_the_source(stream: SimulatedStream) -> None:
    """Spark's words stay, after a sentence with the next step."""
    assert stream.run(waiting_script(a_plan(a_source("remarkable topic"), fails_at={1}))) == 1
    (failed,) = stream.events_of(Failed)
    assert stream.events_of(QueryStarted)[0].remarks == ("its connector has a remark",)
    assert failed.explanation.startswith("the simulated batch failed as ordered")
    assert failed.sentence == f"{failed.explanation}. {failed.cause}"


def _keys(stream: SimulatedStream) -> list[str]:
    return [info.key for info in stream.checkpoints.list_objects("")]


def test_a_planned_batch_runs_over_what_is_left_of_its_bounds(stream: SimulatedStream) -> None:
    """Accepted: start and end of the planned batch move to what can be read, and no batch is passed over (1a.6)."""
    plan = a_plan(a_source("topic", 80))
    driver = SimulatedDriver(stream)

    def kill(run: SimulatedRun, phase: Phase) -> None:
        if phase == "sink" and run.committed[-1:] == [1]:
            driver.kill()

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.startables[0].before_phase = kill
        driver.await_all()

    assert driver.run(script) is None
    manifest = stream.take_over(identities=(SourceIdentity("simulated", "simulated topic"),))
    position = manifest.queries["counts"].position
    assert (position.batch_id, position.planned_batch_id) == (1, 2)
    (source,) = plan.sources
    source.removed_below = 33  # batch 2 was planned over the rows 20 to 30
    start = StartPlan("restore", manifest.snapshot_id, "d-0001")
    assert second(stream, plan, start) == 1
    assert "13 rows removed at the source" in failure(stream)
    source.reads.clear()
    assert accepted(stream, plan, start) == 0
    assert source.reads[0] == (33, 43)
    assert [batch_id for batch_id, _ in plan.sink.batches] == sorted({batch_id for batch_id, _ in plan.sink.batches})


def test_a_first_batch_that_never_committed_is_run_over_its_own_sources_alone(stream: SimulatedStream) -> None:
    """Its bounds are of the source that it was planned over, though nothing is committed yet (1a.6)."""
    plan = a_plan(a_source("few", 7), a_source("many"), fails_at={0})
    assert stream.run(waiting_script(plan)) == 1
    (started,) = stream.events_of(QueryStarted)
    manifest = stream.take_over(identities=started.identities)
    position = manifest.queries["counts"].position
    assert (position.batch_id, position.planned_batch_id) == (None, 0)
    few, many = plan.sources
    few.reads.clear(), many.reads.clear()
    start = StartPlan("restore", manifest.snapshot_id, "d-0001")
    assert second(stream, replace(plan, sources=[many, few], fails_at=set()), start) == 1
    assert "simulated few" in failure(stream)
    assert (few.reads, many.reads) == ([], [])
    healed = replace(plan, fails_at=set())
    stream.deploy(3, start)
    stream.order_at(120.0, DrainNotification, "d-0003")
    assert stream.run(waiting_script(healed), "d-0003") == 0
    assert_nothing_lost(healed)


def test_identities_stay_beside_their_offsets_where_only_a_drain_ran() -> None:
    """They are those of the last start, not of the snapshot before the seed."""
    stream, sink = SimulatedStream(), SimulatedSink()
    one, two = a_source("one", 30), a_source("two", 30)
    start = first(stream, a_plan(one, two, sink=sink))
    swapped = a_plan(two, one, sink=sink)
    stream.deploy(2, start)
    driver = SimulatedDriver(stream, "d-0002")
    stream.clock.after(5.0, driver.kill)
    assert driver.run(waiting_script(swapped)) is None
    attempt = stream.next_attempt("d-0002", attempt_mode="drain")
    stream.order(DrainNotification, "d-0002")
    assert stream.run(waiting_script(swapped), "d-0002", attempt) == 0
    (drained,) = stream.events_of(Drained, "d-0002")
    known = stream.control.need_manifest(drained.snapshot_id).queries["counts"]
    assert [identity.what for identity in known.identities] == ["simulated two", "simulated one"]


def test_what_was_accepted_stays_accepted_where_the_start_failed_after_it() -> None:
    """The checkpoint has offsets of the new topic."""
    stream, sink = SimulatedStream(), SimulatedSink()
    start = first(stream, a_plan(a_source("topic", 10), sink=sink), StopRequest)
    anew = a_source("topic", 500)
    anew.made = "2"
    plan = a_plan(anew, sink=sink)
    stream.deploy(2, replace(start, accept_lost_input=("counts",)))

    def dies_in_start(driver: SimulatedDriver) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SimulatedStartable, "start", lambda *_: driver.kill())
            driver.start(plan)

    assert stream.run(dies_in_start, "d-0002") is None
    assert not stream.events_of(QueryStarted, "d-0002")
    attempt = stream.next_attempt("d-0002")
    stream.order_at(60.0, StopRequest, "d-0002", attempt=attempt)
    assert stream.run(waiting_script(plan), "d-0002", attempt) == 0
    assert anew.reads[0][0] == 0


def test_only_the_options_of_the_source_with_the_loss_pass_it_over() -> None:
    """A remark of its connector, and the options of a different source, do not. (Law 5)"""
    stream, sink = SimulatedStream(), SimulatedSink()
    strict, loose = a_source("strict remarkable", 200), a_source("passing-over", 200)
    first(stream, a_plan(strict, loose, sink=sink), StopRequest)
    strict.removed_below = strict.reads[-1][1] + 3
    attempt = stream.next_attempt()
    assert stream.run(waiting_script(a_plan(strict, loose, sink=sink)), attempt=attempt) == 1
    assert "3 rows removed" in stream.events_of(Failed)[-1].error

    strict.removed_below, loose.removed_below = 0, loose.reads[-1][1] + 3
    attempt = stream.next_attempt()
    stream.order_at(60.0, StopRequest, attempt=attempt)
    assert stream.run(waiting_script(a_plan(strict, loose, sink=sink)), attempt=attempt) == 0
    assert "lost before this start" in " ".join(stream.events_of(QueryStarted)[-1].repairs)


def made_anew(source: SimulatedSource) -> None:
    source.made = "2"


def made_anew_while_read(stream: SimulatedStream, source: SimulatedSource) -> SimulatedPlan:
    """A life under which its source is recreated after six seconds, and read on."""
    stream.clock.after(6.0, lambda: made_anew(source))
    for seconds in range(10, 40, 2):
        stream.clock.after(float(seconds), lambda: source.add(90_000))
    stream.deploy()
    return a_plan(source)


@pytest.mark.parametrize("kind", [StopRequest, DrainNotification])
def test_a_source_made_anew_under_the_query_is_the_one_that_is_gone_on_with(kind: type) -> None:
    """The next start accepts its offsets, and the change is noted."""
    stream, source = SimulatedStream(), a_source("topic", 10)
    plan = made_anew_while_read(stream, source)
    stream.order_at(60.0, kind)
    assert stream.run(waiting_script(plan)) == 0
    (noted,) = [event for event in stream.events_of(Noted) if "created again while this query reads it" in event.text]
    assert noted.facts["changed"] == "made"
    mode, end = ("seed", Drained) if kind is DrainNotification else ("restore", Stopped)
    snapshot_id = stream.events_of(end)[0].snapshot_id  # type: ignore[type-var]
    (identity,) = stream.control.need_manifest(snapshot_id).queries["counts"].identities
    assert identity.marks == {"made": "2"}
    source.add(95_000)
    assert second(stream, plan, StartPlan(mode, snapshot_id, "d-0001")) == 0  # type: ignore[arg-type]
    assert source.reads[-1] == (25, 26)


def test_a_source_made_anew_behind_the_position_is_another_one() -> None:
    """Recreated after its last row was read: the offset is of the old one."""
    stream, source = SimulatedStream(), a_source("topic", 10)
    plan = a_plan(source)
    stream.clock.after(20.0, lambda: made_anew(source))
    stream.deploy()
    stream.order_at(60.0, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    start = StartPlan("restore", stream.events_of(Stopped)[0].snapshot_id, "d-0001")
    (identity,) = stream.control.need_manifest(str(start.snapshot_id)).queries["counts"].identities
    assert identity.marks == {"made": "1"}
    assert second(stream, plan, start) == 1
    assert "made since the offset was kept" in failure(stream)


def test_a_snapshot_while_it_runs_knows_whose_its_offsets_are() -> None:
    """Live snapshots ask like those at an end."""
    stream, source = SimulatedStream(), a_source("topic", 10)
    plan = made_anew_while_read(stream, source)
    stream.order_at(1.5, SnapshotRequest)
    stream.order_at(45.0, SnapshotRequest)
    stream.order_at(60.0, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    found = [stream.control.need_manifest(event.snapshot_id) for event in stream.events_of(SnapshotReady)]
    assert [one.queries["counts"].identities[0].marks["made"] for one in found] == ["1", "2"]


def test_a_driver_that_dies_in_a_source_made_anew_is_resumed_in_it() -> None:
    """The newest snapshot names the source of its offsets; the start would refuse it."""
    stream, source = SimulatedStream(), a_source("topic", 10)
    plan = made_anew_while_read(stream, source)
    stream.order_at(45.0, SnapshotRequest)
    driver = SimulatedDriver(stream)
    stream.clock.after(60.0, driver.kill)
    assert driver.run(waiting_script(plan)) is None
    attempt = stream.next_attempt()
    source.add(95_000)
    stream.order_at(30.0, StopRequest, attempt=attempt)
    assert stream.run(waiting_script(plan), attempt=attempt) == 0
    assert source.reads[-1] == (25, 26)


def test_an_attempt_that_begins_at_offsets_of_the_old_source_does_not_make_them_the_new_ones() -> None:
    """Stopped before it reads, it keeps the old one's position."""
    stream, source = SimulatedStream(), a_source("passing-over", 10)
    plan = a_plan(source)
    first(stream, plan, StopRequest)
    made_anew(source)
    attempt = stream.next_attempt()
    stream.order_at(30.0, StopRequest, attempt=attempt)
    assert stream.run(waiting_script(plan), attempt=attempt) == 0
    assert "lost before this start" in " ".join(stream.events_of(QueryStarted)[-1].repairs)
    snapshot_id = stream.events_of(Stopped)[-1].snapshot_id
    (identity,) = stream.control.need_manifest(snapshot_id).queries["counts"].identities
    assert identity.marks == {"made": "1"}


@pytest.mark.parametrize(("unseen", "status"), [(1, 0), (2, 1)])
def test_a_source_that_is_not_there_is_asked_for_twice(unseen: int, status: int) -> None:
    """A broker that has just started may not know a topic yet."""
    stream, source = SimulatedStream(), a_source("topic", 40)
    plan = a_plan(source)
    start = first(stream, plan, StopRequest)
    source.unseen = unseen
    began = stream.clock.now()
    assert second(stream, plan, start) == status
    if status:
        assert "not there any more" in failure(stream)
        (failed,) = stream.events_of(Failed, "d-0002")
        assert (failed.at - began).total_seconds() >= LOOK_AGAIN_SECONDS
    else:
        assert_nothing_lost(plan)


@pytest.mark.parametrize("is_gone_first", [True, False])
def test_a_source_that_does_not_say_what_is_lost_is_not_taken_for_the_old_one(is_gone_first: bool) -> None:
    """Its first answer counts, and its offset stays the old source's. (Law 5)"""
    stream, source = SimulatedStream(), a_source("topic", 40)
    plan = a_plan(source)
    start = first(stream, plan, StopRequest)
    made_anew(source)
    source.unseen, source.silent_after = (1, 1) if is_gone_first else (0, 0)
    stream.deploy(2, start)
    stream.order_at(60.0, StopRequest, "d-0002")
    assert stream.run(waiting_script(plan), "d-0002") == (1 if is_gone_first else 0)
    if is_gone_first:
        assert "not there any more" in failure(stream)
        return
    (started,) = stream.events_of(QueryStarted, "d-0002")
    assert started.identities[0].marks == {"made": "1"}
    assert any("created again" in event.text for event in stream.events_of(Noted, "d-0002"))


@pytest.mark.parametrize("kind", [StopRequest, DrainNotification])
def test_no_start_goes_on_from_a_source_that_sends_each_row_once(kind: type) -> None:
    """Restored or seeded: refused with its own text; accepted it starts again, and batch ids continue (Law 9)."""
    stream, sink = SimulatedStream(), SimulatedSink()
    source = a_source("sent-once")
    start = first(stream, a_plan(source, sink=sink), kind)
    assert second(stream, a_plan(source, sink=sink), start) == 1
    assert "sends each row once" in failure(stream)
    assert "Deploy with --accept-lost-input counts" in failure(stream)
    anew = a_source("sent-once", 5)
    assert accepted(stream, a_plan(anew, sink=sink), start) == 0
    assert anew.reads[0] == (0, 5)
    ids = [batch_id for batch_id, _ in sink.batches]
    assert ids == sorted(set(ids))


def test_a_source_that_sends_once_is_not_resumed_whatever_its_options_say() -> None:
    """An option by which the script passes lost input over elsewhere does not count here (Law 5)."""
    stream = SimulatedStream()
    plan = a_plan(a_source("passing-over-once"))
    stream.deploy()
    stream.order_at(2.1, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    assert stream.run(waiting_script(plan), attempt=stream.next_attempt()) == 1
    (failed,) = stream.events_of(Failed)
    assert "sends each row once" in failed.error
