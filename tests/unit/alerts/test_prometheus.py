"""A real Prometheus scrapes the endpoint, and answers every query of the dashboard."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.alerts.conftest import Alerted, behind
from unit.alerts.test_metrics import expressions, served

from airflow_streamstate.protocol.downtimes import Downtime
from airflow_streamstate.protocol.events import SnapshotReady
from support.prometheus import prometheus_program, scraping
from support.sim_stage import STREAM

pytestmark = pytest.mark.named


def test_a_real_prometheus_answers_every_query_of_the_dashboard(alerted: Alerted, tmp_path: Path) -> None:
    """Each gives at least one row of a stream that runs and has an alert."""
    program = prometheus_program()
    if program is None:
        pytest.skip("no prometheus on this machine, and no Debian package of it")
    stage, at = alerted.stage, alerted.stage.clock.now()
    alerted.rules(state_rows_over=10)
    alerted.beat(
        lags=behind(500), state_rows=11, state_memory_bytes=2_048, watermark_at=at, batch_seconds=2.5,
        input_rows_per_second=12.5, processed_rows_per_second=25.0,
    )  # fmt: skip
    stage.say(SnapshotReady, snapshot_id="d-0001-live-000001", snapshot_kind="live", queries={})
    alerted.look()
    watched = alerted.watch.streams[STREAM]
    watched.downtimes = (Downtime("counts", "d-0000", "d-0001", at, at, 1.25),)
    with served(alerted) as server, scraping(program, tmp_path, server.port) as prometheus:
        for text in expressions():
            rows = prometheus.query(text.replace("$stream", ".*"))
            assert rows, text
        (lag,) = prometheus.query("streamstate_query_lag")
        assert (lag["metric"]["stream"], lag["metric"]["source"], lag["value"][1]) == (STREAM, "kafka t", "500")
