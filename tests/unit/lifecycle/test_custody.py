"""An audit of a whole stream by its logs: what holds, what is found, and what it says where it cannot look."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_streamstate.checkpoint.entries import format_offset_entry
from airflow_streamstate.errors import DeploymentNotFoundError, StreamNotFoundError
from airflow_streamstate.lifecycle.custody import Custody, custody_of
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import QueryStarted
from support.sim_stage import STREAM, Stage
from support.snapshots import run_stateful

FIRST, SECOND = "d-0001", "d-0002"


def audit(stage: Stage, since: str | None = None) -> Custody:
    return custody_of(stage.home, STREAM, since)


def restored(stage: Stage, *, last: int = 3) -> None:
    """d-0001 was stopped behind batch 3, and d-0002 was restored from its end and went on."""
    stage.deploy()
    stage.stopped(last)
    stage.clock.sleep(12)
    stage.deploy("print('v2')\n")
    stage.come_to_life(SECOND)
    source, target = stage.checkpoint(), stage.checkpoint(deployment_id=SECOND)
    for key in [info.key for info in stage.store.list_objects(f"{source.prefix}/")]:
        found = stage.store.get(key)
        assert found is not None
        stage.store.put(target.key(key.removeprefix(f"{source.prefix}/")), found.body)
    stage.say(
        QueryStarted,
        SECOND,
        query_name="counts",
        query_id="id",
        query_run_id="run",
        how="restored",
        batch_id=last,
        planned_batch_id=None,
        repairs=(),
        sink="file:parquet",
        trigger="default",
        output_mode="append",
    )


def test_an_exact_chain_is_whole(stage: Stage) -> None:
    """Each deployment, where it began and with what it ended; and how long nothing ran. (Law 9)"""
    restored(stage)
    run_stateful(stage.checkpoint(deployment_id=SECOND), 6, first=4)
    found = audit(stage)
    assert found.is_whole
    rows = found.to_json()["deployments"]
    assert isinstance(rows, list)
    first, second = rows
    assert first["queries"]["counts"] == {"began_behind": None, "ended_with": 3, "evidence": "records"}
    assert second["queries"]["counts"] == {"began_behind": 3, "ended_with": 6, "evidence": "logs"}
    (still,) = found.standstills
    assert (still.after, still.before) == ("d-0001 attempt 1 (stopped)", "d-0002 attempt 1 (no last word)")
    assert still.until_at is not None
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
    """Its own log says where it began, whatever was written down. (Law 14)"""
    restored(stage)
    checkpoint = stage.checkpoint(deployment_id=SECOND)
    entry = checkpoint.read_offset(3)
    assert entry is not None
    number = int(entry.source_lines[0].partition(":")[2].strip(" }"))
    other = replace(entry, source_lines=(f'{{"logOffset":{number + moved}}}',))
    checkpoint.store.put(checkpoint.offset_key(3), format_offset_entry(other))
    (found,) = audit(stage).breaks
    assert (found.kind, found.query_name) == (kind, "counts")


def test_a_batch_that_a_log_passes_over_is_a_gap(stage: Stage) -> None:
    """Nobody ever committed it. (Law 12)"""
    restored(stage)
    checkpoint = run_stateful(stage.checkpoint(deployment_id=SECOND), 8, first=4)
    checkpoint.store.delete(checkpoint.commit_key(6))
    (found,) = audit(stage).breaks
    assert (found.kind, found.ended_at, found.began_at) == ("gap", "batch 5", "batch 7")


def test_a_start_whose_entry_is_purged_is_known_by_the_records(stage: Stage) -> None:
    """Spark keeps the newest entries of a log; then the manifest of the time speaks."""
    restored(stage)
    checkpoint = run_stateful(stage.checkpoint(deployment_id=SECOND), 8, first=4)
    for batch_id in range(6):
        checkpoint.store.delete(checkpoint.offset_key(batch_id))
        checkpoint.store.delete(checkpoint.commit_key(batch_id))
    found = audit(stage)
    assert found.is_whole
    assert found.deployments[1].queries["counts"].evidence == "records"


def test_a_fresh_start_breaks_the_chain_until_one_begins_behind_it(stage: Stage) -> None:
    """It was asked for by name, and still nobody can prove what was read. (Law 5)"""
    stage.deploy()
    stage.stopped()
    stage.deploy("print('v2')\n", start="fresh")
    stage.stopped(5, SECOND)
    (found,) = audit(stage).breaks
    assert (found.kind, found.ended_at, found.began_at) == ("gap", "batch 3", "none")
    stage.deploy("print('v3')\n")
    assert audit(stage, since="d-0003").is_whole


def test_what_cannot_be_read_is_not_proved(stage: Stage) -> None:
    """A damaged manifest, a damaged event, a damaged log: each is said, and the rest is looked at. (Law 7)"""
    restored(stage)
    stage.store.put(layout.manifest_key(STREAM, "d-0001-stopped-000001"), b"{")
    stage.store.put(layout.event_key(STREAM, FIRST, 99), b"{")
    stage.checkpoint().store.put(stage.checkpoint().offset_key(3), b"\xff")
    found = audit(stage)
    assert not found.is_whole
    assert [part in " ".join(found.unread) for part in ("event 99", "d-0001-stopped-000001")] == [True, True]


def test_a_stream_or_deployment_that_is_not_there_is_told(stage: Stage) -> None:
    """One clear sentence each."""
    with pytest.raises(StreamNotFoundError):
        audit(stage)
    stage.deploy()
    with pytest.raises(DeploymentNotFoundError):
        audit(stage, since="d-0009")
