"""Reading a checkpoint, and its position."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_streamstate.checkpoint.log import (
    MOST_ENTRY_BYTES,
    MOST_PASSED_OVER,
    Checkpoint,
    batches_passed_over,
    format_offset_entry,
    listed_batches,
    stop_entry,
)
from airflow_streamstate.errors import DataError, UnavailableError
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from support.checkpoints import (
    PREFIX,
    QUERY_ID,
    barrier_mark,
    commit_batch,
    end_offsets,
    memory_checkpoint,
    plan_batch,
    run_batches,
)


def put_barrier(checkpoint: Checkpoint, batch_id: int) -> None:
    checkpoint.store.put(checkpoint.offset_key(batch_id), format_offset_entry(stop_entry(None, barrier_mark())))


def test_checkpoint_exists_once_its_metadata_is_there() -> None:
    """A checkpoint without metadata is half built, whatever else is there (1a.10)."""
    checkpoint = Checkpoint(MemoryStore(), PREFIX)
    plan_batch(checkpoint, 0)
    assert (checkpoint.exists(), checkpoint.query_id()) == (False, None)
    made = memory_checkpoint()
    assert (made.exists(), made.query_id()) == (True, QUERY_ID)


def test_a_checkpoint_has_state_where_a_state_operator_has_a_folder() -> None:
    """Of a query without state its logs alone are read."""
    checkpoint = run_batches(memory_checkpoint(), 1)
    assert not checkpoint.has_state()
    checkpoint.store.put(checkpoint.key("state/0/0/1.delta"), b"d")
    assert checkpoint.has_state()


def test_the_time_of_a_commit_is_that_of_the_store(tmp_path: Path) -> None:
    """None where the batch is not committed."""
    checkpoint = run_batches(Checkpoint(LocalStore(tmp_path, fsync=False), PREFIX), 1)
    found = checkpoint.store.head(checkpoint.commit_key(1))
    assert found.modified_at is not None
    assert checkpoint.committed_at(1) == found.modified_at
    assert checkpoint.committed_at(2) is None


def test_a_file_without_end_is_no_entry(tmp_path: Path) -> None:
    """A driver can make one in place of any file of its checkpoint, and every reader's memory would fill (Law 7)."""
    checkpoint = run_batches(Checkpoint(LocalStore(tmp_path, fsync=False), PREFIX), 1)
    checkpoint.store.put(checkpoint.metadata_key, b"{}")
    for key in (checkpoint.metadata_key, checkpoint.offset_key(1), checkpoint.commit_key(1)):
        os.truncate(tmp_path / key, MOST_ENTRY_BYTES + 1)
    for read in (
        checkpoint.query_id,
        lambda: checkpoint.read_offset(1),
        lambda: checkpoint.read_commit(1),
        lambda: checkpoint.is_committed(1),
    ):
        with pytest.raises(DataError, match="larger than one of its kind"):
            read()


def test_damaged_metadata_is_an_error() -> None:
    """Metadata that names no id is never taken for a new query (Law 5)."""
    checkpoint = Checkpoint(MemoryStore(), PREFIX)
    checkpoint.store.put(checkpoint.metadata_key, b'{"id":')
    with pytest.raises(DataError):
        checkpoint.query_id()


def test_ids_skip_everything_that_is_no_entry() -> None:
    """Checksums, left-over temp files, folders and other names are no batches; ids are in number order."""
    checkpoint = run_batches(memory_checkpoint(), 11)
    for name in [".12.5c1f6a52.tmp", "..12.5c1f6a52.tmp.crc", "12.tmp", "007", "-1", "13.compact", "sub/14"]:
        checkpoint.store.put(checkpoint.key(f"offsets/{name}"), b"x")
    assert checkpoint.offset_ids() == list(range(12))
    assert checkpoint.commit_ids() == list(range(12))


def test_position_is_last_commit_and_sparks_planned_entry() -> None:
    """The position is (last committed, planned entry of Spark's own), from before the first batch on (1a.6)."""
    checkpoint = memory_checkpoint()
    position = checkpoint.position()
    assert (position.batch_id, position.last_batch_id, position.barrier_id) == (None, None, 0)
    plan_batch(checkpoint, 0)
    position = checkpoint.position()
    assert (position.batch_id, position.planned_id, position.barrier_id) == (None, 0, 1)
    checkpoint = run_batches(memory_checkpoint(), 3)
    assert checkpoint.position().batch_id == 3
    assert checkpoint.position().planned is None
    plan_batch(checkpoint, 4)
    position = checkpoint.position()
    assert (position.batch_id, position.planned_id, position.last_batch_id, position.barrier_id) == (3, 4, 4, 5)
    assert position.planned == checkpoint.read_offset(4)


def test_our_entries_are_barriers_and_never_planned_batches() -> None:
    """Our entries are distinguished from Spark's own, over a committed and over an uncommitted batch (1a.6)."""
    checkpoint = run_batches(memory_checkpoint(), 3)
    put_barrier(checkpoint, 4)
    position = checkpoint.position()
    assert (position.planned, [barrier.batch_id for barrier in position.barriers]) == (None, [4])
    checkpoint.store.delete(checkpoint.offset_key(4))
    plan_batch(checkpoint, 4)
    put_barrier(checkpoint, 5)
    put_barrier(checkpoint, 6)
    position = checkpoint.position()
    assert (position.planned_id, [barrier.batch_id for barrier in position.barriers]) == (4, [5, 6])
    assert position.barrier_id == 5


def test_purged_logs_have_a_position_all_the_same() -> None:
    """Spark purges old entries; the position needs only the last ones."""
    checkpoint = run_batches(memory_checkpoint(), 120, first=20)
    assert checkpoint.position().batch_id == 120


def test_old_gap_in_the_commits_is_history() -> None:
    """Batches lost before our time do not hide where the query is now."""
    checkpoint = run_batches(memory_checkpoint(), 3)
    checkpoint.store.delete(checkpoint.commit_key(1))
    assert checkpoint.position().batch_id == 3


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("two planned", "plans batches beyond one not committed"),
        ("commit without offset", "has no entry in the offset log"),
        ("planned above barrier", "a batch was planned above a barrier"),
        ("planned around barrier", "a batch was planned above a barrier"),
        ("gap", "plans batches beyond one not committed"),
        ("passed over", "the commit log passes over a batch"),
    ],
)
def test_contradicting_logs_are_an_error(case: str, said: str) -> None:
    """Logs in which a batch may have been lost are reported for what they are, never guessed at (Law 12)."""
    checkpoint = run_batches(memory_checkpoint(), 3)
    if case == "two planned":
        plan_batch(checkpoint, 4)
        plan_batch(checkpoint, 5)
    elif case == "commit without offset":
        commit_batch(checkpoint, 4)
    elif case == "planned above barrier":
        put_barrier(checkpoint, 4)
        plan_batch(checkpoint, 5)
    elif case == "planned around barrier":
        plan_batch(checkpoint, 4)
        put_barrier(checkpoint, 5)
        plan_batch(checkpoint, 6)
    elif case == "passed over":
        checkpoint.store.delete(checkpoint.commit_key(2))
    else:
        plan_batch(checkpoint, 6)
    with pytest.raises(DataError, match=said) as error:
        checkpoint.position()
    assert error.value.context["offset_entries"] == checkpoint.offset_ids()[-5:]
    assert error.value.context["checkpoint"] == PREFIX


def test_damaged_planned_entry_is_an_error_that_names_it() -> None:
    """A planned entry that Spark wrote half is an error naming its key, not a missing batch."""
    checkpoint = run_batches(memory_checkpoint(), 3)
    checkpoint.store.put(checkpoint.offset_key(4), b'v1\n{"batchWater')
    with pytest.raises(DataError) as error:
        checkpoint.position()
    assert error.value.context["key"] == checkpoint.offset_key(4)


def test_watermark_and_end_offsets_are_those_of_the_last_commit() -> None:
    """A planned batch changes neither."""
    checkpoint = memory_checkpoint()
    assert (checkpoint.watermark_ms(), end_offsets(checkpoint)) == (0, ())
    run_batches(checkpoint, 3)
    plan_batch(checkpoint, 4)
    assert (checkpoint.watermark_ms(), end_offsets(checkpoint)) == (4000, ('{"logOffset":3}',))


@pytest.mark.parametrize(("count", "end"), [(3, (6, 7)), (1000, None)])
def test_position_of_a_running_query_is_consistent(count: int, end: tuple[int, int] | None) -> None:
    """A batch that is committed between the reads of the two logs is not taken for a lost one.

    A query that never pauses has no position: the error can be retried.
    """
    checkpoint = run_batches(memory_checkpoint(), 3)
    plan_batch(checkpoint, 4)
    moves = iter(range(4, 4 + count))

    def move_on(verb: str, key: str) -> None:
        if verb == "list" and key.endswith("offsets/"):
            committed = next(moves, None)
            if committed is not None:
                commit_batch(checkpoint, committed)
                plan_batch(checkpoint, committed + 1)

    checkpoint.store.before = move_on
    if end is None:
        with pytest.raises(UnavailableError):
            checkpoint.position()
        return
    position = checkpoint.position()
    assert (position.batch_id, position.planned_id) == end


@pytest.mark.parametrize(
    ("commits", "missing"), [([], ()), ([7], ()), ([7, 8, 9], ()), ([3, 7, 8], (4, 5, 6)), ([1, 3, 5], (2, 4))]
)
def test_what_a_commit_log_passes_over_is_named(commits: list[int], missing: tuple[int, ...]) -> None:
    """Whatever is missing between the first and the last commit was never committed (Law 12)."""
    assert batches_passed_over(commits) == missing


def test_a_gap_of_any_size_costs_little() -> None:
    """A file of any number may be among the commits; the first batches of the gap are named."""
    missing = batches_passed_over([3, 5, 10**18 - 1])
    assert missing == (4, *range(6, 6 + MOST_PASSED_OVER))
    assert listed_batches(missing).endswith(f", {4 + MOST_PASSED_OVER}, …")
    assert listed_batches({12, 4}) == "4, 12"
