"""``replay``, over drivers that run no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.protocol.scratch import Replay
from support.scripted_driver import script
from support.scripted_rehearsal import CHANGED
from support.scripted_stream import QUERY
from support.shell import Answer, Desk, shell

pytestmark = pytest.mark.fast

STREAM = "flights"


def recorded(*words: object) -> Answer:
    """Replay with the recorded version."""
    return shell("replay", STREAM, *words)


def replay(desk: Desk, word: str, *words: object) -> Answer:
    """Replay with a version whose driver behaves so."""
    return shell("replay", STREAM, "--app", script(desk.base, word, name=f"{word}.py"), *words)


def test_the_newest_batch_is_replayed_by_default(failed: Desk) -> None:
    """The one that is planned and not committed; its files are named, and of the driver its reports alone are left."""
    answer = recorded("--json")
    assert (answer.status, answer.err) == (0, "")
    found = answer.json
    assert (found["outcome"], found["deployment_id"]) == ("done", "d-0001")
    assert found["out"] == str(failed.base / f"replay-{STREAM}-4")
    (batch,) = found["queries"][QUERY]["batches"]
    assert (batch["batch_id"], batch["rows_in"], batch["rows_out"]) == (4, 1200, 34)
    assert batch["files"] == ["part-0.parquet"]
    assert not list(failed.home.rglob("launches/r-*"))
    assert failed.stream().control.deployment_ids() == ["d-0001"]


@pytest.mark.parametrize(
    ("word", "status", "outcome", "error"),
    [
        ("divides", 1, "failed", "batch 4 fails: ZeroDivisionError: division by zero"),
        ("gone", 4, "refused", "the source does not have the rows of this batch any more"),
        ("fails", 1, "failed", "ModuleNotFoundError: No module named 'rules'"),
    ],
)
def test_the_status_tells_what_became_of_it(failed: Desk, word: str, status: int, outcome: str, error: str) -> None:
    """With the script's own error."""
    answer = replay(failed, word, "--json")
    assert (answer.status, answer.json["outcome"]) == (status, outcome)
    assert answer.json["queries"][QUERY]["error"] == error


def test_a_person_reads_a_table_and_the_traceback(failed: Desk) -> None:
    """What is replayed on stderr, the report on stdout."""
    answer = replay(failed, "divides", "--last", 2, "--out", failed.base / "out", "--verbose")
    assert "batches 3 to 4 of d-0001" in answer.err
    assert f"into {failed.base / 'out' / 'old'}" in answer.err
    assert f"into {failed.base / 'out' / 'new'}" in answer.err
    assert "the replay of the recorded script is done" in answer.out
    assert "the replay of the new script is failed" in answer.out
    rows = [line.split() for line in answer.out.splitlines() if line.startswith(f"{QUERY} ")]
    assert rows[0][1:] == ["3", "1,200", "34", "34", "34", "-", "0", "0", "0.5", "0.5"]
    assert rows[1][1:] == ["4", "1,200", "34", "-", "-", "-", "-", "-", "0.5", "0.0"]
    assert f"new, {QUERY}: batch 4 fails: ZeroDivisionError" in answer.out
    assert f"batch 4 of {QUERY} in the new version:\n    Traceback" in answer.out
    assert f"rows of the new version: {failed.base / 'out' / 'new'}" in answer.out
    alone = recorded()
    (row,) = [line.split() for line in alone.out.splitlines() if line.startswith(f"{QUERY} ")]
    assert row[1:5] == ["4", "1,200", "34", "0.5"]


def test_both_versions_run_the_same_batches_and_their_rows_are_compared(failed: Desk) -> None:
    """Same, only old, only new, with samples; a job of CI can fail by it."""
    words = ("--last", 2, "--fail-on-changed-rows", "--json")
    same = replay(failed, "fits", *words, "--out", failed.base / "same")
    assert same.status == 0
    assert [batch["batch_id"] for batch in same.json["old"]["queries"][QUERY]["batches"]] == [3, 4]
    assert same.json["old"]["out"] == str(failed.base / "same" / "old")
    changed = replay(failed, "changes", *words, "--out", failed.base / "changed")
    assert (changed.status, changed.json["outcome"]) == (1, "done")
    comparison = changed.json["queries"][QUERY]["batches"][0]["comparison"]
    assert (comparison["same"], comparison["changed"], comparison["only_old"], comparison["only_new"]) == (32, 1, 2, 1)
    assert comparison["keys"] == ["k"]
    speed = {"batches": 1, "old_seconds": 0.5, "new_seconds": 0.5, "is_cold": False, "ratio": 1.0}
    assert changed.json["speed"] == speed, "the first of two is left out"
    shown = replay(failed, "changes", "--out", failed.base / "shown")
    assert shown.status == 0
    (row,) = [line.split() for line in shown.out.splitlines() if line.startswith(QUERY) and "stateStoreSave" in line]
    assert row == [QUERY, "0-stateStoreSave/rows", "6", "1", "0", "1"]
    assert f"state 0-stateStoreSave/rows of {QUERY}, changed:\n    {CHANGED}\n" in shown.out
    assert f"batch 4 of {QUERY}, changed:\n    {CHANGED}\n" in shown.out
    assert f'batch 4 of {QUERY}, only old:\n    {{"k":"a"}}\n    {{"k":"b"}}\n' in shown.out
    alone = recorded("--fail-on-changed-rows", "--json")
    assert (alone.status, "give --app" in alone.error["message"]) == (2, True)


def test_a_script_that_is_not_there_is_told_before_the_recorded_one_runs(failed: Desk) -> None:
    """Nothing is recorded."""
    answer = shell("replay", STREAM, "--app", "missing.py", "--json")
    assert (answer.status, answer.error["type"]) == (2, "InvalidRequestError")
    assert failed.stream().control.scratch_ids() == []


def test_one_batch_is_named(failed: Desk) -> None:
    """Also of a deployment by its id."""
    answer = replay(failed, "fits", "--batch", 2, "--deployment", "d-0001", "--query", QUERY, "--json")
    assert answer.status == 0
    assert [batch["batch_id"] for batch in answer.json["queries"][QUERY]["batches"]] == [2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--batch", 9), "the query has not planned this batch"),
        (("--query", "nothing"), "this deployment has no such query"),
        (("--deployment", "d-0009"), "this stream has no such deployment"),
        (("--out", "s3://bucket/rows"), "a replay writes into a folder of this machine"),
    ],
)
def test_what_is_not_there_is_refused_with_a_next_step(failed: Desk, words: tuple[object, ...], said: str) -> None:
    """With the status of usage, and nothing recorded."""
    answer = replay(failed, "fits", *words, "--json")
    assert (answer.status, answer.error["message"]) == (2, said)
    assert answer.error["next_step"]
    assert failed.stream().control.scratch_ids() == []


def test_a_batch_and_the_newest_ones_are_one_too_many(failed: Desk) -> None:
    """Before anything is looked at."""
    answer = replay(failed, "fits", "--batch", 2, "--last", 2, "--json")
    assert answer.status == 2
    assert "leave out one of them" in answer.error["message"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--pdb",), "--pdb opens a debugger on the terminal, and this is none"),
        (("--pdb", "--deadline", 60), "leave out --deadline, or --pdb"),
        (("--pdb", "--master", "spark://one:7077"), "--pdb reaches processes of this machine"),
    ],
)
def test_a_debugger_needs_a_terminal_and_processes_of_this_machine(
    failed: Desk, words: tuple[str, ...], said: str
) -> None:
    """Before anything is recorded."""
    answer = recorded(*words, "--json")
    assert (answer.status, said in answer.error["message"]) == (2, True), answer
    assert failed.stream().control.scratch_ids() == []


def test_a_call_of_foreach_batch_concerns_the_new_version_alone(failed: Desk) -> None:
    """The recorded one would write what production has written."""
    assert recorded("--call-foreach-batch", "--out", failed.base / "one").status == 0
    assert replay(failed, "fits", "--call-foreach-batch", "--out", failed.base / "two").status == 0
    control = failed.stream().control
    runs = [run for run in map(control.scratch_run, control.scratch_ids()) if run is not None]
    replays = [run.what for run in runs if isinstance(run.what, Replay)]
    calls = {Path(each.out).name: each.calls_foreach_batch for each in replays}
    assert calls == {"one": True, "old": False, "new": True}


def test_files_that_are_there_are_never_mixed_with_others(failed: Desk) -> None:
    """The folder has to be empty or new; the home is none (Law 4)."""
    Path("taken").mkdir()
    Path("taken/kept.txt").write_text("mine")
    taken = replay(failed, "fits", "--out", "taken", "--json")
    assert (taken.status, taken.error["message"]) == (4, "the folder for the rows is not empty")
    inside = replay(failed, "fits", "--out", failed.home / "rows", "--json")
    assert (inside.status, inside.error["type"]) == (2, "InvalidRequestError")
    assert failed.stream().control.scratch_ids() == []


def test_a_replay_that_takes_too_long_is_ended(failed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the status of a deadline (Law 6)."""
    monkeypatch.setattr("airflow_streamstate.controller.scratch.run.LATE_SECONDS", 0.5)
    answer = replay(failed, "hangs", "--deadline", 1, "--json")
    assert (answer.status, answer.json["outcome"]) == (3, "deadline")
    assert "not over at its deadline" in answer.json["error"]
