"""How far each query is behind its sources; the sources are asked in the background, and delay no heartbeat."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from airflow_streamstate.checkpoint.file_source import files_taken, parse_file_source_offset
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.connectors.registry import between
from airflow_streamstate.connectors.source import (
    NO_OFFSET,
    AgingSource,
    GroupedSource,
    Lag,
    ListedSource,
    OpenSource,
    Unit,
    Untold,
)
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.ports import QueryProgress
from airflow_streamstate.driver.attempt.query_sources import KnownSource, SourceBook
from airflow_streamstate.driver.start.query_seed import begins_elsewhere
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.older_python import zipped
from airflow_streamstate.protocol.positions import LagTrend, QueryPosition, SourceLag

OUTSTANDING: tuple[tuple[str, Unit], ...] = (("numFilesOutstanding", "files"), ("numBytesOutstanding", "bytes"))
"""Metrics of a source that report its lag; the first one counts (Databricks' sources have them)."""
MAX_FILES = 200_000
NOT_KNOWN = "no connector knows this kind of source"
NOT_READ = "nothing of it is read yet"
NO_ANSWER = "it did not answer; an event shows why"
NOT_COUNTED = f"it has read more than {MAX_FILES:,} files, which are too many to count"


class SourceLags:
    """Measures lags for one attempt; remembers which files were read, to read Spark's log of files only once."""

    def __init__(self, book: SourceBook) -> None:
        self._book = book
        self._taken: dict[tuple[str, str], tuple[int, set[str], int]] = {}

    def behind(
        self,
        query_name: str,
        checkpoint: Checkpoint,
        offsets: Sequence[str],
        metrics: Sequence[Mapping[str, str]] = (),
    ) -> tuple[SourceLag, ...]:
        """How far each source is ahead of these offsets; () where the sources and the offsets are not known.

        Args:
            offsets: of the query's last committed batch, in the order of the lines.
            metrics: of each source at that batch, in the same order; () if not set.
        """
        sources = self._book.sources(query_name)
        if len(sources) != len(offsets):
            return ()
        found = []
        for number, known in enumerate(sources):
            answer = self._asked(query_name, number, known, checkpoint, offsets[number])
            if isinstance(answer, Untold) and number < len(metrics):
                answer = _outstanding(metrics[number]) or answer
            what = known.identity.what or f"source {number}"
            if isinstance(answer, Untold):
                found.append(SourceLag(what, untold=answer.reason))
            else:
                found.append(SourceLag(what, max(0, answer.behind), answer.unit))
        return tuple(found)

    def between(
        self, query_name: str, checkpoint: Checkpoint, first: Sequence[str], second: Sequence[str]
    ) -> tuple[Lag | None, ...]:
        """How much input is between the first and the second offsets, per source; None where unknown."""
        sources = self._book.sources(query_name)
        if not len(sources) == len(first) == len(second):
            return (None,) * len(sources)
        return tuple(
            between(known.connector, (checkpoint.store, checkpoint.key(f"sources/{known.source.folder}")), one, other)
            for known, one, other in zipped(sources, first, second)
        )

    def has_listings(self, query_name: str) -> bool:
        """Whether asking the sources of a query lists folders."""
        return any(isinstance(known.opened, ListedSource) for known in self._book.sources(query_name))

    def _asked(
        self, query_name: str, number: int, known: KnownSource, checkpoint: Checkpoint, offset: str
    ) -> Lag | Untold:
        if not known.is_known:
            return Untold(NOT_KNOWN)
        if offset == NO_OFFSET:
            return Untold(NOT_READ)

        def ask(opened: OpenSource) -> Lag | Untold | None:
            if isinstance(opened, ListedSource):
                return self._unread(query_name, known, checkpoint, offset, opened)
            lag = opened.lag(offset)
            return lag if lag is None or isinstance(lag, Untold) else Lag(int(lag.behind), lag.unit)

        return self._book.ask(query_name, number, "its lag", ask) or Untold(NO_ANSWER)

    def _unread(
        self, query_name: str, known: KnownSource, checkpoint: Checkpoint, offset: str, opened: ListedSource
    ) -> Lag | Untold:
        last = parse_file_source_offset(offset)
        if last is None:
            return Untold("its offset is not that of a source of files")
        upto, taken, newest_ms = self._taken.get((query_name, known.source.folder), (-1, set(), 0))
        if last < upto:
            upto, taken, newest_ms = -1, set(), 0  # the query started again at other offsets
        if last > upto:
            entries = files_taken(checkpoint.store, checkpoint.key(f"sources/{known.source.folder}"), last, upto)
            taken.update(entry.path for entry in entries)
            newest_ms = max((newest_ms, *(entry.timestamp_ms for entry in entries)))
            self._taken[query_name, known.source.folder] = last, taken, newest_ms
        if len(taken) > MAX_FILES:
            return Untold(NOT_COUNTED)
        if isinstance(opened, AgingSource):
            return Lag(opened.unread(taken, newest_ms), "files")
        return Lag(len(opened.paths() - taken), "files")


def _outstanding(metrics: Mapping[str, str]) -> Lag | None:
    for name, unit in OUTSTANDING:
        text = str(metrics.get(name, ""))
        if text.isdigit():
            return Lag(int(text), unit)
    return None


SHARE = 0.01
"""The share of the time that goes into asking sources; see ``quiet_seconds``."""
FRESH_SECONDS = 10.0
FRESH_SHARE = 0.1
LONGEST_QUIET_SECONDS = 60.0
LONGEST_QUIET_AFTER_LISTING_SECONDS = 3_600.0
LONG_LISTING_SECONDS = 2.0
TREND_BATCHES = 12
"""Batches in a trend: several periods of a lag that rises until each commit."""
LATELY_BATCHES = 3


@dataclass(frozen=True)
class Behind:
    """The last answers of the sources of one query.

    Attributes:
        snapshot_id: the newest snapshot that has the query; None if no snapshot has it.
        batches_since_snapshot: committed batches that are not in it.
    """

    lags: tuple[SourceLag, ...]
    at: datetime
    snapshot_id: str | None = None
    batches_since_snapshot: int | None = None

    @property
    def rows(self) -> int | None:
        """The rows behind, over all sources; None where no source counts in rows."""
        told = [lag.behind for lag in self.lags if lag.unit == "rows" and lag.behind is not None]
        return sum(told) if told else None


@dataclass(frozen=True)
class LagPoll:
    """The answer of one source after one batch.

    Attributes:
        committed_at: when the batch's trigger ended; None where Spark does not report it.
        offset: of the source, at the end of that batch.
        behind: what the source had at ``asked_at``, after that offset.
        idle_triggers: triggers of the query without input until then.
    """

    batch_id: int
    committed_at: datetime | None
    offset: str
    asked_at: datetime
    behind: int
    idle_triggers: int = 0


class Trend:
    """The lag behind one source over the last batches of this attempt.

    Each batch has one poll, the earliest: until the next commit the lag can only grow. At a trigger without input
    between two polls the lag was 0; the reading speed is counted from the last such moment.
    """

    def __init__(self) -> None:
        self._looks: deque[LagPoll] = deque(maxlen=TREND_BATCHES)

    def take(self, look: LagPoll) -> None:
        """Take in a poll, the first of its batch."""
        if not self._looks or look.batch_id > self._looks[-1].batch_id:
            self._looks.append(look)

    @property
    def first_offset(self) -> str | None:
        """The offset from which ``read`` is counted; None before the first poll."""
        return self._looks[self._first()].offset if self._looks else None

    def told(self, read: int | None) -> LagTrend | None:
        """The trend; None before two batches were polled.

        Args:
            read: how much input is between ``first_offset`` and the offset of the last poll; None where unknown.
        """
        if len(self._looks) < 2:
            return None
        first, last = self._looks[self._first()], self._looks[-1]
        middle, count = len(self._looks) // 2, len(self._looks)
        read_seconds = None
        if first.committed_at is not None and last.committed_at is not None:
            read_seconds = (last.committed_at - first.committed_at).total_seconds()
        is_told = read is not None and read_seconds is not None and read_seconds > 0
        return LagTrend(
            batches=last.batch_id - first.batch_id,
            read=read if is_told else None,
            read_seconds=read_seconds if is_told else None,
            came=max(0, read + last.behind - first.behind) if read is not None and is_told else None,
            came_seconds=(last.asked_at - first.asked_at).total_seconds() if is_told else None,
            least_before=min(map(self._least, range(middle))),
            least=min(map(self._least, range(middle, count))),
            least_lately=min(map(self._least, range(max(0, count - LATELY_BATCHES), count))),
        )

    def seconds_to_zero(self, behind: int) -> float | None:
        """Seconds until the lag is 0, if the trend continues; None where the least lag does not fall."""
        if behind == 0:
            return 0.0
        if len(self._looks) < 2:
            return None
        before, later = self._halves()
        seconds = (later.asked_at - before.asked_at).total_seconds()
        if later.behind >= before.behind or seconds <= 0:
            return None
        since_seconds = (self._looks[-1].asked_at - later.asked_at).total_seconds()
        left_seconds = later.behind * seconds / (before.behind - later.behind) - since_seconds
        return round(max(0.0, left_seconds), 1)

    def _least(self, number: int) -> int:
        return 0 if self._was_idle(number) else self._looks[number].behind

    def _was_idle(self, number: int) -> bool:
        """Whether a trigger found no input between a poll and the one before."""
        return number > 0 and self._looks[number].idle_triggers > self._looks[number - 1].idle_triggers

    def _first(self) -> int:
        """The number of the last poll after an idle trigger that another poll follows; else 0."""
        return next((number for number in range(len(self._looks) - 2, 0, -1) if self._was_idle(number)), 0)

    def _halves(self) -> tuple[LagPoll, LagPoll]:
        """The least of the older half of the window, and the newest least of its newer half."""
        looks = list(self._looks)
        middle = len(looks) // 2
        return min(looks[:middle], key=lambda look: look.behind), min(
            reversed(looks[middle:]), key=lambda look: look.behind
        )


class LagLook:
    """The last answers of the sources of one attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._measures = SourceLags(attempt.sources)
        self._found: dict[str, Behind] = {}
        self._trends: dict[tuple[str, int], Trend] = {}
        self._kept: dict[str, dict[str, QueryPosition]] = {}
        self._asking: set[str] = set()
        self._quiet_until_seconds: dict[str, float] = {}

    def of(self, query: LogicalQuery) -> Behind | None:
        """The last answers, None before the first; asks again in the background while the query runs."""
        if self._may_ask(query):
            progress = query.last_progress()
            idle_triggers = 0 if query.run is None else query.run.idle_triggers()
            self._asking.add(query.name)
            self._attempt.in_background(lambda: self._ask(query, progress, idle_triggers), gives_way=False)
        return self._found.get(query.name)

    def _may_ask(self, query: LogicalQuery) -> bool:
        if query.name in self._asking or not query.is_active():
            return False
        if not self._attempt.sources.sources(query.name):
            return False  # its plan does not show them
        return self._attempt.clock.monotonic_seconds() >= self._quiet_until_seconds.get(query.name, 0.0)

    def _ask(self, query: LogicalQuery, progress: QueryProgress | None, idle_triggers: int) -> None:
        clock = self._attempt.clock
        began = clock.monotonic_seconds()
        try:
            batch_id, offsets, metrics = committed_offsets(query, progress)
            if batch_id is not None:
                lags = self._measures.behind(query.name, query.checkpoint, offsets, metrics)
                self._keep(query, batch_id, offsets, lags, progress, idle_triggers)
            if progress is not None and query.plans_batch_by_batch:
                # The next batch may be under way: its offsets may be older than the answer.
                self._attempt.sources.sight(query.name, progress.batch_id, lambda: query.newest_batch_id() + 1)
        except StreamStateError:
            pass  # Spark's JVM is ending, or the store does not answer
        finally:
            now = clock.monotonic_seconds()
            listed = now - began > LONG_LISTING_SECONDS and self._measures.has_listings(query.name)
            self._quiet_until_seconds[query.name] = now + quiet_seconds(now - began, listed=listed)
            self._asking.discard(query.name)

    def _keep(
        self,
        query: LogicalQuery,
        batch_id: int,
        offsets: Sequence[str],
        lags: tuple[SourceLag, ...],
        progress: QueryProgress | None,
        idle_triggers: int,
    ) -> None:
        """Keep the answers; a trend starts with the first batch of this attempt."""
        if not lags:
            self._found.pop(query.name, None)
            return
        clock = self._attempt.clock
        now = clock.now()
        snapshot_id, kept = self._newest_snapshot(query.name)
        between: tuple[Lag | None, ...] = ()
        if kept is not None:
            between = self._measures.between(query.name, query.checkpoint, kept.end_offsets, offsets)
        trends = [self._trends.setdefault((query.name, number), Trend()) for number in range(len(lags))]
        for trend, offset, lag in zipped(trends, offsets, lags):
            if lag.behind is not None and progress is not None:
                trend.take(LagPoll(batch_id, progress.committed_at, offset, now, lag.behind, idle_triggers))
        begun_at = [trend.first_offset or offset for trend, offset in zipped(trends, offsets)]
        read = self._measures.between(query.name, query.checkpoint, begun_at, offsets)
        told = []
        for number, lag in enumerate(lags):
            since = between[number] if number < len(between) else None
            told.append(
                replace(
                    lag,
                    seconds_to_zero=None if lag.behind is None else trends[number].seconds_to_zero(lag.behind),
                    since_snapshot=None if since is None else since.behind,
                    since_snapshot_unit="" if since is None else since.unit,
                    trend=None if lag.behind is None else trends[number].told(_of_unit(read[number], lag.unit)),
                )
            )
        since_batch = None if kept is None or kept.batch_id is None else max(0, batch_id - kept.batch_id)
        self._found[query.name] = Behind(tuple(told), now, snapshot_id, since_batch)

    def _newest_snapshot(self, query_name: str) -> tuple[str | None, QueryPosition | None]:
        """The newest snapshot of this deployment that has the query, else the one that it started from."""
        attempt, start = self._attempt, self._attempt.spec.start
        said = [getattr(event, "snapshot_id", None) for event in reversed(attempt.reporter.events)]
        for snapshot_id in (*said, start.snapshot_id):
            if snapshot_id is None or (snapshot_id == start.snapshot_id and begins_elsewhere(start, query_name)):
                continue
            if snapshot_id not in self._kept:
                manifest = attempt.control.readable_manifest(snapshot_id)
                queries = {} if manifest is None else manifest.queries
                self._kept[snapshot_id] = {name: known.position for name, known in queries.items()}
            if query_name in self._kept[snapshot_id]:
                return snapshot_id, self._kept[snapshot_id][query_name]
        return None, None


def quiet_seconds(took_seconds: float, *, listed: bool) -> float:
    """How long to wait before the sources of a query are asked again: answers that took long are asked for less often.

    Args:
        listed: the time went into listing a large folder, which costs its server as much.
    """
    if listed:
        return min(took_seconds / SHARE, LONGEST_QUIET_AFTER_LISTING_SECONDS)
    fresh = max(FRESH_SECONDS, took_seconds / FRESH_SHARE)
    return min(took_seconds / SHARE, fresh, LONGEST_QUIET_SECONDS)


def _of_unit(lag: Lag | None, unit: str) -> int | None:
    return lag.behind if lag is not None and lag.unit == unit else None


def committed_offsets(
    query: LogicalQuery, progress: QueryProgress | None
) -> tuple[int | None, tuple[str, ...], tuple[dict[str, str], ...]]:
    """The last committed batch, its offsets and source metrics: by the last progress, else by the log."""
    if progress is not None:
        facts = query.startable.facts
        metrics = facts.in_line_order(tuple(dict(one) for one in progress.source_metrics))
        return progress.batch_id, facts.in_line_order(progress.end_offsets), metrics
    with suppress(StreamStateError):
        batch_id = query.checkpoint.position().batch_id
        entry = None if batch_id is None else query.checkpoint.read_offset(batch_id)
        if entry is not None:
            return batch_id, entry.source_lines, ()
    return None, (), ()


# Offsets of committed batches, reported to a consumer group of the source's own system: for its tools, never read back.

LOOK_SECONDS = 1.0
"""How often the agent looks for a batch that was committed since."""
AFTER_FAILURE_SECONDS = 10.0


class GroupCommits:
    """Commits to ``commit_offsets_to_group`` after each batch, in the background; a failure is noted once."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._group = attempt.spec.version.settings.commit_offsets_to_group
        self._told: dict[str, int] = {}
        self._busy: set[str] = set()
        self._quiet_until_seconds = 0.0

    def commit_new(self) -> None:
        """Commit the offsets of each query that has committed a batch since the last time."""
        now = self._attempt.clock.monotonic_seconds()
        if not self._group or now < self._quiet_until_seconds:
            return
        self._quiet_until_seconds = now + LOOK_SECONDS
        for query in self._attempt.queries.all():
            if query.name in self._busy or not query.is_active():
                continue
            progress = query.last_progress()
            if progress is not None and progress.batch_id != self._told.get(query.name):
                self._busy.add(query.name)
                self._attempt.in_background(self._committer(query, progress), gives_way=False)

    def _committer(self, query: LogicalQuery, progress: QueryProgress) -> Callable[[], None]:
        def commit() -> None:
            try:
                _, offsets, _ = committed_offsets(query, progress)
                sources = self._attempt.sources.sources(query.name)
                numbers = range(min(len(offsets), len(sources)))
                told = [self._commit(query.name, number, offsets[number]) for number in numbers]
                if all(told):
                    self._told[query.name] = progress.batch_id
                else:
                    self._quiet_until_seconds = self._attempt.clock.monotonic_seconds() + AFTER_FAILURE_SECONDS
            except StreamStateError:
                pass  # Spark's JVM is ending
            finally:
                self._busy.discard(query.name)

        return commit

    def _commit(self, query_name: str, number: int, offset: str) -> bool:
        """Whether the group has the offset now, or there is nothing to report."""
        if offset == NO_OFFSET or not self._attempt.sources.sources(query_name)[number].is_known:
            return True

        def commit(opened: OpenSource) -> bool:
            if isinstance(opened, GroupedSource):
                opened.commit_to_group(self._group, offset)
            return True

        return self._attempt.sources.ask(query_name, number, "to keep offsets of a consumer group", commit) is True
