"""Queries that cannot go on in their own checkpoints: by what their starts said, and by their logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.controller.observe.one_time_sources import consent, describe_why, one_time_sources
from airflow_streamstate.protocol.positions import SourceIdentity
from support.sim_stage import Stage
from support.snapshots import plan_stateful
from support.upgrade_stage import SOCKET


def test_a_socket_that_has_an_offset_is_one(tmp_path: Path) -> None:
    """Which query reads it, and why that is in the way."""
    stage = Stage(tmp_path, identities=(SOCKET,))
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    found = one_time_sources(stage.home, stage.seen())
    assert list(found) == ["counts"]
    assert consent(found) == "--accept-lost-input counts"
    assert describe_why(found).startswith("query counts reads socket 127.0.0.1:9999: a socket sends each row once")


@pytest.mark.parametrize("identity", [SourceIdentity("file", "file /in"), SourceIdentity("", "")])
def test_other_sources_are_none(tmp_path: Path, identity: SourceIdentity) -> None:
    """They are read again, or no connector knows them."""
    stage = Stage(tmp_path, identities=(identity,))
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    assert one_time_sources(stage.home, stage.seen()) == {}


def test_before_its_first_commit_it_is_none(tmp_path: Path) -> None:
    """No offset of it is kept: the next start begins as the first one did."""
    stage = Stage(tmp_path, identities=(SOCKET,))
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    assert one_time_sources(stage.home, stage.seen()) == {}
    plan_stateful(stage.checkpoint(), 0)
    assert one_time_sources(stage.home, stage.seen()) == {}


def test_the_newest_start_tells_what_its_sources_are(tmp_path: Path) -> None:
    """A script may read another source from one attempt to the next."""
    stage = Stage(tmp_path, identities=(SOCKET,))
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    stage.identities = (SourceIdentity("file", "file /in"),)
    stage.start_query(attempt=2)
    assert one_time_sources(stage.home, stage.seen()) == {}


def test_a_log_that_cannot_be_read_is_left_to_its_driver(tmp_path: Path) -> None:
    """Nothing is refused for it here."""
    stage = Stage(tmp_path, identities=(SOCKET,))
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    checkpoint = stage.run_batches(3)
    stage.store.put(checkpoint.offset_key(3), b"half")
    assert one_time_sources(stage.home, stage.seen()) == {}
