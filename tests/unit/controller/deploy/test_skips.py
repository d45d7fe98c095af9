"""Skipping a batch that always fails: the skipped input, and the order for it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.deploy.skips import SkipOrder, SkipView
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import ConflictError, InvalidRequestError, StreamStateError
from airflow_streamstate.launch.interface import LaunchRequest
from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL, to_json
from airflow_streamstate.protocol.commands import SkipRequest
from airflow_streamstate.protocol.events import Accepted, Failed, Skipped
from airflow_streamstate.protocol.positions import SourceMove
from airflow_streamstate.protocol.terms.order import SkipTerms
from support.checkpoints import HookedStore, commit_batch, plan_batch
from support.examples import example
from support.faulty_store import KILL_POINTS, Fault, FaultPlan, FaultyStore, SimulatedCrash
from support.sim_stage import STREAM, Stage

pytestmark = pytest.mark.fast

ORDER = SkipOrder(STREAM, SkipTerms(4), "a bad row")
MOVE = SourceMove("file /in", '{"logOffset":3}', '{"logOffset":4}', 1, 0, "files")


def failed(stage: Stage, *names: str) -> None:
    """A deployment whose queries have committed batch 3 and planned batch 4, and that failed."""
    stage.deploy()
    stage.come_to_life(queries=names or ("counts",))
    for name in names or ("counts",):
        plan_batch(stage.run_batches(3, name), 4)
    stage.say(Failed, error="ValueError: bad row")
    stage.end()


def test_what_is_passed_over_is_shown_and_nothing_is_changed(stage: Stage) -> None:
    """The offsets between the last committed batch and the planned one, of each source."""
    failed(stage)
    view = stage.controller.skips.look(ORDER)
    assert (view.query_name, view.batch_id) == ("counts", 4)
    assert [(move.from_offset != move.to_offset, move.source) for move in view.moves] == [(True, "source 0")]
    assert stage.control.journal("d-0001").commands() == []
    assert stage.seen().attempt == 1


def test_the_order_is_recorded_before_the_attempt_that_does_it_starts(stage: Stage) -> None:
    """What is skipped is reported before anything is recorded; the same request again is the same order. (Laws 1, 2)"""
    failed(stage)
    said: list[SkipView] = []

    def say(view: SkipView) -> None:
        assert stage.control.journal("d-0001").commands() == []
        said.append(view)

    order = stage.controller.skips.skip(ORDER, "r-1", say)
    assert (order.state, order.verb) == ("launching", "skip")
    (slot,) = stage.control.journal("d-0001").commands()
    assert isinstance(slot.command, SkipRequest)
    assert (slot.command.query_name, slot.command.batch_id, slot.command.reason) == ("counts", 4, "a bad row")
    assert stage.seen().attempt == 2
    again = stage.controller.skips.skip(ORDER, "r-1", say)
    assert again.command_id == order.command_id
    assert len(stage.control.journal("d-0001").commands()) == 1
    assert len(said) == 1
    with pytest.raises(ConflictError, match="used for something else"):
        stage.controller.skips.skip(SkipOrder(STREAM, SkipTerms(5), "another"), "r-1")


@pytest.mark.parametrize("fault", KILL_POINTS)
def test_the_controller_of_a_skip_may_die_anywhere_and_ask_again(tmp_path: Path, fault: Fault) -> None:
    """At each call of the store, reads too: one order, one attempt that does it, launched once. (Laws 2 and 8)"""
    for number in count(1):
        folder = tmp_path / str(number)
        folder.mkdir()
        stage = Stage(folder)
        failed(stage)
        plan = FaultPlan({number: fault})
        store = FaultyStore(stage.store, plan)
        mortal = Controller(Home.of(store, store, folder, stage.clock), stage.launcher, stage.clock, "dies")
        with suppress(SimulatedCrash, StreamStateError):
            mortal.skips.skip(ORDER, "r-1")
        order = stage.controller.skips.skip(ORDER, "r-1")
        (slot,) = stage.control.journal("d-0001").commands()
        assert slot.command is not None
        assert (order.command_id, stage.seen().attempt) == (slot.command.command_id, 2), number
        assert not stage.seen().is_unlaunched
        launches = [call for call in stage.launcher.calls if call.startswith("launch ")]
        assert len(set(launches)) == len(launches) == 2, number
        if number > len(plan.calls):
            return


def test_an_order_whose_driver_died_before_it_could_tell_goes_on(stage: Stage) -> None:
    """The batch is committed without its rows; asked again, the attempt is started that reports it. (Law 2)"""
    failed(stage)
    order = stage.controller.skips.skip(ORDER, "r-1")
    (slot,) = stage.control.journal("d-0001").commands()
    assert slot.command is not None
    stage.come_to_life(attempt=2)
    fields = {"command_id": order.command_id, "command_number": 1, "command": to_json(slot.command)}
    stage.say(Accepted, attempt=2, **fields)
    commit_batch(stage.run_batches(3, "counts"), 4)
    stage.say(Failed, attempt=2, error="the machine went away")
    stage.end(attempt=2)
    with pytest.raises(InvalidRequestError, match="no query has this batch planned"):
        stage.controller.skips.skip(ORDER, "r-2")
    said: list[SkipView] = []
    assert stage.controller.skips.skip(ORDER, "r-1", said.append).command_id == order.command_id
    assert stage.seen().attempt == 3
    assert [(view.query_name, view.batch_id, len(view.moves)) for view in said] == [("counts", 4, 1)]


def test_the_wait_ends_with_what_became_of_it(stage: Stage) -> None:
    """Skipped; or rejected, with the reason of the driver, which alone can ask the sink."""
    failed(stage)
    order = stage.controller.skips.skip(ORDER, "r-1")
    stage.come_to_life(attempt=2, queries=("counts",))
    fields = {"command_id": order.command_id, "command_number": 1}
    stage.say(
        Skipped, attempt=2, query_name="counts", batch_id=4, moves=(MOVE,), requested_by="a", reason="b", **fields
    )
    outcome = stage.controller.wait(WaitCondition.of(order), 5).end
    assert (outcome.outcome, outcome.state, outcome.reason) == ("skipped", "running", "b")
    (told,) = stage.controller.status(STREAM).to_json()["moves"]  # type: ignore[misc]
    assert (told["query"], told["batch_id"], told["skipped"], told["reason"]) == ("counts", 4, True, "b")
    assert told["moves"][0]["passed_over"] == 1
    assert stage.controller.skips.skip(ORDER, "r-1").outcome is not None


def test_of_two_skips_of_one_batch_at_once_the_second_is_withdrawn(stage: Stage) -> None:
    """The refused one leaves no order that an attempt could carry out, and is refused again when repeated. (Law 2)"""
    failed(stage)
    fields = {"deployment_id": "d-0001", "query_name": "counts", "batch_id": 4, "reason": "of another"}
    journal, second = stage.control.journal("d-0001"), SkipOrder(STREAM, SkipTerms(4, accept_written_rows=True), "mine")

    def first(_view: SkipView) -> None:
        journal.write_command(replace(example(SkipRequest), **fields), NEWEST_PROTOCOL)

    with pytest.raises(ConflictError, match="another skip of this query was asked for first"):
        stage.controller.skips.skip(second, "r-2", first)
    assert [slot.command.reason for slot in journal.commands() if slot.command is not None] == ["of another"]
    assert stage.seen().attempt == 1
    for request_id in ("r-2", "r-3"):
        with pytest.raises(ConflictError, match="asked for first"):
            stage.controller.skips.skip(second, request_id)
    assert stage.control.request("r-3") is None
    stage.controller.resume(STREAM)
    stage.come_to_life(attempt=2)
    with pytest.raises(ConflictError, match="the stream is running"):
        stage.controller.skips.skip(second, "r-2")
    assert [slot.command.reason for slot in journal.commands() if slot.command is not None] == ["of another"]


@pytest.mark.parametrize("other", ["resume", "skip"])
def test_another_controller_may_come_in_between_anywhere(tmp_path: Path, other: str) -> None:
    """Before each call of the store: a refused skip leaves no order, another one leaves its own. (Law 2)"""
    for number in count(1):
        store = HookedStore()
        stage = Stage(tmp_path, store)
        failed(stage)
        calls, came = count(1), list[str]()

        def come(
            _verb: str, _key: str, stage: Stage = stage, calls: Any = calls, came: Any = came, at: int = number
        ) -> None:
            if next(calls) != at:
                return
            second = stage.another_controller()
            try:
                order = second.resume(STREAM) if other == "resume" else second.skips.skip(ORDER, "r-2")
            except ConflictError:
                return
            came.append(getattr(order, "command_id", ""))

        store.before = come
        try:
            mine = [stage.controller.skips.skip(ORDER, "r-1").command_id]
        except ConflictError:
            mine = []
        store.before = None
        left = [slot.command.command_id for slot in stage.control.journal("d-0001").commands() if slot.command]
        assert sorted(left) == sorted([*mine, *filter(None, came)]), number
        assert len(left) <= 1
        assert stage.seen().attempt == 2
        if next(calls) <= number:
            return


def test_an_order_without_an_attempt_is_withdrawn(stage: Stage) -> None:
    """The stream was retired in the meantime: a revived one does not carry out a refused order. (Law 2)"""
    failed(stage)
    checks = count(1)

    def check(_request: LaunchRequest) -> None:
        if next(checks) == 2:  # between the order and the launch
            stage.another_controller().retention.retire(STREAM)

    stage.launcher.check = check  # type: ignore[method-assign]
    with pytest.raises(ConflictError):
        stage.controller.skips.skip(ORDER, "r-1")
    assert stage.control.journal("d-0001").commands() == []
    assert stage.seen().attempt == 1


@pytest.mark.parametrize("was_done", [True, False])
def test_the_same_request_behind_a_newer_deployment(stage: Stage, was_done: bool) -> None:
    """What was done is reported, whatever came since; what was not done is refused for another version. (Law 2)"""
    failed(stage)
    order = stage.controller.skips.skip(ORDER, "r-1")
    fields = {"command_id": order.command_id, "command_number": 1, "query_name": "counts", "batch_id": 4}
    stage.come_to_life(attempt=2, queries=("counts",))
    if was_done:
        stage.say(Skipped, attempt=2, moves=(MOVE,), requested_by="a", reason="b", **fields)
    stage.say(Failed, attempt=2, error="ValueError: another bad row")
    stage.end(attempt=2)
    newer = stage.deploy("print('v2')\n").deployment_id
    stage.come_to_life(newer, queries=("counts",))
    if was_done:
        again = stage.controller.skips.skip(ORDER, "r-1")
        assert again.deployment_id == "d-0001"
        assert again.outcome is not None
        assert again.outcome.outcome == "skipped"
    else:
        with pytest.raises(ConflictError, match="a newer deployment is current"):
            stage.controller.skips.skip(ORDER, "r-1")


def test_what_is_not_planned_is_refused_with_what_is(stage: Stage) -> None:
    """Nothing is recorded, and nothing is started."""
    failed(stage)
    with pytest.raises(InvalidRequestError, match="no query has this batch planned") as refused:
        stage.controller.skips.skip(SkipOrder(STREAM, SkipTerms(3), "x"))
    assert refused.value.context["planned"] == {"counts": "batch 4"}
    with pytest.raises(InvalidRequestError, match="no query has this batch planned"):
        stage.controller.skips.skip(SkipOrder(STREAM, SkipTerms(4, "other"), "x"))
    with pytest.raises(InvalidRequestError, match="needs a reason"):
        SkipOrder(STREAM, SkipTerms(4), " ")
    assert stage.seen().attempt == 1


def test_which_query_is_said_where_several_have_it(stage: Stage) -> None:
    """Never guessed."""
    failed(stage, "counts", "other")
    with pytest.raises(InvalidRequestError, match="several queries have this batch planned"):
        stage.controller.skips.look(ORDER)
    assert stage.controller.skips.look(SkipOrder(STREAM, SkipTerms(4, "other"), "x")).query_name == "other"


def test_a_stream_that_runs_is_not_touched(running: Stage) -> None:
    """Spark may be running the batch. (Law 11)"""
    plan_batch(running.checkpoint(), 4)
    with pytest.raises(ConflictError, match="the stream is running"):
        running.controller.skips.skip(ORDER)
    assert running.control.journal("d-0001").commands() == []
