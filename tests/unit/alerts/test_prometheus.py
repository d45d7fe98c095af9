"""A real Prometheus scrapes the endpoint, and answers every query of the dashboard."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from unit.alerts.conftest import Alerted, behind
from unit.alerts.test_metrics import expressions, served

from airflow_streamstate.protocol.events import SnapshotReady
from airflow_streamstate.protocol.positions import Downtime
from support.prometheus import prometheus_program, scraping
from support.sim_stage import STREAM

pytestmark = pytest.mark.named
EVERY = {"stream": ".*", "owner": ".*", "label": ".*", "value": ".*"}


def chosen(text: str, **values: str) -> str:
    """The query with values of the dashboard's variables; All where none is given."""
    return re.sub(r"\$(\w+)", lambda found: {**EVERY, **values}[found[1]], text)


def test_a_real_prometheus_answers_every_query_of_the_dashboard(alerted: Alerted, tmp_path: Path) -> None:
    """Each gives at least one row of a stream that runs and has an alert; its streams are those of owner and labels."""
    program = prometheus_program()
    if program is None:
        pytest.skip("no prometheus on this machine, and no Debian package of it")
    stage, at = alerted.stage, alerted.stage.clock.now()
    alerted.rules(state_rows_over=10)
    stage.controller.details.change_ownership(STREAM, "payments", {"team": "payments", "tier": "1"})
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
            rows = prometheus.query(chosen(text))
            assert rows, text
        streams = next(text for text in expressions() if "$owner" in text and "$value" in text)
        for values, is_shown in (
            ({}, True), ({"owner": "payments"}, True), ({"owner": "web"}, False), ({"owner": "payments|web"}, True),
            ({"label": "team"}, True), ({"label": "region"}, False), ({"value": "1", "owner": "payments"}, True),
            ({"label": "tier", "value": "2"}, False),
        ):  # fmt: skip
            assert bool(prometheus.query(chosen(streams, **values))) is is_shown, values
        (lag,) = prometheus.query("streamstate_query_lag")
        assert (lag["metric"]["stream"], lag["metric"]["source"], lag["value"][1]) == (STREAM, "kafka t", "500")


def test_a_stream_without_owner_and_labels_is_shown_where_all_are(alerted: Alerted, tmp_path: Path) -> None:
    """The metrics of owner and labels have no row of it."""
    program = prometheus_program()
    if program is None:
        pytest.skip("no prometheus on this machine, and no Debian package of it")
    alerted.look()
    streams = next(text for text in expressions() if "$owner" in text and "$value" in text)
    with served(alerted) as server, scraping(program, tmp_path, server.port) as prometheus:
        assert prometheus.query(chosen(streams))
        for values in ({"owner": "payments"}, {"label": "team"}, {"value": "1"}):
            assert prometheus.query(chosen(streams, **values)) == []
