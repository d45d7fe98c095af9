"""``airflow_streamstate.plan.rules``: partitions, stores, settings, and the version of Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.checkpoint.guards import HDFS_BACKED_PROVIDER, MERGE_OPERATOR, PROVIDER, ROCKSDB_PROVIDER
from airflow_streamstate.plan.comparison import compare
from airflow_streamstate.plan.model import Expression, PlanNode
from airflow_streamstate.plan.rules import ANSI, TIME_ZONE, state_differences
from support.built_plans import TOPIC, describe, plan, without_state

STAYS = "a checkpoint stays as it started"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            {},
            {"partitions": 10},
            ("partitions-changed", f"the session asks for 10 partitions of state and no more for 200: {STAYS}"),
        ),
        (
            {"provider": "a.b.Old"},
            {"provider": "x.Other"},
            ("provider-changed", f"the session asks for Other as state store and no more for Old: {STAYS}"),
        ),
        (
            {},
            {"encoding": "avro"},
            (
                "state-encoding-changed",
                f"the session asks for avro as encoding of state and no more for unsaferow: {STAYS}",
            ),
        ),
        ({}, {"changelog": True}, ("changelog-changed", "the state store writes changelogs now; it reads both")),
        (
            {"changelog": True},
            {},
            ("changelog-changed", "the state store writes no changelogs any more; it reads both"),
        ),
        (
            {},
            {"checkpoint_format": 2},
            ("checkpoint-format-changed", "state checkpoint format 1 became 2, which no checkpoint changes to"),
        ),
    ],
)
def test_each_difference_of_the_store_is_told(
    old: dict[str, object], new: dict[str, object], told: tuple[str, str]
) -> None:
    """Only another state checkpoint format needs a drain, else a checkpoint stays as it was; without state it is no
    change.
    """
    was, now = (replace(plan(), state=replace(plan().state, **facts)) for facts in (old, new))
    assert describe(was, now) == [(told[0], "", told[1])], "of no place in the plan"
    verdict = "needs-drain" if told[0] == "checkpoint-format-changed" else "state-compatible"
    assert compare(was, now).verdict == verdict
    assert compare(without_state(state=was.state), without_state(state=now.state)).verdict == "same"


def test_where_one_of_two_plans_keeps_no_state_no_store_is_spoken_of() -> None:
    """That its operators came or went is reported separately."""
    other = replace(plan().state, partitions=10)
    assert list(state_differences(plan(), without_state(state=other))) == []
    assert list(state_differences(without_state(state=other), plan())) == []


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
        ("spark.sql.legacy.timeParserPolicy", "CORRECTED", "EXCEPTION", "setting-harmless"),
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


def test_a_setting_that_one_plan_does_not_know_is_no_difference() -> None:
    """Another Spark, or another release of this package, has no word of it."""
    setting = {"spark.sql.caseSensitive": "true"}
    assert compare(plan(settings={}), plan(settings=setting, spark_version="4.3.0")).codes == ("spark-changed",)
    assert compare(plan(settings={}), plan(settings=setting)).codes == ()


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
    """Pandas and Arrow have them in the session's zone, where the same moment has another hour."""
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
    new_lists = plan(settings={PROVIDER: ROCKSDB_PROVIDER, MERGE_OPERATOR: "2"})
    assert compare(new_lists, plan(spark_version="4.1.4")).codes == ("spark-goes-back",)
    older_lists = replace(new_lists, pinned={PROVIDER: ROCKSDB_PROVIDER})
    assert compare(older_lists, plan(spark_version="4.1.4")).codes == ("spark-changed",)
    hdfs = {PROVIDER: HDFS_BACKED_PROVIDER}
    assert compare(plan(settings=hdfs), plan(settings=hdfs, spark_version="4.1.4")).codes == ("spark-changed",)
    pinned = plan(pinned=hdfs)
    assert compare(pinned, plan(spark_version="4.1.4")).codes == ("spark-changed",)
    assert compare(without_state(), without_state(spark_version="4.1.4")).codes == ("spark-changed",)


CASE, POLICY = "spark.sql.caseSensitive", "spark.sql.streaming.multipleWatermarkPolicy"
OLD_VALUE = "what is in the state was made by the old value"
TIMED = replace(TOPIC, format="json", columns=(Expression("ts", "timestamp"),))


@pytest.mark.parametrize(
    ("old", "new", "facts", "words"),
    [
        ({CASE: "false"}, {CASE: "true"}, {}, f"{CASE} was false and is true: {OLD_VALUE}"),
        ({POLICY: "min"}, {POLICY: "max"}, {}, f"{POLICY} was min and is max; the checkpoint has its own value"),
        (
            {"spark.sql.storeAssignmentPolicy": "ANSI"},
            {"spark.sql.storeAssignmentPolicy": "LEGACY"},
            {},
            "spark.sql.storeAssignmentPolicy was ANSI and is LEGACY: no value depends on it",
        ),
        (
            {TIME_ZONE: "UTC"},
            {TIME_ZONE: "Asia/Tokyo"},
            {},
            f"{TIME_ZONE} was UTC and is Asia/Tokyo: nothing before the state reads it",
        ),
        (
            {TIME_ZONE: "UTC"},
            {TIME_ZONE: "Zulu"},
            {"sources": (TIMED,)},
            f"{TIME_ZONE} was UTC and is Zulu: one zone by two names",
        ),
        (
            {TIME_ZONE: "UTC"},
            {TIME_ZONE: "Asia/Tokyo"},
            {"sources": (TIMED,)},
            f"{TIME_ZONE} was UTC and is Asia/Tokyo: {OLD_VALUE}",
        ),
        ({ANSI: "true"}, {ANSI: "false"}, {}, f"{ANSI} was true and is false: what was counted had no error in it"),
    ],
)
def test_each_difference_of_settings_is_told(
    old: dict[str, str], new: dict[str, str], facts: dict[str, object], words: str
) -> None:
    """What it was and is, and what that does; of a query without state no state was made by it."""
    found = describe(plan(settings=old, **facts), plan(settings=new, **facts))
    assert [(path, reason) for _, path, reason in found] == [("", words)]
    harmless = describe(without_state(settings=old), without_state(settings=new))
    assert [(path, reason.partition(": ")[2]) for _, path, reason in harmless] == [
        ("", "" if POLICY in old else "no state was made by it")
    ]


def test_a_time_zone_counts_below_the_state_alone() -> None:
    """What a plan does above its topmost operator with state is done again with each start; where no node shows that
    it is one, all of it counts."""
    zones = [{TIME_ZONE: "UTC"}, {TIME_ZONE: "Asia/Tokyo"}]
    for nodes, code in (
        ((), "setting-harmless"),
        ((PlanNode("Project", "Hour(ts) AS h", 0),), "setting-changed"),
    ):
        assert compare(*(plan(settings=zone, nodes=nodes) for zone in zones)).codes == (code,)
    hour = PlanNode("Project", "Hour(ts) AS h", 0)
    state, below = PlanNode("Aggregate", "", 1, 0), PlanNode("StreamingRelation", "", 2, None, 0)
    for nodes, code in (((hour, state, below), "setting-harmless"), ((state, hour, below), "setting-changed")):
        plans = [plan(settings=zone, nodes=nodes) for zone in zones]
        assert compare(*plans).codes == (code,)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("4.2.0", "4.3.0", "Spark 4.2.0 became 4.3.0: state goes there"),
        ("", "4.2.0", "Spark unknown became 4.2.0: state goes there"),
        ("4.2.0", "", "Spark 4.2.0 became unknown: state goes there"),
        (
            "4.2.0",
            "4.1.4",
            "Spark 4.2.0 became 4.1.4: Spark 4.1 and older fail on the lists of transformWithState in RocksDB of a"
            " stream that a newer Spark started",
        ),
        ("5.0.0", "4.1.4", "Spark 5.0.0 became 4.1.4: this move back loses something, or was never tried"),
    ],
)
def test_another_spark_is_told(old: str, new: str, words: str) -> None:
    """Both versions, and whether state goes there; a checkpoint without a log yet gets what the session is set to."""
    settings = {PROVIDER: ROCKSDB_PROVIDER, MERGE_OPERATOR: "2"}
    found = describe(plan(spark_version=old, settings=settings), plan(spark_version=new, settings=settings))
    assert [(path, reason) for _, path, reason in found] == [("", words)]
