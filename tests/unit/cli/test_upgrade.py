"""``upgrade``, ``restart`` and ``rollback``, over drivers that run no Spark."""

from __future__ import annotations

import threading

import pytest

from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home, HomeConfig
from airflow_streamstate.protocol.terms.order import UpgradeTerms
from support.scripted_driver import script
from support.scripted_rehearsal import keep_plan
from support.scripted_stream import QUERY
from support.shell import Answer, Desk, shell

pytestmark = pytest.mark.fast

QUICK = ("--healthy-batches", 1, "--timeout", 60, "--no-warm")


def upgrade(desk: Desk, word: str, *words: object) -> Answer:
    """Upgrade to a version whose rehearsal behaves so."""
    return shell("upgrade", "flights", "--app", script(desk.base, word, name=f"{word}.py"), *QUICK, *words)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("needs-drain", "a drain was not allowed"),
        ("refused", "failed in Spark"),
        ("fails", "No module named 'rules'"),
        ("dies", "ended without a verdict"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_stops(running: Desk, word: str, reason: str) -> None:
    """Exit status 4, and the stream runs on as if nothing had been asked."""
    answer = upgrade(running, word, "--json")
    assert answer.status == 4
    assert (answer.json["outcome"], answer.json["new_deployment_id"]) == ("refused", None)
    assert reason in answer.json["reason"]
    control = running.stream().control
    assert control.deployment_ids() == ["d-0001"]
    assert control.need_register().value.upgrade_id is None
    assert shell("status", "flights", "--json").json["state"] == "running"


def test_a_person_reads_the_steps_and_the_reason(running: Desk) -> None:
    """The steps on stderr as they are taken, the end on stdout."""
    answer = upgrade(running, "needs-drain")
    assert "begun: it is recorded" in answer.err
    assert "rehearsing: the new version is rehearsed" in answer.err
    assert "refused; the stream runs on as before" in answer.out
    assert "aggregate-added (needs-drain)" in answer.out
    assert answer.out.splitlines()[1].startswith("-> ")


def test_the_error_of_a_script_is_told_once(running: Desk) -> None:
    """In the end, with where to read the whole of it; not as a step before."""
    answer = upgrade(running, "fails")
    assert answer.status == 4
    assert (answer.out + answer.err).count("No module named 'rules'") == 1
    assert "it failed in its rehearsal: " in answer.out
    assert "-> Fix it, and upgrade again; `streamstate plan flights`" in answer.out


def test_a_plan_waits_for_a_person_who_says_no(running: Desk) -> None:
    """Exit status 3 without an answer: it stays under way, and moves nothing."""
    waiting = upgrade(running, "fits", "--needs-approval", "--timeout", 5, "--json")
    assert waiting.status == 3
    assert "`streamstate continue flights`" in waiting.error["next_step"]
    upgrade_id = UpgradeJournal(running.stream().control).ids()[0]
    (called,) = waiting.err.splitlines()
    assert called.startswith(f"flights {upgrade_id}: a person has to approve the plan: streamstate approve flights, ")
    other = upgrade(running, "fits", "--request-id", "another", "--json")
    assert other.status == 4
    assert other.error["context"]["upgrade_id"] == upgrade_id
    told = shell("stop", "flights", "--json", "--async")
    assert told.status == 4
    assert told.error["message"] == "an upgrade of this stream is under way"
    answer = shell("reject", "flights", "--reason", "not tonight", "--json")
    assert (answer.status, answer.json["outcome"]) == (0, "refused")  # the rejection was carried out
    assert "not tonight" in answer.json["reason"]
    assert shell("continue", "flights", "--json").status == 2


def test_a_cancelled_upgrade_has_done_nothing(running: Desk) -> None:
    """Before the stop; the cancellation succeeded."""
    assert upgrade(running, "fits", "--needs-approval", "--timeout", 5, "--json").status == 3
    answer = shell("cancel", "flights", "--json")
    assert (answer.status, answer.json["outcome"]) == (0, "refused")
    assert "the stream was not touched" in answer.json["reason"]
    assert answer.json["cancelled_by"]
    assert running.stream().control.deployment_ids() == ["d-0001"]


def test_a_factor_is_recorded_as_it_was_asked_for(running: Desk) -> None:
    """For the process that continues the upgrade."""
    upgrade(running, "needs-drain", "--roll-back-if-slower", 2.5, "--json")
    journal = UpgradeJournal(running.stream().control)
    recorded = journal.upgrade(journal.ids()[0])
    assert recorded is not None
    assert recorded.upgrade_terms == UpgradeTerms(warm=False, healthy_batches=1, roll_back_if_slower=2.5)


@pytest.mark.parametrize(
    "words",
    [
        ("--async",),
        ("--healthy-deadline", "0"),
        ("--mode", "restore", "--allow-drain"),
        ("--healthy-batches", "0"),
        ("--roll-back-if-slower", "1"),
        ("--roll-back-if-slower", "nan"),
        ("--undo-command", "python 'undo"),
    ],
)
def test_wrong_words_are_one_sentence(running: Desk, words: tuple[str, ...]) -> None:
    """Exit status 2, and nothing is recorded."""
    answer = shell("upgrade", "flights", *words, "--json")
    assert answer.status == 2
    assert "Traceback" not in answer.err
    assert UpgradeJournal(running.stream().control).ids() == []


def test_a_first_deployment_has_nothing_to_go_back_to(running: Desk) -> None:
    """Reported in one sentence, exit status 2."""
    answer = shell("rollback", "flights", "--json")
    assert (answer.status, answer.error["type"]) == (2, "InvalidRequestError")
    assert "no version to go back to" in answer.error["message"]


def test_a_way_back_without_duplicates_has_none_to_accept(running: Desk) -> None:
    """Options that contradict each other."""
    answer = shell("rollback", "flights", "--strategy", "forward", "--accept-duplicates", "--json")
    assert answer.status == 2
    assert "no duplicates" in answer.error["message"]


def test_restart_needs_no_change(desk: Desk) -> None:
    """It is an upgrade to what runs: pinned as it was (Law 15), its state handed over. (What proves itself here commits
    no batch past the handover, so it is not over in time.)"""
    assert shell("deploy", "flights", "--app", script(desk.base, "runs"), "--timeout", 60).status == 0
    keep_plan(desk.stream().control, "d-0001", QUERY)
    answer = shell("restart", "flights", "--no-warm", "--timeout", 15, "--json")
    journal = UpgradeJournal(desk.stream().control)
    (upgrade_id,) = journal.ids()
    recorded = journal.upgrade(upgrade_id)
    assert recorded is not None
    assert (recorded.terms.mode, recorded.old_deployment_id) == ("restore", "d-0001")
    wanted, before = recorded.target, desk.stream().control.spec("d-0001").version
    assert (wanted.application, wanted.arguments, wanted.conf) == (before.application, before.arguments, before.conf)
    assert answer.status == 3
    state = journal.need_state(upgrade_id)
    assert (state.phase, state.mode, state.new_deployment_id) == ("started", "restore", "d-0002")


def test_a_stream_that_never_was_is_told(desk: Desk) -> None:
    """It can be neither restarted, nor upgraded, nor rolled back."""
    desk.stream()
    Home(HomeConfig(str(desk.home))).begin("tests")
    for verb in ("restart", "upgrade", "rollback"):
        answer = shell(verb, "nowhere", "--json")
        assert (answer.status, answer.error["type"]) == (2, "StreamNotFoundError")


def test_a_no_to_what_asks_nobody_is_refused(running: Desk) -> None:
    """It would have no effect; the upgrade stays as it was."""
    journal = UpgradeJournal(running.stream().control)
    assert upgrade(running, "hangs", "--timeout", 2, "--json").status == 3
    (upgrade_id,) = journal.ids()
    answer = shell("reject", "flights", "--json")
    assert (answer.status, answer.error["type"]) == (2, "InvalidRequestError")
    assert "`streamstate cancel flights`" in answer.error["next_step"]
    assert journal.approval(upgrade_id) is None
    assert shell("cancel", "flights", "--json").json["outcome"] == "refused"


def test_a_second_upgrade_waits_for_the_first_if_it_is_told_to(running: Desk) -> None:
    """Nothing is recorded of it before: exit status 3 where the first is not over in time; else its own end."""
    assert upgrade(running, "fits", "--needs-approval", "--timeout", 3, "--json").status == 3
    journal = UpgradeJournal(running.stream().control)
    (first,) = journal.ids()
    late = shell("upgrade", "flights", "--if-busy", "wait", "--timeout", 0.3, "--json")
    assert (late.status, late.error["context"]["held_by"]) == (3, first)
    assert shell("rollback", "flights", "--json").status == 4
    assert shell("rollback", "flights", "--if-busy", "wait", "--timeout", 0.3, "--json").status in (2, 3)
    assert journal.ids() == [first]
    upgrades = Controller.local(Home(HomeConfig(home_uri=str(running.home)))).upgrades

    def end_first() -> None:
        upgrades.cancel("flights", first, after_stop="rollback")
        upgrades.run("flights", first, 30)

    ending = threading.Timer(1.0, end_first)
    ending.start()
    wanted = ("--if-busy", "wait", "--request-id", "second", "--json")
    answer = upgrade(running, "needs-drain", *wanted)
    ending.join(timeout=30)
    assert (answer.status, answer.json["outcome"]) == (4, "refused")
    assert answer.json["upgrade_id"] != first
    assert "a drain was not allowed" in answer.json["reason"]
    again = upgrade(running, "needs-drain", *wanted)
    assert again.json["upgrade_id"] == answer.json["upgrade_id"]
