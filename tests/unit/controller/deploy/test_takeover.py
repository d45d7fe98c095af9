"""Taking over: fence, then capture; repeated, or by two controllers, it is one takeover."""

from __future__ import annotations

import dataclasses

import pytest

from airflow_streamstate.checkpoint.repair import repair_before_start
from airflow_streamstate.controller.deploy.takeover import (
    ResumedError,
    StillOurs,
    built_checkpoints,
    has_committed,
    take_over,
)
from airflow_streamstate.errors import DataError, SnapshotNotFoundError, VersionConflictError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Event, QueryStarted, SnapshotReady
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.positions import SourceIdentity
from support.sim_stage import STREAM, Stage


def taken(
    stage: Stage, request_id: str = "r-1", deployment_id: str = "d-0001", still_ours: StillOurs = lambda: None
) -> SnapshotManifest:
    """Take over from a deployment."""
    return take_over(
        stage.home,
        stage.control,
        stage.seen(),
        f"{deployment_id}-stopped-000001",
        request_id,
        may_discard=False,
        still_ours=still_ours,
    )


def test_two_takeovers_are_one(dead: Stage) -> None:
    """The snapshot of one end has one id: the second finds the first's, and one fence is enough. (Law 2)"""
    assert taken(dead) == taken(dead, "r-2")
    assert len(dead.checkpoint().position().barriers) == 1


def test_a_takeover_that_was_given_up_does_not_stand_in_the_way(dead: Stage) -> None:
    """A resume after an abandoned takeover removes the fence and continues. (1a.7)"""
    taken(dead)
    report = repair_before_start(dead.checkpoint(), "d-0001")
    assert (report.run, report.batch_id) == ("normal", 3)
    assert dead.checkpoint().position().barriers == ()


@pytest.mark.parametrize(
    ("error", "looks", "fences"),
    [
        (VersionConflictError, 0, 0),  # the register had moved before the fence
        (VersionConflictError, 1, 1),  # a successor may have taken the fence for its own
        (ResumedError, 1, 0),  # a newer attempt of the same deployment would meet it
    ],
)
def test_a_controller_that_has_lost_the_stream_fences_nobody_else(
    dead: Stage, error: type[VersionConflictError], looks: int, fences: int
) -> None:
    """A fence would end an attempt that was started in the meantime, or make it pass over a batch. (Law 4, 1a.2)"""
    left = iter([None] * looks)

    def still_ours() -> None:
        if next(left, error) is error:
            raise error("another writer moved the stream")

    with pytest.raises(error):
        taken(dead, still_ours=still_ours)
    assert len(dead.checkpoint().position().barriers) == fences
    assert dead.control.manifest("d-0001-stopped-000001") is None


def test_half_built_checkpoints_are_nothing_yet(dead: Stage) -> None:
    """A checkpoint without metadata was never put in its place, and is not fenced. (1a.10)"""
    half = dead.checkpoint("other")
    dead.store.put(half.offset_key(0), b"v1\n{}\n-")
    assert list(built_checkpoints(dead.home, dead.seen())) == ["counts"]


def test_a_damaged_log_stops_the_takeover(dead: Stage) -> None:
    """A log that contradicts itself is not captured as if it were whole. (Law 5)"""
    dead.store.delete(dead.checkpoint().offset_key(3))
    with pytest.raises(DataError):
        taken(dead)
    assert dead.control.manifest("d-0001-stopped-000001") is None
    assert dead.deploy("print('v2')\n", start="fresh").start.mode == "fresh"


def test_a_commit_of_its_own_is_one_beyond_the_start(redeployed: Stage) -> None:
    """What a deployment was restored with is not its own work. (Law 2)"""
    redeployed.run_batches(3, deployment_id="d-0002")
    assert not has_committed(redeployed.home, redeployed.control, redeployed.seen())
    redeployed.run_batches(4, deployment_id="d-0002")
    assert has_committed(redeployed.home, redeployed.control, redeployed.seen())


def of_topic(topic_id: str) -> SourceIdentity:
    return SourceIdentity("kafka", "kafka subscribe flights", 0, {"topic_id flights": topic_id})


@pytest.fixture
def marked(dead: Stage) -> Stage:
    """The dead d-0001 reported once which topic its offsets belong to, and not at its last start."""
    started = next(iter(dead.seen().of_kind(QueryStarted)))
    own = {field.name for field in dataclasses.fields(QueryStarted)} - {f.name for f in dataclasses.fields(Event)}
    fields = {name: getattr(started, name) for name in own}
    dead.say(QueryStarted, **{**fields, "identities": (of_topic("T1"),)})
    dead.say(QueryStarted, **fields)
    return dead


def test_the_identity_of_a_source_is_kept_after_a_crash(marked: Stage) -> None:
    """A recreated topic often is the cause of the crash: the last start with marks shows which one it was. (Law 5)"""
    assert taken(marked).queries["counts"].identities == (of_topic("T1"),)


def test_the_newest_snapshot_knows_the_identity_of_a_source(marked: Stage) -> None:
    """A topic that was recreated under the running query is not in the events of its start. (Law 5)"""
    manifest = marked.keep("live", attempt=7, identities=(of_topic("T2"),))
    positions = {name: query.position for name, query in manifest.queries.items()}
    marked.say(SnapshotReady, snapshot_id=manifest.snapshot_id, snapshot_kind="live", queries=positions)
    marked.run_batches(5)
    assert taken(marked).queries["counts"].identities == (of_topic("T2"),)


def test_the_identity_of_a_source_is_kept_after_a_crash_before_its_first_event(marked: Stage) -> None:
    """The snapshot that the checkpoint was built from knows it; without, sources would be matched by place. (Law 5)"""
    taken(marked)
    marked.deploy("print('v2')\n")
    marked.run_batches(3, deployment_id="d-0002")
    marked.end(state="gone")
    (kept,) = taken(marked, "r-2", "d-0002").queries["counts"].identities
    assert kept.marks == {"topic_id flights": "T1"}


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_checkpoint_of_its_own_misses_no_start_snapshot(redeployed: Stage, is_damaged: bool) -> None:
    """A takeover needs the checkpoint, or else the snapshot that it would be built from. (Laws 5 and 7)"""
    key = layout.manifest_key(STREAM, "d-0001-stopped-000001")
    if is_damaged:
        redeployed.store.put(key, b'{"kind": "SnapshotManifest", "pro')
    else:
        redeployed.store.delete(key)
    with pytest.raises(DataError if is_damaged else SnapshotNotFoundError):
        taken(redeployed, "r-2", "d-0002")
    redeployed.come_to_life("d-0002", queries=("counts",))
    redeployed.run_batches(5, deployment_id="d-0002")
    redeployed.end("d-0002", state="gone")
    assert taken(redeployed, "r-2", "d-0002").queries["counts"].position.batch_id == 5
