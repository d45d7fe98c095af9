"""Which launcher a request and a handle go to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.interface import LaunchHandle
from airflow_streamstate.launch.launchers import Launchers, installed_launchers
from support.fake_clock import FakeClock
from support.launches import launch_request
from support.sim_stage import StillLauncher


def test_a_request_goes_to_the_launcher_that_it_names(tmp_path: Path) -> None:
    """Without a name it is this machine's."""
    launchers = Launchers(SYSTEM_CLOCK)
    assert launchers.find(launch_request(tmp_path, "").place) is None
    assert launchers.named("local").name == "local"


def test_a_launcher_that_is_not_installed_is_named_with_the_nearest(tmp_path: Path) -> None:
    """A slip of the pen is distinguished from a missing package."""
    request = replace(launch_request(tmp_path, ""), launcher="kubernets")
    with pytest.raises(InvalidRequestError, match="no launcher of this name") as caught:
        Launchers(SYSTEM_CLOCK).launch(request)
    assert caught.value.next_step == "Did you mean kubernetes?"
    assert "local" in caught.value.context["installed"]


def test_a_driver_of_a_launcher_that_is_not_here_is_unknown() -> None:
    """It may run: not being able to ask is no proof (1a.8)."""
    launchers = Launchers(SYSTEM_CLOCK)
    handle = LaunchHandle("nomad", "d-0001-a0001", {})
    assert launchers.status(handle).state == "unknown"
    assert "nomad" in launchers.status(handle).reason
    assert launchers.kill(handle, 0.0).state == "unknown"
    assert (launchers.logs(handle, 100), launchers.links(handle)) == ("", {})
    assert not launchers.knows(handle)
    launchers.forget(handle)


def test_a_handle_that_its_reader_refused_is_not_acted_on(tmp_path: Path) -> None:
    """Whoever can write into a home can write a record; of the driver nothing is known (Law 4)."""
    only = StillLauncher(FakeClock())
    launchers = Launchers.of(only, only.clock)
    handle = launchers.launch(replace(launch_request(tmp_path, ""), launcher=only.name))
    refused = replace(handle, refused="the record names another launch key")
    status = launchers.kill(refused, 0.0)
    assert (status.state, status.reason) == ("unknown", refused.refused)
    assert launchers.status(handle).state == "running"


def test_one_launcher_can_be_the_only_one(tmp_path: Path) -> None:
    """As for a test, or for a program with its own launcher."""
    only = StillLauncher(FakeClock())
    launchers = Launchers.of(only, only.clock)
    assert Launchers.of(launchers, only.clock) is launchers
    handle = launchers.launch(replace(launch_request(tmp_path, ""), launcher="elsewhere"))
    assert launchers.status(handle).state == "running"
    assert launchers.named("anything") is only


def test_this_machine_is_always_there() -> None:
    """Without any entry point, too."""
    assert "local" in installed_launchers()


@pytest.mark.parametrize("name", ["local", "kubernetes", "yarn", "ssh", "emr-serverless", "emr-eks"])
def test_a_driver_without_a_place_is_unknown(name: str) -> None:
    """It was launched, and cannot be looked for from here: that is no proof of anything (1a.8)."""
    launchers, handle = Launchers(SYSTEM_CLOCK), LaunchHandle(name, "d-0001-a0001", {})
    assert (launchers.status(handle).state, launchers.kill(handle, 0.0).state) == ("unknown", "unknown")
    assert (launchers.logs(handle, 100), launchers.links(handle)) == ("", {})
