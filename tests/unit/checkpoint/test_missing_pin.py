"""The number of partitions, where Spark 4.2 leaves it out of offset log 2."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.checkpoint.barrier import exchange_for_drain
from airflow_streamstate.checkpoint.log import (
    PARTITIONS,
    Checkpoint,
    OffsetEntry,
    crc_key_of,
    format_offset_entry,
    parse_offset_entry,
    stop_entry,
)
from airflow_streamstate.checkpoint.repair import pin_partitions, repair_before_start
from airflow_streamstate.errors import OutcomeUnknownError
from support.checkpoints import (
    barrier_mark,
    commit_batch,
    memory_checkpoint,
    run_batches,
    spark_offset_text,
    write_hdfs_state,
    write_operator_metadata,
    write_with_crc,
)


def entry_of(checkpoint: Checkpoint, batch_id: int) -> OffsetEntry:
    """What is in the log."""
    entry = checkpoint.read_offset(batch_id)
    assert entry is not None
    return entry


def put_2(checkpoint: Checkpoint, batch_id: int, *, partitions: str | None = None) -> None:
    """An entry of offset log 2 as Spark 4.2 writes it in a query's first run, or later on with the setting."""
    entry = parse_offset_entry(spark_offset_text(batch_id), key="")
    conf = {key: value for key, value in entry.conf.items() if key != PARTITIONS}
    if partitions is not None:
        conf[PARTITIONS] = partitions
    body = format_offset_entry(replace(entry, conf=conf, version="v2", source_keys=("0",)))
    write_with_crc(checkpoint.store, checkpoint.offset_key(batch_id), body)


@pytest.fixture
def checkpoint() -> Checkpoint:
    """Batch 1 committed, batch 2 planned, all in their first run, without state."""
    checkpoint = memory_checkpoint()
    for batch_id in range(3):
        put_2(checkpoint, batch_id)
    for batch_id in range(2):
        commit_batch(checkpoint, batch_id)
    return checkpoint


def test_the_two_entries_that_spark_compares_get_the_setting_of_the_session(checkpoint: Checkpoint) -> None:
    """A planned batch and the one before it; nothing else of them is changed, and a second time nothing is (1a.6)."""
    before = [entry_of(checkpoint, batch_id) for batch_id in range(3)]
    assert pin_partitions(checkpoint, lambda: "5") == (1, 2)
    after = [entry_of(checkpoint, batch_id) for batch_id in range(3)]
    assert [entry.conf.get(PARTITIONS) for entry in after] == [None, "5", "5"]
    assert [replace(entry, conf={}) for entry in after] == [replace(entry, conf={}) for entry in before]
    assert checkpoint.store.head(crc_key_of(checkpoint.offset_key(2))) is None
    assert pin_partitions(checkpoint, lambda: "7") == ()


def test_state_says_itself_how_many_partitions_it_has(checkpoint: Checkpoint) -> None:
    """The session may ask for others by now, and Spark would look for state that is not there."""
    write_hdfs_state(checkpoint, range(1, 3))
    folders = {info.key.rpartition("/")[0] for info in checkpoint.store.list_objects(checkpoint.key("state/0/"))}
    assert pin_partitions(checkpoint, lambda: "200") == (1, 2)
    assert entry_of(checkpoint, 2).conf[PARTITIONS] == str(len(folders))


def test_a_query_whose_state_is_in_one_partition_goes_on_in_as_many_as_before(checkpoint: Checkpoint) -> None:
    """What is read and grouped below a limit is of the session's number, which Spark notes alongside the limit."""
    write_operator_metadata(checkpoint, operator_name="globalLimit", partitions=3)
    write_hdfs_state(checkpoint, range(1, 3), folders=["0/0"])
    assert pin_partitions(checkpoint, lambda: "5") == (1, 2)
    assert entry_of(checkpoint, 2).conf[PARTITIONS] == "3"


def test_metadata_of_several_versions_count_as_of_the_committed_batch(checkpoint: Checkpoint) -> None:
    """``transformWithState`` writes them again with its schema; one of a batch that is not committed is none yet."""
    for batch_id, partitions in ((0, 3), (2, 7)):
        write_operator_metadata(checkpoint, operator_name="transformWithStateExec", partitions=partitions)
        written = checkpoint.store.get(checkpoint.key("state/0/_metadata/metadata"))
        checkpoint.store.put(checkpoint.key(f"state/0/_metadata/v2/{batch_id}"), written.body)
    checkpoint.store.delete(checkpoint.key("state/0/_metadata/metadata"))
    assert pin_partitions(checkpoint, lambda: "5") == (1, 2)
    assert entry_of(checkpoint, 2).conf[PARTITIONS] == "3"


def test_what_an_entry_says_is_said_of_the_other_too(checkpoint: Checkpoint) -> None:
    """The second run of a query pins its own setting: Spark refuses two that differ as a repartition half done."""
    put_2(checkpoint, 2, partitions="3")
    assert pin_partitions(checkpoint, lambda: "200") == (1,)
    assert entry_of(checkpoint, 1).conf[PARTITIONS] == "3"


def test_offset_log_1_is_left_alone() -> None:
    """Spark pins the setting there, and what does not is no business of ours."""
    checkpoint = run_batches(memory_checkpoint(), 2)
    before = checkpoint.store.get(checkpoint.offset_key(2))
    assert pin_partitions(checkpoint, lambda: "5") == ()
    assert checkpoint.store.get(checkpoint.offset_key(2)) == before


@pytest.mark.parametrize(
    ("noted", "written", "asked", "pinned"),
    [
        (0, 1, "5", None),  # run again in as many as the session asks for
        (0, 3, "1", "3"),
        (0, 3, "2", "3"),
        (4, 2, "2", "4"),  # a snapshot looks for the state of the noted partitions
        (4, 2, "9", "4"),
    ],
)
def test_before_the_first_commit_no_partition_that_was_written_is_left_out(
    noted: int, written: int, asked: str, pinned: str | None
) -> None:
    """Run again in fewer than were written, batch 0 would leave those beyond to be taken for state: rows of the try
    that was cut, counted twice. Where the sink holds the batch, they are the state (1a.6)."""
    checkpoint = memory_checkpoint()
    put_2(checkpoint, 0)
    if noted:
        write_operator_metadata(checkpoint, partitions=noted)
    write_hdfs_state(checkpoint, range(1, 2), folders=[f"0/{number}" for number in range(written)])
    assert pin_partitions(checkpoint, lambda: asked) == (() if pinned is None else (0,))
    assert entry_of(checkpoint, 0).conf.get(PARTITIONS) == pinned
    if pinned is not None:
        commit_batch(checkpoint, 0)
        assert pin_partitions(checkpoint, lambda: asked) == ()


def test_metadata_that_cannot_be_read_leaves_the_state_to_say_it(checkpoint: Checkpoint) -> None:
    """A snapshot reports it; here it stops nothing."""
    checkpoint.store.put(checkpoint.key("state/0/_metadata/metadata"), b"v1\n{")
    write_hdfs_state(checkpoint, range(1, 3))
    assert pin_partitions(checkpoint, lambda: "200") == (1, 2)
    assert entry_of(checkpoint, 2).conf[PARTITIONS] == "2"


def test_repair_says_what_it_added(checkpoint: Checkpoint) -> None:
    """Before every start, over a planned batch too (1a.7)."""
    report = repair_before_start(checkpoint, "d-0001", partitions=lambda: "5")
    assert (report.pinned_ids, report.run, report.removed_ids) == ((1, 2), "normal", ())
    assert repair_before_start(checkpoint, "d-0001", partitions=lambda: "5").pinned_ids == ()


def test_a_drain_entry_over_batch_0_has_it_too() -> None:
    """Batch 1 is the flush: Spark compares it with batch 0, which is pinned before the entry is copied (1a.5)."""
    checkpoint = memory_checkpoint()
    put_2(checkpoint, 0)
    commit_batch(checkpoint, 0)
    stop = stop_entry(entry_of(checkpoint, 0), barrier_mark())
    checkpoint.store.put(checkpoint.offset_key(1), format_offset_entry(stop))
    assert pin_partitions(checkpoint, lambda: "5") == (0,)
    assert exchange_for_drain(checkpoint, barrier_mark("drain")) == 1
    assert [entry_of(checkpoint, batch_id).conf[PARTITIONS] for batch_id in (0, 1)] == ["5", "5"]
    assert entry_of(checkpoint, 1).source_keys == ("0",)


def test_an_unknown_outcome_is_read_back(checkpoint: Checkpoint) -> None:
    """What landed has landed (Law 8); what did not is raised, and the next try continues."""
    lost = []

    def lose(verb: str, key: str) -> None:
        if verb == "replace" and not lost:
            lost.append(key)
            raise OutcomeUnknownError("lost", key=key)

    checkpoint.store.before = lose
    with pytest.raises(OutcomeUnknownError):
        pin_partitions(checkpoint, lambda: "5")
    assert pin_partitions(checkpoint, lambda: "5") == (1, 2)


@pytest.mark.parametrize("there", ["ours", "another's"])
def test_an_entry_that_changed_meanwhile_is_ours_only_word_for_word(checkpoint: Checkpoint, there: str) -> None:
    """What landed without an answer is done; what another process wrote there is reported and left (Law 8)."""
    key, store = checkpoint.offset_key(1), checkpoint.store

    def lose(verb: str, called: str) -> None:
        if (verb, called) == ("replace", key):
            if there != "ours":
                store.put(key, spark_offset_text(77))
            raise OutcomeUnknownError("lost", key=key)

    store.after = lose
    if there == "ours":
        assert pin_partitions(checkpoint, lambda: "5") == (1, 2)
        assert entry_of(checkpoint, 1).conf[PARTITIONS] == "5"
        return
    with pytest.raises(OutcomeUnknownError):
        pin_partitions(checkpoint, lambda: "5")
    assert PARTITIONS not in entry_of(checkpoint, 2).conf
