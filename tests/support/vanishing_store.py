"""A store that is away for a while: unmounted, renamed, forbidden or read-only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from airflow_streamstate.errors import ReadOnlyError, StoreRefusedError, UnavailableError
from airflow_streamstate.store.base import ObjectInfo, Store, StoredObject
from airflow_streamstate.store.memory import MemoryStore

Absence = Literal["unmounted", "renamed", "refused", "read_only"]
ABSENCES: tuple[Absence, ...] = ("unmounted", "renamed", "refused", "read_only")


class VanishingStore:
    """Any store; while ``absence`` is set it is away in that way.

    Args:
        absent_when: returns at each call whether and how it is away; None: as ``vanish`` and ``come_back`` set it.
        in_its_place: takes what is written while it is unmounted; None: its own store.

    Attributes:
        absence: ``unmounted``: an empty place takes whatever is written. ``renamed``: reads find nothing, and a write
            has no folder to go to. ``refused``: no access. ``read_only``: reads are answered. None: it is there.
        in_its_place: what was written while it was unmounted.
    """

    def __init__(
        self, inner: Store, absent_when: Callable[[], Absence | None] | None = None, in_its_place: Store | None = None
    ) -> None:
        self.inner = inner
        self._absent_when = absent_when
        self._absence: Absence | None = None
        self.in_its_place: Store = in_its_place or MemoryStore("mount point")

    @property
    def absence(self) -> Absence | None:
        return self._absence if self._absent_when is None else self._absent_when()

    @property
    def uri(self) -> str:
        return self.inner.uri

    def vanish(self, absence: Absence) -> None:
        """Be away from now on."""
        self._absence = absence

    def come_back(self) -> None:
        """Be there again, as before."""
        self._absence = None

    def left_in_its_place(self) -> list[str]:
        """The keys of what was written while it was away."""
        return [info.key for info in self.in_its_place.list_objects("")]

    def get(self, key: str) -> StoredObject | None:
        return self._read().get(key)

    def head(self, key: str) -> ObjectInfo | None:
        return self._read().head(key)

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._read().list_objects(prefix)

    def list_folders(self, folder: str) -> list[str]:
        return self._read().list_folders(folder)

    def create(self, key: str, body: bytes) -> str:
        return self._write().create(key, body)

    def replace(self, key: str, body: bytes, version: str) -> str:
        return self._write().replace(key, body, version)

    def put(self, key: str, body: bytes) -> str:
        return self._write().put(key, body)

    def copy(self, source_key: str, target_key: str) -> None:
        self._write().copy(source_key, target_key)

    def link(self, source_key: str, target_key: str) -> bool:
        return self._write().link(source_key, target_key)

    def delete(self, key: str, version: str | None = None) -> None:
        self._write().delete(key, version)

    def _read(self) -> Store:
        if self.absence == "refused":
            raise StoreRefusedError("permission denied", root=self.uri)
        return self.in_its_place if self.absence in ("unmounted", "renamed") else self.inner

    def _write(self) -> Store:
        if self.absence == "refused":
            raise StoreRefusedError("permission denied", root=self.uri)
        if self.absence == "read_only":
            raise ReadOnlyError("the file system is read-only", root=self.uri)
        if self.absence == "renamed":
            raise UnavailableError("the folder of this store is not there", root=self.uri)
        return self.in_its_place if self.absence == "unmounted" else self.inner
