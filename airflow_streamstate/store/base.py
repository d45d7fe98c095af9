"""The interface of every store; ``tests/contract/store`` checks each backend."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass as mutable_dataclass
from dataclasses import field
from datetime import datetime
from typing import Protocol, TypeVar, runtime_checkable

from airflow_streamstate.errors import InvalidRequestError, MalformedMessageError, ObjectMissingError
from airflow_streamstate.frozen import dataclass


@dataclass(frozen=True)
class StoredObject:
    """One object as read; ``version`` is opaque, and equal versions of one key mean equal bytes.

    Attributes:
        modified_at: as of ``ObjectInfo``, where the backend reports it with the bytes.
    """

    key: str
    body: bytes
    version: str
    modified_at: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True)
class ObjectInfo:
    """One object as listed.

    Attributes:
        version: as in StoredObject, where the backend knows it without reading the bytes (S3 does); else "".
        modified_at: when these bytes were written, by the backend's clock, where ``head`` knows it; a link keeps it.
    """

    key: str
    size_bytes: int
    version: str = field(default="", compare=False)
    modified_at: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Link:
    """One of many objects to link; ``size_bytes``, where it is known, spares requests for large objects."""

    source_key: str
    target_key: str
    size_bytes: int | None = None


class Store(Protocol):
    """Bytes under keys, with conditions."""

    @property
    def uri(self) -> str:
        """Where this store is, without credentials: a folder path, ``s3://bucket/prefix`` or ``memory://name``."""

    def get(self, key: str) -> StoredObject | None:
        """The object, or None if it does not exist."""

    def head(self, key: str) -> ObjectInfo | None:
        """Size without the bytes, or None if it does not exist."""

    def create(self, key: str, body: bytes) -> str:
        """Write only if nothing is there; whole or not at all; durable on return. Returns the new version.

        A write whose reply was lost is read back, also with other writers of equal bytes; an outcome that stays unknown
        raises OutcomeUnknownError.

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

        Temporary files of the backend itself and directory markers (keys that end in a slash) are not objects; other
        programs' temporary files are.
        """

    def list_folders(self, folder: str) -> list[str]:
        """The names of sub-folders directly below ``folder`` (a key without trailing ``/``; "" is the root), sorted.

        A folder that holds nothing but another program's directory marker may be among them.
        """

    def copy(self, source_key: str, target_key: str) -> None:
        """Copy the bytes, by the server where it can, over what is at the target.

        Raises:
            ObjectMissingError: there is no source.
        """

    def link(self, source_key: str, target_key: str) -> bool:
        """As ``copy``, sharing the bytes where the backend can (none writes in place). True if no byte was copied.

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
    """A store that handles many objects with few requests; ``transfer`` does it with every store."""

    def link_many(self, links: Sequence[Link]) -> list[str]:
        """``Store.link`` each, several at a time; returns the ``checksum_of`` each target.

        Nothing runs on after the return. Where it raises, some are linked, and the same call may be repeated.

        Raises:
            ObjectMissingError: a source is not there (any more).
            UnavailableError, OutcomeUnknownError: one could not be linked within its tries.
        """

    def delete_many(self, keys: Sequence[str]) -> None:
        """``Store.delete`` each, without condition; absence is success. Repeatable like ``link_many``."""

    def checksum_of(self, key: str) -> str | None:
        """The server's checksum of the bytes, which are not read; None if there is no object.

        ``crc32:``, ``crc32c:``, ``crc64nvme:``, ``sha1:``, ``sha256:`` or ``md5:`` and lower-case hex digits of the
        whole body: equal ones mean equal bytes. ``etag:`` where the server keeps none: equal ones of *one* key mean
        that it was not written since.
        """

    def checksums_of(self, keys: Sequence[str]) -> list[str | None]:
        """``checksum_of`` each, several at a time, in the order of the keys.

        Raises:
            UnavailableError: one could not be asked for within its tries.
        """


@runtime_checkable
class ListsKeys(Protocol):
    """A store that lists names for less than sizes."""

    def list_keys(self, prefix: str) -> list[str]:
        """The keys of ``Store.list_objects``, in its order."""


@runtime_checkable
class ReadsRanges(Protocol):
    """A store that reads parts of objects."""

    def read_range(self, key: str, start: int, size_bytes: int) -> bytes | None:
        """This many bytes from ``start`` on, fewer where the object ends before; None if there is no object."""


def bounded_get(store: Store, key: str, most_bytes: int) -> StoredObject | None:
    """``Store.get`` of an object that others may have written, and that is small if it is what its key names.

    A store with a ``get_within`` of this signature reads no more of the object than was asked for.

    Raises:
        MalformedMessageError: it is larger; on a disk also where it is no regular file, or outside of the folder.
    """
    # Not by ``isinstance``, which costs more than the read of a small file.
    get_within: Callable[[str, int], StoredObject | None] | None = getattr(store, "get_within", None)
    if get_within is not None:
        return get_within(key, most_bytes)
    found = store.get(key)
    if found is not None and len(found.body) > most_bytes:
        raise too_large(key, len(found.body), most_bytes)
    return found


def too_large(key: str, size_bytes: int, most_bytes: int) -> MalformedMessageError:
    """The error of ``bounded_get``; of an object that grows while it is read, ``size_bytes`` is what was read."""
    return MalformedMessageError(
        "this object is larger than one of its kind can be",
        key=key,
        size_bytes=size_bytes,
        most_bytes=most_bytes,
        next_step="Look who wrote it; restore it from a backup or a mirror.",
    )


@runtime_checkable
class PutsPieces(Protocol):
    """A store that puts bytes as they come."""

    def put_pieces(self, key: str, pieces: Iterable[bytes], size_bytes: int) -> str:
        """``Store.put`` of bytes that come in pieces of any size, ``size_bytes`` together; the version.

        The pieces are asked for from one thread, each once. What ``pieces`` raises is raised, and nothing was changed.
        """


@runtime_checkable
class HoldsUploads(Protocol):
    """A store that keeps the parts of an upload that was never completed."""

    def end_uploads(self, folder: str, before: datetime, *, is_dry: bool = False) -> int:
        """As ``cleanup.end_uploads``."""


@runtime_checkable
class HoldsMarkers(Protocol):
    """A store in which other programs mark folders by objects that ``list_objects`` leaves out."""

    def delete_markers(self, folder: str, but: Collection[str] = ()) -> None:
        """Delete the markers of a folder and of all below it; arguments as ``cleanup.delete_below``."""


# The form of a key: the strictest rules of all backends together, so that every backend takes the same keys.

MAX_KEY_BYTES = 900
TEMPORARY_PREFIX = ".~streamstate-"
"""The beginning of the names of a backend's own temporary and lock files, which are never listed; no key has it."""


def check_key(key: str) -> str:
    """The key, unchanged, if it may name an object: relative, ``/``-separated, at most MAX_KEY_BYTES of UTF-8.

    Raises:
        InvalidRequestError: it is empty, absolute or too long, or has an empty, ``.`` or ``..`` part, a control
            character, or a part with the reserved prefix.
    """
    _check_text(key)
    for part in key.split("/"):
        if part in ("", ".", ".."):
            raise _bad_key("a key has an empty, '.' or '..' part", key)
        if part.startswith(TEMPORARY_PREFIX):
            raise _bad_key("a key uses a name that is reserved for temporary files", key)
    return key


def check_prefix(prefix: str) -> str:
    """The prefix, unchanged, if keys can start with it; its last part may be empty or cut short. "" is every key.

    Raises:
        InvalidRequestError: no key can start like this.
    """
    _check_text(prefix)
    folder, slash, _ = prefix.rpartition("/")
    if slash:
        check_key(folder)
    return prefix


def check_folder(folder: str) -> str:
    """The folder, unchanged, if it is a key without its last part; "" is the root.

    Raises:
        InvalidRequestError: no key can be in it.
    """
    return check_key(folder) if folder else folder


def is_key(text: str) -> bool:
    """Whether ``check_key`` takes it; listings skip all other names."""
    try:
        check_key(text)
    except InvalidRequestError:
        return False
    return True


def is_plain(text: str) -> bool:
    """Whether a path of file names is surely a key: a cheap test for listings of thousands."""
    return text.isascii() and text.isprintable() and len(text) <= MAX_KEY_BYTES


def missing_source(key: str) -> ObjectMissingError:
    """The error of ``Store.copy`` and ``Store.link`` if there is no source."""
    return ObjectMissingError("there is no object to copy or link", key=key)


def _check_text(text: str) -> None:
    # Cc: control characters with NUL; Cs: halves of surrogate pairs, which have no UTF-8.
    if not is_plain(text) and any(unicodedata.category(char) in ("Cc", "Cs") for char in text):
        raise _bad_key("a key has a control character or one that UTF-8 cannot hold", text)
    if len(text.encode()) > MAX_KEY_BYTES:
        raise InvalidRequestError("a key is too long", key=text[:80] + "…", max_bytes=MAX_KEY_BYTES)


def _bad_key(message: str, key: str) -> InvalidRequestError:
    return InvalidRequestError(
        message, key=ascii(key), next_step="Keys are relative, with parts separated by single slashes."
    )


# How long a poll of one stream may delay the polls of others.
#
# Whoever looks at many streams in turn gives each a short time: it waits little for a lock, and reads a part of a long
# list, and the rest at its next poll. A poll that ends so decides nothing. All else waits with a deadline, and reads
# all.

T = TypeVar("T")

SHORT_SECONDS = 0.5
"""For all locks of one poll together: a writer of ours holds one for some milliseconds."""
MOST_EVENTS = 1_000
"""That one poll reads of a stream: on a far store half a minute."""


@mutable_dataclass
class StorePatience:
    """For how long whatever a block does may still wait for locks, altogether."""

    left_seconds: float


PATIENCE: ContextVar[StorePatience | None] = ContextVar("streamstate_patience", default=None)


@contextmanager
def one_of_many() -> Iterator[None]:
    """The block is a poll of one stream of many: within it a kept lock, and a list too long for one poll, is an
    error."""
    token = PATIENCE.set(StorePatience(SHORT_SECONDS))
    try:
        yield
    finally:
        PATIENCE.reset(token)


def as_one_of_many(call: Callable[..., T], *arguments: object) -> T:
    """The result of a call, within ``one_of_many``."""
    with one_of_many():
        return call(*arguments)


def most_events() -> int | None:
    """How many events the current poll may read; None for all."""
    return None if PATIENCE.get() is None else MOST_EVENTS
