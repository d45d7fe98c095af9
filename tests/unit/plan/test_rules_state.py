"""``airflow_streamstate.plan.rules_state``: partitions, stores, settings, and the version of Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.checkpoint.guards import HDFS_BACKED_PROVIDER
from airflow_streamstate.plan.comparison import compare
from airflow_streamstate.plan.model import Expression, PlanNode
from airflow_streamstate.plan.rules_state import PROVIDER, TIME_ZONE
from support.built_plans import TOPIC, operator, plan, without_state


@pytest.mark.parametrize(
    ("what", "code", "verdict"),
    [
        ({"partitions": 10}, "partitions-changed", "state-compatible"),
        ({"provider": "x.Other"}, "provider-changed", "state-compatible"),
        ({"encoding": "avro"}, "state-encoding-changed", "state-compatible"),
        ({"changelog": True}, "changelog-changed", "state-compatible"),
        ({"checkpoint_format": 2}, "checkpoint-format-changed", "needs-drain"),
    ],
)
def test_what_a_checkpoint_keeps_needs_no_drain(what: dict[str, object], code: str, verdict: str) -> None:
    """It stays as it began, whatever the session asks for; the state checkpoint format is asked for by the session."""
    old = plan()
    found = compare(old, replace(old, state=replace(old.state, **what)))
    assert (found.verdict, found.codes) == (verdict, (code,))
    assert compare(without_state(), without_state(state=replace(old.state, **what))).verdict == "same"


@pytest.mark.parametrize(
    ("setting", "was", "now", "code"),
    [
        ("spark.sql.streaming.multipleWatermarkPolicy", "min", "max", "setting-pinned"),
        ("spark.sql.ansi.enabled", "true", "false", "setting-harmless"),
        ("spark.sql.ansi.enabled", "false", "true", "setting-changed"),
        ("spark.sql.caseSensitive", "false", "true", "setting-changed"),
        ("spark.sql.streaming.noDataMicroBatches.enabled", "false", "true", "setting-harmless"),
        ("spark.sql.mapKeyDedupPolicy", "EXCEPTION", "LAST_WIN", "setting-harmless"),
        ("spark.sql.mapKeyDedupPolicy", "last_win", "exception", "setting-changed"),
        ("spark.sql.legacy.timeParserPolicy", "exception", "CORRECTED", "setting-harmless"),
        ("spark.sql.legacy.timeParserPolicy", "EXCEPTION", "LEGACY", "setting-changed"),
        ("spark.sql.files.ignoreCorruptFiles", "false", "true", "setting-harmless"),
        ("spark.sql.storeAssignmentPolicy", "ANSI", "LEGACY", "setting-harmless"),
        ("spark.sql.legacy.allowHashOnMapType", "false", "true", "setting-harmless"),
        ("spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition", "false", "true", "setting-harmless"),
        (TIME_ZONE, "UTC", "Asia/Tokyo", "setting-harmless"),
    ],
)
def test_settings_are_judged_by_what_they_change(setting: str, was: str, now: str, code: str) -> None:
    """Those that the checkpoint pins, those that change values in the state, and those that do not."""
    assert compare(plan(settings={setting: was}), plan(settings={setting: now})).codes == (code,)


def test_a_setting_that_another_spark_does_not_know_is_no_difference() -> None:
    """Of one Spark it is one that somebody has set."""
    setting = {"spark.sql.caseSensitive": "true"}
    assert compare(plan(settings={}), plan(settings=setting, spark_version="4.3.0")).codes == ("spark-changed",)
    assert compare(plan(settings={}), plan(settings=setting)).codes == ("setting-changed",)


def test_a_time_zone_counts_where_times_are_read_from_words() -> None:
    """In a text without a zone, or in an expression that reads the session's."""
    old, new = {TIME_ZONE: "UTC"}, {TIME_ZONE: "Asia/Tokyo"}
    source = replace(TOPIC, format="json", columns=(Expression("ts", "timestamp"),))
    found = compare(plan(settings=old, sources=(source,)), plan(settings=new, sources=(source,)))
    assert found.codes == ("setting-changed",)
    assert compare(without_state(settings=old), without_state(settings=new)).codes == ("setting-harmless",)
    same = {TIME_ZONE: "Etc/UTC"}  # what Java calls it in most containers
    found = compare(plan(settings=old, sources=(source,)), plan(settings=same, sources=(source,)))
    assert found.codes == ("setting-harmless",)


@pytest.mark.parametrize(
    ("kind", "text", "time", "code"),
    [
        ("FlatMapGroupsInPandasWithState", "", "timestamp", "setting-changed"),
        ("TransformWithStateInPySpark", "", "struct<at:timestamp>", "setting-changed"),
        ("Project", "udf:hour_of(ts) AS k", "date", "setting-changed"),
        ("MapInArrow", "", "timestamp_ntz", "setting-harmless"),
        ("FlatMapGroupsWithState", "", "timestamp", "setting-harmless"),
    ],
)
def test_a_time_zone_counts_where_times_go_to_python(kind: str, text: str, time: str, code: str) -> None:
    """Pandas and Arrow have them in the zone of the session; whoever reads an hour of them has another one."""
    old = plan(sources=(replace(TOPIC, columns=(Expression("ts", time),)),), settings={TIME_ZONE: "UTC"})
    operators = (
        PlanNode("Aggregate", "", 0, 0),
        PlanNode(kind, text, 1),
        PlanNode("StreamingRelation", "", 2, None, 0),
    )
    old = replace(old, nodes=operators)
    assert compare(old, replace(old, settings={TIME_ZONE: "Asia/Tokyo"})).codes == (code,)


def test_another_spark_is_judged_by_the_ways_that_were_gone() -> None:
    """To a newer one, always; back, where it was seen to; and what keeps no state goes further back."""
    assert compare(plan(), plan(spark_version="4.3.0")).codes == ("spark-changed",)
    assert compare(plan(), plan(spark_version="4.1.4")).codes == ("spark-goes-back",)
    hdfs = {PROVIDER: HDFS_BACKED_PROVIDER}
    assert compare(plan(settings=hdfs), plan(settings=hdfs, spark_version="4.1.4")).codes == ("spark-changed",)
    pinned = plan(pinned=hdfs)
    assert compare(pinned, plan(spark_version="4.1.4")).codes == ("spark-changed",)
    assert compare(without_state(), without_state(spark_version="4.1.4")).codes == ("spark-changed",)


def test_plans_written_down_in_two_ways_are_not_compared() -> None:
    """Their texts say nothing of each other."""
    found = compare(plan(), replace(plan(operator(kind="deduplicate")), reading=2))
    assert (found.verdict, found.codes) == ("needs-drain", ("not-comparable",))
    assert compare(without_state(), without_state(reading=2)).verdict == "state-compatible"
