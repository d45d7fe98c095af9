"""Recorded batches run again on real Spark: the one that failed, on a fork, into files and no sink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from support.drivers import CONF
from support.fed_values import feed
from support.launches import wait_until
from support.shell import Desk, desk_with, shell
from support.typed import Typed

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

QUICK = tuple(word for key, value in CONF.items() for word in ("--conf", f"{key}={value}"))
SCRIPT = """
import json
import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

with open("said.txt", "a") as file:
    file.write(f"{os.environ.get('STREAMSTATE_REHEARSAL')} {os.environ.get('STREAMSTATE_REPLAY')}\\n")
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json("in")
values = rows.withColumn("v", F.udf(lambda v: 100 // (v - 7), "long")("v"))
sums = values.groupBy("k").agg(F.sum("v").alias("s"))


def keep(frame, batch_id):
    for row in frame.collect():
        with open("out.jsonl", "a") as file:
            file.write(json.dumps([batch_id, row.k, row.s]) + "\\n")


sums.writeStream.queryName("sums").outputMode("update").foreachBatch(keep).start().awaitTermination()
"""
MENDED = SCRIPT.replace("100 // (v - 7)", "100 // (v - 7) if v != 7 else 1000")


LINE = next(number for number, line in enumerate(SCRIPT.splitlines(), 1) if "v - 7" in line)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home that the environment names, and no driver left afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_", "PYTHONPATH")) as made:
        yield made


def rows_of(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows in the files of a batch."""
    files = [Path(batch["folder"]) / name for name in batch["files"]]
    return [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]


def checkpoint_of(desk: Desk) -> dict[str, bytes]:
    """The checkpoint of the query, file by file."""
    folder = desk.home / "orders" / "deployments" / "d-0001" / "checkpoints"
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.named
def test_the_batch_that_failed_runs_again_beside_the_stream(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails as it did, with the script's own error; the fixed script runs it on the state of before it, and its
    rows are in files; the checkpoint and the output of the stream are as before. (Law 4, Law 14)"""
    work = desk.base / "work"
    (work / "in").mkdir(parents=True)
    script = desk.base / "job.py"
    script.write_text(SCRIPT)
    for number, values in enumerate(((2, 3), (5,), (6, 7))):  # -20 - 25, then - 50, then - 100 and the row that fails
        feed(work, number, *values)
    monkeypatch.chdir(work)
    deploy = ("deploy", "orders", "--app", script, "--master", "local[2]", *QUICK, "--timeout", 200)
    assert shell(*deploy).status == 0
    shell("logs", "orders", "--follow")
    assert shell("status", "orders", "--json").json["state"] == "failed"
    kept, written = checkpoint_of(desk), (work / "out.jsonl").read_text()

    failed = shell("replay", "orders", "--out", desk.base / "as-it-was", "--json")
    assert failed.status == 1
    (batch,) = failed.json["queries"]["sums"]["batches"]
    assert (batch["batch_id"], batch["error"]) == (2, "ZeroDivisionError: integer division or modulo by zero")
    assert "job.py" in batch["traceback"]
    assert batch["failed_at"] == f"job.py, line {LINE}, in <lambda>: v=7", "the row that failed"
    assert [path.name for path in (desk.base / "as-it-was").rglob("*")] == ["sums"], "nothing half written is left"
    assert (work / "said.txt").read_text().splitlines() == ["None None", "1 1"]

    with Typed("replay", "orders", "--pdb", "--out", str(desk.base / "debugged")) as typed:
        said = typed.answer("(Pdb) ", "p v * 2")
        assert "ZeroDivisionError" in said
        assert "14" in typed.answer("(Pdb) ", "q")
        rest = typed.rest()
        assert "values where it failed:" in rest
        assert batch["failed_at"] in rest
    assert typed.status == 1

    script.write_text(MENDED)
    called = shell("replay", "orders", "--app", script, "--call-foreach-batch", "--out", desk.base / "called", "--json")
    assert called.status == 0, called.json["queries"]
    assert (work / "out.jsonl").read_text() == written + '[2, "a", 805]\n', "once, in the new version"
    (work / "out.jsonl").write_text(written)
    mended = shell("replay", "orders", "--app", script, "--last", 2, "--out", desk.base / "mended", "--json")
    assert mended.status == 0, mended.json["queries"]
    first, second = mended.json["queries"]["sums"]["batches"]
    assert [batch["error"][:18] for batch in mended.json["old"]["queries"]["sums"]["batches"]] == [
        "",
        "ZeroDivisionError:",
    ]
    assert (first["comparison"]["same"], first["comparison"]["only_new"]) == (1, 0)
    assert mended.json["queries"]["sums"]["state"] == [], "the recorded version failed in the last batch"
    assert second["comparison"] is None
    assert (first["batch_id"], first["rows_in"], first["rows_out"]) == (1, 1, 1)
    assert (second["batch_id"], second["rows_in"], second["rows_out"]) == (2, 2, 1)
    assert rows_of(first) == [{"k": "a", "s": -95}]
    assert rows_of(second) == [{"k": "a", "s": 805}]
    assert (checkpoint_of(desk), (work / "out.jsonl").read_text()) == (kept, written)

    script.write_text(MENDED.replace("100 //", "200 //"))
    words = ("--batch", 1, "--fail-on-changed-rows", "--out", desk.base / "other", "--json")
    other = shell("replay", "orders", "--app", script, *words)
    assert other.status == 1, other
    found = other.json["queries"]["sums"]["batches"][0]["comparison"]
    assert (found["same"], found["changed"], found["only_old"], found["only_new"]) == (0, 1, 0, 0)
    assert (found["keys"], found["samples_old"], found["samples_new"]) == (["k"], [], [])
    assert found["samples_changed"] == ['{"key":{"k":"a"},"old":{"s":-95},"new":{"s":-145}}']
    (state,) = other.json["queries"]["sums"]["state"]
    assert (state["table"], state["comparison"]["changed"]) == ("0-stateStoreSave/rows", 1)
    assert state["comparison"]["samples_changed"] == [
        '{"key":{"key":{"k":"a"}},"old":{"value":{"sum":-95}},"new":{"value":{"sum":-145}}}'
    ]

    (work / "in" / "2.json").unlink()
    gone = shell("replay", "orders", "--out", desk.base / "gone", "--json")
    assert gone.status == 4
    error = gone.json["queries"]["sums"]["error"]
    assert error.startswith("the source does not have the rows of this batch any more")
    assert "2.json" in error


def test_the_report_of_a_plan_has_recorded_batches_in_both_versions(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that fails on a row of an older batch is refused with that batch, though its rehearsal, with the last
    one, went well; the rows that change before it are shown. The stream runs on, its sink has what it had. (Law 4,
    Law 14)"""
    work, script = desk.base / "work", desk.base / "job.py"
    (work / "in").mkdir(parents=True)
    script.write_text(SCRIPT)
    for number, values in enumerate(((2, 3), (5,), (6, 9))):  # -20 - 25, then - 50, then - 100 + 50
        feed(work, number, *values)
    monkeypatch.chdir(work)
    deploy = ("deploy", "orders", "--app", script, "--master", "local[2]", *QUICK, "--timeout", 200)
    assert shell(*deploy).status == 0
    wait_until(lambda: (work / "out.jsonl").read_text().count("\n") == 3, "the last batch", 60)
    written = (work / "out.jsonl").read_text()

    script.write_text(SCRIPT.replace("100 // (v - 7)", "200 // (v - 5)"))  # -67 - 100, then the row that fails
    planned = shell("plan", "orders", "--app", script, "--replay", 3, "--json")
    assert (planned.status, planned.json["outcome"], planned.json["verdict"]) == (4, "refused", "same"), planned
    assert planned.json["rehearsal"]["ok"] is True
    error = "batch 1 fails: ZeroDivisionError: integer division or modulo by zero"
    assert planned.json["reason"] == f"in the replay of query sums {error}"
    new, old = (
        found["queries"]["sums"]["batches"] for found in (planned.json["replay"], planned.json["replay"]["old"])
    )
    assert ([batch["batch_id"] for batch in new], [batch["batch_id"] for batch in old]) == ([0, 1], [0, 1, 2])
    assert new[0]["comparison"]["samples_changed"] == ['{"key":{"k":"a"},"old":{"s":-45},"new":{"s":-167}}']
    assert shell("status", "orders", "--json").json["state"] == "running"
    assert (work / "out.jsonl").read_text() == written
