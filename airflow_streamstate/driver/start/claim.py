"""Becoming an attempt (1a.8, Law 4): the register must name it, no other driver may have claimed it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from airflow_streamstate import __version__
from airflow_streamstate.checkpoint.guards import offset_log_of, refuse_move, state_store_of
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.repair import DrainCommitted, DrainPending, Foreign, classify
from airflow_streamstate.checkpoint.state_files import has_begun_planned
from airflow_streamstate.clock import Clock
from airflow_streamstate.control.command_status import pending_drain
from airflow_streamstate.control.journal import spark_that_wrote
from airflow_streamstate.control.presence import HomePresence
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.attempt.answers import cancel_drains
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.attempt_snapshots import checkpoint_names, retry_until_fenced
from airflow_streamstate.driver.attempt.latch import Order, order_of
from airflow_streamstate.driver.attempt.reports import say_to_driver_log
from airflow_streamstate.driver.start.query_seed import stored_entry
from airflow_streamstate.driver.start.query_start import tell_committed_skips
from airflow_streamstate.errors import (
    DataError,
    FencedError,
    InvalidRequestError,
    ObjectExistsError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL, OLDEST_PROTOCOL
from airflow_streamstate.protocol.events import Claimed, Drained, QueryStarted
from airflow_streamstate.protocol.positions import Heartbeat
from airflow_streamstate.protocol.records import Claim, DeploymentSpec, StreamRegister
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.retry import Retry
from airflow_streamstate.snapshot.data import data_files
from airflow_streamstate.store.base import Store

BEGINNING_PAUSE_SECONDS = 5.0
CLAIM_PAUSE_SECONDS = 1.0
Result = TypeVar("Result")


def take_up_pending(attempt: Attempt) -> None:
    """Report the skips that an earlier attempt committed, and close the latch where a drain is pending, or where this
    attempt was launched to drain and the drain is done or withdrawn.

    Raises:
        UnavailableError: the store does not answer.
    """
    begun = _in_the_logs(attempt)
    if begun is None:  # a flush that has started cannot be cancelled
        cancel_drains(attempt)
    tell_committed_skips(attempt)
    order = _ordered(attempt) or begun
    if order is not None:
        attempt.reporter.say("a drain is pending: the queries of this attempt read no input")
        attempt.latch.close("drain", order)
    elif _is_drained(attempt):
        attempt.reporter.say("this deployment is drained already: its queries are not started")
        attempt.latch.close("drain", Order())
        attempt.latch.release("drained")
    elif attempt.only_drains:
        attempt.latch.close("stop", Order())
        attempt.reporter.note("this attempt was to drain the deployment, but no notification holds any more")
        attempt.latch.release("superfluous")


def _ordered(attempt: Attempt) -> Order | None:
    drain = pending_drain(
        attempt.commands(attempt.journal.commands()),
        stream_id=attempt.stream_id,
        deployment_id=attempt.deployment_id,
        now=attempt.clock.now(),
    )
    return None if drain is None else order_of(*drain)


def _in_the_logs(attempt: Attempt) -> Order | None:
    """A drain entry in a log: its flush runs to its end, whatever became of the command (1a.7)."""
    for name in checkpoint_names(attempt):
        checkpoint = attempt.checkpoint_of(name)
        try:
            found = classify(checkpoint, attempt.deployment_id) if checkpoint.exists() else None
        except DataError as error:
            attempt.reporter.say(f"the log of query {name} cannot be judged yet: {error}")
            continue
        beneath = found.beneath if isinstance(found, Foreign) else found
        if isinstance(beneath, (DrainPending, DrainCommitted)) and beneath.mark.deployment_id == attempt.deployment_id:
            if _is_drained(attempt):
                return None
            return _order_named(attempt, beneath.mark.command_id)
    return None


def _order_named(attempt: Attempt, command_id: str) -> Order:
    status = attempt.command_status(command_id)
    return Order(command_id, status.number, status.command)


def _is_drained(attempt: Attempt) -> bool:
    return any(isinstance(event, Drained) for event in attempt.reporter.events)


def need_spec(control: StreamControl, deployment_id: str, clock: Clock) -> DeploymentSpec:
    """The spec of a deployment, read as ``patiently``.

    Raises:
        DeploymentNotFoundError: there is no such deployment.
        UnavailableError: as ``patiently``.
    """
    return patiently(clock, lambda: control.spec(deployment_id))


def patiently(clock: Clock, act: Callable[[], Result]) -> Result:
    """Read from the store, trying for ``lost_after_seconds`` where it does not answer.

    Raises:
        UnavailableError: the store did not answer in that time.
    """

    def say(error: Exception) -> None:
        say_to_driver_log(f"the store is out of reach, and is asked again ({error})")

    beginning = Retry(for_seconds=AgentSettings().lost_after_seconds, pause_seconds=BEGINNING_PAUSE_SECONDS)
    return beginning.call(clock, act, UnavailableError, say)


def claim_attempt(attempt: Attempt, launch_key: str, host: str, pid: int) -> None:
    """See ``AttemptLife.claim``."""
    claim = Claim(
        stream_id=attempt.stream_id,
        deployment_id=attempt.deployment_id,
        attempt=attempt.number,
        launch_key=launch_key,
        host=host,
        pid=pid,
        oldest_protocol=OLDEST_PROTOCOL,
        newest_protocol=NEWEST_PROTOCOL,
        agent_version=__version__,
        write_id=attempt.clock.new_uuid(),
        claimed_at=attempt.clock.now(),
    )

    def take() -> StreamRegister:
        register = _need_current(attempt)
        _create(attempt, claim)
        attempt.control.presence.bind(claim)
        # Replaced between the look and the claim: the claim then changes nothing.
        _need_current(attempt)
        attempt.reporter.load()
        attempt.reporter.answered("the claim")
        return register

    claiming = Retry(for_seconds=attempt.spec.version.settings.lost_after_seconds, pause_seconds=CLAIM_PAUSE_SECONDS)
    register = claiming.call(
        attempt.clock, take, UnavailableError, lambda error: attempt.reporter.outage("the claim", error)
    )
    if any(isinstance(event, QueryStarted) for event in attempt.reporter.events):
        attempt.expect_checkpoints()
    attempt.note_mode(register.attempt_mode)
    attempt.note_oldest_stopped(register.oldest_stopped_attempt)
    attempt.note_accepted(register.attempt_accepts_hazards)
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
    retry_until_fenced(attempt, "what is pending", lambda: take_up_pending(attempt))


def _earlier_beat(attempt: Attempt) -> Heartbeat | None:
    """The last heartbeat of an earlier attempt; used for times only."""
    if attempt.number == 1:
        return None
    with suppress(StreamStateError):
        return attempt.control.heartbeat(attempt.deployment_id)
    return None


def _need_current(attempt: Attempt) -> StreamRegister:
    stored = attempt.control.register_or_lost()
    if stored is None or not attempt.fence.names_this(stored.value):
        attempt.fence.close_unclaimed()
        raise attempt.fence.error()
    attempt.fence.note_named(stored.value)
    return stored.value


def _create(attempt: Attempt, claim: Claim) -> None:
    try:
        attempt.control.create_claim(claim)
    except ObjectExistsError:
        there = attempt.control.claim(attempt.deployment_id, attempt.number)
        if there == claim:
            return
        attempt.fence.close_unclaimed()
        raise FencedError(
            "another driver is this attempt already",
            deployment_id=attempt.deployment_id,
            attempt=attempt.number,
            launch_key=None if there is None else there.launch_key,
            host=None if there is None else there.host,
            pid=None if there is None else there.pid,
            next_step="No action is needed: the other driver runs the attempt.",
        ) from None


# Whether a driver on another machine sees the places that its controller sees, asked before the script runs.
#
# A path of one machine may name nothing on another one, or an empty folder, in which Spark would start from scratch.

_NEXT_STEP = "Use S3, GCS or Azure, or a folder that every machine mounts at the same path."


def check_home(presence: HomePresence, home_id: str) -> None:
    """Check that this machine sees the home of this id.

    Raises:
        InvalidRequestError: it does not.
        UnavailableError, StoreRefusedError: the store does not answer.
    """
    found = presence.record_id()
    if found != home_id:
        raise InvalidRequestError(
            "the driver does not see the home" if found is None else "the driver sees another home",
            home=presence.home.uri,
            host=socket.gethostname(),
            next_step=_NEXT_STEP,
        )


def check_checkpoints(checkpoints: Store, stream_id: str, deployment_id: str) -> None:
    """Check that this machine sees the store of checkpoints that the controller sees; raises as ``check_home``."""
    if checkpoints.head(layout.witness_key(stream_id, deployment_id)) is None:
        raise InvalidRequestError(
            "the driver does not see the folder of the checkpoints",
            checkpoints=checkpoints.uri,
            host=socket.gethostname(),
            next_step=_NEXT_STEP,
        )


# Checks that this driver's Spark can read a query's checkpoint, before the checkpoint is touched (Law 10).


def check_spark(attempt: Attempt, name: str, checkpoint: Checkpoint) -> None:
    """Refuse a query whose checkpoint, or snapshot, a newer Spark wrote in a way that this Spark cannot read.

    Raises:
        IncompatibleUpgradeError: it is so.
        UnsupportedCheckpointError: no stream runs on this Spark.
    """

    def look() -> tuple[str, str, str, str]:
        return _written_by(attempt, name, checkpoint)

    found = look() if attempt.latch.is_open else retry_until_fenced(attempt, "the checkpoint", look)
    written_by, committed_by, provider, offset_log = found
    runs_on = attempt.spark_version
    refuse_move(written_by, runs_on, provider, offset_log, committed_by=committed_by, query_name=name)


def _written_by(attempt: Attempt, name: str, checkpoint: Checkpoint) -> tuple[str, str, str, str]:
    """The Spark versions that wrote and that committed, the state store, the version of the offset log."""
    manifest = attempt.start.manifest()
    known = manifest.queries.get(name) if manifest is not None else None
    start = None if known is None or known.drained else manifest
    if checkpoint.exists():
        position = checkpoint.position()
        batch_id = position.batch_id
        entry = position.planned if batch_id is None else checkpoint.read_offset(batch_id)
        begun = (name,) if has_begun_planned(checkpoint, position) else ()
        written_by, committed_by = (
            spark_that_wrote(
                attempt.reporter.events, {name: batch_id}, start, names, is_start_lost=attempt.start.is_lost()
            )
            for names in (begun, ())
        )
        return written_by, committed_by, state_store_of(entry, has_state=checkpoint.has_state()), offset_log_of(entry)
    if start is None or known is None:
        return "", "", "", ""
    batch_id = known.position.planned_batch_id if known.position.batch_id is None else known.position.batch_id
    files = data_files(start, name)
    entry = stored_entry(attempt.places.of(start), files, batch_id)
    has_state = any(path.startswith("state/") for path in files)
    written_by = start.spark_version
    return written_by, written_by, state_store_of(entry, has_state=has_state), offset_log_of(entry)
