from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from airflow_streamstate.driver.spark.state_reading import count_state_rows, open_windows
from airflow_streamstate.errors import UnsupportedCheckpointError


class Reader:
    """Spark's state readers, answering from a table of (operator, store or variable) to rows."""

    def __init__(self, stores: list[dict[str, Any]], rows: dict[tuple[int, str], int], version: str = "4.2.0") -> None:
        self._stores = stores
        self.version = version
        self._rows = rows
        self._options: dict[str, Any] = {}
        self._format = ""
        self._jsparkSession = SimpleNamespace(streams=lambda: SimpleNamespace(active=list))

    @property
    def read(self) -> Reader:
        return Reader(self._stores, self._rows)

    def format(self, name: str) -> Reader:
        self._format = name
        return self

    def option(self, name: str, value: Any) -> Reader:
        self._options = {**self._options, name: value}
        return self

    def load(self, _path: str) -> Reader:
        return self

    def collect(self) -> list[dict[str, Any]]:
        return self._stores

    def count(self) -> int:
        where = self._options.get("stateVarName") or self._options.get("storeName") or "default"
        return self._rows[(int(self._options["operatorId"]), str(where))]


def _store(operator_id: int, name: str, store: str = "default", properties: str = "") -> dict[str, Any]:
    return {
        "operatorId": operator_id,
        "operatorName": name,
        "stateStoreName": store,
        "operatorProperties": properties,
    }


@pytest.mark.parametrize("look", [count_state_rows, open_windows])
def test_spark_3_cannot_read_state(look: Any) -> None:
    """It has no readers: one sentence, and nothing is asked of it."""
    with pytest.raises(UnsupportedCheckpointError, match=r"Spark 3\.5\.9 cannot read state"):
        look(Reader([_store(0, "stateStoreSave")], {(0, "default"): 1}, "3.5.9"), "/checkpoint")


def test_a_joins_indexes_are_not_rows() -> None:
    """Both sides' rows count, what leads to them does not; variables of one operator are added up."""
    join_stores = [
        "left-keyToNumValues",
        "left-keyWithIndexToValue",
        "right-keyToNumValues",
        "right-keyWithIndexToValue",
    ]
    variables = '{"stateVariables": "[{\\"stateName\\": \\"total\\"}, {\\"stateName\\": \\"seen\\"}]"}'
    reader = Reader(
        [
            _store(1, "transformWithStateExec", properties=variables),
            *(_store(0, "symmetricHashJoin", store) for store in join_stores),
        ],
        {
            (0, "left-keyWithIndexToValue"): 3,
            (0, "right-keyWithIndexToValue"): 4,
            (1, "total"): 5,
            (1, "seen"): 6,
        },
    )
    counted = [
        (operator.name, operator.operator_id, operator.rows) for operator in count_state_rows(reader, "file:/ck")
    ]
    assert counted == [("symmetricHashJoin", 0, 7), ("transformWithStateExec", 1, 11)]


def test_a_state_without_windows_has_none_open() -> None:
    """Joins and variables hold no windows; nothing of theirs is read."""
    reader = Reader([_store(0, "symmetricHashJoin", "left-keyWithIndexToValue")], {})
    assert open_windows(reader, "file:/ck") is None


def test_timers_are_no_variables() -> None:
    """Spark lists its own among those of a processor, and its reader refuses them by name."""
    variables = [{"stateName": name} for name in ("total", "$procTimers_keyToTimestamp")]
    stores = [_store(0, "transformWithStateExec", properties=json.dumps({"stateVariables": variables}))]
    (found,) = count_state_rows(Reader(stores, {(0, "total"): 3}), "file:/checkpoint")
    assert found.rows == 3
