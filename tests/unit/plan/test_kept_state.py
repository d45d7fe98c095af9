"""``airflow_streamstate.plan.record``: what a checkpoint adds to a plan."""

from __future__ import annotations

import json
from dataclasses import replace

from airflow_streamstate.plan.model import StateVariable
from airflow_streamstate.plan.record import kept_operators, with_kept_state
from support.built_plans import operator, plan
from support.checkpoints import memory_checkpoint

TWS = replace(operator(0, "transform_with_state"), spark_name="transformWithStateInPandasExec")
VARIABLES = [
    {"stateName": "seen", "stateVariableType": "MapState", "ttlEnabled": True},
    {"stateName": "$eventTimers_keyToTimestamp", "stateVariableType": "TimerState", "ttlEnabled": False},
]
METADATA = {
    "operatorInfo": {"operatorId": 0, "operatorName": "transformWithStateInPandasExec"},
    "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 1}],
    "operatorPropertiesJson": json.dumps({"timeMode": "EventTime", "stateVariables": VARIABLES}),
}


def test_the_variables_of_a_processor_come_from_its_state() -> None:
    """With their kinds, and whether they have a time to live."""
    checkpoint = memory_checkpoint()
    checkpoint.store.put(checkpoint.key("state/0/_metadata/v2/3"), f"v2\n{json.dumps(METADATA)}".encode())
    kept = kept_operators(checkpoint, 4, 1)
    filled = with_kept_state(plan(TWS), kept).operators[0]
    assert filled.variables == (StateVariable("", "timer"), StateVariable("seen", "map", has_ttl=True))
    assert kept_operators(checkpoint, 2, 1) == []


def test_the_state_of_another_plan_tells_nothing() -> None:
    """One of other operators, or of more."""
    checkpoint = memory_checkpoint()
    checkpoint.store.put(checkpoint.key("state/0/_metadata/v2/0"), f"v2\n{json.dumps(METADATA)}".encode())
    for other in (plan(operator(0)), plan(), plan(TWS, operator(1))):
        assert with_kept_state(other, kept_operators(checkpoint, 0, len(other.operators))) == other


def test_state_of_more_operators_is_another_plans() -> None:
    """One more is looked for than the plan has."""
    checkpoint = memory_checkpoint()
    for number in (0, 1):
        body = {**METADATA, "operatorInfo": {**METADATA["operatorInfo"], "operatorId": number}}  # type: ignore[dict-item]
        checkpoint.store.put(checkpoint.key(f"state/{number}/_metadata/v2/0"), f"v2\n{json.dumps(body)}".encode())
    assert with_kept_state(plan(TWS), kept_operators(checkpoint, 0, 1)) == plan(TWS)
