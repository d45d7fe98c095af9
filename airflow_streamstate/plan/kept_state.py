"""The state variables of each ``transformWithState``, from a checkpoint.

A plan does not have them, because the processor creates them when it runs. They are filled in from a checkpoint that is
known to be of this plan: by the next attempt of a deployment, a rehearsal's fork, a snapshot of the deployment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.state_files import KeptVariable, OperatorStores, operator_stores
from airflow_streamstate.plan.model import QueryPlan, StateVariable, VariableKind
from airflow_streamstate.store.transfer import keys_below

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
