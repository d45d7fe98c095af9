"""What was seen of the truth table of rewritten state, as a record for the docs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from airflow_streamstate.clock import SYSTEM_CLOCK
from support.rewrite_table import ROWS, Row

RECORD = Path(__file__).resolve().parents[2] / "docs" / "rewrites.json"


def recorded() -> dict[str, Any]:
    """The record of the docs."""
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


class Recorder:
    """Holds what is seen against the record, or writes the record.

    Args:
        spark: the version that it is seen on.
        writes: whether what is seen is recorded.
    """

    def __init__(self, spark: str, *, writes: bool) -> None:
        self._spark = spark
        self._writes = writes
        self._rows: dict[str, dict[str, str | None]] = {}
        self._before = {row["name"]: row for row in recorded()["rows"]} if RECORD.exists() else {}

    def saw(self, row: Row, said: str = "") -> None:
        """A row was tried: it is right, or refused with these words."""
        if self._writes:
            self._rows[row.name] = _facts(row, said)
        else:
            assert self._before[row.name]["said"] in (said, None), "record again with STREAMSTATE_RECORD=1"

    def write(self) -> None:
        """Write what was seen into the record; of rows that were not tried this time, what was seen before."""
        if not self._writes or not self._rows:
            return
        found = {row.name: _facts(row, None) for row in ROWS} | self._before | self._rows
        content = {
            "date": SYSTEM_CLOCK.now().strftime("%Y-%m-%d"),
            "spark": self._spark,
            "rows": [found[row.name] for row in ROWS],
        }
        RECORD.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _facts(row: Row, said: str | None) -> dict[str, str | None]:
    """``said``: "" for right, the words of a refusal, None where it was not tried."""
    return {"name": row.name, "operator": row.operator, "change": row.change, "said": said}
