"""What happened, from what the stream itself left: commits in its checkpoints, events in the home."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_streamstate.lifecycle.controller import Controller
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Drained, Started, Stopped
from airflow_streamstate.protocol.records import DeploymentSpec
from demo.place import Place

UNCOUNTED = 1  # an end that nobody counted is not an end without late rows


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
class Gap:
    """How long a stream stood still: last commit of one version to the first of the next; ``how``: for people."""

    before: str
    after: str
    seconds: float
    how: str


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


def gaps_of(lanes: list[Lane], ways: Sequence[str]) -> list[Gap]:
    """The standstill of each upgrade, and the way it went. A drained deployment's last commit is its flush."""
    gaps = []
    for (before, after), way in zip(itertools.pairwise(lanes), ways, strict=True):
        own = own_commits(before, after)
        if before.commits and own:
            seconds = (own[0].at - before.commits[-1].at).total_seconds()
            how = f"{after.spec.start.mode}: {way}"
            gaps.append(Gap(before.spec.deployment_id, after.spec.deployment_id, seconds, how))
    return gaps


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
