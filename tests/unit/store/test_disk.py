"""Errors of the operating system, the folder lock, and what is synced when."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import (
    InvalidRequestError,
    OutcomeUnknownError,
    ReadOnlyError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.store.local import LOCK_NAME, LOCK_SECONDS, FolderSyncs, disk_errors, folder_lock, sync_folder


class TestErrors:
    @pytest.mark.parametrize(
        ("number", "expected", "words"),
        [
            (errno.ENOSPC, UnavailableError, "the disk is full"),
            (errno.EDQUOT, UnavailableError, "the disk is full"),
            (errno.EFBIG, UnavailableError, "the disk is full"),
            (errno.EIO, UnavailableError, "the disk gave an error"),
            (errno.EMFILE, UnavailableError, "the disk gave an error"),
            (errno.EACCES, InvalidRequestError, "permission denied"),
            (errno.EPERM, InvalidRequestError, "permission denied"),
            (errno.EROFS, ReadOnlyError, "the file system is read-only"),
            (errno.ENOTDIR, InvalidRequestError, "cannot have the same name"),
            (errno.EISDIR, InvalidRequestError, "cannot have the same name"),
            (errno.ENAMETOOLONG, InvalidRequestError, "cannot have a file of this name"),
        ],
    )
    def test_each_error_becomes_its_remedy(
        self, number: int, expected: type[StreamStateError], words: str, tmp_path: Path
    ) -> None:
        """A full or broken disk is to be tried again, a denied one to be mended; the place is named."""
        with pytest.raises(expected, match=words) as caught, disk_errors("put", "a/b", tmp_path):
            raise OSError(number, "raw words")
        assert caught.value.context == {
            "action": "put",
            "key": "a/b",
            "root": str(tmp_path),
            "reason": os.strerror(number),
        }

    @pytest.mark.parametrize(
        ("number", "advice"),
        [
            (errno.ENOSPC, "Free some space, and try again."),
            (errno.EROFS, "Mount it writable, and see that the user of this process has write access."),
        ],
    )
    def test_no_advice_leads_away_from_the_home(self, number: int, advice: str, tmp_path: Path) -> None:
        """A home that is moved, or another one, would be one without the streams that run."""
        with pytest.raises(StreamStateError) as caught, disk_errors("put", "a", tmp_path):
            raise OSError(number, "")
        assert caught.value.next_step == advice

    def test_an_error_after_the_write_leaves_it_unknown(self, tmp_path: Path) -> None:
        """Once a reader can see the result, no error may say that nothing was changed. (Law 8)"""

        def write() -> None:
            with disk_errors("put", "a", tmp_path) as act:
                act.landed = True
                raise OSError(errno.ENOSPC, "")

        with pytest.raises(OutcomeUnknownError):
            write()

    def test_an_error_without_a_number_keeps_its_words(self, tmp_path: Path) -> None:
        """An OSError of a library's own is told in its own words."""
        with pytest.raises(UnavailableError, match="a special file"), disk_errors("copy", "a", tmp_path):
            raise OSError("a special file")

    def test_other_errors_pass(self, tmp_path: Path) -> None:
        """What is no error of the disk goes through unchanged."""
        with pytest.raises(KeyError), disk_errors("put", "a", tmp_path):
            raise KeyError("a")


class FastClock:
    """Each reading is ten seconds later, and sleeping takes no time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic_seconds(self) -> float:
        self.seconds += 10
        return self.seconds

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds < 0.1

    def jitter(self) -> float:
        return 0.5


class TestFolderLock:
    def test_one_holder_at_a_time(self, tmp_path: Path) -> None:
        """Eight threads that count up under the lock lose no count."""
        counter = tmp_path / "counter"
        counter.write_text("0")

        def count(_: int) -> None:
            for _ in range(20):
                with folder_lock(tmp_path, SYSTEM_CLOCK):
                    counter.write_text(str(int(counter.read_text()) + 1))

        with ThreadPoolExecutor(8) as threads:
            for done in [threads.submit(count, number) for number in range(8)]:
                done.result(40)
        assert counter.read_text() == "160"

    def test_nothing_is_left_behind(self, tmp_path: Path) -> None:
        """The lock's file goes with its holder, also when the holder fails; one left by a kill is taken over."""
        (tmp_path / LOCK_NAME).touch()

        def hold_and_fail() -> None:
            with folder_lock(tmp_path, SYSTEM_CLOCK):
                assert (tmp_path / LOCK_NAME).exists()
                raise KeyError

        with pytest.raises(KeyError):
            hold_and_fail()
        assert list(tmp_path.iterdir()) == []

    def test_the_wait_ends(self, tmp_path: Path) -> None:
        """A lock that another keeps is reported with its folder after LOCK_SECONDS. (Law 6)"""

        def try_to_hold() -> None:
            with folder_lock(tmp_path, FastClock()):
                pytest.fail("two hold one lock")

        with folder_lock(tmp_path, SYSTEM_CLOCK), pytest.raises(UnavailableError) as caught:
            try_to_hold()
        assert caught.value.context == {"folder": str(tmp_path), "waited_seconds": LOCK_SECONDS}

    def test_a_missing_folder_is_not_made(self, tmp_path: Path) -> None:
        """Locking makes no folder."""
        with pytest.raises(FileNotFoundError), folder_lock(tmp_path / "none", SYSTEM_CLOCK):
            pass


class TestFolderSyncs:
    def test_noted_folders_are_synced_once_before_the_next_durable_write(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However often a folder was noted, it is synced once, and then forgotten. (Law 3)"""
        synced: list[int] = []
        monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
        (tmp_path / "a").mkdir()
        syncs = FolderSyncs(True)
        for folder in (tmp_path / "a", tmp_path, tmp_path / "a"):
            syncs.note(folder)
        assert synced == []
        syncs.sync()
        assert sorted(synced) == sorted([tmp_path.stat().st_ino, (tmp_path / "a").stat().st_ino])
        syncs.sync()
        assert len(synced) == 2

    def test_a_folder_that_cannot_be_synced_is_remembered(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An error of the disk does not make a folder count as synced."""

        def broken(_: int) -> None:
            raise OSError(errno.EIO, "the disk is broken")

        syncs = FolderSyncs(True)
        syncs.note(tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", broken)
            with pytest.raises(OSError, match="the disk is broken"):
                syncs.sync()
        seen: list[int] = []
        monkeypatch.setattr(os, "fsync", seen.append)
        syncs.sync()
        assert len(seen) == 1

    def test_of_many_folders_each_is_synced_and_a_failed_one_is_remembered(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Side by side, too, no folder is forgotten: what one failure leaves unsynced is synced by the next write."""
        folders = [tmp_path / str(number) for number in range(20)]
        for folder in folders:
            folder.mkdir()
        bad = folders[7].stat().st_ino
        synced: list[int] = []

        def one_is_broken(descriptor: int) -> None:
            if os.fstat(descriptor).st_ino == bad:
                raise OSError(errno.EIO, "no")
            synced.append(os.fstat(descriptor).st_ino)

        syncs = FolderSyncs(enabled=True)
        for folder in folders:
            syncs.note(folder)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", one_is_broken)
            with pytest.raises(OSError, match="no"):
                syncs.sync()
        assert sorted(synced) == sorted(f.stat().st_ino for f in folders if f.stat().st_ino != bad)
        monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
        syncs.sync()
        assert synced[-1] == bad
        assert len(synced) == len(folders)

    def test_switched_off_nothing_is_synced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Tests and simulations need no durability."""
        monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("synced"))
        syncs = FolderSyncs(False)
        syncs.note(tmp_path)
        syncs.sync()
        syncs.sync_file(0)

    def test_a_folder_that_is_gone_needs_no_sync(self, tmp_path: Path) -> None:
        """What was removed since is no error."""
        sync_folder(tmp_path / "gone")
