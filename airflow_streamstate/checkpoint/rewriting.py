"""The checkpoint of a snapshot whose state is written anew under the same batch id.

The logs stay word for word, except for the settings that Spark pins in them; the state comes from a checkpoint whose
batch 0 the new version has run, and into which the old state was then written (``driver.spark.state_rewriting``).
"""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from collections.abc import Mapping

from airflow_streamstate.checkpoint.entries import (
    STATE_IDS,
    format_commit_entry,
    format_offset_entry,
    parse_commit_entry,
    parse_offset_entry,
)
from airflow_streamstate.checkpoint.guards import PROVIDER, ROCKSDB_PROVIDER
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.missing_pin import PARTITIONS
from airflow_streamstate.errors import DataError, InvalidRequestError
from airflow_streamstate.protocol.records import StateRewrite, StateStoreName
from airflow_streamstate.store.base import Store

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
    """Refuse to write state anew into another store than RocksDB, which Spark cannot do.

    Args:
        provider: the class of the store.

    Raises:
        InvalidRequestError: it is another one.
    """
    if provider == ROCKSDB_PROVIDER:
        return
    raise InvalidRequestError(
        "Spark writes state anew into RocksDB alone, and this state is in another store",
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
        batch_id: the last committed batch; None for none.
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
    """By operator, the keys in RocksDB's whole versions in a checkpoint, over all its stores; operators in which a
    version does not tell are left out."""
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
    """The number of keys that a version of RocksDB's state tells of, with Spark's own of timers and times to live; None
    where it tells none."""
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as version:
            told = json.loads(version.read("metadata").partition(b"\n")[2])
        counts: tuple[object, object] = (told["numKeys"], told.get("numInternalKeys", 0))
    except (zipfile.BadZipFile, KeyError, ValueError, AttributeError, TypeError):
        return None
    known = [count for count in counts if isinstance(count, int) and count >= 0]
    return sum(known) if len(known) == len(counts) else None
