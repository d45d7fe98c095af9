"""Streaming sources of your own in Python: parts with state, which Spark's offsets carry.

Part of the driver's zip. It runs under a plain ``spark-submit``, too: pyspark, pyarrow and the standard library.
"""

from airflow_streamstate.sources.interface import Lost, Part, PartitionedSource, PlannedEnd, PlannedPart, register

__all__ = ["Lost", "Part", "PartitionedSource", "PlannedEnd", "PlannedPart", "register"]
