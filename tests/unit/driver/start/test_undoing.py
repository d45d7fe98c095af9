"""Going back to an older snapshot: its sink is undone before the query gets its checkpoint (Law 14)."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_streamstate.driver.start.checkpoints import Builder
from airflow_streamstate.errors import ConflictError, InvalidRequestError
from airflow_streamstate.plan.model import PlannedSink
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import Command, DrainNotification, SnapshotRequest, StopRequest
from airflow_streamstate.protocol.events import (
    Drained,
    Failed,
    Noted,
    QueryStarted,
    SnapshotReady,
    Stopped,
    Undoing,
    Undone,
)
from airflow_streamstate.protocol.records import StartPlan
from support.built_plans import plan
from support.scripted_rehearsal import keep_plan
from support.simulated_connector import install_connector
from support.simulated_driver import (
    STREAM,
    SimulatedDriver,
    SimulatedStream,
    assert_nothing_lost,
    make_plan,
    waiting_script,
)
from support.simulated_query import SimulatedPlan, SimulatedRun
from support.simulated_sources import SimulatedSource, index_in

pytestmark = pytest.mark.fast

NAME = "counts"


class Story:
    """A good version that was stopped, or drained, and a bad one that wrote on under other bounds.

    Attributes:
        plan: the query, of both and of those that come.
        good: the last batch of the good version.
        bad: the last batch of the bad one.
        last_source: the input, as the newest version reads it.
    """

    def __init__(
        self, *, drained: bool = False, bad_runs: bool = True, is_known: bool = False, **changes: object
    ) -> None:
        self.stream = SimulatedStream()
        self.plan = make_plan(240, shows_sources=is_known)
        for name, value in changes.items():
            setattr(self.plan.sink, name, value)
        self.stream.deploy()
        self.stream.order_at(4.0, DrainNotification if drained else StopRequest)
        assert self.stream.run(waiting_script(self.plan)) == 0
        end = self.stream.events_of(Drained if drained else Stopped)[0]
        self.snapshot_id = end.snapshot_id
        self.mode = "seed" if drained else "restore"
        self.good = end.queries[NAME].batch_id or 0
        self.rows_then = list(self.plan.sink.batches)
        self.stream.deploy(2, StartPlan(self.mode, self.snapshot_id, "d-0001"))  # type: ignore[arg-type]
        self.bad = self.good
        if bad_runs:
            self.stream.order_at(3.0, StopRequest, "d-0002")
            assert self.stream.run(waiting_script(self.with_bounds(7)), "d-0002") == 0
            self.bad = self.stream.events_of(Stopped, "d-0002")[0].queries[NAME].batch_id or 0
            assert self.bad > self.good + 2

    def with_bounds(self, rows_per_batch: int) -> SimulatedPlan:
        """The same query over the same rows, with other bounds of its batches."""
        source = self.plan.sources[0]
        other = SimulatedSource(source.description, max_rows_per_batch=rows_per_batch)
        other.rows = source.rows
        self.last_source = other
        return replace(self.plan, sources=[other])

    def back(self, number: int = 3, **choices: object) -> str:
        """A deployment that goes back to the end of the good version."""
        before = f"d-{number - 1:04d}"
        plan = StartPlan(self.mode, self.snapshot_id, before, undoes=before, **choices)  # type: ignore[arg-type]
        return self.stream.deploy(number, plan).deployment_id

    def runs_to_its_end(self, deployment_id: str = "d-0003", attempt: int = 1) -> None:
        plan = self.with_bounds(11)
        self.stream.order_at(60.0, DrainNotification, deployment_id, attempt=attempt)
        assert self.stream.run(waiting_script(plan), deployment_id, attempt) == 0, self.stream.said[-5:]
        assert_nothing_lost(plan)

    def query_id_of(self, deployment_id: str) -> str:
        key = f"{layout.checkpoint_folder(STREAM, deployment_id, NAME)}/metadata"
        stored = self.stream.checkpoints.get(key)
        assert stored is not None
        return str(json.loads(stored.body)["id"])


@pytest.mark.parametrize("drained", [False, True])
def test_law_14_the_sink_is_undone_to_the_snapshot_and_every_row_counts_once(drained: bool) -> None:
    """Restored with its state, or seeded behind a drain; batch ids continue from the snapshot's."""
    story = Story(drained=drained)
    story.back()
    story.runs_to_its_end()
    (undone,) = story.stream.events_of(Undone, "d-0003")
    assert (undone.means, undone.query_name) == ("undo", NAME)
    assert (undone.to_batch_id, undone.first_batch_id, undone.last_batch_id) == (
        story.good,
        story.good + 1,
        story.bad,
    )
    assert undone.removed_count == story.bad - story.good
    kinds = story.stream.kinds("d-0003")
    assert kinds.index("Undoing") < kinds.index("Undone") < kinds.index("QueryStarted")
    assert story.stream.events_of(QueryStarted, "d-0003")[0].batch_id == story.good
    assert story.query_id_of("d-0003") == story.query_id_of("d-0001")


@pytest.mark.parametrize("drained", [False, True])
def test_law_14_a_sink_that_remembers_gets_another_query_id_the_same_at_every_try(drained: bool) -> None:
    """As Delta needs it; the batch ids continue all the same (Law 9)."""
    story = Story(drained=drained, undo_needs_query_id=True)
    story.back()
    story.runs_to_its_end()
    now, before = story.query_id_of("d-0003"), story.query_id_of("d-0001")
    assert now != before
    assert story.stream.events_of(QueryStarted, "d-0003")[0].query_id == now


def test_law_2_a_driver_that_dies_anywhere_in_the_undo_is_carried_on() -> None:
    """Before each batch that goes, and right after the last one: reported once, with all that was undone by either."""
    story = Story()
    for last in [*range(story.good + 1, story.bad + 1), None]:
        story = Story()
        story.back()

        def dies(driver: SimulatedDriver, story: Story = story, last: int | None = last) -> None:
            plan = story.with_bounds(11)
            startable = driver.startable_of(plan)

            def die(batch_id: int) -> None:
                if batch_id == last:
                    driver.kill()

            startable.before_undo = die
            if last is None:
                startable.after_undo = driver.kill
            driver.start_with(startable)

        assert story.stream.run(dies, "d-0003") is None
        assert story.stream.events_of(QueryStarted, "d-0003") == []
        attempt = story.stream.next_attempt("d-0003")
        story.runs_to_its_end(attempt=attempt)
        (undone,) = story.stream.events_of(Undone, "d-0003")
        assert (undone.first_batch_id, undone.last_batch_id) == (story.good + 1, story.bad)
        assert undone.attempt == 2


def test_law_14_what_this_deployment_has_written_itself_is_never_undone() -> None:
    """Once the query has its checkpoint: killed before its first commit, and after some."""
    for moment in (0, 3):
        story = Story()
        story.back()

        def dies(driver: SimulatedDriver, story: Story = story, moment: int = moment) -> None:
            def die(run: SimulatedRun, phase: str) -> None:
                if phase == "commit" and run.next_batch_id == story.good + 1 + moment:
                    driver.kill()

            query = driver.start(story.with_bounds(11))
            driver.startables[0].before_phase = die
            query.await_termination()

        assert story.stream.run(dies, "d-0003") is None
        held = list(story.plan.sink.batches)
        assert max(batch_id for batch_id, _ in held) == story.good + 1 + moment
        attempt = story.stream.next_attempt("d-0003")
        story.runs_to_its_end(attempt=attempt)
        assert story.plan.sink.batches[: len(held)] == held
        assert len(story.stream.events_of(Undone, "d-0003")) == 1


def test_going_back_again_undoes_what_the_one_before_wrote_and_what_was_undone_before_it() -> None:
    """From a second bad version to the same snapshot."""
    story = Story()
    story.back()
    story.stream.order_at(3.0, StopRequest, "d-0003")
    assert story.stream.run(waiting_script(story.with_bounds(5)), "d-0003") == 0
    story.back(4)
    story.runs_to_its_end("d-0004")
    (undone,) = story.stream.events_of(Undone, "d-0004")
    assert undone.first_batch_id == story.good + 1


def test_a_snapshot_in_the_middle_of_the_bad_version_is_gone_back_to() -> None:
    """No note reports that its deployment outran its end."""
    story = Story(bad_runs=False)
    for seconds, kind in ((2.0, SnapshotRequest), (5.0, StopRequest)):
        story.stream.order_at(seconds, kind, "d-0002")
    assert story.stream.run(waiting_script(story.with_bounds(7)), "d-0002") == 0
    ready = story.stream.events_of(SnapshotReady, "d-0002")[0]
    story.snapshot_id, story.good = ready.snapshot_id, ready.queries[NAME].batch_id or 0
    story.bad = story.stream.events_of(Stopped, "d-0002")[0].queries[NAME].batch_id or 0
    assert story.bad > story.good
    story.back()
    story.runs_to_its_end()
    (undone,) = story.stream.events_of(Undone, "d-0003")
    assert (undone.first_batch_id, undone.last_batch_id) == (story.good + 1, story.bad)
    assert [note.text for note in story.stream.events_of(Noted, "d-0003") if "continued after" in note.text] == []


@pytest.mark.parametrize("order", [StopRequest, DrainNotification])
def test_law_14_a_start_that_never_came_to_its_undo_hands_it_on(order: type[Command]) -> None:
    """Ended before its query started: the next start undoes the sink."""
    for drained in (False, True):
        if order is DrainNotification and not drained:
            continue  # there is state: it is undone and flushed
        story = Story(drained=drained, undo_needs_query_id=True)
        story.back()
        story.stream.order(order, "d-0003")

        def starts_late(driver: SimulatedDriver, story: Story = story) -> None:
            driver.clock.sleep(10.0)
            driver.start(story.with_bounds(11))
            driver.await_all()

        assert story.stream.run(starts_late, "d-0003") == 0
        assert story.stream.events_of(Undone, "d-0003") == []
        ends = [event for event in story.stream.events("d-0003") if isinstance(event, Stopped | Drained)]
        start = StartPlan(story.mode, ends[0].snapshot_id, "d-0003")  # type: ignore[arg-type]
        story.stream.deploy(4, start)
        story.runs_to_its_end("d-0004")
        (undone,) = story.stream.events_of(Undone, "d-0004")
        assert (undone.first_batch_id, undone.last_batch_id) == (story.good + 1, story.bad)
        assert story.query_id_of("d-0004") != story.query_id_of("d-0001")


def test_a_bad_version_that_planned_nothing_needs_no_undo() -> None:
    """For any sink."""
    story = Story(bad_runs=False, undo_means="only doubled")
    story.back()
    story.runs_to_its_end()
    assert story.stream.events_of(Undone, "d-0003") == []


def test_law_14_a_planned_batch_of_the_snapshot_is_taken_out_and_runs_again_over_its_bounds(
    stream: SimulatedStream,
) -> None:
    """Its sink may hold it, by a driver that died before the commit, and by the bad version. (1a.6)"""
    plan = make_plan(240)

    def dies_before_a_commit(driver: SimulatedDriver) -> None:
        def die(run: SimulatedRun, phase: str) -> None:
            if phase == "commit" and run.next_batch_id == 3:
                driver.kill()

        query = driver.start(plan)
        driver.startables[0].before_phase = die
        query.await_termination()

    assert stream.run(dies_before_a_commit) is None
    assert plan.sink.holds(3)
    position = stream.take_over().queries[NAME].position
    assert (position.batch_id, position.planned_batch_id) == (2, 3)
    story = Story.__new__(Story)
    story.stream, story.plan, story.mode, story.snapshot_id = stream, plan, "restore", "d-0001-stopped-000001"
    stream.deploy(2, StartPlan("restore", story.snapshot_id, "d-0001"))
    stream.order_at(3.0, StopRequest, "d-0002")
    assert stream.run(waiting_script(story.with_bounds(7)), "d-0002") == 0
    story.back()
    story.runs_to_its_end()
    (undone,) = stream.events_of(Undone, "d-0003")
    assert (undone.to_batch_id, undone.first_batch_id) == (2, 3)
    (started,) = stream.events_of(QueryStarted, "d-0003")
    assert started.planned_batch_id == 3


def test_law_14_building_without_an_undo_touches_no_sink() -> None:
    """As a rehearsal builds it."""
    story = Story()
    story.back()
    held = list(story.plan.sink.batches)
    driver = SimulatedDriver(story.stream, "d-0003")
    built = Builder(driver.attempt_life.attempt).ensure(NAME, driver.startable_of(story.with_bounds(11)))
    assert built.how == "restored"
    assert story.plan.sink.batches == held
    assert story.stream.events_of(Undoing, "d-0003") == []


@pytest.mark.parametrize(
    ("means", "choices", "said"),
    [
        ("only doubled", {}, "cannot be undone"),
        ("by command", {}, "only you can"),
        ("by command", {"accept_duplicates": True}, "only you can"),
        ("unknown", {"accept_duplicates": True}, "only you can"),
    ],
)
def test_law_14_what_cannot_be_undone_is_refused_with_the_choices(
    means: str, choices: dict[str, object], said: str
) -> None:
    """Nothing is built, nothing is touched; what may be skipped is not saved by accepting duplicates."""
    story = Story(undo_means=means)
    held = list(story.plan.sink.batches)
    story.back(**choices)

    def script(driver: SimulatedDriver) -> None:
        with pytest.raises(InvalidRequestError, match=said) as caught:
            driver.start(story.with_bounds(11))
        assert "--accept-duplicates" in caught.value.next_step or "--undo-command" in caught.value.next_step
        raise caught.value

    assert story.stream.run(script, "d-0003") == 1
    assert story.plan.sink.batches == held
    assert said in story.stream.events_of(Failed, "d-0003")[0].error
    assert not list(story.stream.checkpoints.list_objects(f"{STREAM}/deployments/d-0003/checkpoints/"))


def test_duplicates_that_were_accepted_by_name_are_told() -> None:
    """On a sink that takes everything again: none is lost, and the event reports which batches come again."""
    story = Story(mode="append")
    story.back(accept_duplicates=True)
    plan = story.with_bounds(11)
    story.stream.order_at(60.0, DrainNotification, "d-0003")
    assert story.stream.run(waiting_script(plan), "d-0003") == 0
    (undone,) = story.stream.events_of(Undone, "d-0003")
    assert (undone.means, undone.first_batch_id, undone.last_batch_id) == ("doubled", story.good + 1, story.bad)
    found = plan.sink.counts()
    assert sum(found.values()) > len(plan.sources[0].rows)


@pytest.mark.parametrize("keeps_log", [True, False])
def test_how_many_rows_come_again_is_told_where_the_sources_can_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps_log: bool
) -> None:
    """Those that the abandoned version had read; where its log is gone, all that is there, at the most."""
    install_connector(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    story = Story(mode="append", undo_means="only doubled", is_known=True)
    read = story.last_source.reads[-1][1]
    kept = story.stream.events_of(Stopped)[0].queries[NAME].end_offsets
    if not keeps_log:
        folder = layout.checkpoint_folder(STREAM, "d-0002", NAME)
        for info in list(story.stream.checkpoints.list_objects(f"{folder}/")):
            story.stream.checkpoints.delete(info.key)
    story.back(accept_duplicates=True)
    story.stream.order_at(60.0, DrainNotification, "d-0003")
    assert story.stream.run(waiting_script(story.with_bounds(11)), "d-0003") == 0
    (undone,) = story.stream.events_of(Undone, "d-0003")
    upto = read if keeps_log else 240
    assert undone.rows_again == upto - index_in(kept[0])
    assert any(f"at most {undone.rows_again:,} rows of input are written again" in line for line in story.stream.said)


COMMAND = """
import json, os, sys
path = sys.argv[1]
asked = {name[len("STREAMSTATE_UNDO_"):]: value for name, value in os.environ.items() if "STREAMSTATE_UNDO_" in name}
open(path, "a").write(json.dumps(asked) + "\\n")
print("said by the command")
raise SystemExit(int(sys.argv[2]))
"""


def test_the_users_command_is_asked_with_what_it_needs_and_no_shell_reads_it(tmp_path: Path) -> None:
    """Its arguments as they were given; what it prints is in the driver's log."""
    story = Story(undo_means="by command")
    asked = tmp_path / "a sked; $(true)"
    command = (sys.executable, "-c", COMMAND, str(asked), "0")
    story.back(undo_command=command)
    story.plan.sink.batches[:] = story.rows_then  # what such a command does
    story.runs_to_its_end()
    (line,) = asked.read_text().splitlines()
    assert json.loads(line) == {
        "STREAM_ID": STREAM,
        "QUERY_NAME": NAME,
        "TO_BATCH_ID": str(story.good),
        "LAST_BATCH_ID": str(story.bad),
    }
    assert any("undo command: said by the command" in said for said in story.stream.said)
    assert story.stream.events_of(Undone, "d-0003")[0].means == "command"


@pytest.mark.parametrize("command", [(sys.executable, "-c", COMMAND, "/dev/null", "7"), ("/no/such/command",)])
def test_a_command_that_fails_fails_the_start_and_runs_again(command: tuple[str, ...]) -> None:
    """One sentence with its exit status; nothing is built."""
    story = Story(undo_means="by command")
    story.back(undo_command=command)

    def script(driver: SimulatedDriver) -> None:
        with pytest.raises(ConflictError, match="did not succeed"):
            driver.start(story.with_bounds(11))

    for attempt in (1, 2):
        story.stream.run(script, "d-0003", attempt)
        assert len(story.stream.events_of(Undoing, "d-0003")) == attempt
        story.stream.next_attempt("d-0003")
    assert story.stream.events_of(Undone, "d-0003") == []


def test_law_14_a_flush_without_a_run_is_undone_first() -> None:
    """A drain that was ordered before the query started flushes into a sink without the bad rows."""
    story = Story()
    story.back()
    story.stream.order(DrainNotification, "d-0003")
    assert story.stream.run(waiting_script(story.with_bounds(11)), "d-0003") == 0
    assert story.stream.events_of(Drained, "d-0003")
    assert story.stream.events_of(Undone, "d-0003")[0].last_batch_id == story.bad
    assert [batch_id for batch_id, _ in story.plan.sink.batches] == list(range(story.good + 2))


def fed_by_another(story: Story, deployment_id: str) -> None:
    """In this deployment ``landed`` wrote what the query reads, which it does in the bad version in any case."""
    source = replace(plan().sources[0], format="json", adapter="file", identity="file /landed")
    sink = PlannedSink("file:json", "json", "/landed", "file", "batch_id")
    control = story.stream.control
    keep_plan(control, deployment_id, "landed", plan(sink=sink))
    keep_plan(control, "d-0002", NAME, plan(sources=(source,)))
    (started, *_) = story.stream.events_of(QueryStarted, deployment_id)
    control.journal(deployment_id).append(replace(started, query_name="landed"))


def test_a_query_that_feeds_it_no_more_is_not_waited_for() -> None:
    """The bad version had dropped it, so nothing of it is undone, and the script may not start it at all."""
    story = Story()
    fed_by_another(story, "d-0001")
    story.back()
    story.runs_to_its_end()
    assert story.stream.events_of(Undone, "d-0003")


@pytest.mark.parametrize("was_refused", [False, True])
def test_a_query_is_not_started_before_what_feeds_it_was_undone(was_refused: bool) -> None:
    """Refused, with the queries to start first (Law 14); also where their plans are not recorded."""
    story = Story()
    fed_by_another(story, "d-0001" if was_refused else "d-0002")
    if was_refused:
        folder = layout.checkpoint_folder(STREAM, "d-0002", "landed")
        story.stream.checkpoints.put(f"{folder}/metadata", json.dumps({"id": "landed"}).encode())
    story.back()
    held = list(story.plan.sink.batches)
    assert story.stream.run(waiting_script(story.with_bounds(11)), "d-0003") == 1
    (failed,) = story.stream.events_of(Failed, "d-0003")
    assert 'fed_by=["landed"]' in failed.error
    assert story.plan.sink.batches == held
