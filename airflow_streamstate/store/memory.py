"""A store in the memory of one process, for tests and simulations, with every promise of ``Store``."""

from __future__ import annotations

import bisect
import hashlib
import threading
from collections import Counter
from collections.abc import Iterator

from airflow_streamstate.errors import InvalidRequestError, ObjectExistsError, VersionConflictError
from airflow_streamstate.store.base import (
    ObjectInfo,
    StoredObject,
    check_folder,
    check_key,
    check_prefix,
    missing_source,
)


class MemoryStore:
    """Objects in a dictionary, under one lock. Versions are digests, as on a disk: equal bytes, equal version."""

    def __init__(self, name: str = "memory") -> None:
        self.name = name
        self._bodies: dict[str, bytes] = {}
        self._versions: dict[str, str] = {}
        self._sorted_keys: list[str] = []
        self._folders: Counter[str] = Counter()  # how many objects are anywhere below each folder
        self._lock = threading.RLock()

    @property
    def uri(self) -> str:
        return f"memory://{self.name}"

    def get(self, key: str) -> StoredObject | None:
        check_key(key)
        with self._lock:
            body = self._bodies.get(key)
            return None if body is None else StoredObject(key, body, self._versions[key])

    def head(self, key: str) -> ObjectInfo | None:
        check_key(key)
        with self._lock:
            body = self._bodies.get(key)
            return None if body is None else ObjectInfo(key, len(body), self._versions[key])

    def create(self, key: str, body: bytes) -> str:
        check_key(key)
        with self._lock:
            if key in self._bodies:
                raise ObjectExistsError("an object is there already", key=key)
            return self.put(key, body)

    def replace(self, key: str, body: bytes, version: str) -> str:
        check_key(key)
        with self._lock:
            self._check_version(key, version)
            return self.put(key, body)

    def put(self, key: str, body: bytes) -> str:
        check_key(key)
        body = bytes(body)  # its owner may change a bytearray later
        version = _version_of(body)
        with self._lock:
            if key not in self._bodies:
                self._add_key(key)
            self._bodies[key] = body
            self._versions[key] = version
        return version

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        found = []
        with self._lock:
            for key in self._sorted_keys[bisect.bisect_left(self._sorted_keys, prefix) :]:
                if not key.startswith(prefix):
                    break
                found.append(ObjectInfo(key, len(self._bodies[key]), self._versions[key]))
        return iter(found)

    def list_folders(self, folder: str) -> list[str]:
        start = f"{check_folder(folder)}/" if folder else ""
        with self._lock:
            below = [name[len(start) :] for name in self._folders if name.startswith(start)]
        return sorted(name for name in below if name and "/" not in name)

    def copy(self, source_key: str, target_key: str) -> None:
        check_key(source_key)
        check_key(target_key)
        with self._lock:
            if source_key not in self._bodies:
                raise missing_source(source_key)
            self.put(target_key, self._bodies[source_key])

    def link(self, source_key: str, target_key: str) -> bool:
        self.copy(source_key, target_key)  # bytes objects are shared by their nature
        return True

    def delete(self, key: str, version: str | None = None) -> None:
        check_key(key)
        with self._lock:
            if key not in self._bodies:
                return
            if version is not None:
                self._check_version(key, version)
            del self._bodies[key], self._versions[key]
            del self._sorted_keys[bisect.bisect_left(self._sorted_keys, key)]
            self._folders.subtract(_parents(key))
            for parent in _parents(key):
                if self._folders[parent] == 0:
                    del self._folders[parent]

    def _add_key(self, key: str) -> None:
        if key in self._folders or any(parent in self._bodies for parent in _parents(key)):
            # A disk cannot have both.
            raise InvalidRequestError(
                "an object and a folder cannot have the same name", key=key, next_step="Choose another key or folder."
            )
        bisect.insort(self._sorted_keys, key)
        self._folders.update(_parents(key))

    def _check_version(self, key: str, version: str) -> None:
        if key not in self._bodies:
            raise VersionConflictError("the object is gone", key=key)
        if self._versions[key] != version:
            raise VersionConflictError("the object has another version", key=key)


def _parents(key: str) -> list[str]:
    parts = key.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _version_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
