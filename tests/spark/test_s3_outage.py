"""A server that fails a tenth of all requests, and then is gone: agent and shell under it, with real Spark.

Spark reaches its checkpoints without the proxy: what a failing server does to S3A is Hadoop's to answer; the test
looks at what our own processes do while the job runs on. By default the server is gone for 15 seconds;
``STREAMSTATE_OUTAGE=full`` makes it two minutes. The simulator has its two minutes always
(tests/sim/test_s3_life.py).
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.store.s3 import s3_store
from support.launches import living_processes, wait_until
from support.s3_proxy import StrikingProxy, Weather
from support.s3_server import BUCKET, options_for, striking_proxy
from support.s3_stream import S3Stream, desk_on_s3, driver_folder
from support.shell import Desk, shell

pytestmark = [
    pytest.mark.named,
    pytest.mark.spark,
    pytest.mark.s3,
    pytest.mark.timeout(1500),
    pytest.mark.usefixtures("quick_jvm"),
]

OUTAGE_SECONDS = 120.0 if os.environ.get("STREAMSTATE_OUTAGE") == "full" else 15.0
FAULTS = 0.1


@pytest.fixture
def proxy(real_url: str) -> Iterator[StrikingProxy]:
    """A proxy before the real server."""
    with striking_proxy(real_url) as made:
        yield made


@pytest.fixture
def desk(tmp_path: Path, proxy: StrikingProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home on S3 behind the proxy; no driver left afterwards."""
    with desk_on_s3(tmp_path, monkeypatch, proxy.endpoint_url) as made:
        yield made


class Witness:
    """Looks at a checkpoint without the proxy."""

    def __init__(self, server_url: str, prefix: str, deployment_id: str) -> None:
        self._store = s3_store(BUCKET, prefix, options_for(server_url))
        self._folder = f"flights/deployments/{deployment_id}/checkpoints/counts"

    def last_commit(self) -> int:
        """The last committed batch; -1 before the first one."""
        names = [info.key.rpartition("/")[2] for info in self._store.list_objects(f"{self._folder}/commits/")]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def files_read(self) -> int:
        """Files of the input, one to a batch over all deployments, that committed batches have read."""
        stored = self._store.get(f"{self._folder}/offsets/{self.last_commit()}")
        source_line = "" if stored is None else stored.body.decode().splitlines()[-1]
        return int(json.loads(source_line)["logOffset"]) + 1 if source_line.startswith("{") else 0


def test_an_outage_and_faults_for_minutes_lose_nothing(desk: Desk, proxy: StrikingProxy, real_url: str) -> None:
    """Deploy, snapshot, drain, redeploy, drain: the job runs on without its home, waiters get an error, rows hold."""
    spark_goes_beside = {f"spark.hadoop.fs.s3a.bucket.{BUCKET}.endpoint": real_url}
    stream = S3Stream(desk.base, spark_goes_beside)
    proxy.weather = Weather(FAULTS, seed=11, mercy=True)
    stream.feed(3)
    first = stream.deploy().json["deployment_id"]
    assert shell("snapshot", "verify", "flights", stream.done("snapshot create").json["snapshot_id"]).status == 0

    witness = Witness(real_url, desk.base.name, first)
    with gone(proxy):
        before = witness.last_commit()
        stream.feed(3)
        wait_until(lambda: witness.last_commit() >= before + 3, "batches without a home", 120)
        refused = shell("drain", "flights", "--request-id", "the-drain", "--json", "--async")
        assert (refused.status, refused.error["type"]) == (1, "UnavailableError"), refused
    assert living_processes(driver_folder(desk, first, 1)), "the agent ended its job"

    stream.feed(20)  # so that a batch runs
    ordered = shell("drain", "flights", "--request-id", "the-drain", "--json", "--async")
    assert ordered.status == 0, ordered
    with gone(proxy):  # in the middle of the drain, wherever that is
        pass
    drained = stream.done("drain", "--request-id", "the-drain").json
    assert (drained["state"], drained["queries"]["counts"]["state_rows_left"]) == ("drained", 0)
    assert shell("snapshot", "verify", "flights", drained["snapshot_id"]).status == 0

    stream.feed(2)
    second = stream.deploy().json
    assert (second["start"]["mode"], second["start"]["snapshot_id"]) == ("seed", drained["snapshot_id"])
    last = Witness(real_url, desk.base.name, second["deployment_id"])
    wait_until(lambda: last.files_read() == stream.files, "all that was fed to be read", 300)
    ended = stream.done("drain").json
    assert ended["queries"]["counts"]["state_rows_left"] == 0
    assert stream.written() == stream.expected()
    assert sum(proxy.weather.struck.values()) > 20
    said = "".join(path.read_text("utf-8", "replace") for path in desk.home.rglob("driver.log"))
    assert "unexpected, the job continues" not in said


@contextmanager
def gone(proxy: StrikingProxy) -> Iterator[None]:
    """The server behind the proxy is gone, for at least OUTAGE_SECONDS; then it is there again."""
    began = SYSTEM_CLOCK.monotonic_seconds()
    is_out = threading.Event()
    is_out.set()
    proxy.is_out = is_out
    try:
        yield
        SYSTEM_CLOCK.sleep(max(0.0, began + OUTAGE_SECONDS - SYSTEM_CLOCK.monotonic_seconds()))
    finally:
        is_out.clear()
