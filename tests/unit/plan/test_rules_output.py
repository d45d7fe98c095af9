"""``airflow_streamstate.plan.rules_output``: sinks, modes and triggers."""

from __future__ import annotations

import pytest

from airflow_streamstate.plan.comparison import compare
from airflow_streamstate.plan.model import PlannedSink
from airflow_streamstate.plan.rules_output import SKIPPING
from support.built_plans import plan, without_state

FILES = PlannedSink("file:parquet", "parquet", "/out", "file", "batch_id")
DELTA = PlannedSink("delta", "delta", "/table", "delta", "query_id_and_batch_id")
TOPIC = PlannedSink("kafka", "kafka", "orders", "kafka", "nothing")


@pytest.mark.parametrize(
    ("old", "new", "verdict", "code"),
    [
        (FILES, PlannedSink("file:parquet", "parquet", "/other", "file", "batch_id"), "hazardous", "sink-replaced"),
        (FILES, DELTA, "hazardous", "sink-replaced"),
        (DELTA, TOPIC, "state-compatible", "sink-redirected"),
        (TOPIC, PlannedSink("kafka", "kafka", "b", "kafka", "nothing"), "state-compatible", "sink-redirected"),
        (FILES, PlannedSink("file:json", "json", "/out", "file", "batch_id"), "hazardous", "sink-format-changed"),
        (
            FILES,
            PlannedSink("file:parquet", "parquet", "/out", "file", "batch_id", partitioned_by=("day",)),
            "hazardous",
            "sink-partitioning-changed",
        ),
        (
            FILES,
            PlannedSink("file:parquet", "parquet", "/out", "file", "batch_id", {"compression": "zstd"}),
            "state-compatible",
            "sink-options-changed",
        ),
        (FILES, FILES, "same", None),
    ],
)
def test_a_sink_is_judged_by_what_it_skips(old: PlannedSink, new: PlannedSink, verdict: str, code: str | None) -> None:
    """One that leaves out batches by their ids may hold those ids: somebody has to look."""
    found = compare(plan(sink=old), plan(sink=new))
    assert (found.verdict, found.codes) == (verdict, () if code is None else (code,))


def test_sinks_that_skip_are_those_that_adapters_call_so() -> None:
    """The words of ``adapters.sink.Skips``."""
    from typing import get_args

    from airflow_streamstate.adapters.sink import Skips

    assert set(get_args(Skips)) - SKIPPING == {"nothing", "unknown"}


@pytest.mark.parametrize(
    ("trigger", "verdict"),
    [("once", "state-compatible"), ("continuous", "hazardous"), ("real_time", "hazardous")],
)
def test_triggers_that_know_no_barrier_are_told(trigger: str, verdict: str) -> None:
    """Any other one changes when batches are made, and no more."""
    assert compare(plan(), plan(trigger=trigger)).verdict == verdict


def test_complete_output_is_a_matter_of_state() -> None:
    """Without state an output mode is the sink's business alone."""
    assert compare(plan(), plan(output_mode="complete")).verdict == "hazardous"
    assert compare(without_state(), without_state(output_mode="update")).verdict == "state-compatible"
