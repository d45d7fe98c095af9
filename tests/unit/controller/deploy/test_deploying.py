"""One deploy: the end of what ran before is found, taken or refused, and compared with what was captured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.controller.deploy.deployment import Deploying
from airflow_streamstate.errors import (
    ConflictError,
    HomeAwayError,
    SnapshotCorruptError,
    SnapshotIncompleteError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Failed, Finished
from airflow_streamstate.snapshot.verify import Unread, verify
from airflow_streamstate.store.memory import MemoryStore
from support.checkpoints import plan_batch
from support.sim_stage import STREAM, Stage
from support.snapshots import flip_byte
from support.vanishing_store import Absence, VanishingStore


def test_a_dead_driver_is_taken_over(dead: Stage) -> None:
    """A driver that ended without a word: its log is fenced, its end captured, and the successor restored. (1a.8)"""
    plan_batch(dead.checkpoint(), 4)
    view = dead.deploy("print('v2')\n")
    assert (view.start.mode, view.start.snapshot_id) == ("restore", "d-0001-stopped-000001")
    assert "first runs batch 4" in view.notes[0], "a planned batch goes with the snapshot (1a.6)"
    manifest = dead.control.need_manifest("d-0001-stopped-000001")
    assert manifest.taken_by == "controller"
    query = manifest.queries["counts"]
    assert (query.position.batch_id, query.position.planned_batch_id) == (3, 4)
    assert query.sources == ("FileStreamSource[/in]",)
    assert query.watermarks[0].delay_ms == 60_000
    (fence,) = dead.checkpoint().position().barriers
    assert fence.entry.mark is not None
    assert fence.entry.mark.kind == "fence"


def test_a_failed_driver_that_lingers_is_given_a_moment(running: Stage) -> None:
    """A driver that reported Failed is waited for, and then refused while it lives. (1a.8)"""
    running.say(Failed, error="ValueError: no")
    with pytest.raises(ConflictError, match="still running"):
        running.deploy("print('v2')\n")
    assert sum(running.clock.slept_seconds) > running.spec().version.settings.exit_grace_seconds
    assert running.control.need_register().value.intent is None
    running.end()
    assert running.deploy("print('v2')\n").start.mode == "restore"


def test_queries_that_were_never_built_are_carried(redeployed: Stage) -> None:
    """A deployment that never came to build its checkpoint hands on what it was to start from. (Law 5)"""
    redeployed.come_to_life("d-0002")
    redeployed.end("d-0002", state="gone")
    view = redeployed.deploy("print('v3')\n")
    assert (view.start.mode, view.start.snapshot_id) == ("restore", "d-0002-stopped-000001")
    query = redeployed.control.need_manifest("d-0002-stopped-000001").queries["counts"]
    assert query.position.batch_id == 3
    assert verify(redeployed.control, redeployed.store, "d-0002-stopped-000001") == []
    assert view.notes == ("query counts was never started by d-0002: it continues as it was before",)


def test_a_query_that_was_started_is_not_called_carried(redeployed: Stage) -> None:
    """Only what the version before never started is reported as continuing unchanged. (1a.12)"""
    redeployed.come_to_life("d-0002", queries=("counts",))
    redeployed.run_batches(5, deployment_id="d-0002")
    redeployed.end("d-0002", state="gone")
    assert redeployed.deploy("print('v3')\n").notes == ()


def test_after_nothing_a_deployment_starts_where_its_options_say(stage: Stage) -> None:
    """A deployment that never started a query leaves no position, and that is reported. (Law 5; 1a.9)"""
    stage.deploy()
    stage.come_to_life()
    stage.say(Finished, snapshot_id=None, queries={})
    stage.end()
    view = stage.deploy("print('v2')\n")
    assert view.start.mode == "fresh"
    assert view.start.predecessor_id == "d-0001"
    assert "never started a query" in view.notes[0]


def test_a_flush_that_was_cut_short_is_finished_first(running: Stage) -> None:
    """The sink may hold the flush batch: the same id must not run over other bounds. (Law 14)"""
    running.put_barrier("drain")
    running.end(state="gone")
    with pytest.raises(ConflictError, match="cut short in its flush"):
        running.deploy("print('v2')\n")
    assert running.control.need_register().value.intent is None


def test_a_flush_without_its_event_is_finished_first(running: Stage) -> None:
    """Only the driver counts what a flush left: drain again, or discard it by name. (Law 16)"""
    running.flush()
    running.end(state="gone")
    with pytest.raises(ConflictError, match="was not counted"):
        running.deploy("print('v2')\n")
    view = running.deploy("print('v2')\n", allow_state_loss=True)
    assert view.start.mode == "seed"


def test_an_unanswered_drain_is_not_passed_over(running: Stage) -> None:
    """A drain that was ordered and not finished is finished, or left behind by name. (Law 5)"""
    running.controller.order("drain", STREAM)
    running.end(state="gone")
    with pytest.raises(ConflictError, match="a drain of this stream is not finished"):
        running.deploy("print('v2')\n")
    assert running.deploy("print('v2')\n", start="restore").start.mode == "restore"
    assert running.control.journal("d-0001").commands() == []


def test_a_snapshot_with_a_file_gone_or_altered_starts_nothing(stopped: Stage) -> None:
    """Nothing starts from a snapshot that is incomplete. (Law 5)"""
    data = Checkpoint(stopped.store, layout.snapshot_data_folder(STREAM, "d-0001-stopped-000001", "counts"))
    flip_byte(stopped.store, data.key("state/0/1/4.delta"), 100)
    with pytest.raises(SnapshotCorruptError) as caught:
        stopped.deploy("print('v2')\n")
    assert caught.value.context["path"] == "state/0/1/4.delta"
    stopped.store.delete(data.commit_key(3))
    with pytest.raises(SnapshotIncompleteError):
        stopped.deploy("print('v2')\n")
    assert stopped.control.need_register().value.deployment_id == "d-0001"


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


def test_a_spec_of_another_deploy_is_never_launched(dead: Stage) -> None:
    """A deploy that was overtaken wrote it under this id: the later one is refused, and launches nothing. (Law 4)"""
    there = replace(dead.spec(), deployment_id="d-0002", fencing_token=2, request_id="of-another")
    dead.control.create_spec(there)
    with pytest.raises(ConflictError, match="another deploy was first"):
        dead.deploy("print('v2')\n")
    assert dead.control.spec("d-0002") == there
    assert dead.control.need_register().value.deployment_id == "d-0001"
    assert len(dead.launcher.requests) == 1
