"""The decisions of an upgrade, as tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_streamstate.controller.upgrade.decisions import (
    Go,
    NoGo,
    WayBack,
    can_drain,
    decide_mode,
    decide_return,
    decide_trials,
    never_flushed,
    passed,
)
from airflow_streamstate.plan.codes import difference
from airflow_streamstate.plan.report import PlanReport, QueryReport
from airflow_streamstate.protocol.scratch import RehearsedQuery
from airflow_streamstate.protocol.upgrades import Upgrade, UpgradeMode
from support.asked_upgrades import of_kind, with_terms
from support.built_plans import operator, plan, processor
from support.examples import example

ASKED = example(Upgrade)
assert isinstance(ASKED, Upgrade)
PLAIN = of_kind(ASKED, "upgrade")
OK, BAD = RehearsedQuery("accepted", "restored"), RehearsedQuery("failed", "restored", 0.5, "schema not compatible")


def report(outcome: str, verdict: str | None = None, rehearsed: RehearsedQuery | None = OK, **facts: Any) -> PlanReport:
    """A report of one query."""
    query = QueryReport(verdict, rehearsed=rehearsed)  # type: ignore[arg-type]
    error = rehearsed.error if rehearsed is not None else ""
    values: dict[str, Any] = {"reason": "" if outcome == "fits" else "it is another", "error": error, **facts}
    return PlanReport(
        "orders", "r-1", "d-0001", outcome, verdict=verdict, queries={"q": query}, rehearse=True, seconds=1.0,  # type: ignore[arg-type]
        **values,
    )  # fmt: skip


SAME = report("fits", "same")
COMPATIBLE = report("fits", "state-compatible")
NEEDS_DRAIN = report("refused", "needs-drain")
NEEDS_DRAIN_BAD = report("refused", "needs-drain", BAD)
REFUSED_BY_SPARK = report("refused", "same", BAD)
HAZARDOUS = report("refused", "hazardous")
HAZARDOUS_BAD = report("refused", "hazardous", BAD)
SINK, WINDOW = difference("sink-replaced", "", "another folder"), difference("window-changed", "", "another length")


def of_both(rehearsed: RehearsedQuery) -> PlanReport:
    """A new target, which a person has to accept, and another window, which wants a drain."""
    query = QueryReport("hazardous", (SINK, WINDOW), rehearsed=rehearsed)
    return replace(report("refused", "hazardous", rehearsed), queries={"q": query})


HAZARD_AND_DRAIN, HAZARD_AND_DRAIN_BAD = of_both(OK), of_both(BAD)
UNKNOWN = report("refused", None)
NO_QUERY = replace(report("refused", None), queries={}, error="the script started no query")
FAILED = report("failed", None, None, error="ImportError")
LATE = report("deadline", None, None, error="late")
RESTORE, DRAIN, FRESH = Go("restore"), Go("drain"), Go("fresh")


@pytest.mark.parametrize(
    ("found", "asked", "expected"),
    [
        (SAME, {}, RESTORE),
        (COMPATIBLE, {}, RESTORE),
        (SAME, {"mode": "restore"}, RESTORE),
        (SAME, {"mode": "drain"}, DRAIN),
        (COMPATIBLE, {"allow_drain": True}, RESTORE),
        (NEEDS_DRAIN, {}, None),
        (NEEDS_DRAIN, {"allow_drain": True}, DRAIN),
        (NEEDS_DRAIN, {"mode": "drain"}, DRAIN),
        (NEEDS_DRAIN, {"mode": "restore"}, None),
        (NEEDS_DRAIN, {"mode": "restore", "accept_hazards": True}, None),
        (NEEDS_DRAIN_BAD, {"allow_drain": True}, DRAIN),
        (REFUSED_BY_SPARK, {}, None),
        (REFUSED_BY_SPARK, {"allow_drain": True}, DRAIN),
        (REFUSED_BY_SPARK, {"mode": "restore"}, None),
        (HAZARDOUS, {}, None),
        (HAZARDOUS, {"allow_drain": True}, None),
        (HAZARDOUS, {"mode": "drain"}, None),
        (HAZARDOUS, {"accept_hazards": True}, RESTORE),
        (HAZARDOUS, {"accept_hazards": True, "mode": "restore"}, RESTORE),
        (HAZARDOUS, {"accept_hazards": True, "mode": "drain"}, DRAIN),
        (HAZARDOUS_BAD, {"accept_hazards": True}, None),
        (HAZARDOUS_BAD, {"accept_hazards": True, "allow_drain": True}, DRAIN),
        *[(found, asked, expected)
          for found in (HAZARD_AND_DRAIN, HAZARD_AND_DRAIN_BAD)
          for asked, expected in (
              ({"accept_hazards": True, "allow_drain": True}, DRAIN),
              ({"accept_hazards": True, "mode": "drain"}, DRAIN),
              ({"accept_hazards": True}, None),
              ({"accept_hazards": True, "mode": "restore"}, None),
              ({"allow_drain": True}, None),
              ({"mode": "drain"}, None),
          )],
        (HAZARDOUS_BAD, {"accept_hazards": True, "mode": "restore"}, None),
        (HAZARDOUS_BAD, {"accept_hazards": True, "mode": "drain"}, DRAIN),
        (UNKNOWN, {}, None),
        (UNKNOWN, {"allow_drain": True}, None),
        (UNKNOWN, {"accept_hazards": True}, None),
        (NO_QUERY, {"allow_drain": True, "accept_hazards": True}, None),
        (NO_QUERY, {"mode": "drain"}, None),
        (HAZARDOUS, {"mode": "fresh"}, FRESH),
        (NEEDS_DRAIN, {"mode": "fresh"}, FRESH),
        (REFUSED_BY_SPARK, {"mode": "fresh"}, None),
        *[(found, {"mode": mode, "accept_hazards": True}, None)
          for found in (FAILED, LATE) for mode in ("auto", "restore", "drain", "fresh")],
    ],
)  # fmt: skip
def test_how_the_state_is_handed_over(found: PlanReport, asked: dict[str, Any], expected: Go | None) -> None:
    """Restored where it fits, drained where it does not and that is allowed, else refused with the reason (Law 5)."""
    decision = decide_mode(with_terms(PLAIN, **asked), found)
    if expected is not None:
        assert decision == expected
        return
    assert isinstance(decision, NoGo)
    assert decision.reason


ALL = (
    SAME, COMPATIBLE, NEEDS_DRAIN, NEEDS_DRAIN_BAD, REFUSED_BY_SPARK, HAZARDOUS, HAZARDOUS_BAD, HAZARD_AND_DRAIN,
    HAZARD_AND_DRAIN_BAD, UNKNOWN, NO_QUERY,
)  # fmt: skip


@pytest.mark.parametrize("mode", ["auto", "restore", "drain"])
@pytest.mark.parametrize("found", ALL)
def test_law_5_nothing_begins_with_nothing_but_by_name(mode: UpgradeMode, found: PlanReport) -> None:
    """Whatever else was allowed, no mode but fresh is ever fresh."""
    for allow in (False, True) if mode == "auto" else (False,):
        for hazards in (False, True):
            asked = with_terms(PLAIN, mode=mode, allow_drain=allow, accept_hazards=hazards)
            assert decide_mode(asked, found) != FRESH


def test_a_drain_is_not_made_for_what_could_not_be_started_after_it() -> None:
    """A seed that was accepted, or was not tried, changes nothing."""
    for found in (NEEDS_DRAIN, NEEDS_DRAIN_BAD, SAME):
        for seed_ok in (True, None):
            assert decide_mode(with_terms(PLAIN, mode="drain"), replace(found, seed_ok=seed_ok)) == DRAIN
        bad = replace(found, seed_ok=False, seed_error="no such source")
        decision = decide_mode(with_terms(PLAIN, mode="drain"), bad)
        assert isinstance(decision, NoGo)
        could_not = "after a drain the new version could not be started either: no such source"
        assert decision.reason == (could_not if found is SAME else f"it is another; {could_not}")
    assert decide_mode(PLAIN, replace(SAME, seed_ok=False)) == RESTORE


def test_a_drain_that_would_leave_state_is_not_made_unless_that_may_be_dropped() -> None:
    """A seed would be refused behind it, and the old version has ended by then; a restore keeps that state. (Law 16)"""
    kept = ("query a: 7 rows", "query b: 1 row")
    says = "a drain would leave state, and a seed would drop it: query a: 7 rows; query b: 1 row"
    left = NoGo(f"{says} (--allow-state-loss drops it)")
    assert decide_mode(with_terms(PLAIN, mode="drain"), SAME, kept) == left
    assert decide_mode(with_terms(PLAIN, allow_drain=True), NEEDS_DRAIN, kept) == left
    assert decide_mode(PLAIN, SAME, kept) == RESTORE
    assert decide_mode(with_terms(PLAIN, mode="fresh"), SAME, kept) == FRESH
    refused = decide_mode(PLAIN, NEEDS_DRAIN, kept)
    assert refused == decide_mode(PLAIN, NEEDS_DRAIN)


def test_state_that_no_drain_flushes_is_told_by_query() -> None:
    """It has no bound of time; what a function keeps is its own matter."""
    forever = plan(operator(kind="deduplicate", keys=()))
    plans = {"b": forever, "a": plan(watermarks=()), "c": plan(processor()), "d": plan(), "e": forever}
    assert [text.partition(": ")[0] for text in never_flushed(plans)] == ["query a", "query b", "query e"]
    assert never_flushed({"a": plan(watermarks=())})[0].startswith("query a: Nothing ever removes state of the")
    sessions = plan(operator(kind="session_window"), watermarks=())
    assert len(never_flushed({"a": sessions})) == 1


HAZARD, DRAINS = "hazardous", "needs-drain"


@pytest.mark.parametrize(
    ("asked", "refuses", "seeds"),
    [
        ({}, {HAZARD, DRAINS}, "never"),
        ({"accept_hazards": True}, {DRAINS}, "never"),
        ({"mode": "restore"}, {HAZARD, DRAINS}, "never"),
        ({"allow_drain": True}, {HAZARD}, "if_needed"),
        ({"allow_drain": True, "accept_hazards": True}, set(), "if_needed"),
        ({"mode": "drain"}, {HAZARD}, "always"),
        ({"mode": "drain", "accept_hazards": True}, set(), "always"),
        ({"mode": "fresh"}, set(), "never"),
        ({"rehearse": False}, set(), "never"),
    ],
)
def test_what_is_tried_is_what_may_be_done(asked: dict[str, Any], refuses: set[str], seeds: str) -> None:
    """And what a plan refuses by itself, the decision refuses whatever the rehearsal reported."""
    upgrade = with_terms(PLAIN, **asked)
    found_refuses, found_seeds = decide_trials(upgrade)
    assert (set(found_refuses), found_seeds) == (refuses, seeds)
    for verdict, found in ((HAZARD, HAZARDOUS), (DRAINS, NEEDS_DRAIN), (DRAINS, HAZARD_AND_DRAIN)):
        if verdict in refuses:
            assert isinstance(decide_mode(upgrade, found), NoGo)


def test_a_refusal_has_both_reasons() -> None:
    """Why it does not fit, and why it is not drained."""
    decision = decide_mode(PLAIN, NEEDS_DRAIN)
    assert decision == NoGo("it is another; and a drain was not allowed: --allow-drain allows it")
    accepted = decide_mode(with_terms(PLAIN, accept_hazards=True), HAZARD_AND_DRAIN)
    assert accepted == NoGo(
        "query q is needs-drain: another length; and a drain was not allowed: --allow-drain allows it"
    )
    words = "it is another; a drain does not settle that: decide, and accept it (--accept-hazards) or leave it out"
    hazard = decide_mode(with_terms(PLAIN, allow_drain=True), HAZARDOUS)
    assert hazard == NoGo(words)
    both = decide_mode(with_terms(PLAIN, allow_drain=True), HAZARD_AND_DRAIN)
    assert both == NoGo(words)


def test_passed_means_that_every_query_ran() -> None:
    """Plans that were compared alone, and a query that was not tried, are no proof."""
    assert passed(SAME)
    assert not passed(REFUSED_BY_SPARK)
    assert not passed(report("fits", "same", None))
    assert not passed(NO_QUERY)


def test_only_state_that_does_not_fit_is_mended_by_a_drain() -> None:
    """Not a hazard, and not plans that cannot be compared."""
    assert [can_drain(found) for found in (NEEDS_DRAIN, REFUSED_BY_SPARK, HAZARDOUS, UNKNOWN, SAME)] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert not can_drain(HAZARDOUS_BAD)
    assert can_drain(HAZARDOUS_BAD, is_accepted=True)
    for found in (HAZARD_AND_DRAIN, HAZARD_AND_DRAIN_BAD):
        assert not can_drain(found)
        assert can_drain(found, is_accepted=True)
    assert not can_drain(HAZARDOUS, is_accepted=True)
    with_rows = replace(BAD, fails_with_rows=True)
    assert not can_drain(report("refused", "same", with_rows))
    assert can_drain(report("refused", "needs-drain", with_rows))


NO_UNDO = "no sink can be undone"
FORWARD = WayBack("forward")


@pytest.mark.parametrize(
    ("found", "wanted", "undo_problem", "way"),
    [
        (SAME, None, NO_UNDO, "forward"),
        (COMPATIBLE, None, "", "forward"),
        (COMPATIBLE, "forward", NO_UNDO, "forward"),
        (NEEDS_DRAIN, None, "", "undo"),
        (REFUSED_BY_SPARK, None, "", "undo"),
        (HAZARDOUS, None, "", "undo"),
        (HAZARDOUS, None, NO_UNDO, "forward"),
        (HAZARDOUS, "forward", "", "forward"),
        (HAZARDOUS_BAD, None, NO_UNDO, None),
        (NEEDS_DRAIN, None, NO_UNDO, None),
        (NEEDS_DRAIN, "forward", "", None),
        (REFUSED_BY_SPARK, None, NO_UNDO, None),
        (UNKNOWN, None, NO_UNDO, None),
        (FAILED, None, NO_UNDO, None),
        (FAILED, None, "", "undo"),
        (LATE, "forward", "", None),
    ],
)
def test_how_a_version_that_is_given_up_is_left(
    found: PlanReport, wanted: Any, undo_problem: str, way: str | None
) -> None:
    """Forward where the old code reads what the new one left; else undone if that can be; else not (Law 14)."""
    decision = decide_return(found, wanted, undo_problem)
    assert decision.way == way
    assert decision.reason or way == "forward"
    if way is None and wanted is None:
        assert undo_problem in decision.reason


@pytest.mark.parametrize("rehearse", [True, False])
@pytest.mark.parametrize("outcome", ["failed", "deadline"])
def test_what_was_not_tried_is_said(outcome: str, rehearse: bool) -> None:
    """Each way to end is a sentence; and what was not to be rehearsed is not called so."""
    found = decide_mode(PLAIN, replace(report(outcome, None, None, reason="boom"), rehearse=rehearse))
    assert isinstance(found, NoGo)
    assert found.reason.endswith(": boom")
    assert "ended by" not in found.reason
    assert ("rehearsal" in found.reason) is rehearse


def test_a_way_back_is_told_with_what_speaks_against_the_others() -> None:
    """Whether forward, undone, or in no way that is exact."""
    mix = "results of both versions mix in open windows: it is another"
    assert decide_return(HAZARDOUS, "forward", "") == WayBack("forward", mix)
    assert decide_return(NEEDS_DRAIN, None, "") == WayBack("undo", "not forward: it is another")
    none = "the old code cannot continue from the new one's last commit: it is another"
    assert decide_return(NEEDS_DRAIN, "forward", NO_UNDO) == WayBack(None, none)
    undone = f"{none}; the new version's output cannot be undone: {NO_UNDO}"
    assert decide_return(NEEDS_DRAIN, None, NO_UNDO) == WayBack(None, undone)
