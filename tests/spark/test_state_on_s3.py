"""State in the open where home, checkpoints and exports are on a real S3 server, with real Spark on S3A."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.store.s3 import s3_store
from airflow_streamstate.store.transfer import keys_below
from support.s3_server import BUCKET, options_for
from support.s3_stream import S3Stream, desk_on_s3
from support.shell import Desk, shell

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]


@pytest.fixture
def desk(tmp_path: Path, real_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home on S3 and nothing else."""
    with desk_on_s3(tmp_path, monkeypatch, real_url) as made:
        yield made


@pytest.mark.named
def test_state_is_read_from_a_copy_and_exported_beside_the_home(desk: Desk, real_url: str) -> None:
    """With the deployment's way to S3 and its packages; no key of the home is more than before, or another."""
    stream = S3Stream(desk.base)
    stream.feed(3)
    stream.deploy()
    first = stream.done("snapshot create").json["snapshot_id"]
    stream.feed(3)
    second = stream.done("stop").json["snapshot_id"]
    home = s3_store(BUCKET, desk.base.name, options_for(real_url))
    before = {info.key: info for info in home.list_objects("flights/snapshots/")}
    everything = set(keys_below(home, "flights/"))
    found = shell("snapshot", "export", "flights", "--out", f"s3://{BUCKET}/exports/one", "--json")
    assert found.status == 0, found
    assert found.json["snapshot_id"] == second
    (operator,) = found.json["queries"]["counts"]["operators"]
    assert operator["rows"] == found.json["export"]["tables"][0]["rows"] > 0
    changed = shell(
        "snapshot", "export", "flights", "--changes-since", first, "--out", f"s3://{BUCKET}/exports/two", "--json"
    )
    assert changed.status == 0, changed
    assert changed.json["export"]["tables"][0]["way"] == "comparison"
    refused = shell("snapshot", "export", "flights", "--out", f"s3://{BUCKET}/exports/one", "--json")
    assert (refused.status, refused.error["message"]) == (4, "an export is in that folder already")
    assert {info.key: info for info in home.list_objects("flights/snapshots/")} == before
    assert set(keys_below(home, "flights/")) == everything
    written = set(keys_below(s3_store(BUCKET, "exports", options_for(real_url)), ""))
    assert {"one/_about.json", "two/_about.json"} <= written
