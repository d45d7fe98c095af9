"""A migrated Airflow, homes on a real S3 server, and drivers with and without Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import airflow_home, scripted_driver
from support.airflow_streams import NamedHome, named_home
from support.s3_server import BUCKET, options_for, s3_server

RunDag = Callable[..., Any]


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The endpoint of an S3 server on loopback."""
    with s3_server() as endpoint_url:
        yield endpoint_url


@pytest.fixture
def on_s3(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NamedHome]:
    """A home on S3 of this test alone, its checkpoints on local disk."""
    home_uri = f"s3://{BUCKET}/{tmp_path.name}"
    with named_home(tmp_path, monkeypatch, home_uri, options_for(s3)) as home:
        yield home


@pytest.fixture
def scripted(on_s3: NamedHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NamedHome:
    """The same, with drivers that need no Spark."""
    for name, value in scripted_driver.install(tmp_path / "tools").items():
        monkeypatch.setenv(name, value)
    return on_s3


@pytest.fixture
def spark(on_s3: NamedHome, monkeypatch: pytest.MonkeyPatch) -> NamedHome:
    """The same, with real drivers on loopback."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return on_s3


@pytest.fixture
def run_dag(monkeypatch: pytest.MonkeyPatch) -> RunDag:
    """Runs one of the example DAGs in this process, by ``dag.test()``."""
    airflow_home.database()

    def run(dag_id: str, conf: dict[str, Any] | None = None, **more: Any) -> Any:
        from support.airflow_names import DagBag

        bag = DagBag(dag_folder=str(airflow_home.DAGS_FOLDER / f"{dag_id}.py"))
        assert bag.import_errors == {}
        return bag.dags[dag_id].test(run_conf=conf or {}, **more)

    return run
