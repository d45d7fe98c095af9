"""The report of a change."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_streamstate.errors import DeadlineExceededError, DeploymentFailedError, IncompatibleUpgradeError
from airflow_streamstate.plan.codes import (
    ADVICE,
    Comparison,
    DeploymentComparison,
    advice,
    compared,
    difference,
    gravest,
)
from airflow_streamstate.plan.replay_report import ReplayedQuery, ReplayedVersions, ReplayReport
from airflow_streamstate.plan.report import (
    START_ONE,
    PlanReport,
    queries_to_replay,
    replay_sentences,
    report_of,
    to_markdown,
    with_replay,
)
from airflow_streamstate.protocol.scratch import (
    Rehearsal,
    RehearsedQuery,
    ReplayedBatch,
    RowComparison,
    ScratchRun,
    ScratchVerdict,
)
from airflow_streamstate.protocol.terms.order import RehearsalTerms

AT = datetime(2026, 3, 1, 10, tzinfo=timezone.utc)
ACCEPTED = RehearsedQuery("accepted", "restored", 0.5)
DRAIN = compared([difference("aggregate-added", "Aggregate", "Sum(v) is computed now")])
ADDED = compared([difference("query-added", "", "more was not there")])
RENAMED = compared([difference("variable-added", "X", "a variable more")])


def report(
    queries: dict[str, Comparison], rehearsed: dict[str, RehearsedQuery] | None = None, **facts: Any
) -> PlanReport:
    """Of a rehearsal in which each query was accepted, unless the caller sets it otherwise."""
    asked = {name: facts.pop(name) for name in ("terms", "allow_new_queries") if name in facts}
    run = ScratchRun(
        "orders",
        "r-0b8e3c525f0e-0001",
        "d-0003",
        Rehearsal(**asked),
        AT,
        AT + timedelta(seconds=300),
        "tests",
        "r",
        "0",
        "w",
    )  # fmt: skip
    found = dict.fromkeys(queries, ACCEPTED) if rehearsed is None else rehearsed
    verdict = ScratchVerdict("orders", "r-0b8e3c525f0e-0001", "done", found, "", 9.0, "driver", AT, "w")
    comparison = DeploymentComparison(gravest(each.verdict for each in queries.values()), queries)
    return report_of(run, replace(verdict, **facts), comparison)


@pytest.mark.parametrize(
    ("comparison", "verdict", "outcome"),
    [
        (Comparison(), "same", "fits"),
        (RENAMED, "state-compatible", "fits"),
        (DRAIN, "needs-drain", "refused"),
        (ADDED, "hazardous", "refused"),
    ],
)
def test_what_keeps_the_state_and_its_meaning_fits(comparison: Comparison, verdict: str, outcome: str) -> None:
    """The gravest query decides; the reason names it."""
    found = report({"counts": comparison, "raw": Comparison()})
    assert (found.verdict, found.outcome, found.rehearsal_ok) == (verdict, outcome, True)
    assert (found.reason == "") is found.fits is (found.as_error() is None)
    assert found.fits or found.reason.startswith(f"query counts is {verdict}: ")


def test_a_batch_that_fails_refuses_what_the_plans_let_through() -> None:
    """Spark decides in the end, and is quoted."""
    tried = {"counts": RehearsedQuery("failed", "restored", 0.5, "[SOME_CLASS] it says")}
    found = report({"counts": Comparison()}, tried)
    assert (found.verdict, found.outcome, found.rehearsal_ok) == ("same", "refused", False)
    assert found.reason == found.error == "query counts failed in Spark: [SOME_CLASS] it says"
    assert isinstance(found.as_error(), IncompatibleUpgradeError)


def test_without_a_rehearsal_the_plans_alone_decide() -> None:
    """``ok`` is null: nothing was tried."""
    found = report(
        {"counts": Comparison()},
        {"counts": RehearsedQuery("not_run", "restored")},
        terms=RehearsalTerms(rehearse=False),
    )
    assert (found.outcome, found.rehearsal_ok) == ("fits", None)


def test_a_script_without_a_query_does_not_fit() -> None:
    """It took none of the old ones away: nothing is concluded of them, and no drain is advised."""
    found = report({"counts": compared([difference("query-dropped", "", "gone")])}, {})
    assert (found.outcome, found.verdict, found.rehearsal_ok) == ("refused", None, False)
    assert "without having started a query" in found.reason
    assert found.queries == {}
    error = found.as_error()
    assert error is not None
    assert error.next_step == START_ONE
    assert START_ONE in to_markdown(found)
    assert "drain" not in to_markdown(found)


@pytest.mark.parametrize(("outcome", "error"), [("failed", DeploymentFailedError), ("deadline", DeadlineExceededError)])
def test_of_what_was_not_seen_to_its_end_nothing_is_concluded(outcome: str, error: type[Exception]) -> None:
    """A query that was not reached was not taken away; and one that was accepted is no verdict on the whole."""
    queries = {"counts": Comparison(), "raw": compared([difference("query-dropped", "", "gone")])}
    found = report(queries, {"counts": ACCEPTED}, outcome=outcome, error="it hangs", traceback="Traceback …")
    assert (found.outcome, found.verdict, list(found.queries), found.error) == (outcome, None, ["counts"], "it hangs")
    assert type(found.as_error()) is error


def test_a_stream_that_is_drained_already_needs_no_drain() -> None:
    """What a restore would mix is seeded; what a person has to decide is not decided by that."""
    seeded = {"counts": RehearsedQuery("accepted", "seeded", 0.5)}
    assert report({"counts": DRAIN}, seeded).verdict == "state-compatible"
    assert report({"counts": ADDED}, seeded).verdict == "hazardous"


def test_a_query_that_was_named_as_fresh_is_asked_for() -> None:
    """It is new, and the user named it."""
    started = {"more": RehearsedQuery("accepted", "fresh", 0.5)}
    assert report({"more": ADDED}, started, allow_new_queries=("more",)).outcome == "fits"
    assert report({"more": ADDED}, started, allow_new_queries=("other",)).outcome == "refused"


def test_the_json_has_what_scripts_rely_on() -> None:
    """At least these, with these names."""
    found = report({"counts": DRAIN}).to_json()
    assert {"verdict", "queries", "rehearsal", "outcome", "reason", "stream_id", "deployment_id"} <= set(found)
    (query,) = found["queries"].values()  # type: ignore[attr-defined]
    assert set(query["differences"][0]) == {"code", "verdict", "path", "reason", "remedy"}
    assert {"ok", "seconds", "error"} <= set(found["rehearsal"])  # type: ignore[call-overload]


def test_the_markdown_says_it_all_and_nothing_breaks_out_of_a_cell() -> None:
    """For a comment on a pull request."""
    code = next(iter(ADVICE))
    comparison = replace(DRAIN, advice=(advice(code, "", "it grows | without bound"),))
    tried = {"a|b": RehearsedQuery("failed", "restored", 0.5, "[X] <b>no</b> | pipe\nnext")}
    text = to_markdown(report({"a|b": comparison}, tried, notes=("a note",), traceback="T\n```\nx"))
    assert "### `orders`: the change does not fit (`needs-drain`)" in text
    assert "| `a\\|b` | needs-drain | failed in Spark, restored: [X] &lt;b>no&lt;/b> \\| pipe next |" in text
    assert "**aggregate-added** (needs-drain)" in text
    assert f"- *{code}* in `a\\|b`: it grows \\| without bound" in text
    assert "- a note" in text
    assert text.count("```") == 2
    nowhere = replace(DRAIN, differences=(replace(DRAIN.differences[0], path=""),))
    assert "in `counts`: " in to_markdown(report({"counts": nowhere}))


BAD = "batch 4 fails: KeyError: 'k'"
SAME = ReplayedBatch(3, 10, 2, 0.5, comparison=RowComparison(2, 0, 0))
RAN = ReplayedQuery("done", "", (SAME,))
BROKEN = ReplayedQuery("failed", BAD, (SAME, ReplayedBatch(4, error="KeyError: 'k'")))
GONE = ReplayedQuery("refused", "the rows are gone")
LATE = ReplayedQuery("deadline", "it was not over")


def replay(new: ReplayedQuery, old: ReplayedQuery = RAN, **facts: Any) -> ReplayedVersions:
    """Of a stream with the query ``counts``; ``facts`` are of the new version."""
    both = [
        ReplayReport("orders", "r-0b8e3c525f0e-0002", "d-0003", "/out", query.outcome, {"counts": query}, 1.0)
        for query in (old, new)
    ]
    return ReplayedVersions(both[0], replace(both[1], **facts))


@pytest.mark.parametrize(
    ("found", "outcome", "reason", "error"),
    [
        (replay(RAN), "fits", "", None),
        (replay(BROKEN), "refused", f"in the replay of query counts {BAD}", IncompatibleUpgradeError),
        (
            replay(BROKEN, BROKEN),
            "refused",
            f"in the replay of query counts {BAD}, as in the version that runs",
            IncompatibleUpgradeError,
        ),
        (replay(RAN, BROKEN), "fits", "", None),
        (
            replay(BROKEN, outcome="deadline", error="it was not over"),
            "refused",
            f"in the replay of query counts {BAD}",
            IncompatibleUpgradeError,
        ),
        (
            replay(LATE, outcome="deadline", error="it was not over"),
            "deadline",
            "the replay was not over in time: it was not over",
            DeadlineExceededError,
        ),
        (
            replay(ReplayedQuery("failed", "ImportError: no"), outcome="failed", error="ImportError: no"),
            "failed",
            "the new version failed in its replay: ImportError: no",
            DeploymentFailedError,
        ),
        (replay(GONE, GONE), "fits", "", None),
        (replay(GONE), "fits", "", None),
    ],
)
def test_what_fails_in_the_new_version_alone_decides(
    found: ReplayedVersions, outcome: str, reason: str, error: type[Exception] | None
) -> None:
    """Neither what the recorded version does, nor rows that are gone."""
    told = with_replay(report({"counts": Comparison()}), found)
    assert (told.outcome, told.reason) == (outcome, reason)
    assert json.loads(json.dumps(told.to_json()["replay"])) == told.to_json()["replay"]
    raised = told.as_error()
    assert raised is None if error is None else type(raised) is error
    assert raised is None or "replay" in str(raised) or error is IncompatibleUpgradeError


def test_rows_that_are_gone_are_told_and_no_changed_rows() -> None:
    """Where no batch ran in the new version nothing was compared."""
    told = with_replay(report({"counts": Comparison()}), replay(GONE, GONE))
    assert (told.replay, told.not_replayed) == (None, "query counts: the rows are gone")
    assert told.as_error(fails_on_changed_rows=True) is None


def test_changed_rows_are_an_error_only_where_that_is_asked_for() -> None:
    """And so are rows that could not be compared, as those of a batch that failed in the recorded version."""
    changed = replace(SAME, comparison=RowComparison(1, 1, 1))
    for batch in (changed, replace(SAME, comparison=None)):
        told = with_replay(report({"counts": Comparison()}), replay(replace(RAN, batches=(batch,))))
        assert told.as_error() is None
        error = told.as_error(fails_on_changed_rows=True)
        assert isinstance(error, IncompatibleUpgradeError)
        assert error.context["batches"] == ["3 of counts"]
        assert "the rows are others, or were not compared: batch 3 of counts" in replay_sentences(told)


def test_what_cannot_go_on_with_the_state_is_not_replayed() -> None:
    """Query by query: a new one, and one whose drain was made already."""
    seeded = {"counts": RehearsedQuery("accepted", "seeded", 0.5)}
    names, why_not = queries_to_replay(report({"counts": DRAIN}, seeded))
    assert (names, why_not) == ((), "no query of the new version continues with the state of the recorded one")
    assert queries_to_replay(report({"counts": Comparison()}, seeded)) == (("counts",), "")
    started = {"counts": ACCEPTED, "more": RehearsedQuery("accepted", "fresh", 0.5)}
    two = report({"counts": RENAMED, "more": ADDED}, started, allow_new_queries=("more",))
    assert queries_to_replay(two) == (("counts",), "")
