"""The results of the sinks' runs, and their record in ``docs/sinks.json``.

``STREAMSTATE_RECORD=1 tox -e tests -- tests/sinks`` records, and rewrites the page's table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from airflow_streamstate.clock import SYSTEM_CLOCK
from support.sink_runs import RUNS, Run
from support.sparks import VERSIONS

RECORD = Path(__file__).parents[2] / "docs" / "sinks.json"
_LOST = "10 of 20 rows lost"
_SKIPS: Mapping[str, tuple[str, str]] = {
    "restore": ("exact", ""),
    "seed": ("exact", ""),
    "replay": ("refused: holds 2 to 4", "5 of 30 rows lost"),
    "died": ("exact", ""),
}
_UNDOES: Mapping[str, tuple[str, str]] = {
    "undo": ("exact", ""),
    "undo_foreign": ("refused", ""),
    "undo_lost": ("refused", ""),
}
_TAKES_ALL: Mapping[str, tuple[str, str]] = {
    "restore": ("exact", ""),
    "seed": ("exact", ""),
    "from_zero": ("10 of 10 rows doubled", "exact"),
    "replay": ("15 of 30 rows doubled", "15 of 30 rows doubled"),
    "died": ("5 of 15 rows doubled", ""),
}
EXPECTED: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "file": {
        **_SKIPS,
        "from_zero": ("refused: holds 0 to 1", _LOST),
        "new_output": ("exact", "BATCH_METADATA_NOT_FOUND"),
        "undo": ("exact", ""),
        "alarm": ("reported: batches [1, 2]; 10 of 20 rows lost", ""),
    },
    "table of files": {"restore": ("exact", ""), "from_zero": ("refused: holds 0 to 1", _LOST)},
    "delta": {**_SKIPS, **_UNDOES, "from_zero": ("10 of 10 rows doubled", _LOST)},
    "iceberg": {**_SKIPS, **_UNDOES, "from_zero": ("10 of 10 rows doubled", _LOST)},
    "kafka": {**_TAKES_ALL, "undo": ("15 of 30 rows doubled; a second time: 35 of 35 rows doubled", "")},
    "foreachBatch, append": _TAKES_ALL,
    "foreachBatch, overwrite per batch id": {
        **_TAKES_ALL,
        "from_zero": ("exact", _LOST),
        "replay": ("5 of 30 rows doubled", "5 of 30 rows doubled"),
        "died": ("exact", ""),
        "undo": ("exact", ""),
    },
    "memory": {"restore": ("Spark refuses to start", "")},
    "console": {"restore": ("runs on", ""), "seed": ("runs on", "")},
    "noop": {"restore": ("runs on", ""), "seed": ("runs on", "")},
}
"""Sink -> case -> what came of it in our hands, and what Spark did by itself."""


@dataclass(frozen=True)
class Cell:
    """What one case gave.

    Attributes:
        connector: what was needed besides it; "" for nothing.
        by_itself: what Spark did by itself; "" if that was not tried.
    """

    spark: str
    connector: str
    sink: str
    case: str
    outcome: str
    by_itself: str = ""

    @classmethod
    def of(cls, run: Run, line: Mapping[str, str]) -> Cell:
        """Of a line that a run wrote."""
        return cls(line["spark"], run.connector, line["sink"], line["case"], line["outcome"], line.get("by_itself", ""))

    @property
    def place(self) -> tuple[str, str, str]:
        """Its place in the table."""
        return self.spark, self.sink, self.case


def recorded() -> dict[tuple[str, str, str], Cell]:
    """Every recorded cell by its place."""
    if not RECORD.exists():
        return {}
    return {cell.place: cell for cell in (Cell(**raw) for raw in json.loads(RECORD.read_text())["cells"])}


def remember(cells: Sequence[Cell]) -> None:
    """Record them, if that is what this run is for."""
    if not os.environ.get("STREAMSTATE_RECORD"):
        return
    found = recorded() | {cell.place: cell for cell in cells}
    places = [(run.spark, sink, case) for run in RUNS for sink, case in run.cases]
    raw = {
        "date": SYSTEM_CLOCK.now().date().isoformat(),
        "sparks": list(VERSIONS),
        "cells": [asdict(found[place]) for place in places if place in found],
    }
    RECORD.write_text(json.dumps(raw, indent=1) + "\n")
    subprocess.run([sys.executable, str(RECORD.with_suffix(".py"))], check=True, timeout=60)
