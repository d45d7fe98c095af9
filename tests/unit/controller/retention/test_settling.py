"""What the audit had found is recorded before its evidence goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.control.registers import Retention
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.retention.pruning import settle
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.policies import SettledLineage
from support.faulty_store import FaultPlan, FaultyStore
from support.sim_stage import STREAM, Stage


@pytest.fixture
def two(stage: Stage) -> Stage:
    """Two deployments, of which the beginning of the second cannot be audited: the snapshot that it started from is
    gone without a word."""
    stage.deploy()
    stage.stopped()
    stage.deploy("print('v2')\n")
    for info in list(stage.store.list_objects(f"{layout.snapshots_folder(STREAM)}/")):
        stage.store.delete(info.key)
    return stage


def settled(stage: Stage, through: str | None) -> SettledLineage | None:
    retention = Retention(stage.control, "tests")
    settle(stage.home, stage.control, retention, through)
    return retention.read().settled


def test_up_to_which_deployment_it_was_whole_is_recorded(two: Stage) -> None:
    """Later ones are not looked at; a longer look is recorded over a shorter one, and never the other way round."""
    assert settled(two, None) is None
    of_one = SettledLineage("d-0001", is_whole=True, audited_at=two.clock.now())
    assert settled(two, "d-0001") == of_one
    two.clock.sleep(60)
    assert settled(two, "d-0001") == of_one
    of_two = SettledLineage("d-0002", is_whole=False, audited_at=two.clock.now())
    assert settled(two, "d-0002") == of_two
    two.clock.sleep(60)
    assert settled(two, "d-0001") == of_two


@pytest.mark.parametrize("other", ["d-0001", "d-0002"])
def test_of_two_that_settle_at_once_the_first_word_and_the_longer_look_count(
    two: Stage, tmp_path: Path, other: str
) -> None:
    """Whenever the other one comes in between. (Law 8)"""
    for number in range(1, 200):
        two.store.delete(layout.retention_key(STREAM))
        recorded: list[SettledLineage | None] = []

        def meanwhile(recorded: list[SettledLineage | None] = recorded) -> None:
            two.clock.sleep(60)
            recorded.append(settled(two, other))

        plan = FaultPlan(meanwhile={number: meanwhile})
        store = FaultyStore(two.store, plan)
        home = Home.of(store, store, tmp_path, two.clock)
        settle(home, home.control(STREAM), Retention(home.control(STREAM), "slow"), "d-0001")
        if number > len(plan.calls):
            break
        assert Retention(two.control).read().settled == recorded[0], number
        assert recorded[0] is not None
        assert recorded[0].through == other
