"""What happens to a stream starts DAGs, on a real Airflow: without Spark on SQLite, and with Spark on PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from airflow_streamstate.controller.request.requests import deploy_request
from airflow_streamstate.controller.wait.condition import WaitCondition
from support import scripted_driver
from support.airflow_home import DAGS_FOLDER
from support.airflow_place import Place, spark_place
from support.airflow_site import AirflowSite, eventually
from support.airflow_streams import named_home
from support.drivers import CONF
from support.flights import JOBS, Flights, counts, counts_of
from support.postgres import Postgres
from support.progress import wait_read
from support.webhook_receiver import receiving

pytestmark = [pytest.mark.components, pytest.mark.named, pytest.mark.timeout(900)]
DAG_ID, STREAM = "on_stream_event", "flights"
RESTARTS = {"on_failure": "restart", "initial_backoff_seconds": 0}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / f"{DAG_ID}.py").write_text((DAGS_FOLDER / f"{DAG_ID}.py").read_text())
    tools = scripted_driver.install(tmp_path / "tools")
    for name, value in tools.items():
        monkeypatch.setenv(name, value)
    with named_home(tmp_path, monkeypatch) as home:
        environment = {**tools, "AIRFLOW_CONN_STREAMSTATE_DEFAULT": home.connection}
        with AirflowSite(tmp_path / "airflow", tmp_path / "dags", environment) as site:
            site.wait_for_dags(DAG_ID)
            site.unpause(DAG_ID)
            yield Place(site, home, tmp_path)


def test_a_driver_that_is_killed_starts_a_dag_though_no_task_asks(place: Place) -> None:
    """Its end and its restart, each once, in order, though the triggerer is killed and is away for a while."""
    client = place.home.hook().client
    script = scripted_driver.script(place.scripts, "runs")
    client.deploy(deploy_request(STREAM, script, master="local[2]", restart_policy=RESTARTS))
    client.wait(WaitCondition("healthy", STREAM, "d-0001"), timeout_seconds=180)
    eventually(lambda: _cursor(place), "the cursor of the watcher, in Airflow's database", 120)
    with _watch(place):
        _kill_driver(place, attempt=1)
        eventually(lambda: _told(place) == ["failed", "restarted"], "two events of the asset", 180)
        place.site.kill("triggerer")
        client.wait(WaitCondition("healthy", STREAM, "d-0001"), timeout_seconds=180)
        _kill_driver(place, attempt=2)
        eventually(lambda: _told(place) == ["failed", "restarted"] * 2, "two more", 180)
    eventually(lambda: _said(place).count("restarted") >= 2, "runs that say both restarts", 240)


@pytest.fixture
def real_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Place, Postgres]]:
    """The same with drivers of Spark, and an Airflow whose metadata is in PostgreSQL."""
    with spark_place(
        tmp_path, monkeypatch, {f"{DAG_ID}.py": (DAGS_FOLDER / f"{DAG_ID}.py").read_text()}, DAG_ID
    ) as found:
        yield found


def test_a_driver_of_spark_that_is_killed_is_told_restarted_and_starts_a_dag(
    real_place: tuple[Place, Postgres],
) -> None:
    """Killed with -9, and nobody asks: the alert, the restart, the event and the run of the downstream DAG come by
    themselves, and each flight is counted once. (Laws 5, 9)"""
    place, database = real_place
    client = place.home.hook().client
    flights = Flights(place.home.base / "flights", pieces=3)
    fed = flights.feed()
    request = deploy_request(
        STREAM, JOBS / "count_by_origin.py", arguments=tuple(flights.arguments), master="local[1]", conf=CONF,
        restart_policy=RESTARTS,
    )  # fmt: skip
    client.deploy(request)
    client.wait(WaitCondition("healthy", STREAM, "d-0001"), timeout_seconds=240)
    eventually(lambda: _rows(database, "asset_state_store") > 0, "the cursor of the watcher, in PostgreSQL", 120)

    def alerts() -> list[tuple[str, str]]:
        return [(one["rule"], one["kind"]) for one in receiver.got]

    with receiving() as receiver, _watch(place, "--webhook", receiver.url, "--alert-seconds", "2"):
        _kill_driver(place, attempt=1)
        fed += flights.feed()
        eventually(lambda: ("driver_dead", "raised") in alerts(), "the alert", 120)
        eventually(lambda: _told(place) == ["failed", "restarted"], "two events of the asset", 180)
        client.wait(WaitCondition("healthy", STREAM, "d-0001"), timeout_seconds=240)
        assert client.status(STREAM).attempt == 2
        eventually(lambda: ("driver_dead", "resolved") in alerts(), "the end of the alert", 120)
    assert alerts().count(("driver_dead", "raised")) == 1
    eventually(lambda: _said(place) == ["failed", "restarted"], "runs that say both", 240)
    assert _rows(database, "dag_run") == len(place.site.run_ids(DAG_ID))
    assert not (place.site.folder / "airflow.db").exists()
    fed += flights.feed()
    checkpoint = Path(place.home.home.checkpoints.uri, STREAM, "deployments", "d-0001", "checkpoints", "delays")
    wait_read(checkpoint, 3, lambda: client.logs(STREAM)[-3000:])
    drain = client.order("drain", STREAM)
    client.wait(WaitCondition.of(drain), timeout_seconds=240)
    assert counts_of(list(flights.written()), "origin") == counts(fed, "origin")


def _rows(database: Postgres, table: str) -> int:
    """The rows of a table of Airflow's."""
    with closing(database.connect()) as connection:
        ((found,),) = connection.run(f"select count(*) from {table}")  # noqa: S608 - our own name
    return int(found)


def _told(place: Place) -> list[str]:
    """The kinds of the asset's events, oldest first.

    What a killed triggerer may have handed over comes once more, under its id. The API fails while a run that an event
    has created was not started yet (Airflow 3.3.2).
    """
    found = place.site.call("GET", "/assets/events?limit=100")["asset_events"]
    said = [event["extra"]["payload"] for event in sorted(found, key=lambda event: event["id"])]
    return list({one["event_id"]: one["kind"] for one in said}.values())


def _said(place: Place) -> list[str]:
    """What the runs of the DAG have reported, all of which have succeeded: the kind of each event, in their order."""
    lines = [line for run_id in place.site.run_ids(DAG_ID) for line in place.site.xcom(DAG_ID, run_id, "say")]
    return [line.split()[2].rstrip(":") for line in lines]


def _cursor(place: Place) -> bool:
    """Whether the trigger has started: it keeps its cursor with the asset."""
    database = place.site.folder / "airflow.db"
    return database.exists() and b"streamstate_cursor" in database.read_bytes() + _wal(database)


def _wal(database: Path) -> bytes:
    log = database.with_name(f"{database.name}-wal")
    return log.read_bytes() if log.exists() else b""


def _kill_driver(place: Place, attempt: int) -> None:
    control = place.home.home.control(STREAM)
    claim = eventually(lambda: control.claim("d-0001", attempt), f"attempt {attempt}", 120)
    os.kill(claim.pid, signal.SIGKILL)


@contextmanager
def _watch(place: Place, *words: str) -> Iterator[None]:
    """``streamstate watch`` on the home, as a service runs it."""
    command = [
        sys.executable, "-c", "from airflow_streamstate.cli.main import main; main()",
        "watch", "--home", place.home.config.home_uri, *words,
    ]  # fmt: skip
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)
