"""``airflow_streamstate.plan.rules_sources``: sources and watermarks that are others than before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.plan.comparison import compare
from airflow_streamstate.plan.differences import Comparison
from airflow_streamstate.plan.model import Expression, PlannedSource
from airflow_streamstate.plan.options import PACE_OPTIONS, SOURCE_OPTIONS
from airflow_streamstate.plan.rules_sources import PACES, STARTS, watermark_differences
from airflow_streamstate.protocol.positions import WatermarkSpec
from support.built_plans import TOPIC, plan, without_state


def of_sources(old: PlannedSource, new: PlannedSource) -> Comparison:
    return compare(plan(sources=(old,)), plan(sources=(new,)))


def test_another_topic_is_a_decision() -> None:
    """Positions of one say nothing of the other; a seed refuses them, too."""
    found = of_sources(TOPIC, replace(TOPIC, identity="subscribe:payments"))
    assert (found.verdict, found.codes) == ("hazardous", ("source-replaced",))
    assert "kafka subscribe:orders became kafka subscribe:payments" in found.differences[0].reason


@pytest.mark.parametrize(
    ("option", "verdict", "code"),
    [
        ("startingoffsets", "state-compatible", "source-start-changed"),
        ("startingtimestamp", "state-compatible", "source-start-changed"),
        ("maxoffsetspertrigger", "state-compatible", "source-pace-changed"),
        ("failondataloss", "needs-drain", "source-reading-changed"),
        ("multiline", "needs-drain", "source-reading-changed"),
    ],
)
def test_an_option_is_judged_by_what_it_decides(option: str, verdict: str, code: str) -> None:
    """Where a source starts counts for fresh ones alone; how much it reads at once changes no result."""
    found = of_sources(TOPIC, replace(TOPIC, options={option: "x"}))
    assert (found.verdict, found.codes) == (verdict, (code,))


def test_options_that_are_judged_are_options_that_are_kept() -> None:
    """A word that no plan holds judges nothing."""
    assert PACES | STARTS <= SOURCE_OPTIONS | PACE_OPTIONS


def test_without_state_rules_of_reading_mix_nothing() -> None:
    """What was written is written, and what follows is read by the new rule."""
    new = without_state(sources=(replace(TOPIC, options={"multiline": "true"}),))
    assert compare(without_state(), new).verdict == "state-compatible"


def test_named_sources_may_stand_in_any_order_but_keep_their_names() -> None:
    """Spark finds offsets by names."""
    one, other = replace(TOPIC, name="one"), replace(TOPIC, identity="subscribe:b", name="other")
    assert compare(plan(sources=(one, other)), plan(sources=(other, one))).verdict == "same"
    assert of_sources(one, replace(one, name="two")).codes == ("source-renamed",)
    unnamed = (TOPIC, replace(TOPIC, identity="subscribe:b"))
    assert compare(plan(sources=unnamed), plan(sources=unnamed[::-1])).codes == ("sources-reordered",)


def test_columns_of_a_source_are_told_by_name_and_type() -> None:
    """What is new, gone, or of another type."""
    old = replace(TOPIC, columns=(Expression("a", "int"), Expression("b", "int")))
    new = replace(TOPIC, columns=(Expression("b", "string"), Expression("c", "int")))
    found = of_sources(old, new)
    assert (found.verdict, found.codes) == ("state-compatible", ("source-columns-changed",))
    assert "c int is new, a is gone, b was int and is string" in found.differences[0].reason


@pytest.mark.parametrize(
    ("old", "new", "codes"),
    [
        ([("ts", 10)], [("ts", 20)], ["watermark-delay-changed"]),
        ([("ts", 10)], [("at", 10)], ["watermark-column-changed"]),
        ([], [("ts", 10)], ["watermark-added"]),
        ([("ts", 10)], [], ["watermark-removed"]),
        ([("a", 10), ("b", 10)], [("b", 10), ("a", 10)], []),
        ([("a", 10), ("b", 10)], [("a", 20), ("c", 10)], ["watermark-delay-changed", "watermark-column-changed"]),
    ],
)
def test_watermarks_are_compared_by_column(
    old: list[tuple[str, int]], new: list[tuple[str, int]], codes: list[str]
) -> None:
    """Delay, column, one more, one less; their order in the plan says nothing."""
    plans = [plan(watermarks=tuple(WatermarkSpec(*each) for each in side)) for side in (old, new)]
    assert [each.code for each in watermark_differences(*plans)] == codes


def test_a_watermark_without_state_is_not_spoken_of() -> None:
    """Nothing is kept by it."""
    assert compare(without_state(), without_state(watermarks=(WatermarkSpec("ts", 10),))).verdict == "same"
