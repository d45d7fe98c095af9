"""Files of this machine that are read because a record says that a driver wrote them.

Such a file is read only where it surely is what it should be: no link leads to it, it is a regular file, and it and its
folder belong to this user. Whoever may write into a folder could otherwise have any file of the reader shown.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from airflow_streamstate.errors import UntrustedRecordError

MOST_BYTES = 4 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK the open of a named pipe waits for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_own(path: Path, top: Path | None = None) -> int:
    """Open a file for reading; returns its descriptor.

    Args:
        top: a folder above it: from there down no symbolic link is followed. None: that of the file.

    Raises:
        UntrustedRecordError: it is, or is reached by, a symbolic link, is no regular file, or is another user's.
        OSError: it is not there, or cannot be opened.
    """
    folder = _open_folder(path.parent, top)
    try:
        _check_owner(os.fstat(folder), path.parent)
        try:
            descriptor = os.open(path.name, _FILE, dir_fd=folder)
        except OSError:
            _refuse_link(path)
            raise
    finally:
        os.close(folder)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise _untrusted(path, "it is no regular file")
        _check_owner(facts, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_own(path: Path, top: Path | None = None) -> bytes | None:
    """The content of a file; None where it is not there. Raises as ``open_own``, also for one above ``MOST_BYTES``."""
    try:
        descriptor = open_own(path, top)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with os.fdopen(descriptor, "rb") as file:
        body = file.read(MOST_BYTES + 1)
    if len(body) > MOST_BYTES:
        raise _untrusted(path, f"it is longer than {MOST_BYTES} bytes")
    return body


def tail_own(path: Path, count: int, top: Path | None = None) -> bytes:
    """The last bytes of a file, at most ``count`` and at most ``MOST_BYTES``. Raises as ``open_own``."""
    count = min(max(0, count), MOST_BYTES)
    with os.fdopen(open_own(path, top), "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - count))
        return file.read(count)


def is_reached_plainly(path: Path, top: Path) -> bool:
    """Whether no symbolic link leads from ``top`` to a path, which is not one either; also where it is not there."""
    if not path.is_relative_to(top):
        return False
    parts = path.relative_to(top).parts
    return not any(top.joinpath(*parts[: count + 1]).is_symlink() for count in range(len(parts)))


def check_own_folder(path: Path, top: Path | None = None, *, is_private: bool = False) -> None:
    """Check that a folder belongs to this user and that no link leads to it; a missing one is fine.

    Args:
        is_private: nobody else may write into it.

    Raises:
        UntrustedRecordError: it is otherwise.
        OSError: it cannot be opened.
    """
    try:
        descriptor = _open_folder(path, top)
    except FileNotFoundError:
        return
    try:
        facts = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    _check_owner(facts, path)
    if is_private and facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _untrusted(path, "other users may write into it")


def _open_folder(path: Path, top: Path | None) -> int:
    if top is None or not path.is_relative_to(top):
        top = path.parent
    descriptor = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    here = top
    for part in path.relative_to(top).parts:
        here = here / part
        try:
            inner = os.open(part, _FOLDER, dir_fd=descriptor)
        except OSError:
            _refuse_link(here)
            raise
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise _untrusted(path, "it is a symbolic link")


def _check_owner(facts: os.stat_result, path: Path) -> None:
    if facts.st_uid != os.geteuid():
        raise _untrusted(path, "it belongs to another user")


def _untrusted(path: Path, reason: str) -> UntrustedRecordError:
    return UntrustedRecordError(
        f"a file or folder of a launch is not what its driver made: {reason}",
        path=str(path),
        next_step="Look who made it; nothing was read from it.",
    )
