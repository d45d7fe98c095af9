"""The feed of a home: of which streams something was written, so that one listing finds the news of a thousand streams.

Drivers and controllers append to it after the write itself. An entry says "look at this stream" and nothing else: what
there is to see is in the stream's own objects. An entry may be missing (its writer died first, or may not write
there), so a reader looks at each stream from time to time all the same.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import InvalidRequestError, StoreRefusedError, StreamStateError
from airflow_streamstate.protocol import layout
from airflow_streamstate.store.base import ListsKeys, Store

PERIOD_MINUTES = 10
"""Entries of so many minutes lie in one folder. Readers list the folder before and the folder after theirs, too, so
that clocks may differ by as much."""
KEPT_PERIODS = 144
AT_EXIT_SECONDS = 2.0
"""For so long a process that ends waits for its last entries."""
MOST_ENTRIES = 50_000
"""Of one period, so many entries are read: of more, some streams are looked at at their own pace, as without a feed."""
_PERIOD_FORMAT = "%Y%m%dT%H%M"


class FeedWriter:
    """Appends to the feed of a home, in a thread of its own: no writer waits for it, and no process for its end.

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
        """Say soon that something of a stream was written. Raises nothing: readers do without it.

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
        """Wait until what was appended is written, or could not be; for so long at most."""
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
