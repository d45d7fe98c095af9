"""The packages that a Spark needs to reach checkpoints on S3: hadoop-aws of exactly the Hadoop that it is built on.

Spark itself has no S3A. The AWS SDK bundle that hadoop-aws asks for (600 MB) is left out where the sufficient parts of
it are known; they were found by running whole streams with them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_streamstate.errors import InvalidRequestError

SETTING = "spark.streamstate.s3.packages"
"""``auto`` (the default), ``pinned`` (the same jars, fetched by us and compared with pinned digests), ``none`` where
Spark has a connector of its own, or Maven coordinates to use instead."""
PINNED_HADOOP = "3.5.0"
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
            # Spark has these itself, and two versions of them in one driver conflict.
            "io.netty:*",
            "org.slf4j:slf4j-api",
            "commons-codec:commons-codec",
            "commons-logging:commons-logging",
            "org.apache.httpcomponents:*",
        ),
    ),
}
"""By Hadoop version: packages and excludes that replace hadoop-aws with its bundle."""


@dataclass(frozen=True)
class Connector:
    """The packages to add.

    Attributes:
        packages: Maven coordinates; empty for none.
        excludes: ``group:name`` of their dependencies that are left out.
        reason: why these, in words.
        is_pinned: jars of ``launch.pinned_jars`` in their place.
    """

    packages: tuple[str, ...]
    excludes: tuple[str, ...]
    reason: str
    is_pinned: bool = False


def connector_for(
    spark_home: Path | None, conf: Mapping[str, str], packages: Sequence[str] = (), jars: Sequence[str] = ()
) -> Connector:
    """The packages that this Spark needs beside the user's own ``packages`` and ``jars``.

    Args:
        spark_home: the installation; None if unknown.
        conf: the configuration of the driver.

    Raises:
        InvalidRequestError: the Hadoop that it is built on is unknown.
    """
    asked = conf.get(SETTING, "auto").strip()
    if asked == "none":
        return Connector((), (), f"{SETTING} says none")
    if asked not in ("auto", "", "pinned"):
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
            "the Hadoop that this Spark is built on is unknown, and so is what it needs to reach S3",
            spark_home=str(spark_home) if spark_home else "not known",
            next_step=f"Set {SETTING} to none if this Spark reaches S3 by itself, else to coordinates of hadoop-aws.",
        )
    if asked == "pinned" and version != PINNED_HADOOP:
        raise InvalidRequestError(
            "the jars by which this Spark reaches S3 are not pinned",
            hadoop=version,
            pinned=PINNED_HADOOP,
            next_step=f"Leave {SETTING} out, or give the jars by --jars, which the home pins.",
        )
    if asked == "pinned":
        return Connector((), (), f"Hadoop {version} in {spark_home}, by pinned digests", is_pinned=True)
    if version in _LIGHT:
        return Connector(*_LIGHT[version], f"Hadoop {version} in {spark_home}")
    return Connector((f"org.apache.hadoop:hadoop-aws:{version}",), (), f"Hadoop {version} in {spark_home}, untried")
