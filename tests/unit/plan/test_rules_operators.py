"""``airflow_streamstate.plan.rules``: what a change of one operator does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_streamstate.plan.comparison import compare
from airflow_streamstate.plan.model import Expression, OperatorInput, StateOperator, StateVariable
from airflow_streamstate.plan.rules import named, operator_differences
from support.built_plans import WINDOW, operator, plan, processor

TOTAL = StateVariable("total", "value", value_schema="n bigint")
SEEN = StateVariable("seen", "list", value_schema="v bigint")


def test_unknown_variables_are_not_compared() -> None:
    """Those of a new plan are known only when it ran on real state."""
    assert compare(plan(processor(TOTAL)), plan(processor(known=False))).verdict == "same"


def test_an_aggregate_that_is_not_used_is_not_kept() -> None:
    """Spark leaves it out of the state, so that it comes and goes with its use above."""
    both = operator(aggregates=(Expression("Count(1)", "bigint", "n"), Expression("Sum(v)", "bigint", "s")))
    found = list(operator_differences(both, both, None, frozenset({"n", "k"})))
    assert [each.code for each in found] == ["aggregate-removed"]
    assert list(operator_differences(both, both, frozenset({"n"}), frozenset({"n", "window"}))) == []


def test_an_unknown_type_is_not_judged_by() -> None:
    """Spark may refuse, or take it in silence: both are reported."""
    unknown = operator(keys=(Expression("Upper(k)", "", "k"),), windows=())
    found = list(operator_differences(operator(keys=(Expression("k", "string", "k"),), windows=()), unknown))
    assert "silently" in found[0].reason
    typed = operator(keys=(Expression("j", "bigint", "k"),), windows=())
    found = list(operator_differences(operator(keys=(Expression("k", "string", "k"),), windows=()), typed))
    assert "silently" not in found[0].reason


def test_a_window_under_another_name_is_a_window() -> None:
    """It is reported once, as a window; a key that is only called like one is a key."""
    other = replace(WINDOW, duration_ms=1)
    was = Expression("w", "struct", "w", True, "window(ts, 60000 ms)")
    now = Expression("w2", "struct", "w2", True, "window(ts, 1 ms)")
    old, new = operator(keys=(was,)), operator(keys=(now,), windows=(other,))
    assert [each.code for each in operator_differences(old, new)] == ["window-changed"]
    size = Expression("window_size", "int", "window_size")
    old, new = operator(keys=(was, size)), operator(keys=(now, Expression("k", "int")), windows=(other,))
    assert [each.code for each in operator_differences(old, new)] == ["window-changed", "key-changed"]


def test_an_operator_is_told_by_kind_and_keys() -> None:
    """As human-readable text."""
    assert named(operator()) == "aggregate by window, k"
    assert named(operator(kind="global_limit", keys=(), inputs=(OperatorInput("d", "t"),))) == "global limit"


MIXED = "accepted silently: one result would mix rows of the old and the new rule"
REFUSED = "Spark refuses the state"
UNSURE = f"{REFUSED} where what it keeps is of another type; of the same type, it is {MIXED}"
KEY, OTHER_KEY = Expression("k", "string", "k"), Expression("j", "int")
COUNT, SUM = Expression("Count(1)", "bigint", "n"), Expression("Sum(v)", "bigint", "s")


def grouped(**facts: Any) -> StateOperator:
    """A count by one key, without a window."""
    return operator(**{"keys": (KEY,), "windows": (), **facts})


def windowed(**facts: Any) -> StateOperator:
    """A count by window."""
    keys = (Expression("window", "struct", "window", True),)
    return grouped(windows=(replace(WINDOW, **facts),), keys=keys)


def words_of(old: StateOperator, new: StateOperator, *asked: frozenset[str] | None) -> list[tuple[str, str]]:
    """Each difference of an operator: its code and its reason."""
    found = list(operator_differences(old, new, *asked))
    assert {each.path.partition(",")[0] for each in found} <= {"Aggregate 0"}
    return [(each.code, each.reason) for each in found]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            operator(),
            operator(kind="session_window", keys=()),
            [
                (
                    "operator-kind-changed",
                    f"aggregate by window, k became session window: {REFUSED}, or takes it for what it is not",
                )
            ],
        ),
        (
            grouped(keys=(KEY, OTHER_KEY)),
            grouped(keys=(OTHER_KEY, KEY)),
            [("keys-reordered", f"the keys k, j became j, k: {REFUSED}, or each takes the other's place")],
        ),
        (
            grouped(),
            grouped(keys=(Expression("Upper(k)", "string", "k"),)),
            [("key-changed", f"the key k became Upper(k): {UNSURE}")],
        ),
        (
            grouped(keys=(OTHER_KEY, KEY)),
            grouped(keys=(OTHER_KEY, Expression("k", "bigint", "k"))),
            [("key-changed", f"the key k of type string became k of type bigint: {REFUSED}")],
        ),
        (grouped(), grouped(keys=(KEY, OTHER_KEY)), [("key-added", f"j is a key now: {REFUSED}")]),
        (grouped(), grouped(keys=()), [("key-removed", f"k is no key any more: {REFUSED}")]),
        (
            grouped(),
            grouped(keys=(OTHER_KEY, COUNT)),
            [
                ("key-added", f"j is a key now: {REFUSED}"),
                ("key-added", f"Count(1) is a key now: {REFUSED}"),
                ("key-removed", f"k is no key any more: {REFUSED}"),
            ],
        ),
        (
            grouped(aggregates=(COUNT, SUM)),
            grouped(aggregates=(SUM, COUNT)),
            [
                (
                    "aggregates-reordered",
                    "the aggregates Count(1), Sum(v) became Sum(v), Count(1): state goes by their order, so each would"
                    f" continue with the other's ({MIXED} where the types are the same)",
                )
            ],
        ),
        (
            grouped(aggregates=(COUNT, COUNT)),
            grouped(aggregates=(COUNT, SUM)),
            [("aggregate-changed", f"Count(1) became Sum(v): {UNSURE}")],
        ),
        (
            grouped(aggregates=(COUNT,)),
            grouped(aggregates=(replace(SUM, type="double"),)),
            [("aggregate-changed", f"Count(1) became Sum(v): {REFUSED}")],
        ),
        (
            grouped(aggregates=(SUM,)),
            grouped(aggregates=(replace(SUM, type="double"),)),
            [("aggregate-changed", f"Sum(v) of type {SUM.type} became Sum(v) of type double: {REFUSED}")],
        ),
        (
            grouped(aggregates=(COUNT,)),
            grouped(aggregates=(COUNT, SUM)),
            [("aggregate-added", f"Sum(v) is computed, or asked for, now: {REFUSED}")],
        ),
        (
            grouped(aggregates=(COUNT, SUM)),
            grouped(aggregates=()),
            [
                ("aggregate-removed", f"Count(1) is not computed, or asked for, any more: {REFUSED}"),
                ("aggregate-removed", f"Sum(v) is not computed, or asked for, any more: {REFUSED}"),
            ],
        ),
        (
            grouped(limit=5),
            grouped(limit=10),
            [("limit-changed", "the limit 5 became 10, and the rows that were let through count for the new one")],
        ),
    ],
)
def test_each_difference_of_an_aggregate_is_told(
    old: StateOperator, new: StateOperator, words: list[tuple[str, str]]
) -> None:
    """What it was and is, and what Spark does with the state."""
    assert words_of(old, new) == words


SESSION = {"kind": "session", "slide_ms": None, "offset_ms": None}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ({}, {"duration_ms": 120_000}, "a window of 60 s of ts became a window of 120 s of ts each 60 s"),
        (
            {"slide_ms": 30_000},
            {"slide_ms": 30_000, "offset_ms": 500},
            "a window of 60 s of ts each 30 s became a window of 60 s of ts each 30 s from 0.5 s",
        ),
        ({"slide_ms": None}, {"column": "at"}, "a window of 60 s of ts became a window of 60 s of at"),
        (
            SESSION,
            {**SESSION, "duration_ms": None, "gap": "(v * 2)"},
            "a session of ts with a gap of 60 s became a session of ts with a gap of (v * 2)",
        ),
        (
            SESSION,
            {**SESSION, "duration_ms": None},
            "a session of ts with a gap of 60 s became a session of ts with a gap of an expression",
        ),
    ],
)
def test_a_window_is_told_by_length_slide_and_offset(old: dict[str, Any], new: dict[str, Any], words: str) -> None:
    """A session by its gap."""
    reason = f"{words}: open windows were started by the old one ({MIXED})"
    assert words_of(windowed(**old), windowed(**new)) == [("window-changed", reason)]


def test_another_window_hides_no_other_key() -> None:
    """A key that came, went, or moved along with it is reported as well; a window more or less is a key."""
    window = Expression("window", "struct", "window", True)
    long = (replace(WINDOW, duration_ms=1),)
    old = grouped(keys=(window, KEY), windows=(WINDOW,))
    for keys, codes in (
        ((window, KEY), ["window-changed"]),
        ((KEY, window), ["window-changed", "keys-reordered"]),
        ((window, OTHER_KEY), ["window-changed", "key-changed"]),
        ((window,), ["window-changed", "key-removed"]),
        ((window, KEY, OTHER_KEY), ["window-changed", "key-added"]),
    ):
        assert [code for code, _ in words_of(old, grouped(keys=keys, windows=long))] == codes
    assert [code for code, _ in words_of(old, grouped(keys=(KEY,)))] == ["key-removed"]


LEFT = OperatorInput("l", "left", (Expression("a", "int", "a"), Expression("b", "int", "b")), sources=(0,))
RIGHT = OperatorInput("r", "right", (Expression("c", "string"),), sources=(1,))


def join(**facts: Any) -> StateOperator:
    usual: dict[str, Any] = {
        "inputs": (LEFT, RIGHT),
        "join_type": "Inner",
        "condition": "(a = c)",
        "keys": (Expression("a", "int"), Expression("c", "int")),
    }
    return operator(kind="stream_join", **{**usual, **facts})


BOUNDS = f"{REFUSED} where keys change; where only the time bounds do, rows that would be met now were let go before"
SWAPPED = f"left and right have changed places: {REFUSED}, or each side continues with the other's rows"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ({}, {}, []),
        ({}, {"join_type": "LeftOuter"}, [("join-type-changed", "Inner became LeftOuter, which keep the same rows")]),
        (
            {"join_type": "LeftSemi"},
            {},
            [
                (
                    "join-type-changed",
                    "LeftSemi became Inner: rows that had met one of the other side are not in the state",
                )
            ],
        ),
        ({}, {"inputs": (RIGHT, LEFT)}, [("join-sides-swapped", SWAPPED)]),
        ({}, {"inputs": (RIGHT, LEFT), "condition": ""}, [("join-sides-swapped", SWAPPED)]),
        ({"inputs": (LEFT, LEFT)}, {"inputs": (LEFT, LEFT)}, []),
        ({}, {"condition": ""}, [("join-condition-changed", f"(a = c) became no condition: {BOUNDS}")]),
        ({"condition": ""}, {}, [("join-condition-changed", f"no condition became (a = c): {BOUNDS}")]),
        ({}, {"keys": ()}, [("join-condition-changed", f"(a = c) on a, c became (a = c) on none: {BOUNDS}")]),
        (
            {},
            {"inputs": (replace(LEFT, columns=LEFT.columns[:1]), RIGHT)},
            [("join-columns-changed", f"of the left rows it keeps a int, and kept a int, b int: {REFUSED}")],
        ),
        (
            {},
            {"inputs": (replace(LEFT, digest="other"), replace(RIGHT, columns=(Expression("d", "int", "d"),)))},
            [("join-columns-changed", f"of the right rows it keeps d int, and kept c string: {REFUSED}")],
        ),
    ],
)
def test_each_difference_of_a_join_is_told(
    old: dict[str, Any], new: dict[str, Any], words: list[tuple[str, str]]
) -> None:
    """A swapped join is reported as that alone: its condition and its columns follow."""
    assert words_of(join(**old), join(**new)) == words


def test_a_column_that_a_join_keeps_is_one_that_is_used() -> None:
    """Above it, or in its own condition; each side by itself."""
    assert words_of(join(), join(), frozenset(), frozenset()) == []
    found = list(operator_differences(join(), join(), frozenset({"b"}), frozenset({"c"})))
    assert [(each.code, each.path) for each in found] == [("join-columns-changed", "Aggregate 0, left")]
    assert words_of(grouped(inputs=(LEFT,)), grouped(inputs=(replace(LEFT, columns=()),))) == []


TOLD = "transform with state by k has"
FRESH = "it counts only for a fresh start"


@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        ({"function": ""}, {"function": "F"}, "function-renamed", "the function unknown became F"),
        (
            {"time_mode": "EventTime"},
            {"time_mode": "NoTime"},
            "time-mode-changed",
            "the time mode EventTime became NoTime",
        ),
        ({"timeout": "NoTimeout"}, {"timeout": ""}, "timeout-changed", "the timeout NoTimeout became unknown"),
        (
            {"output_mode": "append"},
            {"output_mode": ""},
            "operator-mode-changed",
            "the operator's output mode append became unknown",
        ),
        ({}, {"state_schema": "n int"}, "state-schema-changed", "the schema of the state unknown became n int"),
        ({}, {"has_initial_state": True}, "initial-state-changed", f"{TOLD} an initial state now: {FRESH}"),
        ({"has_initial_state": True}, {}, "initial-state-changed", f"{TOLD} no initial state any more: {FRESH}"),
    ],
)
def test_each_difference_of_a_function_is_told(old: dict[str, Any], new: dict[str, Any], code: str, words: str) -> None:
    """Each of these decides what the state of an operator means, so it needs a drain."""
    assert words_of(processor(**old), processor(**new)) == [(code, words)]
    assert compare(plan(processor(**old)), plan(processor(**new))).verdict == "needs-drain"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ((TOTAL,), (TOTAL,), []),
        (
            (TOTAL,),
            (replace(TOTAL, key_schema="k string", kind="map"), SEEN),
            [
                ("variable-added", "the state variable seen is new"),
                (
                    "variable-changed",
                    "the state variable total was a value of n bigint and is a map of k string -> n bigint now",
                ),
            ],
        ),
        ((SEEN, TOTAL), (TOTAL,), [("variable-removed", "the state variable seen is gone")]),
        (
            (TOTAL,),
            (replace(TOTAL, value_schema="n double"),),
            [("variable-changed", "the state variable total was a value of n bigint and is a value of n double now")],
        ),
        (
            (TOTAL,),
            (replace(TOTAL, has_ttl=True),),
            [("variable-ttl-changed", f"the state variable total got a time to live: {REFUSED}")],
        ),
        (
            (replace(TOTAL, has_ttl=True), StateVariable("x", "timer")),
            (TOTAL, StateVariable("x", "value")),
            [
                ("variable-ttl-changed", f"the state variable total lost its time to live: {REFUSED}"),
                ("variable-changed", "the state variable x was a timer and is a value now"),
            ],
        ),
    ],
)
def test_each_difference_of_a_variable_is_told(
    old: tuple[StateVariable, ...], new: tuple[StateVariable, ...], told: list[tuple[str, str]]
) -> None:
    """By its name: its kind, its schema, and whether its values end; one that comes or goes harms nothing."""
    assert words_of(processor(*old), processor(*new)) == told
