"""How control objects are written: records are created once, registers replaced if unchanged, beacons put.

A write whose outcome is unknown is read back before anything else (Law 8): every message has a unique id
(``write_id``, ``command_id`` …), so equal bytes mean that this write landed. The idea of one small, generic,
fully tested transactional object is SlateDB's (``slatedb-txn-obj``).
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, Generic, TypeVar

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.feed import FeedWriter
from airflow_streamstate.control.presence import GuardedHome
from airflow_streamstate.errors import (
    DataError,
    InvalidRequestError,
    MalformedMessageError,
    ObjectExistsError,
    OutcomeUnknownError,
    SignatureError,
    StreamStateError,
    UnavailableError,
    VersionConflictError,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import (
    Message,
    encoded,
    from_bytes,
    from_json,
    object_in,
    refuse_unreadable,
    to_json,
)
from airflow_streamstate.protocol.signing import SigningKeys, is_signed
from airflow_streamstate.protocol.version import NEWEST_PROTOCOL
from airflow_streamstate.retry import Retry
from airflow_streamstate.store.base import ObjectInfo, Store, StoredObject, bounded_get

AnyMessage = TypeVar("AnyMessage", bound=Message)
Key = TypeVar("Key")
Value = TypeVar("Value")
MOST_READ_BACK_BYTES = 64 << 20
READ_BACK = Retry(tries=5, pause_seconds=0.2, growth=2)
MOST_REMEMBERED = 1_000
EDIT_TRIES = 30
AT_ONCE_TRIES = 5
"""Tries of an edit without a pause: mostly one other writer was first, and a start must not wait for that."""
EDIT_PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class Stored(Generic[AnyMessage]):
    """A message as read, with the version that a replace must name.

    Attributes:
        modified_at: when it was written, by the store's clock; None where the store does not tell.
        is_signed: it has a controller's signature, be it valid or not.
    """

    value: AnyMessage
    version: str
    modified_at: datetime | None = None
    is_signed: bool = False


def check_owner(value: object, key: str, **ids: object) -> None:
    """Refuse an object that names another stream, deployment … than its key does: a misplaced copy (Law 7).

    Raises:
        MalformedMessageError: one of the ids differs.
    """
    for name, expected in ids.items():
        found = getattr(value, name)
        if found != expected:
            raise MalformedMessageError(
                "this object belongs elsewhere",
                key=key,
                **{name: str(found)[:80], f"expected_{name}": expected},
                next_step="Look at the object; it was copied or moved here, and nothing reads it.",
            )


class Remembered(OrderedDict[Key, Value]):
    """A dictionary of at most so many values: what was set longest ago is forgotten. The caller locks."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > self._most:
            self.popitem(last=False)


class Memory:
    """Messages that were read, by key and version. Every process may have many; a version never has other bytes."""

    def __init__(self) -> None:
        self._values: Remembered[tuple[str, str], Message] = Remembered(MOST_REMEMBERED)
        self._refused: Remembered[tuple[str, str], DataError] = Remembered(MOST_REMEMBERED)
        self._guard = threading.Lock()

    def recall(self, key: str, version: str) -> Message | None:
        with self._guard:
            return self._values.get((key, version))

    def keep(self, key: str, version: str, value: Message) -> None:
        with self._guard:
            self._values[(key, version)] = value

    @contextmanager
    def refusing(self, key: str, version: str) -> Iterator[None]:
        """A block that decodes an object; what it could not decode once it does not try again.

        Raises:
            DataError: as the block did, for these bytes.
        """
        with self._guard:
            known = self._refused.get((key, version))
        if known is not None:
            raise copy.copy(known)
        try:
            yield
        except DataError as error:
            with self._guard:
                self._refused[(key, version)] = copy.copy(error)
            raise


class Cells:
    """Typed reading and writing in one store.

    Args:
        feed: where writes that others wait for are told; None for nowhere.
        keys: sign each message that ``is_signed``, and are asked for its signature at each read; None for a driver,
            and for a home without keys: then nothing is signed or checked.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        memory: Memory | None = None,
        feed: FeedWriter | None = None,
        keys: SigningKeys | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self._memory = memory or Memory()
        self._feed = feed
        self._keys = keys

    @property
    def polled(self) -> Store:
        """The unguarded store, for commands: they are listed every few seconds, and an empty list decides nothing."""
        return self.store.unguarded if isinstance(self.store, GuardedHome) else self.store

    def read(self, key: str, expected: type[AnyMessage], **ids: object) -> Stored[AnyMessage] | None:
        """The message under the key; None where there is none.

        Args:
            ids: its fields that the key already says, as in ``check_owner``.

        Raises:
            MalformedMessageError, UnsupportedVersionError: something else lies there (Law 7).
            SignatureError: no controller of this home has signed it.
        """
        stored = self.stored(key, expected.most_bytes)
        if stored is None:
            return None
        plain = object_in(stored.body, key=key)
        value = from_json(plain, key=key, expected=expected)
        check_owner(value, key, **ids)
        if self._keys is not None and value.is_signed:
            self._keys.check(key, plain)
        return Stored(value, stored.version, stored.modified_at, is_signed(plain))

    def stored(self, key: str, most_bytes: int = Message.most_bytes) -> StoredObject | None:
        """The bytes under the key; None where there are none. Raises MalformedMessageError: they are too many."""
        return bounded_get(self.store, key, most_bytes)

    def decoded(self, stored: StoredObject, expected: type[AnyMessage]) -> AnyMessage:
        """The message in bytes that may be many: those that are refused are decoded once. Raises as ``from_bytes``."""
        with self._memory.refusing(stored.key, stored.version):
            return from_bytes(stored.body, key=stored.key, expected=expected)

    def check_may_replace(self, key: str, stored: Stored[AnyMessage]) -> None:
        """Refuse to replace a signed message by one without a signature, which the other controllers would refuse.

        Raises:
            SignatureError: it is signed, and this process has no key.
        """
        if self._keys is None and stored.is_signed and stored.value.is_signed:
            raise SignatureError(
                "the records of this home are signed, and this process has no signing key",
                key=key,
                next_step="Give it the key that the other controllers have: signing_secret_key in the connection of the"
                " home, or STREAMSTATE_SIGNING_KEY.",
            )

    def _body(self, key: str, value: Message, protocol: int = NEWEST_PROTOCOL) -> bytes:
        plain = to_json(value, protocol)
        refuse_unreadable(type(value), plain, key)
        body = encoded(self._keys.signed(key, plain) if self._keys is not None and value.is_signed else plain)
        if len(body) > value.most_bytes:
            raise InvalidRequestError(
                "this cannot be recorded, since it is too large",
                key=key,
                size_bytes=len(body),
                most_bytes=value.most_bytes,
                next_step="Give less of what is recorded: shorter arguments, settings or texts; nothing was written.",
            )
        return body

    def listed(self, info: ObjectInfo, expected: type[AnyMessage], **ids: object) -> AnyMessage | None:
        """As ``value`` of an object that was just listed; a version that the listing tells is read once."""
        known = self._memory.recall(info.key, info.version) if info.version else None
        if isinstance(known, expected):
            return known
        stored = self.read(info.key, expected, **ids)
        if stored is None:
            return None
        self._memory.keep(info.key, stored.version, stored.value)
        return stored.value

    def value(self, key: str, expected: type[AnyMessage], **ids: object) -> AnyMessage | None:
        """As ``read``, without the version."""
        stored = self.read(key, expected, **ids)
        return None if stored is None else stored.value

    def create(self, key: str, value: Message, protocol: int = NEWEST_PROTOCOL) -> str:
        """Create a record. Returns its version.

        Raises:
            ObjectExistsError: another one is there.
            OutcomeUnknownError: it stayed unknown after reading back.
        """
        version = self._create(key, self._body(key, value, protocol))
        self._tell(key)
        return version

    def _create(self, key: str, body: bytes) -> str:
        try:
            return self.store.create(key, body)
        except OutcomeUnknownError as unknown:
            landed = self._read_back(key, unknown)
            if landed is None:
                return self._create_again(key, body)
            if landed[0] == body:
                return landed[1]
            raise ObjectExistsError("another writer created this object first", key=key) from None

    def _create_again(self, key: str, body: bytes) -> str:
        try:
            return self.store.create(key, body)
        except (ObjectExistsError, OutcomeUnknownError) as error:
            # The first try may have landed after it was looked for.
            landed = self._read_back(key, error)
            if landed is not None and landed[0] == body:
                return landed[1]
            raise

    def replace(self, key: str, value: Message, version: str, protocol: int = NEWEST_PROTOCOL) -> str:
        """Replace a register's value if it still has ``version``. Returns the new version.

        Raises:
            VersionConflictError: another writer was first, or came right after a write whose reply was lost: a caller
                that
                reads again must first look for its own work.
            OutcomeUnknownError: it stayed unknown after reading back.
        """
        new_version = self._replace(key, self._body(key, value, protocol), version)
        self._tell(key)
        return new_version

    def _replace(self, key: str, body: bytes, version: str) -> str:
        try:
            return self.store.replace(key, body, version)
        except OutcomeUnknownError as unknown:
            landed = self._read_back(key, unknown)
            if landed is not None and landed[0] == body:
                return landed[1]
            if landed is not None and landed[1] == version:
                return self._replace_again(key, body, version)
            raise VersionConflictError("another writer changed this object", key=key) from None

    def _replace_again(self, key: str, body: bytes, version: str) -> str:
        try:
            return self.store.replace(key, body, version)
        except (VersionConflictError, OutcomeUnknownError) as error:
            # The first try may have landed after it was looked for.
            landed = self._read_back(key, error)
            if landed is not None and landed[0] == body:
                return landed[1]
            raise

    def _tell(self, key: str) -> None:
        if layout.is_told_in_feed(key):
            self.tell(layout.stream_of_key(key))

    def tell(self, stream_id: str) -> None:
        """Tell in the feed of the home that there is something new of a stream."""
        if self._feed is not None:
            self._feed.append(stream_id)

    def put(self, key: str, value: Message) -> None:
        """Write a beacon: last write wins."""
        self.store.put(key, self._body(key, value))

    def _read_back(self, key: str, unknown: StreamStateError) -> tuple[bytes, str] | None:
        try:
            stored = READ_BACK.call(self.clock, lambda: self.stored(key, MOST_READ_BACK_BYTES), UnavailableError)
        except UnavailableError as error:
            raise OutcomeUnknownError(
                "the store did not say whether this write landed, and does not answer now",
                key=key,
                last_seen=str(error),
                next_step="Run the same command again; it finds what landed.",
            ) from unknown
        return None if stored is None else (stored.body, stored.version)


class Register(Generic[AnyMessage]):
    """One object that is changed by compare-and-swap only.

    Args:
        absent: gives the value to edit where the object does not exist; it may raise instead.
        by: the writer, for ``updated_by``; None for a register without that field.
        ids: fields of it that the key already says, as in ``check_owner``.
    """

    def __init__(
        self,
        cells: Cells,
        key: str,
        kind: type[AnyMessage],
        absent: Callable[[], AnyMessage],
        by: str | None = None,
        **ids: object,
    ) -> None:
        self._cells = cells
        self._key = key
        self._kind = kind
        self._absent = absent
        self._by = by
        self._ids = ids

    def read(self) -> Stored[AnyMessage] | None:
        """The register as it is now; None where there is none; raises as ``Cells.read``."""
        return self._cells.read(self._key, self._kind, **self._ids)

    def create(self, value: AnyMessage) -> Stored[AnyMessage]:
        """Create it with this value, as it is; raises ObjectExistsError where another writer was first."""
        return Stored(value, self._cells.create(self._key, value))

    def update(
        self,
        edit: Callable[[AnyMessage], AnyMessage],
        *,
        since: Stored[AnyMessage] | None = None,
        tries: int = EDIT_TRIES,
    ) -> Stored[AnyMessage]:
        """Change the register.

        Args:
            edit: the next value from the present one. What it raises ends the update. Without ``since`` it is called
                again
                after each write that came too late or whose outcome is unknown, also on the value that such a write has
                left: it must recognise its own work (Law 8). A value that it returns unchanged is not written.
            since: the state that the change was decided on: nothing is written to any other; None where ``edit``
                decides.
            tries: at most so many, without ``since``.

        Raises:
            VersionConflictError: another writer has changed the register since ``since``.
            UnavailableError: other writers kept changing it.
            OutcomeUnknownError: with ``since``, as ``Cells.replace``.
        """
        if since is not None:
            return self._write(since, edit(since.value))
        last: StreamStateError | None = None
        before: AnyMessage | None = None
        for number in range(tries):
            stored = self.read()
            before = self._absent() if stored is None else stored.value
            after = edit(before)
            if after == before:
                return Stored(before, "") if stored is None else stored
            try:
                return self._write(stored, after)
            except (ObjectExistsError, VersionConflictError, OutcomeUnknownError) as error:
                last = error
                if number >= AT_ONCE_TRIES:
                    self._cells.clock.sleep(EDIT_PAUSE_SECONDS * (number + 1))
        raise UnavailableError(
            "other writers keep changing this register",
            key=self._key,
            **self._ids,
            updated_by=getattr(before, "updated_by", "unknown"),
            last_seen=str(last),
            next_step="Try again.",
        )

    def _write(self, stored: Stored[AnyMessage] | None, value: AnyMessage) -> Stored[AnyMessage]:
        signed: dict[str, Any] = {"write_id": self._cells.clock.new_uuid()}
        if self._by is not None:
            signed |= {"updated_at": self._cells.clock.now(), "updated_by": self._by}
        value = replace(value, **signed)  # type: ignore[type-var]  # every message is a dataclass
        if stored is None:
            return self.create(value)
        self._cells.check_may_replace(self._key, stored)
        return Stored(value, self._cells.replace(self._key, value, stored.version))
