"""What every store promises; ``tests/contract`` holds each backend to it.

Keys are relative, ``/``-separated, without empty, ``.`` or ``..`` parts. The vocabulary of conditional writes (put,
create, replace-if-unchanged) is obstore's. Absence is not an error here: ``get`` and ``head`` answer None.

Every method may raise UnavailableError (nothing was changed) and InvalidRequestError (permission denied, no such
bucket or folder, bad key); a write may raise OutcomeUnknownError, but see ``create`` and ``replace``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class StoredObject:
    """One object as read.

    Attributes:
        key: its key, relative to the store.
        body: its bytes, whole.
        version: opaque; equal versions of one key mean equal bytes.
    """

    key: str
    body: bytes
    version: str


@dataclass(frozen=True)
class ObjectInfo:
    """One object as listed.

    Attributes:
        key: its key, relative to the store.
        size_bytes: exact.
        version: as in StoredObject, where the backend knows it without reading the bytes (S3 does); else "".
        modified_at: when these bytes came to be, by the backend's clock, where ``head`` can tell; a hard link keeps it.
    """

    key: str
    size_bytes: int
    version: str = field(default="", compare=False)
    modified_at: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Link:
    """One of many objects to link.

    Attributes:
        source_key, target_key: as in ``Store.link``.
        size_bytes: as listed; None where unknown. Knowing it spares requests for large objects.
    """

    source_key: str
    target_key: str
    size_bytes: int | None = None


class Store(Protocol):
    """Bytes under keys, with conditions."""

    @property
    def uri(self) -> str:
        """Where this store lies, without credentials: a folder path, ``s3://bucket/prefix`` or ``memory://name``."""

    def get(self, key: str) -> StoredObject | None:
        """The object, or None where there is none."""

    def head(self, key: str) -> ObjectInfo | None:
        """Size without the bytes, or None where there is none."""

    def create(self, key: str, body: bytes) -> str:
        """Write only if nothing is there; whole or not at all; durable on return. Returns the new version.

        A reply that was lost is made good by reading back, also beside others who write equal bytes; an outcome that
        stays unknown raises OutcomeUnknownError.

        Raises:
            ObjectExistsError: something is there already.
        """

    def replace(self, key: str, body: bytes, version: str) -> str:
        """Write only if the object still has ``version``. Returns the new version; a lost reply is as in ``create``.

        Raises:
            VersionConflictError: it has another version, or is gone.
        """

    def put(self, key: str, body: bytes) -> str:
        """Write, whatever is there; a reader sees the old bytes or the new, never a mixture. Returns the version."""

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key starts with ``prefix`` (a folder prefix ends in ``/``), in ascending key order.

        Left-over temporary files of the backend itself and directory markers (keys that end in a slash) are not
        objects. Other programs' temporary files are: who knows the program, knows their names.
        """

    def list_folders(self, folder: str) -> list[str]:
        """The names of sub-folders directly below ``folder`` (a key without trailing ``/``; "" is the root), sorted.

        A folder that holds nothing but another program's directory marker may be among them.
        """

    def copy(self, source_key: str, target_key: str) -> None:
        """Copy the bytes, by the server where it can; what is at the target is replaced.

        Raises:
            ObjectMissingError: there is no source.
        """

    def link(self, source_key: str, target_key: str) -> bool:
        """Like ``copy`` without copying bytes, where the backend can; else it copies. True if no byte was copied.

        The two share their bytes: only objects that are never written in place may be linked (no backend writes in
        place). What is at the target already is replaced.

        Raises:
            ObjectMissingError: there is no source.
        """

    def delete(self, key: str, version: str | None = None) -> None:
        """Delete; absence is success. With ``version``, only if it is unchanged (then absence is success, too).

        Raises:
            VersionConflictError: it has another version.
        """


@runtime_checkable
class ManyAtOnce(Protocol):
    """What a store may know beyond ``Store``: many objects with few requests. ``many`` does it with every store."""

    def link_many(self, links: Sequence[Link]) -> list[str]:
        """``Store.link`` each, several at a time; gives a checksum per target as ``checksum_of`` does.

        Nothing of it goes on after the return, also when it raises; then some are linked and some are not, and the
        same call may be repeated.

        Raises:
            ObjectMissingError: a source is not there (any more).
            UnavailableError, OutcomeUnknownError: one could not be linked within its tries.
        """

    def delete_many(self, keys: Sequence[str]) -> None:
        """``Store.delete`` each, without condition; absence is success. Repeatable like ``link_many``."""

    def checksum_of(self, key: str) -> str | None:
        """A checksum of the bytes that the server keeps, without reading them; None where there is no object.

        ``crc32:``, ``crc32c:``, ``crc64nvme:``, ``sha1:``, ``sha256:`` or ``md5:`` and lower-case hex digits of the
        whole body: equal ones mean equal bytes. ``etag:`` where the server keeps none: equal ones of *one* key mean
        that it was not written since.
        """

    def checksums_of(self, keys: Sequence[str]) -> list[str | None]:
        """``checksum_of`` each, several at a time, in the order of the keys.

        Raises:
            UnavailableError: one could not be asked for within its tries.
        """
