"""Releases of a driver's components that are known to fail: one table, for ``doctor``, ``plan`` and the docs.

A release is recognised by its Maven coordinates (``--packages``, ``spark.jars.packages``) or by the name of its jar
(``--jars``, ``spark.jars``, the jars of an installation).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_streamstate.launch.submit_options import SubmitOptions, absorb_conf

DEFAULTS_FILE = "spark-defaults.conf"


@dataclass(frozen=True)
class KnownBad:
    """Releases of one component that fail in one way.

    Attributes:
        component: for people.
        artifact: its Maven artifact, without the suffix of Scala or Spark.
        releases: those that fail.
        symptom: a lower-case clause without its full stop.
        remedy: a whole sentence.
        sparks: they fail only on these releases of Spark; () for all.
    """

    component: str
    artifact: str
    releases: tuple[str, ...]
    symptom: str
    remedy: str
    sparks: tuple[str, ...] = ()


KNOWN_BAD: tuple[KnownBad, ...] = (
    KnownBad(
        "Spark's Kafka connector",
        "spark-sql-kafka-0-10",
        ("4.1.1", "4.1.2"),
        "a query that is started again over a planned batch (after a kill, or from a snapshot with one) dies with a"
        " NullPointerException in KafkaMicroBatchStream.metrics (SPARK-57438)",
        "Use release 4.1.3 of the connector.",
    ),
    KnownBad(
        "Delta Lake",
        "delta-spark",
        ("4.1.0",),
        "a write fails at the table's first checkpoint with a NoSuchMethodError in ParquetToSparkSchemaConverter",
        "Use the build of Delta 4.4.0 that is made for this Spark.",
        ("4.1.2", "4.2.0"),
    ),
)


@dataclass(frozen=True)
class BadRelease:
    """A release that is known to fail, and the coordinates or jar by which it was recognised."""

    name: str
    release: str
    known: KnownBad

    @property
    def sentence(self) -> str:
        return f"{self.known.component} {self.release} ({self.name}): {self.known.symptom}. {self.known.remedy}"


def known_bad_among(names: Iterable[str], spark_version: str) -> tuple[BadRelease, ...]:
    """The releases among these that are known to fail, each once.

    Args:
        names: Maven coordinates, and names or URIs of jars.
        spark_version: of the Spark that they are used with; "" for unknown, which counts as one that they fail on.
    """
    found: dict[tuple[str, str], BadRelease] = {}
    for name in names:
        for known in KNOWN_BAD:
            release = _release_of(name, known.artifact)
            fails_here = not known.sparks or not spark_version or spark_version in known.sparks
            if release in known.releases and fails_here:
                found.setdefault((known.artifact, release), BadRelease(name, release, known))
    return tuple(found.values())


def brought_names(packages: Sequence[str], jars: Sequence[str], conf: Mapping[str, str]) -> tuple[str, ...]:
    """The coordinates and jars that a driver is given, including those in its configuration."""
    options = absorb_conf(SubmitOptions(conf=conf, packages=tuple(packages), jars=tuple(jars)))
    return (*options.packages, *options.jars)


def installed_names(spark_home: Path | None, conf_folder: Path | None = None) -> tuple[str, ...]:
    """The jars of a Spark installation, and those that its defaults add.

    Args:
        spark_home: the installation; None if unknown.
        conf_folder: of its defaults; None for ``conf`` in the installation.
    """
    if spark_home is None:
        return ()
    jars = sorted(path.name for path in (spark_home / "jars").glob("*.jar"))
    defaults = (conf_folder or spark_home / "conf") / DEFAULTS_FILE
    try:
        text = defaults.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return tuple(jars)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    pairs = [re.split(r"\s*[=\s]\s*", line, maxsplit=1) for line in lines]
    return (*jars, *brought_names((), (), {pair[0]: pair[1] for pair in pairs if len(pair) == 2}))


def _release_of(name: str, artifact: str) -> str:
    """The release of an artifact, if this name is of it; else ""."""
    pattern = rf"(?:.*[:/])?{re.escape(artifact)}(?:_[0-9.]+)*[:-]([0-9][^:/]*?)(?:\.jar)?"
    match = re.fullmatch(pattern, name.strip())
    return match.group(1) if match else ""
