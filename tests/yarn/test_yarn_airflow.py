"""A stream on a real YARN, driven by a real Airflow of which a component is killed in the middle of each verb."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.airflow_life import life_on
from support.airflow_strikes import Component
from support.quick_jvm import OPTIONS
from support.yarn_cluster import YarnCluster

pytestmark = [pytest.mark.components, pytest.mark.spark, pytest.mark.timeout(1800), pytest.mark.named]
KILLED: dict[str, Component] = {
    "deploy": "worker",
    "upgrade": "triggerer",
    "stop": "worker",
    "resume": "triggerer",
    "rollback": "worker",
    "drain": "scheduler",
}


class OnYarn:
    """Drivers as applications."""

    def __init__(self, cluster: YarnCluster) -> None:
        self._cluster = cluster

    @property
    def arguments(self) -> Mapping[str, Any]:
        quick = {"spark.driver.extraJavaOptions": OPTIONS, "spark.sql.streaming.pollingDelay": "50ms"}
        return {
            "launcher": "yarn",
            "launcher_options": self._cluster.options,
            "conf": {**self._cluster.conf, **quick, "spark.log.level": "WARN"},
        }

    def launch_keys(self) -> list[str]:
        return self._named("")

    def running(self) -> list[str]:
        return self._named("?states=NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING")

    def _named(self, query: str) -> list[str]:
        found: Any = self._cluster.get(f"apps{query}").get("apps") or {}
        apps = sorted(found.get("app", []), key=lambda app: app["startedTime"])
        return [app["name"].rpartition(" ")[2] for app in apps]


def test_the_driver_goes_on_and_the_task_finds_it_again(
    yarn: YarnCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever component is killed: one driver of each launch key, no wait lost, every flight counted once (Laws 1, 2
    and 9)."""
    for name in [name for name in os.environ if name.startswith(("SPARK_", "HADOOP_", "YARN_"))]:
        monkeypatch.delenv(name)
    with life_on(OnYarn(yarn), tmp_path, monkeypatch, {}) as life:
        life.check(life.live(KILLED))
