"""The log of Spark's file source: ``sources/<i>/<n>``, also after its folder was moved."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from urllib.parse import quote

from airflow_streamstate.checkpoint.log import delete_with_crc
from airflow_streamstate.errors import DataError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.manifest import Moves, is_within
from airflow_streamstate.store.base import Store, missing_source
from airflow_streamstate.store.options import plain_uri

_LOG_NAME = re.compile(r"(0|[1-9][0-9]{0,17})(\.compact)?")


@dataclass(frozen=True)
class FileSourceEntry:
    """One file that the source has taken up. ``log_offset`` is the ``logOffset`` that covers it."""

    path: str
    timestamp_ms: int
    log_offset: int


def parse_file_source_offset(source_line: str) -> int | None:
    """The ``logOffset`` of a file source's line in the offset log; None if the line is another source's."""
    try:
        value = json.loads(source_line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or set(value) != {"logOffset"} or not isinstance(value["logOffset"], int):
        return None
    return int(value["logOffset"])


def parse_log_name(name: str) -> tuple[int, bool] | None:
    """Number, and whether it is a compaction, of a file in a file source's log; None for anything else."""
    match = _LOG_NAME.fullmatch(name)
    return (int(match.group(1)), match.group(2) is not None) if match else None


def parse_file_source_log(body: bytes, *, key: str) -> list[FileSourceEntry]:
    """The entries of one file of the log, in its order.

    Raises:
        DataError: it is none, or damaged; names the key.
    """
    try:
        version, *lines = body.decode().split("\n")
        if version != "v1":
            raise ValueError(version)
        return [_entry(json.loads(line)) for line in lines if line]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError("this is not a whole file of a file source's log", key=key) from None


def is_file_source_log(body: bytes) -> bool:
    """Whether these bytes are a whole file of such a log that names at least one file."""
    try:
        return bool(parse_file_source_log(body, key=""))
    except DataError:
        return False


def needed_numbers(names: Iterable[str], first: int, last: int) -> set[int]:
    """The numbers of a log that a start at ``last`` needs, and that every batch after ``first`` needs to run again.

    They start at the second newest compaction at or below ``first``: Spark reads one compaction, and takes the distance
    of two for the interval of the log, whatever the setting is now.
    """
    parsed = [found for found in map(parse_log_name, names) if found is not None]
    compactions = sorted(number for number, is_compaction in parsed if is_compaction and number <= first)
    start = compactions[-2] if len(compactions) >= 2 else 0
    return {number for number, _ in parsed if start <= number <= last}


def files_taken(store: Store, folder: str, last: int, after: int = -1) -> list[FileSourceEntry]:
    """Every file that the log in ``folder`` (a key) lists after offset ``after``, up to and including ``last``.

    Raises:
        DataError: a file of the log is missing or damaged.
    """
    names = [info.key[len(folder) + 1 :] for info in store.list_objects(f"{folder}/")]
    parsed = {number: name for name in names for number, _ in [parse_log_name(name) or (-1, False)]}
    compactions = [number for number, name in parsed.items() if name.endswith(".compact") and after < number <= last]
    found: list[FileSourceEntry] = []
    for number in range(max(compactions, default=after + 1), last + 1):
        key = f"{folder}/{parsed.get(number, number)}"
        stored = store.get(key)
        if stored is None:
            raise DataError("a file of a file source's log is missing", key=key)
        found += parse_file_source_log(stored.body, key=key)
    return [entry for entry in found if entry.log_offset > after]


def cut_files(store: Store, folder: str, last: int, after: int, share: float) -> tuple[int, int]:
    """Take files out of a fork's log, so that a batch from offset ``after`` to ``last`` reads a share of them.

    The first files stay, at least one.

    Returns:
        How many stay, and how many there were.

    Raises:
        DataError: as ``files_taken``.
    """
    taken = files_taken(store, folder, last, after)
    kept = {entry.path for entry in taken[: max(1, math.ceil(len(taken) * share))]}
    left_out = {entry.path for entry in taken} - kept
    for name in [info.key[len(folder) + 1 :] for info in store.list_objects(f"{folder}/")]:
        number, _ = parse_log_name(name) or (-1, False)
        stored = store.get(f"{folder}/{name}") if number > after else None
        if stored is None:
            continue
        entries = parse_file_source_log(stored.body, key=f"{folder}/{name}")
        left = [entry for entry in entries if entry.log_offset <= after or entry.path not in left_out]
        if len(left) < len(entries):
            delete_with_crc(store, f"{folder}/{name}")
            store.create(f"{folder}/{name}", format_file_source_log(left))
    return len(kept), len(taken)


def format_file_source_log(entries: Iterable[FileSourceEntry]) -> bytes:
    """One file of the log, as Spark would write it."""
    lines = (
        json.dumps(
            {"path": entry.path, "timestamp": entry.timestamp_ms, "batchId": entry.log_offset},
            separators=(",", ":"),
            ensure_ascii=False,
        )
        for entry in entries
    )
    return "\n".join(("v1", *lines)).encode()


def _entry(raw: dict[str, object]) -> FileSourceEntry:
    path, timestamp_ms, batch_id = raw["path"], raw["timestamp"], raw["batchId"]
    if not isinstance(path, str) or not isinstance(timestamp_ms, int) or not isinstance(batch_id, int):
        raise TypeError
    return FileSourceEntry(path, timestamp_ms, batch_id)


# Spark's logs of file sources whose folder was moved: the same entries, with the paths of the new place.
#
# Spark recognises a file that it has read by the whole path in this log, and by its age.

_ROOT = re.compile(r"([a-z][a-z0-9+.-]*://[^/]*)(/.*)")
_S3 = re.compile(r"s3[an]?://")
_AS_JAVA = "/_-!.~'()*:@&=+$,;"
"""What Java's ``URI`` leaves as it is in a path, apart from letters, digits and what is not ASCII."""


def plain_moves(asked: Moves) -> dict[str, str]:
    """Moves in the spelling of the records."""
    return {plain_uri(old): plain_uri(new) for old, new in sorted(asked.items())}


def moved_path(path: str, moves: Moves) -> str:
    """A path as Spark's log spells it, at its new place."""
    for old, new in moves.items():
        rest = _below(path, old)
        if rest is not None:
            return f"{_spelled(old, new, path)}{rest}"
    return path


def is_at(path: str, folder: str) -> bool:
    """Whether a path of Spark's log is below a folder of a move."""
    return _below(path, folder) is not None


def moved_entries(
    entries: list[FileSourceEntry], moves: Moves, times: Mapping[str, int] | None = None
) -> list[FileSourceEntry]:
    """Entries at their new places.

    Args:
        times: by new path, when the file there was modified: a copy may be newer, and Spark would read a file again
            that is newer than its entry, once that entry is older than the age that it looks back.
    """
    times = times or {}
    found = (replace(entry, path=moved_path(entry.path, moves)) for entry in entries)
    return [replace(one, timestamp_ms=max(one.timestamp_ms, times.get(one.path, 0))) for one in found]


def logs_of_files(store: Store, files: Mapping[str, str]) -> dict[str, list[FileSourceEntry]]:
    """The logs of file sources among the files of a checkpoint: path there -> entries.

    Args:
        files: path -> key; paths start with ``sources/``, or are others and left out.

    Raises:
        ObjectMissingError: one of them is not there.
    """
    found = {}
    for path, key in files.items():
        folder, _, name = path.rpartition("/")
        if not folder.startswith("sources/") or parse_log_name(name) is None:
            continue
        stored = store.get(key)
        if stored is None:
            raise missing_source(key)
        if is_file_source_log(stored.body):
            found[path] = parse_file_source_log(stored.body, key=key)
    return found


def moved_logs(
    store: Store, files: Mapping[str, str], moves: Moves, times: Mapping[str, int] | None = None
) -> dict[str, bytes]:
    """What the files of a checkpoint that log moved files become: path there -> content; others are left out.

    Raises:
        ObjectMissingError: one of them is not there.
    """
    changed = {}
    for path, entries in logs_of_files(store, files).items() if moves else ():
        now = moved_entries(entries, moves, times)
        if now != entries:
            changed[path] = format_file_source_log(now)
    return changed


def _below(path: str, folder: str) -> str | None:
    found = _ROOT.fullmatch(path)
    if folder.startswith("/"):
        place, folder = (path if found is None else found[2]), _encoded(folder)
    else:
        place, folder = _S3.sub("s3://", path, count=1), _encoded(folder)
    return place[len(folder) :] if is_within(place, folder) else None


def _spelled(old: str, new: str, path: str) -> str:
    """The new folder as Spark spells it where it spelled the old one in this path."""
    if new.startswith("/"):
        found = _ROOT.fullmatch(path)
        return f"{found[1] if found is not None and old.startswith('/') else 'file://'}{_encoded(new)}"
    scheme = _S3.match(path)
    return _S3.sub("s3a://" if scheme is None else scheme[0], _encoded(new), count=1)


def _encoded(folder: str) -> str:
    scheme, sign, rest = folder.rpartition("://")
    return f"{scheme}{sign}{''.join(map(_encoded_sign, rest))}"


def _encoded_sign(sign: str) -> str:
    is_kept = ord(sign) > 127 and not sign.isspace() and sign.isprintable()
    return sign if is_kept else quote(sign, safe=_AS_JAVA)
