"""A batch that is committed without having read its rows."""

from __future__ import annotations

import json

import pytest

from airflow_streamstate.checkpoint.log import NO_OFFSET, Checkpoint, crc_key_of
from airflow_streamstate.checkpoint.seed import finish_skip, prepare_skip
from airflow_streamstate.errors import ConflictError, OutcomeUnknownError
from airflow_streamstate.store.memory import MemoryStore
from support.checkpoints import HookedStore, commit_batch, memory_checkpoint, plan_batch
from support.snapshots import run_stateful


def planned(checkpoint: Checkpoint, last: int = 3) -> tuple[Checkpoint, Checkpoint, int]:
    """A checkpoint with state whose next batch is planned, and the place of its fork."""
    run_stateful(checkpoint, last)
    plan_batch(checkpoint, last + 1, watermark_ms=4_000)
    return checkpoint, Checkpoint(checkpoint.store, "building"), last + 1


def run_empty(building: Checkpoint, batch_id: int, store: bytes = b"unchanged") -> None:
    """What Spark leaves of the empty batch: its watermark was zero, and is zero after it."""
    building.store.put(building.key(f"state/0/0/{batch_id + 1}.delta"), store)
    building.store.put(building.key(f"state/0/0/.{batch_id + 1}.delta.crc"), b"its checksum")
    entry = building.read_offset(batch_id)
    assert entry is not None
    building.store.put(building.commit_key(batch_id), b'v1\n{"nextBatchWatermarkMs":0}')


def ready_to_finish() -> tuple[Checkpoint, Checkpoint, int]:
    """As ``planned``, where the empty batch has run."""
    checkpoint, building, batch_id = planned(memory_checkpoint())
    prepare_skip(building, checkpoint, batch_id)
    run_empty(building, batch_id)
    return checkpoint, building, batch_id


def test_the_fork_plans_an_empty_batch_at_which_nothing_is_due() -> None:
    """The offsets of before and all times at zero: no window closes and no timer fires into nothing."""
    checkpoint, building, batch_id = planned(memory_checkpoint())
    before = {info.key for info in checkpoint.store.list_objects(f"{checkpoint.prefix}/")}
    prepare_skip(building, checkpoint, batch_id)
    entry, last, own = building.read_offset(batch_id), checkpoint.read_offset(batch_id - 1), checkpoint.read_offset(4)
    assert entry.source_lines == last.source_lines != own.source_lines
    assert (entry.batch_watermark_ms, entry.batch_timestamp_ms) == (0, 0)
    assert building.position().planned_id == batch_id
    assert {info.key for info in checkpoint.store.list_objects(f"{checkpoint.prefix}/")} == before


def test_the_commit_comes_last_and_the_log_stays_as_spark_wrote_it() -> None:
    """The watermark with which it was planned continues, and what a failed run left of the state is replaced."""
    checkpoint, building, batch_id = planned(memory_checkpoint())
    entry = checkpoint.store.get(checkpoint.offset_key(batch_id))
    checkpoint.store.put(checkpoint.key(f"state/0/0/{batch_id + 1}.delta"), b"with half of its rows")
    checkpoint.store.put(checkpoint.key(f"state/0/0/{batch_id + 1}.snapshot"), b"with half of its rows")
    checkpoint.store.put(crc_key_of(checkpoint.commit_key(batch_id)), b"stale")
    prepare_skip(building, checkpoint, batch_id)
    run_empty(building, batch_id)
    finish_skip(building, checkpoint, batch_id)
    assert checkpoint.position().batch_id == batch_id
    assert checkpoint.position().planned is None
    assert checkpoint.store.get(checkpoint.offset_key(batch_id)) == entry
    state = checkpoint.store.get(checkpoint.key(f"state/0/0/{batch_id + 1}.delta"))
    assert state.body == b"unchanged"
    assert checkpoint.store.get(checkpoint.key(f"state/0/0/{batch_id + 1}.snapshot")) is None
    assert checkpoint.store.get(crc_key_of(checkpoint.commit_key(batch_id))) is None
    own, commit = checkpoint.read_offset(batch_id), checkpoint.read_commit(batch_id)
    assert commit.next_batch_watermark_ms == own.batch_watermark_ms
    assert list(building.store.list_objects("building/")) == []


def test_the_very_first_batch_can_be_skipped() -> None:
    """There are no offsets before it: every source starts where the batch would have ended."""
    checkpoint = memory_checkpoint()
    checkpoint.store.put(checkpoint.metadata_key, json.dumps({"id": "q"}).encode())
    plan_batch(checkpoint, 0)
    building = Checkpoint(checkpoint.store, "building")
    prepare_skip(building, checkpoint, 0)
    entry = building.read_offset(0)
    assert set(entry.source_lines) == {NO_OFFSET}
    run_empty(building, 0)
    finish_skip(building, checkpoint, 0)
    assert checkpoint.position().batch_id == 0
    assert checkpoint.store.get(checkpoint.key("state/0/0/1.delta")) is not None


@pytest.mark.parametrize("batch_id", [3, 5])
def test_only_the_planned_batch_can_be_skipped(batch_id: int) -> None:
    """What is committed has its rows in the state; what was never planned has no bounds."""
    checkpoint, building, _ = planned(memory_checkpoint())
    with pytest.raises(ConflictError, match="not planned"):
        prepare_skip(building, checkpoint, batch_id)


@pytest.mark.parametrize("ran", ["nothing", "more"])
def test_nothing_is_committed_where_the_empty_batch_has_not_run_alone(ran: str) -> None:
    """A driver that died in it starts again (Law 2); the state of a later batch has rows of it."""
    checkpoint, building, batch_id = planned(memory_checkpoint())
    prepare_skip(building, checkpoint, batch_id)
    if ran == "more":
        run_empty(building, batch_id)
        plan_batch(building, batch_id + 1)
        commit_batch(building, batch_id + 1)
    with pytest.raises(ConflictError, match="has not run"):
        finish_skip(building, checkpoint, batch_id)
    assert checkpoint.position().planned_id == batch_id


def test_what_the_empty_batch_left_half_written_is_not_taken_along() -> None:
    """Temporary files of a task that was cut are no state, and nor are their checksums."""
    checkpoint, building, batch_id = ready_to_finish()
    for name in (".5.delta.0b1a8f0e.TID3.tmp", "..5.delta.0b1a8f0e.TID3.tmp.crc"):
        building.store.put(building.key(f"state/0/0/{name}"), b"half")
    finish_skip(building, checkpoint, batch_id)
    left = [info.key for info in checkpoint.store.list_objects(f"{checkpoint.prefix}/")]
    assert [key for key in left if "tmp" in key] == []


@pytest.mark.parametrize("there", ["ours", "another's", None])
def test_a_commit_whose_answer_was_lost_is_ours_only_word_for_word(there: str | None) -> None:
    """The same bytes are this skip's own; other ones are a batch that ran with its rows. (Law 8)"""
    checkpoint, building, batch_id = ready_to_finish()
    store, key = checkpoint.store, checkpoint.commit_key(batch_id)

    def before(verb: str, called: str) -> None:
        if (verb, called) == ("create", key) and there != "ours":
            if there is not None:
                store.put(key, b'v1\n{"nextBatchWatermarkMs":77}')
            raise OutcomeUnknownError("the write may have landed", key=key)

    def after(verb: str, called: str) -> None:
        if (verb, called) == ("create", key):
            raise OutcomeUnknownError("the write may have landed", key=key)

    store.before, store.after = before, after
    if there == "ours":
        finish_skip(building, checkpoint, batch_id)
        assert list(store.list_objects("building/")) == []
        return
    with pytest.raises(OutcomeUnknownError):
        finish_skip(building, checkpoint, batch_id)
    found = store.get(key)
    assert (found and found.body) == (there and b'v1\n{"nextBatchWatermarkMs":77}')
    assert list(store.list_objects("building/")) != []


class CrashError(Exception):
    """The driver dies."""


def test_cut_off_anywhere_it_is_planned_or_committed_and_is_done_again() -> None:
    """At every change that it makes: never a commit over state that is not there. (Laws 2 and 3)"""
    changes: list[tuple[str, str]] = []

    def world() -> tuple[HookedStore, Checkpoint, Checkpoint, int]:
        store = HookedStore()
        checkpoint, building, batch_id = planned(Checkpoint(store, "cp"))
        checkpoint.store.put(checkpoint.key(f"state/0/0/{batch_id + 1}.delta"), b"with half of its rows")
        return store, checkpoint, building, batch_id

    def skip(checkpoint: Checkpoint, building: Checkpoint, batch_id: int) -> None:
        prepare_skip(building, checkpoint, batch_id)
        run_empty(building, batch_id)
        finish_skip(building, checkpoint, batch_id)

    store, checkpoint, building, batch_id = world()
    store.after = lambda verb, key: changes.append((verb, key)) if verb in ("link", "create", "delete") else None
    skip(checkpoint, building, batch_id)
    assert len(changes) > 10
    for count in range(1, len(changes) + 1):
        store, checkpoint, building, batch_id = world()
        left = count

        def strike(verb: str, key: str) -> None:
            nonlocal left
            left -= verb in ("link", "create", "delete")
            if left == 0:
                left = -1
                raise CrashError

        store.after = strike
        with pytest.raises(CrashError):
            skip(checkpoint, building, batch_id)
        store.after = None
        if checkpoint.position().planned_id == batch_id:
            skip(checkpoint, building, batch_id)
        state = MemoryStore.get(store, checkpoint.key(f"state/0/0/{batch_id + 1}.delta"))
        assert state.body == b"unchanged"
        assert checkpoint.position().batch_id == batch_id
