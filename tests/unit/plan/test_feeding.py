"""Which query's sink is another one's source."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.plan.datasets import in_stages, is_fed_by
from airflow_streamstate.plan.model import PlannedSink, PlannedSource, QueryPlan
from support.built_plans import plan


def sink(kind: str, target: str) -> PlannedSink:
    return PlannedSink(kind, kind.partition(":")[2] or kind, target, "", "nothing")


FILES = sink("file:json", "/data/out")


@pytest.mark.parametrize(
    ("source", "written", "expected"),
    [
        (PlannedSource("json", "file", "file /data/out"), FILES, True),
        (PlannedSource("json", "file", "file /data/out"), sink("file:json", "file:///data/out/"), True),
        (PlannedSource("json", "file", "file /data/out/k=a"), FILES, True),
        (PlannedSource("json", "file", "file /data"), FILES, True),
        (PlannedSource("json", "file", "file /data/*/"), FILES, True),
        (PlannedSource("json", "file", "file /data/o*"), FILES, True),
        (PlannedSource("json", "file", "file /other/*"), FILES, False),
        (PlannedSource("json", "file", "file /data/outer"), FILES, False),
        (PlannedSource("json", "file", "file /data/in"), FILES, False),
        (PlannedSource("json", "file", "file s3://b/out"), sink("file:json", "s3a://b/out"), True),
        (PlannedSource("delta", "table", "table delta /data/out"), sink("delta", "/data/out"), True),
        (PlannedSource("delta", "table", "table spark_catalog.db.landed"), sink("table:landed", "Landed"), True),
        (PlannedSource("delta", "table", "table db.landed"), sink("table:other", "db.other"), False),
        (PlannedSource("kafka", "kafka", "kafka subscribe a,b"), sink("kafka", "b"), True),
        (PlannedSource("kafka", "kafka", "kafka subscribe a,b"), sink("kafka", "c"), False),
        (PlannedSource("kafka", "kafka", "kafka subscribe a,b"), sink("kafka", ""), False),
        (PlannedSource("kafka", "kafka", "kafka subscribepattern flights-.*"), sink("kafka", "flights-late"), True),
        (PlannedSource("kafka", "kafka", "kafka subscribepattern flights-.*"), sink("kafka", "late"), False),
        (PlannedSource("kafka", "kafka", 'kafka assign {"a":[0]}'), sink("kafka", "a"), True),
        (PlannedSource("kafka", "kafka", "kafka subscribe out"), FILES, False),
        (PlannedSource("json", "file", "file /data/out"), sink("kafka", "out"), False),
        (PlannedSource("rate", "rate", "rate"), FILES, False),
        (PlannedSource("json", "file", "file /data/out"), sink("foreachBatch", ""), False),
    ],
)
def test_a_source_reads_what_a_sink_writes(source: PlannedSource, written: PlannedSink, *, expected: bool) -> None:
    """The same place in other words, one above or below it, a pattern that takes it in; a topic of the list."""
    assert is_fed_by(source, written) is expected


def query(reads: str, writes: str) -> QueryPlan:
    source = replace(plan().sources[0], format="json", adapter="file", identity=f"file {reads}")
    return plan(sources=(source,), sink=sink("file:json", writes))


def test_queries_come_in_the_order_of_their_data() -> None:
    """Each after all that feed it; independent ones side by side."""
    plans = {
        "daily": query("/hourly", "/daily"),
        "alarms": query("/clean", "/alarms"),
        "clean": query("/in", "/clean"),
        "hourly": query("/clean", "/hourly"),
        "apart": query("/else", "/apart"),
    }
    assert in_stages(plans) == [["apart", "clean"], ["alarms", "hourly"], ["daily"]]


def test_a_ring_is_one_stage_and_what_feeds_itself_is_like_any_other() -> None:
    """There is no first one of them."""
    ring = {"a": query("/b", "/a"), "b": query("/a", "/b"), "after": query("/a", "/c"), "first": query("/in", "/b")}
    assert in_stages(ring) == [["first"], ["a", "b"], ["after"]]
    assert in_stages({"self": query("/a", "/a")}) == [["self"]]
    assert in_stages({}) == []
