from __future__ import annotations

import json
import stat
import threading
from pathlib import Path
from typing import Any

from airflow_streamstate.driver.config import DriverConfig
from airflow_streamstate.driver.main import LATE_STATUS, Report, read_state
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.snapshot.state_tables import PROGRESS, RESULT, StateOrder
from support.fake_clock import FakeClock

SECRET = "hunter2-and-more"
READING = "reading-0123456789ab"
CONFIG = DriverConfig("/h", "/h", "orders", READING, 1, f"{READING}-a0001", "x", secrets=(SECRET,))


def order(folder: Path) -> StateOrder:
    return StateOrder(verb="state", places={}, folder=str(folder), deadline_seconds=60, limit=1, before={})


def answer(folder: Path, read: Any) -> tuple[int, dict[str, Any]]:
    ended: list[int] = []
    status = read_state(CONFIG, order(folder), FakeClock(), ended.append, read)
    return status, json.loads((folder / RESULT).read_text())


def test_what_was_found_is_one_object_for_its_owner_alone(tmp_path: Path) -> None:
    """Rows of the state are in it."""

    def read(_order: StateOrder, report: Report) -> dict[str, Any]:
        report("counts: 0-stateStoreSave/rows")
        return {"queries": {}}

    assert answer(tmp_path, read) == (0, {"result": {"queries": {}}})
    assert (tmp_path / PROGRESS).read_text() == "counts: 0-stateStoreSave/rows"
    assert stat.S_IMODE((tmp_path / RESULT).stat().st_mode) == 0o600


def test_a_refusal_is_told_as_it_was_raised(tmp_path: Path) -> None:
    """With its facts and what to do."""

    def read(_order: StateOrder, _report: Report) -> dict[str, Any]:
        raise InvalidRequestError("no state has these key columns", key={"k": 1}, next_step="Look first.")

    status, raw = answer(tmp_path, read)
    assert (status, raw["error"]["type"], raw["error"]["context"]) == (1, "InvalidRequestError", {"key": {"k": 1}})


def test_what_nobody_has_foreseen_is_told_without_secrets(tmp_path: Path) -> None:
    """In one line, as what could not be read."""

    def read(_order: StateOrder, _report: Report) -> dict[str, Any]:
        raise ImportError(f"no module {SECRET}")

    _, raw = answer(tmp_path, read)
    assert raw["error"]["type"] == "DataError"
    assert "ImportError: no module" in raw["error"]["context"]["reason"]
    assert SECRET not in json.dumps(raw)


def test_a_driver_that_reads_for_too_long_ends_itself(tmp_path: Path) -> None:
    """The controller may be dead (Law 6)."""
    ended: list[int] = []
    has_ended = threading.Event()

    def end(status: int) -> None:
        ended.append(status)
        has_ended.set()

    def read(_order: StateOrder, _report: Report) -> dict[str, Any]:
        assert has_ended.wait(60)
        return {}

    clock = FakeClock()
    read_state(CONFIG, order(tmp_path), clock, end, read)
    assert (ended, clock.slept_seconds) == ([LATE_STATUS], [60])
