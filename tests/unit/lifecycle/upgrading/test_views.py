"""What the verbs of upgrades answer."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from airflow_streamstate.control.upgrades import state_of
from airflow_streamstate.errors import ConflictError, DeploymentFailedError, IncompatibleUpgradeError
from airflow_streamstate.lifecycle.upgrading.views import WORDS, UpgradeView
from airflow_streamstate.protocol.upgrades import OVER, Phase, Upgrade, UpgradeStep
from support.examples import AT, example

UPGRADE = example(Upgrade)
assert isinstance(UPGRADE, Upgrade)


def view(phase: Phase, *, asked: str = "upgrade", **facts: Any) -> UpgradeView:
    """An upgrade whose last step is this."""
    step = UpgradeStep("orders", UPGRADE.upgrade_id, 1, phase, AT, "tests", "w-1", **facts)
    upgrade = Upgrade(**{**vars(UPGRADE), "asked": asked})
    return UpgradeView(state_of(upgrade, [step]))


def test_every_phase_has_its_words() -> None:
    """For the log of a task, and for the shell."""
    assert set(WORDS) == set(get_args(Phase))


@pytest.mark.parametrize("phase", sorted(set(get_args(Phase)) - OVER))
def test_what_is_under_way_has_no_outcome_and_no_error(phase: Phase) -> None:
    """Nobody fails on what may still come."""
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
    """A plan that does not fit is mended; what somebody said is looked at again."""
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
    told = view("rolled_back", way="forward", bad_batches={"q": (4, 5)}, gap_seconds=1.5, audit_ok=True).to_json()
    assert told["bad_batches"] == {"q": [4, 5]}
    assert {"upgrade_id", "outcome", "mode", "old_deployment_id", "new_deployment_id", "gap_seconds", "verdict",
            "differences", "way", "returned_deployment_id", "audit_ok", "reason"} <= set(told)  # fmt: skip
    assert (told["outcome"], told["way"], told["audit_ok"]) == ("rolled_back", "forward", True)
