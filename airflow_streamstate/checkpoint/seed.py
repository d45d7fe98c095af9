"""Seeds: empty state at drained positions, under the same query id, with batch ids that go on (1a.10, Law 9).

``prepare_seed`` lays out a checkpoint whose batch 0 reads nothing. The driver starts the *new* query on it with
``Trigger.Once`` and a ``noop`` sink, so that Spark creates empty state for every operator of the new plan.
``finish_seed`` builds the real checkpoint of it: batch 0 renumbered to the drained batch N, with the drained offsets,
the file source's log, and ``metadata`` last. After a crash anywhere, begin again.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_streamstate.checkpoint.entries import (
    NO_OFFSET,
    SOURCES_NAMED,
    CommitEntry,
    OffsetEntry,
    format_commit_entry,
    format_offset_entry,
)
from airflow_streamstate.checkpoint.fork import crc_path, place_files, wipe, wipe_half_built
from airflow_streamstate.checkpoint.join_schemas import accept_nulls
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.state_files import unsupported_state_file
from airflow_streamstate.errors import ConflictError, DataError, InvalidRequestError, UnsupportedCheckpointError

PINNED_BY_ALL = (
    "spark.sql.shuffle.partitions",
    "spark.sql.streaming.stateStore.providerClass",
    "spark.sql.streaming.multipleWatermarkPolicy",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion",
    "spark.sql.streaming.aggregation.stateFormatVersion",
    "spark.sql.streaming.join.stateFormatVersion",
    "spark.sql.streaming.stateStore.compression.codec",
    "spark.sql.streaming.stateStore.rocksdb.formatVersion",
    "spark.sql.streaming.statefulOperator.useStrictDistribution",
    "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan",
    "spark.sql.streaming.stateStore.encodingFormat",
)
"""Every Spark 4 pins these in ``conf`` of every entry; where one is missing, Spark takes the oldest state format."""
PINNED_SINCE_4_2 = (
    "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion",
    "spark.sql.streaming.stateStore.rowChecksum.enabled",
    "spark.sql.function.protobufExtensions.enabled",
    SOURCES_NAMED,
)
PINNED_SINCE_4_3 = (
    "spark.sql.streaming.statefulOperator.alwaysNullableOutput.enabled",
    "spark.sql.dropDuplicates.deterministicKeyOrder.enabled",
)
PINNED_CONF_KEYS = (*PINNED_BY_ALL, *PINNED_SINCE_4_2, *PINNED_SINCE_4_3)
"""A Spark leaves out those that it does not know."""


@dataclass(frozen=True)
class SeedPlan:
    """The position at which a seed begins.

    Attributes:
        query_id: of the drained query; it stays (Law 9).
        batch_id: the last committed batch of the drained checkpoint, the flush itself; at least 1.
        source_lines: the drained end offsets, one per source, in the order of the new plan's offset lines.
        watermark_ms: of before the flush, where column and delay are unchanged, so that late rows stay late (1a.10);
            else 0.
        source_keys: the keys of the lines in offset log 2, names of sources or their numbers; empty for offset log 1.
    """

    query_id: str
    batch_id: int
    source_lines: tuple[str, ...]
    watermark_ms: int = 0
    source_keys: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """Of the offset log that is written."""
        return "v2" if self.source_keys else "v1"


def prepare_seed(building: Checkpoint, plan: SeedPlan, *, conf: Mapping[str, str], batch_timestamp_ms: int) -> None:
    """Lay out the checkpoint on which the new query runs an empty batch 0; what lay there is wiped.

    Args:
        building: beside the real place, see ``protocol.layout.building_folder``.
        conf: the *new* session's value of each of ``PINNED_CONF_KEYS`` that it knows.
        batch_timestamp_ms: the time of batch 0.

    Raises:
        InvalidRequestError: a setting is missing, or the plan does not fit together.
    """
    missing = [key for key in PINNED_BY_ALL if key not in conf]
    if missing:
        raise InvalidRequestError("settings that every checkpoint pins are missing", missing=missing)
    if plan.batch_id < 1 or (plan.source_keys and len(plan.source_keys) != len(plan.source_lines)):
        raise InvalidRequestError("this seed does not fit what was drained", plan=repr(plan))
    wipe(building)
    nothing = (NO_OFFSET,) * len(plan.source_lines)
    entry = OffsetEntry(0, batch_timestamp_ms, dict(conf), nothing, version=plan.version, source_keys=plan.source_keys)
    building.store.put(building.offset_key(0), format_offset_entry(entry))
    building.store.put(building.metadata_key, _metadata(plan))


def finish_seed(
    building: Checkpoint,
    plan: SeedPlan,
    drained_sources: Mapping[str, str],
    target: Checkpoint,
    books: Mapping[str, bytes] | None = None,
    instead: Mapping[str, bytes] | None = None,
) -> bool:
    """Build the real checkpoint of the one on which batch 0 was run; doing it twice is doing it once.

    Args:
        building: batch 0 is committed there; wiped at the end.
        drained_sources: path below ``sources/`` of the drained checkpoint -> key, e.g. of a snapshot's data.
        books: folder below ``sources/`` -> the content of the only file of that file source's log, in place of the
            drained log; b"" for no log at all.
        instead: path in the checkpoint -> other content for a file of the drained logs.

    Returns:
        False if the target was whole already.

    Raises:
        ConflictError: batch 0 is not committed in ``building``, or another query's checkpoint lies at the target.
        UnsupportedCheckpointError: batch 0 was run with changelog checkpointing, and would want all changelogs.
        DataError: the target ran and lost its metadata, or the building area is damaged.
    """
    if target.exists():
        if target.query_id() != plan.query_id:
            raise ConflictError("another query's checkpoint is where this one is to be built", checkpoint=target.prefix)
        wipe(building)
        return False
    entry = _entry_of_batch_0(building)
    batch_ids = (plan.batch_id - 1, plan.batch_id)
    wipe_half_built(target, built_of=set(batch_ids))
    books, instead = books or {}, instead or {}
    left_out = {*instead, *map(crc_path, instead)}
    sources = {
        f"sources/{path}": source_key
        for path, source_key in drained_sources.items()
        if path.partition("/")[0] not in books and f"sources/{path}" not in left_out
    }
    place_files(building.store, {**moved_state_files(building, plan.batch_id), **sources}, target)
    for folder, body in books.items():
        if body:
            building.store.put(target.key(f"sources/{folder}/0"), body)
    for path, body in instead.items():
        building.store.put(target.key(path), body)
    # In state format 2 the commit names the unique ids of the state, which stay in the names of the files.
    commit = dataclasses.replace(_commit_of_batch_0(building), next_batch_watermark_ms=plan.watermark_ms)
    at_n = dataclasses.replace(entry, source_lines=plan.source_lines, batch_watermark_ms=plan.watermark_ms)
    for batch_id in batch_ids:
        building.store.put(target.offset_key(batch_id), format_offset_entry(at_n))
        building.store.put(target.commit_key(batch_id), format_commit_entry(commit))
    building.store.put(target.metadata_key, _metadata(plan))
    wipe(building)
    return True


def source_files_of(files: Mapping[str, str]) -> dict[str, str]:
    """The ``drained_sources`` of ``finish_seed`` among the files of a position (path -> key)."""
    return {path.partition("/")[2]: key for path, key in files.items() if path.startswith("sources/")}


def renumbered_logs(logs: Mapping[str, str], folders: Mapping[str, str]) -> dict[str, str]:
    """The logs of sources (``source_files_of``) in the folders where a new plan looks for them.

    Args:
        logs: path below ``sources/`` -> key.
        folders: old folder -> new folder, each a number in the plan or a source's name; other logs are left out.
    """
    renumbered = {}
    for path, key in logs.items():
        folder, slash, rest = path.partition("/")
        if folder in folders:
            renumbered[f"{folders[folder]}{slash}{rest}"] = key
    return renumbered


def _metadata(plan: SeedPlan) -> bytes:
    return json.dumps({"id": plan.query_id}, separators=(",", ":")).encode()


def _entry_of_batch_0(building: Checkpoint) -> OffsetEntry:
    entry = building.read_offset(0)
    if entry is None or building.position().batch_id != 0 or building.offset_ids() != [0]:
        raise ConflictError(
            "the empty first batch of this seed has not run, or more than it has",
            checkpoint=building.prefix,
            next_step="Begin the seed again.",
        )
    return entry


def _commit_of_batch_0(building: Checkpoint) -> CommitEntry:
    commit = building.read_commit(0)
    if commit is None:
        raise DataError("the commit of a seed's empty batch is gone", key=building.commit_key(0))
    return commit


def moved_state_files(building: Checkpoint, batch_id: int) -> dict[str, str]:
    """The state that batch 0 of a checkpoint left, as that of ``batch_id``: path in the target -> key.

    Batch 0 was empty, so the schemas of joins are made to fit batches with input first.

    Raises:
        UnsupportedCheckpointError: it was written with changelog checkpointing, and would want all changelogs.
        DataError: it has more than one version.
    """
    accept_nulls(building)
    prefix = building.key("state/")
    found = {}
    for info in building.store.list_objects(prefix):
        folder, _, name = info.key[len(prefix) :].rpartition("/")
        if name.endswith((".changelog", ".changelog.crc")) or unsupported_state_file(name):
            raise UnsupportedCheckpointError(
                "the seed's empty state was not written as a whole, so its version cannot be moved", key=info.key
            )
        renamed = _renumbered(name, batch_id + 1)
        if renamed is not None:
            found[f"state/{folder}/{renamed}"] = info.key
    return found


def _renumbered(name: str, version: int) -> str | None:
    """The new name of a state file of version 1; None for a temporary file.

    An empty delta is an empty snapshot, byte for byte; as a snapshot it needs none of the versions below it.
    """
    if name.endswith(".tmp") or name.endswith(".tmp.crc"):
        return None
    match = re.fullmatch(r"(\.?)([0-9]+)((?:_[0-9a-f-]+)?)\.(delta|snapshot|zip)((?:\.crc)?)", name)
    if match is None:
        return name
    hidden, number, unique, kind, crc = match.groups()
    if number != "1":
        raise DataError("the seed's state has more than one version", file=name)
    return f"{hidden}{version}{unique}.{'zip' if kind == 'zip' else 'snapshot'}{crc}"
