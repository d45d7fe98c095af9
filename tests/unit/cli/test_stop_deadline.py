"""``stop --deadline``: its answers and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import scripted_driver
from support.shell import Desk, obeying, shell


def deaf(desk: Desk) -> None:
    """``flights`` runs in a driver of this machine that reads no order."""
    app = scripted_driver.script(desk.base, "runs", "deaf")
    assert shell("deploy", "flights", "--app", app, "--timeout", 30, "--json").status == 0


def commands(desk: Desk) -> list[Path]:
    """The orders in the home."""
    return list((desk.home / "flights" / "deployments" / "d-0001" / "commands").glob("*.json"))


def test_a_stop_in_time_is_told_as_any_other(desk: Desk) -> None:
    """The same fields, and no batch that was cut."""
    running = desk.stream().deploy().runs()
    with obeying(running):
        answer = shell("stop", "flights", "--deadline", 30, "--json")
    assert answer.status == 0, answer
    waited = shell("stop", "flights", "--timeout", 5, "--json").json
    assert {**answer.json, "command_id": ""} == {**waited, "command_id": "", "cut_batches": {}}
    assert (answer.json["outcome"], answer.json["snapshot_id"]) == ("stopped", "d-0001-stopped-000001")


def test_a_deadline_that_passes_withdraws_the_order(desk: Desk) -> None:
    """Exit status 3, with the facts; nothing is left that could be obeyed later (Law 6)."""
    desk.stream().deploy().runs()
    for words in ((), ("--on-deadline", "fail")):
        answer = shell("stop", "flights", "--deadline", 0.3, *words, "--json")
        assert (answer.status, answer.error["type"]) == (3, "DeadlineExceededError")
        assert (answer.error["context"]["order"], answer.error["context"]["state"]) == ("withdrawn", "running")
        assert commands(desk) == []
    human = shell("stop", "flights", "--deadline", 0.3)
    assert "the order is withdrawn, and the stream runs on" in human.err
    assert human.out == ""


def test_a_driver_that_reads_no_order_is_ended_and_its_end_kept(desk: Desk) -> None:
    """Exit status 0: the end is in a snapshot, from which the next version starts; twice is once (Law 2; 1a.8)."""
    deaf(desk)
    first, second = (shell("stop", "flights", "--deadline", 0.3, "--on-deadline", "kill", "--json") for _ in range(2))
    assert (first.status, second.status) == (0, 0), (first, second)
    assert (first.json["outcome"], first.json["state"], first.json["kind"]) == ("killed", "failed", "stopped")
    assert first.json["snapshot_id"] == second.json["snapshot_id"] == "d-0001-stopped-000001"
    assert first.json["cut_batches"] == {}
    assert (first.err, second.json["outcome"]) == ("", "killed")
    human = shell("stop", "flights", "--deadline", 0.3, "--on-deadline", "kill").out
    assert "the driver had not stopped by the deadline and was ended" in human
    assert "snapshot d-0001-stopped-000001 (stopped," in human
    app = scripted_driver.script(desk.base, "runs", name="v2.py")
    deployed = shell("deploy", "flights", "--app", app, "--timeout", 30, "--json")
    assert deployed.json["deployment_id"] == "d-0002", deployed


def test_a_driver_of_elsewhere_is_refused_and_the_order_stands(desk: Desk) -> None:
    """Exit status 4: this machine does not know where it runs (1a.8)."""
    desk.stream().deploy().runs()
    answer = shell("stop", "flights", "--deadline", 0.3, "--on-deadline", "kill", "--json")
    assert (answer.status, answer.error["type"]) == (4, "ConflictError")
    assert (
        "the driver has not stopped by the deadline, and this driver cannot be ended from here"
        in answer.error["message"]
    )
    assert answer.error["context"]["order"] == "stands"
    assert len(commands(desk)) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--deadline", 5, "--timeout", 5), "--deadline waits by itself: leave out --timeout and --async."),
        (("--deadline", 5, "--async"), "--deadline waits by itself: leave out --timeout and --async."),
        (("--deadline", 5, "--expires-in", 5), "--deadline withdraws an order"),
        (("--deadline", 5, "--on-deadline", "hope"), "'hope' is not one of 'fail', 'kill'"),
        (("--deadline", 0), "'0' is not a number of seconds"),
        (("--deadline", "nan"), "'nan' is not a number of seconds"),
        (("--deadline", "soon"), "'soon' is not a number of seconds"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_ordered(
    desk: Desk, words: tuple[object, ...], sentence: str
) -> None:
    """Exit status 2, with one sentence."""
    desk.stream().deploy().runs()
    answer = shell("stop", "flights", *words, "--json")
    assert (answer.status, answer.error["type"]) == (2, "UsageError")
    assert sentence in answer.error["message"]
    assert "\n" not in answer.error["message"]
    assert commands(desk) == []


def test_an_action_at_no_deadline_is_refused(desk: Desk) -> None:
    """One sentence, status 2, nothing ordered."""
    desk.stream().deploy().runs()
    answer = shell("stop", "flights", "--on-deadline", "kill", "--json")
    assert (answer.status, answer.error["message"]) == (2, "--on-deadline needs --deadline")
    assert commands(desk) == []
