"""``plan``, over drivers that run no Spark."""

from __future__ import annotations

import pytest

from airflow_streamstate.controller.home import Home, HomeConfig
from support.scripted_driver import script
from support.scripted_rehearsal import keep_plan
from support.scripted_stream import QUERY
from support.shell import Answer, Desk, shell

pytestmark = pytest.mark.fast


def plan(desk: Desk, word: str, *words: object) -> Answer:
    """Plan a version whose rehearsal behaves so."""
    return shell("plan", "flights", "--app", script(desk.base, word, name=f"{word}.py"), *words)


@pytest.mark.parametrize(
    ("word", "status", "outcome", "verdict"),
    [
        ("fits", 0, "fits", "same"),
        ("needs-drain", 4, "refused", "needs-drain"),
        ("refused", 4, "refused", "same"),
        ("fails", 1, "failed", None),
        ("dies", 1, "failed", None),
    ],
)
def test_a_job_of_ci_can_refuse_a_change_by_the_status(
    running: Desk, word: str, status: int, outcome: str, verdict: str | None
) -> None:
    """One JSON object with the report; nothing of the stream has moved, and nothing but reports is left."""
    answer = plan(running, word, "--json")
    assert (answer.status, answer.err) == (status, "")
    assert (answer.json["outcome"], answer.json["verdict"]) == (outcome, verdict)
    assert {"queries", "rehearsal", "reason", "notes"} <= set(answer.json)
    assert running.stream().control.deployment_ids() == ["d-0001"]
    assert not list(running.home.rglob("launches/r-*"))


def test_a_rehearsal_that_takes_too_long_is_ended(running: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the status of a deadline (Law 6)."""
    monkeypatch.setattr("airflow_streamstate.controller.scratch.run.LATE_SECONDS", 0.5)
    answer = plan(running, "hangs", "--deadline", 1, "--json")
    assert (answer.status, answer.json["outcome"]) == (3, "deadline")
    assert "not over at its deadline" in answer.json["reason"]


def test_a_person_reads_what_differs_and_what_to_do(running: Desk) -> None:
    """What is rehearsed on stderr, the report on stdout."""
    answer = plan(running, "needs-drain")
    assert "the change is rehearsed" in answer.err
    assert "the change does not fit: needs-drain" in answer.out
    assert "aggregate-added" in answer.out
    assert "-> Migrate the state: `--auto-migrate`" in answer.out
    failed = plan(running, "fails")
    assert "No module named 'rules'" in failed.out
    assert "traceback:" in failed.out


def test_the_report_for_a_pull_request_is_markdown(running: Desk) -> None:
    """And with --json it is JSON all the same."""
    answer = plan(running, "needs-drain", "--markdown")
    assert answer.out.startswith("### `flights`: the change does not fit (`needs-drain`)\n")
    assert plan(running, "needs-drain", "--markdown", "--json").json["verdict"] == "needs-drain"


def test_settings_alone_are_a_change_too(desk: Desk) -> None:
    """The script that runs stays, by its digest (Law 15); what follows -- is its own; secrets are refused as ever."""
    assert shell("deploy", "flights", "--app", script(desk.base, "runs"), "--timeout", 60).status == 0
    control = desk.stream().control
    keep_plan(control, "d-0001", QUERY)
    words = ("--no-rehearsal", "--conf", "spark.a=1", "--env", "A_TOKEN=tr0ub4dor", "--json")
    refused = shell("plan", "flights", *words)
    assert (refused.status, refused.error["type"]) == (2, "InvalidRequestError")
    assert "tr0ub4dor" not in refused.out
    answer = shell("plan", "flights", *words, "--allow-literal-secrets", "--request-id", "mine", "--", "--input", "x")
    assert (answer.status, answer.json["rehearsal"]["ok"]) == (0, None), answer
    (rehearsal_id,) = control.scratch_ids()
    run = control.scratch_run(rehearsal_id)
    assert run is not None
    assert (run.rehearsal.terms.rehearse, run.request_id) == (False, "mine")


def test_without_a_change_the_recorded_plan_is_shown(running: Desk) -> None:
    """As a tree, or as JSON; a stream that has none is reported as such."""
    answer = shell("plan", "flights")
    assert answer.status == 0
    assert f"query {QUERY}" in answer.out
    assert "source 0: kafka" in answer.out
    found = shell("plan", "flights", "--json")
    assert found.json["queries"][QUERY]["sink"]["kind"] == "file:parquet"
    other = running.stream("other")
    other.deploy().runs()
    assert "no plan is recorded" in shell("plan", "other").out


def test_what_is_not_there_is_told(desk: Desk) -> None:
    """No stream, no script: with the status of usage, and nothing started."""
    Home(HomeConfig(str(desk.home))).begin("tests")
    missing = shell("plan", "nowhere", "--app", script(desk.base), "--json")
    assert (missing.status, missing.error["type"]) == (2, "StreamNotFoundError")
    assert shell("plan", "nowhere", "--json").status == 2
    desk.stream().deploy().runs()
    no_script = shell("plan", "flights", "--app", desk.base / "missing.py", "--json")
    assert (no_script.status, no_script.error["type"]) == (2, "InvalidRequestError")
    assert desk.stream().control.scratch_ids() == []


@pytest.mark.parametrize(
    ("word", "words", "status", "outcome", "said"),
    [
        ("fits", ("--fail-on-changed-rows",), 0, "fits", ""),
        ("changes", (), 0, "fits", ""),
        ("changes", ("--fail-on-changed-rows",), 1, "fits", ""),
        ("divides", (), 4, "refused", "in the replay of query delays batch 4 fails: ZeroDivisionError"),
    ],
)
def test_recorded_batches_in_both_versions_are_part_of_the_report(
    failed: Desk,
    monkeypatch: pytest.MonkeyPatch,
    word: str,
    words: tuple[str, ...],
    status: int,
    outcome: str,
    said: str,
) -> None:
    """A batch that fails in the new version refuses the change; changed rows do not, unless that is asked for. The
    files are gone, and so is what the drivers made. (Law 4)"""
    (failed.base / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(failed.base / "tmp"))
    answer = plan(failed, word, "--replay", 2, *words, "--json")
    assert (answer.status, answer.json["outcome"]) == (status, outcome), answer
    assert answer.json["reason"].startswith(said)
    assert (answer.json["verdict"], answer.json["not_replayed"]) == ("same", None)
    replay = answer.json["replay"]
    assert [batch["batch_id"] for batch in replay["old"]["queries"][QUERY]["batches"]] == [3, 4]
    assert {batch["folder"] for batch in replay["queries"][QUERY]["batches"]} == {""}
    assert [each for each in (failed.base / "tmp").iterdir() if each.name.startswith("streamstate-replay-")] == []
    assert not list(failed.home.rglob("launches/r-*"))
    first = replay["queries"][QUERY]["batches"][0]["comparison"]
    assert (first["only_old"], first["only_new"]) == ((2, 1) if word == "changes" else (0, 0))


def test_a_person_reads_the_batches_of_both_versions_side_by_side(failed: Desk) -> None:
    """With the first rows that only one has; for a pull request, too. The folder is kept where it is named."""
    answer = plan(failed, "changes", "--replay", 1, "--replay-out", failed.base / "rows")
    (row,) = [line for line in answer.out.splitlines() if line.startswith(f"{QUERY} ") and " 4 " in line]
    assert row.split() == [QUERY, "4", "1,200", "34", "34", "32", "1", "2", "1", "0.5", "0.5"]
    assert f'batch 4 of {QUERY}, only old:\n    {{"k":"a"}}\n    {{"k":"b"}}\n' in answer.out
    assert f"the rows are others, or were not compared: batch 4 of {QUERY}" in answer.out
    assert f"into {failed.base / 'rows' / 'old'}" in answer.err
    assert (failed.base / "rows" / "new.done").exists()
    text = plan(failed, "changes", "--replay", 1, "--markdown").out
    assert f"| `{QUERY}` | 4 | 1,200 | 34 | 34 | 32 | 1 | 2 | 1 | 0.5 | 0.5 |" in text
    assert f"<details><summary>batch 4 of {QUERY}, only new</summary>\n\n| k |\n|---|\n| c |\n" in text
    assert f"<details><summary>batch 4 of {QUERY}, changed</summary>\n\n| key | old | new |" in text
    assert f"| `{QUERY}` | `0-stateStoreSave/rows` | 6 | 1 | 0 | 1 |" in text
    assert "speed: 0.5 s old, 0.5 s new: 1.00 of the old (1 batch, with a cold JVM in both)" in text
    failing = plan(failed, "divides", "--replay", 1, "--verbose")
    assert f"batch 4 of {QUERY} in the new version:\n    Traceback" in failing.out


@pytest.mark.parametrize(
    ("word", "status", "why"),
    [
        ("gone", 0, f"query {QUERY}: the source does not have the rows of this batch any more"),
        (
            "needs-drain",
            4,
            "the verdict is needs-drain, and only a version that continues with the state can be replayed",
        ),
        ("hazardous", 4, "the verdict is hazardous, and only a version that continues with the state can be replayed"),
        ("refused", 4, "the rehearsal did not succeed"),
        ("fails", 1, "the rehearsal did not succeed"),
    ],
)
def test_where_nothing_can_be_replayed_the_plan_alone_decides(failed: Desk, word: str, status: int, why: str) -> None:
    """And the report shows why, also where changed rows would fail it."""
    answer = plan(failed, word, "--replay", 2, "--fail-on-changed-rows", "--json")
    assert (answer.status, answer.json["replay"], answer.json["not_replayed"]) == (status, None, why)
    assert f"no batch was replayed: {why}" in plan(failed, word, "--replay", 2, "--verbose").out


def test_a_stream_without_a_batch_has_nothing_to_replay(running: Desk) -> None:
    """That is no fault of the change."""
    answer = plan(running, "fits", "--replay", 2, "--json")
    assert (answer.status, answer.json["outcome"], answer.json["replay"]) == (0, "fits", None)
    assert answer.json["not_replayed"].startswith("no batch of this query can be replayed")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--fail-on-changed-rows",), 2, "and none is replayed"),
        (("--replay-out", "rows"), 2, "give --replay K, too"),
        (("--replay", 2, "--replay-out", "s3://bucket/rows"), 2, "a replay writes into a folder of this machine"),
        (("--replay", 2, "--replay-out", "taken"), 4, "the folder for the rows is not empty"),
    ],
)
def test_a_replay_that_cannot_be_is_refused_before_the_rehearsal(
    failed: Desk, words: tuple[object, ...], status: int, said: str
) -> None:
    """Nothing is recorded."""
    (failed.base / "taken").mkdir()
    (failed.base / "taken" / "kept.txt").write_text("mine")
    answer = plan(failed, "fits", *words, "--json")
    assert (answer.status, said in answer.error["message"]) == (status, True), answer
    alone = shell("plan", "flights", "--replay", 2, "--json")
    assert (alone.status, "--replay compares a change" in alone.error["message"]) == (2, True)
    assert failed.stream().control.scratch_ids() == []
