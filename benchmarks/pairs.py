"""Two ways of the same, each to its seconds, in pairs of alternating order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from benchmarks.results import Goal, Number, Result, Side
from benchmarks.session import Session

PAIRS, QUICK_PAIRS = 5, 1


@dataclass(frozen=True)
class Way:
    """One of the two.

    Attributes:
        label: what is measured.
        seconds: measures it in the round of this number.
    """

    label: str
    seconds: Callable[[int], float]


def measure_pairs(session: Session, name: str, way: Way, against: Way, goal: float | None, most: int = PAIRS) -> Result:
    """The median ratio of the first way to the second, over ``most`` pairs; ``goal``: what it may be at the most."""
    rounds: list[dict[str, Number]] = []
    for number in range(1, (QUICK_PAIRS if session.quick else most) + 1):
        found: dict[Way, float] = {}
        for each in (way, against) if number % 2 else (against, way):
            found[each] = each.seconds(number)
        rounds.append({"seconds": found[way], "against_seconds": found[against]})
        session.say(f"  pair {number}: {way.label} {found[way]:.2f} s; {against.label} {found[against]:.2f} s")
    firsts, seconds = ([float(each[key] or 0) for each in rounds] for key in ("seconds", "against_seconds"))
    ratios = [one / other for one, other in zip(firsts, seconds, strict=True)]
    return Result(
        name=name,
        of=Side(way.label, median(firsts), "s"),
        against=Side(against.label, median(seconds), "s"),
        ratio=median(ratios),
        ratio_means="of that",
        goal=None if goal is None else Goal(f"{goal} of it", median(ratios), "<=", goal, "of it"),
        rounds=tuple(rounds),
        notes=(f"pairs from {min(ratios):.2f} to {max(ratios):.2f}",),
    )
