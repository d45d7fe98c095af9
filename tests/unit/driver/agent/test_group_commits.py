"""Offsets of committed batches are reported to a consumer group, and stop nothing where they cannot be."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from airflow_streamstate.protocol.commands import StopRequest
from airflow_streamstate.protocol.events import Noted, Stopped
from airflow_streamstate.protocol.settings import AgentSettings
from support.simulated_connector import install_connector
from support.simulated_driver import SimulatedStream, make_plan, waiting_script


@pytest.fixture(autouse=True)
def _connector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_connector(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()


def run(group: str, name: str = "topic") -> tuple[SimulatedStream, list[tuple[str, int]]]:
    """A stream of some batches that is stopped; what its source received about groups."""
    stream, plan = SimulatedStream(), make_plan(300, shows_sources=True)
    stream.deploy(settings=AgentSettings(commit_offsets_to_group=group))
    plan.sources[0].description = name
    stream.order_at(20.0, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    assert len(stream.events_of(Stopped)) == 1
    return stream, plan.sources[0].groups


def test_a_group_follows_the_batches() -> None:
    """Each offset is that of a committed batch, none twice, and in order."""
    _, told = run("lag")
    assert {group for group, _ in told} == {"lag"}
    offsets = [at for _, at in told]
    assert len(offsets) >= 5
    assert offsets == sorted(set(offsets))
    assert all(at > 0 and at % 10 == 0 for at in offsets)


def test_without_a_name_nothing_is_told() -> None:
    """That is the default."""
    assert run("")[1] == []


def test_a_source_that_does_not_answer_stops_nothing() -> None:
    """An event reports it, once for its kind of question; the stream runs and stops as ever."""
    stream, told = run("lag", "broken topic")
    assert told == []
    said = [event.text for event in stream.events_of(Noted)]
    assert sum("consumer group" in text for text in said) <= 1
