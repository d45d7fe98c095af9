"""The file source's own log: ``sources/<i>/<n>``, with every tenth ``<n>.compact`` holding all before it.

Spark writes ``<n>`` when it looks for new files, *before* it claims the batch, so a barrier leaves a last ``<n>`` that
no offset names. That is harmless: the next start reads on from the batch's offset, and finds those files in the log.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_streamstate.checkpoint.log import delete_with_crc
from airflow_streamstate.errors import DataError
from airflow_streamstate.store.base import Store

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

    They begin at the second newest compaction at or below ``first``: Spark reads one compaction, and takes the distance
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
