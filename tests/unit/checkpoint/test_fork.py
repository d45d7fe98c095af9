"""New checkpoints made of another checkpoint's files."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from airflow_streamstate.checkpoint.fork import checkpoint_uri, fork
from airflow_streamstate.checkpoint.log import Checkpoint, drain_entry, format_offset_entry, stop_entry
from airflow_streamstate.checkpoint.state_files import files_of
from airflow_streamstate.errors import ConflictError, DataError, ObjectMissingError
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from support.checkpoints import (
    PREFIX,
    barrier_mark,
    commit_batch,
    memory_checkpoint,
    plan_batch,
    run_batches,
    write_hdfs_state,
    write_operator_metadata,
    write_source_log,
)
from support.faulty_store import KILL_POINTS, Fault, FaultPlan, FaultyStore, SimulatedCrash

TARGET = "orders/deployments/d-0002/checkpoints/counts"


def stateful() -> Checkpoint:
    checkpoint = run_batches(memory_checkpoint(), 2)
    write_source_log(checkpoint, 3)
    write_operator_metadata(checkpoint)
    write_hdfs_state(checkpoint, range(1, 4))
    plan_batch(checkpoint, 3)
    return checkpoint


def files_to_fork(checkpoint: Checkpoint) -> dict[str, str]:
    return {key[len(PREFIX) + 1 :]: key for key in files_of(checkpoint, checkpoint.position())}


def content(checkpoint: Checkpoint) -> dict[str, bytes]:
    store, start = checkpoint.store, len(checkpoint.prefix) + 1
    return {info.key[start:]: store.get(info.key).body for info in store.list_objects(f"{checkpoint.prefix}/")}


def test_fork_is_the_listed_files_word_for_word() -> None:
    """Every file of the position, its planned entry too, and nothing else (1a.6).

    The predecessor's checkpoint is as it was (Law 11).
    """
    source = stateful()
    before, files = content(source), files_to_fork(source)
    target = Checkpoint(source.store, TARGET)
    assert fork(source.store, files, target)
    assert content(source) == before
    assert content(target) == {path: source.store.get(key).body for path, key in files.items()}
    assert target.position() == source.position()


def test_what_is_to_stand_there_instead_stands_there_alone() -> None:
    """A file that was given another content loses Spark's checksum of the old one; the source keeps both."""
    source = stateful()
    target = Checkpoint(source.store, "forked")
    files = files_to_fork(source)
    name = next(path for path in files if path.startswith("offsets/") and not path.endswith(".crc"))
    source.store.put("aside/crc", b"old")
    files[f"offsets/.{name.removeprefix('offsets/')}.crc"] = "aside/crc"
    before = content(source)
    assert fork(source.store, files, target, {name: b"moved on"})
    found = content(target)
    assert found[name] == b"moved on"
    assert f"offsets/.{name.removeprefix('offsets/')}.crc" not in found
    assert content(source) == before


def test_metadata_of_its_own_is_the_last_of_a_fork_too() -> None:
    """A query that continues under another id: cut off anywhere, there is no checkpoint, or a whole one. (1a.10)"""
    source = stateful()
    files = files_to_fork(source)
    instead = {"metadata": b'{"id":"another"}', "offsets/2": b"moved on"}
    whole = Checkpoint(source.store, "whole")
    fork(source.store, files, whole, instead)
    assert whole.query_id() == "another"
    for number in range(1, 1_000):
        store = FaultyStore(source.store, FaultPlan({number: Fault.CRASH_BEFORE}))
        cut = Checkpoint(source.store, f"cut-{number}")
        try:
            fork(store, files, cut, instead)
        except SimulatedCrash:
            assert not cut.exists()
        else:
            assert content(cut) == content(whole)
            break


def test_fork_of_a_checkpoint_that_is_there_changes_nothing() -> None:
    """Built once, it may have run since: never built again (Law 2)."""
    source = stateful()
    files = files_to_fork(source)
    target = Checkpoint(source.store, TARGET)
    fork(source.store, files, target)
    commit_batch(target, 3)
    after = content(target)
    assert not fork(source.store, files, target)
    assert content(target) == after


@pytest.mark.parametrize("fault", KILL_POINTS)
def test_half_built_fork_is_built_again(fault: Fault) -> None:
    """Killed at any call: no metadata, or all is there; the next try ends as one that was never disturbed (1a.10)."""
    plain = stateful()
    files = files_to_fork(plain)
    counting = FaultyStore(plain.store, FaultPlan())
    fork(counting, files, Checkpoint(counting, TARGET))
    whole = content(Checkpoint(plain.store, TARGET))
    for number in range(1, len(counting.calls) + 1):
        source = stateful()
        store = FaultyStore(source.store, FaultPlan({number: fault}))
        with contextlib.suppress(Exception, SimulatedCrash):  # what the caller sees is not the point here
            fork(store, files, Checkpoint(store, TARGET))
        target = Checkpoint(source.store, TARGET)
        assert not target.exists() or content(target) == whole
        fork(source.store, files, target)
        assert content(target) == whole


def test_what_lay_half_built_is_wiped() -> None:
    """Files of an earlier try that are not part of this one do not stay (1a.10)."""
    source = stateful()
    target = Checkpoint(source.store, TARGET)
    source.store.put(target.key("state/0/7/1.delta"), b"old")
    fork(source.store, files_to_fork(source), target)
    assert source.store.head(target.key("state/0/7/1.delta")) is None


def test_checkpoint_that_ran_and_lost_its_metadata_is_not_wiped() -> None:
    """Batches of its own in its log: building it again would run them again over other bounds (Law 14)."""
    source = stateful()
    files = files_to_fork(source)
    target = Checkpoint(source.store, TARGET)
    fork(source.store, files, target)
    commit_batch(target, 3)
    source.store.delete(target.metadata_key)
    before = content(target)
    with pytest.raises(DataError) as error:
        fork(source.store, files, target)
    assert error.value.context["batches"] == [3]
    assert content(target) == before


def test_another_querys_checkpoint_is_not_taken_for_the_fork() -> None:
    """A checkpoint with another query id at the target is a conflict, and untouched."""
    source = stateful()
    target = Checkpoint(source.store, TARGET)
    source.store.put(target.metadata_key, b'{"id":"another"}')
    with pytest.raises(ConflictError):
        fork(source.store, files_to_fork(source), target)


def test_barrier_among_the_files_is_refused() -> None:
    """Forks carry none of our entries, whatever the list contains (1a.1)."""
    source = run_batches(memory_checkpoint(), 2)
    files = files_to_fork(source)
    key = source.offset_key(3)
    source.store.put(key, format_offset_entry(stop_entry(source.read_offset(2), barrier_mark())))
    target = Checkpoint(source.store, TARGET)
    with pytest.raises(DataError):
        fork(source.store, {**files, "offsets/3": key}, target)
    assert content(target) == {}


def test_drained_checkpoint_is_not_forked() -> None:
    """A drained checkpoint is never resumed, not in a copy either (Law 11)."""
    source = run_batches(memory_checkpoint(), 2)
    entry = drain_entry(source.read_offset(2), barrier_mark("drain"))
    source.store.put(source.offset_key(3), format_offset_entry(entry))
    commit_batch(source, 3)
    target = Checkpoint(source.store, TARGET)
    with pytest.raises(ConflictError):
        fork(source.store, files_to_fork(source), target)
    assert content(target) == {}


def test_a_stop_entry_that_was_run_is_a_batch_as_any_other() -> None:
    """Another program started Spark over it: the batch read nothing, and no watermark is at the end of time."""
    source = run_batches(memory_checkpoint(), 2)
    source.store.put(source.offset_key(3), format_offset_entry(stop_entry(source.read_offset(2), barrier_mark())))
    commit_batch(source, 3)
    target = Checkpoint(source.store, TARGET)
    assert fork(source.store, files_to_fork(source), target)
    assert target.position().batch_id == 3


@pytest.mark.parametrize("gone", ["state/0/1/2.delta", "offsets/2"])
def test_file_that_is_gone_leaves_no_checkpoint(gone: str) -> None:
    """A fork that lacks a file of state, or an offset that was removed in the meantime, is never finished."""
    source = stateful()
    files = files_to_fork(source)
    source.store.delete(files[gone])
    target = Checkpoint(source.store, TARGET)
    with pytest.raises(ObjectMissingError):
        fork(source.store, files, target)
    assert not target.exists()


def test_list_without_metadata_is_refused() -> None:
    """Without the query id there is no checkpoint (Law 9)."""
    source = stateful()
    files = files_to_fork(source)
    del files["metadata"]
    with pytest.raises(DataError):
        fork(source.store, files, Checkpoint(source.store, TARGET))


def schema_metadata(paths: list[str]) -> bytes:
    raw = {
        "operatorInfo": {"operatorId": 0, "operatorName": "transformWithStateInPandasExec"},
        "stateStoreInfo": [{"storeName": "default", "numPartitions": 0, "stateSchemaFilePaths": paths}],
        "operatorPropertiesJson": "{}",
    }
    return f"v2\n{json.dumps(raw, separators=(',', ':'))}".encode()


METADATA = "state/0/_metadata/v2/0"
SCHEMA = "state/0/_stateSchema/default/0_0b1a8f0e"


def of_a_processor(store: Store, metadata: bytes) -> tuple[Checkpoint, Checkpoint]:
    """A checkpoint with this metadata of its ``transformWithState``, and the place of its fork."""
    source = run_batches(Checkpoint(store, PREFIX), 0)
    store.put(source.metadata_key, b'{"id":"q"}')
    store.put(source.key(METADATA), metadata)
    return source, Checkpoint(store, TARGET)


@pytest.mark.parametrize("home", ["", "/state/_stateSchema"])
def test_schema_paths_of_a_fork_are_its_own(tmp_path: Path, home: str) -> None:
    """Absolute paths into the predecessor are rewritten, and their stale checksum stays behind (Law 4).

    They are found by their ends: a home may be below folders that are called as Spark calls its own.
    """
    store, root = LocalStore(f"{tmp_path}{home}", fsync=False), f"file:{tmp_path}{home}"
    source, target = of_a_processor(store, schema_metadata([f"{root}/{PREFIX}/{SCHEMA}"]))
    store.put(source.key(SCHEMA), b"schema")
    store.put(source.key("state/0/_metadata/v2/.0.crc"), b"crc")
    fork(store, files_to_fork(source), target)
    assert store.get(target.key(METADATA)).body == schema_metadata([f"{root}/{TARGET}/{SCHEMA}"])
    assert store.head(target.key("state/0/_metadata/v2/.0.crc")) is None
    assert checkpoint_uri(target) == f"{root}/{TARGET}"


@pytest.mark.parametrize(
    "body",
    [
        b"v2\n{",
        b'v2\n{"stateStoreInfo":7}',
        schema_metadata(["file:/elsewhere/schema"]),
        schema_metadata(["file:/elsewhere/_stateSchema/default/0_0b1a8f0e"]),
    ],
)
def test_schema_paths_that_are_not_understood_are_an_error(body: bytes) -> None:
    """A path that cannot be rewritten is not carried over as it is."""
    source, target = of_a_processor(MemoryStore(), body)
    files = {"metadata": source.metadata_key, METADATA: source.key(METADATA)}
    with pytest.raises(DataError):
        fork(source.store, files, target)


def test_metadata_that_names_no_schema_is_carried_over() -> None:
    """Not every store of an operator has schema files."""
    raw = json.loads(schema_metadata([]).partition(b"\n")[2])
    del raw["stateStoreInfo"][0]["stateSchemaFilePaths"]
    source, target = of_a_processor(MemoryStore(), b"v2\n" + json.dumps(raw).encode())
    fork(source.store, files_to_fork(source), target)
    assert target.store.get(target.key(METADATA)).body == schema_metadata([])


def test_a_checkpoint_on_a_server_is_named_by_its_uri() -> None:
    """Only the path of a disk gets Hadoop's ``file:`` before it."""
    assert checkpoint_uri(Checkpoint(MemoryStore(), TARGET)) == f"{MemoryStore().uri}/{TARGET}"
