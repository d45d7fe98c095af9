"""The phase of a drain, per query, as ``status`` shows it."""

from __future__ import annotations

from airflow_streamstate.protocol.events import Drained, DrainFailed, Draining, Rejected, Stopped
from airflow_streamstate.protocol.positions import QueryBeat, QueryPosition
from support.sim_stage import STREAM, Stage


def phases(stage: Stage) -> dict[str, object]:
    queries = stage.controller.status(STREAM).to_json()["queries"]
    return {name: query["drain_phase"] for name, query in queries.items()}


def begin(stage: Stage) -> str:
    """Two queries run, and the deployment has accepted a drain; its id."""
    stage.deploy()
    stage.come_to_life(queries=("counts", "sums"))
    stage.beat(counts=QueryBeat(4, None, True), sums=QueryBeat(None, None, True))
    command_id = stage.controller.order("drain", STREAM).command_id
    assert phases(stage) == {"counts": None, "sums": None}
    stage.accept(stage.drain_of())
    return command_id


def test_each_query_is_accepted_then_flushing_then_drained(stage: Stage) -> None:
    """Status shows per query the phase of a drain: accepted, flushing, drained (1a.5)."""
    command_id = begin(stage)
    assert phases(stage) == {"counts": "accepted", "sums": "accepted"}
    ids = {"counts": 5, "sums": 2}
    stage.say(Draining, command_id=command_id, snapshot_id="d-0001-pre-drain-000001", flush_batch_ids=ids)
    assert phases(stage) == {"counts": "flushing", "sums": "flushing"}
    ends = {name: QueryPosition(batch_id) for name, batch_id in ids.items()}
    stage.say(Drained, command_id=command_id, command_number=1, snapshot_id="s", queries=ends)
    assert phases(stage) == {"counts": "drained", "sums": "drained"}


def test_a_query_without_a_batch_has_nothing_to_flush(stage: Stage) -> None:
    """What is not flushed is not called flushing, nor drained at the end (Law 16)."""
    command_id = begin(stage)
    stage.say(Draining, command_id=command_id, snapshot_id="s", flush_batch_ids={"counts": 5})
    assert phases(stage) == {"counts": "flushing", "sums": "accepted"}
    ends = {"counts": QueryPosition(5), "sums": QueryPosition(None)}
    stage.say(Drained, command_id=command_id, command_number=1, snapshot_id="s", queries=ends)
    assert phases(stage) == {"counts": "drained", "sums": None}


def test_a_drain_goes_on_in_the_next_attempt(stage: Stage) -> None:
    """A driver killed in the flush does not change the phase of the drain (1a.7)."""
    command_id = begin(stage)
    stage.say(Draining, command_id=command_id, snapshot_id="s", flush_batch_ids={"counts": 5, "sums": 2})
    stage.end(state="gone")
    stage.controller.resume(STREAM)
    stage.come_to_life(attempt=2)
    assert phases(stage) == {"counts": "flushing", "sums": "flushing"}


def test_the_query_that_a_drain_failed_at_is_named(stage: Stage) -> None:
    """Of two flushes one failed and was withdrawn: the other one is committed, and reported it (Law 13)."""
    command_id = begin(stage)
    stage.say(Draining, command_id=command_id, snapshot_id="s", flush_batch_ids={"counts": 5, "sums": 2})
    stage.say(
        DrainFailed, command_id=command_id, command_number=1, query_name="sums", error="disk full", withdrawn=True
    )
    ends = {"counts": QueryPosition(5), "sums": QueryPosition(1, planned_batch_id=2)}
    stage.say(Stopped, snapshot_id="s", queries=ends)
    assert phases(stage) == {"counts": "drained", "sums": "failed"}


def test_a_drain_that_was_rejected_or_is_over_leaves_nothing(stage: Stage) -> None:
    """A deployment that runs on after a drain is not shown as draining (1a.13)."""
    command_id = begin(stage)
    stage.say(Rejected, command_id=command_id, command_number=1, key="", reason="memory sink")
    assert phases(stage) == {"counts": None, "sums": None}
    stage.say(DrainFailed, command_id=command_id, command_number=1, query_name="sums", error="e", withdrawn=True)
    stage.say(Stopped, snapshot_id="s", queries={"sums": QueryPosition(1)})
    stage.end()
    stage.controller.resume(STREAM)
    stage.come_to_life(attempt=2)
    assert phases(stage)["sums"] is None
