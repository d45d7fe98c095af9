"""A batch that always fails is skipped, and a seed starts where one asks, with everything on a real S3 server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.store.s3 import s3_store
from support.launches import wait_until
from support.s3_server import BUCKET, options_for
from support.s3_stream import SCRIPT, S3Stream, desk_on_s3
from support.shell import Desk, shell

pytestmark = [
    pytest.mark.named,
    pytest.mark.spark,
    pytest.mark.s3,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("quick_jvm"),
]

POISON = -1
FAILING = SCRIPT.replace(
    'key = (F.col("v") % 2)',
    f'key = (F.when(F.col("v") == {POISON}, F.raise_error(F.lit("bad row"))).otherwise(F.col("v")) % 2)',
)


class PoisonedStream(S3Stream):
    """Also a file of which no batch can be made."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        assert FAILING != SCRIPT
        self.app.write_text(FAILING)

    def poison(self) -> None:
        hidden = self.base / "in" / f".{self.files:05d}"
        hidden.write_text(json.dumps({"t": "2026-01-01T00:00:30.000Z", "v": POISON}) + "\n")
        os.utime(hidden, (1_700_000_000 + self.files,) * 2)
        hidden.rename(self.base / "in" / f"{self.files:05d}.json")
        self.files += 1


@pytest.fixture
def desk(tmp_path: Path, real_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home on S3 and nothing else; launches in a folder; no driver left afterwards."""
    with desk_on_s3(tmp_path, monkeypatch, real_url) as made:
        yield made


def state() -> str:
    return str(shell("status", "flights", "--json").json["state"])


def test_a_bad_batch_is_skipped_and_a_seed_reads_two_files_again(desk: Desk, real_url: str) -> None:
    """What is passed over is one file, by name; then a drain, and a seed two files earlier, which come twice: every
    other row is there once (Laws 9 and 14)."""
    stream, store = PoisonedStream(desk.base), s3_store(BUCKET, desk.base.name, options_for(real_url))
    stream.feed(2)
    first = stream.deploy().json["deployment_id"]
    stream.wait_until_read(store, first)
    stream.poison()
    wait_until(lambda: state() == "failed", "the bad batch to fail", 120)
    batch_id = max(
        int(info.key.rpartition("/")[2])
        for info in store.list_objects(f"flights/deployments/{first}/checkpoints/counts/offsets/")
        if info.key.rpartition("/")[2].isdigit()
    )
    skipped = stream.done("skip", "--batch", batch_id, "--reason", "a row that nobody can compute").json
    assert skipped["outcome"] == "skipped"
    stream.feed(2)
    stream.wait_until_read(store, first)
    drained = stream.done("drain").json
    assert drained["queries"]["counts"]["state_rows_left"] == 0
    assert stream.written() == stream.expected()
    assert shell("audit", "flights", "--json").json["ok"] is True

    offsets = desk.base / "back.json"
    offsets.write_text(json.dumps({"counts": [{"logOffset": 2}]}))  # behind the bad file
    again = stream.deploy("--start", "seed", "--offsets", offsets, "--accept-repeated-input", "counts").json
    stream.wait_until_read(store, again["deployment_id"])
    stream.done("drain")
    twice = stream.expected()
    for value in range(20, 40):
        twice[f"{value % 2} n"] += 1
        twice[f"{value % 2} s"] += value
    assert stream.written() == twice
