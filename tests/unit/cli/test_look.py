"""The verbs that only look."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.cli.session import DONE, FAILED
from airflow_streamstate.controller.home import Home, HomeConfig
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import Command, DrainNotification, StopRequest
from airflow_streamstate.protocol.events import BatchRepeated, Fenced, QueryFailed
from airflow_streamstate.protocol.layout import launch_folder
from airflow_streamstate.protocol.positions import SourceMove
from airflow_streamstate.protocol.records import LaunchRecord
from airflow_streamstate.store.local import LocalStore
from support.scripted_driver import script
from support.scripted_stream import ScriptedAttempt, ScriptedStream, drain_notification
from support.shell import Desk, shell
from support.snapshots import run_stateful

STATUS_FIELDS = {
    "stream_id", "deployment_id", "attempt", "state", "start", "queries", "heartbeat_age_seconds",
    "snapshot_age_seconds", "last_event", "next_step",
}  # fmt: skip
QUERY_FIELDS = {"batch_id", "committed_at", "state_rows", "watermark_at"}


def stopping(stream: ScriptedStream) -> ScriptedAttempt:
    attempt = stream.deploy().runs()
    notification, number, _ = drain_notification(stream, attempt.deployment_id)
    values = {f.name: getattr(notification, f.name) for f in dataclasses.fields(Command)}
    attempt.accepted(StopRequest(**values, attempt=1), number)
    return attempt


def draining(stream: ScriptedStream) -> ScriptedAttempt:
    attempt = stream.deploy().runs()
    notification, number, _ = drain_notification(stream, attempt.deployment_id)
    assert isinstance(notification, DrainNotification)
    attempt.accepted(notification, number)
    return attempt


def degraded(stream: ScriptedStream) -> ScriptedAttempt:
    attempt = stream.deploy().runs()
    attempt.say(
        QueryFailed, query_name="delays", query_id="id", query_run_id="run", batch_id=0, planned_batch_id=1,
        error="Unlucky: batch of bad luck",
    )  # fmt: skip
    return attempt


def fenced(stream: ScriptedStream) -> ScriptedAttempt:
    attempt = stream.deploy().runs()
    attempt.say(Fenced, current_deployment_id="d-0002", current_attempt=1)
    return attempt


def lost(stream: ScriptedStream) -> ScriptedAttempt:
    now = stream.clock.now
    old = ScriptedStream(stream.control.home, stream.checkpoints_uri, stream.control.stream_id)
    attempt = old.deploy()

    class Yesterday:
        """The clock of a driver that fell silent a day ago."""

        def now(self):  # type: ignore[no-untyped-def]
            return now() - timedelta(days=1)

        new_uuid = staticmethod(stream.clock.new_uuid)

    attempt.clock = Yesterday()  # type: ignore[assignment]
    return attempt.runs()


STATES: dict[str, Callable[[ScriptedStream], object]] = {
    "launching": lambda stream: stream.deploy(),
    "running": lambda stream: stream.deploy().runs(),
    "stopping": stopping,
    "draining": draining,
    "stopped": lambda stream: stream.deploy().runs().stopped(),
    "drained": lambda stream: stream.deploy().runs().drained(),
    "finished": lambda stream: stream.deploy().runs().finished(),
    "failed": lambda stream: stream.deploy().runs().failed("ValueError: boom"),
    "fenced": fenced,
    "lost": lost,
    "degraded": degraded,
}


@pytest.mark.parametrize("state", STATES)
def test_status_tells_every_state(desk: Desk, state: str) -> None:
    """Each state, with the fields that scripts build on; the same for a person. Of what is not well the exit status is
    1, of all streams too."""
    STATES[state](desk.stream())
    found = shell("status", "flights", "--json")
    is_well = state not in ("degraded", "failed", "lost")
    assert [found.status, shell("list").status] == [DONE if is_well else FAILED] * 2
    assert found.json["state"] == state
    assert set(found.json) >= STATUS_FIELDS
    assert {"mode", "snapshot_id"} <= set(found.json["start"])
    assert [set(query) >= QUERY_FIELDS for query in found.json["queries"].values()] == (
        [] if state == "launching" else [True]
    )
    human = shell("status", "flights")
    assert human.out.startswith(f"flights d-0001 attempt 1 is {state}\n")
    assert human.err == ""


def test_status_of_a_degraded_stream_names_the_query_and_the_cause(desk: Desk) -> None:
    """In one line, with what runs it again; `streams` has the line, too."""
    degraded(desk.stream())
    found = shell("status", "flights", "--json").json
    assert found["error"] == "query delays has failed in batch 1: Unlucky: batch of bad luck"
    assert found["queries"]["delays"]["error"] == "Unlucky: batch of bad luck"
    assert found["queries"]["delays"]["is_active"] is False
    assert "streamstate upgrade flights" in found["next_step"]
    assert "Unlucky: batch of bad luck" in shell("status", "flights").out
    assert "flights is degraded: query delays has failed in batch 1" in shell("list").out


def test_status_shows_the_cause_of_a_failure_first(desk: Desk) -> None:
    """The last line of the script's own traceback, not the first lines of Spark's."""
    spark = (
        "pyspark.errors.exceptions.captured.StreamingQueryException: [STREAM_FAILED] Query [id = 1, runId = 2]"
        " terminated with exception: An exception was raised by the Python Proxy. Return Message: Traceback (most"
        ' recent call last):\n  File "job.py", line 7, in fails\n    raise Unlucky("batch of bad luck")\n'
        "Unlucky: batch of bad luck\n SQLSTATE: XXKST\n=== Streaming Query ===\nLogical Plan:\n~Project"
    )
    attempt = desk.stream().deploy().runs()
    attempt.failed(spark)
    assert "  error      Unlucky: batch of bad luck\n" in shell("status", "flights").out


def test_status_shows_what_a_person_asks_first(desk: Desk) -> None:
    """Script, version, heartbeat, snapshot, last event, and a table of the queries."""
    attempt = desk.stream().deploy().runs()
    attempt.snapshot("live", 1)
    text = shell("status", "flights").out
    for part in ("started    fresh", "script     job.py", "heartbeat  0 s ago", "last event QueryStarted", "delays"):
        assert part in text
    attempt.failed("ValueError: boom")
    text = shell("status", "flights", "--verbose").out
    assert "error      ValueError: boom" in text
    assert "traceback:\n    Traceback (most recent call last):\n" in text


def test_status_shows_orders_until_they_have_their_end(desk: Desk) -> None:
    """What was ordered, by whom and what it waits for: for a person in a line, for a script in fields."""
    stream = desk.stream()
    stream.deploy().runs()
    command, _, _ = drain_notification(stream, "d-0001", rehearse=True, reason="new key")
    (order,) = shell("status", "flights", "--json").json["orders"]
    assert (order.pop("requested_at")[-1], order.pop("expires_at")[-1]) == ("Z", "Z")
    why = "it is not started: its flush is tried first, on a fork of the state"
    assert order == {
        "verb": "drain", "command_id": command.command_id, "number": 1, "requested_by": "test", "reason": "new key",
        "phase": "ordered", "why": why,
    }  # fmt: skip
    assert f": {why}" in next(line for line in shell("status", "flights").out.splitlines() if "  order" in line)


def test_status_names_the_event_that_it_cannot_read(desk: Desk) -> None:
    """The last event may be in it, so its absence is not reported as certain (Law 7)."""
    attempt = desk.stream().deploy().runs()
    attempt.stopped()
    key = layout.event_key("flights", "d-0001", 4)
    (desk.home / key).write_text('{"kind": "Stop')
    found = shell("status", "flights", "--json")
    assert (found.status, list(found.json["unreadable"])) == (0, [key])
    assert found.json["unreadable"][key]
    assert f"unreadable {key}: " in shell("status", "flights").out


def test_status_of_an_older_deployment(desk: Desk) -> None:
    """--deployment looks at one that is not current any more."""
    desk.stream().deploy().runs().stopped()
    desk.stream().deploy()
    assert shell("status", "flights", "--json").json["deployment_id"] == "d-0002"
    old = shell("status", "flights", "--deployment", "d-0001", "--json").json
    assert (old["deployment_id"], old["is_current"]) == ("d-0001", False)
    unknown = shell("status", "flights", "--deployment", "d-0007", "--json")
    assert (unknown.status, unknown.error["type"]) == (2, "DeploymentNotFoundError")


def test_streams_are_one_row_each(desk: Desk) -> None:
    """State, version, age and last event of each; one that cannot be read does not hide the others (Law 7)."""
    for name in ("b", "a"):
        desk.stream(name).deploy().runs()
    (desk.home / "c").mkdir()
    (desk.home / "c" / "stream.json").write_text("{")
    (desk.home / "Not-A-Stream").mkdir()
    answer = shell("list", "--json")
    assert answer.status == 1
    rows = answer.json["streams"]
    assert [(row["stream_id"], row["state"]) for row in rows] == [
        ("a", "running"),
        ("b", "running"),
        ("c", "unreadable"),
    ]
    assert all({"version_label", "heartbeat_age_seconds", "last_event"} <= set(row) for row in rows)
    lines = shell("list").out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["stream", "a", "b", "c"]
    (desk.home / "c" / "stream.json").unlink()
    assert shell("list").status == 0


def test_a_stream_that_cannot_be_read_says_why_and_no_numbers(desk: Desk) -> None:
    """Its state is unknown: it is not lost, and has no attempt 0."""
    desk.stream("broken").deploy()
    (desk.home / "broken" / "stream.json").write_text("{")
    lines = shell("list").out.splitlines()
    assert lines[1].split() == ["broken", "unreadable"]
    assert lines[2].startswith("broken is unreadable: ")
    assert "stream.json" in " ".join(lines[2:])


def test_a_stream_that_lost_its_register_is_told_how_to_have_it_back(desk: Desk) -> None:
    """By every verb, and not that there is no such stream; what is shown, written there, brings it back (Law 5)."""
    desk.stream().deploy().runs()
    register = desk.home / "flights" / "stream.json"
    register.unlink()
    for words in (
        ("status", "flights"),
        ("events", "flights"),
        ("stop", "flights"),
        ("audit", "flights"),
        ("retire", "flights"),
        ("deploy", "flights", "--app", str(script(desk.base))),
        ("deploy", "flights", "--app", str(script(desk.base)), "--start", "restore"),
    ):
        found = shell(*words, "--json")
        assert (found.status, found.error["type"]) == (1, "MalformedMessageError"), words
        assert "register of this stream is gone, and its deployments are there" in found.error["message"]
    listed = shell("list")
    assert listed.status == 1
    assert listed.out.splitlines()[1].split() == ["flights", "unreadable"]
    human = shell("status", "flights").err
    assert "flights/stream.json" in human
    assert "home restore --from MIRROR --stream flights" in human
    register.write_text(found.error["context"]["register"])
    assert shell("status", "flights", "--json").json["state"] == "running"


def test_a_home_without_streams_says_which_home(desk: Desk) -> None:
    """A mistyped home is seen at once: one that is not there is an error."""
    missing = shell("list")
    assert (missing.status, missing.out) == (2, "")
    assert f"home={desk.home}" in missing.err
    Home(HomeConfig(str(desk.home))).begin("tests")
    assert shell("list").out == f"no streams in {desk.home}\n"


def test_events_are_told_oldest_first(desk: Desk) -> None:
    """Each with its number and all its fields; one that cannot be read is reported as such (Law 7)."""
    attempt = desk.stream().deploy().runs()
    attempt.stopped()
    key = layout.event_key("flights", "d-0001", 5)
    (desk.home / key).write_text('{"kind": "Unheard"}')
    answer = shell("events", "flights", "--json")
    assert answer.status == 0
    rows = answer.json["events"]
    assert [row["kind"] for row in rows] == ["Claimed", "Started", "QueryStarted", "Stopped", "unreadable"]
    assert [row["number"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[3]["queries"]["delays"]["batch_id"] == 0
    assert rows[4]["problem"]
    human = shell("events", "flights").out
    assert "queries=delays:0" in human
    assert len(human.splitlines()) == 6
    desk.stream("new").deploy()
    assert shell("events", "new").out == "no events yet\n"


def test_snapshots_are_listed_with_their_sizes(desk: Desk) -> None:
    """Complete ones only, oldest first (Law 3)."""
    attempt = desk.stream().deploy().runs()
    assert shell("snapshot", "list", "flights").out == "no complete snapshots\n"
    attempt.snapshot("live", 1)
    (desk.home / "flights" / "snapshots" / "d-0001-live-000002" / "data").mkdir(parents=True)
    attempt.stopped()
    rows = shell("snapshot", "list", "flights", "--json").json["snapshots"]
    assert [row["snapshot_id"] for row in rows] == ["d-0001-live-000001", "d-0001-stopped-000001"]
    assert rows[0]["request_id"] is None
    assert rows[0]["content_digest"] == rows[1]["content_digest"]
    assert len(rows[0]["content_digest"]) == 64
    assert "d-0001-stopped-000001  stopped" in shell("snapshot", "list", "flights").out


def test_a_snapshot_whose_manifest_is_damaged_is_not_left_out_in_silence(desk: Desk) -> None:
    """It may be the one that the next start needs. (Law 7)"""
    attempt = desk.stream().deploy().runs()
    attempt.snapshot("live", 1)
    attempt.stopped()
    manifest = desk.home / "flights" / "snapshots" / "d-0001-live-000001" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:40])
    answer = shell("snapshot", "list", "flights")
    assert answer.status == 1
    assert "`streamstate snapshot verify flights d-0001-live-000001`" in answer.out
    found = shell("snapshot", "list", "flights", "--json").json
    assert found["unreadable"] == ["d-0001-live-000001"]
    assert [row["snapshot_id"] for row in found["snapshots"]] == ["d-0001-stopped-000001"]
    assert "d-0001-live-000001 cannot be read" in shell("snapshot", "prune", "flights", "--dry-run").out


# audit


def test_a_whole_chain_is_told(desk: Desk) -> None:
    """Exit status 0: each query with where it started, and since when nothing runs."""
    desk.stream().deploy().runs().stopped()
    answer = shell("audit", "flights", "--json")
    assert (answer.status, answer.json["ok"]) == (0, True)
    assert set(answer.json) == {
        "stream_id", "ok", "deployments", "gaps", "overlaps", "undone", "not_running", "unread", "downtimes", "settled",
        "may_be_doubled", "not_doubled", "backwards", "sent_once",
    }  # fmt: skip
    (deployment,) = answer.json["deployments"]
    assert list(deployment["queries"]) == ["delays"]
    human = shell("audit", "flights").out
    assert "every deployment started exactly where its predecessor ended" in human
    assert "no query ran after d-0001 attempt 1 (stopped): until now" in human


def test_a_stream_whose_queries_never_ran_has_no_chain(desk: Desk) -> None:
    """Nothing is reported as exact where nothing was compared."""
    desk.stream().deploy()
    human = shell("audit", "flights").out
    assert "no query has run yet, so there is nothing to compare" in human
    assert "predecessor" not in human


def test_a_broken_chain_is_named(desk: Desk) -> None:
    """Exit status 1 where a batch is missing; a start with nothing is reported, and was asked for by name."""
    desk.stream().deploy().runs().stopped()
    checkpoint = Checkpoint(LocalStore(desk.home), layout.checkpoint_folder("flights", "d-0001", "delays"))
    run_stateful(checkpoint, 3)
    desk.stream().deploy().runs()
    answer = shell("audit", "flights", "--json")
    assert (answer.status, answer.json["ok"]) == (0, True)
    assert [(gap["query"], gap["ended_at"], gap["accepted"]) for gap in answer.json["gaps"]] == [
        ("delays", "batch 3", True)
    ]
    human = shell("audit", "flights").out
    assert "gap at d-0002, delays: batch 3 -> none: it was started with nothing" in human
    assert "but for what was accepted by name" in human
    checkpoint.store.delete(checkpoint.commit_key(1))
    assert shell("audit", "flights").status == 1
    assert shell("audit", "flights", "--since", "d-0002", "--json").status == 0
    assert shell("audit", "flights", "--since", "d-0009").status == 2


def test_batches_that_ran_again_and_sources_that_send_once_are_named(desk: Desk) -> None:
    """By sink, with the rows at most; exit status 0, as the chain is complete. `status` has one sentence."""
    attempt = desk.stream().deploy().runs()
    move = SourceMove("kafka subscribe in", '{"in":{"0":3}}', '{"in":{"0":1203}}', 1200, 0, "rows")
    for batch_id, sink, means in (
        (4, "kafka out", "doubled"),
        (5, "foreachBatch", "unknown"),
        (6, "delta /t", "skipped"),
    ):
        attempt.say(BatchRepeated, query_name="delays", batch_id=batch_id, sink=sink, means=means, moves=(move,))
    attempt.stopped()
    answer = shell("audit", "flights")
    assert answer.status == 0
    lines = " ".join(answer.out.split())
    assert "may be doubled in kafka out at d-0001 attempt 1, delays: batch 4 ran again, input of at most 1,200" in lines
    assert "may be doubled in foreachBatch (only the script knows) at d-0001" in lines
    assert "not doubled in delta /t at d-0001 attempt 1, delays: batch 6 ran again" in lines
    said = " ".join(shell("status", "flights").out.split())
    assert "rows rows may be doubled: batch 4 of delays ran again, into kafka out, which cannot detect it" in said


# logs


def log_of(desk: Desk, attempt: ScriptedAttempt, text: str) -> Path:
    """The log of an attempt that was launched on this machine."""
    launch_key = f"{attempt.deployment_id}-a{attempt.attempt:04d}"
    folder = desk.home / launch_folder("flights", attempt.deployment_id, launch_key)
    folder.mkdir(parents=True)
    path = folder / "driver.log"
    path.write_text(text)
    attempt.control.create_launch(
        LaunchRecord(
            "flights", attempt.deployment_id, attempt.attempt, launch_key, "local",
            {"launch_key": launch_key, "folder": str(folder), "log_path": str(path)}, str(path), attempt.clock.now(),
            "w",
        )
    )  # fmt: skip
    return path


def test_logs_of_each_attempt(desk: Desk) -> None:
    """The current attempt by default; an earlier one by its number; one that never was is reported."""
    stream = desk.stream()
    log_of(desk, stream.deploy(), "first\n")
    log_of(desk, stream.resume(), "second\n[/red]\n")
    assert shell("logs", "flights").out == "second\n[/red]\n"
    assert shell("logs", "flights", "--attempt", 1).out == "first\n"
    answer = shell("logs", "flights", "--attempt", 1, "--json").json
    assert answer == {"stream_id": "flights", "deployment_id": "d-0001", "attempt": 1, "log": "first\n"}
    unknown = shell("logs", "flights", "--attempt", 3, "--json")
    assert unknown.status == 2
    assert unknown.error["context"]["last_attempt"] == 2


def test_a_log_does_not_act_on_the_terminal(desk: Desk) -> None:
    """Neither sets the clipboard nor clears the screen nor turns the direction of writing; tabs and lines stay."""
    written = "\tat x\r\n\x1b]52;c;ZXZpbA==\x07\x9b31m\u202egrün\r[Stage 0:>]\n"
    log_of(desk, desk.stream().deploy(), written)
    assert shell("logs", "flights").out == "\tat x\n?]52;c;ZXZpbA==??31m?grün\n[Stage 0:>]\n"
    assert "\\u001b]52" in shell("logs", "flights", "--json").out


def test_logs_begin_so_far_before_the_end(desk: Desk) -> None:
    """--tail-bytes."""
    log_of(desk, desk.stream().deploy(), "".join(f"{number}\n" for number in range(1000)))
    assert shell("logs", "flights", "--tail-bytes", 8).out.split() == ["998", "999"]


def test_a_log_that_is_empty_is_told(desk: Desk) -> None:
    """On stderr, so that stdout is the log alone."""
    log_of(desk, desk.stream().deploy(), "")
    answer = shell("logs", "flights")
    assert (answer.status, answer.out, answer.err) == (0, "", "the driver has written nothing yet\n")


def test_follow_goes_on_until_the_driver_has_ended(desk: Desk) -> None:
    """--follow prints to the last event, and then ends by itself."""
    job = script(desk.base, "finishes")
    assert shell("deploy", "flights", "--app", job, "--async").status == 0
    answer = shell("logs", "flights", "--follow")
    assert answer.status == 0
    assert answer.out == "scripted driver: finishes\n"


def test_a_label_that_no_stream_can_have_is_refused(running: Desk) -> None:
    """A slip of the pen is no empty list."""
    refused = shell("list", "--label", "a b", "--json")
    assert (refused.status, refused.error["message"]) == (2, "this cannot be the name of a label")
