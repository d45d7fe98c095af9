"""``airflow_streamstate.plan.comparison``: sinks, modes and triggers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_streamstate.plan.comparison import SKIPPING, compare
from airflow_streamstate.plan.model import Expression, PlannedSink
from support.built_plans import describe, plan, without_state

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
    """One that skips batches by their ids may hold those ids: a person has to look."""
    found = compare(plan(sink=old), plan(sink=new))
    assert (found.verdict, found.codes) == (verdict, () if code is None else (code,))


def test_sinks_that_skip_are_those_that_connectors_call_so() -> None:
    """The words of ``connectors.sink.Skips``."""
    from typing import get_args

    from airflow_streamstate.connectors.sink import Skips

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


HELD = "which skips a batch whose id it holds"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ({}, {"trigger": "once"}, ["the trigger processing_time became once"]),
        ({}, {"trigger": "real_time"}, ["the trigger processing_time became real_time, which knows no barrier"]),
        ({}, {"output_mode": "update"}, ["the output mode append became update, of the same state"]),
        (
            {"output_mode": "complete"},
            {},
            ["the output mode complete became append: only complete output keeps what a watermark has closed"],
        ),
        (
            {"sink": FILES},
            {"sink": replace(FILES, target="/other")},
            [f"file:parquet /out became file:parquet /other, {HELD}, from any query"],
        ),
        ({"sink": FILES}, {"sink": DELTA}, [f"file:parquet /out became delta /table, {HELD}, of this query"]),
        ({"sink": DELTA}, {"sink": TOPIC}, ["delta /table became kafka orders"]),
        ({"sink": TOPIC}, {"sink": replace(TOPIC, kind="console", target="")}, ["kafka orders became console"]),
        (
            {"sink": FILES},
            {"sink": replace(FILES, format="json", kind="file:json")},
            ["file:parquet /out became file:json /out"],
        ),
        (
            {"sink": FILES},
            {"sink": replace(FILES, format="json")},
            ["file:parquet /out as parquet became file:parquet /out as json"],
        ),
        (
            {"sink": FILES},
            {"sink": replace(FILES, partitioned_by=("day", "hour"))},
            ["/out was partitioned by nothing and is by day, hour"],
        ),
        (
            {"sink": replace(FILES, options={"a": "1", "b": "2", "c": "3"})},
            {"sink": replace(FILES, options={"b": "4", "c": "3", "d": "5"})},
            ["a was 1 and is not set", "b was 2 and is 4", "d was not set and is 5"],
        ),
        ({}, {"columns": ()}, ["nothing is written, and was k string, n bigint"]),
        (
            {"columns": (Expression("v", "int"), Expression("w", "", "x"))},
            {},
            ["k string, n bigint is written, and was v int, x"],
        ),
    ],
)
def test_each_difference_of_the_output_is_told(old: dict[str, Any], new: dict[str, Any], words: list[str]) -> None:
    """What it was and is, and what that does; it is nowhere in a plan."""
    assert [(path, reason) for _, path, reason in describe(plan(**old), plan(**new))] == [("", each) for each in words]


def test_only_state_ties_a_query_to_complete_output() -> None:
    """A query without state writes what its mode prescribes from here on."""
    plans = without_state(output_mode="complete"), without_state()
    assert [code for code, _, _ in describe(*plans)] == ["output-mode-changed"]


def test_what_is_done_above_all_state_is_told_where_it_is_done() -> None:
    """By the kind of its node."""
    nodes = plan().nodes
    changed = (replace(nodes[0], kind="Filter", text="(n > 1)"), *nodes[1:])
    found = describe(plan(nodes=changed), plan(nodes=(replace(changed[0], text="(n > 2)"), *nodes[1:])))
    ((code, path, reason),) = found
    assert (code, path) == ("output-changed", "Filter")
    assert reason.startswith("above all state: ")
    assert "(n > 2)" in reason
