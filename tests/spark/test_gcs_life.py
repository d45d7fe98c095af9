"""A life with home and checkpoints on a server of Google Cloud Storage, real Spark on Google's own connector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.gcs_server import BUCKET
from support.maven import fetch_jars, pinned
from support.object_stores import object_store
from support.s3_stream import S3Stream
from support.shell import Desk, desk_with, shell

pytestmark = [
    pytest.mark.spark,
    pytest.mark.objects,
    pytest.mark.timeout(1500),
    pytest.mark.usefixtures("quick_jvm"),
]
CONNECTOR = "gcs-connector-3.1.9"


@pytest.fixture
def desk(tmp_path: Path, gcs_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home on GCS and nothing else, as the environment sets it; launches in a folder; no driver left afterwards."""
    variables = {
        "STREAMSTATE_HOME": f"gs://{BUCKET}/{tmp_path.name}",
        "STREAMSTATE_WORK_DIR": str(Desk(tmp_path).home),
        "STORAGE_EMULATOR_HOST": gcs_url,
    }
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_", "STORAGE_"), variables) as made:
        yield made


def connector(gcs_url: str) -> dict[str, str]:
    """Spark's configuration for Google's connector, and for the server in Google's place."""
    jars = fetch_jars(CONNECTOR, pinned(Path(__file__).parents[1] / "support" / "gcs_jars.txt"))
    hadoop = {
        "impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        "auth.type": "UNAUTHENTICATED",
        "project.id": "tests",
        "storage.root.url": gcs_url,
        "operation.move.enable": "false",  # the server does not know it
        # Hadoop 3.5 has defaults for its own connector, in units that Google's cannot read.
        "block.size": "67108864",
        "outputstream.buffer.size": "8388608",
        "outputstream.sync.min.interval": "0",
        "inputstream.inplace.seek.limit": "8388608",
        "inputstream.min.range.request.size": "2097152",
        "rewrite.max.chunk.size": "536870912",
    }
    return {
        "spark.jars": ",".join(map(str, sorted(jars.glob("*.jar")))),
        "spark.hadoop.fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
        **{f"spark.hadoop.fs.gs.{name}": value for name, value in hadoop.items()},
    }


@pytest.mark.named
def test_a_life_on_gcs(desk: Desk, gcs_url: str) -> None:
    """Deploy, snapshot, stop, restore, drain, seed, drain: rows in are rows out, and every snapshot is complete."""
    stream = S3Stream(desk.base, connector(gcs_url))
    stream.feed(3)
    stream.deploy()
    live = stream.done("snapshot create").json
    assert live["kind"] == "live"
    assert shell("snapshot", "verify", "flights", live["snapshot_id"]).status == 0

    stream.feed(3)
    stopped = stream.done("stop").json
    assert stopped["state"] == "stopped"
    assert shell("snapshot", "verify", "flights", stopped["snapshot_id"]).status == 0

    second = stream.deploy().json
    assert (second["start"]["mode"], second["start"]["snapshot_id"]) == ("restore", stopped["snapshot_id"])
    stream.feed(3)
    drained = stream.done("drain").json
    assert drained["queries"]["counts"]["state_rows_left"] == 0

    stream.feed(2)
    third = stream.deploy().json
    assert third["start"]["mode"] == "seed"
    stream.wait_until_read(object_store("gcs", gcs_url, desk.base.name), third["deployment_id"])
    ended = stream.done("drain").json
    assert ended["queries"]["counts"]["state_rows_left"] == 0
    assert stream.written() == stream.expected()
    assert shell("audit", "flights").status == 0
