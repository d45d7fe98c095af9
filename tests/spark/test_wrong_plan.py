"""Law 17 on real Spark: a start by another rule than that of the state is refused, and leaves the state as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.drivers import CONF
from support.fed_values import feed
from support.flights import JOBS, Flights
from support.shell import Desk, desk_with, shell

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

QUICK = tuple(word for key, value in CONF.items() for word in ("--conf", f"{key}={value}"))
JOB = """
import json
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

rule = json.loads(Path("rule.json").read_text())["rule"]
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json("in")
totals = rows.groupBy("k").agg(getattr(F, rule)("v").alias("s"))


def keep(frame, batch_id):
    for row in frame.collect():
        with open("out.jsonl", "a") as file:
            file.write(json.dumps([batch_id, row.k, row.s]) + "\\n")


totals.writeStream.queryName("totals").outputMode("update").foreachBatch(keep).start().awaitTermination()
"""


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home that the environment names, and no driver left afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_", "PYTHONPATH")) as made:
        monkeypatch.chdir(made.base)
        yield made


@pytest.fixture
def desk(empty: Desk) -> Desk:
    """A stream that sums, and was stopped."""
    (empty.base / "job.py").write_text(JOB)
    (empty.base / "in").mkdir(exist_ok=True)
    by_rule(empty, "sum")
    feed(empty.base, 1, 1, 2)
    assert shell("deploy", "sums", "--app", "job.py", "--master", "local[2]", *QUICK, "--timeout", 200).status == 0
    assert shell("stop", "sums", "--timeout", 120).status == 0
    return empty


def by_rule(desk: Desk, rule: str) -> None:
    (desk.base / "rule.json").write_text(json.dumps({"rule": rule}))


def checkpoints(home: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(home.rglob("checkpoints/**/*")) if path.is_file()}


def last_total(desk: Desk) -> int:
    return int(json.loads((desk.base / "out.jsonl").read_text().splitlines()[-1])[2])


def test_a_resume_whose_file_has_changed_is_refused_and_names_it(desk: Desk) -> None:
    """Law 17: ``max`` would continue from a sum, and Spark takes it. Put back, the sum continues."""
    before, total = checkpoints(desk.base), last_total(desk)
    by_rule(desk, "max")
    feed(desk.base, 2, 5)
    refused = shell("resume", "sums", "--timeout", 200, "--verbose")
    assert refused.status == 4
    assert "Sum(v) became Max(v)" in refused.err
    assert "rule.json changed at" in refused.err
    assert checkpoints(desk.base) == before
    by_rule(desk, "sum")
    assert shell("resume", "sums", "--timeout", 200).status == 0
    assert shell("stop", "sums", "--timeout", 120).status == 0
    assert last_total(desk) == total + 5


@pytest.mark.named
def test_a_deploy_by_another_rule_is_refused_and_the_version_before_comes_back(desk: Desk) -> None:
    """Law 17: by ``rollback``, exactly where it had stopped."""
    total = last_total(desk)
    (desk.base / "job_max.py").write_text(JOB.replace("getattr(F, rule)", "F.max"))
    feed(desk.base, 2, 5)
    deploy = ("deploy", "sums", "--app", "job_max.py", "--master", "local[2]", *QUICK, "--timeout", 200)
    refused = shell(*deploy)
    assert refused.status == 4
    assert "streamstate rollback sums" in refused.err
    assert last_total(desk) == total
    assert shell("rollback", "sums", "--timeout", 300).status == 0
    assert shell("stop", "sums", "--timeout", 120).status == 0
    assert last_total(desk) == total + 5
    assert shell("audit", "sums").status == 0


@pytest.mark.named
@pytest.mark.parametrize(
    "job", ["count_by_origin", "count_by_origin_v2", "count_by_route", "count_for_customer", "mean_by_origin"]
)
def test_no_example_job_is_refused_when_it_starts_again(empty: Desk, monkeypatch: pytest.MonkeyPatch, job: str) -> None:
    """Law 17: six times each, after a stop: by ``resume``, by ``deploy`` as it is, with other cores, at another pace,
    and from another folder."""
    is_for_customer = job == "count_for_customer"
    flights = Flights(empty.base / "flights", pieces=9)
    flights.feed(2)
    elsewhere = empty.base / "elsewhere" / f"{job}.py"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes((JOBS / f"{job}.py").read_bytes())
    if is_for_customer:
        own: tuple[str, ...] = ("--conf", "spark.hadoop.customer.token=second", "--env", "CUSTOMER_API_KEY=third",
               "--allow-literal-secrets")  # fmt: skip
        arguments = (*flights.arguments, "--password", "first")
    else:
        own, arguments = (), (*flights.arguments,)

    def deploy(app: Path = JOBS / f"{job}.py", master: str = "local[2]", *more: str) -> tuple[object, ...]:
        options = ("--app", app, "--master", master, *QUICK, *own, *more, "--timeout", 300)
        return ("deploy", "flights", *options, "--", *arguments)

    resume = ("resume", "flights", "--timeout", 300)
    other_pace = deploy(JOBS / f"{job}.py", "local[2]", "--conf", "spark.sql.streaming.pollingDelay=80ms")
    for again in (deploy(), deploy(), resume, deploy(master="local[1]"), other_pace, resume, deploy(elsewhere)):
        answer = shell(*again)
        assert answer.status == 0, f"{answer}\n{shell('logs', 'flights').out[-3000:]}"
        flights.feed()
        assert shell("stop", "flights", "--timeout", 200).status == 0
