"""One deploy: the end of what ran before is found, taken or refused, and held against what was captured."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.controller.deploy.deploying import Deploying
from airflow_streamstate.errors import (
    ConflictError,
    HomeAwayError,
    SnapshotCorruptError,
    SnapshotIncompleteError,
    SnapshotNotFoundError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Failed, Finished
from airflow_streamstate.snapshot.verify import Unread, verify
from airflow_streamstate.store.memory import MemoryStore
from support.checkpoints import plan_batch
from support.sim_stage import STREAM, Stage
from support.snapshots import flip_byte
from support.vanishing_store import Absence, VanishingStore


def test_a_dead_driver_is_taken_over(stage: Stage) -> None:
    """A driver that ended without a word: its log is fenced, its end captured, and the successor restored. (1a.8)"""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    checkpoint = stage.run_batches(3)
    stage.end(state="gone")
    view = stage.deploy("print('v2')\n")
    assert (view.start.mode, view.start.snapshot_id) == ("restore", "d-0001-stopped-000001")
    manifest = stage.control.need_manifest("d-0001-stopped-000001")
    assert manifest.taken_by == "controller"
    query = manifest.queries["counts"]
    assert query.position.batch_id == 3
    assert query.sources == ("FileStreamSource[/in]",)
    assert query.watermarks[0].delay_ms == 60_000
    (fence,) = checkpoint.position().barriers
    assert fence.entry.mark is not None
    assert fence.entry.mark.kind == "fence"


def test_a_planned_batch_goes_with_the_takeover(stage: Stage) -> None:
    """A batch that was planned and not committed belongs to the snapshot, and the choice says so. (1a.6)"""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    plan_batch(stage.run_batches(3), 4)
    stage.end(state="gone")
    view = stage.deploy("print('v2')\n")
    assert stage.control.need_manifest("d-0001-stopped-000001").queries["counts"].position.planned_batch_id == 4
    assert "first runs batch 4" in view.notes[0]


def test_a_failed_driver_that_lingers_is_given_a_moment(stage: Stage) -> None:
    """A driver that said Failed is waited for, and then refused while it lives. (1a.8)"""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(1)
    stage.say(Failed, error="ValueError: no")
    with pytest.raises(ConflictError, match="still running"):
        stage.deploy("print('v2')\n")
    assert sum(stage.clock.slept_seconds) > stage.spec().settings.exit_grace_seconds
    assert stage.control.need_register().value.intent is None
    stage.end()
    assert stage.deploy("print('v2')\n").start.mode == "restore"


def test_a_lost_driver_is_refused_unless_it_is_assumed_dead(stage: Stage) -> None:
    """Nobody takes over from a driver that may live, but by name. (1a.8)"""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(1)
    stage.end(state="unknown")
    stage.clock.advance(120)
    with pytest.raises(ConflictError, match="nobody can say"):
        stage.deploy("print('v2')\n")
    assert stage.deploy("print('v2')\n", assume_dead=True).start.mode == "restore"


def test_queries_that_were_never_built_are_carried(stage: Stage) -> None:
    """A deployment that never came to build its checkpoint hands on what it was to start from. (Law 5)"""
    stage.deploy()
    stage.stopped()
    stage.deploy("print('v2')\n")
    stage.come_to_life("d-0002")
    stage.end("d-0002", state="gone")
    view = stage.deploy("print('v3')\n")
    assert (view.start.mode, view.start.snapshot_id) == ("restore", "d-0002-stopped-000001")
    query = stage.control.need_manifest("d-0002-stopped-000001").queries["counts"]
    assert query.position.batch_id == 3
    assert verify(stage.control, stage.store, "d-0002-stopped-000001") == []
    assert view.notes == ("query counts was never started by d-0002: it goes on as it was before",)


def test_a_query_that_was_started_is_not_called_carried(stage: Stage) -> None:
    """Only what the version before never started is said to go on as it was. (1a.12)"""
    stage.deploy()
    stage.stopped()
    stage.deploy("print('v2')\n")
    stage.come_to_life("d-0002", queries=("counts",))
    stage.run_batches(5, deployment_id="d-0002")
    stage.end("d-0002", state="gone")
    assert stage.deploy("print('v3')\n").notes == ()


def test_after_nothing_a_deployment_starts_where_its_options_say(stage: Stage) -> None:
    """A deployment that never started a query leaves no position, and that is said. (Law 5; 1a.9)"""
    stage.deploy()
    stage.come_to_life()
    stage.say(Finished, snapshot_id=None, queries={})
    stage.end()
    view = stage.deploy("print('v2')\n")
    assert view.start.mode == "fresh"
    assert view.start.predecessor_id == "d-0001"
    assert "never started a query" in view.notes[0]


def test_a_flush_that_was_cut_short_is_finished_first(stage: Stage) -> None:
    """The sink may hold the flush batch: the same id must not run over other bounds. (Law 14)"""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    stage.put_barrier("drain")
    stage.end(state="gone")
    with pytest.raises(ConflictError, match="cut short in its flush"):
        stage.deploy("print('v2')\n")
    assert stage.control.need_register().value.intent is None


def test_a_flush_that_nobody_reported_is_finished_first(stage: Stage) -> None:
    """What a flush left is counted by its driver alone: it is asked for, or discarded by name. (Law 16)"""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    stage.flush()
    stage.end(state="gone")
    with pytest.raises(ConflictError, match="was not counted"):
        stage.deploy("print('v2')\n")
    view = stage.deploy("print('v2')\n", discard_state=True)
    assert view.start.mode == "seed"


def test_an_unanswered_drain_is_not_passed_over(stage: Stage) -> None:
    """A drain that was ordered and not finished is finished, or left behind by name. (Law 5)"""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    stage.controller.drain(STREAM)
    stage.end(state="gone")
    with pytest.raises(ConflictError, match="a drain of this stream is not finished"):
        stage.deploy("print('v2')\n")
    assert stage.deploy("print('v2')\n", start="restore").start.mode == "restore"
    assert stage.control.journal("d-0001").commands() == []


def test_a_snapshot_with_a_file_gone_or_altered_starts_nothing(stage: Stage) -> None:
    """Nothing starts from a snapshot that is not whole. (Law 5)"""
    stage.deploy()
    stage.stopped()
    data = Checkpoint(stage.store, layout.snapshot_data_folder(STREAM, "d-0001-stopped-000001", "counts"))
    kept = stage.store.get(data.commit_key(3))
    assert kept is not None
    stage.store.delete(data.commit_key(3))
    with pytest.raises(SnapshotIncompleteError):
        stage.deploy("print('v2')\n")
    stage.store.put(data.commit_key(3), kept.body.replace(b"v1", b"v9"))
    with pytest.raises(SnapshotCorruptError):
        stage.deploy("print('v2')\n")
    stage.store.put(data.commit_key(3), kept.body)
    flip_byte(stage.store, data.key("state/0/1/4.delta"), 100)
    with pytest.raises(SnapshotCorruptError) as caught:
        stage.deploy("print('v2')\n")
    assert caught.value.context["path"] == "state/0/1/4.delta"
    assert stage.control.need_register().value.deployment_id == "d-0001"


def test_what_was_not_read_of_a_large_snapshot_is_said() -> None:
    """A person reads how much was taken on trust, and what checks it."""
    note = Unread(2, 5_000_000_000).describe("d-0001-stopped-000001")
    assert "2 files of 5,000,000,000 bytes of snapshot d-0001-stopped-000001 were not read" in note


def test_a_lost_manifest_of_a_stop_is_taken_again(stage: Stage) -> None:
    """No manifest, no snapshot: the end is captured from the log that still holds it. (Law 3; 1a.9)"""
    stage.deploy()
    event = stage.stopped()
    stage.store.delete(layout.manifest_key(STREAM, event.snapshot_id))
    view = stage.deploy("print('v2')\n")
    assert view.start.snapshot_id == event.snapshot_id
    assert stage.control.need_manifest(event.snapshot_id).taken_by == "controller"


def test_a_dead_deployment_is_taken_over_without_the_snapshot_that_it_started_from(stage: Stage) -> None:
    """What it holds stands on checkpoints of its own; where it has none, the snapshot is missed (Law 5)."""
    stage.deploy()
    event = stage.stopped()
    stage.deploy("print('v2')\n")
    stage.store.delete(layout.manifest_key(STREAM, event.snapshot_id))
    stage.end("d-0002", state="gone")
    with pytest.raises(SnapshotNotFoundError):
        stage.deploy("print('v3')\n")
    stage.come_to_life("d-0002", queries=("counts",))
    stage.run_batches(5, deployment_id="d-0002")
    view = stage.deploy("print('v3')\n")
    assert view.start.mode == "restore"
    assert stage.control.need_manifest(str(view.start.snapshot_id)).queries["counts"].position.batch_id == 5


@pytest.mark.parametrize("absence", ["unmounted", "renamed"])
def test_a_home_that_vanishes_within_a_deploy_is_not_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absence: Absence
) -> None:
    """Between the read of the register and the first write: the deploy is refused, not started with nothing. (Law 5)"""
    home = VanishingStore(MemoryStore())
    stage = Stage(tmp_path, home_store=home)
    stage.deploy()
    stage.stopped(3)
    look = Deploying._refuse_left_checkpoints

    def vanishes(deploying: Deploying, stored: object) -> None:
        look(deploying, stored)  # type: ignore[arg-type]
        home.vanish(absence)

    with monkeypatch.context() as patch:
        patch.setattr(Deploying, "_refuse_left_checkpoints", vanishes)
        with pytest.raises(HomeAwayError):
            stage.deploy("print('v2')\n")
    assert home.left_in_its_place() == []
    home.come_back()
    view = stage.deploy("print('v2')\n")
    assert (view.deployment_id, view.start.mode) == ("d-0002", "restore")
