"""Spark's JSON of data types as its short words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SHORT = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}


def short_type(data_type: object) -> str:
    """``bigint`` for ``long``, ``struct<a:int>`` for a struct …; "" for anything else."""
    if isinstance(data_type, str):
        return _SHORT.get(data_type, data_type)
    if not isinstance(data_type, Mapping):
        return ""
    kind = data_type.get("type")
    if kind == "struct":
        return f"struct<{','.join(f'{name}:{word}' for name, word in _fields(data_type))}>"
    if kind == "array":
        return f"array<{short_type(data_type.get('elementType'))}>"
    if kind == "map":
        return f"map<{short_type(data_type.get('keyType'))},{short_type(data_type.get('valueType'))}>"
    if kind == "udt":
        return short_type(data_type.get("sqlType")) or "udt"
    return ""


def columns_of(data_type: object) -> str:
    """The columns of a struct as DDL, ``a int, b string``; "" for anything else."""
    if not isinstance(data_type, Mapping) or data_type.get("type") != "struct":
        return ""
    return ", ".join(f"{name} {word}" for name, word in _fields(data_type))


def _fields(struct: Mapping[str, Any]) -> list[tuple[str, str]]:
    fields = struct.get("fields")
    return [(str(field["name"]), short_type(field["type"])) for field in (fields if isinstance(fields, list) else ())]
