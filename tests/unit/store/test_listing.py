"""Keys without sizes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.store.base import ListsKeys, Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from airflow_streamstate.store.transfer import keys_below

NAMES = ["a-b", "a.b", "a/b", "a/b-c/d", "a/b.c", "a0", "ab", "é", ".dot/x", "A"]


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path, fsync=False) if request.param == "local" else MemoryStore()


@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/b", ".dot/", "none/"])
def test_they_are_the_keys_of_the_listing(store: Store, prefix: str) -> None:
    """With each store, in the same order, whether it lists names by themselves or not."""
    for name in NAMES:
        store.put(name, b"x")
    assert keys_below(store, prefix) == [info.key for info in store.list_objects(prefix)]
    assert keys_below(store, prefix) == sorted(name for name in NAMES if name.startswith(prefix))


def test_a_prefix_that_climbs_out_is_refused(store: Store) -> None:
    """As by the listing itself."""
    with pytest.raises(InvalidRequestError):
        keys_below(store, "../")


def test_on_a_disk_no_file_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many versions of a state are listed by their names alone; pipes and other programs' odd names are left out."""
    store = LocalStore(tmp_path, fsync=False)
    store.put("state/1.delta", b"x")
    os.mkfifo(tmp_path / "state/pipe")
    (tmp_path / "state/a\nb").write_text("")
    (tmp_path / "state/.~streamstate-left").write_text("")
    assert isinstance(store, ListsKeys)
    monkeypatch.setattr(os, "stat", lambda *_, **__: pytest.fail("looked at a file"))
    assert keys_below(store, "state/") == ["state/1.delta"]
