"""How far a query is behind is asked of its sources, beside the sign of life."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from airflow_streamstate.protocol.commands import StopRequest
from airflow_streamstate.runtime.agent import lag
from support.simulated_adapter import install_adapter
from support.simulated_driver import SimulatedStream, make_plan, waiting_script


def last_beat(stream: SimulatedStream) -> int | None:
    beat = stream.control.heartbeat("d-0001")
    assert beat is not None
    return beat.queries["counts"].rows_behind


@pytest.mark.parametrize(("shows", "name"), [(True, "topic"), (True, "broken topic"), (False, "topic")])
def test_rows_behind_are_in_the_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shows: bool, name: str
) -> None:
    """The source's own count less what was committed; none where nobody can tell, and never a guess."""
    install_adapter(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    stream, plan = SimulatedStream(), make_plan(300, shows_sources=shows)
    plan.sources[0].description = name
    stream.deploy()
    stream.order_at(12.2, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    behind = last_beat(stream)
    if shows and name == "topic":
        assert behind is not None
        assert 0 < behind < 300
        assert behind % 10 == 0
    else:
        assert behind is None
    assert lag.LagLook
