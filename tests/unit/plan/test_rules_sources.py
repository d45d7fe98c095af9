"""``airflow_streamstate.plan.rules``: sources and watermarks that are others than before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.plan.codes import Comparison
from airflow_streamstate.plan.comparison import compare
from airflow_streamstate.plan.model import PACE_OPTIONS, SOURCE_OPTIONS, Expression, PlannedSource
from airflow_streamstate.plan.rules import PACES, STARTS, watermark_differences
from airflow_streamstate.protocol.positions import WatermarkSpec
from support.built_plans import TOPIC, describe, plan, without_state


def of_sources(old: PlannedSource, new: PlannedSource) -> Comparison:
    return compare(plan(sources=(old,)), plan(sources=(new,)))


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


def test_a_watermark_without_state_is_not_spoken_of() -> None:
    """Nothing is kept by it."""
    assert compare(without_state(), without_state(watermarks=(WatermarkSpec("ts", 10),))).verdict == "same"


B, C = (replace(TOPIC, identity=f"subscribe:{name}", path=f"Union > {name}") for name in "bc")
NAMED = replace(TOPIC, name="one")
ORDERS = "kafka subscribe:orders"
UNKNOWN = "positions of the one mean nothing to the other, and Spark refuses them, or reads the other input from there"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            (TOPIC,),
            (TOPIC, B),
            [("source-added", B.path, "kafka subscribe:b is new: Spark refuses another number of them")],
        ),
        (
            (TOPIC, B),
            (TOPIC,),
            [("source-removed", B.path, "kafka subscribe:b is gone: Spark refuses another number of them")],
        ),
        (
            (TOPIC,),
            (B, C),
            [
                ("source-replaced", B.path, f"{ORDERS} became kafka subscribe:b: {UNKNOWN}"),
                ("source-added", C.path, "kafka subscribe:c is new: Spark refuses another number of them"),
            ],
        ),
        (
            (B, C),
            (TOPIC,),
            [
                ("source-replaced", TOPIC.path, f"kafka subscribe:b became {ORDERS}: {UNKNOWN}"),
                ("source-removed", C.path, "kafka subscribe:c is gone: Spark refuses another number of them"),
            ],
        ),
        (
            (TOPIC, B),
            (B, TOPIC),
            [
                (
                    "sources-reordered",
                    B.path,
                    f"the sources are now kafka subscribe:b, {ORDERS}, in that order: Spark goes by position",
                )
            ],
        ),
        (
            (NAMED,),
            (replace(NAMED, name="two"),),
            [
                (
                    "source-renamed",
                    TOPIC.path,
                    f"the source {ORDERS} was named one, and is named two: Spark finds offsets by names, and would"
                    " read it from the start",
                )
            ],
        ),
        (
            (replace(TOPIC, options={"multiline": "false"}),),
            (replace(TOPIC, options={"startingoffsets": "latest", "maxoffsetspertrigger": "5"}),),
            [
                ("source-reading-changed", TOPIC.path, f"{ORDERS}: multiline was false and is not set"),
                (
                    "source-pace-changed",
                    TOPIC.path,
                    f"{ORDERS}: maxoffsetspertrigger was not set and is 5: batches are cut differently",
                ),
                (
                    "source-start-changed",
                    TOPIC.path,
                    f"{ORDERS}: startingoffsets was not set and is latest: the checkpoint states where it continues",
                ),
            ],
        ),
        (
            (replace(TOPIC, columns=(Expression("x was y", "int"), Expression("a", "int"), Expression("b", "int"))),),
            (
                replace(
                    TOPIC, columns=(Expression("x was y", "int"), Expression("a", "bigint"), Expression("c", "int"))
                ),
            ),
            [
                (
                    "source-columns-changed",
                    TOPIC.path,
                    f"{ORDERS}: c int is new, b is gone, a was int and is bigint, for what is read from here on",
                )
            ],
        ),
    ],
)
def test_each_difference_of_sources_is_told(
    old: tuple[PlannedSource, ...], new: tuple[PlannedSource, ...], words: list[tuple[str, str, str]]
) -> None:
    """The gravest first; which source, what it was and is, and what that does."""
    assert describe(plan(sources=old), plan(sources=new)) == words


def test_a_name_that_comes_or_goes_is_told_as_such() -> None:
    """A source without one is named nothing."""
    for old, new, words in (
        (TOPIC, NAMED, "was named nothing, and is named one"),
        (NAMED, TOPIC, "was named one, and is named nothing"),
    ):
        ((code, _, reason),) = describe(plan(sources=(old,)), plan(sources=(new,)))
        assert (code, words in reason) == ("source-renamed", True)


def test_another_format_mixes_what_was_read_by_both() -> None:
    """Of a query without state it counts for what follows alone."""
    old = PlannedSource("json", "file", "file:/in", path="Relation")
    words = ("source-format-changed", "Relation", "file:/in was read as json, and is read as csv")
    for make, verdict in ((plan, "needs-drain"), (without_state, "state-compatible")):
        plans = make(sources=(old,)), make(sources=(replace(old, format="csv"),))
        assert (compare(*plans).verdict, describe(*plans)) == (verdict, [words])


DROPPED = "what was closed or dropped by it is not in the state"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            [("ts", 10_000)],
            [("ts", 500)],
            [
                "ts may be 0.5 s late and no more 10 s: what was closed or dropped by the old delay stays so, what was"
                " let in stays in"
            ],
        ),
        ([("a", 10), ("b", 10)], [("b", 10), ("a", 10)], []),
        (
            [("a", 10), ("b", 10)],
            [("a", 20), ("c", 10)],
            [
                "a may be 0.02 s late and no more 0.01 s: what was closed or dropped by the old delay stays so, what"
                " was let in stays in",
                "the watermark is of c and no more of b: what is in the state was kept, and closed, by other times",
            ],
        ),
        ([], [("ts", 10_000)], ["ts has a watermark of 10 s now: what came too late before is in the state"]),
        ([("ts", 10_000)], [], [f"ts has no watermark any more: {DROPPED}"]),
        (
            [("a", 10), ("b", 10)],
            [("c", 10)],
            [
                "the watermark is of c and no more of a: what is in the state was kept, and closed, by other times",
                f"b has no watermark any more: {DROPPED}",
            ],
        ),
        (
            [("a", 10)],
            [("b", 10), ("c", 1_000)],
            [
                "the watermark is of b and no more of a: what is in the state was kept, and closed, by other times",
                "c has a watermark of 1 s now: what came too late before is in the state",
            ],
        ),
    ],
)
def test_each_difference_of_watermarks_is_told(
    old: list[tuple[str, int]], new: list[tuple[str, int]], words: list[str]
) -> None:
    """At the first operator, whose state it is about."""
    plans = [plan(watermarks=tuple(WatermarkSpec(*each) for each in side)) for side in (old, new)]
    assert [(path, reason) for _, path, reason in describe(*plans)] == [("Aggregate 0", each) for each in words]


def test_a_watermark_of_a_query_whose_state_goes_is_spoken_of() -> None:
    """Where no operator is left, by its own kind of node."""
    found = list(watermark_differences(plan(watermarks=()), without_state(watermarks=(WatermarkSpec("ts", 1),))))
    assert [(each.code, each.path) for each in found] == [("watermark-added", "EventTimeWatermark")]
    found = list(watermark_differences(without_state(), plan()))
    assert [(each.code, each.path) for each in found] == [("watermark-added", "Aggregate 0")]
