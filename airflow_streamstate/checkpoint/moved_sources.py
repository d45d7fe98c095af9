"""Spark's logs of file sources whose folder was moved: the same entries, with the paths of the new place.

Spark tells a file that it has read by the whole path in this log, and by its age.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import quote

from airflow_streamstate.checkpoint.file_source import (
    FileSourceEntry,
    format_file_source_log,
    is_file_source_log,
    parse_file_source_log,
    parse_log_name,
)
from airflow_streamstate.protocol.moved_sources import Moves, is_within
from airflow_streamstate.store.base import Store, missing_source
from airflow_streamstate.store.s3a import plain_uri

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
        files: path -> key; paths begin with ``sources/``, or are others and left out.

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
