"""The plugin: what it declares to Airflow, how it is found, and what loading it costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.metadata import entry_points
from typing import Any

import airflow
import pytest
from airflow.api_fastapi.core_api.datamodels.plugins import ExternalViewResponse, FastAPIAppResponse, ReactAppResponse

from airflow_streamstate.page import plugin
from airflow_streamstate.page.app import static_files
from airflow_streamstate.page.plugin import StreamStatePlugin
from airflow_streamstate.provider_info import get_provider_info

# What Airflow 3.1 knows: one view that it does not know hides the whole plugin.
OLDEST_KEYS = {"name", "href", "bundle_url", "destination", "url_route", "category", "icon", "icon_dark_mode"}
OLDEST_DESTINATIONS = {"nav", "dag", "dag_run", "task", "task_instance"}


@pytest.mark.parametrize("version", ["3.1.0", "3.2.2", "3.3.2", "3.4.0b2", "3.5.0", "4.0.0"])
def test_each_view_and_app_is_one_that_airflow_shows(version: str) -> None:
    """By Airflow's own models, and by the fields of the oldest Airflow that is supported."""
    react_apps, external_views = plugin.views(version)
    assert bool(react_apps) != bool(external_views)  # each route once
    for view in react_apps:
        ReactAppResponse.model_validate(view)
    for view in external_views:
        ExternalViewResponse.model_validate(view)
        assert not view["href"].startswith("/")  # relative, so that it works under a base path
        assert view["href"].startswith(f"{plugin.URL_PREFIX[1:]}/")
    views = [*react_apps, *external_views]
    for view in views:
        assert set(view) <= OLDEST_KEYS
        assert view["destination"] in OLDEST_DESTINATIONS
    assert [view["url_route"] for view in views] == ["streamstate", "streamstate_task"]
    for app in StreamStatePlugin.fastapi_apps:
        FastAPIAppResponse.model_validate({**app, "app": str(app["app"])})
        assert callable(app["app"])


def test_a_version_that_is_not_known_has_frames() -> None:
    """The interface of React apps is experimental."""
    assert [bool(plugin.views(version)[0]) for version in ("3.1.8", "3.4.0b2", "3.5.0", "4.0.0")] == [
        True, True, False, False
    ]  # fmt: skip
    assert (StreamStatePlugin.react_apps, StreamStatePlugin.external_views) == plugin.views(airflow.__version__)


def test_the_script_of_the_views_is_there_and_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the root, below Airflow's base path; Airflow takes each app from ``globalThis`` by its name."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://a.test/air/flow/")
    react_apps, _ = plugin.views("3.3.2")
    assert {view["bundle_url"] for view in react_apps} == {"/air/flow/streamstate/static/airflow.js"}
    named = re.search(r"Object\.assign\(globalThis, \{(.+)\}\);", static_files()["airflow.js"].decode())
    assert named is not None
    assert re.findall(r"(\w+): viewOf", named[1]) == [view["name"] for view in react_apps]


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
