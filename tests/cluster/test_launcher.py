"""The suite for anybody's launcher, over drivers that are applications of a standalone cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.launch.conformance import PROMISES, Promise
from airflow_streamstate.launch.local import LocalLauncher
from support.cluster import EXECUTOR_CONF, Cluster
from support.cluster_stream import QUICK
from support.launcher_stage import LocalStage
from support.launches import nothing_left_behind

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

IS_AN_APPLICATION = """
from pyspark import SparkContext
context = SparkContext()
"""

KEPT = [promise for promise in PROMISES if promise.__name__ not in LocalLauncher.limits]


@pytest.fixture
def stage(tmp_path: Path, shared_cluster: Cluster) -> Iterator[LocalStage]:
    """Drivers that register with the master before they do anything else."""
    conf = {**EXECUTOR_CONF, **{key: QUICK[key] for key in QUICK if key.startswith(("spark.driver.", "spark.log"))}}
    with nothing_left_behind(tmp_path):
        yield LocalStage(tmp_path, shared_cluster.master_url, {**conf, "spark.cores.max": "1"}, IS_AN_APPLICATION)


@pytest.mark.parametrize("promise", KEPT, ids=lambda promise: promise.__name__)
def test_the_launcher_keeps_each_promise_on_a_cluster(stage: LocalStage, promise: Promise) -> None:
    """What the suite asks holds with a real ``spark-submit`` and a real master, too (Laws 1 and 2)."""
    promise(stage)
