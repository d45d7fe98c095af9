"""Heartbeats: the position of every query, by its log and its last progress."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from airflow_streamstate.driver.agent.lag import TREND_BATCHES, LagLook
from airflow_streamstate.driver.attempt.answers import Audit, tell_skipped
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.ports import QueryProgress
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol.events import Draining, QueryStarted
from airflow_streamstate.protocol.positions import FirstBatch, Heartbeat, QueryBeat
from airflow_streamstate.protocol.script_reads import MOST_TOLD, changed_words

# Files that the script read before its queries started, and that have other content by now: the next start reads
# them.
#
# Looked at in its own thread, since a share that does not answer must not hold up the heartbeat.


class ChangedFiles:
    """The changed files of an attempt, as of the last poll."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._began_at = attempt.clock.now()
        self._is_looking = False
        self._told: tuple[str, ...] = ()

    def told(self) -> tuple[str, ...]:
        """A sentence for each; starts the next poll. Raises nothing."""
        if self._attempt.opened.has_begun and not self._is_looking:
            self._is_looking = True
            self._attempt.in_background(self._look)
        return self._told

    def _look(self) -> None:
        attempt = self._attempt
        try:
            found, now = attempt.opened.changed_files(), attempt.clock.now()
            since = f"attempt {attempt.number}"
            texts = [changed_words(file, since, self._began_at, now) for file in found[:MOST_TOLD]]
            self._told = tuple(attempt.reporter.redacted(f"{text}; the next start reads it") for text in texts)
        finally:
            self._is_looking = False


class HeartbeatPace:
    """The mean time from one commit to the next, over the last batches that were seen."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, datetime]] = deque(maxlen=TREND_BATCHES)

    def batch_seconds(self, batch_id: int, committed_at: datetime | None) -> float | None:
        """Take in the last committed batch; the mean in seconds, None before there were two batches."""
        if committed_at is not None and (not self._seen or batch_id > self._seen[-1][0]):
            self._seen.append((batch_id, committed_at))
        if len(self._seen) < 2:
            return None
        (first_id, first_at), (last_id, last_at) = self._seen[0], self._seen[-1]
        if first_id == last_id:
            return None  # both threads of the agent took in the first batch
        return round(max(0.0, (last_at - first_at).total_seconds()) / (last_id - first_id), 3)


RATE_SECONDS = 60.0
"""Rates are of the last minute: that of the last trigger alone is 0 whenever it found nothing."""


class RowRates:
    """The rates of one query over the last ``RATE_SECONDS``, from look to look."""

    def __init__(self) -> None:
        self._read: deque[tuple[datetime, int]] = deque()
        self._batches: deque[tuple[datetime, int, int, float]] = deque()

    def input(self, now: datetime, rows_read: int) -> float | None:
        """Take in how many rows were read so far; None before the second poll."""
        if self._read and rows_read < self._read[-1][1]:
            self._read.clear()  # the script has started the query once more
        self._read.append((now, rows_read))
        since = now - timedelta(seconds=RATE_SECONDS)
        while len(self._read) > 2 and self._read[1][0] <= since:
            self._read.popleft()
        (first_at, first), (last_at, last) = self._read[0], self._read[-1]
        seconds = (last_at - first_at).total_seconds()
        return round((last - first) / seconds, 3) if seconds > 0 else None

    def processed(self, now: datetime, progress: QueryProgress) -> float:
        """Take in the last executed batch."""
        took_ms = progress.durations_ms.get("triggerExecution", 0)
        is_new = not self._batches or self._batches[-1][1] != progress.batch_id
        if is_new and progress.input_rows and took_ms:
            self._batches.append((now, progress.batch_id, progress.input_rows, took_ms / 1000))
        since = now - timedelta(seconds=RATE_SECONDS)
        while self._batches and self._batches[0][0] < since and (len(self._batches) > 1 or progress.is_idle):
            self._batches.popleft()
        seconds = sum(one[3] for one in self._batches)
        return round(sum(one[2] for one in self._batches) / seconds, 3) if seconds else 0.0


class HeartbeatWriter:
    """Writes the heartbeat of an attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._last: dict[str, QueryBeat] = {}
        self._earlier: tuple[Heartbeat, ...] | None = None
        self._first: dict[str, FirstBatch] = {}
        self._first_idles: dict[str, datetime] = {}
        self._alive: set[str] = set()
        self._paces: dict[str, HeartbeatPace] = {}
        self._rates: dict[str, RowRates] = {}
        self._audit = Audit(attempt)
        self._lag = LagLook(attempt)
        self._changed_files = ChangedFiles(attempt)

    def beat(self) -> None:
        """Write it; raises what the store raises."""
        attempt = self._attempt
        if self._earlier is None:
            self._earlier = self._left()
            for left in self._earlier:
                if left.deployment_id == attempt.deployment_id:
                    self._first |= left.first_batches
                    self._first_idles |= left.first_idles
        beats = {query.name: self._beat_of(query) for query in attempt.queries.all()}
        for name, beat in beats.items():
            self._note_first(attempt.queries[name], beat.batch_id)
            if beat.is_idle and name not in self._first and name not in self._first_idles:
                self._first_idles[name] = attempt.clock.now()
        attempt.control.put_heartbeat(
            Heartbeat(
                stream_id=attempt.stream_id,
                deployment_id=attempt.deployment_id,
                attempt=attempt.number,
                at=attempt.clock.now(),
                queries=beats,
                first_batches=dict(self._first),
                changed_files=self._changed_files.told(),
                first_idles=dict(self._first_idles),
            )
        )
        self._last = beats
        self._audit.look_back()

    def has_news(self) -> bool:
        """Whether a run has committed its first batch, or found no input, since the last call."""
        fresh = {
            query.runs[-1].query_run_id
            for query in self._attempt.queries.all()
            if query.runs and query.runs[-1].query_run_id not in self._alive and _is_alive(query)
        }
        self._alive |= fresh
        return bool(fresh)

    def _beat_of(self, query: LogicalQuery) -> QueryBeat:
        before = self._last.get(query.name)
        batch_id = self._committed(query, before)
        progress = query.last_progress()
        behind = self._lag.of(query)
        idle_triggers = query.run.idle_triggers() if query.run is not None else 0
        query.rows_dropped()  # Spark keeps 100 reports, so they are counted here
        beat = QueryBeat(
            batch_id=batch_id,
            committed_at=self._committed_at(query.name, batch_id, before),
            is_active=query.is_active(),
            idle_triggers=idle_triggers,
            skipped_batches=tell_skipped(self._attempt, query),
            is_idle=idle_triggers > 0 if progress is None else progress.is_idle,
            run_has_ended=not query.plans_batch_by_batch and query.ended and query.failure() is None,
        )
        if behind is not None:
            beat = replace(
                beat,
                rows_behind=behind.rows,
                lags=behind.lags,
                lags_at=behind.at,
                snapshot_id=behind.snapshot_id,
                batches_since_snapshot=behind.batches_since_snapshot,
            )
        if before is not None:
            beat = replace(beat, read_batch_id=before.read_batch_id, read_rows=before.read_rows)
        if progress is None:
            return beat
        if progress.input_rows:
            beat = replace(beat, read_batch_id=progress.batch_id, read_rows=progress.input_rows)
        now, rates = self._attempt.clock.now(), self._rates.setdefault(query.name, RowRates())
        came = rates.input(now, query.rows_read())
        return replace(
            beat,
            state_rows=sum(operator.rows for operator in progress.state),
            state_memory_bytes=progress.state_memory_bytes,
            watermark_at=progress.watermark_at,
            input_rows_per_second=progress.input_rows_per_second if came is None else came,
            processed_rows_per_second=rates.processed(now, progress),
            batch_seconds=self._paces.setdefault(query.name, HeartbeatPace()).batch_seconds(
                progress.batch_id, progress.committed_at
            ),
        )

    def _committed(self, query: LogicalQuery, before: QueryBeat | None) -> int | None:
        try:
            commits = query.checkpoint.commit_ids()
        except StreamStateError:
            return before.batch_id if before is not None else None
        self._audit.follow(query.name, commits)
        return commits[-1] if commits else None

    def _committed_at(self, query_name: str, batch_id: int | None, before: QueryBeat | None) -> datetime | None:
        if batch_id is None:
            return None
        if before is not None and before.batch_id == batch_id and before.committed_at is not None:
            return before.committed_at
        has_moved = before is not None and before.batch_id not in (None, batch_id)
        if has_moved or self._is_own(query_name, batch_id):
            return self._attempt.clock.now()
        return self._seen_before(query_name, batch_id)

    def _note_first(self, query: LogicalQuery, committed_id: int | None) -> None:
        """Keep the first batch that a query committed in this deployment, with its durations."""
        if query.name in self._first or committed_id is None:
            return
        starts = [one for one in self._started() if one.query_name == query.name]
        if not starts:
            return
        began = starts[0]
        first_id = 0 if began.batch_id is None else began.batch_id + 1
        if committed_id < first_id:
            return
        progress = query.progress_of(first_id)
        if progress is None and committed_id == first_id and query.is_active():
            return  # Spark reports a batch right after its commit: the next poll finds it
        committed_at = None
        with suppress(StreamStateError):
            committed_at = query.checkpoint.committed_at(first_id)
        own = next((one for one in starts if one.attempt == self._attempt.number), None)
        is_own = own is not None and own.batch_id == began.batch_id
        seen_at = self._attempt.clock.now() if is_own else committed_at
        if seen_at is None:
            return  # an earlier attempt committed it at an unknown time
        first = FirstBatch(first_id, seen_at, committed_at)
        if progress is not None:
            first = replace(
                first,
                triggered_at=progress.triggered_at,
                durations_ms=dict(progress.durations_ms),
                state_load_ms=progress.state_load_ms,
            )
        self._first[query.name] = first

    def _started(self) -> Iterator[QueryStarted]:
        """The starts of queries in this deployment, by all attempts, in order."""
        return (event for event in self._attempt.reporter.events if isinstance(event, QueryStarted))

    def _is_own(self, query_name: str, batch_id: int) -> bool:
        """Whether this attempt committed a batch, by its events: after the start of the query, or as its flush."""
        first: QueryStarted | None = None
        for event in self._attempt.reporter.events:
            if event.attempt != self._attempt.number:
                continue
            if isinstance(event, Draining) and event.flush_batch_ids.get(query_name) == batch_id:
                return True
            if first is None and isinstance(event, QueryStarted) and event.query_name == query_name:
                first = event
        return first is not None and first.batch_id != batch_id

    def _seen_before(self, query_name: str, batch_id: int) -> datetime | None:
        """When an earlier attempt, or the predecessor, saw a batch committed; None where unknown."""
        found = (beat.queries.get(query_name) for beat in self._earlier or ())
        return next((query.committed_at for query in found if query is not None and query.batch_id == batch_id), None)

    def _left(self) -> tuple[Heartbeat, ...]:
        """The last heartbeats of an earlier attempt and of the predecessor; read before this attempt writes one."""
        attempt, start = self._attempt, self._attempt.spec.start
        known = [attempt.deployment_id]
        if start.predecessor_id is not None and str(start.snapshot_id).startswith(f"{start.predecessor_id}-"):
            known.append(start.predecessor_id)
        beats = (attempt.control.heartbeat(deployment_id) for deployment_id in known)
        return tuple(beat for beat in beats if beat is not None)


def _is_alive(query: LogicalQuery) -> bool:
    run = query.run
    return run is not None and (run.last_progress() is not None or run.idle_triggers() > 0)
