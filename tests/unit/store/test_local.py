"""What only a store on a disk has: temporary files, links, other processes, full disks."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK, SystemClock
from airflow_streamstate.errors import (
    InvalidRequestError,
    ObjectExistsError,
    ObjectMissingError,
    OutcomeUnknownError,
    ReadOnlyError,
    StreamStateError,
    UnavailableError,
    VersionConflictError,
)
from airflow_streamstate.store.base import TEMPORARY_PREFIX
from airflow_streamstate.store.folder_lock import folder_lock
from airflow_streamstate.store.local import (
    FolderSyncs,
    LocalStore,
    disk_errors,
    sync_folder,
)

PACKAGE_FOLDER = Path(__file__).parents[3]
BIG = b"0123456789" * 30_000
INCREMENTS = """
import sys
from airflow_streamstate.errors import VersionConflictError
from airflow_streamstate.store.local import LocalStore
store = LocalStore(sys.argv[1])
for _ in range(25):
    while True:
        stored = store.get("registers/counter")
        try:
            store.replace("registers/counter", b"%d" % (int(stored.body) + 1), stored.version)
            break
        except VersionConflictError:
            pass
"""


class ImpatientClock(SystemClock):
    """Each reading is ten seconds later, and sleeping takes no time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic_seconds(self) -> float:
        self.seconds += 10
        return self.seconds

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds < 0.1


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "home")


def files_of(store: LocalStore) -> list[str]:
    """Every file on the disk, temporary ones as well."""
    return sorted(str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file())


@contextmanager
def disk_with_room_for(size_bytes: int) -> Iterator[None]:
    """Files of this process cannot grow beyond that: the kernel itself cuts a write short and refuses its rest."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def refuse(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, name, refused)


class TestPlace:
    def test_nothing_is_made_before_the_first_write(self, store: LocalStore) -> None:
        """Opening, reading and listing leave no folder behind."""
        assert store.get("a/b") is None
        assert list(store.list_objects("")) == []
        store.delete("a/b")
        assert not store.root.exists()

    def test_the_path_of_a_key(self, store: LocalStore, tmp_path: Path) -> None:
        """An object's path is absolute and below the root; what would climb out is refused."""
        assert store.path_of("a/b") == tmp_path / "home/a/b"
        assert LocalStore("relative").path_of("a") == Path.cwd() / "relative/a"
        with pytest.raises(InvalidRequestError):
            store.path_of("../a")

    def test_a_root_that_cannot_be_is_refused(self, tmp_path: Path) -> None:
        """A home below a file is a mistake to fix."""
        (tmp_path / "file").write_text("")
        store = LocalStore(tmp_path / "file/home")
        assert store.get("a") is None
        with pytest.raises(InvalidRequestError, match="cannot have the same name"):
            store.put("a", b"")

    def test_files_can_be_read_by_others_as_the_umask_says(self, store: LocalStore) -> None:
        """Airflow's user and Spark's may share a home: no file is readable by its owner alone."""
        before = os.umask(0o022)
        try:
            store.put("a", b"")
            store.create("b", b"")
            store.copy("a", "c")
        finally:
            os.umask(before)
        assert {store.path_of(key).stat().st_mode & 0o777 for key in "abc"} == {0o644}


class TestWholeOrNothing:
    def test_no_operation_leaves_a_temporary_file(self, store: LocalStore) -> None:
        """After each operation, won or lost, the folder holds the objects and nothing else."""
        version = store.create("f/a", b"1")
        version = store.replace("f/a", b"2", version)
        store.put("f/b", b"3")
        for _ in range(2):
            store.link("f/a", "f/c")
            store.copy("f/a", "f/d")
        store.link("f/a", "f/a")
        with pytest.raises(ObjectExistsError):
            store.create("f/a", b"")
        with pytest.raises(VersionConflictError):
            store.replace("f/a", b"", "other")
        store.delete("f/b", store.get("f/b").version)
        assert files_of(store) == ["f/a", "f/c", "f/d"]

    def test_leftovers_of_a_kill_are_not_listed(self, store: LocalStore) -> None:
        """Temporary and lock files of a process that was killed are no objects, and disturb nothing."""
        store.put("f/a", b"1")
        (store.root / f"f/{TEMPORARY_PREFIX}1234").write_bytes(b"half")
        (store.root / f"f/{TEMPORARY_PREFIX}lock").touch()
        (store.root / f"{TEMPORARY_PREFIX}folder").mkdir()
        assert [info.key for info in store.list_objects("")] == ["f/a"]
        assert store.list_folders("") == ["f"]
        store.put("f/a", b"2")
        store.delete("f/a")
        assert store.list_folders("") == []

    @pytest.mark.parametrize("method", ["put", "create", "replace", "copy"])
    def test_a_full_disk_changes_nothing(self, store: LocalStore, method: str) -> None:
        """A write that the disk cuts in half is unavailable: what was there stays whole, and no half is left."""
        version = store.put("f/old", b"old")
        store.put("f/big", BIG)
        acts = {
            "put": lambda: store.put("f/old", BIG),
            "create": lambda: store.create("f/new", BIG),
            "replace": lambda: store.replace("f/old", BIG, version),
            "copy": lambda: store.copy("f/big", "f/old"),
        }
        with disk_with_room_for(len(BIG) // 2), pytest.raises(UnavailableError, match="the disk is full"):
            acts[method]()
        assert files_of(store) == ["f/big", "f/old"]
        assert store.get("f/old").body == b"old"
        acts[method]()
        assert store.get("f/new" if method == "create" else "f/old").body == BIG

    def test_links_need_no_room(self, store: LocalStore) -> None:
        """A link is made on a full disk, too: a snapshot costs names, not bytes."""
        store.put("f/big", BIG)
        with disk_with_room_for(0):
            assert store.link("f/big", "snapshots/big") is True
        assert store.get("snapshots/big").body == BIG

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
    def test_an_error_at_the_sync_changes_nothing(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        """A disk that takes the bytes and refuses to keep them is unavailable, and the object is as before."""
        version = store.put("f/a", b"1")
        with monkeypatch.context() as patched:
            refuse(patched, "fsync", number)
            for act in (
                lambda: store.put("f/a", b"2"),
                lambda: store.replace("f/a", b"2", version),
                lambda: store.create("f/b", b"2"),
                lambda: store.copy("f/a", "f/b"),
            ):
                with pytest.raises(UnavailableError):
                    act()
        assert files_of(store) == ["f/a"]
        assert store.get("f/a").body == b"1"

    def test_an_error_after_the_name_was_given_is_unknown(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where only the folder's sync fails the object is there, so the caller has to read back. (Law 8)"""
        store.put("f/a", b"1")
        real = os.fsync
        calls: list[int] = []

        def second_fails(descriptor: int) -> None:
            calls.append(descriptor)
            if len(calls) == 2:
                raise OSError(errno.EIO, "")
            real(descriptor)

        monkeypatch.setattr(os, "fsync", second_fails)
        with pytest.raises(OutcomeUnknownError):
            store.create("f/b", b"2")
        assert store.get("f/b").body == b"2"


class TestLock:
    def test_no_write_slips_into_the_middle_of_a_replace(self, store: LocalStore) -> None:
        """Changing an object that is there waits for the folder's lock; adding one does not. (Law 4)"""
        version = store.put("f/a", b"1")
        store.put("f/b", b"2")
        impatient = LocalStore(store.root, clock=ImpatientClock())
        with folder_lock(store.root / "f", SYSTEM_CLOCK):
            for act in (
                lambda: impatient.put("f/a", b"3"),
                lambda: impatient.replace("f/a", b"3", version),
                lambda: impatient.copy("f/b", "f/a"),
                lambda: impatient.link("f/b", "f/a"),
                lambda: impatient.delete("f/a"),
                lambda: impatient.delete("f/a", version),
            ):
                with pytest.raises(UnavailableError, match="keeps this folder locked"):
                    act()
            impatient.create("f/c", b"3")
            impatient.link("f/b", "f/d")
        assert files_of(store) == ["f/a", "f/b", "f/c", "f/d"]
        assert store.get("f/a").body == b"1"


class TestDurability:
    def test_what_was_linked_is_durable_before_the_manifest(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Links sync nothing themselves; the next create syncs their folders before it has its name. (Law 3)"""
        store.put("f/a", b"1")
        before: list[int] = []
        after: list[int] = []

        def note(descriptor: int) -> None:
            has_name = (store.root / "snapshots/manifest").exists()
            (after if has_name else before).append(os.fstat(descriptor).st_ino)

        monkeypatch.setattr(os, "fsync", note)
        for number in range(10):
            store.link("f/a", f"snapshots/{number % 2}/{number}")
        assert before == []
        store.create("snapshots/manifest", b"m")
        linked = ["", "snapshots", "snapshots/0", "snapshots/1", "snapshots/manifest"]
        assert sorted(before) == sorted((store.root / name).stat().st_ino for name in linked)
        assert after == [(store.root / "snapshots").stat().st_ino]

    def test_no_name_is_given_over_links_that_are_not_durable(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where a folder of links cannot be synced there is no manifest, and the next try syncs it again. (Law 3)"""
        store.put("f/a", b"1")
        store.link("f/a", "snapshots/1/a")
        bad, real = (store.root / "snapshots/1").stat().st_ino, os.fsync
        seen: list[int] = []

        def broken(descriptor: int) -> None:
            seen.append(os.fstat(descriptor).st_ino)
            if seen.count(bad) == 1 and seen[-1] == bad:
                raise OSError(errno.EIO, "")
            real(descriptor)

        monkeypatch.setattr(os, "fsync", broken)
        with pytest.raises(UnavailableError):
            store.create("snapshots/manifest", b"m")
        assert store.get("snapshots/manifest") is None
        store.create("snapshots/manifest", b"m")
        assert seen.count(bad) == 2

    def test_switched_off_it_syncs_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With fsync=False no write waits for the disk."""
        monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("synced"))
        store = LocalStore(tmp_path / "home", fsync=False)
        store.replace("a/b", b"2", store.create("a/b", b"1"))
        store.put("a/c", b"")
        store.copy("a/b", "d/e")


class TestLinks:
    def test_a_link_shares_its_bytes(self, store: LocalStore) -> None:
        """A link is the same file under a second name, at a new place or over an old one."""
        store.put("a", b"1")
        store.put("old", b"2")
        for target in ("deep/er", "old"):
            assert store.link("a", target) is True
            assert store.path_of(target).samefile(store.path_of("a"))

    @pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
    def test_where_links_cannot_be_it_copies(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        """Across file systems, or where links are not allowed, the bytes are copied, and that is reported."""
        store.put("a", b"1")
        refuse(monkeypatch, "link", number)
        for target in ("new/b", "new/b"):
            assert store.link("a", target) is False
        assert store.get("new/b").body == b"1"
        assert not store.path_of("new/b").samefile(store.path_of("a"))
        with pytest.raises(ObjectMissingError):
            store.link("gone", "new/c")
        assert files_of(store) == ["a", "new/b"]

    def test_without_links_create_is_still_whole_and_once(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a file system without hard links a create is exclusive under the lock."""
        refuse(monkeypatch, "link", errno.EPERM)
        version = store.create("claims/1", b"mine")
        assert store.get("claims/1").version == version
        with pytest.raises(ObjectExistsError):
            store.create("claims/1", b"yours")
        assert files_of(store) == ["claims/1"]

    def test_other_errors_of_a_link_are_told(self, store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only where links cannot be does it copy; a full disk is a full disk."""
        store.put("a", b"1")
        refuse(monkeypatch, "link", errno.ENOSPC)
        with pytest.raises(UnavailableError, match="the disk is full"):
            store.link("a", "b")
        with pytest.raises(UnavailableError, match="the disk is full"):
            store.create("c", b"")
        assert files_of(store) == ["a"]

    def test_a_source_that_vanishes_in_between_is_missing(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Spark may delete a file between the look and the link: it is named as missing, and nothing is left."""
        store.put("a", b"1")
        store.put("old", b"2")
        real = os.link

        def vanishing(source: Path, target: Path) -> None:
            Path(source).unlink(missing_ok=True)
            real(source, target)

        monkeypatch.setattr(os, "link", vanishing)
        with pytest.raises(ObjectMissingError):
            store.link("a", "b")
        assert files_of(store) == ["old"]


class TestNamesInTheWay:
    def test_an_object_is_no_folder(self, store: LocalStore) -> None:
        """Where ``a`` is an object no ``a/1`` can be written, and that is reported; reads find nothing there."""
        store.put("a", b"1")
        store.put("b", b"2")
        for act in (
            lambda: store.put("a/1", b""),
            lambda: store.create("a/1", b""),
            lambda: store.copy("b", "a/1"),
            lambda: store.link("b", "a/1/2"),
        ):
            with pytest.raises(InvalidRequestError):
                act()
        with pytest.raises(VersionConflictError):
            store.replace("a/1", b"", "version")
        store.delete("a/1")
        assert files_of(store) == ["a", "b"]

    def test_a_folder_is_no_object(self, store: LocalStore) -> None:
        """Where ``a/1`` is an object no ``a`` can be written, and a delete of ``a`` deletes nothing."""
        store.put("a/1", b"1")
        store.put("b", b"2")
        for act in (
            lambda: store.put("a", b""),
            lambda: store.create("a", b""),
            lambda: store.copy("b", "a"),
            lambda: store.link("b", "a"),
        ):
            with pytest.raises(InvalidRequestError):
                act()
        with pytest.raises(ObjectMissingError):
            store.link("a", "c")
        store.delete("a")
        assert files_of(store) == ["a/1", "b"]

    def test_a_name_that_the_disk_cannot_have(self, store: LocalStore) -> None:
        """A part longer than the file system's limit is a mistake to fix."""
        with pytest.raises(InvalidRequestError, match="cannot have a file of this name"):
            store.put("x" * 300, b"")


class TestListing:
    def test_files_that_vanish_meanwhile_are_not_listed(self, store: LocalStore) -> None:
        """Spark deletes old files and folders while we list: the rest is listed as ever."""
        for key in ("a/1", "a/2", "b/1", "c/1"):
            store.put(key, b"x")
        listing = store.list_objects("")
        assert next(listing).key == "a/1"
        store.path_of("a/2").unlink()
        store.path_of("b/1").unlink()
        store.path_of("b").rmdir()
        assert [info.key for info in listing] == ["c/1"]

    def test_what_is_no_file_is_no_object(self, store: LocalStore) -> None:
        """Pipes, links and names that no key can have are left out."""
        store.put("f/a", b"12")
        os.mkfifo(store.root / "f/pipe")
        (store.root / "f/dangling").symlink_to("nowhere")
        (store.root / "f/linked").symlink_to("a")
        (store.root / "f/a\nb").write_text("")
        assert [(info.key, info.size_bytes) for info in store.list_objects("f/")] == [("f/a", 2)]


def test_a_folder_that_is_not_there_is_made_by_no_write(tmp_path: Path) -> None:
    """Its disk may not be mounted: an empty folder in its place would count as a home without streams (Law 5)."""
    store = LocalStore(tmp_path / "home", makes_root=False)
    for write in (lambda: store.put("a/b", b""), lambda: store.create("a/b", b"")):
        with pytest.raises(UnavailableError):
            write()
    assert not store.root.exists()
    store.make_root()
    store.put("a/b", b"")
    store.root.joinpath("a/b").unlink()


def test_no_increment_of_any_process_is_lost(store: LocalStore) -> None:
    """Three processes that add 1 by compare-and-swap 25 times each reach 75. (Law 4)"""
    store.create("registers/counter", b"0")
    command = [sys.executable, "-c", INCREMENTS, str(store.root)]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_FOLDER)}
    processes = [subprocess.Popen(command, env=environment) for _ in range(3)]
    try:
        assert [process.wait(40) for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait(10)
    assert store.get("registers/counter").body == b"75"
    assert files_of(store) == ["registers/counter"]


class TestErrors:
    @pytest.mark.parametrize(
        ("number", "expected", "words"),
        [
            (errno.ENOSPC, UnavailableError, "the disk is full. .* Free some space, and try again"),
            (errno.EDQUOT, UnavailableError, "the disk is full"),
            (errno.EFBIG, UnavailableError, "the disk is full"),
            (errno.EIO, UnavailableError, "the disk gave an error"),
            (errno.EMFILE, UnavailableError, "the disk gave an error"),
            (errno.EACCES, InvalidRequestError, "permission denied"),
            (errno.EPERM, InvalidRequestError, "permission denied"),
            (errno.EROFS, ReadOnlyError, "the file system is read-only. .* Mount it writable"),
            (errno.ENOTDIR, InvalidRequestError, "cannot have the same name"),
            (errno.EISDIR, InvalidRequestError, "cannot have the same name"),
            (errno.ENAMETOOLONG, InvalidRequestError, "cannot have a file of this name"),
        ],
    )
    def test_each_error_becomes_its_remedy(
        self, number: int, expected: type[StreamStateError], words: str, tmp_path: Path
    ) -> None:
        """A full disk is tried again, a denied one is fixed, neither replaced by another; the place is named."""
        with pytest.raises(expected, match=words) as caught, disk_errors("put", "a/b", tmp_path):
            raise OSError(number, "raw words")
        assert caught.value.context == {
            "action": "put",
            "key": "a/b",
            "root": str(tmp_path),
            "reason": os.strerror(number),
        }

    def test_an_error_after_the_write_leaves_it_unknown(self, tmp_path: Path) -> None:
        """Once a reader can see the result, no error may claim that nothing was changed. (Law 8)"""

        def write() -> None:
            with disk_errors("put", "a", tmp_path) as act:
                act.landed = True
                raise OSError(errno.ENOSPC, "")

        with pytest.raises(OutcomeUnknownError):
            write()

    def test_an_error_without_a_number_keeps_its_words(self, tmp_path: Path) -> None:
        """An OSError of a library's own is reported in its own words."""
        with pytest.raises(UnavailableError, match="a special file"), disk_errors("copy", "a", tmp_path):
            raise OSError("a special file")


class TestFolderSyncs:
    @pytest.mark.parametrize("count", [1, 20])
    def test_each_folder_is_synced_and_a_failed_one_is_remembered(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
    ) -> None:
        """One by one or side by side: what one failure leaves unsynced is synced by the next write."""
        folders = [tmp_path / str(number) for number in range(count)]
        for folder in folders:
            folder.mkdir()
        bad = folders[count // 3].stat().st_ino
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

    def test_a_folder_that_is_gone_needs_no_sync(self, tmp_path: Path) -> None:
        """What was removed since is no error."""
        sync_folder(tmp_path / "gone")
