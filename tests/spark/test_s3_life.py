"""A whole life with home and checkpoints on a real S3 server, real Spark on S3A, and barriers struck in the window."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.store.s3 import s3_store
from support.launches import command_lines, end_processes
from support.s3_proxy import StrikingProxy
from support.s3_requests import S3Request
from support.s3_server import BUCKET, SECRET_KEY, options_for, striking_proxy
from support.s3_stream import S3Stream, desk_on_s3, driver_folder
from support.shell import Desk, shell
from support.sparks import spark_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.s3,
    pytest.mark.timeout(1500),
    pytest.mark.usefixtures("quick_jvm"),
]

HOLD_SECONDS = 60.0


class Striker:
    """Holds the copy that claims a batch until a barrier is in its place, so that the copy goes over it.

    Args:
        server_url: the server itself, asked without the proxy.
        prefix: of the home in the bucket.
    """

    def __init__(self, server_url: str, prefix: str) -> None:
        self.store = s3_store(BUCKET, prefix, options_for(server_url))
        self.struck: list[str] = []
        self._start = f"{prefix}/"
        self._armed = threading.Event()
        self._holds = threading.Event()

    def hold_next(self) -> None:
        """Wait until the next claim is held: its check has ended, and its copy has not reached the server."""
        self._holds.clear()
        self._armed.set()
        assert self._holds.wait(HOLD_SECONDS)

    def hook(self, request: S3Request) -> None:
        """Called with each request before it is forwarded."""
        folder, _, name = request.key.rpartition("/")
        is_claim = request.operation == "CopyObject" and folder.endswith("/offsets") and name.isdigit()
        if not is_claim or not self._armed.is_set():
            return
        self._armed.clear()
        self._holds.set()
        for _ in range(int(HOLD_SECONDS / 0.05)):
            if self.store.head(request.key.removeprefix(self._start)) is not None:
                self.struck.append(request.key)
                return
            SYSTEM_CLOCK.sleep(0.05)


@pytest.fixture
def proxy(real_url: str) -> Iterator[StrikingProxy]:
    """A proxy before the real server."""
    with striking_proxy(real_url) as made:
        yield made


@pytest.fixture
def desk(tmp_path: Path, proxy: StrikingProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home on S3 and nothing else, as the environment sets it; launches in a folder; no driver left afterwards."""
    with desk_on_s3(tmp_path, monkeypatch, proxy.endpoint_url) as made:
        yield made


@pytest.mark.named
@pytest.mark.parametrize("spark", ["", "3.5"])
def test_a_whole_life_on_s3_under_strikes(desk: Desk, proxy: StrikingProxy, real_url: str, spark: str) -> None:
    """Deploy, snapshot, stop, restore, drain, seed, kill -9, resume, drain: rows in are rows out (1a.3 on S3A).

    The barriers of stops and drains are struck right before the copy that claims their place.
    """
    stream = S3Stream(desk.base, spark=spark_of(spark) if spark else None)
    striker = Striker(real_url, desk.base.name)
    proxy.hooks.append(striker.hook)
    stream.feed(3)
    first = stream.deploy().json["deployment_id"]
    folder = driver_folder(desk, first, 1)
    assert "hadoop-aws" in command_lines(folder)
    assert SECRET_KEY not in command_lines(folder)
    live = stream.done("snapshot create").json
    assert live["kind"] == "live"
    assert shell("snapshot", "verify", "flights", live["snapshot_id"]).status == 0

    stream.feed(20)
    striker.hold_next()
    stopped = stream.done("stop").json
    assert stopped["state"] == "stopped"
    assert len(striker.struck) == 1
    assert shell("snapshot", "verify", "flights", stopped["snapshot_id"]).status == 0

    second = stream.deploy().json
    assert (second["start"]["mode"], second["start"]["snapshot_id"]) == ("restore", stopped["snapshot_id"])
    stream.feed(20)
    striker.hold_next()
    drained = stream.done("drain").json
    assert drained["queries"]["counts"]["state_rows_left"] == 0
    assert len(striker.struck) == 2

    stream.feed(2)
    third = stream.deploy().json
    assert third["start"]["mode"] == "seed"
    end_processes(driver_folder(desk, third["deployment_id"], 1))
    stream.feed(2)
    assert stream.done("resume").json["attempt"] == 2

    stream.wait_until_read(striker.store, third["deployment_id"])
    ended = stream.done("drain").json
    assert ended["queries"]["counts"]["state_rows_left"] == 0
    assert stream.written() == stream.expected()
    assert shell("snapshot", "verify", "flights", ended["snapshot_id"]).status == 0
    assert "twice" not in shell("events", "flights").out


@pytest.mark.named
def test_state_on_s3_is_rewritten_for_spark_3(desk: Desk, real_url: str) -> None:
    """A Spark alongside the driver reads and writes the state of a fork on S3; each row is counted once, there and
    back (Laws 5 and 9)."""
    stream = S3Stream(desk.base, spark=spark_of("3.5"))
    stream.feed(3)
    stream.deploy()
    rescaled = stream.done("rescale", "--partitions", 3, "--rewriter-spark", sys.prefix).json
    assert rescaled["outcome"] == "upgraded"
    stream.feed(3)
    back = stream.done("rollback", "--strategy", "forward").json
    assert back["way"] == "forward"
    stream.feed(2)
    home = s3_store(BUCKET, desk.base.name, options_for(real_url))
    stream.wait_until_read(home, shell("status", "flights", "--json").json["deployment_id"])
    assert stream.done("drain").json["queries"]["counts"]["state_rows_left"] == 0
    assert stream.written() == stream.expected()
