"""A drain that was a mistake, withdrawn when it is done: what its flush wrote early goes, and the windows continue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.store.local import LocalStore
from support.file_sink import rows_in
from support.s3_stream import S3Stream
from support.shell import Desk, desk_with, shell

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

WINDOW_ROWS = 10
"""A row each second, and windows of ten seconds."""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home in a folder; no driver left afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_")) as made:
        yield made


def windows_of(rows: int) -> Counter[tuple[int, int, int]]:
    """What a batch computes of the first ``rows`` rows: by parity and window, how many and their sum."""
    total: Counter[tuple[int, int, int]] = Counter()
    for begin in range(0, rows, WINDOW_ROWS):
        for parity in (0, 1):
            found = [value for value in range(begin, min(rows, begin + WINDOW_ROWS)) if value % 2 == parity]
            total += Counter({(parity, len(found), sum(found)): 1})
    return total


def test_the_windows_that_were_flushed_too_early_come_out_once_and_whole(desk: Desk) -> None:
    """A deploy on top of the drain would leave the window in two parts; a deploy of what was before it is refused with
    the way that works, which takes the early part out of the sink (Law 14)."""
    stream = S3Stream(desk.base)

    def written() -> Counter[tuple[int, ...]]:
        rows = rows_in(desk.base / "out")
        return Counter(tuple(int(str(row[name])) for name in ("k", "n", "s")) for row in rows)

    stream.feed(2)
    stream.feed(1, rows=5)
    first = stream.deploy().json["deployment_id"]
    stream.wait_until_read(LocalStore(desk.home), first)
    stream.done("drain")
    assert written() == windows_of(25)
    kinds = {
        row["kind"]: row["snapshot_id"] for row in shell("snapshot", "list", "flights", "--json").json["snapshots"]
    }
    before = kinds["pre-drain"]

    refused = stream.try_to_deploy("--snapshot", before)
    assert refused.status == 4
    assert f"streamstate rollback flights --snapshot {before}" in str(refused.error)
    stream.feed(1, rows=5)
    back = stream.done("rollback", "--snapshot", before).json
    assert back["way"] == "undo"
    stream.wait_until_read(LocalStore(desk.home), back["returned_deployment_id"])
    stream.done("drain")
    assert written() == windows_of(30)
