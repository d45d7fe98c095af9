"""A home that is lost while its stream runs on real Spark, and the stream that continues from its mirrors."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.store.local import LocalStore
from support.launches import end_processes, wait_until
from support.s3_stream import S3Stream, driver_folder
from support.shell import Desk, desk_with, shell

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home in a folder; no driver left afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_")) as made:
        yield made


def is_mirrored(snapshot_id: str, mirrors: list[Path]) -> bool:
    rows = {row["snapshot_id"]: row for row in shell("snapshot", "list", "flights", "--json").json["snapshots"]}
    return set(rows[snapshot_id]["mirrors"]) == {str(mirror) for mirror in mirrors}


def test_a_stream_goes_on_from_its_mirrors(desk: Desk, tmp_path: Path) -> None:
    """Copied while it ran and when it had stopped; the home goes, a mirror has a damaged file: no row is lost."""
    stream, mirrors = S3Stream(desk.base), [tmp_path / "second", tmp_path / "third"]
    words = [word for mirror in mirrors for word in ("--mirror", mirror)]
    stream.feed(3)
    first = stream.deploy(*words).json["deployment_id"]
    live = stream.done("snapshot create").json["snapshot_id"]

    wait_until(lambda: is_mirrored(live, mirrors), "the live snapshot to be at both mirrors", 120)
    stream.feed(3)
    stopped = stream.done("stop").json["snapshot_id"]
    assert shell("home", "mirror", "flights").status == 0

    end_processes(driver_folder(desk, first, 1))
    shutil.rmtree(desk.home)
    data = mirrors[0] / "flights" / "snapshots" / stopped / "data" / "counts"
    largest = max((path for path in data.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    largest.write_bytes(bytes(largest.stat().st_size))
    assert shell("home", "restore", "--from", mirrors[0]).status == 1, "no good copy is anywhere"
    assert shell("list", "--json").json["streams"] == []
    restored = shell("home", "restore", *(word for mirror in mirrors for word in ("--from", mirror)), "--json")
    assert restored.status == 0, restored
    assert restored.json["streams"][0]["snapshot_id"] == stopped
    assert restored.json["streams"][0]["is_end"] is True
    assert shell("snapshot", "verify", "flights", stopped).status == 0

    stream.feed(3)
    second = stream.deploy(*words).json
    assert (second["deployment_id"], second["start"]["mode"], second["start"]["snapshot_id"]) == (
        "d-0002", "restore", stopped,
    )  # fmt: skip
    stream.wait_until_read(LocalStore(desk.home), "d-0002")
    drained = stream.done("drain").json
    assert drained["queries"]["counts"]["state_rows_left"] == 0
    assert stream.written() == stream.expected()


@pytest.mark.named
def test_what_was_written_behind_the_last_copy_is_taken_out_again(desk: Desk, tmp_path: Path) -> None:
    """Home and driver are lost in full run, the output is not: the start is refused, as it would skip rows, and the
    error states what removes from the sink what came after the copy. Then no row is lost or doubled (Law 14)."""
    stream, mirror = S3Stream(desk.base), tmp_path / "second"
    stream.feed(3)
    first = stream.deploy("--mirror", mirror).json["deployment_id"]
    live = stream.done("snapshot create").json["snapshot_id"]
    wait_until(lambda: is_mirrored(live, [mirror]), "the live snapshot to be at its mirror", 120)
    stream.feed(4)
    stream.wait_until_read(LocalStore(desk.home), first)
    end_processes(driver_folder(desk, first, 1))
    shutil.rmtree(desk.home)

    assert shell("home", "restore", "--from", mirror).status == 4, "something ran behind it"
    assert shell("home", "restore", "--from", mirror, "--accept-duplicates").status == 0
    refused = stream.try_to_deploy("--mirror", mirror)
    assert refused.status == 1
    command = f"streamstate rollback flights --snapshot {live}"
    assert command in refused.error["message"] + str(refused.error["context"])
    stream.feed(3)
    rolled_back = stream.done("rollback", "--snapshot", live).json
    assert rolled_back["way"] == "undo"
    stream.wait_until_read(LocalStore(desk.home), rolled_back["returned_deployment_id"])
    stream.done("drain")
    assert stream.written() == stream.expected()
