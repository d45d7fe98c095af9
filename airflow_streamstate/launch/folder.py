"""The folder of one local launch, and which of its files may be read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from airflow_streamstate.errors import (
    InvalidRequestError,
    MalformedMessageError,
    ReadOnlyError,
    UnavailableError,
    UntrustedRecordError,
)
from airflow_streamstate.launch.detached import HANDLE

# Files of this machine that are read because a record states that a driver wrote them.
#
# Such a file is read only where it surely is what it should be: no link leads to it, it is a regular file, and it and
# its folder belong to this user. Whoever may write into a folder could otherwise have any file of the reader shown.

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


INTENT = "intent.json"
EXIT_STATUS = "exit_status"
LOG_NAME = "driver.log"

_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """The one place where errors of the file system become ours."""
    try:
        yield
    except OSError as error:
        facts = {"path": str(path), "error": errno.errorcode.get(error.errno or 0, type(error).__name__)}
        if error.errno == errno.EROFS:
            raise ReadOnlyError(
                "the folder of a launch is on a read-only disk",
                **facts,
                next_step="Mount it writable, or name another folder for launches by --work-dir.",
            ) from error
        if error.errno in _FORBIDDEN:
            raise InvalidRequestError(
                "the folder of a launch cannot be used", **facts, next_step="Check the path and its permissions."
            ) from error
        raise UnavailableError(
            "the disk did not take the files of a launch", **facts, next_step="Check the disk, then try again."
        ) from error


def write_file(target: Path, body: bytes) -> None:
    """Write or replace the file atomically, readable by its owner only.

    Raises:
        InvalidRequestError: no permission, or the folder is impossible.
        ReadOnlyError: the disk is mounted read-only.
        UnavailableError: the disk is full or broken; nothing was changed.
    """
    with translated(target), _complete(target, body) as temporary:
        temporary.replace(target)


def create_file(target: Path, body: bytes) -> bool:
    """As ``write_file``, unless the file exists; False if so."""
    with translated(target), _complete(target, body) as temporary:
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        return True


@contextlib.contextmanager
def _complete(target: Path, body: bytes) -> Iterator[Path]:
    import tempfile

    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def tail_bytes(path: Path, count: int, top: Path | None = None) -> bytes:
    """As ``tail_own``; b"" where it cannot be read."""
    try:
        return tail_own(path, count, top)
    except (OSError, UntrustedRecordError):
        return b""


class LaunchFolder:
    """The files of one launch. Reading may raise OSError, which the caller interprets.

    It raises UntrustedRecordError where a file is not surely one of this user's launch (``own_files``).

    Args:
        top: the folder for launches, below which no symbolic link is followed; None for that above ``path``.
    """

    def __init__(self, path: Path, top: Path | None = None) -> None:
        self.path = path
        self._top = top

    def prepare(self, intent: Mapping[str, object]) -> None:
        """Make the folder and record the intent, unless an earlier call has done so; raises as ``write_file``.

        Raises:
            InvalidRequestError: it was there, and is not this user's alone.
        """
        with translated(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.check_private()
        create_file(self.path / INTENT, _json_bytes(intent))

    def check_private(self) -> None:
        """Check that the folder, if it is there, is this user's alone.

        Raises:
            InvalidRequestError: it is another user's, is reached by a symbolic link, or others may write into it.
        """
        try:
            check_own_folder(self.path, self._top, is_private=True)
        except UntrustedRecordError as error:
            raise InvalidRequestError(
                "the folder of a launch was there already, and is not this user's alone",
                **{**error.context, "reason": error.message.rpartition(": ")[2]},
                next_step="Remove it if no driver of it runs, or name another folder for launches by --work-dir.",
            ) from None

    def has_intent(self, launch_key: str) -> bool:
        """Whether it was made for this launch."""
        intent = self.intent()
        return intent is not None and intent.get("launch_key") == launch_key

    def read(self, name: str) -> bytes | None:
        """The content of one of its files; None where it is not there."""
        return read_own(self.path / name, self._top)

    def tail(self, path: Path, count: int) -> bytes:
        """The last bytes of a file of this launch; b"" where it cannot be read."""
        return tail_bytes(path, count, self._top)

    def intent(self) -> dict[str, object] | None:
        """What was recorded before the start; None if nothing was."""
        return self._read_json(INTENT)

    def handle(self) -> dict[str, object] | None:
        """The record of the driver's leading process, or of the call that closed the launch; None before either."""
        return self._read_json(HANDLE)

    def close(self, facts: Mapping[str, object]) -> bool:
        """Take the place of the driver's record, so that no driver can start any more; False if one has."""
        return create_file(self.path / HANDLE, _json_bytes({**facts, "closed": True}))

    def exit_status(self) -> int | None:
        """What the driver ended with; None before that, or if it had no time to write it."""
        body = self.read(EXIT_STATUS)
        if body is None:
            return None
        text = body.decode("ascii", "replace")
        # Without its newline it is incomplete.
        return int(text) if re.fullmatch(r"[0-9]{1,3}\n", text) else None

    def is_held(self) -> bool | None:
        """Whether a process of the driver still holds its lock; None if unknown."""
        try:
            descriptor = open_own(self.path / HANDLE, self._top)
        except (OSError, UntrustedRecordError):
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return False

    def _read_json(self, name: str) -> dict[str, object] | None:
        path = self.path / name
        body = self.read(name)
        if body is None:
            return None
        try:
            raw = json.loads(body)
        except (ValueError, RecursionError):
            raw = None
        if not isinstance(raw, dict):
            raise MalformedMessageError(
                "a file of a launch is not what its name states",
                path=str(path),
                next_step="See that no driver of this launch runs, then remove the file.",
            )
        return raw


def _json_bytes(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"
