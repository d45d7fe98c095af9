"""A new checkpoint made of links of another's files (1a.10).

It is built in its place, ``metadata`` last: a checkpoint without it is half built, and is built again. The source is
never written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from airflow_streamstate.checkpoint.entries import parse_offset_entry
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.errors import ConflictError, DataError
from airflow_streamstate.store.base import Link, Store, missing_source
from airflow_streamstate.store.s3a import s3a_uri
from airflow_streamstate.store.transfer import delete_many, keys_below, link_many

_SCHEMA_FOLDER = "/_stateSchema/"


def fork(
    store: Store, files: Mapping[str, str], target: Checkpoint, instead: Mapping[str, bytes] | None = None
) -> bool:
    """Build ``target`` from these files; doing it twice is doing it once.

    Args:
        files: the files of one position as ``files_of`` lists them: path inside a checkpoint -> key of the object.
        target: the new checkpoint; whatever lies there without ``metadata`` is half built and wiped.
        instead: path inside a checkpoint -> other content for the new one.

    Returns:
        False if the target was whole already, and was left as it is.

    Raises:
        ConflictError: the target is another query's checkpoint, or the source was drained (Law 11).
        DataError: the files carry an entry of ours that is not committed, or lack what makes a checkpoint.
        ObjectMissingError: a file is not there any more.
    """
    metadata_key = files.get("metadata")
    if metadata_key is None:
        raise DataError("there is no metadata among the files to fork", files=len(files))
    if target.exists():
        _check_same_query(store, metadata_key, target)
        return False
    _check_entries(store, files)
    wipe_half_built(target, built_of=_committed_in(files))
    last = [path for path in (".metadata.crc", "metadata.crc", "metadata") if path in files]
    instead = instead or {}
    left_out = {*last, *instead, *(crc_path(path) for path in instead)}
    place_files(store, {path: files[path] for path in sorted(files) if path not in left_out}, target)
    for path in sorted(instead, key=lambda path: path == "metadata"):
        store.put(target.key(path), instead[path])
    for path in last if "metadata" not in instead else ():
        store.link(files[path], target.key(path))
    return True


def crc_path(path: str) -> str:
    """The path of Hadoop's checksum beside a file."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.crc"


def place_files(store: Store, files: Mapping[str, str], target: Checkpoint) -> None:
    """Link files (path in the target -> key of the object) into a checkpoint that is being built, in no fixed order.

    The metadata of ``transformWithState`` names its schema files by absolute path: as a link, the new checkpoint would
    read from the old one, and later clean up there (Law 4). So that file is written anew.

    Raises:
        ObjectMissingError: one of them is not there.
    """
    link_many(store, [Link(key, target.key(path)) for path, key in files.items() if not names_places(path)])
    for path, key in files.items():
        if not names_places(path) or path.endswith(".crc"):
            continue
        stored = store.get(key)
        if stored is None:
            raise missing_source(key)
        store.put(target.key(path), at_home(stored.body, target, key))


def names_places(path: str) -> bool:
    """Whether this file of a checkpoint names others by absolute path, so that a fork writes it anew."""
    return "/_metadata/v2/" in path


def wipe_half_built(target: Checkpoint, *, built_of: set[int]) -> None:
    """Delete a checkpoint without ``metadata``, which is half built of the committed batches ``built_of``.

    Raises:
        DataError: it has other committed batches: it ran and lost its metadata, and building it again would run them
            again over other bounds (Law 14).
    """
    ran = sorted(set(target.commit_ids()) - built_of)
    if ran:
        raise DataError(
            "this checkpoint has committed batches of its own, but no metadata",
            checkpoint=target.prefix,
            batches=ran[-5:],
            next_step="Put its metadata back: one JSON line with the query's id, as in the snapshot it was made of.",
        )
    wipe(target)


def wipe(checkpoint: Checkpoint) -> None:
    """Delete a checkpoint that is half built or not needed any more; metadata first."""
    checkpoint.store.delete(checkpoint.metadata_key)
    delete_many(checkpoint.store, keys_below(checkpoint.store, f"{checkpoint.prefix}/"))


def checkpoint_uri(checkpoint: Checkpoint) -> str:
    """The checkpoint's folder as Spark writes it."""
    root = s3a_uri(checkpoint.store.uri)
    return f"{'file:' if root.startswith('/') else ''}{root}/{checkpoint.prefix}"


def at_home(body: bytes, target: Checkpoint, key: str) -> bytes:
    """The body of a file that ``names_places``, with the places of ``target``; ``key`` is named in errors.

    Raises:
        DataError: it is damaged.
    """
    version, _, text = body.decode().partition("\n")
    try:
        raw = json.loads(text)
        for store_info in raw["stateStoreInfo"]:
            paths = store_info.get("stateSchemaFilePaths", [])
            store_info["stateSchemaFilePaths"] = [_path_at_home(path, target, key) for path in paths]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError("the metadata of a stateful operator is damaged", key=key) from None
    return f"{version}\n{json.dumps(raw, separators=(',', ':'), ensure_ascii=False)}".encode()


def _path_at_home(path: str, target: Checkpoint, key: str) -> str:
    head, marker, tail = path.rpartition(_SCHEMA_FOLDER)
    _, state, operator = head.rpartition("/state/")
    if not marker or not state:
        raise DataError("a stateful operator's schema lies where none is expected", key=key, path=path)
    return f"{checkpoint_uri(target)}/state/{operator}{_SCHEMA_FOLDER}{tail}"


def _check_same_query(store: Store, metadata_key: str, target: Checkpoint) -> None:
    source = store.get(metadata_key)
    there = store.get(target.metadata_key)
    if source is not None and there is not None and source.body != there.body:
        raise ConflictError(
            "another query's checkpoint is where this one is to be built",
            checkpoint=target.prefix,
            next_step="This is a defect, or another program put it there; nothing was changed.",
        )


def _committed_in(files: Mapping[str, str]) -> set[int]:
    names = (path.partition("commits/")[2] for path in files if path.startswith("commits/"))
    return {int(name) for name in names if name.isdigit()}


def _check_entries(store: Store, files: Mapping[str, str]) -> None:
    committed = _committed_in(files)
    for path, key in files.items():
        folder, _, name = path.partition("/")
        if folder != "offsets" or not name.isdigit():
            continue
        stored = store.get(key)
        entry = parse_offset_entry(stored.body, key=key) if stored is not None else None
        if entry is None or not entry.is_ours:
            continue
        if int(name) not in committed:
            raise DataError("a barrier of ours is among the files to fork", key=key)
        if entry.mark is not None and entry.mark.kind == "drain":
            raise ConflictError(
                "a drained checkpoint cannot be continued",
                key=key,
                next_step="Start from it with fresh state (seed), or from the snapshot taken before the drain.",
            )
