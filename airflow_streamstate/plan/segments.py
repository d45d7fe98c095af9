"""The segment of a plan between two stateful operators: what is done to rows between them."""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Union

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.plan.model import PlanNode, QueryPlan, StateOperator

# What two sequences have in common, in their order: a longest common subsequence.
#
# ``difflib`` needs the cube of the length for sequences in which one item comes again and again. Here a row of the
# table of lengths is one number of as many bits as the old sequence has items, so a step costs one addition.

Pair = tuple[int, int]
"""(place in the old sequence, place in the new one)."""
Block = tuple[bool, slice, slice]
"""Whether the items are the same in both; where they are in the old sequence; in the new one."""


def blocks_of(old: Sequence[Hashable], new: Sequence[Hashable]) -> Iterator[Block]:
    """Both sequences as blocks that are the same in both, and blocks that are not, in turn."""
    at_old = at_new = 0
    pairs = _common(old, new)
    index = 0
    while index < len(pairs):
        first_old, first_new = pairs[index]
        if (first_old, first_new) != (at_old, at_new):
            yield False, slice(at_old, first_old), slice(at_new, first_new)
        count = 1
        while index + count < len(pairs) and pairs[index + count] == (first_old + count, first_new + count):
            count += 1
        at_old, at_new, index = first_old + count, first_new + count, index + count
        yield True, slice(first_old, at_old), slice(first_new, at_new)
    if at_old < len(old) or at_new < len(new):
        yield False, slice(at_old, len(old)), slice(at_new, len(new))


def _common(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[Pair]:
    shorter = min(len(old), len(new))
    head = 0
    while head < shorter and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shorter - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    inner = _longest(old[head : len(old) - tail], new[head : len(new) - tail])
    return [
        *((place, place) for place in range(head)),
        *((head + before, head + now) for before, now in inner),
        *((len(old) - left, len(new) - left) for left in range(tail, 0, -1)),
    ]


def _longest(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[Pair]:
    """The pairs of a longest common subsequence, by its bits (Hyyrö 2004); a 0 is where the length grows by one."""
    places: dict[Hashable, int] = defaultdict(int)
    for place, item in enumerate(old):
        places[item] |= 1 << place
    ones = (1 << len(old)) - 1
    row, rows = ones, []
    for item in new:
        shared = row & places.get(item, 0)
        row = ((row + shared) | (row - shared)) & ones
        rows.append(row)
    pairs: list[Pair] = []
    before, now = len(old), len(new)
    while before and now:
        if rows[now - 1] >> (before - 1) & 1:
            before -= 1
            continue
        now -= 1
        if now and not rows[now - 1] >> (before - 1) & 1:
            continue
        before -= 1
        pairs.append((before, now))
    return pairs[::-1]


Names = Union[frozenset[str], None]
"""Words that name columns; None for all columns."""
Step = tuple[str, str]
"""(kind of node, its text)."""
Stretch = tuple[Step, ...]
"""What is done to the rows of one input of an operator, or of the output, and is used; from the top down."""
WATERMARK = "EventTimeWatermark"
PROJECT = "Project"
_SILENT = frozenset({WATERMARK, "SubqueryAlias", "View"})
"""Kinds that are not compared: watermarks have rules of their own, names of subqueries mean nothing."""
_KEEPS_NAMES = frozenset({*_SILENT, "Filter", "Window", "Repartition", "RepartitionByExpression"})
"""Kinds that pass on the columns that they get, and a few more: what is used of them is used of what is below."""
_AGGREGATES = frozenset({"aggregate", "session_window"})
_DEDUPLICATES = frozenset({"deduplicate", "deduplicate_within_watermark"})
_WORD = re.compile(r"\w+")
_WORDS_LONGEST = 160
_CACHED_CHARACTERS = 2_000
MOST_NODES = 5_000
MOST_WORDS = 2_000_000
"""Of the words that are followed down a plan, added up over its nodes: each takes some ten bytes, and a moment."""


@dataclass(frozen=True)
class Stretches:
    """A plan, cut at its operators.

    Attributes:
        output: above all of them.
        inputs: operator id -> for each of its inputs, left to right.
        asked: operator id -> the words in which its rows are used above it.
    """

    output: Stretch
    inputs: dict[int, tuple[Stretch, ...]]
    asked: dict[int, Names]


NOT_CUT = Stretches((), {}, {})
"""Of two equal plans, in which nothing differs."""


def why_too_large(plan: QueryPlan) -> str:
    """Why a plan is not cut and compared: whoever wrote it could hold up its readers; "" for one that is."""
    if len(plan.nodes) > MOST_NODES:
        return f"it has {len(plan.nodes)} nodes, of {MOST_NODES} at most"
    words = 0
    above: list[tuple[int, int]] = [(-1, 0)]  # depth of a node, and the words that are followed from there
    own = sum(len(_own_words(operator) or ()) for operator in plan.operators)
    for node in plan.nodes:
        while len(above) > 1 and above[-1][0] >= node.depth:
            above.pop()
        count = len(_words(node.text)) if node.kind in _KEEPS_NAMES or node.kind == PROJECT else 0
        followed = count if node.kind == PROJECT else above[-1][1] + count
        above.append((node.depth, followed))
        words += followed + own
    return f"{words} names are followed through it, of {MOST_WORDS} at most" if words > MOST_WORDS else ""


def stretches_of(plan: QueryPlan) -> Stretches:
    """A plan that is not too large, cut."""
    nodes, ends = plan.nodes, _ends(plan.nodes)
    operators = {operator.operator_id: operator for operator in plan.operators}
    asked: dict[int, Names] = {}
    of_state: dict[int, Names] = {}
    output = _walk(nodes, ends, 0, len(nodes), None, asked)
    inputs: dict[int, tuple[Stretch, ...]] = {}
    # A node comes before those below it: what is used above an operator is known when it is met.
    for index, node in enumerate(nodes):
        operator = None if node.operator_id is None else operators.get(node.operator_id)
        if operator is None or operator.operator_id in inputs:
            continue
        below: dict[int, Names] = {}
        wanted = _together(_own_words(operator), of_state.get(operator.operator_id, frozenset()))
        silent = _SILENT | {"Window"} if operator.windows else _SILENT
        inputs[operator.operator_id] = tuple(
            _walk(nodes, ends, start, ends[start], wanted, below, silent) for start in _children(ends, index)
        )
        of_state.update(below)
        for number in below:
            # What passes through an operator of a different kind may be used anywhere above it.
            asked.setdefault(number, below[number] if operator.kind in _AGGREGATES else None)
    return Stretches(output, inputs, asked)


def _own_words(operator: StateOperator) -> Names:
    """The words that make the state of an operator; None where it keeps whole rows."""
    if operator.kind in _AGGREGATES or operator.kind in _DEDUPLICATES:
        texts = [each.text for each in (*operator.keys, *operator.aggregates)]
        return words_of([*texts, *(window.column for window in operator.windows)])
    return frozenset() if operator.kind == "global_limit" else None


def words_of(texts: Iterable[str]) -> frozenset[str]:
    """All words in these texts, including every column that they name."""
    return frozenset[str]().union(*(_words(text) for text in texts))


def _words(text: str) -> frozenset[str]:
    return _short_words(text) if len(text) <= _CACHED_CHARACTERS else frozenset(_WORD.findall(text))


@functools.lru_cache(maxsize=4096)
def _short_words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text))


def is_asked(name: str, asked: Names) -> bool:
    """Whether a column of this name is used."""
    return asked is None or _words(name) <= asked


def changes(old: Stretch, new: Stretch) -> Iterator[tuple[str, str]]:
    """(kind of node, what is done differently) for each change; nothing for equal stretches."""
    if old == new:
        return
    all_gone: list[Step] = []
    all_come: list[Step] = []
    for is_same, before, now in blocks_of(old, new):
        if is_same:
            continue
        gone, come, pairs = _paired(old[before], new[now])
        for was, step in pairs:
            yield was[0], _became(was, step)
        shared = min(len(gone), len(come))
        for was, step in zip(gone, come):
            yield was[0], f"{_said(was)} became {_said(step)}"
        all_gone += gone[shared:]
        all_come += come[shared:]
    moved = Counter(all_gone) & Counter(all_come)
    yield from _left(all_gone, moved)
    for step in _without(all_come, moved):
        yield step[0], f"{_said(step)} is new"


def _paired(old: Stretch, new: Stretch) -> tuple[list[Step], list[Step], list[tuple[Step, Step]]]:
    """What was removed and what was added, without the pairs of one kind, each with the first that is left."""
    waiting: dict[str, deque[int]] = defaultdict(deque)
    for place, step in enumerate(new):
        waiting[step[0]].append(place)
    gone: list[Step] = []
    pairs: list[tuple[Step, Step]] = []
    taken: set[int] = set()
    for was in old:
        if waiting[was[0]]:
            place = waiting[was[0]].popleft()
            taken.add(place)
            pairs.append((was, new[place]))
        else:
            gone.append(was)
    return gone, [step for place, step in enumerate(new) if place not in taken], pairs


def _left(gone: Sequence[Step], moved: Counter[Step]) -> Iterator[tuple[str, str]]:
    left = moved.copy()
    for step in gone:
        if left[step]:
            left[step] -= 1
            yield step[0], f"{_said(step)} is done at another place"
        else:
            yield step[0], f"{_said(step)} is gone"


def _without(steps: Sequence[Step], moved: Counter[Step]) -> Iterator[Step]:
    left = moved.copy()
    for step in steps:
        if left[step]:
            left[step] -= 1
        else:
            yield step


def _became(was: Step, step: Step) -> str:
    """Two steps of one kind; of a projection only the columns that differ."""
    if was[0] == PROJECT:
        before, now = _items(was[1]), _items(step[1])
        known, kept = frozenset(before), frozenset(now)
        gone = ", ".join(item for item in before if item not in kept)
        come = ", ".join(item for item in now if item not in known)
        if not come and gone:
            return f"{_said((PROJECT, gone))} is gone"
        if come and not gone:
            return f"{_said((PROJECT, come))} is new"
        if come:
            return f"{_said((PROJECT, gone))} became {_said((PROJECT, come))}"
    return f"{_said(was)} became {_said(step)}"


def _walk(
    nodes: Sequence[PlanNode],
    ends: Sequence[int],
    start: int,
    end: int,
    asked: Names,
    met: dict[int, Names],
    silent: frozenset[str] = _SILENT,
) -> Stretch:
    """The steps of a stretch; what is used of each operator that ends it goes into ``met``."""
    steps: list[Step] = []
    index = start
    waiting: list[tuple[int, Names]] = []  # of a node with several children, the same is used of each
    while index < end:
        while waiting and index >= waiting[-1][0]:
            waiting.pop()
        wanted = waiting[-1][1] if waiting else asked
        node = nodes[index]
        if node.operator_id is not None or node.source is not None:
            if node.operator_id is not None:
                met[node.operator_id] = _together(met.get(node.operator_id, frozenset()), wanted)
            index = ends[index]
            continue
        step, wanted = _step(node, wanted, silent)
        if step is not None:
            steps.append(step)
        waiting.append((ends[index], wanted))
        index += 1
    return tuple(steps)


def _step(node: PlanNode, asked: Names, silent: frozenset[str]) -> tuple[Step | None, Names]:
    """What a node does that is used, and what it uses of those below."""
    if node.kind == PROJECT:
        items = [item for item in _items(node.text) if is_asked(_name(item), asked)]
        made = [item for item in items if " AS " in item]
        return ((PROJECT, ", ".join(made)) if made else None), words_of(items)
    step = None if node.kind in silent else (node.kind, node.text)
    return step, _together(asked, words_of([node.text])) if node.kind in _KEEPS_NAMES else None


@functools.lru_cache(maxsize=64)
def _items(text: str) -> tuple[str, ...]:
    """The columns of a projection: its text, cut at the commas outside of brackets and quotes."""
    items: list[str] = []
    depth, quoted, begin = 0, False, 0
    for index, letter in enumerate(text):
        if letter == "'" and text[index - 1 : index] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif letter in "([{<":
            depth += 1
        elif letter in ")]}>":
            depth -= 1
        elif letter == "," and depth <= 0:
            items.append(text[begin:index].strip())
            begin = index + 1
    return (*items, text[begin:].strip())


def _name(item: str) -> str:
    return item.rpartition(" AS ")[2]


def _together(one: Names, other: Names) -> Names:
    return None if one is None or other is None else one | other


def _ends(nodes: Sequence[PlanNode]) -> list[int]:
    """For each node, the index after the last one below it."""
    ends = [len(nodes)] * len(nodes)
    above: list[int] = []
    for index, node in enumerate(nodes):
        while above and nodes[above[-1]].depth >= node.depth:
            ends[above.pop()] = index
        above.append(index)
    return ends


def _children(ends: Sequence[int], index: int) -> Iterator[int]:
    child = index + 1
    while child < ends[index]:
        yield child
        child = ends[child]


def _said(step: Step) -> str:
    words = " ".join(part for part in step if part)
    return words if len(words) <= _WORDS_LONGEST else f"{words[:_WORDS_LONGEST]}…"
