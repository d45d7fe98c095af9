"""What a real YARN does that no other launcher's cluster does."""

from __future__ import annotations

import os
import signal
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.conformance import KEY
from airflow_streamstate.launch.yarn import tag_of
from airflow_streamstate.launch.yarn_api import ResourceManager
from support.drivers import wait_until
from support.yarn_cluster import TIGHT_QUEUE, YarnCluster
from support.yarn_stage import YarnStage

pytestmark = [pytest.mark.timeout(900)]
LOSES = "import sys\nsys.exit(4)\n"
WAITS = """
import os, sys, time

with open({pid!r}, "w") as file:
    file.write(str(os.getpid()))
while not os.path.exists({end!r}):
    time.sleep(0.1)
sys.exit(0)
"""

USES = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
loader = spark._jvm.Thread.currentThread().getContextClassLoader()
assert loader.getResource("rates.txt") is not None, "no jar on the class path of the driver"
assert os.environ.get("OF_ARCHIVE") == "1", "another Python runs the driver"


def seen(_):
    return os.path.exists("rates.jar"), os.environ.get("OF_ARCHIVE")


found = spark.sparkContext.parallelize([1], 1).map(seen).collect()
assert found == [(True, "1")], found
"""


def waiting(stage: YarnStage) -> str:
    """A program that writes its pid to ``pid``, and ends once ``end`` is there."""
    return WAITS.format(pid=str(stage.folder / "pid"), end=str(stage.folder / "end"))


def started(stage: YarnStage) -> int:
    """The pid of the program, once it works."""
    path = stage.folder / "pid"
    wait_until(lambda: path.exists() and path.read_text() != "", lambda: "no driver", stage.patience_seconds)
    return int(path.read_text())


@pytest.mark.named
def test_the_one_of_two_applications_that_lost_its_claim_is_not_the_driver(stage: YarnStage) -> None:
    """Two controllers on two machines submit one key at the same moment: YARN runs both. The end of the one with
    status 4 is not reported while the other one works; the other one's end is."""
    launcher = stage.launcher()
    request = stage.request(KEY, LOSES)
    lost = launcher.launch(request)
    wait_until(lambda: launcher.status(lost).has_ended, lambda: str(launcher.status(lost)), stage.patience_seconds)
    assert launcher.status(lost).exit_code == 4
    tag = tag_of(request.place, "streamstate")
    other = stage.request("d-0009-a0001", waiting(stage))
    launcher.launch(replace(other, conf={**other.conf, "spark.yarn.tags": tag}))
    started(stage)
    assert len(ResourceManager([stage.cluster.url]).applications(tag)) == 2
    assert launcher.status(lost).state == "running"
    (stage.folder / "end").touch()
    wait_until(lambda: launcher.status(lost).has_ended, lambda: str(launcher.status(lost)), stage.patience_seconds)
    assert launcher.status(lost).exit_code == 0


@pytest.mark.named
def test_a_jar_and_a_python_environment_reach_driver_and_executors(stage: YarnStage) -> None:
    """As the controller places them for a launch: in its folder, out of the home. (Law 15)"""
    request = stage.request(KEY, USES)
    placed = Path(request.folder) / "code"
    jar, env = placed / "jars" / "rates.jar", placed / "env" / "env.tar.gz"
    options = {name: value for name, value in request.options.items() if name != "python"}
    request = replace(request, jars=(str(jar),), options={**options, "python_env": str(env)})
    launcher = stage.launcher()
    launcher.check(request)
    for path in (jar, env):
        path.parent.mkdir(parents=True)
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("rates.txt", "1.1")
    python = stage.base / "python"
    python.write_text(f'#!/bin/sh\nOF_ARCHIVE=1 exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with tarfile.open(env, "w:gz") as tar:
        tar.add(python, "bin/python")
    handle = launcher.launch(request)
    wait_until(lambda: launcher.status(handle).has_ended, lambda: str(launcher.status(handle)), stage.patience_seconds)
    assert launcher.status(handle).exit_code == 0, launcher.logs(handle, 10_000)


@pytest.mark.named
def test_a_driver_whose_jvm_was_killed_is_not_proven_dead(stage: YarnStage) -> None:
    """YARN reports the application as failed while its Python still works: that is no proof (1a.8)."""
    launcher = stage.launcher()
    handle = launcher.launch(stage.request(KEY, waiting(stage)))
    pid = started(stage)
    jvm = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(jvm, signal.SIGKILL)
    wait_until(
        lambda: launcher.status(handle).reported_end, lambda: str(launcher.status(handle)), stage.patience_seconds
    )
    status = launcher.status(handle)
    assert (status.state, status.has_ended) == ("unknown", False)
    assert "137" in status.reason
    os.kill(pid, signal.SIGKILL)


@pytest.mark.named
def test_a_resource_manager_that_restarts_is_believed_again(stage: YarnStage) -> None:
    """While it is away its drivers are unknown; back again it knows them, and finds them by their key."""
    launcher = stage.launcher()
    request = stage.request(KEY, waiting(stage))
    handle = launcher.launch(request)
    started(stage)
    stage.cluster.kill_resource_manager()
    away = launcher.status(handle)
    assert (away.state, away.reported_end) == ("unknown", False)
    stage.cluster.start_resource_manager()
    stage.cluster.wait_for_node()
    assert launcher.find(request.place) == handle
    wait_until(
        lambda: launcher.status(handle).state == "running",
        lambda: str(launcher.status(handle)),
        stage.patience_seconds,
    )
    assert launcher.kill(handle, 1.0).state != "running"


def test_a_check_tells_what_the_cluster_lacks(stage: YarnStage, yarn: YarnCluster) -> None:
    """Queue, memory and configuration are looked at before anything is stopped, and nothing is submitted."""
    launcher, request = stage.launcher(), stage.request(KEY, "")
    launcher.check(request)
    launcher.check(replace(request, options={**request.options, "queue": TIGHT_QUEUE}))
    for changes, words in (
        ({"options": {**request.options, "queue": "nosuch"}}, "no such queue"),
        ({"conf": {**request.conf, "spark.driver.memory": "64g"}}, "as much memory"),
        ({"options": {**request.options, "hadoop_conf_dir": str(stage.base)}}, "configuration of the YARN cluster"),
        ({"options": {**request.options, "queu": "x"}}, "no such option"),
        ({"conf": {**request.conf, "spark.executorEnv.DB_PASSWORD": "hunter2"}}, "secret would be written"),
        ({"master": "local[1]"}, "YARN as their master"),
    ):
        with pytest.raises(InvalidRequestError, match=words) as told:
            launcher.check(replace(request, **changes))
        assert told.value.next_step
    assert launcher.find(request.place) is None


@pytest.mark.named
def test_what_a_container_is_started_with_is_seen_by_the_suite(stage: YarnStage) -> None:
    """What looks for secrets in the suite does find what YARN shows: else that promise would prove nothing."""
    launcher = stage.launcher()
    request = stage.request(KEY, waiting(stage))
    handle = launcher.launch(replace(request, conf={**request.conf, "spark.yarn.appMasterEnv.SHOWN": "seen-by-all"}))
    started(stage)
    assert "seen-by-all" in stage.shown(handle)
    launcher.kill(handle, 0.0)


@pytest.mark.named
def test_a_node_that_is_away_proves_nothing(stage: YarnStage) -> None:
    """The application is killed in YARN's list while its node is silent: its driver works on, and is unknown (1a.8)."""
    launcher = stage.launcher()
    handle = launcher.launch(stage.request(KEY, waiting(stage)))
    pid = started(stage)
    stage.cluster.end("nm", signal.SIGKILL)
    try:
        status = launcher.kill(handle, 0.0)
        assert (status.state, status.reported_end) == ("unknown", True)
        assert Path(f"/proc/{pid}").exists()
    finally:
        stage.cluster.start_node_manager()
        stage.cluster.wait_for_node()
    status = launcher.status(handle)
    assert not status.has_ended, "a NodeManager that was started later cannot know"
    (stage.folder / "end").touch()
