"""A script in its own folder, on real Spark: its modules, its paths, and its rows in a rehearsal."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.drivers import CONF
from support.fed_values import feed
from support.shell import Desk, desk_with, shell

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

QUICK = tuple(word for key, value in CONF.items() for word in ("--conf", f"{key}={value}"))
FILES = {
    "helpers.py": """
from rules.factors import FACTOR


def scaled(value):
    import in_egg, in_folder.deep, in_wheel, in_zip  # where the rows are: in a Python worker

    return value * FACTOR * in_folder.deep.ONE * in_zip.ONE * in_egg.ONE * in_wheel.ONE
""",
    "rules/__init__.py": "",
    "rules/factors.py": "FACTOR = 2\n",
    "plugins/euro.py": "NAME = 'euro'\n",
    "settings.json": '{"currency": "euro"}',
    "job.py": """
import importlib
import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from helpers import scaled

HERE = Path(__file__).parent
sys.path.append(str(HERE / "plugins"))
settings = json.loads((HERE / "settings.json").read_text())
plugin = importlib.import_module(settings["currency"])
with open("started.txt", "a") as file:
    file.write(f"{__file__} {Path.cwd()} {plugin.NAME}\\n")
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json("in")
values = rows.withColumn("v", F.udf(scaled, "long")("v"))
sums = values.groupBy("k").agg(F.sum("v").alias("s"))


def keep(frame, batch_id):
    for row in frame.collect():
        with open("out.jsonl", "a") as file:
            file.write(json.dumps([batch_id, row.k, row.s]) + "\\n")


sums.writeStream.queryName("sums").outputMode("update").foreachBatch(keep).start().awaitTermination()
""",
}
BROKEN = FILES["job.py"].replace('F.udf(scaled, "long")', 'F.udf(lambda v: 100 // (v - 7), "long")')


def of_py_files(lib: Path, one: int) -> str:
    """Code from elsewhere, in each of its forms."""
    text = f"ONE = {one}\n"
    (lib / "folder" / "in_folder").mkdir(parents=True, exist_ok=True)
    (lib / "folder" / "in_folder" / "deep.py").write_text(text)
    paths = [lib / "folder", lib / "a.zip", lib / "b-1-py3.egg", lib / "c-1-py3-none-any.whl"]
    for path, module in zip(paths[1:], ("in_zip", "in_egg", "in_wheel"), strict=True):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{module}/__init__.py", text)
    return ",".join(map(str, paths))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home that the environment names, and no driver left afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_", "PYTHONPATH")) as made:
        yield made


@pytest.mark.named
def test_a_script_runs_as_it_lies_and_is_rehearsed_with_its_rows(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules next to it are pinned, those it loads on the way and ``--py-files`` too, and its paths mean the same
    from wherever a verb is called (Law 15); a version that fails on one row of the last batch is refused before
    anything stops (Law 14)."""
    jobs, work, elsewhere = desk.base / "jobs", desk.base / "work", desk.base / "elsewhere"
    py_files = of_py_files(desk.base / "lib", 1)
    for name, text in FILES.items():
        (jobs / name).parent.mkdir(parents=True, exist_ok=True)
        (jobs / name).write_text(text)
    (work / "in").mkdir(parents=True)
    elsewhere.mkdir()
    feed(work, 1, 1, 2)
    monkeypatch.chdir(work)
    deploy = ("deploy", "orders", "--app", "../jobs/job.py", "--py-files", py_files, "--master", "local[2]", *QUICK,
              "--timeout", 200)  # fmt: skip
    assert shell(*deploy).status == 0
    assert shell("stop", "orders", "--timeout", 120).status == 0

    (jobs / "rules" / "factors.py").write_text("FACTOR = 1000\n")
    (jobs / "plugins" / "euro.py").write_text("NAME = 'changed'\n")
    of_py_files(desk.base / "lib", 1000)
    feed(work, 2, 3)
    monkeypatch.chdir(elsewhere)
    assert shell("resume", "orders", "--timeout", 200).status == 0
    feed(work, 3, 4, 7)
    assert shell("status", "orders", "--json").json["state"] == "running"
    while [1, "a", 12] not in written(work) or len(written(work)) < 3:
        assert shell("status", "orders", "--json").json["state"] == "running"
    assert written(work) == [[0, "a", 6], [1, "a", 12], [2, "a", 34]]
    said = (work / "started.txt").read_text().splitlines()
    assert said == [f"{jobs.resolve() / 'job.py'} {work.resolve()} euro"] * 2

    (jobs / "job.py").write_text(BROKEN)
    refused = shell("plan", "orders", "--app", jobs / "job.py", "--json")
    assert refused.status == 4
    found = refused.json["queries"]["sums"]["rehearsal"]
    assert found["outcome"] == "failed"
    assert found["error"].startswith("batch 2 of d-0001, run again with its rows, fails: ZeroDivisionError: ")
    assert any("settings.json in its own folder" in note for note in refused.json["notes"]), refused.json["notes"]
    passed = shell("plan", "orders", "--app", jobs / "job.py", "--rehearse-batches", 0, "--json")
    assert passed.json["queries"]["sums"]["rehearsal"]["outcome"] == "accepted"
    assert shell("status", "orders", "--json").json["state"] == "running"
    assert written(work) == [[0, "a", 6], [1, "a", 12], [2, "a", 34]], "a rehearsal calls no foreachBatch"

    work.rename(desk.base / "moved")
    assert shell("stop", "orders", "--timeout", 120).status == 0
    gone = shell("resume", "orders", "--timeout", 200, "--json")
    assert gone.status != 0
    assert "is not on this machine" in gone.error["message"]
    assert "--working-folder" in gone.error["next_step"]

    (desk.base / "moved").rename(work)
    (wheel,) = (desk.base / "home").rglob("artifacts/*/c-1-py3-none-any.whl.zip")
    wheel.write_bytes(wheel.read_bytes() + b"altered")
    altered = shell("resume", "orders", "--timeout", 200, "--json")
    assert (altered.status, altered.error["type"]) == (1, "DataError")
    assert altered.error["context"]["key"].endswith(wheel.name)


def written(work: Path) -> list[list[object]]:
    """What the script wrote, batch by batch."""
    out = work / "out.jsonl"
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
