"""Malstrom's program of running sums per parity, over numbers that never stop coming; used through the shell."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from itertools import accumulate

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.store.local import LocalStore
from support.drivers import CONF
from support.file_sink import rows_in
from support.launches import wait_until
from support.shell import Answer, Desk, shell

QUICK = tuple(word for key, value in CONF.items() for word in ("--conf", f"{key}={value}"))
WAIT = ("--timeout", 200, "--json")
ROWS_PER_FILE = 20
FEED_SECONDS = 0.3
LIVES_SECONDS = (0.5, 3.0)
"""How long a driver lives after its first batch, at least and at most."""
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
        """What it reports about itself."""
        return StreamControl(LocalStore(self.desk.home), "sums", SYSTEM_CLOCK)

    def crash_and_leave(self) -> None:
        """Let it live for a few seconds, then kill -9 all of it."""
        time.sleep(self._chance.uniform(*LIVES_SECONDS))  # noqa: TID251 - a real driver lives in real time
        self.desk.end_drivers()

    def crash(self) -> None:
        """As ``crash_and_leave``, until the end is seen."""
        self.crash_and_leave()
        # A JVM of which only the memory is left to be freed holds its locks until it is.
        wait_until(lambda: shell("status", "sums", "--json").json["state"] == "failed", "the driver's end to be seen")

    def deploy(self, version: str, *options: object) -> Answer:
        app = self.desk.base / f"{version}.py"
        app.write_text(SCRIPT.replace("VERSION", version))
        return ask("deploy", "--app", app, "--master", "local[2]", *QUICK, *options, *WAIT, "--", self.desk.base)

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
