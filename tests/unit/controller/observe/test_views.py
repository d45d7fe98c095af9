"""Views are plain JSON, and complete."""

from __future__ import annotations

import json

from airflow_streamstate.protocol.positions import QueryBeat
from support.sim_stage import STREAM, Stage


def test_every_view_is_json_with_what_the_shell_promises(stage: Stage) -> None:
    """The fields that the shell's ``--json`` promises are there, and json can write them all."""
    view = stage.deploy().to_json()
    assert {"stream_id", "deployment_id", "attempt", "state", "start"} <= set(view)
    stage.stopped()
    stage.beat(counts=QueryBeat(3, stage.clock.now(), True, state_rows=5, watermark_at=stage.clock.now()))
    status = stage.controller.status(STREAM).to_json()
    assert {"queries", "heartbeat_age_seconds", "snapshot_age_seconds", "last_event"} <= set(status)
    assert {"batch_id", "committed_at", "state_rows", "watermark_at"} <= set(status["queries"]["counts"])
    order = stage.controller.order("stop", STREAM).to_json()
    assert {"deployment_id", "state", "snapshot_id", "queries"} <= set(order)
    assert {"batch_id", "state_rows_left"} <= set(order["queries"]["counts"])
    snapshot = stage.controller.order("snapshot", STREAM).to_json()
    assert {"snapshot_id", "kind", "deployment_id", "files", "bytes", "queries"} <= set(snapshot)
    json.dumps([view, status, order, snapshot])


def test_an_order_that_is_under_way_says_so(stage: Stage) -> None:
    """An order without an outcome has the state of the deployment and its own id."""
    stage.deploy()
    order = stage.controller.order("stop", STREAM).to_json()
    assert set(order) == {"stream_id", "deployment_id", "command_id", "state"}
