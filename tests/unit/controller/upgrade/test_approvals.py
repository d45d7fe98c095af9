"""Who may approve an upgrade: with ``approved_by_another`` not the person who has asked for it."""

from __future__ import annotations

import pytest

from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from airflow_streamstate.controller.upgrade.upgrades import Upgrades
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.ids import is_same_person, means_of, person_of, requester
from airflow_streamstate.protocol.upgrades import Approval
from support.upgrade_stage import STREAM, UpgradeStage


def upgrades_of(upgraded: UpgradeStage, by: str) -> Upgrades:
    """The verbs in the name of somebody."""
    return upgraded.stage.another_controller(by).upgrades


def planned(upgraded: UpgradeStage, by: str) -> str:
    """An upgrade whose plan waits for another person; gives the id."""
    view = upgrades_of(upgraded, by).begin(upgraded.request(approved_by_another=True), "up-1")
    view = upgraded.rehearsed(upgraded.advance(view))
    assert (view.state.phase, view.waits_for) == ("planned", "a person has to approve the plan")
    return view.upgrade_id


@pytest.mark.parametrize(
    ("asks", "approves", "word"),
    [
        ("ada (shell)", "ada (shell)", "ada has asked for this upgrade"),
        ("ada (airflow ship.upgrade manual__1)", "Ada (airflow streamstate_answer_upgrade.answer x)", "Ada has asked"),
        ("ada (shell)", "airflow streamstate_answer_upgrade.answer scheduled__1", "no person is known"),
        ("airflow ship.upgrade scheduled__1", "airflow ship.approve scheduled__1", "no person is known"),
    ],
)
def test_who_asked_may_not_approve(upgraded: UpgradeStage, asks: str, approves: str, word: str) -> None:
    """Nor may a run that nobody has triggered; nothing is recorded, so that another person still can."""
    upgrade_id = planned(upgraded, asks)
    with pytest.raises(InvalidRequestError, match=word) as error:
        upgrades_of(upgraded, approves).approve(STREAM, upgrade_id, is_approved=True)
    assert "Another person" in str(error.value.next_step)
    assert UpgradeJournal(upgraded.stage.control).approval(upgrade_id) is None
    upgrades_of(upgraded, "bob (shell)").approve(STREAM, upgrade_id, is_approved=True)
    assert upgraded.upgrades.advance(STREAM, upgrade_id).state.phase == "stopping"


def test_anybody_may_reject(upgraded: UpgradeStage) -> None:
    """The one who has asked, too: the stream runs on."""
    upgrade_id = planned(upgraded, "ada (shell)")
    upgrades_of(upgraded, "ada (shell)").approve(STREAM, upgrade_id, is_approved=False)
    assert upgraded.upgrades.advance(STREAM, upgrade_id).outcome == "refused"


def test_of_an_upgrade_that_nobody_has_asked_for_any_person_approves(upgraded: UpgradeStage) -> None:
    """One of a scheduled run."""
    upgrade_id = planned(upgraded, "airflow ship.upgrade scheduled__1")
    upgrades_of(upgraded, "ada (shell)").approve(STREAM, upgrade_id, is_approved=True)
    assert upgraded.upgrades.advance(STREAM, upgrade_id).state.phase == "stopping"


def test_an_approval_that_was_written_past_the_verb_is_refused(upgraded: UpgradeStage) -> None:
    """The upgrade looks at the record itself, and nothing is stopped."""
    upgrade_id = planned(upgraded, "ada (shell)")
    moment = upgraded.stage.clock.now()
    approval = Approval(STREAM, upgrade_id, is_approved=True, given_by="ada (shell)", given_at=moment, write_id="w")
    UpgradeJournal(upgraded.stage.control).approve(approval)
    view = upgraded.upgrades.advance(STREAM, upgrade_id)
    assert view.outcome == "refused"
    assert view.state.text == "ada has asked for this upgrade, and another person has to approve it"
    assert "stopping" not in upgraded.phases(view)


@pytest.mark.parametrize("person", ["ada", "ada (of sales)", "ada) (shell", "ada\n(x)", "é ü"])
@pytest.mark.parametrize("means", ["shell", "airflow a.b manual__1 (x)", "airflow a.b c)"])
def test_the_person_of_a_record_is_the_one_that_was_written(person: str, means: str) -> None:
    """Whatever signs are in a user's name or in the id of a run: neither can name another person."""
    assert is_same_person(person_of(requester(person, means)), " ".join(person.split()))
    assert person_of(requester("", means)) == person_of(requester(None, means)) == ""
    assert means_of(requester("ada", "airflow a.b c")) == means_of(requester("", "airflow a.b c")) == "airflow a.b c"
