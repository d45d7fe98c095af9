"""Foreign checkpoints: checked before anything is written (Law 10), and ended by a barrier (Law 12)."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from airflow_streamstate.checkpoint.barrier import (
    Idle,
    OutsideBarrier,
    OutsideCertain,
    OutsidePlaced,
    OutsideStep,
    Unsure,
)
from airflow_streamstate.checkpoint.guards import guard_checkpoint
from airflow_streamstate.checkpoint.log import Checkpoint, Position
from airflow_streamstate.clock import Clock
from airflow_streamstate.controller.home import Home, is_stream_id
from airflow_streamstate.errors import (
    DeadlineExceededError,
    DeploymentNotFoundError,
    InvalidRequestError,
    ObjectExistsError,
    UnavailableError,
    UnsupportedCheckpointError,
)
from airflow_streamstate.protocol.ids import is_deployment_id, is_id
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.open import local_folder, open_store
from airflow_streamstate.store.options import ReachedBySpark, plain_uri

_OF_A_DEPLOYMENT = re.compile(r".*/(?P<stream>[^/]+)/deployments/(?P<deployment>[^/]+)/checkpoints/[^/]+")
_OF_A_SNAPSHOT = re.compile(r".*/(?P<stream>[^/]+)/snapshots/(?P<snapshot>[^/]+)/data(?:-[0-9]+)?/[^/]+")

OpenPlace = Callable[[str], Store]


def opener(home: Home) -> OpenPlace:
    """Opens the parent folder of a checkpoint with the home's credentials."""
    return lambda uri: open_store(uri, options=home.config.options, clock=home.clock)


def open_foreign(home: Home, uri: str, open_place: OpenPlace) -> Checkpoint:
    """Open and check the checkpoint in this folder, which must not belong to a home of streamstate.

    Raises:
        InvalidRequestError: there is no checkpoint, or it belongs to a deployment or a snapshot of streamstate.
        UnsupportedCheckpointError: it has an unknown format, or streamstate drained it.
        DataError: it is damaged.
    """
    checkpoint = place_of(uri, open_place)
    place = _real(_plain(uri))
    _refuse_own(home, place, uri)
    _refuse_others(place, uri)
    if not checkpoint.exists():
        raise InvalidRequestError(
            "there is no checkpoint there",
            checkpoint=uri,
            next_step="Name the folder that the query has as checkpointLocation: it contains `metadata`.",
        )
    checkpoint.query_id()
    guard_checkpoint(checkpoint)
    _refuse_drained(checkpoint, uri)
    return checkpoint


def place_of(uri: str, open_place: OpenPlace) -> Checkpoint:
    """The checkpoint in this folder, unchecked; raises InvalidRequestError where the URI names no folder."""
    parent, _, name = _plain(uri).rpartition("/")
    if not name or parent.endswith(":/"):
        raise InvalidRequestError(
            "this is not the folder of a checkpoint",
            checkpoint=uri,
            next_step="Name the folder that contains `metadata`.",
        )
    return Checkpoint(open_place(parent or "/"), name)


def _plain(uri: str) -> str:
    place = plain_uri(uri)
    return place if "://" in place else str(local_folder(place))


def _real(place: str) -> str:
    """The same folder without links and ``..``."""
    return place if "://" in place else str(Path(place).resolve())


def _refuse_own(home: Home, place: str, uri: str) -> None:
    """A barrier in the log of a deployment of this home would end it, or pass for its successor's fence (Law 4)."""
    owns = [home.home.uri, home.checkpoints.uri]
    found = _deployment_of(place)
    if found is not None:
        with suppress(DeploymentNotFoundError):  # its checkpoints may be at a place that the home used before
            owns.append(home.control(found["stream"], begins=True).spec(found["deployment"]).checkpoints_uri)
    for own in (_real(plain_uri(each)) for each in owns):
        if f"{place}/".startswith(f"{own}/"):
            raise InvalidRequestError(
                "this checkpoint is one of this home's own",
                checkpoint=uri,
                home=own,
                next_step="`streamstate list` shows the streams; deploy the one that it belongs to.",
            )


def _deployment_of(place: str) -> re.Match[str] | None:
    found = _OF_A_DEPLOYMENT.fullmatch(place)
    is_ours = found is not None and is_stream_id(found["stream"]) and is_deployment_id(found["deployment"])
    return found if is_ours else None


def _refuse_others(place: str, uri: str) -> None:
    """Refuse checkpoints that seem to be of a different home: its drivers remove foreign barriers (1a.1), so both
    streams would run the same batches (Law 14)."""
    found = _OF_A_SNAPSHOT.fullmatch(place)
    if found is not None and is_stream_id(found["stream"]) and is_id(found["snapshot"]):
        raise InvalidRequestError(
            "this is a snapshot of a different home, and a snapshot is never written to",
            checkpoint=uri,
            stream_id=found["stream"],
            snapshot_id=found["snapshot"],
            next_step="Restore the stream from its mirror here (`streamstate home restore`); or adopt a copy of it.",
        )
    if (found := _deployment_of(place)) is not None:
        raise InvalidRequestError(
            "this checkpoint is of a deployment of another home, whose drivers ignore a barrier of this home",
            checkpoint=uri,
            stream_id=found["stream"],
            deployment_id=found["deployment"],
            next_step="Deploy the stream there; to have it here, mirror it there, and restore it from its mirror here"
            " (`streamstate home restore`). If that home is gone, move the folder elsewhere, and adopt it there.",
        )


def refuse_unconditional(checkpoint: Checkpoint) -> None:
    """Check that a put of the barrier cannot replace a batch that Spark plans at that moment; changes nothing.

    Raises:
        InvalidRequestError: the file system has no hard links, or the server ignores conditions.
        UnavailableError, OutcomeUnknownError: the store does not answer.
    """
    store = checkpoint.store
    holds = True
    if isinstance(store, LocalStore):
        holds = store.can_name_once(checkpoint.metadata_key)
    elif isinstance(store, ReachedBySpark) and (found := store.get(checkpoint.metadata_key)) is not None:
        with suppress(ObjectExistsError):
            store.create(checkpoint.metadata_key, found.body)  # the same bytes, should the server ignore the condition
            holds = False
    if not holds:
        raise InvalidRequestError(
            "a barrier could replace a batch that Spark has just planned: this store has no conditional create",
            checkpoint=f"{store.uri}/{checkpoint.prefix}",
            next_step="Use a file system with hard links, or a store with If-None-Match on put: copy the checkpoint"
            " there when the query is stopped, and adopt the copy with --stopped.",
        )


def need_position(checkpoint: Checkpoint, uri: str) -> Position:
    """The position of a query that does not run.

    Raises:
        InvalidRequestError: it has committed no batch.
        DataError: its log is damaged.
    """
    position = checkpoint.position()
    if position.batch_id is None:
        raise InvalidRequestError(
            "this query has committed no batch yet, so a stream could not continue from it",
            checkpoint=uri,
            next_step="Wait for its first batch; or deploy the script as a new stream.",
        )
    return position


def _refuse_drained(checkpoint: Checkpoint, uri: str) -> None:
    commits = checkpoint.commit_ids()
    entry = checkpoint.read_offset(commits[-1]) if commits else None
    if entry is not None and entry.mark is not None and entry.mark.kind == "drain":
        raise UnsupportedCheckpointError(
            "this checkpoint was drained, so no query can continue from it: its watermark is at the end of time",
            checkpoint=uri,
            stream_id=entry.mark.stream_id,
            next_step="Deploy the stream that it belongs to.",
        )


# Puts a barrier into the log of a running foreign query, and watches it until it is met or withdrawn (Law 12).

POLL_SECONDS = 0.05
SETTLE_SECONDS = 10.0
"""By then Spark has finished a claim that it started before the put, also on S3A."""
LEAST_PATIENCE_SECONDS = 10.0
PATIENCE_BATCHES = 5
"""A batch that takes this many times the longest of the last batches counts as failed."""

Report = Callable[[str], None]


def bar(
    barrier: OutsideBarrier,
    clock: Clock,
    deadline_seconds: float,
    *,
    go_on: Callable[[], None] = lambda: None,
    confirm: Callable[[], None] = lambda: None,
    report: Report = lambda _: None,
) -> OutsidePlaced:
    """Put the barrier and wait until the batch in flight is committed and no batch comes after it.

    A batch that takes too long counts as failed: the barrier is withdrawn, so that the query can be started again, and
    the next batch gets a new one. At the deadline the barrier is withdrawn, too.

    Args:
        barrier: new, or put by an interrupted call.
        deadline_seconds: for the whole wait.
        go_on: called at each poll; raises to end the wait.
        confirm: called before the barrier is withdrawn; raises where another controller holds the adoption.
        report: gets the progress as text.

    Raises:
        DeadlineExceededError: no batch was planned, or none was committed, in time; the log is as before.
        UnavailableError: the checkpoint cannot be read or written until the deadline.
        ConflictError, UnsupportedCheckpointError, DataError: as ``OutsideBarrier.step``.
    """
    deadline = clock.monotonic_seconds() + deadline_seconds
    timer = _StepTimer()
    last: _TakenBack | None = None
    while True:
        go_on()
        step = _look(barrier)
        now = clock.monotonic_seconds()
        if isinstance(step, OutsidePlaced):
            return step
        timer.note(step, now)
        report(_words(step, last))
        if isinstance(step, Unsure):
            if timer.seconds >= SETTLE_SECONDS:
                barrier.settle()
        elif now >= deadline:
            if isinstance(step, OutsideCertain):
                last = _take_back(barrier, step.batch_id, confirm)
            raise step.error if isinstance(step, _Unreadable) else _too_late(step, deadline_seconds, last)
        elif isinstance(step, OutsideCertain) and timer.is_over(barrier.checkpoint):
            last = _take_back(barrier, step.batch_id, confirm)
        clock.sleep(POLL_SECONDS)


@dataclass(frozen=True)
class _Unreadable:
    """The checkpoint cannot be read now; the wait continues, since it may hold the barrier (Law 12)."""

    error: UnavailableError
    batch_id: int | None = None


def _look(barrier: OutsideBarrier) -> OutsideStep | _Unreadable:
    try:
        return barrier.step()
    except UnavailableError as error:
        return _Unreadable(error)


class _StepTimer:
    """How long the barrier has been at its current step, in ``seconds``."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._what: tuple[type, int | None] | None = None
        self._since = 0.0
        self._patience_seconds: float | None = None

    def note(self, step: OutsideStep | _Unreadable, now: float) -> None:
        what = type(step), step.batch_id
        if what != self._what:
            self._what, self._since, self._patience_seconds = what, now, None
        self.seconds = now - self._since

    def is_over(self, checkpoint: Checkpoint) -> bool:
        """Whether a batch has taken too long, so that it counts as failed."""
        if self.seconds < LEAST_PATIENCE_SECONDS:
            return False
        if self._patience_seconds is None:
            with suppress(UnavailableError):
                self._patience_seconds = _patience_seconds(checkpoint)
        return self._patience_seconds is not None and self.seconds >= self._patience_seconds


@dataclass(frozen=True)
class _TakenBack:
    """The batch whose barrier was withdrawn; ``is_committed``: by then, so the query may have met it."""

    batch_id: int
    is_committed: bool

    @property
    def words(self) -> str:
        if self.is_committed:
            return f"batch {self.batch_id} was committed just as the barrier was withdrawn; "
        return f"batch {self.batch_id} was not committed; the barrier was withdrawn; "


def _take_back(barrier: OutsideBarrier, batch_id: int, confirm: Callable[[], None]) -> _TakenBack:
    confirm()
    barrier.take_back()
    return _TakenBack(batch_id, barrier.checkpoint.is_committed(batch_id))


def _patience_seconds(checkpoint: Checkpoint) -> float:
    """A multiple of the longest of the last batches, by the times in the store."""
    longest = 0.0
    for batch_id in checkpoint.commit_ids()[-PATIENCE_BATCHES:]:
        planned = checkpoint.store.head(checkpoint.offset_key(batch_id))
        committed_at = checkpoint.committed_at(batch_id)
        if planned is not None and planned.modified_at is not None and committed_at is not None:
            longest = max(longest, (committed_at - planned.modified_at).total_seconds())
    return max(LEAST_PATIENCE_SECONDS, PATIENCE_BATCHES * longest)


def _words(step: OutsideStep | _Unreadable, last: _TakenBack | None) -> str:
    if isinstance(step, _Unreadable):
        return f"the checkpoint cannot be read now: {step.error}"
    if isinstance(step, Idle):
        return f"{'' if last is None else last.words}waiting until the query plans batch {step.batch_id}"
    if isinstance(step, Unsure):
        return (
            f"batch {step.batch_id} is committed; waiting for {SETTLE_SECONDS:g} s whether batch"
            f" {step.barrier_id} starts all the same"
        )
    return f"the barrier is behind batch {step.batch_id}; waiting for its commit"


def _too_late(step: OutsideStep, deadline_seconds: float, last: _TakenBack | None) -> DeadlineExceededError:
    if last is None:
        return DeadlineExceededError(
            "the query planned no batch in this time, and an idle query does not notice a barrier; nothing was changed",
            waited_seconds=deadline_seconds,
            batch_id=step.batch_id,
            next_step="Adopt it when input arrives, with a longer --deadline; or stop it yourself, and use --stopped.",
        )
    if last.is_committed:
        return DeadlineExceededError(
            "the batch was committed just as the barrier after it was withdrawn: the query may have ended there",
            waited_seconds=deadline_seconds,
            batch_id=last.batch_id,
            next_step="Check whether it runs. If it has ended, use --stopped, or start it again: its log is as before.",
        )
    return DeadlineExceededError(
        "the batch under the barrier was not committed in this time; the barrier was withdrawn",
        waited_seconds=deadline_seconds,
        batch_id=last.batch_id,
        next_step="Check whether the query failed; started again, it runs this batch as before. If a batch takes that"
        " long, give a longer --deadline.",
    )
