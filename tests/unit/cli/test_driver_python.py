"""What the python of drivers has."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from airflow_streamstate.cli.doctor import driver_python, is_older, protobuf_wanted, stateful_checks, versions_in


def test_the_python_of_drivers_is_the_one_that_spark_is_told() -> None:
    """The driver's own setting before that of the workers, and this python where nothing is said."""
    assert driver_python({"PYSPARK_PYTHON": "/a", "PYSPARK_DRIVER_PYTHON": "/b"}) == "/b"
    assert driver_python({"PYSPARK_PYTHON": "/a"}) == "/a"
    assert driver_python({}) == sys.executable


def test_an_interpreter_is_asked_what_it_has(tmp_path: Path) -> None:
    """Versions of what is there; nothing of what is not; and one that does not answer is told apart."""
    found = versions_in(sys.executable, ("pytest", "no-such-package"))
    assert found is not None
    assert set(found) == {"pytest"}
    assert versions_in(str(tmp_path / "python"), ("pytest",)) is None


@pytest.mark.parametrize("folder", ["", "python/pyspark"])
def test_the_oldest_protobuf_is_read_from_what_it_generated(tmp_path: Path, folder: str) -> None:
    """Spark of pip and Spark unpacked; where it does not say, nothing is wanted."""
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
    """Spark itself only says that a worker has crashed."""
    generated = tmp_path / "sql" / "streaming" / "proto" / "StateMessage_pb2.py"
    generated.parent.mkdir(parents=True)
    generated.write_text("# Protobuf Python Version: 99.1.0\n")
    protobuf, _grpcio = stateful_checks(tmp_path)
    assert not protobuf.ok
    assert "protobuf>=99.1.0" in protobuf.mend
