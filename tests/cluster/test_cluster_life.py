"""Whole lives on a standalone cluster, by the shell's verbs: upgraded, drained, and everything of it killed once."""

from __future__ import annotations

import pytest

from support.cluster import Cluster, cluster
from support.cluster_stream import COUNTS, ClusterStream
from support.drivers import wait_until
from support.shell import Desk
from support.sparks import spark_of

pytestmark = [pytest.mark.named, pytest.mark.cluster, pytest.mark.timeout(900)]


def test_a_stream_is_upgraded_and_drained_on_a_cluster(desk: Desk, shared_cluster: Cluster) -> None:
    """Deployed, upgraded with its state, drained and seeded: every row comes out once, as on one machine (Law 9)."""
    live(ClusterStream(desk, shared_cluster))


def test_a_stream_of_spark_3_lives_on_its_own_cluster(desk: Desk) -> None:
    """The same on a master and workers of Spark 3.5."""
    with cluster(spark=spark_of("3.5")) as made:
        live(ClusterStream(desk, made))


def live(stream: ClusterStream) -> None:
    """A life without a death."""
    stream.rows.feed()
    first = stream.deploy()
    assert first["start"]["mode"] == "fresh"
    stream.feed(2)
    assert stream.order("stop")["outcome"] == "stopped"
    second = stream.deploy(COUNTS + "# another version\n")
    assert second["start"]["mode"] == "restore"
    stream.feed(2)
    assert stream.order("drain")["outcome"] == "drained"
    assert stream.rows.found() == stream.rows.expected()
    third = stream.deploy()
    assert third["start"]["mode"] == "seed"
    stream.feed(1)
    assert stream.order("drain")["outcome"] == "drained"
    assert stream.rows.found() == stream.rows.expected()
    assert stream.audit()["ok"]


def test_what_dies_on_a_cluster_loses_nothing(desk: Desk, spark_cluster: Cluster) -> None:
    """A worker in a batch, then the master, then the driver: the stream continues, each row comes out once, and nobody
    believes the master, to whom a killed driver has FINISHED (1a.8)."""
    stream = ClusterStream(desk, spark_cluster)
    stream.rows.feed()
    stream.deploy()
    stream.hold()
    stream.rows.feed()
    spark_cluster.kill_worker(stream.wait_inside())
    stream.let_go()
    stream.wait_counted()
    spark_cluster.start_worker()
    spark_cluster.master.kill()
    stream.feed()
    spark_cluster.start_master()
    spark_cluster.wait_workers(2)
    stream.feed()
    assert stream.status()["state"] == "running"
    stream.hold()
    stream.rows.feed()
    stream.wait_inside()
    stream.kill_driver()
    stream.let_go()
    wait_until(
        lambda: [app["state"] for app in spark_cluster.state()["completedapps"]] == ["FINISHED"],
        lambda: f"the master's word: {spark_cluster.state()}",
        180,
    )
    ended = stream.status()
    assert ended["state"] == "failed"
    assert "it was killed" in ended["why"]
    stream.resume()
    stream.wait_counted()
    assert stream.order("drain")["outcome"] == "drained"
    assert stream.rows.found() == stream.rows.expected()
    assert stream.audit()["ok"]
