"""What a command prints about trouble: the fact, the next step, at most six lines; all of it by ``--verbose``."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from unit.cli.test_look import STATES

from airflow_streamstate.cli.options import COMMON_OPTIONS
from airflow_streamstate.cli.render import error, shown
from airflow_streamstate.cli.session import MOST_CHARACTERS, MOST_LINES, Answer
from support.scripted_driver import script
from support.shell import Desk, printed, shell

pytestmark = pytest.mark.fast

_NOTE = re.compile(r"… (.+): --verbose")
_TRACEBACK = "Traceback (most recent call last)"


def nothing(_desk: Desk) -> None:
    """The home has no stream, and a folder of it does not exist."""


def runs(desk: Desk) -> None:
    """The stream runs."""
    desk.stream().deploy().runs()


def fails(desk: Desk) -> None:
    """The script of the stream has raised."""
    answer = shell("deploy", "flights", "--app", script(desk.base, "fails"), "--timeout", 60)
    assert answer.status == 1


def in_state(name: str) -> Callable[[Desk], object]:
    """The stream is in this state."""
    return lambda desk: STATES[name](desk.stream())


def failed_with_traceback(desk: Desk) -> None:
    """The stream has failed, with the traceback of its script."""
    desk.stream().deploy().runs().failed(f'{_TRACEBACK}:\n  File "job.py", line 7, in f\nValueError: boom')


CASES: dict[str, tuple[Callable[[Desk], object], str, int, str]] = {
    "unknown stream": (runs, "status flihgts", 2, ""),
    "unreachable home": (nothing, "--home BASE/away list", 2, ""),
    "wrong option": (runs, "upgrade flights --ap v2.py", 2, ""),
    "failed attempt": (fails, "resume flights --timeout 60", 1, ""),
    "failed": (failed_with_traceback, "status flights", 1, _TRACEBACK),
    "failed query": (in_state("degraded"), "status flights", 1, "script     job.py"),
    "lost": (in_state("lost"), "status flights", 1, "  heartbeat  "),
    "fenced": (in_state("fenced"), "status flights", 0, "script     job.py"),
}
CHANGES: dict[str, tuple[str, int, str]] = {
    "refused upgrade": ("upgrade flights --app needs-drain --no-warm --timeout 60", 4, ""),
    "plan that does not fit": ("plan flights --app needs-drain", 4, ""),
    "plan whose script fails": ("plan flights --app fails", 1, "traceback:"),
}


def neutral(text: str) -> list[str]:
    """The lines without ids and numbers, which differ between two runs of a command."""
    ended = re.sub(r"\b[dur]-[0-9a-f]{4,}(-[0-9a-f]+)*", "ID", text)
    return re.sub(r"\d+(\.\d+)?", "N", ended).splitlines()


def check(line: str, status: int, only_verbose: str) -> None:
    """Run the command in both ways, and compare what they print about its end."""
    short, long = shell(*line.split()), shell(*line.split(), "--verbose")
    assert (short.status, long.status) == (status, status)
    said, all_said = (
        neutral(answer.out) if answer.out else neutral(answer.err[answer.err.index("streamstate: ") :])
        for answer in (short, long)
    )
    assert len(said) <= MOST_LINES, said
    assert said[1].startswith("-> ")
    assert all_said[:2] == said[:2]
    left = _NOTE.fullmatch((short.out or short.err).splitlines()[-1])
    assert (left is None) == (said == all_said)
    assert not any("--verbose" in row for row in all_said)
    kept = said if left is None else said[:-1]
    assert [row for row in kept if row not in all_said and "…" not in row] == []
    if left is not None:
        counts = [
            int(found[1]) if (found := re.search(r"\((\d+) lines\)", name)) else 1 for name in left[1].split(", ")
        ]
        cut = sum("…" in row for row in kept)
        assert len(all_said) >= len(kept) + sum(counts) - cut
    assert only_verbose in long.out
    assert not only_verbose or only_verbose not in short.out or left is None


@pytest.mark.parametrize("case", CASES)
def test_trouble_is_told_in_six_lines(desk: Desk, case: str) -> None:
    """An error, or the status of a stream that is not well."""
    prepare, line, status, only_verbose = CASES[case]
    prepare(desk)
    check(line.replace("BASE", str(desk.base)), status, only_verbose)


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_that_does_not_fit_is_told_in_six_lines(
    running: Desk, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """The end of an upgrade or a plan; the new script behaves as its name indicates."""
    line, status, only_verbose = CHANGES[case]
    word = line.split("--app ")[1].split()[0]
    application = script(running.base, word, name=f"{word}.py")
    monkeypatch.chdir(running.base)
    check(line.replace(f"--app {word}", f"--app {Path(application).name}"), status, only_verbose)


def test_verbose_is_taken_before_and_after_the_verb_and_from_the_environment(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All three print the same."""
    failed_with_traceback(desk)
    after = shell("status", "flights", "--verbose").out
    assert _TRACEBACK in after
    assert _TRACEBACK in shell("--verbose", "status", "flights").out
    assert _TRACEBACK not in shell("status", "flights").out
    monkeypatch.setenv("STREAMSTATE_VERBOSE", "1")
    assert _TRACEBACK in shell("status", "flights").out
    assert any("--verbose" in option.opts for option in COMMON_OPTIONS)


def test_json_is_the_same_with_and_without_verbose(desk: Desk) -> None:
    """A script reads every field."""
    runs(desk)
    words = ("status", "flihgts", "--json")
    assert shell(*words).json == shell(*words, "--verbose").json


def test_the_texts_of_a_failed_job_are_named() -> None:
    """The cause, the next step, the sentence with its facts; the last line has the lengths of the texts."""
    trace = "\n".join((f"{_TRACEBACK}:", *(f"  line {number}" for number in range(9)), "ValueError: boom"))
    context = {"stream_id": "flights", "error": "ValueError: boom", "traceback": trace, "log_tail": "one\ntwo"}
    row = {"type": "DeploymentFailedError", "message": "the job failed", "context": context, "next_step": "Fix it."}
    assert printed(error, row).splitlines() == [
        "streamstate: ValueError: boom",
        "-> Fix it.",
        'the job failed. stream_id=flights error="ValueError: boom"',
        "… traceback (12 lines), log tail (3 lines): --verbose",
    ]
    whole = printed(lambda console: error(console, row, verbose=True)).splitlines()
    assert whole[:4] == [*printed(error, row).splitlines()[:3], "traceback:"]
    assert whole[-3:] == ["log tail:", "    one", "    two"]


def test_facts_of_an_error_are_cut_at_a_fact() -> None:
    """The last line counts those that are missing."""
    row = {
        "message": "it is so",
        "context": {f"fact_{number}": "x" * 60 for number in range(10)},
        "next_step": "Do it.",
    }
    first, second, last = printed(error, row).splitlines()
    assert first.endswith(f"fact_4={'x' * 60} …")
    assert len(first) <= MOST_CHARACTERS + len("streamstate: ") + 2
    assert (second, last) == ("-> Do it.", "… 5 facts: --verbose")
    assert "fact_9" in printed(lambda console: error(console, row, verbose=True))


def test_a_long_text_is_cut_to_its_first_line() -> None:
    """It is named among what was left out; a text that is no main part is only named."""
    answer, page = Answer(), io.StringIO()
    answer.print(shown("it is so"))
    answer.main("reason").print(shown("one\ntwo"))
    answer.more("driver").print(shown("yarn"))
    answer.block("traceback", "a\nb\nc")
    answer.show(Console(file=page, width=200), "Do\nit.", is_short=True)
    assert page.getvalue().splitlines() == [
        "it is so",
        "-> Do it.",
        "one…",
        "… reason (2 lines), driver, traceback (4 lines): --verbose",
    ]
