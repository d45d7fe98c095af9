"""The plugin that Airflow loads in each of its processes. Only the api-server serves the page, and builds it then."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from airflow import __version__
from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

URL_PREFIX = "/streamstate"
URL_ROUTE = "streamstate"
REACT_VERSIONS = ((3, 1), (3, 2), (3, 3), (3, 4))
"""Those whose loader of React apps the script ``static/airflow.js`` is written for."""

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


def bundle_url() -> str:
    """The address of the script of the React apps.

    From the root: Airflow 3.1 and 3.2 take a relative one from the folder of their own script.
    """
    base = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
    return f"{base}{URL_PREFIX}/static/airflow.js"


_APPS: list[Any] = [{"app": PageOnDemand(), "url_prefix": URL_PREFIX, "name": "Stream State"}]
_NAV: Mapping[str, Any] = {"name": "Streams", "destination": "nav", "category": "browse", "url_route": URL_ROUTE}
_TASK: Mapping[str, Any] = {"name": "Stream", "destination": "task_instance", "url_route": f"{URL_ROUTE}_task"}
_TASK_QUERY = "dag_id={DAG_ID}&run_id={RUN_ID}&task_id={TASK_ID}&map_index={MAP_INDEX}"


def views(airflow_version: str) -> tuple[list[Any], list[Any]]:
    """The React apps and the external views for a version of Airflow: it has the page as the one or the other.

    Airflow calls the interface of React apps experimental, so a version with which it was not tried gets frames. Only
    keys and destinations that Airflow 3.1 knows: one that a version does not know hides the whole plugin.
    """
    if tuple(int(part) for part in airflow_version.split(".")[:2]) in REACT_VERSIONS:
        return [{**view, "bundle_url": bundle_url()} for view in (_NAV, _TASK)], []
    hrefs = (f"{URL_PREFIX[1:]}/", f"{URL_PREFIX[1:]}/task?{_TASK_QUERY}")
    return [], [{**view, "href": href} for view, href in zip((_NAV, _TASK), hrefs, strict=True)]


_REACT_APPS, _EXTERNAL_VIEWS = views(__version__)


class StreamStatePlugin(AirflowPlugin):
    """The page *Streams*, under *Browse*, and at each task instance the stream that it acts on."""

    name = "streamstate"
    fastapi_apps = _APPS
    react_apps = _REACT_APPS
    external_views = _EXTERNAL_VIEWS
