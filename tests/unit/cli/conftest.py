"""A desk for every test of the shell, and a running stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.store.open import open_store
from support import scripted_driver
from support.scripted_rehearsal import keep_batches, keep_plan
from support.scripted_stream import QUERY
from support.shell import Desk


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home that the environment names, a ``spark-submit`` without Spark, and no driver left afterwards."""
    for name in ("STREAMSTATE_CHECKPOINTS", "STREAMSTATE_WORK_DIR", "STREAMSTATE_TRACEBACK", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    made = Desk(tmp_path)
    monkeypatch.setenv("STREAMSTATE_HOME", str(made.home))
    monkeypatch.setenv("STREAMSTATE_ALLOWED", str(tmp_path / "allowed.json"))
    for name, value in scripted_driver.install(tmp_path / "machine").items():
        monkeypatch.setenv(name, value)
    yield made
    made.end_drivers()


@pytest.fixture
def failed(running: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """The stream with the batches 0 to 3, and batch 4 planned, and its script; the shell is used from the desk."""
    keep_batches(open_store(str(running.home)), "flights", QUERY)
    monkeypatch.chdir(running.base)
    return running


@pytest.fixture
def running(desk: Desk) -> Desk:
    """A stream that runs, with its plan recorded."""
    stream = desk.stream()
    stream.deploy().runs()
    keep_plan(stream.control, "d-0001", QUERY)
    return desk
