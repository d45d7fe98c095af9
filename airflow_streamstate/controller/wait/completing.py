"""Up to which event time the results of a stream are complete, over all its deployments.

A batch runs with the watermark in its entry of the offset log, and emits every window that ends at or before it. When
the batch is committed, these windows are in the sink. The watermark that the batch computes is that of the next batch:
what it closes is not emitted yet.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta, timezone
from typing import ClassVar

from airflow_streamstate.checkpoint.log import FLUSH_WATERMARK_MS, Checkpoint
from airflow_streamstate.control.objects import Remembered
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.observe.observation import Observation, is_between_runs
from airflow_streamstate.controller.wait.condition import WaitCondition, WaitResult
from airflow_streamstate.errors import ConflictError, DeploymentNotFoundError, InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import format_time, parse_time
from airflow_streamstate.protocol.events import TERMINAL_EVENTS, Drained, Event, Finished, QueryStarted, Stopped
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.records import DeploymentSpec

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MAX_REMEMBERED = 4096


@dataclass(frozen=True)
class CompleteThrough(View):
    """Up to which event time all results of a stream are in its sinks.

    Attributes:
        query_name: the query that was asked about; None for all of the stream.
        through_at: windows that end at or before it are complete; None before the first one.
        deployment_id: the deployment whose log shows it; None where ``through_at`` is.
        queries: by query of the current deployment, its own; None before its first one.
        without_watermark: queries that were asked about, and have committed a batch, and have no watermark.
        reopened_from_at: up to here results were complete before an undo took some out of the sinks, or None.
        known_queries: the queries of the current deployment, if all have started; else empty.
    """

    form: ClassVar[str] = (
        "stream_id query_name complete_through_at=through_at deployment_id queries=sorted_queries reopened_from_at"
    )

    stream_id: str
    query_name: str | None
    through_at: datetime | None
    deployment_id: str | None
    queries: Mapping[str, datetime | None] = field(default_factory=dict)
    without_watermark: tuple[str, ...] = ()
    reopened_from_at: datetime | None = None
    known_queries: tuple[str, ...] = ()

    @property
    def sorted_queries(self) -> dict[str, datetime | None]:
        """``queries``, by their names in order."""
        return dict(sorted(self.queries.items()))


@dataclass(frozen=True)
class _Link:
    """A deployment in a stream's line, and the batches of it that count.

    Attributes:
        last_batches: by query, the last batch whose output stayed; None for all batches.
        next_start: how the deployment after it starts; "" for the current deployment.
    """

    spec: DeploymentSpec
    last_batches: Mapping[str, int | None] | None
    next_start: str


class Completing:
    """Reads up to where a stream is complete, and looks whether it has come to a moment."""

    def __init__(self, context: ControllerContext) -> None:
        self._home = context.home
        self._observer = context.observer
        self._guard = threading.Lock()
        self._past: Remembered[tuple[object, ...], datetime | None] = Remembered(_MAX_REMEMBERED)

    def through(self, stream_id: str, query_name: str | None = None) -> CompleteThrough:
        """Up to where the results of a stream are complete: all its queries, or one of them.

        It goes back only where an undo took results out of the sinks.

        Raises:
            StreamNotFoundError: there is no such stream.
            DataError: a log cannot be read.
        """
        self._home.need_stream(stream_id)
        return self._through(self._observer.observe(stream_id), query_name)

    @staticmethod
    def refuse_unanswerable(found: CompleteThrough) -> None:
        """Raise InvalidRequestError for a query without a watermark, or of an unknown name."""
        error = _unanswerable(found)
        if error is not None:
            raise error

    def look(self, condition: WaitCondition) -> WaitResult:
        """Whether the results are complete up to the moment of the condition. Raises as ``through``.

        Raises:
            InvalidRequestError: the condition names no moment.
        """
        if condition.complete_at is None:
            raise InvalidRequestError("no event time is named", stream_id=condition.stream_id)
        seen = self._observer.observe(condition.stream_id)
        found = self._through(seen, condition.query_name)
        last_seen = f"{seen.state}; {_described(found)}"
        if found.through_at is not None and found.through_at >= parse_time(condition.complete_at):
            return WaitResult("done", found.to_json(), last_seen=last_seen)
        error = _unanswerable(found) or _ended(seen, found, condition)
        if error is not None:
            return WaitResult("over", error=error, last_seen=last_seen)
        return WaitResult("pending", last_seen=last_seen, pause_seconds=seen.spec.version.settings.command_poll_seconds)

    def _through(self, seen: Observation, query_name: str | None) -> CompleteThrough:
        control = self._home.control(seen.stream_id)
        started = self._started(control, seen.deployment_id)
        has_all = self._has_all(control, seen.spec, started)
        queries = {name: self._query(control, _Link(seen.spec, None, ""), name) for name in started}
        own = queries.get(query_name) if query_name is not None else _earliest(queries) if has_all else None
        line, whole_line = self._line(control, seen.spec), self._line(control, seen.spec, stays_on_undo=True)
        best = self._highest(control, line, query_name, (own, seen.deployment_id))
        reopened_from_at = None
        if any(spec.start.undoes is not None for spec in (seen.spec, *(link.spec for link in whole_line))):
            was_at, _ = self._highest(control, whole_line, query_name, best)
            reopened_from_at = was_at if was_at != best[0] else None
        asked = [name for name in started if query_name in (None, name)]
        return CompleteThrough(
            seen.stream_id,
            query_name,
            best[0],
            best[1] if best[0] is not None else None,
            queries,
            tuple(name for name in asked if self._has_no_watermark(control, seen.deployment_id, started[name])),
            reopened_from_at,
            tuple(sorted(started)) if has_all else (),
        )

    def _highest(
        self, control: StreamControl, past: Sequence[_Link], query_name: str | None, best: tuple[datetime | None, str]
    ) -> tuple[datetime | None, str]:
        """The latest moment of ``best`` and these deployments, and the deployment that has it."""
        for link in past:
            found = self._remembered(control, link, query_name)
            if found is not None and (best[0] is None or found > best[0]):
                best = found, link.spec.deployment_id
        return best

    def _line(self, control: StreamControl, spec: DeploymentSpec, *, stays_on_undo: bool = False) -> list[_Link]:
        """The deployments before this one whose output stayed, newest first.

        ``stays_on_undo``: also those whose output was undone, as if it had stayed.
        """
        found: list[_Link] = []
        known = {spec.deployment_id}
        link = self._before(control, spec, stays_on_undo=stays_on_undo)
        while link is not None and link.spec.deployment_id not in known:
            known.add(link.spec.deployment_id)
            found.append(link)
            link = self._before(control, link.spec, stays_on_undo=stays_on_undo)
        return found

    def _before(self, control: StreamControl, spec: DeploymentSpec, *, stays_on_undo: bool) -> _Link | None:
        start, before, last_batches = spec.start, spec.start.predecessor_id, None
        if start.undoes is not None and start.snapshot_id is not None and not stays_on_undo:
            manifest = control.readable_manifest(start.snapshot_id)
            if manifest is None:
                return None  # which batches stayed is not known any more: the current deployment's own log decides
            before = manifest.deployment_id
            last_batches = {name: query.position.batch_id for name, query in manifest.queries.items()}
        if before is None:
            return None
        try:
            return _Link(self._observer.spec(control, before), last_batches, start.mode)
        except DeploymentNotFoundError:
            return None

    def _remembered(self, control: StreamControl, link: _Link, query_name: str | None) -> datetime | None:
        """Up to where the queries of an earlier deployment are complete; None for nothing. Read once: it has ended."""
        batches = None if link.last_batches is None else tuple(sorted(link.last_batches.items()))
        key = (link.spec.identity, control.stream_id, link.spec.deployment_id, query_name, link.next_start, batches)
        with self._guard:
            if key in self._past:
                return self._past[key]
        names = [name for name in self._started(control, link.spec.deployment_id) if query_name in (None, name)]
        found = _earliest({name: self._query(control, link, name) for name in names})
        with self._guard:
            self._past[key] = found
        return found

    def _started(self, control: StreamControl, deployment_id: str) -> dict[str, QueryStarted]:
        """The first start of each query of a deployment."""
        first: dict[str, QueryStarted] = {}
        for event in self._events(control, deployment_id):
            if isinstance(event, QueryStarted):
                first.setdefault(event.query_name, event)
        return first

    def _events(self, control: StreamControl, deployment_id: str) -> list[Event]:
        return [entry.event for entry in self._observer.events(control, deployment_id) if entry.event is not None]

    def _has_all(self, control: StreamControl, spec: DeploymentSpec, started: Mapping[str, QueryStarted]) -> bool:
        """Whether every query has started that will: those of its snapshot, or ``exit_grace_seconds`` have passed."""
        if not started:
            return False
        manifest = None if spec.start.snapshot_id is None else control.readable_manifest(spec.start.snapshot_id)
        if manifest is None or not set(manifest.queries) - set(started):
            return True
        if any(isinstance(event, TERMINAL_EVENTS) for event in self._events(control, spec.deployment_id)):
            return True
        beat, newest_at = control.heartbeat(spec.deployment_id), max(event.at for event in started.values())
        return beat is not None and (beat.at - newest_at).total_seconds() > spec.version.settings.exit_grace_seconds

    def _checkpoint(self, control: StreamControl, deployment_id: str, name: str) -> Checkpoint:
        return Checkpoint(self._home.checkpoints, layout.checkpoint_folder(control.stream_id, deployment_id, name))

    def _query(self, control: StreamControl, link: _Link, name: str) -> datetime | None:
        """Up to where the log of one query shows it complete, else its last event; None for nothing."""
        checkpoint = self._checkpoint(control, link.spec.deployment_id, name)
        commit_ids = checkpoint.commit_ids()
        if link.last_batches is not None:
            last = link.last_batches.get(name)
            commit_ids = [] if last is None else [number for number in commit_ids if number <= last]
            return _moment(_emitted_ms(checkpoint, commit_ids))
        if not commit_ids:
            return self._recorded(control, link, name)
        return _moment(_emitted_ms(checkpoint, commit_ids))

    def _recorded(self, control: StreamControl, link: _Link, name: str) -> datetime | None:
        """The same by the terminal events of a deployment, whose checkpoint a prune removed.

        A stop leaves what the last watermark closed to the batch after it. A successor that is restored has that batch,
        and its own log; one that is not has dropped the state, so nothing more comes of it.
        """
        counts = (Drained,) if link.next_start in ("", "restore") else (Drained, Stopped, Finished)
        for event in reversed(self._events(control, link.spec.deployment_id)):
            if isinstance(event, counts) and name in event.queries:
                return event.queries[name].watermark_at
        return None

    def _has_no_watermark(self, control: StreamControl, deployment_id: str, first: QueryStarted) -> bool:
        if first.watermarks:
            return False
        checkpoint = self._checkpoint(control, deployment_id, first.query_name)
        return bool(checkpoint.commit_ids()) and not checkpoint.watermark_ms()


def _emitted_ms(checkpoint: Checkpoint, commit_ids: Sequence[int]) -> int:
    """The watermark up to which these committed batches have emitted every window, or 0."""
    for batch_id in reversed(commit_ids):
        entry = checkpoint.read_offset(batch_id)
        if entry is None:
            return 0  # removed by Spark, with all before it
        if entry.batch_watermark_ms >= FLUSH_WATERMARK_MS:
            # A flush emits all windows, those up to the last true watermark in whole: the batch before computed it.
            before = checkpoint.read_commit(batch_id - 1)
            return 0 if before is None else before.next_batch_watermark_ms
        if entry.batch_watermark_ms:
            return entry.batch_watermark_ms
        if not _follows_watermark(checkpoint, batch_id):
            return 0
    return 0


def _earliest(moments: Mapping[str, datetime | None]) -> datetime | None:
    """The earliest of them; None if there are no moments, or one is not known."""
    known = [moment for moment in moments.values() if moment is not None]
    return min(known) if known and len(known) == len(moments) else None


def _follows_watermark(checkpoint: Checkpoint, batch_id: int) -> bool:
    """Whether a batch that ran without a watermark follows one that had one: a skipped batch."""
    commit = checkpoint.read_commit(batch_id)
    return commit is not None and commit.next_batch_watermark_ms > 0


def _moment(milliseconds: int) -> datetime | None:
    return _EPOCH + timedelta(milliseconds=milliseconds) if milliseconds > 0 else None


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else format_time(moment)


def _described(found: CompleteThrough) -> str:
    """How far a stream is complete, in a human-readable clause."""
    if found.through_at is None:
        return "nothing is complete yet"
    more = "" if found.reopened_from_at is None else f", withdrawn from {format_time(found.reopened_from_at)}"
    return f"complete through {format_time(found.through_at)}{more}"


def _unanswerable(found: CompleteThrough) -> InvalidRequestError | None:
    """The error of a question that this stream never answers, or None."""
    if found.without_watermark:
        return InvalidRequestError(
            "a query has no watermark, so no hour of it is ever complete",
            stream_id=found.stream_id,
            queries=list(found.without_watermark),
            next_step="Name a query that has one, or give this one withWatermark.",
        )
    if found.query_name is not None and found.known_queries and found.query_name not in found.known_queries:
        return InvalidRequestError(
            "the stream has no query of this name",
            stream_id=found.stream_id,
            query=found.query_name,
            queries=list(found.known_queries),
            next_step="Name one of its queries.",
        )
    return None


def _ended(seen: Observation, found: CompleteThrough, condition: WaitCondition) -> ConflictError | None:
    """The error of a stream that has ended before it came there; None while it may still come."""
    if not _stays_ended(seen, condition.ended_for_seconds):
        return None
    return ConflictError(
        "the stream has ended before its results were complete",
        stream_id=seen.stream_id,
        deployment_id=seen.deployment_id,
        state=seen.state,
        reason=seen.why,
        wanted_through_at=condition.complete_at,
        complete_through_at=_time(found.through_at),
        next_step="Resume or deploy the stream, and wait again. What a drain wrote of open windows is not complete.",
    )


def _stays_ended(seen: Observation, ended_for_seconds: float) -> bool:
    """Whether nothing is known that starts it again, and it has been stopped for long enough."""
    register = seen.register
    if register.retirement is not None:
        return True
    if seen.state not in ("drained", "stopped", "finished", "failed") or is_between_runs(seen):
        return False
    if register.upgrade_id is not None or register.intent is not None or seen.was_ended_by_machine:
        return False
    gave_up = register.restarts is not None and register.restarts.gave_up
    if seen.state == "failed" and register.restart_policy.on_failure == "restart" and not gave_up:
        return False
    beat_at = None if seen.heartbeat is None else seen.heartbeat.at
    ended_at = seen.terminal.at if seen.terminal is not None else beat_at or register.updated_at
    return (seen.observed_at - ended_at).total_seconds() >= ended_for_seconds
