"""What a script reads apart from its code, on real Spark: recorded at its start, and named where it has changed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.protocol.layout import script_reads_key
from airflow_streamstate.store.local import LocalStore
from support.drivers import CONF
from support.fed_values import feed
from support.launches import wait_until
from support.shell import Desk, desk_with, shell

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

QUICK = tuple(word for key, value in CONF.items() for word in ("--conf", f"{key}={value}"))
JOB = """
import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from config import settings

spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json(settings["source"])
sums = rows.groupBy("k").agg(F.sum("v").alias("s"))
told = settings["told"] + os.environ["GREETING"]


def keep(frame, batch_id):
    open(told, "a").write(f"{batch_id} {frame.count()}\\n")


sums.writeStream.queryName("sums").outputMode("update").foreachBatch(keep).start().awaitTermination()
"""
CONFIG = """
import json
from pathlib import Path

settings = json.loads((Path(__file__).parent / "conf" / "feeds.json").read_text())
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home that the environment names, and no driver left afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_", "PYTHONPATH")) as made:
        yield made


def configure(work: Path, told: str) -> None:
    (work / "conf").mkdir(exist_ok=True)
    (work / "conf" / "feeds.json").write_text(json.dumps({"source": str(work / "in"), "told": str(work / told)}))


@pytest.mark.named
def test_a_changed_file_is_named_while_it_runs_and_by_plan(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script, its modules and settings are pinned: nothing else shows why the next start behaves differently."""
    work = desk.base / "work"
    (work / "in").mkdir(parents=True)
    (work / "job.py").write_text(JOB)
    (work / "config.py").write_text(CONFIG)
    configure(work, "first.txt")
    feed(work, 1, 1, 2)
    monkeypatch.setenv("GREETING", "1")
    deploy = ("deploy", "orders", "--app", work / "job.py", "--master", "local[2]", *QUICK, "--timeout", 200)
    deploy = (*deploy, "--env", "GREETING=env://GREETING")  # a driver inherits no variable of the shell by itself
    assert shell(*deploy).status == 0
    record = LocalStore(str(desk.base / "home")).get(script_reads_key("orders", "d-0001", "sums", 1))
    assert record is not None
    known = json.loads(record.body)
    assert [(file["place"], file["name"]) for file in known["files"]] == [("script", "conf/feeds.json")]
    assert set(known["variables"]) == {"GREETING"}

    configure(work, "second.txt")
    named = re.compile(r"conf/feeds\.json changed at (?:\S+ )?\d\d:\d\d UTC since attempt 1")
    wait_until(lambda: bool(status()["changed_files"]), "the driver sees the changed file", 60)
    (sentence,) = status()["changed_files"]
    assert named.sub("", sentence) == "; the next start reads it"
    planned = shell("plan", "orders", "--app", work / "job.py", "--rehearse-batches", 0, "--json")
    assert planned.status == 0, planned
    assert " of d-0001" in [named.sub("", note) for note in planned.json["notes"]], planned.json["notes"]


def status() -> dict[str, object]:
    found: dict[str, object] = shell("status", "orders", "--json").json
    return found
