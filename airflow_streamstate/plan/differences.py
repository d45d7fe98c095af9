"""The result of comparing two plans: verdicts, differences, advice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, get_args

from airflow_streamstate.protocol.upgrades import PlanVerdict

Verdict: TypeAlias = PlanVerdict

VERDICTS: tuple[Verdict, ...] = get_args(PlanVerdict)
"""From harmless to grave. ``same``: nothing that matters differs. ``state-compatible``: a restore goes on with the old
state, and then writes what the new definition says. ``needs-drain``: Spark refuses a restore, or it mixes results of
both definitions; after drain and seed, each row is counted by one of them. ``hazardous``: a person has to decide before
either is exact."""


FITTING: tuple[Verdict, ...] = ("same", "state-compatible")
"""Those with which a start may continue the state."""


@dataclass(frozen=True)
class Difference:
    """One thing in which two plans differ.

    Attributes:
        code: of ``codes.CODES``.
        verdict: what this one alone would mean.
        path: where in the plan, for people.
        reason: what differs and its effect, a lower-case sentence without its full stop.
        remedy: what to do, a whole sentence.
    """

    code: str
    verdict: Verdict
    path: str
    reason: str
    remedy: str


@dataclass(frozen=True)
class Advice:
    """Advice on the new plan, independent of the old one.

    Attributes:
        code: of ``codes.ADVICE``.
        path: where in the plan, for people.
        text: a whole sentence or two.
    """

    code: str
    path: str
    text: str


@dataclass(frozen=True)
class Comparison:
    """Two plans of one query, compared; the gravest difference is the first, and gives the verdict."""

    verdict: Verdict = "same"
    differences: tuple[Difference, ...] = ()
    advice: tuple[Advice, ...] = ()

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the differences, each once, the gravest first."""
        return tuple(dict.fromkeys(difference.code for difference in self.differences))


@dataclass(frozen=True)
class DeploymentComparison:
    """All queries of two versions of a stream, compared; the verdict is the gravest of all queries.

    Attributes:
        queries: by name; one that only the old version has is under its old name.
    """

    verdict: Verdict = "same"
    queries: Mapping[str, Comparison] = field(default_factory=dict)


def refusing(comparison: Comparison, *, accepts_hazards: bool) -> tuple[Difference, ...]:
    """The differences for which no state may be continued; hazards that the user has accepted are none of
    them (Law 17)."""
    fits = (*FITTING, "hazardous") if accepts_hazards else FITTING
    return tuple(each for each in comparison.differences if each.verdict not in fits)


def gravest(verdicts: Iterable[Verdict]) -> Verdict:
    """The gravest of these; ``same`` for none."""
    return max(verdicts, key=VERDICTS.index, default="same")


def compared(differences: Iterable[Difference], advice: Iterable[Advice] = ()) -> Comparison:
    found = sorted(dict.fromkeys(differences), key=lambda each: -VERDICTS.index(each.verdict))
    return Comparison(gravest(each.verdict for each in found), tuple(found), tuple(dict.fromkeys(advice)))
