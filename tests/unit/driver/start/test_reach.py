"""What a driver on another machine sees of the places of its controller."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.presence import HomePresence
from airflow_streamstate.controller.home import Home, HomeConfig
from airflow_streamstate.driver.start.claim import check_checkpoints, check_home
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol import layout
from airflow_streamstate.store.local import LocalStore


def home_in(folder: Path) -> Home:
    """A home that was set up."""
    home = Home(HomeConfig(str(folder)))
    home.begin("tests")
    return home


def test_the_home_is_known_by_its_id(tmp_path: Path) -> None:
    """A path that names nothing here, or another home, is reported in one sentence."""
    home = home_in(tmp_path / "one")
    presence = HomePresence(home.home, SYSTEM_CLOCK, is_expected=True)
    check_home(presence, home.identity)
    other = home_in(tmp_path / "two")
    assert other.identity != home.identity
    with pytest.raises(InvalidRequestError, match="the driver sees another home"):
        check_home(HomePresence(other.home, SYSTEM_CLOCK, is_expected=True), home.identity)
    nothing = LocalStore(tmp_path / "three", makes_root=False)
    with pytest.raises(InvalidRequestError, match="the driver does not see the home") as caught:
        check_home(HomePresence(nothing, SYSTEM_CLOCK, is_expected=True), home.identity)
    assert str(tmp_path / "three") in str(caught.value)
    assert "every machine mounts at the same path" in caught.value.next_step


def test_a_folder_of_checkpoints_is_known_by_its_witness(tmp_path: Path) -> None:
    """An empty folder of the same name would let Spark start again (Law 5)."""
    here, there = LocalStore(tmp_path / "here"), LocalStore(tmp_path / "there")
    here.create(layout.witness_key("flights", "d-0001"), b"{}")
    check_checkpoints(here, "flights", "d-0001")
    with pytest.raises(InvalidRequestError, match="does not see the folder of the checkpoints"):
        check_checkpoints(there, "flights", "d-0001")
