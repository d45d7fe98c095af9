"""The expressions of a plan as texts that are equal for equal expressions, on each Spark.

Spark writes an expression as the list of its nodes, each before its children, with the number of those. So it is read
from the end, with a stack instead of recursion.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_streamstate.plan.model import Window
from airflow_streamstate.plan.types import short_type

HIDDEN = "***"
USER_FUNCTION = "udf:"
"""Prefix of the name of a function of the script, whose body is not in a plan."""
_CHANGING = re.compile(r"#\d+L?\b|\$\$Lambda[^ ,)]*|@[0-9a-f]{4,8}\b")
_COUNTED = re.compile(r"_\d+$")  # pyspark counts the variables of its lambdas
_OPERATORS = {
    "And": "AND",
    "Or": "OR",
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "Add": "+",
    "Subtract": "-",
    "Multiply": "*",
    "Divide": "/",
    "Remainder": "%",
}
_TRANSPARENT = frozenset(
    {"KnownNullable", "KnownNotNull", "KnownFloatingPointNormalized", "PreciseTimestampConversion"}
)
_RENAMED = {"TimeAdd": "TimestampAddInterval"}  # its name in Spark 4.0
_RANDOM = frozenset({"Rand", "Randn", "Uuid", "Shuffle"})  # their seed differs each time
_WITH_KEYS = re.compile(r"Aes|Hmac")
_NOISE = frozenset(
    {
        "class", "num-children", "exprId", "resultId", "qualifier", "nullable", "metadata", "explicitMetadata",
        "nonInheritableMetadataKeys", "timeZoneId", "mode", "name", "evalMode", "evalContext", "func", "value",
    }
)  # fmt: skip
_AGGREGATE_TYPES = {"Count": "bigint", "CountIf": "bigint", "HyperLogLogPlusPlus": "bigint"}
_TYPE_OF_CHILD = frozenset({"Min", "Max", "First", "Last", "AnyValue", "Alias", "AggregateExpression", *_TRANSPARENT})
_BOOLEANS = frozenset({"And", "Or", "Not", "IsNull", "IsNotNull", "In", "EqualTo", "LessThan", "GreaterThan"})


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """One node of an expression, with what is below it.

    Attributes:
        kind: Spark's class of it.
        text: of it and what is below.
        type: short; "" where unknown.
        children: left to right.
        fields: as Spark wrote them.
        expr_id: Spark's own number of a column; None for none.
        window: if it is the struct of a window.
    """

    kind: str
    text: str
    type: str
    children: tuple[Term, ...]
    fields: Mapping[str, Any]
    expr_id: int | None = None
    window: Window | None = None


Names = Callable[[Mapping[str, Any]], str]
"""The text of a reference to a column."""


def is_term(value: object) -> bool:
    """Whether a field of a node is an expression (or a plan), as its list of nodes."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "class" in value[0]


def read_term(nodes: Sequence[Mapping[str, Any]], names: Names, window_of: Callable[[Term], Window | None]) -> Term:
    """The expression in this list of nodes.

    Args:
        nodes: as Spark wrote them.
        names: gives the text of a column.
        window_of: finds the window in a struct.

    Raises:
        KeyError, IndexError, TypeError, ValueError: Spark wrote them in an unknown form.
    """
    stack: list[Term] = []
    for node in reversed(nodes):
        children = tuple(stack.pop() for _ in range(int(node["num-children"])))
        kind = str(node["class"]).rpartition(".")[2]
        kind = _RENAMED.get(kind, kind)
        text, expr_id = _text(kind, node, children, names, window_of), expr_id_of(node.get("exprId"))
        term = Term(kind, text, _type(kind, node, children), children, node, expr_id)
        if kind == "CreateNamedStruct":
            window = window_of(term)
            if window is not None:
                term = Term(kind, window_text(window), term.type, children, node, None, window)
        stack.append(term)
    return stack[0]


def without_alias(term: Term) -> Term:
    return term.children[0] if term.kind == "Alias" else term


def expr_id_of(raw: object) -> int | None:
    """Spark's number of a column; None for none."""
    return int(raw["id"]) if isinstance(raw, Mapping) and "id" in raw else None


def plain_name(name: object) -> str:
    """A name without the parts that differ each time."""
    return _CHANGING.sub("", str(name))


def object_name(raw: object) -> str:
    """``LeftOuter`` for a Scala object of this name; "" for anything else."""
    if not isinstance(raw, Mapping):
        return ""
    name = str(raw.get("object") or raw.get("product-class") or "")
    return name.rpartition(".")[2].rstrip("$").rpartition("$")[2]


def terms_below(term: Term, kind: str | None = None) -> list[Term]:
    """Every node of this kind (of each for None), itself included, as Spark lists them: before what is below it."""
    found, stack = [], [term]
    while stack:
        one = stack.pop()
        if kind is None or one.kind == kind:
            found.append(one)
        stack.extend(reversed(one.children))
    return found


def window_text(window: Window) -> str:
    """The window as a call of Spark's own function."""
    if window.kind == "session":
        return f"session_window({window.column}, {window.gap or f'{window.duration_ms} ms'})"
    offset = f", {window.offset_ms} ms" if window.offset_ms else ""
    slide = f", {window.slide_ms} ms" if window.kind == "sliding" or offset else ""
    return f"window({window.column}, {window.duration_ms} ms{slide}{offset})"


def _text(
    kind: str,
    node: Mapping[str, Any],
    children: tuple[Term, ...],
    names: Names,
    window_of: Callable[[Term], Window | None],
) -> str:
    texts = [child.text for child in children]
    if kind == "GetStructField":
        return f"{texts[0]}.{_field_name(node, children[0])}"
    special = _SPECIAL.get(kind)
    if special is not None:
        return special(node, texts, names)
    if kind in _OPERATORS and len(texts) == 2:
        return f"({texts[0]} {_OPERATORS[kind]} {texts[1]})"
    if kind in _TRANSPARENT and len(texts) == 1:
        return texts[0]
    if kind in _RANDOM:
        return f"{kind.lower()}()"
    if "replacement" in node:  # the original says more than Spark's replacement, and is equal on each Spark
        texts = [
            HIDDEN if name == "key" and _WITH_KEYS.search(kind) else read_term(value, names, window_of).text
            for name, value in node.items()
            if is_term(value)
        ] or texts
    own = [f"{name}={value}" for name, value in ((name, _scalar(name, raw)) for name, raw in node.items()) if value]
    return f"{kind}({', '.join([*texts, *own])})"


def _field_name(node: Mapping[str, Any], struct: Term) -> str:
    """Of a field, which Spark does not always name."""
    if node.get("name"):
        return plain_name(node["name"])
    place, data_type = int(node["ordinal"]), struct.fields.get("dataType")
    fields = data_type.get("fields") if isinstance(data_type, Mapping) else None
    return plain_name(fields[place]["name"]) if fields else str(place)


def _scalar(name: str, raw: object) -> str:
    if name in _NOISE:
        return ""
    if isinstance(raw, float):
        return repr(raw)
    if isinstance(raw, str):
        return plain_name(raw)
    if isinstance(raw, Mapping):
        return short_type(raw) or object_name(raw)
    return ""  # whole numbers are places of children or in buffers; defaults that are true differ by release


def _literal(node: Mapping[str, Any]) -> str:
    value, data_type = node.get("value"), node.get("dataType")
    if value is None:
        return "null"
    if data_type == "string":
        return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(data_type, str) and data_type.startswith("interval ") and str(value).lstrip("-").isdigit():
        if "year" in data_type or "month" in data_type:
            return f"interval {value} months"
        return f"interval {int(value) / 1_000_000:g} seconds"
    return str(value)


def _aggregate(node: Mapping[str, Any], texts: list[str], _: Names) -> str:
    distinct = "DISTINCT " if node.get("isDistinct") else ""
    where = f" FILTER (WHERE {texts[1]})" if len(texts) > 1 else ""
    return f"{distinct}{texts[0]}{where}"


def _first(word: str) -> Callable[[Mapping[str, Any], list[str], Names], str]:
    return lambda node, texts, _: f"{word}({texts[0]}{', ignoreNulls' if node.get('ignoreNulls') else ''})"


def _collected(word: str) -> Callable[[Mapping[str, Any], list[str], Names], str]:
    """They leave nulls out; newer Sparks can keep them."""
    return lambda node, texts, _: f"{word}({texts[0]}{', with nulls' if node.get('ignoreNulls') is False else ''})"


def _struct(_: Mapping[str, Any], texts: list[str], __: Names) -> str:
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return f"struct({', '.join(f'{value} AS {name.strip(chr(39))}' for name, value in pairs)})"


def _user_function(node: Mapping[str, Any], texts: list[str], _: Names) -> str:
    return f"{USER_FUNCTION}{plain_name(node.get('name') or node.get('udfName') or '')}({', '.join(texts)})"


_SPECIAL: dict[str, Callable[[Mapping[str, Any], list[str], Names], str]] = {
    "AttributeReference": lambda node, _, names: names(node),
    "OuterReference": lambda _, texts, __: f"outer({', '.join(texts)})",
    "NamedLambdaVariable": lambda node, _, __: _COUNTED.sub("", str(node["name"])),
    "Literal": lambda node, _, __: _literal(node),
    "Alias": lambda node, texts, _: f"{texts[0]} AS {plain_name(node['name'])}",
    "Cast": lambda node, texts, _: f"cast({texts[0]} as {short_type(node['dataType'])})",
    "Not": lambda _, texts, __: f"NOT {texts[0]}",
    "IsNull": lambda _, texts, __: f"{texts[0]} IS NULL",
    "IsNotNull": lambda _, texts, __: f"{texts[0]} IS NOT NULL",
    "In": lambda _, texts, __: f"{texts[0]} IN ({', '.join(texts[1:])})",
    "AggregateExpression": _aggregate,
    "CollectSet": _collected("CollectSet"),
    "CollectList": _collected("CollectList"),
    "First": _first("First"),
    "Last": _first("Last"),
    "PythonUDF": _user_function,
    "PythonUDAF": _user_function,
    "ScalaUDF": _user_function,
    "CreateNamedStruct": _struct,
    "SortOrder": lambda node, texts, _: f"{texts[0]} {object_name(node.get('direction'))}",
    "CommonExpressionRef": lambda _, __, ___: "common",
}


def _type(kind: str, node: Mapping[str, Any], children: tuple[Term, ...]) -> str:
    if kind in _AGGREGATE_TYPES:
        return _AGGREGATE_TYPES[kind]
    if kind in _BOOLEANS:
        return "boolean"
    below = children[0].type if children else ""
    if kind in _TYPE_OF_CHILD:
        return below
    if kind == "Sum":
        return _summed(below)
    if kind == "Average":
        return "" if below.startswith("decimal") else "double"
    if kind in ("CollectSet", "CollectList"):
        return f"array<{below}>" if below else ""
    return short_type(node.get("dataType")) if "dataType" in node else ""


def _summed(below: str) -> str:
    if below in ("tinyint", "smallint", "int", "bigint"):
        return "bigint"
    decimal = re.fullmatch(r"decimal\((\d+),(\d+)\)", below)
    if decimal is not None:
        return f"decimal({min(int(decimal[1]) + 10, 38)},{decimal[2]})"
    return "double" if below in ("float", "double") else ""
