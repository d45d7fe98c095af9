"""The files of one launch."""

from __future__ import annotations

import errno
import fcntl
import resource
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_streamstate.errors import InvalidRequestError, MalformedMessageError, ReadOnlyError, UnavailableError
from airflow_streamstate.launch.folder import (
    EXIT_STATUS,
    HANDLE,
    INTENT,
    LaunchFolder,
    create_file,
    tail_bytes,
    translated,
    write_file,
)


@contextmanager
def file_size_limit(most_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond that: the kernel's own way to report that a disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_file_is_its_owners_alone(tmp_path: Path) -> None:
    """Configuration and arguments may be secret."""
    write_file(tmp_path / "a", b"1")
    write_file(tmp_path / "a", b"2")
    assert (tmp_path / "a").read_bytes() == b"2"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_only_the_first_create_wins(tmp_path: Path) -> None:
    """What was created is never written over."""
    assert create_file(tmp_path / "a", b"1")
    assert not create_file(tmp_path / "a", b"2")
    assert (tmp_path / "a").read_bytes() == b"1"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    """A write that does not fit leaves the old file, and no half one next to it."""
    write_file(tmp_path / "a", b"1")
    with file_size_limit(100), pytest.raises(UnavailableError, match="did not take"):
        write_file(tmp_path / "a", b"2" * 1000)
    assert (tmp_path / "a").read_bytes() == b"1"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_read_only_disk_is_called_one(tmp_path: Path) -> None:
    """Nothing is wrong with the path: the disk needs to be mounted writable."""
    with pytest.raises(ReadOnlyError, match="read-only disk"), translated(tmp_path):
        raise OSError(errno.EROFS, "")


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    """A file where the folder should be is the user's to fix."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequestError, match="cannot be used"):
        LaunchFolder(tmp_path / "file" / "launch").prepare({})


def test_the_first_intent_stays(tmp_path: Path) -> None:
    """A launch that is tried again does not change what was recorded first (Law 1)."""
    folder = LaunchFolder(tmp_path / "deep" / "launch")
    assert (folder.intent(), folder.handle(), folder.exit_status(), folder.is_held()) == (None, None, None, None)
    folder.prepare({"launch_key": "one"})
    folder.prepare({"launch_key": "two"})
    assert folder.intent() == {"launch_key": "one"}
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_closing_takes_the_drivers_place(tmp_path: Path) -> None:
    """The first one wins: a driver that started before is not closed."""
    folder = LaunchFolder(tmp_path)
    assert folder.close({"launch_key": "k"})
    assert folder.handle() == {"launch_key": "k", "closed": True}
    assert not folder.close({"launch_key": "k"})


@pytest.mark.parametrize(
    ("text", "code"),
    [("0\n", 0), ("143\n", 143), ("", None), ("x\n", None), ("14", None), ("1234\n", None), ("-1", None)],
)
def test_an_exit_status_is_a_number_or_nothing(tmp_path: Path, text: str, code: int | None) -> None:
    """What was cut by a crash is not taken for a code."""
    (tmp_path / EXIT_STATUS).write_text(text)
    assert LaunchFolder(tmp_path).exit_status() == code


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe"])
def test_a_damaged_file_is_named(tmp_path: Path, body: bytes) -> None:
    """A file that is not what its name indicates is neither obeyed nor passed over (Law 7)."""
    (tmp_path / INTENT).write_bytes(body)
    with pytest.raises(MalformedMessageError, match=INTENT):
        LaunchFolder(tmp_path).intent()


def test_the_lock_is_seen(tmp_path: Path) -> None:
    """A held lock is distinguished from a free one."""
    folder = LaunchFolder(tmp_path)
    folder.close({})
    assert folder.is_held() is False
    with (tmp_path / HANDLE).open("r+") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert folder.is_held() is True
    assert folder.is_held() is False


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    """The last bytes; nothing of a log that is not there."""
    log = tmp_path / "log"
    assert tail_bytes(log, 10) == b""
    log.write_text("one\ntwo\nthree\n")
    assert (tail_bytes(log, 6), tail_bytes(log, 100), tail_bytes(log, -1)) == (b"three\n", b"one\ntwo\nthree\n", b"")
