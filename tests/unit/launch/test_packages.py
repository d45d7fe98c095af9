"""What a Spark must bring along to reach S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.store.options import S3_PACKAGES, s3_connector


def spark(base: Path, *jars: str) -> Path:
    """A Spark installation of nothing but jars' names."""
    (base / "jars").mkdir(exist_ok=True)
    for name in jars:
        (base / "jars" / name).touch()
    return base


def test_the_connector_is_of_the_hadoop_that_spark_is_built_on(tmp_path: Path) -> None:
    """Read from its jars; without the SDK's bundle where the parts that suffice are known."""
    known = s3_connector(spark(tmp_path, "hadoop-client-api-3.5.0.jar", "parquet-hadoop-1.17.0.jar"), {})
    assert known.packages[0] == "org.apache.hadoop:hadoop-aws:3.5.0"
    assert "software.amazon.awssdk:bundle" in known.excludes
    assert "3.5.0" in known.reason


def test_of_another_hadoop_all_is_taken_that_it_asks_for(tmp_path: Path) -> None:
    """What was not tried is not cut, and is reported as untried."""
    other = s3_connector(spark(tmp_path, "hadoop-client-api-3.4.1.jar"), {S3_PACKAGES: "auto"})
    assert (other.packages, other.excludes) == (("org.apache.hadoop:hadoop-aws:3.4.1",), ())
    assert "untried" in other.reason


@pytest.mark.parametrize(
    ("jars", "conf", "packages", "own_jars"),
    [
        (("hadoop-client-api-3.5.0.jar", "hadoop-aws-3.5.0.jar"), {}, (), ()),
        (("hadoop-client-api-3.5.0.jar", "hadoop-cloud-storage-3.5.0.jar"), {}, (), ()),
        (("hadoop-client-api-3.5.0.jar",), {S3_PACKAGES: "none"}, (), ()),
        ((), {S3_PACKAGES: "none"}, (), ()),
        (("hadoop-client-api-3.5.0.jar",), {}, ("org.apache.hadoop:hadoop-aws:3.4.2",), ()),
        (("hadoop-client-api-3.5.0.jar",), {}, (), ("/opt/hadoop-aws-3.5.0.jar",)),
    ],
)
def test_nothing_is_brought_to_a_spark_that_has_one(
    tmp_path: Path, jars: tuple[str, ...], conf: dict[str, str], packages: tuple[str, ...], own_jars: tuple[str, ...]
) -> None:
    """Its own, its user's, or by its word."""
    assert s3_connector(spark(tmp_path, *jars), conf, packages, own_jars).packages == ()


def test_other_coordinates_can_be_named(tmp_path: Path) -> None:
    """What the user names is brought, and nothing else."""
    named = s3_connector(spark(tmp_path, "hadoop-client-api-3.5.0.jar"), {S3_PACKAGES: "g:a:1, g:b:2"})
    assert (named.packages, named.excludes) == (("g:a:1", "g:b:2"), ())


@pytest.mark.parametrize("known", [True, False])
def test_a_spark_that_cannot_be_looked_at_is_refused(tmp_path: Path, known: bool) -> None:
    """Reported before anything is started, with the setting that helps."""
    with pytest.raises(InvalidRequestError, match="the Hadoop") as refused:
        s3_connector(tmp_path if known else None, {})
    assert S3_PACKAGES in refused.value.next_step
