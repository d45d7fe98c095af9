"""Snapshots of real queries while they run at full load: whole, verified, and good to continue from."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.checkpoint.fork import fork
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.snapshot.data import check_complete, data_files
from airflow_streamstate.snapshot.verify import seal, verify
from airflow_streamstate.store.local import LocalStore
from support.real_queries import (
    Collected,
    Feed,
    local_checkpoint,
    read_files,
    run_to_end,
    start,
    use_provider,
    wait_until,
)
from support.snapshots import QUERY, Shelf, flip_byte

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
FILES = 14


def counted(spark: Any, folder: Path) -> Any:
    from pyspark.sql import functions as fn

    stream = read_files(spark, folder).withWatermark("ts", "10 seconds")
    return (
        stream.groupBy(fn.window("ts", "5 minutes"), "k").agg(fn.sum("v").alias("v")).select("window.start", "k", "v")
    )


def restored(shelf: Shelf, manifest: SnapshotManifest, name: str) -> Checkpoint:
    check_complete(shelf.checkpoints, manifest)
    target = Checkpoint(shelf.checkpoints, name)
    assert fork(shelf.checkpoints, data_files(manifest, QUERY), target)
    return target


def test_live_snapshots_of_a_busy_query_are_whole(spark: Any, folder: Path, provider: str) -> None:
    """One after the other while Spark commits and deletes: each verifies, and a run from it gives every row once."""
    use_provider(spark, provider)
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    Feed(folder / "in").add(FILES)
    shelf = Shelf(LocalStore(folder))
    checkpoint, sink = shelf.checkpoint(), Collected()
    query = start(counted(spark, folder), checkpoint, sink)
    wait_until(lambda: checkpoint.commit_ids() != [], "a batch was committed")
    taken: list[SnapshotManifest] = []
    while query.isActive and (checkpoint.position().batch_id or 0) < FILES - 2:
        taken.append(shelf.capture(kind="live", snapshot_id=f"d-0001-live-{len(taken) + 1:06d}"))
    query.processAllAvailable()
    query.stop()
    assert len({manifest.queries[QUERY].position.batch_id for manifest in taken}) > 2
    shutil.rmtree(folder / checkpoint.prefix)
    assert [
        problem for manifest in taken for problem in verify(shelf.control, shelf.checkpoints, manifest.snapshot_id)
    ] == []
    plain = Collected()
    run_to_end(counted(spark, folder), local_checkpoint(folder, "plain"), plain)
    for manifest in (taken[0], taken[-1]):
        went_on = Collected()
        target = restored(shelf, manifest, f"fork-{manifest.snapshot_id}")
        run_to_end(counted(spark, folder), target, went_on)
        last = manifest.queries[QUERY].position.batch_id or 0
        before = [value for batch_id, values in sink.batches.items() if batch_id <= last for value in values]
        assert sorted(before + went_on.values) == plain.values


def test_a_flipped_byte_of_real_state_is_found_before_and_after_the_seal(
    spark: Any, folder: Path, provider: str
) -> None:
    """By the checksums that Spark itself left, and by our sha256: exactly that file is named."""
    use_provider(spark, provider)
    Feed(folder / "in").add(4)
    shelf = Shelf(LocalStore(folder))
    run_to_end(counted(spark, folder), shelf.checkpoint())
    sealed, unsealed = shelf.capture(snapshot_id="s-sealed"), shelf.capture(snapshot_id="s-unsealed")
    assert sealed.queries == unsealed.queries
    seal(shelf.control, shelf.checkpoints, sealed.snapshot_id)
    path = next(path for path in data_files(sealed, QUERY) if path.startswith("state/0/1/") and "." in path[10:])
    for manifest in (sealed, unsealed):
        key = data_files(manifest, QUERY)[path]
        flip_byte(shelf.checkpoints, key, 11)
        found = verify(shelf.control, shelf.checkpoints, manifest.snapshot_id)
        assert [(problem.kind, problem.path) for problem in found] == [("altered", path)]
