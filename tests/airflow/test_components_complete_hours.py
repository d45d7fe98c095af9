"""The DAGs of complete hours on a real Airflow: each hour is one partition and one run, whatever the stream does."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import textwrap
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from airflow_streamstate.assets import partitions_asset
from support.airflow_home import DAGS_FOLDER
from support.airflow_site import AirflowSite, eventually
from support.airflow_streams import NamedHome, named_home
from support.event_hours import HOUR, commits_through, succeeds
from support.scripted_stream import ScriptedAttempt

pytestmark = [pytest.mark.components, pytest.mark.named, pytest.mark.timeout(1200)]
RUN_SECONDS = 180.0
NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
FALLING_DAG = """
    from airflow.sdk import dag
    from airflow_streamstate.assets import partitions_asset
    from airflow_streamstate.operators.complete import CompletePartitionsOperator

    class Falls(CompletePartitionsOperator):
        \"\"\"Its first try has asked for the events, and fails before Airflow records them.\"\"\"

        def execute(self, context):
            result = super().execute(context)
            if context["ti"].try_number == 1:
                raise RuntimeError("killed after it had asked")
            return result

    @dag(schedule=None, max_active_runs=1)
    def falling():
        orders = partitions_asset("streamstate_default", "orders")
        Falls(task_id="emit", stream_id="orders", asset=orders, retries=1, retry_delay=1)

    falling()
"""


class Airflow:
    """A site, and what it recorded of the asset."""

    def __init__(self, site: AirflowSite, home: NamedHome) -> None:
        self.site = site
        self.home = home

    def look(self, dag_id: str = "complete_hours") -> str:
        """One run of the DAG that emits; the state of its task."""
        run_id = self.site.trigger(dag_id)
        self.site.need_success(dag_id, run_id, RUN_SECONDS)
        return self.site.task_states(dag_id, run_id)["emit"]

    def emitted(self, stream_id: str = "flights") -> list[str]:
        """The partition key of every recorded event of the stream's asset, in their order."""
        uri = partitions_asset("streamstate_default", stream_id).uri
        # Not by REST: while a run that an event has caused is queued, 3.3's route of asset events answers 500.
        query = "select e.partition_key from asset_event e join asset a on a.id = e.asset_id where a.uri = ? order by 1"
        with contextlib.closing(sqlite3.connect(self.site.folder / "airflow.db", timeout=30)) as database:
            return [str(key) for (key,) in database.execute(query, (uri,))]

    def reported(self) -> dict[str, int]:
        """How often each hour was reported on, by the runs of the batch DAG that have succeeded."""
        runs = self.site.call("GET", "/dags/hourly_report/dagRuns?limit=1000")["dag_runs"]
        done = [run["dag_run_id"] for run in runs if run["state"] == "success"]
        return dict(Counter(hour for run_id in done for hour in self.site.xcom("hourly_report", run_id, "report")))


@pytest.fixture
def airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Airflow]:
    dags_folder = tmp_path / "dags"
    dags_folder.mkdir()
    for name in ("complete_hours.py", "hourly_report.py"):
        shutil.copy(DAGS_FOLDER / name, dags_folder)
    with named_home(tmp_path, monkeypatch) as home:
        falling = textwrap.dedent(FALLING_DAG).replace("{home!r}", repr(home.config.home_uri))
        (dags_folder / "falling.py").write_text(falling)
        environment = {
            "AIRFLOW_CONN_STREAMSTATE_DEFAULT": home.connection,
            "STREAMSTATE_HOME": home.config.home_uri,
            "COMPLETE_HOURS_SCHEDULE": "@yearly",
            "COMPLETE_HOURS_FIRST": "2026-03-01T12:00:00Z",
        }
        with AirflowSite(tmp_path / "airflow", dags_folder, environment) as site:
            yield Airflow(site, home)


def hours(first: int, last: int) -> list[str]:
    return [f"2026-03-01T{hour:02}:00:00" for hour in range(first, last + 1)]


def test_each_hour_is_one_partition_and_one_run_through_restart_upgrade_and_drain(airflow: Airflow) -> None:
    """And through a task that is cleared, and one that ends between its asking and Airflow's recording."""
    site, stream = airflow.site, airflow.home.stream()
    site.wait_for_dags("complete_hours", "hourly_report", "falling")
    first = stream.deploy().claim().started()
    commits_through(first, 0, NOON - HOUR)
    for dag_id in ("complete_hours", "hourly_report", "falling"):
        site.unpause(dag_id)
    assert airflow.look() == "skipped"  # nothing since the first partition
    commits_through(first, 1, NOON + 2 * HOUR + timedelta(minutes=59))
    assert airflow.look() == "success"
    assert airflow.emitted() == hours(12, 13)

    first.failed("killed")
    restarted = stream.resume().claim().started()
    assert airflow.look() == "skipped"
    commits_through(restarted, 2, NOON + 3 * HOUR)
    assert airflow.look() == "success"
    assert airflow.emitted() == hours(12, 14)

    upgraded = succeeds(stream, restarted, "restore", restarted.stopped())
    assert airflow.look() == "skipped"  # its driver has not started
    upgraded.claim().started()
    commits_through(upgraded, 3, NOON + 4 * HOUR)
    assert airflow.look() == "success"
    assert airflow.emitted() == hours(12, 15)

    upgraded.drained()  # with the hour from 16:00 open, whose rows so far it wrote
    assert airflow.look() == "skipped"
    seeded = succeeds(stream, upgraded, "seed", "d-0002-drained-000001").claim().started()
    commits_through(seeded, 4, NOON + 4 * HOUR + timedelta(minutes=10))
    assert airflow.look() == "skipped"
    commits_through(seeded, 5, NOON + 6 * HOUR)
    run_id = site.trigger("complete_hours")
    site.need_success("complete_hours", run_id, RUN_SECONDS)
    assert airflow.emitted() == hours(12, 17)

    cleared = {"dry_run": False, "only_failed": False, "reset_dag_runs": True, "dag_run_id": run_id}
    site.call("POST", "/dags/complete_hours/clearTaskInstances", cleared)
    eventually(lambda: site.task_states("complete_hours", run_id)["emit"] == "skipped", "the cleared task", RUN_SECONDS)
    assert airflow.emitted() == hours(12, 17)
    once = dict.fromkeys(hours(12, 17), 1)
    eventually(lambda: airflow.reported() == once, f"one report on each hour, not {airflow.reported()}", RUN_SECONDS)


def test_a_try_that_ends_before_its_events_are_recorded_is_made_good_by_the_next(airflow: Airflow) -> None:
    """Exactly once: nothing was recorded of the first try."""
    orders: ScriptedAttempt = airflow.home.stream("orders").deploy().claim().started()
    commits_through(orders, 0, NOON + HOUR)
    airflow.site.wait_for_dags("falling")
    airflow.site.unpause("falling")
    assert airflow.look("falling") == "success"
    assert airflow.emitted("orders") == hours(12, 12)
    assert airflow.look("falling") == "skipped"
