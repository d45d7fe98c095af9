"""The conformance suite of launchers over a real ``sshd``."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.launch.conformance import PROMISES, Promise
from airflow_streamstate.launch.ssh import SshLauncher
from support.ssh_stage import SshStage
from support.sshd import Sshd

KEPT = [promise for promise in PROMISES if promise.__name__ not in SshLauncher.limits]


@pytest.mark.parametrize("promise", KEPT, ids=lambda promise: promise.__name__)
def test_the_ssh_launcher_keeps_each_promise(tmp_path: Path, server: Sshd, promise: Promise) -> None:
    """What holds for drivers on this machine holds for those on another host (Laws 1 and 2)."""
    promise(SshStage(tmp_path, server))
