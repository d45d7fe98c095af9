"""A rehearsal, with simulated queries: what it tries, what it reports, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.attempt.ports import AnalyzedPlan, WriterFacts
from airflow_streamstate.driver.rehearsal.rehearsal_run import FAILED_AFTERWARDS, SOURCES_UNKNOWN, Rehearsing, oversee
from airflow_streamstate.driver.rehearsal.warming import NO_QUERY_ID, WARM_BATCHES, warm_with_rows
from airflow_streamstate.driver.shutdown.script_end import ScriptFailure
from airflow_streamstate.errors import InvalidRequestError, UnsupportedCheckpointError
from airflow_streamstate.plan.record import recorded_plans
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import DrainNotification
from airflow_streamstate.protocol.events import Drained
from airflow_streamstate.protocol.scratch import RehearsedQuery, SeedTrial
from support.faulty_store import Fault, FaultPlan, FaultyStore
from support.rehearsal_stage import REHEARSAL, SECRET, Stage
from support.simulated_driver import STREAM, make_plan, never_do, waiting_script
from support.simulated_query import SimulatedPlan, SimulatedStartable


def test_a_version_that_fits_is_accepted_and_nothing_but_its_own_is_touched(stage: Stage, plan: SimulatedPlan) -> None:
    """No input is read, no sink written, no event reported, and the snapshot and all checkpoints stay (Law 4)."""
    snapshot_id = stage.stopped(plan)
    before, reads, sink = stage.outside(), list(plan.sources[0].reads), dict(plan.sink.counts())
    rehearsing = stage.rehearsing(snapshot_id)
    query = stage.start(rehearsing, plan)
    assert (query.ended, query.failure(), query.await_termination(1)) == (True, None, True)
    assert rehearsing.script_ended(None) == 0
    verdict = stage.verdict
    assert (verdict.outcome, verdict.error, verdict.given_by) == ("done", "", "driver")
    assert {name: (query.outcome, query.start) for name, query in verdict.queries.items()} == {
        "counts": ("accepted", "restored")
    }
    assert stage.recorded == ["counts"]
    assert (stage.outside(), plan.sources[0].reads, plan.sink.counts()) == (before, reads, sink)


def test_a_batch_that_fails_is_told_and_the_next_query_is_tried_all_the_same(stage: Stage, plan: SimulatedPlan) -> None:
    """What Spark reports is the verdict; the script continues as if nothing were wrong."""
    snapshot_id = stage.stopped(plan)
    rehearsing = stage.rehearsing(snapshot_id, allow_new_queries=("more",))
    last = stage.stream.control.need_manifest(snapshot_id).queries["counts"].position.batch_id
    assert last is not None
    bad = replace(plan, fails_at={last + 1}, failure_words=f"[NOT_COMPATIBLE] of {SECRET}\nand more")
    assert stage.start(rehearsing, bad).failure() is None
    stage.start(rehearsing, make_plan(), "more")
    assert rehearsing.script_ended(None) == 0
    queries = stage.verdict.queries
    assert (queries["counts"].outcome, queries["counts"].start) == ("failed", "restored")
    assert "[NOT_COMPATIBLE] of" in queries["counts"].error
    assert (SECRET in queries["counts"].error, "\n" in queries["counts"].error) == (False, False)
    assert (queries["more"].outcome, queries["more"].start) == ("accepted", "fresh")


def test_a_start_that_would_be_refused_is_refused_in_the_same_words(stage: Stage, plan: SimulatedPlan) -> None:
    """The same code builds it: a renamed query would start empty (Law 5), and a refused trigger is the query's own."""
    snapshot_id = stage.stopped(plan)
    rehearsing = stage.rehearsing(snapshot_id)
    stage.start(rehearsing, plan, "renamed")
    startable = SimulatedStartable(stage.stream.checkpoints, stage.stream.clock, plan)
    rehearsing.refuse(startable, UnsupportedCheckpointError("the trigger continuous knows no barrier"))
    rehearsing.start_query("counts", None, startable)
    rehearsing.script_ended(None)
    queries = stage.verdict.queries
    assert queries["renamed"].outcome == queries["counts"].outcome == "refused"
    assert queries["renamed"].start == ""
    assert "--allow-new-query renamed" in queries["renamed"].error
    assert "the trigger continuous knows no barrier" in queries["counts"].error
    assert stage.recorded == ["counts", "renamed"]


def test_a_query_named_by_the_application_is_refused_with_the_line_to_add(stage: Stage, plan: SimulatedPlan) -> None:
    """No later start would find it: reported while the old version runs. A name that the snapshot knows is fine."""
    rehearsing = stage.rehearsing(stage.stopped(plan))
    rehearsing.session_started("4.2.0", "local-17")
    startable = SimulatedStartable(stage.stream.checkpoints, stage.stream.clock, plan)
    rehearsing.start_query(None, "/data/ckpt/local-17", startable)
    rehearsing.script_ended(None)
    (refused,) = stage.verdict.queries.values()
    assert refused.outcome == "refused"
    assert '.queryName("ckpt")' in refused.error
    assert "--rename-query counts=ckpt" in refused.error


def test_a_drained_stream_is_tried_as_it_would_be_seeded(stage: Stage, plan: SimulatedPlan) -> None:
    """The empty batch of the seed is the trial, and no second run follows."""
    stage.stream.deploy()
    stage.stream.order_at(2.1, DrainNotification)
    assert stage.stream.run(waiting_script(plan)) == 0
    reads = list(plan.sources[0].reads)
    rehearsing = stage.rehearsed(
        replace(plan, window_ms=3_000), stage.stream.events_of(Drained)[0].snapshot_id, seeds="always"
    )
    assert not rehearsing.begins_seeds()
    query = stage.verdict.queries["counts"]
    assert (query.outcome, query.start, plan.sources[0].reads) == ("accepted", "seeded", reads)


def test_a_fresh_start_over_a_sink_that_holds_its_ids_is_refused(stage: Stage, plan: SimulatedPlan) -> None:
    """All its rows would be skipped (Law 14)."""
    stage.stopped(plan)
    rehearsing = stage.rehearsing(None)
    stage.start(rehearsing, plan)
    stage.start(rehearsing, make_plan(), "elsewhere")
    rehearsing.script_ended(None)
    queries = stage.verdict.queries
    assert (queries["counts"].outcome, queries["elsewhere"].outcome) == ("refused", "accepted")
    assert "holds batch ids" in queries["counts"].error


def test_without_batches_the_plans_alone_are_kept(stage: Stage, plan: SimulatedPlan) -> None:
    """Nothing is built."""
    snapshot_id = stage.stopped(plan)
    before = stage.outside()
    stage.rehearsed(plan, snapshot_id, rehearse=False)
    assert stage.verdict.queries == {"counts": RehearsedQuery("not_run", "restored")}
    assert (stage.recorded, stage.outside()) == (["counts"], before)
    own = layout.deployment_folder(STREAM, REHEARSAL)
    assert [info.key for info in stage.stream.checkpoints.list_objects(f"{own}/")] == [
        layout.plan_key(STREAM, REHEARSAL, "counts", 1),
        layout.verdict_key(STREAM, REHEARSAL),
    ]


def test_a_query_whose_sources_cannot_be_counted_is_built_and_not_run(stage: Stage) -> None:
    """Of one that starts with nothing: its empty batch would want a line for each source."""

    class Uncounted(SimulatedStartable):
        @property
        def facts(self) -> WriterFacts:
            return replace(super().facts, sources_count=None)

    stage.stopped(make_plan())
    rehearsing = stage.rehearsing(None)
    rehearsing.start_query("new", None, Uncounted(stage.stream.checkpoints, stage.stream.clock, make_plan()))
    rehearsing.script_ended(None)
    query = stage.verdict.queries["new"]
    assert (query.outcome, query.start, query.notes) == ("not_run", "fresh", (SOURCES_UNKNOWN,))


def test_a_script_that_fails_before_all_known_queries_are_tried_tells_what_it_had_started(
    stage: Stage, plan: SimulatedPlan
) -> None:
    """With its own words, and without its secrets: nothing is known of the query that it did not come to."""
    rehearsing = stage.rehearsing(stage.stopped(plan), allow_new_queries=("more",))
    stage.start(rehearsing, make_plan(), "more")
    failure = ScriptFailure(f"ValueError: {SECRET} is wrong\nreally", f"Traceback …\nValueError: {SECRET}", 3)
    assert rehearsing.script_ended(failure) == 1
    verdict = stage.verdict
    assert (verdict.outcome, list(verdict.queries)) == ("failed", ["more"])
    assert verdict.error.startswith("ValueError: ")
    assert SECRET not in verdict.error + verdict.traceback


def test_a_script_that_fails_after_its_queries_leaves_the_verdict_to_them(stage: Stage, plan: SimulatedPlan) -> None:
    """It may read what a query that has ended does not have; a note has its words, without its secrets."""
    rehearsing = stage.rehearsing(stage.stopped(plan), waits_seconds=200.0)
    stage.start(rehearsing, plan)
    failure = ScriptFailure(f"TypeError: {SECRET} is not subscriptable", f"Traceback …\nTypeError: {SECRET}", 1)
    assert rehearsing.script_ended(failure) == 0
    verdict = stage.verdict
    assert (verdict.outcome, verdict.error, verdict.is_accepted, rehearsing.goes_on()) == ("done", "", True, True)
    (note,) = [note for note in verdict.notes if note.startswith(FAILED_AFTERWARDS)]
    assert note.endswith("is not subscriptable")
    assert SECRET not in note
    assert any("Traceback" in said for said in stage.stream.said)


def test_a_query_that_fails_is_told_and_not_what_the_script_makes_of_it(stage: Stage, plan: SimulatedPlan) -> None:
    """The script's own failure behind it is a note."""
    snapshot_id = stage.stopped(plan)
    rehearsing = stage.rehearsing(snapshot_id)
    stage.start(rehearsing, refused_by_spark(stage, plan, snapshot_id))
    assert rehearsing.script_ended(ScriptFailure("TypeError: 'NoneType'", "", 1)) == 0
    verdict = stage.verdict
    assert (verdict.outcome, verdict.is_accepted) == ("done", False)
    assert "[NOT_COMPATIBLE]" in verdict.why_not


@pytest.mark.parametrize(
    "failure",
    [
        ScriptFailure("NameError: name 'quer' is not defined", "", 1),
        ScriptFailure("ModuleNotFoundError: No module named 'later'", "", 1),
        ScriptFailure("two queries of this script have the same name", "", 1, is_refusal=True),
    ],
)
def test_a_failure_that_no_rehearsal_makes_counts(stage: Stage, plan: SimulatedPlan, failure: ScriptFailure) -> None:
    """It would end the new version as well."""
    rehearsing = stage.rehearsing(stage.stopped(plan))
    stage.start(rehearsing, plan)
    assert rehearsing.script_ended(failure) == 1
    assert (stage.verdict.outcome, stage.verdict.error) == ("failed", failure.error)


def test_a_query_that_is_started_again_is_tried_once(stage: Stage, plan: SimulatedPlan) -> None:
    """A loop around ``start()`` rehearses nothing twice; it is reported."""
    rehearsing = stage.rehearsing(stage.stopped(plan))
    stage.start(rehearsing, plan)
    stage.start(rehearsing, plan)
    rehearsing.script_ended(None)
    assert stage.recorded == ["counts"]
    assert any("started again" in note for note in stage.verdict.notes)
    assert list(stage.stream.control.journal(REHEARSAL).events()) == []


def test_a_plan_that_cannot_be_read_is_said_and_stops_nothing(stage: Stage, plan: SimulatedPlan) -> None:
    """Its batch runs all the same."""

    class Unreadable(SimulatedStartable):
        def analyzed_plan(self) -> AnalyzedPlan:
            raise ValueError("no such plan")

    rehearsing = stage.rehearsing(stage.stopped(plan))
    rehearsing.start_query("counts", None, Unreadable(stage.stream.checkpoints, stage.stream.clock, plan))
    rehearsing.script_ended(None)
    assert (stage.verdict.queries["counts"].outcome, stage.recorded) == ("accepted", [])
    assert any("no such plan" in note for note in stage.verdict.notes)


def test_a_plan_is_recorded_with_what_the_state_holds_it_to(stage: Stage, plan: SimulatedPlan) -> None:
    """The log's settings win over the script's, as in a start."""
    rehearsing = stage.rehearsing(stage.stopped(plan))
    stage.start(rehearsing, plan)
    (recorded,) = recorded_plans(stage.stream.control, REHEARSAL).values()
    assert recorded.pinned["spark.sql.shuffle.partitions"] == "2"


def test_a_script_that_hangs_is_ended_at_the_deadline(stage: Stage, plan: SimulatedPlan) -> None:
    """And reports what it was busy with."""
    rehearsing = stage.rehearsing(stage.stopped(plan))
    ended: list[int] = []
    oversee(rehearsing, ended.append, pause_seconds=5.0)
    assert ended == [1]
    assert (stage.verdict.outcome, stage.verdict.queries) == ("deadline", {})
    assert "the script before its first query" in stage.verdict.error


def asked(stage: Stage, rehearsing: Rehearsing, act: Callable[[], None] = lambda: None) -> list[float]:
    """Oversee the rehearsal of a script that does this when it is asked to end; when it was asked, in seconds since
    now, and when its process was ended."""
    clock, times = stage.stream.clock, list[float]()
    began = clock.monotonic_seconds()

    def note(_status: int = 0) -> None:
        times.append(round(clock.monotonic_seconds() - began))
        act()

    rehearsing._end_script = note
    oversee(rehearsing, note)
    return times


def test_a_script_that_never_ends_by_itself_is_asked_to_end_a_while_after_its_last_start(
    stage: Stage, plan: SimulatedPlan
) -> None:
    """As after a stop (1a.11): everything that there was to see was seen. What it fails with then does not count."""
    rehearsing = stage.rehearsing(stage.stopped(plan), waits_seconds=200.0)
    stage.start(rehearsing, plan)

    def ends() -> None:
        rehearsing.script_ended(ScriptFailure("ValueError: disturbed", "", 1))
        assert rehearsing.goes_on()

    assert asked(stage, rehearsing, ends) == [30]
    assert stage.verdict.is_accepted
    notes = " ".join(stage.verdict.notes)
    assert "did not end in 30 s" in notes
    assert "ran on" not in notes
    assert "ValueError: disturbed" in notes


def test_a_script_that_does_not_end_when_it_is_asked_is_ended_with_its_process(
    stage: Stage, plan: SimulatedPlan
) -> None:
    """Its verdict stays: nothing is wrong with its queries."""
    rehearsing = stage.rehearsing(stage.stopped(plan), waits_seconds=200.0)
    stage.start(rehearsing, plan)
    assert asked(stage, rehearsing) == [30, 40, 50, 60, 70, 80, 90, 100]
    assert stage.verdict.is_accepted
    assert any("70 s after it was asked to end" in note for note in stage.verdict.notes)
    assert rehearsing.script_ended(ScriptFailure("too late", "", 1)) == 0
    assert stage.verdict.outcome == "done"
    assert not rehearsing.goes_on()


def test_a_loop_around_start_is_asked_to_end_like_one_around_a_wait(stage: Stage, plan: SimulatedPlan) -> None:
    """A query that is started again reports nothing new; a start after the question ends its thread."""
    rehearsing = stage.rehearsing(stage.stopped(plan))
    stage.start(rehearsing, plan)
    stage.stream.clock.after(20.0, lambda: stage.start(rehearsing, plan))

    def starts_again() -> None:
        with pytest.raises(SystemExit):
            stage.start(rehearsing, plan)
        rehearsing.script_ended(None)
        assert not rehearsing.goes_on()

    assert asked(stage, rehearsing, starts_again) == [30]
    assert stage.verdict.is_accepted


def test_each_run_of_a_script_is_asked_for_itself(stage: Stage, plan: SimulatedPlan) -> None:
    """The run that tries its queries as after a drain has its own grace."""
    rehearsing = stage.rehearsing(stage.stopped(plan), seeds="always")
    stage.start(rehearsing, plan)

    def ends() -> None:
        rehearsing.script_ended(None)
        if rehearsing.begins_seeds():
            stage.start(rehearsing, plan)
        else:
            rehearsing.goes_on()

    assert asked(stage, rehearsing, ends) == [30, 60]
    assert stage.verdict.is_accepted_as_seed


def refused_by_spark(stage: Stage, plan: SimulatedPlan, snapshot_id: str) -> SimulatedPlan:
    """A version whose trial on the old state fails."""
    last = stage.stream.control.need_manifest(snapshot_id).queries["counts"].position.batch_id
    assert last is not None
    return replace(plan, fails_at={last + 1}, failure_words="[NOT_COMPATIBLE]")


def folders(stage: Stage) -> set[str]:
    """What is right below the rehearsal."""
    own = layout.deployment_folder(STREAM, REHEARSAL)
    keys = [info.key for info in stage.stream.checkpoints.list_objects(f"{own}/")]
    return {key[len(own) + 1 :].partition("/")[0] for key in keys}


@pytest.mark.parametrize(
    ("refuses", "is_tried"), [(("needs-drain", "hazardous"), False), (("hazardous",), True), ((), True)]
)
def test_where_the_plan_alone_decides_no_batch_is_run(
    stage: Stage, plan: SimulatedPlan, refuses: tuple[str, ...], is_tried: bool
) -> None:
    """Nothing is forked, no state is opened, of this query and of those after it; their plans are recorded."""
    rehearsing = stage.rehearsing(stage.stopped(plan), refuses=refuses, allow_new_queries=("more",))
    stage.start(rehearsing, replace(plan, delay_ms=7_000))
    stage.start(rehearsing, make_plan(), "more")
    assert rehearsing.script_ended(None) == 0
    assert {query.outcome for query in stage.verdict.queries.values()} == {"accepted" if is_tried else "not_run"}
    assert ("checkpoints" in folders(stage)) is is_tried
    assert stage.recorded == ["counts", "more"]


def test_state_that_does_not_fit_is_tried_once_more_as_after_a_drain(stage: Stage, plan: SimulatedPlan) -> None:
    """A second run in the same driver; the first run's outcome stays, nothing is touched (Law 4)."""
    snapshot_id = stage.stopped(plan)
    before, reads, sink = stage.outside(), list(plan.sources[0].reads), dict(plan.sink.counts())
    rehearsing = stage.rehearsing(snapshot_id, seeds="if_needed", waits_seconds=60.0)
    bad = refused_by_spark(stage, plan, snapshot_id)
    stage.start(rehearsing, bad)
    assert rehearsing.script_ended(None) == 0
    assert stage.stream.control.verdict(REHEARSAL) is None
    assert rehearsing.begins_seeds()
    assert stage.start(rehearsing, bad).ended
    assert rehearsing.script_ended(None) == 0
    assert not rehearsing.begins_seeds()
    verdict = stage.verdict
    assert [(query.outcome, query.start) for query in verdict.queries.values()] == [("failed", "restored")]
    assert [(query.outcome, query.start) for query in verdict.seeded.values()] == [("accepted", "seeded")]
    assert (verdict.is_accepted, verdict.is_accepted_as_seed, verdict.seed_error) == (False, True, "")
    assert rehearsing.goes_on()
    assert (stage.outside(), plan.sources[0].reads, plan.sink.counts()) == (before, reads, sink)


def test_what_was_tried_as_after_a_drain_can_be_warmed_on_its_seed(stage: Stage, plan: SimulatedPlan) -> None:
    """By the attempt of the last run, after whose trial its checkpoint continues; that of the first run ends before a
    batch that failed."""
    snapshot_id = stage.stopped(plan)
    rehearsing = stage.rehearsing(snapshot_id, seeds="if_needed", waits_seconds=60.0, batches=1)
    first, bad = rehearsing.attempt, replace(plan, fails_at={stage.last_batch_id, stage.last_batch_id + 1})
    stage.start(rehearsing, bad)
    assert rehearsing.script_ended(None) == 0
    assert rehearsing.begins_seeds()
    stage.start(rehearsing, plan)
    assert rehearsing.script_ended(None) == 0
    assert stage.verdict.is_accepted_as_seed
    for attempt, version, times in ((first, bad, 0), (rehearsing.attempt, plan, WARM_BATCHES)):
        warm_with_rows(attempt, "counts", stage.startable(version), rehearsing._scratch)
        assert stage.stream.said[-1] == f"query counts: its newest batch ran {times} times, into nothing"


def test_a_query_of_one_batch_is_tried_as_after_a_drain() -> None:
    """A drain's flush is its own batch: a query that has committed nothing but batch 0 is seeded behind it."""
    stage, plan = Stage(), make_plan(rows=4)
    snapshot_id = stage.stopped(plan, at_seconds=0.6)
    manifest = stage.stream.control.need_manifest(snapshot_id)
    assert manifest.queries["counts"].position.batch_id == 0
    rehearsing = stage.rehearsed(plan, snapshot_id, seeds="always", waits_seconds=60.0)
    assert rehearsing.begins_seeds()
    stage.start(rehearsing, plan)
    rehearsing.script_ended(None)
    assert [(query.outcome, query.error) for query in stage.verdict.seeded.values()] == [("accepted", "")]


@pytest.mark.parametrize(
    ("seeds", "is_changed", "is_begun"),
    [("if_needed", False, False), ("if_needed", True, True), ("never", True, False), ("always", False, True)],
)
def test_a_pass_for_the_seed_follows_where_the_plan_needs_a_drain_or_one_is_wanted(
    stage: Stage, plan: SimulatedPlan, seeds: SeedTrial, is_changed: bool, is_begun: bool
) -> None:
    """Spark takes another delay of a watermark without a word: the plan shows it."""
    rehearsing = stage.rehearsed(
        replace(plan, delay_ms=7_000) if is_changed else plan, stage.stopped(plan), seeds=seeds
    )
    assert rehearsing.begins_seeds() is is_begun


def test_what_is_wrong_with_the_seed_is_told_beside_what_was_wrong_with_the_state() -> None:
    """A query that would be refused, a script that fails in that pass, and a pass that is not over in time."""
    for how in ("refused", "script", "deadline"):
        stage, plan = Stage(), make_plan()
        snapshot_id = stage.stopped(plan)
        rehearsing = stage.rehearsing(snapshot_id, seeds="if_needed", waits_seconds=600.0)
        bad = refused_by_spark(stage, plan, snapshot_id)
        stage.start(rehearsing, bad)
        rehearsing.script_ended(None)
        assert rehearsing.begins_seeds()
        if how == "refused":
            stage.start(rehearsing, replace(bad, sources=[*bad.sources, *make_plan().sources]))
            rehearsing.script_ended(None)
            assert "number of sources" in stage.verdict.seeded["counts"].error
        elif how == "script":
            rehearsing.script_ended(ScriptFailure(f"ValueError: {SECRET}", "", 1))
            assert stage.verdict.seed_error.startswith("ValueError: ")
            assert SECRET not in stage.verdict.seed_error
        else:
            stage.stream.clock.advance(200)
            assert rehearsing.end_if_overdue() == 1
            assert "tried as after a drain" in stage.verdict.seed_error
        verdict = stage.verdict
        assert (verdict.outcome, verdict.queries["counts"].outcome) == ("done", "failed")
        assert (verdict.is_accepted_as_seed, rehearsing.goes_on()) == (False, False)


@pytest.mark.parametrize(("waits_seconds", "goes_on"), [(60.0, True), (None, False), (0.0, False)])
def test_a_second_pass_follows_where_it_was_asked_for(
    stage: Stage, plan: SimulatedPlan, waits_seconds: float | None, goes_on: bool
) -> None:
    """And while there is time left for it; the time of the first one is not watched any more."""
    rehearsing = stage.rehearsed(plan, stage.stopped(plan), waits_seconds=waits_seconds)
    assert rehearsing.goes_on() is goes_on
    stage.stream.clock.advance(1_000)
    assert rehearsing.is_over
    assert rehearsing.end_if_overdue() is None
    ended: list[int] = []
    oversee(rehearsing, ended.append)
    assert ended == []


@pytest.mark.parametrize(("waits_seconds", "rehearse"), [(60.0, True), (60.0, False), (None, True)])
def test_the_sinks_of_all_its_queries_are_warmed_where_its_driver_is_to_wait(
    stage: Stage, plan: SimulatedPlan, waits_seconds: float | None, rehearse: bool
) -> None:
    """Under the id that each query continues with. The second pass sees its first query alone before the handover."""
    snapshot_id = stage.stopped(plan)
    rehearsing = stage.rehearsing(
        snapshot_id, waits_seconds=waits_seconds, rehearse=rehearse, allow_new_queries=("more",)
    )
    warmed: list[str] = []
    for name, writer in (("counts", stage.startable(plan)), ("more", stage.startable(make_plan()))):
        writer.before_warming = warmed.append
        rehearsing.start_query(name, None, writer)
    rehearsing.script_ended(None)
    counts = stage.stream.control.need_manifest(snapshot_id).queries["counts"]
    assert warmed == ([] if waits_seconds is None else [counts.query_id, NO_QUERY_ID])
    assert rehearsing.goes_on() is (waits_seconds is not None)


def test_what_cannot_be_warmed_is_told_and_refuses_nothing(stage: Stage, plan: SimulatedPlan) -> None:
    """What stays cold, what is raised, and what does not come to its end, each in one line without secrets."""
    rehearsing = stage.rehearsing(stage.stopped(plan), waits_seconds=600.0)
    stage.start(rehearsing, replace(plan, stays_cold=(f"what writes to it: no codec of {SECRET}\nat line 2",)))
    rehearsing.script_ended(None)
    assert rehearsing.goes_on()
    (told,) = [line for line in stage.stream.said if "could not be warmed" in line]
    assert "query counts could not be warmed in full: its sink: what writes to it: no codec of " in told
    assert (SECRET in told, "\n" in told) == (False, False)
    late = Stage()
    rehearsing = late.rehearsing(late.stopped(make_plan()), waits_seconds=600.0)
    rehearsing.attempt.in_background = never_do
    began = late.stream.clock.monotonic_seconds()
    late.start(rehearsing, make_plan())
    rehearsing.script_ended(None)
    assert late.stream.clock.monotonic_seconds() - began < 30  # a fourth of the time that the rehearsal has
    assert rehearsing.goes_on()


def test_no_second_pass_follows_what_was_not_accepted_or_was_judged_by_another(
    stage: Stage, plan: SimulatedPlan
) -> None:
    """A query that would be refused; a controller that gave the verdict first; a driver that is being ended."""
    snapshot_id = stage.stopped(plan)
    refused = stage.rehearsing(snapshot_id, waits_seconds=60.0)
    stage.start(refused, plan, "unknown")
    refused.script_ended(None)
    assert not refused.goes_on()
    judged = stage.rehearsing(snapshot_id, waits_seconds=60.0)
    stage.start(judged, plan)
    judged.script_ended(None)
    assert not judged.goes_on()
    late = Stage()
    ending = late.rehearsing(late.stopped(make_plan()), waits_seconds=600.0)
    late.stream.clock.advance(200)
    assert ending.end_if_overdue() == 1
    ending.script_ended(None)
    assert (ending.goes_on(), ending.end_if_overdue()) == (False, 1)


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.REPLY_LOST])
def test_a_verdict_outlives_a_store_that_is_away_for_a_while(stage: Stage, plan: SimulatedPlan, fault: Fault) -> None:
    """It is written as soon as the store takes it, and once (Law 8)."""
    snapshot_id = stage.stopped(plan)
    faults = FaultPlan(at_write={1: fault, 2: Fault.UNAVAILABLE})
    control = StreamControl(FaultyStore(stage.stream.checkpoints, faults), STREAM, stage.stream.clock)
    assert stage.rehearsing(snapshot_id, control=control).script_ended(None) == 0
    assert stage.verdict.outcome == "done"


def test_a_controller_that_was_first_has_the_last_word(stage: Stage, plan: SimulatedPlan) -> None:
    """There is one verdict (Law 4)."""
    snapshot_id = stage.stopped(plan)
    rehearsing = stage.rehearsing(snapshot_id)
    stage.rehearsing(snapshot_id).script_ended(ScriptFailure("killed", "", 1))
    rehearsing.script_ended(None)
    assert (stage.verdict.outcome, stage.verdict.error) == ("failed", "killed")


def test_a_sink_that_a_start_could_not_use_refuses_before_a_batch_runs(stage: Stage, plan: SimulatedPlan) -> None:
    """The same question as at the start, at the place of the old version; remarks on it are reported."""
    snapshot_id = stage.stopped(plan)
    reads = list(plan.sources[0].reads)
    refused = InvalidRequestError("its location is not empty", next_step="Name it by .option.")
    stage.rehearsed(replace(plan, table=refused), snapshot_id, batches=1)
    query = stage.verdict.queries["counts"]
    assert (query.outcome, query.batch_ids, plan.sources[0].reads) == ("refused", (), reads)
    assert query.error.startswith("its location is not empty")
    stage.forget()
    stage.rehearsed(replace(plan, table=("its catalog ends",)), snapshot_id)
    query = stage.verdict.queries["counts"]
    assert (query.outcome, query.notes) == ("accepted", ("its catalog ends",))


def test_ids_of_another_writer_in_the_sink_refuse_and_those_of_the_old_version_do_not(
    stage: Stage, plan: SimulatedPlan
) -> None:
    """Law 14. The old version writes on while the new one is rehearsed, so what its own log has is its own."""
    snapshot_id = stage.stopped(plan)
    last = stage.last_batch_id
    stage.old_checkpoint.store.delete(stage.old_checkpoint.commit_key(last))
    stage.rehearsed(plan, stage.captured("counts", keeps_planned=False))
    assert stage.verdict.queries["counts"].outcome == "accepted"
    stage.forget()
    plan.sink.add_batch(last + 3, ())
    stage.rehearsed(plan, snapshot_id)
    query = stage.verdict.queries["counts"]
    assert query.outcome == "refused"
    assert f"held_batches={last + 3}" in query.error
