"""A rehearsal on real Spark, by the shell, alongside a stream that runs: what it reports, and what it leaves alone."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.protocol import layout
from support.drivers import CONF, seconds_of, wait_until
from support.file_sink import rows_in
from support.launches import living_processes
from support.shell import Answer, Desk, desk_with, shell

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

QUICK = tuple(word for key, value in CONF.items() for word in ("--conf", f"{key}={value}"))
HEAD = """
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

base = sys.argv[1]
"""
BODY = """
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("t timestamp, k string, v int").option("maxFilesPerTrigger", 1).json(base + "/in")


def keep(batch, batch_id):
    name = "rehearsed" if os.environ.get("STREAMSTATE_REHEARSAL") else "raw"
    with open(f"{base}/{name}-{batch_id}", "w") as file:
        file.write(str(batch.count()))


rows.writeStream.queryName("raw").foreachBatch(keep).start()
windows = rows.withWatermark("t", "10 seconds").groupBy(F.window("t", "10 seconds"), "k")
counts = windows.agg(F.count("*").alias("n")AGGREGATE)
counts = counts.writeStream.queryName("counts").format("json").option("path", base + "/out").start()
print("rehearsed" if os.environ.get("STREAMSTATE_REHEARSAL") else "runs")
spark.streams.awaitAnyTermination()
counts.awaitTermination()
print("the end")
"""


def script_of(desk: Desk, name: str, *, aggregate: str = "", line: str = "") -> Path:
    """A version of the job."""
    path = desk.base / name
    path.write_text(HEAD + line + BODY.replace("AGGREGATE", aggregate))
    return path


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home that the environment names, and no driver left afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_")) as made:
        yield made


def feed(desk: Desk, number: int) -> None:
    """One more file of ten rows, each a second later than the one before."""
    (desk.base / "in").mkdir(exist_ok=True)
    hidden = desk.base / "in" / f".{number}"
    rows = [{"t": seconds_of(0, 10 * number + row), "k": "a", "v": row} for row in range(10)]
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(hidden, (1_700_000_000 + number,) * 2)
    hidden.rename(desk.base / "in" / f"{number}.json")


def everything(desk: Desk) -> dict[str, str]:
    """Every file and what it holds, but for what a driver that runs writes by the second, the feed, and reports of
    rehearsals."""
    found = {}
    for path in sorted(desk.base.rglob("*")):
        name = str(path.relative_to(desk.base))
        if "/scratch/" in name or layout.FEED_FOLDER in path.parts:
            continue
        if path.is_file() and not name.endswith(("heartbeat.json", "driver.log")):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def rehearsals(desk: Desk) -> list[Path]:
    """The folder of each."""
    return sorted((desk.home / "jobs" / "scratch").iterdir())


def of_rehearsals(desk: Desk) -> set[str]:
    """What is left of all rehearsals: names below each, folders too."""
    return {
        str(path.relative_to(folder)).partition("/")[0] for folder in rehearsals(desk) for path in folder.rglob("*")
    }


def idle(desk: Desk) -> bool:
    """Whether both queries of the stream have read all there is."""
    queries = shell("status", "jobs", "--json").json["queries"]
    return set(queries) == {"raw", "counts"} and all((query["idle_triggers"] or 0) > 1 for query in queries.values())


def plan(desk: Desk, *words: object) -> Answer:
    return shell("plan", "jobs", *words, "--json", "--deadline", 200)


@pytest.mark.named
def test_a_change_is_known_before_anything_is_stopped(desk: Desk) -> None:
    """One that fits, one whose state Spark refuses, one that cannot start: reported as text, each with its status. No
    foreachBatch is called, no sink, position or checkpoint touched, and the stream runs on as if nothing were asked."""
    feed(desk, 0)
    feed(desk, 1)
    first = script_of(desk, "v1.py")
    assert (
        shell(
            "deploy", "jobs", "--app", first, "--master", "local[2]", *QUICK, "--timeout", 200, "--", desk.base
        ).status
        == 0
    )
    wait_until(lambda: idle(desk), lambda: shell("status", "jobs").out, 120)
    before, events = everything(desk), shell("events", "jobs", "--json").json["events"]

    fits = plan(desk, "--app", script_of(desk, "v2.py", line="print('another version')\n"))
    assert fits.status == 0, fits
    assert (fits.json["outcome"], fits.json["verdict"], fits.json["rehearsal"]["ok"]) == ("fits", "same", True)
    assert {name: query["rehearsal"]["start"] for name, query in fits.json["queries"].items()} == {
        "raw": "restored",
        "counts": "restored",
    }

    aggregate = ', F.sum("v").alias("s")'
    refused = plan(desk, "--app", script_of(desk, "v3.py", aggregate=aggregate))
    assert refused.status == 4, refused
    assert (refused.json["verdict"], refused.json["queries"]["raw"]["verdict"]) == ("needs-drain", "same")
    tried = {name: query["rehearsal"] for name, query in refused.json["queries"].items()}
    assert (tried["raw"]["outcome"], tried["counts"]["outcome"]) == ("accepted", "failed")
    assert tried["counts"]["error"].startswith("[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE]")
    assert "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE" in refused.json["rehearsal"]["error"]

    crashed = plan(desk, "--app", script_of(desk, "v4.py", line="import no_such_package\n"))
    assert (crashed.status, crashed.json["outcome"], crashed.json["queries"]) == (1, "failed", {}), crashed
    assert crashed.json["rehearsal"]["error"] == "ModuleNotFoundError: No module named 'no_such_package'"
    assert "import no_such_package" in crashed.json["rehearsal"]["traceback"]

    after = everything(desk)
    new = {name for name in after if name not in before}
    assert {name: digest for name, digest in after.items() if name in before} == before
    assert {name.partition("/artifacts/")[0] for name in new} <= {"home/jobs", "v2.py", "v3.py", "v4.py"}, new
    assert of_rehearsals(desk) == {"run.json", "verdict.json", "plans"}
    assert shell("events", "jobs", "--json").json["events"] == events
    launches = [folder / "launches" / f"{folder.name}-a0001" for folder in rehearsals(desk)]
    assert [folder for folder in launches if living_processes(str(folder))] == []
    feed(desk, 2)
    wait_until(lambda: len(rows_in(desk.base / "out")) > 0, lambda: shell("status", "jobs").out, 60)
    assert shell("status", "jobs", "--json").json["attempt"] == 1
