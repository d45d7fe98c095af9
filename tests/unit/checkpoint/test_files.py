"""Which files make a position."""

from __future__ import annotations

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint, crc_key_of, format_offset_entry, stop_entry
from airflow_streamstate.checkpoint.state_files import files_of
from airflow_streamstate.errors import ObjectMissingError
from support.checkpoints import (
    barrier_mark,
    memory_checkpoint,
    plan_batch,
    run_batches,
    write_hdfs_state,
    write_operator_metadata,
    write_source_log,
    write_with_crc,
)


def paths_of(checkpoint: Checkpoint, *, with_state: bool = True, crc: bool = False) -> list[str]:
    """The listed paths inside the checkpoint, without checksums unless asked for."""
    keys = files_of(checkpoint, checkpoint.position(), with_state=with_state)
    paths = [key[len(checkpoint.prefix) + 1 :] for key in keys]
    return [path for path in paths if crc or not path.endswith(".crc")]


def stateful(last: int) -> Checkpoint:
    """Batches 0 to ``last`` of a stateful query over a file source."""
    checkpoint = run_batches(memory_checkpoint(), last)
    write_source_log(checkpoint, last)
    write_operator_metadata(checkpoint)
    write_hdfs_state(checkpoint, range(1, last + 2))
    return checkpoint


def test_position_without_a_batch_is_its_metadata() -> None:
    """A query that never committed has positions none, and one file."""
    assert paths_of(memory_checkpoint()) == ["metadata"]


def test_position_is_the_last_two_entries_their_sources_and_the_state() -> None:
    """The exact list, sorted: the last two batches' entries, and the state at the version they left (1a.6)."""
    assert paths_of(stateful(2)) == [
        "commits/1",
        "commits/2",
        "metadata",
        "offsets/1",
        "offsets/2",
        "sources/0/0",
        "sources/0/1",
        "sources/0/2",
        "state/0/0/1.delta",
        "state/0/0/2.delta",
        "state/0/0/3.delta",
        "state/0/0/_metadata/schema",
        "state/0/1/1.delta",
        "state/0/1/2.delta",
        "state/0/1/3.delta",
        "state/0/_metadata/metadata",
    ]


def test_checksums_go_with_their_files() -> None:
    """Each file's checksum is listed with it, Hadoop's and Spark's own; a file without one is fine (1a.6)."""
    checkpoint = run_batches(memory_checkpoint(), 1)
    checkpoint.store.delete(crc_key_of(checkpoint.offset_key(0)))
    checkpoint.store.put(checkpoint.key("commits/1.crc"), b"{}")
    assert paths_of(checkpoint, crc=True) == [
        "commits/.0.crc",
        "commits/.1.crc",
        "commits/0",
        "commits/1",
        "commits/1.crc",
        "metadata",
        "offsets/.1.crc",
        "offsets/0",
        "offsets/1",
    ]


def test_planned_entry_of_spark_belongs_to_the_position() -> None:
    """Spark's own planned entry goes along, with the source log that it refers to (1a.6)."""
    checkpoint = run_batches(memory_checkpoint(), 2)
    write_source_log(checkpoint, 3)
    plan_batch(checkpoint, 3)
    paths = paths_of(checkpoint)
    assert "offsets/3" in paths
    assert "commits/3" not in paths
    assert "sources/0/3" in paths


def test_entry_of_ours_never_belongs_to_the_position() -> None:
    """No barrier is in the list, over a committed or an uncommitted batch (1a.1)."""
    for planned in (False, True):
        checkpoint = run_batches(memory_checkpoint(), 2)
        if planned:
            plan_batch(checkpoint, 3)
        barrier_id = checkpoint.position().barrier_id
        body = format_offset_entry(stop_entry(checkpoint.read_offset(2), barrier_mark()))
        write_with_crc(checkpoint.store, checkpoint.offset_key(barrier_id), body)
        assert f"offsets/{barrier_id}" not in paths_of(checkpoint)
        assert ("offsets/3" in paths_of(checkpoint)) is planned


def test_temporary_files_and_later_versions_are_left_out() -> None:
    """What a failed claim or a running batch left above the position is not part of it."""
    checkpoint = stateful(2)
    write_hdfs_state(checkpoint, range(4, 6))
    write_source_log(checkpoint, 4)
    for name in ("offsets/.3.u.tmp", "offsets/..3.u.tmp.crc", "state/0/0/.4.delta.u.TID7.tmp", "sources/0/.5.u.tmp"):
        checkpoint.store.put(checkpoint.key(name), b"x")
    assert paths_of(checkpoint) == paths_of(stateful(2))


def test_source_log_that_only_a_lost_claim_wrote_is_left_out() -> None:
    """Files that Spark took up for a batch it could not claim are found again by the next run."""
    checkpoint = run_batches(memory_checkpoint(), 2)
    write_source_log(checkpoint, 3)
    assert "sources/0/3" not in paths_of(checkpoint)


def test_old_source_logs_are_left_out_behind_two_compactions() -> None:
    """The log is listed from the second newest compaction on."""
    checkpoint = run_batches(memory_checkpoint(), 25)
    write_source_log(checkpoint, 25)
    sources = [path for path in paths_of(checkpoint) if path.startswith("sources/")]
    assert len(sources) == len(range(9, 26))
    assert {"sources/0/9.compact", "sources/0/19.compact", "sources/0/25"} <= set(sources)
    assert "sources/0/8" not in sources


def test_logs_of_other_sources_are_taken_whole() -> None:
    """Kafka's initial offsets, or anything else that a source keeps, are not cut by a file source's numbers."""
    checkpoint = run_batches(memory_checkpoint(), 2)
    write_source_log(checkpoint, 2)
    for name in ("0", "77", "deep/er"):
        checkpoint.store.put(checkpoint.key(f"sources/1/{name}"), b'v1\n{"orders":{"0":17}}')
    assert {"sources/1/0", "sources/1/77", "sources/1/deep/er"} <= set(paths_of(checkpoint))


def test_source_that_is_read_twice_is_taken_by_the_widest_bounds() -> None:
    """Two lines and one folder: no file that one of the two lines needs is missing."""
    checkpoint = run_batches(memory_checkpoint(), 1)
    write_source_log(checkpoint, 6)
    metadata = checkpoint.store.get(checkpoint.offset_key(1)).body.decode().rsplit("\n", 1)[0]
    checkpoint.store.put(checkpoint.offset_key(1), f'{metadata}\n{{"logOffset":2}}\n{{"logOffset":5}}'.encode())
    sources = [path for path in paths_of(checkpoint) if path.startswith("sources/")]
    assert sources == [f"sources/0/{number}" for number in range(6)]


def test_drained_position_can_be_listed_without_state() -> None:
    """Positions only: logs and sources, no state."""
    assert [path for path in paths_of(stateful(2), with_state=False) if path.startswith("state/")] == []


@pytest.mark.parametrize("path", ["metadata", "offsets/1", "commits/1", "state/0/1/2.delta"])
def test_missing_file_is_named(path: str) -> None:
    """A position whose file is gone is never listed as if it were whole (Law 3)."""
    checkpoint = stateful(2)
    position = checkpoint.position()
    checkpoint.store.delete(checkpoint.key(path))
    with pytest.raises(ObjectMissingError) as error:
        files_of(checkpoint, position)
    assert error.value.context["key"] == checkpoint.key(path)


def test_first_batch_needs_no_entry_before_it() -> None:
    """A position at batch 0 is complete with one entry."""
    assert paths_of(run_batches(memory_checkpoint(), 0)) == ["commits/0", "metadata", "offsets/0"]
