"""Malstrom's program: running sums per parity, its driver killed every few seconds, started again by the shell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.protocol.events import QueryStarted
from support.launches import wait_until
from support.running_sums import WAIT, Sums, ask
from support.shell import desk_with

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]


@pytest.fixture
def sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sums]:
    """A stream without a deployment, with input; no driver is left of it afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_")) as desk:
        made = Sums(desk)
        try:
            yield made
        finally:
            made.end()


@pytest.mark.named
def test_running_sums_are_those_of_a_batch_through_crashes_every_few_seconds(sums: Sums) -> None:
    """Killed in its batches and while it starts, resumed each time, upgraded from the end of a version that was killed:
    each number has its sum once, the one that a batch over all of them gives (1a.6, Laws 5 and 9)."""
    assert sums.deploy("one").json["start"]["mode"] == "fresh"
    sums.crash()
    ask("resume")
    sums.crash()  # while it starts
    ask("resume", *WAIT)
    kept = ask("snapshot create", *WAIT).json
    assert kept["kind"] == "live"
    sums.crash()
    second = sums.deploy("two").json
    assert (second["deployment_id"], second["start"]["mode"]) == ("d-0002", "restore")
    sums.crash()
    last = ask("resume", *WAIT).json
    assert (last["deployment_id"], last["attempt"]) == ("d-0002", 2)
    sums.end()
    wait_until(lambda: len(sums.found()) >= sums.fed, "all numbers to be summed", 120)
    assert ask("stop", *WAIT).json["state"] == "stopped"

    found = sums.found()
    assert Counter((row["k"], row["v"], row["total"]) for row in found) == sums.expected()
    by_value = [row["by"] for row in sorted(found, key=lambda row: row["v"])]
    assert by_value == sorted(by_value)  # the new version continues where the old one stood
    assert set(by_value) == {"one", "two"}
    started = [entry.event for each in ("d-0001", "d-0002") for entry in sums.control.journal(each).events()]
    planned = [event.planned_batch_id for event in started if isinstance(event, QueryStarted)]
    assert any(batch_id is not None for batch_id in planned)  # it was killed in a batch
    assert ask("snapshot verify", kept["snapshot_id"], "--json").json["ok"]
