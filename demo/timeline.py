"""What happened, read from the stream's own files: commits in its checkpoints, events in the home."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.lineage import Lineage
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Drained, Started, Stopped
from airflow_streamstate.protocol.positions import Downtime
from airflow_streamstate.protocol.records import DeploymentSpec
from demo.acts import LifeError
from demo.place import Place

UNCOUNTED = 1  # an uncounted end is not an end without late rows


@dataclass(frozen=True)
class Commit:
    """One committed batch of a deployment."""

    deployment_id: str
    batch_id: int
    at: datetime


@dataclass(frozen=True)
class Moment:
    """One event worth a mark in the picture."""

    deployment_id: str
    kind: str
    at: datetime
    text: str


@dataclass(frozen=True)
class Lane:
    """One deployment: its version, how it started, its commits and events, in order of time."""

    spec: DeploymentSpec
    commits: tuple[Commit, ...]
    moments: tuple[Moment, ...]
    spark_version: str
    dropped_rows: int


@dataclass(frozen=True)
class Move:
    """A move from one version to the next.

    Attributes:
        downtime_seconds: from the last commit of the one to the first of the other.
        not_running_seconds: for how long of that no query ran; None if that is not known.
        downtime: with its phases; None of a move that was made without us.
    """

    before: str
    after: str
    downtime_seconds: float
    how: str
    not_running_seconds: float | None = None
    downtime: Downtime | None = None


def lanes_of(controller: Controller, stream_id: str, place: Place) -> list[Lane]:
    """Every deployment of the stream, oldest first."""
    control = controller.home.control(stream_id)
    lanes = []
    for deployment_id in control.deployment_ids():
        events = [entry for entry in controller.events(stream_id, deployment_id) if entry.event is not None]
        moments = tuple(
            Moment(deployment_id, entry.event.kind, entry.event.at, _words(entry.event))
            for entry in events
            if entry.event
        )
        folder = layout.checkpoints_folder(stream_id, deployment_id)
        version = next((e.event.spark_version for e in events if isinstance(e.event, Started)), "")
        dropped = sum(
            UNCOUNTED if position.rows_dropped is None else position.rows_dropped
            for entry in events
            if isinstance(entry.event, Stopped | Drained)
            for position in entry.event.queries.values()
        )
        commits = tuple(_commits(place, folder, deployment_id))
        lanes.append(Lane(control.spec(deployment_id), commits, moments, version, dropped))
    return lanes


def moves_of(lanes: list[Lane], lineage: Lineage, ways: Sequence[str], place: Place) -> list[Move]:
    """The downtime of each upgrade as the audit reports it, and the way it went.

    Raises:
        LifeError: the audit reports another downtime than the commit files.
    """
    moves = []
    for (before, after), way in zip(itertools.pairwise(lanes), ways, strict=True):
        deployment_id, how = after.spec.deployment_id, f"{after.spec.start.mode}: {way}"
        down = next((one for one in lineage.downtimes if one.to_deployment_id == deployment_id), None)
        own = own_commits(before, after)
        if down is None or down.seconds is None or not own:
            raise LifeError(f"the audit reports no downtime of {deployment_id}")
        by_the_files = (own[0].at - before.commits[-1].at).total_seconds()
        is_whole = own[0].batch_id == before.commits[-1].batch_id + 1  # Spark keeps a hundred batches
        is_whole = is_whole and not down.has_found_nothing  # else it ended before the first commit
        if is_whole and abs(by_the_files - down.seconds) > place.commit_seconds:
            raise LifeError(f"downtime of {deployment_id}: {down.seconds} s by the audit, {by_the_files} by the files")
        still = [one for one in lineage.not_running if one.before.startswith(f"{deployment_id} ")]
        seconds = [(one.until_at - one.from_at).total_seconds() for one in still if one.until_at is not None]
        moves.append(Move(before.spec.deployment_id, deployment_id, down.seconds, how, sum(seconds), down))
    return moves


def own_commits(before: Lane | None, after: Lane) -> list[Commit]:
    """The batches that a deployment committed itself."""
    # A restored or seeded checkpoint holds the predecessor's last entries, too: linked, with their old times.
    last = before.commits[-1].batch_id if before is not None and before.commits else -1
    return [commit for commit in after.commits if commit.batch_id > last]


def _commits(place: Place, folder: str, deployment_id: str) -> Iterator[Commit]:
    found = []
    for key, at in place.written(folder):
        parts = key.split("/")
        if parts[-2] == "commits" and parts[-1].isdigit():
            found.append(Commit(deployment_id, int(parts[-1]), at))
    yield from sorted(found, key=lambda commit: (commit.batch_id, commit.at))


def _words(event: object) -> str:
    for name in ("snapshot_id", "query_name", "reason", "text", "error", "application_id"):
        value = getattr(event, name, None)
        if value:
            return str(value)
    return ""
