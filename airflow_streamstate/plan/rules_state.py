"""What another layout of state, other settings, or another Spark do."""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_streamstate.checkpoint.guards import PROVIDER
from airflow_streamstate.checkpoint.seed import PINNED_CONF_KEYS
from airflow_streamstate.checkpoint.spark_versions import NO_STATE, why_not
from airflow_streamstate.plan.codes import difference
from airflow_streamstate.plan.differences import Difference
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.terms import USER_FUNCTION

STAYS = ": a checkpoint stays as it began"
NEVER_CHANGES = ", which no checkpoint changes to"
"""What holds of a setting unless the state is written anew."""
TIME_ZONE = "spark.sql.session.timeZone"
ANSI = "spark.sql.ansi.enabled"
_LAYOUT = frozenset(
    {
        "spark.sql.shuffle.partitions",
        PROVIDER,
        "spark.sql.streaming.stateStore.encodingFormat",
        "spark.sql.streaming.stateStore.checkpointFormatVersion",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
    }
)
"""Settings that ``StateLayout`` covers."""
_HARMLESS = frozenset(
    {
        "spark.sql.streaming.noDataMicroBatches.enabled",
        "spark.sql.streaming.statefulOperator.checkCorrectness.enabled",
        "spark.sql.streaming.statefulOperator.allowMultiple",
        "spark.sql.files.ignoreMissingFiles",
        "spark.sql.datetime.java8API.enabled",
        "spark.sql.legacy.allowHashOnMapType",
        "spark.sql.storeAssignmentPolicy",
        "spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition",
    }
)
"""Settings of when, where and whether something is done, or of what a sink makes of a row; not of values in the
state."""
_BY_FAILING = {
    ANSI: ("true", "false"),
    "spark.sql.mapKeyDedupPolicy": ("exception", "last_win"),
    "spark.sql.legacy.timeParserPolicy": ("exception", "corrected"),  # the legacy one reads old dates otherwise
    "spark.sql.files.ignoreCorruptFiles": ("false", "true"),
}
"""With the first value a batch fails where the second would matter, so all that was counted is the same with both. A
drain cannot pass a batch that fails so; only the change can."""
_UTC = frozenset({"UTC", "Etc/UTC", "UCT", "Etc/UCT", "Universal", "Etc/Universal", "Zulu", "Etc/Zulu", "Z"})
"""Names of one zone."""
_OF_THE_ZONE = re.compile(
    r"\b(cast\(|DateFormat|ParseTo|To(Date|Timestamp|Unix|Utc)|Trunc|Hour|Minute|Second|DayOf|WeekOf|WeekDay|Month|"
    r"Quarter|Year|From(Unix|U[Tt][Cc])|Unix|GetTimestamp|Current|Now|Local|Make|Extract|DatePart|JsonTo|StructsTo|CsvTo|"
    r"XmlTo|Convert|TimestampAdd|TimestampDiff|Sequence)"
)
"""Expressions that may read the session's time zone, among them all casts."""
_OF_PYTHON = re.compile(r"Pandas|Arrow|Python|PySpark")
"""Operators that pass rows to Python; pandas and Arrow write their times in the session's zone."""
_TIME = re.compile(r"\b(timestamp|date)\b")
"""Types of times that depend on a zone."""
_TEXTS = frozenset({"json", "csv", "xml", "text"})
"""Formats whose times are texts, read in the session's zone where they name none."""


def state_differences(old: QueryPlan, new: QueryPlan) -> Iterator[Difference]:
    """Differences of partitions, store, formats, settings, Spark."""
    if old.is_stateful and new.is_stateful:
        yield from _layout(old, new)
    for name in sorted(old.settings.keys() & new.settings.keys()):  # else one Spark, or one release, has no word of it
        if name not in _LAYOUT and old.settings[name] != new.settings[name]:
            yield _setting(old, new, name)
    yield from _spark(old, new)


def _layout(old: QueryPlan, new: QueryPlan) -> Iterator[Difference]:
    for code, was, now, what in (
        ("partitions-changed", old.state.partitions, new.state.partitions, "partitions of state"),
        ("provider-changed", _last(old.state.provider), _last(new.state.provider), "as state store"),
        ("state-encoding-changed", old.state.encoding, new.state.encoding, "as encoding of state"),
    ):
        if was != now:
            reason = f"the session asks for {now} {what} and no more for {was}{STAYS}"
            yield difference(code, "", reason)
    if old.state.checkpoint_format != new.state.checkpoint_format:
        was_format, now_format = old.state.checkpoint_format, new.state.checkpoint_format
        reason = f"state checkpoint format {was_format} became {now_format}{NEVER_CHANGES}"
        yield difference("checkpoint-format-changed", "", reason)
    if old.state.changelog != new.state.changelog:
        word = "writes changelogs now" if new.state.changelog else "writes no changelogs any more"
        yield difference("changelog-changed", "", f"the state store {word}; it reads both")


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _setting(old: QueryPlan, new: QueryPlan, name: str) -> Difference:
    was, now = old.settings[name], new.settings[name]
    words = f"{name} was {was} and is {now}"
    if name in PINNED_CONF_KEYS:
        return difference("setting-pinned", "", f"{words}; the checkpoint has its own value")
    if not (old.is_stateful and new.is_stateful):
        return difference("setting-harmless", "", f"{words}: no state was made by it")
    if name in _HARMLESS:
        return difference("setting-harmless", "", f"{words}: no value depends on it")
    if name == TIME_ZONE and not _reads_the_zone(new):
        return difference("setting-harmless", "", f"{words}: nothing before the state reads it")
    if name == TIME_ZONE and {was, now} <= _UTC:
        return difference("setting-harmless", "", f"{words}: one zone by two names")
    if (was.lower(), now.lower()) == _BY_FAILING.get(name):
        return difference("setting-harmless", "", f"{words}: what was counted had no error in it")
    return difference("setting-changed", "", f"{words}: what is in the state was made by the old value")


def _reads_the_zone(plan: QueryPlan) -> bool:
    timed = [source for source in plan.sources if any(_TIME.search(column.type) for column in source.columns)]
    if any(source.format in _TEXTS for source in timed):
        return True
    top = min((index for index, node in enumerate(plan.nodes) if node.operator_id is not None), default=0)
    below = plan.nodes[top:]
    if any(_OF_THE_ZONE.search(node.text) for node in below):
        return True
    return bool(timed) and any(_OF_PYTHON.search(node.kind) or USER_FUNCTION in node.text for node in below)


def _spark(old: QueryPlan, new: QueryPlan) -> Iterator[Difference]:
    if old.spark_version == new.spark_version:
        return
    provider = old.pinned.get(PROVIDER, old.settings.get(PROVIDER, "")) if old.is_stateful else NO_STATE
    reason = why_not(old.spark_version, new.spark_version, provider)
    words = f"Spark {old.spark_version or 'unknown'} became {new.spark_version or 'unknown'}"
    if reason is None:
        yield difference("spark-changed", "", f"{words}: state goes there")
    else:
        yield difference("spark-goes-back", "", f"{words}: {reason}")
