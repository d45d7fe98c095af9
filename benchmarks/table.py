"""The table on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks.results import Goal, Result, Side


def show(console: Console, results: list[Result]) -> None:
    """Print one line per result, and its notes below."""
    table = Table(title="speed, as ratios in one run (medians)")
    for heading in ("benchmark", "this", "against that", "ratio", "goal", "measured", ""):
        table.add_column(heading, overflow="fold")
    for result in results:
        goal = result.goal
        table.add_row(
            result.name,
            _side(result.of),
            _side(result.against),
            f"{_number(result.ratio)} {result.ratio_means}",
            goal.text if goal else "-",
            f"{_number(goal.measured)} {goal.unit}" if goal else "-",
            _verdict(goal),
        )
    console.print(table)
    for result in results:
        for note in result.notes:
            console.print(f"{result.name}: {note}", highlight=False)


def _side(side: Side) -> str:
    return f"{side.label}: {_number(side.value)} {side.unit}"


def _verdict(goal: Goal | None) -> str:
    if goal is None:
        return ""
    return "[green]met[/]" if goal.is_met else "[red]missed[/]"


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
