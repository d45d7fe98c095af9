"""A Spark that is named by its path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.controller.request.patch import (
    NO_SCRIPT,
    check_rewriter,
    patched,
    read_patch,
    rewriter_back,
)
from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.errors import InvalidRequestError, UnsupportedCheckpointError
from airflow_streamstate.protocol.records import StateRewrite
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


@pytest.mark.parametrize("is_virtual", [False, True])
def test_a_spark_on_which_no_stream_was_tried_is_refused(tmp_path: Path, is_virtual: bool) -> None:
    """By the name of its jar, before anything starts; one without a version is let through (Law 10)."""
    place = (virtual_environment if is_virtual else installation)(tmp_path / "spark")
    [jars] = place.rglob("jars")
    (jars / "spark-core_2.12-3.5.1.jar").touch()
    assert environment(spark=str(place))["SPARK_HOME"] == str(jars.parent)
    (jars / "spark-core_2.12-3.5.1.jar").rename(jars / "spark-core_2.12-3.4.4.jar")
    with pytest.raises(UnsupportedCheckpointError, match=r"need Spark 3\.5 or newer, and this is Spark 3\.4\.4"):
        read_patch(spark=str(place))


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


def of_version(home: Path, version: str) -> str:
    (installation(home) / "jars" / f"spark-core_2.13-{version}.jar").write_bytes(b"")
    return str(home)


def test_a_rewriter_is_checked_where_it_is_one_of_this_machine_and_needed(tmp_path: Path) -> None:
    """Before anything is recorded; what an image or another machine has is not seen from here."""
    old, new = of_version(tmp_path / "3.5", "3.5.9"), of_version(tmp_path / "4.2", "4.2.0")
    on_old, on_new = (before(environment={"SPARK_HOME": spark}) for spark in (old, new))
    check_rewriter(StateRewrite(4, rewriter_spark=new), on_old)
    with pytest.raises(InvalidRequestError, match="this Spark cannot rewrite state") as error:
        check_rewriter(StateRewrite(4, rewriter_spark=old), on_old)
    assert error.value.context["version"] == "3.5.9"
    nowhere = StateRewrite(4, rewriter_spark=str(tmp_path / "nowhere"))
    with pytest.raises(InvalidRequestError, match="no Spark at this path"):
        check_rewriter(nowhere, on_old)
    for version in (on_new, before(launcher=LauncherChoice("kubernetes"))):
        check_rewriter(nowhere, version)
    check_rewriter(None, on_old)


def test_the_way_back_has_a_spark_that_rewrites(tmp_path: Path) -> None:
    """The one that was named, also for the old version; else that of the version that is left."""
    old, new = (
        before(environment={"SPARK_HOME": of_version(tmp_path / version, version)}) for version in ("3.5.9", "4.2.0")
    )
    plain, named = StateRewrite(4), StateRewrite(4, rewriter_spark="/opt/spark-4.2")
    assert rewriter_back(plain, None, old, new) == new.environment["SPARK_HOME"]
    assert rewriter_back(named, None, old, new) == rewriter_back(plain, named, old, new) == "/opt/spark-4.2"
    assert rewriter_back(plain, None, new, new) == "", "the old version does it itself"
    assert rewriter_back(plain, None, old, old) == ""
    assert rewriter_back(plain, None, old, replace(new, launcher=LauncherChoice("yarn"))) == ""


def test_a_rewriter_alone_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rewrite it is recorded by its whole path."""
    monkeypatch.chdir(tmp_path)
    assert change_request("orders", rewriter_spark="spark").rewrite is None
    assert change_request("orders", rewriter_spark="spark", partitions=4).rewrite == StateRewrite(
        4, rewriter_spark=str(tmp_path / "spark")
    )
