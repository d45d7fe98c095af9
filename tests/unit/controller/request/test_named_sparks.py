"""A Spark that is named by its path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.controller.request.patch import read_patch
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.terms.version import LauncherChoice


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


def test_a_virtual_environment_brings_its_python(tmp_path: Path) -> None:
    """Driver and workers run the Python that has this pyspark."""
    home = installation(tmp_path / "venv" / "lib" / "python3.11" / "site-packages" / "pyspark")
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    assert environment(spark=str(tmp_path / "venv")) == {
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
    }


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    """No Spark there; a variable that names another one; drivers that a launcher or a connection starts elsewhere."""
    spark = str(installation(tmp_path / "spark"))
    with pytest.raises(InvalidRequestError, match="no Spark at this path") as error:
        read_patch(spark=str(tmp_path / "nothing"))
    assert error.value.context["spark"] == str(tmp_path / "nothing")
    with pytest.raises(InvalidRequestError, match="different installations") as error:
        read_patch(spark=spark, environment={"SPARK_HOME": "/other"})
    assert error.value.context["variables"] == ["SPARK_HOME"]
    for given in ({"launcher": LauncherChoice("kubernetes")}, {"spark_conn_id": "spark_default"}):
        with pytest.raises(InvalidRequestError, match="of this machine"):
            read_patch(spark=spark, **given)
    assert environment(spark=spark, launcher=LauncherChoice("local")) == {"SPARK_HOME": spark}
