"""For a stream that is not there: those that are called nearly so."""

from __future__ import annotations

import pytest

from airflow_streamstate.cli.main import name_nearby
from airflow_streamstate.controller.home import Home
from airflow_streamstate.errors import StreamNotFoundError, UnavailableError
from support.shell import Desk, shell

VERBS_OF_STREAMS = [
    "status", "events", "logs", "snapshot list", "audit", "stop", "drain", "snapshot create", "kill", "resume",
    "restart", "rollback", "snapshot prune", "retire", "home mirror", "snapshot inspect", "plan", "cancel",
    "continue", "approve", "reject",
]  # fmt: skip


@pytest.mark.parametrize("verb", VERBS_OF_STREAMS)
def test_a_slip_of_the_pen_is_told_the_stream_that_was_meant(desk: Desk, verb: str) -> None:
    """Every verb, in the step that comes next; the error is the one that it was."""
    desk.stream("flights").deploy()
    answer = shell("--json", verb, "flihgts")
    assert (answer.status, answer.error["type"]) == (2, "StreamNotFoundError")
    assert answer.error["next_step"].startswith("Did you mean flights? ")


def test_nothing_is_guessed_where_nothing_is_near(desk: Desk) -> None:
    """Nor is a folder without a stream in it, which another program left in the home."""
    desk.stream("flights").deploy()
    (desk.home / "arrivals").mkdir()
    for name in ("orders", "arrival"):
        assert "Did you mean" not in shell("--json", "status", name).error["next_step"]


def test_a_home_that_cannot_be_listed_keeps_the_first_error() -> None:
    """The stream was not there, whatever the second look says."""

    def away() -> Home:
        raise UnavailableError("the store did not answer")

    error = StreamNotFoundError("this home has no such stream", stream_id="x", next_step="Look.")
    name_nearby(error, away)
    assert error.next_step == "Look."
