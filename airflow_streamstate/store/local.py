"""A store in a folder of a local disk: keys are paths, versions are digests of the bytes.

Nothing is written in place: bytes go to a temporary file alongside their target, are synced, and get their name by one
``link`` or ``rename``. The holder of a folder's lock removes its file, so that no folder of Spark's keeps one.

The root may be a symbolic link; below it a link is neither a folder nor an object, and nothing is read, written, listed
or deleted through one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import Any

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.errors import (
    InvalidRequestError,
    MalformedMessageError,
    ObjectExistsError,
    OutcomeUnknownError,
    ReadOnlyError,
    StoreRefusedError,
    StreamStateError,
    UnavailableError,
    VersionConflictError,
)
from airflow_streamstate.store.base import (
    TEMPORARY_PREFIX,
    ObjectInfo,
    StoredObject,
    check_folder,
    check_key,
    check_prefix,
    is_key,
    is_plain,
    missing_source,
    too_large,
)
from airflow_streamstate.store.folder_lock import FILE_MODE, folder_lock, link_in_the_way

LINK_REFUSED = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
"""No hard link is possible: another file system, one without links, another owner's file, or too many links."""

OPEN_TRIES = 3
_READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKED = "it is a symbolic link, or one leads to it"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM)
_IN_THE_WAY = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY)
_BAD_NAME = (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.ELOOP)


@dataclass
class DiskAct:
    """One operation; ``landed`` is set as soon as a reader can see its result."""

    landed: bool = False


@contextmanager
def disk_errors(action: str, key: str, root: Path) -> Iterator[DiskAct]:
    """Translate every OSError of the block into an error of the package.

    Raises:
        UnavailableError: the disk is full or does not work; nothing was changed.
        ReadOnlyError: it is mounted read-only.
        StoreRefusedError: permission denied.
        InvalidRequestError: impossible name, an object where a folder is needed.
        OutcomeUnknownError: the error came after a reader could see the result, which may not outlive a power cut.
    """
    act = DiskAct()
    try:
        yield act
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        facts: dict[str, Any] = {"action": action, "key": key, "root": str(root), "reason": reason}
        if act.landed:
            raise OutcomeUnknownError("the disk gave an error after the write was done", **facts) from error
        raise _translated(error.errno or 0, facts) from error


def _translated(number: int, facts: dict[str, Any]) -> StreamStateError:
    if number in _FULL:
        return UnavailableError("the disk is full", next_step="Free some space, and try again.", **facts)
    if number in _DENIED:
        return StoreRefusedError(
            "permission denied", next_step="Give the user of this process access to the folder.", **facts
        )
    if number == errno.EROFS:
        return ReadOnlyError(
            "the file system is read-only",
            next_step="Mount it writable, and see that the user of this process has write access.",
            **facts,
        )
    if number in _IN_THE_WAY:
        return InvalidRequestError(
            "an object and a folder cannot have the same name", next_step="Choose another key or folder.", **facts
        )
    if number in _BAD_NAME:
        return InvalidRequestError("the file system cannot have a file of this name", **facts)
    return UnavailableError("the disk gave an error", **facts)


FEW_SYNCS = 3
SYNC_THREADS = 8


class FolderSyncs:
    """The folders with entries that a power cut could still undo.

    Links, copies and deletes only note their folder. The next durable write syncs all of them with its bytes, before it
    gives those their name: so a manifest never outlives the files that it names (Law 3), at one sync per folder.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._pending: set[Path] = set()
        self._guard = threading.Lock()
        self._sync_guard = threading.Lock()

    def note(self, folder: Path) -> None:
        """Note that entries of this folder changed."""
        if self.enabled:
            with self._guard:
                self._pending.add(folder)

    def sync(self, descriptor: int | None = None) -> None:
        """Make every noted folder durable, and the bytes of this open file.

        One caller at a time: none may return while another still syncs a folder that it counts on. Many are synced side
        by side: a journalling file system makes one commit of them (100 folders on ext4: 0.03 s instead of 0.45 s).

        Raises:
            OSError: one of them could not be synced; folders that are not yet durable stay noted.
        """
        if not self.enabled:
            return
        with self._sync_guard:
            wanted: list[Path | int] = [] if descriptor is None else [descriptor]
            while wanted := [*wanted, *self._take_all()]:
                failures = self._sync_all(wanted)
                wanted = []
                for failure in failures:
                    if failure is not None:
                        raise failure

    def _sync_all(self, wanted: list[Path | int]) -> list[OSError | None]:
        if len(wanted) <= FEW_SYNCS:
            return [self._sync_one(one) for one in wanted]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="streamstate-sync") as pool:
            return list(pool.map(self._sync_one, wanted))

    def _sync_one(self, one: Path | int) -> OSError | None:
        try:
            if isinstance(one, Path):
                sync_folder(one)
            else:
                os.fsync(one)
        except OSError as error:
            if isinstance(one, Path):
                self.note(one)
            return error
        return None

    def sync_file(self, descriptor: int) -> None:
        """Make the bytes of an open file durable."""
        if self.enabled:
            os.fsync(descriptor)

    def _take_all(self) -> list[Path]:
        with self._guard:
            folders, self._pending = sorted(self._pending), set()
        return folders


def sync_folder(folder: Path) -> None:
    """Make a folder's entries durable; a folder that is gone needs nothing."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LocalStore:
    """Objects as files below ``root``.

    Args:
        root: the folder; made absolute at once.
        makes_root: whether the first write makes the folder. Without it a write where the folder is not there raises
            UnavailableError, until ``make_root`` was called: a disk that is not mounted gets no folder in its place.
        fsync: whether writes outlive a power cut. Off only where nothing has to (tests, simulations).
    """

    def __init__(
        self, root: Path | str, *, fsync: bool = True, clock: Clock = SYSTEM_CLOCK, makes_root: bool = True
    ) -> None:
        self.root = Path(os.path.abspath(root))  # noqa: PTH100 - resolve() would ask the disk, and follow links
        self._root = str(self.root)
        self._real_root = self._root
        self._makes_root = makes_root
        self._clock = clock
        self._syncs = FolderSyncs(fsync)

    @property
    def uri(self) -> str:
        return str(self.root)

    def path_of(self, key: str) -> Path:
        """The path of the object, for programs that need one, like Spark.

        Raises:
            InvalidRequestError: the key is not one.
        """
        return self.root / check_key(key)

    def _at(self, key: str) -> str:
        """As ``path_of``, for hot paths: a ``Path`` costs more than the disk does."""
        return f"{self._root}/{check_key(key)}"

    def get(self, key: str) -> StoredObject | None:
        with disk_errors("get", key, self.root):
            found = self._read(key)
        return None if found is None else _stored(key, *found)

    def get_within(self, key: str, most_bytes: int) -> StoredObject | None:
        with disk_errors("get", key, self.root):
            found = self._read_regular(key, most_bytes)
        return None if found is None else _stored(key, *found)

    def _read_regular(self, key: str, most_bytes: int) -> tuple[bytes, float] | None:
        """The bytes of a regular file, and when they were written.

        Raises:
            MalformedMessageError: it is another kind of file, which may block or never end; a link; or larger.
        """
        opened = self._open(key)
        if opened is None:
            return None
        descriptor, status = opened
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if not S_ISREG(status.st_mode):
                raise _no_record(key, "it is no regular file")
            if status.st_size > most_bytes:
                raise too_large(key, status.st_size, most_bytes)
            body = file.read(status.st_size + 1)  # not the limit, for which Python would take memory at once
            if len(body) > status.st_size:  # it has grown
                body += file.read(most_bytes + 1 - len(body))
            if len(body) > most_bytes:
                raise too_large(key, len(body), most_bytes)
            return body, status.st_mtime

    def _read(self, key: str) -> tuple[bytes, float] | None:
        """The bytes, and when they were written, in seconds since 1970."""
        opened = self._open(key)
        if opened is None:
            return None
        descriptor, status = opened
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            # As listings do: what is no regular file is no object, and may block or never end.
            return (file.read(), status.st_mtime) if S_ISREG(status.st_mode) else None

    def _open(self, key: str) -> tuple[int, os.stat_result] | None:
        """The file of a key, opened for reading by no link below the root; None if it does not exist, or is a folder.

        Raises:
            MalformedMessageError: a link has its name, or that of a folder above it; or it is a socket.
        """
        path = self._at(key)
        for _ in range(OPEN_TRIES):
            try:
                descriptor = os.open(path, _READ_FLAGS)
            except (FileNotFoundError, NotADirectoryError):
                self._refuse_links_to(key)
                return None
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENXIO):
                    raise
                raise _no_record(key, _LINKED if error.errno == errno.ELOOP else "it is a socket or a device") from None
            status = os.fstat(descriptor)
            is_at = self._is_at(_real_path(descriptor, path), key)
            if is_at and not S_ISDIR(status.st_mode):
                return descriptor, status
            os.close(descriptor)
            if is_at:
                return None
            self._refuse_links_to(key)  # else it was just moved
        raise _no_record(key, _LINKED)

    def _is_at(self, real_path: str, key: str) -> bool:
        for _ in range(2):
            expected = f"{self._real_root.rstrip('/')}/{key}"
            if real_path in (expected, f"{expected} (deleted)"):  # as Linux calls one that was just replaced
                return True
            self._real_root = os.path.realpath(self._root)  # it may be a link that was changed, or a disk mounted since
        return False

    def _refuse_links_to(self, key: str) -> None:
        """Refuse to read what a link below the root leads to. Raises MalformedMessageError."""
        if self._link_above(key) is not None:
            raise _no_record(key, _LINKED)

    def read_range(self, key: str, start: int, size_bytes: int) -> bytes | None:
        with disk_errors("get", key, self.root):
            opened = self._open(key)
            if opened is None:
                return None
            descriptor, status = opened
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                if not S_ISREG(status.st_mode):
                    return None
                file.seek(start)
                return file.read(size_bytes)

    def head(self, key: str) -> ObjectInfo | None:
        path = self._at(key)
        with disk_errors("head", key, self.root):
            self._refuse_links_to(key)
            status = _file_status(path)
            if status is None and os.path.islink(path):  # noqa: PTH114 - see ``_at``
                raise _no_record(key, _LINKED)
        if status is None:
            return None
        return ObjectInfo(key, status.st_size, modified_at=datetime.fromtimestamp(status.st_mtime, timezone.utc))

    def create(self, key: str, body: bytes) -> str:
        target = self.path_of(key)
        with disk_errors("create", key, self.root) as act:
            self._refuse_links(key)
            if os.path.lexists(target):
                raise _exists(key, target)
            with self._temporary_beside(target) as temporary:
                self._write(temporary, (body,))
                self._name_once(temporary, target, key)
                act.landed = True
            self._sync(target.parent)
        return _version_of(body)

    def replace(self, key: str, body: bytes, version: str) -> str:
        target = self.path_of(key)
        with disk_errors("replace", key, self.root) as act, suppress(FileNotFoundError, NotADirectoryError):
            self._refuse_links(key)
            with folder_lock(target.parent, self._clock):
                self._check_version(key, version)
                with self._temporary_beside(target) as temporary:
                    self._write(temporary, (body,))
                    temporary.rename(target)
                    act.landed = True
            self._sync(target.parent)
            return _version_of(body)
        raise VersionConflictError("the object is gone", key=key)

    def put(self, key: str, body: bytes) -> str:
        return self.put_pieces(key, (body,), len(body))

    def put_pieces(self, key: str, pieces: Iterable[bytes], size_bytes: int) -> str:  # noqa: ARG002 - a disk takes all
        target, digest = self.path_of(key), hashlib.sha256()

        def hashed() -> Iterator[bytes]:
            for piece in pieces:
                digest.update(piece)
                yield piece

        with disk_errors("put", key, self.root) as act:
            self._refuse_links(key)
            with self._temporary_beside(target) as temporary:
                self._write(temporary, hashed())
                self._rename_over(temporary, target)
                act.landed = True
            self._sync(target.parent)
        return digest.hexdigest()

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._sized(self.list_keys(prefix))

    def list_keys(self, prefix: str) -> list[str]:
        """The keys of ``list_objects`` without a stat of each file (``base.ListsKeys``)."""
        folder, _, start_of_name = check_prefix(prefix).rpartition("/")
        found: list[str] = []
        with disk_errors("list", prefix, self.root):
            self._refuse_links(f"{folder}/")
            self._collect(folder, start_of_name, found)
        return found

    def list_folders(self, folder: str) -> list[str]:
        check_folder(folder)
        with disk_errors("list", folder, self.root):
            self._refuse_links(f"{folder}/")
            names = [name[:-1] for name in _names(f"{self._root}/{folder}") if name.endswith("/")]
            # A folder without an object exists on a disk only; no other store would know it.
            return [name for name in names if self._holds_object(_join(folder, name))]

    def copy(self, source_key: str, target_key: str) -> None:
        source, target = self.path_of(source_key), self.path_of(target_key)
        with disk_errors("copy", target_key, self.root) as act:
            self._refuse_links(source_key)
            self._refuse_links(target_key)
            self._check_source(str(source), source_key)
            with self._temporary_beside(target) as temporary:
                self._copy_bytes(source, temporary, source_key)
                self._rename_over(temporary, target)
                act.landed = True
            self._syncs.note(target.parent)

    def link(self, source_key: str, target_key: str) -> bool:
        source, target = self._at(source_key), self._at(target_key)
        with disk_errors("link", target_key, self.root) as act:
            self._refuse_links(source_key)
            self._refuse_links(target_key)
            self._check_source(source, source_key)
            try:
                self._link(source, target, source_key)
            except OSError as error:
                if error.errno not in LINK_REFUSED:
                    raise
            else:
                act.landed = True
                self._syncs.note(Path(target).parent)
                return True
        self.copy(source_key, target_key)
        return False

    def delete(self, key: str, version: str | None = None) -> None:
        target = self.path_of(key)
        with disk_errors("delete", key, self.root), suppress(FileNotFoundError, NotADirectoryError):
            self._refuse_links(key)
            with folder_lock(target.parent, self._clock):
                if version is not None:
                    self._check_version(key, version, absence_is_fine=True)
                if not S_ISDIR(target.lstat().st_mode):
                    target.unlink()
                    self._syncs.note(target.parent)

    # writing

    @contextmanager
    def _temporary_beside(self, target: Path) -> Iterator[Path]:
        """A new name in the target's folder; a file that still has it at the end is removed."""
        self._make_folder(target.parent)
        temporary = target.parent / f"{TEMPORARY_PREFIX}{self._clock.new_uuid()}"
        try:
            yield temporary
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def make_root(self) -> None:
        """Make the folder of this store; raises as ``put``."""
        with disk_errors("create", "", self.root):
            self._make_missing(self.root)

    def expect_root(self) -> None:
        """From now on no write makes the folder, as with ``makes_root`` False."""
        self._makes_root = False

    @contextmanager
    def made_for_a_while(self) -> Iterator[None]:
        """The folder of this store is there within the block; folders that were made for it are removed."""
        made = [folder for folder in (self.root, *self.root.parents) if not folder.is_dir()]
        self.make_root()
        try:
            yield
        finally:
            with suppress(OSError):
                for folder in made:
                    folder.rmdir()

    def _make_folder(self, folder: Path) -> None:
        if not self._makes_root and not self.root.is_dir():
            raise UnavailableError(
                "the folder of this store is not there",
                root=self._root,
                next_step="Mount its disk, or bring the folder back.",
            )
        self._make_missing(folder)

    def _make_missing(self, folder: Path) -> None:
        missing: list[Path] = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for new in reversed(missing):
            new.mkdir(exist_ok=True)
            self._syncs.note(new.parent)

    def _write(self, path: Path, pieces: Iterable[bytes]) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[file.write(rest) :]
            self._syncs.sync(descriptor)

    def _copy_bytes(self, source: Path, temporary: Path, source_key: str) -> None:
        try:
            shutil.copyfile(source, temporary)
        except FileNotFoundError:
            raise missing_source(source_key) from None
        with temporary.open("rb") as file:
            self._syncs.sync_file(file.fileno())

    def _name_once(self, temporary: Path, target: Path, key: str) -> None:
        """Give the temporary file its name if that is free, by one system call."""
        try:
            os.link(temporary, target)
        except FileExistsError:
            raise _exists(key, target) from None
        except OSError as error:
            if error.errno not in LINK_REFUSED:
                raise
            # No hard links here: the lock makes it exclusive among all users of this store.
            with folder_lock(target.parent, self._clock):
                if os.path.lexists(target):
                    raise _exists(key, target) from None
                temporary.rename(target)

    def can_name_once(self, key: str) -> bool:
        """Whether ``create`` alongside this key is exclusive also among programs that do not take the folder's lock.

        Raises:
            UnavailableError, InvalidRequestError: nothing can be written there.
        """
        target = self.path_of(key)
        with disk_errors("create", key, self.root), self._temporary_beside(target) as one:
            self._write(one, ())
            with self._temporary_beside(target) as other:
                try:
                    os.link(one, other)
                except OSError as error:
                    if error.errno not in LINK_REFUSED:
                        raise
                    return False
        return True

    def _link(self, source: str, target: str, source_key: str) -> None:
        try:
            self._link_into_folder(source, target)
        except FileNotFoundError:
            raise missing_source(source_key) from None
        except FileExistsError:
            there = Path(target)
            if there.is_dir():
                raise
            # ``rename`` does nothing where both names are one file already; the temporary one is removed anyway.
            with self._temporary_beside(there) as temporary:
                os.link(source, temporary)
                self._rename_over(temporary, there)

    def _link_into_folder(self, source: str, target: str) -> None:
        try:
            os.link(source, target)
        except FileNotFoundError:  # mostly the folder; else the source, and the second try fails too
            self._make_folder(Path(target).parent)
            os.link(source, target)

    def _rename_over(self, temporary: Path, target: Path) -> None:
        # The lock keeps this out of the middle of a replace, which would overwrite it unseen.
        with folder_lock(target.parent, self._clock):
            temporary.rename(target)

    def _sync(self, folder: Path) -> None:
        self._syncs.note(folder)
        self._syncs.sync()

    # checks and reading

    def _check_version(self, key: str, version: str, *, absence_is_fine: bool = False) -> None:
        found = self._read(key)
        if found is None:
            if absence_is_fine:
                return
            raise VersionConflictError("the object is gone", key=key)
        if _version_of(found[0]) != version:
            raise VersionConflictError("the object has another version", key=key)

    def _refuse_links(self, key: str) -> None:
        """Refuse a key that a symbolic link below the root leads to: what it names belongs to others, or to nobody.

        Not of the last part, which no write follows. Whoever can write there may still make a link right after this.
        """
        link = self._link_above(key)
        if link is not None:
            raise link_in_the_way(link)

    def _link_above(self, key: str) -> str | None:
        """The first folder of a key that is a symbolic link below the root."""
        path = self._root
        for part in key.split("/")[:-1]:
            path = f"{path}/{part}"
            try:
                mode = os.lstat(path).st_mode
            except (FileNotFoundError, NotADirectoryError):
                return None
            if S_ISLNK(mode) and part:
                return path
        return None

    def _check_source(self, source: str, source_key: str) -> None:
        if _file_size(source) is None:
            raise missing_source(source_key)

    def _collect(self, folder: str, start_of_name: str, found: list[str]) -> None:
        for name in _names(f"{self._root}/{folder}", start_of_name):
            key = _join(folder, name)
            if name.endswith("/"):
                self._collect(key[:-1], "", found)
            elif is_plain(key) or is_key(key):
                found.append(key)

    def _holds_object(self, folder: str) -> bool:
        names = _names(f"{self._root}/{folder}")
        if any(is_key(_join(folder, name)) for name in names if not name.endswith("/")):
            return True
        return any(self._holds_object(_join(folder, name[:-1])) for name in names if name.endswith("/"))

    def _sized(self, keys: list[str]) -> Iterator[ObjectInfo]:
        for key in keys:
            with disk_errors("list", key, self.root):
                size_bytes = _file_size(f"{self._root}/{key}")
            # Spark deletes its old files at any time.
            if size_bytes is not None:
                yield ObjectInfo(key, size_bytes)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _names(folder: str, start_of_name: str = "") -> list[str]:
    """The files of a folder, and its folders with a slash at their end, in the order of keys: "a-b" < "a/b" < "ab"."""
    names = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if not name.startswith(start_of_name) or name.startswith(TEMPORARY_PREFIX):
                    continue
                # Links are neither: they may lead out of the root, or in a circle.
                if entry.is_dir(follow_symlinks=False):
                    names.append(f"{name}/")
                elif entry.is_file(follow_symlinks=False):
                    names.append(name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    names.sort()
    return names


def _stored(key: str, body: bytes, modified: float) -> StoredObject:
    return StoredObject(key, body, _version_of(body), datetime.fromtimestamp(modified, timezone.utc))


def _real_path(descriptor: int, path: str) -> str:
    """Where an open file is, by any links; a file that was just replaced is where it was."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - see ``_at``
    except OSError:  # no Linux
        return os.path.realpath(path)


def _no_record(key: str, reason: str) -> MalformedMessageError:
    return MalformedMessageError(
        "this object is no record of ours",
        key=key,
        reason=reason,
        next_step="Look who made it, and remove it; restore the record from a backup or a mirror.",
    )


def _file_size(path: str) -> int | None:
    status = _file_status(path)
    return None if status is None else status.st_size


def _file_status(path: str) -> os.stat_result | None:
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status if S_ISREG(status.st_mode) else None


def _version_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _exists(key: str, target: Path) -> ObjectExistsError | InvalidRequestError:
    if target.is_dir():
        return InvalidRequestError("a folder has the name of this key", key=key, next_step="Choose another key.")
    return ObjectExistsError("an object is there already", key=key)
