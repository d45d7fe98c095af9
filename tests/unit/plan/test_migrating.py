"""Names of operators, what a rewrite settles of a comparison, and migrations without code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.plan.codes import compared, difference
from airflow_streamstate.plan.record import FieldSource, find_operator, match_buffers, operator_name, settled
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.protocol.terms.version import Artifact
from support.example_plan import EXAMPLE_PLAN

AGGREGATE = EXAMPLE_PLAN.operators[1]


def test_an_operator_is_found_by_its_name_its_kind_or_its_number() -> None:
    """A kind that occurs twice names none of them."""
    assert operator_name(AGGREGATE) == "aggregate:shop"
    for name in ("aggregate:shop", "aggregate", "1"):
        assert find_operator(EXAMPLE_PLAN, name) is AGGREGATE
    twice = replace(EXAMPLE_PLAN, operators=(*EXAMPLE_PLAN.operators, replace(AGGREGATE, operator_id=9, keys=())))
    for name in ("aggregate:no", "7", ""):
        with pytest.raises(InvalidRequestError, match=r"aggregate:shop \(number 1\)"):
            find_operator(EXAMPLE_PLAN, name)
    assert find_operator(twice, "9").operator_id == 9


def test_a_rewrite_settles_what_it_changes_and_nothing_else() -> None:
    """The form of the state of a migrated operator, and the settings that it moves; never a key or a window."""
    found = compared(
        [
            difference("aggregate-added", AGGREGATE.path, "Max(x) is new"),
            difference("key-added", AGGREGATE.path, "y is new"),
            difference("state-schema-changed", EXAMPLE_PLAN.operators[2].path, "of another operator"),
            difference("checkpoint-format-changed", "", "1 became 2, which no checkpoint changes to"),
            difference("partitions-changed", "", "5 and no more 3: a checkpoint stays as it started"),
        ]
    )
    rewrite = StateRewrite(partitions=5, checkpoint_format=2, migration=Artifact("m.py", "9f" * 32))
    verdicts = {each.code: each.verdict for each in settled(found, EXAMPLE_PLAN, rewrite, {1}).differences}
    assert verdicts == {
        "key-added": "needs-drain",
        "state-schema-changed": "needs-drain",
        "aggregate-added": "state-compatible",
        "checkpoint-format-changed": "state-compatible",
        "partitions-changed": "state-compatible",
    }
    assert "a checkpoint stays" not in " ".join(
        each.reason for each in settled(found, EXAMPLE_PLAN, rewrite, {1}).differences
    )
    assert settled(found, EXAMPLE_PLAN, None, {1}) is found


OLD = (("Count(1)", "Sum(x)"), ("count", "sum"))


@pytest.mark.parametrize(
    ("new", "fields", "expected"),
    [
        (("Sum(x)", "Count(1)"), ("sum", "count"), (1, 0)),
        (("Count(1)", "Sum(x)", "Max(x)"), ("count", "sum", "max"), (0, 1, "null")),
        (("Average(x)", "Count(1)"), ("sum", "count", "count"), ("zero", "zero", 0)),
        (("Sum(y)",), ("sum",), ("null",)),
        (("Sum(y)",), ("sum", "isEmpty"), ("null", "true")),
        (("First(x)", "Sum(x)"), ("first", "valueSet", "sum"), ("null", "false", 1)),
        (("Sum(x)",), ("sum", "isEmpty"), None),  # a sum of decimals is kept in another way
        (("CollectList(x)",), ("buf",), None),
        (("Sum(x)",), ("sum", "count"), None),  # an aggregate that the plan does not show
        (("Sum(x)", "Count(1)"), ("count", "sum"), None),
    ],
)
def test_each_field_of_an_aggregation_has_one_source(
    new: tuple[str, ...], fields: tuple[str, ...], expected: tuple[int | str, ...] | None
) -> None:
    """The old field of the same aggregate, else what the function holds before its first row; None where it is not
    certain."""
    found = match_buffers(*OLD, new, fields)
    if expected is None:
        assert found is None
        return
    assert found == tuple(
        FieldSource(each) if isinstance(each, int) else FieldSource(None, each)  # type: ignore[arg-type]
        for each in expected
    )
