"""An audit of a whole stream by its logs: exact handovers, breaks, and what cannot be read."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint, format_offset_entry
from airflow_streamstate.controller.observe.lineage import Lineage, lineage_of
from airflow_streamstate.errors import DeploymentNotFoundError, StreamNotFoundError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import to_bytes, to_json
from airflow_streamstate.protocol.commands import SkipRequest
from airflow_streamstate.protocol.events import Accepted, Skipped, Undone, UndoneBy
from airflow_streamstate.protocol.positions import SourceMove
from airflow_streamstate.protocol.records import StartPlan
from support.sim_stage import STREAM, Stage
from support.snapshots import plan_stateful, run_stateful

FIRST, SECOND = "d-0001", "d-0002"


def audit(stage: Stage, since: str | None = None) -> Lineage:
    return lineage_of(stage.home, STREAM, since)


def restored(stage: Stage, *, last: int = 3) -> None:
    """d-0001 was stopped behind batch 3, and d-0002 was restored from its end and continued."""
    stage.deploy()
    stage.stopped(last)
    stage.clock.sleep(12)
    stage.deploy("print('v2')\n")
    restore(stage, SECOND, last)


def restore(stage: Stage, deployment_id: str, last: int) -> None:
    """Its driver runs, with a copy of the checkpoint of d-0001."""
    stage.come_to_life(deployment_id)
    source, target = stage.checkpoint(), stage.checkpoint(deployment_id=deployment_id)
    for key in [info.key for info in stage.store.list_objects(f"{source.prefix}/")]:
        found = stage.store.get(key)
        stage.store.put(target.key(key.removeprefix(f"{source.prefix}/")), found.body)
    stage.start_query(deployment_id=deployment_id, batch_id=last, how="restored")


def ends_elsewhere(checkpoint: Checkpoint, batch_id: int, moved: int) -> None:
    """The entry of this batch, with its offset moved."""
    entry = checkpoint.read_offset(batch_id)
    number = int(entry.source_lines[0].partition(":")[2].strip(" }"))
    other = replace(entry, source_lines=(f'{{"logOffset":{number + moved}}}',))
    checkpoint.store.put(checkpoint.offset_key(batch_id), format_offset_entry(other))


def test_an_exact_chain_is_whole(stage: Stage) -> None:
    """Each deployment, where it started and how it ended; and how long nothing ran. (Law 9)"""
    restored(stage)
    run_stateful(stage.checkpoint(deployment_id=SECOND), 6, first=4)
    found = audit(stage)
    assert found.is_whole
    rows = found.to_json()["deployments"]
    first, second = rows
    assert first["queries"]["counts"] == {"began_behind": None, "ended_with": 3, "evidence": "logs"}
    assert second["queries"]["counts"] == {"began_behind": 3, "ended_with": 6, "evidence": "logs"}
    (still,) = found.not_running
    assert (still.after, still.before) == ("d-0001 attempt 1 (stopped)", "d-0002 attempt 1")
    assert still.until_at - still.from_at >= timedelta(seconds=12)


def test_a_driver_that_lived_on_is_an_overlap(stage: Stage) -> None:
    """It was taken for dead, and committed two batches more. (1a.8)"""
    restored(stage)
    run_stateful(stage.checkpoint(), 5, first=4)
    (found,) = audit(stage).breaks
    assert (found.kind, found.deployment_id) == ("overlap", SECOND)
    assert "batches 4 to 5 of the predecessor" in found.detail


@pytest.mark.parametrize(("moved", "kind"), [(1, "gap"), (-1, "overlap")])
def test_a_successor_that_began_elsewhere_is_found(stage: Stage, moved: int, kind: str) -> None:
    """Its own log counts, whatever was recorded. (Law 14)"""
    restored(stage)
    ends_elsewhere(stage.checkpoint(deployment_id=SECOND), 3, moved)
    (found,) = audit(stage).breaks
    assert (found.kind, found.query_name) == (kind, "counts")


def test_a_batch_that_a_log_passes_over_is_a_gap(stage: Stage) -> None:
    """It was never committed. (Law 12)"""
    restored(stage)
    checkpoint = run_stateful(stage.checkpoint(deployment_id=SECOND), 8, first=4)
    checkpoint.store.delete(checkpoint.commit_key(6))
    (found,) = audit(stage).breaks
    assert (found.kind, found.ended_at, found.began_at) == ("gap", "batch 5", "batch 7")


def test_a_start_whose_entry_is_purged_is_known_by_the_records(stage: Stage) -> None:
    """Spark keeps only the newest entries of a log; then the manifest of that time counts."""
    restored(stage)
    checkpoint = run_stateful(stage.checkpoint(deployment_id=SECOND), 8, first=4)
    for batch_id in range(6):
        checkpoint.store.delete(checkpoint.offset_key(batch_id))
        checkpoint.store.delete(checkpoint.commit_key(batch_id))
    found = audit(stage)
    assert found.is_whole
    assert found.deployments[1].queries["counts"].evidence == "records"


def gone_back(stage: Stage, means: UndoneBy | None = "undo", *, live: bool = False) -> str:
    """d-0002 committed batches 4 to 6; d-0003 goes back to the end of d-0001, or to a place in d-0002 itself."""
    restored(stage)
    last = 4 if live else 3
    run_stateful(stage.checkpoint(deployment_id=SECOND), 4, first=4)
    snapshot = stage.keep("live", SECOND).snapshot_id if live else "d-0001-stopped-000001"
    run_stateful(stage.checkpoint(deployment_id=SECOND), 6, first=5)
    stage.end(SECOND, state="gone")
    third = stage.deploy("print('v3')\n").deployment_id
    start = StartPlan("restore", snapshot, SECOND, undoes=SECOND, accept_duplicates=means == "doubled")
    stage.store.put(layout.spec_key(STREAM, third), to_bytes(replace(stage.spec(third), start=start)))
    restore(stage, third, last)
    if live:
        run_stateful(stage.checkpoint(deployment_id=third), 4, first=4)
    if means is not None:
        ids = {"to_batch_id": last, "first_batch_id": last + 1, "last_batch_id": 6}
        stage.say(Undone, third, query_name="counts", sink="/out", means=means, **ids)
    return third


@pytest.mark.parametrize(("live", "last"), [(False, 3), (True, 4)])
def test_what_a_start_undid_is_named_and_breaks_nothing(stage: Stage, live: bool, last: int) -> None:
    """It starts at its snapshot, not where its predecessor ended. (Law 14)"""
    third = gone_back(stage, live=live)
    run_stateful(stage.checkpoint(deployment_id=third), 7, first=last + 1)
    found = audit(stage)
    assert found.is_whole
    (undone,) = found.breaks
    assert (undone.kind, undone.deployment_id, undone.accepted) == ("undone", third, True)
    assert f"batches {last + 1} to 6, up to those of {SECOND}," in undone.detail
    rows = found.to_json()
    assert (rows["gaps"], rows["overlaps"]) == ([], [])
    assert rows["undone"][0]["began_at"] == f"batch {last}"
    assert found.deployments[2].queries["counts"].began_behind == last


def test_what_was_undone_is_known_of_the_sink_where_the_logs_are_gone(stage: Stage) -> None:
    """The driver read the last batch in the sink; a lost checkpoint does not show it."""
    third = gone_back(stage)
    for info in list(stage.store.list_objects(layout.checkpoint_folder(STREAM, SECOND, "counts"))):
        stage.store.delete(info.key)
    (undone,) = [one for one in audit(stage).breaks if one.deployment_id == third]
    assert undone.kind == "undone"
    assert "batches 4 to 6" in undone.detail


@pytest.mark.parametrize(("means", "accepted"), [(None, False), ("doubled", True)])
def test_what_was_not_undone_is_an_overlap(stage: Stage, means: UndoneBy | None, accepted: bool) -> None:
    """No event reports an undo; or its duplicates were accepted. (Law 14)"""
    gone_back(stage, means)
    found = audit(stage)
    assert found.is_whole is accepted
    (overlap,) = found.breaks
    assert (overlap.kind, overlap.accepted) == ("overlap", accepted)


def test_a_start_that_went_back_and_began_elsewhere_is_found(stage: Stage) -> None:
    """By its own log and that of the snapshot's deployment."""
    third = gone_back(stage)
    ends_elsewhere(stage.checkpoint(deployment_id=third), 3, 1)
    assert [one.kind for one in audit(stage).breaks] == ["undone", "gap"]


def nothing_started(stage: Stage, deployment_id: str) -> None:
    """A deployment that died before it started any query."""
    stage.come_to_life(deployment_id)
    stage.end(deployment_id, state="gone")


@pytest.mark.parametrize("between", [False, True])
def test_a_fresh_start_is_told_and_was_asked_for(stage: Stage, between: bool) -> None:
    """Also behind a deployment that ran nothing: the last one that ran the query counts. (Law 5)"""
    stage.deploy()
    stage.stopped()
    if between:
        stage.deploy("print('bad')\n")
        nothing_started(stage, SECOND)
    newest = stage.deploy("print('v2')\n", start="fresh").deployment_id
    stage.stopped(5, newest)
    found = audit(stage)
    (gap,) = found.breaks
    assert (gap.kind, gap.deployment_id, gap.ended_at, gap.began_at) == ("gap", newest, "batch 3", "none")
    assert gap.accepted
    assert found.is_whole
    stage.deploy("print('v3')\n")
    assert audit(stage, since="d-0003" if not between else "d-0004").breaks == ()


def test_a_deployment_that_ran_nothing_hides_no_overlap(stage: Stage) -> None:
    """The driver before it lived on, and committed what the one behind it ran, too. (1a.8)"""
    stage.deploy()
    stage.stopped()
    stage.deploy("print('bad')\n")
    nothing_started(stage, SECOND)
    third = stage.deploy("print('v3')\n").deployment_id
    restore(stage, third, 3)
    assert audit(stage).breaks == ()
    run_stateful(stage.checkpoint(), 5, first=4)
    (found,) = audit(stage).breaks
    assert (found.kind, found.deployment_id) == ("overlap", third)


def test_a_batch_planned_after_the_handover_is_held_against_what_ran(stage: Stage) -> None:
    """A driver that lived planned batch 4, and died before its commit: its sink may hold it. (Law 14)"""
    restored(stage)
    run_stateful(stage.checkpoint(deployment_id=SECOND), 6, first=4)
    plan_stateful(stage.checkpoint(), 4)
    assert audit(stage).breaks == ()  # over the same bounds
    ends_elsewhere(stage.checkpoint(), 4, 1)
    (found,) = audit(stage).breaks
    assert (found.kind, found.source) == ("overlap", "batch 4")


def test_what_cannot_be_read_is_not_proved(stage: Stage) -> None:
    """A damaged manifest, event or entry: each is named by its key, and the rest is audited. (Law 7)"""
    restored(stage)
    run_stateful(stage.checkpoint(deployment_id=SECOND), 6, first=4)
    stage.store.put(layout.manifest_key(STREAM, "d-0001-stopped-000001"), b"{")
    stage.store.put(layout.event_key(STREAM, FIRST, 99), b"{")
    found = audit(stage)
    assert not found.is_whole
    assert [part in " ".join(found.unread) for part in ("event 99", "d-0001-stopped-000001")] == [True, True]
    assert found.deployments[1].queries["counts"].began_behind == 3  # its own log and event know
    stage.checkpoint().store.put(stage.checkpoint().offset_key(3), b"\xff")
    found = audit(stage)
    assert [one.deployment_id for one in found.deployments] == [FIRST, SECOND]
    assert "d-0001/checkpoints/counts/offsets/3" in " ".join(found.unread)


def test_an_unknown_stream_or_deployment_is_refused(stage: Stage) -> None:
    """By class."""
    stage.home.begin("tests")
    with pytest.raises(StreamNotFoundError):
        audit(stage)
    stage.deploy()
    with pytest.raises(DeploymentNotFoundError):
        audit(stage, since="d-0009")


def test_a_batch_that_was_skipped_is_a_gap_with_a_name(stage: Stage) -> None:
    """It was asked for, so the chain is complete; its offsets, size and reason are named. (Law 14)"""
    restored(stage)
    move = SourceMove("file /in", '{"logOffset":3}', '{"logOffset":4}', 12, 0, "files")
    stage.say(
        Skipped, SECOND, command_id="c", command_number=1, query_name="counts", batch_id=4, moves=(move,),
        requested_by="ada", reason="a bad row",
    )  # fmt: skip
    run_stateful(stage.checkpoint(deployment_id=SECOND), 5, first=4)
    found = audit(stage)
    (gap,) = found.breaks
    assert found.is_whole
    assert (gap.kind, gap.deployment_id, gap.accepted) == ("gap", SECOND, True)
    assert "a bad row (12 files)" in gap.detail


def test_a_skip_without_an_event_is_a_gap_with_a_name(stage: Stage) -> None:
    """Its driver died right behind the commit, and no other attempt came. (Law 1)"""
    restored(stage)
    request = SkipRequest("c", STREAM, SECOND, stage.clock.now(), None, "ada", "a bad row", "counts", 4)
    stage.say(Accepted, SECOND, command_id="c", command_number=1, command=to_json(request))
    run_stateful(stage.checkpoint(deployment_id=SECOND), 4, first=4)
    (gap,) = audit(stage).breaks
    assert (gap.kind, gap.deployment_id, gap.accepted) == ("gap", SECOND, True)
    assert "batch 4 was skipped, as ada asked for: a bad row" in gap.detail
