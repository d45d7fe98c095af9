"""``skip``, over drivers that run no Spark."""

from __future__ import annotations

from airflow_streamstate.cli.orders import skip
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.protocol.commands import SkipRequest
from airflow_streamstate.protocol.events import Skipped
from airflow_streamstate.protocol.positions import SourceMove
from support.scripted_driver import script
from support.scripted_stream import ScriptedAttempt
from support.shell import Desk, shell

FIELDS = {"stream_id", "deployment_id", "query", "batch_id", "moves"}


def failed(desk: Desk) -> None:
    """A deployment that failed over its second batch."""
    deployed = shell("deploy", "flights", "--app", script(desk.base, "fails"), "--timeout", 60)
    assert deployed.status == 1, deployed
    ScriptedAttempt(desk.stream().control, "d-0001", 1, SYSTEM_CLOCK).proves(2).plans(2)
    desk.end_drivers()  # the last file of a driver comes after the event of its end


def test_what_would_be_passed_over_is_shown_alone(desk: Desk) -> None:
    """--show changes nothing; the fields are those that scripts build on."""
    failed(desk)
    before = desk.files()
    answer = shell("skip", "flights", "--batch", 2, "--reason", "a bad row", "--show", "--json", "--async")
    assert answer.status == 0, answer
    assert set(answer.json) == FIELDS
    assert (answer.json["query"], answer.json["batch_id"]) == ("delays", 2)
    assert set(answer.json["moves"][0]) == {
        "source", "from_offset", "to_offset", "passed_over", "read_again", "unit",
    }  # fmt: skip
    human = shell("skip", "flights", "--batch", 2, "--reason", "a bad row", "--show", "--async")
    assert human.out.startswith("batch 2 of query delays is skipped:\n  source 0: ")
    assert desk.files() == before


def test_it_is_said_before_it_is_ordered_and_the_order_is_told(desk: Desk) -> None:
    """On stderr what is passed over, on stdout the state of the stream."""
    failed(desk)
    answer = shell("skip", "flights", "--batch", 2, "--reason", "a bad row", "--request-id", "r-1", "--async")
    assert answer.status == 0, answer
    assert answer.err.startswith("batch 2 of query delays is skipped:")
    assert "batch 2 will be skipped by the next attempt" in answer.out
    again = shell("skip", "flights", "--batch", 2, "--reason", "a bad row", "--request-id", "r-1", "--json", "--async")
    assert again.status == 0, again
    assert set(again.json) >= {"stream_id", "deployment_id", "command_id", "state", "query", "batch_id"}
    (slot,) = desk.stream().control.journal("d-0001").commands()
    assert isinstance(slot.command, SkipRequest)
    assert skip.name == "skip"


def test_a_named_gap_is_shown_with_the_stream(desk: Desk) -> None:
    """In status, for a person and as fields."""
    attempt = desk.stream().deploy().runs()
    attempt.say(
        Skipped, command_id="c", command_number=1, query_name="delays", batch_id=4, requested_by="ada",
        reason="a bad row", moves=(SourceMove("file /in", '{"logOffset":3}', '{"logOffset":4}', 1200, 0, "files"),),
    )  # fmt: skip
    human = shell("status", "flights").out
    assert "batch 4 of query delays is skipped:" in human
    assert 'file /in: 1,200 files passed over ({"logOffset":3} to {"logOffset":4})' in human
    assert "a bad row" in human
    (told,) = shell("status", "flights", "--json").json["moves"]
    assert set(told) == {"query", "batch_id", "skipped", "at", "reason", "moves"}


def test_a_stream_that_runs_and_a_batch_that_is_not_planned_are_refused(desk: Desk) -> None:
    """Conflict and mistake, each with its exit status."""
    attempt = desk.stream().deploy().runs()
    running = shell("skip", "flights", "--batch", 2, "--reason", "x", "--json", "--async")
    assert (running.status, running.error["type"]) == (4, "ConflictError")
    attempt.failed("ValueError: boom")
    attempt.proves(2)
    unplanned = shell("skip", "flights", "--batch", 2, "--reason", "x", "--json", "--async")
    assert (unplanned.status, unplanned.error["type"]) == (2, "InvalidRequestError")
    assert shell("skip", "flights", "--batch", 2, "--json", "--async").error["type"] == "UsageError"
