"""The trigger's events."""

from __future__ import annotations

import json

import pytest

from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import ConflictError, DataError, DeadlineExceededError
from airflow_streamstate.triggers.streamstate import EventContent, read_event

WATCH = WaitCondition("drained", "flights", "d-0001", command_id="c")


@pytest.mark.parametrize(
    "content",
    [
        EventContent("done", WATCH, result={"snapshot_id": "s"}),
        EventContent("over", WATCH, error=ConflictError("it is stopped", state="stopped", next_step="Look.")),
        EventContent("deadline", WATCH, error=DeadlineExceededError("it did not happen")),
    ],
)
def test_an_event_survives_the_database(content: EventContent) -> None:
    """As plain JSON, there and back."""
    back = read_event(json.loads(json.dumps(content.to_json())))
    assert back.to_json() == content.to_json()
    assert (back.outcome, back.watch, back.result) == (content.outcome, content.watch, content.result)


def test_an_error_comes_out_as_the_error_that_it_was() -> None:
    """The worker fails with what the triggerer saw."""
    event = EventContent("over", WATCH, error=ConflictError("it is stopped")).to_json()
    with pytest.raises(ConflictError, match="it is stopped"):
        read_event(event).need_result()


@pytest.mark.parametrize(
    "event",
    [
        None,
        "success",
        {},
        {"outcome": "success", "watch": WATCH.to_json()},
        {"outcome": "done", "watch": WATCH.to_json()},
        {"outcome": "done", "watch": None, "result": {}},
        {"outcome": "over", "watch": WATCH.to_json(), "error": {"type": "KeyError", "message": "x", "context": {}}},
    ],
)
def test_what_is_no_event_of_ours_is_refused(event: object) -> None:
    """Nothing that came through a database is believed unread."""
    with pytest.raises(DataError, match="no event of StreamStateTrigger"):
        read_event(event)
