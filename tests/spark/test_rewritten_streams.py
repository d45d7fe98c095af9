"""Streams whose state is rewritten, from the shell, on real Spark: rescaled, moved, migrated, and back."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.store.local import LocalStore
from support.drivers import CONF
from support.launches import wait_until
from support.shell import Desk, desk_with, shell
from support.sparks import spark_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

QUICK = tuple(word for key, value in CONF.items() for word in ("--conf", f"{key}={value}"))
SCRIPT = """
import json

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json("in")
sums = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def keep(frame, batch_id):
    with open("out.jsonl", "a") as file:
        for row in frame.collect():
            file.write(json.dumps({"batch": batch_id, **row.asDict()}) + "\\n")


sums.writeStream.queryName("sums").outputMode("update").foreachBatch(keep).start().awaitTermination()
"""
LARGEST = SCRIPT.replace('.alias("s"))', '.alias("s"), F.max("v").alias("most"))')
REORDERED = SCRIPT.replace(
    'F.count("*").alias("n"), F.sum("v").alias("s")', 'F.sum("v").alias("s"), F.max("v").alias("most")'
)
MIGRATION = """
from airflow_streamstate.migration import migrate


def without(key, state):
    return {"count": state["count"], "sum": state["sum"]}


@migrate(query="sums", operator="aggregate:k", inverse=without)
def add_most(key, state):
    return {**state, "max": state["sum"] if key["k"] == "k1" else None}
"""
VECTORIZED = """
from pyspark.sql import functions as F

from airflow_streamstate.migration import migrate


def without(rows):
    return rows.withColumn("state", rows.state.dropFields("max"))


@migrate(query="sums", operator="aggregate:k", inverse=without, vectorized=True)
def add_most(rows):
    return rows.withColumn("state", rows.state.withField("max", F.when(rows.key.k == "k1", rows.state["sum"])))
"""
UPGRADED = ("--healthy-batches", 1, "--json", "--timeout", 300)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home that the environment names, and no driver left afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_", "PYTHONPATH")) as made:
        yield made


class Fed:
    """Input of many keys, file by file, and what must come of it."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.n: dict[str, int] = {}
        self.s: dict[str, int] = {}
        self.files = 0

    def feed(self) -> None:
        """One more file."""
        rows = [{"k": f"k{number % 40}", "v": number * (self.files + 1)} for number in range(200)]
        hidden = self.work / f".{self.files}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(self.work / "in" / f"{self.files}.json")
        for row in rows:
            self.n[str(row["k"])] = self.n.get(str(row["k"]), 0) + 1
            self.s[str(row["k"])] = self.s.get(str(row["k"]), 0) + int(row["v"])
        self.files += 1

    def written(self) -> dict[str, dict[str, int]]:
        """The newest row of each key."""
        path = self.work / "out.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return {row["k"]: row for row in map(json.loads, lines)}

    def is_exact(self) -> bool:
        """Whether each key has each of its rows once."""
        found = self.written()
        return {k: row["s"] for k, row in found.items()} == self.s and all(
            row.get("n", self.n[k]) == self.n[k] for k, row in found.items()
        )

    def settle(self) -> None:
        """Feed a file, and wait until each row of all files is counted once."""
        self.feed()
        wait_until(self.is_exact, "every row, once", 60)
        batches = [json.loads(line)["batch"] for line in (self.work / "out.jsonl").read_text().splitlines()]
        assert len(batches) == len(self.n) * self.files, "no batch came twice"


def pinned(desk: Desk, deployment_id: str, setting: str) -> str:
    """A setting that the newest entry of the log pins."""
    folder = f"orders/deployments/{deployment_id}/checkpoints/sums/offsets"
    store = LocalStore(desk.home)
    newest = max(
        (info.key for info in store.list_objects(f"{folder}/")),
        key=lambda key: int(key.rpartition("/")[2] or 0) if key.rpartition("/")[2].isdigit() else -1,
    )
    stored = store.get(newest)
    assert stored is not None
    conf: dict[str, str] = json.loads(stored.body.decode().splitlines()[1])["conf"]
    return conf[setting]


@pytest.mark.named
@pytest.mark.parametrize(("spark", "migrations"), [("", MIGRATION), ("3.5", MIGRATION), ("4.0", VECTORIZED)])
def test_a_stream_is_rescaled_moved_and_migrated_and_goes_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, spark: str, migrations: str
) -> None:
    """On this Spark, and on older ones for which this one rewrites the state. HDFS-backed state moves to RocksDB in
    another number of partitions, back to the old number, through a migration and its inverse, and through one without
    a function: every row counts once in every version, each plan reports what became of the state, and what does not
    fit is refused before anything stops. (Law 5, Law 9, Law 15)"""
    work, script = desk.base / "work", desk.base / "job.py"
    (work / "in").mkdir(parents=True)
    script.write_text(SCRIPT)
    monkeypatch.chdir(work)
    fed = Fed(work)
    fed.feed()
    settings = ("--conf", "spark.sql.shuffle.partitions=3")
    own = ("--spark", spark_of(spark).python.parents[1], "--conf", "spark.sql.ansi.enabled=false") if spark else ()
    by = ("--rewriter-spark", sys.prefix) if spark else ()
    deploy = ("deploy", "orders", "--app", script, "--master", "local[2]", *QUICK, *settings, *own, "--timeout", 200)
    assert shell(*deploy).status == 0
    fed.settle()

    refused = shell("rescale", "orders", "--partitions", 5, *UPGRADED)
    assert (refused.status, refused.json["outcome"]) == (4, "refused")
    assert "Spark rewrites state into RocksDB alone" in refused.json["reason"]
    if spark:
        refused = shell("rescale", "orders", "--partitions", 5, "--state-store", "rocksdb", *UPGRADED)
        assert (refused.status, refused.json["outcome"]) == (4, "refused")
        assert f"Spark {spark_of(spark).version} cannot rewrite state" in refused.json["reason"]
    moved = shell("rescale", "orders", "--partitions", 5, "--state-store", "rocksdb", *by, *UPGRADED)
    assert (moved.status, moved.json["new_deployment_id"]) == (0, "d-0002"), moved.json
    fed.settle()
    assert pinned(desk, "d-0002", "spark.sql.shuffle.partitions") == "5"
    assert pinned(desk, "d-0002", "spark.sql.streaming.stateStore.providerClass").endswith("RocksDBStateStoreProvider")
    back = shell("rollback", "orders", "--strategy", "forward", *UPGRADED)
    assert (back.status, back.json["way"]) == (0, "forward"), back.json
    fed.settle()
    assert pinned(desk, "d-0003", "spark.sql.shuffle.partitions") == "3"

    migration = desk.base / "migration.py"
    migration.write_text(migrations)
    script.write_text(LARGEST)
    without = shell("plan", "orders", "--app", script, "--json")
    assert (without.status, without.json["verdict"]) == (4, "needs-drain")
    planned = shell("plan", "orders", "--app", script, "--migration", migration, *by, "--json")
    assert (planned.status, planned.json["verdict"]) == (0, "state-compatible"), planned.json
    (table,) = planned.json["queries"]["sums"]["rehearsal"]["rewritten"]
    assert (table["rows"], table["changed"], table["dropped"], table["is_migrated"]) == (40, 40, 0, True)
    assert json.loads(table["samples"][0])["after"].keys() == {"count", "sum", "max"}
    migrated = shell("upgrade", "orders", "--app", script, "--migration", migration, *by, *UPGRADED)
    assert migrated.status == 0, migrated.json
    before = fed.s["k1"]
    fed.settle()
    assert fed.written()["k1"]["most"] == before, "what the migration said was its largest value"
    assert shell("rollback", "orders", "--strategy", "forward", *UPGRADED).status == 0
    fed.settle()

    script.write_text(REORDERED)
    assert shell("upgrade", "orders", "--app", script, "--auto-migrate", *by, *UPGRADED).status == 0
    fed.settle()
    assert fed.written()["k3"]["most"] == max(number for number in range(200) if number % 40 == 3) * fed.files

    audit = shell("audit", "orders", "--json").json
    assert audit["ok"] is True
    told = [one["rewritten"] for one in audit["deployments"]]
    assert told[0] == ""
    assert told[1:3] == ["rescaled to 5 partitions, moved to rocksdb", "rescaled to 3 partitions"]
    assert told[3].startswith("migrated by migration.py, sha256 ")
    assert told[4].startswith("migrated back by migration.py, sha256 ")
    assert told[5] == "migrated without a function"
