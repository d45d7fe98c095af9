"""Pairs the operators and sources of a new plan with those of the old one.

Spark binds state and offsets by position. Here an operator is matched by what feeds it and by its own shape, a source
by what it reads; only the rest is matched by position.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from airflow_streamstate.plan.model import PlannedSource, QueryPlan, StateOperator

Pairs = dict[int, int]
"""Position in the new plan -> position in the old one."""
Item = TypeVar("Item")


def match_operators(old: QueryPlan, new: QueryPlan) -> Pairs:
    """The operators that both plans have."""
    old_from, new_from = _origins(old), _origins(new)
    kinds: list[Callable[[tuple[StateOperator, Hashable]], Hashable]] = [
        lambda each: (shape_of(each[0]), each[0].fed_by),
        lambda each: (each[0].kind, each[0].fed_by),
        lambda each: (shape_of(each[0]), each[1]),
        lambda each: (each[0].kind, each[1]),
        lambda each: (each[0].kind, len(each[0].inputs)),
    ]
    pairs = _match(
        [(each, old_from[position]) for position, each in enumerate(old.operators)],
        [(each, new_from[position]) for position, each in enumerate(new.operators)],
        kinds,
    )
    taken = set(pairs.values())
    for position in set(range(min(len(old.operators), len(new.operators)))) - set(pairs):
        if position not in taken:
            pairs[position] = position
    return pairs


def match_sources(old: QueryPlan, new: QueryPlan) -> Pairs:
    """The sources that both plans have, by what they read.

    Of two that read the same, each is matched with the one of its name, then with the one at its place.
    """
    kinds: list[Callable[[PlannedSource], Hashable]] = [
        lambda each: (_what(each), each.name, each.format),
        lambda each: (_what(each), each.format),
        _what,
    ]
    return _match(old.sources, new.sources, kinds)


def is_reordered(pairs: Pairs) -> bool:
    """Whether the pairs are in another order."""
    order = [pairs[position] for position in sorted(pairs)]
    return order != sorted(order)


def shape_of(operator: StateOperator) -> Hashable:
    """What an operator does with its rows, apart from what feeds it and from the names of its results."""
    return (
        operator.kind,
        tuple((key.text, key.type) for key in operator.keys),
        operator.windows,
        tuple((aggregate.text, aggregate.type) for aggregate in operator.aggregates),
        (operator.join_type, operator.condition),
        (operator.function, operator.output_mode, operator.time_mode, operator.timeout),
        (operator.limit, operator.state_schema, operator.has_initial_state),
    )


def _what(source: PlannedSource) -> Hashable:
    return (source.adapter or source.format, source.identity)


def _origins(plan: QueryPlan) -> list[Hashable]:
    """For each operator, what the sources below it read."""
    return [
        frozenset(
            _what(plan.sources[number])
            for each in operator.inputs
            for number in each.sources
            if number < len(plan.sources)
        )
        for operator in plan.operators
    ]


def _match(old: Sequence[Item], new: Sequence[Item], kinds: Sequence[Callable[[Item], Hashable]]) -> Pairs:
    """Pair by the first kind of likeness, the rest by the next; those at the same place first, then in order."""
    pairs: Pairs = {}
    left_old, left_new = set(range(len(old))), set(range(len(new)))
    for likeness in kinds:
        for position in sorted(left_old & left_new):
            if likeness(old[position]) == likeness(new[position]):
                pairs[position] = position
        left_old -= set(pairs.values())
        left_new -= set(pairs)
        waiting: dict[Hashable, deque[int]] = defaultdict(deque)
        for position in sorted(left_old):
            waiting[likeness(old[position])].append(position)
        for position in sorted(left_new):
            if found := waiting[likeness(new[position])]:
                pairs[position] = found.popleft()
        left_old -= set(pairs.values())
        left_new -= set(pairs)
    return pairs
