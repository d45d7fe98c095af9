"""A real stream that moves to YARN, is killed there, restarted by a watcher, upgraded and drained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster_stream import WAIT
from support.flights import JOBS, Flights, counts, counts_of
from support.launches import wait_until
from support.quick_jvm import OPTIONS, PLAIN
from support.shell import Desk, desk_with, done, shell
from support.sparks import IN_FULL, spark_of
from support.watching import watching
from support.yarn_cluster import YarnCluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200), pytest.mark.named]
QUICK = ("--conf", "spark.log.level=WARN", "--conf", "spark.sql.streaming.pollingDelay=50ms")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home, and a shell without anything of Spark in its environment."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_", "HADOOP_", "YARN_")) as made:
        yield made


@pytest.mark.parametrize("spark", ["", "3.5"])
def test_a_stream_moves_to_yarn_is_killed_restarted_upgraded_and_drained(
    desk: Desk, yarn: YarnCluster, monkeypatch: pytest.MonkeyPatch, spark: str
) -> None:
    """Warm, with its state; what a person kills in YARN's own page continues by itself; every flight is counted once
    (Laws 1, 2, 9 and 12). On the Spark of the tests; on one that ``SPARK_HOME`` names, and from
    there to the other."""
    own = spark_of(spark) if spark else None
    for name, value in (own.environment if own is not None else {}).items():
        monkeypatch.setenv(name, value)
    flights = Flights(desk.base / "flights", 5)
    lines = flights.feed()
    job = JOBS / "count_by_origin.py"
    java = ("--conf", f"spark.driver.extraJavaOptions={OPTIONS if own is None else PLAIN}")
    local = ("--app", job, "--master", "local[2]", *java, *QUICK, "--on-failure", "restart", "--initial-backoff", 0)
    quick = ("--setting", "lost_after_seconds=10", "--setting", "heartbeat_seconds=1")
    done("deploy", "flights", *local, *quick, *WAIT, "--", *flights.arguments)
    moved = done("upgrade", "flights", *yarn.words(own), *WAIT)
    assert moved["outcome"] == "upgraded"
    lines += flights.feed()
    (application_id,) = yarn.running()
    assert application_id in shell("status", "flights").out
    with watching(desk.base / "watch.out") as watcher:
        watcher.wait_for("up")
        yarn.kill_application(application_id)
        watcher.wait_for("restarting")
        wait_until(
            lambda: yarn.running() not in ([], [application_id]),
            lambda: watcher.path.read_text(),
            180,
        )
    lines += flights.feed()
    done("upgrade", "flights", "--app", JOBS / "count_by_origin_v2.py", *WAIT, "--", *flights.arguments)
    lines += flights.feed()
    if own is not None:
        for name in own.environment:
            monkeypatch.delenv(name)
        moved = done("upgrade", "flights", *yarn.words(), "--conf", "spark.sql.ansi.enabled=false", *WAIT)
        assert moved["outcome"] == "upgraded"
        assert IN_FULL in shell("events", "flights", "--deployment", moved["new_deployment_id"], "--json").out
        lines += flights.feed()
    done("drain", "flights", *WAIT)
    assert counts_of(list(flights.written()), "origin") == counts(lines, "origin")
    assert done("audit", "flights")["ok"] is True
    wait_until(lambda: not yarn.running(), lambda: f"the end of {yarn.running()}", 60)
