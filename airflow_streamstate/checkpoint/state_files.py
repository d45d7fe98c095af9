"""The files that Spark reads to open the state of a query at one version: the content of a snapshot (1a.6)."""

from __future__ import annotations

import contextlib
import io
import json
import re
import zipfile
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from airflow_streamstate.checkpoint.file_source import (
    is_file_source_log,
    needed_numbers,
    parse_file_source_offset,
    parse_log_name,
)
from airflow_streamstate.checkpoint.log import (
    PARTITIONS,
    Checkpoint,
    CommitEntry,
    OffsetEntry,
    Position,
    crc_key_of,
    delete_with_crc,
)
from airflow_streamstate.errors import DataError, ObjectMissingError, UnsupportedCheckpointError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.store.transfer import keys_below

_UNSUPPORTED = re.compile(r"^[0-9]+_[0-9a-f-]+\.(delta|snapshot)$")
_VERSION = re.compile(r"([1-9][0-9]*)(?:_([0-9a-f-]+))?\.(zip|changelog|delta|snapshot)")
# For these Spark notes the session's number of partitions, and brings all rows into one (AllTuples): a limit always,
# an aggregation where it groups by nothing.
_LIMIT, _AGGREGATION = "globalLimit", "stateStoreSave"
_FIRST_SCHEMA = re.compile(rb'\{"type":"struct","fields":\[(\])?')
_SCHEMA_OF_STORE = re.compile(r"([0-9]+)/0(/[^/_][^/]*)?/_metadata/schema")
_SCHEMA_FOLDERS = frozenset({"_metadata", "_stateSchema"})
_NUMBERED = re.compile(r"([0-9]+)(?:_[0-9a-f-]+)?")
MAX_PARTITIONS = 100_000
"""Of all stores of one operator; metadata with more are damaged."""


@dataclass(frozen=True)
class KeptVariable:
    """One variable of a ``transformWithState``, by the metadata of its operator.

    Attributes:
        name: the processor's name for it; for timers Spark's own, which starts with ``$``.
        kind: ``ValueState``, ``ListState``, ``MapState``, ``TimerState``.
        has_ttl: whether its values expire.
    """

    name: str
    kind: str
    has_ttl: bool


@dataclass(frozen=True)
class OperatorStores:
    """One stateful operator, by its metadata.

    Attributes:
        stores: numbers of partitions, by the names of its stores.
        variables: of a ``transformWithState``; None for others.
        noted_partitions: the number that Spark notes: the session's, also for an operator with one partition.
    """

    operator_id: int
    operator_name: str
    stores: dict[str, int]
    variables: tuple[KeptVariable, ...] | None
    noted_partitions: int


def unsupported_state_file(name: str) -> bool:
    """Whether a file of this name belongs to the HDFS-backed store in format 2, which no Spark 4 has."""
    return _UNSUPPORTED.search(name) is not None


def state_file_keys(
    checkpoint: Checkpoint, version: int, there: Iterable[str], *, planned: bool = False
) -> Iterator[str]:
    """The keys of all state files at a version (batch N leaves version N + 1).

    Args:
        version: of the state; 0 before the first commit.
        there: the key of every object below ``state/``.
        planned: also what the planned batch has already written of the next version: a sink that holds that batch makes
            Spark skip it, and the query dies if its state is missing then.

    Raises:
        ObjectMissingError: a needed file is not there (any more).
        UnsupportedCheckpointError: the HDFS-backed store in format 2 (Law 10).
        DataError: a file cannot be understood.
    """
    prefix = checkpoint.key("state/")
    paths = {key[len(prefix) :] for key in there}
    for path in paths:
        if unsupported_state_file(path.rpartition("/")[2]):
            raise UnsupportedCheckpointError(
                "this checkpoint's state is the HDFS-backed store's in format 2, which is not known here",
                key=prefix + path,
                next_step="Use RocksDB, or spark.sql.streaming.stateStore.checkpointFormatVersion=1.",
            )
    for path in _schema_paths(paths, version - 1):
        yield prefix + path
    if version:
        lineage = _Lineage(checkpoint)
        for folder in _store_folders(checkpoint, paths, version - 1):
            names = _version_names(checkpoint, folder, paths, version, lineage)
            yield from (f"{prefix}{folder}/{name}" for name in names)
    if planned:
        yield from (prefix + path for path in _next_version_paths(checkpoint, paths, version + 1))


def has_begun_planned(checkpoint: Checkpoint, position: Position) -> bool:
    """Whether the next start depends on a planned batch: on state that it has written, which is not written again where
    the sink holds the batch; or, for a query without state, on its entry."""
    if position.planned_id is None:
        return False
    prefix, version = checkpoint.key("state/"), position.planned_id + 1
    keys = list(keys_below(checkpoint.store, prefix))
    found = [_VERSION.fullmatch(key.rpartition("/")[2]) for key in keys]
    return not keys or any(one is not None and int(one[1]) == version for one in found)


def delete_version(checkpoint: Checkpoint, version: int) -> int:
    """Delete what a batch that did not commit has left of this version of the state; how many files.

    Spark's maintenance may have made a snapshot of that version, which Spark would read in place of what the batch
    writes when it runs again. The query must not run.
    """
    keys = []
    for key in keys_below(checkpoint.store, checkpoint.key("state/")):
        found = _VERSION.fullmatch(key.rpartition("/")[2])
        if found is not None and int(found[1]) == version:
            keys.append(key)
    for key in keys:
        delete_with_crc(checkpoint.store, key)
    return len(keys)


def operator_stores(checkpoint: Checkpoint, batch_id: int, paths: set[str]) -> list[OperatorStores]:
    """The stateful operators as of a batch, by their metadata; ``paths`` are those below ``state/``.

    Raises:
        DataError: a metadata file cannot be understood.
    """
    found = []
    for operator_id in sorted({int(head) for head in (path.split("/")[0] for path in paths) if head.isdigit()}):
        path = _metadata_path(paths, operator_id, batch_id)
        if path is not None:
            found.append(_read_operator(checkpoint, path, paths))
    return found


def _metadata_path(paths: set[str], operator_id: int, batch_id: int) -> str | None:
    if f"{operator_id}/_metadata/metadata" in paths:
        return f"{operator_id}/_metadata/metadata"
    folder = f"{operator_id}/_metadata/v2/"
    numbers = [int(path[len(folder) :]) for path in paths if path.startswith(folder) and path[len(folder) :].isdigit()]
    older = [number for number in numbers if number <= batch_id]
    return f"{folder}{max(older)}" if older else None


def _read_operator(checkpoint: Checkpoint, path: str, paths: set[str]) -> OperatorStores:
    key = checkpoint.key(f"state/{path}")
    stored = checkpoint.store.get(key)
    if stored is None:
        raise _missing(key)
    try:
        raw = json.loads(stored.body.decode().split("\n", 1)[1])
        info = raw["operatorInfo"]
        name = str(info["operatorName"])
        stores = {store["storeName"]: int(store["numPartitions"]) for store in raw["stateStoreInfo"]}
        operator_id, noted = int(info["operatorId"]), max(stores.values(), default=0)
        if sum(map(abs, stores.values())) > MAX_PARTITIONS:
            raise ValueError("no operator has this many partitions")
        if name == _LIMIT or (name == _AGGREGATION and _groups_by_nothing(checkpoint, operator_id, paths)):
            stores = dict.fromkeys(stores, 1)
        return OperatorStores(operator_id, name, stores, _variables(raw), noted)
    except (ValueError, KeyError, TypeError, IndexError):
        raise DataError("the metadata of a stateful operator is damaged", key=key) from None


def _groups_by_nothing(checkpoint: Checkpoint, operator_id: int, paths: set[str]) -> bool:
    """Whether the keys of an aggregation have no columns, by its schema file, in which the keys come first."""
    if any(path.startswith(f"{operator_id}/1/") for path in paths):
        return False
    folders = (f"{operator_id}/0/_metadata/schema", f"{operator_id}/_stateSchema/")
    for path in sorted(path for path in paths if path.startswith(folders) and not _is_hidden(path.rpartition("/")[2])):
        stored = checkpoint.store.get(checkpoint.key(f"state/{path}"))
        found = _FIRST_SCHEMA.search(stored.body) if stored is not None else None
        if found is not None:
            return found[1] is not None
    return False


def _variables(raw: Mapping[str, Any]) -> tuple[KeptVariable, ...] | None:
    properties = json.loads(raw.get("operatorPropertiesJson") or "{}")
    listed = properties.get("stateVariables")
    if listed is None:
        return None
    found = (KeptVariable(str(o["stateName"]), str(o["stateVariableType"]), bool(o["ttlEnabled"])) for o in listed)
    return tuple(sorted(found, key=lambda variable: variable.name))


def _schema_paths(paths: set[str], batch_id: int) -> Iterator[str]:
    for path in paths:
        folder, _, name = path.rpartition("/")
        if _SCHEMA_FOLDERS.isdisjoint(folder.split("/")) or _is_hidden(name):
            continue
        number = _NUMBERED.fullmatch(name)
        # A later batch wrote these while it was planned, and writes them again when it runs again.
        if number is None or int(number.group(1)) <= batch_id:
            yield path


def _store_folders(checkpoint: Checkpoint, paths: set[str], batch_id: int) -> list[str]:
    """All stores in the operators' metadata, those of operators without (Spark 3.5), and any other that has this very
    version.

    With the first two a lost partition is an error; left-overs of a repartitioning are in none.
    """
    folders = {
        f"{operator.operator_id}/{partition}" if store == "default" else f"{operator.operator_id}/{partition}/{store}"
        for operator in operator_stores(checkpoint, batch_id, paths)
        for store, partitions in operator.stores.items()
        for partition in range(partitions)
    }
    folders |= _folders_without_metadata(checkpoint, paths, batch_id)
    for path in paths:
        folder, _, name = path.rpartition("/")
        found = _VERSION.fullmatch(name)
        if found is not None and int(found[1]) == batch_id + 1:
            folders.add(folder)
    return sorted(folders)


def _folders_without_metadata(checkpoint: Checkpoint, paths: set[str], batch_id: int) -> set[str]:
    """The stores of operators that Spark 3.5 wrote: their schemas, in the partitions that the entry pins.

    An operator that is in one partition alone (a limit, an aggregation that groups by nothing) has one. One that no
    partition has this version of belongs to the script no more, or not yet.
    """
    written = _partitions_of(paths, batch_id + 1)
    without = [found for found in _schemas_without_metadata(paths, batch_id) if found[1] in written]
    pinned = _pinned_partitions(checkpoint, batch_id) if without else None
    if pinned is None:
        return set()
    return {
        f"{found[1]}/{partition}{found[2] or ''}"
        for found in without
        for partition in range(1 if written[found[1]] == {"0"} else pinned)
    }


def _schemas_without_metadata(paths: set[str], batch_id: int) -> list[re.Match[str]]:
    """The schemas of the stores whose operators have no metadata, as Spark 3.5 leaves them."""
    schemas = [found for path in sorted(paths) if (found := _SCHEMA_OF_STORE.fullmatch(path))]
    return [found for found in schemas if _metadata_path(paths, int(found[1]), batch_id) is None]


def _pinned_partitions(checkpoint: Checkpoint, batch_id: int) -> int | None:
    entry = checkpoint.read_offset(batch_id) if batch_id >= 0 else None
    pinned = "" if entry is None else entry.conf.get(PARTITIONS, "")
    return int(pinned) if pinned.isdecimal() and int(pinned) <= MAX_PARTITIONS else None


def _partitions_of(paths: set[str], version: int) -> dict[str, set[str]]:
    """By operator, the partitions that have this version of one of its stores."""
    found: dict[str, set[str]] = {}
    for path in paths:
        parts, name = path.split("/"), _VERSION.fullmatch(path.rpartition("/")[2])
        if len(parts) > 2 and name is not None and int(name[1]) == version:
            found.setdefault(parts[0], set()).add(parts[1])
    return found


def _next_version_paths(checkpoint: Checkpoint, paths: set[str], version: int) -> Iterator[str]:
    for path in paths:
        folder, _, name = path.rpartition("/")
        found = _VERSION.fullmatch(name)
        if found is None or int(found[1]) != version:
            continue
        if found[3] in ("delta", "changelog"):
            yield path
        elif found[3] == "zip":
            # A batch that still runs may be listed with a zip and without its newest files.
            with contextlib.suppress(ObjectMissingError):
                needed = _rocksdb_files(checkpoint, folder, paths, name)
                yield from (f"{folder}/{file}" for file in (*needed, name))


class _Lineage:
    """The unique id of a version of a store, by the commit of the batch that left it; none in format 1."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._commits: dict[int, CommitEntry | None] = {}

    def ids(self, folder: str, version: int) -> frozenset[str] | None:
        """The ids of a version; empty in format 1, None if there is no commit (any more)."""
        if version - 1 not in self._commits:
            self._commits[version - 1] = self._checkpoint.read_commit(version - 1)
        commit = self._commits[version - 1]
        operator_id, partition = folder.split("/")[:2]
        return None if commit is None else commit.state_ids(int(operator_id), int(partition))


def _version_names(checkpoint: Checkpoint, folder: str, paths: set[str], version: int, lineage: _Lineage) -> list[str]:
    stem, ids = str(version), lineage.ids(folder, version)
    if ids:
        found = [one for one in sorted(ids) if _is_there(f"{folder}/{version}_{one}", paths)]
        if not found:
            raise _missing(checkpoint.key(f"state/{folder}/{version}_{min(ids)}.zip"))
        stem = f"{version}_{found[0]}"
    if f"{folder}/{stem}.zip" in paths:
        own = [f"{stem}.changelog"] if ids and f"{folder}/{stem}.changelog" in paths else []
        return [*own, f"{stem}.zip", *_rocksdb_files(checkpoint, folder, paths, f"{stem}.zip")]
    if f"{folder}/{stem}.changelog" in paths:
        if ids:
            return _since_known_zip(checkpoint, folder, paths, version, lineage)
        return _changelogs(checkpoint, folder, paths, version)
    start, deltas = _back_to(checkpoint, folder, paths, version, ("snapshot", "delta"))
    return [*([f"{start}.snapshot"] if start else []), *deltas]


def _back_to(
    checkpoint: Checkpoint, folder: str, paths: set[str], version: int, kinds: tuple[str, str]
) -> tuple[int, list[str]]:
    """The newest whole file at or below a version, 0 without one, and each change since.

    Looks no further back than there are files: a log may name a version of any number.
    """
    whole, change = kinds
    names: list[str] = []
    while version and f"{folder}/{version}.{whole}" not in paths:
        name = f"{version}.{change}"
        if f"{folder}/{name}" not in paths:
            raise _missing(checkpoint.key(f"state/{folder}/{name}"))
        names.append(name)
        version -= 1
    return version, names[::-1]


def _is_there(stem: str, paths: set[str]) -> bool:
    return f"{stem}.zip" in paths or f"{stem}.changelog" in paths


def _changelogs(checkpoint: Checkpoint, folder: str, paths: set[str], version: int) -> list[str]:
    """Format 1: the newest zip below, and each changelog since."""
    start, changelogs = _back_to(checkpoint, folder, paths, version, ("zip", "changelog"))
    names = [f"{start}.zip", *_rocksdb_files(checkpoint, folder, paths, f"{start}.zip")] if start else []
    return names + changelogs


def _since_known_zip(
    checkpoint: Checkpoint, folder: str, paths: set[str], version: int, lineage: _Lineage
) -> list[str]:
    """Format 2: everything from the newest zip on that is certainly of this lineage; all there is where none is.

    The changelog names the files that it needs in its compressed head, which only Spark reads. Files of other tries of
    a batch are listed too, and do no harm: Spark takes what the head names.
    """
    known = [found for name in _names_in(folder, paths) if (found := _VERSION.fullmatch(name))]
    below = [found for found in known if int(found[1]) <= version and found[3] in ("zip", "changelog")]
    zips = sorted((found for found in below if found[3] == "zip"), key=lambda found: int(found[1]), reverse=True)
    sure = next((found for found in zips if _is_of(lineage.ids(folder, int(found[1])), found[2])), None)
    start = int(sure[1]) if sure is not None else 0
    names = [found[0] for found in below if int(found[1]) >= start]
    for found in zips:
        if int(found[1]) < start:
            continue
        try:
            names += _rocksdb_files(checkpoint, folder, paths, found[0])
        except ObjectMissingError:
            if found is sure:
                raise
            names.remove(found[0])  # of a try that was abandoned, and cleared away in part
    return names


def _is_of(ids: frozenset[str] | None, unique_id: str | None) -> bool:
    if ids is None:
        return False
    return not ids if unique_id is None else unique_id in ids


def _names_in(folder: str, paths: set[str]) -> list[str]:
    return sorted(path[len(folder) + 1 :] for path in paths if path.rpartition("/")[0] == folder)


def _all_there(checkpoint: Checkpoint, folder: str, paths: set[str], names: list[str]) -> list[str]:
    for name in names:
        if f"{folder}/{name}" not in paths:
            raise _missing(checkpoint.key(f"state/{folder}/{name}"))
    return names


def _rocksdb_files(checkpoint: Checkpoint, folder: str, paths: set[str], zip_name: str) -> list[str]:
    key = checkpoint.key(f"state/{folder}/{zip_name}")
    stored = checkpoint.store.get(key)
    if stored is None:
        raise _missing(key)
    try:
        with zipfile.ZipFile(io.BytesIO(stored.body)) as archive:
            raw = json.loads(archive.read("metadata").decode().split("\n", 1)[1])
        names = [f"SSTs/{file['dfsSstFileName']}" for file in raw.get("sstFiles") or ()]
        names += [f"logs/{file['dfsLogFileName']}" for file in raw.get("logFiles") or ()]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, zipfile.BadZipFile):
        raise DataError("a version of a RocksDB state store is damaged", key=key) from None
    return _all_there(checkpoint, folder, paths, names)


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def _missing(key: str) -> ObjectMissingError:
    return ObjectMissingError(
        "a file of this position is not there (any more)",
        key=key,
        next_step="Take a newer position of a running query; of one that has ended, the state is incomplete.",
    )


# The columns that Spark keeps for each key of an aggregation, by the schema file of its state.

_STRUCT = '{"type":"struct"'


def column_names(body: bytes) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The names of the columns of the key, and of the value, in their order; None if the file does not name them.

    Spark names the columns of a value after its functions (``sum``, ``count``), and compares types alone at a start.
    """
    text, found, at = body.decode(errors="replace"), [], 0
    while (at := text.find(_STRUCT, at)) >= 0:
        try:
            struct, at = json.JSONDecoder().raw_decode(text, at)
        except ValueError:  # cut into pieces
            return None
        found.append(struct)
    if len(found) != 2:
        return None
    try:
        key, value = (tuple(str(field["name"]) for field in struct["fields"]) for struct in found)
    except (KeyError, TypeError):
        return None
    return key, value


# Exactly the files that make a position (1a.6): the content of a snapshot and of a fork.
#
# They are the entries of the last two committed batches (Spark reads both at a start), Spark's own planned entry, the
# source logs that these name, and the state at the version that the last commit left, from the newest full one on.
# With a planned entry goes the state that its batch has already written: a sink that holds the batch makes Spark skip
# it, and its state is then not written again. No entry of ours, no temporary file and nothing above belongs to a
# position.

KEPT_COMMITS = 2


def files_of(
    checkpoint: Checkpoint, position: Position, *, with_state: bool = True, among: Container[str] | None = None
) -> list[str]:
    """The keys of the files of a position, sorted, with the checksums that are next to them.

    Works while the query runs on: Spark never changes a listed file, and deletes it only when it is long superseded.

    Args:
        position: of it, now or a short while ago.
        with_state: False for a drained checkpoint: only its positions are kept.
        among: the keys to look at, as if there were no others; None for all.

    Raises:
        ObjectMissingError: a file is not there (any more): take a newer position, or the checkpoint is incomplete.
        DataError, UnsupportedCheckpointError: something cannot be understood, or is of a format not known here.
    """
    found = keys_below(checkpoint.store, f"{checkpoint.prefix}/")
    there = dict.fromkeys(key for key in found if among is None or key in among)
    keys = [checkpoint.metadata_key, *_log_keys(checkpoint, position), *_source_keys(checkpoint, position, there)]
    if with_state:
        state = [key for key in there if key.startswith(checkpoint.key("state/"))]
        keys += state_file_keys(checkpoint, position.next_batch_id, state, planned=position.planned is not None)
    for key in keys:
        if key not in there:
            raise _gone(key)
    with_checksums = {name for key in keys for name in (key, crc_key_of(key), f"{key}.crc") if name in there}
    return sorted(with_checksums)


def _gone(key: str) -> ObjectMissingError:
    return ObjectMissingError(
        "a file of this position is not there (any more)",
        key=key,
        next_step="Take a newer position of a running query; of one that has ended, the log is incomplete.",
    )


def _log_keys(checkpoint: Checkpoint, position: Position) -> list[str]:
    keys = []
    if position.batch_id is not None:
        for batch_id in _kept_ids(position.batch_id):
            keys += [checkpoint.offset_key(batch_id), checkpoint.commit_key(batch_id)]
    if position.planned_id is not None:
        keys.append(checkpoint.offset_key(position.planned_id))
    return keys


def _kept_ids(batch_id: int) -> range:
    return range(max(0, batch_id - KEPT_COMMITS + 1), batch_id + 1)


def _source_keys(checkpoint: Checkpoint, position: Position, there: Iterable[str]) -> list[str]:
    """The source logs as far as the kept entries name them.

    A source that the plan reads twice has two lines and one folder, so lines and folders do not match by number: the
    log of each file source is kept between the lowest and the highest ``logOffset`` of all lines. Too many files are
    harmless (see ``file_source``).
    """
    prefix = checkpoint.key("sources/")
    folders: dict[str, list[str]] = {}
    for key in there:
        folder, _, name = key[len(prefix) :].rpartition("/") if key.startswith(prefix) else ("", "", "")
        if folder and not name.startswith("."):
            folders.setdefault(folder, []).append(name)
    bounds = _log_offsets(checkpoint, position) if folders else []
    keys = []
    for folder, names in folders.items():
        kept = names
        if bounds and _is_file_source(checkpoint, f"{prefix}{folder}", names):
            numbers = needed_numbers(names, min(bounds), max(bounds))
            kept = [name for name in names if (parse_log_name(name) or (-1, False))[0] in numbers]
        keys += [f"{prefix}{folder}/{name}" for name in kept]
    return keys


def _log_offsets(checkpoint: Checkpoint, position: Position) -> list[int]:
    entries: list[OffsetEntry | None] = [position.planned]
    if position.batch_id is not None:
        entries += [checkpoint.read_offset(batch_id) for batch_id in _kept_ids(position.batch_id)]
    lines = [line for entry in entries if entry is not None for line in entry.source_lines]
    return [offset for offset in map(parse_file_source_offset, lines) if offset is not None]


def _is_file_source(checkpoint: Checkpoint, folder: str, names: list[str]) -> bool:
    numbered = {found[0]: name for name in names for found in [parse_log_name(name)] if found is not None}
    if not numbered:
        return False
    stored = checkpoint.store.get(f"{folder}/{numbered[max(numbered)]}")
    return stored is not None and is_file_source_log(stored.body)


# Writes the metadata of operators that Spark 3.5 leaves out, and without which no newer Spark reads or rewrites their
# state. What they hold follows from the schemas; a test compares it with what Spark 4 itself writes.

_JOIN_STORES = (
    "left-keyToNumValues",
    "left-keyWithIndexToValue",
    "right-keyToNumValues",
    "right-keyWithIndexToValue",
)
_DEFAULT_STORE = "default"
_SESSION = "spark.sessionWindow"


def write_operator_metadata(checkpoint: Checkpoint, batch_id: int) -> tuple[str, ...]:
    """Write the metadata of each operator that has none, into a checkpoint that no query of Spark 3.5 runs on.

    Args:
        batch_id: the last committed batch.

    Returns:
        The paths that were written, below the checkpoint; none where a Spark 4 has written it.

    Raises:
        DataError: a schema is damaged, or the number of partitions is not pinned.
        UnsupportedCheckpointError: it is not certain whose state it is.
    """
    prefix = checkpoint.key("state/")
    paths = {key[len(prefix) :] for key in keys_below(checkpoint.store, prefix)}
    stores: dict[str, dict[str, bytes]] = {}
    written_operators = _partitions_of(paths, batch_id + 1)
    for found in _schemas_without_metadata(paths, batch_id):
        if found[1] not in written_operators:
            continue  # it belongs to the script no more, or not yet
        stored = checkpoint.store.get(prefix + found[0])
        stores.setdefault(found[1], {})[(found[2] or "").lstrip("/") or _DEFAULT_STORE] = stored.body if stored else b""
    partitions = _pinned_partitions(checkpoint, batch_id) or 0
    if stores and not partitions:
        raise DataError(
            "the entry of this batch pins no number of partitions",
            key=checkpoint.offset_key(batch_id),
            next_step="Verify the snapshot with `streamstate snapshot verify`, and use another one.",
        )
    written = []
    for operator_id, schemas in sorted(stores.items()):
        path = f"state/{operator_id}/_metadata/metadata"
        checkpoint.store.put(checkpoint.key(path), _operator_metadata(int(operator_id), schemas, partitions, prefix))
        written.append(path)
        del written_operators[operator_id]
    for operator_id in written_operators:
        if _metadata_path(paths, int(operator_id), batch_id) is None:
            raise _unknown_operator(int(operator_id), ())
    return tuple(written)


def _operator_metadata(operator_id: int, schemas: Mapping[str, bytes], partitions: int, place: str) -> bytes:
    """As Spark 4 writes it, in version 1."""
    prefix_columns, stores = 0, tuple(sorted(schemas))
    if set(schemas) == set(_JOIN_STORES):
        name, stores = "symmetricHashJoin", tuple(_JOIN_STORES)
    elif set(schemas) == {_DEFAULT_STORE}:
        key = f"{place}{operator_id}/0/_metadata/schema"
        name, prefix_columns = _operator_of(schemas[_DEFAULT_STORE], key)
    else:
        raise _unknown_operator(operator_id, sorted(schemas))
    info = [{"storeName": store, "numColsPrefixKey": prefix_columns, "numPartitions": partitions} for store in stores]
    said = {"operatorInfo": {"operatorId": operator_id, "operatorName": name}, "stateStoreInfo": info}
    return b"v1\n" + json.dumps(said, separators=(",", ":")).encode()


def _unknown_operator(operator_id: int, stores: Iterable[str]) -> UnsupportedCheckpointError:
    return UnsupportedCheckpointError(
        "Spark 3.5 recorded no operator for this state, and its stores are not those of a known one",
        operator_id=operator_id,
        stores=list(stores),
        next_step="Drain the stream, and seed the new version.",
    )


def _operator_of(body: bytes, key: str) -> tuple[str, int]:
    """The name of the operator that has this schema, and how many columns of its keys are a prefix."""
    texts = _schema_texts(body, key)
    if texts is None:
        raise _unknown_operator(int(key.rsplit("/", 4)[1]), (_DEFAULT_STORE,))
    try:
        fields = [json.loads(text)["fields"] for text in texts]
        keys, values = ([(str(each["name"]), each["type"], each["metadata"]) for each in one] for one in fields)
    except (ValueError, KeyError, TypeError):
        raise DataError("the schema of a state store is damaged", key=key) from None
    names = [name for name, _, _ in values]
    if any(facts.get(_SESSION) for _, _, facts in values):
        return "sessionWindowStateStoreSaveExec", len(keys) - 1
    if [kind for _, kind, _ in keys] == ["void"]:
        return _LIMIT, 0
    by_values = {
        ("__dummy__",): "dedupe",
        ("expiresAtMicros",): "dedupeWithinWatermark",
        ("groupState",): "applyInPandasWithState",
        ("groupState", "timeoutTimestamp"): "applyInPandasWithState",
    }
    return by_values.get(tuple(names), _AGGREGATION), 0


# Makes the state schemas of joins accept null in every column, after an empty batch of ours, or before one.
#
# Spark 4.2 and older plan an empty batch otherwise than one with input: what a filter such as ``ts is not null``
# implies for a column is in one plan and not in the other. So the first batch with input would be refused by the schema
# that the empty one left (``STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE``). A schema that accepts null fits both, and a row
# of state is the same bytes under either. Spark 4.3 writes such schemas itself.

_JOIN_SCHEMA = re.compile(r"state/[0-9]+/0/(left|right)-[A-Za-z]+/_metadata/schema")
_SCHEMA_VERSION = "v2"
_MOST = 65_535
"""Java's ``writeUTF`` takes at most this many bytes, and Spark writes longer texts in chunks."""


def is_join_schema(path: str) -> bool:
    """Whether this path in a checkpoint is the schema of a join's state."""
    return _JOIN_SCHEMA.fullmatch(path) is not None


def accept_nulls(checkpoint: Checkpoint) -> None:
    """Exchange the schemas of the joins of a checkpoint that no query runs on; twice is once.

    Raises:
        DataError: a schema is damaged.
    """
    start = len(checkpoint.key(""))
    listed = checkpoint.store.list_objects(checkpoint.key("state/"))
    for key in [info.key for info in listed if is_join_schema(info.key[start:])]:
        stored = checkpoint.store.get(key)
        if stored is None:
            continue
        body = with_nulls(stored.body, key)
        if body != stored.body:
            # First: Hadoop would compare it with the new content.
            checkpoint.store.delete(crc_key_of(key))
            checkpoint.store.put(key, body)


def with_nulls(body: bytes, key: str) -> bytes:
    """The content of a schema file, with every column nullable; as it is where its version is another than 2.

    Raises:
        DataError: it is damaged; names the key.
    """
    texts = _schema_texts(body, key)
    if texts is None:
        return body
    # Within a JSON text a quotation mark is escaped, so these words are never part of a name.
    nullable = (text.replace(b'"nullable":false', b'"nullable":true') for text in texts)
    return _framed(_SCHEMA_VERSION.encode()) + b"".join(_in_chunks(text) for text in nullable)


def _schema_texts(body: bytes, key: str) -> list[bytes] | None:
    """The schema of the keys and that of the values, as JSON; None where the file's version is another than 2.

    Raises:
        DataError: it is damaged; names the key.
    """
    try:
        version, at = _text(body, 0)
        if version != _SCHEMA_VERSION.encode():
            return None
        texts = []
        for _ in ("key", "value"):
            count, at = int.from_bytes(body[at : at + 4], "big"), at + 4
            chunks = []
            for _ in range(count):
                chunk, at = _text(body, at)
                chunks.append(chunk)
            texts.append(b"".join(chunks))
    except ValueError as error:
        raise DataError("the schema of a state store is damaged", key=key) from error
    if at != len(body):
        raise DataError("the schema of a state store is damaged", key=key)
    return texts


def _text(body: bytes, at: int) -> tuple[bytes, int]:
    end = at + 2 + int.from_bytes(body[at : at + 2], "big")
    if end > len(body) or at + 2 > len(body):
        raise ValueError("it is too short")
    return body[at + 2 : end], end


def _in_chunks(text: bytes) -> bytes:
    chunks = [_framed(chunk) for chunk in _chunks(text)]
    return len(chunks).to_bytes(4, "big") + b"".join(chunks)


def _chunks(text: bytes) -> Iterator[bytes]:
    while len(text) > _MOST:
        cut = _MOST
        while text[cut] & 0xC0 == 0x80:  # in the middle of a character
            cut -= 1
        yield text[:cut]
        text = text[cut:]
    yield text


def _framed(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text
