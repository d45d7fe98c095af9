"""What others may have written is read up to a limit, and only where it is an object (Law 7)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from airflow_streamstate.errors import MalformedMessageError
from airflow_streamstate.store.base import Store, bounded_get
from airflow_streamstate.store.local import LocalStore

KEY = "orders/stream.json"
LINKED = "it is a symbolic link, or one leads to it"


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
    assert refusal(local) == LINKED


READS: Mapping[str, Callable[[LocalStore], object]] = {
    "get": lambda store: store.get(KEY),
    "get_within": lambda store: store.get_within(KEY, 10),
    "read_range": lambda store: store.read_range(KEY, 0, 2),
    "head": lambda store: store.head(KEY),
}


@pytest.mark.parametrize("leads", ["out", "within", "nowhere"])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_nothing_is_read_through_a_link(
    local: LocalStore, tmp_path: Path, read: Callable[[LocalStore], object], leads: str
) -> None:
    """In place of the object, or of a folder above it; wherever it leads: as in listings, and as for writes."""
    folders = {"out": tmp_path / "elsewhere", "within": local.root / "other", "nowhere": tmp_path / "nowhere"}
    folder, path = folders[leads], local.path_of(KEY)
    if leads != "nowhere":
        folder.mkdir()
        (folder / path.name).write_text("{}")
    path.symlink_to(folder / path.name)
    for _ in range(2):
        with pytest.raises(MalformedMessageError) as refused:
            read(local)
        assert (refused.value.context["key"], refused.value.context["reason"]) == (KEY, LINKED)
        if path.is_symlink():
            path.unlink()
            path.parent.rmdir()
            path.parent.symlink_to(folder)
    path.parent.unlink()
    local.put(KEY, b"{}")
    assert read(local) is not None


def test_a_record_that_is_replaced_while_it_is_read_is_no_link(local: LocalStore) -> None:
    """Linux names an open file that is gone otherwise."""
    local.put(KEY, b"1")
    descriptor = os.open(local.path_of(KEY), os.O_RDONLY)
    local.put(KEY, b"2")
    name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
    os.close(descriptor)
    assert name == f"{local.path_of(KEY)} (deleted)"
    assert local._is_at(name, KEY)


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
