"""A store in a folder of a local disk: keys are paths, versions are digests of the bytes.

Nothing is written in place: bytes go to a temporary file beside their target, are synced, and get their name by one
``link`` or ``rename``. Names that begin with a dot are objects like others (Spark's ``.5.crc``); only the store's own
temporary files are not.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISREG

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.errors import (
    InvalidRequestError,
    ObjectExistsError,
    ObjectMissingError,
    UnavailableError,
    VersionConflictError,
)
from airflow_streamstate.store.disk import FILE_MODE, LINK_REFUSED, FolderSyncs, disk_errors, folder_lock
from airflow_streamstate.store.interface import ObjectInfo, StoredObject
from airflow_streamstate.store.keys import TEMPORARY_PREFIX, check_folder, check_key, check_prefix, is_key, is_plain


class LocalStore:
    """Objects as files below ``root``.

    Args:
        root: the folder; made absolute at once.
        makes_root: whether the first write makes the folder. Without it a write where the folder is not there raises
            UnavailableError, until ``make_root`` was called: a disk that is not mounted gets no folder in its place.
        fsync: whether writes outlive a power cut. Off only where nothing has to (tests, simulations).
        clock: for temporary names and for waits on a lock.
    """

    def __init__(
        self, root: Path | str, *, fsync: bool = True, clock: Clock = SYSTEM_CLOCK, makes_root: bool = True
    ) -> None:
        self.root = Path(os.path.abspath(root))  # noqa: PTH100 - resolve() would ask the disk, and follow links
        self._root = str(self.root)
        self._makes_root = makes_root
        self._clock = clock
        self._syncs = FolderSyncs(fsync)

    @property
    def uri(self) -> str:
        return str(self.root)

    def path_of(self, key: str) -> Path:
        """Where the object is, or would be, on the disk: for programs that need a path, like Spark.

        Raises:
            InvalidRequestError: the key is not one.
        """
        return self.root / check_key(key)

    def _at(self, key: str) -> str:
        """As ``path_of``, for what is done a hundred times in a snapshot: a ``Path`` costs more than the disk does."""
        return f"{self._root}/{check_key(key)}"

    def get(self, key: str) -> StoredObject | None:
        path = self._at(key)
        with disk_errors("get", key, self.root):
            body = _read(path)
        return None if body is None else StoredObject(key, body, _version_of(body))

    def read_range(self, key: str, start: int, size_bytes: int) -> bytes | None:
        with disk_errors("get", key, self.root):
            try:
                file = self.path_of(key).open("rb", buffering=0)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None
            with file:
                file.seek(start)
                return file.read(size_bytes)

    def head(self, key: str) -> ObjectInfo | None:
        path = self._at(key)
        with disk_errors("head", key, self.root):
            status = _file_status(path)
        if status is None:
            return None
        return ObjectInfo(key, status.st_size, modified_at=datetime.fromtimestamp(status.st_mtime, UTC))

    def create(self, key: str, body: bytes) -> str:
        target = self.path_of(key)
        with disk_errors("create", key, self.root) as act:
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
            with folder_lock(target.parent, self._clock):
                self._check_version(target, key, version)
                with self._temporary_beside(target) as temporary:
                    self._write(temporary, (body,))
                    temporary.rename(target)
                    act.landed = True
            self._sync(target.parent)
            return _version_of(body)
        raise _changed(key, "the object is gone")

    def put(self, key: str, body: bytes) -> str:
        return self.put_pieces(key, (body,), len(body))

    def put_pieces(self, key: str, pieces: Iterable[bytes], size_bytes: int) -> str:  # noqa: ARG002 - a disk takes all
        target, digest = self.path_of(key), hashlib.sha256()

        def hashed() -> Iterator[bytes]:
            for piece in pieces:
                digest.update(piece)
                yield piece

        with disk_errors("put", key, self.root) as act:
            with self._temporary_beside(target) as temporary:
                self._write(temporary, hashed())
                self._rename_over(temporary, target)
                act.landed = True
            self._sync(target.parent)
        return digest.hexdigest()

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._sized(self.list_keys(prefix))

    def list_keys(self, prefix: str) -> list[str]:
        """The keys of ``list_objects`` without a look at each file. Implements ``listing.ListsKeys``."""
        folder, _, start_of_name = check_prefix(prefix).rpartition("/")
        found: list[str] = []
        with disk_errors("list", prefix, self.root):
            self._collect(folder, start_of_name, found)
        return found

    def list_folders(self, folder: str) -> list[str]:
        check_folder(folder)
        with disk_errors("list", folder, self.root):
            names = [name[:-1] for name in _names(f"{self._root}/{folder}") if name.endswith("/")]
            # A folder without an object exists on a disk only; no other store would know it.
            return [name for name in names if self._holds_object(_join(folder, name))]

    def copy(self, source_key: str, target_key: str) -> None:
        source, target = self.path_of(source_key), self.path_of(target_key)
        with disk_errors("copy", target_key, self.root) as act:
            self._check_source(str(source), source_key)
            with self._temporary_beside(target) as temporary:
                self._copy_bytes(source, temporary, source_key)
                self._rename_over(temporary, target)
                act.landed = True
            self._syncs.note(target.parent)

    def link(self, source_key: str, target_key: str) -> bool:
        source, target = self._at(source_key), self._at(target_key)
        with disk_errors("link", target_key, self.root) as act:
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
        with (
            disk_errors("delete", key, self.root),
            suppress(FileNotFoundError, NotADirectoryError),
            folder_lock(target.parent, self._clock),
        ):
            if version is not None:
                self._check_version(target, key, version, absence_is_fine=True)
            if not target.is_dir():
                target.unlink()
                self._syncs.note(target.parent)

    # writing

    @contextmanager
    def _temporary_beside(self, target: Path) -> Iterator[Path]:
        """A new name in the target's folder; what is left under it at the end is removed, whatever happened."""
        self._make_folder(target.parent)
        temporary = target.parent / f"{TEMPORARY_PREFIX}{self._clock.new_uuid()}"
        try:
            yield temporary
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def make_root(self) -> None:
        """Make the folder of this store, where it is not there; raises as ``put``."""
        with disk_errors("create", "", self.root):
            self._make_missing(self.root)

    def expect_root(self) -> None:
        """From now on no write makes the folder: it was there, as with ``makes_root`` False."""
        self._makes_root = False

    @contextmanager
    def made_for_a_while(self) -> Iterator[None]:
        """Within the block the folder of this store is there; folders that were made for it go again."""
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
            raise _missing(source_key) from None
        with temporary.open("rb") as file:
            self._syncs.sync_file(file.fileno())

    def _name_once(self, temporary: Path, target: Path, key: str) -> None:
        """Give the temporary file its name if nobody has it: whole and at most once, by one system call."""
        try:
            os.link(temporary, target)
        except FileExistsError:
            raise _exists(key, target) from None
        except OSError as error:
            if error.errno not in LINK_REFUSED:
                raise
            # No hard links here: exclusive among all who use this store, by the lock that they all take.
            with folder_lock(target.parent, self._clock):
                if os.path.lexists(target):
                    raise _exists(key, target) from None
                temporary.rename(target)

    def can_name_once(self, key: str) -> bool:
        """Whether ``create`` beside this key is exclusive also among programs that take no lock of this store's.

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
            raise _missing(source_key) from None
        except FileExistsError:
            there = Path(target)
            if there.is_dir():
                raise
            # ``rename`` does nothing where both names are one file already; the temporary one goes in any case.
            with self._temporary_beside(there) as temporary:
                os.link(source, temporary)
                self._rename_over(temporary, there)

    def _link_into_folder(self, source: str, target: str) -> None:
        try:
            os.link(source, target)
        except FileNotFoundError:  # the folder, mostly; else the source, which the second try tells
            self._make_folder(Path(target).parent)
            os.link(source, target)

    def _rename_over(self, temporary: Path, target: Path) -> None:
        # The lock keeps this out of the middle of a replace, which would undo it unseen.
        with folder_lock(target.parent, self._clock):
            temporary.rename(target)

    def _sync(self, folder: Path) -> None:
        self._syncs.note(folder)
        self._syncs.sync()

    # checks and reading

    def _check_version(self, target: Path, key: str, version: str, *, absence_is_fine: bool = False) -> None:
        body = _read(target)
        if body is None:
            if absence_is_fine:
                return
            raise _changed(key, "the object is gone")
        if _version_of(body) != version:
            raise _changed(key, "the object has another version")

    def _check_source(self, source: str, source_key: str) -> None:
        if _file_size(source) is None:
            raise _missing(source_key)

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
            # Spark deletes its old files at any time: what is gone meanwhile is not in the listing.
            if size_bytes is not None:
                yield ObjectInfo(key, size_bytes)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _names(folder: str, start_of_name: str = "") -> list[str]:
    """What lies in a folder, in the order of its keys: files, and folders with a slash at their end.

    A folder stands where its keys stand: "a-b" < "a/b" < "ab".
    """
    names = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if not name.startswith(start_of_name) or name.startswith(TEMPORARY_PREFIX):
                    continue
                if entry.is_dir():
                    names.append(f"{name}/")
                elif entry.is_file():
                    names.append(name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    names.sort()
    return names


def _read(path: str | Path) -> bytes | None:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - see ``_at``
            return file.read()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def _file_size(path: str) -> int | None:
    status = _file_status(path)
    return None if status is None else status.st_size


def _file_status(path: str) -> os.stat_result | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - see ``_at``
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status if S_ISREG(status.st_mode) else None


def _version_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _exists(key: str, target: Path) -> ObjectExistsError | InvalidRequestError:
    if target.is_dir():
        return InvalidRequestError("a folder has the name of this key", key=key, next_step="Choose another key.")
    return ObjectExistsError("an object is there already", key=key)


def _changed(key: str, message: str) -> VersionConflictError:
    return VersionConflictError(message, key=key)


def _missing(source_key: str) -> ObjectMissingError:
    return ObjectMissingError("there is no object to copy or link", key=source_key)
