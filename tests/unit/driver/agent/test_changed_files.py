"""``airflow_streamstate.driver.agent.heartbeats``: what the next start would read otherwise, in the heartbeat."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_streamstate.driver.agent.heartbeats import ChangedFiles
from airflow_streamstate.driver.attempt import attempt as attempts
from airflow_streamstate.driver.attempt.read_recorder import OpenedFiles
from support.simulated_driver import SimulatedDriver, SimulatedStream, make_plan

SENTENCE = r"feeds\.json (changed at|was replaced since).*"


def test_a_file_that_was_changed_after_it_was_read_is_told(
    stream: SimulatedStream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Until it is as it was; a file that is gone, or that was only touched, is no news."""
    monkeypatch.chdir(tmp_path)
    opened = OpenedFiles()
    monkeypatch.setattr(attempts, "OF_THIS_SCRIPT", opened)
    feeds, seen = tmp_path / "feeds.json", list[tuple[str, ...]]()
    feeds.write_text("1 hour")
    opened.begin(__file__)

    def script(driver: SimulatedDriver) -> None:
        Path("feeds.json").read_text()
        driver.start(make_plan(20, trigger="available_now"), "counts")
        changed = ChangedFiles(driver.attempt_life.attempt)
        changed._attempt.in_background = lambda work, **_: work()  # type: ignore[assignment,misc]
        for text in ("1 hour", "2 hours", "1 hour", None):
            if text is None:
                feeds.unlink()
            else:
                feeds.write_text(text)
            changed.told()
            seen.append(changed.told())
        driver.await_all()

    assert stream.run(script) == 0
    assert [len(told) for told in seen] == [0, 1, 0, 0]
    assert re.fullmatch(SENTENCE + r" since attempt 1.*; the next start reads it", seen[1][0])
