"""A home on a real S3 server that is lost, and the stream that continues from its mirror in another bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.store.s3 import s3_store
from airflow_streamstate.store.transfer import delete_below
from support.launches import end_processes
from support.s3_server import BUCKET, make_bucket, options_for
from support.s3_stream import S3Stream, desk_on_s3, driver_folder
from support.shell import Desk, shell

pytestmark = [
    pytest.mark.named,
    pytest.mark.spark,
    pytest.mark.s3,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("quick_jvm"),
]

OTHER_BUCKET = "elsewhere"


@pytest.fixture(scope="module")
def other_bucket(real_url: str) -> str:
    """One more bucket of the server: made once; what a first try left in it does not disturb a second one."""
    make_bucket(real_url, OTHER_BUCKET)
    return OTHER_BUCKET


@pytest.fixture
def desk(tmp_path: Path, real_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home on S3 and nothing else; launches in a folder; no driver left afterwards."""
    with desk_on_s3(tmp_path, monkeypatch, real_url) as made:
        yield made


def test_a_stream_goes_on_from_another_bucket(desk: Desk, real_url: str, other_bucket: str) -> None:
    """Everything of the home is gone, with its checkpoints; the same command deploys it again, and no row is lost."""
    stream, home = S3Stream(desk.base), s3_store(BUCKET, desk.base.name, options_for(real_url))
    mirror = f"s3://{other_bucket}/{desk.base.name}"
    stream.feed(3)
    first = stream.deploy("--mirror", mirror).json["deployment_id"]
    stream.wait_until_read(home, first)
    stopped = stream.done("stop").json["snapshot_id"]
    assert shell("home", "mirror", "flights").status == 0
    end_processes(driver_folder(desk, first, 1))
    delete_below(home, "flights")
    assert list(home.list_objects("")) == []

    restored = shell("home", "restore", "--from", mirror, "--json")
    assert restored.status == 0, restored
    assert (restored.json["streams"][0]["snapshot_id"], restored.json["streams"][0]["is_end"]) == (stopped, True)
    assert shell("snapshot", "verify", "flights", stopped, "--deep").status == 0
    stream.feed(3)
    second = stream.deploy("--mirror", mirror).json
    assert (second["start"]["mode"], second["start"]["snapshot_id"]) == ("restore", stopped)
    stream.wait_until_read(home, second["deployment_id"])
    assert stream.done("drain").json["queries"]["counts"]["state_rows_left"] == 0
    assert stream.written() == stream.expected()
