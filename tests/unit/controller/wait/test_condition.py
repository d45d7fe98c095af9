"""One look at a wait condition, and every end of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home, HomeConfig
from airflow_streamstate.controller.observe.views import Outcome
from airflow_streamstate.controller.wait.condition import PENDING, WaitCondition, WaitResult, end_result
from airflow_streamstate.errors import ConflictError, DeploymentFailedError, ExpiredError, InvalidRequestError
from airflow_streamstate.protocol.codec import to_json
from airflow_streamstate.protocol.events import DrainFailed, Expired, Fenced, Ignored, Rejected
from airflow_streamstate.protocol.positions import QueryPosition
from support.scripted_driver import END_OFFSET, WATERMARK_TEXT
from support.scripted_stream import QUERY, ScriptedAttempt, ScriptedStream, drain_notification

DRAINED = {
    "deployment_id": "d-0001",
    "snapshot_id": "d-0001-drained-000001",
    "end_offsets": {QUERY: [END_OFFSET]},
    "watermark_at": WATERMARK_TEXT,
    "state_rows_left": 0,
}


DEADLINE = "2026-03-01T10:00:05.000Z"


@pytest.fixture
def client(tmp_path: Path) -> Controller:
    home = Home(HomeConfig(str(tmp_path / "home")))
    home.begin("test")
    return Controller.local(home, requested_by="test")


@pytest.fixture
def stream(client: Controller) -> ScriptedStream:
    return ScriptedStream(client.home.home, client.home.checkpoints.uri)


def see(client: Controller, watch: WaitCondition) -> WaitResult:
    return client.advance(watch)


def drain_of(attempt: ScriptedAttempt, command_id: str | None = None) -> WaitCondition:
    return WaitCondition("drained", "flights", attempt.deployment_id, command_id=command_id)


def test_a_running_deployment_may_still_be_drained(client: Controller, stream: ScriptedStream) -> None:
    """It is not ordered yet, and may be."""
    assert see(client, drain_of(stream.deploy().runs())) == PENDING


def test_a_drain_is_seen_whoever_asked_for_it(client: Controller, stream: ScriptedStream) -> None:
    """The result has the five things that an upgrade needs."""
    attempt = stream.deploy().runs()
    attempt.drained("somebody's")
    assert see(client, drain_of(attempt)) == WaitResult("done", DRAINED)


@pytest.mark.parametrize(
    ("end", "error", "words"),
    [
        (lambda attempt: attempt.stopped(), ConflictError, "the deployment is stopped"),
        (lambda attempt: attempt.finished(), ConflictError, "the deployment is finished"),
        (lambda attempt: attempt.failed("ValueError: boom"), DeploymentFailedError, "boom"),
        (
            lambda attempt: attempt.say(Fenced, current_deployment_id="d-0002", current_attempt=1),
            ConflictError,
            "fenced",
        ),
    ],
)
def test_an_end_without_a_drain_is_known_at_once(
    client: Controller,
    stream: ScriptedStream,
    end: Callable[[ScriptedAttempt], object],
    error: type[Exception],
    words: str,
) -> None:
    """No wait for what cannot come."""
    attempt = stream.deploy().runs()
    end(attempt)
    seen = see(client, drain_of(attempt))
    assert seen.outcome == "over"
    assert isinstance(seen.error, error)
    assert words in str(seen.error)


def test_a_deployment_that_was_replaced_is_not_waited_for(client: Controller, stream: ScriptedStream) -> None:
    """It may have been taken over without its own last event."""
    attempt = stream.deploy().runs()
    stream.deploy()
    assert see(client, drain_of(attempt)).outcome == "over"


@pytest.mark.parametrize(
    ("answer", "error"), [(Expired, ExpiredError), (Ignored, ConflictError), (Rejected, ConflictError)]
)
def test_a_notification_that_nobody_obeys_is_known_at_once(
    client: Controller, stream: ScriptedStream, answer: type, error: type[Exception]
) -> None:
    """The stream runs on, and that drain will never come."""
    attempt = stream.deploy().runs()
    command, number, key = drain_notification(stream, attempt.deployment_id)
    fields: dict[str, object] = {"command_id": command.command_id, "command_number": number}
    if answer is not Rejected:
        fields["command"] = to_json(command)
    if answer is not Expired:
        fields["reason"] = "because"
    if answer is Rejected:
        fields["key"] = key
    attempt.say(answer, **fields)
    seen = see(client, drain_of(attempt, command.command_id))
    assert seen.outcome == "over"
    assert isinstance(seen.error, error)


def test_a_flush_that_failed_carries_its_words(client: Controller, stream: ScriptedStream) -> None:
    """What the flush ran into is what a person needs to know."""
    attempt = stream.deploy().runs()
    command, number, _ = drain_notification(stream, attempt.deployment_id)
    attempt.accepted(command, number)
    attempt.say(
        DrainFailed,
        command_id=command.command_id,
        command_number=number,
        query_name=QUERY,
        error="disk full",
        withdrawn=True,
    )
    assert see(client, drain_of(attempt, command.command_id)).outcome == "pending"
    attempt.stopped()
    for watch in (drain_of(attempt, command.command_id), drain_of(attempt)):
        seen = see(client, watch)
        assert isinstance(seen.error, DeploymentFailedError)
        assert "disk full" in str(seen.error)


def test_health_is_a_batch_of_every_query(client: Controller, stream: ScriptedStream) -> None:
    """Running is not enough."""
    attempt = stream.deploy()
    watch = WaitCondition("healthy", "flights", attempt.deployment_id)
    assert see(client, watch) == PENDING
    attempt.claim().started()
    assert see(client, watch) == PENDING
    attempt.commits(0)
    seen = see(client, watch)
    assert seen.outcome == "done"
    assert seen.need_result()["state"] == "running"


def test_a_deployment_that_failed_is_not_waited_for(client: Controller, stream: ScriptedStream) -> None:
    """The error carries the script's own traceback."""
    attempt = stream.deploy()
    attempt.claim().failed("ValueError: boom")
    seen = see(client, WaitCondition("healthy", "flights", attempt.deployment_id))
    assert isinstance(seen.error, DeploymentFailedError)
    assert "Traceback" in str(seen.error)


@pytest.mark.parametrize("end", ["stopped", "finished", "drained"])
def test_an_end_with_its_state_kept_is_what_a_stop_was_for(
    client: Controller, stream: ScriptedStream, end: str
) -> None:
    """A stream that ended by itself needs no stop any more; one that somebody ended has not come to its end."""
    attempt = stream.deploy().runs()
    assert see(client, WaitCondition("stopped", "flights", attempt.deployment_id)) == PENDING
    snapshot_id = getattr(attempt, end)()
    seen = see(client, WaitCondition("stopped", "flights", attempt.deployment_id))
    assert seen.need_result()["snapshot_id"] == snapshot_id
    finished = see(client, WaitCondition("finished", "flights", attempt.deployment_id))
    if end == "finished":
        assert finished.need_result()["state"] == end
        return
    assert isinstance(finished.error, ConflictError)
    assert f"the run was {end}" in str(finished.error)
    waiting = see(client, WaitCondition("finished", "flights", attempt.deployment_id, if_stopped="wait"))
    assert waiting.outcome == "pending"


def test_any_snapshot_one_snapshot_and_the_snapshot_of_an_order(client: Controller, stream: ScriptedStream) -> None:
    """Three ways to ask for the same one."""
    attempt = stream.deploy().runs()
    any_one = WaitCondition("snapshot", "flights", attempt.deployment_id)
    that_one = WaitCondition("snapshot", "flights", attempt.deployment_id, snapshot_id="d-0001-live-000001")
    order = client.order("snapshot", "flights")
    ordered = WaitCondition("snapshot", "flights", attempt.deployment_id, command_id=order.command_id)
    assert [see(client, watch) for watch in (any_one, that_one, ordered)] == [PENDING] * 3
    assert not attempt.obey("")
    for watch in (any_one, that_one, ordered):
        assert see(client, watch).need_result() == {
            "deployment_id": "d-0001",
            "snapshot_id": "d-0001-live-000001",
            "kind": "live",
            "files": 0,
            "bytes": 0,
            "queries": {QUERY: {"batch_id": 0}},
        }


def test_a_look_at_a_request_asks_whoever_runs_by_now(client: Controller, stream: ScriptedStream) -> None:
    """By the request id alone, in whichever process: a triggerer's too."""
    attempt = stream.deploy().runs()
    order = client.order("snapshot", "flights", request_id="r-1")
    watch = WaitCondition("snapshot", "flights", attempt.deployment_id, order.command_id, request_id="r-1")
    attempt.failed("boom")
    successor = stream.deploy().runs()
    assert see(client, watch) == PENDING
    assert "running" in str(client.out_of_time(watch, DEADLINE).context["last_seen"])
    assert not successor.obey("")
    assert see(client, watch).need_result()["snapshot_id"] == "d-0002-live-000001"


def test_a_request_that_is_refused_is_not_waited_for(client: Controller, stream: ScriptedStream) -> None:
    """There is nothing to snapshot; and an unknown request is no watch."""
    attempt = stream.deploy().runs()
    order = client.order("snapshot", "flights", request_id="r-1")
    attempt.say(Rejected, command_id=order.command_id, command_number=1, key="k", reason="nothing is committed yet")
    watch = WaitCondition("snapshot", "flights", attempt.deployment_id, request_id="r-1")
    assert isinstance(see(client, watch).error, ConflictError)
    with pytest.raises(InvalidRequestError, match="no snapshot was asked for"):
        see(client, replace(watch, request_id="r-2"))


def test_a_snapshot_that_cannot_come_is_not_waited_for(client: Controller, stream: ScriptedStream) -> None:
    """It was never taken, and its deployment has ended."""
    attempt = stream.deploy().runs()
    attempt.stopped()
    watch = WaitCondition("snapshot", "flights", attempt.deployment_id, snapshot_id="d-0001-live-000009")
    assert see(client, watch).outcome == "over"


def test_what_is_lost_may_still_come(client: Controller, stream: ScriptedStream) -> None:
    """Silence is no end: only what an event or the launcher reports is one."""
    attempt = stream.deploy(client.clock.now() - timedelta(hours=2))
    attempt.claim().started()
    attempt.beat(client.clock.now() - timedelta(hours=1))
    assert see(client, drain_of(attempt)) == PENDING


def test_a_wait_that_ends_says_what_was_last_seen(client: Controller, stream: ScriptedStream) -> None:
    """And that the stream continues (Law 6)."""
    attempt = stream.deploy().runs()
    error = client.out_of_time(drain_of(attempt), DEADLINE)
    assert "running" in str(error.context["last_seen"])
    assert "delays at batch 0" in str(error.context["last_seen"])
    assert "continues" in str(error)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        {"wanted": "everything", "stream_id": "s", "deployment_id": "d-0001"},
        {"wanted": "drained", "stream_id": "s"},
        {"wanted": "drained", "stream_id": "s", "deployment_id": "d-0001", "command_id": 7},
        {"wanted": "snapshot", "stream_id": "s", "deployment_id": "d-0001", "request_id": 7},
    ],
)
def test_what_is_no_watch_is_told(raw: object) -> None:
    """A watch came through a database."""
    with pytest.raises(ValueError, match="wait condition"):
        WaitCondition.from_json(raw)


def test_a_watch_survives_the_database_and_ignores_what_is_newer() -> None:
    """A newer release may have written more (Law 7)."""
    watch = WaitCondition("drained", "flights", "d-0001", command_id="c", request_id="r")
    assert WaitCondition.from_json({**watch.to_json(), "newer": 1}) == watch


@pytest.mark.parametrize(
    ("counts", "total"), [((0, 0), 0), ((0, 4), 4), ((0, None), None), ((3, None), None), ((None, None), None)]
)
def test_rows_that_nobody_counted_are_not_zero(counts: tuple[int | None, int | None], total: int | None) -> None:
    """A DAG that branches on the rows left never reads "nothing" for unknown (Law 16)."""
    first, second = counts
    queries = {
        "a": QueryPosition(3, state_rows_left=first),
        "b": QueryPosition(5, state_rows_left=second),
        "never": QueryPosition(None),
    }
    outcome = Outcome("orders", "d-0001", "drained", "drained", queries=queries)
    assert end_result(outcome)["state_rows_left"] == total
