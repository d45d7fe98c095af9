"""A prune that sleeps while its stream is deleted, and another one takes the name."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.retention.retiring import SameStream
from airflow_streamstate.errors import ConflictError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.policies import RetentionPolicy
from airflow_streamstate.snapshot.verify import verify
from support.faulty_store import FaultPlan, FaultyStore
from support.sim_stage import STREAM, Stage

pytestmark = pytest.mark.fast

SNAPSHOT = "d-0001-stopped-000001"


def prunable(folder: Path) -> Stage:
    """A stream with two ends of one deployment, the first of which may go, and a third attempt that has ended, too."""
    folder.mkdir(parents=True)
    stage = Stage(folder)
    stage.deploy()
    stage.stopped(3)
    for attempt in (2, 3):
        stage.controller.resume(STREAM)
        stage.stopped(3 * attempt, attempt=attempt)
    return stage


def begin_anew(stage: Stage) -> None:
    """Delete it, and let another one of its name come as far."""
    stage.controller.retention.retire(STREAM, deletes=True)
    stage.clock.sleep(600)
    stage.deploy("print('another')\n")
    stage.stopped(3)


def prune(stage: Stage, plan: FaultPlan) -> None:
    """With each call of its stores counted."""
    store = FaultyStore(stage.store, plan)
    home = Home.of(store, store, stage.folder, stage.clock)
    Controller(home, stage.launcher, stage.clock, "pruner").retention.prune(STREAM, RetentionPolicy(keep=0))


def test_it_deletes_nothing_of_the_other_one(tmp_path: Path) -> None:
    """Whatever it does next when it wakes up. (Law 4) What it cannot see is what comes behind its last poll, in the
    middle of the deletion itself."""
    counted, refused = FaultPlan(), 0
    prune(prunable(tmp_path / "counted"), counted)
    points = {(call.method, call.key): call.number for call in counted.calls if call.method != "delete"}
    for number in points.values():
        stage = prunable(tmp_path / str(number))
        plan = FaultPlan(meanwhile={number: partial(begin_anew, stage)})
        try:
            prune(stage, plan)
        except ConflictError as error:
            refused += "deleted while it was pruned" in str(error)
        assert verify(stage.control, stage.store, SNAPSHOT) == [], counted.calls[number - 1]
        assert stage.deploy("print('next')\n").start.snapshot_id == SNAPSHOT
    assert refused >= 5


def test_a_stream_whose_record_is_gone_is_not_the_one_that_was_looked_at(tmp_path: Path) -> None:
    """As little as one of its name; while it is there, it is. (Law 4)"""
    stage = Stage(tmp_path)
    stage.deploy()
    same = SameStream(stage.control, stage.spec())
    same.check()
    with pytest.raises(ConflictError, match="deleted while it was pruned"):
        SameStream(stage.control, replace(stage.spec(), request_id="another")).check()
    stage.store.delete(layout.spec_key(STREAM, "d-0001"))
    with pytest.raises(ConflictError, match="deleted while it was pruned"):
        same.check()
