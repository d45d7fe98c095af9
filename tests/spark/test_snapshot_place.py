"""Snapshots of a stream on real Spark that are elsewhere than its home, or are not taken at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.store.local import LocalStore
from support.real_queries import wait_until
from support.s3_stream import S3Stream
from support.shell import Desk, desk_with, shell

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home in a folder; no driver left afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_")) as made:
        yield made


def data_of(folder: Path, snapshot_id: str) -> list[Path]:
    """The files of a snapshot that are below a folder, which may be removed at the same time."""
    top = folder / "flights" / "snapshots" / snapshot_id / "data"
    return [Path(below) / name for below, _, names in os.walk(top) for name in names]


def test_a_stream_lives_with_its_snapshots_at_another_place(desk: Desk, tmp_path: Path) -> None:
    """Taken, verified and read there; the next version continues from there, and has its own with its checkpoints.

    No row is lost or doubled, and while the disk is away nothing is written in its place.
    """
    stream, disk = S3Stream(desk.base), tmp_path / "disk"
    stream.feed(3)
    assert stream.deploy("--snapshots", disk).json["deployment_id"] == "d-0001"
    live = stream.done("snapshot create").json["snapshot_id"]
    assert data_of(disk, live)
    wait_until(lambda: data_of(desk.home, live) == [], "what was linked on the way goes behind the manifest")
    assert shell("snapshot", "verify", "flights", live, "--deep", "--deadline", 240).status == 0
    stream.feed(3)
    stopped = stream.done("stop").json["snapshot_id"]
    rows = {row["snapshot_id"]: row for row in shell("snapshot", "list", "flights", "--json").json["snapshots"]}
    assert [rows[one]["place"] for one in (live, stopped)] == [str(disk)] * 2

    away = disk.rename(tmp_path / "unmounted")
    refused = shell("snapshot", "verify", "flights", stopped)
    assert refused.status == 1
    assert "is not the place of these snapshots" in refused.err
    away.rename(disk)
    assert shell("snapshot", "verify", "flights", stopped).status == 0

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


@pytest.mark.named
def test_a_stream_that_keeps_no_snapshots_is_stopped_and_upgraded(desk: Desk, tmp_path: Path) -> None:
    """Its end is its own checkpoint, which the next version starts from and which stays as long as that needs it."""
    stream = S3Stream(desk.base)
    stream.feed(3)
    first = stream.deploy("--snapshots", "none").json["deployment_id"]
    refused = shell("snapshot", "create", "flights", "--json", "--async")
    assert refused.status != 0
    assert "--snapshots none" in refused.error["message"]
    stream.feed(3)
    words = ("--mode", "restore", "--conf", "spark.app.name=second", "--timeout", 400, "--json", "--", desk.base)
    upgraded = shell("upgrade", "flights", "--app", stream.app, *words)
    assert upgraded.status == 0, upgraded
    rows = {row["snapshot_id"]: row for row in shell("snapshot", "list", "flights", "--json").json["snapshots"]}
    ends = [row for row in rows.values() if row["deployment_id"] == first]
    assert [(row["kind"], row["refers_to_checkpoint"]) for row in ends] == [("stopped", True)]
    assert data_of(desk.home, ends[0]["snapshot_id"]) == []
    assert shell("snapshot", "verify", "flights", ends[0]["snapshot_id"], "--deep", "--deadline", 240).status == 0
    assert shell("snapshot", "prune", "flights", "--keep", 1).status == 0
    assert shell("snapshot", "verify", "flights", ends[0]["snapshot_id"]).status == 0, "the last rollback stays"

    stream.feed(3)
    stream.wait_until_read(LocalStore(desk.home), "d-0002")
    drained = stream.done("drain").json
    assert drained["queries"]["counts"]["state_rows_left"] == 0
    third = stream.deploy("--snapshots", tmp_path / "disk").json
    assert third["start"]["mode"] == "seed"
    assert stream.done("stop").json["snapshot_id"]
    assert stream.written() == stream.expected()
