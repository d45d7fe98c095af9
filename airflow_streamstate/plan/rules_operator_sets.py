"""What it does to state that operators come, go or change places, and that other rows reach them."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_streamstate.plan.codes import difference
from airflow_streamstate.plan.differences import Difference
from airflow_streamstate.plan.matching import Pairs, is_reordered
from airflow_streamstate.plan.model import QueryPlan, StateOperator
from airflow_streamstate.plan.rules_operators import named
from airflow_streamstate.plan.segments import Stretches, changes

_UNMATCHED = -1


def set_differences(old: QueryPlan, new: QueryPlan, pairs: Pairs) -> Iterator[Difference]:
    """Operators that came, went, or stand in another place, by which Spark would give them the state of another."""
    for position, operator in enumerate(new.operators):
        if position not in pairs:
            reason = f"{named(operator)} is new: Spark finds no state for it, and refuses, or gives it another's"
            yield difference("operator-added", operator.path, reason)
    for position, operator in enumerate(old.operators):
        if position not in pairs.values():
            reason = f"{named(operator)} is gone: Spark refuses state that no operator asks for, or gives it to another"
            yield difference("operator-removed", operator.path, reason)
    if is_reordered(pairs):
        for position in sorted(pairs):
            if pairs[position] != position:
                yield _moved(old, new.operators[position], position, pairs[position])


def _moved(old: QueryPlan, operator: StateOperator, position: int, before: int) -> Difference:
    words = f"{named(operator)}, fed by {_fed(operator)}, was operator {before} and is operator {position}"
    if position < len(old.operators):
        there = old.operators[position]
        words += f": Spark goes by places, and would give it the state of {named(there)}, fed by {_fed(there)}"
    return difference("operators-swapped", operator.path, words)


def _fed(operator: StateOperator) -> str:
    text = " and ".join(each.text for each in operator.inputs) or "nothing"
    return text if len(text) <= 200 else f"{text[:200]}…"


def input_differences(
    old: QueryPlan, new: QueryPlan, before: Stretches, now: Stretches, operators: Pairs, sources: Pairs
) -> Iterator[Difference]:
    """What is done otherwise to rows on their way to an operator that both plans have.

    Args:
        old, new: the plans.
        before, now: the same, cut at their operators.
        operators, sources: which is which.
    """
    is_same_set = len(operators) == len(old.operators) == len(new.operators) and len(sources) == len(
        old.sources
    ) == len(new.sources)
    for position, of_old in sorted(operators.items()):
        was, is_now = old.operators[of_old], new.operators[position]
        if was.fed_by == is_now.fed_by or is_swapped(was, is_now):
            continue
        for side, (old_stretch, new_stretch) in enumerate(
            zip(before.inputs.get(was.operator_id, ()), now.inputs.get(is_now.operator_id, ()), strict=False)
        ):
            for _, words in changes(old_stretch, new_stretch):
                where = f"{is_now.path}, {('left', 'right')[side]}" if len(is_now.inputs) == 2 else is_now.path
                reason = f"before {named(is_now)}: {words}; what the state holds was made by the old rule"
                yield difference("input-changed", where, reason)
        if is_same_set and _feeders(was) != _mapped(is_now, operators, sources):
            reason = f"{named(is_now)} was fed by {_fed(was)}, and is fed by {_fed(is_now)}"
            yield difference("input-moved", is_now.path, reason)


def is_swapped(old: StateOperator, new: StateOperator) -> bool:
    """Whether the two sides of a join have changed places, and are the same else."""
    return len(new.fed_by) == 2 and old.fed_by == new.fed_by[::-1]


Feeders = list[tuple[tuple[int, ...], tuple[int, ...]]]


def _feeders(operator: StateOperator) -> Feeders:
    return [(each.sources, each.operators) for each in operator.inputs]


def _mapped(operator: StateOperator, operators: Pairs, sources: Pairs) -> Feeders:
    """The same of a new operator, in the numbers of the old plan."""
    return [
        (
            tuple(sorted(sources.get(number, _UNMATCHED) for number in each.sources)),
            tuple(sorted(operators.get(number, _UNMATCHED) for number in each.operators)),
        )
        for each in operator.inputs
    ]
