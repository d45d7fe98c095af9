"""What is in a log before a start, and what is done about it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_streamstate.checkpoint.log import (
    BarrierKind,
    Checkpoint,
    crc_key_of,
    drain_entry,
    format_offset_entry,
    stop_entry,
)
from airflow_streamstate.checkpoint.repair import (
    BarrierOverCommitted,
    BarrierOverUncommitted,
    Clean,
    DrainCommitted,
    DrainPending,
    Finding,
    Foreign,
    PlannedBatch,
    classify,
    repair_before_start,
)
from airflow_streamstate.errors import ConflictError, DataError
from support.checkpoints import (
    SimulatedQuery,
    barrier_mark,
    commit_batch,
    memory_checkpoint,
    plan_batch,
    run_batches,
    write_with_crc,
)

OURS = "d-0001"


def put_entry(checkpoint: Checkpoint, batch_id: int, kind: BarrierKind = "stop", *, deployment_id: str = OURS) -> None:
    """An entry of ours over batch ``batch_id - 1``, with a checksum alongside it."""
    mark = barrier_mark(kind, deployment_id=deployment_id)
    base = checkpoint.read_offset(batch_id - 1) if batch_id else None
    entry = drain_entry(base, mark) if kind == "drain" and base else stop_entry(base, mark)
    write_with_crc(checkpoint.store, checkpoint.offset_key(batch_id), format_offset_entry(entry))


def committed(last: int = 3) -> Checkpoint:
    return run_batches(memory_checkpoint(), last)


def uncommitted(planned: int = 4) -> Checkpoint:
    checkpoint = committed(planned - 1)
    plan_batch(checkpoint, planned)
    return checkpoint


def drained(deployment_id: str = OURS) -> Checkpoint:
    checkpoint = committed()
    put_entry(checkpoint, 4, "drain", deployment_id=deployment_id)
    commit_batch(checkpoint, 4)
    return checkpoint


STOP, FENCE, DRAIN = ("stop", OURS), ("fence", OURS), ("drain", OURS)
THEIRS = ("stop", "d-0009")


@pytest.mark.parametrize(
    ("planned", "entries", "stop_pending", "found", "removed_ids", "run", "batch_id"),
    [
        (False, [], False, Clean(3), (), "normal", 3),
        (False, [], True, Clean(3), (), "normal", 3),
        # Spark's own planned entry stays; with a stop pending it runs alone (1a.6).
        (True, [], False, PlannedBatch(3, 4), (), "normal", 3),
        (True, [], True, PlannedBatch(3, 4), (), "once", 4),
        (False, [STOP], False, BarrierOverCommitted(3, (4,)), (4,), "normal", 3),
        (False, [FENCE], False, BarrierOverCommitted(3, (4,)), (4,), "normal", 3),
        # A flush runs with Trigger.Once, whatever the script set; an entry above it would skip it (Law 12).
        (False, [DRAIN], False, DrainPending(3, 4, barrier_mark("drain")), (), "once", 4),
        (False, [DRAIN, FENCE], False, DrainPending(3, 4, barrier_mark("drain"), (5,)), (5,), "once", 4),
        # Entries put twice, or again after an overwrite, go together; so do those of a different deployment (1a.3).
        (True, [THEIRS], True, None, (5,), "once", 4),
        (False, [STOP, THEIRS, STOP], False, None, (4, 5, 6), "normal", 3),
        (True, [STOP, THEIRS, STOP], False, None, (5, 6, 7), "normal", 3),
    ],
)
def test_a_log_is_repaired_and_started_by_what_lies_in_it(
    planned: bool,
    entries: list[tuple[BarrierKind, str]],
    stop_pending: bool,
    found: Finding | None,
    removed_ids: tuple[int, ...],
    run: str,
    batch_id: int,
) -> None:
    """Over batch 3, or the planned batch 4: what is found, what is removed with its checksum, how to start (1a.7)."""
    checkpoint = uncommitted() if planned else committed()
    before = checkpoint.offset_ids()
    for entry_id, (kind, deployment_id) in enumerate(entries, 5 if planned else 4):
        put_entry(checkpoint, entry_id, kind, deployment_id=deployment_id)
        before.append(entry_id)
    report = repair_before_start(checkpoint, OURS, stop_pending=stop_pending)
    assert found in (None, report.found)
    assert (report.removed_ids, report.run, report.batch_id) == (removed_ids, run, batch_id)
    assert checkpoint.offset_ids() == [one for one in before if one not in removed_ids]
    assert not any(checkpoint.store.head(crc_key_of(checkpoint.offset_key(one))) for one in removed_ids)


def test_our_entry_over_no_batch_is_removed() -> None:
    """A query that was stopped before its first batch starts as if nothing had been."""
    checkpoint = memory_checkpoint()
    assert repair_before_start(checkpoint, OURS).found == Clean(None)
    put_entry(checkpoint, 0)
    assert repair_before_start(checkpoint, OURS).found == BarrierOverCommitted(None, (0,))
    assert (checkpoint.offset_ids(), checkpoint.exists()) == ([], True)


def test_left_overs_of_the_first_claim_are_swept() -> None:
    """Over an empty log Spark refuses any file in its folders: temporary ones go, anything else stays (Law 5)."""
    checkpoint = memory_checkpoint()
    put_entry(checkpoint, 0)
    uuid = "0b1a8f0e-2f0a-4f0c-9d0b-5f3c0c7e9a11"
    for name in (f"offsets/.0.{uuid}.tmp", f"offsets/..0.{uuid}.tmp.crc", f"commits/.0.{uuid}.tmp"):
        checkpoint.store.put(checkpoint.key(name), b"x")
    for name in ("state/0/0/1.delta", "offsets/keep"):
        checkpoint.store.put(checkpoint.key(name), b"x")
    report = repair_before_start(checkpoint, OURS)
    assert set(report.swept_keys) == {
        checkpoint.key(f"offsets/.0.{uuid}.tmp"),
        checkpoint.key(f"offsets/..0.{uuid}.tmp.crc"),
        checkpoint.key(f"commits/.0.{uuid}.tmp"),
    }
    left = [info.key for info in checkpoint.store.list_objects(checkpoint.key("offsets/"))]
    assert left == [checkpoint.key("offsets/keep")]
    assert checkpoint.store.head(checkpoint.key("state/0/0/1.delta")) is not None


def test_left_overs_stay_once_a_batch_was_planned() -> None:
    """With a batch in the log Spark ignores temporary files, and so do we."""
    checkpoint = committed()
    checkpoint.store.put(checkpoint.key("offsets/.4.0b1a8f0e.tmp"), b"x")
    assert repair_before_start(checkpoint, OURS).swept_keys == ()
    first = memory_checkpoint()
    plan_batch(first, 0)
    first.store.put(first.key("offsets/.0.0b1a8f0e.tmp"), b"x")
    assert repair_before_start(first, OURS).swept_keys == ()


@pytest.mark.parametrize("stop_pending", [False, True])
@pytest.mark.parametrize("kind", ["stop", "fence", "drain"])
def test_our_entry_over_an_uncommitted_batch_is_removed_and_the_batch_runs(
    kind: BarrierKind, stop_pending: bool
) -> None:
    """No checkpoint is started with our entry over an uncommitted batch; alone first if a stop waits (Law 12, 1a.7)."""
    checkpoint = uncommitted()
    put_entry(checkpoint, 5, kind)
    report = repair_before_start(checkpoint, OURS, stop_pending=stop_pending)
    assert report.found == BarrierOverUncommitted(3, 4, (5,))
    assert (report.removed_ids, report.run) == ((5,), "once" if stop_pending else "normal")
    query = SimulatedQuery(checkpoint)
    query.initialise()
    query.commit()
    assert query.ran == [4]


def test_start_without_repair_loses_the_batch() -> None:
    """The loss that Law 12 prevents: batch 4 is never run, and the log shows no error."""
    checkpoint = uncommitted()
    put_entry(checkpoint, 5)
    query = SimulatedQuery(checkpoint)
    query.initialise()
    query.commit()
    assert (query.ran, checkpoint.commit_ids()) == ([5], [0, 1, 2, 3, 5])


def test_drained_checkpoint_is_not_started() -> None:
    """A committed drain entry: no start, nothing touched (Law 11, 1a.7)."""
    checkpoint = drained()
    report = repair_before_start(checkpoint, OURS)
    assert (report.found, report.run) == (DrainCommitted(4, 4, barrier_mark("drain")), "nothing")
    assert (report.batch_id, report.removed_ids, report.foreign) == (4, (), ())
    assert checkpoint.offset_ids()[-1] == 4


def test_fence_above_a_finished_drain_changes_nothing() -> None:
    """Drained stays drained (Law 11)."""
    checkpoint = drained()
    put_entry(checkpoint, 5, "fence")
    assert repair_before_start(checkpoint, OURS).run == "nothing"


def test_checkpoint_drained_by_another_deployment_is_refused() -> None:
    """A copied checkpoint of a drained deployment is refused, not resumed and not taken for our own drain (Law 11)."""
    with pytest.raises(ConflictError) as error:
        repair_before_start(drained("d-0009"), OURS)
    assert error.value.context["drained_by"] == "d-0009"


def test_a_checkpoint_that_was_resumed_after_its_drain_is_refused() -> None:
    """Batches behind a drain ran with the watermark at the end of time: named, never carried on (Law 11)."""
    checkpoint = committed()
    put_entry(checkpoint, 4, "drain")
    commit_batch(checkpoint, 4, watermark_ms=253402128000000)
    plan_batch(checkpoint, 5, watermark_ms=253402128000000)
    commit_batch(checkpoint, 5, watermark_ms=253402128000000)
    with pytest.raises(DataError) as error:
        classify(checkpoint, OURS)
    assert error.value.context["drained_at_batch"] == 4


def test_event_times_in_year_9999_are_not_a_drain() -> None:
    """A watermark at the end of time that came from the data itself is the script's own affair."""
    checkpoint = committed()
    plan_batch(checkpoint, 4, watermark_ms=253402128000001)
    commit_batch(checkpoint, 4, watermark_ms=253402128000001)
    assert classify(checkpoint, OURS) == Clean(4)


def test_committed_stop_entry_is_an_ordinary_empty_batch() -> None:
    """The checkpoint was started without streamstate and ran our stop entry: an empty batch, nothing to repair."""
    checkpoint = committed()
    put_entry(checkpoint, 4)
    commit_batch(checkpoint, 4)
    assert classify(checkpoint, OURS) == Clean(4)


def test_entry_of_another_deployment_is_removed_and_reported() -> None:
    """An entry that names another deployment is never obeyed: not even a drain (1a.1)."""
    checkpoint = committed()
    put_entry(checkpoint, 4, "drain", deployment_id="d-0009")
    report = repair_before_start(checkpoint, OURS)
    assert isinstance(report.found, Foreign)
    assert report.found.beneath == Clean(3)
    assert (report.removed_ids, report.run, report.batch_id) == ((4,), "normal", 3)
    assert [mark.deployment_id for mark in report.foreign] == ["d-0009"]


def test_repair_after_a_crash_in_the_middle_ends_the_same() -> None:
    """Whichever delete is the last before a crash, the next repair ends where the whole one would have (Law 2)."""
    for crash_at in range(6):
        checkpoint = uncommitted()
        for batch_id in (5, 6, 7):
            put_entry(checkpoint, batch_id)
        left = iter(range(crash_at))

        def crash(verb: str, key: str, left: Iterator[int] = left) -> None:
            if verb == "delete" and next(left, None) is None:
                raise KeyboardInterrupt

        checkpoint.store.before = crash
        with pytest.raises(KeyboardInterrupt):
            repair_before_start(checkpoint, OURS)
        checkpoint.store.before = None
        there = checkpoint.offset_ids()
        assert there == list(range(there[0], there[-1] + 1)), "Spark takes a gap for a damaged log"
        assert repair_before_start(checkpoint, OURS, stop_pending=True).run == "once"
        assert checkpoint.offset_ids()[-1] == 4
        assert [info.key for info in checkpoint.store.list_objects(checkpoint.key("offsets/.5"))] == []


def test_classify_only_reads() -> None:
    """Controllers may look at any log: classifying changes nothing (1a.7)."""
    checkpoint = uncommitted()
    put_entry(checkpoint, 5)
    before = list(checkpoint.store.list_objects(""))
    classify(checkpoint, OURS)
    assert before == list(checkpoint.store.list_objects(""))
