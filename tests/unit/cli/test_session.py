"""What all verbs share: the form of results, errors and progress."""

from __future__ import annotations

import contextlib
import io
import json

from airflow_streamstate.cli.session import ShellSession
from support.fake_clock import FakeClock
from support.shell import Desk, Terminal, shell


def _printed(session: ShellSession, value: dict[str, object]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        session.emit(value, lambda console: console.print("for people"))
    return out.getvalue()


def _progress(session: ShellSession, stderr: io.StringIO, *texts: str) -> str:
    with contextlib.redirect_stderr(stderr), session.progress("orders d-0001") as report:
        for text in texts:
            report(text)
    return stderr.getvalue()


def test_json_survives_every_terminal() -> None:
    """The one line of JSON is ASCII, whatever a name or an argument holds."""
    text = _printed(ShellSession(as_json=True), {"name": "café \udcff [/red] \x1b[31m\n"})
    assert text.isascii()
    assert text.count("\n") == 1
    assert json.loads(text)["name"].startswith("café")


def test_a_person_gets_no_json() -> None:
    """Without --json the result is text."""
    assert _printed(ShellSession(), {"name": "x"}) == "for people\n"


def test_into_a_pipe_nothing_is_cut_or_filled_up() -> None:
    """Each line of a listing stays one line, without blanks at its end."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        ShellSession().emit({}, lambda console: console.print("x" * 500, "y"))
    assert out.getvalue() == f"{'x' * 500} y\n"


def test_progress_is_silent_with_json() -> None:
    """stdout is one object, and stderr stays for what went wrong."""
    assert _progress(ShellSession(as_json=True), io.StringIO(), "one", "two") == ""


def test_progress_into_a_pipe_tells_news_only() -> None:
    """An age that grows by a second is no news; a new state is."""
    texts = ("running; heartbeat 1 s ago", "running; heartbeat 2 s ago", "stopping; heartbeat 2 s ago")
    lines = _progress(ShellSession(), io.StringIO(), *texts).splitlines()
    assert lines == ["orders d-0001: running; heartbeat 1 s ago", "orders d-0001: stopping; heartbeat 2 s ago"]


def test_counts_that_grow_are_news_every_five_seconds() -> None:
    """A line per file would bury a log; what is counted, when it changes, is reported at once."""
    clock, stderr = FakeClock(), io.StringIO()
    with contextlib.redirect_stderr(stderr), ShellSession(clock=clock).progress("orders") as report:
        for files in range(12):
            report(f"s-1: {files} of 12 files")
            clock.sleep(1.0)
        report("s-2: 0 of 3 files")
    told = ["s-1: 0 of 12 files", "s-1: 5 of 12 files", "s-1: 10 of 12 files", "s-2: 0 of 3 files"]
    assert stderr.getvalue().splitlines() == [f"orders: {text}" for text in told]


def test_progress_on_a_terminal_is_one_line_that_goes_away() -> None:
    """However long and hostile a text is, it neither wraps nor acts on the terminal."""
    text = _progress(ShellSession(), Terminal(), "[/red] " + "long " * 200 + "\x1b[2J\n")
    assert "\x1b[2J\n" not in text
    assert "\x1b[2J " not in text.replace("\x1b[2K", "")
    assert "[/red]" in text


def test_an_error_for_a_person_is_a_sentence_facts_blocks_and_the_next_step() -> None:
    """Texts of many lines follow the sentence, and are not in it."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        ShellSession().fail(
            {
                "type": "DeploymentFailedError",
                "message": "the deployment failed",
                "context": {"state": "failed", "reason": "a b", "snapshot_id": None, "traceback": "one\n  two"},
                "next_step": "Fix it.",
            }
        )
    assert err.getvalue() == (
        'streamstate: the deployment failed. state=failed reason="a b"\n-> Fix it.\ntraceback:\n    one\n      two\n'
    )


def test_what_is_said_before_the_result_goes_to_stderr() -> None:
    """stdout holds the result alone."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        ShellSession().say(lambda console: console.print("it starts"))
        ShellSession(as_json=True).say(lambda console: console.print("it starts"))
    assert (out.getvalue(), err.getvalue()) == ("", "it starts\n")


def test_colours_are_for_terminals_only(desk: Desk) -> None:
    """A state has its colour on a terminal, and not in a pipe."""
    desk.stream().deploy().runs()
    assert "\x1b[32mrunning" in shell("status", "flights", terminal=True).out
    assert "\x1b" not in shell("status", "flights").out


def test_whoever_asks_is_recorded(desk: Desk) -> None:
    """An order records which user of which surface gave it."""
    attempt = desk.stream().deploy().runs()
    assert shell("stop", "flights", "--reason", "maintenance", "--async").status == 0
    (slot,) = attempt.control.journal(attempt.deployment_id).commands()
    assert slot.command is not None
    assert slot.command.requested_by.endswith("(shell)")
    assert slot.command.reason == "maintenance"
