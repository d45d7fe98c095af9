"""The shared state of one attempt, and its replacement."""

from __future__ import annotations

import pytest

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.errors import FencedError
from airflow_streamstate.protocol.events import Fenced
from support.simulated_driver import SimulatedDriver, SimulatedStream


@pytest.fixture
def attempt(stream: SimulatedStream) -> Attempt:
    return SimulatedDriver(stream).attempt_life.attempt


@pytest.mark.parametrize(("deployment_id", "number"), [("d-0002", 1), ("d-0001", 2)])
def test_a_replaced_attempt_says_so_once_and_is_silent(
    stream: SimulatedStream, attempt: Attempt, deployment_id: str, number: int
) -> None:
    """A replaced attempt writes one last event under its own keys, then nothing (Law 4)."""
    stream.point_register(deployment_id, number)
    for _ in range(2):
        with pytest.raises(FencedError):
            attempt.fence.check_current()
    attempt.reporter.note("too late")
    assert stream.kinds() == ["Fenced"]
    assert stream.events_of(Fenced)[0].current_deployment_id == deployment_id
    assert stream.events_of(Fenced)[0].current_attempt == number


def test_ids_of_snapshots_are_known_before_the_first_try(attempt: Attempt) -> None:
    """The end of an attempt, or a command, has one snapshot: trying twice is trying once (Law 2)."""
    assert attempt.snapshot_id("stopped") == "d-0001-stopped-000001"
    assert attempt.snapshot_id("live", 7) == "d-0001-live-000007"


def test_each_mark_has_an_id_of_its_own(attempt: Attempt) -> None:
    """A put whose outcome is unknown is recognised by its write id (Law 8)."""
    first, second = attempt.mark("stop", "c-1"), attempt.mark("stop", "c-1")
    assert first.write_id != second.write_id
    assert (first.deployment_id, first.attempt, first.command_id) == ("d-0001", 1, "c-1")
