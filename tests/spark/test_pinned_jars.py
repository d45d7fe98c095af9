"""A life on S3 by the jars that this package pins, in place of those that Spark's resolver fetches."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.launch.spark_home import HADOOP_3_5_0
from airflow_streamstate.store.s3 import s3_store
from support.s3_server import BUCKET, options_for
from support.s3_stream import S3Stream, desk_on_s3, driver_folder

pytestmark = [
    pytest.mark.spark,
    pytest.mark.s3,
    pytest.mark.named,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("quick_jvm"),
]


def test_a_stream_on_s3_runs_by_pinned_jars(real_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deployed, stopped with its snapshot, resumed and drained: each row once, and nothing is left to the resolver."""
    with desk_on_s3(tmp_path, monkeypatch, real_url) as desk:
        store = s3_store(BUCKET, tmp_path.name, options_for(real_url))
        stream = S3Stream(tmp_path, {"spark.streamstate.s3.packages": "pinned"})
        stream.feed(3)
        stream.deploy()
        stream.wait_until_read(store, "d-0001")
        log = (Path(driver_folder(desk, "d-0001", 1)) / "driver.log").read_text(errors="replace")
        assert "resolving dependencies" not in log
        stream.done("stop")
        stream.feed(2)
        stream.done("resume")
        stream.wait_until_read(store, "d-0001")
        stream.done("drain")
        assert stream.written() == stream.expected()
        assert len(HADOOP_3_5_0) == 36
