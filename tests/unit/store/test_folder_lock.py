"""The lock of a folder: who holds it, how long others wait, and what is reported about a holder."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import UnavailableError
from airflow_streamstate.store.base import SHORT_SECONDS, as_one_of_many, one_of_many
from airflow_streamstate.store.folder_lock import LOCK_NAME, LOCK_SECONDS, folder_lock
from support.fake_clock import FakeClock

KEEPS_IT = """
import fcntl, sys
with open(sys.argv[1], "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(folder: Path, clock: FakeClock) -> None:
    """Take the lock and give it back."""
    with folder_lock(folder, clock):
        pass


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """The lock's file goes with its holder, also when the holder fails; one left by a kill is taken over."""
    (tmp_path / LOCK_NAME).touch()

    def hold_and_fail() -> None:
        with folder_lock(tmp_path, SYSTEM_CLOCK):
            assert (tmp_path / LOCK_NAME).exists()
            raise KeyError

    with pytest.raises(KeyError):
        hold_and_fail()
    assert list(tmp_path.iterdir()) == []


def test_the_wait_ends(tmp_path: Path) -> None:
    """A lock that another keeps is reported with its folder and its holder after LOCK_SECONDS. (Law 6)"""
    clock = FakeClock()
    with folder_lock(tmp_path, SYSTEM_CLOCK), pytest.raises(UnavailableError) as caught:
        hold(tmp_path, clock)
    assert caught.value.context == {
        "folder": str(tmp_path),
        "held_by": f"process {os.getpid()}",
        "waited_seconds": LOCK_SECONDS,
    }
    assert clock.monotonic_seconds() == pytest.approx(LOCK_SECONDS, abs=0.1)


def test_the_lock_file_of_an_earlier_holder_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holder released it, and a third process has created a new file: two would have the folder (Law 4)."""
    path, take = tmp_path / LOCK_NAME, fcntl.flock
    third: list[int] = []

    def late(descriptor: int, how: int) -> None:
        if not third:
            path.unlink()
            third.append(os.open(path, os.O_RDWR | os.O_CREAT))
            take(third[0], fcntl.LOCK_EX)
        take(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(UnavailableError):
        hold(tmp_path, FakeClock())
    os.close(third[0])


def test_one_of_many_are_short_altogether(tmp_path: Path) -> None:
    """However many locks of a stream are kept; one that is free is taken at once, also when no patience is left."""
    clock = FakeClock()
    with folder_lock(tmp_path, SYSTEM_CLOCK), one_of_many():
        for _ in range(20):
            with pytest.raises(UnavailableError, match="keeps this folder locked"):
                hold(tmp_path, clock)
        (tmp_path / "free").mkdir()
        hold(tmp_path / "free", clock)
    assert SHORT_SECONDS <= clock.monotonic_seconds() < 2 * SHORT_SECONDS


def test_patience_is_of_one_look_and_of_its_thread(tmp_path: Path) -> None:
    """The next try has its own, and what follows waits as ever."""
    with folder_lock(tmp_path, SYSTEM_CLOCK):
        for _ in range(2):
            clock = FakeClock()
            with pytest.raises(UnavailableError) as caught:
                as_one_of_many(hold, tmp_path, clock)
            assert caught.value.context["waited_seconds"] == SHORT_SECONDS
        with pytest.raises(UnavailableError) as caught:
            hold(tmp_path, clock)
    assert caught.value.context["waited_seconds"] == LOCK_SECONDS


def test_another_process_that_keeps_a_lock_is_named(tmp_path: Path) -> None:
    """By its number, on this machine."""
    command = [sys.executable, "-c", KEEPS_IT, str(tmp_path / LOCK_NAME)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == b"held\n"
        with pytest.raises(UnavailableError) as caught:
            as_one_of_many(hold, tmp_path, FakeClock())
        assert keeper.stdin is not None
        keeper.stdin.close()
    assert caught.value.context["held_by"] == f"process {keeper.pid}"


def test_a_missing_folder_is_not_made(tmp_path: Path) -> None:
    """Locking makes no folder."""
    with pytest.raises(FileNotFoundError), folder_lock(tmp_path / "none", SYSTEM_CLOCK):
        pass
