"""Drivers that hang on real Spark: every process stopped by SIGSTOP, as a frozen machine; some wake much later."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.launch.folder import HANDLE
from airflow_streamstate.protocol import layout
from support.launches import living_processes, wait_until
from support.running_sums import WAIT, Sums, ask
from support.shell import desk_with, shell
from support.watching import watching

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_jvm")]

QUICK_SIGNS = ("--setting", "heartbeat_seconds=0.5", "--setting", "lost_after_seconds=3")
HUNG = ("--on-failure", "restart", "--initial-backoff", 0, "--hung-after", 6)


@pytest.fixture
def sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sums]:
    """A stream without a deployment, with input; no driver is left of it afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_")) as desk:
        made = Sums(desk)
        try:
            yield made
        finally:
            made.end()


def driver_of(sums: Sums, launch_key: str) -> list[int]:
    """The processes of a driver: its shell, the JVM, Python and its workers."""
    folder = sums.desk.home / layout.launch_folder("sums", "d-0001", launch_key)
    return [process.pid for process in living_processes(str(folder))]


def freeze(sums: Sums, launch_key: str = "d-0001-a0001") -> list[int]:
    """Stop each process of the driver where it is, in the middle of whatever it does."""
    pids = driver_of(sums, launch_key)
    assert len(pids) >= 2, "no JVM next to its Python"
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


def status() -> dict[str, Any]:
    found: dict[str, Any] = shell("status", "sums", "--json").json
    return found


def exact(sums: Sums) -> None:
    """No number is lost or counted twice."""
    sums.end()
    wait_until(lambda: len(sums.found()) >= sums.fed, "all numbers to be summed", 120)
    assert ask("stop", *WAIT).json["state"] == "stopped"
    assert Counter((row["k"], row["v"], row["total"]) for row in sums.found()) == sums.expected()


@pytest.mark.timeout(600)
def test_a_driver_that_hangs_is_told_ended_and_restarted_and_its_rows_are_exact(sums: Sums) -> None:
    """`status` does not call it running; the watcher ends it, has proof of that, and the next attempt continues from
    the last commit (1a.8, Laws 1, 2 and 14)."""
    with watching(sums.desk.base / "watch.out") as watch:
        sums.deploy("one", *HUNG, *QUICK_SIGNS)
        wait_until(lambda: len(sums.found()) > 100, "rows", 120)
        frozen = freeze(sums)
        wait_until(lambda: status()["state"] != "running", "the silence", 30)
        answer = shell("status", "sums", "--json")
        assert (answer.status, answer.json["state"]) == (1, "silent")
        query = answer.json["queries"]["sums"]
        assert (query["caught_up"], query["behind"]) == (None, None)
        assert shell("list").status == 1
        refused = shell("stop", "sums", "--timeout", 5)
        assert (refused.status, "--on-deadline kill" in refused.err) == (4, True)
        watch.wait_for("restarting", 1, 120)
        assert set(frozen).isdisjoint(driver_of(sums, "d-0001-a0001"))
        wait_until(lambda: status()["state"] == "running", "the next attempt", 120)
        texts = [line["text"] for line in watch.lines]
        assert watch.end() == 0
    assert any("attempt 1 hung: its driver lived, and gave no sign of life for" in text for text in texts), texts
    assert status()["attempt"] == 2
    exact(sums)


@pytest.mark.named
@pytest.mark.timeout(900)
def test_a_driver_that_wakes_after_its_successor_has_started_harms_nothing(sums: Sums) -> None:
    """Frozen where no launcher reaches it, declared dead by a person, replaced, and awake again: its log is fenced, it
    finds itself replaced, and ends; no number is lost or doubled (1a.8, Laws 4, 9 and 14)."""
    sums.deploy("one", *QUICK_SIGNS)
    wait_until(lambda: len(sums.found()) > 100, "rows", 120)
    frozen = freeze(sums)
    _out_of_reach(sums)
    wait_until(lambda: status()["state"] == "lost", "that nothing is known of it", 60)
    sums.deploy("two", *QUICK_SIGNS, "--assume-dead")
    count = len(sums.found())
    wait_until(lambda: len(sums.found()) > count + 100, "rows of its successor", 120)
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not driver_of(sums, "d-0001-a0001"), "its end by itself", 120)
    assert (status()["state"], status()["deployment_id"]) == ("running", "d-0002")
    exact(sums)
    assert shell("audit", "sums").status == 0


def _out_of_reach(sums: Sums) -> None:
    """Its machine is another one, as far as the records of its launch show."""
    key = layout.launch_record_key("sums", "d-0001", "d-0001-a0001")
    folder = sums.desk.home / layout.launch_folder("sums", "d-0001", "d-0001-a0001")
    for path, is_record in ((sums.desk.home / key, True), (folder / HANDLE, False)):
        raw = json.loads(path.read_text())
        (raw["data"] if is_record else raw).update(host="elsewhere", boot_id="another")
        new = path.with_suffix(".new")  # the driver holds a lock on the old file
        new.write_text(json.dumps(raw))
        new.rename(path)
