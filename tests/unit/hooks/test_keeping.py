"""What the hook does with what is kept; the operators that call it have tests of their own."""

from __future__ import annotations

from pathlib import Path

from airflow_streamstate.control.retention import Retention
from airflow_streamstate.controller.state_reader.choosing import ReadingRequest
from support.airflow_streams import NamedHome
from support.snapshots import QUERY, SNAPSHOT, STREAM, Shelf, run_stateful


def kept(named: NamedHome) -> Shelf:
    """A stream with a stopped snapshot that has state."""
    named.stream(STREAM).deploy()
    shelf = Shelf(named.home.home)
    run_stateful(shelf.checkpoint(), 3)
    shelf.capture()
    return shelf


def test_state_is_read_and_a_snapshot_loaded_with_progress(named: NamedHome) -> None:
    """Each word of the driver is told."""
    kept(named)
    told: list[str] = []
    request = ReadingRequest(stream_id=STREAM, snapshot_id=SNAPSHOT)
    found = named.hook().read_state(request, on_progress=told.append)
    assert found["queries"][QUERY]["operators"][0]["rows"] == 3
    assert "a fork of the snapshot is made" in told
    assert named.hook().verify(request, deep=True)["loaded"] is not None
    assert named.hook().verify(request)["loaded"] is None


def test_copying_is_told_file_by_file(named: NamedHome, tmp_path: Path) -> None:
    """With where to, and how much is left."""
    kept(named)
    told: list[str] = []
    mirror = str(tmp_path / "mirror")
    (row,) = named.hook().mirror(STREAM, mirrors=[mirror], on_progress=told.append)
    assert (row["snapshot_id"], row["files"] > 0) == (SNAPSHOT, True)
    assert told[-1].startswith(f"{SNAPSHOT} to {mirror}: ")
    done, of = told[-1].removeprefix(f"{SNAPSHOT} to {mirror}: ").partition(" files")[0].split(" of ")
    assert done == of


def test_pins_and_retirement_are_asked_for_by_whoever_it_is(named: NamedHome) -> None:
    """As the records say."""
    shelf, hook = kept(named), named.hook()
    hook.pin(STREAM, SNAPSHOT)
    assert list(Retention(shelf.control).read().pins) == [SNAPSHOT]
    hook.unpin(STREAM, SNAPSHOT)
    assert list(Retention(shelf.control).read().pins) == []
    assert hook.prune(STREAM, dry_run=True)["dry_run"] is True
