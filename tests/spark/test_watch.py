"""``streamstate watch`` on real Spark: drivers killed every few seconds, and a batch that always fails."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Finished, QueryStarted
from support.file_sink import rows_in
from support.launches import wait_until
from support.running_sums import QUICK, WAIT, Sums, ask
from support.shell import desk_with, shell
from support.watching import watching

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_jvm")]

AT_ONCE = ("--on-failure", "restart", "--initial-backoff", 0, "--max-restarts", 10_000)
FEW_KILLS = 4
TEN_MINUTES = float(os.environ.get("STREAMSTATE_WATCH_SECONDS", "600"))
FAILING = """import sys
from pyspark.sql import SparkSession

base = sys.argv[1]
spark = SparkSession.builder.getOrCreate()


def write(rows, batch_id):
    if batch_id == 1:
        raise ValueError(f"row {rows.count()} is bad")


rows = spark.readStream.schema("v long").option("maxFilesPerTrigger", 1).json(base + "/in")
rows.writeStream.queryName("sums").foreachBatch(write).start().awaitTermination()
"""
HANDLES_SIGTERM = """import signal, sys
from pyspark.sql import SparkSession

base = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("v long").option("maxFilesPerTrigger", 100).json(base + "/in")
query = rows.writeStream.queryName("sums").format("json").start(base + "/out")


def end(*_):
    WHAT


signal.signal(signal.SIGTERM, end)
query.awaitTermination()
print("ended in good order")
"""


@pytest.fixture
def sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sums]:
    """A stream without a deployment, with input; no driver is left of it afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_")) as desk:
        made = Sums(desk)
        try:
            yield made
        finally:
            made.end()


def live_with_kills(sums: Sums, kills: int, until_seconds: float = 0.0) -> int:
    """The program under a watcher, its driver killed every few seconds; how often."""
    done = 0
    with watching(sums.desk.base / "watch.out") as watch:
        sums.deploy("one", *AT_ONCE)
        begun = time.monotonic()  # noqa: TID251 - real drivers live in real time
        while done < kills or time.monotonic() - begun < until_seconds:  # noqa: TID251
            sums.crash_and_leave()
            done += 1
            watch.wait_for("restarting", done)
        wait_until(lambda: shell("status", "sums", "--json").json["state"] == "running", "the last restart", 120)
        assert watch.end() == 0  # the driver outlives it
        assert [line["sight"] for line in watch.lines].count("restarting") == done
    sums.end()
    wait_until(lambda: len(sums.found()) >= sums.fed, "all numbers to be summed", 120)
    assert ask("stop", *WAIT).json["state"] == "stopped"
    found = Counter((row["k"], row["v"], row["total"]) for row in sums.found())
    assert found == sums.expected()
    assert sums.control.need_register().value.attempt == done + 1
    return done


@pytest.mark.named
@pytest.mark.timeout(900)
def test_running_sums_are_exact_under_watch_through_kills_every_few_seconds(sums: Sums) -> None:
    """Each death of the driver is followed by one attempt, which continues from the last commit; the watcher ends with
    status 0 and leaves the driver, which stays stopped once a person stops it (1a.6, Laws 1, 2, 5 and 9)."""
    live_with_kills(sums, FEW_KILLS)
    events = [entry.event for entry in sums.control.journal("d-0001").events()]
    assert any(isinstance(event, QueryStarted) and event.planned_batch_id is not None for event in events)
    with watching(sums.desk.base / "again.out") as watch:
        watch.wait_for("ended")
        assert watch.end(signal.SIGINT) == 0
    assert sums.control.need_register().value.attempt == FEW_KILLS + 1


@pytest.mark.named
@pytest.mark.timeout(1500)
def test_running_sums_are_exact_after_ten_minutes_of_kills(sums: Sums) -> None:
    """Malstrom's program for ten minutes; ``STREAMSTATE_WATCH_SECONDS`` sets how long (Laws 1, 2, 5 and 9)."""
    print(f"killed and restarted {live_with_kills(sums, 1, TEN_MINUTES)} times, {sums.fed} numbers")


@pytest.mark.timeout(900)
def test_a_batch_that_always_fails_is_given_up_with_its_number(sums: Sums) -> None:
    """After the third failure of the same batch with the same error nothing is started any more, and watch, status,
    list and doctor report what a person can do (Law 6)."""
    app = sums.desk.base / "failing.py"
    app.write_text(FAILING)
    with watching(sums.desk.base / "watch.out") as watch:
        ask("deploy", "--app", app, "--master", "local[2]", *QUICK, *AT_ONCE, "--async", "--", sums.desk.base)
        watch.wait_for("gave_up", 1, 200)
        said = next(line["text"] for line in watch.lines if line["sight"] == "gave_up")
        assert watch.end() == 0
    assert said.startswith("batch 1 of query sums fails, 3 times with the same error: `replay` it, or `skip` it."), said
    assert "is bad" in said
    status = shell("status", "sums", "--json").json
    assert (status["state"], status["attempt"], status["restarts"]) == ("failed", 3, f"abandoned: {said}")
    assert said in shell("list").out
    resumed = shell("resume", "sums", "--async", "--json")
    assert resumed.status == 0, resumed
    assert sums.control.need_register().value.restarts is None


@pytest.mark.named
@pytest.mark.timeout(900)
def test_a_checkpoint_that_is_lost_is_restored_from_the_newest_snapshot(sums: Sums) -> None:
    """Where the policy allows it: what was written since the snapshot is undone in the sink, read again, and exact;
    every step is reported (Laws 5, 9 and 14)."""
    with watching(sums.desk.base / "watch.out") as watch:
        sums.deploy("one", *AT_ONCE, "--restore-lost-checkpoint")
        kept = ask("snapshot create", *WAIT).json["snapshot_id"]
        wait_until(lambda: len(sums.found()) > 200, "more rows", 60)
        sums.crash_and_leave()
        shutil.rmtree(sums.desk.home / layout.checkpoints_folder("sums", "d-0001"))
        wait_until(lambda: sums.control.need_register().value.deployment_id == "d-0002", "the rollback", 240)
        wait_until(lambda: sums.control.need_register().value.upgrade_id is None, "its end", 240)
        texts = [line["text"] for line in watch.lines]
        assert watch.end() == 0
    assert any(f"back to {kept}, with the sinks undone to it" in text for text in texts), texts
    sums.end()
    wait_until(lambda: len(sums.found()) >= sums.fed, "all numbers to be summed", 120)
    assert ask("stop", *WAIT).json["state"] == "stopped"
    assert Counter((row["k"], row["v"], row["total"]) for row in sums.found()) == sums.expected()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("what", "did"),
    [
        ("query.stop()", "was stopped by the script"),
        pytest.param("sys.exit(0)", "ran when the script ended", marks=pytest.mark.named),
    ],
)
def test_a_script_that_handles_sigterm_and_ends_with_status_0_is_restarted(sums: Sums, what: str, did: str) -> None:
    """Nobody had asked for that end, as where a node is drained: each row comes out once all the same (Laws 5, 9)."""
    app = sums.desk.base / "handles.py"
    app.write_text(HANDLES_SIGTERM.replace("WHAT", what))
    with watching(sums.desk.base / "watch.out") as watch:
        ask("deploy", "--app", app, "--master", "local[2]", *QUICK, *AT_ONCE, *WAIT, "--", sums.desk.base)
        claim = sums.control.claim("d-0001", 1)
        assert claim is not None
        os.kill(claim.pid, signal.SIGTERM)
        watch.wait_for("restarting")
        (finished,) = [
            entry.event for entry in sums.control.journal("d-0001").events() if isinstance(entry.event, Finished)
        ]
        assert finished.unfinished == {"sums": did}
        assert finished.snapshot_id == "d-0001-stopped-000001"
        wait_until(lambda: shell("status", "sums", "--json").json["state"] == "running", "the next attempt", 120)
        assert watch.end() == 0
    assert "ended in good order" in shell("logs", "sums", "--attempt", "1").out or what == "sys.exit(0)"
    sums.end()
    wait_until(lambda: len(rows_in(sums.desk.base / "out")) >= sums.fed, "all numbers", 120)
    assert ask("stop", *WAIT).json["state"] == "stopped"
    assert Counter(row["v"] for row in rows_in(sums.desk.base / "out")) == Counter(range(sums.fed))
