"""One cluster for all tests of this folder, and a namespace for each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.launch.spark_home import own_pyspark
from support.kube_program import lacks
from support.shell import Desk, desk_with

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def cluster() -> Iterator[object]:
    """A running cluster; its first start on a machine builds it."""
    if said := lacks():
        pytest.skip(said)
    from support.kube_cluster import kubernetes_cluster

    with kubernetes_cluster() as running:
        yield running


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home, and a shell without anything of Spark in its environment."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_", "HADOOP_", "YARN_")) as made:
        yield made


@pytest.fixture
def place(cluster, desk: Desk) -> Iterator[object]:
    """A namespace for drivers with Spark, and nothing left of them afterwards."""
    from support.kube_stage import KubernetesStage

    found = KubernetesStage(desk.base, cluster, f"s{next(_NUMBERS)}", own_pyspark())
    try:
        yield found
    finally:
        cluster.remove_namespace(found.namespace)


@pytest.fixture
def stage(cluster, tmp_path: Path) -> Iterator[object]:
    """Drivers without Spark in their own namespace, and nothing left of them afterwards."""
    from support.kube_stage import KubernetesStage

    found = KubernetesStage(tmp_path, cluster, f"s{next(_NUMBERS)}")
    try:
        yield found
    finally:
        cluster.remove_namespace(found.namespace)
