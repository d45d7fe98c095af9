"""Counts over the state of a checkpoint, by Spark's own state readers."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_streamstate.driver.attempt.ports import OperatorRows
from airflow_streamstate.snapshot.state_tables import variables_in

_DEFAULT_STORE = "default"
_JOIN_STORES = ("left-keyWithIndexToValue", "right-keyWithIndexToValue")


def count_state_rows(spark: Any, checkpoint_uri: str) -> tuple[OperatorRows, ...]:
    """Rows per stateful operator at the last committed batch: of both sides of a join, as in Spark's progress, and of
    all variables of an operator."""
    stores: dict[tuple[int, str], list[Any]] = {}
    for row in stores_of(spark, checkpoint_uri):
        stores.setdefault((int(row["operatorId"]), str(row["operatorName"])), []).append(row)
    return tuple(
        OperatorRows(name, operator_id, sum(_count(spark, checkpoint_uri, operator_id, row) for row in rows))
        for (operator_id, name), rows in sorted(stores.items())
    )


def open_windows(spark: Any, checkpoint_uri: str) -> tuple[datetime, datetime] | None:
    """The start of the first and the end of the last window in the state's keys; None where there is none."""
    bounds: list[tuple[int, int]] = []
    for row in stores_of(spark, checkpoint_uri):
        if str(row["stateStoreName"]) != _DEFAULT_STORE or _variables(row):
            continue
        state = spark.read.format("statestore").option("operatorId", int(row["operatorId"])).load(checkpoint_uri)
        for name in _window_fields(state.schema["key"].dataType):
            window = f"key.`{name}`"
            found = state.selectExpr(f"unix_micros(min({window}.start))", f"unix_micros(max({window}.end))").first()
            if found is not None and found[0] is not None:
                bounds.append((int(found[0]), int(found[1])))
    if not bounds:
        return None
    return _moment(min(start for start, _ in bounds)), _moment(max(end for _, end in bounds))


def stores_of(spark: Any, checkpoint_uri: str) -> list[Any]:
    """Spark's description of each state store of a checkpoint, one row each."""
    # The readers need the state store coordinator, which a session creates at the first use of its streams.
    spark._jsparkSession.streams().active()
    found: list[Any] = spark.read.format("state-metadata").load(checkpoint_uri).collect()
    return found


def _window_fields(key_type: Any) -> list[str]:
    return [
        field.name
        for field in key_type.fields
        if set(getattr(field.dataType, "names", ())) == {"start", "end"}
        and all(part.dataType.typeName() == "timestamp" for part in field.dataType.fields)
    ]


def _moment(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=microseconds)


def _count(spark: Any, checkpoint_uri: str, operator_id: int, row: Any) -> int:
    store_name = str(row["stateStoreName"])
    reader = spark.read.format("statestore").option("operatorId", operator_id)
    variables = _variables(row)
    if variables:
        return sum(int(reader.option("stateVarName", name).load(checkpoint_uri).count()) for name in variables)
    if store_name != _DEFAULT_STORE and store_name not in _JOIN_STORES:
        return 0  # an index of a join
    if store_name != _DEFAULT_STORE:
        reader = reader.option("storeName", store_name)
    return int(reader.load(checkpoint_uri).count())


def _variables(row: Any) -> list[str]:
    properties = json.loads(row["operatorProperties"] or "{}") if "operatorProperties" in row else {}
    names = [str(variable["stateName"]) for variable in variables_in(properties)]
    return [name for name in names if not name.startswith("$")]  # timers cannot be read as a variable
