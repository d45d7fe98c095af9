"""The endpoint for Prometheus: names, labels, values, and nothing that a label could break out of."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from unit.alerts.conftest import Alerted, behind

from airflow_streamstate.alerts.metrics import HOME_UP, METRICS, STATES, MetricsServer, bounded
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.positions import SourceLag
from support.sim_stage import STREAM, Stage

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
DASHBOARD = files("airflow_streamstate.alerts") / "grafana.json"
OF_PROMQL = {
    "sum", "max", "min", "by", "rate", "changes", "topk", "time", "clamp_min", "on", "group_left", "without", "and",
    "or",
}  # fmt: skip
EVERY_STREAM = re.compile(r'^(?:owner=~"\$owner"|name=~"\$label", value=~"\$value")$')
"""Of a metric without these labels: every stream where the variable is All, whose ``.*`` takes "" too; else none."""
OF_THE_SCRAPE = {"job", "instance"}


@contextmanager
def served(alerted: Alerted) -> Iterator[MetricsServer]:
    server = MetricsServer(alerted.watch, "127.0.0.1", 0)
    try:
        yield server
    finally:
        server.close()


def scraped(alerted: Alerted) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Every sample of one scrape, by metric and labels, as Prometheus reads them."""
    with served(alerted) as server, urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
        text = answer.read().decode()
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        found[family.name] = {tuple(sorted(one.labels.items())): one.value for one in family.samples}
    return found


def labels(**named: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({"stream": STREAM, **named}.items()))


def test_a_stream_is_seen_whole(alerted: Alerted) -> None:
    """By stream and query, from the last poll; raised alerts are included."""
    alerted.rules(state_rows_over=10)
    at = alerted.stage.clock.now()
    alerted.stage.clock.advance(30)
    alerted.beat(
        committed_at=at, state_rows=11, state_memory_bytes=2_048, watermark_at=at, lags=behind(500),
        batch_seconds=2.5, input_rows_per_second=12.5, processed_rows_per_second=25.0,
    )  # fmt: skip
    alerted.look()
    found, of_query = scraped(alerted), labels(query="counts")
    values = {
        "streamstate_query_active": 1.0, "streamstate_query_batch": 3.0, "streamstate_query_batch_seconds": 2.5,
        "streamstate_query_commit_age_seconds": 30.0, "streamstate_query_watermark_behind_seconds": 30.0,
        "streamstate_query_input_rows_per_second": 12.5, "streamstate_query_processed_rows_per_second": 25.0,
        "streamstate_query_state_rows": 11.0, "streamstate_query_state_memory_bytes": 2_048.0,
    }  # fmt: skip
    assert {name: found[name] for name in values} == {name: {of_query: value} for name, value in values.items()}
    assert found[HOME_UP] == {(): 1.0}
    assert found["streamstate_stream_up"] == {labels(): 1.0}
    assert found["streamstate_stream_state"] == {labels(state=state): float(state == "running") for state in STATES}
    lag = labels(query="counts", source_number="0", source="kafka t", unit="rows")
    assert found["streamstate_query_lag"] == {lag: 500.0}
    assert found["streamstate_alert_standing"] == {labels(rule="state_rows", subject="counts"): 1.0}


def test_owner_and_labels_can_be_joined_with_every_metric_of_a_stream(alerted: Alerted) -> None:
    """A sample for each label, so that no other metric has more of them; none without."""
    alerted.look()
    found = scraped(alerted)
    assert (found["streamstate_stream_owner"], found["streamstate_stream_label"]) == ({}, {})
    alerted.stage.controller.details.change_ownership(STREAM, 'a"da', {"team": "payments", "eu": ""})
    alerted.look()
    found = scraped(alerted)
    assert found["streamstate_stream_owner"] == {labels(owner='a"da'): 1.0}
    assert found["streamstate_stream_label"] == {
        labels(name="eu", value=""): 1.0, labels(name="team", value="payments"): 1.0,
    }  # fmt: skip


def test_a_stream_that_died_has_no_old_values(alerted: Alerted) -> None:
    """What a dead driver reported about its queries proves nothing about now."""
    alerted.beat(lags=behind(500), state_rows=11)
    alerted.look()
    alerted.stage.end(state="gone")
    alerted.look()
    found = scraped(alerted)
    assert found["streamstate_stream_up"] == {labels(): 0.0}
    assert found["streamstate_query_active"] == {labels(query="counts"): 0.0}
    assert (found["streamstate_query_lag"], found["streamstate_query_state_rows"]) == ({}, {})
    assert found["streamstate_alert_standing"] == {labels(rule="driver_dead", subject=""): 1.0}


def test_no_name_breaks_out_of_its_label(alerted: Alerted) -> None:
    """A source is called what its script calls it."""
    name = 'file /in"} 1\nstreamstate_home_up 7\\ '
    alerted.beat(lags=(SourceLag(name, 5, "rows"),))
    alerted.look()
    found = scraped(alerted)
    assert found[HOME_UP] == {(): 1.0}
    shown = name.replace("\n", " ")
    assert found["streamstate_query_lag"] == {labels(query="counts", source_number="0", source=shown, unit="rows"): 5.0}


def test_a_port_that_is_taken_is_one_sentence(alerted: Alerted) -> None:
    """And so is an address of a different machine."""
    with served(alerted) as server:
        for host, port in (("127.0.0.1", server.port), ("192.0.2.1", 0)):
            with pytest.raises(InvalidRequestError, match="nothing can listen for Prometheus here"):
                MetricsServer(alerted.watch, host, port)


def implied_by(name: str) -> tuple[str, ...]:
    """The labels that the page states once for all metrics of this prefix."""
    if name.startswith("streamstate_query_"):
        return ("stream", "query")
    return ("stream",) if name.startswith("streamstate_stream_") else ()


def test_the_page_has_every_metric_with_its_labels() -> None:
    """docs/reference/metrics.md, as the endpoint names them."""
    rows = re.findall(r"^\| `(streamstate_\w+)` \| (.*?) \| (.*?) \|$", DOCS.read_text(), re.MULTILINE)
    listed = {name: (tuple(re.findall(r"`(\w+)`", of)), meaning) for name, of, meaning in rows}
    known = {one.name: (tuple(one.labels[len(implied_by(one.name)) :]), one.help) for one in METRICS}
    assert [one.name for one in METRICS if tuple(one.labels[: len(implied_by(one.name))]) != implied_by(one.name)] == []
    assert {name: listed[name] for name in known} == known
    assert HOME_UP in listed


def expressions() -> list[str]:
    """Every query of the dashboard, and of its variables."""
    board = json.loads(DASHBOARD.read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return found + [
        match[1] or match[2]
        for one in board["templating"]["list"]
        if (match := re.fullmatch(r"(?:label_values\((.*), \w+|query_result\((.*))\)", str(one.get("query", ""))))
    ]


@pytest.mark.parametrize("text", expressions())
def test_a_query_of_the_dashboard_names_only_what_is_exported(text: str) -> None:
    """Metrics, and of each its own labels."""
    known = {one.name: set(one.labels) | OF_THE_SCRAPE for one in METRICS} | {HOME_UP: OF_THE_SCRAPE}
    names = re.findall(r"streamstate_\w+", text)
    assert names
    assert [name for name in names if name not in known] == []
    together = set.union(*(known[name] for name in names))
    for name, selected in re.findall(r"(streamstate_\w+)\{([^}]*)\}", text):
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", EVERY_STREAM.sub("", selected))) <= known[name]
    for grouped in re.findall(r"\b(?:by|without|on)\s*\(([^)]*)\)", text):
        assert {word.strip() for word in grouped.split(",")} <= together
    words = set(re.findall(r"\b[a-z_]+\b", re.sub(r"\{[^}]*\}|\"[^\"]*\"|\[[^]]*\]|\([a-z_, ]*\)", " ", text)))
    assert {word for word in words if not word.startswith("streamstate_")} <= OF_PROMQL


def test_the_dashboard_shows_every_metric_that_a_person_looks_at() -> None:
    """What the page lists and no panel shows is named here."""
    shown = set(re.findall(r"streamstate_\w+", " ".join(expressions())))
    left_out = {
        "streamstate_stream_attempt", "streamstate_stream_looked_at_seconds", "streamstate_query_batch",
        "streamstate_query_upgrade_idle_seconds",
    }  # fmt: skip
    assert {one.name for one in METRICS} - shown == left_out


def test_legends_name_only_labels_of_their_query() -> None:
    """``{{label}}`` of a label that is not there shows nothing."""
    board: dict[str, Any] = json.loads(DASHBOARD.read_text())
    known = {one.name: set(one.labels) for one in METRICS} | {HOME_UP: set()}
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            names = re.findall(r"streamstate_\w+", target["expr"])
            legend = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
            assert legend <= set.union(*(known[name] for name in names)), panel["title"]


def test_metrics_without_a_look_are_empty(stage: Stage) -> None:
    """A scrape before the first poll is answered."""
    assert scraped(Alerted(stage))["streamstate_stream_up"] == {}


def test_what_a_driver_says_cannot_fill_prometheus(alerted: Alerted) -> None:
    """Names without end, without number, with signs that are none: short labels, and a bounded number."""
    odd = ["x" * 5_000, "x" * 5_000 + "y", "a\nb\x00c\u202e", *(f"source {number}" for number in range(900))]
    alerted.beat(lags=tuple(SourceLag(name, 1, name) for name in odd))
    alerted.look()
    lags = scraped(alerted)["streamstate_query_lag"]
    assert 100 < len(lags) <= 200
    values = [value for series in lags for _, value in series]
    assert max(map(len, values)) == 120
    assert all(value.isprintable() for value in values)


def test_two_samples_of_one_series_are_one() -> None:
    """Names that differ only past the cut."""
    samples = iter([(("x" * 200 + "a",), 1.0), (("x" * 200 + "b",), 2.0), (("y",), 3.0)])
    assert list(bounded(samples)) == [(("x" * 119 + "…",), 1.0), (("y",), 3.0)]
