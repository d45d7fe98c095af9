"""The plan of a query before and after a change: what a restore would do, and what is to be done instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_streamstate.plan.advising import advice_on
from airflow_streamstate.plan.codes import difference
from airflow_streamstate.plan.differences import (
    Comparison,
    DeploymentComparison,
    Difference,
    compared,
    gravest,
)
from airflow_streamstate.plan.matching import match_operators, match_sources
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.rules_operator_sets import input_differences, set_differences
from airflow_streamstate.plan.rules_operators import operator_differences
from airflow_streamstate.plan.rules_output import column_differences, output_differences, result_differences
from airflow_streamstate.plan.rules_sources import source_differences, watermark_differences
from airflow_streamstate.plan.rules_state import state_differences
from airflow_streamstate.plan.segments import stretches_of


def compare(old: QueryPlan, new: QueryPlan) -> Comparison:
    """Compare two plans of one query.

    Args:
        old: as recorded when the running version started.
        new: of the version that is to follow it.
    """
    return compared(_differences(old, new), advice_on(new))


def _differences(old: QueryPlan, new: QueryPlan) -> Iterator[Difference]:
    yield from output_differences(old, new)
    yield from state_differences(old, new)
    if old.reading != new.reading:
        reason = f"the plans were written down in way {old.reading} and in way {new.reading}"
        lighter = None if old.is_stateful or new.is_stateful else "state-compatible"
        yield difference("not-comparable", "", reason, verdict=lighter)  # type: ignore[arg-type]
        return
    operators, sources = match_operators(old, new), match_sources(old, new)
    before = stretches_of(old)
    now = before if (old.nodes, old.operators) == (new.nodes, new.operators) else stretches_of(new)
    yield from source_differences(old, new, sources)
    yield from watermark_differences(old, new)
    yield from set_differences(old, new, operators)
    yield from input_differences(old, new, before, now, operators, sources)
    for position, of_old in sorted(operators.items()):
        was, is_now = old.operators[of_old], new.operators[position]
        yield from operator_differences(
            was, is_now, before.asked.get(was.operator_id), now.asked.get(is_now.operator_id)
        )
    yield from result_differences(before, now)
    yield from column_differences(old, new)


def compare_deployments(old: Mapping[str, QueryPlan], new: Mapping[str, QueryPlan]) -> DeploymentComparison:
    """Compare all queries of two versions of a stream. State and positions go by the names of queries.

    Args:
        old: name -> plan as recorded, of the running version.
        new: name -> plan, of the version that is to follow it.
    """
    queries: dict[str, Comparison] = {}
    renamed = _renamed(old, new)
    for name in sorted(old.keys() & new.keys()):
        comparison = compare(old[name], new[name])
        other = _swapped_with(name, old, new)
        if other is not None:
            reason = (
                f"{name} does what {other} did, and {other} what {name} did: each would go on with the other's state"
            )
            found = difference("queries-swapped", "", reason)
            comparison = compared((found, *comparison.differences), comparison.advice)
        queries[name] = comparison
    for name in sorted(new.keys() - old.keys()):
        queries[name] = compared([_new(name, renamed.get(name))], advice_on(new[name]))
    for name in sorted(old.keys() - new.keys()):
        if name not in renamed.values():
            queries[name] = compared([_gone(name, old[name])])
    return DeploymentComparison(gravest(each.verdict for each in queries.values()), queries)


def _new(name: str, before: str | None) -> Difference:
    if before is not None:
        reason = f"{name} does what {before} did: state and positions go by names, and it would begin with nothing"
        return difference("query-renamed", "", reason)
    return difference("query-added", "", f"{name} was not there: no position says where it begins")


def _gone(name: str, plan: QueryPlan) -> Difference:
    if plan.is_stateful:
        return difference(
            "query-dropped", "", f"{name} is not started any more, and what its state holds never comes out"
        )
    reason = f"{name} is not started any more; it held no state"
    return difference("query-dropped", "", reason, verdict="state-compatible")


def _renamed(old: Mapping[str, QueryPlan], new: Mapping[str, QueryPlan]) -> dict[str, str]:
    """New name -> old name, of queries that do the same."""
    gone = sorted(old.keys() - new.keys())
    found: dict[str, str] = {}
    for name in sorted(new.keys() - old.keys()):
        before = next((each for each in gone if _does_the_same(old[each], new[name])), None)
        if before is not None:
            found[name] = before
            gone.remove(before)
    return found


def _swapped_with(name: str, old: Mapping[str, QueryPlan], new: Mapping[str, QueryPlan]) -> str | None:
    """The query whose work this one does now, and the other way round; None where there is none."""
    if _does_the_same(old[name], new[name]):
        return None
    others = sorted(old.keys() & new.keys() - {name})
    return next(
        (each for each in others if _does_the_same(old[each], new[name]) and _does_the_same(old[name], new[each])), None
    )


def _does_the_same(old: QueryPlan, new: QueryPlan) -> bool:
    """Whether two plans are one query's, whatever it is called and wherever it writes."""
    if old.reading != new.reading or old.nodes != new.nodes:
        return False
    return [each.identity for each in old.sources] == [each.identity for each in new.sources]
