"""Queries that cannot continue in their own checkpoints: by what their starts reported, and by their logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_streamstate.controller.observe.observation import consent, describe_why, one_time_sources
from airflow_streamstate.protocol.positions import SourceIdentity
from support.sim_stage import Stage
from support.snapshots import plan_stateful
from support.upgrade_stage import SOCKET


@pytest.fixture
def reading(tmp_path: Path) -> Callable[..., Stage]:
    """A deployment whose query reads this source, and has committed batches up to this one; None for no checkpoint."""

    def begun(identity: SourceIdentity = SOCKET, last: int | None = 3) -> Stage:
        stage = Stage(tmp_path, identities=(identity,))
        stage.deploy()
        stage.come_to_life(queries=("counts",))
        if last is not None:
            stage.run_batches(last)
        return stage

    return begun


def test_a_socket_that_has_an_offset_is_one(reading: Callable[..., Stage]) -> None:
    """With its query, and the reason."""
    stage = reading()
    found = one_time_sources(stage.home, stage.seen())
    assert list(found) == ["counts"]
    assert consent(found) == "--accept-lost-input counts"
    assert describe_why(found).startswith("query counts reads socket 127.0.0.1:9999: a socket sends each row once")


@pytest.mark.parametrize("identity", [SourceIdentity("file", "file /in"), SourceIdentity("", "")])
def test_other_sources_are_none(reading: Callable[..., Stage], identity: SourceIdentity) -> None:
    """They can be read again, or no connector knows them."""
    stage = reading(identity)
    assert one_time_sources(stage.home, stage.seen()) == {}


def test_before_its_first_commit_it_is_none(reading: Callable[..., Stage]) -> None:
    """No offset of it is kept: the next run starts as the first one did."""
    stage = reading(last=None)
    assert one_time_sources(stage.home, stage.seen()) == {}
    plan_stateful(stage.checkpoint(), 0)
    assert one_time_sources(stage.home, stage.seen()) == {}


def test_the_newest_start_tells_what_its_sources_are(reading: Callable[..., Stage]) -> None:
    """A script may read another source from one attempt to the next."""
    stage = reading()
    stage.identities = (SourceIdentity("file", "file /in"),)
    stage.start_query(attempt=2)
    assert one_time_sources(stage.home, stage.seen()) == {}


def test_a_log_that_cannot_be_read_is_left_to_its_driver(reading: Callable[..., Stage]) -> None:
    """Nothing is refused for it here."""
    stage = reading()
    stage.store.put(stage.checkpoint().offset_key(3), b"half")
    assert one_time_sources(stage.home, stage.seen()) == {}
