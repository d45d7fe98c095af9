"""The files of a state at one version."""

from __future__ import annotations

import json

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint, OffsetEntry, format_offset_entry
from airflow_streamstate.checkpoint.state_files import delete_version, has_begun_planned, state_file_keys
from airflow_streamstate.errors import DataError, ObjectMissingError, UnsupportedCheckpointError
from support.checkpoints import (
    commit_batch,
    memory_checkpoint,
    plan_batch,
    rocksdb_zip,
    run_batches,
    store_folders,
    write_hdfs_state,
    write_operator_metadata,
    write_rocksdb_state,
)

UUID = "0b1a8f0e-2f0a-4f0c-9d0b-5f3c0c7e9a11"


def listed(checkpoint: Checkpoint, version: int, *, planned: bool = False) -> set[str]:
    """The listed paths below ``state/``, without metadata."""
    prefix = checkpoint.key("state/")
    sizes = {info.key: info.size_bytes for info in checkpoint.store.list_objects(prefix)}
    paths = {key[len(prefix) :] for key in state_file_keys(checkpoint, version, sizes, planned=planned)}
    return {path for path in paths if "_metadata" not in path and "_stateSchema" not in path}


def stateful(**how: int) -> Checkpoint:
    checkpoint = memory_checkpoint()
    write_operator_metadata(checkpoint, **how)
    return checkpoint


def test_hdfs_state_is_every_delta_where_there_is_no_snapshot() -> None:
    """Without a snapshot the state is all its deltas."""
    checkpoint = stateful()
    write_hdfs_state(checkpoint, range(1, 6))
    assert listed(checkpoint, 4) == {f"0/{p}/{v}.delta" for p in (0, 1) for v in range(1, 5)}


def test_hdfs_state_begins_at_the_newest_snapshot_at_or_below() -> None:
    """A snapshot replaces all deltas up to it; later snapshots do not count; older files need not be there any more."""
    checkpoint = stateful(partitions=1)
    write_hdfs_state(checkpoint, range(3, 10), snapshots=(3, 6, 9), folders=["0/0"])
    assert listed(checkpoint, 8) == {"0/0/6.snapshot", "0/0/7.delta", "0/0/8.delta"}
    assert listed(checkpoint, 6) == {"0/0/6.snapshot"}


def test_rocksdb_state_is_one_zip_and_what_it_names() -> None:
    """The zip of the version, with just the files that its metadata names."""
    checkpoint = stateful(partitions=1)
    write_rocksdb_state(checkpoint, range(1, 6), folders=["0/0"])
    assert listed(checkpoint, 4) == {"0/0/4.zip", "0/0/SSTs/000003-u3.sst", "0/0/SSTs/000004-u4.sst"}


def test_rocksdb_log_files_are_listed() -> None:
    """Files that a version names in logs/ belong to it."""
    checkpoint = stateful(partitions=1)
    checkpoint.store.put(checkpoint.key("state/0/0/1.zip"), rocksdb_zip(["a.sst"], ["b.log"]))
    checkpoint.store.put(checkpoint.key("state/0/0/SSTs/a.sst"), b"")
    checkpoint.store.put(checkpoint.key("state/0/0/logs/b.log"), b"")
    assert listed(checkpoint, 1) == {"0/0/1.zip", "0/0/SSTs/a.sst", "0/0/logs/b.log"}


def test_every_store_of_an_operator_is_listed() -> None:
    """A stream-stream join has four stores per partition."""
    checkpoint = memory_checkpoint()
    stores = ("left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues", "right-keyWithIndexToValue")
    write_operator_metadata(checkpoint, stores=stores)
    write_hdfs_state(checkpoint, range(1, 3), folders=store_folders(stores=stores))
    assert len(listed(checkpoint, 2)) == 2 * 4 * 2


@pytest.mark.parametrize("provider", ["hdfs", "rocksdb"])
def test_lost_partition_is_an_error(provider: str) -> None:
    """A partition that the operator's metadata lists and that is missing makes no silent half state (Law 5)."""
    checkpoint = stateful(partitions=3)
    write = write_hdfs_state if provider == "hdfs" else write_rocksdb_state
    write(checkpoint, range(1, 4), folders=["0/0", "0/1"])
    with pytest.raises(ObjectMissingError) as error:
        listed(checkpoint, 3)
    assert "state/0/2/" in error.value.context["key"]


@pytest.mark.parametrize(("newest", "kept"), [(2, {"0"}), (3, {"0", "1"})])
def test_partitions_beyond_the_metadata_are_kept_where_they_have_this_version(newest: int, kept: set[str]) -> None:
    """Others are left over from a repartitioning."""
    checkpoint = stateful(partitions=1)
    write_rocksdb_state(checkpoint, range(1, 4), folders=["0/0"])
    write_rocksdb_state(checkpoint, range(1, newest + 1), folders=["0/1"])
    assert {path.split("/")[1] for path in listed(checkpoint, 3)} == kept


def test_operator_without_metadata_is_listed_by_its_files() -> None:
    """Metadata of operators can be absent; then the version's files show them."""
    checkpoint = memory_checkpoint()
    write_hdfs_state(checkpoint, range(1, 3))
    assert len(listed(checkpoint, 2)) == 4


@pytest.mark.parametrize(("there", "lost"), [(("0/0", "0/1"), "0/2"), (("0/0",), None)])
def test_a_lost_partition_of_spark_3_is_an_error(there: tuple[str, ...], lost: str | None) -> None:
    """Which writes no metadata of operators: its entries pin their number, and an operator that is in the first
    partition alone has one (Law 5)."""
    checkpoint = memory_checkpoint()
    conf = {"spark.sql.shuffle.partitions": "3"}
    for batch_id in range(2):
        entry = OffsetEntry(0, 0, conf, ("-",))
        checkpoint.store.put(checkpoint.offset_key(batch_id), format_offset_entry(entry))
        commit_batch(checkpoint, batch_id)
    checkpoint.store.put(checkpoint.key("state/0/0/_metadata/schema"), b"schema")
    write_hdfs_state(checkpoint, range(1, 3), folders=list(there))
    if lost is None:
        assert listed(checkpoint, 2) == {"0/0/1.delta", "0/0/2.delta"}
        return
    with pytest.raises(ObjectMissingError) as error:
        listed(checkpoint, 2)
    assert f"state/{lost}/" in error.value.context["key"]


def test_an_operator_of_spark_3_that_the_script_has_no_more_needs_nothing() -> None:
    """Its schema and older versions lie there still."""
    checkpoint = memory_checkpoint()
    entry = OffsetEntry(0, 0, {"spark.sql.shuffle.partitions": "2"}, ("-",))
    for batch_id in range(2):
        checkpoint.store.put(checkpoint.offset_key(batch_id), format_offset_entry(entry))
        commit_batch(checkpoint, batch_id)
    for operator_id, versions in ((0, range(1, 3)), (1, range(1, 2))):
        checkpoint.store.put(checkpoint.key(f"state/{operator_id}/0/_metadata/schema"), b"schema")
        write_hdfs_state(checkpoint, versions, folders=[f"{operator_id}/0", f"{operator_id}/1"])
    assert listed(checkpoint, 2) == {f"0/{partition}/{version}.delta" for partition in (0, 1) for version in (1, 2)}


@pytest.mark.parametrize("gone", ["1.delta", "2.delta", "SSTs/000002-u2.sst"])
def test_a_missing_file_of_a_version_is_an_error_that_names_it(gone: str) -> None:
    """A delta without a snapshot above it, or a file that a zip names."""
    checkpoint = stateful(partitions=1)
    write = write_hdfs_state if gone.endswith("delta") else write_rocksdb_state
    write(checkpoint, range(1, 4), folders=["0/0"])
    checkpoint.store.delete(checkpoint.key(f"state/0/0/{gone}"))
    with pytest.raises(ObjectMissingError) as error:
        listed(checkpoint, 3)
    assert error.value.context["key"] == checkpoint.key(f"state/0/0/{gone}")


@pytest.mark.parametrize("body", [b"", b"no zip", rocksdb_zip([])[:40]], ids=["empty", "no-zip", "half"])
def test_damaged_zip_is_an_error(body: bytes) -> None:
    """A version that cannot be opened is named."""
    checkpoint = stateful(partitions=1)
    checkpoint.store.put(checkpoint.key("state/0/0/1.zip"), body)
    with pytest.raises(DataError):
        listed(checkpoint, 1)


def test_damaged_operator_metadata_is_an_error() -> None:
    """Metadata that does not parse is named, not skipped: it lists the partitions."""
    checkpoint = stateful()
    write_hdfs_state(checkpoint, range(1, 3))
    checkpoint.store.put(checkpoint.key("state/0/_metadata/metadata"), b'v1\n{"operatorInfo":')
    with pytest.raises(DataError):
        listed(checkpoint, 2)


def test_metadata_with_more_partitions_than_any_operator_has_is_damaged() -> None:
    """Each of them would be looked for."""
    checkpoint = memory_checkpoint()
    write_operator_metadata(checkpoint, partitions=10**12)
    write_hdfs_state(checkpoint, range(1, 3))
    with pytest.raises(DataError):
        listed(checkpoint, 2)


@pytest.mark.parametrize("kind", ["delta", "changelog"])
def test_a_version_of_any_number_is_looked_for_as_far_as_there_are_files(kind: str) -> None:
    """A file among the commits may have any number."""
    checkpoint = stateful()
    newest = 10**17
    checkpoint.store.put(checkpoint.key(f"state/0/0/{newest}.{kind}"), b"x")
    with pytest.raises(ObjectMissingError, match=f"{newest - 1}.{kind}"):
        listed(checkpoint, newest)


def changelogs(checkpoint: Checkpoint, versions: range) -> None:
    for version in versions:
        checkpoint.store.put(checkpoint.key(f"state/0/0/{version}.changelog"), b"c%d" % version)


def test_a_version_of_changelogs_is_the_zip_below_and_each_since() -> None:
    """With changelog checkpointing Spark opens the newest zip at or below a version and replays what follows."""
    checkpoint = stateful(partitions=1)
    write_rocksdb_state(checkpoint, range(4, 5), folders=["0/0"])
    changelogs(checkpoint, range(3, 9))
    zipped = {"0/0/4.zip", "0/0/SSTs/000003-u3.sst", "0/0/SSTs/000004-u4.sst"}
    assert listed(checkpoint, 6) == {*zipped, "0/0/5.changelog", "0/0/6.changelog"}
    assert listed(checkpoint, 4) == zipped
    assert listed(checkpoint, 6, planned=True) == {*listed(checkpoint, 6), "0/0/7.changelog"}


def test_changelogs_alone_are_wanted_from_the_first_on() -> None:
    """Before the first zip a version is every changelog; one that is gone is an error, and is named (Law 5)."""
    checkpoint = stateful(partitions=1)
    changelogs(checkpoint, range(1, 4))
    assert listed(checkpoint, 3) == {f"0/0/{version}.changelog" for version in (1, 2, 3)}
    checkpoint.store.delete(checkpoint.key("state/0/0/2.changelog"))
    with pytest.raises(ObjectMissingError) as error:
        listed(checkpoint, 3)
    assert error.value.context["key"].endswith("state/0/0/2.changelog")


def unique_id(version: int, other: bool = False) -> str:
    return f"{'f' if other else '0'}b1a8f0e-2f0a-4f0c-9d0b-{version:012d}"


def format_2(versions: range, *, zips: tuple[int, ...], with_changelogs: bool = True) -> Checkpoint:
    """A store in format 2: each version once as its commit names it, once as another try of its batch left it."""
    checkpoint = run_batches(memory_checkpoint(), max(versions) - 1)
    write_operator_metadata(checkpoint, partitions=1)
    for version in versions:
        for other in (False, True):
            stem = f"{version}_{unique_id(version, other)}"
            if with_changelogs:
                checkpoint.store.put(checkpoint.key(f"state/0/0/{stem}.changelog"), b"c")
            if version in zips:
                sst = f"{stem}.sst"
                checkpoint.store.put(checkpoint.key(f"state/0/0/{stem}.zip"), rocksdb_zip([sst]))
                checkpoint.store.put(checkpoint.key(f"state/0/0/SSTs/{sst}"), b"sst")
        ids = {"0": [[unique_id(version)]]}
        body = f'v2\n{{"nextBatchWatermarkMs":0,"stateUniqueIds":{json.dumps(ids)}}}'
        checkpoint.store.put(checkpoint.commit_key(version - 1), body.encode())
    return checkpoint


def test_a_version_of_format_2_is_the_one_that_its_commit_names() -> None:
    """What another try of the same batch left has another id, and is no part of it."""
    checkpoint = format_2(range(1, 5), zips=(1, 2, 3, 4), with_changelogs=False)
    stem = f"4_{unique_id(4)}"
    assert listed(checkpoint, 4) == {f"0/0/{stem}.zip", f"0/0/SSTs/{stem}.sst"}
    checkpoint.store.delete(checkpoint.key(f"state/0/0/{stem}.zip"))
    with pytest.raises(ObjectMissingError):  # the other try's is there, and does not count (Law 5)
        listed(checkpoint, 4)


def test_changelogs_of_format_2_go_back_to_a_zip_that_a_commit_names() -> None:
    """The way back is stored in the changelog's compressed head: all from the newest certain zip on goes along."""
    checkpoint = format_2(range(1, 8), zips=(2, 4))
    found = listed(checkpoint, 6)
    for version in (4, 5, 6):
        assert f"0/0/{version}_{unique_id(version)}.changelog" in found
    assert {f"0/0/4_{unique_id(4)}.zip", f"0/0/SSTs/4_{unique_id(4)}.sst"} <= found
    assert not [path for path in found if path.startswith(("0/0/2_", "0/0/3_", "0/0/7_"))]
    # Where the commit that would show it is gone, nothing is certain, and everything goes along.
    checkpoint.store.delete(checkpoint.commit_key(3))
    checkpoint.store.delete(checkpoint.commit_key(1))
    assert {f"0/0/1_{unique_id(1)}.changelog", f"0/0/2_{unique_id(2)}.zip"} <= listed(checkpoint, 6)


def test_a_zip_of_another_try_that_was_cleared_away_harms_nothing() -> None:
    """Spark deletes what no commit names; half of it is left out, the certain one is wanted whole."""
    checkpoint = format_2(range(1, 7), zips=(4,))
    checkpoint.store.delete(checkpoint.key(f"state/0/0/SSTs/4_{unique_id(4, True)}.sst"))
    found = listed(checkpoint, 6)
    assert f"0/0/4_{unique_id(4)}.zip" in found
    assert f"0/0/4_{unique_id(4, True)}.zip" not in found
    checkpoint.store.delete(checkpoint.key(f"state/0/0/SSTs/4_{unique_id(4)}.sst"))
    with pytest.raises(ObjectMissingError):
        listed(checkpoint, 6)


def test_format_2_that_began_in_format_1_goes_back_to_its_last_zip() -> None:
    """A zip without an id belongs where the commit of its batch names none."""
    checkpoint = format_2(range(5, 7), zips=())
    write_rocksdb_state(checkpoint, range(3, 5), folders=["0/0"])
    found = listed(checkpoint, 6)
    assert {"0/0/4.zip", "0/0/SSTs/000004-u4.sst", f"0/0/6_{unique_id(6)}.changelog"} <= found
    assert "0/0/3.zip" not in found


@pytest.mark.parametrize("name", [f"3_{UUID}.delta", f"3_{UUID}.snapshot"])
def test_other_formats_are_refused_by_name(name: str) -> None:
    """The HDFS-backed store in format 2, which no Spark 4 has, is known by its files, and refused (Law 10)."""
    checkpoint = stateful()
    write_rocksdb_state(checkpoint, range(1, 3))
    checkpoint.store.put(checkpoint.key(f"state/0/0/{name}"), b"")
    with pytest.raises(UnsupportedCheckpointError) as error:
        listed(checkpoint, 2)
    assert error.value.context["key"].endswith(name)


def v2_metadata(partitions: int) -> bytes:
    raw = {
        "operatorInfo": {"operatorId": 0, "operatorName": "transformWithStateInPandasExec"},
        "stateStoreInfo": [{"storeName": "default", "numPartitions": partitions, "stateSchemaFilePaths": []}],
    }
    return f"v2\n{json.dumps(raw)}".encode()


def test_operator_metadata_of_each_run_counts_up_to_the_position() -> None:
    """transformWithState writes metadata per start, named by batch: the newest not after the position counts."""
    checkpoint = memory_checkpoint()
    write_rocksdb_state(checkpoint, range(1, 6), folders=["0/0"])
    for batch_id, partitions in ((0, 1), (3, 1), (5, 9)):
        checkpoint.store.put(checkpoint.key(f"state/0/_metadata/v2/{batch_id}"), v2_metadata(partitions))
        checkpoint.store.put(checkpoint.key(f"state/0/_stateSchema/default/{batch_id}_0b1a8f0e"), b"schema")
    prefix = checkpoint.key("state/")
    sizes = {info.key: info.size_bytes for info in checkpoint.store.list_objects(prefix)}
    paths = {key[len(prefix) :] for key in state_file_keys(checkpoint, 5, sizes)}
    assert {path for path in paths if "_" in path} == {
        "0/_metadata/v2/0",
        "0/_metadata/v2/3",
        "0/_stateSchema/default/0_0b1a8f0e",
        "0/_stateSchema/default/3_0b1a8f0e",
    }


@pytest.mark.parametrize("provider", ["hdfs", "rocksdb"])
def test_planned_batch_takes_along_what_it_left_of_its_state(provider: str) -> None:
    """A sink that holds the planned batch makes Spark skip it: its state must be there then (1a.6)."""
    checkpoint = stateful()
    write = write_hdfs_state if provider == "hdfs" else write_rocksdb_state
    write(checkpoint, range(1, 5))
    kind = "delta" if provider == "hdfs" else "zip"
    assert f"0/1/4.{kind}" not in listed(checkpoint, 3)
    assert {f"0/0/4.{kind}", f"0/1/4.{kind}"} <= listed(checkpoint, 3, planned=True)


def test_half_written_state_of_a_running_batch_is_left_out() -> None:
    """A zip whose newest files are not in the listing belongs to a batch that still runs."""
    checkpoint = stateful()
    write_rocksdb_state(checkpoint, range(1, 5))
    checkpoint.store.delete(checkpoint.key("state/0/1/SSTs/000004-u4.sst"))
    paths = listed(checkpoint, 3, planned=True)
    assert "0/0/4.zip" in paths
    assert "0/1/4.zip" not in paths


def test_a_planned_batch_has_begun_where_it_left_state() -> None:
    """Of a query without state its entry is all that there is. What every batch plans, metadata, is no state of it."""
    checkpoint = stateful()
    write_rocksdb_state(checkpoint, range(1, 4))
    run_batches(checkpoint, 2)
    assert not has_begun_planned(checkpoint, checkpoint.position())
    plan_batch(checkpoint, 3)
    assert not has_begun_planned(checkpoint, checkpoint.position())
    write_rocksdb_state(checkpoint, range(4, 5))
    assert has_begun_planned(checkpoint, checkpoint.position())

    without = memory_checkpoint()
    run_batches(without, 2)
    assert not has_begun_planned(without, without.position())
    plan_batch(without, 3)
    assert has_begun_planned(without, without.position())


def test_no_state_before_the_first_commit() -> None:
    """At version 0 there is nothing to list."""
    checkpoint = stateful()
    assert listed(checkpoint, 0) == set()


def test_what_a_batch_that_did_not_commit_left_is_deleted_whole() -> None:
    """Its delta, and a snapshot that Spark's maintenance made of it, which would be read before its next delta."""
    checkpoint = stateful()
    write_hdfs_state(checkpoint, range(1, 6))
    there = {info.key for info in checkpoint.store.list_objects(checkpoint.key("state/"))}
    folder = next(key for key in there if key.endswith("/5.delta")).rpartition("/")[0]
    checkpoint.store.put(f"{folder}/5.snapshot", b"flushed")
    checkpoint.store.put(f"{folder}/.5.snapshot.crc", b"sum")
    deleted = delete_version(checkpoint, 5)
    left = {info.key for info in checkpoint.store.list_objects(checkpoint.key("state/"))}
    assert left == {key for key in there if "5.delta" not in key}
    assert deleted == sum(key.endswith("/5.delta") for key in there) + 1
    assert delete_version(checkpoint, 5) == 0


NO_COLUMNS = b'{"type":"struct","fields":[]}'
ONE_COLUMN = b'{"type":"struct","fields":[{"name":"n","type":"long","nullable":false,"metadata":{}}]}'


@pytest.mark.parametrize("place", ["0/0/_metadata/schema", "0/_stateSchema/default/0_5b0d"])
def test_an_aggregation_over_all_rows_has_one_partition_whatever_spark_notes(place: str) -> None:
    """Its keys have no columns. Of one that groups by something every partition is needed, whatever its values are."""
    for keys, values, has_one in ((NO_COLUMNS, ONE_COLUMN, True), (ONE_COLUMN, NO_COLUMNS, False)):
        checkpoint = memory_checkpoint()
        write_operator_metadata(checkpoint, partitions=3)
        checkpoint.store.put(checkpoint.key(f"state/{place}"), b"\0\2v2\0\0\0\1" + keys + b"\0\0\0\1" + values)
        write_hdfs_state(checkpoint, range(1, 3), folders=["0/0"])
        if has_one:
            assert listed(checkpoint, 2) == {"0/0/1.delta", "0/0/2.delta"}
        else:
            with pytest.raises(ObjectMissingError, match=r"0/1/2\.delta"):
                listed(checkpoint, 2)


def test_a_limit_has_one_partition_whatever_spark_notes() -> None:
    """Spark notes the session's number, and brings all rows into one: the others are not missing."""
    checkpoint = memory_checkpoint()
    write_operator_metadata(checkpoint, operator_name="globalLimit", partitions=3)
    write_hdfs_state(checkpoint, range(1, 3), folders=["0/0"])
    assert listed(checkpoint, 2) == {"0/0/1.delta", "0/0/2.delta"}
