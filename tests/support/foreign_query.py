"""A PySpark query that knows nothing of streamstate, in its own driver, and its expected output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

from support.drivers import CONF
from support.launches import wait_until
from support.shell import Answer, shell

QUICK = tuple(word for key, value in CONF.items() for word in ("--conf", f"{key}={value}"))

SCRIPT = '''
"""A script that knows nothing of streamstate."""
import json
import os
import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

base = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("v int").option("maxFilesPerTrigger", 1).json(base + "/in")
totals = rows.groupBy((F.col("v") % 2).alias("k")).agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def keep(batch, batch_id):
    found = {str(row.k): [row.n, row.s] for row in batch.collect()}
    while os.path.exists(base + "/hold"):
        time.sleep(0.05)
    if os.path.exists(base + "/fail"):
        raise RuntimeError("the disk of another is full")
    with open(f"{base}/out/{batch_id}.json.new", "w") as file:
        json.dump(found, file)
    os.replace(file.name, f"{base}/out/{batch_id}.json")


query = totals.writeStream.outputMode("update").foreachBatch(keep)
query = query.option("checkpointLocation", base + "/mine/counts").trigger(processingTime="200 milliseconds")
query.start().awaitTermination()
'''


class ForeignQuery:
    """The script, its input and its output.

    Attributes:
        place: its checkpoint, as the adoption names it.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.app = base / "job.py"
        self.app.write_text(SCRIPT)
        self.checkpoint = base / "mine" / "counts"
        for name in ("in", "out"):
            (base / name).mkdir()
        self.hold, self.fail = base / "hold", base / "fail"
        self.place: object = self.checkpoint
        self.conf: dict[str, str] = dict(CONF)
        self._rows = 0
        self._files = 0
        self._driver: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Its driver, in its own process group."""
        conf = [word for key, value in self.conf.items() for word in ("--conf", f"{key}={value}")]
        words = ["spark-submit", "--master", "local[2]", *conf, str(self.app), str(self.base)]
        with (self.base / "driver.log").open("ab") as log:
            self._driver = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)

    def has_ended(self) -> bool:
        """Whether its driver has."""
        return self._driver is None or self._driver.poll() is not None

    def kill(self) -> None:
        """Kill -9, everything of it."""
        if self._driver is not None and self._driver.poll() is None:
            os.killpg(self._driver.pid, signal.SIGKILL)
            self._driver.wait()

    @property
    def log(self) -> str:
        """What its driver wrote."""
        return (self.base / "driver.log").read_text("utf-8", "replace")

    def feed(self, files: int = 1, rows: int = 10) -> None:
        """Feed ``files`` more files."""
        for _ in range(files):
            numbers = range(self._rows, self._rows + rows)
            hidden = self.base / "in" / f".{self._files:05d}"
            hidden.write_text("".join(json.dumps({"v": number}) + "\n" for number in numbers))
            os.utime(hidden, (1_700_000_000 + self._files,) * 2)
            hidden.rename(self.base / "in" / f"{self._files:05d}.json")
            self._files, self._rows = self._files + 1, self._rows + rows

    def entries(self, folder: str) -> list[int]:
        """The numbers in ``offsets`` or ``commits`` of its own checkpoint, ascending."""
        there = self.checkpoint / folder
        return sorted(int(path.name) for path in there.iterdir() if path.name.isdigit()) if there.is_dir() else []

    def files(self) -> dict[str, bytes]:
        """Every file of its checkpoint."""
        paths = [path for path in self.checkpoint.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.checkpoint)): path.read_bytes() for path in paths}

    def wait_committed(self, batch_id: int) -> None:
        """Until it has committed this batch."""
        wait_until(lambda: batch_id in self.entries("commits"), lambda: f"batch {batch_id}:\n{self.log}", 120)

    def expected(self) -> dict[str, list[int]]:
        """Rows and sum per key, of all that was fed."""
        numbers: Counter[str] = Counter()
        sums: Counter[str] = Counter()
        for number in range(self._rows):
            numbers[str(number % 2)] += 1
            sums[str(number % 2)] += number
        return {key: [numbers[key], sums[key]] for key in sorted(numbers)}

    def written(self) -> dict[str, list[int]]:
        """The same, as the newest batches wrote it."""
        found: dict[str, list[int]] = {}
        for batch_id in self.batches():
            found |= json.loads((self.base / "out" / f"{batch_id}.json").read_text())
        return dict(sorted(found.items()))

    def batches(self) -> list[int]:
        """The batches that wrote, ascending."""
        return sorted(int(path.stem) for path in (self.base / "out").glob("*.json"))

    def adopt(self, *words: object) -> Answer:
        """The verb, with the query's own script."""
        return shell(
            *("adopt", "totals", "--checkpoint", self.place, "--app", self.app, "--master", "local[2]"),
            *(*QUICK, "--json", *words, "--", self.base),
        )

    def finish(self) -> None:
        """Three more files, all read under streamstate; then a stop. Each row counted once, no batch id left out."""
        self.feed(3)
        wait_until(lambda: self.written() == self.expected(), lambda: shell("logs", "totals").out[-4000:], 200)
        assert shell("stop", "totals", "--timeout", 200).status == 0
        assert self.batches() == list(range(self.batches()[-1] + 1))
        assert shell("audit", "totals", "--json").json["ok"] is True
