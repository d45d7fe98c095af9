"""Partitioned sources on every Spark 4, under plain ``spark-submit`` with the driver's zip: each row comes once."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from airflow_streamstate.launch.driver_zip import build_driver_zip
from support.sparks import SPARKS_4, spark_of

pytestmark = [pytest.mark.compat, pytest.mark.timeout(1_200)]

SCRIPT = """
import json, sys, time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from pyspark.sql import SparkSession
from airflow_streamstate.sources import Part, PartitionedSource, register
from airflow_streamstate.sources.growing_files import GrowingFiles

base, upto, lines, numbers = Path(sys.argv[1]), *map(int, sys.argv[2:])


class Numbers(PartitionedSource):
    schema = "n long, at timestamp, part string"
    event_time = "at"

    def list_parts(self):
        return ["a", "b"]

    def build_part(self, part, state):
        return Number(part, state or 0)


class Number(Part):
    def __init__(self, part, given):
        self.part, self.given = part, given

    def poll(self, limit):
        first, self.given = self.given, min(upto, self.given + limit)
        begin = datetime(2026, 1, 1, tzinfo=timezone.utc)
        return [(n, begin + timedelta(seconds=n), self.part) for n in range(first, self.given)]

    def snapshot(self):
        return self.given


spark = SparkSession.builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
for source in (GrowingFiles, Numbers):
    register(spark, source)
given = {
    "lines": spark.readStream.format("growing_files").options(path=f"{base}/in/*.log", maxPerTrigger="3000"),
    "numbers": spark.readStream.format("numbers").options(spool=f"{base}/spool", maxPerTrigger="30"),
}
queries = {
    name: reader.load().writeStream.format("json").option("checkpointLocation", f"{base}/checkpoints/{name}")
    .start(f"{base}/{name}") for name, reader in given.items()
}


def count(name):
    is_there = (base / name / "_spark_metadata").exists()
    return spark.read.schema("x string").json(f"{base}/{name}").count() if is_there else 0


while count("lines") < lines or count("numbers") < numbers:
    for query in queries.values():
        if query.exception():
            raise query.exception()
    time.sleep(0.3)
for query in queries.values():
    query.stop()
found = {name: [json.loads(row) for row in spark.read.json(f"{base}/{name}").toJSON().collect()] for name in given}
(base / "found.json").write_text(json.dumps(found))
spark.stop()
"""


@pytest.mark.parametrize("version", SPARKS_4)
def test_each_row_comes_once_over_restarts_and_a_batch_that_runs_again(version: str, tmp_path: Path) -> None:
    """Spark 4.0 and 4.1 do not report where a batch starts: their reader knows it from what it planned before."""
    spark = spark_of(version)
    (tmp_path / "in").mkdir()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    package = tmp_path / "streamstate.zip"
    build_driver_zip(package)
    # Not by --py-files: the process of Spark 4.0 that plans a Python source does not see them.
    environment = {**os.environ, **spark.environment, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(package)}

    def run(first: int, last: int) -> None:
        for name in "ab":
            with (tmp_path / "in" / f"{name}.log").open("a") as file:
                file.writelines(f"{name} {n}\n" for n in range(first, last))
        words = [str(last), str(2 * last), str(2 * last)]
        submit = str(spark.home / "bin" / "spark-submit")
        options = ["--master", "local[2]", "--conf", "spark.ui.enabled=false"]
        command = [submit, *options, str(script), str(tmp_path), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-3_000:]
        found = json.loads((tmp_path / "found.json").read_text())
        lines = sorted(row["value"] for row in found["lines"])
        assert lines == sorted(f"{name} {n}" for name in "ab" for n in range(last))
        numbers = sorted((row["part"], row["n"]) for row in found["numbers"])
        assert numbers == [(name, n) for name in "ab" for n in range(last)]

    run(0, 100)
    run(100, 150)
    for name in ("lines", "numbers"):
        commits = tmp_path / "checkpoints" / name / "commits"
        newest = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    run(150, 160)
