"""Malstrom's program: running sums per parity, its driver killed every few seconds, started again by the shell."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.store.local import LocalStore
from support.drivers import CONF
from support.file_sink import rows_in
from support.launches import wait_until
from support.shell import Answer, Desk, desk_with, shell

pytestmark = [pytest.mark.spark, pytest.mark.timeout(500), pytest.mark.usefixtures("quick_jvm")]

QUICK = tuple(word for key, value in CONF.items() for word in ("--conf", f"{key}={value}"))
WAIT = ("--timeout", 200, "--json")
ROWS_PER_FILE = 20
FEED_SECONDS = 0.3
LIVES_SECONDS = (0.5, 3.0)
"""So long a driver lives behind its first batch."""
SEED = 2741
SCRIPT = """# version VERSION
import sys

import pandas as pd
from pyspark.sql import SparkSession, functions as F
from pyspark.sql.streaming.state import GroupStateTimeout

base = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
numbers = spark.readStream.schema("v long").option("maxFilesPerTrigger", 20).json(base + "/in")
parity = F.when(F.col("v") % 2 == 0, "even").otherwise("odd").alias("k")


def running_sum(key, parts, state):
    total = state.get[0] if state.exists else 0
    rows = []
    for v in sorted(int(v) for part in parts for v in part["v"]):
        total += v
        rows.append((key[0], v, total, "VERSION"))
    state.update((total,))
    yield pd.DataFrame(rows, columns=["k", "v", "total", "by"])


sums = numbers.select(parity, "v").groupBy("k").applyInPandasWithState(
    running_sum, "k string, v long, total long, by string", "total long", "append", GroupStateTimeout.NoTimeout
)
sums.writeStream.queryName("sums").format("json").start(base + "/out").awaitTermination()
"""


class Sums:
    """The stream, and numbers that never stop coming."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.fed = 0
        self._chance = random.Random(SEED)
        self._over = threading.Event()
        self._feeder = threading.Thread(target=self._feed_on, name="feeder", daemon=True)
        (desk.base / "in").mkdir()
        self._feeder.start()

    def _feed_on(self) -> None:
        while not self._over.is_set():
            self._feed()
            self._over.wait(FEED_SECONDS)

    def _feed(self) -> None:
        """One more file, whole at once, younger than those before it."""
        number = self.fed // ROWS_PER_FILE
        hidden = self.desk.base / "in" / f".{number:05d}"
        values = range(self.fed, self.fed + ROWS_PER_FILE)
        hidden.write_text("".join(json.dumps({"v": value}) + "\n" for value in values))
        os.utime(hidden, (1_700_000_000 + number,) * 2)
        hidden.rename(self.desk.base / "in" / f"{number:05d}.json")
        self.fed += ROWS_PER_FILE

    def end(self) -> None:
        """No more numbers."""
        self._over.set()
        self._feeder.join()

    @property
    def control(self) -> StreamControl:
        """What it says of itself."""
        return StreamControl(LocalStore(self.desk.home), "sums", SYSTEM_CLOCK)

    def crash(self) -> None:
        """Let it live for a few seconds, then kill -9 all of it."""
        time.sleep(self._chance.uniform(*LIVES_SECONDS))  # noqa: TID251 - a real driver lives in real time
        self.desk.end_drivers()
        # A JVM of which only the memory is left to be freed holds its locks until it is.
        wait_until(lambda: shell("status", "sums", "--json").json["state"] == "failed", "the driver's end to be seen")

    def deploy(self, version: str) -> Answer:
        app = self.desk.base / f"{version}.py"
        app.write_text(SCRIPT.replace("VERSION", version))
        return ask("deploy", "--app", app, "--master", "local[2]", *QUICK, *WAIT, "--", self.desk.base)

    def found(self) -> list[dict[str, object]]:
        """The committed rows."""
        return rows_in(self.desk.base / "out")

    def expected(self) -> Counter[tuple[object, ...]]:
        """What a batch over all numbers gives."""
        evens, odds = range(0, self.fed, 2), range(1, self.fed, 2)
        return Counter(
            (key, value, total)
            for key, values in (("even", evens), ("odd", odds))
            for value, total in zip(values, accumulate(values), strict=True)
        )


def ask(verb: str, *words: object) -> Answer:
    """The answer to a verb, which must be one of success."""
    answer = shell(verb, "sums", *words)
    assert answer.status == 0, answer
    return answer


@pytest.fixture
def sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sums]:
    """A stream without a deployment, with input; no driver is left of it afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_")) as desk:
        made = Sums(desk)
        try:
            yield made
        finally:
            made.end()


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
    assert by_value == sorted(by_value)  # the new version goes on where the old one stood
    assert set(by_value) == {"one", "two"}
    started = [entry.event for each in ("d-0001", "d-0002") for entry in sums.control.journal(each).events()]
    planned = [event.planned_batch_id for event in started if isinstance(event, QueryStarted)]
    assert any(batch_id is not None for batch_id in planned)  # it was killed in a batch
    assert ask("snapshot verify", kept["snapshot_id"], "--json").json["ok"]
