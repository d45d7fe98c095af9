"""``snapshot verify``: whole and damaged snapshots, and what Spark loads."""

from __future__ import annotations

import pytest

from airflow_streamstate.protocol import layout
from airflow_streamstate.store.local import LocalStore
from support.scripted_reader import VARIABLE
from support.scripted_stream import ScriptedStream
from support.shell import Desk, shell
from support.snapshots import QUERY, SNAPSHOT, STREAM, Shelf, flip_byte, run_stateful

WHOLE = {"snapshot_id": SNAPSHOT, "ok": True, "problems": [], "loaded": None}


@pytest.fixture
def shelf(desk: Desk) -> Shelf:
    """A stream with a stopped snapshot that has files."""
    store = LocalStore(desk.home)
    ScriptedStream(store, store.uri, STREAM).deploy()
    made = Shelf(checkpoints=store)
    run_stateful(made.checkpoint(), 3)
    made.capture()
    return made


def test_a_whole_snapshot_verifies(shelf: Shelf) -> None:
    """Exit status 0, and nothing to complain of."""
    answer = shell("snapshot", "verify", STREAM, SNAPSHOT, "--json")
    assert (answer.status, answer.json) == (0, WHOLE)
    assert "every file matches its manifest" in shell("snapshot", "verify", STREAM, SNAPSHOT).out


@pytest.mark.parametrize("path", ["state/0/1/4.delta", "offsets/3", "metadata"])
def test_a_flipped_byte_is_named(shelf: Shelf, path: str) -> None:
    """Exit status 1, with query and path."""
    flip_byte(shelf.checkpoints, shelf.data_key(path), at=5)
    answer = shell("snapshot", "verify", STREAM, SNAPSHOT, "--json")
    assert (answer.status, answer.json["ok"]) == (1, False)
    assert [(row["kind"], row["query"], row["path"]) for row in answer.json["problems"]] == [
        ("altered", "counts", path)
    ]
    assert path in shell("snapshot", "verify", STREAM, SNAPSHOT).out


def test_a_file_that_is_gone_is_named(shelf: Shelf) -> None:
    """Exit status 1, with query and path."""
    shelf.checkpoints.delete(shelf.data_key("commits/3"))
    answer = shell("snapshot", "verify", STREAM, SNAPSHOT, "--json")
    assert answer.status == 1
    assert [(row["kind"], row["path"]) for row in answer.json["problems"]] == [("missing", "commits/3")]


def test_a_snapshot_without_a_manifest_is_none(shelf: Shelf) -> None:
    """Exit status 2: it was never completed (Law 3)."""
    shelf.checkpoints.delete(layout.manifest_key(STREAM, SNAPSHOT))
    answer = shell("snapshot", "verify", STREAM, SNAPSHOT, "--json")
    assert answer.status == 2
    assert answer.error["type"] == "SnapshotNotFoundError"


def test_a_manifest_that_cannot_be_read_is_told(shelf: Shelf) -> None:
    """Exit status 1: what is stored is damaged."""
    shelf.checkpoints.put(layout.manifest_key(STREAM, SNAPSHOT), b'{"kind": "SnapshotManifest"')
    answer = shell("snapshot", "verify", STREAM, SNAPSHOT, "--json")
    assert answer.status == 1
    assert answer.error["type"] == "MalformedMessageError"


def test_a_deep_look_counts_what_spark_loads(shelf: Shelf) -> None:
    """In addition to the bytes; one object, as docs/how-to/keep.md has it."""
    answer = shell("snapshot", "verify", STREAM, SNAPSHOT, "--deep", "--json")
    counted = {"operators": [{"operator_id": 0, "name": "stateStoreSave", "rows": 3}]}
    assert (answer.status, answer.json) == (0, {**WHOLE, "loaded": {QUERY: counted}})
    told = shell("snapshot", "verify", STREAM, SNAPSHOT, "--deep")
    assert "verifying d-0001-stopped-000001: a fork of the snapshot is made" in told.err
    assert "Spark looked at counts, operator 0 stateStoreSave: 3 rows" in told.out


@pytest.mark.parametrize(
    "words",
    [
        ("--deadline", 600),
        ("--conf", "spark.sql.shuffle.partitions=1"),
        ("--packages", "a:b:1"),
        ("--master", "local[1]"),
    ],
)
def test_what_is_about_the_driver_of_a_deep_look_alone_is_refused_without_one(
    shelf: Shelf, words: tuple[str, object]
) -> None:
    """Exit status 2, with the option's name: only a deep look has a driver."""
    answer = shell("snapshot", "verify", STREAM, SNAPSHOT, *words, "--json")
    assert (answer.status, answer.error["type"]) == (2, "UsageError")
    assert answer.error["message"].startswith(f"{words[0]} is about the driver of --deep")


def test_no_driver_is_started_over_bytes_that_are_wrong(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are named already."""
    monkeypatch.setenv(VARIABLE, "dies")
    flip_byte(shelf.checkpoints, shelf.data_key("state/0/1/4.delta"), at=5)
    answer = shell("snapshot", "verify", STREAM, SNAPSHOT, "--deep", "--json")
    assert (answer.status, answer.json["loaded"], len(answer.json["problems"])) == (1, None, 1)


def test_a_driver_that_dies_over_the_state_proves_nothing(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 1, and why."""
    monkeypatch.setenv(VARIABLE, "dies")
    answer = shell("snapshot", "verify", STREAM, SNAPSHOT, "--deep", "--json")
    assert (answer.status, answer.error["type"]) == (1, "DeploymentFailedError")
