"""Taking over: fence, then capture; twice, or by two, is once."""

from __future__ import annotations

import dataclasses

import pytest

from airflow_streamstate.checkpoint.repair import repair_before_start
from airflow_streamstate.controller.deploy.takeover import built_checkpoints, has_committed, take_over
from airflow_streamstate.errors import DataError, SnapshotNotFoundError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import QueryStarted, SnapshotReady
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.positions import SourceIdentity
from support.sim_stage import STREAM, Stage


def taken(stage: Stage, request_id: str = "r-1", deployment_id: str = "d-0001") -> SnapshotManifest:
    """Take over from a deployment."""
    return take_over(
        stage.home,
        stage.control,
        stage.seen(),
        f"{deployment_id}-stopped-000001",
        request_id,
        may_discard=False,
        still_ours=lambda: None,
    )


def dead(stage: Stage) -> None:
    """d-0001 died after batch 3."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    stage.end(state="gone")


def test_two_takeovers_are_one(stage: Stage) -> None:
    """The snapshot of one end has one id: the second finds the first's, and one fence is enough. (Law 2)"""
    dead(stage)
    assert taken(stage) == taken(stage, "r-2")
    assert len(stage.checkpoint().position().barriers) == 1


def test_a_takeover_that_was_given_up_does_not_stand_in_the_way(stage: Stage) -> None:
    """A resume after an abandoned takeover removes the fence and goes on. (1a.7)"""
    dead(stage)
    taken(stage)
    report = repair_before_start(stage.checkpoint(), "d-0001")
    assert (report.run, report.batch_id) == ("normal", 3)
    assert stage.checkpoint().position().barriers == ()


def test_half_built_checkpoints_are_nothing_yet(stage: Stage) -> None:
    """A checkpoint without metadata was never put in its place, and is not fenced. (1a.10)"""
    dead(stage)
    half = stage.checkpoint("other")
    stage.store.put(half.offset_key(0), b"v1\n{}\n-")
    assert list(built_checkpoints(stage.home, stage.seen())) == ["counts"]


def test_a_damaged_log_stops_the_takeover(stage: Stage) -> None:
    """A log that contradicts itself is not captured as if it were whole. (Law 5)"""
    dead(stage)
    stage.store.delete(stage.checkpoint().offset_key(3))
    with pytest.raises(DataError):
        taken(stage)
    assert stage.control.manifest("d-0001-stopped-000001") is None
    assert stage.deploy("print('v2')\n", start="fresh").start.mode == "fresh"


def test_a_commit_of_its_own_is_one_beyond_the_start(stage: Stage) -> None:
    """What a deployment was restored with is not its own work. (Law 2)"""
    stage.deploy()
    stage.stopped()
    stage.deploy("print('v2')\n")
    stage.run_batches(3, deployment_id="d-0002")
    assert not has_committed(stage.home, stage.control, stage.seen())
    stage.run_batches(4, deployment_id="d-0002")
    assert has_committed(stage.home, stage.control, stage.seen())


def test_whose_the_offsets_are_is_kept_of_a_dead_driver_too(stage: Stage) -> None:
    """A topic that was made anew is often why it died: its successor is told by the marks of the last start. (Law 5)"""
    dead(stage)
    before = SourceIdentity("kafka", "kafka subscribe flights", 0, {"topic_id flights": "T1"})
    started = next(iter(stage.seen().of_kind(QueryStarted)))
    fields = {field.name: getattr(started, field.name) for field in dataclasses.fields(QueryStarted)}
    own = {name: fields[name] for name in fields if name not in {field.name for field in dataclasses.fields(Event)}}
    stage.say(QueryStarted, **{**own, "identities": (before,)})
    stage.say(QueryStarted, **own)
    assert taken(stage).queries["counts"].identities == (before,)


def test_the_newest_snapshot_knows_whose_the_offsets_of_a_dead_driver_are(stage: Stage) -> None:
    """Of a topic that was made anew under it, its start knows nothing. (Law 5)"""
    test_whose_the_offsets_are_is_kept_of_a_dead_driver_too(stage)
    anew = SourceIdentity("kafka", "kafka subscribe flights", 0, {"topic_id flights": "T2"})
    manifest = stage.keep("live", attempt=7, identities=(anew,))
    positions = {name: query.position for name, query in manifest.queries.items()}
    stage.say(SnapshotReady, snapshot_id=manifest.snapshot_id, snapshot_kind="live", queries=positions)
    stage.run_batches(5)
    other = take_over(
        stage.home,
        stage.control,
        stage.seen(),
        "d-0001-stopped-000002",
        "r-2",
        may_discard=False,
        still_ours=lambda: None,
    )
    assert other.queries["counts"].identities == (anew,)


def test_whose_the_offsets_are_is_kept_of_a_driver_that_died_before_it_said_it(stage: Stage) -> None:
    """Its checkpoint was built of a snapshot that knows: without, its successor's sources would go by place. (Law 5)"""
    test_whose_the_offsets_are_is_kept_of_a_dead_driver_too(stage)
    stage.deploy("print('v2')\n")
    stage.run_batches(3, deployment_id="d-0002")
    stage.end(state="gone")
    (kept,) = taken(stage, "r-2", "d-0002").queries["counts"].identities
    assert kept.marks == {"topic_id flights": "T1"}


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_checkpoint_of_its_own_misses_no_start_snapshot(stage: Stage, is_damaged: bool) -> None:
    """It was built whole; what it was built of may be gone, or damaged. Without any there is nothing to take. (Laws 5
    and 7)"""
    stage.deploy()
    stage.stopped()
    stage.deploy("print('v2')\n")
    key = layout.manifest_key(STREAM, "d-0001-stopped-000001")
    if is_damaged:
        stage.store.put(key, b'{"kind": "SnapshotManifest", "pro')
    else:
        stage.store.delete(key)
    with pytest.raises(DataError if is_damaged else SnapshotNotFoundError):
        taken(stage, "r-2", "d-0002")
    stage.come_to_life("d-0002", queries=("counts",))
    stage.run_batches(5, deployment_id="d-0002")
    stage.end("d-0002", state="gone")
    assert taken(stage, "r-2", "d-0002").queries["counts"].position.batch_id == 5
