"""``airflow_streamstate.plan.expressions``: expressions as texts that are the same each time."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_streamstate.plan.expressions import columns_of, interval_ms, object_name, plain_name, read_term, short_type


def node(kind: str, children: int = 0, **fields: Any) -> dict[str, Any]:
    """One node, as Spark writes it."""
    return {"class": f"org.apache.spark.sql.catalyst.expressions.{kind}", "num-children": children, **fields}


def literal(value: str | None, data_type: str = "string") -> dict[str, Any]:
    """A literal."""
    return node("Literal", value=value, dataType=data_type)


COLUMN = node("AttributeReference", name="v", dataType="long", exprId={"id": 7})


def text_of(*nodes: dict[str, Any]) -> str:
    """Of the expression in these nodes."""
    return read_term(nodes, lambda attribute: str(attribute["name"])).text


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
    """Its replacement differs from release to release; and the key of a cipher is hidden."""
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
    assert read_term([node("Sum", 1), column], lambda _: "v").type == expected


STRUCT = {
    "type": "struct",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "tags", "type": {"type": "array", "elementType": "string"}},
        {"name": "of", "type": {"type": "map", "keyType": "integer", "valueType": "decimal(10,2)"}},
    ],
}


@pytest.mark.parametrize(
    ("data_type", "expected"),
    [
        ("long", "bigint"),
        ("timestamp", "timestamp"),
        (STRUCT, "struct<n:bigint,tags:array<string>,of:map<int,decimal(10,2)>>"),
        ({"type": "udt", "sqlType": "long"}, "bigint"),
        ({"type": "new"}, ""),
        (None, ""),
        (7, ""),
    ],
)
def test_a_type_has_a_short_word(data_type: object, expected: str) -> None:
    """That of Spark's ``simpleString``; nothing for what is no type."""
    assert short_type(data_type) == expected


def test_the_columns_of_a_struct_are_its_ddl() -> None:
    """As a schema is written; nothing of what is no struct."""
    assert columns_of(STRUCT) == "n bigint, tags array<string>, of map<int,decimal(10,2)>"
    assert columns_of("long") == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5 minutes", 300_000),
        ("1 hour 30 seconds", 3_630_000),
        ("interval 2 days", 172_800_000),
        ("0.5 seconds", 500),
        ("1 month", None),
        ("soon", None),
        ("", None),
        ("5 minutes or so", None),
    ],
)
def test_an_interval_in_sparks_words(text: str, expected: int | None) -> None:
    """In milliseconds; months have no length."""
    assert interval_ms(text) == expected
