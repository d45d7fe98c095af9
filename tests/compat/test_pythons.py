"""Drivers on the oldest and the newest Python of each Spark, and on other builds of Spark 3.5."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.protocol.layout import checkpoint_folder
from support.flights import JOBS, Flights, counts, counts_of
from support.progress import wait_read
from support.quick_jvm import PLAIN
from support.shell import Desk, desk_with, done, shell
from support.sparks import IN_FULL, SCALA_213, Spark, python_of, spark_of

pytestmark = [pytest.mark.compat, pytest.mark.timeout(1_800)]

WAIT = ("--timeout", 300)
PYTHONS = {
    "3.5": ("3.9", "3.12"),
    "4.0": ("3.9", "3.13"),
    "4.1": ("3.10", "3.14"),
    "4.2": ("3.10", "3.14"),
    "4.3": ("3.11", "3.14"),
}
"""Line of Spark -> the oldest and the newest Python that it runs on, and drivers do."""
BEFORE = "flights = (\n"
UDF = f"""
@sf.udf("string")
def same(text):
    return text


{BEFORE}"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home, and a shell without anything of Spark in its environment."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_")) as made:
        yield made


@pytest.mark.parametrize(("line", "version"), [(line, version) for line, both in PYTHONS.items() for version in both])
def test_each_flight_is_counted_once_on_this_python(desk: Desk, line: str, version: str) -> None:
    """Fresh, snapshot, stop, restore, rehearsed and upgraded warm, drained, seeded, with a Python function in each
    batch (Laws 5, 9 and 14)."""
    python = python_of(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    life = Life(desk, spark_of(line, python), 6)
    life.until_seeded()
    life.drain()


@pytest.mark.parametrize("version", ["3.5.1", SCALA_213])
def test_each_flight_is_counted_once_on_another_build_of_spark_3(desk: Desk, version: str) -> None:
    """The same on the first release of Spark 3.5 that vendors have, and on the build for Scala 2.13; then the stream
    moves to the newest 3.5 of PyPI, and on to Spark 4."""
    life = Life(desk, spark_of(version), 8)
    life.until_seeded()
    for spark in ("3.5", IN_FULL):
        words = ("--spark", venv(spark_of(spark)), "--conf", "spark.sql.ansi.enabled=false", *WAIT)
        assert done("upgrade", "flights", *words)["outcome"] == "upgraded"
        life.feed()
    life.drain()


class Life:
    """One stream, which begins on this Spark."""

    def __init__(self, desk: Desk, spark: Spark, pieces: int) -> None:
        self.desk = desk
        self.flights = Flights(desk.base / "flights", pieces)
        self.lines = self.flights.feed()
        script = (JOBS / "count_by_origin.py").read_text()
        with_udf = script.replace(BEFORE, UDF).replace('sf.to_timestamp("date"', 'sf.to_timestamp(same("date")')
        assert with_udf.count("same(") == 2
        self.first, self.second = desk.base / "first.py", desk.base / "second.py"
        self.first.write_text(with_udf)
        self.second.write_text(with_udf.replace('sf.lit("count_by_origin")', 'sf.lit("second")'))
        quick = ("--conf", f"spark.driver.extraJavaOptions={PLAIN}", "--conf", "spark.log.level=WARN")
        self._words = ("--master", "local[2]", "--spark", venv(spark), *quick, *WAIT, "--", *self.flights.arguments)

    def feed(self) -> None:
        """More flights, and wait until committed batches have read them."""
        self.lines += self.flights.feed()
        deployment_id = done("status", "flights")["deployment_id"]
        checkpoint = self.desk.home / checkpoint_folder("flights", deployment_id, "delays")
        files = len(list((self.desk.base / "flights" / "incoming").glob("*.json")))
        wait_read(checkpoint, files, lambda: shell("logs", "flights").out[-4000:])

    def drain(self) -> None:
        """Drain, and compare what is written with all that was fed."""
        done("drain", "flights", *WAIT)
        assert counts_of(list(self.flights.written()), "origin") == counts(self.lines, "origin")
        assert done("audit", "flights")["ok"] is True

    def until_seeded(self) -> None:
        """From fresh to seeded, and on."""
        done("deploy", "flights", "--app", self.first, *self._words)
        self.feed()
        done("snapshot create", "flights", *WAIT)
        done("stop", "flights", *WAIT)
        assert done("deploy", "flights", "--app", self.first, *self._words)["start"]["mode"] == "restore"
        self.feed()
        upgraded = done("upgrade", "flights", "--app", self.second, *WAIT, "--", *self.flights.arguments)
        assert upgraded["outcome"] == "upgraded"
        self.feed()
        self.drain()
        assert done("deploy", "flights", "--app", self.second, *self._words)["start"]["mode"] == "seed"
        self.feed()
        assert {row["version"] for row in self.flights.written()} == {"count_by_origin", "second"}


def venv(spark: Spark) -> Path:
    """The virtual environment that has it."""
    return spark.python.parents[1]
