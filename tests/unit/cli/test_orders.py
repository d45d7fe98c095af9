"""``stop``, ``drain``, ``snapshot create``, ``kill`` and ``cancel``: orders and their ends."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_streamstate.control.registers import Retention
from airflow_streamstate.controller.home import Home, HomeConfig
from airflow_streamstate.protocol.codec import to_json
from airflow_streamstate.protocol.commands import DrainNotification, SnapshotRequest
from airflow_streamstate.protocol.events import Drained, Ignored
from airflow_streamstate.protocol.positions import StateLeft
from support.scripted_stream import ScriptedAttempt
from support.shell import Desk, obeying, shell

END_FIELDS = {"deployment_id", "state", "snapshot_id", "queries"}
SNAPSHOT_FIELDS = {"snapshot_id", "kind", "deployment_id", "files", "bytes", "queries"}


@pytest.fixture
def running(desk: Desk) -> ScriptedAttempt:
    """The stream ``flights`` runs."""
    return desk.stream().deploy().runs()


@pytest.mark.parametrize(("verb", "state"), [("stop", "stopped"), ("drain", "drained")])
def test_the_end_is_told_with_its_snapshot_and_positions(running: ScriptedAttempt, verb: str, state: str) -> None:
    """It returns when the snapshot is complete: state, snapshot, and where each query ended."""
    with obeying(running):
        answer = shell(verb, "flights", "--timeout", 30, "--json")
    assert answer.status == 0, answer
    assert set(answer.json) >= END_FIELDS
    assert (answer.json["deployment_id"], answer.json["state"]) == ("d-0001", state)
    assert answer.json["snapshot_id"] == f"d-0001-{state}-000001"
    query = answer.json["queries"]["delays"]
    assert query["batch_id"] == 0
    assert query["state_rows_left"] == (7 if verb == "stop" else 0)
    assert answer.err == ""


def test_a_snapshot_is_told_with_its_files_and_batches(running: ScriptedAttempt) -> None:
    """The stream runs on; the answer reports what was kept."""
    with obeying(running):
        answer = shell("snapshot", "create", "flights", "--timeout", 30, "--json")
        human = shell("snapshot", "create", "flights", "--timeout", 30)
    assert answer.status == 0, answer
    assert set(answer.json) >= SNAPSHOT_FIELDS
    assert answer.json["snapshot_id"] == "d-0001-live-000001"
    assert (answer.json["kind"], answer.json["state"]) == ("live", "running")
    assert answer.json["queries"]["delays"]["batch_id"] == 0
    assert "snapshot d-0001-live-000002 (live, 0 files, 0 bytes)" in human.out


@pytest.mark.parametrize("verb", ["stop", "drain", "snapshot create"])
def test_async_returns_when_the_order_is_recorded(running: ScriptedAttempt, verb: str) -> None:
    """The same fields, unknown ones empty; the order is recorded."""
    answer = shell(verb, "flights", "--async", "--json")
    assert answer.status == 0
    assert (SNAPSHOT_FIELDS if verb == "snapshot create" else END_FIELDS) <= set(answer.json)
    assert (answer.json["state"], answer.json["snapshot_id"], answer.json["queries"]) == ("running", None, {})
    (slot,) = running.control.journal("d-0001").commands()
    assert slot.command is not None
    assert slot.command.command_id == answer.json["command_id"]
    human = shell(verb, "flights", "--async")
    assert human.out.startswith(f"flights d-0001: {verb.partition(' ')[0]} ordered\n")
    assert "streamstate status flights" in human.out


@pytest.mark.parametrize("verb", ["stop", "drain", "snapshot create"])
def test_a_wait_that_ends_says_that_the_work_goes_on(running: ScriptedAttempt, verb: str) -> None:
    """No driver obeys: exit status 3, what was last seen, and the order stays (Law 6)."""
    answer = shell(verb, "flights", "--timeout", 0.3, "--json")
    assert answer.status == 3
    assert answer.error["type"] == "DeadlineExceededError"
    assert "the work continues" in answer.error["message"]
    assert "batch 0" in answer.error["context"]["last_seen"]
    assert len(running.control.journal("d-0001").commands()) == 1
    assert answer.err == ""
    human = shell(verb, "flights", "--timeout", 0.3)
    assert human.out == ""
    assert human.err.startswith("flights d-0001: running (")
    assert "did not happen in time; the work continues." in human.err


@pytest.mark.parametrize("verb", ["stop", "drain", "snapshot create"])
def test_the_same_request_twice_is_one_order(running: ScriptedAttempt, verb: str) -> None:
    """A request id of your own makes a repeated order one order (Law 2)."""
    first, second = (shell(verb, "flights", "--request-id", "nightly", "--async", "--json").json for _ in range(2))
    assert first == second
    assert len(running.control.journal("d-0001").commands()) == 1
    assert shell("kill", "flights", "--json").status == 4  # launched from elsewhere


def test_what_is_so_already_is_answered_at_once(desk: Desk, running: ScriptedAttempt) -> None:
    """A stop of what is stopped and a drain of what is drained are done, and report which snapshot."""
    running.stopped()
    assert shell("stop", "flights", "--json", "--async").json["snapshot_id"] == "d-0001-stopped-000001"
    desk.stream().deploy().runs().drained()
    answer = shell("drain", "flights", "--timeout", 5, "--json")
    assert (answer.json["state"], answer.json["snapshot_id"]) == ("drained", "d-0002-drained-000001")
    assert answer.json["queries"]["delays"]["state_rows_left"] == 0


def test_a_drain_of_a_stream_that_was_never_deployed_is_refused(desk: Desk) -> None:
    """Exit status 2: there is no such stream."""
    Home(HomeConfig(str(desk.home))).begin("tests")
    answer = shell("drain", "flights", "--json", "--async")
    assert answer.status == 2
    assert answer.error["type"] == "StreamNotFoundError"


@pytest.mark.parametrize("verb", ["stop", "drain"])
def test_an_order_to_a_replaced_deployment_is_refused(desk: Desk, running: ScriptedAttempt, verb: str) -> None:
    """Exit status 4 names the current one: the old one is fenced, and would not obey (Law 4)."""
    running.failed("boom")
    desk.stream().deploy().runs()
    answer = shell(verb, "flights", "--deployment", "d-0001", "--json")
    assert answer.status == 4
    assert answer.error["context"]["current_deployment_id"] == "d-0002"
    unknown = shell(verb, "flights", "--deployment", "d-0009", "--json")
    assert unknown.status == 2
    assert unknown.error["type"] == "DeploymentNotFoundError"


def test_a_drain_that_the_job_rejects_is_told(running: ScriptedAttempt) -> None:
    """Refused: exit status 4, with the job's reason; it runs on."""
    with obeying(running, "cannot-drain"):
        answer = shell("drain", "flights", "--timeout", 30, "--json")
    assert answer.status == 4
    assert answer.error["context"]["reason"] == "a memory sink"
    assert shell("status", "flights", "--json").json["state"] == "running"


def test_a_drain_that_fails_is_told(running: ScriptedAttempt) -> None:
    """Exit status 1, with the error of the flush and where the deployment is now."""
    with obeying(running, "drain-fails"):
        answer = shell("drain", "flights", "--timeout", 30, "--json")
    assert answer.status == 1
    assert answer.error["message"] == "the drain failed"
    assert "disk full" in answer.error["context"]["error"]
    assert answer.error["context"]["snapshot_id"] == "d-0001-stopped-000001"


def test_a_stop_of_what_fails_meanwhile_is_told(running: ScriptedAttempt) -> None:
    """A wait does not wait for what cannot come."""
    assert shell("stop", "flights", "--request-id", "r", "--json", "--async").status == 0
    running.failed("OutOfMemoryError: heap")
    answer = shell("stop", "flights", "--request-id", "r", "--timeout", 30, "--json")
    assert answer.status in (1, 4)
    assert "failed" in str(answer.error)


def test_a_drain_says_what_it_is_to_flush_and_until_when_it_may_begin(running: ScriptedAttempt) -> None:
    """--mode, --expires-in and --reason are on the notification."""
    words = ("--mode", "event_time", "--expires-in", 60, "--reason", "new key")
    assert shell("drain", "flights", *words, "--json", "--async").status == 0
    (slot,) = running.control.journal("d-0001").commands()
    assert isinstance(slot.command, DrainNotification)
    assert (slot.command.mode, slot.command.reason) == ("event_time", "new key")
    assert slot.command.deadline_at is not None
    assert 59 < (slot.command.deadline_at - slot.command.requested_at).total_seconds() < 61


def test_state_that_is_left_is_named(desk: Desk, running: ScriptedAttempt) -> None:
    """A person reads which operator kept how many rows, and why (Law 16)."""
    left = StateLeft("dedupe", 1, 3, "no watermark")
    position = replace(running.position(3), state_left=(left,))
    snapshot_id = running.snapshot("drained")
    running.say(Drained, command_id="c", command_number=1, snapshot_id=snapshot_id, queries={"delays": position})
    assert "delays: 3 rows are left in dedupe: no watermark" in shell("drain", "flights", "--timeout", 5).out


def test_an_attempt_that_never_got_a_driver_can_be_killed(desk: Desk) -> None:
    """Kill closes it; twice is once."""
    desk.stream().deploy()
    for _ in range(2):
        answer = shell("kill", "flights", "--json")
        assert answer.status == 0
        assert {"stream_id", "deployment_id", "attempt", "state"} <= set(answer.json)
        assert answer.json["state"] == "failed"
    assert "-> `streamstate resume flights` continues" in shell("kill", "flights").out


def test_the_limits_of_a_drain_reach_the_order(running: ScriptedAttempt) -> None:
    """Each option is a field of the notification."""
    words = (
        "--batches-deadline",
        60,
        "--on-batches-deadline",
        "stop",
        "--flush-deadline",
        30,
        "--on-flush-deadline",
        "kill",
    )
    assert shell("drain", "flights", *words, "--json", "--async").status == 0
    (slot,) = running.control.journal("d-0001").commands()
    assert isinstance(slot.command, DrainNotification)
    assert (slot.command.on_deadline, slot.command.flush_within_seconds) == ("stop", 30.0)
    assert slot.command.on_flush_deadline == "kill"
    assert slot.command.batches_by_at is not None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--on-batches-deadline", "stop"), "--on-batches-deadline needs --batches-deadline"),
        (("--on-flush-deadline", "kill"), "--on-flush-deadline needs --flush-deadline"),
        (("--async", "--timeout", "5"), "leave out --timeout"),
    ],
)
def test_options_that_say_nothing_together_are_refused(
    running: ScriptedAttempt, words: tuple[str, ...], said: str
) -> None:
    """One sentence, status 2, nothing written."""
    answer = shell("drain", "flights", *words)
    assert answer.status == 2
    assert said in answer.err
    assert running.control.journal("d-0001").commands() == []


def test_a_drain_is_taken_back_by_name(running: ScriptedAttempt) -> None:
    """Refused where none is under way (status 4); recorded where one is. What is about an upgrade is refused, too."""
    refused = shell("cancel", "flights", "--json", "--async")
    assert (refused.status, refused.json["error"]["type"]) == (4, "ConflictError")
    assert shell("cancel", "flights", "--after-stop", "finish").status == 2
    shell("drain", "flights", "--async")
    answer = shell("cancel", "flights", "--reason", "not yet", "--async")
    assert answer.status == 0
    assert "cancel ordered" in answer.out
    assert [slot.command.kind for slot in running.control.journal("d-0001").commands() if slot.command] == [
        "DrainNotification",
        "CancelRequest",
    ]


def test_a_snapshot_says_when_it_was_asked_for_and_how_long_that_holds(running: ScriptedAttempt) -> None:
    """--requested-at and --ttl are on the request; its object has the id by which a wait finds it."""
    words = ("--requested-at", "2026-03-01T11:05:00+01:00", "--ttl", 2.5, "--request-id", "nightly", "--consistent")
    answer = shell("snapshot", "create", "flights", *words, "--json", "--async")
    assert answer.status == 0
    assert set(answer.json) == {
        "stream_id", "deployment_id", "command_id", "state", "request_id", "snapshot_id", "kind", "files", "bytes",
        "queries",
    }  # fmt: skip
    assert (answer.json["request_id"], answer.json["snapshot_id"]) == ("nightly", None)
    (slot,) = running.control.journal("d-0001").commands()
    assert isinstance(slot.command, SnapshotRequest)
    assert (slot.command.request_id, slot.command.ttl_seconds, slot.command.consistent) == ("nightly", 2.5, True)
    assert slot.command.requested_at == datetime(2026, 3, 1, 10, 5, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "words", [("--requested-at", "noon"), ("--requested-at", "2026-03-01T11:05:00"), ("--ttl", "0"), ("--ttl", "soon")]
)
def test_a_date_or_a_time_to_live_that_is_none_is_a_usage_error(running: ScriptedAttempt, words: Any) -> None:
    """Exit status 2, one sentence, and nothing is written."""
    answer = shell("snapshot", "create", "flights", *words, "--json", "--async")
    assert answer.status == 2
    assert answer.error["type"] == "UsageError"
    assert running.control.journal("d-0001").commands() == []


def test_a_wait_for_a_snapshot_goes_on_with_the_next_attempt(desk: Desk, running: ScriptedAttempt) -> None:
    """The driver it had asked is gone; the one that runs now is asked under the same id, and answers."""
    first = shell("snapshot", "create", "flights", "--request-id", "nightly", "--json", "--async").json
    attempt = desk.stream().resume().runs()
    journal = attempt.control.journal("d-0001")
    journal.delete_command(journal.commands()[0])  # this attempt ignores what is meant for the one before
    with obeying(attempt):
        answer = shell("snapshot", "create", "flights", "--request-id", "nightly", "--timeout", 30, "--json")
    assert answer.status == 0, answer
    assert answer.json["snapshot_id"].startswith("d-0001-live-")
    assert answer.json["command_id"] != first["command_id"]
    assert answer.json["queries"]["delays"]["end_offsets"]


def test_a_snapshot_that_is_being_taken_already_can_be_pinned(running: ScriptedAttempt) -> None:
    """Its order is not there any more."""
    words = ("snapshot create", "flights", "--request-id", "nightly", "--async")
    shell(*words)
    (slot,) = running.control.journal("d-0001").commands()
    assert slot.command is not None
    running.accepted(slot.command, 1)
    assert shell(*words, "--pin").status == 0
    assert list(Retention(running.control).read().pins) == ["d-0001-live-000001"]


def test_the_snapshot_that_a_wait_ends_with_is_pinned(desk: Desk, running: ScriptedAttempt) -> None:
    """Its driver is followed by another one in the meantime: what the first one was asked for never comes."""

    def is_followed() -> None:
        journal, retention = running.control.journal("d-0001"), Retention(running.control)
        while not retention.read().pins:
            pass
        (slot,) = journal.commands()
        assert slot.command is not None
        follower = desk.stream().resume().runs()
        command = slot.command
        follower.say(
            Ignored, command_id=command.command_id, command_number=1, command=to_json(command), reason="of attempt 1"
        )
        journal.delete_command(slot)
        while not journal.commands():
            pass
        follower.obey("")

    thread = threading.Thread(target=is_followed, daemon=True)
    thread.start()
    answer = shell("snapshot", "create", "flights", "--pin", "--timeout", 30, "--json")
    thread.join(timeout=20)
    assert answer.status == 0, answer
    assert answer.json["snapshot_id"] == "d-0001-live-000002"
    assert "d-0001-live-000002" in Retention(running.control).read().pins


def test_an_error_names_the_options_and_no_secret() -> None:
    """Whatever the terms are called in Python."""
    answer = shell("drain", "flights", "--leave-query", "", "--json")
    assert (answer.status, answer.error["message"]) == (2, "--leave-query cannot have this value")
    answer = shell("snapshot", "export", "flights", "--out", "x", "--master", "spark://ada:hunter2@host/\x00", "--json")
    assert answer.status == 2
    assert "hunter2" not in answer.out
