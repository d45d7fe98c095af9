"""A home that is renamed away under a real driver, and back: the job runs on, and no home comes to be in its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.drivers import CONF, WINDOWED_COUNTS
from support.launches import living_processes, wait_until
from support.progress import files_read
from support.shell import Desk, desk_with, shell
from support.window_rows import WindowRows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

SCRIPT = (
    WINDOWED_COUNTS
    + 'counts.writeStream.queryName("counts").format("json").option("path", base + "/out").start().awaitTermination()\n'
)
QUICK = tuple(word for key, value in CONF.items() for word in ("--conf", f"{key}={value}"))
SETTINGS = ("--setting", "heartbeat_seconds=0.5", "--setting", "command_poll_seconds=0.2")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home whose checkpoints are elsewhere, the machine's own ``spark-submit``, and no driver left afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_")) as made:
        monkeypatch.setenv("STREAMSTATE_CHECKPOINTS", str(tmp_path / "checkpoints"))
        yield made


def test_a_home_that_is_away_for_a_while_costs_nothing(desk: Desk) -> None:
    """Renamed away, an empty folder in its place as an unmounted disk leaves it: batches continue, every verb
    reports that there is no home, nothing is written there; back again the stream obeys, and every row came once.
    (Laws 4 and 5)"""
    rows, app = WindowRows(desk.base), desk.base / "job.py"
    app.write_text(SCRIPT)
    rows.feed()
    words = ("--app", app, "--master", "local[2]", *QUICK, *SETTINGS, "--json", "--timeout", 200, "--", desk.base)
    deployed = shell("deploy", "flights", *words)
    assert deployed.status == 0, deployed
    launch = desk.base / "checkpoints/flights/deployments/d-0001/launches/d-0001-a0001"
    checkpoint = desk.base / "checkpoints/flights/deployments/d-0001/checkpoints/counts"
    log = launch / "driver.log" if (launch / "driver.log").exists() else Path(str(deployed.json.get("log_path", "")))

    away = desk.home.rename(desk.base / "away")
    desk.home.mkdir()
    for _ in range(3):
        rows.feed()
    wait_until(lambda: files_read(checkpoint) == 4, "batches without a home", 120)
    wait_until(lambda: "the store is out of reach, and is asked again" in log.read_text(), "a word of the agent", 60)
    for verb in (("status", "flights"), ("stop", "flights"), ("snapshot", "create", "flights"), ("list",)):
        told = shell(*verb, "--json")
        assert (told.status, told.error["type"]) == (2, "HomeNotFoundError"), told
    assert living_processes(str(launch)), log.read_text()
    assert list(desk.home.iterdir()) == []

    desk.home.rmdir()
    away.rename(desk.home)
    wait_until(lambda: "the store is within reach again" in log.read_text(), "the agent to continue", 60)
    assert shell("status", "flights", "--json").json["state"] == "running"
    rows.feed()
    drained = shell("drain", "flights", "--timeout", 200, "--json")
    assert drained.status == 0, drained
    assert rows.found() == rows.expected()
