"""Partitions of event time on real Spark, and a batch DAG that finds all rows of each in the sink when it runs."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path

import pytest

from airflow_streamstate.controller.request.requests import change_request, deploy_request
from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.protocol.terms.order import UpgradeTerms
from airflow_streamstate.protocol.upgrades import UpgradeMode
from support.airflow_place import Place, spark_place
from support.airflow_site import eventually
from support.drivers import CONF
from support.flights import JOBS, Flights, counts, counts_of
from support.watching import watching

pytestmark = [pytest.mark.components, pytest.mark.spark, pytest.mark.named, pytest.mark.timeout(1800)]
STREAM = "flights"
PIECES, PIECE_SECONDS, WAIT_SECONDS = 45, 5.0, 300.0
DAGS = """
from datetime import datetime, timedelta, timezone

from airflow.sdk import PartitionedAssetTimetable, dag, task

from airflow_streamstate.assets import partitions_asset
from airflow_streamstate.operators.complete import CompletePartitionsOperator

WEEKS = partitions_asset("streamstate_default", "flights")
BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)


@dag(schedule=timedelta(seconds=5), start_date=BEGAN, catchup=False, max_active_runs=1)
def complete_weeks():
    CompletePartitionsOperator(
        task_id="emit", stream_id="flights", asset=WEEKS, partition_seconds=7 * 86400, key_format="%Y-%m-%d",
        first_partition_at="2001-01-01T00:00:00Z",
    )


@dag(schedule=PartitionedAssetTimetable(assets=WEEKS), start_date=BEGAN, catchup=False, max_active_runs=1)
def weekly_report():
    @task
    def report(dag_run=None):
        import pyarrow.parquet
        from support.file_sink import files_in
        from pathlib import Path

        rows = [row for file in files_in(Path(SINK)) for row in pyarrow.parquet.read_table(file).to_pylist()]
        begins = datetime.fromisoformat(dag_run.partition_key)
        return sum(row["flights"] for row in rows if begins <= row["day"] < begins + timedelta(days=7))

    report()


complete_weeks()
weekly_report()
"""


def test_each_week_is_whole_in_the_sink_when_its_batch_dag_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through kill -9, a warm upgrade, and a drain that writes an open week in parts, while Airflow looks every five
    seconds. (Laws 1, 5)"""
    flights = Flights(tmp_path / "flights", PIECES)
    text = DAGS.replace("SINK", repr(str(flights.folder / "delays")))
    with spark_place(tmp_path, monkeypatch, {"weeks.py": text}, "complete_weeks", "weekly_report") as (place, _):
        fed = _lived(place, flights)
        weeks = _weeks(fed)
        complete = sorted(weeks)[:-1]  # the last one is open
        eventually(lambda: len(_reports(place)) == len(complete), f"a report on each of {complete}", WAIT_SECONDS)
        assert _reports(place) == [(week, weeks[week]) for week in complete]
        client = place.home.hook().client
        client.wait(WaitCondition.of(client.order("drain", STREAM)), timeout_seconds=WAIT_SECONDS)
        assert counts_of(list(flights.written()), "origin") == counts(fed, "origin")
        assert len(_reports(place)) == len(complete)


def _lived(place: Place, flights: Flights) -> list[str]:
    """The stream's life; gives all flights that it was fed."""
    client = place.home.hook().client
    first, second = (JOBS / name for name in ("count_by_origin.py", "count_by_origin_v2.py"))
    client.deploy(
        deploy_request(
            STREAM, first, arguments=tuple(flights.arguments), master="local[1]", conf=CONF,
            restart={"on_failure": "restart", "initial_backoff_seconds": 0},
        )
    )  # fmt: skip
    with _feeding(flights) as fed, watching(place.scripts / "watch", "--home", place.home.config.home_uri):
        client.wait(WaitCondition("healthy", STREAM, "d-0001"), timeout_seconds=WAIT_SECONDS)
        claim = place.home.home.control(STREAM).claim("d-0001", 1)
        assert claim is not None
        os.kill(claim.pid, signal.SIGKILL)
        eventually(lambda: client.status(STREAM).attempt == 2, "its restart", WAIT_SECONDS)
        client.wait(WaitCondition("healthy", STREAM, "d-0001"), timeout_seconds=WAIT_SECONDS)
        _upgrade(place, second, "restore")
        _upgrade(place, first, "drain")
        eventually(lambda: len(fed) == flights.total, "all flights to be fed", WAIT_SECONDS)
    return fed


def _upgrade(place: Place, script: Path, mode: UpgradeMode) -> None:
    upgrades = place.home.hook().client.upgrades
    request = UpgradeRequest(change_request(STREAM, script), UpgradeTerms(mode=mode, healthy_batches=1))
    view = upgrades.run(STREAM, upgrades.begin(request).upgrade_id, WAIT_SECONDS)
    assert view.outcome == "upgraded", view


@contextmanager
def _feeding(flights: Flights) -> Iterator[list[str]]:
    """Pieces of the flights arrive one after the other, from another thread; gives what has arrived so far."""
    fed: list[str] = []
    is_over = threading.Event()

    def feed() -> None:
        for _ in range(PIECES):
            fed.extend(flights.feed())
            if is_over.wait(PIECE_SECONDS):
                return

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield fed
    finally:
        is_over.set()
        thread.join()


def _weeks(lines: list[str]) -> Counter[str]:
    """Flights by week, named by its first day; weeks start on Thursdays, as 1970 did."""
    found: Counter[str] = Counter()
    for (day,), number in counts(lines).items():
        when = date.fromisoformat(day)
        found[(when - timedelta(days=(when.weekday() - 3) % 7)).isoformat()] += number
    return found


def _reports(place: Place) -> list[tuple[str, int]]:
    """Each successful run of the batch DAG: its week, and what it read."""
    found = place.site.call("GET", "/dags/weekly_report/dagRuns?limit=1000")["dag_runs"]
    return sorted(
        (str(run["partition_key"]), place.site.xcom("weekly_report", run["dag_run_id"], "report"))
        for run in found
        if run["state"] == "success"
    )
