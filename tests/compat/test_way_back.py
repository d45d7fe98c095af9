"""From Spark 4.1 to 4.2 and back, with the state: lists of ``transformWithState`` in RocksDB, which 4.2 keeps otherwise
in streams of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from airflow_streamstate.protocol.layout import checkpoint_folder
from support import spark_story
from support.file_sink import rows_in
from support.progress import wait_read
from support.quick_jvm import PLAIN
from support.real_queries import PROVIDERS
from support.shell import Desk, desk_with, done, shell
from support.sparks import IN_FULL, spark_of

pytestmark = [pytest.mark.compat, pytest.mark.timeout(1_800)]

TESTS = Path(__file__).parents[1]
SCRIPT = f"""
import sys
from pathlib import Path
from pyspark.sql import SparkSession

sys.path.append({str(TESTS)!r})
from support import spark_story

base = Path(sys.argv[1])
spark = SparkSession.builder.getOrCreate()
for name, plan in spark_story.PLANS.items():
    plan(spark, base).writeStream.queryName(name).format("json").option("path", str(base / name)).start()
spark.streams.awaitAnyTermination()
"""
CONF = {
    "spark.sql.streaming.stateStore.providerClass": PROVIDERS["rocksdb"],
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": PLAIN,
    "spark.log.level": "WARN",
    "spark.python.authenticate.socketTimeout": "120s",
}
WAIT = ("--timeout", 300)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home, and a shell without anything of Spark in its environment."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_")) as made:
        yield made


@pytest.mark.parametrize("version", ["4.0.5", "4.1.4"])
def test_a_stream_that_an_older_spark_began_goes_back_with_its_lists(desk: Desk, version: str) -> None:
    """Upgraded to 4.2, rolled back to the Spark that began it, under input: each row once in every list and timer
    (Laws 5, 10 and 15)."""
    stream = Stream(desk)
    conf = [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]
    spark = ("--spark", spark_of(version).python.parents[1])
    first, second = spark_story.CHAPTERS[:2]
    stream.feed(*first)
    words = ("--app", stream.script, "--master", "local[2]", *conf, *spark, *WAIT)
    done("deploy", "flights", *words, "--", desk.base)
    stream.wait_until_read()
    done("upgrade", "flights", "--spark", spark_of(IN_FULL).python.parents[1], *WAIT)
    stream.feed(*second[:-1])
    stream.wait_until_read()
    back = done("rollback", "flights", "--strategy", "forward", *WAIT)
    assert back["way"] == "forward"
    stream.feed(second[-1])
    stream.wait_until_read()
    done("drain", "flights", *WAIT)
    spark_story.check(stream.rows, tuple(spark_story.PLANS), 2)
    assert done("audit", "flights")["ok"] is True


class Stream:
    """The story's input, and what its query wrote."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.script = desk.base / "job.py"
        self.script.write_text(SCRIPT)
        self.fed = 0
        (desk.base / "in").mkdir()

    def feed(self, *files: tuple[Mapping[str, object], ...]) -> None:
        """More input files, whole at once, each younger than the one before."""
        for rows in files:
            self.fed += 1
            hidden = self.desk.base / "in" / f".{self.fed:05d}"
            hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(hidden, (1_700_000_000 + self.fed,) * 2)
            hidden.rename(self.desk.base / "in" / f"{self.fed:05d}.json")

    def wait_until_read(self) -> None:
        """Wait until committed batches of the current deployment have read all."""
        deployment_id = done("status", "flights")["deployment_id"]
        for name in spark_story.PLANS:
            folder = checkpoint_folder("flights", deployment_id, name)
            wait_read(self.desk.home / folder, self.fed, lambda: shell("logs", "flights").out[-4000:])

    def rows(self, name: str) -> list[tuple[object, ...]]:
        """What the query has written, sorted."""
        fields = tuple(spark_story.FIELDS[name])
        return sorted((tuple(row.get(each) for each in fields) for row in rows_in(self.desk.base / name)), key=repr)
