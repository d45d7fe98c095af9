"""A barrier in a log of which nothing can be seen but what is written into it."""

from __future__ import annotations

import pytest

from airflow_streamstate.checkpoint.barrier import Idle, OutsideBarrier, OutsideCertain, OutsidePlaced, Unsure
from airflow_streamstate.checkpoint.log import BarrierMark, Checkpoint
from airflow_streamstate.errors import ConflictError, OutcomeUnknownError, UnsupportedCheckpointError
from support.checkpoints import (
    CONF,
    barrier_mark,
    commit_batch,
    memory_checkpoint,
    once,
    plan_batch,
    run_batches,
)

MARK = barrier_mark("fence")
OTHERS = BarrierMark("fence", "others", "d-0001", 1, "c-2", "w-2")


@pytest.fixture
def checkpoint() -> Checkpoint:
    """Batches 0 to 2 are committed."""
    return run_batches(memory_checkpoint(), 2)


def test_it_is_put_above_a_batch_that_was_planned_before_our_eyes(checkpoint: Checkpoint) -> None:
    """Never above one that was there at the first poll: its query may be starting (1a.2)."""
    barrier = OutsideBarrier(checkpoint, MARK)
    plan_batch(checkpoint, 3)
    assert barrier.step() == Idle(4)
    commit_batch(checkpoint, 3)
    assert barrier.step() == Idle(4)
    plan_batch(checkpoint, 4)
    assert barrier.step() == OutsideCertain(4, 5)
    commit_batch(checkpoint, 4)
    assert barrier.step() == OutsidePlaced(4, 5)


def test_it_names_no_source(checkpoint: Checkpoint) -> None:
    """So that Spark refuses to start over it. (Law 12)"""
    barrier = OutsideBarrier(checkpoint, MARK)
    barrier.put_over(checkpoint.position())
    entry = checkpoint.read_offset(3)
    assert (entry.source_lines, entry.version, entry.mark) == ((), "v1", MARK)
    assert CONF.items() <= entry.conf.items(), "what the last batch pinned"


def test_the_next_controller_finds_it(checkpoint: Checkpoint) -> None:
    """The command names its owner: it is put once, and judged where it is found. (Law 2)"""
    assert OutsideBarrier(checkpoint, MARK).put_over(checkpoint.position()) == 3
    assert OutsideBarrier(checkpoint, MARK).put_over(checkpoint.position()) == 3
    assert OutsideBarrier(checkpoint, MARK).step() == Unsure(2, 3)
    assert checkpoint.offset_ids() == [0, 1, 2, 3]


def test_a_query_that_never_committed_a_batch_gets_its_log_back() -> None:
    """Barred at entry 0; withdrawn, nothing is left of it. (Law 12)"""
    checkpoint = memory_checkpoint()
    barrier = OutsideBarrier(checkpoint, MARK)
    assert barrier.put_over(checkpoint.position()) == 0
    assert barrier.take_back()
    assert checkpoint.offset_ids() == []


@pytest.mark.parametrize("is_committed", [False, True])
def test_one_that_was_quicker_is_waited_for_again(checkpoint: Checkpoint, is_committed: bool) -> None:
    """Spark claims the place of the barrier first: nothing is lost, and it continues above (1a.3). A batch that it has
    committed there by now is none that it ran over a barrier."""
    barrier = OutsideBarrier(checkpoint, MARK)
    assert barrier.step() == Idle(3)
    plan_batch(checkpoint, 3)
    commit_batch(checkpoint, 3)
    plan_batch(checkpoint, 4)
    if is_committed:
        commit_batch(checkpoint, 4)
    assert barrier.step() == Idle(5)
    assert checkpoint.position().barriers == ()


def test_an_entry_that_is_overwritten_is_put_anew_above(checkpoint: Checkpoint) -> None:
    """Look-then-rename: the claim whose look came before the put. (Law 13; 1a.3)"""
    barrier = OutsideBarrier(checkpoint, MARK)
    barrier.step()
    plan_batch(checkpoint, 3)

    def claim() -> None:
        commit_batch(checkpoint, 3)
        plan_batch(checkpoint, 4)

    checkpoint.store.after = once(claim, "create", "offsets/4")
    assert barrier.step() == Idle(5)


def test_over_a_committed_batch_it_is_not_certain(checkpoint: Checkpoint) -> None:
    """Until it was waited for whether a claim was on its way. (Law 13)"""
    barrier = OutsideBarrier(checkpoint, MARK)
    barrier.step()
    plan_batch(checkpoint, 3)
    checkpoint.store.after = once(lambda: commit_batch(checkpoint, 3), "create", "offsets/4")
    assert barrier.step() == Unsure(3, 4)
    barrier.settle()
    assert barrier.step() == OutsidePlaced(3, 4)


def test_a_query_that_goes_on_over_it_is_told(checkpoint: Checkpoint) -> None:
    """A continuous trigger, or asynchronous progress tracking. What it committed over our entry goes with that: Spark
    would not start over it. (Law 12)"""
    barrier = OutsideBarrier(checkpoint, MARK)
    barrier.step()
    plan_batch(checkpoint, 3)
    barrier.step()
    commit_batch(checkpoint, 3)
    commit_batch(checkpoint, 4)
    with pytest.raises(UnsupportedCheckpointError, match="over a barrier"):
        barrier.step()
    assert barrier.take_back()
    assert (checkpoint.offset_ids()[-1], checkpoint.commit_ids()[-1]) == (3, 3)
    assert [info.key for info in checkpoint.store.list_objects(f"{checkpoint.prefix}/") if "4" in info.key] == []
    assert not barrier.take_back()


def test_a_query_that_went_on_beyond_it_is_rid_of_it_too() -> None:
    """Its entry is looked for among the last commits, not above them alone. (Law 12)"""
    checkpoint = run_batches(memory_checkpoint(), 1)
    barrier = OutsideBarrier(checkpoint, MARK)
    assert barrier.put_over(checkpoint.position()) == 2
    commit_batch(checkpoint, 2)
    plan_batch(checkpoint, 3)
    commit_batch(checkpoint, 3)
    assert barrier.take_back()
    assert (checkpoint.offset_ids(), checkpoint.commit_ids()) == ([0, 1, 3], [0, 1, 3])


def test_only_ones_own_is_taken_back(checkpoint: Checkpoint) -> None:
    """With its checksum; the log is as it was."""
    OutsideBarrier(checkpoint, OTHERS).put_over(checkpoint.position())
    barrier = OutsideBarrier(checkpoint, MARK)
    assert not barrier.take_back()
    with pytest.raises(ConflictError, match="another stream"):
        barrier.step()
    assert OutsideBarrier(checkpoint, OTHERS).take_back()
    assert checkpoint.position().barriers == ()


def test_offset_log_2_has_no_barrier_below_batch_2() -> None:
    """Spark could not start there, if its batch failed."""
    checkpoint = memory_checkpoint()
    barrier = OutsideBarrier(checkpoint, MARK)
    assert barrier.step() == Idle(0)
    plan_batch(checkpoint, 0)
    entry = checkpoint.store.get(checkpoint.offset_key(0))
    body = entry.body.replace(b"v1\n", b"v2\n").replace(b'\n{"logOffset"', b'\n0:{"logOffset"')
    checkpoint.store.put(checkpoint.offset_key(0), body)
    assert barrier.step() == Idle(1)
    assert checkpoint.position().barriers == ()
    commit_batch(checkpoint, 0)
    checkpoint.store.put(checkpoint.offset_key(1), body)
    assert barrier.step() == OutsideCertain(1, 2), "batch 2 is the first that it can start from"
    entry = checkpoint.read_offset(2)
    assert (entry.version, entry.source_keys) == ("v1", ()), "of offset log 1, which names no source by a key"


def test_a_barrier_that_removed_nothing_puts_nothing_back(checkpoint: Checkpoint) -> None:
    """An abandoned adoption may never have put one."""
    OutsideBarrier(checkpoint, MARK).put_back()
    assert checkpoint.offset_ids() == [0, 1, 2]


def test_one_that_has_taken_its_place_stays(checkpoint: Checkpoint) -> None:
    """Between the look and the removal another took ours back, and another stream put a barrier there. (Law 4)"""
    OutsideBarrier(checkpoint, MARK).put_over(checkpoint.position())

    def exchange() -> None:
        OutsideBarrier(checkpoint, MARK).take_back()
        OutsideBarrier(checkpoint, OTHERS).put_over(checkpoint.position())

    checkpoint.store.after = once(exchange, "get", "offsets/3")
    OutsideBarrier(checkpoint, MARK).take_back()
    assert [one.entry.mark for one in checkpoint.position().barriers] == [OTHERS]


def test_a_log_that_contradicts_itself_gives_it_back(checkpoint: Checkpoint) -> None:
    """The next start reports what else is wrong there; our barrier is not in its way. (Law 12)"""
    OutsideBarrier(checkpoint, MARK).put_over(checkpoint.position())
    checkpoint.store.delete(checkpoint.commit_key(1))
    assert OutsideBarrier(checkpoint, MARK).take_back()
    assert checkpoint.offset_ids() == [0, 1, 2]


def test_what_was_removed_too_late_is_put_back(checkpoint: Checkpoint) -> None:
    """In its very place, and only where nothing was planned since. (Law 14)"""
    barrier = OutsideBarrier(checkpoint, MARK)
    barrier.put_over(checkpoint.position())
    before = checkpoint.store.get(checkpoint.offset_key(3))
    barrier.take_back()
    barrier.put_back()
    after = checkpoint.store.get(checkpoint.offset_key(3))
    assert after.body == before.body
    barrier.take_back()
    plan_batch(checkpoint, 3)
    barrier.put_back()
    assert checkpoint.position().planned_id == 3
    commit_batch(checkpoint, 3)
    checkpoint.store.delete(checkpoint.offset_key(3))
    barrier.put_back()
    assert checkpoint.offset_ids() == [0, 1, 2]


def test_what_is_put_back_may_be_there_already(checkpoint: Checkpoint) -> None:
    """A put whose answer was lost may have landed; the controller that counts on it reads it back. (Law 8)"""
    barrier = OutsideBarrier(checkpoint, MARK)
    barrier.put_over(checkpoint.position())
    barrier.take_back()

    def lose(verb: str, key: str) -> None:
        if verb == "create":
            raise OutcomeUnknownError("the write may have landed", key=key)

    checkpoint.store.after = lose
    barrier.put_back()
    checkpoint.store.after = None
    assert [barrier.batch_id for barrier in checkpoint.position().barriers] == [3]
