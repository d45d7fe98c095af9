"""``home doctor``."""

from __future__ import annotations

import importlib.metadata
import socket
import sys
from pathlib import Path

import pytest

from airflow_streamstate.cli.doctor import (
    driver_python,
    is_older,
    java_check,
    known_bad_check,
    library_checks,
    machine_checks,
    protobuf_wanted,
    pyspark_checks,
    stateful_checks,
    versions_in,
)
from airflow_streamstate.launch.submit_options import own_disk_note
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import to_bytes
from airflow_streamstate.store.local import LocalStore
from support.recorded_specs import with_version
from support.s3_server import BUCKET
from support.shell import Answer, Desk, shell

pytestmark = pytest.mark.fast


def fake_java(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch, body: str = "") -> None:
    """A Java that reports the given version."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{body}\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(folder))


@pytest.mark.parametrize(("version", "ok"), [("17.0.15", True), ("21", True), ("11.0.2", False), ("1.8.0_402", False)])
def test_java_must_be_one_that_spark_runs_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, ok: bool
) -> None:
    """17 and 21 are; others are named, with the remedy."""
    fake_java(tmp_path / "java", version, monkeypatch)
    check = java_check()
    assert check.ok is ok
    assert version in check.found
    assert bool(check.mend) is not ok


def test_a_machine_without_java_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME that is none, and a Java that is silent, are both no Java."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nosuch"))
    assert not java_check().ok
    java = tmp_path / "silent" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "silent"))
    assert not java_check().ok


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, *, pyspark: str, client: str, code: str) -> None:
    """A site folder where these versions are installed."""
    (folder / "pyspark").mkdir(parents=True)
    (folder / "pyspark" / "__init__.py").write_text("")
    (folder / "pyspark" / "version.py").write_text(f'__version__: str = "{code}"\n')
    for name, version in (("pyspark", pyspark), ("pyspark_client", client)):
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)  # looked up again, though another test imported it
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize(
    ("pyspark", "client", "code", "ok"),
    [
        ("4.2.0", "4.2.0", "4.2.0", True),
        ("4.2.0", "4.1.0", "4.1.0", False),
        ("4.2.0", "4.1.0", "4.2.0", False),
        ("4.2.0", "4.2.0", "4.1.0", False),
    ],
)
def test_pyspark_and_its_client_must_be_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pyspark: str, client: str, code: str, ok: bool
) -> None:
    """They install the same folder, so whichever came last has overwritten the other."""
    installed(tmp_path / "site", monkeypatch, pyspark=pyspark, client=client, code=code)
    (check,) = pyspark_checks()
    assert check.ok is ok
    assert pyspark in check.found
    assert client in check.found
    assert ok or f"pyspark-client=={pyspark}" in check.mend


def test_everything_that_a_driver_needs_is_looked_at() -> None:
    """Java, pyspark, what transformWithState needs, and spark-submit."""
    assert [check.name for check in machine_checks()] == [
        "java", "pyspark", "protobuf", "grpcio", "releases of spark", "spark-submit",
    ]  # fmt: skip


def test_a_missing_spark_submit_is_told(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 1, and how to fix it; as one object and for a person."""
    monkeypatch.setenv("SPARK_HOME", str(desk.base / "nosuch"))
    answer = shell("home", "doctor", "--json")
    assert answer.status == 1
    assert not answer.json["ok"]
    (check,) = [check for check in answer.json["checks"] if check["name"] == "spark-submit"]
    assert not check["ok"]
    assert "SPARK_HOME" in check["mend"]
    human = shell("home", "doctor")
    assert human.status == 1
    assert "FAIL  spark-submit" in human.out
    assert f"      -> {check['mend']}" in human.out


def test_the_home_is_tried(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home that works is reported with what was found, and nothing is left in it; a missing home is reported."""
    fake_java(desk.base / "java17", "17.0.1", monkeypatch)
    answer = shell("home", "doctor", "--json")
    assert answer.status == 0, answer
    assert answer.json["ok"]
    assert "conditional writes hold" in answer.json["checks"][-1]["found"]
    assert [path for path in desk.home.rglob("*") if path.is_file()] == []
    monkeypatch.delenv("STREAMSTATE_HOME")
    assert shell("home", "doctor", "--json").json["checks"][-1]["found"].startswith("none given")


def test_what_reaches_checkpoints_on_s3_is_shown(desk: Desk, moto_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which packages a launch would bring, and why; of a Spark that cannot be looked at, the setting that helps."""
    said = {"AWS_ENDPOINT_URL_S3": moto_url, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    (desk.base / "spark" / "bin").mkdir(parents=True)
    submit = desk.base / "spark" / "bin" / "spark-submit"
    submit.write_text("#!/bin/sh")
    submit.chmod(0o755)
    for name, value in {**said, "SPARK_HOME": str(desk.base / "spark")}.items():
        monkeypatch.setenv(name, value)
    words = ("home doctor", "--json", "--home", f"s3://{BUCKET}/doctor")
    unknown = {check["name"]: check for check in shell(*words).json["checks"]}
    assert unknown["home"]["ok"]
    assert not unknown["s3 connector"]["ok"]
    assert "spark.streamstate.s3.packages" in unknown["s3 connector"]["mend"]
    (desk.base / "spark" / "jars").mkdir()
    (desk.base / "spark" / "jars" / "hadoop-client-api-3.5.0.jar").touch()
    found = {check["name"]: check for check in shell(*words).json["checks"]}["s3 connector"]
    assert found["found"].startswith("org.apache.hadoop:hadoop-aws:3.5.0, ")
    assert "s3 connector" not in [check["name"] for check in shell("home", "doctor", "--json").json["checks"]]


def checks_of(answer: Answer) -> dict[str, dict[str, object]]:
    """What was looked at, by name."""
    return {check["name"]: check for check in answer.json["checks"]}


def test_a_master_is_asked_where_one_is_named(desk: Desk) -> None:
    """One that listens is well, one that does not is reported with the next step."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        master = f"spark://127.0.0.1:{server.getsockname()[1]}"
        there = checks_of(shell("home", "doctor", "--master", master, "--json"))
        assert (there["master"]["ok"], there["checkpoints"]["ok"]) == (True, True)
        assert "warning" not in str(there["checkpoints"]["found"])
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        answer = shell("home", "doctor", "--master", f"spark://127.0.0.1:{held.getsockname()[1]}", "--json")
    gone = checks_of(answer)["master"]
    assert answer.status == 1
    assert gone["ok"] is False
    assert "does not answer" in str(gone["found"])
    assert str(gone["mend"]).startswith("Start it")
    assert str(gone["mend"]) not in str(gone["found"])  # it is reported once
    assert "master" not in checks_of(shell("home", "doctor", "--json"))


def test_checkpoints_that_executors_would_not_find_are_warned_of(desk: Desk) -> None:
    """A master on other machines with a folder of this one's disk: reported, and not taken for an error."""
    found = checks_of(shell("home", "doctor", "--master", "yarn", "--json"))
    assert found["master"]["found"] == "yarn is not asked"
    assert found["checkpoints"]["ok"] is True
    note = own_disk_note("yarn", desk.home)  # none where this machine's disk is one that machines share
    assert found["checkpoints"]["found"] == (f"warning: {note}" if note else f"yarn reaches {desk.home}")


def test_a_spark_of_its_own_needs_no_pyspark_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our environment and Spark's may be two: SPARK_HOME is where drivers come from, and is shown with its version."""
    home = tmp_path / "spark"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "spark-submit").write_text("#!/bin/sh\n")
    (home / "bin" / "spark-submit").chmod(0o755)
    (home / "jars").mkdir()
    (home / "jars" / "spark-core_2.13-4.1.4.jar").write_bytes(b"")
    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.setattr("importlib.metadata.version", _nothing_is_installed)
    (pyspark,) = pyspark_checks()
    assert pyspark.ok
    assert str(home) in pyspark.found
    submit = [check for check in machine_checks() if check.name == "spark-submit"]
    assert [(check.ok, "Spark 4.1.4" in check.found) for check in submit] == [(True, True)]


def _nothing_is_installed(name: str) -> str:
    raise importlib.metadata.PackageNotFoundError(name)


def test_what_drivers_reach_the_home_with_is_looked_for_in_their_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library of each scheme once, in the interpreter that drivers run in; a folder needs none."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"obstore": "0.12.1"}\'\n')
    python.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    assert list(library_checks({"/data/home", "file:///x", "memory://y"})) == []
    found = {check.name: check for check in library_checks({"gs://b/p", "az://c"})}
    assert {name: check.ok for name, check in found.items()} == {"google-auth": False, "obstore": True}
    assert f"{python} -m pip install google-auth" in found["google-auth"].mend


def test_a_release_that_is_known_to_fail_is_named_with_what_to_do() -> None:
    """By the same table that the docs show."""
    check = known_bad_check("spark", ("spark-sql-kafka-0-10_2.13-4.1.2.jar",), "4.1.2")
    assert not check.ok
    assert "SPARK-57438" in check.found
    assert "4.1.3" in check.mend
    assert known_bad_check("spark", ("spark-sql-kafka-0-10_2.13-4.1.3.jar",), "4.1.2").ok


def test_a_stream_that_brings_one_along_is_named(desk: Desk) -> None:
    """A home is looked at, too: its streams may have been deployed from another machine."""
    coordinates = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1"
    stream = desk.stream()
    stream.deploy()
    answer = shell("home", "doctor", "--home", str(desk.home), "--json")
    assert "releases of stream flights" not in [check["name"] for check in answer.json["checks"]]
    spec = with_version(stream.control.spec("d-0001"), packages=(coordinates,))
    LocalStore(desk.home).put(layout.spec_key("flights", "d-0001"), to_bytes(spec))
    answer = shell("home", "doctor", "--home", str(desk.home), "--json")
    (check,) = [check for check in answer.json["checks"] if check["name"] == "releases of stream flights"]
    assert (check["ok"], coordinates in check["found"]) == (False, True)


def test_the_python_of_drivers_is_the_one_that_spark_is_told() -> None:
    """The driver's own setting before that of the workers, and this python where nothing is set."""
    assert driver_python({"PYSPARK_PYTHON": "/a", "PYSPARK_DRIVER_PYTHON": "/b"}) == "/b"
    assert driver_python({"PYSPARK_PYTHON": "/a"}) == "/a"
    assert driver_python({}) == sys.executable


def test_an_interpreter_is_asked_what_it_has(tmp_path: Path) -> None:
    """Versions of what is there; nothing of what is not; one that does not answer is shown as such."""
    found = versions_in(sys.executable, ("pytest", "no-such-package"))
    assert found is not None
    assert set(found) == {"pytest"}
    assert versions_in(str(tmp_path / "python"), ("pytest",)) is None


@pytest.mark.parametrize("folder", ["", "python/pyspark"])
def test_the_oldest_protobuf_is_read_from_what_it_generated(tmp_path: Path, folder: str) -> None:
    """Spark of pip and Spark unpacked; where it has no version, nothing is wanted."""
    assert protobuf_wanted(tmp_path) == protobuf_wanted(None) == ""
    generated = tmp_path / folder / "sql" / "streaming" / "proto" / "StateMessage_pb2.py"
    generated.parent.mkdir(parents=True)
    generated.write_text("# Generated\n# Protobuf Python Version: 6.33.5\n")
    assert protobuf_wanted(tmp_path) == "6.33.5"


@pytest.mark.parametrize(("version", "older"), [("6.33.4", True), ("6.33.5", False), ("7.0", False), ("5.29.1", True)])
def test_versions_are_compared_as_numbers(version: str, older: bool) -> None:
    """As protobuf itself compares; "" wants nothing."""
    assert is_older(version, "6.33.5") is older
    assert not is_older(version, "")


def test_a_protobuf_that_spark_cannot_use_is_told_with_the_remedy(tmp_path: Path) -> None:
    """Spark itself only reports that a worker has crashed."""
    generated = tmp_path / "sql" / "streaming" / "proto" / "StateMessage_pb2.py"
    generated.parent.mkdir(parents=True)
    generated.write_text("# Protobuf Python Version: 99.1.0\n")
    protobuf, _grpcio = stateful_checks(tmp_path)
    assert not protobuf.ok
    assert "protobuf>=99.1.0" in protobuf.mend


@pytest.mark.parametrize("words", [("local", "x=y"), ("kubernets", "image=x"), ("kubernetes", "imag=x"), ("", "x=y")])
def test_a_launcher_is_checked_as_deploy_would(desk: Desk, words: tuple[str, str]) -> None:
    """What deploy refuses, doctor refuses, with the next step."""
    name, option = words
    named = ("--launcher", name) if name else ()
    answer = shell("home", "doctor", *named, "--launcher-option", option, "--json")
    assert answer.status == 1
    (check,) = [one for one in answer.json["checks"] if one["name"].startswith("launcher")]
    assert not check["ok"]
    assert check["mend"]
