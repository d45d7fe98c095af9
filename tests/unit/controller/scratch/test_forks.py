from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.checkpoint.log import PARTITIONS, Checkpoint, format_offset_entry
from airflow_streamstate.controller.scratch.readings import fork_for_reading
from airflow_streamstate.errors import SnapshotIncompleteError
from airflow_streamstate.protocol import layout
from airflow_streamstate.store.memory import MemoryStore
from support.snapshots import QUERY, STREAM, Shelf, plan_stateful, run_stateful

READING = "r-0123456789ab-0001"
LATER = "d-0001-stopped-000002"


def keys_below(shelf: Shelf, folder: str) -> dict[str, bytes]:
    infos = shelf.checkpoints.list_objects(f"{folder}/")
    return {info.key: shelf.checkpoints.get(info.key).body for info in infos}


def fork_of(shelf: Shelf, snapshot_id: str) -> Checkpoint:
    return Checkpoint(shelf.checkpoints, layout.reading_fork_folder(STREAM, READING, snapshot_id, QUERY))


def test_a_fork_stands_at_the_last_commit_and_the_snapshot_stays_as_it_was() -> None:
    """Without the batch that was planned; twice is once (Law 2)."""
    shelf = Shelf()
    plan_stateful(run_stateful(shelf.checkpoint(), 3), 4)
    manifest = shelf.capture()
    assert manifest.queries[QUERY].position.planned_batch_id == 4
    before = keys_below(shelf, layout.snapshots_folder(STREAM))
    for _ in range(2):
        place = fork_for_reading(shelf.checkpoints, manifest, QUERY, READING, None)
        fork = fork_of(shelf, manifest.snapshot_id)
        assert (place.batch_id, place.state_format, place.feed_from) == (3, 1, None)
        assert place.checkpoint_uri.endswith(fork.prefix)
        assert (fork.position().batch_id, fork.position().planned) == (3, None)
    assert keys_below(shelf, layout.snapshots_folder(STREAM)) == before


def test_the_entry_says_the_number_of_partitions() -> None:
    """Which Spark's readers take from there, and do not find before a query's first restart in newer formats."""
    shelf = Shelf()
    checkpoint = run_stateful(shelf.checkpoint(), 1)
    entry = checkpoint.read_offset(1)
    for given, told in (({}, "2"), ({PARTITIONS: "7"}, "7")):
        conf = {**{key: value for key, value in entry.conf.items() if key != PARTITIONS}, **given}
        shelf = Shelf()
        checkpoint = run_stateful(shelf.checkpoint(), 1)
        checkpoint.store.delete(checkpoint.key("offsets/.1.crc"))
        checkpoint.store.put(checkpoint.offset_key(1), format_offset_entry(replace(entry, conf=conf)))
        manifest = shelf.capture()
        fork_for_reading(shelf.checkpoints, manifest, QUERY, READING, None)
        found = fork_of(shelf, manifest.snapshot_id).read_offset(1)
        assert found.conf[PARTITIONS] == told


def test_the_feed_finds_the_commit_that_it_asks_for() -> None:
    """Where the snapshot holds what every batch in between changed; where it does not, the place reports why."""
    shelf = Shelf()
    run_stateful(shelf.checkpoint(), 1)
    first = shelf.capture()
    run_stateful(shelf.checkpoint(), 5, first=2)
    second = shelf.capture(snapshot_id=LATER)
    place = fork_for_reading(shelf.checkpoints, second, QUERY, READING, first)
    assert (place.feed_from, place.feed_gap) == (2, "")
    assert fork_of(shelf, LATER).commit_ids() == [2, 4, 5]
    backward = fork_for_reading(shelf.checkpoints, first, QUERY, READING, second)
    assert (backward.feed_from, backward.feed_gap) == (None, "the feed goes from an older batch to a newer one")
    other = fork_for_reading(shelf.checkpoints, second, QUERY, READING, replace(first, deployment_id="d-0002"))
    assert other.feed_from is None


def test_a_snapshot_that_is_not_whole_is_never_read() -> None:
    """A missing file is named (Law 3)."""
    shelf = Shelf(MemoryStore())
    run_stateful(shelf.checkpoint(), 3)
    manifest = shelf.capture()
    shelf.checkpoints.delete(shelf.data_key("state/0/1/2.delta"))
    with pytest.raises(SnapshotIncompleteError):
        fork_for_reading(shelf.checkpoints, manifest, QUERY, READING, None)
