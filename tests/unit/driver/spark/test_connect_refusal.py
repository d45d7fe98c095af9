from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.driver.spark import connect_refusal
from airflow_streamstate.driver.spark.connect_refusal import refuse_connect_environment, refuse_connect_writers
from airflow_streamstate.errors import InvalidRequestError


@pytest.mark.parametrize(
    "environment",
    [
        {"SPARK_REMOTE": "sc://localhost"},
        {"SPARK_CONNECT_MODE_ENABLED": "1"},
        {"SPARK_API_MODE": "connect"},
    ],
)
def test_connect_in_the_environment_is_refused_by_name(environment: dict[str, str]) -> None:
    """Every session would be a Connect session, and its queries would escape."""
    with pytest.raises(InvalidRequestError, match="Spark Connect"):
        refuse_connect_environment(environment)


def test_a_classic_environment_is_not_refused() -> None:
    """What spark-submit sets itself is no sign of Connect."""
    refuse_connect_environment({"SPARK_API_MODE": "classic", "SPARK_REMOTE": "", "PYSPARK_GATEWAY_PORT": "1"})


@pytest.fixture
def writer_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module like Connect's, importable under another name."""
    name = "connect_like_readwriter"
    (tmp_path / f"{name}.py").write_text(
        "class DataStreamWriter:\n"
        "    def start(self): return 'escaped'\n"
        "    def toTable(self, name): return 'escaped'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(connect_refusal, "WRITER_MODULE", name)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize("is_imported_before", [True, False])
def test_a_connect_writer_refuses(writer_module: str, is_imported_before: bool) -> None:
    """Also where ``builder.remote(…)`` imports it in the middle of the script."""
    if is_imported_before:
        importlib.import_module(writer_module)
    refuse_connect_writers()
    refuse_connect_writers()
    module = importlib.import_module(writer_module)
    for start in (module.DataStreamWriter().start, lambda: module.DataStreamWriter().toTable("t")):
        with pytest.raises(InvalidRequestError, match="Spark Connect"):
            start()
