"""Releases that are known to fail are recognised wherever a driver gets them from."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.launch.submit_options import (
    KNOWN_BAD,
    brought_names,
    built_for_another,
    installed_names,
    known_bad_among,
)

KAFKA = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.2"


@pytest.mark.parametrize(
    ("name", "spark", "release"),
    [
        (KAFKA, "4.1.2", "4.1.2"),
        ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1", "", "4.1.1"),
        ("/jars/spark-sql-kafka-0-10_2.13-4.1.1.jar", "4.1.1", "4.1.1"),
        ("s3://lake/jars/spark-sql-kafka-0-10_2.13-4.1.2.jar", "4.1.2", "4.1.2"),
        ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3", "4.1.3", ""),
        ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.20", "4.1.3", ""),
        ("org.apache.spark:spark-streaming-kafka-0-10_2.13:4.1.2", "4.1.2", ""),
        ("my-spark-sql-kafka-0-10_2.13-4.1.2.jar", "4.1.2", ""),
        ("io.delta:delta-spark_2.13:4.1.0", "4.2.0", "4.1.0"),
        ("io.delta:delta-spark_4.1_2.13:4.1.0", "4.1.2", "4.1.0"),
        ("io.delta:delta-spark_2.13:4.1.0", "4.1.0", ""),
        ("nonsense", "", ""),
    ],
)
def test_a_release_is_known_by_its_coordinates_or_its_jar(name: str, spark: str, release: str) -> None:
    """No other release, no other artifact, and where Spark's release decides, on no other."""
    assert [found.release for found in known_bad_among([name], spark)] == ([release] if release else [])


def test_each_is_named_once_with_its_remedy() -> None:
    """The sentence has the component, the symptom and what to do."""
    (found,) = known_bad_among([KAFKA, "spark-sql-kafka-0-10_2.13-4.1.2.jar"], "4.1.2")
    assert found.sentence.startswith(f"Spark's Kafka connector 4.1.2 ({KAFKA}): a query")
    assert found.sentence.endswith("Use release 4.1.3 of the connector.")


def test_what_the_configuration_brings_along_counts() -> None:
    """Packages and jars of the deployment, and those that its configuration names."""
    conf = {"spark.jars.packages": f"a:b:1, {KAFKA}", "spark.jars": "/x.jar", "spark.sql.x": "y"}
    assert set(brought_names(("p:q:1",), ("/y.jar",), conf)) == {"p:q:1", "/y.jar", "a:b:1", KAFKA, "/x.jar"}


def test_the_jars_and_the_defaults_of_an_installation_are_looked_through(tmp_path: Path) -> None:
    """Blanks or an equals sign between key and value, comments left out; no installation has none."""
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-4.1.2.jar").touch()
    assert installed_names(tmp_path) == ("spark-core_2.13-4.1.2.jar",)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(f"# no\nspark.jars.packages   {KAFKA}\nspark.jars=/x.jar\n")
    assert set(installed_names(tmp_path)) == {"spark-core_2.13-4.1.2.jar", KAFKA, "/x.jar"}
    assert installed_names(tmp_path, tmp_path / "nosuch") == ("spark-core_2.13-4.1.2.jar",)
    assert installed_names(None) == ()


def test_every_entry_says_what_happens_and_what_to_do() -> None:
    """The docs, `doctor` and `plan` print these as they are."""
    for known in KNOWN_BAD:
        assert known.releases
        assert known.symptom[0].islower()
        assert not known.symptom.endswith(".")
        assert known.remedy.endswith(".")


BUILT = {
    "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.9": "Scala 2.12, and Spark 4.2 has 2.13",
    "io.delta:delta-spark_2.12:3.2.0": "Scala 2.12, and Spark 4.2 has 2.13",
    "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0": "Spark 4.0, and this is 4.2",
    "s3://jars/delta-spark_4.1_2.13-4.4.0.jar": "Spark 4.1, and this is 4.2",
    "/srv/jars/spark-sql-kafka-0-10_2.13-4.0.1.jar": "Spark 4.0, and this is 4.2",
    "io.delta:delta-spark_4.2_2.13:4.4.0": "",
    "org.apache.spark:spark-avro_2.13:4.2.1": "",
    "org.postgresql:postgresql:42.7.4": "",
    "/srv/jars/my-job_2.13-3.5.jar": "",
}


@pytest.mark.parametrize("name", BUILT)
def test_a_library_of_another_spark_is_told(name: str) -> None:
    """By its Scala, by the line of Spark in its name, or as a part of Spark by its version."""
    found = built_for_another([name], "4.2.0")
    want = f"{name} is built for {BUILT[name]}: give the build for Spark 4.2, if there is one"
    assert found == ((want,) if BUILT[name] else ())
    assert built_for_another([name], "") == ()


def test_spark_3_may_have_either_scala() -> None:
    """So only the line of Spark tells there."""
    assert built_for_another(["io.delta:delta-spark_2.12:3.2.0", "io.delta:delta-spark_2.13:3.2.0"], "3.5.9") == ()
    assert len(built_for_another(["org.apache.spark:spark-avro_2.13:4.2.0"], "3.5.9")) == 1
