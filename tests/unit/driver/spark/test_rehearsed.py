"""The script's queries in a rehearsal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from airflow_streamstate.driver.spark.interception import RehearsedInterception
from airflow_streamstate.errors import UnsupportedCheckpointError
from support.fake_clock import FakeClock


class Rehearsing:
    """Records what it receives."""

    def __init__(self) -> None:
        self.refused: list[tuple[Any, Exception]] = []

    def refuse(self, startable: Any, error: Exception) -> None:
        self.refused.append((startable, error))


@pytest.mark.parametrize(("trigger", "is_refused"), [("continuous", True), ("processing_time", False)])
def test_what_no_barrier_works_with_is_the_querys_own_trouble(trigger: str, is_refused: bool) -> None:
    """The script is not ended by it: the queries after it must be seen, too."""
    rehearsing = Rehearsing()
    interception = RehearsedInterception(cast("Any", rehearsing), FakeClock())
    startable = SimpleNamespace(facts=SimpleNamespace(trigger=trigger), settings=SimpleNamespace(options={}))
    interception._guard_start(SimpleNamespace(conf=SimpleNamespace(getAll={})), cast("Any", startable))
    assert bool(rehearsing.refused) is is_refused
    for refused, error in rehearsing.refused:
        assert refused is startable
        assert isinstance(error, UnsupportedCheckpointError)
