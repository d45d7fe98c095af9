"""Drivers on the oldest and the newest Python of each Spark, and on the first release of 3.5 that vendors have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.flights import JOBS, Flights, counts, counts_of
from support.quick_jvm import PLAIN
from support.shell import Desk, desk_with, done
from support.sparks import SCALA_213, python_of, spark_of

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
    live(desk, spark_of(line, python).python.parents[1])


@pytest.mark.parametrize("version", ["3.5.1", SCALA_213])
def test_each_flight_is_counted_once_on_another_build_of_spark_3(desk: Desk, version: str) -> None:
    """The same on the first release of Spark 3.5 that vendors have, and on the build for Scala 2.13."""
    live(desk, spark_of(version).python.parents[1])


def live(desk: Desk, spark: Path) -> None:
    """One life on this Spark."""
    flights = Flights(desk.base / "flights", 6)
    script = (JOBS / "count_by_origin.py").read_text()
    first, second = desk.base / "first.py", desk.base / "second.py"
    with_udf = script.replace(BEFORE, UDF).replace('sf.to_timestamp("date"', 'sf.to_timestamp(same("date")')
    assert with_udf.count("same(") == 2
    first.write_text(with_udf)
    second.write_text(with_udf.replace('sf.lit("count_by_origin")', 'sf.lit("second")'))
    lines = flights.feed()
    quick = ("--conf", f"spark.driver.extraJavaOptions={PLAIN}", "--conf", "spark.log.level=WARN")
    words = ("--app", first, "--master", "local[2]", "--spark", spark, *quick)
    done("deploy", "flights", *words, *WAIT, "--", *flights.arguments)
    lines += flights.feed()
    done("snapshot create", "flights", *WAIT)
    done("stop", "flights", *WAIT)
    lines += flights.feed()
    assert done("deploy", "flights", *words, *WAIT, "--", *flights.arguments)["start"]["mode"] == "restore"
    lines += flights.feed()
    upgraded = done("upgrade", "flights", "--app", second, *WAIT, "--", *flights.arguments)
    assert upgraded["outcome"] == "upgraded"
    lines += flights.feed()
    done("drain", "flights", *WAIT)
    assert counts_of(list(flights.written()), "origin") == counts(lines, "origin")
    seeded = done("deploy", "flights", "--app", second, *words[2:], *WAIT, "--", *flights.arguments)
    assert seeded["start"]["mode"] == "seed"
    lines += flights.feed()
    done("drain", "flights", *WAIT)
    assert counts_of(list(flights.written()), "origin") == counts(lines, "origin")
    assert {row["version"] for row in flights.written()} == {"count_by_origin", "second"}
    assert done("audit", "flights")["ok"] is True
