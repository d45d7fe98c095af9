"""A Spark that is named by its path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.controller.request.patch import NO_SCRIPT, patched, read_patch
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.terms.version import LauncherChoice, Version


def installation(home: Path) -> Path:
    """A folder that looks like an installed Spark."""
    (home / "jars").mkdir(parents=True)
    (home / "bin").mkdir()
    submit = home / "bin" / "spark-submit"
    submit.write_text("#!/bin/sh\n")
    submit.chmod(0o755)
    return home


def environment(**given: Any) -> dict[str, str]:
    return dict(read_patch(**given).values["environment"])


def test_an_installation_is_a_variable_of_the_environment(tmp_path: Path) -> None:
    """Recorded as given: a link such as /opt/spark stays one. The Python stays what it is."""
    installation(tmp_path / "spark-4.2")
    link = tmp_path / "spark"
    link.symlink_to(tmp_path / "spark-4.2")
    assert environment(spark=str(link), environment={"A": "1"}) == {"A": "1", "SPARK_HOME": str(link)}
    assert "environment" not in read_patch(spark="").values


def virtual_environment(folder: Path, python: str = "python3.11") -> Path:
    """A folder that looks like a virtual environment with pyspark."""
    installation(folder / "lib" / python / "site-packages" / "pyspark")
    program = folder / "bin" / "python"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return folder


def test_a_virtual_environment_brings_its_python(tmp_path: Path) -> None:
    """Driver and workers run the Python that has this pyspark; one that is too old is refused."""
    venv = virtual_environment(tmp_path / "venv")
    assert environment(spark=str(venv)) == {
        "SPARK_HOME": str(venv / "lib" / "python3.11" / "site-packages" / "pyspark"),
        **dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(venv / "bin" / "python")),
    }
    with pytest.raises(InvalidRequestError, match="too old") as error:
        read_patch(spark=str(virtual_environment(tmp_path / "old", "python3.8")))
    assert error.value.context["python"] == "3.8"


def test_workers_elsewhere_keep_their_own_python(tmp_path: Path) -> None:
    """A path of this machine means nothing on theirs; the driver is on this one."""
    venv = virtual_environment(tmp_path / "venv")
    for master, count in (("spark://h:7077", 2), ("local[2]", 3), ("", 3)):
        found = patched(before(), read_patch(spark=str(venv), master=master)).environment
        assert (len(found), found["PYSPARK_DRIVER_PYTHON"]) == (count, str(venv / "bin" / "python"))


def test_the_python_of_the_spark_before_goes_with_it(tmp_path: Path) -> None:
    """From a virtual environment to an installation, whose Python is again the launcher's choice; another one stays."""
    venv, spark = virtual_environment(tmp_path / "venv"), str(installation(tmp_path / "spark"))
    old = environment(spark=str(venv), environment={"A": "1"})
    assert patched(before(environment=old), read_patch(spark=spark)).environment == {"A": "1", "SPARK_HOME": spark}
    own = {**old, "PYSPARK_PYTHON": "/own/bin/python"}
    found = patched(before(environment=own), read_patch(spark=spark)).environment
    assert found == {"A": "1", "SPARK_HOME": spark, "PYSPARK_PYTHON": "/own/bin/python"}


def before(**values: Any) -> Version:
    """The version that a patch changes."""
    return replace(Version(NO_SCRIPT), **values)


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    """No Spark there; a variable that names another one; drivers that a launcher or a connection starts elsewhere, also
    by what stays of the version before."""
    spark = str(installation(tmp_path / "spark"))
    with pytest.raises(InvalidRequestError, match="no Spark at this path") as error:
        read_patch(spark=str(tmp_path / "nothing"))
    assert error.value.context["spark"] == str(tmp_path / "nothing")
    with pytest.raises(InvalidRequestError, match="say different things") as error:
        read_patch(spark=spark, environment={"SPARK_HOME": "/other"})
    assert error.value.context["variables"] == ["SPARK_HOME"]
    for given in ({"launcher": LauncherChoice("kubernetes")}, {"spark_conn_id": "spark_default"}):
        with pytest.raises(InvalidRequestError, match="of this machine"):
            patched(before(), read_patch(spark=spark, **given))
        with pytest.raises(InvalidRequestError, match="of this machine"):
            patched(before(**given), read_patch(spark=spark))
    assert environment(spark=spark, launcher=LauncherChoice("local")) == {"SPARK_HOME": spark}
