"""A real broker for all tests of this folder; each test has topics of its own on it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.kafka_broker import KafkaBroker, kafka_broker
from support.kafka_topics import Topics, spark_jars
from support.quick_jvm import OPTIONS, make_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    """The one broker of this run."""
    with kafka_broker() as running:
        yield running


@pytest.fixture(scope="session")
def quick_jvm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Drivers of this test run start fast."""
    make_archive(tmp_path_factory.mktemp("classes"))


@pytest.fixture
def topics(broker: KafkaBroker, tmp_path: Path) -> Iterator[Topics]:
    """The broker, up, with names of topics that no other test has."""
    broker.start()
    with Topics(broker.servers, tmp_path.name) as mine:
        yield mine


@pytest.fixture(scope="session")
def kafka_spark(quick_jvm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark with the connector, for all tests that need no driver of their own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pyspark's own imports
        from pyspark.sql import SparkSession
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("streamstate-kafka")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "OFF",
        "spark.driver.extraJavaOptions": OPTIONS,
        "spark.jars": spark_jars(),
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    yield spark
    spark.stop()
    monkeypatch.undo()
