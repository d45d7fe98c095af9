"""The page on other versions of Spark, as a reader types it: a stream of 3.5 goes to Spark 4, and back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.checkpoint.state_files import column_names
from support.flights import JOBS, Flights, counts, counts_of
from support.sparks import IN_FULL, spark_of, told_by

pytestmark = [pytest.mark.compat, pytest.mark.timeout(3_600)]

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "spark-versions.md").read_text()
[COMMANDS] = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)


class Reader:
    """Types commands, with a home folder of his own, in which the page's path of Spark 4 is."""

    def __init__(self, folder: Path) -> None:
        self.flights = Flights(folder, 10)
        self.fed: list[str] = []
        strays = ("SPARK_", "PYSPARK_")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(strays)},
            "HOME": str(folder),
            "STREAMSTATE_HOME": str(folder / "home"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        (folder / "spark-4.2").symlink_to(spark_of(IN_FULL).python.parents[1])

    def feed(self, pieces: int = 1) -> None:
        """The next files arrive."""
        self.fed += self.flights.feed(pieces)

    def types(self, line: str, status: int = 0) -> str:
        """What a command prints, which has to end with this status."""
        done = subprocess.run(
            ["bash", "-euc", line],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, f"{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """The reader; no driver is left of the stream."""
    found = Reader(tmp_path)
    yield found
    subprocess.run(["streamstate", "kill", "flights"], env=found.environment, check=False, capture_output=True)


def test_a_stream_of_spark_3_goes_to_spark_4_and_back(reader: Reader) -> None:
    """Real flights, while they arrive: each is counted once over both moves, and drained (Laws 1, 5, 14)."""
    job, arguments = JOBS / "count_by_origin.py", " ".join(reader.flights.arguments)
    reader.feed(2)
    reader.types(f"streamstate deploy flights --spark {spark_of('3.5').python.parents[1]} --app {job} -- {arguments}")
    assert '"spark_version": "3.5.9"' in reader.types("streamstate events flights --json")
    reader.feed(2)
    told = reader.types("streamstate plan flights --spark ~/spark-4.2 --no-rehearsal --verbose", 4)
    assert "an overflow, a division by zero or a text that is no number gives null before Spark 4.0" in told
    for line in COMMANDS.splitlines():
        reader.types(line)
    assert f'"spark_version": "{IN_FULL}"' in reader.types("streamstate events flights --deployment d-0002 --json")
    reader.feed(2)
    reader.types("streamstate rollback flights")
    reader.feed(2)
    reader.types("streamstate drain flights")
    assert counts_of(list(reader.flights.written()), "origin") == counts(reader.fed, "origin")


SHOWS_KEYS = """
import json, pathlib, re, tempfile
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
columns = ["session_id", "callsign", "ts", "event", "customer"]
place = pathlib.Path(tempfile.mkdtemp(dir="."))
(place / "in").mkdir()
(place / "in" / "1.json").write_text(json.dumps({name: "a" for name in columns}))
rows = spark.readStream.schema(", ".join(f"{name} string" for name in columns)).json(f"{place}/in")
kept = rows.dropDuplicates(columns)
analyzed = kept._jdf.queryExecution().analyzed().toString()
print("KEYS", ",".join(re.findall(r"\\w+(?=#)", analyzed.splitlines()[0])))
writer = kept.writeStream.format("noop").option("checkpointLocation", f"{place}/checkpoint")
writer.trigger(availableNow=True).start().awaitTermination()
[schema] = (place / "checkpoint" / "state" / "0" / "0" / "_metadata").glob("schema*")
print("SCHEMA", (schema if schema.is_file() else next(schema.glob("[!.]*"))).read_bytes().hex())
"""


def test_each_scala_has_five_keys_in_an_order_of_its_own(tmp_path: Path) -> None:
    """Why ``reordered_keys`` refuses, and a plan of such a move asks for a drain: Spark compares types alone. The state
    names its keys in the order in which the plan has them. A release that does otherwise is seen here."""
    found = {}
    for version in ("3.5.9", IN_FULL, "4.3.0"):
        told = dict(line.split() for line in told_by(version, SHOWS_KEYS, tmp_path).splitlines() if " " in line)
        names = column_names(bytes.fromhex(told["SCHEMA"]))
        assert names is not None
        assert ",".join(names[0]) == told["KEYS"]
        found[version] = told["KEYS"]
    assert found["3.5.9"] != found[IN_FULL]
    assert sorted(found["3.5.9"].split(",")) == sorted(found[IN_FULL].split(","))
