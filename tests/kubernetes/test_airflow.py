"""A stream in pods, driven by a real Airflow of which a component is killed in the middle of each verb."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes")
pytest.importorskip("airflow.providers.cncf.kubernetes", reason="needs apache-airflow-providers-cncf-kubernetes")

from airflow_streamstate.launch.kubernetes_pod import KEY_NOTE
from airflow_streamstate.launch.spark_home import own_pyspark
from support.airflow_life import life_on
from support.airflow_strikes import Component
from support.kube_cluster import KubernetesCluster
from support.kube_stage import KubernetesStage
from support.quick_jvm import OPTIONS

pytestmark = [pytest.mark.components, pytest.mark.spark, pytest.mark.timeout(2400)]
CONN_ID = "kubernetes_default"
KILLED: dict[str, dict[str, Component]] = {
    "as_each_waits": {
        "deploy": "worker",
        "upgrade": "triggerer",
        "stop": "worker",
        "resume": "triggerer",
        "rollback": "scheduler",
        "drain": "scheduler",
    },
    "turned_once": {
        "deploy": "triggerer",
        "upgrade": "scheduler",
        "stop": "triggerer",
        "resume": "scheduler",
        "rollback": "worker",
        "drain": "worker",
    },
    "turned_twice": {
        "deploy": "scheduler",
        "upgrade": "worker",
        "stop": "scheduler",
        "resume": "worker",
        "rollback": "triggerer",
        "drain": "triggerer",
    },
}
"""What is killed in the middle of each verb: together every component in every verb."""
_NUMBERS = itertools.count(350)


class InPods:
    """Drivers as pods, reached by Airflow's own connection, whose template is a separate field."""

    def __init__(self, stage: KubernetesStage) -> None:
        self._stage = stage

    @property
    def environment(self) -> dict[str, str]:
        """Of Airflow: the connection."""
        connection = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(self._stage.kubeconfig)}}
        return {f"AIRFLOW_CONN_{CONN_ID.upper()}": json.dumps(connection)}

    @property
    def arguments(self) -> Mapping[str, Any]:
        options = {name: value for name, value in self._stage.options.items() if name != "kubeconfig"}
        template = options.pop("pod_template")
        return {
            "launcher": "kubernetes",
            "launcher_conn_id": CONN_ID,
            "launcher_options": {**options, "keep_pods": 100},
            "pod_template": template,
            "master": "local[2]",
            "conf": {
                "spark.driver.memory": "600m",
                "spark.driver.extraJavaOptions": OPTIONS,
                "spark.sql.streaming.pollingDelay": "50ms",
                "spark.log.level": "WARN",
            },
        }

    def launch_keys(self) -> list[str]:
        return [self._key(pod) for pod in self._pods()]

    def running(self) -> list[str]:
        return [self._key(pod) for pod in self._pods() if pod["status"].get("phase") in ("Pending", "Running")]

    def _pods(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._stage.ask("pods")["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def _key(self, pod: dict[str, Any]) -> str:
        return str(pod["metadata"]["annotations"][KEY_NOTE])


@pytest.fixture
def pods(cluster: KubernetesCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InPods]:
    """A namespace for drivers with Spark."""
    for name in [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_"))]:
        monkeypatch.delenv(name)
    found = KubernetesStage(tmp_path, cluster, f"s{next(_NUMBERS)}", own_pyspark())
    try:
        yield InPods(found)
    finally:
        cluster.remove_namespace(found.namespace)


@pytest.mark.parametrize("killed", KILLED.values(), ids=KILLED)
def test_the_driver_goes_on_and_the_task_finds_it_again(
    pods: InPods, killed: dict[str, Component], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever component is killed: one pod of each launch key, no wait lost, every flight counted once (Laws 1, 2 and
    9)."""
    with life_on(pods, tmp_path, monkeypatch, pods.environment) as life:
        life.check(life.live(killed))
