"""A deploy on a Spark that cannot read the state is refused while nothing has been touched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.checkpoint.guards import MERGE_OPERATOR, PROVIDER, ROCKSDB_PROVIDER
from airflow_streamstate.checkpoint.log import format_offset_entry
from airflow_streamstate.errors import ConflictError, IncompatibleUpgradeError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Drained
from support.checkpoints import plan_batch
from support.sim_stage import STREAM, Stage

TO_COME = "5.0.0"
"""Newer than every Spark that was measured: no rollback from it is known."""


@pytest.fixture
def newer(stage: Stage) -> Stage:
    """d-0001 runs on a newer Spark, and has committed batch 3 of ``counts``."""
    stage.deploy()
    stage.come_to_life(queries=("counts",), spark_version=TO_COME)
    stage.run_batches(3)
    return stage


def test_a_way_back_that_does_not_work_is_told_while_the_old_version_runs(newer: Stage) -> None:
    """A stream is not stopped for a deploy that would then be refused; nothing is recorded. (Laws 1 and 10)"""
    with pytest.raises(IncompatibleUpgradeError) as error:
        newer.deploy("print('v2')\n", request_id="r-2")
    assert (error.value.context["written_by"], error.value.context["runs_on"]) == (TO_COME, "4.2.0")
    assert "drain" in error.value.next_step
    assert newer.control.request("r-2") is None
    assert newer.control.need_register().value.intent is None


def test_a_query_without_state_goes_back_to_an_older_spark(stage: Stage) -> None:
    """Its logs are all that is read; with state it is refused (Law 10)."""
    stage.deploy()
    stage.come_to_life(queries=("counts",), spark_version="4.3.0")
    checkpoint = stage.run_batches(3)
    stage.end()
    entry = checkpoint.read_offset(3)
    assert entry is not None
    pinned = {**entry.conf, PROVIDER: ROCKSDB_PROVIDER, MERGE_OPERATOR: "2"}
    checkpoint.store.put(checkpoint.offset_key(3), format_offset_entry(replace(entry, conf=pinned)))
    checkpoint.store.delete(checkpoint.key("offsets/.3.crc"))
    stage.launcher.spark = "4.1.4"
    with pytest.raises(IncompatibleUpgradeError):
        stage.deploy("print('v2')\n")
    for info in list(stage.store.list_objects(checkpoint.key("state/"))):
        stage.store.delete(info.key)
    assert stage.deploy("print('v2')\n").start.mode == "restore"


def test_a_way_back_of_one_that_has_ended_is_refused_before_its_logs_are_fenced(newer: Stage) -> None:
    """The predecessor stays as it is, to be resumed on its own Spark (Law 4)."""
    checkpoint = newer.checkpoint()
    newer.end()
    before = checkpoint.offset_ids()
    with pytest.raises(IncompatibleUpgradeError):
        newer.deploy("print('v2')\n")
    assert checkpoint.offset_ids() == before
    newer.launcher.spark = TO_COME
    assert newer.deploy("print('v2')\n").start.mode == "restore"
    (kept,) = newer.controller.snapshots.all(STREAM)
    assert kept.spark_version == TO_COME


def test_a_spark_that_never_committed_is_no_hindrance(running: Stage) -> None:
    """After an upgrade that failed before its first batch the old Spark continues with what it left itself."""
    running.end()
    running.launcher.spark = TO_COME
    running.deploy("print('v2')\n")
    running.come_to_life("d-0002", spark_version=TO_COME)
    running.end("d-0002")
    running.launcher.spark = "4.2.0"
    assert running.deploy("print('v1')\n").deployment_id == "d-0003"


def test_offset_log_2_is_told_before_an_older_spark_is_deployed(stage: Stage) -> None:
    """Spark 4.1 cannot read it; the refusal comes before the stream has to be stopped. (Laws 1 and 10)"""
    stage.deploy()
    stage.come_to_life(queries=("counts",), spark_version="4.1.4")
    checkpoint = stage.run_batches(3)
    stage.launcher.spark = "4.1.4"
    entry = checkpoint.read_offset(checkpoint.offset_ids()[-1])
    assert entry is not None
    later = replace(entry, version="v2", source_keys=tuple(map(str, range(len(entry.source_lines)))))
    checkpoint.store.put(checkpoint.offset_key(checkpoint.offset_ids()[-1]), format_offset_entry(later))
    with pytest.raises(IncompatibleUpgradeError, match="offset log 2"):
        stage.deploy("print('v2')\n", request_id="r-2")
    assert stage.control.need_register().value.intent is None


def test_positions_go_to_any_spark(newer: Stage) -> None:
    """A drained stream is seeded: no state is read."""
    newer.flush()
    manifest = newer.keep("drained", drained=True, state_rows_left=0)
    positions = {name: query.position for name, query in manifest.queries.items()}
    newer.say(Drained, command_id="c", command_number=1, snapshot_id=manifest.snapshot_id, queries=positions)
    newer.end()
    assert newer.deploy("print('v2')\n").start.mode == "seed"


def test_a_fresh_start_reads_nothing(newer: Stage) -> None:
    """A fresh start is not held up by a Spark whose state it throws away; the stream still has to be stopped."""
    with pytest.raises(ConflictError, match="stop, drain or upgrade it first"):
        newer.deploy("print('v2')\n", start="fresh")


@pytest.mark.parametrize("runs_on", ["", TO_COME])
def test_where_nothing_is_known_or_nothing_changes_nothing_is_refused(newer: Stage, runs_on: str) -> None:
    """A launcher that cannot answer leaves it to the driver, which looks again before it touches anything."""
    newer.end()
    newer.launcher.spark = runs_on
    assert newer.deploy("print('v2')\n").start.mode == "restore"


def test_a_newer_spark_that_died_before_its_commit_has_written_too(dead: Stage) -> None:
    """State of its planned batch goes with the snapshot (1a.6, Law 10); the bounds of the batch alone are no state."""
    dead.deploy("print('v2')\n")
    dead.come_to_life("d-0002", spark_version=TO_COME)
    dead.start_query("counts", "d-0002", batch_id=3)
    checkpoint = dead.run_batches(3, deployment_id="d-0002")
    plan_batch(checkpoint, 4)
    dead.end("d-0002")
    written = checkpoint.key("state/0/0/5.delta")
    dead.store.put(written, b"delta 5")
    with pytest.raises(IncompatibleUpgradeError, match="either of them may have written the batch"):
        dead.deploy("print('v3')\n")
    dead.store.delete(written)
    view = dead.deploy("print('v3')\n")
    assert dead.control.need_manifest(str(view.start.snapshot_id)).spark_version == "4.2.0"


def test_over_a_start_snapshot_that_is_lost_the_spark_that_went_on_from_it_counts(newer: Stage) -> None:
    """The snapshot named the older Spark; without it the newer one counts. (Law 10)"""
    newer.end()
    newer.launcher.spark = TO_COME
    view = newer.deploy("print('v2')\n")
    newer.come_to_life("d-0002", spark_version=TO_COME)
    newer.start_query("counts", "d-0002", batch_id=3)
    newer.run_batches(3, deployment_id="d-0002")
    newer.end("d-0002")
    newer.store.put(layout.manifest_key(STREAM, str(view.start.snapshot_id)), b"{")
    newer.launcher.spark = "4.2.0"
    with pytest.raises(IncompatibleUpgradeError) as error:
        newer.deploy("print('v3')\n")
    assert error.value.context["written_by"] == TO_COME
