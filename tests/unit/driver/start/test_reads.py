"""``driver.start.recorded_plans``: what the script reads is recorded and compared, and never in the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_streamstate.control.stream import last_reads
from airflow_streamstate.driver.attempt import attempt as attempts
from airflow_streamstate.driver.attempt.read_recorder import OpenedFiles
from airflow_streamstate.driver.start.recorded_plans import what_changed
from airflow_streamstate.errors import UnavailableError
from airflow_streamstate.protocol.events import QueryStarted
from support.simulated_driver import SimulatedDriver, SimulatedStream, make_plan

Run = Callable[[], tuple[str, ...]]


@pytest.fixture
def run(stream: SimulatedStream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs the next attempt of a script that reads ``feeds.json``; returns the remarks of its query's start."""
    monkeypatch.chdir(tmp_path)
    opened = OpenedFiles()
    monkeypatch.setattr(attempts, "OF_THIS_SCRIPT", opened)
    (tmp_path / "feeds.json").write_text("1 hour")
    plan = make_plan(20, trigger="available_now")
    before: list[object] = []

    def script(driver: SimulatedDriver) -> None:
        if Path("feeds.json").exists():
            Path("feeds.json").read_text()
        driver.start(plan, "counts")
        driver.await_all()

    def once() -> tuple[str, ...]:
        opened.begin(__file__)
        attempt = {"attempt": stream.next_attempt()} if before else {}
        before.append(attempt)
        assert stream.run(script, **attempt) == 0
        return stream.events_of(QueryStarted)[-1].remarks

    return once


def test_a_changed_file_is_named_by_the_next_start_alone(stream: SimulatedStream, run: Run, tmp_path: Path) -> None:
    """Each start is compared with the one before it."""
    assert run() == ()
    record = last_reads(stream.control, "d-0001", "counts")
    assert record is not None
    assert [(file.place, file.name, file.size_bytes) for file in record.files] == [("working", "feeds.json", 6)]
    (tmp_path / "feeds.json").write_text("2 hours")
    (remark,) = run()
    assert remark.startswith("feeds.json changed at ")
    assert remark.endswith(" since attempt 1")
    assert run() == ()
    (tmp_path / "feeds.json").unlink()
    assert run() == ("feeds.json was read by attempt 3, and was not read now",)


def test_a_refused_start_leaves_the_record_of_the_one_before(
    stream: SimulatedStream, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next start would find nothing changed since the refused one, which made no state."""
    run()
    (tmp_path / "feeds.json").write_text("2 hours")
    seen: list[tuple[str, ...]] = []

    def refused(attempt: attempts.Attempt, name: str, *_: object) -> tuple[str, ...]:
        seen.append(what_changed(attempt, name))
        raise UnavailableError("refused")

    with monkeypatch.context() as patched:
        patched.setattr("airflow_streamstate.driver.start.query_start.record_before_start", refused)
        with pytest.raises(AssertionError):
            run()
    (remark,) = run()
    assert seen == [(remark,)]
    assert remark.endswith(" since attempt 1")


@pytest.mark.parametrize("trouble", ["create", "get"])
def test_a_record_that_fails_stops_nothing(
    stream: SimulatedStream, run: Run, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It becomes a remark."""
    run()
    real = getattr(stream.control.home, trouble)

    def failing(key: str, *arguments: object) -> object:
        if "/reads/" in key:
            raise UnavailableError("the store is down", key=key)
        return real(key, *arguments)

    monkeypatch.setattr(stream.control.home, trouble, failing)
    (remark,) = run()
    assert remark.startswith("what the script read is not")


def test_without_a_recorder_nothing_is_written(stream: SimulatedStream) -> None:
    """A driver that sees nothing claims nothing."""

    def script(driver: SimulatedDriver) -> None:
        driver.start(make_plan(20, trigger="available_now"), "counts")
        driver.await_all()

    assert stream.run(script) == 0
    assert last_reads(stream.control, "d-0001", "counts") is None
