"""``plan`` as shown to people."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from functools import partial

from airflow_streamstate.cli import upgrade
from airflow_streamstate.controller.scratch.rehearsal import RecordedPlans, RehearsalView
from airflow_streamstate.plan.report import START_ONE, PlanReport, QueryReport
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.protocol.scratch import RehearsedQuery
from support.shell import printed

VIEW = RehearsalView(
    "orders", "r-0b8e3c525f0e-0001", "d-0003", StartPlan("restore", "r-0b8e3c525f0e-0001", "d-0003"),
    datetime(2026, 3, 1, tzinfo=timezone.utc), ("query raw never committed a batch",),
)  # fmt: skip
REPORT = PlanReport("orders", "r-0b8e3c525f0e-0001", "d-0003", "fits", "", "same", {}, True, 9.0)


def test_what_is_forked_is_said_first() -> None:
    """The stream as it is now, or the snapshot at its end."""
    said = printed(partial(upgrade.rehearsing, view=VIEW, rehearse=True))
    assert "rehearsed on a fork of the state of d-0003 as it is now" in said
    assert "query raw never committed a batch" in said
    ended = replace(VIEW, start=StartPlan("seed", "d-0003-drained-000001", "d-0003"))
    assert "at the offsets of snapshot d-0003-drained-000001" in printed(
        partial(upgrade.rehearsing, view=ended, rehearse=True)
    )
    fresh = replace(VIEW, start=StartPlan("fresh"))
    assert "rehearsed with nothing\n" in printed(partial(upgrade.rehearsing, view=fresh, rehearse=True))


def test_what_is_not_rehearsed_is_not_called_so() -> None:
    """The script is run for its plans; no batch is."""
    said = printed(partial(upgrade.rehearsing, view=VIEW, rehearse=False))
    for outcome in ("fits", "refused", "failed", "deadline"):
        found = replace(REPORT, rehearse=False, outcome=outcome)
        said += printed(upgrade.print_report, found)
    assert "the plans of the change are compared with those of d-0003" in said
    assert "query raw never committed a batch" in said
    assert "rehears" not in said.replace(START_ONE, "")  # which names the variable that this run sets, too


def test_what_was_not_started_or_compared_is_said() -> None:
    """And nothing of what a script writes acts on a terminal."""
    tried = RehearsedQuery("accepted", "restored", 1.25, "", ("a note \x1b[31m of the start",))
    found = replace(REPORT, queries={"new": QueryReport(None, rehearsed=tried), "old": QueryReport("needs-drain")})
    said = printed(upgrade.print_report, replace(found, notes=("it ran on",)))
    assert "the change fits: same" in said
    lines = [line.split() for line in said.splitlines()]
    assert ["new", "not", "compared", "accepted", "restored", "1.2"] in lines
    assert ["old", "needs-drain", "not", "started"] in lines
    assert "it ran on" in said
    assert "\x1b" not in said


def test_a_stream_without_plans_is_no_empty_page() -> None:
    """It reports why there is nothing."""
    nothing = RecordedPlans("orders", "d-0001", {})
    assert "no query was started yet" in printed(upgrade.recorded, nothing, {})
