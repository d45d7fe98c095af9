"""The lineage of a stream: whether every deployment started exactly where its predecessor ended (Laws 9 and 14).

The evidence is Spark's own logs: a query's end is read in those of the deployment that ran it last, its beginning in
its own. Where Spark has removed the old entries of a log, the manifest and events of that time count, and the report
states it (``evidence``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, get_args

from airflow_streamstate.checkpoint.log import MOST_PASSED_OVER, Checkpoint, OffsetEntry, batches_passed_over
from airflow_streamstate.connectors.registry import SOURCES, find_connectors, moves_of_batch, sending_once
from airflow_streamstate.connectors.sink import Sink, known_sinks, repeat_means
from airflow_streamstate.connectors.source import NO_OFFSET, OffsetOrder, SourceConnector
from airflow_streamstate.control.command_status import begun_skips, fold
from airflow_streamstate.control.registers import Retention
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.downtimes import downtimes
from airflow_streamstate.controller.observe.handovers import (
    Break,
    BreakKind,
    Edge,
    Evidence,
    NotRunning,
    Repeat,
    compare_edges,
    move_breaks,
    moves_in,
    not_running,
    repeats_of,
    undone_break,
)
from airflow_streamstate.errors import DataError, DeploymentNotFoundError, StreamStateError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Event, QueryStarted, Repositioned, Skipped, Undone
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.ids import order_of
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.policies import SettledLineage
from airflow_streamstate.protocol.positions import Downtime, SourceIdentity, SourceMove
from airflow_streamstate.protocol.records import DeploymentSpec, StateRewrite

if TYPE_CHECKING:
    from airflow_streamstate.plan.model import QueryPlan

Path = tuple[str | int, ...]
"""The keys and indices that lead to a number in an offset, outermost first."""


def backward_breaks(
    checkpoint: Checkpoint,
    deployment_id: str,
    query_name: str,
    identities: Sequence[SourceIdentity],
    connectors: Iterable[SourceConnector],
    accepted_to: int | None,
) -> list[Break]:
    """The steps of a log at which the end offset of a source went back, as far as Spark has kept the log.

    A source that was reconnected or recreated may report a lower offset; then input was read again or passed over.

    Args:
        identities: of the sources, in the order of the offsets; shorter where unknown.
        accepted_to: up to this batch a step back was asked for by name; None for never.

    Raises:
        DataError, UnsupportedCheckpointError: an entry cannot be read.
    """
    known = {connector.name: connector for connector in connectors}
    found: list[Break] = []
    entries = [(number, checkpoint.read_offset(number)) for number in checkpoint.offset_ids()]
    for (before_id, before), (number, entry) in pairwise(entries):
        if before is None or entry is None:
            continue  # removed by Spark in the meantime
        for place, first, second in _pairs(before, entry):
            identity = identities[place] if place < len(identities) else SourceIdentity("", "")
            part = _went_back(first, second, known.get(identity.adapter))
            if part is None:
                continue
            detail = (
                f"batch {number} ends before batch {before_id}{f' ({part})' if part else ''}: input was read again, or"
                " passed over, and no query can continue from the position"
            )
            is_accepted = accepted_to is not None and number <= accepted_to
            what = identity.what or f"source {place}"
            found.append(Break("backwards", deployment_id, query_name, what, first, second, detail, is_accepted))
    return found


def _pairs(before: OffsetEntry, entry: OffsetEntry) -> list[tuple[int, str, str]]:
    """The sources of both entries, by key where they have keys, else by place."""
    if before.source_keys and entry.source_keys:
        old = dict(zip(before.source_keys, before.source_lines, strict=True))
        both = enumerate(zip(entry.source_keys, entry.source_lines, strict=True))
        return [(place, old[key], line) for place, (key, line) in both if key in old]
    if len(before.source_lines) != len(entry.source_lines):
        return []
    lines = zip(before.source_lines, entry.source_lines, strict=True)
    return [(place, first, second) for place, (first, second) in enumerate(lines)]


def _went_back(first: str, second: str, connector: SourceConnector | None) -> str | None:
    """The part of the second offset that is behind the first, as text; "" for all of it, None for no part."""
    if first in (second, NO_OFFSET):
        return None
    if second == NO_OFFSET:
        return ""
    order: OffsetOrder = "apart"
    if connector is not None:
        # third-party connectors may raise anything: then the order is unknown
        with suppress(Exception):
            order = connector.compare(second, first)
    if order in ("same", "ahead"):
        return None  # what a number means is known only to the connector: one may restart with each file
    lowered = _lowered(first, second, is_known=connector is not None)
    return "" if lowered is None and order == "behind" else lowered


def _lowered(first: str, second: str, *, is_known: bool) -> str | None:
    """The first number that is lower in the second offset, as text, or None.

    ``is_known``: a connector knows the fields of the source, and compares them better.
    """
    before, after = _counts(first), _counts(second)
    common = [path for path in before if path in after]
    fields = {path for path in common if len(common) > 1 and _is_field(path)}
    if is_known or any(after[path] > before[path] for path in fields):
        common = [path for path in common if path not in fields]
    lower = next((path for path in common if after[path] < before[path]), None)
    if lower is None:
        return None
    return f"{'.'.join(map(str, lower))}: {before[lower]} -> {after[lower]}" if lower else ""


def _is_field(path: Path) -> bool:
    """Whether this is a named number at the top of the offset, such as a version or an index.

    An index restarts whenever its version rises; numbers in lists, partitions and nested objects do not depend on one.
    """
    return len(path) == 1 and not str(path[0]).isdigit()


def _counts(offset: str) -> dict[Path, int]:
    """Every integer of an offset by its path; {} where the offset is not JSON."""
    try:
        return dict(_numbers((), json.loads(offset)))
    except ValueError:
        return {}


def _numbers(path: Path, content: object) -> Iterator[tuple[Path, int]]:
    if type(content) is int:
        yield path, content
    elif isinstance(content, dict | list):
        parts = content.items() if isinstance(content, dict) else enumerate(content)
        for key, part in parts:
            yield from _numbers((*path, key), part)


def untold_skips(events: Collection[Event], query_name: str, checkpoint: Checkpoint | None) -> list[Skipped]:
    """The skips that a driver committed and died before it wrote their event, where no later attempt wrote it.

    Each as the event that is missing, with attempt 0 and the time of the request. ``events``: of all attempts;
    ``checkpoint``: None where it is gone. Raises DataError, UnsupportedCheckpointError for an unreadable log.
    """
    if checkpoint is None:
        return []
    return [
        Skipped(
            stream_id=request.stream_id,
            deployment_id=request.deployment_id,
            attempt=0,
            at=request.requested_at,
            write_id="",
            command_id=request.command_id,
            command_number=number,
            query_name=query_name,
            batch_id=request.batch_id,
            moves=moves_of_batch(checkpoint, request.batch_id, ()) or (),
            requested_by=request.requested_by,
            reason=request.reason,
        )
        for request, number in begun_skips(fold((), events))
        if request.query_name == query_name and checkpoint.is_committed(request.batch_id)
    ]


def end_of(holder: Checkpoint | None, known: QuerySnapshot | None) -> Edge | None:
    """Where a query had ended: by the log of its last holder, else by the manifest of that time; None where unknown."""
    identities = () if known is None else known.identities
    if holder is None:
        if known is None:
            return None
        position = known.position
        return Edge(position.batch_id, position.end_offsets, (), identities, evidence="records")
    found = holder.position()
    entry = None if found.batch_id is None else holder.read_offset(found.batch_id)
    return Edge(
        found.batch_id,
        entry.source_lines if entry is not None else (),
        entry.source_names if entry is not None else (),
        identities,
        found.planned_id,
        found.planned.source_lines if found.planned is not None else (),
    )


def end_in_snapshot(holder: Checkpoint | None, known: QuerySnapshot) -> Edge:
    """Where a query stood in a snapshot, however far its deployment ran after that."""
    position = known.position
    entry = None if holder is None or position.batch_id is None else holder.read_offset(position.batch_id)
    planned_id = position.planned_batch_id
    planned = None if holder is None or planned_id is None else holder.read_offset(planned_id)
    return Edge(
        position.batch_id,
        position.end_offsets if entry is None else entry.source_lines,
        () if entry is None else entry.source_names,
        known.identities,
        planned_id,
        planned.source_lines if planned is not None and not planned.is_ours else (),
        "records" if entry is None and position.batch_id is not None else "logs",
    )


def start_of(
    checkpoint: Checkpoint | None, first: QueryStarted, known: QuerySnapshot | None, end: Edge | None
) -> Edge | None:
    """Where a query started: by its own log as far as that reaches back, else by the records; None where unknown."""
    batch_id = None if known is None else known.position.batch_id
    if first.how != "continued":
        batch_id = first.batch_id  # of the first start that an event reports
    elif known is None:
        return None
    entry = None if checkpoint is None or batch_id is None else checkpoint.read_offset(batch_id)
    planned_id = None if end is None else end.planned_batch_id
    planned = None if checkpoint is None or planned_id is None else checkpoint.read_offset(planned_id)
    recorded = () if known is None else known.position.end_offsets
    return Edge(
        batch_id,
        entry.source_lines if entry is not None else recorded,
        entry.source_names if entry is not None else (),
        first.identities if entry is not None or known is None else known.identities,
        planned_id,
        planned.source_lines if planned is not None and not planned.is_ours else (),
        "logs" if entry is not None or batch_id is None else "records",
    )


@dataclass(frozen=True)
class QueryLineage:
    """One query in one deployment.

    Attributes:
        began_behind: the last batch that was committed before it started, or None.
        ended_with: the last batch that it committed, or None.
        evidence: ``logs`` where its beginning and its predecessor's end are both read in Spark's logs.
    """

    began_behind: int | None
    ended_with: int | None
    evidence: Evidence


@dataclass(frozen=True)
class DeploymentLineage:
    """One deployment in the chain, with the queries that were started in it.

    Attributes:
        rewritten: how the state of its snapshot was rewritten, as text; "" if it was not.
    """

    deployment_id: str
    predecessor_id: str | None
    mode: str
    snapshot_id: str | None
    queries: dict[str, QueryLineage]
    rewritten: str = ""


def rewritten_words(rewrite: StateRewrite | None) -> str:
    """How state was rewritten, as text; "" for not at all."""
    if rewrite is None:
        return ""
    migration = rewrite.migration
    words = (
        "migrated without a function" if rewrite.auto_migrate else None,
        None if rewrite.partitions is None else f"rescaled to {rewrite.partitions:,} partitions",
        None if rewrite.state_store is None else f"moved to {rewrite.state_store}",
        None if rewrite.checkpoint_format is None else f"in checkpoint format {rewrite.checkpoint_format}",
        None
        if migration is None
        else f"migrated {'back ' if rewrite.is_inverse else ''}by {migration.name}, sha256 {migration.sha256}",
    )
    return ", ".join(filter(None, words))


@dataclass(frozen=True)
class SentOnce:
    """A source that cannot be read again; ``why``: a lower-case clause."""

    deployment_id: str
    query: str
    source: str
    why: str


@dataclass(frozen=True)
class Lineage(View):
    """What an audit found.

    Attributes:
        deployments: oldest first.
        breaks: gaps and overlaps, steps backwards, and batches that a return to an older snapshot undid.
        not_running, repeats: oldest first.
        downtimes: per query and handover, oldest first.
        unread: what could not be read, one sentence each: nothing is proved of it.
        sent_once: sources of each deployment that cannot be read again.
        settled: the result for the first deployments, from before a prune removed their evidence, or None.
    """

    form: ClassVar[str] = (
        "stream_id ok=is_whole deployments gaps=by_kind.gap overlaps=by_kind.overlap undone=by_kind.undone"
        " backwards=by_kind.backwards sent_once may_be_doubled not_doubled not_running downtimes unread settled"
    )

    stream_id: str
    deployments: tuple[DeploymentLineage, ...]
    breaks: tuple[Break, ...]
    not_running: tuple[NotRunning, ...]
    unread: tuple[str, ...]
    settled: SettledLineage | None = None
    downtimes: tuple[Downtime, ...] = ()
    repeats: tuple[Repeat, ...] = ()
    sent_once: tuple[SentOnce, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether every handover was read and is exact, except for accepted breaks."""
        was_whole = self.settled is None or self.settled.is_whole
        return all(one.accepted for one in self.breaks) and not self.unread and was_whole

    @property
    def by_kind(self) -> Mapping[BreakKind, list[Break]]:
        """The breaks of each kind."""
        return {kind: [one for one in self.breaks if one.kind == kind] for kind in get_args(BreakKind)}

    @property
    def may_be_doubled(self) -> list[Repeat]:
        """The batches that ran again, and whose rows may be in the sink twice."""
        return [one for one in self.repeats if one.may_be_doubled]

    @property
    def not_doubled(self) -> list[Repeat]:
        """The batches that ran again, and whose rows are in the sink once."""
        return [one for one in self.repeats if not one.may_be_doubled]


def lineage_of(
    home: Home, stream_id: str, since: str | None = None, through: str | None = None, *, every_entry: bool = True
) -> Lineage:
    """Audit a stream, running or not; writes nothing.

    Args:
        since, through: the deployments whose starts are audited first and last; None for the oldest and the newest.
        every_entry: read each entry of the offset logs, for positions that went backwards; False for handovers alone.

    Raises:
        StreamNotFoundError, DeploymentNotFoundError: it does not exist.
    """
    control = home.need_stream(stream_id)
    control.need_register()
    if since is not None:
        control.spec(since)
    connectors = find_connectors(SOURCES, SourceConnector).connectors  # type: ignore[type-abstract]
    reader = _LogReader(home, control, connectors, _settled(control), every_entry=every_entry)
    ids = [one for one in control.deployment_ids() if through is None or order_of(one) <= order_of(through)]
    return reader.read(ids[ids.index(since) :] if since is not None else ids)


def _settled(control: StreamControl) -> SettledLineage | None:
    try:
        return Retention(control).read().settled
    except DataError:
        return None  # then the report names the missing evidence


class _LogReader:
    """Reads the chain, and collects the findings."""

    def __init__(
        self,
        home: Home,
        control: StreamControl,
        connectors: Sequence[SourceConnector],
        settled: SettledLineage | None,
        *,
        every_entry: bool,
    ) -> None:
        self._every_entry = every_entry
        self._settled = settled
        self._home = home
        self._control = control
        self._connectors = connectors
        self._breaks: list[Break] = []
        self._unread: list[str] = []
        self._sent_once: list[SentOnce] = []
        self._specs: dict[str, DeploymentSpec | None] = {}
        self._said: dict[str, list[Event]] = {}

    def read(self, deployment_ids: Sequence[str]) -> Lineage:
        deployments = []
        for deployment_id in deployment_ids:
            spec = self._spec(deployment_id)
            if spec is not None:
                deployments.append(self._deployment(spec))
        said = [event for deployment_id in deployment_ids for event in self._events(deployment_id)]
        signs = {deployment_id: self._control.heartbeat(deployment_id) for deployment_id in deployment_ids}
        beats = {deployment_id: beat for deployment_id, beat in signs.items() if beat is not None}
        return Lineage(
            self._control.stream_id,
            tuple(deployments),
            tuple(self._breaks),
            tuple(not_running(said, beats)),
            tuple(self._unread),
            self._settled,
            tuple(downtimes(self._home, self._control, deployment_ids, said, beats)),
            tuple(repeat for deployment_id in deployment_ids for repeat in self._repeats(deployment_id)),
            tuple(self._sent_once),
        )

    def _repeats(self, deployment_id: str) -> list[Repeat]:
        """Also for settled deployments: a prune keeps events."""
        return repeats_of(self._events(deployment_id))

    def _is_settled(self, deployment_id: str) -> bool:
        return self._settled is not None and order_of(deployment_id) <= order_of(self._settled.through)

    def _spec(self, deployment_id: str) -> DeploymentSpec | None:
        """The record; None for a folder without one, whose deployment never started."""
        if deployment_id not in self._specs:
            self._specs[deployment_id] = None
            try:
                self._specs[deployment_id] = self._control.spec(deployment_id)
            except DeploymentNotFoundError:
                pass
            except StreamStateError as error:
                self._unread.append(f"{deployment_id}: {error}")
        return self._specs[deployment_id]

    def _events(self, deployment_id: str) -> list[Event]:
        if deployment_id not in self._said:
            entries = list(self._control.journal(deployment_id).events())
            self._unread += [
                f"{deployment_id}: event {entry.number} cannot be read" for entry in entries if entry.event is None
            ]
            self._said[deployment_id] = [entry.event for entry in entries if entry.event is not None]
        return self._said[deployment_id]

    def _ran(self, deployment_id: str, name: str) -> bool:
        events = self._events(deployment_id)
        return any(isinstance(event, QueryStarted) and event.query_name == name for event in events)

    def _deployment(self, spec: DeploymentSpec) -> DeploymentLineage:
        queries: dict[str, QueryLineage] = {}
        start, words = spec.start, rewritten_words(spec.start.rewrite)
        if self._is_settled(spec.deployment_id):
            return DeploymentLineage(
                spec.deployment_id, start.predecessor_id, start.mode, start.snapshot_id, queries, words
            )
        before = None if start.snapshot_id is None else self._manifest(spec)
        events = self._events(spec.deployment_id)
        firsts: dict[str, QueryStarted] = {}
        for event in events:
            if isinstance(event, QueryStarted):
                firsts.setdefault(event.query_name, event)
        for name, first in sorted(firsts.items()):
            try:
                queries[name] = self._query(spec, first, None if before is None else before.queries.get(name))
            except StreamStateError as error:
                self._unread.append(f"{spec.deployment_id}, query {name}: {error}")
        return DeploymentLineage(
            spec.deployment_id, start.predecessor_id, start.mode, start.snapshot_id, queries, words
        )

    def _manifest(self, spec: DeploymentSpec) -> SnapshotManifest | None:
        found = self._control.readable_manifest(str(spec.start.snapshot_id))
        if found is None:
            self._unread.append(
                f"{spec.deployment_id}: {spec.start.snapshot_id}, from which it started, is gone or damaged"
            )
        return found

    def _checkpoint(self, deployment_id: str, name: str) -> Checkpoint | None:
        folder = layout.checkpoint_folder(self._control.stream_id, deployment_id, name)
        checkpoint = Checkpoint(self._home.checkpoints, folder)
        return checkpoint if checkpoint.exists() else None

    def _query(self, spec: DeploymentSpec, first: QueryStarted, known: QuerySnapshot | None) -> QueryLineage:
        """One query of a deployment, compared with the deployment that ran it last before."""
        name = first.query_name
        checkpoint = self._checkpoint(spec.deployment_id, name)
        commits = [] if checkpoint is None else checkpoint.commit_ids()
        last = commits[-1] if commits else None
        self._look_back(spec, first, checkpoint)
        self._breaks += _passed_over(spec.deployment_id, name, commits)
        events = self._events(spec.deployment_id)
        said = [*moves_in(events), *untold_skips(events, name, checkpoint)]
        self._breaks += [each for event in said if event.query_name == name for each in move_breaks(event)]
        is_moved = any(isinstance(event, Repositioned) and event.query_name == name for event in said)
        holder_id = self._holder(spec.start.predecessor_id, name)
        holder = None if holder_id is None else self._checkpoint(holder_id, name)
        end = end_of(holder, known)
        if known is not None and (spec.start.undoes is not None or self._undone_event(spec.deployment_id, name)):
            # It starts at its snapshot; later batches are out of the sink, or should be (Law 14).
            self._breaks += self._undone(
                spec.deployment_id, name, holder_id, None if end is None else end.batch_id, known
            )
            end = end_in_snapshot(self._checkpoint(self._snapshot_holder(spec), name), known)
        if first.how == "fresh" or (holder_id is None and known is None):
            if end is not None and end.batch_id is not None:
                self._breaks.append(_fresh(spec.deployment_id, name, end.batch_id))
            return QueryLineage(None, last, "logs")
        start = start_of(checkpoint, first, known, end)
        if start is None or end is None:
            self._unread.append(f"{spec.deployment_id}, query {name}: where it started is not known any more")
            return QueryLineage(None, last, "records")
        if first.how == "seeded" and end.batch_id is None:
            end = replace(end, batch_id=start.batch_id)  # a seed always has an entry to start from
        compared = compare_edges(
            replace(end, lines=()) if is_moved else end,  # the event reports both offsets
            start,
            spec.deployment_id,
            name,
            self._connectors,
            keeps_places=first.how == "restored",
            accepted=name in spec.start.accept_lost_input,
        )
        self._breaks += compared.breaks
        if compared.uncompared:
            self._unread.append(f"{spec.deployment_id}, query {name}: {compared.uncompared}: they cannot be compared")
        by_logs = start.evidence == end.evidence == "logs"
        return QueryLineage(start.batch_id, last, "logs" if by_logs else "records")

    def _look_back(self, spec: DeploymentSpec, first: QueryStarted, checkpoint: Checkpoint | None) -> None:
        """Its sources that send rows once, and the steps backwards in its own log."""
        name, deployment_id = first.query_name, spec.deployment_id
        lines = [""] * len(first.identities)  # any offset that is no beginning
        self._sent_once += [
            SentOnce(deployment_id, name, what, why)
            for what, why in sending_once(first.identities, lines, self._connectors).items()
        ]
        if checkpoint is None or not self._every_entry:
            return
        moved = any(
            isinstance(event, Repositioned) and event.query_name == name for event in self._events(deployment_id)
        )
        began = [number for number in (first.batch_id, first.planned_batch_id) if number is not None]
        accepted_to = max(began, default=None) if moved or name in spec.start.accept_lost_input else None
        self._breaks += backward_breaks(
            checkpoint, deployment_id, name, first.identities, self._connectors, accepted_to
        )

    def _snapshot_holder(self, spec: DeploymentSpec) -> str:
        manifest = self._control.readable_manifest(str(spec.start.snapshot_id))
        return spec.deployment_id if manifest is None else manifest.deployment_id

    def _undone(
        self, deployment_id: str, name: str, holder_id: str | None, ended: int | None, known: QuerySnapshot
    ) -> list[Break]:
        """The batches that the deployments between the snapshot and this one committed, and what became of them."""
        began, said = known.position.batch_id, self._undone_event(deployment_id, name)
        # Where the logs are gone, the driver that undid them read the last batch in the sink.
        known_ends = [each for each in (ended, None if said is None else said.last_batch_id) if each is not None]
        ended = max(known_ends, default=None)
        if ended is None or holder_id is None or ended <= (-1 if began is None else began):
            return []
        return [undone_break(deployment_id, name, began, ended, holder_id, None if said is None else said.means)]

    def _undone_event(self, deployment_id: str, name: str) -> Undone | None:
        """The undo of this deployment, also where it did what an earlier start had not come to."""
        told = [event for event in self._events(deployment_id) if isinstance(event, Undone)]
        return next((event for event in told if event.query_name == name), None)

    def _holder(self, before: str | None, name: str) -> str | None:
        """The last deployment, from this one back, that ran the query."""
        seen = set()
        while before is not None and before not in seen:
            seen.add(before)
            if self._checkpoint(before, name) is not None or self._ran(before, name):
                return before
            found = self._spec(before)
            before = None if found is None else found.start.predecessor_id
        return None


def _passed_over(deployment_id: str, name: str, commits: Sequence[int]) -> list[Break]:
    """A break for each batch; one for all from the one on that is beyond what is named."""
    missing = batches_passed_over(commits)
    found = []
    for batch_id in missing[:MOST_PASSED_OVER]:
        detail = f"the log passes over batch {batch_id}: its input may be lost"
        found.append(Break("gap", deployment_id, name, "", f"batch {batch_id - 1}", f"batch {batch_id + 1}", detail))
    for batch_id in missing[MOST_PASSED_OVER:]:
        detail = f"the log passes over batch {batch_id} and perhaps more after it: their input may be lost"
        found.append(Break("gap", deployment_id, name, "", f"batch {batch_id - 1}", f"batch {commits[-1]}", detail))
    return found


def _fresh(deployment_id: str, name: str, batch_id: int) -> Break:
    detail = "it was started with nothing, as was explicitly requested: its options say where its input starts"
    return Break("gap", deployment_id, name, "", f"batch {batch_id}", "none", detail, accepted=True)


# The batches that the next attempt of an ended deployment runs again, by its checkpoints and recorded plans.
#
# Apart from ``repeats``: every status has those, and this imports what reads checkpoints and knows sinks.

_TABLE = "table:"


def repeats_to_come(
    control: StreamControl, deployment_id: str, attempt: int, events: Iterable[Event], logs: Mapping[str, Checkpoint]
) -> list[Repeat]:
    """The batches that the next attempt of an ended deployment runs again first; ``logs``: its checkpoints by query.

    Raises:
        DataError, UnsupportedCheckpointError: a log cannot be read.
        UnavailableError: the store does not answer.
    """
    starts = {event.query_name: event for event in events if isinstance(event, QueryStarted)}
    planned = {name: logs[name].position().planned_id for name in sorted(logs) if name in starts}
    if all(batch_id is None for batch_id in planned.values()):
        return []
    from airflow_streamstate.plan.record import recorded_plans

    plans = recorded_plans(control, deployment_id)
    return [
        _derived(starts[name], batch_id, plans, logs[name], attempt)
        for name, batch_id in planned.items()
        if batch_id is not None
    ]


def _derived(
    start: QueryStarted,
    batch_id: int,
    plans: Mapping[str, QueryPlan],
    checkpoint: Checkpoint,
    attempt: int,
) -> Repeat:
    """From a start of the query, its plan and its log; ``attempt``: the one that will run it again."""
    sink, place = _sink_of(start.sink, plans.get(start.query_name))
    moves: tuple[SourceMove, ...] | None = None
    with suppress(StreamStateError):  # its offsets are unknown then
        moves = moves_of_batch(checkpoint, batch_id, start.identities)
    return Repeat(
        start.deployment_id,
        start.query_name,
        batch_id,
        attempt,
        place,
        repeat_means(sink, known_sinks().connectors),
        moves or (),
    )


def _sink_of(kind: str, plan: QueryPlan | None) -> tuple[Sink, str]:
    """The sink of a query, and its description: by the recorded plan, else by the kind that its writer reported."""
    planned = None if plan is None else plan.sink
    if planned is not None and planned.kind == kind:
        place = kind if kind.startswith(_TABLE) else planned.described
        return Sink(planned.format, planned.target or None, None, planned.options), place
    return Sink("" if kind.startswith(_TABLE) else kind.rpartition(":")[2].lower()), kind
