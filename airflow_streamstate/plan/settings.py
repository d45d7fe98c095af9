"""The recorded settings of a session: those that change what a query computes, or how its state is kept."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_streamstate.checkpoint.guards import PROVIDER
from airflow_streamstate.plan.model import StateLayout

PARTITIONS = "spark.sql.shuffle.partitions"
CHECKPOINT_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
ENCODING = "spark.sql.streaming.stateStore.encodingFormat"

STATE_SETTINGS: tuple[str, ...] = (
    PARTITIONS,
    PROVIDER,
    CHECKPOINT_FORMAT,
    CHANGELOG,
    ENCODING,
    "spark.sql.streaming.stateStore.compression.codec",
    "spark.sql.streaming.stateStore.rocksdb.formatVersion",
    "spark.sql.streaming.aggregation.stateFormatVersion",
    "spark.sql.streaming.join.stateFormatVersion",
    "spark.sql.streaming.sessionWindow.stateFormatVersion",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion",
    "spark.sql.streaming.transformWithState.stateSchemaVersion",
)
"""Those that decide how state is kept."""

RESULT_SETTINGS: tuple[str, ...] = (
    "spark.sql.ansi.enabled",
    "spark.sql.caseSensitive",
    "spark.sql.session.timeZone",
    "spark.sql.storeAssignmentPolicy",
    "spark.sql.timestampType",
    "spark.sql.mapKeyDedupPolicy",
    "spark.sql.datetime.java8API.enabled",
    "spark.sql.legacy.timeParserPolicy",
    "spark.sql.legacy.allowHashOnMapType",
    "spark.sql.legacy.sizeOfNull",
    "spark.sql.streaming.multipleWatermarkPolicy",
    "spark.sql.streaming.noDataMicroBatches.enabled",
    "spark.sql.streaming.statefulOperator.checkCorrectness.enabled",
    "spark.sql.streaming.statefulOperator.allowMultiple",
    "spark.sql.streaming.statefulOperator.useStrictDistribution",
    "spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition",
    "spark.sql.streaming.stateStore.skipNullsForStreamStreamJoins.enabled",
    "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan",
    "spark.sql.streaming.queryEvolution.enableSourceEvolution",
    "spark.sql.files.ignoreCorruptFiles",
    "spark.sql.files.ignoreMissingFiles",
)
"""Those that decide which rows come out."""

SETTINGS: tuple[str, ...] = tuple(sorted((*STATE_SETTINGS, *RESULT_SETTINGS)))
"""All of them, sorted."""


def state_layout(settings: Mapping[str, str]) -> StateLayout:
    """How state is kept under these settings; by Spark's defaults where one is missing."""
    return StateLayout(
        partitions=_number(settings.get(PARTITIONS), 200),
        provider=settings.get(PROVIDER, ""),
        checkpoint_format=_number(settings.get(CHECKPOINT_FORMAT), 1),
        changelog=settings.get(CHANGELOG, "").lower() == "true",
        encoding=settings.get(ENCODING, "unsaferow").lower(),
    )


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.strip().isdigit() else otherwise
