"""``snapshot inspect``, ``export`` and ``diff``, over drivers that run no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.store.local import LocalStore
from support.scripted_reader import VARIABLE
from support.scripted_stream import ScriptedStream
from support.shell import Desk, shell
from support.snapshots import QUERY, SNAPSHOT, STREAM, Shelf, run_stateful

pytestmark = pytest.mark.fast

LATER = "d-0001-stopped-000002"
OF_STATE = {
    "stream_id", "snapshot_id", "kind", "deployment_id", "taken_at", "age_seconds", "spark_version",
    "since_snapshot_id", "queries", "key", "found", "limit", "export",
}  # fmt: skip
OF_OPERATOR = {
    "operator_id", "name", "partitions", "rows", "bytes", "rows_by_partition", "bytes_by_partition", "skew", "tables",
    "timers",
}  # fmt: skip


@pytest.fixture
def kept(desk: Desk) -> Desk:
    """A stream that has stopped, with two snapshots."""
    store = LocalStore(desk.home)
    ScriptedStream(store, store.uri, STREAM).deploy()
    shelf = Shelf(store)
    run_stateful(shelf.checkpoint(), 3)
    shelf.capture()
    run_stateful(shelf.checkpoint(), 5, first=4)
    shelf.clock.advance(60)
    shelf.capture(snapshot_id=LATER)
    return desk


def test_state_is_one_object_with_just_these_fields(kept: Desk) -> None:
    """As docs/how-to/state.md has them; nothing is on stderr."""
    answer = shell("snapshot", "inspect", STREAM, "--key", '{"k": "a"}', "--json")
    assert (answer.status, answer.err) == (0, "")
    assert set(answer.json) == OF_STATE
    query = answer.json["queries"][QUERY]
    assert set(query) == {"batch_id", "watermark_at", "operators", "problems"}
    (operator,) = query["operators"]
    assert set(operator) == OF_OPERATOR
    assert set(operator["skew"]) == {"most", "median", "fullest", "ratio"}
    assert set(operator["tables"][0]) == {"table", "name", "kind", "has_ttl", "rows", "columns"}
    assert set(answer.json["found"][0]) == {"query_name", "table", "name", "kind", "has_ttl", "rows", "more"}


def test_diff_is_one_object_with_just_these_fields(kept: Desk) -> None:
    """As docs/how-to/state.md has them."""
    answer = shell("snapshot", "diff", STREAM, SNAPSHOT, LATER, "--json")
    assert (answer.status, answer.err) == (0, "")
    assert set(answer.json) == {"stream_id", "before", "after", "limit", "queries", "only_in"}
    assert (answer.json["before"]["snapshot_id"], answer.json["after"]["snapshot_id"]) == (SNAPSHOT, LATER)
    (table,) = answer.json["queries"][QUERY]["tables"]
    assert set(table) == {"table", "name", "kind", "has_ttl", "added", "changed", "gone", "examples"}
    assert set(table["examples"]) == {"added", "changed", "gone"}


def test_a_person_sees_progress_and_tables(kept: Desk) -> None:
    """What is read on stderr, what was found on stdout."""
    answer = shell("snapshot", "inspect", STREAM, "--key", '{"k": "a"}', "--limit", 1)
    assert "reading state: a fork of the snapshot is made" in answer.err
    assert f"{STREAM} {LATER} (stopped," in answer.out
    assert "0 stateStoreSave" in answer.out
    assert "and more: --limit 1" in answer.out
    assert "gone in counts 0-stateStoreSave/rows:" in shell("snapshot", "diff", STREAM, SNAPSHOT, LATER).out


def test_exports_and_changes_are_told(kept: Desk) -> None:
    """Table by table, with the way in which changes were found."""
    export = shell("snapshot", "export", STREAM, "--out", kept.base / "out", "--json").json["export"]
    assert set(export) == {"uri", "format", "complete", "tables", "problems", "only_in"}
    answer = shell("snapshot", "export", STREAM, "--out", kept.base / "out", "--changes-since", SNAPSHOT)
    assert f"changes since {SNAPSHOT} written to" in answer.out
    assert "feed" in answer.out


@pytest.mark.parametrize(
    "words",
    [
        ("export", "--overwrite"), ("export", "--changes-since", SNAPSHOT), ("inspect", "--key", "ATL"),
        ("inspect", "--limit", "0"), ("export", "--out", "out", "--format", "csv"), ("inspect", "--deadline", "0"),
        ("export", "--key", '{"k":1}', "--changes-since", SNAPSHOT, "--out", "out"), ("inspect", "--out", "out"),
        ("inspect", "--snapshot", "nothing"), ("inspect", "--query", "nothing"), ("inspect", "--conf", "fs.s3a=1"),
    ],
)  # fmt: skip
def test_wrong_words_are_refused_before_anything_is_read(kept: Desk, words: tuple[str, ...]) -> None:
    """In one sentence, with the status of usage."""
    before = kept.files()
    verb, *rest = words
    answer = shell("snapshot", verb, STREAM, *rest, "--json")
    assert (answer.status, set(answer.json)) == (2, {"error"})
    assert kept.files() == before


def test_what_the_driver_refuses_is_what_the_shell_says(kept: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it had been known here."""
    monkeypatch.setenv(VARIABLE, "refuses")
    answer = shell("snapshot", "inspect", STREAM, "--key", '{"origin": "ATL"}', "--json")
    assert (answer.status, answer.error["type"]) == (2, "InvalidRequestError")
    monkeypatch.setenv(VARIABLE, "dies")
    assert shell("snapshot", "diff", STREAM, SNAPSHOT, LATER, "--json").status == 1
    monkeypatch.setenv(VARIABLE, "hangs")
    assert shell("snapshot", "inspect", STREAM, "--deadline", 3, "--json").status == 3
    assert not [path for path in Path(kept.home).rglob("*") if "readings" in path.parts and path.is_file()]
