"""The tree of an analyzed plan, each node with its normalised text, its columns, and a digest of all below it.

Without recursion: a plan may be deeper than Python's stack.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_streamstate.older_python import with_newer, zipped
from airflow_streamstate.plan.expressions import (
    Column,
    ExpressionText,
    Names,
    attributes,
    defined,
    expr_id_of,
    is_term,
    number_of,
    object_name,
    plain_name,
    read_term,
    terms_below,
    window_text,
    without_alias,
)
from airflow_streamstate.plan.model import Expression, Window

RELATIONS = frozenset({"StreamingRelation", "StreamingRelationV2"})
WINDOW = "Window"
_UNSEEN = frozenset({"SubqueryAlias", "View", "WithCTE", "CTERelationRef", "LocalLimit"})
_ONE_SIDED = frozenset({"LeftSemi", "LeftAnti"})
_RENAMED = {"TransformWithStateInPandas": "TransformWithStateInPySpark"}  # its name in Spark 4.0
_GIVEN = frozenset({"output", "outputAttrs", "generatorOutput"})
_NOISE = frozenset({"class", "nodeId", "sourceName", "delay", "functionExpr", *_GIVEN})
_STATIC_NOISE = frozenset({"outputPartitioning", "sourceIdentifyingName"})
LONGEST_LINE = 300


@dataclass(eq=False, **with_newer(slots=True))
class Node:
    """One node of a plan.

    Attributes:
        kind: Spark's class of it; ``Window`` for what the analyzer makes of a window.
        fields: as Spark wrote them.
        children: left to right; only those that are planned.
        number: of a source, or of a watermark, in Spark's own order; None for others.
        terms: its expressions by their fields.
    """

    kind: str
    fields: Mapping[str, Any]
    children: list[Node]
    number: int | None = None
    text: str = ""
    line: str = ""
    digest: str = ""
    columns: tuple[Column, ...] = ()
    is_streaming: bool = False
    has_aggregate: bool = False
    is_unseen: bool = False
    sources: tuple[int, ...] = ()
    watermarks: tuple[int, ...] = ()
    terms: dict[str, list[ExpressionText]] = field(default_factory=dict)

    def expressions(self) -> tuple[Expression, ...]:
        return tuple(
            Expression(column.name, column.type, column.name, column.is_event_time, column.origin)
            for column in self.columns
        )


def plan_tree(raw: Sequence[Mapping[str, Any]]) -> Node:
    """The tree of Spark's ``toJSON`` nodes, each before its children, not yet described."""
    stack: list[Node] = []
    made: list[Node] = []
    for fields in reversed(raw):
        kind = str(fields["class"]).rpartition(".")[2]
        children = [stack.pop() for _ in range(int(fields["num-children"]))]
        node = Node(_RENAMED.get(kind, kind), fields, children)
        made.append(node)
        stack.append(node)
    made.reverse()
    for counted in (RELATIONS, {"EventTimeWatermark"}):
        for number, node in enumerate(node for node in made if node.kind in counted):
            node.number = number
    _put_in_place(made)
    return stack[0]


def _put_in_place(made: Sequence[Node]) -> None:
    """Replace references to common table expressions by these, and leave out what is never planned."""
    defined = {node.fields["id"]: node.children[0] for node in made if node.kind == "CTERelationDef"}
    for node in made:
        if node.kind == "WithCTE":
            node.children = [node.children[int(node.fields["plan"])]]
        elif node.kind == "CTERelationRef" and not node.fields.get("recursive"):
            node.children = [defined[node.fields["cteId"]]]
        elif node.fields.get("hasInitialState") is False:
            node.children = node.children[:1]


class Describer:
    """Describes the nodes of one plan from the bottom up, given the text of each source and of each watermark."""

    def __init__(self, relations: Sequence[str], watermarks: Sequence[str]) -> None:
        self._relations = relations
        self._watermarks = watermarks

    def describe(self, root: Node) -> None:
        """Fill in the derived fields of every node; raises as ``terms.read_term``."""
        for node in after_children(root):
            self._describe(node)

    def _describe(self, node: Node) -> None:
        below = node.children
        node.is_streaming = (
            any(child.is_streaming for child in below)
            or node.kind in RELATIONS
            or node.fields.get("isStreaming") is True
        )
        node.has_aggregate = any(child.has_aggregate for child in below) or (
            node.kind in ("Aggregate", "Distinct") and node.is_streaming
        )
        inputs = tuple(column for child in below for column in child.columns)
        node.terms = self._terms(node, self._names(inputs))
        node.columns = self._columns(node, inputs)
        node.is_unseen = node.kind in _UNSEEN
        self._find_window(node)
        own = (node.number,) if node.number is not None else ()
        node.sources = tuple(sorted({*(own if node.kind in RELATIONS else ()), *_all(below, "sources")}))
        node.watermarks = (*(own if node.kind == "EventTimeWatermark" else ()), *_all(below, "watermarks"))
        node.text = "" if node.is_unseen else self._text(node)
        self._sum_up(node)

    def _terms(self, node: Node, names: Names) -> dict[str, list[ExpressionText]]:
        found: dict[str, list[ExpressionText]] = {}
        for name, value in node.fields.items():
            lists = _term_lists(value)
            if lists and name not in _GIVEN:
                found[name] = [read_term(nodes, names) for nodes in lists]
        return found

    def _names(self, inputs: Sequence[Column]) -> Names:
        """Columns by their names; several of one name also by their numbers among those."""
        several = {name for name, count in Counter(column.name for column in inputs).items() if count > 1}
        seen: Counter[str] = Counter()
        texts: dict[int, str] = {}
        for column in inputs:
            seen[column.name] += 1
            texts.setdefault(
                column.expr_id, f"{column.name}@{seen[column.name]}" if column.name in several else column.name
            )

        def name_of(attribute: Mapping[str, Any]) -> str:
            number = expr_id_of(attribute.get("exprId"))
            name = plain_name(attribute["name"])
            if number is None:
                return name
            return texts.get(number, name)

        return name_of

    def _columns(self, node: Node, inputs: tuple[Column, ...]) -> tuple[Column, ...]:
        known = {column.expr_id: column for column in inputs}
        for listed in ("projectList", "aggregateExpressions", "serializer"):
            if listed in node.fields:
                return self._made(node, listed, known)
        if node.kind == "Expand":
            return self._expanded(node, known)
        if node.kind == "CTERelationRef" and node.children:
            given = attributes(node.fields["output"])
            return tuple(replace(old, expr_id=new.expr_id, name=new.name) for old, new in zipped(inputs, given))
        if node.kind == "Generate":
            return (*inputs, *attributes(node.fields["generatorOutput"]))
        for listed in ("output", "outputAttrs"):
            if listed in node.fields:
                return tuple(known.get(column.expr_id, column) for column in attributes(node.fields[listed]))
        if node.kind == "Union" or object_name(node.fields.get("joinType")) in _ONE_SIDED:
            return node.children[0].columns
        if "eventTime" in node.fields:
            marked = node.terms["eventTime"][0].expr_id
            return tuple(
                replace(column, is_event_time=True) if column.expr_id == marked else column for column in inputs
            )
        return inputs

    def _made(self, node: Node, listed: str, known: Mapping[int, Column]) -> tuple[Column, ...]:
        found = []
        for term in node.terms.get(listed, ()):
            column = known.get(number_of(term.expr_id))
            if term.kind == "AttributeReference" and column is not None:
                found.append(column)
            else:
                name = plain_name(term.fields.get("name") or term.text)
                found.append(defined(number_of(term.expr_id), name, term, known))
        return tuple(found)

    def _expanded(self, node: Node, known: Mapping[int, Column]) -> tuple[Column, ...]:
        given = attributes(node.fields["output"])
        return tuple(
            known.get(column.expr_id) or defined(column.expr_id, column.name, term, known)
            for column, term in zipped(given, node.terms["projections"])
        )

    def _find_window(self, node: Node) -> None:
        """Recognise Spark's form of a window: a projection or an expansion, with filters around it that are not the
        user's.
        """
        if node.kind in ("Project", "Expand"):
            terms = node.terms.get("projectList") or node.terms.get("projections") or []
            made = [without_alias(term) for term in terms if term.kind != "AttributeReference"]
            windows = [term.window for term in made if term.window is not None]
            if len(windows) == 1 and (len(made) == 1 or node.kind == "Expand"):
                node.kind = WINDOW
                node.terms = {"window": [next(term for term in made if term.window is not None)]}
                below = node.children[0]
                if below.kind == "Filter" and below.terms["condition"][0].kind == "IsNotNull":
                    self._hide(below, windows[0])
        elif node.kind == "Filter" and node.children[0].kind == WINDOW:
            window = node.children[0].terms["window"][0].window
            if window is not None:
                self._hide(node, window)

    def _hide(self, node: Node, window: Window) -> None:
        parts = conjuncts(node.terms["condition"][0])
        if all(part.text == f"{window.column} IS NOT NULL" or terms_below(part, "GetStructField") for part in parts):
            node.is_unseen = True
            node.text = ""
            self._sum_up(node)

    def _text(self, node: Node) -> str:
        if node.kind in RELATIONS and node.number is not None:
            return self._relations[node.number]
        if node.kind == "EventTimeWatermark" and node.number is not None:
            return self._watermarks[node.number]
        if node.kind == WINDOW:
            window = node.terms["window"][0].window
            return "" if window is None else window_text(window)
        if not node.children:
            columns = ", ".join(f"{column.name} {column.type}" for column in node.columns)
            return " ".join((*_words(node.fields, _STATIC_NOISE), f"({columns})"))
        if node.kind == "Aggregate":
            keys = ", ".join(term.text for term in node.terms.get("groupingExpressions", ()))
            return f"by [{keys}]: {', '.join(term.text for term in node.terms.get('aggregateExpressions', ()))}"
        texts = [term.text for name, terms in node.terms.items() if name != "functionExpr" for term in terms]
        function = ["" if is_nameless(term) else term.text for term in node.terms.get("functionExpr", ())]
        return ", ".join(part for part in (*function, *texts, *_words(node.fields, frozenset())) if part)

    def _sum_up(self, node: Node) -> None:
        below = node.children
        if node.is_unseen and len(below) == 1:
            node.digest, node.line = below[0].digest, below[0].line
            return
        whole = "\n".join((node.kind, node.text, *(child.digest for child in below)))
        node.digest = hashlib.sha256(whole.encode(errors="replace")).hexdigest()[:16]
        own = f"{node.kind}({node.text})"
        lines = [child.line for child in below]
        rest = lines[0] if len(lines) == 1 else f"[{' | '.join(lines)}]"
        node.line = _cut(f"{own} < {rest}" if lines else own, LONGEST_LINE)


def after_children(root: Node) -> Iterator[Node]:
    """Every node once, after those below it."""
    stack: list[tuple[Node, bool]] = [(root, False)]
    done: set[int] = set()
    while stack:
        node, is_ready = stack.pop()
        if id(node) in done:
            continue
        if is_ready:
            done.add(id(node))
            yield node
            continue
        stack.append((node, True))
        stack.extend((child, False) for child in reversed(node.children))


def conjuncts(term: ExpressionText) -> list[ExpressionText]:
    """The parts joined by AND, left to right."""
    found, stack = [], [term]
    while stack:
        one = stack.pop()
        if one.kind == "And":
            stack.extend(reversed(one.children))
        else:
            found.append(one)
    return found


def is_nameless(function: ExpressionText) -> bool:
    """Whether a function has pyspark's own name instead of the user's."""
    return str(function.fields.get("name")).startswith("transformWithState")


def _term_lists(value: object) -> list[Sequence[Mapping[str, Any]]]:
    """The expressions in a field; of a list of lists the first."""
    if not isinstance(value, list) or not value:
        return []
    if is_term(value):
        return [value]
    if all(is_term(item) for item in value):
        return value
    return _term_lists(value[0]) if isinstance(value[0], list) else []


def _words(fields: Mapping[str, Any], noise: frozenset[str]) -> list[str]:
    """The fields of a node besides its expressions, without those that differ each time."""
    found = []
    for name, raw in fields.items():
        if name in _NOISE or name in noise:
            continue
        if name == "catalogTable" and isinstance(raw, Mapping):
            names = raw.get("identifier")
            found.append(str(names.get("table")) if isinstance(names, Mapping) else "")
        elif isinstance(raw, Mapping) and "type" not in raw:
            found.append(object_name(raw))
        elif isinstance(raw, str):
            found.append(plain_name(raw))
    return [word for word in found if word]


def _all(nodes: Sequence[Node], name: str) -> list[int]:
    return [number for node in nodes for number in getattr(node, name)]


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"
