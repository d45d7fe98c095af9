"""The chapter in which a stream goes from Spark 3.5 to 4.3 and back, and is rescaled on Sparks that cannot do it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow.parquet as parquet
from rich.console import Console

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.lineage import lineage_of
from airflow_streamstate.protocol.positions import Downtime
from demo import acts, compare
from demo.life import (
    STREAM,
    UPGRADE_WAIT_SECONDS,
    WAIT_SECONDS,
    begun,
    finish,
    show,
)
from demo.page import MEASURED
from demo.place import ROOT, Place
from demo.timeline import Move, lanes_of
from support.sparks import IN_FULL, spark_of

JOB = ROOT / "demo" / "jobs" / "three_queries.py"
LATE_MINUTES = 60
SECONDS_BETWEEN_FILES_IN_MOVES = 3.0
"""So that they do not run out before the handover: a stream that has nothing to read commits nothing."""
FIRST = "3.5"
MOVES = (("4.0", 0.4), ("4.1", 0.62), ("4.2", 0.72), ("4.3", 0.82), (FIRST, 0.92))
"""The line of Spark that the stream moves to, and how much of the input has arrived when it has."""
STORY = (
    "20,000 real flights, read as files arrive by an unmodified PySpark script with three queries: windows, a"
    " deduplication and a join of two streams. The stream starts on Spark 3.5 and moves with its state to 4.0, 4.1,"
    " 4.2, 4.3, and back to 3.5. On 3.5 and on 4.0 it is rescaled, too: neither can write state, and Spark 4.2 does it."
    " Each version is rehearsed on a fork of the state with real rows before the old one stops."
)


def live(out: Path, console: Console, *, checkpoints_on_s3: bool) -> bool:
    """Run the chapter below ``out``; True if every row in is a row out."""
    for line in sorted({FIRST, *(line for line, _ in MOVES)}):
        console.print(f"Spark {spark_of(line).version} is installed", highlight=False)
    began = SYSTEM_CLOCK.monotonic_seconds()
    with begun(out, console, checkpoints_on_s3=checkpoints_on_s3) as (where, controller, feed):
        feed.start()
        console.rule(f"three queries on Spark {FIRST}, deployed while files arrive")
        feed.let_arrive(0.1)
        settings = {"spark.sql.shuffle.partitions": "2", "spark.sql.ansi.enabled": "false", **where.conf}
        acts.shell(
            console, "deploy", STREAM, "--app", str(JOB), "--master", "local[2]", "--spark", _venv(FIRST),
            *(word for key, value in settings.items() for word in ("--conf", f"{key}={value}")),
            "--timeout", WAIT_SECONDS, "--", "--input", str(out / "incoming"), "--output", str(out),
        )  # fmt: skip
        console.rule(f"moved to RocksDB and rescaled on Spark {FIRST}, which cannot write state")
        feed.let_arrive(0.25, seconds_between_files=SECONDS_BETWEEN_FILES_IN_MOVES)
        _rescale(console, 4)
        for line, share in MOVES:
            console.rule(f"to Spark {line}, while files arrive")
            feed.let_arrive(share, seconds_between_files=SECONDS_BETWEEN_FILES_IN_MOVES)
            acts.shell(console, "upgrade", STREAM, "--spark", _venv(line), "--timeout", UPGRADE_WAIT_SECONDS)
            if line == "4.0":
                console.rule("rescaled on Spark 4.0, which cannot write state, either")
                feed.let_arrive(0.52, seconds_between_files=SECONDS_BETWEEN_FILES_IN_MOVES)
                _rescale(console, 2)

        finish(console, controller, feed, "--allow-state-loss")  # the keys of the deduplication
        return _judge(console, controller, out, where, began)


def _venv(line: str) -> str:
    return str(spark_of(line).python.parents[1])


def _rescale(console: Console, partitions: int) -> None:
    acts.shell(
        console, "rescale", STREAM, "--partitions", str(partitions), "--state-store", "rocksdb",
        "--rewriter-spark", _venv(IN_FULL), "--timeout", UPGRADE_WAIT_SECONDS,
    )  # fmt: skip


def _judge(console: Console, controller: Controller, out: Path, where: Place, began: float) -> bool:
    files = sorted((out / "incoming").glob("*.json"))
    by_origin, rows = compare.batch(files, ["origin"])
    verdicts = [
        compare.verdict("windows: by day and origin", by_origin, rows, compare.output(out / "delays", ["origin"])),
        _verdict("deduplication: each route once", rows, _routes(files), _written(out / "routes")),
        _verdict("join: flights within an hour of a late one", rows, _missed(files), _written(out / "missed")),
    ]
    lanes, lineage = lanes_of(controller, STREAM, where), lineage_of(controller.home, STREAM)
    sparks = {lane.spec.deployment_id: lane.spark_version for lane in lanes}
    moves = [
        Move(down.from_deployment_id, down.to_deployment_id, down.seconds, _way(sparks, down), None, down)
        for down in lineage.downtimes
        if down.seconds is not None and down.query_name == acts.QUERY
    ]
    of_deployments = {f"Spark of {deployment_id}": version for deployment_id, version in sparks.items()}
    words = {"story": STORY, "about_downtime": MEASURED}
    return show(console, controller, where, out, lanes, moves, verdicts, began, of_deployments, **words)


def _way(sparks: Mapping[str, str], down: Downtime) -> str:
    before, after = sparks[down.from_deployment_id], sparks[down.to_deployment_id]
    return f"rescaled on Spark {after}" if before == after else f"from Spark {before} to {after}"


# The rows of the deduplication and the join, computed plainly.

Rows = Counter[tuple[str, ...]]


def _flights(files: Iterable[Path]) -> list[tuple[datetime, str, str, int]]:
    rows = [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        (datetime.strptime(row["date"], "%Y/%m/%d %H:%M"), row["origin"], row["destination"], row["delay"])  # noqa: DTZ007
        for row in rows
    ]


def _routes(files: Iterable[Path]) -> Rows:
    return Counter({(origin, destination) for _, origin, destination, _ in _flights(files)})


def _missed(files: Iterable[Path]) -> Rows:
    flights = _flights(files)
    leaving: dict[str, list[tuple[datetime, str]]] = {}
    for at, origin, destination, _ in flights:
        leaving.setdefault(origin, []).append((at, destination))
    return Counter(
        (str(at), origin, via, destination)
        for at, origin, via, delay in flights
        if delay >= LATE_MINUTES
        for later, destination in leaving.get(via, ())
        if at <= later <= at + timedelta(hours=1)
    )


def _written(folder: Path) -> Rows:
    rows = [row for path in compare.committed_files(folder) for row in parquet.read_table(path).to_pylist()]
    return Counter(
        tuple(str(value.replace(tzinfo=None)) if isinstance(value, datetime) else value for value in row.values())
        for row in rows
    )


def _verdict(title: str, input_rows: int, expected: Rows, found: Rows) -> compare.Verdict:
    wrong = tuple(
        f"{'/'.join(key)}: {found[key]} rows; expected {expected[key]}"
        for key in sorted(set(expected) | set(found))
        if found[key] != expected[key]
    )
    return compare.Verdict(title, input_rows, found.total(), len(expected), wrong)
