from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_streamstate.snapshot.state_tables import StateTable, difference_of, folder_name, tables_of

VARIABLES = [
    {"stateName": "total", "stateVariableType": "ValueState", "ttlEnabled": True},
    {"stateName": "seen", "stateVariableType": "ListState", "ttlEnabled": False},
    {"stateName": "by_day", "stateVariableType": "MapState", "ttlEnabled": False},
    {"stateName": "$procTimers_keyToTimestamp", "stateVariableType": "TimerState", "ttlEnabled": False},
]


def store(operator_id: int, name: str, store_name: str = "default", **properties: Any) -> dict[str, object]:
    return {
        "operatorId": operator_id, "operatorName": name, "stateStoreName": store_name, "numPartitions": 4,
        "operatorProperties": json.dumps(properties) if properties else None,
    }  # fmt: skip


@pytest.mark.parametrize("as_text", [False, True])
def test_a_processor_has_a_table_for_each_variable_and_one_for_its_timers(as_text: bool) -> None:
    """Spark's own variables are none of the user's; Spark 4.0 has the list of them as a text."""
    variables = json.dumps(VARIABLES) if as_text else VARIABLES
    found = tables_of([store(0, "transformWithStateExec", timeMode="ProcessingTime", stateVariables=variables)])
    assert [(one.name, one.kind, one.has_ttl, one.time) for one in found] == [
        ("total", "value", True, ""), ("seen", "list", False, ""), ("by_day", "map", False, ""),
        ("timers", "timers", False, "processing_time"),
    ]  # fmt: skip
    assert found[1].options == {"operatorId": "0", "stateVarName": "seen", "flattenCollectionTypes": "false"}
    assert found[3].options == {"operatorId": "0", "readRegisteredTimers": "true"}
    assert [one.payload for one in found] == ["value", "list_value", "user_map_value", None]


def test_a_processor_without_time_has_no_timers() -> None:
    """Spark refuses to read timers there."""
    (found,) = tables_of([store(0, "transformWithStateExec", timeMode="None", stateVariables=VARIABLES[:1])])
    assert found.name == "total"


def test_a_join_has_two_sides_whatever_stores_it_has() -> None:
    """Its indexes are no rows; each side may hold equal rows, so that a row is known by all of it."""
    names = ("left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues", "right-keyWithIndexToValue")
    found = tables_of([store(1, "symmetricHashJoin", name) for name in names])
    assert [(one.name, one.options["joinSide"], one.identity) for one in found] == [
        ("left", "left", ("key", "value")), ("right", "right", ("key", "value")),
    ]  # fmt: skip
    assert found == tables_of([store(1, "symmetricHashJoin")])
    assert not found[0].has_feed


def test_operators_with_one_store_have_one_table_in_the_order_of_their_numbers() -> None:
    """Whatever order Spark reports them in."""
    found = tables_of([store(1, "dedupe"), store(0, "stateStoreSave")])
    assert [(one.operator_id, one.path) for one in found] == [(0, "0-stateStoreSave/rows"), (1, "1-dedupe/rows")]


def test_names_become_folders_that_spark_reads() -> None:
    """No name hides, leaves the place, or meets another one: not even a variable that is called timers."""
    names = ["plain", "by_day", "_hidden", ".hidden", "a/b", "..", "ü", "timers", "~timers"]
    folders = [folder_name(name) for name in names]
    assert folders[:4] == ["plain", "by_day", "~5Fhidden", "~2Ehidden"]
    assert len(set(folders)) == len(names)
    assert not any(name.startswith(("_", ".")) or "/" in name for name in folders)
    assert StateTable(0, "p", "timers", "timers", 1).path not in {
        StateTable(0, "p", name, "value", 1).path for name in names
    }


def test_what_cannot_be_compared_is_named() -> None:
    """An operator, or a variable of a different kind; another number of partitions is none of it."""
    one = StateTable(0, "stateStoreSave", "rows", "rows", 2)
    assert difference_of([one], [StateTable(0, "stateStoreSave", "rows", "rows", 8)]) == ""
    assert difference_of([one], [StateTable(0, "dedupe", "rows", "rows", 2)]) == (
        "0-stateStoreSave/rows (rows) is only in the first one; 0-dedupe/rows (rows) is only in the second one"
    )
