"""``--offsets`` and ``--at``: where a seed starts."""

from __future__ import annotations

import json

import pytest

from airflow_streamstate.cli.options import read_offsets
from support.scripted_driver import script
from support.shell import Desk, shell


@pytest.mark.parametrize(
    "content",
    [
        {"q": ['{"logOffset":1}', "-"]},
        {"q": [{"logOffset": 1}, "-"]},
        {"queries": {"q": {"batch_id": 4, "end_offsets": ['{"logOffset":1}', "-"]}}, "snapshot_id": "s"},
    ],
)
def test_offsets_are_read_as_they_are_shown(content: object) -> None:
    """Spark's text or the JSON in it; a whole row of `snapshot list --json` will do."""
    assert read_offsets(content) == {"q": ('{"logOffset":1}', "-")}


@pytest.mark.parametrize("content", [[], {}, {"q": "1"}, {"q": []}, {"q": {}}, {"queries": []}, 7])
def test_what_holds_no_offsets_is_told(content: object) -> None:
    """One sentence, and no traceback."""
    with pytest.raises(ValueError):
        read_offsets(content)


def test_a_drained_stream_is_seeded_where_one_says(desk: Desk) -> None:
    """With what `snapshot list --json` shows; what it does is reported first, and refused without consent."""
    desk.stream().deploy().runs().commits(5).drained()
    (row,) = shell("snapshot", "list", "flights", "--json").json["snapshots"]
    (offset,) = row["queries"]["delays"]["end_offsets"]
    (desk.base / "same.json").write_text(json.dumps(row))
    (desk.base / "back.json").write_text(json.dumps({"delays": [{"logOffset": 0}]}))
    words = (
        "deploy",
        "flights",
        "--app",
        script(desk.base, "hangs"),
        "--start",
        "seed",
        "--async",
        "--json",
        "--offsets",
    )
    refused = shell(*words, desk.base / "back.json")
    assert refused.status == 4, refused
    assert "--accept-repeated-input delays" in refused.error["next_step"]
    seeded = shell(*words, desk.base / "same.json")
    assert seeded.status == 0, seeded
    assert seeded.json["start"]["mode"] == "seed"
    assert any("where it was" in note for note in seeded.json["notes"])
    assert desk.stream().control.spec("d-0002").start.offsets == {"delays": (offset,)}


@pytest.mark.parametrize(
    "words",
    [
        ("--offsets", "nosuch.json"), ("--offsets", "{base}/job.py"), ("--offsets", "{base}/deep.json"),
        ("--at", "yesterday"), ("--at", "2026-03-01"),
    ],
)  # fmt: skip
def test_what_is_no_beginning_is_a_mistake_in_the_request(desk: Desk, words: tuple[str, str]) -> None:
    """Exit status 2; nothing was changed."""
    desk.stream().deploy().runs().drained()
    path = script(desk.base, "hangs")
    (desk.base / "deep.json").write_text("[" * 100_000)
    given = [word.format(base=desk.base) for word in words]
    answer = shell("deploy", "flights", "--app", path, "--start", "seed", *given, "--json", "--async")
    assert answer.status == 2, answer
    assert answer.error["type"] == "UsageError"
    assert desk.stream().control.need_register().value.deployment_id == "d-0001"
