"""The parts of rewritten state that need no Spark."""

from __future__ import annotations

import json

import pytest

from airflow_streamstate.checkpoint.log import (
    STATE_IDS,
    Checkpoint,
    CommitEntry,
    format_commit_entry,
    parse_offset_entry,
)
from airflow_streamstate.checkpoint.seed import committed_files, keys_written, rewritten_entries
from airflow_streamstate.errors import DataError
from support.checkpoints import memory_checkpoint, plan_batch, rocksdb_zip, run_batches, write_rocksdb_state

PARTITIONS = "spark.sql.shuffle.partitions"


def files_of_all(checkpoint: Checkpoint) -> dict[str, str]:
    start = len(checkpoint.prefix) + 1
    return {info.key[start:]: info.key for info in checkpoint.store.list_objects(f"{checkpoint.prefix}/")}


def test_what_belongs_to_a_later_batch_is_left_out() -> None:
    """Its entry, its commit and their checksums; not the state."""
    checkpoint = run_batches(memory_checkpoint(), 3)
    plan_batch(checkpoint, 4)
    write_rocksdb_state(checkpoint, range(4, 5))
    files = files_of_all(checkpoint)
    kept = committed_files(files, 2)
    gone = {path.rpartition("/")[2].lstrip(".").removesuffix(".crc") for path in files.keys() - kept.keys()}
    assert gone == {"3", "4"}
    assert any(path.startswith("state/") for path in kept)


def test_every_entry_pins_the_new_settings_and_keeps_all_else() -> None:
    """Spark compares those of the last two; an entry that differs already keeps its difference."""
    checkpoint = run_batches(memory_checkpoint(), 1)
    plan_batch(checkpoint, 2)
    files, store = files_of_all(checkpoint), checkpoint.store
    moved = store.get(files["offsets/1"])
    assert moved is not None
    other = moved.body.replace(b'"batchWatermarkMs":1000', b'"batchWatermarkMs":77')
    changed = rewritten_entries(store, files, {PARTITIONS: "9"}, 1, None, {"offsets/1": other})
    assert sorted(changed) == ["offsets/0", "offsets/1", "offsets/2"]
    for path, body in changed.items():
        stored = store.get(files[path])
        assert stored is not None
        was, now = parse_offset_entry(stored.body, key=path), parse_offset_entry(body, key=path)
        assert now.conf == {**was.conf, PARTITIONS: "9"}
        assert now.source_lines == was.source_lines
    assert parse_offset_entry(changed["offsets/1"], key="").batch_watermark_ms == 77


@pytest.mark.parametrize(("had", "ids"), [(False, {"0": [["a"], ["b"]]}), (True, None), (True, {"0": [["c"]]})])
def test_the_commit_names_the_state_that_was_written(had: bool, ids: dict[str, list[list[str]]] | None) -> None:
    """In the format of the new state, with the watermark of the old commit."""
    checkpoint = run_batches(memory_checkpoint(), 1)
    before = CommitEntry(123, {STATE_IDS: {"0": [["old"]]}}, "v2") if had else CommitEntry(123)
    checkpoint.store.put(checkpoint.commit_key(1), format_commit_entry(before))
    body = rewritten_entries(checkpoint.store, files_of_all(checkpoint), {}, 1, ids)["commits/1"]
    version, line = body.decode().splitlines()
    assert version == ("v1" if ids is None else "v2")
    assert json.loads(line) == {"nextBatchWatermarkMs": 123, **({} if ids is None else {STATE_IDS: ids})}


def test_a_missing_entry_is_told() -> None:
    """A snapshot that lost it cannot be continued."""
    checkpoint = run_batches(memory_checkpoint(), 1)
    files = files_of_all(checkpoint)
    checkpoint.store.delete(files["offsets/1"])
    with pytest.raises(DataError, match="offsets/1"):
        rewritten_entries(checkpoint.store, files, {}, 1, None)


def test_the_written_keys_are_counted_over_partitions_and_stores() -> None:
    """An operator is left out if one of its versions cannot be read."""
    checkpoint = memory_checkpoint()
    for key in ("state/0/0/1.zip", "state/0/1/1.zip", "state/1/0/left-keyToNumValues/1.zip", "state/2/0/1.zip"):
        checkpoint.store.put(checkpoint.key(key), rocksdb_zip([]))
    checkpoint.store.put(checkpoint.key("state/2/1/1.zip"), b"no zip at all")
    assert keys_written(checkpoint) == {0: 2, 1: 1}
