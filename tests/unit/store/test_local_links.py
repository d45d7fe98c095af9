"""Symbolic links that others have made in a store on a disk: nothing is listed, written or deleted through one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_streamstate.errors import InvalidRequestError, MalformedMessageError, ObjectMissingError
from airflow_streamstate.store.folder_lock import LOCK_NAME
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.transfer import delete_below

VERSION = "0" * 64


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder elsewhere, with files."""
    folder = tmp_path / "victim"
    (folder / "sub").mkdir(parents=True)
    (folder / "precious").write_text("x")
    (folder / "sub" / "more").write_text("y")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A home with a stream."""
    store = LocalStore(tmp_path / "home", fsync=False)
    store.put("orders/stream.json", b"{}")
    return store


def files_of(folder: Path) -> list[str]:
    """All that is there."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_link_to_a_folder_is_not_listed(store: LocalStore, victim: Path) -> None:
    """Neither as a folder nor by what is in it: what is listed may be deleted, or copied to a mirror."""
    (store.root / "orders" / "linked").symlink_to(victim)
    (store.root / "linked").symlink_to(victim)
    assert [info.key for info in store.list_objects("")] == ["orders/stream.json"]
    assert store.list_folders("") == ["orders"]
    assert store.list_folders("orders") == []


def test_links_in_a_circle_end_no_listing(store: LocalStore) -> None:
    """A link to itself, to the folder that it is in, and two that double with each level."""
    (store.root / "self").symlink_to("self")
    (store.root / "orders" / "self").symlink_to("self")
    (store.root / "aaa").mkdir()
    for name in ("a", "b"):
        (store.root / "aaa" / name).symlink_to(".")
    assert store.list_keys("") == ["orders/stream.json"]
    assert store.list_folders("") == ["orders"]


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_folder_that_is_a_link_is_not_taken_for_an_empty_one(
    store: LocalStore, victim: Path, *, is_inside: bool
) -> None:
    """A checkpoint on another disk must not look like a new one."""
    (store.root / "linked").symlink_to(store.root / "orders" if is_inside else victim)
    for listing in (store.list_keys, store.list_folders):
        with pytest.raises(InvalidRequestError, match="a symbolic link is in the place of a folder") as refused:
            listing("linked/sub/" if listing == store.list_keys else "linked")
        assert refused.value.context["path"] == str(store.root / "linked")


@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.put("linked/sub/more", b"z"),
        lambda store: store.create("linked/new", b"z"),
        lambda store: store.create("linked/new/new", b"z"),
        lambda store: store.replace("linked/precious", b"z", VERSION),
        lambda store: store.delete("linked/precious"),
        lambda store: store.delete("linked/absent"),
        lambda store: store.copy("orders/stream.json", "linked/new"),
        lambda store: store.link("orders/stream.json", "linked/new"),
        lambda store: store.copy("linked/precious", "orders/new"),
        lambda store: store.link("linked/precious", "orders/new"),
        lambda store: delete_below(store, "linked"),
        lambda store: delete_below(store, "linked/sub"),
    ],
)
def test_nothing_is_written_or_deleted_through_a_link(
    store: LocalStore, victim: Path, act: Callable[[LocalStore], object]
) -> None:
    """The error names the link; what it leads to stays as it was."""
    before = files_of(victim)
    (store.root / "linked").symlink_to(victim)
    with pytest.raises(InvalidRequestError, match="a symbolic link is in the place of a folder") as refused:
        act(store)
    assert refused.value.context["path"] == str(store.root / "linked")
    assert files_of(victim) == before
    assert (victim / "sub" / "more").read_text() == "y"


def test_a_lock_is_not_made_through_a_link(store: LocalStore, victim: Path) -> None:
    """Nor is what it leads to locked."""
    before = files_of(victim)
    (store.root / "orders" / LOCK_NAME).symlink_to(victim / "new")
    with pytest.raises(InvalidRequestError, match="symbolic link"):
        store.put("orders/stream.json", b"1")
    assert files_of(victim) == before


def test_clearing_a_folder_removes_its_links_and_not_what_they_lead_to(store: LocalStore, victim: Path) -> None:
    """A folder of data that a driver has replaced by a link."""
    before = files_of(victim)
    store.put("orders/snapshots/s-1/data-1/a", b"1")
    (store.root / "orders/snapshots/s-1/data-2").symlink_to(victim)
    (store.root / "orders/snapshots/s-1/file").symlink_to(victim / "precious")
    delete_below(store, "orders/snapshots/s-1")
    assert files_of(victim) == before
    assert not (store.root / "orders/snapshots/s-1").exists()


def test_deleting_a_link_leaves_what_it_leads_to(store: LocalStore, victim: Path) -> None:
    """The key is free afterwards."""
    (store.root / "orders" / "linked").symlink_to(victim)
    store.delete("orders/linked")
    store.create("orders/linked", b"1")
    assert files_of(victim) == ["precious", "sub", "sub/more"]


def test_a_link_is_not_copied(store: LocalStore, victim: Path) -> None:
    """As it is not listed; and no part of what it leads to is read."""
    (store.root / "orders" / "linked").symlink_to(victim / "precious")
    for act in (store.copy, store.link):
        with pytest.raises(ObjectMissingError):
            act("orders/linked", "orders/copied")
    with pytest.raises(MalformedMessageError, match="no record of ours"):
        store.read_range("orders/linked", 0, 1)


def test_the_root_and_what_is_above_it_may_be_links(store: LocalStore, tmp_path: Path) -> None:
    """A home on another disk."""
    (tmp_path / "above").symlink_to(tmp_path)
    (tmp_path / "linked").symlink_to(store.root)
    for root in (tmp_path / "above" / "home", tmp_path / "linked"):
        linked = LocalStore(root, fsync=False)
        linked.put("orders/new/one", b"1")
        linked.link("orders/new/one", "orders/new/two")
        assert linked.read_range("orders/new/two", 0, 1) == b"1"
        assert linked.list_keys("orders/new/") == ["orders/new/one", "orders/new/two"]
        delete_below(linked, "orders/new")
        assert linked.list_folders("orders") == []
