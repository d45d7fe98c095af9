"""Which place may be a mirror of a stream."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import ConflictError
from airflow_streamstate.protocol import layout
from airflow_streamstate.snapshot.mirror import carry_records, mirror_snapshot, refuse_left_behind
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.memory import MemoryStore
from support.fake_clock import FakeClock
from support.sim_stage import STREAM, Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A stream whose driver's part the test plays."""
    return Stage(tmp_path)


def lies_there(store: Store) -> dict[str, object]:
    return {info.key: store.get(info.key) for info in store.list_objects("")}


def test_another_stream_of_the_same_name_is_not_taken_for_this_one(stage: Stage, tmp_path: Path) -> None:
    """Two homes with one mirror, or a name that was free again: what is there is another's, and is told as that, and
    nothing is mixed into it; said to be there it would be a copy that nobody has."""
    snapshot_id, mirror = stopped(stage), MemoryStore("mirror")
    mirror_snapshot(stage.control, stage.store, mirror, snapshot_id)
    before = lies_there(mirror)
    other = another(stage, tmp_path)
    assert stopped(other) == snapshot_id
    with pytest.raises(ConflictError, match="another deployment"):
        mirror_snapshot(other.control, other.store, mirror, snapshot_id)
    with pytest.raises(ConflictError, match="another deployment"):
        carry_records(other.control, mirror, "d-0001")
    assert lies_there(mirror) == before


def stopped(stage: Stage) -> str:
    stage.deploy()
    return str(stage.stopped().snapshot_id)


def another(stage: Stage, tmp_path: Path) -> Stage:
    folder = tmp_path / "other"
    folder.mkdir()
    return Stage(folder, clock=FakeClock(stage.clock.now(), seed=7))


def test_only_a_newer_deployment_that_nobody_here_knows_says_that_the_stream_went_on_elsewhere(stage: Stage) -> None:
    """Of older ones the home may have let go; and a deploy that was given up left one that is newer here, too."""
    stage.deploy()
    stage.stopped()
    key = layout.register_key(STREAM)
    at_first = stage.store.get(key)
    assert at_first is not None
    stage.deploy("print('v2')\n")
    mirror = MemoryStore("mirror")
    for deployment_id in ("d-0001", "d-0002"):
        carry_records(stage.control, mirror, deployment_id)
    stage.store.delete(layout.spec_key(STREAM, "d-0001"))
    refuse_left_behind(stage.control, mirror)
    stage.store.put(key, at_first.body)
    refuse_left_behind(stage.control, mirror)
    for info in list(stage.store.list_objects(f"{STREAM}/deployments/d-0002/")):
        stage.store.delete(info.key)
    with pytest.raises(ConflictError, match="went on elsewhere"):
        refuse_left_behind(stage.control, mirror)


def test_a_deploy_that_was_given_up_here_is_not_taken_for_the_one_that_runs_elsewhere(stage: Stage) -> None:
    """Both homes called it by the next free id."""
    stage.deploy()
    stage.stopped()
    mirror = MemoryStore("mirror")
    carry_records(stage.control, mirror, "d-0001")
    given_up = replace(stage.spec(), deployment_id="d-0002", request_id="given up")
    stage.control.create_spec(given_up)
    there = StreamControl(mirror, STREAM, stage.clock)
    there.create_spec(replace(given_up, request_id="in the new home"))
    with pytest.raises(ConflictError, match="another deployment of this id"):
        refuse_left_behind(stage.control, mirror)
