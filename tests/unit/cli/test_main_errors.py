"""What ``main`` adds to an error: streams of similar names, full disks, and what an interrupted verb leaves."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from airflow_streamstate.cli.main import interrupted, name_full_disks, name_nearby
from airflow_streamstate.controller.home import Home
from airflow_streamstate.errors import DeadlineExceededError, InvalidRequestError, StreamNotFoundError, UnavailableError
from support.shell import VERBS, Desk, command_of, shell

VERBS_OF_STREAMS = [
    "status", "events", "logs", "snapshot list", "audit", "stop", "drain", "snapshot create", "kill", "resume",
    "restart", "rollback", "snapshot prune", "retire", "home mirror", "snapshot inspect", "plan", "cancel",
    "continue", "approve", "reject", "replay", "alerts", "label", "snapshot retention",
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
    """The stream was not there, whatever the second poll reports."""

    def away() -> Home:
        raise UnavailableError("the store did not answer")

    error = StreamNotFoundError("this home has no such stream", stream_id="x", next_step="Look.")
    name_nearby(error, away)
    assert error.next_step == "Look."


FULL = SimpleNamespace(f_frsize=4096, f_blocks=9000, f_bavail=0, f_bfree=0, f_files=0, f_favail=0, f_ffree=0)


def test_status_says_that_the_disk_is_full(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver finds no room to report that: the heart just grows old, and a person asks why."""
    desk.stream().deploy()
    assert shell("status", "flights", "--json").json["full_disks"] == []
    monkeypatch.setattr(os, "statvfs", lambda _folder: FULL)
    assert shell("status", "flights", "--json").json["full_disks"] == [str(desk.home)]
    assert f"The disk of {desk.home} is full" in shell("status", "flights").out.splitlines()[1]


def test_a_wait_that_came_to_nothing_names_the_disk(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver could not report it, so the waiting command does."""
    desk.stream().deploy().runs()
    words = ("stop", "flights", "--request-id", "one", "--timeout", 0.2, "--json")
    assert "is full" not in shell(*words).error["next_step"]
    monkeypatch.setattr(os, "statvfs", lambda _folder: FULL)
    answer = shell(*words)
    assert answer.status == 3
    assert answer.error["next_step"].startswith(f"The disk of {desk.home} is full")


def test_a_home_that_cannot_be_opened_keeps_the_first_error() -> None:
    """What went wrong first is reported."""

    def nowhere() -> Home:
        raise InvalidRequestError("no home was given")

    error = DeadlineExceededError("it did not happen", next_step="Look.")
    name_full_disks(error, nowhere)
    assert error.next_step == "Look."


ORDERS = {"deploy", "resume", "skip", "stop", "drain", "snapshot create", "kill", "cancel"}


@pytest.mark.parametrize("verb", VERBS)
def test_only_a_verb_that_orders_says_that_its_order_goes_on(verb: str) -> None:
    """A poll leaves nothing behind, and a rehearsal is ended; what continues is named with its stream."""
    told = interrupted(verb, "flights")
    assert ("a recorded order continues" in str(told["message"])) == (verb in ORDERS)
    assert "STREAM" not in str(told["next_step"])


def test_the_stream_is_called_by_its_name(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 1, and a next step that can be typed as it is."""

    def interrupt(*_args: object, **_kwargs: object) -> None:
        raise KeyboardInterrupt

    for verb, words in (("stop", ()), ("plan", ("--app", "v2.py"))):
        command = command_of(verb)
        with monkeypatch.context() as patched:
            patched.setattr(command, "callback", interrupt)
            answer = shell("--json", verb, "flights", *words)
        assert answer.status == 1
        assert answer.error == interrupted(verb, "flights")
    assert "`streamstate status flights`" in str(interrupted("stop", "flights")["next_step"])


def test_before_the_stream_is_known_the_word_stands_for_it() -> None:
    """Nothing else can be reported that early."""
    assert "status STREAM" in str(interrupted("", "")["next_step"])
