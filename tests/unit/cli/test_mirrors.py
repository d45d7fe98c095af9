"""``home mirror`` and ``home restore``, and where ``deploy --mirror`` is kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.scripted_driver import script
from support.shell import Desk, shell

pytestmark = pytest.mark.fast

ROW_FIELDS = {"snapshot_id", "mirror", "files", "bytes"}
STREAM_FIELDS = {"stream_id", "deployment_id", "snapshot_id", "kind", "is_end", "files", "bytes", "dropped"}


def stopped_at(desk: Desk, *words: object) -> str:
    """A stream that was deployed and stopped; its last snapshot."""
    deployed = shell("deploy", "flights", "--app", script(desk.base), "--timeout", 30, *words, "--json")
    assert deployed.status == 0, deployed
    return str(shell("stop", "flights", "--timeout", 30, "--json").json["snapshot_id"])


def test_a_home_is_made_again_from_its_mirror(desk: Desk, tmp_path: Path) -> None:
    """Mirror, lose the home, restore it elsewhere, deploy: it continues from the snapshot that was kept."""
    snapshot_id = stopped_at(desk, "--mirror", tmp_path / "second")
    mirrored = shell("home", "mirror", "flights", "--json").json
    assert [row["snapshot_id"] for row in mirrored["snapshots"]] == [snapshot_id]
    assert set(mirrored["snapshots"][0]) == ROW_FIELDS
    shutil.rmtree(desk.home)
    restored = shell("home", "restore", "--from", tmp_path / "second", "--json")
    assert restored.status == 0, restored
    [row] = restored.json["streams"]
    assert set(row) == STREAM_FIELDS
    assert (row["snapshot_id"], row["is_end"]) == (snapshot_id, True)
    assert shell("snapshot", "verify", "flights", snapshot_id).status == 0
    again = shell("deploy", "flights", "--app", script(desk.base), "--timeout", 30, "--json")
    assert (again.json["deployment_id"], again.json["start"]["snapshot_id"]) == ("d-0002", snapshot_id)


def test_people_are_told_what_went_where(desk: Desk, tmp_path: Path) -> None:
    """A line for each, and that there is nothing to restore where the home has everything."""
    snapshot_id = stopped_at(desk)
    said = shell("home", "mirror", "flights", "--to", tmp_path / "second")
    assert snapshot_id in said.out
    assert str(tmp_path / "second") in said.out
    assert "this home has every stream of the mirrors" in shell("home", "restore", "--from", tmp_path / "second").out
    refused = shell("home", "restore", "--from", tmp_path / "second", "--stream", "flights")
    assert refused.status == 4
    assert "has the stream already" in refused.err


def test_a_stream_that_cannot_be_restored_keeps_no_other_one(desk: Desk, tmp_path: Path) -> None:
    """A mirror hears of an attempt at its start: of one that was lost before its first snapshot there is no more."""
    snapshot_id, mirror = stopped_at(desk, "--mirror", tmp_path / "second"), tmp_path / "second"
    assert shell("home", "mirror", "flights").status == 0
    shutil.copytree(mirror / "flights" / "deployments", mirror / "arrivals" / "deployments")
    shutil.rmtree(desk.home)
    restored = shell("home", "restore", "--from", mirror, "--json")
    assert restored.status == 1
    assert [row["snapshot_id"] for row in restored.json["streams"]] == [snapshot_id]
    [refused] = restored.json["refused"]
    assert set(refused) == {"stream_id", "type", "message", "context", "next_step"}
    assert (refused["stream_id"], refused["type"]) == ("arrivals", "SnapshotNotFoundError")
    assert shell("status", "flights").status == 0
    alone = shell("home", "restore", "--from", mirror)
    assert alone.status == 2, "the only one that is left"
    assert "no mirror has a complete snapshot" in alone.err


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("home mirror", "flights"), 2, "this stream has no mirrors"),
        (("home mirror", "flights", "--to", "hdfs://x/y"), 2, "no store that is known"),
        (("home mirror", "flights", "--to", "{home}"), 2, "another place than the home"),
        (("home mirror", "unknown", "--to", "{base}/m"), 2, "no such stream"),
        (("home restore", "--from", "{base}/nothing", "--stream", "flights2"), 2, "no mirror has a complete snapshot"),
        (("home restore", "--from", "{base}/nothing"), 2, "these mirrors have no stream"),
        (("home restore", "--from", "{base}/nothing", "--stream", "../x"), 2, "not a valid stream id"),
        (("home restore",), 2, "--from"),
        (("home mirror", "flights", "--to", "{base}/m", "--fetch-batch-bytes", "1"), 2, "--fetch-batch-bytes"),
        (
            ("home mirror", "flights", "--to", "{base}/m", "--fetch-timeout-seconds", "0"),
            2,
            "--fetch-timeout-seconds",
        ),
        (("home restore", "--from", "{base}/m", "--fetch-batch-bytes", "1"), 2, "--fetch-batch-bytes"),
        (("home restore", "--from", "{base}/m", "--fetch-timeout-seconds", "0"), 2, "--fetch-timeout-seconds"),
    ],
)
def test_mistakes_are_one_sentence(desk: Desk, words: tuple[str, ...], status: int, said: str) -> None:
    """With what to do; no traceback."""
    stopped_at(desk)
    answer = shell(*(word.format(home=desk.home, base=desk.base) for word in words))
    assert answer.status == status
    assert said in answer.err
    assert "Traceback" not in answer.err


def test_a_mirror_that_is_none_is_refused_before_anything_is_recorded(desk: Desk) -> None:
    """The home itself, and what names no store."""
    for uri in (desk.home, "hdfs://x/y"):
        answer = shell("deploy", "flights", "--app", script(desk.base), "--mirror", uri, "--async")
        assert answer.status == 2, answer
    assert shell("list", "--json").error["type"] == "HomeNotFoundError"
