"""What all triggers of one triggerer share: for each home one controller, one watcher, one pool of threads."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook, Connection

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.control.objects import FeedReader
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home, HomeConfig
from airflow_streamstate.errors import InvalidRequestError, StreamStateError
from airflow_streamstate.hooks.configuration import restart_in_triggerer, trigger_threads
from airflow_streamstate.hooks.connection import Fetched, aws_conn_id_of, home_config, mask_credentials
from airflow_streamstate.hooks.streamstate import controller_on_this_machine

# ``StreamWatcher``: when each wait in a triggerer looks at its stream, one for all waits of a home.
#
# Few waits look at their own pace. If there are many, each looks when the feed of the home names its stream, and seldom
# otherwise: one listing every two seconds serves a thousand streams.

log = logging.getLogger(__name__)
T = TypeVar("T")
InPool = Callable[..., Awaitable[Any]]
Supervise = Callable[[Callable[[], bool]], None]
LOOKS_PER_MINUTE = 180
"""Looks of all waits together that no entry of the feed asked for; each costs about seven calls of the store."""
FEED_SECONDS = 2.0


class Turn:
    """The turn of one wait: see ``StreamWatcher.turn``."""

    def __init__(self, watcher: StreamWatcher, poll_interval_seconds: float) -> None:
        self._watcher = watcher
        self._poll_interval_seconds = poll_interval_seconds
        self._is_due = asyncio.Event()

    def call(self) -> None:
        """There is something to see."""
        self._is_due.set()

    def begin_look(self) -> None:
        """Forget what was called before; a call from now on counts for the next pause."""
        self._is_due.clear()

    @property
    def longest_pause_seconds(self) -> float:
        """How long at most a pause lasts that nothing calls, with the waits that there are now."""
        return self._watcher.longest_pause_seconds(self._poll_interval_seconds)

    async def pause(self, at_most_seconds: float) -> None:
        """Wait until the next poll is due, or for this long."""
        seconds = min(self._watcher.pause_seconds(self._poll_interval_seconds), at_most_seconds)
        try:
            await asyncio.wait_for(self._is_due.wait(), seconds)
        except asyncio.TimeoutError:  # until Python 3.10 not the built-in one
            return


class StreamWatcher:
    """Decides when each wait of a home has its next poll. For one event loop.

    It writes nothing.

    Args:
        feed: of the home.
        in_pool: runs a call of the store outside of the event loop.
        supervise: restarts what fails, as ``streamstate watch`` does, until the function that it is given returns True;
            None where the triggerer is not to do that.
    """

    def __init__(self, feed: FeedReader, clock: Clock, in_pool: InPool, supervise: Supervise | None = None) -> None:
        self._feed = feed
        self._clock = clock
        self._in_pool = in_pool
        self._supervise = supervise
        self._supervising: threading.Thread | None = None
        self._turns: dict[str, set[Turn]] = {}
        self._reading: asyncio.Task[None] | None = None

    @contextmanager
    def turn(self, stream_id: str, poll_interval_seconds: float) -> Iterator[Turn]:
        """The turn of one wait, from before its first poll to its end.

        Args:
            poll_interval_seconds: between two polls, where few waits share the home.
        """
        turn = Turn(self, poll_interval_seconds)
        self._turns.setdefault(stream_id, set()).add(turn)
        self._supervise_on()
        try:
            yield turn
        finally:
            self._turns[stream_id].discard(turn)
            if not self._turns[stream_id]:
                del self._turns[stream_id]

    def pause_seconds(self, poll_interval_seconds: float) -> float:
        """How long a wait pauses that no entry of the feed calls."""
        shared_seconds = self._shared_seconds
        if shared_seconds <= poll_interval_seconds:
            return poll_interval_seconds * (0.9 + 0.2 * self._clock.jitter())
        self._read_on()
        # Far apart, since a new triggerer starts all of them at once.
        return max(poll_interval_seconds, shared_seconds * (0.5 + self._clock.jitter()))

    def longest_pause_seconds(self, poll_interval_seconds: float) -> float:
        """As ``pause_seconds``, at most."""
        return max(1.1 * poll_interval_seconds, 1.5 * self._shared_seconds)

    @property
    def _shared_seconds(self) -> float:
        return 60.0 * sum(map(len, self._turns.values())) / LOOKS_PER_MINUTE

    @property
    def supervises(self) -> bool:
        """Whether drivers that fail are restarted from here while any wait is there."""
        return self._supervise is not None

    def _supervise_on(self) -> None:
        """See that the home is supervised while any wait is there, in its own thread."""
        if self._supervise is None or (self._supervising is not None and self._supervising.is_alive()):
            return
        is_over: Callable[[], bool] = lambda: not self._turns  # noqa: E731
        self._supervising = threading.Thread(
            target=self._supervise, args=(is_over,), name="streamstate-supervision", daemon=True
        )
        self._supervising.start()

    def _read_on(self) -> None:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        """Read the feed while any wait is there."""
        is_away = False
        while self._turns:
            try:
                news = await self._in_pool(self._feed.news)
            except StreamStateError as error:
                if not is_away:
                    log.warning("The feed of the home does not answer; each wait polls at its own pace: %s", error)
                is_away, news = True, set()
            else:
                is_away = False
            for stream_id in news:
                for turn in self._turns.get(stream_id, ()):
                    turn.call()
            await asyncio.sleep(FEED_SECONDS)


_OPENING = ThreadPoolExecutor(max_workers=trigger_threads(), thread_name_prefix="streamstate-open")
_POOLS: WeakKeyDictionary[Controller, ThreadPoolExecutor] = WeakKeyDictionary()
_MAKING = threading.Lock()
_IN_PROGRESS: set[asyncio.Task[Any]] = set()  # asyncio itself holds its tasks weakly
_WATCHERS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Controller, StreamWatcher]] = WeakKeyDictionary()


async def controller_of(conn_id: str) -> Controller:
    """The controller of the home that a connection names.

    Raises:
        InvalidRequestError: there is no such connection, or it names no home.
    """
    fetched = await _fetched(conn_id)
    aws_conn_id = aws_conn_id_of(fetched)
    aws = await _fetched(aws_conn_id) if aws_conn_id else None
    return await _run(_OPENING, _controller_of, home_config(fetched, aws))


def watcher_of(controller: Controller) -> StreamWatcher:
    """The one watcher of a controller's home, in this event loop."""
    known = _WATCHERS.setdefault(asyncio.get_running_loop(), {})
    found = known.get(controller)
    if found is None:
        supervise = functools.partial(_supervise, controller) if restart_in_triggerer() else None
        of_home = functools.partial(in_pool, controller)
        found = known[controller] = StreamWatcher(controller.home.feed_reader(), SYSTEM_CLOCK, of_home, supervise)
    return found


def _supervise(controller: Controller, is_over: Callable[[], bool]) -> None:
    controller.watcher(lambda line: log.info("%s %s: %s", line.stream_id, line.sight, line.text)).run(is_over)


def begun(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that continues, whatever becomes of its caller."""
    task = asyncio.get_running_loop().create_task(work)
    _IN_PROGRESS.add(task)
    task.add_done_callback(_IN_PROGRESS.discard)
    return task


async def in_pool(controller: Controller, call: Callable[..., T], *arguments: Any) -> T:
    """The result of a call that may wait for the store of a controller's home; the calls of one home share threads."""
    with _MAKING:
        pool = _POOLS.get(controller)
        if pool is None:
            pool = _POOLS[controller] = ThreadPoolExecutor(trigger_threads(), thread_name_prefix="streamstate")
    return await _run(pool, call, *arguments)


async def _run(pool: ThreadPoolExecutor, call: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, functools.partial(call, *arguments))


async def _fetched(conn_id: str) -> Fetched:
    try:
        return await airflow_connection(conn_id)
    except AirflowNotFoundException:
        raise InvalidRequestError("there is no such connection", conn_id=conn_id) from None


async def airflow_connection(conn_id: str) -> Fetched:
    """A connection with its extra.

    Before Airflow 3.3.2 both are masked by a call that blocks the event loop, so there a thread of the pool asks. The
    function of ``common.compat`` that does the same is younger than each Airflow it would be needed for.

    Raises:
        AirflowNotFoundException: there is no such connection.
    """
    if not hasattr(Connection, "aextra_dejson"):
        return await _run(_OPENING, _blocking_connection, conn_id)
    connection = await BaseHook.aget_connection(conn_id)
    return Fetched(connection, await connection.aextra_dejson())


def _blocking_connection(conn_id: str) -> Fetched:
    connection = BaseHook.get_connection(conn_id)
    return Fetched(connection, connection.extra_dejson)


def _controller_of(config: HomeConfig) -> Controller:
    # A cache alone makes one for each of a thousand triggers that start at once.
    with _MAKING:
        return _made(config)


@functools.lru_cache(maxsize=64)
def _made(config: HomeConfig) -> Controller:
    # One per home: a thousand triggers share its connections.
    mask_credentials(config)
    return controller_on_this_machine(Home(config, SYSTEM_CLOCK), SYSTEM_CLOCK, "airflow triggerer")
