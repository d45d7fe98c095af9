"""What others may have written is read up to a limit, and only where it is an object (Law 7)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_streamstate.errors import MalformedMessageError
from airflow_streamstate.store.base import Store, bounded_get
from airflow_streamstate.store.local import LocalStore

KEY = "orders/stream.json"


def test_an_object_is_read_up_to_the_limit_and_no_further(store: Store) -> None:
    """The error names key, size and limit."""
    assert bounded_get(store, KEY, 10) is None
    store.put(KEY, b"x" * 10)
    found = bounded_get(store, KEY, 10)
    assert found is not None
    assert (found.body, found.version) == (b"x" * 10, getattr(store.get(KEY), "version", None))
    with pytest.raises(MalformedMessageError) as refused:
        bounded_get(store, KEY, 9)
    assert refused.value.context == {"key": KEY, "size_bytes": 10, "most_bytes": 9}


@pytest.fixture
def local(tmp_path: Path) -> LocalStore:
    """A home on disk with a stream."""
    (tmp_path / "home" / "orders").mkdir(parents=True)
    return LocalStore(tmp_path / "home", fsync=False)


def refusal(local: LocalStore) -> str:
    """Why the record is not read."""
    with pytest.raises(MalformedMessageError) as refused:
        bounded_get(local, KEY, 1 << 20)
    assert refused.value.context["key"] == KEY
    return str(refused.value.context["reason"])


def test_what_would_block_or_never_end_is_no_record(local: LocalStore) -> None:
    """A FIFO without a writer, an endless device, a socket."""
    path = local.path_of(KEY)
    os.mkfifo(path)
    assert refusal(local) == "it is no regular file"
    assert local.get(KEY) is None  # as in listings
    path.unlink()
    path.symlink_to("/dev/zero")
    assert refusal(local) == "it is no regular file"


def test_a_link_out_of_the_home_is_no_record(local: LocalStore, tmp_path: Path) -> None:
    """In place of the record, or of a folder above it; one within the home is."""
    (tmp_path / "secret").write_text("{}")
    path = local.path_of(KEY)
    path.symlink_to(tmp_path / "secret")
    assert refusal(local) == "it is a link to a file outside of this folder"
    path.unlink()
    path.parent.rmdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "stream.json").write_text("{}")
    path.parent.symlink_to(tmp_path / "elsewhere")
    assert refusal(local) == "it is a link to a file outside of this folder"
    path.parent.unlink()
    path.parent.mkdir()
    local.path_of("other.json").write_text("{}")
    path.symlink_to(local.path_of("other.json"))
    assert bounded_get(local, KEY, 10) is not None


def test_the_home_itself_may_be_a_link_that_changes(local: LocalStore, tmp_path: Path) -> None:
    """As where a disk is mounted at another place: where the root is now is what counts."""
    linked = tmp_path / "linked"
    linked.symlink_to(local.root)
    store = LocalStore(linked, fsync=False)
    store.put(KEY, b"1")
    assert bounded_get(store, KEY, 10) is not None
    linked.unlink()
    (tmp_path / "moved").mkdir()
    linked.symlink_to(tmp_path / "moved")
    store.put(KEY, b"2")
    found = bounded_get(store, KEY, 10)
    assert found is not None
    assert found.body == b"2"
