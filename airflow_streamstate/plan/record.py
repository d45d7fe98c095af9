"""Plans in a home, and the state of a checkpoint compared with a new plan; names for migrations."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal, Optional

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.state_files import KeptVariable, OperatorStores, operator_stores
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import DataError, DeploymentNotFoundError, InvalidRequestError, ObjectExistsError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.plan.codes import FORGET, Comparison, Difference, compared, difference
from airflow_streamstate.plan.model import (
    DEDUPLICATIONS,
    PlannedSource,
    PlanNode,
    QueryPlan,
    RecordedPlan,
    StateOperator,
    StateVariable,
    VariableKind,
)
from airflow_streamstate.plan.rules import NEVER_CHANGES, STAYS
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.manifest import FILE, Moves, moved_place
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.store.transfer import keys_below

_LAST_BATCH = 2**63 - 1


def record_plan(control: StreamControl, record: RecordedPlan) -> RecordedPlan:
    """Record a plan under the next free number from ``record.number``, unless it is the newest one already.

    Returns the stored record.

    Raises:
        UnavailableError, OutcomeUnknownError: the store does not answer.
    """
    deployment_id, name = record.deployment_id, record.query_name
    number = record.number
    while True:
        if number > 1 or record.attempt > 1:
            keys = keys_below(control.cells.store, layout.plans_prefix(control.stream_id, deployment_id, name))
            taken = [found for found in map(layout.number_of, keys) if found is not None]
            number = max(taken, default=0) + 1
            before = _read(control, deployment_id, layout.plan_key(control.stream_id, deployment_id, name, number - 1))
            if before is not None and _is_same(before.plan, record.plan):
                return before
        body = replace(record, number=number)
        try:
            control.cells.create(layout.plan_key(control.stream_id, deployment_id, name, number), body)
            return body
        except ObjectExistsError:
            number += 1


def recorded_plans(control: StreamControl, deployment_id: str) -> dict[str, QueryPlan]:
    """The newest readable plan of each query of a deployment, by name (Law 7).

    Raises:
        UnavailableError: the store does not answer.
        HomeAwayError: the home is not there, so that it is unknown what is recorded (Law 17).
    """
    newest: dict[str, RecordedPlan] = {}
    keys = keys_below(control.cells.store, layout.plans_prefix(control.stream_id, deployment_id))
    if not keys:
        control.presence.need()  # an empty list is believed for some seconds; a change would be compared with nothing
    for key in keys:
        found = _read(control, deployment_id, key)
        if found is not None and (found.query_name not in newest or newest[found.query_name].number < found.number):
            newest[found.query_name] = found
    return {name: newest[name].plan for name in sorted(newest)}


def last_recorded_plans(control: StreamControl, deployment_id: str, names: Collection[str]) -> dict[str, QueryPlan]:
    """As ``recorded_plans``; while one of ``names`` has none, because its start was refused, also those of earlier
    deployments: the newest of each.

    Raises:
        UnavailableError: the store does not answer.
    """
    found: dict[str, QueryPlan] = {}
    next_id: str | None = deployment_id
    seen: set[str] = set()
    while next_id is not None and next_id not in seen:
        seen.add(next_id)
        found = {**recorded_plans(control, next_id), **found}
        if all(name in found for name in names):
            break
        try:
            next_id = control.spec(next_id).start.predecessor_id
        except (DeploymentNotFoundError, DataError):
            break
    return found


def plans_behind(
    control: StreamControl, deployment_id: str, query_name: str, batch_id: int
) -> tuple[RecordedPlan, ...]:
    """Whose state a start continues: the plan that made this committed batch of a query, then the plans that were about
    to continue it since and committed nothing, oldest first; () where the first is not known, and of a seed's batch.

    A start that was refused has recorded no plan.

    Args:
        deployment_id: the deployment that holds the state, or is about to start with it.

    Raises:
        UnavailableError: the store does not answer.
    """
    since: tuple[RecordedPlan, ...] = ()
    next_id: str | None = deployment_id
    seen: set[str] = set()
    while next_id is not None and next_id not in seen:
        seen.add(next_id)
        found = _records(control, next_id, query_name)
        made = sum(each.first_batch_id <= batch_id for each in found)
        if made:
            return (*found[made - 1 :], *since)
        since = (*found, *since)
        next_id = _state_from(control, next_id, query_name)
    return ()


def plan_behind(control: StreamControl, deployment_id: str, query_name: str) -> QueryPlan | None:
    """The newest plan of a query in a deployment; where its starts were refused, that of the deployment whose state it
    would continue. None where none is recorded, and where it started with no state.

    Raises:
        UnavailableError: the store does not answer.
    """
    behind = plans_behind(control, deployment_id, query_name, _LAST_BATCH)
    return behind[0].plan if behind else None


def _records(control: StreamControl, deployment_id: str, query_name: str) -> tuple[RecordedPlan, ...]:
    """The readable plans of a query of a deployment, oldest first."""
    keys = keys_below(control.cells.store, layout.plans_prefix(control.stream_id, deployment_id, query_name))
    found = (_read(control, deployment_id, key) for key in keys)
    return tuple(sorted((each for each in found if each is not None), key=lambda each: each.number))


def _state_from(control: StreamControl, deployment_id: str, query_name: str) -> str | None:
    """The deployment whose state of a query this one started with; None without one, and where it is not known."""
    try:
        start = control.spec(deployment_id).start
    except (DeploymentNotFoundError, DataError):
        return None
    if start.snapshot_id is None or query_name in start.offsets or start.begins_at is not None:
        return None
    manifest = control.readable_manifest(start.snapshot_id)
    if manifest is None:
        return start.predecessor_id if start.mode == "restore" else None
    known = manifest.queries.get(query_name)
    return None if known is None or known.drained else manifest.deployment_id


def _read(control: StreamControl, deployment_id: str, key: str) -> RecordedPlan | None:
    with suppress(DataError):
        return control.cells.value(key, RecordedPlan, stream_id=control.stream_id, deployment_id=deployment_id)
    return None


def _is_same(one: QueryPlan, other: QueryPlan) -> bool:
    """Equal apart from what the log pins: for a first start nothing, for a later one the first one's settings."""
    return replace(one, pinned={}) == replace(other, pinned={})


# A recorded plan with its file sources where they are now.


def places_of(plan: QueryPlan) -> list[str]:
    """The paths and patterns that its file sources read."""
    words = (source.identity.partition(" ") for source in plan.sources if source.adapter == FILE)
    return [place for kind, _, place in words if kind == FILE]


def moved_plan(plan: QueryPlan, moves: Moves) -> QueryPlan:
    """The plan of the same script, if it had read the same files at their new places."""
    sources = tuple(_moved(source, moves) for source in plan.sources)
    if sources == plan.sources:
        return plan
    before = {number: source.identity for number, source in enumerate(plan.sources)}
    nodes = tuple(_in_node(node, before, sources) for node in plan.nodes)
    return replace(plan, sources=sources, nodes=nodes)


def moved_plans(plans: Mapping[str, QueryPlan], moves: Moves) -> dict[str, QueryPlan]:
    """As ``moved_plan``, of each query."""
    return {name: moved_plan(plan, moves) for name, plan in plans.items()}


def _moved(source: PlannedSource, moves: Moves) -> PlannedSource:
    kind, _, place = source.identity.partition(" ")
    if source.adapter != FILE or kind != FILE:
        return source
    moved = moved_place(place, moves)
    return source if moved == place else replace(source, identity=f"{FILE} {moved}")


def _in_node(node: PlanNode, before: Mapping[int, str], sources: tuple[PlannedSource, ...]) -> PlanNode:
    if node.source is None or node.source not in before:
        return node
    return replace(node, text=node.text.replace(before[node.source], sources[node.source].identity))


# The state variables of each ``transformWithState``, from a checkpoint.
#
# A plan does not have them, because the processor creates them when it runs. They are filled in from a checkpoint
# that is known to be of this plan: by the next attempt of a deployment, a rehearsal's fork, a snapshot of the
# deployment.

_KINDS: dict[str, VariableKind] = {
    "ValueState": "value",
    "ListState": "list",
    "MapState": "map",
    "TimerState": "timer",
}


def kept_operators(checkpoint: Checkpoint, batch_id: int, count: int) -> list[OperatorStores]:
    """The stateful operators as a committed batch left them; [] without state.

    Args:
        count: how many the plan has; one more is read, so that another plan's state is recognised.

    Raises:
        DataError: their metadata cannot be understood.
        UnavailableError: the store does not answer.
    """
    prefix = checkpoint.key("state/")
    paths = {
        key[len(prefix) :]
        for number in range(count + 1)  # listing all of ``state`` would list each version of each partition
        for key in keys_below(checkpoint.store, f"{prefix}{number}/_metadata/")
    }
    return operator_stores(checkpoint, batch_id, paths)


def with_kept_state(plan: QueryPlan, kept: Iterable[OperatorStores]) -> QueryPlan:
    """The plan with the variables of its checkpoint; unchanged where the checkpoint is another plan's."""
    found = {operator.operator_id: operator for operator in kept}
    if {number: each.operator_name for number, each in found.items()} != {
        each.operator_id: each.spark_name for each in plan.operators
    }:
        return plan
    return replace(
        plan,
        operators=tuple(
            operator
            if found[operator.operator_id].variables is None
            else replace(operator, variables=_variables(found[operator.operator_id].variables or ()))
            for operator in plan.operators
        ),
    )


def _variables(kept: Iterable[KeptVariable]) -> tuple[StateVariable, ...]:
    return tuple(
        StateVariable("" if one.name.startswith("$") else one.name, _KINDS[one.kind], one.has_ttl)
        for one in kept
        if one.kind in _KINDS
    )


# Aggregations compared with the state that they would continue, where no plan of that state is recorded.
#
# Only the functions that nearly all aggregations are made of are known here; for any other one nothing is reported.

_KEEPS = {
    "Sum": ("sum",),
    "Count": ("count",),
    "Max": ("max",),
    "Min": ("min",),
    "Average": ("count", "sum"),
}
_KNOWN = {name for names in _KEEPS.values() for name in names}
_BESIDE_DECIMALS = "isEmpty"
_FUNCTION = re.compile(r"(\w+)\(")


ColumnNames = Callable[[int], Optional[tuple[tuple[str, ...], tuple[str, ...]]]]
"""Operator id -> names of the columns of its state's keys, and of its values; None where unknown."""
MOST_IN_ORDER = 4
"""Up to so many columns Scala's sets keep their order; a larger one has another order in Scala 2.12 than in 2.13."""


def reordered_keys(plan: QueryPlan, columns_of: ColumnNames) -> Iterator[Difference]:
    """The deduplications that have their keys in another order than their state, or may have: Spark compares types
    alone, and rows would come out twice, unseen.
    """
    for operator in plan.operators:
        if operator.kind not in DEDUPLICATIONS:
            continue
        columns = columns_of(operator.operator_id)
        wanted = tuple(each.name or each.text for each in operator.keys)
        if columns is not None and sorted(columns[0]) == sorted(wanted):
            if columns[0] == wanted:
                continue
            reason = f"the state has {', '.join(columns[0])}, and this Spark puts them as {', '.join(wanted)}"
        elif len(wanted) > MOST_IN_ORDER:
            reason = f"nothing shows in which order the state has {', '.join(wanted)}, and each Spark has its own order"
        else:
            continue
        yield difference("keys-reordered", operator.path, reason, remedy=FORGET)


def kept_differences(plan: QueryPlan, columns_of: ColumnNames) -> Iterator[Difference]:
    """The aggregations that keep other values than their state has."""
    for operator in plan.operators:
        wanted = _wanted(operator)
        if wanted is None:
            continue
        columns = columns_of(operator.operator_id)
        kept = None if columns is None else sorted(each for each in columns[1] if each != _BESIDE_DECIMALS)
        if not kept or not _KNOWN.issuperset(kept) or kept == wanted:
            continue
        reason = (
            f"the state keeps {', '.join(kept)} of each key, and this plan keeps {', '.join(wanted)}: one result would"
            " mix rows of the old and the new rule"
        )
        yield difference("aggregate-changed", operator.path, reason, verdict="hazardous")


def _wanted(operator: StateOperator) -> list[str] | None:
    """What an aggregation keeps of each key, sorted; None if that is not known here."""
    if operator.kind != "aggregate" or not operator.aggregates:
        return None
    found: list[str] = []
    for aggregate in operator.aggregates:
        function = _FUNCTION.match(aggregate.text)
        names = None if function is None else _KEEPS.get(function[1])
        if names is None or "distinct" in aggregate.text.lower():
            return None
        found += names
    return sorted(found)


# The names of operators for migrations, and what a rewrite of the state settles of a comparison.

OF_STATE_FORM = frozenset(
    {
        "aggregate-added",
        "aggregate-removed",
        "aggregate-changed",
        "aggregates-reordered",
        "state-schema-changed",
        "variable-changed",
        "join-columns-changed",
    }
)
"""Differences in the form of an operator's state, which a migration can settle. Not those of keys, windows and
watermarks: the old rows cannot be distinguished by the new ones."""


def operator_name(operator: StateOperator) -> str:
    """The readable name of an operator: its kind and the names of its keys, ``aggregate:window,origin``."""
    keys = ",".join(key.name or key.text for key in operator.keys)
    return f"{operator.kind}:{keys}" if keys else operator.kind


def find_operator(plan: QueryPlan, name: str) -> StateOperator:
    """The operator of this name, or of this kind where it is the only one, or of Spark's number.

    Raises:
        InvalidRequestError: no operator has this name, or more than one has.
    """
    for matches in (
        [each for each in plan.operators if operator_name(each) == name],
        [each for each in plan.operators if each.kind == name],
        [each for each in plan.operators if str(each.operator_id) == name],
    ):
        if len(matches) == 1:
            return matches[0]
    raise InvalidRequestError(
        "the plan has no such operator, or more than one",
        query_name=plan.query_name,
        operator=name,
        operators=[f"{operator_name(each)} (number {each.operator_id})" for each in plan.operators],
        next_step="Use one of these names, or the number.",
    )


def settled(found: Comparison, new: QueryPlan, rewrite: StateRewrite | None, migrated: Collection[int]) -> Comparison:
    """A comparison in which what the rewrite of the state settles needs nothing more.

    Args:
        new: the new plan.
        migrated: the operators whose state goes through a migration.
    """
    if rewrite is None:
        return found
    asked = {
        "partitions-changed": rewrite.partitions is not None,
        "provider-changed": rewrite.state_store is not None,
        "checkpoint-format-changed": rewrite.checkpoint_format is not None,
    }
    paths = {operator.path for operator in new.operators if operator.operator_id in migrated}
    others = {operator.path for operator in new.operators if operator.operator_id not in migrated}

    def settle(each: Difference) -> Difference:
        if asked.get(each.code):
            reason = each.reason.removesuffix(STAYS).removesuffix(NEVER_CHANGES)
            return replace(each, verdict="state-compatible", reason=reason, remedy="The state is rewritten.")
        if each.code in OF_STATE_FORM and each.path in paths - others:
            return replace(each, verdict="state-compatible", remedy="The migration brings the state into this form.")
        return each

    return compared(map(settle, found.differences), found.advice)


# Migrations without code: what a changed list of aggregates makes of the fields that Spark keeps of them.

Neutral = Literal["null", "zero", "true", "false"]
_BUFFERS: Mapping[str, tuple[tuple[tuple[str, Neutral], ...], ...]] = {
    "Count": ((("count", "zero"),),),
    "Sum": ((("sum", "null"), ("isEmpty", "true")), (("sum", "null"),)),
    "Max": ((("max", "null"),),),
    "Min": ((("min", "null"),),),
    "Average": ((("sum", "zero"), ("count", "zero")),),
    "First": ((("first", "null"), ("valueSet", "false")),),
    "Last": ((("last", "null"), ("valueSet", "false")),),
    "StddevSamp": ((("n", "zero"), ("avg", "zero"), ("m2", "zero")),),
    "StddevPop": ((("n", "zero"), ("avg", "zero"), ("m2", "zero")),),
    "VarianceSamp": ((("n", "zero"), ("avg", "zero"), ("m2", "zero")),),
    "VariancePop": ((("n", "zero"), ("avg", "zero"), ("m2", "zero")),),
}
"""By Spark's function: the names of the fields that it keeps, and what each holds before the first row. A sum of
decimals has a field more."""


@dataclass(frozen=True)
class FieldSource:
    """Where the new value of a field of state comes from.

    Attributes:
        index: of the old field; None without one.
        neutral: without an old field, what it holds before the first row.
    """

    index: int | None
    neutral: Neutral = "null"


def match_buffers(
    old: Sequence[str], old_fields: Sequence[str], new: Sequence[str], new_fields: Sequence[str]
) -> tuple[FieldSource, ...] | None:
    """The source of each new field of an aggregation's state; None if that is not certain.

    Args:
        old, new: the aggregates of each plan, normalised, each once, in their order.
        old_fields, new_fields: the names of the fields of each state, in their order.
    """
    before, now = _buffers(old, old_fields), _buffers(new, new_fields)
    if before is None or now is None:
        return None
    found: list[FieldSource] = []
    for text, (_, fields) in now.items():
        known = before.get(text)
        if known is not None and len(known[1]) != len(fields):
            return None
        for offset, (_, neutral) in enumerate(fields):
            found.append(FieldSource(None, neutral) if known is None else FieldSource(known[0] + offset))
    return tuple(found)


def _buffers(
    aggregates: Sequence[str], fields: Sequence[str]
) -> dict[str, tuple[int, tuple[tuple[str, Neutral], ...]]] | None:
    """By aggregate, the place of its first field, and its fields; None where the fields are not those of these."""
    found: dict[str, tuple[int, tuple[tuple[str, Neutral], ...]]] = {}
    at = 0
    for text in aggregates:
        function = text.partition("(")[0]
        for shape in _BUFFERS.get(function, ()):
            if [name for name, _ in shape] == list(fields[at : at + len(shape)]):
                found[text] = (at, shape)
                at += len(shape)
                break
        else:
            return None
    return found if at == len(fields) else None
