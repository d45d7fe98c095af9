"""A deployment whose sources are all finished drains itself, once, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.protocol.commands import StopRequest
from airflow_streamstate.protocol.events import Accepted, Drained, Stopped
from airflow_streamstate.protocol.settings import AgentSettings
from support.finite_connector import ENDS_AT, install_finite
from support.simulated_driver import SimulatedStream, assert_nothing_lost, make_plan, waiting_script


@pytest.fixture(autouse=True)
def finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_finite(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def deployed(**settings: bool) -> SimulatedStream:
    stream = SimulatedStream()
    stream.deploy(settings=AgentSettings(**settings))  # type: ignore[arg-type]
    return stream


def test_it_drains_when_every_source_of_every_query_is_finished() -> None:
    """With its windows flushed, its reason in the event, and no command left (Laws 2, 9)."""
    stream, first, second = deployed(), make_plan(ENDS_AT, shows_sources=True), make_plan(ENDS_AT, shows_sources=True)
    assert stream.run(waiting_script(first, second, names=("counts", "others"))) == 0
    (drained,) = stream.events_of(Drained)
    assert drained.reason == "self-drained: all 12 parts finished"
    (accepted,) = stream.events_of(Accepted)
    assert accepted.command["requested_by"] == "the driver itself"
    assert stream.commands() == []
    for plan in (first, second):
        assert_nothing_lost(plan)


def test_it_runs_on_while_one_source_is_not_finished() -> None:
    """Also where another query has come to the end of its input."""
    stream, first, second = deployed(), make_plan(ENDS_AT, shows_sources=True), make_plan(10, shows_sources=True)
    stream.order_at(60.0, StopRequest)
    assert stream.run(waiting_script(first, second, names=("counts", "others"))) == 0
    assert stream.events_of(Drained) == []
    assert stream.events_of(Stopped)


def test_a_stream_that_is_to_keep_running_waits_for_new_parts() -> None:
    """Until somebody ends it."""
    stream = deployed(keep_running=True)
    stream.order_at(60.0, StopRequest)
    assert stream.run(waiting_script(make_plan(ENDS_AT, shows_sources=True))) == 0
    assert stream.events_of(Drained) == []


def test_a_query_whose_sources_are_unknown_never_ends_by_itself() -> None:
    """Nothing reports that they are finished."""
    stream = deployed()
    stream.order_at(60.0, StopRequest)
    assert stream.run(waiting_script(make_plan(ENDS_AT))) == 0
    assert stream.events_of(Drained) == []


def test_a_self_drain_that_was_refused_is_not_ordered_again() -> None:
    """State that no flush can let out needs a person: the stream runs on until then."""
    plan = make_plan(ENDS_AT, shows_sources=True, delay_ms=None)
    stream = deployed()
    stream.order_at(90.0, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    assert stream.events_of(Drained) == []
    refused = [kind for kind in stream.kinds() if kind in ("Rejected", "DrainFailed")]
    assert refused == ["Rejected"], stream.kinds()
    assert stream.events_of(Stopped)
