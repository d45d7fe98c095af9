"""Every sink, on the Sparks where it exists: what becomes of rows when a stream ends and starts again (Law 14)."""

from __future__ import annotations

import os

import pytest

from support.sink_results import EXPECTED, Cell, recorded, remember
from support.sink_runs import QUICK, RUNS, Run, results_of

pytestmark = [pytest.mark.sinks, pytest.mark.spark, pytest.mark.timeout(1000), pytest.mark.usefixtures("quick_jvm")]


# Of Delta, ``full`` has the drivers of test_drivers.py.
CHOSEN = RUNS if os.environ.get("STREAMSTATE_SINKS") == "full" else QUICK


@pytest.mark.parametrize(
    "run",
    [pytest.param(run, marks=[pytest.mark.named] if run.name.startswith("delta") else []) for run in CHOSEN],
    ids=lambda run: run.name,
)
def test_each_sink_does_what_the_page_says(run: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Restored, seeded, started fresh, replayed, cut off before a commit: as docs/reference/sinks.md has it."""
    lines = results_of(run, tmp_path_factory.mktemp(run.name))
    cells = [Cell.of(run, line) for line in lines]
    for cell, line in zip(cells, lines, strict=True):
        found = (cell.outcome, cell.by_itself)
        assert found == EXPECTED[cell.sink][cell.case], f"{run.name}, {cell.sink}, {cell.case}: {line}"
    remember(cells)
    told = recorded()
    assert [cell for cell in cells if told.get(cell.place) != cell] == [], (
        "record them: see tests/support/sink_results.py"
    )
