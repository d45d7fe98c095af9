"""What is refused at start(), by name and before anything is touched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.checkpoint.guards import (
    HDFS_BACKED_PROVIDER,
    ROCKSDB_PROVIDER,
    guard_checkpoint,
    guard_start,
    guard_state_format,
)
from airflow_streamstate.checkpoint.log import SOURCES_NAMED, Checkpoint, format_offset_entry, parse_offset_entry
from airflow_streamstate.errors import DataError, UnsupportedCheckpointError
from airflow_streamstate.store.memory import MemoryStore
from support.checkpoints import CONF, memory_checkpoint, run_batches, write_hdfs_state, write_rocksdb_state

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


@pytest.mark.parametrize("trigger", ["processingTime", "once", "availableNow"])
@pytest.mark.parametrize(
    "conf",
    [
        {},
        {PROVIDER: HDFS_BACKED_PROVIDER},
        {PROVIDER: ROCKSDB_PROVIDER, CHANGELOG: "false"},
        {PROVIDER: ROCKSDB_PROVIDER, CHANGELOG: "true"},
        {"spark.sql.streaming.stateStore.checkpointFormatVersion": "1"},
        {PROVIDER: ROCKSDB_PROVIDER, "spark.sql.streaming.stateStore.checkpointFormatVersion": "2"},
        {"spark.sql.streaming.offsetLog.formatVersion": "1"},
        {"spark.sql.streaming.queryEvolution.enableSourceEvolution": "false"},
        {"spark.sql.streaming.offsetLog.formatVersion": "2"},
        {
            "spark.sql.streaming.offsetLog.formatVersion": "2",
            "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
        },
    ],
)
def test_what_is_supported_is_let_through(trigger: str, conf: dict[str, str]) -> None:
    """Defaults of Spark 4.2, set or not, with each trigger that claims its batches one by one."""
    guard_start(conf, {"path": "x", "asyncProgressTrackingEnabled": "false"}, trigger)


@pytest.mark.parametrize("trigger", ["continuous", "realTime", "tomorrow"])
def test_triggers_that_know_no_barrier_are_refused(trigger: str) -> None:
    """Continuous and real-time queries run on over a barrier; so does what is not known (Law 10)."""
    with pytest.raises(UnsupportedCheckpointError) as error:
        guard_start({}, {}, trigger)
    assert error.value.context["trigger"] == trigger


@pytest.mark.parametrize("name", ["asyncProgressTrackingEnabled", "asyncprogresstrackingenabled"])
def test_asynchronous_progress_is_refused(name: str) -> None:
    """Its offset log has gaps and it runs on over a barrier; options have no case (Law 10)."""
    with pytest.raises(UnsupportedCheckpointError) as error:
        guard_start({}, {name: "True"}, "processingTime")
    assert error.value.context["option"] == name


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        (PROVIDER, "com.example.Provider"),
        (PROVIDER.lower(), "com.example.Provider"),
        ("spark.sql.streaming.stateStore.checkpointFormatVersion", "2"),  # without RocksDB
        ("spark.sql.streaming.stateStore.checkpointFormatVersion", "3"),
        ("spark.sql.streaming.offsetLog.formatVersion", "3"),
        ("spark.sql.streaming.queryEvolution.enableSourceEvolution", "true"),  # without offset log 2
        ("spark.sql.streaming.queryEvolution.enableSinkEvolution", "true"),  # commit log 3
        (
            "spark.sql.streaming.checkpointFileManagerClass",
            "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager",
        ),
        (
            "spark.hadoop.spark.sql.streaming.checkpointFileManagerClass",
            "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager",
        ),
    ],
)
def test_settings_of_unknown_formats_are_refused_by_name(setting: str, value: str) -> None:
    """The error names the setting and its value (Law 10)."""
    with pytest.raises(UnsupportedCheckpointError) as error:
        guard_start({setting: value}, {}, "processingTime")
    assert str(error.value.context["setting"]).lower() == setting.lower()
    assert error.value.context["value"] == value


def test_checkpoints_in_known_formats_are_let_through() -> None:
    """None at all, a new one, one of each provider."""
    guard_checkpoint(Checkpoint(MemoryStore(), "nothing/here"))
    guard_checkpoint(memory_checkpoint())
    for write in (write_hdfs_state, write_rocksdb_state):
        checkpoint = run_batches(memory_checkpoint(), 2)
        write(checkpoint, range(1, 4))
        guard_checkpoint(checkpoint)


def test_names_in_offset_log_1_are_refused() -> None:
    """There Spark gives offsets to sources by place, and logs of sources by name: a swap would mix them (Law 10)."""
    checkpoint = run_batches(memory_checkpoint(), 2)
    key = checkpoint.offset_key(2)
    body = checkpoint.store.get(key).body
    checkpoint.store.put(key, body.replace(b'Evolution":"false"', b'Evolution":"true"'))
    with pytest.raises(UnsupportedCheckpointError) as error:
        guard_checkpoint(checkpoint)
    assert error.value.context["key"] == key
    entry = parse_offset_entry(body, key=key)
    named = replace(entry, version="v2", source_keys=("rows",), conf={**entry.conf, SOURCES_NAMED: "true"})
    checkpoint.store.put(key, format_offset_entry(named))
    guard_checkpoint(checkpoint)


@pytest.mark.parametrize("path", ["offsets/2", "commits/2"])
def test_logs_of_another_version_are_refused(path: str) -> None:
    """Offset log 3 and commit log 3 are refused by their first line (Law 10)."""
    checkpoint = run_batches(memory_checkpoint(), 2)
    body = checkpoint.store.get(checkpoint.key(path)).body
    checkpoint.store.put(checkpoint.key(path), body.replace(b"v1", b"v3", 1))
    with pytest.raises(UnsupportedCheckpointError) as error:
        guard_checkpoint(checkpoint)
    assert error.value.context["key"] == checkpoint.key(path)


def test_state_files_of_other_formats_are_refused() -> None:
    """The HDFS-backed store has no unique names in any Spark that is known here (Law 10)."""
    name = "3_0b1a8f0e-2f0a-4f0c-9d0b-5f3c0c7e9a11.delta"
    checkpoint = run_batches(memory_checkpoint(), 2)
    checkpoint.store.put(checkpoint.key(f"state/0/1/{name}"), b"")
    with pytest.raises(UnsupportedCheckpointError) as error:
        guard_checkpoint(checkpoint)
    assert error.value.context["key"].endswith(name)


def test_provider_that_an_entry_pins_is_refused() -> None:
    """An entry shows which provider wrote the state, whatever the session is set to (Law 10)."""
    checkpoint = run_batches(memory_checkpoint(), 2)
    body = checkpoint.store.get(checkpoint.offset_key(2)).body
    checkpoint.store.put(checkpoint.offset_key(2), body.replace(CONF[PROVIDER].encode(), b"com.example.Provider"))
    with pytest.raises(UnsupportedCheckpointError):
        guard_checkpoint(checkpoint)


def test_damaged_entry_is_an_error_before_anything_starts() -> None:
    """Half an entry at the end of the log is named."""
    checkpoint = run_batches(memory_checkpoint(), 2)
    checkpoint.store.put(checkpoint.offset_key(3), b"v1")
    with pytest.raises(DataError):
        guard_checkpoint(checkpoint)


def test_state_in_another_format_than_the_session_asks_for_is_refused() -> None:
    """Spark would look for the files of the session's format, and not find them; no state is lost (Laws 5 and 10)."""
    checkpoint = run_batches(memory_checkpoint(), 2)
    write_rocksdb_state(checkpoint, range(1, 4))
    guard_state_format(checkpoint, "1")
    with pytest.raises(UnsupportedCheckpointError, match="is in format 1, and the session asks for format 2"):
        guard_state_format(checkpoint, "2")
    checkpoint.store.put(checkpoint.commit_key(2), b'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["a"]]}}')
    guard_state_format(checkpoint, " 2 ")
    with pytest.raises(UnsupportedCheckpointError, match="is in format 2, and the session asks for format 1"):
        guard_state_format(checkpoint, "1")


@pytest.mark.parametrize("asked", ["1", "2"])
def test_a_query_without_state_goes_on_in_any_format(asked: str) -> None:
    """Nothing was committed yet, or there is no state at all."""
    guard_state_format(Checkpoint(MemoryStore(), "nothing/here"), asked)
    guard_state_format(run_batches(memory_checkpoint(), 2), asked)
