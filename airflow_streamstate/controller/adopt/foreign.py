"""Foreign checkpoints: opened and checked before anything is written to them (Law 10)."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from airflow_streamstate.checkpoint.guards import guard_checkpoint
from airflow_streamstate.checkpoint.log import Checkpoint, Position
from airflow_streamstate.controller.home import Home, is_stream_id
from airflow_streamstate.errors import (
    DeploymentNotFoundError,
    InvalidRequestError,
    ObjectExistsError,
    UnsupportedCheckpointError,
)
from airflow_streamstate.protocol.ids import is_deployment_id, is_id
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.open import local_folder, open_store
from airflow_streamstate.store.s3a import ReachedBySpark, plain_uri

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
            "no checkpoint lies there",
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
    """Refuse checkpoints that look like those of another home: its drivers remove foreign barriers (1a.1), so both
    streams would run the same batches (Law 14)."""
    found = _OF_A_SNAPSHOT.fullmatch(place)
    if found is not None and is_stream_id(found["stream"]) and is_id(found["snapshot"]):
        raise InvalidRequestError(
            "this is a snapshot of another home's, and a snapshot is never written to",
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
            "this query has committed no batch yet, so a stream could not go on from it",
            checkpoint=uri,
            next_step="Wait for its first batch; or deploy the script as a new stream.",
        )
    return position


def _refuse_drained(checkpoint: Checkpoint, uri: str) -> None:
    commits = checkpoint.commit_ids()
    entry = checkpoint.read_offset(commits[-1]) if commits else None
    if entry is not None and entry.mark is not None and entry.mark.kind == "drain":
        raise UnsupportedCheckpointError(
            "this checkpoint was drained, so no query can go on from it: its watermark is at the end of time",
            checkpoint=uri,
            stream_id=entry.mark.stream_id,
            next_step="Deploy the stream that it belongs to.",
        )
