"""The command line of a driver."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.launch.command import MODULES_ZIP, DriverCommand, build_command, check_request
from support.launches import launch_request
from support.loopback import free_port


def command(base: Path, environ: dict[str, str] | None = None, **changes: Any) -> DriverCommand:
    return build_command(launch_request(base, "", **changes), environ or {})


def option(built: DriverCommand, name: str) -> str:
    return built.argv[built.argv.index(name) + 1]


def properties(built: DriverCommand) -> list[str]:
    return built.files["spark.properties"].decode().splitlines()


def test_the_whole_command(tmp_path: Path) -> None:
    """Everything has its place: our zip first, the runner as the application, its file as its only argument."""
    folder = tmp_path / "launches" / "d-0001-a0001"
    for name in ("more.zip", "f.json", "j.jar"):
        (tmp_path / name).touch()
    built = command(
        tmp_path,
        py_files=(str(tmp_path / "more.zip"), "hdfs://nn/x.zip"),
        files=(str(tmp_path / "f.json"), f"file:{tmp_path / 'f.json'}#alias"),
        packages=("g:a:1", "g:b:2"),
        jars=(str(tmp_path / "j.jar"), str(tmp_path / "*.jar")),
    )
    assert built.argv == (
        str(tmp_path / "fake-submit"),
        *("--master", "local[2]", "--deploy-mode", "client"),
        *("--properties-file", str(folder / "spark.properties"), "--load-spark-defaults"),
        *("--py-files", f"{folder / 'airflow_streamstate_runtime.zip'},{tmp_path / 'more.zip'},hdfs://nn/x.zip"),
        *("--files", f"{tmp_path / 'f.json'},file:{tmp_path / 'f.json'}#alias"),
        *("--packages", "g:a:1,g:b:2"),
        *("--jars", f"{tmp_path / 'j.jar'},{tmp_path / '*.jar'}"),
        *(str(folder / "runner.py"), "--", str(folder / "driver.json")),
    )


def test_arguments_and_configuration_travel_in_files(tmp_path: Path) -> None:
    """Nothing that may be secret is on the command line."""
    built = command(
        tmp_path,
        arguments=("--password", "hunter2"),
        conf={"spark.secret": "hunter3"},
        driver_config={"home_uri": "/home", "application": "overruled"},
    )
    assert "hunter" not in " ".join(built.argv)
    assert json.loads(built.files["driver.json"]) == {
        "application": str(tmp_path / "job.py"),
        "arguments": ["--password", "hunter2"],
        "home_uri": "/home",
        "launch_key": "d-0001-a0001",
        "modules": [],
    }
    assert properties(built) == ["spark.app.name=job.py", "spark.secret=hunter3", "spark.ui.enabled=false"]


def test_the_users_configuration_comes_before_our_defaults(tmp_path: Path) -> None:
    """The UI is off and the name is the script's, unless the user sets them otherwise."""
    built = command(tmp_path, conf={"spark.ui.enabled": "true", "spark.app.name": "orders"})
    assert properties(built) == ["spark.app.name=orders", "spark.ui.enabled=true"]


@pytest.mark.parametrize(
    ("master", "added"),
    [
        ("local", True),
        ("local[*]", True),
        ("local-cluster[2,1,512]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://10.0.0.7:7077", False),
        ("yarn", False),
        ("k8s://https://127.0.0.1:6443", False),
    ],
)
def test_a_master_on_this_machine_keeps_spark_on_loopback(tmp_path: Path, master: str, added: bool) -> None:
    """Spark listens on every interface otherwise; the workers' python is named only where the workers are here."""
    environment = command(tmp_path, master=master).environment
    assert environment.get("SPARK_LOCAL_IP") == ("127.0.0.1" if added else None)
    assert ("PYSPARK_PYTHON" in environment) is added


def with_modules(tmp_path: Path, *names: str, **changes: Any) -> DriverCommand:
    """A script with these modules alongside it."""
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"x = {name!r}\n")
    return command(tmp_path, {"PYTHONPATH": "/theirs"}, modules=names, **changes)


def test_python_on_this_machine_imports_the_scripts_modules_as_they_were_pinned(tmp_path: Path) -> None:
    """From the folder of the launch, and not from the current folder, which holds what was changed since. (Law 15)"""
    built = with_modules(tmp_path, "helpers.py", "lib/fast.so")
    assert built.environment["PYTHONPATH"] == f"{tmp_path}:/theirs"
    assert built.environment["PYTHONSAFEPATH"] == "1"
    assert json.loads(built.files["driver.json"])["modules"] == ["helpers.py", "lib/fast.so"]
    assert MODULES_ZIP not in built.files
    assert "PYTHONSAFEPATH" not in command(tmp_path, {}).environment


@pytest.mark.parametrize("master", ["spark://h:1", "local-cluster[2,1,512]", "yarn"])
def test_executors_elsewhere_get_the_scripts_modules_as_a_zip(tmp_path: Path, master: str) -> None:
    """Behind the driver's own zip and the user's files; equal modules make equal bytes."""
    built = with_modules(tmp_path, "lib/rules.py", "helpers.py", master=master)
    assert option(built, "--py-files").split(",")[-1].endswith(f"/{MODULES_ZIP}")
    with zipfile.ZipFile(io.BytesIO(built.files[MODULES_ZIP])) as archive:
        assert archive.namelist() == ["helpers.py", "lib/", "lib/rules.py"]
        assert archive.read("helpers.py") == b"x = 'helpers.py'\n"
    again = with_modules(tmp_path, "helpers.py", "lib/rules.py", master=master)
    assert again.files[MODULES_ZIP] == built.files[MODULES_ZIP]
    with pytest.raises(InvalidRequestError, match="cannot be sent to executors"):
        with_modules(tmp_path, "fast.cpython-311.so", master=master)


def test_the_users_environment_comes_before_ours(tmp_path: Path) -> None:
    """An address, a python that the user names stay; the request's environment comes before the launcher's."""
    inherited = {"SPARK_LOCAL_IP": "10.0.0.1", "PYSPARK_PYTHON": "/inherited", "PATH": "/bin", "A": "1"}
    built = command(tmp_path, inherited, environment={"PYSPARK_PYTHON": "/asked", "B": "2"})
    assert built.environment == {
        **inherited,
        "PYSPARK_PYTHON": "/asked",
        "B": "2",
    }


def test_a_given_prefix_is_joined_with_the_request(tmp_path: Path) -> None:
    """What a connection sets stays in force, below what the request sets, and its secrets leave the command line."""
    program = launch_request(tmp_path, "").spark_submit
    assert program is not None
    for name in ("a.zip", "b.zip"):
        (tmp_path / name).touch()
    prefix = (
        *(*program, "--master", "spark://h:1", "--queue", "q", "--properties-file", "/theirs"),
        *("--conf", "spark.a=theirs", "--conf", "spark.b=theirs", "--py-files", str(tmp_path / "a.zip")),
    )
    built = command(
        tmp_path, spark_submit=prefix, master="", conf={"spark.b": "ours"}, py_files=(str(tmp_path / "b.zip"),)
    )
    assert built.argv[1:9] == (
        *("--master", "spark://h:1", "--queue", "q", "--properties-file", "/theirs"),
        *("--deploy-mode", "client"),
    )
    assert built.argv[9] == "--extra-properties-file"
    assert "--load-spark-defaults" not in built.argv
    assert option(built, "--py-files").split(",")[1:] == [str(tmp_path / "a.zip"), str(tmp_path / "b.zip")]
    assert {"spark.a=theirs", "spark.b=ours"} <= set(properties(built))


def old_spark(base: Path) -> dict[str, str]:
    """The environment of an installation of Spark 3.5, which loads one properties file alone."""
    home = base / "spark-3.5"
    (home / "jars").mkdir(parents=True)
    (home / "jars" / "spark-core_2.12-3.5.9.jar").touch()
    (home / "conf").mkdir()
    (home / "conf" / "spark-defaults.conf").write_text("spark.a theirs\nspark.b theirs")
    return {"SPARK_HOME": str(home)}


def test_spark_3_gets_one_file_with_its_defaults_first(tmp_path: Path) -> None:
    """It has no option for a second file; of a key that is in both the last line counts."""
    environ = old_spark(tmp_path)
    built = command(tmp_path, environ, conf={"spark.b": "ours"})
    assert option(built, "--properties-file") == str(tmp_path / "launches" / "d-0001-a0001" / "spark.properties")
    assert not {"--load-spark-defaults", "--extra-properties-file"} & set(built.argv)
    found = properties(built)
    assert found[:2] == ["spark.a theirs", "spark.b theirs"]
    assert found.index("spark.b=ours") > 1
    (Path(environ["SPARK_HOME"]) / "conf" / "spark-defaults.conf").unlink()
    assert "spark.a theirs" not in properties(command(tmp_path, environ))


def test_spark_3_keeps_the_users_own_file_below_ours(tmp_path: Path) -> None:
    """In place of its defaults, as it does itself; one that is not there is refused by its name."""
    environ, own = old_spark(tmp_path), tmp_path / "own.properties"
    own.write_text("spark.c=theirs\\")
    program = launch_request(tmp_path, "").spark_submit
    assert program is not None
    built = command(tmp_path, environ, spark_submit=(*program, "--properties-file", str(own)))
    assert [place for place, word in enumerate(built.argv) if word == "--properties-file"][-1] > built.argv.index(
        str(own)
    )
    assert properties(built)[:2] == ["spark.c=theirs\\", ""]  # the empty line ends what the backslash continues
    assert "spark.a theirs" not in properties(built)
    own.unlink()
    with pytest.raises(InvalidRequestError, match="cannot be read") as error:
        command(tmp_path, environ, spark_submit=(*program, "--properties-file", str(own)))
    assert error.value.context["file"] == str(own)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"master": "lokal"}, "not a master"),
        ({"master": ""}, "not a master"),
        ({"master": "sc://h:1"}, "not a master"),
        ({"conf": {"shuffle.partitions": "2"}}, "does not start with 'spark.'"),
        ({"conf": {"spark.a ": "2"}}, "does not start with 'spark.'"),
        ({"conf": {"spark.a": "2 "}}, "starts or ends with a blank"),
        ({"conf": {"spark.submit.deployMode": "cluster"}}, "not in cluster mode"),
        (
            {"conf": {"spark.submit.deployMode": "cluster"}, "master": "spark://head:7077"},
            "take no Python drivers in cluster mode. `--launcher ssh`",
        ),
        ({"conf": {"spark.submit.deployMode": "cluster"}, "master": "yarn"}, "--launcher yarn"),
        ({"conf": {"spark.remote": "sc://h"}}, "Spark Connect"),
        ({"conf": {"spark.api.mode": "connect"}}, "Spark Connect"),
        ({"environment": {"SPARK_REMOTE": "sc://h"}}, "Spark Connect"),
        ({"application": "/no/such/job.py"}, "the script is not there"),
        ({"application": "job.py"}, "must be an absolute path"),
        ({"log_path": "driver.log"}, "must be an absolute path"),
        ({"working_folder": "/no/such/folder"}, "run in is not on this machine"),
        ({"py_files": ("/no/such.zip",)}, "is not there"),
        ({"jars": ("/no/such.jar",)}, "is not there"),
        ({"jars": ("file:/no/such.jar",)}, "is not there"),
        ({"conf": {"spark.jars": "/no/such.jar"}}, "is not there"),
        ({"files": ("/with,comma",)}, "contains a comma"),
        ({"folder": "/with,comma"}, "contains a comma"),
        ({"folder": "/with#hash"}, "contains a '#'"),
    ],
    ids=str,
)
def test_what_spark_would_pass_or_say_late_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """What cannot run, or would run differently than asked, is refused explicitly before a JVM starts."""
    with pytest.raises(InvalidRequestError, match=words):
        command(tmp_path, **changes)


@pytest.mark.parametrize("key", ["spark.auth.password", "spark.rpc.token", "spark.network.x.secret"])
def test_what_spark_would_show_on_every_executor_is_refused(tmp_path: Path, key: str) -> None:
    """Spark puts such keys on its executors' command lines; where it starts none, they are as good as others."""
    with pytest.raises(InvalidRequestError, match="on the command line of every executor") as caught:
        command(tmp_path, master="spark://127.0.0.1:1", conf={key: "hunter2"})
    assert "hunter2" not in str(caught.value)
    command(tmp_path, master="local[2]", conf={key: "hunter2"})


@pytest.mark.parametrize(
    "key", ["spark.authenticate.secret", "spark.authenticate.secretBitLength", "spark.network.auth.rpcTimeout"]
)
def test_what_spark_keeps_to_itself_or_is_no_secret_passes(tmp_path: Path, key: str) -> None:
    """Its own secret travels by the environment, and its settings of the same beginnings are none."""
    assert f"{key}=256" in properties(command(tmp_path, master="spark://127.0.0.1:1", conf={key: "256"}))


def test_no_error_shows_a_value(tmp_path: Path) -> None:
    """Errors name keys and paths, never the value of a configuration."""
    with pytest.raises(InvalidRequestError) as caught:
        command(tmp_path, conf={"spark.password": "hunter2 "})
    assert "hunter2" not in str(caught.value)


@pytest.mark.fast
def test_the_machines_own_spark_is_used_where_none_is_given(tmp_path: Path) -> None:
    """Without a prefix the command starts with the first spark-submit, and a missing Java is reported at once."""
    with pytest.raises(InvalidRequestError, match="Spark needs Java"):
        command(tmp_path, {"PATH": "/nowhere"}, spark_submit=None)
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("")
    java.chmod(0o755)
    built = command(tmp_path, {"PATH": str(java.parent)}, spark_submit=None)
    assert built.argv[0].endswith("/bin/spark-submit")
    assert built.argv[0].startswith(built.environment["SPARK_HOME"])


def test_what_reaches_s3_is_brought_beside_what_the_user_brings(tmp_path: Path) -> None:
    """Packages and excludes are joined, never replaced; credentials stay in the properties file."""
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "hadoop-client-api-3.5.0.jar").touch()
    built = command(
        tmp_path,
        {"SPARK_HOME": str(tmp_path / "spark")},
        needs_s3=True,
        packages=("g:a:1",),
        conf={
            "spark.jars.packages": "g:b:2",
            "spark.jars.excludes": "g:c",
            "spark.hadoop.fs.s3a.bucket.b.secret.key": "hunter2",
        },
    )
    packages = option(built, "--packages").split(",")
    assert packages[:3] == ["g:b:2", "g:a:1", "org.apache.hadoop:hadoop-aws:3.5.0"]
    (excludes,) = [line for line in properties(built) if line.startswith("spark.jars.excludes=")]
    assert excludes.startswith("spark.jars.excludes=g:c,software.amazon.awssdk:bundle,")
    assert "hunter2" not in " ".join(built.argv)
    assert "spark.hadoop.fs.s3a.bucket.b.secret.key=hunter2" in properties(built)
    plain = command(tmp_path, {"SPARK_HOME": str(tmp_path / "spark")}, packages=("g:a:1",))
    assert option(plain, "--packages") == "g:a:1"


def test_pinned_jars_are_fetched_by_a_launch_alone(tmp_path: Path) -> None:
    """A check leaves nothing behind, and asks no repository."""
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "hadoop-client-api-3.5.0.jar").touch()
    environ = {
        "SPARK_HOME": str(tmp_path / "spark"),
        "STREAMSTATE_MAVEN_URL": f"http://127.0.0.1:{free_port()}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    conf = {"spark.streamstate.s3.packages": "pinned"}
    check_request(launch_request(tmp_path, "", needs_s3=True, conf=conf), environ)
    with pytest.raises(UnavailableError, match="does not answer"):
        command(tmp_path, environ, needs_s3=True, conf=conf)
    assert not (tmp_path / "cache").exists()


def test_a_spark_that_cannot_reach_s3_is_refused_before_it_starts(tmp_path: Path) -> None:
    """Which Hadoop it is cannot be seen: reported, with the setting that helps."""
    with pytest.raises(InvalidRequestError, match="the Hadoop"):
        command(tmp_path, {"SPARK_HOME": str(tmp_path / "nothing")}, needs_s3=True)
    assert "--packages" not in command(tmp_path, needs_s3=True, conf={"spark.streamstate.s3.packages": "none"}).argv
