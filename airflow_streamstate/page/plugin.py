"""The plugin that Airflow loads in each of its processes. Only the api-server serves the page, and builds it then."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from airflow.plugins_manager import AirflowPlugin

URL_PREFIX = "/streamstate"
URL_ROUTE = "streamstate"

_Message = MutableMapping[str, Any]


class PageOnDemand:
    """The ASGI app of the page, imported and built at the first request.

    Airflow loads plugins in workers and schedulers, too, which need neither FastAPI nor a client of a home.
    """

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        app = await asyncio.to_thread(_page)
        await app(scope, receive, send)


@functools.cache
def _page() -> Any:
    from airflow_streamstate.page.app import page_app

    return page_app()


_APPS: list[Any] = [{"app": PageOnDemand(), "url_prefix": URL_PREFIX, "name": "Stream State"}]
# Only keys and destinations that Airflow 3.1 knows: one that it does not know would hide the whole plugin.
_VIEWS: list[Any] = [
    {
        "name": "Streams",
        "href": "streamstate/",
        "destination": "nav",
        "category": "browse",
        "url_route": URL_ROUTE,
    },
    {
        "name": "Stream",
        "href": "streamstate/task?dag_id={DAG_ID}&run_id={RUN_ID}&task_id={TASK_ID}&map_index={MAP_INDEX}",
        "destination": "task_instance",
        "url_route": "streamstate_task",
    },
]


class StreamStatePlugin(AirflowPlugin):
    """The page *Streams*, under *Browse*, and beside each task instance the stream that it acts on."""

    name = "streamstate"
    fastapi_apps = _APPS
    external_views = _VIEWS
