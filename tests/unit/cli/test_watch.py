"""``watch``, ``policy``, ``alerts`` and ``label``, over drivers that run no Spark."""

from __future__ import annotations

import json
import shutil
import signal

import pytest

from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.policies import AlertRules, RestartPolicy
from support.launches import wait_until
from support.scripted_driver import script
from support.shell import Answer, Desk, shell
from support.watching import watching

pytestmark = pytest.mark.fast

SUPERVISED = ("--on-failure", "restart", "--initial-backoff", 0)


def deploy(desk: Desk, job: str, *words: object) -> None:
    """Deploy a script that makes its driver behave so."""
    answer = shell("deploy", "flights", "--app", script(desk.base, job), "--async", *words)
    assert answer.status == 0, answer


def lines_of(out: str) -> list[tuple[str, str]]:
    """The stream and the word of each line of a person's output."""
    return [(line.split()[1], line.split()[2].rstrip(":")) for line in out.splitlines()]


def test_a_pass_restarts_what_is_due_and_tells_each_stream(desk: Desk) -> None:
    """For cron: one line each; status 1 while one is not well, and JSON lines for a program."""
    deploy(desk, "fails", *SUPERVISED, "--max-restarts", 1)
    first = settled_pass()
    assert (first.status, lines_of(first.out)) == (0, [("flights", "restarting")])
    second = settled_pass("--json")
    assert second.status == 1
    (line,) = [json.loads(text) for text in second.out.splitlines()]
    assert (line["stream_id"], line["sight"]) == ("flights", "gave_up")
    assert line["text"].startswith("1 restart within 3600 s did not help: attempt 2 failed")
    doctor = shell("home", "doctor")
    assert f"abandoned: {line['text']}" in doctor.out
    assert doctor.status == 1
    assert f"abandoned: {line['text']}" in shell("list").out


def settled_pass(*words: str) -> Answer:
    """The first pass that does not meet a driver that starts, or is about to end."""
    found: list[Answer] = []

    def is_settled() -> bool:
        found.append(shell("watch", "--once", *words))
        return not any(word in found[-1].out for word in ("launching", "ending", " up:", '"up"'))

    wait_until(is_settled, "the driver's end")
    return found[-1]


def kept(desk: Desk) -> list[str]:
    return [one["snapshot_id"] for one in shell("snapshot", "list", "flights", "--json").json["snapshots"]]


def test_a_pass_prunes_what_has_a_recorded_retention(desk: Desk) -> None:
    """Once: what another pass, or a person, has pruned by it just now is left for an hour."""
    running = desk.stream().deploy().runs()
    taken = [running.snapshot("live", number) for number in range(1, 4)]
    assert "pruned" not in shell("watch", "--once").out
    assert kept(desk) == taken
    assert shell("snapshot", "retention", "flights", "--keep", 1).status == 0
    answer = shell("watch", "--once")
    assert ("flights", "pruned") in lines_of(answer.out)
    assert kept(desk) == taken[2:]
    running.snapshot("live", 4)
    assert "pruned" not in shell("watch", "--once").out
    assert len(kept(desk)) == 2
    assert shell("snapshot", "prune", "flights").status == 0
    assert len(kept(desk)) == 1


def test_a_process_prunes_what_has_a_recorded_retention(desk: Desk) -> None:
    """Alongside its other work, and it ends with it."""
    running = desk.stream().deploy().runs()
    taken = [running.snapshot("live", number) for number in range(1, 4)]
    assert shell("snapshot", "retention", "flights", "--keep", 1).status == 0
    with watching(desk.base / "watch.out") as watch:
        watch.wait_for("pruned")
        assert watch.end(signal.SIGTERM) == 0
    assert kept(desk) == taken[2:]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_restarts_drivers_that_outlive_it(desk: Desk, number: signal.Signals) -> None:
    """It ends with status 0 when it is asked to; the driver that it started runs on, and obeys."""
    deploy(desk, "runs", *SUPERVISED)
    with watching(desk.base / "watch.out") as watch:
        watch.wait_for("up")
        desk.end_drivers()
        watch.wait_for("restarting")
        watch.wait_for("up", 2)
        assert watch.end(number) == 0
    status = shell("status", "flights", "--json").json
    assert (status["state"], status["attempt"]) == ("running", 2)
    assert status["restarts"].startswith("restart: restarted at ")
    assert shell("stop", "flights", "--timeout", 30).status == 0


def test_the_policy_is_shown_and_changed(desk: Desk) -> None:
    """What is not given stays; without options nothing is written."""
    deploy(desk, "hangs", "--on-failure", "alert")
    assert shell("policy", "flights", "--json").json["on_failure"] == "alert"
    changed = shell("policy", "flights", "--on-failure", "restart", "--max-restarts", 3, "--json").json
    assert changed == {
        "stream_id": "flights", **vars(RestartPolicy("restart", max_restarts=3)),
    }  # fmt: skip
    before = desk.texts()
    shown = shell("policy", "flights")
    assert desk.texts() == before
    assert ["max_restarts", "3"] in [line.split() for line in shown.out.splitlines()]
    assert shell("status", "flights", "--json").json["restarts"] == "restart"


def test_a_resume_and_an_upgrade_keep_the_policy_unless_it_is_given(desk: Desk) -> None:
    """A refused one changes nothing."""
    deploy(desk, "runs proves", *SUPERVISED)
    assert shell("stop", "flights", "--timeout", 30).status == 0
    assert shell("resume", "flights", "--initial-backoff", 400, "--async").status == 2
    assert shell("status", "flights", "--json").json["state"] == "stopped"
    assert shell("resume", "flights", "--max-restarts", 3, "--timeout", 30).status == 0
    found = shell("policy", "flights", "--json").json
    assert (found["on_failure"], found["max_restarts"], found["initial_backoff_seconds"]) == ("restart", 3, 0)
    upgraded = shell("upgrade", "flights", "--label", "v2", "--on-failure", "alert", "--timeout", 60)
    assert upgraded.status == 0, upgraded
    found = shell("policy", "flights", "--json").json
    assert (found["on_failure"], found["max_restarts"], found["initial_backoff_seconds"]) == ("alert", 3, 0)


@pytest.mark.parametrize(
    ("words", "status", "fact"),
    [
        (("flights", "--on-failure", "explode"), 2, "explode"),
        (("flights", "--max-restarts", "0"), 2, "max-restarts"),
        (("flights", "--initial-backoff", "nan"), 2, "not a number of seconds"),
        (("flights", "--initial-backoff", "400"), 2, "shorter than the first"),
        (("fligths", "--on-failure", "restart"), 2, "Did you mean flights?"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(desk: Desk, words: tuple[str, ...], status: int, fact: str) -> None:
    """One sentence, and nothing is written."""
    deploy(desk, "hangs")
    before = desk.texts()[layout.register_key("flights")]
    answer = shell("policy", *words)
    assert answer.status == status
    assert fact in answer.err
    assert desk.texts()[layout.register_key("flights")] == before


@pytest.mark.parametrize("words", [("policy", "flights", "--on-failure", "restart"), ("watch", "--once")])
def test_a_home_that_is_gone_is_named(desk: Desk, words: tuple[str, ...]) -> None:
    """No home is made in its place."""
    deploy(desk, "hangs")
    desk.end_drivers()
    shutil.rmtree(desk.home)
    answer = shell(*words)
    assert answer.status != 0
    assert "there is no home here" in answer.err
    assert not desk.home.exists()


def test_alert_rules_are_shown_and_changed(desk: Desk) -> None:
    """What is not given stays; without options nothing is written."""
    desk.stream().deploy().runs()
    words = (
        "--set",
        "no_commit_seconds=300",
        "--set",
        "lag_growing_seconds=none",
        "--off",
        "query_died",
        "--off",
        "lag",
    )
    changed = shell("alerts", "flights", *words, "--json").json
    rules = AlertRules(no_commit_seconds=300.0, lag_growing_seconds=None, off=("query_died", "lag"))
    assert changed == {"stream_id": "flights", **vars(rules), "off": list(rules.off)}
    assert shell("alerts", "flights", "--on", "query_died", "--json").json["off"] == ["lag"]
    before = desk.texts()
    shown = shell("alerts", "flights")
    assert desk.texts() == before
    lines = [line.split() for line in shown.out.splitlines()]
    assert ["no_commit_seconds", "300.0"] in lines
    assert ["lag_growing_seconds", "none"] in lines


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (("flights", "--set", "no_comit_seconds=3"), "Did you mean no_commit_seconds?"),
        (("flights", "--set", "lag_over=many"), "Use a whole number"),
        (("flights", "--set", "lag_over"), "must be KEY=VALUE"),
        (("flights", "--off", "querydied"), "Did you mean query_died?"),
        (("flights", "--on", "querydied"), "Did you mean query_died?"),
        (("fligths", "--off", "lag"), "Did you mean flights?"),
        (("fligths",), "Did you mean flights?"),
    ],
)
def test_alert_rules_that_make_no_sense_are_refused(desk: Desk, words: tuple[str, ...], fact: str) -> None:
    """With the nearest name, and nothing is written."""
    desk.stream().deploy().runs()
    before = desk.texts()
    answer = shell("alerts", *words)
    assert (answer.status, fact in answer.err) == (2, True), answer
    assert desk.texts() == before


def test_owner_and_labels_are_shown_changed_and_listed_by(desk: Desk) -> None:
    """What is not given stays; nothing is started or ended."""
    desk.stream().deploy().runs()
    desk.stream("orders").deploy().runs()
    words = ("team=payments", "tier=canary", "eu=", "--owner", "ada")
    changed = shell("label", "flights", *words, "--json").json
    assert changed == {
        "stream_id": "flights",
        "owner": "ada",
        "labels": {"eu": "", "team": "payments", "tier": "canary"},
    }
    assert shell("label", "flights", "tier=late", "--remove", "eu", "--json").json["labels"] == {
        "team": "payments", "tier": "late",
    }  # fmt: skip
    before = desk.texts()
    assert shell("label", "flights").out.splitlines() == ["owner: ada", "team=payments", "tier=late"]
    assert desk.texts() == before
    status = shell("status", "flights", "--json").json
    assert (status["owner"], status["labels"]) == ("ada", {"team": "payments", "tier": "late"})
    assert "team=payments tier=late" in shell("status", "flights").out
    for asked, found in (
        (("--label", "team"), ["flights"]),
        (("--label", "team=payments", "--label", "tier=late", "--owner", "ada"), ["flights"]),
        (("--label", "team=payments", "--label", "tier=canary"), []),
        (("--owner", ""), ["orders"]),
        ((), ["flights", "orders"]),
    ):
        assert [row["stream_id"] for row in shell("list", *asked, "--json").json["streams"]] == found
    assert "ada" in shell("list").out
    assert "with team=none" in shell("list", "--label", "team=none").out
    assert shell("label", "flights", "--owner", "", "--json").json == {
        "stream_id": "flights", "owner": "", "labels": {"team": "payments", "tier": "late"},
    }  # fmt: skip


def test_a_stream_that_cannot_be_read_is_listed_whatever_the_label(desk: Desk) -> None:
    """Its labels are unknown, and its owner has to know of it."""
    desk.stream("orders").deploy().runs()
    (desk.home / layout.register_key("orders")).write_text("{")
    answer = shell("list", "--label", "team=payments", "--json")
    assert (answer.status, [row["state"] for row in answer.json["streams"]]) == (1, ["unreadable"])


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (("flights", "te am=x"), "cannot be the name of a label"),
        (("flights", "team"), "must be KEY=VALUE"),
        (("flights", "--remove", "team"), "has no such label"),
        (("flights", "--owner", "x" * 101), "cannot be recorded"),
        (("fligths", "team=x"), "Did you mean flights?"),
    ],
)
def test_labels_that_cannot_be_recorded_are_refused(desk: Desk, words: tuple[str, ...], fact: str) -> None:
    """One sentence, and nothing is written."""
    desk.stream().deploy().runs()
    before = desk.texts()
    answer = shell("label", *words)
    assert (answer.status, fact in answer.err) == (2, True), answer
    assert desk.texts() == before
