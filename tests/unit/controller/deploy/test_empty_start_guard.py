"""A start with nothing that came to nothing."""

from __future__ import annotations

import pytest

from airflow_streamstate.controller.deploy.deploying import LeftBehind, left_behind
from airflow_streamstate.errors import ConflictError
from airflow_streamstate.protocol.events import Failed
from support.sim_stage import Stage


def fresh_in_vain(stage: Stage, deployment_id: str) -> None:
    """A deployment that was started with nothing, by name, and whose sink refused it."""
    in_vain(stage, deployment_id, "fresh")


def in_vain(stage: Stage, deployment_id: str, start: str) -> None:
    """A deployment that ended before any query of it was started."""
    stage.deploy(f"print('{deployment_id}')\n", start=start)
    stage.come_to_life(deployment_id)
    stage.say(Failed, deployment_id=deployment_id, error="the sink holds batch ids 0 to 44", traceback="")
    stage.end(deployment_id)


def test_a_mistaken_fresh_start_is_not_taken_for_the_wish_of_every_later_one(stage: Stage) -> None:
    """Neither by one that says nothing nor by one that says ``restore``; by name it is. (Law 5)"""
    stage.deploy()
    stage.stopped()
    for deployment_id in ("d-0002", "d-0003"):
        fresh_in_vain(stage, deployment_id)
        for start in (None, "restore", "seed"):
            with pytest.raises(ConflictError, match="ran no query") as refused:
                stage.deploy("print('v9')\n", start=start)
            assert "--snapshot d-0001-stopped-000001" in refused.value.next_step
    assert stage.control.need_register().value.intent is None
    assert stage.deploy("print('v9')\n", start="fresh").start.mode == "fresh"


def test_a_stream_that_never_had_a_position_has_left_none(stage: Stage) -> None:
    """Its first versions failed before their queries."""
    fresh_in_vain(stage, "d-0001")
    assert left_behind(stage.control, stage.seen("d-0001")) is None
    assert stage.deploy("print('v2')\n").start.mode == "fresh"


def test_the_newest_snapshot_is_named(stage: Stage) -> None:
    """That of the last deployment which ran a query."""
    stage.deploy()
    stage.stopped()
    fresh_in_vain(stage, "d-0002")
    assert left_behind(stage.control, stage.seen("d-0002")) == LeftBehind("d-0001", "d-0001-stopped-000001")
    assert left_behind(stage.control, None) is None


def test_a_position_that_no_query_of_its_own_reached_is_one(stage: Stage) -> None:
    """What was restored, or adopted, and ended before its first query stood where its snapshot does. (Law 5)"""
    stage.deploy()
    stage.stopped()
    in_vain(stage, "d-0002", "restore")
    fresh_in_vain(stage, "d-0003")
    assert left_behind(stage.control, stage.seen("d-0003")) == LeftBehind("d-0002", "d-0001-stopped-000001")
    with pytest.raises(ConflictError, match="ran no query"):
        stage.deploy("print('v9')\n")
