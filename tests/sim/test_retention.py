"""A stream that is upgraded and pruned again and again: nothing but its data grows.

``STREAMSTATE_SIM=full`` lives through 200 upgrades.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.lineage import lineage_of
from airflow_streamstate.controller.retention.retiring import KEPT_DEPLOYMENTS, KEPT_UPGRADES
from support.fake_clock import FakeClock
from support.sim_laws import assert_rows
from support.sim_retention import years_of
from support.simulated_driver import STREAM

pytestmark = pytest.mark.full

UPGRADES = 200 if os.environ.get("STREAMSTATE_SIM") == "full" else 32
SETTLED = KEPT_UPGRADES + 3
"""By then everything is there of which a number is kept."""


def test_the_home_of_a_stream_that_is_upgraded_for_years_stays_as_it_is(folder: Path) -> None:
    """Every row comes once, the lineage is complete, and as many objects are in each room after the last upgrade
    as after the first ones (Laws 3 and 4)."""
    world, life = years_of(folder, UPGRADES)
    assert world.violations == []
    assert_rows(world)
    assert {view.outcome for view in life.seen} == {"upgraded"}
    assert {view.state.audit_ok for view in life.seen} == {True}
    assert {(one.policy_source, one.policy) for one in life.pruned} == {("recorded", life.policy)}
    first, last = life.rooms[SETTLED : SETTLED + 4], life.rooms[-4:]
    for room in {room for counter in first for room in counter}:
        assert max(counter[room] for counter in last) <= max(counter[room] for counter in first), room
    control = world.control
    assert len(control.deployment_ids()) <= KEPT_DEPLOYMENTS + 1
    lineage = lineage_of(Home.of(world.store, world.store, world.launches, FakeClock()), STREAM)
    assert lineage.is_whole
    assert lineage.settled is not None
