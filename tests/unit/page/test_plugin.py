"""The plugin: what Airflow is told of it, how it is found, and what loading it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import entry_points
from typing import Any

from airflow.api_fastapi.core_api.datamodels.plugins import ExternalViewResponse, FastAPIAppResponse

from airflow_streamstate.page import plugin
from airflow_streamstate.page.plugin import StreamStatePlugin
from airflow_streamstate.provider_info import get_provider_info

# What Airflow 3.1 knows: one view that it does not know hides the whole plugin.
OLDEST_KEYS = {"name", "href", "destination", "url_route", "category", "icon", "icon_dark_mode"}
OLDEST_DESTINATIONS = {"nav", "dag", "dag_run", "task", "task_instance"}


def test_each_view_and_app_is_one_that_airflow_shows() -> None:
    """By Airflow's own models, and by the fields of the oldest Airflow that is supported."""
    for view in StreamStatePlugin.external_views:
        ExternalViewResponse.model_validate(view)
        assert set(view) <= OLDEST_KEYS
        assert view["destination"] in OLDEST_DESTINATIONS
        assert not view["href"].startswith("/")  # relative, so that it works under a base path
        assert view["href"].startswith(f"{plugin.URL_PREFIX[1:]}/")
    for app in StreamStatePlugin.fastapi_apps:
        FastAPIAppResponse.model_validate({**app, "app": str(app["app"])})
        assert callable(app["app"])
    routes = [view["url_route"] for view in StreamStatePlugin.external_views]
    assert len(set(routes)) == len(routes)


def test_airflow_finds_it_whether_it_discovers_providers_lazily_or_not() -> None:
    """By the entry point, and by the description of the provider; both name the one class."""
    info: Any = get_provider_info()
    (named,) = info["plugins"]
    assert named == {"name": StreamStatePlugin.name, "plugin-class": f"{plugin.__name__}.{StreamStatePlugin.__name__}"}
    found = [one for one in entry_points(group="airflow.plugins") if one.name == StreamStatePlugin.name]
    assert {one.value for one in found} <= {f"{plugin.__name__}:{StreamStatePlugin.__name__}"}


def test_loading_it_imports_nothing_that_only_the_server_needs() -> None:
    """Airflow loads plugins in each worker and scheduler: the page is imported at the first request."""
    code = (
        "import sys, airflow.plugins_manager as before\n"
        "known = set(sys.modules)\n"
        "import airflow_streamstate.page.plugin\n"
        "print(sorted(set(sys.modules) - known))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    found = set(ast.literal_eval(done.stdout.strip().splitlines()[-1]))
    package = {"airflow_streamstate", "airflow_streamstate.page", "airflow_streamstate.page.plugin"}
    assert {"airflow_streamstate.page.plugin"} <= found <= package
