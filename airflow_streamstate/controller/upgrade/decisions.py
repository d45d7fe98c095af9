"""The pure decisions of an upgrade: how the state is handed over, and how the old version comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.plan.codes import FITTING
from airflow_streamstate.plan.comparison import advice_on
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.report import PlanReport
from airflow_streamstate.protocol.ids import is_same_person, person_of
from airflow_streamstate.protocol.scratch import SeedTrial
from airflow_streamstate.protocol.terms.order import UpgradeMode
from airflow_streamstate.protocol.upgrades import ReturnWay, Upgrade

_REHEARSED = ("accepted", "not_run")
_NOT_TRIED: Mapping[tuple[str, bool], str] = {
    ("failed", True): "it failed in its rehearsal",
    ("deadline", True): "its rehearsal was not over in time",
    ("failed", False): "it failed before its plans were known",
    ("deadline", False): "its plans were not known in time",
}
"""By the outcome of a rehearsal, and whether it was to run batches."""
_NEVER_FLUSHED = frozenset({"state-without-bound", "session-without-bound", "duplicates-forever"})


@dataclass(frozen=True)
class Go:
    """Hand the state over in this mode; never ``auto``."""

    mode: UpgradeMode


@dataclass(frozen=True)
class NoGo:
    """Refuse the upgrade."""

    reason: str


def decide_trials(upgrade: Upgrade) -> tuple[tuple[str, ...], SeedTrial]:
    """The plan verdicts that refuse the upgrade without a batch, and whether its queries are also tried as seeded after
    a drain. In line with ``decide_mode``."""
    if upgrade.terms.mode == "fresh" or not upgrade.terms.rehearse:
        return (), "never"
    refuses = () if upgrade.terms.accept_hazards else ("hazardous",)
    if upgrade.terms.mode == "drain":
        return refuses, "always"
    if upgrade.terms.mode == "auto" and upgrade.terms.allow_drain:
        return refuses, "if_needed"
    return (*refuses, "needs-drain"), "never"


def problem_of_approver(upgrade: Upgrade, approved_by: str) -> str:
    """Why this one may not approve the upgrade; "" where anybody may, or it is another person.

    An upgrade that no person has asked for, e.g. of a scheduled run, may be approved by any person.
    """
    if not upgrade.terms.approved_by_another:
        return ""
    person = person_of(approved_by)
    if not person:
        return "another person has to approve this upgrade, and no person is known who approves it"
    if is_same_person(person, person_of(upgrade.requested_by)):
        return f"{person} has asked for this upgrade, and another person has to approve it"
    return ""


def never_flushed(plans: Mapping[str, QueryPlan]) -> list[str]:
    """The state in these plans that no drain flushes, one sentence for each."""
    return [
        f"query {name}: {each.text}"
        for name, plan in sorted(plans.items())
        for each in advice_on(plan)
        if each.code in _NEVER_FLUSHED
    ]


def decide_mode(upgrade: Upgrade, report: PlanReport, kept: Sequence[str] = ()) -> Go | NoGo:
    """How the state is handed over, from the report of the rehearsal (Law 5: a fresh start only by name).

    Args:
        kept: state that a drain of the old version would leave and that must not be dropped (Law 16): a seed would be
            refused after the drain.
    """
    decision = _decide_mode(upgrade, report)
    if decision == Go("drain") and report.seed_ok is False:
        reason = f"{report.reason}; " if report.reason else ""
        return NoGo(f"{reason}after a drain the new version could not be started either: {report.seed_error}")
    if kept and decision == Go("drain"):
        return NoGo(
            f"a drain would leave state, and a seed would drop it: {'; '.join(kept)} (--allow-state-loss drops it)"
        )
    return decision


def _decide_mode(upgrade: Upgrade, report: PlanReport) -> Go | NoGo:
    not_tried = _NOT_TRIED.get((report.outcome, report.rehearse))
    if not_tried is not None:
        return NoGo(f"{not_tried}: {report.reason}")
    if not report.queries:
        return NoGo(report.reason)
    if upgrade.terms.mode == "fresh":  # the rehearsal started with nothing, too: what it refuses, a start refuses
        return Go("fresh") if passed(report) else NoGo(report.reason)
    is_accepted = upgrade.terms.accept_hazards and report.verdict == "hazardous"
    reason = (report.reason_to_drain or report.reason) if is_accepted else report.reason
    if _may_restore(report, is_accepted=is_accepted):
        return Go("drain" if upgrade.terms.mode == "drain" else "restore")
    if upgrade.terms.mode == "restore":
        return NoGo(reason)
    if report.verdict == "hazardous" and not is_accepted:
        return NoGo(f"{reason}; a drain does not settle that: decide, and accept it (--accept-hazards) or leave it out")
    if upgrade.terms.mode == "drain":
        return Go("drain")
    if not can_drain(report, is_accepted=is_accepted):
        return NoGo(reason)
    if not upgrade.terms.allow_drain:
        return NoGo(f"{reason}; and a drain was not allowed: --allow-drain allows it")
    return Go("drain")


def _may_restore(report: PlanReport, *, is_accepted: bool) -> bool:
    """An accepted hazard is restored as it is, unless another difference needs a drain."""
    return report.fits or (is_accepted and passed(report) and not report.reason_to_drain)


def passed(report: PlanReport) -> bool:
    """Whether every query of the new version ran on the state in the rehearsal."""
    rehearsed = [query.rehearsed for query in report.queries.values() if query.rehearsed is not None]
    return (
        report.rehearsal_ok is not False and bool(rehearsed) and all(each.outcome in _REHEARSED for each in rehearsed)
    )


def can_drain(report: PlanReport, *, is_accepted: bool = False) -> bool:
    """Whether a drain helps: only the state does not fit, apart from an accepted hazard. Not where a batch of real rows
    failed on state that fits: the next one may fail after the drain."""
    if report.verdict == "needs-drain" or (is_accepted and report.reason_to_drain):
        return True
    if any(query.rehearsed is not None and query.rehearsed.fails_with_rows for query in report.queries.values()):
        return False
    return (report.verdict in FITTING or is_accepted) and not passed(report)


@dataclass(frozen=True)
class WayBack:
    """How a version comes back; ``way`` None: no way is exact. ``reason``: why a better way was not taken."""

    way: ReturnWay | None
    reason: str = ""


def decide_return(report: PlanReport, wanted: ReturnWay | None, undo_problem: str) -> WayBack:
    """How the old version comes back, from a rehearsal of its code on the state that the new version left.

    Args:
        wanted: ``forward`` for that way alone; None for the first exact way.
        undo_problem: why the new version's output cannot be undone; "" where it can.
    """
    if report.fits:
        return WayBack("forward")
    if wanted is None and not undo_problem:
        return WayBack("undo", f"not forward: {report.reason}")
    if report.verdict == "hazardous" and passed(report):
        # No row is lost or doubled; results of the two versions mix in the open windows.
        return WayBack("forward", f"results of both versions mix in open windows: {report.reason}")
    undo = f"; the new version's output cannot be undone: {undo_problem}" if wanted is None else ""
    return WayBack(None, f"the old code cannot continue from the new one's last commit: {report.reason}{undo}")
