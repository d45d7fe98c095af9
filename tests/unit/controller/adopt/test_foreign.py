"""Foreign checkpoints are checked before anything is written to them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.controller.adopt.foreign import need_position, open_foreign, opener, refuse_unconditional
from airflow_streamstate.controller.home import Home, HomeConfig
from airflow_streamstate.errors import DataError, InvalidRequestError, UnsupportedCheckpointError
from airflow_streamstate.store.local import LocalStore
from support.sim_stage import Stage
from support.snapshots import run_stateful


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """In a folder."""
    return Home(HomeConfig(str(tmp_path / "home")))


def test_a_folder_with_a_checkpoint_is_opened(tmp_path: Path, home: Home) -> None:
    """By its path, or as Spark writes it."""
    run_stateful(Checkpoint(LocalStore(tmp_path / "mine"), "counts"), 2)
    for uri in (str(tmp_path / "mine" / "counts"), f"file://{tmp_path}/mine/counts/"):
        found = open_foreign(home, uri, opener(home))
        assert need_position(found, uri).batch_id == 2


@pytest.mark.parametrize("uri", ["{base}/nothing", "{base}", "/", "s3://bucket", "{base}/home/orders/x"])
def test_what_is_no_checkpoint_is_told(tmp_path: Path, home: Home, uri: str) -> None:
    """Nor is one of this home adopted."""
    with pytest.raises(InvalidRequestError):
        open_foreign(home, uri.format(base=tmp_path), opener(home))


def test_a_damaged_or_unknown_log_is_refused(tmp_path: Path, home: Home) -> None:
    """Before it is touched. (Law 10)"""
    checkpoint = run_stateful(Checkpoint(LocalStore(tmp_path / "mine"), "counts"), 2)
    checkpoint.store.put(checkpoint.offset_key(2), b"v9\n{}")
    with pytest.raises(UnsupportedCheckpointError):
        open_foreign(home, str(tmp_path / "mine" / "counts"), opener(home))
    checkpoint.store.put(checkpoint.metadata_key, b"no JSON")
    with pytest.raises(DataError):
        open_foreign(home, str(tmp_path / "mine" / "counts"), opener(home))


def test_a_query_without_a_commit_is_refused(tmp_path: Path, home: Home) -> None:
    """It is deployed as a new stream."""
    checkpoint = Checkpoint(LocalStore(tmp_path / "mine"), "counts")
    run_stateful(checkpoint, -1)
    uri = str(tmp_path / "mine" / "counts")
    with pytest.raises(InvalidRequestError, match="no batch yet"):
        need_position(open_foreign(home, uri, opener(home)), uri)


def test_a_deployment_of_this_home_is_known_by_whatever_way(tmp_path: Path, home: Home) -> None:
    """A barrier would end it: by a link, by a detour. (Law 4)"""
    run_stateful(Checkpoint(LocalStore(tmp_path / "home"), "orders/deployments/d-0001/checkpoints/counts"), 2)
    (tmp_path / "link").symlink_to(tmp_path / "home")
    for way in ("home", "link", "home/../home"):
        with pytest.raises(InvalidRequestError, match="this home's own"):
            open_foreign(home, f"{tmp_path}/{way}/orders/deployments/d-0001/checkpoints/counts", opener(home))


def test_one_that_was_deployed_elsewhere_is_known(tmp_path: Path) -> None:
    """Wherever its checkpoints were by then. (Law 4)"""
    stage = Stage(tmp_path, LocalStore(tmp_path / "then"), home_store=LocalStore(tmp_path / "home"))
    stage.deploy()
    stage.run_batches(2)
    later = Home.of(stage.home.home, LocalStore(tmp_path / "now"), tmp_path, stage.clock)
    with pytest.raises(InvalidRequestError, match="this home's own"):
        open_foreign(later, f"{tmp_path}/then/orders/deployments/d-0001/checkpoints/counts", opener(later))


def test_a_deployment_of_another_home_is_refused(tmp_path: Path, home: Home) -> None:
    """Its drivers would remove a barrier as copied: both would run the same batches. A folder that was moved away from
    there is adopted. (Laws 4 and 14)"""
    theirs = Checkpoint(LocalStore(tmp_path / "theirs"), "orders/deployments/d-0003/checkpoints/counts")
    run_stateful(theirs, 2)
    uri = f"{theirs.store.uri}/{theirs.prefix}"
    with pytest.raises(InvalidRequestError, match="of another home") as told:
        open_foreign(home, uri, opener(home))
    assert (told.value.context["stream_id"], told.value.context["deployment_id"]) == ("orders", "d-0003")
    (tmp_path / "link").symlink_to(uri)
    with pytest.raises(InvalidRequestError, match="of another home"):
        open_foreign(home, f"{tmp_path}/link", opener(home))
    taken = run_stateful(Checkpoint(theirs.store, "orders/snapshots/d-0003-live-000001/data/counts"), 2)
    with pytest.raises(InvalidRequestError, match="a snapshot of a different home"):
        open_foreign(home, f"{taken.store.uri}/{taken.prefix}", opener(home))
    Path(uri).rename(tmp_path / "counts")
    assert open_foreign(home, str(tmp_path / "counts"), opener(home)).exists()


@pytest.mark.parametrize("has_links", [True, False])
def test_a_disk_without_hard_links_gets_no_barrier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    """There a create is a check and a rename, and Spark may plan its batch between the two. Nothing is left behind."""
    checkpoint = run_stateful(Checkpoint(LocalStore(tmp_path), "counts"), 2)
    before = sorted(tmp_path.rglob("*"))

    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    if has_links:
        refuse_unconditional(checkpoint)
    else:
        monkeypatch.setattr(os, "link", link)
        with pytest.raises(InvalidRequestError, match="no conditional create"):
            refuse_unconditional(checkpoint)
    assert sorted(tmp_path.rglob("*")) == before
