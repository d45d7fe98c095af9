"""The expressions and columns of a plan as texts that are equal for equal expressions, on each Spark."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_streamstate.older_python import with_newer, zipped
from airflow_streamstate.plan.model import Window, WindowKind

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
_SHORT = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
_AGGREGATE_TYPES = {"Count": "bigint", "CountIf": "bigint", "HyperLogLogPlusPlus": "bigint"}
_TYPE_OF_CHILD = frozenset({"Min", "Max", "First", "Last", "AnyValue", "Alias", "AggregateExpression", *_TRANSPARENT})
_BOOLEANS = frozenset({"And", "Or", "Not", "IsNull", "IsNotNull", "In", "EqualTo", "LessThan", "GreaterThan"})
_MICROSECONDS = 1000  # in a millisecond
_UNITS_MS = {
    "microsecond": 0.001, "millisecond": 1, "second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000,
    "week": 604_800_000,
}  # fmt: skip
_PART = re.compile(r"(-?\d+(?:\.\d+)?)\s+([a-z]+?)s?(?=\s|$)", re.IGNORECASE)
_CONVERSION = "PreciseTimestampConversion"
_ADDED = "TimestampAddInterval"


@dataclass(frozen=True, eq=False, **with_newer(slots=True))
class ExpressionText:
    """One node of an expression, with what is below it.

    Attributes:
        kind: Spark's class of it.
        text: of it and what is below.
        type: short; "" where unknown.
        children: left to right.
        fields: as Spark wrote them.
        expr_id: Spark's own number of a column; None without one.
        window: if it is the struct of a window.
    """

    kind: str
    text: str
    type: str
    children: tuple[ExpressionText, ...]
    fields: Mapping[str, Any]
    expr_id: int | None = None
    window: Window | None = None


Names = Callable[[Mapping[str, Any]], str]
"""The text of a reference to a column."""


def is_term(value: object) -> bool:
    """Whether a field of a node is an expression (or a plan), as its list of nodes."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "class" in value[0]


def read_term(nodes: Sequence[Mapping[str, Any]], names: Names) -> ExpressionText:
    """The expression in this list of nodes.

    Args:
        nodes: as Spark wrote them.
        names: gives the text of a column.

    Raises:
        KeyError, IndexError, TypeError, ValueError: Spark wrote them in an unknown form.
    """
    stack: list[ExpressionText] = []
    for node in reversed(nodes):
        children = tuple(stack.pop() for _ in range(int(node["num-children"])))
        kind = str(node["class"]).rpartition(".")[2]
        kind = _RENAMED.get(kind, kind)
        text, expr_id = _text(kind, node, children, names), expr_id_of(node.get("exprId"))
        term = ExpressionText(kind, text, _type(kind, node, children), children, node, expr_id)
        if kind == "CreateNamedStruct":
            window = window_of(term)
            if window is not None:
                term = ExpressionText(kind, window_text(window), term.type, children, node, None, window)
        stack.append(term)
    return stack[0]


def without_alias(term: ExpressionText) -> ExpressionText:
    return term.children[0] if term.kind == "Alias" else term


def expr_id_of(raw: object) -> int | None:
    """Spark's number of a column; None without one."""
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


def terms_below(term: ExpressionText, kind: str | None = None) -> list[ExpressionText]:
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


def _text(kind: str, node: Mapping[str, Any], children: tuple[ExpressionText, ...], names: Names) -> str:
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
    if "replacement" in node:  # the original shows more than Spark's replacement, and is equal on each Spark
        texts = [
            HIDDEN if name == "key" and _WITH_KEYS.search(kind) else read_term(value, names).text
            for name, value in node.items()
            if is_term(value)
        ] or texts
    own = [f"{name}={value}" for name, value in ((name, _scalar(name, raw)) for name, raw in node.items()) if value]
    return f"{kind}({', '.join([*texts, *own])})"


def _field_name(node: Mapping[str, Any], struct: ExpressionText) -> str:
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
    pairs = zipped(texts[::2], texts[1::2])
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


def _type(kind: str, node: Mapping[str, Any], children: tuple[ExpressionText, ...]) -> str:
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


def window_of(struct: ExpressionText) -> Window | None:
    """The window that a struct represents; None for any other struct."""
    children = struct.children
    if len(children) != 4 or [children[0].text, children[2].text] != ["'start'", "'end'"]:
        return None
    start, end = children[1], children[3]
    if not terms_below(start, _CONVERSION) or not terms_below(end, _CONVERSION):
        return None
    remainders = terms_below(start, "Remainder")
    return _fixed(remainders[0], end) if remainders else _session(start, end)


def _fixed(remainder: ExpressionText, end: ExpressionText) -> Window | None:
    since, slide = remainder.children
    if since.kind != "Subtract":
        return None
    added = next((term for term in terms_below(end, "Add") if _is_number(term.children[-1])), None)
    if added is None or not _is_number(slide) or not _is_number(since.children[1]):
        return None
    # The end is the start plus the length; if the start is a sum, too, that is the outer one.
    duration_ms, slide_ms, offset_ms = _ms(added.children[-1]), _ms(slide), _ms(since.children[1])
    kind: WindowKind = "tumbling" if duration_ms == slide_ms else "sliding"
    return Window(kind, since.children[0].text, duration_ms, slide_ms, offset_ms)


def _session(start: ExpressionText, end: ExpressionText) -> Window | None:
    added = terms_below(end, _ADDED)
    if not added:
        return None
    gap = added[0].children[1]
    gap = gap.children[0] if gap.kind == "Cast" else gap
    duration_ms = interval_ms(gap.text.strip("'")) if gap.kind == "Literal" else None
    return Window("session", start.text, duration_ms, gap="" if duration_ms is not None else gap.text)


def interval_ms(text: str) -> int | None:
    """The milliseconds of an interval in Spark's words (``5 minutes``); None if they are not fixed (months)."""
    parts = _PART.findall(text)
    left = _PART.sub("", text).replace("interval", "").replace("INTERVAL", "").strip()
    if not parts or left or any(unit.lower() not in _UNITS_MS for _, unit in parts):
        return None
    return round(sum(float(number) * _UNITS_MS[unit.lower()] for number, unit in parts))


def _is_number(term: ExpressionText) -> bool:
    return term.kind == "Literal" and term.text.lstrip("-").isdigit()


def _ms(term: ExpressionText) -> int:
    return int(term.text) // _MICROSECONDS


# The columns of the rows in a plan, and what each is made of.

LONGEST_ORIGIN = 200
NOT_NUMBERED = -1


@dataclass(eq=False, **with_newer(slots=True))
class Column:
    """A column of a node's output."""

    expr_id: int
    name: str
    type: str
    is_event_time: bool = False
    origin: str = ""
    window: Window | None = None


def number_of(expr_id: int | None) -> int:
    """Spark's number of a column; ``NOT_NUMBERED`` without one."""
    return NOT_NUMBERED if expr_id is None else expr_id


def attributes(raw: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[Column, ...]:
    """The columns that a node declares as its output."""
    return tuple(
        Column(
            number_of(expr_id_of(nodes[0].get("exprId"))),
            plain_name(nodes[0]["name"]),
            short_type(nodes[0].get("dataType")),
            origin=plain_name(nodes[0]["name"]),
        )
        for nodes in raw
    )


def defined(expr_id: int, name: str, term: ExpressionText, known: Mapping[int, Column]) -> Column:
    """A column that is computed here.

    Args:
        expr_id, name: of it.
        term: its expression.
        known: the columns from below, by Spark's numbers of them.
    """
    inner = without_alias(term)
    same = known.get(number_of(inner.expr_id))
    if same is not None:
        return replace(same, expr_id=expr_id, name=name)
    return Column(expr_id, name, inner.type, _is_marked(inner, known), origin_of(inner, known), inner.window)


def origin_of(term: ExpressionText, known: Mapping[int, Column]) -> str:
    """An expression in terms of the sources' columns and the stateful operators below; a digest where it is long."""

    def name_of(attribute: Mapping[str, Any]) -> str:
        column = known.get(number_of(expr_id_of(attribute.get("exprId"))))
        return plain_name(attribute["name"]) if column is None else column.origin or column.name

    text = read_term([one.fields for one in terms_below(term)], name_of).text
    if len(text) <= LONGEST_ORIGIN:
        return text
    return f"sha256:{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:16]}"


def _is_marked(term: ExpressionText, known: Mapping[int, Column]) -> bool:
    """Whether Spark treats the result as event time: a window over it, or the time of such a window."""
    if term.window is None and term.kind != "PreciseTimestampConversion":
        return False
    attributes = terms_below(term, "AttributeReference")
    of = (known.get(number_of(one.expr_id)) for one in attributes)
    return any(column is not None and column.is_event_time for column in of)
