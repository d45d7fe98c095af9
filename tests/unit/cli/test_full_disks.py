"""A full disk, said where a person would look for the reason."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from airflow_streamstate.cli.main import name_full_disks
from airflow_streamstate.controller.home import Home
from airflow_streamstate.errors import DeadlineExceededError, InvalidRequestError
from support.shell import Desk, shell

FULL = SimpleNamespace(f_frsize=4096, f_blocks=9000, f_bavail=0, f_bfree=0, f_files=0, f_favail=0, f_ffree=0)


def test_status_says_that_the_disk_is_full(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver finds no room to say so: the heart just grows old, and a person asks why."""
    desk.stream().deploy()
    assert shell("status", "flights", "--json").json["full_disks"] == []
    monkeypatch.setattr(os, "statvfs", lambda _folder: FULL)
    assert shell("status", "flights", "--json").json["full_disks"] == [str(desk.home)]
    assert f"The disk of {desk.home} is full" in shell("status", "flights").out.splitlines()[-1]


def test_a_wait_that_came_to_nothing_names_the_disk(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver could not say it; whoever waited asks why nothing came."""
    desk.stream().deploy().runs()
    words = ("stop", "flights", "--request-id", "one", "--timeout", 0.2, "--json")
    assert "is full" not in shell(*words).error["next_step"]
    monkeypatch.setattr(os, "statvfs", lambda _folder: FULL)
    answer = shell(*words)
    assert answer.status == 3
    assert answer.error["next_step"].startswith(f"The disk of {desk.home} is full")


def test_a_home_that_cannot_be_opened_keeps_the_first_error() -> None:
    """What went wrong first is told."""

    def nowhere() -> Home:
        raise InvalidRequestError("no home was given")

    error = DeadlineExceededError("it did not come", next_step="Look.")
    name_full_disks(error, nowhere)
    assert error.next_step == "Look."
