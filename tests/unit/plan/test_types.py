"""``airflow_streamstate.plan.types``: Spark's types in short."""

from __future__ import annotations

import pytest

from airflow_streamstate.plan.types import columns_of, short_type

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
