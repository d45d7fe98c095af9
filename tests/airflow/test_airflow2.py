"""The DAG of docs/start/airflow2.md in a real Airflow 2, with real Spark: the shell from a ``BashOperator``."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.airflow_home import DAGS_FOLDER, REPOSITORY

AIRFLOW = "2.11.0"
RELEASED_ON = "2025-06-01"
DAG = REPOSITORY / "tests" / "support" / "airflow2_dag.py"
SHELL = str(Path(sys.executable).parent / "streamstate")


@pytest.fixture
def airflow(tmp_path: Path) -> str:
    """Airflow 2 in its own environment, with what existed when it was released."""
    place = tmp_path / "airflow2"
    uv = [sys.executable, "-m", "uv"]
    environment = {**os.environ, "VIRTUAL_ENV": str(place)}
    subprocess.run([*uv, "venv", "--quiet", "-p", "3.11", str(place)], check=True)
    wanted = ["pip", "install", "--quiet", f"apache-airflow=={AIRFLOW}", "--exclude-newer", RELEASED_ON]
    subprocess.run([*uv, *wanted], check=True, env=environment)
    return str(place / "bin" / "airflow")


@pytest.mark.spark
@pytest.mark.named
def test_a_bash_operator_of_airflow_2_upgrades_a_stream(tmp_path: Path, airflow: str) -> None:
    """Planned, upgraded and audited by one run; the tasks have the exit statuses of the shell."""
    flights, dags = tmp_path / "in", tmp_path / "dags"
    flights.mkdir()
    dags.mkdir()
    shutil.copy(DAG, dags)
    with gzip.open(REPOSITORY / "data" / "flights-20k.ndjson.gz", "rt") as file:
        lines = file.readlines()[:2000]
    (flights / "f1.json").write_text("".join(lines))
    environment = {**os.environ, "STREAMSTATE_HOME": str(tmp_path / "home"), "STREAMSTATE": SHELL}
    environment |= {"AIRFLOW_HOME": str(tmp_path / "af"), "AIRFLOW__CORE__DAGS_FOLDER": str(dags)}
    environment |= {"AIRFLOW__CORE__LOAD_EXAMPLES": "False", "PATH": f"{Path(airflow).parent}:{os.environ['PATH']}"}

    def run(*words: str) -> str:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    job = DAGS_FOLDER / "jobs" / "count_by_origin.py"
    run(SHELL, "deploy", "flights", "--app", str(job), "--master", "local[2]", "--", "--input", str(flights),
        "--output", str(tmp_path / "out"))  # fmt: skip
    try:
        run(airflow, "db", "migrate")
        conf = {"stream_id": "flights", "application": str(job.with_name("count_by_origin_v2.py"))}
        run(airflow, "dags", "test", "upgrade_by_shell", "--conf", json.dumps(conf))
        status = json.loads(run(SHELL, "--json", "status", "flights"))
        assert (status["deployment_id"], status["state"]) == ("d-0002", "running")
    finally:
        subprocess.run([SHELL, "kill", "flights"], env=environment, check=False, capture_output=True)
