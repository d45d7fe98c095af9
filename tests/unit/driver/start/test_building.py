"""The checkpoint of a query that starts (1a.9, 1a.10, Law 5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_streamstate.checkpoint.guards import STATE_FORMAT
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.driver.attempt.ports import AnalyzedPlan
from airflow_streamstate.driver.start.checkpoints import START_IS_DAMAGED, START_IS_GONE
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import Command, DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Drained, Failed, Noted, QueryStarted, Stopped
from airflow_streamstate.protocol.records import StartPlan
from support.simulated_driver import (
    STREAM,
    SimulatedDriver,
    SimulatedStream,
    assert_nothing_lost,
    make_plan,
    waiting_script,
)
from support.simulated_query import Phase, SimulatedPlan, SimulatedRun, SimulatedStartable
from support.simulated_sources import SimulatedSource


def stopped(stream: SimulatedStream, plan: SimulatedPlan, at_seconds: float = 2.1) -> str:
    stream.order_at(at_seconds, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    return stream.events_of(Stopped)[0].snapshot_id


def run_second(
    stream: SimulatedStream,
    plan: SimulatedPlan,
    snapshot_id: str,
    name: str = "counts",
    *,
    leaves: tuple[str, ...] = (),
    **start: object,
) -> int | None:
    """Run a second deployment until its drain, which leaves the state of these queries as it is."""
    given = replace(StartPlan("restore", snapshot_id, "d-0001"), **start)  # type: ignore[arg-type]
    stream.deploy(2, given)
    stream.order_at(30.0, DrainNotification, "d-0002", leave_queries=leaves)
    return stream.run(waiting_script(plan, names=(name,)), "d-0002")


def test_a_restored_query_goes_on_with_its_state_on_a_checkpoint_of_its_own(
    stream: SimulatedStream, plan: SimulatedPlan
) -> None:
    """The same batch ids, the same query id, the state, and the predecessor's checkpoint untouched (Laws 9 and 11)."""
    snapshot_id = stopped(stream, plan)
    prefix = layout.checkpoint_folder(STREAM, "d-0001", "counts")
    before = {info.key: info.size_bytes for info in stream.checkpoints.list_objects(prefix)}
    assert run_second(stream, plan, snapshot_id) == 0
    started = stream.events_of(QueryStarted, "d-0002")[0]
    assert (started.how, started.snapshot_id, started.batch_id) == ("restored", snapshot_id, 2)
    assert started.query_id == stream.events_of(QueryStarted)[0].query_id
    assert {info.key: info.size_bytes for info in stream.checkpoints.list_objects(prefix)} == before
    assert_nothing_lost(plan)


def test_a_query_that_the_snapshot_does_not_know_is_refused(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    """A renamed query would start with nothing: that is only done when asked for by name (Law 5)."""
    snapshot_id = stopped(stream, plan)
    reads = list(plan.sources[0].reads)
    assert run_second(stream, plan, snapshot_id, "renamed") == 1
    failed = stream.events_of(Failed, "d-0002")[0]
    assert "--allow-new-query renamed" in failed.error
    assert plan.sources[0].reads == reads


def test_a_query_named_as_fresh_starts_with_nothing_and_says_so(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    """--allow-new-query is the user's word for just that; a drain needs one, too, to leave the old state (Law 5)."""
    snapshot_id = stopped(stream, plan)
    new = make_plan(40)
    assert run_second(stream, new, snapshot_id, "renamed", leaves=("counts",), allow_new_queries=("renamed",)) == 0
    started = stream.events_of(QueryStarted, "d-0002")[0]
    assert started.how == "fresh"
    assert "as was asked for" in started.repairs[0]
    assert_nothing_lost(new)


def new_queries(stream: SimulatedStream, deployment_id: str = "d-0001") -> list[str]:
    return [note.text for note in stream.events_of(Noted, deployment_id) if "is new to this deployment" in note.text]


def test_a_query_that_is_named_anew_in_each_attempt_is_refused(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    """A resume would start with nothing, and leave the state of the known query behind: the error has both names, the
    batch, and what to do (Law 5)."""
    stream.order_at(2.1, StopRequest)
    assert stream.run(waiting_script(plan, names=("counts-0930",))) == 0
    reads = list(plan.sources[0].reads)
    assert stream.run(waiting_script(plan, names=("counts-0945",)), attempt=stream.next_attempt()) == 1
    (failed,) = stream.events_of(Failed)
    assert "query counts-0945 does what query counts-0930 did, and would start with nothing" in failed.error
    assert "batch_id=2" in failed.error
    assert '.queryName("counts-0930")' in failed.error
    assert plan.sources[0].reads == reads
    stream.order_at(30.0, DrainNotification)
    assert stream.run(waiting_script(plan, names=("counts-0930",)), attempt=stream.next_attempt()) == 0
    assert_nothing_lost(plan)


def test_a_new_name_that_was_allowed_at_the_deploy_may_come_in_any_attempt(
    stream: SimulatedStream, plan: SimulatedPlan
) -> None:
    """--allow-new-query is the user's word for just that (Law 5)."""
    stream.deploy(2, StartPlan("fresh", allow_new_queries=("counts-b",)))
    once = replace(plan, trigger="available_now")
    once.sink.mode = "append"  # the other one refuses a fresh start over batch ids that it holds
    assert stream.run(waiting_script(once, names=("counts-a",)), "d-0002") == 0
    assert stream.run(waiting_script(once, names=("counts-b",)), "d-0002", attempt=stream.next_attempt("d-0002")) == 0
    assert [event.how for event in stream.events_of(QueryStarted, "d-0002")] == ["fresh", "fresh"]
    assert new_queries(stream, "d-0002") == []


def test_a_query_that_first_comes_in_a_later_attempt_is_started_and_a_note_names_what_is_not(
    stream: SimulatedStream,
) -> None:
    """A known query may still start by the end of this one; where all known ones run, nothing is reported (Law 5)."""
    counts, other, third = (make_plan(20, trigger="available_now") for _ in range(3))
    other.window_ms = None
    third.delay_ms = 9_000
    assert stream.run(waiting_script(counts)) == 0
    scripts = [waiting_script(other, counts, names=("other", "counts"))]
    scripts.append(waiting_script(other, counts, third, names=("other", "counts", "third")))
    for script in scripts:
        assert stream.run(script, attempt=stream.next_attempt()) == 0
    started = [(event.query_name, event.how) for event in stream.events_of(QueryStarted)]
    assert started[1:] == [
        ("other", "fresh"), ("counts", "continued"), ("other", "continued"), ("counts", "continued"), ("third", "fresh")
    ]  # fmt: skip
    assert new_queries(stream) == [
        "query other is new to this deployment and starts with nothing; not started so far in this attempt:"
        " query counts, which is at batch 2"
    ]


@pytest.mark.parametrize("differs", ["the sink", "an unreadable plan"])
def test_a_new_name_is_refused_only_where_it_is_certainly_the_same_query(
    stream: SimulatedStream, monkeypatch: pytest.MonkeyPatch, differs: str
) -> None:
    """Two queries over one input with two sinks are two queries, and no start waits for its plan to be understood."""
    before, after = make_plan(20, trigger="available_now"), make_plan(20, trigger="available_now")
    assert stream.run(waiting_script(before)) == 0
    if differs == "the sink":
        after.sink.mode = "append"
    else:
        monkeypatch.setattr(SimulatedStartable, "analyzed_plan", _unreadable)
    assert stream.run(waiting_script(after, names=("more",)), attempt=stream.next_attempt()) == 0
    assert [event.how for event in stream.events_of(QueryStarted)] == ["fresh", "fresh"]
    (note,) = new_queries(stream)
    assert note.startswith("query more is new")


def _unreadable(startable: SimulatedStartable) -> AnalyzedPlan:
    raise RuntimeError("no JSON of this")


def test_a_missing_snapshot_starts_nothing(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    """Nothing falls back to empty because something is missing (Law 5)."""
    stream.deploy(2, StartPlan("restore", "d-0001-stopped-000001", "d-0001"))
    assert stream.run(waiting_script(plan), "d-0002") == 1
    assert "SnapshotNotFoundError" in stream.events_of(Failed, "d-0002")[0].error
    assert plan.sources[0].reads == []


def remove_snapshot(stream: SimulatedStream, snapshot_id: str) -> None:
    folder = layout.manifest_key(STREAM, snapshot_id).rpartition("/")[0]
    for info in list(stream.checkpoints.list_objects(f"{folder}/")):
        stream.checkpoints.delete(info.key)


def damage_snapshot(stream: SimulatedStream, snapshot_id: str) -> None:
    stream.checkpoints.put(layout.manifest_key(STREAM, snapshot_id), b'{"kind": "SnapshotManifest", "pro')


@pytest.mark.parametrize("order", [StopRequest, DrainNotification])
@pytest.mark.parametrize(
    ("lose_snapshot", "remark"), [(remove_snapshot, START_IS_GONE), (damage_snapshot, START_IS_DAMAGED)]
)
def test_a_resume_stands_on_its_own_checkpoint_and_misses_no_snapshot(
    stream: SimulatedStream, order: type[Command], lose_snapshot: Callable[[SimulatedStream, str], None], remark: str
) -> None:
    """Its start snapshot may be gone or damaged (1a.10, Law 7); a remark reports it, and a successor continues."""
    plan = make_plan(400)
    stream.order_at(2.1, order)
    assert stream.run(waiting_script(plan)) == 0
    ended = stream.events_of(Stopped if order is StopRequest else Drained)[0]
    stream.deploy(2, StartPlan("restore" if order is StopRequest else "seed", ended.snapshot_id, "d-0001"))

    def killed(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.clock.after(2.1, driver.kill)
        driver.await_all()

    assert stream.run(killed, "d-0002") is None
    lose_snapshot(stream, ended.snapshot_id)
    number = stream.next_attempt("d-0002")
    stream.order_at(2.1, StopRequest, "d-0002", attempt=number)
    assert stream.run(waiting_script(plan), "d-0002", number) == 0
    started = stream.events_of(QueryStarted, "d-0002")[-1]
    assert (started.how, started.repairs[-1]) == ("continued", remark)
    stream.deploy(3, StartPlan("restore", stream.events_of(Stopped, "d-0002")[0].snapshot_id, "d-0002"))
    stream.order_at(60.0, DrainNotification, "d-0003")
    assert stream.run(waiting_script(plan), "d-0003") == 0
    if order is StopRequest:
        assert_nothing_lost(plan)


@pytest.mark.parametrize(
    ("lose_snapshot", "error"),
    [(remove_snapshot, "SnapshotNotFoundError"), (damage_snapshot, "MalformedMessageError")],
)
def test_a_query_without_a_checkpoint_misses_the_snapshot_that_is_gone(
    stream: SimulatedStream, lose_snapshot: Callable[[SimulatedStream, str], None], error: str
) -> None:
    """It does not start with nothing, although other queries continue (Law 5)."""
    plans = (make_plan(400), make_plan(400))
    stream.order_at(2.1, StopRequest)
    assert stream.run(waiting_script(*plans, names=("a", "b"))) == 0
    snapshot_id = stream.events_of(Stopped)[0].snapshot_id
    stream.deploy(2, StartPlan("restore", snapshot_id, "d-0001"))
    stream.order_at(2.1, StopRequest, "d-0002")
    assert stream.run(waiting_script(plans[0], names=("a",)), "d-0002") == 0
    lose_snapshot(stream, snapshot_id)
    number = stream.next_attempt("d-0002")
    reads = list(plans[1].sources[0].reads)
    assert stream.run(waiting_script(*plans, names=("a", "b")), "d-0002", number) == 1
    assert error in stream.events_of(Failed, "d-0002")[-1].error
    assert plans[1].sources[0].reads == reads


@pytest.mark.parametrize("lose_snapshot", [remove_snapshot, damage_snapshot])
def test_a_query_that_went_with_the_snapshot_is_not_taken_for_one_that_never_was(
    stream: SimulatedStream,
    lose_snapshot: Callable[[SimulatedStream, str], None],
) -> None:
    """Its deployment stood on a snapshot that is gone: what it never started is in no later one (Law 5)."""
    plans = (make_plan(0), make_plan())
    stream.order_at(2.1, StopRequest)
    assert stream.run(waiting_script(*plans, names=("a", "b"))) == 0
    snapshot_id = stream.events_of(Stopped)[0].snapshot_id
    stream.deploy(2, StartPlan("restore", snapshot_id, "d-0001"))

    def killed(driver: SimulatedDriver) -> None:
        driver.start(plans[0], "a")
        driver.clock.after(2.1, driver.kill)
        driver.await_all()

    assert stream.run(killed, "d-0002") is None
    lose_snapshot(stream, snapshot_id)
    stream.order_at(2.1, StopRequest, "d-0002", attempt=stream.next_attempt("d-0002"))
    assert stream.run(waiting_script(plans[0], names=("a",)), "d-0002", 2) == 0
    stopped = stream.events_of(Stopped, "d-0002")[0].snapshot_id
    assert sorted(stream.control.need_manifest(stopped).queries) == ["a"]
    stream.deploy(3, StartPlan("restore", stopped, "d-0002"))
    reads = list(plans[1].sources[0].reads)
    assert stream.run(waiting_script(*plans, names=("a", "b")), "d-0003") == 1
    assert "--allow-new-query b" in stream.events_of(Failed, "d-0003")[0].error
    assert plans[1].sources[0].reads == reads


def test_a_script_that_starts_nothing_over_a_snapshot_that_is_gone_has_not_finished(
    stream: SimulatedStream, plan: SimulatedPlan
) -> None:
    """Its end would report that there never was a query (Law 5)."""
    snapshot_id = stopped(stream, plan)
    stream.deploy(2, StartPlan("restore", snapshot_id, "d-0001"))
    remove_snapshot(stream, snapshot_id)
    assert stream.run(lambda _driver: None, "d-0002") == 1
    assert stream.kinds("d-0002")[-1] == "Failed"


def test_a_snapshot_that_lacks_a_file_starts_nothing(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    """Looked at before anything is built of it (Law 3)."""
    snapshot_id = stopped(stream, plan)
    stream.checkpoints.delete(f"{layout.snapshot_data_folder(STREAM, snapshot_id, 'counts')}/state/0/0/2.delta")
    assert run_second(stream, plan, snapshot_id) == 1
    assert "SnapshotIncompleteError" in stream.events_of(Failed, "d-0002")[0].error
    assert not Checkpoint(stream.checkpoints, layout.checkpoint_folder(STREAM, "d-0002", "counts")).exists()


def killed_after_the_sink(stream: SimulatedStream, plan: SimulatedPlan) -> str:
    """A deployment whose batch 2 is in the sink and not committed; a controller's snapshot of it."""
    driver = SimulatedDriver(stream)

    def kill(run: SimulatedRun, phase: Phase) -> None:
        if phase == "commit" and run.committed[-1:] == [1]:
            driver.kill()

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.startables[0].before_phase = kill
        driver.await_all()

    assert driver.run(script) is None
    manifest = stream.take_over(sources=("Simulated[flights]",))
    assert manifest.queries["counts"].position.planned_batch_id == 2
    return manifest.snapshot_id


def test_a_planned_batch_goes_with_the_snapshot_and_runs_first_over_the_same_bounds(
    stream: SimulatedStream, plan: SimulatedPlan
) -> None:
    """The sink holds it already: other bounds under the same batch id would lose rows (1a.6, Law 14)."""
    snapshot_id = killed_after_the_sink(stream, plan)
    plan.sources[0].max_rows_per_batch = 25
    assert run_second(stream, plan, snapshot_id) == 0
    started = stream.events_of(QueryStarted, "d-0002")[0]
    assert (started.how, started.batch_id, started.planned_batch_id) == ("restored", 1, 2)
    assert plan.sources[0].reads[2:4] == [(20, 30), (20, 30)]
    assert_nothing_lost(plan)


@pytest.mark.parametrize(
    ("is_one_more", "drains_first", "said"),
    [
        (True, False, "made by another plan"),
        (False, False, "Simulated[other]"),
        (False, True, "Simulated[other]"),
    ],
)
def test_other_sources_under_a_planned_batch_are_refused(
    stream: SimulatedStream, plan: SimulatedPlan, is_one_more: bool, drains_first: bool, said: str
) -> None:
    """Its bounds are those of the old sources, also where a drain runs it before the first start (1a.6)."""
    snapshot_id = killed_after_the_sink(stream, plan)
    other = SimulatedSource("Simulated[other]")
    other.add(*range(0, 20_000, 250))
    stream.deploy(2, StartPlan("restore", snapshot_id, "d-0001"))
    if drains_first:
        stream.order(DrainNotification, "d-0002")
    sources = [*plan.sources, other] if is_one_more else [other]
    assert stream.run(waiting_script(replace(plan, sources=sources)), "d-0002") == 1
    assert said in stream.events_of(Failed, "d-0002")[0].error
    assert other.reads == []


def test_state_in_another_format_is_refused_where_a_drain_comes_first(
    stream: SimulatedStream, plan: SimulatedPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush that finds no state would write none of it out, and count none that is left (Laws 5, 10 and 16)."""
    snapshot_id = stopped(stream, plan)
    asked = SimulatedStartable.session_conf
    monkeypatch.setattr(
        SimulatedStartable,
        "session_conf",
        lambda self, names: {**asked(self, names), **{name: "2" for name in names if name == STATE_FORMAT}},
    )
    stream.deploy(2, StartPlan("restore", snapshot_id, "d-0001"))
    stream.order(DrainNotification, "d-0002")
    assert stream.run(waiting_script(plan), "d-0002") == 1
    assert "state checkpoint format 1 became 2" in stream.events_of(Failed, "d-0002")[0].error
    assert "Draining" not in stream.kinds("d-0002")


def test_a_query_that_never_committed_starts_where_its_options_say(stream: SimulatedStream) -> None:
    """Position none: there is nothing to fall back from, and it is reported (Law 5)."""
    plan = make_plan(40)
    snapshot_id = stopped(stream, plan, 0.01)
    manifest = stream.control.need_manifest(snapshot_id)
    assert manifest.queries["counts"].position.batch_id in (None, 0)
    assert run_second(stream, plan, snapshot_id) == 0
    assert_nothing_lost(plan)


def test_a_checkpoint_in_an_unknown_format_is_refused_before_it_is_touched(
    stream: SimulatedStream, plan: SimulatedPlan
) -> None:
    """A commit log of a version to come in its own checkpoint: refused explicitly at start() (Law 10)."""
    stopped(stream, plan)
    checkpoint = Checkpoint(stream.checkpoints, layout.checkpoint_folder(STREAM, "d-0001", "counts"))
    body = b'v3\n{"nextBatchWatermarkMs":0}'
    stream.checkpoints.put(checkpoint.commit_key(checkpoint.commit_ids()[-1]), body)
    entries = checkpoint.offset_ids()
    stream.next_attempt()
    assert stream.run(waiting_script(plan), attempt=2) == 1
    assert "UnsupportedCheckpointError" in stream.events_of(Failed)[0].error
    assert checkpoint.offset_ids() == entries


def test_an_own_checkpoint_with_state_of_an_unknown_format_is_refused(
    stream: SimulatedStream, plan: SimulatedPlan
) -> None:
    """A different Spark may have run on it: refused by the file's name, before any batch is read (Law 10)."""
    stopped(stream, plan)
    reads = list(plan.sources[0].reads)
    checkpoint = Checkpoint(stream.checkpoints, layout.checkpoint_folder(STREAM, "d-0001", "counts"))
    stream.checkpoints.put(checkpoint.key("state/0/0/9_7d5b2c0e-5c0f-4a58-8a55-52ac66a1f0a1.delta"), b"")
    assert stream.run(waiting_script(plan), attempt=stream.next_attempt()) == 1
    assert "format 2 is not supported" in stream.events_of(Failed)[0].error
    assert plan.sources[0].reads == reads
