"""The downtime of each query at each handover: last commit of one deployment to first commit of the next, or to the
first trigger that finds nothing to commit.

The times of commits are those of their files, by the store's clock. Spark removes old files of a log, so heartbeats
report the first batch of a deployment, too. The phases between come from events, heartbeats and records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from datetime import datetime, timedelta

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.handovers import has_run_to_its_end
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import TERMINAL_EVENTS, Claimed, Event, QueryStarted
from airflow_streamstate.protocol.positions import (
    CONTROLLER,
    DRIVER,
    PHASES,
    STORE,
    Downtime,
    FirstBatch,
    Heartbeat,
    Mark,
    QueryEnd,
)

BEFORE_THE_RUN = ("latestOffset", "walCommit", "getBatch", "queryPlanning")
"""The phases of a trigger before it runs its batch, by Spark's names in ``durationMs``."""


def downtimes(
    home: Home,
    control: StreamControl,
    deployment_ids: Sequence[str],
    events: Sequence[Event],
    signs: Mapping[str, Heartbeat],
) -> list[Downtime]:
    """The downtimes of these deployments, oldest first. What cannot be read is left out.

    A deployment that committed nothing of a query, though there was something, ends no downtime, unless it is the last
    one that started it. After a run that its trigger has ended there is no downtime: nothing was due to run then.
    ``events``: of all of them; ``signs``: the last heartbeat of each that has one.
    """
    reader = _PhaseReader(home, control, events, signs)
    left: dict[str, _Ran] = {}
    lasting: dict[str, Downtime] = {}
    found: list[Downtime] = []
    for deployment_id in deployment_ids:
        for name in reader.query_names(deployment_id):
            ran = reader.ran(deployment_id, name)
            lasting.pop(name, None)
            if name in left and not reader.has_run_to_its_end(left[name]):
                one = reader.downtime(left[name], ran)
                if one is not None and not one.has_ended:
                    lasting[name] = one
                elif one is not None:
                    found.append(one)
            if ran.last or ran.first or ran.idle_until is not None:
                left[name] = ran
    return [*found, *lasting.values()]


@dataclass(frozen=True)
class _Ran:
    """One query in one deployment.

    Attributes:
        started: the start of the attempt that committed its first batch; else its last start.
        first, last: when its own first and last batch were committed, by clock, or empty.
        idle_at: when one of its triggers first found nothing to commit, before its first batch, or None.
        idle_until: when it was last seen with nothing to read, by its last heartbeat; None where it had something.
    """

    deployment_id: str
    query_name: str
    started: QueryStarted
    first_batch: FirstBatch | None
    first: Mapping[str, datetime] = field(default_factory=dict)
    last: Mapping[str, datetime] = field(default_factory=dict)
    idle_at: datetime | None = None
    idle_until: datetime | None = None

    @property
    def ended(self) -> tuple[str, str, datetime] | None:
        """The phase, clock and time after which it committed nothing: its last commit, else its last idle trigger."""
        for clock in (STORE, DRIVER):
            if clock in self.last:
                return "last_commit", clock, self.last[clock]
        return None if self.last or self.idle_until is None else ("last_idle", DRIVER, self.idle_until)


class _PhaseReader:
    def __init__(
        self, home: Home, control: StreamControl, events: Sequence[Event], signs: Mapping[str, Heartbeat]
    ) -> None:
        self._home = home
        self._control = control
        self._signs = signs
        self._events: dict[str, list[Event]] = {}
        for event in events:
            self._events.setdefault(event.deployment_id, []).append(event)

    def query_names(self, deployment_id: str) -> list[str]:
        return sorted({event.query_name for event in self._starts(deployment_id)})

    def _starts(self, deployment_id: str) -> list[QueryStarted]:
        return [event for event in self._events.get(deployment_id, ()) if isinstance(event, QueryStarted)]

    def has_run_to_its_end(self, ran: _Ran) -> bool:
        """Whether the trigger of a query has ended its last run in a deployment, which then ended by itself."""
        said = self._events.get(ran.deployment_id, [])
        last = max((event.attempt for event in said if isinstance(event, TERMINAL_EVENTS)), default=0)
        return has_run_to_its_end([event for event in said if event.attempt == last], ran.query_name)

    def ran(self, deployment_id: str, name: str) -> _Ran:
        starts = [event for event in self._starts(deployment_id) if event.query_name == name]
        beat = self._signs.get(deployment_id)
        told = None if beat is None else beat.first_batches.get(name)
        before = [event for event in starts if told is None or event.at <= told.seen_at]
        first_id = 0 if starts[0].batch_id is None else starts[0].batch_id + 1
        first, last = self._commits(deployment_id, name, first_id)
        if told is not None:
            first = {} if told.committed_at is None else {STORE: told.committed_at}
            if told.seen_at != told.committed_at:  # equal where no driver saw the commit
                first[DRIVER] = told.seen_at
        query = None if beat is None else beat.queries.get(name)
        if query is not None and query.batch_id is not None and query.batch_id >= first_id and query.committed_at:
            last[DRIVER] = query.committed_at
        idle_at = None if beat is None else beat.first_idles.get(name)
        idle_until = None if last else idle_at
        if beat is not None and query is not None and query.is_idle:
            idle_until = beat.at if not last else max(beat.at, *last.values())
        return _Ran(deployment_id, name, (before or starts)[-1], told, first, last, idle_at, idle_until)

    def _commits(self, deployment_id: str, name: str, first_id: int) -> tuple[dict[str, datetime], dict[str, datetime]]:
        """When the first and the last batch were committed, by the files that exist; empty if no file shows it."""
        folder = layout.checkpoint_folder(self._control.stream_id, deployment_id, name)
        checkpoint = Checkpoint(self._home.checkpoints, folder)
        with suppress(StreamStateError):
            own = [batch_id for batch_id in checkpoint.commit_ids() if batch_id >= first_id]
            first = checkpoint.committed_at(first_id) if own and own[0] == first_id else None
            last = checkpoint.committed_at(own[-1]) if own else None
            return {} if first is None else {STORE: first}, {} if last is None else {STORE: last}
        return {}, {}

    def downtime(self, before: _Ran, after: _Ran) -> Downtime | None:
        """The downtime between two deployments; None where the last commit of the first is unknown."""
        edges = _edges(before, after)
        if edges is None:
            return None
        began, ended = edges
        from_at, until_at = began.at, None if ended is None else ended.at
        told = None if ended is not None and ended.phase == "found_nothing" else after.first_batch
        marks = {mark.phase: mark for mark in edges if mark is not None}
        for mark in (*self._end_marks(before), *self._start_marks(before, after), *_batch_marks(told)):
            marks.setdefault(mark.phase, mark)
        return Downtime(
            after.query_name,
            before.deployment_id,
            after.deployment_id,
            from_at,
            until_at,
            None if until_at is None else round((until_at - from_at).total_seconds(), 3),
            tuple(marks[phase] for phase in PHASES if phase in marks),
            None if told is None else told.state_load_ms,
            has_ended=bool(after.first or after.last or after.idle_at),
        )

    def _end_marks(self, before: _Ran) -> Iterator[Mark]:
        if before.idle_until is not None:
            yield Mark("last_idle", before.idle_until, DRIVER)
        said = self._events.get(before.deployment_id, [])
        last_word = next((event for event in reversed(said) if isinstance(event, TERMINAL_EVENTS)), None)
        if last_word is None:
            return
        end: QueryEnd = getattr(last_word, "ends", {}).get(before.query_name, QueryEnd())
        if end.barrier_at is not None:
            yield Mark("barrier_certain", end.barrier_at, DRIVER)
        if end.ended_at is not None:
            yield Mark("query_ended", end.ended_at, DRIVER)
        yield Mark("old_ended", last_word.at, DRIVER)

    def _start_marks(self, before: _Ran, after: _Ran) -> Iterator[Mark]:
        with suppress(StreamStateError):
            spec = self._control.spec(after.deployment_id)
            yield Mark("deployed", spec.created_at, CONTROLLER)
            manifest = self._control.readable_manifest(spec.start.snapshot_id or "") if spec.start.snapshot_id else None
            if manifest is not None and manifest.deployment_id == before.deployment_id:
                yield Mark("snapshot", manifest.taken_at, DRIVER if manifest.taken_by == "agent" else CONTROLLER)
        for event in self._events.get(after.deployment_id, ()):
            if isinstance(event, Claimed) and event.attempt == after.started.attempt:
                yield Mark("claimed", event.at, DRIVER)
        if after.started.built_at is not None:
            yield Mark("fork", after.started.built_at, DRIVER)
        if after.started.prepared_at is not None:
            yield Mark("prepared", after.started.prepared_at, DRIVER)
        yield Mark("first_start", after.started.at, DRIVER)


def _edges(before: _Ran, after: _Ran) -> tuple[Mark, Mark | None] | None:
    """The two ends of a downtime, by one clock if that is known of both; the second None where it is not known."""
    if before.ended is None:
        return None
    phase, clock, at = before.ended
    firsts, word = dict(after.first), "first_commit"
    if after.idle_at is not None and all(after.idle_at < one for one in firsts.values()):
        firsts, word = {DRIVER: after.idle_at}, "found_nothing"
    lasts = dict(before.last) or {clock: at}
    both = next((one for one in (STORE, DRIVER) if one in lasts and one in firsts), None)
    if both is not None:
        return Mark(phase, lasts[both], both), Mark(word, firsts[both], both)
    began = Mark(phase, at, clock)
    if not firsts or (before.last and word == "first_commit"):
        return began, None  # two commits by two clocks
    (first_clock, first_at) = next(iter(firsts.items()))
    return began, Mark(word, max(first_at, at), first_clock)


def _batch_marks(first: FirstBatch | None) -> Iterator[Mark]:
    if first is None or first.triggered_at is None:
        return
    yield Mark("triggered", first.triggered_at, DRIVER)
    took = first.durations_ms
    planned_at = first.triggered_at + timedelta(milliseconds=sum(took.get(part, 0) for part in BEFORE_THE_RUN))
    yield Mark("batch_planned", planned_at, DRIVER)
    if "addBatch" in took:
        yield Mark("first_batch_run", planned_at + timedelta(milliseconds=took["addBatch"]), DRIVER)
