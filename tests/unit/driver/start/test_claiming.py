"""Becoming an attempt (1a.8, Law 4)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tomllib

import airflow_streamstate
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.start.claim import claim_attempt, need_spec
from airflow_streamstate.errors import FencedError, UnavailableError
from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL, OLDEST_PROTOCOL
from airflow_streamstate.protocol.events import Claimed
from airflow_streamstate.protocol.positions import Heartbeat
from airflow_streamstate.store.base import Store
from support.faulty_store import Fault, FaultPlan, FaultyStore
from support.simulated_driver import STREAM, SimulatedDriver, SimulatedStream


def keys(store: Store) -> list[str]:
    return [info.key for info in store.list_objects("")]


def test_a_claim_says_who_it_is_and_what_it_speaks(stream: SimulatedStream) -> None:
    """A controller learns from the claim which protocol versions the agent knows."""
    claim_attempt(SimulatedDriver(stream).attempt_life.attempt, "d-0001-a0001", "host", 7)
    claim = stream.control.claim("d-0001", 1)
    assert claim is not None
    assert (claim.launch_key, claim.pid) == ("d-0001-a0001", 7)
    assert (claim.oldest_protocol, claim.newest_protocol) == (OLDEST_PROTOCOL, NEWEST_PROTOCOL)
    assert stream.kinds() == ["Claimed"]


@pytest.mark.parametrize("has_beaten", [True, False])
def test_a_claim_says_when_the_attempt_before_was_last_seen(stream: SimulatedStream, has_beaten: bool) -> None:
    """Its own heartbeats take the place of that one, and nothing else reports how long a killed driver ran."""
    claim_attempt(SimulatedDriver(stream).attempt_life.attempt, "d-0001-a0001", "host", 7)
    beat = Heartbeat(STREAM, "d-0001", 1, stream.clock.now(), {})
    if has_beaten:
        stream.control.put_heartbeat(beat)
    stream.clock.advance(600)
    driver = SimulatedDriver(stream, attempt=stream.next_attempt())
    claim_attempt(driver.attempt_life.attempt, "d-0001-a0002", "host", 8)
    first, second = stream.events_of(Claimed)
    assert (first.earlier_attempt, first.earlier_beat_at) == (None, None)
    assert (second.earlier_attempt, second.earlier_beat_at) == ((1, beat.at) if has_beaten else (None, None))


def test_a_claim_says_why_the_attempt_was_asked_for(stream: SimulatedStream) -> None:
    """``events`` reports the reason of each attempt: of the first its deploy's, then that of the register."""
    stream.next_attempt()
    stream.control.update_register(lambda now: replace(now, attempt_reason="room again"), by="test")
    claim_attempt(SimulatedDriver(stream, attempt=2).attempt_life.attempt, "d-0001-a0002", "host", 7)
    assert [event.reason for event in stream.events_of(Claimed)] == ["room again"]


def test_an_attempt_that_is_not_current_claims_nothing_and_writes_nothing(stream: SimulatedStream) -> None:
    """A driver that comes late finds its successor in the register, and leaves no trace (Law 4)."""
    stream.point_register("d-0001", 2)
    before = keys(stream.checkpoints)
    with pytest.raises(FencedError):
        claim_attempt(SimulatedDriver(stream).attempt_life.attempt, "d-0001-a0001", "host", 7)
    assert keys(stream.checkpoints) == before


def test_the_second_driver_of_an_attempt_stops(stream: SimulatedStream) -> None:
    """One attempt is one driver process (1a.8)."""
    claim_attempt(SimulatedDriver(stream).attempt_life.attempt, "d-0001-a0001", "host", 7)
    second = SimulatedDriver(stream)
    before = keys(stream.checkpoints)
    with pytest.raises(FencedError) as caught:
        claim_attempt(second.attempt_life.attempt, "d-0001-a0001", "other", 8)
    assert caught.value.context["host"] == "host"
    assert second.attempt_life.attempt.fence.is_fenced
    assert keys(stream.checkpoints) == before


def test_a_driver_replaced_while_it_claims_stops(stream: SimulatedStream) -> None:
    """The register is looked at again after the claim: the successor may have moved it in between (Law 4)."""
    plan = FaultPlan(meanwhile={3: lambda: stream.point_register("d-0002", 1, fencing_token=2)})
    store = FaultyStore(stream.checkpoints, plan)
    driver = SimulatedDriver(stream, control=StreamControl(store, STREAM, stream.clock))
    with pytest.raises(FencedError):
        claim_attempt(driver.attempt_life.attempt, "d-0001-a0001", "host", 7)
    assert stream.events_of(Claimed) == []


@pytest.mark.parametrize("fault", [Fault.REPLY_LOST, Fault.UNAVAILABLE])
def test_a_claim_outlasts_a_short_outage(fault: Fault) -> None:
    """A lost reply, or a store that is away for a moment, neither ends nor doubles the claim (Law 8)."""
    for number in range(1, 8):
        stream = SimulatedStream()
        stream.deploy()
        store = FaultyStore(stream.checkpoints, FaultPlan({number: fault}))
        driver = SimulatedDriver(stream, control=StreamControl(store, STREAM, stream.clock))
        claim_attempt(driver.attempt_life.attempt, "d-0001-a0001", "host", 7)
        assert stream.kinds() == ["Claimed"]


def test_a_store_that_stays_away_ends_the_claim(stream: SimulatedStream) -> None:
    """Before its claim a driver has nothing to lose: after ``lost_after_seconds`` it reports what it saw (Law 6)."""
    faults = dict.fromkeys(range(1, 500), Fault.UNAVAILABLE)
    store = FaultyStore(stream.checkpoints, FaultPlan(faults))
    driver = SimulatedDriver(stream, control=StreamControl(store, STREAM, stream.clock))
    with pytest.raises(UnavailableError):
        claim_attempt(driver.attempt_life.attempt, "d-0001-a0001", "host", 7)
    assert 60 <= stream.clock.monotonic_seconds() <= 62


def test_the_agent_says_the_version_of_the_package(stream: SimulatedStream) -> None:
    """It is written once, in the package's root, which travels with the driver."""
    driver = SimulatedDriver(stream)
    claim_attempt(driver.attempt_life.attempt, "d-0001-a0001", "host", 7)
    claim = stream.control.claim("d-0001", 1)
    assert claim is not None
    assert claim.agent_version == airflow_streamstate.__version__
    with (Path(__file__).parents[4] / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["tool"]["hatch"]["version"]["path"] == "airflow_streamstate/__init__.py"


def test_a_store_that_is_away_at_the_very_first_read_is_waited_for(stream: SimulatedStream) -> None:
    """A driver that came up within an outage is as good as any; where it does not end, the driver does (Law 6)."""
    faults = FaultPlan(dict.fromkeys(range(1, 10_000), Fault.UNAVAILABLE))
    control = StreamControl(FaultyStore(stream.checkpoints, faults), STREAM, stream.clock)
    stream.clock.after(20.0, faults.at.clear)
    assert need_spec(control, "d-0001", stream.clock).deployment_id == "d-0001"
    faults.at.update(dict.fromkeys(range(1, 10_000), Fault.UNAVAILABLE))
    began = stream.clock.monotonic_seconds()
    with pytest.raises(UnavailableError):
        need_spec(control, "d-0001", stream.clock)
    assert stream.clock.monotonic_seconds() - began >= 60.0
