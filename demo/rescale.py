"""The chapter in which a stream's state is rewritten: moved and rescaled, migrated, rescaled again."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.lineage import lineage_of
from demo import acts, compare
from demo.life import (
    JOBS,
    STREAM,
    UPGRADE_WAIT_SECONDS,
    WAIT_SECONDS,
    begun,
    finish,
    show,
)
from demo.page import MEASURED
from demo.place import ROOT, Place
from demo.timeline import lanes_of, moves_of

MIGRATIONS = ROOT / "dags" / "migrations"
SECONDS_BETWEEN_FILES_IN_REWRITE = 2.0
"""So that they do not run out before the handover: a stream that has nothing to read commits nothing."""
WAYS = (
    "its state moved to RocksDB and rescaled from 2 to 6 partitions, by streamstate rescale",
    "its state migrated by a function of three lines, by streamstate upgrade --migration",
    "its state rescaled from 6 to 3 partitions",
)
STORY = (
    "20,000 real flights, read as files arrive by an unmodified PySpark script. Its state starts in Spark's default"
    " store, in 2 partitions, which no restart of Spark changes. It is moved and rescaled while files arrive; then the"
    " script computes the mean delay in place of the sum, which Spark refuses on the old state: the state is migrated;"
    " then it is rescaled once more. Each time the state is rewritten on a fork first, compared, and rehearsed with"
    " real rows."
)


def live(out: Path, console: Console, *, checkpoints_on_s3: bool) -> bool:
    """Run the chapter below ``out``; True if every row in is a row out."""
    began = SYSTEM_CLOCK.monotonic_seconds()
    with begun(out, console, checkpoints_on_s3=checkpoints_on_s3) as (where, controller, feed):
        feed.start()
        arguments = ["--input", str(out / "incoming"), "--output", str(out / "delays"), "--max-files-per-trigger", "2"]
        console.rule("deployed while files arrive: 2 partitions, in Spark's default store")
        feed.let_arrive(0.15)
        acts.shell(
            console, "deploy", STREAM, "--app", str(JOBS / "count_by_origin.py"), "--master", "local[2]",
            *(word for key, value in where.conf.items() for word in ("--conf", f"{key}={value}")),
            "--timeout", WAIT_SECONDS, "--", *arguments,
        )  # fmt: skip
        acts.shell(console, "rescale", STREAM, "--suggest")

        console.rule("moved to RocksDB, in 6 partitions, while files arrive")
        feed.let_arrive(0.45, seconds_between_files=SECONDS_BETWEEN_FILES_IN_REWRITE)
        acts.shell(
            console, "rescale", STREAM, "--partitions", "6", "--state-store", "rocksdb",
            "--timeout", UPGRADE_WAIT_SECONDS,
        )  # fmt: skip

        console.rule("a mean in place of the sum: the state is migrated")
        feed.let_arrive(0.75, seconds_between_files=SECONDS_BETWEEN_FILES_IN_REWRITE)
        change = ("--app", str(JOBS / "mean_by_origin.py"), "--migration", str(MIGRATIONS / "sum_to_mean.py"))
        acts.shell(console, "plan", STREAM, *change)
        acts.shell(console, "upgrade", STREAM, *change, "--timeout", UPGRADE_WAIT_SECONDS)

        console.rule("rescaled again")
        feed.let_arrive(0.98, seconds_between_files=SECONDS_BETWEEN_FILES_IN_REWRITE)
        acts.shell(console, "rescale", STREAM, "--partitions", "3", "--timeout", UPGRADE_WAIT_SECONDS)

        finish(console, controller, feed, "--reason", "the end of the demo")
        return _judge(console, controller, out, where, began)


def _judge(console: Console, controller: Controller, out: Path, where: Place, began: float) -> bool:
    by_origin, rows = compare.batch(sorted((out / "incoming").glob("*.json")), ["origin"])
    found = compare.output(out / "delays", ["origin"])
    verdicts = [compare.verdict("by day and origin, all versions", by_origin, rows, found)]
    lanes = lanes_of(controller, STREAM, where)
    moves = moves_of(lanes, lineage_of(controller.home, STREAM), WAYS, where)
    spark = {"Spark": next((lane.spark_version for lane in lanes if lane.spark_version), "")}
    words = {"story": STORY, "about_downtime": MEASURED}
    return show(console, controller, where, out, lanes, moves, verdicts, began, spark, **words)
