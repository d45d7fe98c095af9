"""What a Spark must bring along to reach checkpoints on S3: hadoop-aws, of the very Hadoop that it is built on.

Spark itself has no S3A. The one big jar that hadoop-aws asks for (the AWS SDK, 600 MB) is left out where the parts of
it that suffice are known; they were found by running whole lives with them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_streamstate.errors import InvalidRequestError

SETTING = "spark.streamstate.s3.packages"
"""``auto`` (the default), ``none`` where Spark has a connector of its own, or Maven coordinates to bring instead."""
EXCLUDES = "spark.jars.excludes"
_HADOOP_JAR = re.compile(r"hadoop-client-api-([0-9]+(?:\.[0-9]+)+)\.jar")
_CONNECTOR_JAR = re.compile(r"(.*/)?hadoop-(aws|cloud-storage)-[^/]*\.jar")
_LIGHT: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "3.5.0": (
        (
            "org.apache.hadoop:hadoop-aws:3.5.0",
            "software.amazon.awssdk:s3-transfer-manager:2.35.4",
            "software.amazon.awssdk:sts:2.35.4",
        ),
        (
            "software.amazon.awssdk:bundle",
            "org.wildfly.openssl:wildfly-openssl",
            # Spark has these itself, and two versions of them in one driver do not go together.
            "io.netty:*",
            "org.slf4j:slf4j-api",
            "commons-codec:commons-codec",
            "commons-logging:commons-logging",
            "org.apache.httpcomponents:*",
        ),
    ),
}
"""By Hadoop version: packages and excludes that stand for hadoop-aws with its bundle."""


@dataclass(frozen=True)
class Connector:
    """What is brought.

    Attributes:
        packages: Maven coordinates; empty where nothing is to be brought.
        excludes: ``group:name`` of what is left out of what they ask for.
        reason: why these, in words.
    """

    packages: tuple[str, ...]
    excludes: tuple[str, ...]
    reason: str


def connector_for(
    spark_home: Path | None, conf: Mapping[str, str], packages: Sequence[str] = (), jars: Sequence[str] = ()
) -> Connector:
    """What this Spark needs beside what its user brings.

    Args:
        spark_home: the installation; None where it is not known.
        conf: the configuration of the driver.
        packages, jars: what the user brings.

    Raises:
        InvalidRequestError: which Hadoop it is built on is not to be seen.
    """
    asked = conf.get(SETTING, "auto").strip()
    if asked == "none":
        return Connector((), (), f"{SETTING} says none")
    if asked not in ("auto", ""):
        listed = tuple(part.strip() for part in asked.split(",") if part.strip())
        return Connector(listed, (), f"{SETTING} names them")
    if any(":hadoop-aws:" in f"{package}:" for package in packages) or any(map(_CONNECTOR_JAR.fullmatch, jars)):
        return Connector((), (), "the packages or jars of the deployment have it")
    names = sorted(path.name for path in (spark_home / "jars").glob("hadoop-*.jar")) if spark_home else []
    if any(map(_CONNECTOR_JAR.fullmatch, names)):
        return Connector((), (), f"the Spark in {spark_home} has it")
    version = next((found[1] for found in map(_HADOOP_JAR.fullmatch, names) if found), None)
    if version is None:
        raise InvalidRequestError(
            "which Hadoop this Spark is built on cannot be seen, so neither what it needs to reach S3",
            spark_home=str(spark_home) if spark_home else "not known",
            next_step=f"Set {SETTING} to none if this Spark reaches S3 by itself, else to coordinates of hadoop-aws.",
        )
    if version in _LIGHT:
        return Connector(*_LIGHT[version], f"Hadoop {version} in {spark_home}")
    return Connector((f"org.apache.hadoop:hadoop-aws:{version}",), (), f"Hadoop {version} in {spark_home}, untried")
