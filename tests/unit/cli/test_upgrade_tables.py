"""An upgrade as shown to people."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from airflow_streamstate.cli import upgrade
from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView
from airflow_streamstate.protocol.upgrades import OVER, Phase, Upgrade
from support.asked_upgrades import of_kind
from support.examples import example
from support.shell import printed
from support.upgrade_steps import state_with

UPGRADE = example(Upgrade)
assert isinstance(UPGRADE, Upgrade)


def view(phase: Phase, asked: str = "upgrade", **facts: Any) -> UpgradeView:
    """An upgrade whose last step is this."""
    return UpgradeView(state_with(of_kind(UPGRADE, asked), phase, **facts))


def test_what_begins_is_named() -> None:
    """Of what, or to what."""
    assert printed(upgrade.begun, view("begun")) == "orders u-0b8e3c525f0e: upgrade of d-0003\n"
    assert printed(upgrade.begun, view("begun", "rollback")) == (
        "orders u-0b8e3c525f0e: rollback to the version of d-0003\n"
    )
    assert printed(upgrade.step, "stopping: [red]") == "  stopping: [red]\n"  # never taken for markup


@pytest.mark.parametrize("phase", sorted(OVER))
def test_every_end_has_its_words(phase: Phase) -> None:
    """And what is not known is left out."""
    text = printed(upgrade.ended, view(phase))
    assert text.startswith("orders u-0b8e3c525f0e: ")
    assert "None" not in text


def test_a_version_that_was_given_up_leaves_its_batches_named() -> None:
    """With the rollback, what it cost, the audit and the reason."""
    report = {"queries": {"raw": {"differences": [{"code": "c-1", "verdict": "needs-drain", "reason": "a window"}]}}}
    text = printed(
        partial(upgrade.ended, verbose=True),
        view(
            "rolled_back", text="it falls behind", way="forward", bad_batches={"raw": (4, 6)},
            begun_batches={"raw": 7, "new": 0}, not_running_seconds=1.5,
            audit_ok=False, new_deployment_id="d-0004", returned_deployment_id="d-0005", report=report,
        ),
    )  # fmt: skip
    for words in (
        "abandoned; the old version is back", "it falls behind", "from: d-0003", "to: d-0004", "back in: d-0005",
        "rollback: forward",
        "no query ran: for 1.5 s", "lineage: broken", "raw: c-1 (needs-drain): a window",
        "of query raw, batches 4 to 6 are the abandoned version's; batch 7 was started by it and run again by d-0005",
        "of query new, batch 0 was started by it and run again by d-0005",
        "-> `streamstate logs orders --deployment d-0004` shows why.",
    ):  # fmt: skip
        assert words in text


def test_a_version_that_is_kept_though_it_is_slower_is_said_so() -> None:
    """In addition to the fact that it is upgraded."""
    text = printed(upgrade.ended, view("upgraded", new_deployment_id="d-0004", warnings=("it reads [half]",)))
    assert "upgraded" in text
    assert "  warning: it reads [half]\n" in text


def test_a_rollback_goes_from_what_is_current_to_what_was_before() -> None:
    """And names the deployment in which that runs; the sinks that were undone hold none of the batches any more."""
    text = printed(
        upgrade.ended,
        view(
            "rolled_back", "rollback", new_deployment_id="d-0004", returned_deployment_id="d-0005", way="undo",
            bad_batches={"raw": (4, 4)}, begun_batches={"raw": 5}, audit_ok=True,
        ),
    )  # fmt: skip
    assert "from: d-0004\n  to: the version of d-0003\n  runs in: d-0005" in text
    assert "of query raw, batch 4 is the abandoned version's, and gone back behind; batch 5 was started by it" in text
    assert "run again" not in text
    assert "lineage: whole" in text
    assert "->" not in text  # it is what was asked


def test_a_rollback_that_failed_is_no_occasion_for_praise() -> None:
    """The chain is complete because nothing was touched; that it is broken is always reported."""
    assert "lineage" not in printed(upgrade.ended, view("failed", "rollback", audit_ok=True))
    assert "lineage: broken" in printed(upgrade.ended, view("failed", "rollback", audit_ok=False))


@pytest.mark.parametrize("phase", ["refused", "rolled_back"])
def test_a_cancel_that_works_is_no_refusal(phase: Phase) -> None:
    """After a cancellation there is no next step; for the requester of the upgrade there is one."""
    found = view(phase, text="cancelled by ada", cancelled_by="ada")
    mine = printed(upgrade.ended, found, "rollback")
    assert "u-0b8e3c525f0e: cancelled; " in mine
    assert "->" not in mine
    assert "\n-> " in printed(upgrade.ended, found)


def test_a_cancel_that_came_too_late_is_told() -> None:
    """With what goes back all the same."""
    text = printed(upgrade.ended, view("upgraded"), "rollback")
    assert "-> It was over before it could be cancelled; `streamstate rollback orders` goes back." in text
    assert "->" not in printed(upgrade.ended, view("upgraded"), "finish")
