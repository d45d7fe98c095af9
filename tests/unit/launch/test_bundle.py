"""The files of a driver on another machine."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_streamstate.driver.config import read_driver_config
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.command import build_bundle
from airflow_streamstate.launch.interface import LaunchRequest
from support.launches import launch_request

SECRET = "hunter2-but-longer"
CONFIG = {
    "home_uri": "s3://streams/home",
    "checkpoints_uri": "s3://streams/home",
    "stream_id": "flights",
    "deployment_id": "d-0001",
    "attempt": 1,
    "secrets": [SECRET],
}


def request_of(folder: Path) -> LaunchRequest:
    """A script with a module alongside it and one file of each kind."""
    job = folder / "code" / "job.py"
    (job.parent / "lib").mkdir(parents=True)
    job.write_text("import lib.sums\n")
    (job.parent / "lib" / "sums.py").write_text("def add(): pass\n")
    for name in ("more.py", "table.csv", "driver.jar"):
        (folder / name).write_text(name)
    return replace(
        launch_request(folder, ""),
        application=str(job),
        modules=("lib/sums.py",),
        arguments=("--token", SECRET),
        master="k8s://https://kubernetes.default.svc",
        conf={"spark.sql.shuffle.partitions": "5", "spark.hadoop.fs.s3a.secret.key": SECRET},
        environment={"TOKEN": SECRET},
        py_files=(str(folder / "more.py"), "s3a://bucket/shared.zip"),
        files=(f"{folder / 'table.csv'}#other.csv",),
        jars=("local:/opt/x.jar", str(folder / "driver.jar")),
        packages=("org.example:thing:1.0",),
        spark_submit=None,
        driver_config=CONFIG,
    )


def test_every_path_is_relative_and_every_file_is_there(tmp_path: Path) -> None:
    """Nothing of the caller's machine is named to the driver."""
    bundle = build_bundle(request_of(tmp_path))
    assert str(tmp_path) not in " ".join(bundle.submit_arguments)
    given = dict(zip(bundle.submit_arguments, bundle.submit_arguments[1:], strict=False))
    listed = given["--py-files"].split(",") + given["--files"].split(",") + given["--jars"].split(",")
    assert {"s3a://bucket/shared.zip", "local:/opt/x.jar", "files/table.csv#other.csv"} <= set(listed)
    for name in listed:
        assert name.partition("#")[0] in bundle.files or ":" in name, name
    assert bundle.files["code/lib/sums.py"] == b"def add(): pass\n"
    assert bundle.submit_arguments[-3:] == ("runner.py", "--", "driver.json")


def test_a_spark_3_has_its_defaults_in_the_one_file(tmp_path: Path) -> None:
    """Below the version's own settings, also where a launcher adds more."""
    home = tmp_path / "spark"
    for name in ("jars/spark-core_2.12-3.5.9.jar", "conf/spark-defaults.conf"):
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text("spark.a theirs")
    bundle = build_bundle(request_of(tmp_path), home)
    assert "--load-spark-defaults" not in bundle.submit_arguments
    for found in (bundle, bundle.with_conf({**bundle.conf, "spark.b": "more"})):
        assert found.files["spark.properties"].startswith(b"spark.a theirs\n\n")
    assert b"spark.b=more" in found.files["spark.properties"]
    assert "--load-spark-defaults" in build_bundle(request_of(tmp_path / "other")).submit_arguments


def test_secrets_are_in_two_files_only(tmp_path: Path) -> None:
    """The command line holds none; the two files are for the driver's user alone."""
    bundle = build_bundle(request_of(tmp_path))
    assert SECRET not in " ".join(bundle.submit_arguments)
    assert {name for name, body in bundle.files.items() if SECRET.encode() in body} == {
        "driver.json",
        "spark.properties",
    }


def test_the_driver_finds_its_script_beside_its_configuration(tmp_path: Path) -> None:
    """Wherever the launcher has put the folder."""
    bundle = build_bundle(request_of(tmp_path))
    place = tmp_path / "elsewhere"
    for name, body in bundle.files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(body)
    config = read_driver_config(place / "driver.json")
    assert Path(config.application).read_text() == "import lib.sums\n"
    assert config.environment == {"TOKEN": SECRET}
    assert json.loads(bundle.files["driver.json"])["application"] == "code/job.py"


def test_the_runtime_is_small(tmp_path: Path) -> None:
    """It fits into one object of a cluster, of at most 1 MiB."""
    name = "airflow_streamstate_runtime.zip"
    body = build_bundle(request_of(tmp_path)).files[name]
    assert len(body) < 900_000
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        assert archive.testzip() is None


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Before anything is sent."""
    request = replace(request_of(tmp_path), py_files=(str(tmp_path / "nosuch.py"),))
    with pytest.raises(InvalidRequestError, match="not there"):
        build_bundle(request)


def test_wildcards_are_the_files_that_match(tmp_path: Path) -> None:
    """As for a driver on this machine."""
    (tmp_path / "jars").mkdir()
    for name in ("a.jar", "b.jar"):
        (tmp_path / "jars" / name).write_text(name)
    bundle = build_bundle(replace(request_of(tmp_path), jars=(f"{tmp_path}/jars/*.jar",)))
    assert {"jars/a.jar", "jars/b.jar"} <= set(bundle.files)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    """One would take the place of the other."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jar").write_text(folder)
    jars = (str(tmp_path / "one" / "x.jar"), str(tmp_path / "two" / "x.jar"))
    with pytest.raises(InvalidRequestError, match="the same name"):
        build_bundle(replace(request_of(tmp_path), jars=jars))


def test_what_names_this_machine_is_not_asked_of_another(tmp_path: Path) -> None:
    """A path with a scheme is the driver's own; a working folder here is none there."""
    bundle = build_bundle(replace(request_of(tmp_path), jars=("file:/opt/nosuch.jar",)))
    assert "file:/opt/nosuch.jar" in bundle.submit_arguments
    (tmp_path / "again").mkdir()
    with pytest.raises(InvalidRequestError, match="the folder of their launch"):
        build_bundle(replace(request_of(tmp_path / "again"), working_folder=str(tmp_path)))
