"""Queries that a Spark operator, or spark-submit's own Kubernetes mode, runs in pods, and their adoption.

No operator runs here: the pods and objects are those that one leaves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import yaml

pytest.importorskip("kubernetes")

from airflow_streamstate.clock import SYSTEM_CLOCK
from support.foreign_query import ForeignQuery
from support.kube_cluster import IMAGE, OPERATOR, machine_template
from support.kube_stage import KubernetesStage
from support.launches import wait_until
from support.shell import Desk, shell

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
POD = "totals-driver"
OF_SPARK_SUBMIT = {"spark-role": "driver", "spark-app-selector": "spark-0123456789abcdef", "spark-app-name": "totals"}
OF_AN_OPERATOR = {
    **OF_SPARK_SUBMIT,
    f"{OPERATOR}/app-name": "totals",
    f"{OPERATOR}/launched-by-spark-operator": "true",
}
MAY_SEE = f"""
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: sees-applications, namespace: NAMESPACE}}
rules:
  - {{apiGroups: [{OPERATOR}], resources: [sparkapplications], verbs: [get]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: sees-applications, namespace: NAMESPACE}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: sees-applications}}
subjects:
  - {{kind: User, name: USER, apiGroup: rbac.authorization.k8s.io}}
"""


class PodQuery(ForeignQuery):
    """The same query, whose driver is a pod that somebody else made.

    Attributes:
        labels: of its pod.
        owner: the object that owns it; None: nothing does.
    """

    def __init__(self, place: KubernetesStage) -> None:
        super().__init__(place.base)
        self._place = place
        self._pods = f"/api/v1/namespaces/{place.namespace}/pods"
        self.labels: Mapping[str, str] = OF_SPARK_SUBMIT
        self.owner: Mapping[str, Any] | None = None

    def start(self) -> None:
        """Its driver, in a pod."""
        pod = yaml.safe_load(machine_template(variables={**self._place.variables, "PYSPARK_PYTHON": sys.executable}))
        pod["metadata"] = {"name": POD, "labels": dict(self.labels)}
        if self.owner is not None:
            owner = {name: self.owner[name] for name in ("apiVersion", "kind")}
            named = {name: self.owner["metadata"][name] for name in ("name", "uid")}
            pod["metadata"]["ownerReferences"] = [{**owner, **named, "controller": True}]
        conf = [word for key, value in self.conf.items() for word in ("--conf", f"{key}={value}")]
        submit = f"{self._place.variables['SPARK_HOME']}/bin/spark-submit"
        words = [submit, "--master", "local[2]", *conf, str(self.app), str(self.base)]
        (container,) = pod["spec"]["containers"]
        container |= {"image": IMAGE, "imagePullPolicy": "Never", "command": words}
        pod["spec"] |= {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
        made = self._place.cluster.call("POST", self._pods, pod)
        assert isinstance(made, dict), made

    def has_ended(self) -> bool:
        """Whether its kubelet has reported its end, or its pod is gone."""
        pod = self._place.cluster.call("GET", f"{self._pods}/{POD}")
        return pod == 404 or pod["status"].get("phase") in ("Succeeded", "Failed")

    def kill(self) -> None:
        """As a person does it."""
        self._place.cluster.call("DELETE", f"{self._pods}/{POD}")

    @property
    def log(self) -> str:
        """What its driver wrote, and its pod."""
        client = self._place.cluster
        return str([client.call("GET", f"{self._pods}/{POD}"), client.text(f"{self._pods}/{POD}/log?tailLines=100")])

    def adopt_into_a_pod(self, *words: object) -> Any:
        """The verb; the stream continues in a pod of ours."""
        return self.adopt(*self._place.words(), *words)


@pytest.fixture
def foreign(place: KubernetesStage) -> Iterator[PodQuery]:
    """Somebody's query."""
    made = PodQuery(place)
    yield made
    made.kill()


def _pods(place: KubernetesStage) -> list[str]:
    return [item["metadata"]["name"] for item in place.ask("pods")["items"]]


def test_what_an_operator_runs_is_adopted_once_its_owner_has_removed_it(
    desk: Desk, place: KubernetesStage, foreign: PodQuery
) -> None:
    """As long as the SparkApplication is there, an operator would start the old driver again: nothing is touched. Its
    removal takes the pod with it, in the middle of a batch; that batch runs again in our pod, over its own bounds, and
    every row is counted once (Laws 9 and 14)."""
    place.cluster.grant(place.namespace, MAY_SEE)
    foreign.owner = place.cluster.spark_application(place.namespace, "totals")
    foreign.labels = OF_AN_OPERATOR
    foreign.feed(3)
    foreign.start()
    foreign.wait_committed(2)
    before = foreign.files()
    for words in ((), ("--stopped",)):
        refused = foreign.adopt_into_a_pod(*words)
        assert refused.status != 0
        assert refused.error["message"].startswith("a SparkApplication of this name is there")
        assert "delete sparkapplication totals" in refused.error["next_step"]
    assert foreign.files() == before
    assert not (desk.home / "totals" / "adoption.json").exists()
    assert not foreign.has_ended()

    foreign.hold.touch()
    foreign.feed(1)
    wait_until(lambda: 3 in foreign.entries("offsets"), lambda: foreign.log, 60)
    place.cluster.call("DELETE", f"/apis/{OPERATOR}/v1beta2/namespaces/{place.namespace}/sparkapplications/totals", {})
    wait_until(lambda: _pods(place) == [], lambda: foreign.log, 120)
    foreign.hold.unlink()
    answer = foreign.adopt_into_a_pod("--stopped", "--timeout", 300)
    assert answer.status == 0, (answer, shell("logs", "totals").out[-4000:])
    query = answer.json["adopted"]["queries"]["counts"]
    assert (query["batch_id"], query["planned_batch_id"]) == (2, 3)
    (pod,) = _pods(place)
    assert pod in shell("status", "totals", "--json").json["driver"]
    foreign.finish()


def test_a_driver_that_spark_submit_put_into_a_pod_meets_its_barrier(
    desk: Desk, place: KubernetesStage, foreign: PodQuery
) -> None:
    """It is asked by its checkpoint alone: its batch is committed, then its pod ends by itself, and ours continues with
    every row counted once (Laws 9 and 12)."""
    foreign.feed(2)
    foreign.start()
    foreign.wait_committed(1)
    with ThreadPoolExecutor(1) as pool:
        adopted = pool.submit(lambda: foreign.adopt_into_a_pod("--deadline", 100, "--timeout", 300))
        wait_until((desk.home / "totals" / "adoption.json").exists, "the adoption to be recorded", 60)
        for _ in range(3):
            foreign.feed(1)
            SYSTEM_CLOCK.sleep(1.5)
    answer = adopted.result()
    assert answer.status == 0, (answer, shell("logs", "totals").out[-4000:])
    query = answer.json["adopted"]["queries"]["counts"]
    assert query["planned_batch_id"] is None
    wait_until(foreign.has_ended, lambda: foreign.log, 60)
    assert foreign.entries("commits")[-1] == query["batch_id"]
    assert POD in _pods(place), "it is left for its owner"
    foreign.finish()
