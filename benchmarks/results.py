"""The result of a benchmark: two sides, their ratio, the goal, and every round; and the table on the terminal."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

Number = float | int | str | bool | None
_HOLDS = {"<=": operator.le, ">=": operator.ge}


class BenchmarkError(RuntimeError):
    """A benchmark could not be measured; the others still are."""


@dataclass(frozen=True)
class Side:
    """One of the two things: the median over the rounds.

    Attributes:
        unit: ``s``, ``rows/s``, ….
    """

    label: str
    value: float
    unit: str


@dataclass(frozen=True)
class Goal:
    """What must hold of the measured number.

    Attributes:
        text: the goal as text, as in the design.
        measured, limit: both in ``unit``.
    """

    text: str
    measured: float
    comparison: Literal["<=", ">="]
    limit: float
    unit: str

    @property
    def is_met(self) -> bool:
        """Whether the measured number holds."""
        return bool(_HOLDS[self.comparison](self.measured, self.limit))


@dataclass(frozen=True)
class Result:
    """One line of the table.

    Attributes:
        ratio: of the first to the second, or the other way about, as ``ratio_means`` states.
        goal: None where the number only accompanies another goal.
        rounds: everything that was measured, round by round.
        notes: sentences for the reader.
    """

    name: str
    of: Side
    against: Side
    ratio: float
    ratio_means: str
    goal: Goal | None
    rounds: tuple[Mapping[str, Number], ...]
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, object]:
        """All of it, and whether the goal is met."""
        plain = asdict(self)
        if self.goal is not None:
            plain["goal"]["is_met"] = self.goal.is_met
        return plain


def write_results(path: Path, facts: Mapping[str, object], results: list[Result], problems: Mapping[str, str]) -> None:
    """Write one JSON object: the machine, the results, and what could not be measured."""
    whole = {**facts, "results": [result.to_json() for result in results], "problems": dict(problems)}
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


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
