"""``airflow_streamstate.plan.terms``: expressions as texts that are the same each time."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_streamstate.plan.terms import object_name, plain_name, read_term
from airflow_streamstate.plan.windows import window_of


def node(kind: str, children: int = 0, **fields: Any) -> dict[str, Any]:
    """One node, as Spark writes it."""
    return {"class": f"org.apache.spark.sql.catalyst.expressions.{kind}", "num-children": children, **fields}


def literal(value: str | None, data_type: str = "string") -> dict[str, Any]:
    """A literal."""
    return node("Literal", value=value, dataType=data_type)


COLUMN = node("AttributeReference", name="v", dataType="long", exprId={"id": 7})


def text_of(*nodes: dict[str, Any]) -> str:
    """Of the expression in these nodes."""
    return read_term(nodes, lambda attribute: str(attribute["name"]), window_of).text


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ((node("And", 2), node("IsNull", 1), COLUMN, node("Not", 1), COLUMN), "(v IS NULL AND NOT v)"),
        ((node("In", 3), COLUMN, literal("1", "long"), literal(None)), "v IN (1, null)"),
        ((literal("it's"),), "'it\\'s'"),
        ((literal("300000000", "interval minute"),), "interval 300 seconds"),
        ((literal("14", "interval year to month"),), "interval 14 months"),
        ((node("Rand", 1, hideSeed=True), literal("4711", "long")), "rand()"),
        ((node("NamedLambdaVariable", name="x_12"),), "x"),
        ((node("First", 1, ignoreNulls=True), COLUMN), "First(v, ignoreNulls)"),
        ((node("CollectList", 1, ignoreNulls=False), COLUMN), "CollectList(v, with nulls)"),
        ((node("TimeAdd", 2), COLUMN, literal("1", "long")), "TimestampAddInterval(v, 1)"),
        (
            (node("AggregateExpression", 1, isDistinct=True), node("Count", 1), COLUMN),
            "DISTINCT Count(v)",
        ),
        (
            (node("StaticThing", 1, timeZoneId="Asia/Tokyo", evalMode=None, unit="day"), COLUMN),
            "StaticThing(v, unit=day)",
        ),
    ],
)
def test_an_expression_is_read(nodes: tuple[dict[str, Any], ...], expected: str) -> None:
    """In the words of SQL where it has some, without seeds, time zones of the session and counters."""
    assert text_of(*nodes) == expected


def test_what_spark_replaced_is_told_as_the_script_had_it_without_keys() -> None:
    """How it is replaced differs from release to release; and the key of a cipher is nobody's to read."""
    cipher = node("AesEncrypt", 1, input=[COLUMN], key=[literal("0123456789abcdef")], replacement=0)
    assert text_of(cipher, literal("0123456789abcdef")) == "AesEncrypt(v, ***)"


def test_names_lose_what_differs_each_time() -> None:
    """Expression ids, generated classes, hashes of objects."""
    assert plain_name("f(v)#12L") == "f(v)"
    assert plain_name("a.B$$Lambda/0x1234") == "a.B"
    assert plain_name("x@1a2b3c4d") == "x"
    assert object_name({"object": "org.apache.spark.sql.catalyst.streaming.InternalOutputModes$Append$"}) == "Append"
    assert object_name(None) == ""


@pytest.mark.parametrize(
    ("of", "expected"),
    [("integer", "bigint"), ("double", "double"), ("decimal(10,2)", "decimal(20,2)"), ("string", "")],
)
def test_a_sum_has_the_type_that_spark_gives_it(of: str, expected: str) -> None:
    """Wider than its input, so that it does not overflow at once."""
    column = {**COLUMN, "dataType": of}
    assert read_term([node("Sum", 1), column], lambda _: "v", window_of).type == expected
