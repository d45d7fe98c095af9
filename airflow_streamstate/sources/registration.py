"""Makes a partitioned source known to Spark, and to this process."""

from __future__ import annotations

from typing import Any

from airflow_streamstate.errors import SourceError
from airflow_streamstate.sources.interface import PartitionedSource

_registered: dict[str, type[PartitionedSource]] = {}


def register(spark: Any, source: type[PartitionedSource]) -> None:
    """Let ``spark.readStream.format(NAME)`` read a partitioned source; once more replaces it.

    Args:
        spark: a classic ``SparkSession``, of Spark 4.0 or newer.

    Raises:
        SourceError: this Spark has no Python data sources, or is Spark Connect.
    """
    if not isinstance(source, type) or not issubclass(source, PartitionedSource):
        raise SourceError("what is registered is no PartitionedSource", given=repr(source)[:100])
    if not hasattr(spark, "_jsparkSession") or not hasattr(spark, "dataSource"):
        raise SourceError(
            "a partitioned source needs a classic SparkSession of Spark 4.0 or newer",
            session=type(spark).__module__,
            spark=str(getattr(spark, "version", "unknown")),
            next_step="Connect to Spark without Spark Connect; update a Spark before 4.0.",
        )
    # Imported only here: offsets and registrations are read without pyspark.
    from airflow_streamstate.sources.cores import watch_cores
    from airflow_streamstate.sources.spark_source import data_source_of

    spark.dataSource.register(data_source_of(source, watch_cores(spark.sparkContext)))
    remember(source)


def remember(source: type[PartitionedSource]) -> None:
    """Let this process know what a source's format means."""
    _registered[source.format_name().lower()] = source


def registered(format_name: str) -> type[PartitionedSource] | None:
    """The source that this process registered under a format; None for none."""
    return _registered.get(format_name.lower())
