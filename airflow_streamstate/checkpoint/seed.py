"""Seeds: checkpoints with empty, rewritten or skipped state whose batch ids continue (1a.10, Law 9)."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import zipfile
from collections.abc import Mapping

from airflow_streamstate.checkpoint.fork import crc_path, fork, place_files, wipe, wipe_half_built
from airflow_streamstate.checkpoint.guards import ENCODING, PROVIDER, ROCKSDB_PROVIDER
from airflow_streamstate.checkpoint.log import (
    NO_OFFSET,
    PARTITIONS,
    SOURCES_NAMED,
    STATE_IDS,
    Checkpoint,
    CommitEntry,
    OffsetEntry,
    Position,
    crc_key_of,
    format_commit_entry,
    format_offset_entry,
    parse_commit_entry,
    parse_offset_entry,
)
from airflow_streamstate.checkpoint.state_files import accept_nulls, files_of, unsupported_state_file
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    InvalidRequestError,
    ObjectExistsError,
    OutcomeUnknownError,
    UnsupportedCheckpointError,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.records import StateRewrite, StateStoreName
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.transfer import delete_many, keys_below

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
)
"""Every Spark from 3.5 on pins these in ``conf`` of every entry; without one, Spark takes the oldest state format."""
PINNED_IN_LATER_3_5 = ("spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan",)
"""By Spark 4.0 and newer, and by later releases of 3.5; 3.5.1 does not know it."""
PINNED_SINCE_4_0 = (ENCODING,)
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
PINNED_CONF_KEYS = (*PINNED_BY_ALL, *PINNED_IN_LATER_3_5, *PINNED_SINCE_4_0, *PINNED_SINCE_4_2, *PINNED_SINCE_4_3)
"""A Spark leaves out those that it does not know."""


@dataclass(frozen=True)
class SeedPlan:
    """The position at which a seed starts.

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
    """Build the checkpoint on which the new query runs an empty batch 0; what was there is wiped.

    Args:
        building: next to the real place, see ``protocol.layout.building_folder``.
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
        ConflictError: batch 0 is not committed in ``building``, or another query's checkpoint is at the target.
        UnsupportedCheckpointError: batch 0 was run with changelog checkpointing, and would want all changelogs.
        DataError: the target ran and lost its metadata, or the building area is damaged.
    """
    if target.exists():
        if target.query_id() != plan.query_id:
            raise ConflictError("another query's checkpoint is where this one will be built", checkpoint=target.prefix)
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
            next_step="Start the seed again.",
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


# Commits a planned batch without reading its rows: the offsets advance, the state stays as it was.
#
# On a fork alongside the checkpoint an empty batch takes the place of the planned one: with the last offsets, and all
# times at zero, so that no window closes and no timer is due. So the next version of the state that Spark writes there
# is the state of before. ``finish_skip`` puts that version into the checkpoint and then, as its last act, the commit.
# The entry of the planned batch stays, and the next batch starts at its end. If it is cut off before the commit, it
# starts again.

_VERSION = re.compile(r"\.?([1-9][0-9]*)(?:_[0-9a-f-]+)?\.(?:zip|changelog|delta|snapshot)(?:\.crc)?")


def prepare_skip(building: Checkpoint, checkpoint: Checkpoint, batch_id: int) -> None:
    """Build the fork on which the empty batch runs with ``Trigger.Once`` into no sink; what was there is wiped.

    Args:
        building: next to the checkpoint, see ``protocol.layout.building_folder``.
        checkpoint: of a query that does not run.
        batch_id: the planned batch.

    Raises:
        ConflictError: that batch is not planned there.
        ObjectMissingError, DataError: the checkpoint is damaged.
    """
    position, planned = checkpoint.position(), checkpoint.read_offset(batch_id)
    if planned is None or position.planned_id != batch_id:
        raise ConflictError(
            "this batch is not planned, so it cannot be skipped",
            checkpoint=checkpoint.prefix,
            batch_id=batch_id,
            last_committed=position.batch_id,
            planned=position.planned_id,
        )
    wipe(building)
    lines = (NO_OFFSET,) * len(planned.source_lines)
    if position.batch_id is not None:
        last = checkpoint.read_offset(position.batch_id)
        if last is None:
            raise DataError("the entry of the last committed batch is gone", key=checkpoint.offset_key(batch_id - 1))
        lines = last.source_lines
        start = len(checkpoint.prefix) + 1
        keys = files_of(checkpoint, Position(position.batch_id))
        fork(checkpoint.store, {key[start:]: key for key in keys}, building)
    else:
        checkpoint.store.link(checkpoint.metadata_key, building.metadata_key)
    empty = dataclasses.replace(planned, source_lines=lines, batch_watermark_ms=0, batch_timestamp_ms=0)
    building.store.create(building.offset_key(batch_id), format_offset_entry(empty))


def finish_skip(building: Checkpoint, checkpoint: Checkpoint, batch_id: int) -> None:
    """Put the state of the empty batch into the checkpoint, commit the planned batch, and wipe ``building``.

    Raises:
        ConflictError: the empty batch is not committed, or another process committed the batch in the meantime.
        DataError: the planned entry is gone.
    """
    commit, planned = building.read_commit(batch_id), checkpoint.read_offset(batch_id)
    if commit is None or building.position().batch_id != batch_id:
        raise ConflictError(
            "the empty batch in the place of the skipped one has not run",
            checkpoint=building.prefix,
            batch_id=batch_id,
            next_step="Resume the deployment: it is run again.",
        )
    if planned is None:
        raise DataError("the entry of the planned batch is gone", key=checkpoint.offset_key(batch_id))
    _place_state(building, checkpoint, batch_id + 1)
    # The watermark that the batch was planned with stays: what is due by it comes out with the next batch.
    body = format_commit_entry(dataclasses.replace(commit, next_batch_watermark_ms=planned.batch_watermark_ms))
    key = checkpoint.commit_key(batch_id)
    checkpoint.store.delete(crc_key_of(key))
    try:
        checkpoint.store.create(key, body)
    except (ObjectExistsError, OutcomeUnknownError):
        there = checkpoint.store.get(key)
        if there is None or there.body != body:
            raise
    wipe(building)


def _place_state(building: Checkpoint, checkpoint: Checkpoint, version: int) -> None:
    """Put the fork's state at this version in place of what a failed run of the batch left of it."""
    prefix = checkpoint.key("state/")
    there = {key[len(prefix) :] for key in keys_below(checkpoint.store, prefix)}
    stale = {path for path in there if _is_of(path, version)}
    delete_many(checkpoint.store, [prefix + path for path in sorted(stale)])
    source = building.key("state/")
    made = {key[len(source) :]: key for key in keys_below(building.store, source)}
    new = {f"state/{path}": key for path, key in made.items() if path not in there or path in stale}
    place_files(checkpoint.store, {path: key for path, key in new.items() if not _is_temporary(path)}, checkpoint)


def _is_of(path: str, version: int) -> bool:
    match = _VERSION.fullmatch(path.rpartition("/")[2])
    return match is not None and int(match[1]) == version


def _is_temporary(path: str) -> bool:
    return path.endswith((".tmp", ".tmp.crc"))


# The checkpoint of a snapshot whose state is rewritten under the same batch id.
#
# The logs stay word for word, except for the settings that Spark pins in them; the state comes from a checkpoint
# whose batch 0 the new version has run, and into which the old state was then written
# (``driver.spark.state_rewriting``).

_PROVIDERS: Mapping[StateStoreName, str] = {"rocksdb": ROCKSDB_PROVIDER}
StateIds = Mapping[str, list[list[str]]]
"""By operator: of each partition, the unique id of each of its stores (state checkpoint format 2)."""


def pins_of(rewrite: StateRewrite) -> dict[str, str]:
    """The settings that a rewrite changes among those that Spark pins in the offset log."""
    pins: dict[str, str] = {}
    if rewrite.partitions is not None:
        pins[PARTITIONS] = str(rewrite.partitions)
    if rewrite.state_store is not None:
        pins[PROVIDER] = _PROVIDERS[rewrite.state_store]
    return pins


def refuse_store(query_name: str, provider: str) -> None:
    """Refuse to rewrite state into another store than RocksDB, which Spark cannot do.

    Args:
        provider: the class of the store.

    Raises:
        InvalidRequestError: it is another one.
    """
    if provider == ROCKSDB_PROVIDER:
        return
    raise InvalidRequestError(
        "Spark rewrites state into RocksDB alone, and this state is in another store",
        query_name=query_name,
        state_store=provider.rpartition(".")[2],
        next_step="Move it to RocksDB in the same step (--state-store rocksdb); or drain, and seed it.",
    )


def committed_files(files: Mapping[str, str], batch_id: int) -> dict[str, str]:
    """The files (path -> key) without what belongs to a batch above this one."""
    return {path: key for path, key in files.items() if not _is_above(path, batch_id)}


def _is_above(path: str, batch_id: int) -> bool:
    folder, _, name = path.partition("/")
    number = name.removeprefix(".").removesuffix(".crc")
    return folder in ("offsets", "commits") and number.isdigit() and int(number) > batch_id


def rewritten_entries(
    store: Store,
    files: Mapping[str, str],
    conf: Mapping[str, str],
    batch_id: int | None,
    state_ids: StateIds | None,
    instead: Mapping[str, bytes] | None = None,
) -> dict[str, bytes]:
    """The entries of the log that differ in the new checkpoint: path -> content.

    Args:
        conf: the pinned settings that change: in every entry, since Spark compares those of the last two.
        batch_id: the last committed batch; None if no batch was committed.
        state_ids: of its state; None for state in checkpoint format 1.
        instead: entries that differ from the files already.

    Raises:
        DataError: an entry is missing or damaged.
    """
    changed = dict(instead or {})
    for path, key in files.items():
        folder, _, name = path.partition("/")
        if folder != "offsets" or not name.isdigit():
            continue
        entry = parse_offset_entry(changed[path] if path in changed else _need(store, key), key=key)
        changed[path] = format_offset_entry(dataclasses.replace(entry, conf={**entry.conf, **conf}))
    path = f"commits/{batch_id}"
    if path in files:
        commit = parse_commit_entry(_need(store, files[path]), key=files[path])
        if commit.has_state_ids or state_ids is not None:
            extra = {name: value for name, value in commit.extra.items() if name != STATE_IDS}
            if state_ids is not None:
                extra[STATE_IDS] = dict(state_ids)
            version = "v1" if state_ids is None else "v2"
            changed[path] = format_commit_entry(dataclasses.replace(commit, extra=extra, version=version))
    return changed


def _need(store: Store, key: str) -> bytes:
    stored = store.get(key)
    if stored is None:
        raise DataError("an entry of the snapshot's log is missing", key=key)
    return stored.body


def keys_written(checkpoint: Checkpoint) -> dict[int, int]:
    """By operator, the keys in RocksDB's whole versions in a checkpoint, over all its stores; operators with a version
    that does not record them are left out."""
    prefix = checkpoint.key("state/")
    found: dict[int, int] = {}
    unknown: set[int] = set()
    for info in checkpoint.store.list_objects(prefix):
        operator, _, rest = info.key[len(prefix) :].partition("/")
        if not operator.isdigit() or not rest.endswith(".zip"):
            continue
        count = _keys_in(_need(checkpoint.store, info.key))
        if count is None:
            unknown.add(int(operator))
        else:
            found[int(operator)] = found.get(int(operator), 0) + count
    return {operator: count for operator, count in found.items() if operator not in unknown}


def _keys_in(body: bytes) -> int | None:
    """The number of keys that a version of RocksDB's state records, with Spark's own of timers and times to live; None
    if it does not."""
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as version:
            told = json.loads(version.read("metadata").partition(b"\n")[2])
        counts: tuple[object, object] = (told["numKeys"], told.get("numInternalKeys", 0))
    except (zipfile.BadZipFile, KeyError, ValueError, AttributeError, TypeError):
        return None
    known = [count for count in counts if isinstance(count, int) and count >= 0]
    return sum(known) if len(known) == len(counts) else None
