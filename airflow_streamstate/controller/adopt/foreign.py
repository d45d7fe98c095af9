"""Checkpoints that are not ours: opened, and looked at before anything is done to them (Law 10)."""

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
    """Opens the folder that a checkpoint lies in, with what the home is reached with."""
    return lambda uri: open_store(uri, options=home.config.s3, clock=home.clock)


def open_foreign(home: Home, uri: str, open_place: OpenPlace) -> Checkpoint:
    """The checkpoint at this place, as Spark was told it, looked at.

    Args:
        home: that it must not lie in.
        uri: of its folder.
        open_place: opens the folder above it.

    Raises:
        InvalidRequestError: there is none, or it is one of a deployment of streamstate's.
        UnsupportedCheckpointError: it is in a format not known here, or was drained by us.
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
            next_step="Name the folder that the query was given as checkpointLocation: `metadata` lies in it.",
        )
    checkpoint.query_id()
    guard_checkpoint(checkpoint)
    _refuse_drained(checkpoint, uri)
    return checkpoint


def place_of(uri: str, open_place: OpenPlace) -> Checkpoint:
    """The checkpoint at this place, whatever is there.

    Raises:
        InvalidRequestError: there can be none.
    """
    parent, _, name = _plain(uri).rpartition("/")
    if not name or parent.endswith(":/"):
        raise InvalidRequestError(
            "this is no folder of a checkpoint", checkpoint=uri, next_step="Name the folder in which `metadata` lies."
        )
    return Checkpoint(open_place(parent or "/"), name)


def _plain(uri: str) -> str:
    place = plain_uri(uri)
    return place if "://" in place else str(local_folder(place))


def _real(place: str) -> str:
    """The same folder without links and detours."""
    return place if "://" in place else str(Path(place).resolve())


def _refuse_own(home: Home, place: str, uri: str) -> None:
    """A barrier in the log of a deployment of ours would end it, or be taken for its successor's fence (Law 4)."""
    owns = [_real(plain_uri(own)) for own in (home.home.uri, home.checkpoints.uri)]
    found = _OF_A_DEPLOYMENT.fullmatch(place)
    if found is not None and is_stream_id(found["stream"]) and is_deployment_id(found["deployment"]):
        with suppress(DeploymentNotFoundError):
            # Wherever checkpoints were kept when it was deployed.
            owns.append(
                _real(plain_uri(home.control(found["stream"], begins=True).spec(found["deployment"]).checkpoints_uri))
            )
    for own in owns:
        if f"{place}/".startswith(f"{own}/"):
            raise InvalidRequestError(
                "this checkpoint is one of this home's own",
                checkpoint=uri,
                home=own,
                next_step="`streamstate list` shows whose; deploy that stream.",
            )


def _refuse_others(place: str, uri: str) -> None:
    """Every checkpoint of every home lies like this. Its driver, or the next one, would take the barrier for one that
    was copied with it, and remove it (1a.1): both streams would run the same batches (Law 14)."""
    found = _OF_A_SNAPSHOT.fullmatch(place)
    if found is not None and is_stream_id(found["stream"]) and is_id(found["snapshot"]):
        raise InvalidRequestError(
            "this is a snapshot of another home's, and nobody writes into a snapshot",
            checkpoint=uri,
            stream_id=found["stream"],
            snapshot_id=found["snapshot"],
            next_step="Restore the stream from its mirror here (`streamstate home restore`); or adopt a copy of it.",
        )
    found = _OF_A_DEPLOYMENT.fullmatch(place)
    if found is not None and is_stream_id(found["stream"]) and is_deployment_id(found["deployment"]):
        raise InvalidRequestError(
            "this checkpoint is of a deployment of another home, whose drivers heed no barrier of ours",
            checkpoint=uri,
            stream_id=found["stream"],
            deployment_id=found["deployment"],
            next_step="Deploy the stream there; to have it here, mirror it there, and restore it from its mirror here"
            " (`streamstate home restore`). Is that home gone? Move the folder to another place, and adopt it there.",
        )


def refuse_unconditional(checkpoint: Checkpoint) -> None:
    """See that no barrier can be put over a batch that Spark plans in that very moment. Nothing is changed.

    Raises:
        InvalidRequestError: the file system has no hard links, or the server heeds no condition.
        UnavailableError, OutcomeUnknownError: the store does not answer.
    """
    store = checkpoint.store
    holds = True
    if isinstance(store, LocalStore):
        holds = store.can_name_once(checkpoint.metadata_key)
    elif isinstance(store, ReachedBySpark) and (found := store.get(checkpoint.metadata_key)) is not None:
        with suppress(ObjectExistsError):
            # Where no condition holds it is the same as before, too.
            store.create(checkpoint.metadata_key, found.body)
            holds = False
    if not holds:
        raise InvalidRequestError(
            "a barrier could be put over a batch that Spark has just planned: here nothing is created once and for all",
            checkpoint=f"{store.uri}/{checkpoint.prefix}",
            next_step="Use a file system with hard links, or a store with If-None-Match on put: copy the checkpoint"
            " there when the query is stopped, and adopt the copy with --stopped.",
        )


def need_position(checkpoint: Checkpoint, uri: str) -> Position:
    """Where a query that does not run stands.

    Raises:
        InvalidRequestError: it has committed nothing.
        DataError: its log is damaged.
    """
    position = checkpoint.position()
    if position.batch_id is None:
        raise InvalidRequestError(
            "this query has committed no batch yet, so there is nothing to go on from",
            checkpoint=uri,
            next_step="Wait for its first batch; or deploy the script as a new stream.",
        )
    return position


def _refuse_drained(checkpoint: Checkpoint, uri: str) -> None:
    commits = checkpoint.commit_ids()
    entry = checkpoint.read_offset(commits[-1]) if commits else None
    if entry is not None and entry.mark is not None and entry.mark.kind == "drain":
        raise UnsupportedCheckpointError(
            "this checkpoint was drained, so nothing can go on from it: its watermark is at the end of time",
            checkpoint=uri,
            stream_id=entry.mark.stream_id,
            next_step="Deploy the stream that it belongs to.",
        )
