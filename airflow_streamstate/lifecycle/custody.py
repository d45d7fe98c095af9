"""The chain of custody of a stream: every deployment began exactly where its predecessor ended, by the logs alone.

Nothing is believed that can be read: where a query ended is in its predecessor's offset and commit logs, where it began
in its own. Spark removes old entries of a log that goes on; then the manifest and the events of the time speak, and the
report says so (``evidence``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_streamstate.adapters.registry import SOURCES, find_adapters
from airflow_streamstate.adapters.source import SourceAdapter
from airflow_streamstate.checkpoint.log import Checkpoint, batches_passed_over
from airflow_streamstate.control.kept_identities import identities_when_planned
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import DataError, DeploymentNotFoundError, StreamStateError
from airflow_streamstate.lifecycle.handovers import Break, Edge, Evidence, breaks_between
from airflow_streamstate.lifecycle.home import Home
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.events import TERMINAL_EVENTS, Event, QueryStarted
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.records import DeploymentSpec


@dataclass(frozen=True)
class QueryCustody:
    """One query in one deployment.

    Attributes:
        began_behind: the last batch that was committed before it began; None for none.
        ended_with: the last batch that it committed; None for none.
        evidence: by what it is known where it began.
    """

    began_behind: int | None
    ended_with: int | None
    evidence: Evidence


@dataclass(frozen=True)
class DeploymentCustody:
    """One deployment in the chain; ``queries`` are those that were started in it."""

    deployment_id: str
    predecessor_id: str | None
    mode: str
    snapshot_id: str | None
    queries: dict[str, QueryCustody]


@dataclass(frozen=True)
class Standstill:
    """A period in which no query of the stream ran.

    Attributes:
        after, before: the attempts around it, as ``d-0001 attempt 1 (drained)``; ``before`` is "" while it lasts.
        from_at: the last word of the one.
        until_at: the first query of the other; None while it lasts.
    """

    after: str
    before: str
    from_at: datetime
    until_at: datetime | None

    def to_json(self) -> dict[str, object]:
        """``after before from_at until_at seconds``; the last two are null while it lasts."""
        seconds = None if self.until_at is None else round((self.until_at - self.from_at).total_seconds(), 3)
        until = None if self.until_at is None else format_time(self.until_at)
        return {
            "after": self.after,
            "before": self.before,
            "from_at": format_time(self.from_at),
            "until_at": until,
            "seconds": seconds,
        }


@dataclass(frozen=True)
class Custody:
    """What an audit found.

    Attributes:
        deployments: oldest first.
        breaks: gaps and overlaps.
        standstills: oldest first.
        unread: what could not be read, one sentence each: nothing is proved of it.
    """

    stream_id: str
    deployments: tuple[DeploymentCustody, ...]
    breaks: tuple[Break, ...]
    standstills: tuple[Standstill, ...]
    unread: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every handover was read and is exact."""
        return not self.breaks and not self.unread

    def to_json(self) -> dict[str, object]:
        """``stream_id ok deployments[] gaps[] overlaps[] standstills[] unread[]``."""
        return {
            "stream_id": self.stream_id,
            "ok": self.is_whole,
            "deployments": [
                {
                    "deployment_id": one.deployment_id,
                    "predecessor_id": one.predecessor_id,
                    "mode": one.mode,
                    "snapshot_id": one.snapshot_id,
                    "queries": {
                        name: {
                            "began_behind": query.began_behind,
                            "ended_with": query.ended_with,
                            "evidence": query.evidence,
                        }
                        for name, query in one.queries.items()
                    },
                }
                for one in self.deployments
            ],
            "gaps": [one.to_json() for one in self.breaks if one.kind == "gap"],
            "overlaps": [one.to_json() for one in self.breaks if one.kind == "overlap"],
            "standstills": [one.to_json() for one in self.standstills],
            "unread": list(self.unread),
        }


def custody_of(home: Home, stream_id: str, since: str | None = None) -> Custody:
    """Audit a stream, running or not; nothing is written.

    Args:
        home: where it lies.
        stream_id: the stream.
        since: the deployment whose start is looked at first; None for the stream's first.

    Raises:
        StreamNotFoundError, DeploymentNotFoundError: there is none.
    """
    control = home.need_stream(stream_id)
    control.need_register()
    if since is not None:
        control.spec(since)
    adapters = find_adapters(SOURCES, SourceAdapter).adapters  # type: ignore[type-abstract]
    reader = _Reader(home, control, adapters)
    ids = control.deployment_ids()
    return reader.read(ids[ids.index(since) :] if since is not None else ids)


class _Reader:
    """Reads the chain, and gathers what it finds."""

    def __init__(self, home: Home, control: StreamControl, adapters: Sequence[SourceAdapter]) -> None:
        self._home = home
        self._control = control
        self._adapters = adapters
        self._breaks: list[Break] = []
        self._unread: list[str] = []

    def read(self, deployment_ids: Sequence[str]) -> Custody:
        deployments: list[DeploymentCustody] = []
        events: list[Event] = []
        for deployment_id in deployment_ids:
            try:
                spec = self._control.spec(deployment_id)
                said = self._events(deployment_id)
                events += said
                deployments.append(self._deployment(spec, said))
            except DeploymentNotFoundError:
                continue  # a folder without a record was never begun
            except StreamStateError as error:
                self._unread.append(f"{deployment_id}: {error.message}")
        return Custody(
            self._control.stream_id,
            tuple(deployments),
            tuple(self._breaks),
            tuple(standstills(events)),
            tuple(self._unread),
        )

    def _events(self, deployment_id: str) -> list[Event]:
        found = []
        for entry in self._control.journal(deployment_id).events():
            if entry.event is None:
                self._unread.append(f"{deployment_id}: event {entry.number} cannot be read")
            else:
                found.append(entry.event)
        return found

    def _deployment(self, spec: DeploymentSpec, said: list[Event]) -> DeploymentCustody:
        before = None if spec.start.snapshot_id is None else self._manifest(spec)
        queries = {}
        firsts: dict[str, QueryStarted] = {}
        for event in said:
            if isinstance(event, QueryStarted):
                firsts.setdefault(event.query_name, event)
        for name, first in sorted(firsts.items()):
            checkpoint = self._checkpoint(spec.deployment_id, name)
            known = None if before is None else before.queries.get(name)
            start = self._start(checkpoint, first, known)
            queries[name] = self._within(spec.deployment_id, name, checkpoint, start)
            if known is not None and before is not None:
                self._compare(spec, name, before, known, start)
            elif spec.start.mode == "fresh":
                self._compare_fresh(spec, name, first)
        return DeploymentCustody(
            spec.deployment_id, spec.start.predecessor_id, spec.start.mode, spec.start.snapshot_id, queries
        )

    def _manifest(self, spec: DeploymentSpec) -> SnapshotManifest | None:
        snapshot_id = str(spec.start.snapshot_id)
        try:
            found = self._control.manifest(snapshot_id)
        except DataError:
            found = None
        if found is None:
            self._unread.append(f"{spec.deployment_id}: {snapshot_id}, from which it started, is gone or damaged")
        return found

    def _checkpoint(self, deployment_id: str, name: str) -> Checkpoint | None:
        folder = layout.checkpoint_folder(self._control.stream_id, deployment_id, name)
        checkpoint = Checkpoint(self._home.checkpoints, folder)
        return checkpoint if checkpoint.exists() else None

    def _start(self, checkpoint: Checkpoint | None, first: QueryStarted, known: QuerySnapshot | None) -> Edge:
        """Where a query began: by its own log where that reaches back so far, else by what was written down."""
        if known is None:
            return Edge(None, evidence="records")
        position = known.position
        batch_id = position.batch_id
        if known.drained and batch_id is None:
            batch_id = 0  # a seed always has an entry to go on from
        entry = None if checkpoint is None or batch_id is None else checkpoint.read_offset(batch_id)
        planned_id = position.planned_batch_id
        planned = None if checkpoint is None or planned_id is None else checkpoint.read_offset(planned_id)
        own = planned is not None and not planned.is_ours
        if first.how != "continued" and first.batch_id is not None:
            batch_id = first.batch_id
        return Edge(
            batch_id,
            entry.source_lines if entry is not None else position.end_offsets,
            planned_id,
            planned.source_lines if planned is not None and own else (),
            first.identities if entry is not None else known.identities,
            "logs" if entry is not None or batch_id is None else "records",
        )

    def _within(self, deployment_id: str, name: str, checkpoint: Checkpoint | None, start: Edge) -> QueryCustody:
        commits = [] if checkpoint is None else checkpoint.commit_ids()
        for passed_over in batches_passed_over(commits):
            self._breaks.append(
                Break(
                    *("gap", deployment_id, name, ""),
                    *(f"batch {passed_over - 1}", f"batch {passed_over + 1}"),
                    f"the log passes over batch {passed_over}: its input may be lost (Law 12)",
                )
            )
        return QueryCustody(start.batch_id, commits[-1] if commits else None, start.evidence)

    def _compare(
        self, spec: DeploymentSpec, name: str, before: SnapshotManifest, known: QuerySnapshot, start: Edge
    ) -> None:
        end = self._end(before.deployment_id, name, known)
        self._breaks += breaks_between(end, start, spec.deployment_id, name, self._adapters)

    def _end(self, predecessor_id: str, name: str, known: QuerySnapshot) -> Edge:
        """Where the predecessor's query ended; one that it never started ended where it had found it."""
        checkpoint = self._checkpoint(predecessor_id, name)
        recorded = Edge(
            0 if known.drained and known.position.batch_id is None else known.position.batch_id,
            known.position.end_offsets,
            known.position.planned_batch_id,
            identities=known.identities,
            evidence="records",
        )
        if checkpoint is None:
            return recorded
        position = checkpoint.position()
        if position.batch_id is None:
            return recorded if position.planned is None else Edge(None, (), 0, position.planned.source_lines)
        entry = checkpoint.read_offset(position.batch_id)
        return Edge(
            position.batch_id,
            entry.source_lines if entry is not None else (),
            position.planned_id,
            position.planned.source_lines if position.planned is not None else (),
            known.identities or identities_when_planned(self._events(predecessor_id), name, position.batch_id),
        )

    def _compare_fresh(self, spec: DeploymentSpec, name: str, first: QueryStarted) -> None:
        """Started with nothing by name: what its predecessor had read is read again, or not, as its options say."""
        predecessor_id = spec.start.predecessor_id
        checkpoint = None if predecessor_id is None else self._checkpoint(predecessor_id, name)
        commits = [] if checkpoint is None else checkpoint.commit_ids()
        if not commits:
            return
        detail = "it was started with nothing, as was asked by name: where its input begins, its options say"
        self._breaks.append(
            Break("gap", spec.deployment_id, name, "", f"batch {commits[-1]}", "none", f"{detail} ({first.how})")
        )


def standstills(events: Sequence[Event]) -> list[Standstill]:
    """The periods between the last word of one attempt and the first query of the next, oldest first.

    Args:
        events: of all deployments of a stream.
    """
    attempts: dict[tuple[str, int], list[Event]] = {}
    for event in sorted(events, key=lambda event: event.at):
        attempts.setdefault((event.deployment_id, event.attempt), []).append(event)
    found = []
    before: list[Event] = []
    for said in attempts.values():
        first = next((event for event in said if isinstance(event, QueryStarted)), None)
        if first is None:
            continue  # nothing ran in it
        if before and before[-1].at < first.at:
            found.append(Standstill(_named(before), _named(said), before[-1].at, first.at))
        before = said
    if before and isinstance(before[-1], TERMINAL_EVENTS):
        found.append(Standstill(_named(before), "", before[-1].at, None))
    return found


def _named(said: Sequence[Event]) -> str:
    last = said[-1]
    end = last.kind.lower() if isinstance(last, TERMINAL_EVENTS) else "no last word"
    return f"{last.deployment_id} attempt {last.attempt} ({end})"
