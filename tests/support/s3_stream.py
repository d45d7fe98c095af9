"""A stream with everything on S3, driven by the shell: its script, input and expected output."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_streamstate.protocol import layout
from airflow_streamstate.store.base import Store
from support import quick_jvm
from support.drivers import CONF, seconds_of
from support.file_sink import rows_in
from support.launches import wait_until
from support.s3_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY
from support.shell import Answer, Desk, desk_with, shell
from support.sparks import Spark

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
QUICK = tuple(word for key, value in CONF.items() for word in ("--conf", f"{key}={value}"))
WAIT = ("--timeout", 300)
SCRIPT = """
import sys
from pyspark.sql import SparkSession, functions as F

base = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("t timestamp, v int").option("maxFilesPerTrigger", 1).json(base + "/in")
key = (F.col("v") % 2).alias("k")
counts = rows.withWatermark("t", "10 seconds").groupBy(F.window("t", "10 seconds"), key)
counts = counts.agg(F.count("*").alias("n"), F.sum("v").alias("s")).select("k", "n", "s")
query = counts.writeStream.queryName("counts").format("json").option("path", base + "/out")
query.trigger(processingTime="100 milliseconds").start().awaitTermination()
"""


class S3Stream:
    """The script's input and output, and the words of the shell.

    Args:
        conf: Spark's configuration besides the usual one.
        spark: the Spark of its drivers, where that is not the one of the tests.
    """

    def __init__(self, base: Path, conf: Mapping[str, str] | None = None, spark: Spark | None = None) -> None:
        self.base = base
        self.app = base / "job.py"
        self.app.write_text(SCRIPT)
        (base / "in").mkdir()
        self.rows = 0
        self.files = 0
        more = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB, **(conf or {})}
        own: tuple[object, ...] = ()
        if spark is not None:
            more |= {"spark.driver.extraJavaOptions": quick_jvm.PLAIN}
            # The default of newer Hadoops. Hadoop 3.3 removes markers by a request which this server does not fulfil.
            more |= {"spark.hadoop.fs.s3a.directory.marker.retention": "keep"}
            own = ("--spark", spark.python.parents[1])
        self._conf = (*QUICK, *own, *(word for key, value in more.items() for word in ("--conf", f"{key}={value}")))

    def feed(self, files: int, rows: int = 10) -> None:
        """Feed ``files`` more files, each row a second later than the one before."""
        for _ in range(files):
            numbers = range(self.rows, self.rows + rows)
            hidden = self.base / "in" / f".{self.files:05d}"
            lines = (json.dumps({"t": seconds_of(row // 60, row % 60), "v": row}) for row in numbers)
            hidden.write_text("".join(f"{line}\n" for line in lines))
            os.utime(hidden, (1_700_000_000 + self.files,) * 2)
            hidden.rename(self.base / "in" / f"{self.files:05d}.json")
            self.files, self.rows = self.files + 1, self.rows + rows

    def expected(self) -> Counter[str]:
        """Rows and sums per key, of all that was fed."""
        total: Counter[str] = Counter()
        for value in range(self.rows):
            total += Counter({f"{value % 2} n": 1, f"{value % 2} s": value})
        return total

    def written(self) -> Counter[str]:
        """The same, of what the file sink has committed."""
        total: Counter[str] = Counter()
        for row in rows_in(self.base / "out"):
            total += Counter({f"{row['k']} n": int(str(row["n"])), f"{row['k']} s": int(str(row["s"]))})
        return total

    def wait_until_read(self, store: Store, deployment_id: str) -> None:
        """Until every file is in a committed batch, by the file source's own log and the offsets."""
        checkpoint = f"flights/deployments/{deployment_id}/checkpoints/counts"

        def is_read() -> bool:
            names = [info.key.rpartition("/")[2] for info in store.list_objects(f"{checkpoint}/sources/0/")]
            commits = [info.key.rpartition("/")[2] for info in store.list_objects(f"{checkpoint}/commits/")]
            newest = max((int(name.partition(".")[0]) for name in names if name[0] != "."), default=-1)
            committed = max((int(name) for name in commits if name.isdigit()), default=-1)
            offsets = store.get(f"{checkpoint}/offsets/{committed}") if committed >= 0 else None
            is_newest = offsets is not None and f'"logOffset":{newest}' in offsets.body.decode()
            return newest >= self.files - 1 and is_newest

        def what() -> str:
            return f"{self.files} files to be read; there is {[info.key for info in store.list_objects(checkpoint)]}"

        wait_until(is_read, what, 300)

    def deploy(self, *words: object) -> Answer:
        """Deploy the script, and see it healthy."""
        answer = self.try_to_deploy(*words)
        assert answer.status == 0, (answer, shell("logs", "flights").out[-6000:])
        return answer

    def try_to_deploy(self, *words: object) -> Answer:
        """The same, whatever comes of it."""
        return shell(
            *("deploy", "flights", "--app", self.app, "--master", "local[2]", *self._conf, *words, *WAIT, "--json"),
            *("--", self.base),
        )

    def done(self, verb: str, *words: object) -> Answer:
        """A verb that must come to its end."""
        answer = shell(verb, "flights", *words, *WAIT, "--json")
        assert answer.status == 0, (answer, shell("logs", "flights").out[-6000:])
        return answer


@contextmanager
def desk_on_s3(base: Path, monkeypatch: pytest.MonkeyPatch, endpoint_url: str) -> Iterator[Desk]:
    """A home on S3 and nothing else, below the name of the folder: each try has its own; launches in a folder."""
    variables = {
        "STREAMSTATE_HOME": f"s3://{BUCKET}/{base.name}",
        "STREAMSTATE_WORK_DIR": str(Desk(base).home),
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
        "AWS_ENDPOINT_URL_S3": endpoint_url,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with desk_with(base, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_", "AWS_"), variables) as desk:
        yield desk


def driver_folder(desk: Desk, deployment_id: str, attempt: int) -> str:
    """The folder of a launch on this machine."""
    return str(desk.home / layout.launch_folder("flights", deployment_id, f"{deployment_id}-a{attempt:04d}"))
