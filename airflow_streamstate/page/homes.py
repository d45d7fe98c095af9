"""The homes that the page shows, and looks at them that many browsers share."""

from __future__ import annotations

import logging
import threading
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError  # until Python 3.10 not the built-in one
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, TypeVar

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.errors import (
    DataError,
    HomeNotFoundError,
    InvalidRequestError,
    StillReadingError,
    StreamNotFoundError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.hooks.configuration import page_conn_ids
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.page.content import BatchTime, row_of, unread_row, unreadable_row
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.store.base import one_of_many

LOOK_SECONDS = 4.0
"""A poll of all streams of a home is shared for this long: less than the pause of a browser, so that each of its
requests finds a new poll."""
WAIT_SECONDS = 0.25
"""How long a request waits for a poll; then it shows what has been read so far, and the names of the others."""
NAMES_WAIT_SECONDS = 1.0
"""How long a request waits for the names, before the first poll has them."""
READERS = 8
"""Threads of one home that read its table, and as many that read parts of its pages: a slow home delays no other."""
PART_WAIT_SECONDS = 10.0
MOST_WAITING = 8
"""Requests that wait for parts of one home; others are answered at once that it is being read."""
MAX_PARTS = 512
MAX_BATCH_TIMES = 40

Value = TypeVar("Value")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HomeSeen(View):
    """The streams of a home, as last read.

    Attributes:
        rows: each with ``read_age_seconds``, the seconds since its stream was read; None before that.
        error: why the home, or the rest of its streams, could not be read; None where it could.
        looked_at: when the last poll ended; None while the first one is under way.
        is_looking: a poll is under way.
    """

    form: ClassVar[str] = "conn_id streams=rows error=shown_error looked_at=looked_at_text is_looking"

    conn_id: str
    rows: tuple[Mapping[str, object], ...]
    error: StreamStateError | None = None
    looked_at: datetime | None = None
    is_looking: bool = False

    @property
    def shown_error(self) -> dict[str, object] | None:
        """The error as the page shows it."""
        return None if self.error is None else error_json(self.error)

    @property
    def looked_at_text(self) -> str | None:
        """When the last poll ended, to the microsecond."""
        return None if self.looked_at is None else self.looked_at.isoformat()


def error_json(error: StreamStateError) -> dict[str, object]:
    """The error as the page shows it: its sentence, its short facts, and the next step."""
    plain = error.to_json()
    facts = plain["context"] if isinstance(plain["context"], dict) else {}
    short = {name: value for name, value in facts.items() if "\n" not in str(value)}
    return {**plain, "context": short}


class HomeOnPage:
    """One home, looked at in the background when it is asked for: at most one poll at a time.

    Each reader thread keeps its own client and the same streams, so that it reads only what has changed.
    """

    def __init__(self, conn_id: str, clock: Clock = SYSTEM_CLOCK, wait_seconds: float = WAIT_SECONDS) -> None:
        self.conn_id = conn_id
        self.parts = SharedParts(clock)
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._guard = threading.Lock()
        self._is_waited_for = False
        self._rows: dict[str, Mapping[str, object]] = {}
        self._read_seconds: dict[str, float] = {}
        self._batch_times: dict[str, deque[BatchTime]] = {}
        self._readers: tuple[Controller, ...] = ()
        self._error: StreamStateError | None = None
        self._looked_at: datetime | None = None
        self._ended_seconds: float | None = None
        self._look: Future[None] | None = None
        self._has_names = threading.Event()
        self._looker = ThreadPoolExecutor(1, thread_name_prefix="streamstate-page")

    def client(self) -> Controller:
        """A new client of the home. Raises InvalidRequestError: the connection is missing or wrong."""
        return StreamStateHook(self.conn_id, requested_by="page").new_client()

    def seen(self) -> HomeSeen:
        """The streams as last read; starts a poll where the last one is older than ``LOOK_SECONDS``.

        The first poll lists the names at once, so that a home of a thousand streams is shown before all are read.
        """
        now = self._clock.monotonic_seconds()
        with self._guard:
            age = None if self._ended_seconds is None else now - self._ended_seconds
            if self._look is None and (age is None or age >= LOOK_SECONDS):
                self._look = self._looker.submit(self._look_now)
            look = self._look
        if age is None and not self._is_waited_for:
            self._is_waited_for = True  # once: a home that does not answer delays the others on the page by that
            self._has_names.wait(NAMES_WAIT_SECONDS)
        if look is not None:
            _wait(look, self._wait_seconds)
        now = self._clock.monotonic_seconds()
        with self._guard:
            rows = tuple(
                {**self._rows[name], "read_age_seconds": self._read_age(name, now)} for name in sorted(self._rows)
            )
            return HomeSeen(self.conn_id, rows, self._error, self._looked_at, is_looking=self._look is not None)

    def _read_age(self, stream_id: str, now: float) -> float | None:
        read = self._read_seconds.get(stream_id)
        return None if read is None else round(now - read, 1)

    def _look_now(self) -> None:
        error: StreamStateError | None = DataError(
            "this home cannot be read", conn_id=self.conn_id, next_step="The log of the api-server shows why."
        )
        try:
            self._read_all()
            error = None
        except StreamStateError as found:
            error = found
        except Exception:
            _log.exception("the home of %s cannot be read", self.conn_id)
        finally:
            with self._guard:
                self._error, self._look = error, None
                self._has_names.set()
                self._looked_at, self._ended_seconds = self._clock.now(), self._clock.monotonic_seconds()
                if isinstance(error, InvalidRequestError):  # its connection, or where it names
                    self._rows.clear()
                    self._read_seconds.clear()
                    self._readers = ()  # the connection may be fixed in the meantime

    def _read_all(self) -> None:
        first = self._readers[0] if self._readers else self.client()
        stream_ids = first.home.stream_ids()
        with self._guard:
            for stream_id in stream_ids:
                self._rows.setdefault(stream_id, unread_row(stream_id))
        self._has_names.set()
        if not self._readers:
            self._readers = (first, *(self.client() for _ in range(READERS - 1)))
        parts: list[list[str]] = [[] for _ in self._readers]
        for stream_id in stream_ids:
            parts[zlib.crc32(stream_id.encode()) % READERS].append(stream_id)
        with ThreadPoolExecutor(READERS, thread_name_prefix="streamstate-page-reader") as pool:
            for done in [pool.submit(self._read, *each) for each in zip(self._readers, parts, strict=True)]:
                done.result()
        gone = self._rows.keys() - set(stream_ids)
        with self._guard:
            for stream_id in gone:
                self._rows.pop(stream_id, None)
                self._read_seconds.pop(stream_id, None)
                self._batch_times.pop(stream_id, None)

    def _read(self, client: Controller, stream_ids: list[str]) -> None:
        for stream_id in stream_ids:
            read = self._clock.monotonic_seconds()
            try:
                with one_of_many():
                    status = client.observed(stream_id)[1]
            except StillReadingError:  # the row stays as it was; the next poll reads on
                continue
            except StreamNotFoundError:  # its first deployment has not started yet
                with self._guard:
                    self._rows.pop(stream_id, None)
                continue
            with self._guard:
                times = self._batch_times.setdefault(stream_id, deque(maxlen=MAX_BATCH_TIMES))
            if status.state == "unreadable":
                row = unreadable_row(stream_id, status.error)
            else:
                row = row_of(status, times, self._clock.now())
            with self._guard:
                self._rows[stream_id] = row
                self._read_seconds[stream_id] = read


def _wait(look: Future[None], seconds: float) -> None:
    try:
        look.exception(seconds)
    except FutureTimeoutError:
        return


@dataclass
class _Part:
    reading: Future[Any] | None = None
    read_seconds: float | None = None


class SharedParts:
    """Parts of pages of single streams, each read once in some seconds, however many ask.

    Parts are read in threads of their own, and few requests wait for them at a time: Airflow's api-server has as many
    threads for all that it serves as a home that does not answer would hold.

    Args:
        wait_seconds: how long a request waits for a part that is being read.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, wait_seconds: float = PART_WAIT_SECONDS) -> None:
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._guard = threading.Lock()
        self._parts: OrderedDict[tuple[str, ...], _Part] = OrderedDict()
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="streamstate-page-part")
        self._waiting = threading.BoundedSemaphore(MOST_WAITING)

    def get(self, key: tuple[str, ...], read: Callable[[], Value], seconds: float) -> Value:
        """The part of this key, read again if it is older than ``seconds``; an error is not kept.

        Raises:
            UnavailableError: it is still being read.
        """
        with self._guard:
            part = self._parts.setdefault(key, _Part())
            self._parts.move_to_end(key)
            while len(self._parts) > MAX_PARTS:
                self._parts.popitem(last=False)
            if part.reading is None or self._is_over(part, seconds):
                part.read_seconds = None
                part.reading = self._pool.submit(self._read, part, read)
            reading: Future[Value] = part.reading
        if not reading.done():
            self._wait(reading)
        return reading.result()

    def _is_over(self, part: _Part, seconds: float) -> bool:
        """Whether a reading has ended, and failed or is too old."""
        if part.reading is None or not part.reading.done():
            return False
        read_seconds = part.read_seconds
        return read_seconds is None or self._clock.monotonic_seconds() - read_seconds >= seconds

    def _read(self, part: _Part, read: Callable[[], Value]) -> Value:
        value = read()
        part.read_seconds = self._clock.monotonic_seconds()
        return value

    def _wait(self, reading: Future[Any]) -> None:
        if not self._waiting.acquire(blocking=False):
            raise _being_read()
        try:
            reading.exception(self._wait_seconds)
        except FutureTimeoutError:
            raise _being_read() from None
        finally:
            self._waiting.release()


def _being_read() -> UnavailableError:
    return UnavailableError(
        "this part of the page is being read",
        next_step="Look again in a moment; where it stays so, the home answers slowly or not at all.",
    )


class HomesOnPage:
    """The homes that are shown, by the ids of their connections."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._homes: dict[str, HomeOnPage] = {}

    def home(self, conn_id: str) -> HomeOnPage:
        """The home of a connection that is shown.

        Raises:
            HomeNotFoundError: the page does not show this one.
        """
        if conn_id not in page_conn_ids():
            raise HomeNotFoundError(
                "the page shows no home of this connection",
                conn_id=conn_id[:80],
                next_step="Add it to page_conn_ids in the section streamstate of Airflow's configuration.",
            )
        with self._guard:
            return self._homes.setdefault(conn_id, HomeOnPage(conn_id, self._clock))
