"""Human-readable output."""

from __future__ import annotations

import io
from functools import partial
from typing import Any, get_args

import pytest
from rich.console import Console

from airflow_streamstate.cli import look, render
from airflow_streamstate.cli.render import is_told_by, without_launch_folder
from airflow_streamstate.controller.observe.observation import State
from airflow_streamstate.protocol.redaction import without_query_report

VERBOSE_STATUS = partial(render.status, verbose=True)


def printed(width: int, *arguments: Any) -> str:
    """What a function of ``tables`` prints on a screen of this width."""
    show, *rest = arguments
    page = io.StringIO()
    show(Console(file=page, width=width, highlight=False), *rest)
    return page.getvalue()


def test_every_state_has_a_colour() -> None:
    """No state goes unnoticed."""
    assert set(render.COLOURS) == {*get_args(State), "unreadable"}


@pytest.mark.parametrize("text", ["[/red]", "[bold]x", "\x1b[2J", "a\rb", "\x9b31m", "[link=x]", "\x07"])
def test_nothing_that_somebody_wrote_acts_on_the_terminal(text: str) -> None:
    """Names, labels and messages are shown, not obeyed."""
    queries = {text: {"batch_id": 1}}
    page = printed(
        200, render.standing, {"stream_id": "s", "deployment_id": "d-0001", "state": "running", "queries": queries}
    )
    problem = {"kind": "altered", "query": text, "path": text, "detail": text}
    loaded = {text: {"operators": []}}
    page += printed(200, render.verified, {"snapshot_id": "s-1", "ok": False, "problems": [problem], "loaded": loaded})
    page += printed(200, render.error, {"message": text, "context": {"a": text, "b": f"{text}\n"}, "next_step": text})
    page += printed(200, look.print_events, [{"number": 1, "kind": text, "reason": text}])
    assert not any(sign in page for sign in "\x1b\r\x9b\x07")
    if text.startswith("["):
        assert page.count(text) >= 9


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0.0, "0 s ago"),
        (119.0, "119 s ago"),
        (130.0, "2 min ago"),
        (7201.0, "2 h ago"),
        (200_000.0, "2 d ago"),
    ],
)
def test_ages_are_told_in_units_that_people_count_in(seconds: float | None, text: str) -> None:
    """Two hours are not 7,201 s."""
    row = {
        "stream_id": "s",
        "state": "running",
        "deployment_id": "d-0001",
        "attempt": 1,
        "heartbeat_age_seconds": seconds,
    }
    assert text in printed(200, render.streams, [row], "home").splitlines()[1]


def test_a_narrow_screen_loses_nothing() -> None:
    """On a narrow terminal cells are folded, and no character is cut off."""
    path = "state/0/1/" + "x" * 80
    problem = {"kind": "missing", "query": "counts", "path": path, "detail": "gone"}
    page = printed(40, render.verified, {"snapshot_id": "s-1", "ok": False, "problems": [problem], "loaded": None})
    assert page.count("x") == 80


def test_batch_zero_and_no_batch_are_told_apart() -> None:
    """0 is a batch; none is a dash."""
    row = {"stream_id": "s", "deployment_id": "d-0001", "state": "running"}
    queries = {"a": {"batch_id": 0, "state_rows": None}, "b": {"batch_id": None, "state_rows": None}}
    lines = printed(100, render.standing, {**row, "queries": queries}).splitlines()
    assert [line.split() for line in lines[1:]] == [["query", "batch"], ["a", "0"], ["b", "-"]]


def test_batches_that_look_skipped_are_shown_where_there_are_any() -> None:
    """An alarm catches the eye: a column that is nought for everybody is left out."""
    row = {"stream_id": "s", "deployment_id": "d-0001", "state": "running"}
    quiet = {"a": {"batch_id": 1, "skipped_batches": 0}}
    assert "skipped" not in printed(200, render.standing, {**row, "queries": quiet})
    loud = {**quiet, "b": {"batch_id": 2, "skipped_batches": 3}}
    assert "skipped" in printed(200, render.standing, {**row, "queries": loud})


def test_a_start_is_told_as_a_sentence() -> None:
    """How it starts, from what, and what a person should know about it."""
    row = {"stream_id": "s", "deployment_id": "d-0002", "attempt": 1, "notes": ["query a first runs batch 4"]}
    start = {"mode": "restore", "snapshot_id": "d-0001-stopped-000001"}
    text = printed(200, render.deploying, {**row, "start": start})
    assert text.splitlines() == [
        "s d-0002 attempt 1 is restored with the state of snapshot d-0001-stopped-000001",
        "  query a first runs batch 4",
    ]


def test_a_job_that_ended_without_a_query_is_told() -> None:
    """A script that started no query has finished; a person reads that nothing streamed."""
    row = {"stream_id": "s", "deployment_id": "d-0001", "attempt": 1, "state": "finished", "queries": {}}
    for show in (render.standing, render.status):
        assert "without starting a query" in printed(200, show, row)
        assert "without" not in printed(200, show, {**row, "queries": {"a": {"batch_id": 0}}})


def test_of_a_failure_the_reason_and_the_next_step_are_told_and_not_sparks_plan() -> None:
    """In ``status`` as in an error; JSON has every word of it."""
    words = "[STREAM_FAILED] poison\n=== Streaming Query ===\nLogical Plan:\n~Project"
    row = {"stream_id": "s", "deployment_id": "d-0001", "attempt": 1, "state": "failed", "queries": {}, "error": words}
    trace = f'Traceback\n  File "/home/s/deployments/d-0001/launches/d-0001-a0001/code/job.py"\n{words}'
    page = printed(200, VERBOSE_STATUS, {**row, "traceback": trace, "next_step": "Fix it."})
    assert page.count("[STREAM_FAILED] poison") == 2
    assert page.splitlines()[1] == "-> Fix it."
    assert 'File "job.py"' in page  # not the path of its copy for this launch
    error = {"message": "the deployment failed", "context": {"error": words}, "next_step": "Fix it."}
    assert "Logical Plan" not in page + printed(200, render.error, error)
    context = {"traceback": "Traceback\n  line 3\nValueError: boom", "log_tail": "started\nValueError: boom"}
    assert printed(200, render.error, {**error, "context": context}).count("boom") == 1
    assert "->" not in printed(200, render.status, {**row, "state": "running", "error": "", "next_step": ""})


def test_facts_of_an_error_are_not_shown_as_python_has_them() -> None:
    """What is more than a word is JSON, as everywhere else."""
    error = {"message": "it is so", "context": {"batches": {"a": [1, 2]}, "is_held": True}, "next_step": ""}
    assert printed(200, render.error, error) == 'streamstate: it is so. batches={"a": [1, 2]} is_held=true\n'


def test_where_a_drain_stands_is_told_per_query() -> None:
    """While a deployment drains each query shows how far it is; otherwise drains are not mentioned (1a.5)."""
    row = {"stream_id": "s", "deployment_id": "d-0001", "state": "draining"}
    queries = {"a": {"batch_id": 5, "drain_phase": "flushing"}, "b": {"batch_id": 2, "drain_phase": None}}
    lines = printed(100, render.status, {**row, "queries": queries}).splitlines()[-3:]
    assert [line.split() for line in lines] == [["query", "drain", "batch"], ["a", "flushing", "5"], ["b", "-", "2"]]
    assert "drain" not in printed(100, render.status, {**row, "state": "running", "queries": {"b": queries["b"]}})


def test_the_end_of_a_drain_fits_on_a_screen() -> None:
    """The facts of a table of eight columns are printed one a line, and nothing that no query has."""
    times = dict.fromkeys(("watermark_at", "open_windows_from_at", "open_windows_until_at"), "2026-03-01T10:00:00Z")
    query = {"batch_id": 9, "rows_written_early": 3, "state_rows_left": 0, **times}
    row = {"stream_id": "s", "deployment_id": "d-0001", "state": "drained", "outcome": "drained"}
    page = printed(80, render.ordered, {**row, "queries": {"delays": query, "raw": {"batch_id": 4}}}, "drain")
    assert max(map(len, page.splitlines())) <= 60
    assert [line.split()[-1] for line in page.splitlines() if line.strip().startswith("rows written early")] == ["3"]
    assert page.splitlines()[-2:] == ["  query raw", "    batch                4"]
    narrow = printed(80, render.ordered, {**row, "queries": {"raw": {"batch_id": 4}}}, "drain")
    assert [line.split() for line in narrow.splitlines()[-2:]] == [["query", "batch"], ["raw", "4"]]


WORDS = """[STREAM_FAILED] Query [id = 1] terminated with exception: [USER_RAISED_EXCEPTION] poison SQLSTATE: P0001
=== Streaming Query ===
Identifier: delays [id = 1]
Current Committed Offsets: {}

Logical Plan:
~WriteToMicroBatchDataSourceV1 FileSink
+- ~Project"""


def test_the_plan_is_left_out_and_the_reason_is_not() -> None:
    """Of the message, and of a traceback that has it in its middle."""
    reason = WORDS.splitlines()[0]
    assert without_query_report(WORDS) == reason
    trace = "Traceback (most recent call last):\n  line 60\n" + WORDS + "\n\nJVM stacktrace:\nat org.apache"
    assert without_query_report(trace).splitlines() == [
        "Traceback (most recent call last):",
        "  line 60",
        reason,
        "JVM stacktrace:",
        "at org.apache",
    ]


def test_what_is_no_such_report_stays_as_it_is() -> None:
    """Every line of it."""
    assert without_query_report("ValueError: a\nb") == "ValueError: a\nb"
    assert without_query_report("") == ""


def test_the_folder_of_a_launch_or_a_rehearsal_is_left_out() -> None:
    """The script was pinned there for one launch, and is pruned; its name is what a person knows."""
    key = "s/scratch/r-0b8e3c525f0e-0001/launches/r-0b8e3c525f0e-0001-a0001"
    for folder in ("/home", "/my home"):
        text = f'  File "{folder}/{key}/code/job.py", line 3, in <module>\n  File "{folder}/lib/rules.py", line 1'
        assert without_launch_folder(text) == (
            f'  File "job.py", line 3, in <module>\n  File "{folder}/lib/rules.py", line 1'
        )
    assert without_launch_folder(f"cannot import rules from {'/home/' + key}/code/py-files/rules.py") == (
        "cannot import rules from rules.py"
    )
    assert without_launch_folder(f"see /home/{key}/driver.log") == f"see /home/{key}/driver.log"


def test_a_log_that_ends_with_the_traceback_tells_nothing_new() -> None:
    """Python prints it there, too; a log that ends with anything else is worth reading."""
    trace = "Traceback (most recent call last):\n  line 60\nValueError: boom\n\n"
    assert is_told_by(trace, f"WARN something\n{trace}")
    assert not is_told_by(trace, "java.lang.OutOfMemoryError")
    assert is_told_by(f"{trace}\n\nJVM stacktrace:\n\tat a.B.c(D.java:1)", f"begun\n{trace}\n20:01 INFO stopped")
    assert not is_told_by("cut off\n  line 3", "java.lang.OutOfMemoryError")
    assert not is_told_by("", "ValueError: boom")
    assert not is_told_by(None, "ValueError: boom")
