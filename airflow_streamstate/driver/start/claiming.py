"""Becoming an attempt (1a.8, Law 4): the register must name it, and no other driver may be it.

A drain that is pending closes the latch before the script's first line: its queries then read nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.reporting import MAX_RETRY_SECONDS, say_to_driver_log
from airflow_streamstate.driver.attempt.snapshotting import persist
from airflow_streamstate.driver.start.pending import take_up_pending
from airflow_streamstate.errors import FencedError, ObjectExistsError, StreamStateError, UnavailableError
from airflow_streamstate.protocol.events import Claimed, QueryStarted
from airflow_streamstate.protocol.heartbeat import Heartbeat
from airflow_streamstate.protocol.records import Claim, DeploymentSpec
from airflow_streamstate.protocol.register import StreamRegister
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.version import NEWEST_PROTOCOL, OLDEST_PROTOCOL

AGENT_VERSION = "0.1.0"
RETRY_SECONDS = 1.0
Result = TypeVar("Result")


def need_spec(control: StreamControl, deployment_id: str, clock: Clock) -> DeploymentSpec:
    """What this driver is to run; it waits for a store that is away as long as the claim would.

    Raises:
        DeploymentNotFoundError: there is no such deployment.
        UnavailableError: the store did not answer in that time.
    """
    return patiently(clock, lambda: control.spec(deployment_id))


def patiently(clock: Clock, act: Callable[[], Result]) -> Result:
    """Do what a driver begins with; it waits for a store that is away as long as the claim would.

    Raises:
        UnavailableError: the store did not answer in that time.
    """
    until = clock.monotonic_seconds() + AgentSettings().lost_after_seconds
    while True:
        try:
            return act()
        except UnavailableError as error:
            if clock.monotonic_seconds() >= until:
                raise
            say_to_driver_log(f"the store is out of reach, and is asked again ({error})")
        clock.sleep(MAX_RETRY_SECONDS)


def claim_attempt(attempt: Attempt, launch_key: str, host: str, pid: int) -> None:
    """Claim it; see ``Supervisor.claim``."""
    deadline = attempt.clock.monotonic_seconds() + attempt.spec.settings.lost_after_seconds
    claim = Claim(
        stream_id=attempt.stream_id,
        deployment_id=attempt.deployment_id,
        attempt=attempt.number,
        launch_key=launch_key,
        host=host,
        pid=pid,
        oldest_protocol=OLDEST_PROTOCOL,
        newest_protocol=NEWEST_PROTOCOL,
        agent_version=AGENT_VERSION,
        write_id=attempt.clock.new_uuid(),
        claimed_at=attempt.clock.now(),
    )
    while True:
        try:
            register = _need_current(attempt)
            _create(attempt, claim)
            attempt.control.presence.bind(claim)
            # Replaced between the look and the claim: the claim harms nothing, and says who it was.
            _need_current(attempt)
            attempt.reporter.load()
            attempt.reporter.answered("the claim")
            break
        except UnavailableError as error:
            attempt.reporter.outage("the claim", error)
            if attempt.clock.monotonic_seconds() >= deadline:
                raise
        attempt.clock.sleep(RETRY_SECONDS)
    if any(isinstance(event, QueryStarted) for event in attempt.reporter.events):
        attempt.expect_checkpoints()
    attempt.only_drains = register.attempt_mode == "drain"
    earlier = _earlier_beat(attempt)
    attempt.reporter.write(
        Claimed,
        host=host,
        pid=pid,
        fencing_token=attempt.spec.fencing_token,
        earlier_attempt=None if earlier is None else earlier.attempt,
        earlier_beat_at=None if earlier is None else earlier.at,
        reason=attempt.spec.reason if attempt.number == 1 else register.attempt_reason,
    )
    attempt.reporter.say(f"{attempt.deployment_id} attempt {attempt.number} of stream {attempt.stream_id} is claimed")
    persist(attempt, "what is pending", lambda: take_up_pending(attempt))


def _earlier_beat(attempt: Attempt) -> Heartbeat | None:
    """The last heartbeat of an earlier attempt, whose place this one's takes; only times are told by it."""
    if attempt.number == 1:
        return None
    with suppress(StreamStateError):
        return attempt.control.heartbeat(attempt.deployment_id)
    return None


def _need_current(attempt: Attempt) -> StreamRegister:
    stored = attempt.control.register_or_lost()
    if stored is None or not attempt.is_current(stored.value):
        attempt.reporter.silenced = True
        attempt.is_fenced = True
        raise attempt.fenced_error()
    attempt.note_named(stored.value)
    return stored.value


def _create(attempt: Attempt, claim: Claim) -> None:
    try:
        attempt.control.create_claim(claim)
    except ObjectExistsError:
        there = attempt.control.claim(attempt.deployment_id, attempt.number)
        if there == claim:
            return
        attempt.reporter.silenced = True
        attempt.is_fenced = True
        raise FencedError(
            "another driver is this attempt already",
            deployment_id=attempt.deployment_id,
            attempt=attempt.number,
            launch_key=None if there is None else there.launch_key,
            host=None if there is None else there.host,
            pid=None if there is None else there.pid,
            next_step="Nothing is to be done: one driver is enough.",
        ) from None
