"""One stream from its first deployment to its last drain, and the comparison of every row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from airflow_streamstate.cli.upgrade import phases
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.lineage import lineage_of
from airflow_streamstate.protocol.manifest import SnapshotManifest
from demo import acts, compare, plain
from demo.feed import Feed
from demo.page import page
from demo.place import ROOT, Place, place
from demo.timeline import Lane, Move, lanes_of, moves_of

DAGS = ROOT / "dags"
JOBS = DAGS / "jobs"
STREAM = "flights"
RECORDING = ROOT / "data" / "flights-20k.ndjson.gz"
ROWS_PER_FILE = 100
SECONDS_BETWEEN_FILES = 0.5
SECONDS_BETWEEN_FILES_IN_UPGRADE = 1.0
"""So that they do not run out before the handover: a stream that has nothing to read commits nothing."""
SECONDS_BETWEEN_LAST_FILES = 0.2
UPGRADES = ("its state handed over warm, by streamstate upgrade", "drained before, by the DAG")
WITHOUT_US = "plain spark-submit, stopped and submitted again"
DAG_SECONDS = 420.0
WAIT_SECONDS = "240"
UPGRADE_WAIT_SECONDS = "600"


def live(out: Path, console: Console, *, checkpoints_on_s3: bool) -> bool:
    """Run the whole life below ``out``; True if every row in is a row out."""
    began = SYSTEM_CLOCK.monotonic_seconds()
    with begun(out, console, checkpoints_on_s3=checkpoints_on_s3) as (where, controller, feed):
        console.rule("a real Airflow on loopback")
        with airflow_site(out, where) as airflow:
            feed.start()
            _acts(console, controller, airflow, feed, out, where.conf)
            console.rule("the first upgrade once more, without us, on a copy of the input")
            return _judge(console, controller, out, where, began, _without_us(out))


@contextmanager
def begun(out: Path, console: Console, *, checkpoints_on_s3: bool) -> Iterator[tuple[Place, Controller, Feed]]:
    """The home of a chapter, its controller, and its input, which is to be started; none of them is left."""
    with ExitStack() as running:
        where = running.enter_context(place(out, checkpoints_on_s3=checkpoints_on_s3))
        console.print(f"the home: {where.words}", highlight=False)
        controller = Controller.local(Home(where.config), clock=SYSTEM_CLOCK, requested_by="the demo")
        running.callback(end_drivers, controller)
        feed = feed_into(out, SECONDS_BETWEEN_FILES)
        running.callback(feed.stop)
        yield where, controller, feed


def finish(console: Console, controller: Controller, feed: Feed, *drain: str) -> None:
    """Let the rest arrive, and drain."""
    console.rule("the rest arrives; a drain writes the last windows")
    feed.let_arrive(1.0, seconds_between_files=SECONDS_BETWEEN_LAST_FILES)
    feed.wait_arrived()
    deployment_id = controller.status(STREAM).deployment_id
    acts.wait_until_read(controller, STREAM, deployment_id, feed.written)
    acts.shell(console, "drain", STREAM, *drain, "--timeout", WAIT_SECONDS)
    acts.shell(console, "audit", STREAM)


def show(
    console: Console,
    controller: Controller,
    where: Place,
    out: Path,
    lanes: list[Lane],
    moves: list[Move],
    verdicts: list[compare.Verdict],
    began: float,
    facts: Mapping[str, str],
    **words: str,
) -> bool:
    """Print and draw what came of a chapter; True if every row in is a row out.

    Args:
        began: the monotonic seconds at its beginning.
        facts: of this chapter, for the page.
        words: of the page, where it has others than for the whole life.
    """
    console.rule("every row compared")
    print_verdicts(console, verdicts, moves)
    lineage = lineage_of(controller.home, STREAM)
    seconds = SYSTEM_CLOCK.monotonic_seconds() - began
    dropped = sum(lane.dropped_rows for lane in lanes)
    told = {
        "flights": f"20,000 of early 2001, in files of {ROWS_PER_FILE}",
        **facts,
        "home": where.words,
        **{one.deployment_id: f"state {one.rewritten}" for one in lineage.deployments if one.rewritten},
        "rows dropped as late, by Spark's count": str(dropped),
        "audit": audit_words(lineage.to_json()),
        "whole chapter": f"{seconds:.0f} s",
    }
    target = out / "index.html"
    text = page(STREAM, lanes, moves, verdicts, told, where.commit_note, **words)
    target.write_text(text, encoding="utf-8")
    console.print(f"\nthe picture: [bold]{target}[/]   ({seconds:.0f} s)", highlight=False)
    return all(verdict.exact for verdict in verdicts) and not dropped and lineage.is_whole


def feed_into(folder: Path, seconds_between_files: float) -> Feed:
    return Feed(
        RECORDING,
        folder / "incoming",
        SYSTEM_CLOCK,
        rows_per_file=ROWS_PER_FILE,
        seconds_between_files=seconds_between_files,
    )


def _without_us(out: Path) -> Move:
    old, new = JOBS / "count_by_origin.py", JOBS / "count_by_origin_v2.py"
    feed = feed_into(out / "plain", SECONDS_BETWEEN_FILES_IN_UPGRADE)
    seconds = plain.downtime_seconds(feed, old, new, out / "plain")
    return Move(old.stem, new.stem, seconds, WITHOUT_US)


def _acts(console: Console, controller: Controller, airflow: Any, feed: Feed, out: Path, conf: dict[str, str]) -> None:
    arguments = ["--input", str(out / "incoming"), "--output", str(out / "delays"), "--max-files-per-trigger", "2"]
    console.rule("first version, deployed while files arrive")
    feed.let_arrive(0.3)
    acts.shell(
        console, "deploy", STREAM, "--app", str(JOBS / "count_by_origin.py"), "--master", "local[2]",
        *(word for key, value in conf.items() for word in ("--conf", f"{key}={value}")),
        "--timeout", WAIT_SECONDS, "--", *arguments,
    )  # fmt: skip
    acts.shell(console, "snapshot", "create", STREAM, "--timeout", WAIT_SECONDS)

    console.rule("upgraded with its state, by one verb, while files arrive")
    feed.let_arrive(0.8, seconds_between_files=SECONDS_BETWEEN_FILES_IN_UPGRADE)
    acts.shell(
        console, "upgrade", STREAM, "--app", str(JOBS / "count_by_origin_v2.py"), "--reason", "one more column",
        "--timeout", UPGRADE_WAIT_SECONDS,
    )  # fmt: skip
    acts.shell(console, "status", STREAM)

    console.rule("drained, and upgraded to another grouping key, by the DAG")
    feed.let_arrive(0.9, seconds_between_files=SECONDS_BETWEEN_LAST_FILES)
    wanted = {"stream_id": STREAM, "arguments": arguments, "master": "local[2]", "conf": conf}
    version = {"application": str(JOBS / "count_by_route.py"), "state": "drain", "reason": "another grouping key"}
    acts.run_dag(console, airflow, "upgrade_stream", {**wanted, **version}, DAG_SECONDS)

    console.rule("the rest arrives; a last drain writes the last windows")
    feed.let_arrive(1.0)
    feed.wait_arrived()
    deployment_id = controller.status(STREAM).deployment_id
    acts.wait_until_read(controller, STREAM, deployment_id, feed.written)
    acts.shell(console, "drain", STREAM, "--reason", "the end of the demo", "--timeout", WAIT_SECONDS)
    acts.shell(console, "list")
    acts.shell(console, "snapshot", "list", STREAM)
    acts.shell(console, "audit", STREAM)


def _judge(console: Console, controller: Controller, out: Path, where: Place, began: float, without_us: Move) -> bool:
    drained = [m for m in controller.snapshots.all(STREAM) if m.snapshot_kind == "drained"]
    first, last = drained[0], drained[-1]
    verdicts = _verdicts(controller, out, first, last)
    lanes = lanes_of(controller, STREAM, where)
    moves = [*moves_of(lanes, lineage_of(controller.home, STREAM), UPGRADES, where), without_us]
    facts = {
        "Spark": next((lane.spark_version for lane in lanes if lane.spark_version), ""),
        "snapshots": ", ".join(m.snapshot_id for m in controller.snapshots.all(STREAM)),
    }
    return show(console, controller, where, out, lanes, moves, verdicts, began, facts)


def audit_words(lineage: Mapping[str, object]) -> str:
    if lineage["ok"]:
        return "every deployment started exactly where its predecessor ended, by the logs alone"
    return f"broken: {lineage['gaps']} {lineage['overlaps']}"


def _verdicts(
    controller: Controller, out: Path, first: SnapshotManifest, last: SnapshotManifest
) -> list[compare.Verdict]:
    before = acts.files_read(controller, first)
    everything = acts.files_read(controller, last)
    after = [path for path in everything if path not in set(before)]
    verdicts = []
    by_origin, rows_before = compare.batch(before, ["origin"])
    found_origin = compare.output(out / "delays", ["origin"], without=["destination"])
    verdicts.append(compare.verdict("by origin: versions 1 and 2", by_origin, rows_before, found_origin))
    by_route, rows_after = compare.batch(after, ["origin", "destination"])
    found_route = compare.output(out / "delays", ["origin", "destination"])
    verdicts.append(compare.verdict("by route: version 3", by_route, rows_after, found_route))
    per_day, rows_all = compare.batch(sorted((out / "incoming").glob("*.json")), [])
    found = compare.by_day(compare.output(out / "delays", []))
    verdicts.append(compare.verdict("per day, all versions added up", per_day, rows_all, found))
    return verdicts


def print_verdicts(console: Console, verdicts: list[compare.Verdict], moves: list[Move]) -> None:
    table = Table(title="rows in, rows out")
    for column in ("compared", "flights in", "rows out", "keys", "verdict"):
        table.add_column(column, justify="right" if column in ("flights in", "rows out", "keys") else "left")
    for one in verdicts:
        word = "[green]exact[/]" if one.exact else f"[red]{len(one.wrong)} keys differ[/]"
        table.add_row(one.title, f"{one.input_rows:,}", f"{one.output_rows:,}", f"{one.keys:,}", word)
    console.print(table)
    for one in verdicts:
        for line in one.wrong[:10]:
            console.print(f"  {one.title}: {line}", markup=False)
    table = Table(title="downtime of each move")
    for column in ("from", "to", "how", "downtime s", "no query ran s"):
        table.add_column(column, justify="right" if column.endswith(" s") else "left")
    for move in moves:
        not_running = "" if move.not_running_seconds is None else f"{move.not_running_seconds:.1f}"
        table.add_row(move.before, move.after, move.how, f"{move.downtime_seconds:.1f}", not_running)
    console.print(table)
    for move in moves:
        if move.downtime is not None:
            console.print(phases(move.downtime))


@contextmanager
def airflow_site(out: Path, where: Place) -> Iterator[Any]:
    """A real Airflow on loopback, with the DAGs of ``dags/`` and the home as its connection."""
    from support.airflow_site import AirflowSite

    config = where.config
    named = {
        "home_uri": config.home_uri,
        "checkpoints_uri": config.checkpoints_uri,
        "work_dir": config.work_dir,
    }
    connection = json.dumps({"conn_type": "streamstate", "extra": {k: v for k, v in named.items() if v}})
    environment = {"AIRFLOW_CONN_STREAMSTATE_DEFAULT": connection, "FLIGHTS_FOLDER": str(out)}
    with AirflowSite(out / "airflow", DAGS, environment) as site:
        site.wait_for_dags("upgrade_stream")
        yield site


def end_drivers(controller: Controller) -> None:
    # Nothing that was started stays behind.
    if not controller.home.is_there():
        return  # ended before the first deploy
    for status in controller.statuses():
        if status.state in ("launching", "running", "draining", "stopping"):
            controller.kill(status.stream_id, grace_seconds=5)
