"""Queries that a deployment never started, when the snapshot that it started from is gone or damaged."""

from __future__ import annotations

import pytest

from airflow_streamstate.controller.deploy.takeover import take_over
from airflow_streamstate.errors import DataError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import SnapshotReady, Stopped
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.snapshot.capture import QueryToCapture, capture
from support.sim_stage import STREAM, Stage

START = "d-0001-stopped-000001"


def started_from_two(stage: Stage, *, says_end: bool = True) -> SnapshotManifest:
    """d-0002, which started ``counts`` alone of the two queries of its start snapshot; that snapshot."""
    stage.deploy()
    stage.come_to_life(queries=("counts", "late"))
    stage.run_batches(3)
    stage.run_batches(7, "late")
    start = stage.keep(names=("counts", "late"))
    if says_end:
        positions = {name: query.position for name, query in start.queries.items()}
        stage.say(Stopped, snapshot_id=start.snapshot_id, queries=positions)
    stage.end()
    stage.deploy("print('v2')\n")
    stage.come_to_life("d-0002", queries=("counts",))
    stage.run_batches(5, deployment_id="d-0002")
    return start


def live(stage: Stage, start: SnapshotManifest, number: int, *, carries: bool = True) -> SnapshotManifest:
    """A snapshot that d-0002 takes while it runs."""
    queries = {"counts": QueryToCapture(stage.checkpoint(deployment_id="d-0002"))}
    if carries:
        queries["late"] = QueryToCapture(carried=start.queries["late"], carried_snapshot_id=start.snapshot_id)
    manifest = capture(
        stage.control,
        stage.store,
        snapshot_id=f"d-0002-live-{number:06d}",
        snapshot_kind="live",
        deployment_id="d-0002",
        attempt=1,
        fencing_token=2,
        taken_by="agent",
        queries=queries,
        spark_version="4.2.1",
    )
    positions = {name: query.position for name, query in manifest.queries.items()}
    stage.say(SnapshotReady, "d-0002", snapshot_id=manifest.snapshot_id, snapshot_kind="live", queries=positions)
    return manifest


def lose(stage: Stage, *, is_damaged: bool = False) -> None:
    """The snapshot that d-0002 started from is pruned, or its manifest is damaged."""
    if is_damaged:
        stage.store.put(layout.manifest_key(STREAM, START), b'{"kind": "SnapshotManifest", "pro')
    else:
        stage.store.delete(layout.manifest_key(STREAM, START))


def taken(stage: Stage) -> SnapshotManifest:
    return take_over(
        stage.home,
        stage.control,
        stage.seen(),
        "d-0002-stopped-000001",
        "r-2",
        may_discard=False,
        still_ours=lambda: None,
    )


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_query_is_carried_on_from_a_later_snapshot_that_still_has_it(stage: Stage, is_damaged: bool) -> None:
    """It did not run since, so the newest snapshot that has it whole is as good as the start (1a.12, Law 5), and so is
    the version of Spark that wrote it (Law 10)."""
    start = started_from_two(stage)
    live(stage, start, 1)
    broken = live(stage, start, 2)
    live(stage, start, 3, carries=False)
    stage.store.put(layout.manifest_key(STREAM, broken.snapshot_id), b"{")
    lose(stage, is_damaged=is_damaged)
    stage.end("d-0002", state="gone")
    end = taken(stage)
    assert end.queries["late"] == start.queries["late"]
    assert (end.queries["counts"].position.batch_id, end.spark_version) == (5, "4.2.1")
    assert not any("late" in note for note in stage.deploy("print('v3')\n").notes)


@pytest.mark.parametrize(
    ("says_end", "says", "advice"),
    [
        (True, "query late is lost: d-0002 never started it", "--allow-new-query late"),
        (False, f"snapshot {START}, from which d-0002 started, is gone or damaged", "--allow-new-query"),
    ],
)
def test_a_query_that_is_in_no_snapshot_any_more_is_told(stage: Stage, says_end: bool, says: str, advice: str) -> None:
    """At the deploy, with the remaining option; by name, unless no event shows what the snapshot had. (Law 5)"""
    started_from_two(stage, says_end=says_end)
    lose(stage)
    stage.end("d-0002", state="gone")
    (note,) = stage.deploy("print('v3')\n").notes
    assert note.startswith(says)
    assert advice in note


def test_a_query_that_was_started_goes_on_from_its_own_checkpoint_alone(stage: Stage) -> None:
    """A snapshot of an earlier batch is no place to continue from, where the checkpoint went too (Law 14)."""
    start = started_from_two(stage)
    live(stage, start, 1)
    stage.start_query("late", "d-0002", batch_id=7)
    lose(stage)
    stage.end("d-0002", state="gone")
    with pytest.raises(DataError, match="checkpoint of this query is gone"):
        taken(stage)


def test_a_query_that_the_end_has_not_and_an_earlier_snapshot_has_is_told_with_that_snapshot(stage: Stage) -> None:
    """It is not lost: it did not run since, and its data is complete."""
    start = started_from_two(stage)
    kept = live(stage, start, 1)
    end = stage.keep(deployment_id="d-0002")
    positions = {name: query.position for name, query in end.queries.items()}
    stage.say(Stopped, "d-0002", snapshot_id=end.snapshot_id, queries=positions)
    stage.end("d-0002")
    lose(stage)
    (note,) = stage.deploy("print('v3')\n").notes
    assert note.startswith(f"query late is not in snapshot {end.snapshot_id}")
    assert note.endswith(f"snapshot {kept.snapshot_id} still has it as it was")
