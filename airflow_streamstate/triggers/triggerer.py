"""What all triggers of one triggerer share: for each home one controller, one watcher and one bounded pool of threads.

The store is synchronous, so triggers look at it in such a pool; the event loop waits for no disk and no network, and no
home for another one that is slow.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook, Connection

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home, HomeConfig
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.hooks.configuration import restart_in_triggerer, trigger_threads
from airflow_streamstate.hooks.connection import Fetched, aws_conn_id_of, home_config
from airflow_streamstate.hooks.secrets import mask_credentials
from airflow_streamstate.hooks.streamstate import controller_on_this_machine
from airflow_streamstate.triggers.watcher import StreamWatcher

log = logging.getLogger(__name__)
T = TypeVar("T")

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
    """A task that goes on, whatever becomes of its caller."""
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
    # A cache alone makes one for each of a thousand triggers that begin at once.
    with _MAKING:
        return _made(config)


@functools.lru_cache(maxsize=64)
def _made(config: HomeConfig) -> Controller:
    # One per home: a thousand triggers share its connections.
    mask_credentials(config)
    return controller_on_this_machine(Home(config, SYSTEM_CLOCK), SYSTEM_CLOCK, "airflow triggerer")
