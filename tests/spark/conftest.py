"""One Spark for all tests of this folder; each test gets its own session on it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.quick_jvm import OPTIONS, make_archive
from support.real_queries import PROVIDERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def shared_spark(tmp_path_factory: pytest.TempPathFactory, quick_jvm: None) -> Iterator[SparkSession]:
    """The one Spark of this test run: two cores, loopback, no UI, state snapshots every few batches."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pyspark's own imports
        from pyspark.sql import SparkSession
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # else Spark takes python3 from PATH
    builder = SparkSession.builder.master("local[2]").appName("streamstate-tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "OFF",
        "spark.driver.extraJavaOptions": OPTIONS,
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.streaming.stateStore.maintenanceInterval": "300ms",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    yield spark
    spark.stop()
    monkeypatch.undo()


@pytest.fixture(scope="session")
def quick_jvm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Drivers of this test run start fast."""
    make_archive(tmp_path_factory.mktemp("classes"))


@pytest.fixture(params=sorted(PROVIDERS))
def provider(request: pytest.FixtureRequest) -> str:
    """Both state store providers, one after the other."""
    return str(request.param)


@pytest.fixture
def spark(shared_spark: SparkSession) -> Iterator[SparkSession]:
    """A session with settings of its own; its queries are stopped at the end."""
    session = shared_spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    # Compactions of the file source's and the file sink's logs after three batches instead of ten: shorter tests.
    session.conf.set("spark.sql.streaming.fileSource.log.compactInterval", "3")
    session.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "3")
    yield session
    for query in session.streams.active:
        query.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a test's input, output and checkpoints are."""
    (tmp_path / "in").mkdir()
    return tmp_path
