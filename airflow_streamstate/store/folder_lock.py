"""The lock of a folder on a disk: one holder among all threads and processes of all machines that see the folder.

It is waited for with a deadline; by a poll of many (``store.base``) for a short time only.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.store.base import PATIENCE, TEMPORARY_PREFIX

LOCK_NAME = f"{TEMPORARY_PREFIX}lock"
LOCK_SECONDS = 30.0
LOCK_POLL_SECONDS = 0.002
FILE_MODE = 0o666
"""Before the umask: Airflow's user and Spark's may share a home."""
_KERNEL_LOCKS = Path("/proc/locks")


@contextmanager
def folder_lock(folder: Path, clock: Clock) -> Iterator[None]:
    """Hold the folder's lock.

    Raises:
        UnavailableError: another process held it for LOCK_SECONDS, or as long as a poll of many waits (Law 6).
        InvalidRequestError: a symbolic link has the name of the lock file.
        FileNotFoundError: there is no such folder.
    """
    path = folder / LOCK_NAME
    descriptor = _try_lock(path)
    if descriptor is None:
        descriptor = _locked_in_time(path, clock)
    try:
        yield
    finally:
        # Removed while it is held: a process that waits on the removed file sees that below and opens a new one.
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _locked_in_time(path: Path, clock: Clock) -> int:
    patience = PATIENCE.get()
    limit_seconds = LOCK_SECONDS if patience is None else patience.left_seconds
    began = clock.monotonic_seconds()
    try:
        while clock.monotonic_seconds() - began <= limit_seconds:
            clock.sleep(LOCK_POLL_SECONDS * (0.5 + clock.jitter()))
            descriptor = _try_lock(path)
            if descriptor is not None:
                return descriptor
    finally:
        if patience is not None:
            patience.left_seconds -= clock.monotonic_seconds() - began
    raise UnavailableError(
        "another process keeps this folder locked",
        folder=str(path.parent),
        held_by=_holder(path),
        waited_seconds=round(max(limit_seconds, 0.0), 1),
        next_step="Look for a process that was halted in the middle of a write.",
    )


def _holder(path: Path) -> str:
    """Which process of this machine has the lock, as far as the kernel reports."""
    with suppress(OSError, ValueError):
        inode = path.lstat().st_ino
        for line in _KERNEL_LOCKS.read_text(encoding="ascii").splitlines():
            # "1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF"; a waiting one has "->" after its number.
            parts = line.split()
            if parts[1:2] == ["FLOCK"] and parts[5].endswith(f":{inode}") and int(parts[4]) > 0:
                return f"process {int(parts[4])}"
    return "a process that is not seen from here"


def _try_lock(path: Path) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise link_in_the_way(str(path)) from None
        raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.lstat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def link_in_the_way(path: str) -> InvalidRequestError:
    """The error of a symbolic link in the place of what may be none."""
    return InvalidRequestError(
        "a symbolic link is in the place of a folder or lock of this store",
        path=path,
        next_step="Look who made it, and remove it. Bring in another disk by a mount, or as `checkpoints_uri`.",
    )
