"""A file source whose files are elsewhere now, on real Spark: each row is counted once (``--move-source``)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from support.drivers import CONF
from support.fed_values import feed
from support.launches import wait_until
from support.shell import Desk, desk_with, done, shell

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

QUICK = tuple(word for key, value in CONF.items() for word in ("--conf", f"{key}={value}"))
JOB = """
import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 3).json(sys.argv[1])
totals = rows.groupBy("k").agg(F.sum("v").alias("s"))


def keep(frame, batch_id):
    for row in frame.collect():
        with open(sys.argv[2], "a") as file:
            file.write(json.dumps([batch_id, row.k, row.s]) + "\\n")


totals.writeStream.queryName("totals").outputMode("update").foreachBatch(keep).start().awaitTermination()
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home that the environment names, and no driver left afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_", "PYTHONPATH")) as made:
        monkeypatch.chdir(made.base)
        yield made


def total(desk: Desk) -> int:
    lines = (desk.base / "out.jsonl").read_text().splitlines()
    return int(json.loads(lines[-1])[2])


def copy_with_new_times(old: Path, new: Path) -> None:
    """As an object store copies: each file is as old as its copy."""
    shutil.copytree(old, new)
    for file in new.iterdir():
        os.utime(file)


@pytest.mark.named
def test_moved_files_are_read_once(desk: Desk) -> None:
    """With compactions of Spark's log, a file with a space in its name, copies with new times, and back again."""
    old, new = desk.base / "lake" / "in", desk.base / "other lake" / "in"
    old.mkdir(parents=True)
    (desk.base / "job.py").write_text(JOB)
    move = ("--move-source", f"{desk.base}/lake={desk.base}/other lake")
    app, out = ("--app", "job.py"), desk.base / "out.jsonl"
    for number in range(1, 34):
        feed(old.parent, number, 1)
    (old / "33.json").rename(old / "thirty three.json")
    deploy = ("deploy", "sums", *app, "--master", "local[2]", *QUICK, "--timeout", 200)
    assert shell(*deploy, "--", old, out).status == 0
    wait_until(lambda: out.exists() and total(desk) == 33, "everything is read", 120)
    assert shell("stop", "sums", "--timeout", 120).status == 0

    copy_with_new_times(old, new)
    feed(new.parent, 40, 100)
    upgrade = ("upgrade", "sums", *app, "--timeout", 300)
    planned = shell("plan", "sums", *app, *move, "--json", "--", new, out)
    assert "never would be" in planned.out, planned
    os.utime(new / "40.json")
    feed(old.parent, 41, 7)
    planned = shell("plan", "sums", *app, *move, "--json", "--", new, out)
    assert "not at the new one" in planned.out, planned
    shutil.move(old / "41.json", new / "41.json")
    os.utime(new / "41.json")
    plain = shell("plan", "sums", *app, "--json", "--", new, out)
    assert "source-replaced" in plain.out

    shutil.rmtree(old)
    upgraded = shell(*upgrade, *move, "--json", "--", new, out)
    assert upgraded.status == 0, upgraded
    wait_until(lambda: total(desk) == 140, "what is new is read", 60)
    feed(new.parent, 42, 1_000)
    os.utime(new / "42.json")
    wait_until(lambda: total(desk) == 1_140, "it continues", 60)
    SYSTEM_CLOCK.sleep(2.0)
    assert total(desk) == 1_140
    assert done("status", "sums")["state"] == "running"
    assert shell("audit", "sums").status == 0

    new.rename(old)
    back = shell("rollback", "sums", "--strategy", "forward", "--timeout", 300, "--json")
    assert back.status == 0, back
    feed(old.parent, 43, 10_000)
    os.utime(old / "43.json")
    wait_until(lambda: total(desk) == 11_140, "the old version continues at the old place", 90)
    assert shell("audit", "sums").status == 0
