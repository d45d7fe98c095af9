"""Finding what a driver needs on this machine: ``spark-submit``, its Python, and Java."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from airflow_streamstate.errors import InvalidRequestError

SPARK_SUBMIT = "spark-submit"
_CORE_JAR = re.compile(r"spark-core_[0-9.]+-([0-9]+\.[0-9]+\.[0-9]+.*)\.jar")
_INSTALL = "Install the extra airflow-streamstate[spark], or set SPARK_HOME to a Spark installation."


@dataclass(frozen=True)
class SparkSubmit:
    """The command that starts Spark.

    Attributes:
        prefix: the command with its first options.
        environment: what it needs beside the user's own environment.
        spark_home: the installation, if known.
    """

    prefix: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    spark_home: Path | None = None


def find_spark_submit(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The command that a launch would use; ``environ`` is by default this process's.

    Raises:
        InvalidRequestError: there is none.
    """
    return own_spark_submit(os.environ if environ is None else environ).prefix


def own_spark_submit(environ: Mapping[str, str]) -> SparkSubmit:
    """The first ``spark-submit`` of: SPARK_HOME, this Python's pyspark, beside this Python, PATH.

    Args:
        environ: the environment that the driver will have.

    Raises:
        InvalidRequestError: there is none.
    """
    home = environ.get("SPARK_HOME")
    if home:
        path = Path(home) / "bin" / SPARK_SUBMIT
        if not _is_executable(path):
            raise InvalidRequestError(
                "SPARK_HOME is set, but there is no spark-submit in it", SPARK_HOME=home, next_step=_INSTALL
            )
        return SparkSubmit((str(path),), spark_home=Path(home))
    own = own_pyspark()
    if own is not None:
        # Without SPARK_HOME, spark-submit of pip asks the first python3 on PATH where Spark is.
        return SparkSubmit((str(own / "bin" / SPARK_SUBMIT),), {"SPARK_HOME": str(own)}, own)
    path_found = _beside_this_python(SPARK_SUBMIT) or shutil.which(SPARK_SUBMIT, path=environ.get("PATH"))
    if path_found is None:
        raise InvalidRequestError("there is no spark-submit on this machine", next_step=_INSTALL)
    return SparkSubmit((path_found,), _python_beside(Path(path_found)))


def resolve_spark_submit(prefix: tuple[str, ...], environ: Mapping[str, str]) -> SparkSubmit:
    """A given command, with its program found; raises as ``own_spark_submit`` does."""
    program = prefix[0] if prefix else ""
    found: str | None = program
    if program and "/" not in program:
        found = shutil.which(program, path=environ.get("PATH")) or _beside_this_python(program)
    if not found or not _is_executable(Path(found)):
        raise InvalidRequestError(
            "the command that is to start Spark does not exist, or is not executable",
            command=program,
            next_step="Correct the command, or leave it out to use the spark-submit of this machine.",
        )
    return SparkSubmit((str(Path(found).absolute()), *prefix[1:]), _python_beside(Path(found)))


def home_of(submit: SparkSubmit, environ: Mapping[str, str]) -> Path | None:
    """The installation that a ``spark-submit`` starts; None if unknown."""
    named = [submit.spark_home] if submit.spark_home else [Path(home)] if (home := environ.get("SPARK_HOME")) else []
    program = Path(submit.prefix[0])
    unpacked = [path.parent.parent for path in (program, program.resolve())]
    of_pip = [*program.parent.parent.glob("lib/python3*/site-packages/pyspark")]
    return next((folder for folder in (*named, *unpacked, *of_pip) if (folder / "jars").is_dir()), None)


def version_of(spark_home: Path | None) -> str:
    """The version of an installation, by the name of its core jar; "" if unknown."""
    names = (path.name for path in (spark_home / "jars").glob("spark-core_*.jar")) if spark_home else iter(())
    found = sorted(match[1] for match in map(_CORE_JAR.fullmatch, names) if match)
    return found[-1] if len(found) == 1 else ""


def own_pyspark() -> Path | None:
    """The folder of the complete pyspark (not only its client) that this Python has; None for none."""
    try:
        spec = importlib.util.find_spec("pyspark")
    except ValueError:
        return None
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location)
        if _is_executable(folder / "bin" / SPARK_SUBMIT) and (folder / "jars").is_dir():
            return folder
    return None


def python_environment(environ: Mapping[str, str], *, on_this_machine: bool) -> dict[str, str]:
    """The Python for driver and workers, where the environment does not set it.

    By default Spark takes the first ``python3`` on PATH. On the machines of a cluster, where this Python's path means
    nothing, the workers' Python stays the cluster's choice.
    """
    if environ.get("PYSPARK_PYTHON"):
        return {}
    driver = environ.get("PYSPARK_DRIVER_PYTHON")
    if on_this_machine:
        return {"PYSPARK_PYTHON": driver or sys.executable}
    return {} if driver else {"PYSPARK_DRIVER_PYTHON": sys.executable}


def check_java(environ: Mapping[str, str], spark_home: Path | None) -> None:
    """Check that ``spark-submit`` will find a Java; raises as ``find_java`` does."""
    conf = environ.get("SPARK_CONF_DIR") or (str(spark_home / "conf") if spark_home else "")
    if not (conf and (Path(conf) / "spark-env.sh").is_file()):  # which may set JAVA_HOME
        find_java(environ)


def find_java(environ: Mapping[str, str] | None = None) -> str:
    """The ``java`` that ``spark-submit`` would use: of JAVA_HOME if that is set, else on PATH.

    Raises:
        InvalidRequestError: there is none.
    """
    environ = os.environ if environ is None else environ
    java_home = environ.get("JAVA_HOME")
    found = str(Path(java_home) / "bin" / "java") if java_home else shutil.which("java", path=environ.get("PATH"))
    if found and _is_executable(Path(found)):
        return found
    raise InvalidRequestError(
        "Spark needs Java, and there is none on this machine",
        JAVA_HOME=java_home or "not set",
        next_step="Install a Java 17 runtime, or set JAVA_HOME to one.",
    )


def _beside_this_python(program: str) -> str | None:
    path = Path(sys.executable).parent / program
    return str(path) if _is_executable(path) else None


def _python_beside(spark_submit: Path) -> dict[str, str]:
    """The Python of a ``spark-submit`` that pip installed, which is the one that has pyspark."""
    python = spark_submit.parent / "python3"
    if (spark_submit.parent / "find_spark_home.py").is_file() and _is_executable(python):
        return {"PYSPARK_PYTHON": str(python)}
    return {}


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
