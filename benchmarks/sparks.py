"""Other Sparks than ours, each a virtual environment in the user's cache, which pip makes once."""

from __future__ import annotations

from pathlib import Path

from airflow_streamstate.launch.spark_home import environment_of_spark
from benchmarks.results import BenchmarkError


def path_of(version: str) -> str:
    """The virtual environment of this Spark, as ``--spark`` takes it.

    Raises:
        BenchmarkError: it is not there, and pip could not install it.
    """
    from support.sparks import spark_of

    try:
        python: Path = spark_of(version).python
    except RuntimeError as error:
        raise BenchmarkError(f"Spark {version} could not be installed: {error}") from error
    return str(python.parents[1])


def environment_of(version: str) -> dict[str, str]:
    """The variables by which a plain job finds it; raises as ``path_of``."""
    return environment_of_spark(path_of(version))
