"""Finding spark-submit, python and Java."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.launch.spark_home import (
    REWRITER_SPARK,
    check_java,
    find_java,
    find_spark_submit,
    own_pyspark,
    own_spark_submit,
    prepare_rewriter,
    python_environment,
    resolve_spark_submit,
    version_of,
)


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_spark_home_comes_first(tmp_path: Path) -> None:
    """An installation that the user names is the one that is used."""
    path = program(tmp_path / "bin" / "spark-submit")
    assert find_spark_submit({"SPARK_HOME": str(tmp_path)}) == (str(path),)
    assert own_spark_submit({"SPARK_HOME": str(tmp_path)}).spark_home == tmp_path


def test_a_wrong_spark_home_is_named(tmp_path: Path) -> None:
    """Nothing else is used instead of an installation that the user named and that is not there."""
    with pytest.raises(InvalidRequestError, match="SPARK_HOME") as caught:
        find_spark_submit({"SPARK_HOME": str(tmp_path)})
    assert "Install" in caught.value.next_step


@pytest.mark.fast
def test_the_own_pyspark_is_said_outright() -> None:
    """This python's pyspark is used whatever python3 is on PATH, by naming it as SPARK_HOME."""
    own = own_pyspark()
    assert own is not None
    submit = own_spark_submit({"PATH": "/nowhere"})
    assert submit.prefix == (str(own / "bin" / "spark-submit"),)
    assert submit.environment == {"SPARK_HOME": str(own)}


def test_a_given_program_is_found_on_path(tmp_path: Path) -> None:
    """A bare name is looked for on the driver's PATH; its options stay."""
    path = program(tmp_path / "bin" / "spark3-submit")
    submit = resolve_spark_submit(("spark3-submit", "--queue", "q"), {"PATH": str(path.parent)})
    assert submit.prefix == (str(path), "--queue", "q")
    assert submit.environment == {}


def test_the_python_of_a_pip_installation_goes_with_it(tmp_path: Path) -> None:
    """A spark-submit of a different virtual environment runs with that environment's python, which has its pyspark."""
    path = program(tmp_path / "bin" / "spark-submit")
    program(tmp_path / "bin" / "find_spark_home.py")
    python = program(tmp_path / "bin" / "python3")
    assert resolve_spark_submit((str(path),), {}).environment == {"PYSPARK_PYTHON": str(python)}


@pytest.mark.parametrize("prefix", [(), ("",), ("no-such-program",), ("/no/such/program",)])
def test_a_given_program_that_is_not_there_is_named(prefix: tuple[str, ...]) -> None:
    """A command that cannot be run is refused before anything is started."""
    with pytest.raises(InvalidRequestError, match="command that is to start Spark"):
        resolve_spark_submit(prefix, {"PATH": "/nowhere"})


@pytest.mark.parametrize(
    ("environ", "here", "added"),
    [
        ({}, True, {"PYSPARK_PYTHON": sys.executable}),
        ({}, False, {"PYSPARK_DRIVER_PYTHON": sys.executable}),
        ({"PYSPARK_PYTHON": "/p"}, True, {}),
        ({"PYSPARK_PYTHON": "/p"}, False, {}),
        ({"PYSPARK_DRIVER_PYTHON": "/d"}, True, {"PYSPARK_PYTHON": "/d"}),
        ({"PYSPARK_DRIVER_PYTHON": "/d"}, False, {}),
    ],
)
def test_a_python_is_named_where_the_user_names_none(
    environ: dict[str, str], here: bool, added: dict[str, str]
) -> None:
    """Spark would take the first python3 on PATH; on a cluster's machines this python's path means nothing."""
    assert python_environment(environ, on_this_machine=here) == added


def test_java_is_that_of_java_home_or_of_path(tmp_path: Path) -> None:
    """The Java that spark-submit would use is the one that is looked for."""
    java = program(tmp_path / "jdk" / "bin" / "java")
    assert find_java({"JAVA_HOME": str(tmp_path / "jdk"), "PATH": "/nowhere"}) == str(java)
    assert find_java({"PATH": str(java.parent)}) == str(java)


@pytest.mark.parametrize("environ", [{"PATH": "/nowhere"}, {"JAVA_HOME": "/nowhere", "PATH": "/usr/bin"}])
def test_no_java_is_one_clear_sentence(environ: dict[str, str]) -> None:
    """A missing Java is reported with what to install, also where a wrong JAVA_HOME hides a right one on PATH."""
    with pytest.raises(InvalidRequestError, match="Spark needs Java, which is not found") as caught:
        check_java(environ, None)
    assert "Install a Java 17 runtime" in caught.value.next_step


def test_an_installation_may_set_java_itself(tmp_path: Path) -> None:
    """Where a spark-env.sh may set JAVA_HOME, nothing is refused."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-env.sh").write_text("")
    check_java({"PATH": "/nowhere"}, tmp_path)


@pytest.mark.parametrize(
    ("jars", "version"),
    [
        (["spark-core_2.13-4.1.4.jar", "spark-sql_2.13-4.1.4.jar"], "4.1.4"),
        (["spark-core_2.13-4.3.0-SNAPSHOT.jar"], "4.3.0-SNAPSHOT"),
        (["spark-sql_2.13-4.1.4.jar"], ""),
        (["spark-core_2.13-4.1.4.jar", "spark-core_2.13-4.2.0.jar"], ""),
    ],
)
def test_an_installation_tells_its_version_by_its_core(tmp_path: Path, jars: list[str], version: str) -> None:
    """Which Spark would run a driver is known without starting it; if it cannot be known, nothing is guessed."""
    (tmp_path / "jars").mkdir()
    for jar in jars:
        (tmp_path / "jars" / jar).write_bytes(b"")
    assert version_of(tmp_path) == version
    assert version_of(None) == ""


def test_a_rewriter_that_cannot_be_installed_is_one_sentence(tmp_path: Path) -> None:
    """With pip's own reason, the network before what pip makes of it; the next call begins anew. One that is whole is
    used as it is."""
    said: list[str] = []
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
        "XDG_CACHE_HOME": str(tmp_path),
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_CACHE_DIR": "1",
    }
    with pytest.raises(UnavailableError, match="could not be installed") as error:
        prepare_rewriter(environ, said.append)
    assert "\n" not in str(error.value)
    assert "refused" in str(error.value.context["reason"])
    folder = tmp_path / "streamstate" / "rewriter" / REWRITER_SPARK
    assert said == [f"pip installs Spark {REWRITER_SPARK} (500 MB) into {folder}"]
    assert list(folder.parent.iterdir()) == []  # nothing half made is left
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "streamstate-rewriter").write_text("")
    assert prepare_rewriter(environ, said.append) == folder
    assert len(said) == 1


def test_two_that_install_the_rewriter_at_once_have_one(tmp_path: Path) -> None:
    """Each installs under a name of its own; one is left, whole, in its place."""
    name = f"pyspark-{REWRITER_SPARK}"
    facts = f"Metadata-Version: 2.1\nName: pyspark\nVersion: {REWRITER_SPARK}\nProvides-Extra: sql\n"
    with zipfile.ZipFile(tmp_path / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("pyspark/__init__.py", "")
        wheel.writestr(f"{name}.dist-info/METADATA", facts)
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
        "XDG_CACHE_HOME": str(tmp_path),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
        "PIP_CONFIG_FILE": os.devnull,
    }
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: prepare_rewriter(environ, lambda _: None), range(2))
    assert first == second
    assert [path.name for path in first.parent.iterdir()] == [REWRITER_SPARK]
    subprocess.run([first / "bin" / "python", "-I", "-c", "import pyspark"], check=True, timeout=60)
