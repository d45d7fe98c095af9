"""A fresh start that failed before its first query does not make later starts fresh (Law 5)."""

from __future__ import annotations

import pytest

from airflow_streamstate.controller.deploy.deployment import LeftBehind, left_behind
from airflow_streamstate.errors import ConflictError
from airflow_streamstate.protocol.events import Failed
from support.sim_stage import Stage


def in_vain(stage: Stage, deployment_id: str, start: str = "fresh") -> None:
    """A deployment that ended before any query of it was started."""
    stage.deploy(f"print('{deployment_id}')\n", start=start)
    stage.come_to_life(deployment_id)
    stage.say(Failed, deployment_id=deployment_id, error="the sink holds batch ids 0 to 44", traceback="")
    stage.end(deployment_id)


def test_a_mistaken_fresh_start_does_not_hold_for_later_ones(stopped: Stage) -> None:
    """Every start but a fresh one is refused. (Law 5)"""
    for deployment_id in ("d-0002", "d-0003"):
        in_vain(stopped, deployment_id)
        for start in (None, "restore", "seed"):
            with pytest.raises(ConflictError, match="ran no query") as refused:
                stopped.deploy("print('v9')\n", start=start)
            assert "--snapshot d-0001-stopped-000001" in refused.value.next_step
    assert stopped.control.need_register().value.intent is None
    assert stopped.deploy("print('v9')\n", start="fresh").start.mode == "fresh"


def test_a_stream_that_never_had_a_position_has_left_none(stage: Stage) -> None:
    """Its first versions failed before their queries."""
    in_vain(stage, "d-0001")
    assert left_behind(stage.control, stage.seen("d-0001")) is None
    assert stage.deploy("print('v2')\n").start.mode == "fresh"


def test_the_newest_snapshot_is_named(stopped: Stage) -> None:
    """That of the last deployment which ran a query."""
    in_vain(stopped, "d-0002")
    assert left_behind(stopped.control, stopped.seen("d-0002")) == LeftBehind("d-0001", "d-0001-stopped-000001")
    assert left_behind(stopped.control, None) is None


def test_a_position_that_no_query_of_its_own_reached_is_one(stopped: Stage) -> None:
    """What was restored, or adopted, and ended before its first query stood where its snapshot does. (Law 5)"""
    in_vain(stopped, "d-0002", "restore")
    in_vain(stopped, "d-0003")
    assert left_behind(stopped.control, stopped.seen("d-0003")) == LeftBehind("d-0002", "d-0001-stopped-000001")
    with pytest.raises(ConflictError, match="ran no query"):
        stopped.deploy("print('v9')\n")
