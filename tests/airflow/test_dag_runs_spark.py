"""The example DAGs by ``dag.test()`` with real Spark on real data: rows in are rows out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.controller.request.requests import deploy_request
from airflow_streamstate.controller.wait.condition import WaitCondition
from support.airflow_streams import NamedHome
from support.dag_results import returned, states
from support.flights import JOBS, Flights, counts, counts_of
from support.launches import wait_until
from support.progress import files_read

pytestmark = [
    pytest.mark.named,
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:Using .httpx. with"),  # Airflow's in-process API server, not ours
]


def wait_read(home: NamedHome, deployment_id: str, files: int) -> None:
    """Until that deployment and its predecessors have read this many files in committed batches."""
    checkpoint = Path(home.home.checkpoints.uri, "flights/deployments", deployment_id, "checkpoints/delays")
    wait_until(lambda: files_read(checkpoint) == files, f"{files} files read", 120)


def test_a_stream_is_upgraded_with_its_state_and_then_to_another_key(
    spark: NamedHome, run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``keep`` by schedule, then ``drain`` by hand with a Spark connection; each flight is counted once (Laws 5, 9)."""
    flights = Flights(tmp_path / "flights", pieces=5)
    monkeypatch.setenv("FLIGHTS_FOLDER", str(flights.folder))
    hook = spark.hook()

    by_origin = flights.feed(2)
    first = deploy_request(
        "flights", JOBS / "count_by_origin.py", arguments=tuple(flights.arguments), master="local[2]"
    )
    hook.client.deploy(first)
    hook.client.wait(WaitCondition("healthy", "flights", "d-0001"), timeout_seconds=120)
    wait_read(spark, "d-0001", 2)

    kept = run_dag("scheduled_upgrade")
    assert returned(kept, "deploy")["start"]["mode"] == "restore"
    by_origin += flights.feed()
    wait_read(spark, "d-0002", 3)

    monkeypatch.setenv("AIRFLOW_CONN_SPARK_HERE", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    conf = {"spark.sql.parquet.compression.codec": "gzip"}
    params = {"arguments": flights.arguments, "healthy_deadline_seconds": 180, "spark_conn_id": "spark_here"}
    drained = run_dag("upgrade_stream", {**params, "conf": conf})
    assert states(drained)["deploy"] == "success"
    assert returned(drained, "drained")["state_rows_left"] == 0
    assert returned(drained, "deploy")["start"]["mode"] == "seed"
    spec = spark.home.control("flights").spec("d-0003")
    assert (spec.version.spark_conn_id, spec.version.master) == ("spark_here", "")
    assert not list((flights.folder / "delays").glob("*.gz.parquet"))
    by_route = flights.feed(2)
    # All that the last version holds is written by a last drain.
    hook.client.wait(WaitCondition("healthy", "flights", "d-0003"), timeout_seconds=120)
    wait_read(spark, "d-0003", 5)
    last = hook.client.order("drain", "flights")
    watch = WaitCondition("drained", "flights", "d-0003", command_id=last.command_id)
    assert hook.client.wait(watch, timeout_seconds=120).need_result()["state_rows_left"] == 0

    assert list((flights.folder / "delays").glob("*.gz.parquet"))  # the conf went with the connection
    rows = list(flights.written())
    origin_rows = [row for row in rows if row["version"] in ("count_by_origin", "count_by_origin_v2")]
    route_rows = [row for row in rows if row["version"] == "count_by_route"]
    assert {row["version"] for row in rows} == {"count_by_origin", "count_by_origin_v2", "count_by_route"}
    assert counts_of(origin_rows, "origin") == counts(by_origin, "origin")
    assert counts_of(route_rows, "origin", "destination") == counts(by_route, "origin", "destination")
