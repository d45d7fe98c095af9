"""Real streams whose drivers are pods: deployed there, upgraded, killed and stopped, with every row accounted for."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("kubernetes")

from airflow_streamstate.protocol.layout import checkpoint_folder
from support.cluster_stream import WAIT
from support.flights import JOBS, Flights, counts, counts_of
from support.kube_stage import KubernetesStage
from support.launches import wait_until
from support.progress import wait_read
from support.quick_jvm import OPTIONS
from support.shell import Desk, done, shell

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
QUICK = (
    *("--conf", "spark.driver.memory=600m", "--conf", f"spark.driver.extraJavaOptions={OPTIONS}"),
    *("--conf", "spark.sql.streaming.pollingDelay=50ms", "--conf", "spark.log.level=WARN"),
)
EXECUTORS = (
    *("--conf", "spark.executor.instances=1", "--conf", "spark.executor.memory=512m"),
    *("--conf", "spark.kubernetes.executor.request.cores=200m"),
)


def _log() -> str:
    return shell("logs", "flights").out[-4000:]


def _wait_rows(flights: Flights) -> None:
    """Wait until the result of a day is written."""
    wait_until(lambda: any(True for _ in flights.written()), _log, 240)


def _drain_all(desk: Desk, deployment_id: str) -> None:
    """Drain, once all four files are read: a drain reads nothing more."""
    wait_read(desk.home / checkpoint_folder("flights", deployment_id, "delays"), 4, _log)
    done("drain", "flights", *WAIT)


def _delete_pods(place: KubernetesStage) -> None:
    """As a person does it; until the kubelet has reported their end."""
    for pod in place.ask("pods")["items"]:
        place.cluster.call("DELETE", f"/api/v1/namespaces/{place.namespace}/pods/{pod['metadata']['name']}")
    wait_until(lambda: not place.has_running(), lambda: str(place.ask("pods")), 120)


def test_a_stream_in_a_pod_is_upgraded_killed_and_drained(desk: Desk, place: KubernetesStage) -> None:
    """The pod is deleted by a person, the next attempt continues, and every flight is counted once."""
    flights = Flights(desk.base / "flights", 4)
    lines = flights.feed()
    words = ("--app", JOBS / "count_by_origin.py", "--master", "local[2]", *QUICK, *place.words())
    done("deploy", "flights", *words, *WAIT, "--", *flights.arguments)
    assert "kubernetes" in shell("status", "flights").out
    lines += flights.feed()
    _wait_rows(flights)
    _delete_pods(place)
    done("resume", "flights", *WAIT)
    lines += flights.feed()
    found = done("upgrade", "flights", "--app", JOBS / "count_by_origin_v2.py", *WAIT, "--", *flights.arguments)
    lines += flights.feed()
    _drain_all(desk, found["new_deployment_id"])
    assert counts_of(list(flights.written()), "origin") == counts(lines, "origin")
    assert done("audit", "flights")["ok"] is True


def test_executors_are_pods_of_their_own_and_none_is_left(desk: Desk, place: KubernetesStage) -> None:
    """Spark makes them from within the driver's pod, with the rights of the docs; a stop leaves none."""
    flights = Flights(desk.base / "flights", 2)
    flights.feed()
    master = f"k8s://{place.cluster.url}"
    words = ("--app", JOBS / "count_by_origin.py", "--master", master, *QUICK, *EXECUTORS, *place.words())
    done("deploy", "flights", *words, *WAIT, "--", *flights.arguments)
    flights.feed()

    def executors() -> list[Any]:
        pods = place.ask("pods")["items"]
        return [pod for pod in pods if pod["metadata"]["labels"].get("spark-role") == "executor"]

    wait_until(lambda: bool(executors()), _log, 120)
    _wait_rows(flights)
    done("stop", "flights", *WAIT)
    wait_until(lambda: not executors(), lambda: str(executors()), 60)


def test_a_stream_moves_from_this_machine_into_a_pod(desk: Desk, place: KubernetesStage) -> None:
    """Its state is kept; a watcher restarts it there after its pod was deleted, and every flight is counted once."""
    flights = Flights(desk.base / "flights", 4)
    lines = flights.feed()
    words = ("--app", JOBS / "count_by_origin.py", "--master", "local[2]", *QUICK)
    done("deploy", "flights", *words, *WAIT, "--", *flights.arguments)
    lines += flights.feed()
    moved = ("--app", JOBS / "count_by_origin_v2.py", *place.words(), "--master", "local[2]")
    found = done("upgrade", "flights", *moved, *WAIT)
    assert place.ask("pods")["items"], "no driver is in the namespace"
    lines += flights.feed()
    _delete_pods(place)
    done("policy", "flights", "--on-failure", "restart", "--initial-backoff", "1")

    def is_restarted() -> bool:
        shell("watch", "--once")
        return place.has_running()

    wait_until(is_restarted, lambda: shell("watch", "--once").out, 120)
    lines += flights.feed()
    _drain_all(desk, found["new_deployment_id"])
    assert counts_of(list(flights.written()), "origin") == counts(lines, "origin")
    assert done("audit", "flights")["ok"] is True
