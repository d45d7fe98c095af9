"""Snapshots of a stream on real Spark that lie elsewhere than its home, or are not taken at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.store.local import LocalStore
from support.s3_stream import S3Stream
from support.shell import Desk, desk_with, shell

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home in a folder; no driver left afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_")) as made:
        yield made


def data_of(folder: Path, snapshot_id: str) -> list[Path]:
    """The files of a snapshot that lie below a folder."""
    return [path for path in (folder / "flights" / "snapshots" / snapshot_id).glob("data/**/*") if path.is_file()]


def test_a_stream_lives_with_its_snapshots_at_another_place(desk: Desk, tmp_path: Path) -> None:
    """Taken there, verified and read there; the next version goes on from there, and lies with its checkpoints again.

    No row is lost or doubled, and while the disk is away nothing is written in its place.
    """
    stream, disk = S3Stream(desk.base), tmp_path / "disk"
    stream.feed(3)
    assert stream.deploy("--snapshots", disk).json["deployment_id"] == "d-0001"
    live = stream.done("snapshot").json["snapshot_id"]
    assert data_of(disk, live)
    assert data_of(desk.home, live) == []
    assert shell("verify", "flights", live, "--deep", "--wait", 240).status == 0
    stream.feed(3)
    stopped = stream.done("stop").json["snapshot_id"]
    rows = {row["snapshot_id"]: row for row in shell("snapshots", "flights", "--json").json["snapshots"]}
    assert [rows[one]["place"] for one in (live, stopped)] == [str(disk)] * 2

    away = disk.rename(tmp_path / "unmounted")
    refused = shell("verify", "flights", stopped)
    assert refused.status == 1
    assert "is not the place of these snapshots" in refused.err
    away.rename(disk)
    assert shell("verify", "flights", stopped).status == 0

    stream.feed(3)
    second = stream.deploy().json
    assert (second["deployment_id"], second["start"]["mode"], second["start"]["snapshot_id"]) == (
        "d-0002", "restore", stopped,
    )  # fmt: skip
    stream.wait_until_read(LocalStore(desk.home), "d-0002")
    drained = stream.done("drain").json
    assert drained["queries"]["counts"]["state_rows_left"] == 0
    assert data_of(desk.home, drained["snapshot_id"])
    assert stream.written() == stream.expected()
