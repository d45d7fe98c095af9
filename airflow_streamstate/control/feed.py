"""The feed of a home: of which streams something was written, so that one listing finds the news of a thousand streams.

Drivers and controllers append to it after the write itself. An entry says "look at this stream" and nothing else: what
there is to see is in the stream's own objects. An entry may be missing (its writer died first, may not write there, or
is of an earlier release), so a reader looks at each stream from time to time all the same.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol import layout
from airflow_streamstate.store.base import ListsKeys, Store

PERIOD_MINUTES = 10
"""Entries of so many minutes lie in one folder. Readers list the folder before and the folder after theirs, too, so
that clocks may differ by as much."""
KEPT_PERIODS = 6
_PERIOD_FORMAT = "%Y%m%dT%H%M"


class FeedWriter:
    """Appends to the feed of a home, in a thread of its own, so that no writer waits for it.

    Args:
        home: the store of the control objects, as writes see it.
    """

    def __init__(self, home: Store, clock: Clock) -> None:
        self._home = home
        self._clock = clock
        self._thread: ThreadPoolExecutor | None = None
        self._waiting: set[str] = set()
        self._guard = threading.Lock()

    def append(self, stream_id: str) -> None:
        """Say soon that something of a stream was written. Raises nothing: readers do without it.

        Several calls that come before the entry is written are one entry. The process ends only after it is written.
        """
        with self._guard:
            if stream_id in self._waiting:
                return
            if self._thread is None:
                self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="streamstate-feed")
            self._waiting.add(stream_id)
            with suppress(RuntimeError):  # the process is ending
                self._thread.submit(self._write, stream_id)

    def flush(self) -> None:
        """Wait until what was appended is written, or could not be."""
        with self._guard:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()

    def _write(self, stream_id: str) -> None:
        with self._guard:
            self._waiting.discard(stream_id)
        key = layout.feed_key(_period_of(self._clock.now()), stream_id, self._clock.new_uuid()[-12:])
        with suppress(StreamStateError):
            self._home.put(key, b"{}")


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
        found = frozenset(key for period in periods for key in _keys(self._home, layout.feed_folder(period)))
        new = found - self._known
        self._known = found
        return {layout.stream_of_feed(key) for key in new}

    def tidy(self) -> None:
        """Delete what no reader looks at any more, if this process may; raises nothing."""
        oldest = _period_of(self._clock.now() - timedelta(minutes=PERIOD_MINUTES * KEPT_PERIODS))
        with suppress(StreamStateError):
            for period in self._home.list_folders(layout.FEED_FOLDER):
                if period < oldest:
                    for key in _keys(self._home, layout.feed_folder(period)):
                        self._home.delete(key)


def _keys(home: Store, folder: str) -> Iterator[str]:
    if isinstance(home, ListsKeys):
        yield from home.list_keys(f"{folder}/")
    else:
        yield from (info.key for info in home.list_objects(f"{folder}/"))


def _period_of(moment: datetime) -> str:
    return moment.replace(minute=moment.minute - moment.minute % PERIOD_MINUTES).strftime(_PERIOD_FORMAT)
