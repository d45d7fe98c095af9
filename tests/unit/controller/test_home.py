"""The home: opened without a call to disk or network, and checked on request."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.controller.home import Home, HomeConfig, default_work_dir
from airflow_streamstate.errors import HomeNotFoundError, InvalidRequestError, StreamNotFoundError
from airflow_streamstate.store.memory import MemoryStore
from support.fake_clock import FakeClock
from support.sim_stage import Stage


def test_one_folder_is_enough(tmp_path: Path) -> None:
    """A folder is a home: it contains control objects and checkpoints, and opening makes nothing."""
    home = Home(HomeConfig(str(tmp_path / "home")))
    assert home.checkpoints is home.home
    assert home.launch_path("a/b") == tmp_path / "home" / "a" / "b"
    assert not home.is_there()
    assert not (tmp_path / "home").exists()
    with pytest.raises(HomeNotFoundError):
        home.stream_ids()
    home.begin("tests")
    assert home.stream_ids() == []


def test_checkpoints_may_lie_elsewhere(tmp_path: Path) -> None:
    """Control objects and checkpoints are two settings."""
    home = Home(HomeConfig(str(tmp_path / "home"), checkpoints_uri=f"file://{tmp_path}/checkpoints"))
    assert home.checkpoints is not home.home
    assert home.launch_path("a") == tmp_path / "checkpoints" / "a"
    assert "checkpoints are in" in home.check()


def test_home_and_checkpoints_may_lie_on_s3(tmp_path: Path) -> None:
    """Together or apart; opening reads nothing. A URI of no store is refused."""
    home = Home(HomeConfig("s3://bucket/streams"))
    assert home.checkpoints is home.home
    assert Home(HomeConfig("/srv/home", "s3://bucket/checkpoints")).checkpoints.uri == "s3://bucket/checkpoints"
    apart = Home(HomeConfig("s3://bucket/streams", checkpoints_uri=str(tmp_path)))
    assert apart.launch_path("a") == tmp_path / "a"
    with pytest.raises(InvalidRequestError):
        Home(HomeConfig("ftp://somewhere"))


def test_checkpoints_where_spark_cannot_be_are_refused_by_name() -> None:
    """Reported before anything is touched (Law 10)."""
    home = Home(HomeConfig("memory://somewhere"))
    for ask in (lambda: home.checkpoints, home.check):
        with pytest.raises(InvalidRequestError, match="folder of this machine") as refused:
            ask()
    assert "checkpoints_uri" in refused.value.next_step


def test_launches_have_a_folder_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code and logs of drivers are on this machine wherever checkpoints are; two homes never share a folder unasked."""
    asked = Home(HomeConfig("s3://bucket/streams", str(tmp_path / "c"), work_dir=str(tmp_path / "l")))
    assert asked.launch_path("a/b") == tmp_path / "l" / "a" / "b"
    with pytest.raises(InvalidRequestError, match="launches must be in a folder"):
        Home(HomeConfig(str(tmp_path), work_dir="s3://bucket/launches"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    one, other = (Home(HomeConfig(f"s3://bucket/{name}")).launch_path("flights") for name in ("one", "other"))
    assert one != other
    for found in (one, other):
        assert found.parents[1] == tmp_path / "state" / "airflow-streamstate"
    assert default_work_dir("s3://b", {}).is_relative_to(Path.home() / ".local" / "state")
    assert default_work_dir("s3://b", {"XDG_STATE_HOME": "not/absolute"}) == default_work_dir("s3://b", {})


def test_the_check_leaves_nothing(stage: Stage) -> None:
    """Looking at a home leaves no object in it."""
    assert "conditional writes hold" in stage.home.check()
    assert list(stage.store.list_objects("")) == []


class NoCreate(MemoryStore):
    """A store whose create overwrites."""

    def create(self, key: str, body: bytes) -> str:
        return self.put(key, body)


class NoReplace(MemoryStore):
    """A store that replaces whatever is there."""

    def replace(self, key: str, body: bytes, version: str) -> str:
        return self.put(key, body)


class NoDelete(MemoryStore):
    """A store that deletes whatever is there."""

    def delete(self, key: str, version: str | None = None) -> None:
        super().delete(key)


@pytest.mark.parametrize("kind", [NoCreate, NoReplace, NoDelete])
def test_a_store_without_conditions_is_found_out(tmp_path: Path, kind: type[MemoryStore]) -> None:
    """A home where a conditional write does what it should not is no home. (Law 4)"""
    store = kind()
    with pytest.raises(InvalidRequestError, match="conditional writes do not hold"):
        Home.of(store, store, tmp_path, FakeClock()).check()
    assert list(store.list_objects("")) == []


def test_only_streams_are_streams(stage: Stage) -> None:
    """Folders that are none of ours are passed over; a stream that is not there is named."""
    stage.deploy()
    stage.store.put("Something Else/x", b"")
    stage.store.put("no-register/x", b"")
    assert stage.home.stream_ids() == ["orders"]
    with pytest.raises(StreamNotFoundError):
        stage.home.need_stream("no-register")
