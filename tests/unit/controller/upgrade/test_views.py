"""What the verbs of upgrades answer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, get_args

import pytest

from airflow_streamstate.control.upgrade_journal import state_of
from airflow_streamstate.controller.upgrade.upgrade_views import WORDS, Telling, UpgradeView
from airflow_streamstate.errors import ConflictError, DeploymentFailedError, IncompatibleUpgradeError
from airflow_streamstate.plan.codes import SPARK_REFUSES, WITH_ROWS, Difference, difference
from airflow_streamstate.protocol.upgrades import OVER, AfterStop, Phase, Upgrade, UpgradeStep
from support.asked_upgrades import of_kind, with_terms
from support.examples import AT, example
from support.upgrade_steps import state_with

UPGRADE = example(Upgrade)
assert isinstance(UPGRADE, Upgrade)


def view(phase: Phase, *, asked: str = "upgrade", **facts: Any) -> UpgradeView:
    """An upgrade whose last step is this."""
    return UpgradeView(state_with(of_kind(UPGRADE, asked), phase, **facts))


def test_every_phase_has_its_words() -> None:
    """For the log of a task, and for the shell."""
    assert set(WORDS) == set(get_args(Phase))


@pytest.mark.parametrize("phase", sorted(set(get_args(Phase)) - OVER))
def test_what_is_under_way_has_no_outcome_and_no_error(phase: Phase) -> None:
    """No caller fails before its end."""
    found = view(phase)
    assert (found.outcome, found.is_over, found.as_error()) == (None, False, None)


@pytest.mark.parametrize(
    ("phase", "asked", "facts", "error"),
    [
        ("upgraded", "upgrade", {}, None),
        ("rolled_back", "rollback", {}, None),
        ("rolled_back", "upgrade", {"verdict": "same", "mode": "restore"}, DeploymentFailedError),
        ("failed", "upgrade", {}, DeploymentFailedError),
        ("failed", "rollback", {}, DeploymentFailedError),
        ("refused", "upgrade", {"verdict": "needs-drain"}, IncompatibleUpgradeError),
        ("refused", "upgrade", {"verdict": "hazardous"}, IncompatibleUpgradeError),
        ("refused", "upgrade", {}, ConflictError),
        ("refused", "upgrade", {"verdict": "same"}, ConflictError),
        ("refused", "upgrade", {"verdict": "state-compatible", "mode": "restore"}, ConflictError),  # cancelled
        ("refused", "upgrade", {"verdict": "needs-drain", "mode": "drain"}, ConflictError),  # not approved
        ("refused", "rollback", {}, ConflictError),
    ],
)
def test_what_was_not_asked_for_is_an_error_of_its_kind(
    phase: Phase, asked: str, facts: dict[str, Any], error: type[Exception] | None
) -> None:
    """A plan that does not fit is an IncompatibleUpgradeError; a person's decision is a ConflictError."""
    found = view(phase, asked=asked, text="the reason", **facts).as_error()
    assert type(found) is (error or type(None))
    if found is not None:
        assert "the reason" in str(found)


def test_the_remedies_of_the_plan_are_what_to_do_next() -> None:
    """Each once."""
    report = {"queries": {"q": {"differences": [{"code": "c", "remedy": "Drain it."}] * 2}}}
    found = view("refused", verdict="needs-drain", report=report)
    assert str(found.as_error()).count("Drain it.") == 1
    assert found.to_json()["differences"] == [{"query": "q", "code": "c", "remedy": "Drain it."}] * 2


def test_the_answer_names_all_that_is_promised() -> None:
    """Keys that scripts read."""
    batches: dict[str, Any] = {"bad_batches": {"q": (4, 5)}, "begun_batches": {"q": 6}}
    told = view(
        "rolled_back", way="forward", not_running_seconds=1.5, audit_ok=True, cancelled_by="ada", **batches
    ).to_json()
    assert (told["bad_batches"], told["begun_batches"]) == ({"q": [4, 5]}, {"q": 6})
    assert set(told) == {
        "upgrade_id", "stream_id", "phase", "outcome", "mode", "old_deployment_id", "new_deployment_id",
        "returned_deployment_id", "way", "bad_batches", "begun_batches", "downtime_seconds", "downtime_by_query",
        "downtimes", "not_running_seconds", "verdict", "differences", "audit_ok", "cancelled_by", "reason", "driver",
        "warnings", "waits_for",
    }  # fmt: skip
    assert (told["outcome"], told["way"], told["audit_ok"], told["warnings"]) == ("given_up", "forward", True, [])
    assert view("upgraded", warnings=("it falls behind",)).to_json()["warnings"] == ["it falls behind"]
    assert told["not_running_seconds"] == 1.5


@pytest.mark.parametrize(
    ("phase", "asked", "after_stop", "is_wanted"),
    [
        ("refused", "upgrade", "rollback", True),
        ("refused", "rollback", "finish", True),
        ("rolled_back", "upgrade", "rollback", True),
        ("rolled_back", "upgrade", "finish", False),
        ("rolled_back", "rollback", "finish", True),
        ("rolled_back", "rollback", "rollback", True),
        ("upgraded", "upgrade", "finish", True),
        ("upgraded", "upgrade", "rollback", False),  # it had ended before
        ("failed", "upgrade", "rollback", False),
        ("stopping", "upgrade", "rollback", False),
        ("stopping", "upgrade", "finish", False),
    ],
)
def test_a_cancellation_ends_as_it_asked(phase: Phase, asked: str, after_stop: AfterStop, is_wanted: bool) -> None:
    """Refused, or as ``after_stop`` sets; any other end is an error."""
    assert view(phase, asked=asked).is_end_of_cancel(after_stop) is is_wanted


@pytest.mark.parametrize(
    ("phase", "facts", "words"),
    [
        ("refused", {"text": "cancelled by ada", "cancelled_by": "ada"}, "the upgrade was cancelled"),
        ("rolled_back", {"text": "cancelled by ada", "cancelled_by": "ada"}, "the upgrade was cancelled"),
        ("refused", {"asked": "upgrade"}, "request the upgrade again"),
        ("refused", {"asked": "rollback"}, "request the rollback again"),
        ("refused", {"report": {"outcome": "failed", "queries": {}}}, "`streamstate plan orders`"),
    ],
)
def test_an_error_says_what_ended_it_and_what_to_do(phase: Phase, facts: dict[str, Any], words: str) -> None:
    """A cancelled one is not called unhealthy, and a rollback is no upgrade."""
    told = str(view(phase, **facts).as_error())
    assert words in told
    assert "healthy" not in told


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("running", "the stream runs on as before"),
        ("draining", "the stream runs on as before"),
        ("failed", "the stream is failed as before"),
        ("stopped", "the stream is stopped as before"),
        (None, "nothing was changed"),
    ],
)
@pytest.mark.parametrize("facts", [{}, {"cancelled_by": "ada"}])
def test_a_refusal_says_that_a_stream_runs_on_only_where_it_runs(
    state: str | None, words: str, facts: dict[str, Any]
) -> None:
    """In the error and in the report of the step."""
    found = view("refused", stream_state=state, **facts)
    assert f", and {words}." in str(found.as_error())
    lines: list[str] = []
    Telling(lines.append)(found.state)
    assert lines[0].endswith(f": {words}")


SPARK_REFUSED = (
    "query q failed in Spark: [STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match"
)


@pytest.mark.parametrize(
    ("differences", "rehearsal", "words"),
    [
        ([], {"outcome": "failed", "error": SPARK_REFUSED}, SPARK_REFUSES),
        ([difference("trigger-changed", "", "x")], {"outcome": "failed", "error": SPARK_REFUSED}, SPARK_REFUSES),
        ([], {"outcome": "failed", "error": "ValueError: x", "fails_with_rows": True}, WITH_ROWS),
        ([], {"outcome": "failed", "error": "ValueError: x"}, "Fix what the reason names"),
    ],
)
def test_what_spark_refuses_has_a_remedy(differences: list[Difference], rehearsal: dict[str, Any], words: str) -> None:
    """Also where the plans fit: a drain or a migration, and not where rows alone make it fail."""
    query = {"differences": [asdict(each) for each in differences], "rehearsal": rehearsal}
    found = view("refused", report={"outcome": "refused", "queries": {"q": query}})
    assert words in str(found.as_error())


def told_of(*steps: tuple[Phase, str], tells_end: bool = True, asked: str = "upgrade", **terms: Any) -> list[str]:
    """What is reported of these steps, one after the other."""
    lines: list[str] = []
    telling = Telling(lines.append, tells_end=tells_end)
    upgrade = of_kind(UPGRADE, asked)
    upgrade = with_terms(upgrade, **terms) if terms else upgrade
    for number, (phase, text) in enumerate(steps, 1):
        telling(state_of(upgrade, [UpgradeStep("orders", UPGRADE.upgrade_id, number, phase, AT, "t", "w", text)]))
    return lines


def test_a_phase_is_told_once_though_it_is_several_steps() -> None:
    """One for the phase, one for the order that is given in it; with news it is reported again."""
    lines = told_of(("stopping", ""), ("stopping", ""), ("started", ""), ("started", ""), ("returned", "it died"))
    assert [line.partition(":")[0] for line in lines] == ["stopping", "started", "returned"]


def test_an_error_is_told_whole_at_the_end_and_nowhere_else() -> None:
    """What it is while it continues, what it reported at the end."""
    why = f"it is failed: ValueError: {'boom ' * 100}"
    lines = told_of(("unhealthy", why), ("returning", "not forward: the schema"), ("rolled_back", why))
    assert lines == [
        "unhealthy: the new version is abandoned: it is failed",
        "returning: the new version ends: not forward",
        "rolled_back: the old version is back",
    ]
    assert len(told_of(("unhealthy", "so " * 400))[0]) < 200
    assert told_of(("stopping", ""), ("failed", why), tells_end=False) == [
        "stopping: the old version ends after its batch in flight"
    ]


def test_the_current_version_of_a_rollback_is_not_called_new_or_unhealthy() -> None:
    """It may be healthy: a person asked for the rollback."""
    steps: list[tuple[Phase, str]] = [("unhealthy", "too slow"), ("trying", ""), ("returning", ""), ("returned", "")]
    assert told_of(*steps, asked="rollback") == [
        "going back: the rollback is decided: too slow",
        "trying: the code of the version before is rehearsed on the current state",
        "returning: the current version ends",
        "returned: the version before runs again",
    ]


def test_what_is_not_rehearsed_is_not_called_so() -> None:
    """With ``--no-rehearsal`` plans alone are compared."""
    assert told_of(("rehearsing", "")) == ["rehearsing: the new version is rehearsed on a fork of the state"]
    (line,) = told_of(("rehearsing", ""), rehearse=False)
    assert "rehearsed" not in line
