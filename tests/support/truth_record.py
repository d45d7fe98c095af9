"""Observations of the truth table on real Spark: a record for the docs, plans for the unit tests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.plan.comparison import compare
from airflow_streamstate.plan.model import QueryPlan, RecordedPlan
from airflow_streamstate.protocol.codec import from_json, parse_time, to_json
from support.truth_table import ROWS, Row

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "docs" / "upgrades.json"
PLANS = ROOT / "tests" / "golden" / "truth_plans.json.gz"
Plans = tuple[QueryPlan, QueryPlan]
_NO_TIME = "2026-01-01T00:00:00.000Z"


def recorded() -> dict[str, Any]:
    """The record of the docs."""
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def recorded_plans() -> dict[str, Plans]:
    """Row -> the plans of its two scripts, as Spark 4.2 made them."""
    raw = json.loads(gzip.decompress(PLANS.read_bytes()))
    plans = [from_json(each, key=PLANS.name, expected=RecordedPlan).plan for each in raw["plans"]]
    return {name: (plans[old], plans[new]) for name, (old, new) in raw["rows"].items()}


class Recorder:
    """Holds what is seen against the record, or writes the record.

    Args:
        writes: whether what is seen is recorded.
    """

    def __init__(self, *, writes: bool) -> None:
        self._writes = writes
        self._rows: dict[str, dict[str, Any]] = {}
        self._plans: dict[str, Plans] = {}
        is_there = RECORD.exists() and PLANS.exists()
        self._before = {row["name"]: row for row in recorded()["rows"]} if is_there else {}
        self._plans_before = recorded_plans() if is_there else {}

    def saw(self, row: Row, plans: Plans, said: str, *, is_seeded: bool) -> None:
        """A row was tried, and all that it promises was so.

        Args:
            said: Spark's word where it refused; "" where it did not.
            is_seeded: whether it was drained and seeded, too.
        """
        if self._writes:
            self._rows[row.name] = {**_facts(row), "said": said, "seeded": is_seeded}
            self._plans[row.name] = plans
            return
        assert self._before[row.name]["said"] == said, "record again with STREAMSTATE_RECORD=1"
        for before, now in zip(self._plans_before[row.name], plans, strict=True):
            assert compare(before, now).differences == (), "record again with STREAMSTATE_RECORD=1"

    def write(self) -> None:
        """Write what was seen into the record; of rows that were not tried this time, what was seen before."""
        if not self._writes or not self._rows:
            return
        names = [row.name for row in ROWS if row.name in {**self._before, **self._rows}]
        rows = [self._rows.get(name) or self._before[name] for name in names]
        plans = {name: self._plans.get(name) or self._plans_before[name] for name in names}
        date = SYSTEM_CLOCK.now().strftime("%Y-%m-%d")
        spark = next(iter(self._plans.values()))[0].spark_version
        content = {"date": date, "spark": spark, "rows": rows}
        RECORD.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        PLANS.write_bytes(_packed(plans))


def facts_of_the_table() -> list[dict[str, Any]]:
    """What the record states about each row besides what was seen."""
    return [_facts(row) for row in ROWS]


def _facts(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "change": row.change,
        "verdict": row.verdict,
        "codes": list(row.codes),
        "spark": row.spark,
    }


def _packed(plans: dict[str, Plans]) -> bytes:
    """Each plan once; the same bytes for the same plans."""
    every: list[QueryPlan] = []
    places: dict[str, list[int]] = {}
    for name, pair in plans.items():
        for plan in pair:
            if plan not in every:
                every.append(plan)
        places[name] = [every.index(plan) for plan in pair]
    moment = parse_time(_NO_TIME)
    records = [to_json(RecordedPlan("truth", "d-0001", plan.query_name, 1, 1, plan, "", moment)) for plan in every]
    text = json.dumps({"rows": places, "plans": records}, sort_keys=True, separators=(",", ":"))
    return gzip.compress(text.encode(), mtime=0)
