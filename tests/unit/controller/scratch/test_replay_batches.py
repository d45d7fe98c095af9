"""Which batches a replay runs, and where their rows may go."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.checkpoint.barrier import put_fence
from airflow_streamstate.checkpoint.log import Checkpoint, drain_entry, format_offset_entry
from airflow_streamstate.controller.scratch.replays import batch_chosen, check_out, chosen_queries, last_batches
from airflow_streamstate.errors import ConflictError, InvalidRequestError
from support.checkpoints import (
    barrier_mark,
    commit_batch,
    memory_checkpoint,
    plan_batch,
    run_batches,
    spark_offset_text,
    store_folders,
    write_hdfs_state,
    write_operator_metadata,
)


def stateful(last: int, *, kept_from: int = 0) -> Checkpoint:
    """Batches 0 to ``last``; the state of before ``kept_from`` is cleaned up, the log is not."""
    checkpoint = run_batches(memory_checkpoint(), last)
    write_operator_metadata(checkpoint)
    write_hdfs_state(checkpoint, range(kept_from + 1, last + 2), snapshots=(kept_from,) if kept_from else ())
    return checkpoint


def test_a_batch_is_named_whether_committed_or_planned() -> None:
    """The planned one is the batch that failed."""
    checkpoint = stateful(4)
    plan_batch(checkpoint, 5)
    assert batch_chosen("counts", checkpoint, 0) == (0,)
    assert batch_chosen("counts", checkpoint, 5) == (5,)


def test_a_batch_that_never_was_is_refused_with_those_that_were() -> None:
    """An entry of ours above the last batch is no batch."""
    checkpoint = stateful(4)
    put_fence(checkpoint, barrier_mark("fence"))
    with pytest.raises(InvalidRequestError, match="has not planned this batch") as caught:
        batch_chosen("counts", checkpoint, 5)
    assert caught.value.context["newest_batch_id"] == 4
    assert caught.value.next_step == "Batches 0 to 4 can be replayed. Name one of these with --batch."
    with pytest.raises(InvalidRequestError, match="has not planned this batch") as caught:
        batch_chosen("counts", memory_checkpoint(), 0)
    assert caught.value.next_step.startswith("No batch of it can be replayed.")


def test_a_stream_that_drains_is_replayed_up_to_its_last_batch() -> None:
    """The entry of the flush is ours until it is committed; then it is a batch that reads nothing."""
    checkpoint = stateful(4)
    last = checkpoint.read_offset(4)
    assert last is not None
    body = format_offset_entry(drain_entry(last, barrier_mark("drain")))
    checkpoint.store.create(checkpoint.offset_key(5), body)
    assert last_batches("counts", checkpoint, 1, runs=True) == (4,)
    with pytest.raises(InvalidRequestError, match="has not planned this batch"):
        batch_chosen("counts", checkpoint, 5)
    commit_batch(checkpoint, 5)
    assert last_batches("counts", checkpoint, 1, runs=False) == (4,)
    assert batch_chosen("counts", checkpoint, 5) == (5,)


def test_a_batch_whose_state_was_cleaned_up_is_refused_with_those_that_are_left() -> None:
    """So is one whose entries are gone."""
    checkpoint = stateful(6, kept_from=4)
    for batch_id in (0, 1):
        checkpoint.store.delete(checkpoint.offset_key(batch_id))
    for gone in (0, 1, 3):
        with pytest.raises(InvalidRequestError, match="was cleaned up") as caught:
            batch_chosen("counts", checkpoint, gone)
        assert caught.value.next_step.startswith("Batches 4 to 6 can be replayed.")
    assert batch_chosen("counts", checkpoint, 4) == (4,)


def test_the_last_batches_end_at_the_one_that_is_planned() -> None:
    """Without one, at the newest that read something: an empty batch shows nothing."""
    checkpoint = stateful(4)
    assert last_batches("counts", checkpoint, 2, runs=False) == (3, 4)
    checkpoint.store.put(checkpoint.offset_key(5), spark_offset_text(4))
    commit_batch(checkpoint, 5)
    assert last_batches("counts", checkpoint, 2, runs=False) == (3, 4)
    plan_batch(checkpoint, 6)
    write_hdfs_state(checkpoint, range(6, 7))
    assert last_batches("counts", checkpoint, 3, runs=False) == (4, 5, 6)


def test_the_empty_batch_that_is_in_flight_is_not_the_one_that_failed() -> None:
    """Of a query that runs; of one that has ended, an empty batch may have failed over what its windows gave."""
    checkpoint = stateful(4)
    checkpoint.store.put(checkpoint.offset_key(5), spark_offset_text(4))
    assert last_batches("counts", checkpoint, 1, runs=True) == (4,)
    assert last_batches("counts", checkpoint, 1, runs=False) == (5,)


def test_no_more_batches_are_taken_than_can_be_replayed() -> None:
    """Those that are left are taken."""
    assert last_batches("counts", stateful(6, kept_from=5), 10, runs=False) == (5, 6)
    assert last_batches("counts", stateful(2), 10, runs=False) == (0, 1, 2)


def test_a_query_that_has_read_nothing_is_refused() -> None:
    """There is nothing to see in it; nor where all state is gone."""
    checkpoint = stateful(4)
    for folder in store_folders():
        for version in range(1, 6):
            checkpoint.store.delete(checkpoint.key(f"state/{folder}/{version}.delta"))
    for each in (memory_checkpoint(), checkpoint):
        if each is checkpoint:
            each.store.delete(each.offset_key(0))
        with pytest.raises(InvalidRequestError, match="no batch of this query can be replayed"):
            last_batches("counts", each, 1, runs=False)


def test_queries_are_those_with_a_checkpoint() -> None:
    """All of them, or the one that is named."""
    checkpoints = {"counts": memory_checkpoint(), "raw": memory_checkpoint()}
    assert set(chosen_queries(checkpoints, "d-0001", None)) == {"counts", "raw"}
    assert set(chosen_queries(checkpoints, "d-0001", "raw")) == {"raw"}
    with pytest.raises(InvalidRequestError, match="no such query") as caught:
        chosen_queries(checkpoints, "d-0001", "sums")
    assert caught.value.context["queries"] == ["counts", "raw"]
    with pytest.raises(InvalidRequestError, match="has no checkpoint"):
        chosen_queries({}, "d-0001", None)


def test_rows_go_into_an_empty_folder_of_its_own(tmp_path: Path) -> None:
    """Never into a home, nor around one (Law 4)."""
    home = tmp_path / "streams" / "home"
    home.mkdir(parents=True)
    kept = {f"file://{home}", "s3://bucket/copies"}
    assert check_out(str(tmp_path / "new"), kept) == str(tmp_path / "new")
    assert check_out(f"file://{tmp_path / 'new'}", kept) == str(tmp_path / "new")
    for out in (home / "rows", home, tmp_path / "streams", "gs://bucket/rows"):
        with pytest.raises(InvalidRequestError):
            check_out(str(out), kept)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequestError, match="cannot be used"):
        check_out(str(tmp_path / "file"), kept)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("")
    with pytest.raises(ConflictError, match="is not empty"):
        check_out(str(tmp_path / "taken"), kept)
