"""What a reading reports of the state in a snapshot: operators, rows, bytes, skew, variables and timers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.snapshot.state_sizes import bytes_by_partition, operators_in, skew_of
from airflow_streamstate.snapshot.verify import Problem

NO_METADATA = "Spark kept no metadata of this operator, so its readers do not know it"
_TABLE_KEYS = ("table", "name", "kind", "has_ttl", "rows", "columns")
_TIMES = {"ProcessingTimeTimeout": "processing_time", "EventTimeTimeout": "event_time"}


def snapshot_facts(manifest: SnapshotManifest, now: datetime) -> dict[str, Any]:
    """The snapshot and its age."""
    return {
        "snapshot_id": manifest.snapshot_id,
        "kind": manifest.snapshot_kind,
        "deployment_id": manifest.deployment_id,
        "taken_at": format_time(manifest.taken_at),
        "age_seconds": round(max(0.0, (now - manifest.taken_at).total_seconds()), 3),
        "spark_version": manifest.spark_version,
    }


def query_report(query: QuerySnapshot, read: Mapping[str, Any] | None, plan: QueryPlan | None) -> dict[str, Any]:
    """One query: operators with partitions, rows, bytes, skew, tables and timers, and what could not be read.

    Args:
        query: in the manifest, which tells bytes and positions.
        read: what the driver counted; None where there was nothing to read.
        plan: as recorded; None where unknown.
    """
    position = query.position
    tables = _by_operator(read["tables"] if read is not None else [])
    problems = list(read["problems"]) if read is not None else []
    sizes = bytes_by_partition(query.files)
    failed = {_operator_of(problem): _name_of(problem) for problem in problems}
    problems += [
        {"table": str(number), "reason": NO_METADATA}
        for number in sorted(operators_in(query.files) - set(tables) - set(failed) if read is not None else ())
    ]
    return {
        "batch_id": position.batch_id,
        "watermark_at": None if position.watermark_at is None else format_time(position.watermark_at),
        "operators": [
            _operator(number, failed.get(number, ""), tables.get(number, []), sizes.get(number, {}), plan)
            for number in sorted({*tables, *sizes, *failed})
        ],
        "problems": problems,
    }


@dataclass(frozen=True)
class LoadedState:
    """The state of a snapshot as Spark loaded it, and what it could not load.

    ``queries``: by name their ``operators``: ``operator_id``, ``name`` and ``rows``, null where Spark has no reader.
    """

    queries: Mapping[str, Any]
    problems: tuple[Problem, ...]


def loaded_state(reports: Mapping[str, Mapping[str, Any]]) -> LoadedState:
    """The loading alone, of these ``query_report`` by name. An operator that Spark has no reader for is no problem."""
    queries, problems = {}, []
    for name, report in reports.items():
        problems += [
            Problem("unreadable", name, f"state/{problem['table']}", f"Spark cannot load it: {problem['reason']}")
            for problem in report["problems"]
            if problem["reason"] != NO_METADATA
        ]
        operators = [{key: one[key] for key in ("operator_id", "name", "rows")} for one in report["operators"]]
        queries[name] = {"operators": operators}
    return LoadedState(queries, tuple(problems))


def _operator(
    number: int, name: str, tables: Sequence[Mapping[str, Any]], sizes: Mapping[int, int], plan: QueryPlan | None
) -> dict[str, Any]:
    rows = _summed([table["rows_by_partition"] for table in tables if table["kind"] != "timers"])
    skew = skew_of(rows)
    timers = [
        {**table["timers"], "time": _time_of(table["timers"]["time"], number, plan), "table": table["name"]}
        for table in tables
        if table["timers"] is not None
    ]
    return {
        "operator_id": number,
        "name": _name_of(tables[0]) if tables else name,
        "partitions": max((len(table["rows_by_partition"]) for table in tables), default=len(sizes)),
        "rows": sum(rows) if tables else None,
        "bytes": sum(sizes.values()),
        "rows_by_partition": rows,
        "bytes_by_partition": [sizes.get(partition, 0) for partition in range(max([len(rows) - 1, *sizes]) + 1)],
        "skew": None if skew is None else skew.to_json(),
        "tables": [{key: table[key] for key in _TABLE_KEYS} for table in tables],
        "timers": timers,
    }


def _time_of(time: str, number: int, plan: QueryPlan | None) -> str:
    """The kind of time of a timeout: Spark's state does not tell it, the plan does."""
    operators = [] if plan is None else [each for each in plan.operators if each.operator_id == number]
    return next((_TIMES[each.timeout] for each in operators if each.timeout in _TIMES), time)


def _by_operator(tables: Sequence[Mapping[str, Any]]) -> dict[int, list[Mapping[str, Any]]]:
    found: dict[int, list[Mapping[str, Any]]] = {}
    for table in tables:
        found.setdefault(_operator_of(table), []).append(table)
    return found


def _operator_of(table: Mapping[str, Any]) -> int:
    return int(str(table["table"]).partition("-")[0])


def _name_of(table: Mapping[str, Any]) -> str:
    return str(table["table"]).partition("/")[0].partition("-")[2]


def _summed(lists: Sequence[Sequence[int]]) -> list[int]:
    size = max((len(one) for one in lists), default=0)
    return [sum(one[at] for one in lists if at < len(one)) for at in range(size)]
