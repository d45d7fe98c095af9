"""A store on a server, over the client of one bucket or container: the same rules for every server.

A lost reply must not look like a conflict: a client that sends a conditional write again gets the answer that the
condition does not hold, as if another writer had won. So clients send a write once, and the store repeats it after
reading back (Law 8). Every put has its own id in the object's metadata, by which reading back recognises it.
Create-if-absent is a put, never a copy: servers ignore conditions on a copy's target.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import ClassVar, TypeVar

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import (
    ConflictError,
    ObjectExistsError,
    OutcomeUnknownError,
    StreamStateError,
    VersionConflictError,
)
from airflow_streamstate.retry import Retry
from airflow_streamstate.store.base import (
    Link,
    ObjectInfo,
    StoredObject,
    check_folder,
    check_key,
    check_prefix,
    is_key,
    missing_source,
    too_large,
)
from airflow_streamstate.store.options import SparkSettings
from airflow_streamstate.store.transfer import UPLOAD_PART_BYTES, in_rounds

Result = TypeVar("Result")

TRIES = 4
TRY_FOR_SECONDS = 30.0
"""No try starts after this time: a silent server must not hold up a deadline for minutes (Law 6)."""
REQUEST = Retry(tries=TRIES, for_seconds=TRY_FOR_SECONDS, pause_seconds=0.2, growth=2, spreads=True)


class ServerAnswer(enum.Enum):
    """The meaning of a server's answer."""

    ABSENT = "absent"
    PRECONDITION = "precondition"  # the condition of a conditional write did not hold
    BUSY = "busy"  # another conditional write was under way: read again, then try again
    NOT_DONE = "not_done"  # turned away or never reached: nothing was changed
    UNKNOWN = "unknown"  # a write may have landed
    REFUSED = "refused"  # the same request will be refused again

    @property
    def may_pass(self) -> bool:
        """Whether the same request may get another answer a moment later."""
        return self in (ServerAnswer.BUSY, ServerAnswer.NOT_DONE, ServerAnswer.UNKNOWN)


@dataclass(eq=False)
class RequestFailure(Exception):  # noqa: N818 - never leaves this package
    """One request that did not succeed.

    Attributes:
        status: HTTP status; 0 if there was no response.
        code: the server's code, or the name of the client's error.
        reason: in the words of the server or client, without credentials.
        region: where the bucket is, if S3 reported it; else "".
    """

    answer: ServerAnswer
    status: int
    code: str
    reason: str
    region: str = ""

    @property
    def is_mute(self) -> bool:
        """Whether only its status is known: answers to HEAD have no body."""
        return self.status != 0 and self.code in ("", str(self.status))


@dataclass(eq=False)
class TooLarge(Exception):  # noqa: N818 - never leaves this package
    """An object is larger than was asked for."""

    size_bytes: int
    most_bytes: int


BODY_SECONDS = 30.0
"""A body may take this long, and for each ``LEAST_BYTES_PER_SECOND`` of it a second more: a server that sends a byte
now and then keeps every timeout of a connection, and would hold its reader for ever (Law 6)."""
LEAST_BYTES_PER_SECOND = 100_000
_MOST_PIECE_BYTES = 1 << 20


def read_body(read: Callable[[int], bytes], size_bytes: int, clock: Clock, most_bytes: int | None = None) -> bytes:
    """The body of an answer, within a time that its size gives.

    Args:
        read: returns up to this many bytes, b"" at the end; it waits until it has them.
        size_bytes: as the server has announced it.

    Raises:
        TooLarge: it is larger than ``most_bytes``.
        RequestFailure: the server sends too slowly.
    """
    if most_bytes is not None and size_bytes > most_bytes:
        raise TooLarge(size_bytes, most_bytes)
    began, within_seconds = clock.monotonic_seconds(), BODY_SECONDS + size_bytes / LEAST_BYTES_PER_SECOND
    pieces, count, piece_bytes = [], 0, 1
    # Growing pieces: one that a slow server fills takes about as long as all before it.
    while piece := read(piece_bytes):
        pieces.append(piece)
        count += len(piece)
        if most_bytes is not None and count > most_bytes:
            raise TooLarge(count, most_bytes)
        if clock.monotonic_seconds() - began > within_seconds:
            reason = f"{count} of {size_bytes} bytes arrived in {within_seconds:.0f} s"
            raise RequestFailure(ServerAnswer.UNKNOWN, 0, "SlowBody", reason)
        piece_bytes = min(2 * piece_bytes, _MOST_PIECE_BYTES)
    return b"".join(pieces)


def until_answered(clock: Clock, send: Callable[[], Result]) -> Result:
    """Send a request that may be sent twice (a read, a copy), until its answer is final or the tries are used up.

    Raises:
        RequestFailure: the last answer.
    """
    return REQUEST.call(clock, send, lambda error: isinstance(error, RequestFailure) and error.answer.may_pass)


# The client port.


@dataclass(frozen=True)
class FoundObject:
    """One object as the server describes it.

    Attributes:
        checksum: as ``ManyAtOnce.checksum_of``.
        modified_at: by the server's clock.
        is_copied: False while the server still copies to it.
        write_id: of the put that wrote it; "" where another program did.
    """

    size_bytes: int
    version: str
    checksum: str
    modified_at: datetime | None
    is_copied: bool = True
    write_id: str = ""


@dataclass(frozen=True)
class GotObject:
    """One object with its bytes; attributes as of ``FoundObject``."""

    body: bytes
    version: str
    write_id: str = ""
    modified_at: datetime | None = None


@dataclass(frozen=True)
class WriteCondition:
    """The condition of a put: nothing is there (``version`` None), or this version is."""

    version: str | None = None


class ServerClient(ABC):
    """One bucket or container; names are full keys of it.

    Every method raises RequestFailure. ``put`` and ``delete`` send one request, once; all others are repeated as
    ``until_answered``.

    Attributes:
        deletes_at_once: how many objects ``delete_some`` takes; 1 where the server has no such request.
        lists_markers: whether ``objects`` has other programs' markers of folders, whose names end in a slash.
    """

    uri: str
    clock: Clock
    deletes_at_once: ClassVar[int] = 1
    lists_markers: ClassVar[bool] = False

    def answered(self, send: Callable[[], Result]) -> Result:
        """As ``until_answered``."""
        return until_answered(self.clock, send)

    @abstractmethod
    def error_of(self, failure: RequestFailure, act: str, key: str, doubtful: bool) -> StreamStateError:
        """The package's error for a failure.

        Args:
            act: ``open get head list put delete copy``, ``list uploads`` or ``end upload``.
            key: the key in the store; "" without one.
            doubtful: whether a write may have landed.
        """

    @abstractmethod
    def for_spark(self) -> SparkSettings:
        """The settings by which Spark's connector reaches the same place."""

    @abstractmethod
    def get(self, name: str, most_bytes: int | None = None) -> GotObject:
        """An object with its bytes. Raises TooLarge: it has more than ``most_bytes``; None for any number."""

    @abstractmethod
    def get_range(self, name: str, start: int, size_bytes: int) -> bytes:
        """This many bytes from ``start`` on, fewer where the object ends before; status 416 where none is left."""

    @abstractmethod
    def head(self, name: str, *, checksum: bool = False) -> FoundObject:
        """The server's description of an object; its checksum only where it was asked for."""

    @abstractmethod
    def describe(self, name: str, *, checksum: bool = False) -> FoundObject:
        """As ``head``, by a request whose failure has a body, which shows if object or bucket is missing."""

    @abstractmethod
    def objects(self, start: str) -> Iterator[tuple[str, int, str]]:
        """Name, size and version of each object whose name starts with ``start``, in the order of names."""

    @abstractmethod
    def folders(self, start: str) -> list[str]:
        """The whole names of the folders right below a folder, which is "" or ends in a slash."""

    @abstractmethod
    def put(self, name: str, body: bytes, write_id: str, condition: WriteCondition | None) -> str:
        """Put, once; the new version."""

    @abstractmethod
    def put_parts(self, name: str, pieces: Iterable[bytes], size_bytes: int, part_bytes: int) -> str:
        """Put in parts, whatever is there; the new version. Nothing is there before all parts are.

        Raises:
            RequestFailure: UNKNOWN where it is not known whether it landed; otherwise nothing was changed.
            Exception: what ``pieces`` raised.
        """

    @abstractmethod
    def copy(self, source: str, target: str, size_bytes: int | None) -> str:
        """Copy by the server, to the end, to another name; the checksum of the copy. ABSENT if there is no source.

        ``size_bytes`` is that of the source; None where unknown.
        """

    @abstractmethod
    def delete(self, name: str, version: str | None) -> None:
        """Delete, once, on condition of a version if there is one; absence is success."""

    def delete_some(self, names: Sequence[str]) -> None:
        """Delete up to ``deletes_at_once`` objects with one request; absence is success."""
        raise NotImplementedError

    def left_uploads(self, start: str, before: datetime) -> list[tuple[str, str]]:  # noqa: ARG002 - see below
        """Name and id of each upload started before a moment and not completed; none where the server removes them."""
        return []

    def end_upload(self, name: str, upload_id: str) -> None:
        """End one of ``left_uploads`` and free its parts; absence is success."""
        raise NotImplementedError


@contextmanager
def reported(client: ServerClient, act: str, key: str = "", *, writes: bool = False) -> Iterator[None]:
    """Raise the package's error for every RequestFailure of the block."""
    try:
        yield
    except RequestFailure as failure:
        doubtful = writes and failure.answer is ServerAnswer.UNKNOWN
        raise client.error_of(failure, act, key, doubtful) from failure


# The store.


class ServerStore:
    """Objects of one bucket or container below one prefix.

    Args:
        client: of the bucket or container.
        prefix: of every key, without slashes at its ends; "" if not set.
        upload_part_bytes: the size of the parts of an upload; a body that is not larger is put whole.

    Raises:
        InvalidRequestError: the prefix cannot start a key.
    """

    def __init__(self, client: ServerClient, prefix: str = "", *, upload_part_bytes: int = UPLOAD_PART_BYTES) -> None:
        self.prefix = check_folder(prefix)
        self.client = client
        self._start = f"{prefix}/" if prefix else ""
        self._upload_part_bytes = upload_part_bytes
        self._is_place_seen = False

    @property
    def uri(self) -> str:
        return f"{self.client.uri}/{self.prefix}" if self.prefix else self.client.uri

    def for_spark(self) -> SparkSettings:
        with reported(self.client, "open"):
            return self.client.for_spark()

    # reading

    def get(self, key: str) -> StoredObject | None:
        found = self._get(key)
        return None if found is None else found[0]

    def get_within(self, key: str, most_bytes: int) -> StoredObject | None:
        found = self._get(key, most_bytes)
        return None if found is None else found[0]

    def read_range(self, key: str, start: int, size_bytes: int) -> bytes | None:
        name = self._name(key)
        with reported(self.client, "get", key):
            try:
                return self._unless_absent(lambda: self.client.get_range(name, start, size_bytes))
            except RequestFailure as failure:
                if failure.status == 416:  # it ends before
                    return b""
                raise

    def head(self, key: str) -> ObjectInfo | None:
        found = self._head(key)
        return None if found is None else ObjectInfo(key, found.size_bytes, found.version, found.modified_at)

    def checksum_of(self, key: str) -> str | None:
        found = self._head(key, checksum=True)
        return None if found is None else found.checksum

    def checksums_of(self, keys: Sequence[str]) -> list[str | None]:
        return in_rounds([partial(self.checksum_of, key) for key in keys])

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        return self._listed(prefix)

    def list_folders(self, folder: str) -> list[str]:
        start = self._start + (f"{check_folder(folder)}/" if folder else "")
        with reported(self.client, "list", folder):
            whole = self._seen(self.client.folders(start))
        names = (name.rstrip("/")[len(start) :] for name in whole)
        return sorted(name for name in names if is_key(name))

    def _listed(self, prefix: str) -> Iterator[ObjectInfo]:
        with reported(self.client, "list", prefix):
            for name, size_bytes, version in self.client.objects(self._start + prefix):
                key = name[len(self._start) :]
                # A key that ends in a slash is a directory marker of another program.
                if is_key(key):
                    yield ObjectInfo(key, size_bytes, version)
        self._is_place_seen = True

    def _get(self, key: str, most_bytes: int | None = None) -> tuple[StoredObject, str] | None:
        """The object, and the id of the put that wrote it ("" where another program did)."""
        name = self._name(key)
        with reported(self.client, "get", key):
            try:
                found = self._unless_absent(lambda: self.client.get(name, most_bytes))
            except TooLarge as larger:
                raise too_large(key, larger.size_bytes, larger.most_bytes) from None
        if found is None:
            return None
        return StoredObject(key, found.body, found.version, found.modified_at), found.write_id

    def _head(self, key: str, *, checksum: bool = False) -> FoundObject | None:
        name = self._name(key)
        with reported(self.client, "head", key):
            try:
                return self._seen(self.client.head(name, checksum=checksum))
            except RequestFailure as failure:
                if failure.answer is ServerAnswer.ABSENT and (self._is_place_seen or not failure.is_mute):
                    return None
                if not failure.is_mute or failure.answer not in (ServerAnswer.ABSENT, ServerAnswer.REFUSED):
                    raise
        # Answers to HEAD have no body: no bucket, an unknown access key, an expired token and no such object look the
        # same. A GET shows which it is.
        with reported(self.client, "get", key):
            return self._unless_absent(lambda: self.client.describe(name, checksum=checksum))

    def _unless_absent(self, send: Callable[[], Result]) -> Result | None:
        """The answer to a GET; None if there is no object, which proves that the bucket is there."""
        try:
            return self._seen(send())
        except RequestFailure as failure:
            if failure.answer is not ServerAnswer.ABSENT:
                raise
            self._is_place_seen = True
            return None

    def _seen(self, answer: Result) -> Result:
        self._is_place_seen = True
        return answer

    def _name(self, key: str) -> str:
        return self._start + check_key(key)

    # writing

    def create(self, key: str, body: bytes) -> str:
        taken = ObjectExistsError("an object is there already", key=key)

        def look(stored: StoredObject | None, _doubtful: bool) -> None:
            if stored is not None:
                raise taken

        return self._put(key, body, WriteCondition(), look, taken)

    def replace(self, key: str, body: bytes, version: str) -> str:
        changed = VersionConflictError("the object has another version, or is gone", key=key)
        overtaken = OutcomeUnknownError("others wrote or removed it around a try whose reply was lost", key=key)

        def look(stored: StoredObject | None, doubtful: bool) -> None:
            if stored is None or stored.version != version:
                # A try may have landed and been overwritten since, so it is not called "not written" (Law 8).
                raise overtaken if doubtful else changed

        return self._put(key, body, WriteCondition(version), look, changed)

    def put(self, key: str, body: bytes) -> str:
        others = ConflictError("others keep writing this object", key=key, next_step="Try again in a moment.")
        return self._put(key, body, None, lambda _stored, _doubtful: None, others)

    def put_pieces(self, key: str, pieces: Iterable[bytes], size_bytes: int) -> str:
        if size_bytes <= self._upload_part_bytes:
            return self.put(key, b"".join(pieces))
        with reported(self.client, "put", key, writes=True):
            return self.client.put_parts(self._name(key), pieces, size_bytes, self._upload_part_bytes)

    def copy(self, source_key: str, target_key: str) -> None:
        self._copy(Link(source_key, target_key))

    def link(self, source_key: str, target_key: str) -> bool:
        self.copy(source_key, target_key)  # by the server: no byte comes through us
        return True

    def link_many(self, links: Sequence[Link]) -> list[str]:
        for link in links:  # before the first of them is started
            check_key(link.source_key), check_key(link.target_key)
        return in_rounds([partial(self._copy, link) for link in links])

    def delete(self, key: str, version: str | None = None) -> None:
        name = self._name(key)
        changed = VersionConflictError("the object has another version", key=key)

        def send() -> str:
            self.client.delete(name, version)
            return ""

        def read_back(doubtful: bool) -> str | None:
            if version is None and not doubtful:
                return None
            found = self._get(key)
            if found is None:
                return ""
            if version is None or found[0].version == version:
                return None
            raise changed

        self._until_known("delete", key, send, read_back, changed)

    def delete_many(self, keys: Sequence[str]) -> None:
        names = [self._name(key) for key in keys]
        if self.client.deletes_at_once == 1:
            in_rounds([partial(self.delete, key) for key in keys])
        else:
            self._delete_batches(names)

    def delete_markers(self, folder: str, but: Collection[str] = ()) -> None:
        if not self.client.lists_markers:
            return
        start = f"{self._start}{check_folder(folder)}/"
        with reported(self.client, "list", folder):
            found = [name for name, _, _ in self.client.objects(start)]
        markers = [name for name in found if name.endswith("/") and name[len(start) :].partition("/")[0] not in but]
        # The inner ones first: a server that keeps folders removes none that holds another.
        self._delete_batches(sorted((name for name in markers if name != start or not but), reverse=True))

    def end_uploads(self, folder: str, before: datetime, *, is_dry: bool = False) -> int:
        start = f"{self._start}{check_folder(folder)}/"
        with reported(self.client, "list uploads", folder):
            stale = self.client.left_uploads(start, before)
        for name, upload_id in () if is_dry else stale:
            with reported(self.client, "end upload", name[len(self._start) :]):
                self.client.end_upload(name, upload_id)
        return len(stale)

    def _delete_batches(self, names: Sequence[str]) -> None:
        for first in range(0, len(names), self.client.deletes_at_once):
            some = names[first : first + self.client.deletes_at_once]
            with reported(self.client, "delete", some[0][len(self._start) :], writes=True):
                self.client.delete_some(some)

    def _copy(self, link: Link) -> str:
        """Copy one object; the checksum of the copy."""
        source, target = self._name(link.source_key), self._name(link.target_key)
        if source == target:  # servers refuse to copy an object onto itself
            checksum = self.checksum_of(link.source_key)
            if checksum is None:
                raise missing_source(link.source_key)
            return checksum
        with reported(self.client, "copy", link.target_key, writes=True):
            try:
                return self._seen(self.client.copy(source, target, link.size_bytes))
            except RequestFailure as failure:
                if failure.answer is ServerAnswer.ABSENT:
                    raise missing_source(link.source_key) from None
                raise

    def _put(
        self,
        key: str,
        body: bytes,
        condition: WriteCondition | None,
        look: Callable[[StoredObject | None, bool], None],
        conflict: ConflictError,
    ) -> str:
        """One put, whose id distinguishes it from another writer's put of equal bytes.

        ``look`` is called with another put's object, and with whether a try of this one may have landed; it raises
        where another try is forbidden.
        """
        name, write_id = self._name(key), self.client.clock.new_uuid()

        def read_back(doubtful: bool) -> str | None:
            found = self._get(key)
            if found is not None and doubtful and found[1] == write_id and found[0].body == body:
                return found[0].version
            look(None if found is None else found[0], doubtful)
            return None

        def send() -> str:
            return self.client.put(name, body, write_id, condition)

        return self._until_known("put", key, send, read_back, conflict)

    def _until_known(
        self,
        act: str,
        key: str,
        send: Callable[[], str],
        read_back: Callable[[bool], str | None],
        conflict: ConflictError,
    ) -> str:
        def report(failure: RequestFailure, doubtful: bool) -> StreamStateError:
            return self.client.error_of(failure, act, key, doubtful)

        return until_known(self.client.clock, send, read_back, conflict, report)


def until_known(
    clock: Clock,
    send: Callable[[], str],
    read_back: Callable[[bool], str | None],
    conflict: ConflictError,
    report: Callable[[RequestFailure, bool], StreamStateError],
) -> str:
    """Send a write until its outcome is known, or its tries are used up; the new version.

    Args:
        send: one try, without any retry of its own.
        read_back: gets whether a try of this write may have landed; returns the version if one has, None if another try
            is in order, else raises ``conflict``.
        conflict: raised when the condition does not hold.
        report: the package's error for a failure, given whether a try may have landed.

    Raises:
        OutcomeUnknownError: a try may have landed, and it could not be read back (Law 8).
    """
    doubtful = False
    for attempt in REQUEST.begin(clock):
        try:
            return send()
        except RequestFailure as failure:
            last = failure
        doubtful = doubtful or last.answer is ServerAnswer.UNKNOWN
        if last.answer is ServerAnswer.REFUSED:
            break
        if not doubtful and last.answer in (ServerAnswer.PRECONDITION, ServerAnswer.ABSENT):
            raise conflict from last
        version = (
            _read_back(read_back, report, last, doubtful) if doubtful or last.answer is ServerAnswer.BUSY else None
        )
        if version is not None:
            return version
        if attempt.is_last:
            break
    if not doubtful and last.answer is ServerAnswer.BUSY:
        raise conflict from last
    raise report(last, doubtful) from last


def _read_back(
    read_back: Callable[[bool], str | None],
    report: Callable[[RequestFailure, bool], StreamStateError],
    last: RequestFailure,
    doubtful: bool,
) -> str | None:
    try:
        return read_back(doubtful)
    except ConflictError:
        raise
    except StreamStateError as error:
        # Neither certainly written nor readable: not a loss.
        raise report(last, doubtful) from error
