"""A recorded plan whose files are elsewhere now is compared as if they had always been there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.plan.comparison import compare
from airflow_streamstate.plan.model import PlannedSource
from airflow_streamstate.plan.record import moved_plan
from support.plan_golden import golden

MOVES = {"/data": "/mnt"}


@pytest.mark.parametrize("name", ["tumbling", "joined_left"])
def test_a_moved_source_is_a_fit(name: str) -> None:
    """Its digests stay those of the old place, and no rule goes by them alone."""
    recorded = golden(name)
    old, new = (
        replace(
            recorded,
            sources=tuple(
                replace(each, adapter="file", identity=f"file {place}/{at}") for at, each in enumerate(recorded.sources)
            ),
            operators=tuple(
                replace(one, inputs=tuple(replace(side, digest=f"{place}{side.digest}") for side in one.inputs))
                for one in recorded.operators
            ),
        )
        for place in ("/data", "/mnt")
    )
    assert compare(old, new).verdict == "hazardous"
    assert compare(moved_plan(old, MOVES), new).codes == ()
    assert moved_plan(new, MOVES) == new


def test_a_source_of_another_kind_stays() -> None:
    """Its words may look like a path."""
    recorded = replace(golden("tumbling"), sources=(PlannedSource("x", "x", "file /data"),))
    assert moved_plan(recorded, MOVES) == recorded
