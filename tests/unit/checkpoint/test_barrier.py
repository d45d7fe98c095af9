"""Putting a barrier into the log of a running query."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_streamstate.checkpoint.barrier import (
    BarrierPlacement,
    BatchFailed,
    Certain,
    NotInitialised,
    Overwritten,
    Placed,
    Uncertain,
    exchange_for_drain,
    put_fence,
    take_back_fence,
    withdraw,
)
from airflow_streamstate.checkpoint.log import (
    FLUSH_WATERMARK_MS,
    Checkpoint,
    crc_key_of,
    format_offset_entry,
    stop_entry,
)
from airflow_streamstate.checkpoint.repair import repair_before_start
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    FencedError,
    OutcomeUnknownError,
    UnavailableError,
    VersionConflictError,
)
from support.checkpoints import (
    HookedStore,
    SimulatedQuery,
    barrier_mark,
    commit_batch,
    end_offsets,
    memory_checkpoint,
    once,
    plan_batch,
    run_batches,
    write_with_crc,
)
from support.fake_clock import FakeClock
from support.faulty_store import KILL_POINTS, Fault, FaultPlan, FaultyStore, SimulatedCrash
from support.placing import place_barrier


class SteppedClock(FakeClock):
    """Lets the query act whenever its user sleeps."""

    def __init__(self, on_sleep=lambda: None) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.on_sleep = on_sleep

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.on_sleep()


def running_query(last_committed: int = 3, *, planned: bool = True) -> SimulatedQuery:
    """A query past its initialisation, running batch ``last_committed + 1`` if ``planned``, else idle."""
    checkpoint = run_batches(memory_checkpoint(), last_committed)
    if planned:
        plan_batch(checkpoint, last_committed + 1)
    query = SimulatedQuery(checkpoint)
    query.initialise()
    return query


def test_nothing_is_put_before_the_query_has_read_its_log() -> None:
    """Before its first trigger Spark could take our entry for the latest plan and skip a batch (1a.2)."""
    checkpoint = run_batches(memory_checkpoint(), 3)
    plan_batch(checkpoint, 4)
    placement = BarrierPlacement(checkpoint, barrier_mark(), SimulatedQuery(checkpoint))
    assert placement.step() == NotInitialised()
    assert checkpoint.offset_ids() == [0, 1, 2, 3, 4]


def test_entry_put_during_initialisation_loses_the_batch_below() -> None:
    """The loss that 1a.2 prevents: the simulated Spark, like the real one, skips batch 4."""
    checkpoint = run_batches(memory_checkpoint(), 3)
    plan_batch(checkpoint, 4)
    checkpoint.store.put(checkpoint.offset_key(5), format_offset_entry(stop_entry(None, barrier_mark())))
    query = SimulatedQuery(checkpoint)
    query.initialise()
    query.commit()
    assert query.ran == [5]


def test_barrier_over_a_running_batch_is_certain_at_once_and_placed_at_its_commit() -> None:
    """While commits/N is absent Spark cannot be about to claim N+1; at the commit the stop is safe (1a.3, 1a.4).

    It stays certain, whatever trigger hangs in its source then.
    """
    query = running_query()
    placement = BarrierPlacement(query.checkpoint, barrier_mark(), query)
    assert placement.step() == Certain(4, 5)
    assert placement.step() == Certain(4, 5)
    query.commit()
    assert query.is_trigger_active()
    assert placement.step() == Placed(4, 5, barrier_mark())


def test_barrier_over_an_idle_query_is_placed_at_once() -> None:
    """Outside a trigger Spark is not between look and rename (1a.3)."""
    query = running_query(planned=False)
    assert BarrierPlacement(query.checkpoint, barrier_mark(), query).step() == Placed(3, 4, barrier_mark())


def test_barrier_within_a_trigger_is_uncertain_until_it_ends() -> None:
    """In a trigger, with the last batch committed, Spark may already have looked (1a.3, Law 13)."""
    query = running_query(planned=False)
    query.begin_trigger()
    placement = BarrierPlacement(query.checkpoint, barrier_mark(), query)
    assert placement.step() == Uncertain(3, 4)
    query.end_trigger()
    assert placement.step() == Placed(3, 4, barrier_mark())


def test_overwritten_barrier_goes_again_above() -> None:
    """Spark's rename over our entry is noticed by reading back; nothing is lost, the next try is above (1a.3)."""
    query = running_query(planned=False)
    placement = BarrierPlacement(query.checkpoint, barrier_mark(), query)
    query.begin_trigger()
    query.look()
    assert placement.step() == Uncertain(3, 4)
    query.rename()
    assert placement.step() == Certain(4, 5)
    query.commit()
    assert placement.step() == Placed(4, 5, barrier_mark())
    query.look()
    assert (query.ended, query.ran) == (True, [4])


def gone() -> None:
    raise DataError("the checkpoint is gone")


def test_nothing_is_put_into_an_empty_log_whose_checkpoint_is_gone() -> None:
    """A barrier there would end a query whose checkpoint was lost as one that read nothing. (Law 5)"""
    query = SimulatedQuery(memory_checkpoint())
    query.initialise()
    with pytest.raises(DataError, match="gone"):
        BarrierPlacement(query.checkpoint, barrier_mark(), query, gone).step()
    assert query.checkpoint.offset_ids() == []


def test_a_log_with_any_entry_is_not_asked_for_its_checkpoint() -> None:
    """Its entries show that it is there, be they Spark's own or the barrier."""
    query = running_query()
    assert BarrierPlacement(query.checkpoint, barrier_mark(), query, gone).step() == Certain(4, 5)
    idle = SimulatedQuery(memory_checkpoint())
    idle.initialise()
    assert BarrierPlacement(idle.checkpoint, barrier_mark(), idle).step() == Placed(None, 0, barrier_mark())
    assert BarrierPlacement(idle.checkpoint, barrier_mark(), idle, gone).step() == Placed(None, 0, barrier_mark())


def racing_query() -> tuple[HookedStore, SimulatedQuery]:
    checkpoint = run_batches(memory_checkpoint(), 3)
    query = SimulatedQuery(checkpoint)
    query.initialise()
    query.begin_trigger()
    return checkpoint.store, query


def test_lost_race_for_the_place_goes_again_above() -> None:
    """When Spark claims the batch first the create fails and the next step goes above it (1a.3)."""
    store, query = racing_query()

    def claim() -> None:
        query.look()
        query.rename()

    store.before = once(claim, "create", "/offsets/")
    placement = BarrierPlacement(query.checkpoint, barrier_mark(), query)
    assert placement.step() == Overwritten(4)
    assert placement.step() == Certain(4, 5)


@pytest.mark.parametrize("how", ["claimed", "claimed and committed", "run over"])
def test_an_entry_that_did_not_stay_between_put_and_read_back_is_overwritten(how: str) -> None:
    """Reading back is the last thing a step does: what Spark claimed, or ran, is not called placed (1a.3, Law 13)."""
    store, query = racing_query()
    query.look()

    def happens() -> None:
        if how == "run over":
            commit_batch(query.checkpoint, 4)
            return
        query.rename()
        if how != "claimed":
            query.commit()
            query.end_trigger()

    store.after = once(happens, "create", "/offsets/")
    placement = BarrierPlacement(query.checkpoint, barrier_mark(), query)
    assert placement.step() == Overwritten(4)
    if how == "claimed and committed":
        assert placement.step() == Placed(4, 5, barrier_mark())


def test_failed_batch_takes_the_barrier_back() -> None:
    """A batch that ends without a commit gets no barrier above it: our entry is withdrawn (Law 12)."""
    query = running_query()
    placement = BarrierPlacement(query.checkpoint, barrier_mark(), query)
    assert placement.step() == Certain(4, 5)
    query.fail()
    assert placement.step() == BatchFailed(4)
    assert query.checkpoint.offset_ids() == [0, 1, 2, 3, 4]
    again = SimulatedQuery(query.checkpoint)
    again.initialise()
    again.commit()
    assert again.ran == [4]


def test_query_that_had_already_ended_is_decided_by_its_log() -> None:
    """Ended with a batch uncommitted is a failed batch and gets no entry; else the barrier is placed (Law 13)."""
    query = running_query()
    query.fail()
    assert BarrierPlacement(query.checkpoint, barrier_mark(), query).step() == BatchFailed(4)
    assert query.checkpoint.offset_ids()[-1] == 4
    commit_batch(query.checkpoint, 4)
    assert BarrierPlacement(query.checkpoint, barrier_mark(), query).step() == Placed(4, 5, barrier_mark())


def test_query_that_never_planned_a_batch_is_barred_at_entry_0() -> None:
    """Without a batch, an absent commit proves nothing: only outside a trigger is certain (1a.3)."""
    query = SimulatedQuery(memory_checkpoint())
    query.initialise()
    query.begin_trigger()
    placement = BarrierPlacement(query.checkpoint, barrier_mark(), query)
    assert placement.step() == Uncertain(None, 0)
    query.end_trigger()
    assert placement.step() == Placed(None, 0, barrier_mark())
    query.begin_trigger()
    query.look()
    assert query.ended


def test_batch_0_claimed_over_our_entry_is_noticed() -> None:
    """The race at the very first batch ends above it, too (1a.3)."""
    query = SimulatedQuery(memory_checkpoint())
    query.initialise()
    query.begin_trigger()
    query.look()
    placement = BarrierPlacement(query.checkpoint, barrier_mark(), query)
    assert placement.step() == Uncertain(None, 0)
    query.rename()
    assert placement.step() == Certain(0, 1)


def test_barrier_that_lies_there_already_is_taken_up() -> None:
    """A second stop, or one after a crash of the agent, finds the first one's entry and puts no second (Law 2)."""
    query = running_query()
    BarrierPlacement(query.checkpoint, barrier_mark(write_id="first"), query).step()
    query.commit()
    placed = BarrierPlacement(query.checkpoint, barrier_mark(write_id="second"), query)
    query.end_trigger()
    assert placed.step() == Placed(4, 5, barrier_mark(write_id="first"))
    assert query.checkpoint.offset_ids()[-1] == 5


def test_a_fenced_log_stops_a_placement() -> None:
    """A driver that meets its successor's fence writes nothing more (Law 4)."""
    query = running_query()
    put_fence(query.checkpoint, barrier_mark("fence"))
    with pytest.raises(FencedError):
        BarrierPlacement(query.checkpoint, barrier_mark(), query).step()


def lose_the_reply() -> None:
    raise OutcomeUnknownError("the write may have landed")


@pytest.mark.parametrize("lands", [True, False])
def test_put_of_unknown_outcome_is_read_back(lands: bool) -> None:
    """A put whose reply was lost counts if it reads back as ours, else it is put again (Law 8)."""
    store, query = racing_query()
    query.end_trigger()
    setattr(store, "after" if lands else "before", once(lose_the_reply, "create"))
    placement = BarrierPlacement(query.checkpoint, barrier_mark(), query)
    first = placement.step()
    assert first == (Placed(3, 4, barrier_mark()) if lands else Overwritten(4))
    assert placement.step() == Placed(3, 4, barrier_mark())


@settings(max_examples=400, deadline=None)
@given(st.lists(st.integers(0, 20), max_size=60), st.integers(-1, 2), st.booleans())
def test_no_interleaving_loses_a_batch(choices: list[int], last_committed: int, planned: bool) -> None:
    """Whatever Spark does between our steps: after "placed" nothing runs, and no batch was skipped (Law 12, 13)."""
    checkpoint = run_batches(memory_checkpoint(), last_committed)
    if planned:
        plan_batch(checkpoint, last_committed + 1)
    query = SimulatedQuery(checkpoint)
    placement = BarrierPlacement(checkpoint, barrier_mark(), query)
    step = None
    for choice in choices:
        actions = query.actions()
        if choice < 12 and actions:
            query.act(actions[choice % len(actions)])
            continue
        step = placement.step()
        if isinstance(step, Placed | BatchFailed):
            break
    _finish(query)
    first = last_committed + 1
    assert query.ran == list(range(first, first + len(query.ran)))
    if isinstance(step, Placed):
        assert checkpoint.position().batch_id == step.batch_id
        assert checkpoint.offset_ids()[-1] == step.barrier_id
    if isinstance(step, BatchFailed):
        assert checkpoint.offset_ids()[-1] == step.batch_id


def _finish(query: SimulatedQuery, *, rounds: int = 12) -> None:
    """Let the query run on for some batches, or to its end."""
    for _ in range(rounds):
        actions = query.actions()
        if not actions:
            return
        query.act(actions[0])


@pytest.mark.parametrize("fault", KILL_POINTS)
@pytest.mark.parametrize("planned", [False, True])
def test_driver_killed_at_any_call_of_a_placement_loses_no_batch(fault: Fault, planned: bool) -> None:
    """Kill driver and query at each store call; after repair the next start runs every batch in its turn (Law 12)."""
    for number in itertools.count(1):
        checkpoint = run_batches(memory_checkpoint(), 3)
        if planned:
            plan_batch(checkpoint, 4)
        query = SimulatedQuery(checkpoint)
        query.initialise()
        plan = FaultPlan({number: fault})
        seen_by_agent = Checkpoint(FaultyStore(checkpoint.store, plan), checkpoint.prefix)
        clock = SteppedClock(on_sleep=lambda query=query: _finish(query, rounds=1))
        with contextlib.suppress(SimulatedCrash, UnavailableError, OutcomeUnknownError):
            place_barrier(seen_by_agent, barrier_mark(), query, clock=clock, deadline_seconds=5)
        repair_before_start(checkpoint, "d-0001", stop_pending=True)
        again = SimulatedQuery(checkpoint)
        again.initialise()
        _finish(again)
        ran = query.ran + again.ran
        assert ran == list(range(4, 4 + len(ran)))
        assert len(ran) > 1
        if len(plan.calls) < number:
            break


def stopped_checkpoint() -> Checkpoint:
    """Batch 3 committed, our stop entry at 4, no query running."""
    checkpoint = run_batches(memory_checkpoint(), 3)
    base = checkpoint.read_offset(3)
    write_with_crc(checkpoint.store, checkpoint.offset_key(4), format_offset_entry(stop_entry(base, barrier_mark())))
    return checkpoint


@pytest.mark.parametrize("timestamp_ms", [None, 1_800_000_000_000])
def test_drain_entry_replaces_the_stop_entry(timestamp_ms: int | None) -> None:
    """A stop becomes a drain in place, its stale checksum removed first (1a.5).

    It has the batch time that it was given, by which processing-time timers are due, or that of the batch before.
    """
    checkpoint = stopped_checkpoint()
    assert exchange_for_drain(checkpoint, barrier_mark("drain"), batch_timestamp_ms=timestamp_ms) == 4
    entry = checkpoint.read_offset(4)
    assert entry.batch_timestamp_ms == (timestamp_ms or checkpoint.read_offset(3).batch_timestamp_ms)
    assert (entry.batch_watermark_ms, entry.mark) == (FLUSH_WATERMARK_MS, barrier_mark("drain"))
    assert entry.source_lines == end_offsets(checkpoint)
    assert checkpoint.store.head(crc_key_of(checkpoint.offset_key(4))) is None


def test_exchanging_twice_is_exchanging_once() -> None:
    """After a crash the exchange finds itself done (Law 2)."""
    checkpoint = stopped_checkpoint()
    exchange_for_drain(checkpoint, barrier_mark("drain", write_id="a"))
    before = checkpoint.store.get(checkpoint.offset_key(4))
    assert exchange_for_drain(checkpoint, barrier_mark("drain", write_id="b")) == 4
    assert checkpoint.store.get(checkpoint.offset_key(4)) == before


def test_exchange_removes_what_lies_above() -> None:
    """A second stop entry above the first would be what Spark takes for the latest plan."""
    checkpoint = stopped_checkpoint()
    checkpoint.store.put(checkpoint.offset_key(5), format_offset_entry(stop_entry(None, barrier_mark())))
    exchange_for_drain(checkpoint, barrier_mark("drain"))
    assert checkpoint.offset_ids()[-1] == 4


@pytest.mark.parametrize("case", ["no entry", "uncommitted", "no batch", "another deployment"])
def test_drain_is_refused_without_our_stop_over_a_committed_batch(case: str) -> None:
    """A drain entry comes only in the place of our stop entry, over a committed batch (1a.5, Law 12)."""
    checkpoint = run_batches(memory_checkpoint(), -1 if case == "no batch" else 3)
    if case == "uncommitted":
        plan_batch(checkpoint, 4)
    if case != "no entry":
        mark = barrier_mark(deployment_id="d-0009" if case == "another deployment" else "d-0001")
        key = checkpoint.offset_key(checkpoint.position().barrier_id)
        checkpoint.store.put(key, format_offset_entry(stop_entry(checkpoint.read_offset(3), mark)))
    before = [(info.key, checkpoint.store.get(info.key)) for info in checkpoint.store.list_objects("")]
    with pytest.raises(ConflictError):
        exchange_for_drain(checkpoint, barrier_mark("drain"))
    assert before == [(info.key, checkpoint.store.get(info.key)) for info in checkpoint.store.list_objects("")]


@pytest.mark.parametrize("lands", [True, False])
def test_exchange_of_unknown_outcome_is_read_back(lands: bool) -> None:
    """An exchange whose reply was lost is done if it reads back, else it is reported as unknown (Law 8)."""
    checkpoint = stopped_checkpoint()
    setattr(checkpoint.store, "after" if lands else "before", once(lose_the_reply, "replace"))
    if lands:
        assert exchange_for_drain(checkpoint, barrier_mark("drain")) == 4
    else:
        with pytest.raises(OutcomeUnknownError):
            exchange_for_drain(checkpoint, barrier_mark("drain"))
        assert exchange_for_drain(checkpoint, barrier_mark("drain")) == 4


def test_withdraw_removes_the_checksum_first() -> None:
    """A checksum that outlives its entry would fail Spark's next read of that name; so it goes first (1a.7)."""
    checkpoint = stopped_checkpoint()
    calls = []
    checkpoint.store.before = lambda verb, key: calls.append((verb, key))
    assert withdraw(checkpoint, 4)
    deleted = [key for verb, key in calls if verb == "delete"]
    assert deleted == [crc_key_of(checkpoint.offset_key(4)), checkpoint.offset_key(4)]
    assert not withdraw(checkpoint, 4)


def test_withdraw_never_removes_sparks_own_entry() -> None:
    """An entry without our mark is a batch of the user's data."""
    checkpoint = run_batches(memory_checkpoint(), 3)
    plan_batch(checkpoint, 4)
    with pytest.raises(ConflictError):
        withdraw(checkpoint, 4)
    assert checkpoint.offset_ids()[-1] == 4


def test_withdraw_of_a_command_leaves_the_entry_of_another() -> None:
    """Two orders may meet in one log: each withdraws its own."""
    checkpoint = stopped_checkpoint()
    assert not withdraw(checkpoint, 4, command_id="c-9")
    assert checkpoint.offset_ids()[-1] == 4
    assert withdraw(checkpoint, 4, command_id="c-1")
    assert checkpoint.offset_ids()[-1] == 3


def test_withdraw_notices_a_change() -> None:
    """An entry that Spark overwrote between our read and our delete stays."""
    checkpoint = stopped_checkpoint()
    checkpoint.store.before = once(lambda: plan_batch(checkpoint, 4), "delete")
    with pytest.raises(VersionConflictError):
        withdraw(checkpoint, 4)
    assert checkpoint.position().planned_id == 4


@pytest.mark.parametrize("planned", [False, True])
def test_fence_goes_on_top_also_over_an_uncommitted_batch(planned: bool) -> None:
    """A fence bars a zombie; below it the batch may be uncommitted, this log is never started again (1a.8)."""
    query = running_query(planned=planned)
    fence_id = put_fence(query.checkpoint, barrier_mark("fence"))
    assert fence_id == (5 if planned else 4)
    assert put_fence(query.checkpoint, barrier_mark("fence", write_id="again")) == fence_id
    if planned:
        query.commit()
    query.begin_trigger() if not query.in_trigger else None
    query.look()
    assert query.ended


def test_fence_goes_above_a_barrier_that_is_there() -> None:
    """A stop or drain entry of the dead driver stays below the fence, which copies Spark's last entry."""
    checkpoint = stopped_checkpoint()
    exchange_for_drain(checkpoint, barrier_mark("drain"))
    assert put_fence(checkpoint, barrier_mark("fence")) == 5
    entry = checkpoint.read_offset(5)
    assert entry.batch_watermark_ms == 3000


def test_a_fence_that_came_too_late_is_taken_back() -> None:
    """It would end a query that was started in the meantime, or make it skip a batch while it starts (1a.2, 1a.8).

    Another's fence stays (Law 4).
    """
    query = running_query(planned=True)
    before = query.checkpoint.offset_ids()
    fence_id = put_fence(query.checkpoint, barrier_mark("fence"))
    assert not take_back_fence(query.checkpoint, fence_id, barrier_mark("fence", write_id="anothers"))
    assert fence_id in query.checkpoint.offset_ids()
    assert take_back_fence(query.checkpoint, fence_id, barrier_mark("fence"))
    assert query.checkpoint.offset_ids() == before


def test_fence_over_nothing() -> None:
    """A deployment that never planned a batch is fenced at 0."""
    checkpoint = memory_checkpoint()
    assert put_fence(checkpoint, barrier_mark("fence")) == 0
    entry = checkpoint.read_offset(0)
    assert (entry.batch_watermark_ms, entry.batch_timestamp_ms, entry.source_lines) == (0, 0, ())


@pytest.mark.parametrize("planned", [True, False])
def test_what_is_put_has_the_offsets_of_the_last_batch_that_was_planned(planned: bool) -> None:
    """Spark continues from the newest entry: those of an older one would be read a second time (1a.1, Law 14)."""
    for kind in ("fence", "stop"):
        query = running_query(planned=planned)
        last = query.checkpoint.read_offset(4 if planned else 3)
        if kind == "fence":
            put_fence(query.checkpoint, barrier_mark("fence"))
        else:
            BarrierPlacement(query.checkpoint, barrier_mark(), query).step()
        entry = query.checkpoint.read_offset(5 if planned else 4)
        assert entry.is_ours
        assert (entry.source_lines, entry.batch_watermark_ms) == (last.source_lines, last.batch_watermark_ms)


def test_a_fence_that_meets_a_claim_goes_above_it() -> None:
    """The zombie claims the very place between the look and the put: the fence is put at the new end (1a.8)."""
    query = running_query(planned=False)
    query.checkpoint.store.before = once(lambda: plan_batch(query.checkpoint, 4), "create")
    assert put_fence(query.checkpoint, barrier_mark("fence")) == 5
    assert query.checkpoint.position().planned_id == 4


def test_no_fence_is_put_once_another_controller_has_the_log() -> None:
    """The owner of the log is checked right before each try, also after a claim (1a.8, Law 4)."""
    query = running_query(planned=False)
    query.checkpoint.store.before = once(lambda: plan_batch(query.checkpoint, 4), "create")
    looks = iter([None, FencedError("another controller has the log")])

    def look() -> None:
        found = next(looks)
        if found is not None:
            raise found

    with pytest.raises(FencedError):
        put_fence(query.checkpoint, barrier_mark("fence"), before_each=look)
    assert query.checkpoint.position().barriers == ()


def test_a_fence_whose_answer_was_lost_is_read_back() -> None:
    """It landed, and there is one (Law 8)."""
    query = running_query(planned=False)
    query.checkpoint.store.after = once(lose_the_reply, "create")
    assert put_fence(query.checkpoint, barrier_mark("fence")) == 4
    assert [barrier.batch_id for barrier in query.checkpoint.position().barriers] == [4]


def test_a_fenced_log_is_not_flushed() -> None:
    """Its successor has it: nothing is exchanged, and the driver learns that it was replaced (Law 4)."""
    checkpoint = stopped_checkpoint()
    put_fence(checkpoint, barrier_mark("fence", deployment_id="d-0002"))
    before = checkpoint.store.get(checkpoint.offset_key(4))
    with pytest.raises(FencedError):
        exchange_for_drain(checkpoint, barrier_mark("drain"))
    assert checkpoint.store.get(checkpoint.offset_key(4)) == before


@pytest.mark.parametrize("there", ["nothing", "Spark's own"])
def test_a_stop_entry_that_changes_before_the_exchange_is_a_conflict(there: str) -> None:
    """It was removed, or Spark wrote over it, between two reads: no drain entry is put in its place (Law 12)."""
    checkpoint = stopped_checkpoint()
    reads = []

    def change(verb: str, key: str) -> None:
        if verb == "get" and key == checkpoint.offset_key(4):
            reads.append(key)
            if len(reads) == 2:
                checkpoint.store.delete(key)
                if there != "nothing":
                    plan_batch(checkpoint, 4)

    checkpoint.store.before = change
    with pytest.raises(ConflictError):
        exchange_for_drain(checkpoint, barrier_mark("drain"))
    assert checkpoint.position().barriers == ()


def test_of_a_failed_batch_only_ones_own_barrier_is_taken_back() -> None:
    """Another deployment's entry is no business of this one: the next start removes and reports it (1a.1)."""
    query = running_query()
    placement = BarrierPlacement(query.checkpoint, barrier_mark(), query)
    assert placement.step() == Certain(4, 5)
    other = stop_entry(query.checkpoint.read_offset(4), barrier_mark(deployment_id="d-0009"))
    query.checkpoint.store.put(query.checkpoint.offset_key(6), format_offset_entry(other))
    query.fail()
    assert placement.step() == BatchFailed(4)
    assert query.checkpoint.offset_ids()[-2:] == [4, 6]


# taking a barrier back from under a query


def certain_placement(query: SimulatedQuery) -> BarrierPlacement:
    """A barrier that is certain while the batch under it runs."""
    placement = BarrierPlacement(query.checkpoint, barrier_mark(), query)
    assert isinstance(placement.step(), Certain)
    return placement


def test_what_is_certain_is_taken_back_and_the_query_never_met_it() -> None:
    """The batch is not committed after the delete, so Spark's look is still to come (1a.3)."""
    query = running_query(3)
    placement = certain_placement(query)
    assert placement.take_back()
    assert query.checkpoint.position().barriers == ()
    assert placement.step() == Certain(4, 5), "another step puts it again"


def test_a_barrier_above_the_very_first_batch_is_taken_back() -> None:
    """Entry 1, over batch 0 that runs."""
    query = SimulatedQuery(memory_checkpoint())
    plan_batch(query.checkpoint, 0)
    query.initialise()
    placement = BarrierPlacement(query.checkpoint, barrier_mark(), query)
    assert placement.step() == Certain(0, 1)
    assert placement.take_back()
    assert query.checkpoint.offset_ids() == [0]


def test_a_commit_meanwhile_leaves_open_whether_the_query_met_it() -> None:
    """It is then not ordered to run on: the next step puts the entry again, and the query ends at it."""
    query = running_query(3)
    placement = certain_placement(query)
    commit_batch(query.checkpoint, 4)
    assert not placement.take_back()
    # Spark has looked for batch 5 in between, and found the place free: what is put there now is not certain.
    query.trigger_active = True
    assert isinstance(placement.step(), Uncertain)


def test_only_what_is_certain_is_taken_back() -> None:
    """What Spark may be about to overwrite could be its own by the time of the delete."""
    query = running_query(3)
    with pytest.raises(ConflictError, match="certain"):
        BarrierPlacement(query.checkpoint, barrier_mark(), query).take_back()
