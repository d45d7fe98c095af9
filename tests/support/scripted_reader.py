"""A state-reading driver without Spark: it answers as ``STREAMSTATE_SCRIPTED_READER`` orders.

``answers`` (the default): each place has one table of three rows; ``refuses``; ``dies``; ``hangs``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.driver.config import DriverConfig
from airflow_streamstate.driver.main import Report, read_state
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.snapshot.state_tables import StateOrder

VARIABLE = "SPARK_SCRIPTED_READER"  # a driver inherits all with this prefix
TABLE = {"table": "0-stateStoreSave/rows", "name": "rows", "kind": "rows", "has_ttl": False}
ROWS = [{"key": {"k": "a"}, "value": {"n": 1}, "partition_id": 0}]


def read_by_script(raw: Mapping[str, Any]) -> int:
    """The life of such a driver; returns its exit status."""
    config = DriverConfig.from_json(raw)
    return read_state(config, StateOrder.from_json(raw["reading"]), SYSTEM_CLOCK, os._exit, answer)


def answer(order: StateOrder, report: Report) -> dict[str, Any]:
    """What is found; the forks must be there, each with the entry of its batch."""
    how = os.environ.get(VARIABLE, "answers")
    report(f"it {how}")
    if how == "hangs":
        time.sleep(120)  # noqa: TID251 - a real process
    if how == "dies":
        os._exit(7)
    if how == "refuses":
        raise InvalidRequestError("no state has these key columns", key=dict(order.key or {}), next_step="Look first.")
    for place in (*order.places.values(), *order.before.values()):
        folder = Path(place.checkpoint_uri.removeprefix("file:"))
        assert (folder / "metadata").exists()
        assert (folder / "commits" / str(place.batch_id)).exists()
    if order.verb == "diff":
        counts = {"added": 1, "changed": 0, "gone": 2, "examples": {"added": ROWS, "changed": [], "gone": ROWS}}
        return {"queries": {name: {"tables": [{**TABLE, **counts}], "problems": []} for name in order.places}}
    columns = {"key": "struct<k:string>", "value": "struct<n:bigint>"}
    counted = {**TABLE, "rows": 3, "rows_by_partition": [3, 0], "columns": columns, "timers": None}
    found = [{**TABLE, "rows": ROWS, "more": True}] if order.key is not None else []
    queries = {name: {"tables": [counted], "rows": found, "problems": []} for name in order.places}
    if order.export is None:
        return {"queries": queries, "export": None}
    written: dict[str, Any] = {"upserts": 1, "deletes": 2, "way": "feed"} if order.before else {"rows": 3}
    written["path"] = f"counts/{TABLE['table']}"
    export = {**order.export.about, "complete": True, "tables": [written], "problems": []}
    return {"queries": {} if order.before else queries, "export": export}
