"""How control objects are written: created once, replaced if unchanged, put; leases; the feed of news."""

from __future__ import annotations

import atexit
import copy
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.presence import GuardedHome
from airflow_streamstate.errors import (
    DataError,
    InvalidRequestError,
    MalformedMessageError,
    ObjectExistsError,
    OutcomeUnknownError,
    SignatureError,
    StoreRefusedError,
    StreamStateError,
    UnavailableError,
    VersionConflictError,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import (
    NEWEST_PROTOCOL,
    Message,
    encoded,
    from_bytes,
    from_json,
    object_in,
    refuse_unreadable,
    to_json,
)
from airflow_streamstate.protocol.signing import SigningKeys, is_signed
from airflow_streamstate.retry import Retry
from airflow_streamstate.store.base import ListsKeys, ObjectInfo, Store, StoredObject, bounded_get

if TYPE_CHECKING:
    from typing_extensions import Self


# The feed of a home: of which streams something was written, so that one listing finds the news of a thousand
# streams.
#
# Drivers and controllers append to it after the write itself. An entry means "look at this stream" and nothing else:
# what there is to see is in the stream's own objects. An entry may be missing (its writer died first, or may not write
# there), so a reader looks at each stream from time to time all the same.

PERIOD_MINUTES = 10
"""Entries of this many minutes are in one folder. Readers list the folder before and the folder after theirs, too, so
that clocks may differ by as much."""
KEPT_PERIODS = 144
AT_EXIT_SECONDS = 2.0
"""A process that ends waits this long for its last entries."""
MOST_ENTRIES = 50_000
"""At most this many entries of one period are read: of more, some streams are polled at their own pace."""
_PERIOD_FORMAT = "%Y%m%dT%H%M"


class FeedWriter:
    """Appends to the feed of a home, in its own thread: no writer waits for it, and no process for its end.

    It removes what no reader looks at any more, once in each period in which it appends.

    Args:
        home: the store of the control objects, as writes see it.
    """

    def __init__(self, home: Store, clock: Clock) -> None:
        self._home = home
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._waiting: dict[str, None] = {}
        self._is_busy = False
        self._changed = threading.Condition()
        self._tidied = ""

    def append(self, stream_id: str) -> None:
        """Announce soon that something of a stream was written. Raises nothing: readers do without it.

        Several calls that come before the entry is written are one entry.
        """
        with self._changed:
            self._waiting[stream_id] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="streamstate-feed", daemon=True)
                with suppress(RuntimeError):  # the process is ending
                    self._thread.start()
                    atexit.register(self.flush)
            self._changed.notify_all()

    def flush(self, within_seconds: float = AT_EXIT_SECONDS) -> None:
        """Wait until what was appended is written, or could not be; for this long at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._is_busy, within_seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                self._is_busy = True
                stream_ids = list(self._waiting)
                self._waiting.clear()
            period = _period_of(self._clock.now())
            for stream_id in stream_ids:
                key = layout.feed_key(period, stream_id, self._clock.new_uuid()[-12:])
                with suppress(StreamStateError):
                    self._home.put(key, b"{}")
            if period != self._tidied:
                self._tidied = period
                self._tidy()

    def _tidy(self) -> None:
        oldest = _period_of(self._clock.now() - timedelta(minutes=PERIOD_MINUTES * KEPT_PERIODS))
        with suppress(StreamStateError):  # another process may have the right
            for period in self._home.list_folders(layout.FEED_FOLDER):
                if period < oldest:
                    for key in _keys(self._home, layout.feed_folder(period)):
                        self._home.delete(key)


class FeedReader:
    """Reads the feed of a home, for one process."""

    def __init__(self, home: Store, clock: Clock) -> None:
        self._home = home
        self._clock = clock
        self._known: frozenset[str] = frozenset()

    def news(self) -> set[str]:
        """The streams that were appended since the last call; at the first call those of the last minutes.

        Raises:
            StreamStateError: the store does not answer.
        """
        now = self._clock.now()
        periods = [_period_of(now + timedelta(minutes=number * PERIOD_MINUTES)) for number in (-1, 0, 1)]
        found = frozenset(key for period in periods for key in self._entries(period))
        new = found - self._known
        self._known = found
        return {layout.stream_of_feed(key) for key in new}

    def _entries(self, period: str) -> list[str]:
        try:
            return list(islice(_keys(self._home, layout.feed_folder(period)), MOST_ENTRIES))
        except StoreRefusedError:
            raise
        except InvalidRequestError:  # a link or a file in place of the folder: streams are looked at at their own pace
            return []


def _keys(home: Store, folder: str) -> Iterator[str]:
    if isinstance(home, ListsKeys):
        yield from home.list_keys(f"{folder}/")
    else:
        yield from (info.key for info in home.list_objects(f"{folder}/"))


def _period_of(moment: datetime) -> str:
    return moment.replace(minute=moment.minute - moment.minute % PERIOD_MINUTES).strftime(_PERIOD_FORMAT)


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
        modified_at: when it was written, by the store's clock; None where the store does not report it.
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
    """A dictionary of at most this many values: what was set longest ago is forgotten. The caller locks."""

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
        feed: where writes that others wait for are announced; None for nowhere.
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
        """The message under the key; None if it does not exist.

        Args:
            ids: its fields that the key already gives, as in ``check_owner``.

        Raises:
            MalformedMessageError, UnsupportedVersionError: something else is there (Law 7).
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
        """The bytes under the key; None if there is no object. Raises MalformedMessageError: they are too many."""
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
        """As ``value`` of an object that was just listed; a version that the listing reports is read once."""
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
        """Announce in the feed of the home that there is something new of a stream."""
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
        ids: fields of it that the key already gives, as in ``check_owner``.
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
        """The register as it is now; None if it does not exist; raises as ``Cells.read``."""
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
            tries: at most this many, without ``since``.

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


# Both sides of a lease: the holder moves its end on while it lives; after the end others may take it.
#
# The lease itself is part of a record that the others read: an adoption, a snapshot's reader or writer, an upgrade.

RENEW_SHARE = 0.25
"""A lease is renewed once this share of it has passed, so that a loop may ask for it at every step."""


class Lease:
    """What this process holds, and for how long it can be sure of it.

    Args:
        seconds: how long it lasts without being renewed.
        is_held: the caller has just written it; else it is due at once.
    """

    def __init__(self, clock: Clock, seconds: float, *, is_held: bool = False) -> None:
        self._clock = clock
        self.seconds = seconds
        self._since: tuple[float, datetime] | None = self._now() if is_held else None

    @contextmanager
    def renewed(self) -> Iterator[datetime]:
        """Renew it: the caller records the new end, which this yields, within the block.

        It lasts from before the write, however long that took; if the write raises, nothing changes.
        """
        since = self._now()
        yield since[1] + timedelta(seconds=self.seconds)
        self._since = since

    def is_due(self, share: float = RENEW_SHARE) -> bool:
        """Whether this share of it has passed since it was last written."""
        return self.age_seconds >= self.seconds * share

    @property
    def age_seconds(self) -> float:
        """Since it was last written, by both clocks: one may stop while a machine sleeps, the other be set."""
        if self._since is None:
            return float("inf")
        (waited_seconds, moment), (began_seconds, began_at) = self._now(), self._since
        return max(waited_seconds - began_seconds, (moment - began_at).total_seconds())

    def _now(self) -> tuple[float, datetime]:
        return self._clock.monotonic_seconds(), self._clock.now()


class Unchanged:
    """Since when a sign of life of somebody else is the same, by the clock of this process alone: clocks that differ do
    not matter, and a process that has just started knows of no silence."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sign = ""
        self._since_seconds = 0.0

    def seconds(self, sign: str) -> float:
        """For how long this process has seen this sign, and no other."""
        now_seconds = self._clock.monotonic_seconds()
        if sign != self._sign:
            self._sign, self._since_seconds = sign, now_seconds
        return now_seconds - self._since_seconds


# Wakes a process of this machine that waits for another one: a file in the launch folder of a driver that is touched.
#
# A bell means "look now" and nothing else: what there is to see is in the home. Where it is not received (another
# machine, a full disk), the next poll comes after the usual pause.

ASKED_TO_END = "asked_to_end"
"""A file in the folder of a driver, made by what leads its processes when the machine asks these to end (SIGTERM)."""
LISTENS_EVERY_SECONDS = 0.01
TO_DRIVER, OF_DRIVER = "to_driver.bell", "of_driver.bell"
"""Rung by a controller that has written something for the driver, and by the driver for controllers."""


class Bell:
    """One bell.

    Args:
        path: of the file, which need not exist; None for a bell that rings for nobody.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._heard = self._rung_at()

    @classmethod
    def of_launch(cls, data: Mapping[str, object] | None, name: str) -> Self:
        """A bell of the driver that a launch handle's ``data`` describes; silent if that names no folder."""
        folder = None if data is None else data.get("folder")
        return cls(Path(folder) / name if isinstance(folder, str) and folder else None)

    def ring(self) -> None:
        """Touch the file; raises nothing."""
        if self._path is None:
            return
        with suppress(OSError):
            descriptor = os.open(
                self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600
            )
            try:
                os.utime(descriptor)
            finally:
                os.close(descriptor)

    def pause(self, clock: Clock, seconds: float) -> None:
        """Sleep this long, or until the bell rings; at once where it rang since the last pause."""
        if self._path is None:
            clock.sleep(seconds)
            return
        until = clock.monotonic_seconds() + seconds
        while not self._has_rung() and (left := until - clock.monotonic_seconds()) > 0:
            clock.sleep(min(left, LISTENS_EVERY_SECONDS))

    def _has_rung(self) -> bool:
        before, self._heard = self._heard, self._rung_at()
        return self._heard != before

    def _rung_at(self) -> int:
        with suppress(OSError):
            return 0 if self._path is None else self._path.stat().st_mtime_ns
        return 0
