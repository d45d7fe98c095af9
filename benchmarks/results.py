"""What a benchmark says: two sides, their ratio, the goal, and every round it was computed from."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

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
        text: the goal in words, as the design says it.
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
        of, against: the two things.
        ratio: of the first to the second, or the other way about, as ``ratio_means`` says.
        goal: None where the number stands beside another goal.
        rounds: everything that was measured, round by round.
        notes: what a reader has to know, in sentences.
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
