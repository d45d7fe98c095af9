"""Sources and sinks as datasets, by OpenLineage's naming convention."""

from __future__ import annotations

import pytest

from airflow_streamstate.plan.datasets import DatasetName, dataset_at, datasets_of_sink, datasets_of_source
from airflow_streamstate.plan.model import PlannedSink, PlannedSource

KAFKA = {"kafka.bootstrap.servers": "b:9092, a:9092"}


@pytest.mark.parametrize(
    ("uri", "namespace", "name"),
    [
        ("/srv/flights/in", "file", "/srv/flights/in"),
        ("file:///srv/flights/in/", "file", "/srv/flights/in"),
        ("s3a://bucket/flights/in", "s3://bucket", "flights/in"),
        ("s3://key:secret@bucket/flights", "s3://bucket", "flights"),
        ("s3://bucket", "s3://bucket", "/"),
        ("gs://bucket/a", "gs://bucket", "a"),
        ("abfss://box@account.dfs.core.windows.net/a", "abfss://box@account.dfs.core.windows.net", "a"),
        ("hdfs://namenode:8020/flights", "hdfs://namenode:8020", "/flights"),
    ],
)
def test_a_folder_is_named_by_its_store_and_its_path(uri: str, namespace: str, name: str) -> None:
    """Without credentials, however the script spells it."""
    assert dataset_at(uri) == DatasetName(namespace, name)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (PlannedSource("json", "file", "file /in"), [("file", "/in")]),
        (PlannedSource("parquet", "file", "file s3://bucket/a folder"), [("s3://bucket", "a folder")]),
        (
            PlannedSource("kafka", "kafka", "kafka subscribe x,y", {**KAFKA, "subscribe": "y, x"}),
            [("kafka://a:9092", "x"), ("kafka://a:9092", "y")],
        ),
        (PlannedSource("kafka", "kafka", "", {**KAFKA, "assign": '{"t": [0, 1]}'}), [("kafka://a:9092", "t")]),
        (PlannedSource("kafka", "kafka", "", {**KAFKA, "subscribepattern": "a.*"}), []),
        (PlannedSource("kafka", "kafka", "", {"subscribe": "x"}), []),
        (PlannedSource("delta", "table", "table delta s3://bucket/t"), [("s3://bucket", "t")]),
        (PlannedSource("iceberg", "table", "table lake.flights.delays"), [("lake", "flights.delays")]),
        (PlannedSource("delta", "table", "table flights.delays"), [("spark_catalog", "flights.delays")]),
        (PlannedSource("rate", "rate", "rate 10"), []),
        (PlannedSource("socket", "socket", "socket h:9999"), []),
        (PlannedSource("own", "", ""), []),
    ],
)
def test_a_source_is_what_it_reads(source: PlannedSource, found: list[tuple[str, str]]) -> None:
    """A topic at its servers, a folder, a table; nothing for rows that are made up, or that a pattern names."""
    assert [(each.namespace, each.name) for each in datasets_of_source(source)] == found


@pytest.mark.parametrize(
    ("sink", "found"),
    [
        (PlannedSink("file:parquet", "parquet", "/out"), [("file", "/out")]),
        (PlannedSink("kafka", "kafka", "delays", options=KAFKA), [("kafka://a:9092", "delays")]),
        (PlannedSink("delta", "delta", "s3a://bucket/t"), [("s3://bucket", "t")]),
        (PlannedSink("table:lake.db.t", "iceberg", "lake.db.t"), [("lake", "db.t")]),
        (PlannedSink("table:t", "", "t"), [("spark_catalog", "default.t")]),
        (PlannedSink("foreachBatch", "foreachbatch", ""), []),
        (PlannedSink("memory", "memory", "counts"), []),
        (PlannedSink("noop", "noop"), []),
    ],
)
def test_a_sink_is_what_it_writes(sink: PlannedSink, found: list[tuple[str, str]]) -> None:
    """Nothing where the script's own function writes."""
    assert [(each.namespace, each.name) for each in datasets_of_sink(sink)] == found
