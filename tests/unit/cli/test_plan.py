"""``plan``, over drivers that run no Spark."""

from __future__ import annotations

import pytest

from airflow_streamstate.controller.home import Home, HomeConfig
from support.scripted_driver import script
from support.scripted_rehearsal import keep_plan
from support.scripted_stream import QUERY
from support.shell import Answer, Desk, shell


def plan(desk: Desk, word: str, *words: object) -> Answer:
    """Plan a version whose rehearsal behaves so."""
    return shell("plan", "flights", "--app", script(desk.base, word, name=f"{word}.py"), *words)


@pytest.mark.parametrize(
    ("word", "status", "outcome", "verdict"),
    [
        ("fits", 0, "fits", "same"),
        ("needs-drain", 4, "refused", "needs-drain"),
        ("refused", 4, "refused", "same"),
        ("fails", 1, "failed", None),
        ("dies", 1, "failed", None),
    ],
)
def test_a_job_of_ci_can_refuse_a_change_by_the_status(
    running: Desk, word: str, status: int, outcome: str, verdict: str | None
) -> None:
    """One JSON object with the report; nothing of the stream has moved, and nothing but reports is left."""
    answer = plan(running, word, "--json")
    assert (answer.status, answer.err) == (status, "")
    assert (answer.json["outcome"], answer.json["verdict"]) == (outcome, verdict)
    assert {"queries", "rehearsal", "reason", "notes"} <= set(answer.json)
    assert running.stream().control.deployment_ids() == ["d-0001"]
    assert not list(running.home.rglob("launches/r-*"))


def test_a_rehearsal_that_takes_too_long_is_ended(running: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the status of a deadline (Law 6)."""
    monkeypatch.setattr("airflow_streamstate.controller.scratch_driver.LATE_SECONDS", 0.5)
    monkeypatch.setattr("airflow_streamstate.controller.rehearsal.rehearsals.LATE_SECONDS", 0.5)
    answer = plan(running, "hangs", "--deadline", 1, "--json")
    assert (answer.status, answer.json["outcome"]) == (3, "deadline")
    assert "not over at its deadline" in answer.json["reason"]


def test_a_person_reads_what_differs_and_what_to_do(running: Desk) -> None:
    """What is rehearsed on stderr, the report on stdout."""
    answer = plan(running, "needs-drain")
    assert "the change is rehearsed" in answer.err
    assert "the change does not fit: needs-drain" in answer.out
    assert "aggregate-added" in answer.out
    assert "-> Drain the old version" in answer.out
    failed = plan(running, "fails")
    assert "No module named 'rules'" in failed.out
    assert "traceback:" in failed.out


def test_the_report_for_a_pull_request_is_markdown(running: Desk) -> None:
    """And with --json it is JSON all the same."""
    answer = plan(running, "needs-drain", "--markdown")
    assert answer.out.startswith("### `flights`: the change does not fit (`needs-drain`)\n")
    assert plan(running, "needs-drain", "--markdown", "--json").json["verdict"] == "needs-drain"


def test_settings_alone_are_a_change_too(desk: Desk) -> None:
    """The script that runs stays, by its digest (Law 15); what follows -- is its own; secrets are refused as ever."""
    assert shell("deploy", "flights", "--app", script(desk.base, "runs"), "--timeout", 60).status == 0
    control = desk.stream().control
    keep_plan(control, "d-0001", QUERY)
    words = ("--no-rehearsal", "--conf", "spark.a=1", "--env", "A_TOKEN=tr0ub4dor", "--json")
    refused = shell("plan", "flights", *words)
    assert (refused.status, refused.error["type"]) == (2, "InvalidRequestError")
    assert "tr0ub4dor" not in refused.out
    answer = shell("plan", "flights", *words, "--allow-literal-secrets", "--request-id", "mine", "--", "--input", "x")
    assert (answer.status, answer.json["rehearsal"]["ok"]) == (0, None), answer
    (rehearsal_id,) = control.rehearsal_ids()
    rehearsal = control.rehearsal(rehearsal_id)
    assert rehearsal is not None
    assert (rehearsal.runs_batches, rehearsal.request_id) == (False, "mine")


def test_without_a_change_the_recorded_plan_is_shown(running: Desk) -> None:
    """As a tree, or as JSON; of what has none it is said."""
    answer = shell("plan", "flights")
    assert answer.status == 0
    assert f"query {QUERY}" in answer.out
    assert "source 0: kafka" in answer.out
    found = shell("plan", "flights", "--json")
    assert found.json["queries"][QUERY]["sink"]["kind"] == "file:parquet"
    other = running.stream("other")
    other.deploy().runs()
    assert "no plan is recorded" in shell("plan", "other").out


def test_what_is_not_there_is_told(desk: Desk) -> None:
    """No stream, no script: with the status of usage, and nothing begun."""
    Home(HomeConfig(str(desk.home))).begin("tests")
    missing = shell("plan", "nowhere", "--app", "x.py", "--json")
    assert (missing.status, missing.error["type"]) == (2, "StreamNotFoundError")
    assert shell("plan", "nowhere", "--json").status == 2
    desk.stream().deploy().runs()
    no_script = shell("plan", "flights", "--app", desk.base / "missing.py", "--json")
    assert (no_script.status, no_script.error["type"]) == (2, "InvalidRequestError")
    assert desk.stream().control.rehearsal_ids() == []
