"""One handover of one query, batches that ran again, and periods without a running query. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import ClassVar, Literal

from airflow_streamstate.connectors.moves import counted
from airflow_streamstate.connectors.source import NO_OFFSET, OffsetOrder, SendingOnceConnector, SourceConnector
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.events import (
    TERMINAL_EVENTS,
    BatchRepeated,
    Claimed,
    Drained,
    Draining,
    Event,
    Finished,
    Ignored,
    QueryStarted,
    RepeatMeans,
    Repositioned,
    Skipped,
    UndoneBy,
)
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.positions import Heartbeat, SourceIdentity, SourceMove

BreakKind = Literal["gap", "overlap", "undone", "backwards"]
Evidence = Literal["logs", "records"]
"""Whether an edge was read in Spark's own logs, or in manifests and events of its time."""


@dataclass(frozen=True)
class Edge:
    """Where a query ended, or started, in one deployment.

    Attributes:
        batch_id: the last committed batch, or None.
        lines: per source, the offset up to which it was read, as Spark wrote it; () where unknown.
        names: of named sources, one for each line.
        identities: of the sources; shorter where unknown.
        planned_batch_id: a batch that was planned over fixed bounds and not committed, or None.
        planned_lines: its bounds; () where unknown.
    """

    batch_id: int | None
    lines: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    identities: tuple[SourceIdentity, ...] = ()
    planned_batch_id: int | None = None
    planned_lines: tuple[str, ...] = ()
    evidence: Evidence = "logs"


@dataclass(frozen=True)
class Break(View):
    """A break in the chain.

    Input that no deployment read (gap), or that two read (overlap); batches that were taken out of the sink on purpose
    (undone); a source whose position went backwards within a deployment.

    Attributes:
        deployment_id: the one that started, or in whose log it is.
        source: which source, or part of it; "" for batches.
        ended_at, began_at: the two offsets, or batch ids, as text.
        detail: one sentence.
        accepted: it was asked for by name (``--accept-lost-input``, ``--allow-new-query``, ``--start fresh``,
            ``--accept-duplicates``, an undo).
    """

    form: ClassVar[str] = "deployment_id query=query_name source ended_at began_at detail accepted"

    kind: BreakKind
    deployment_id: str
    query_name: str
    source: str
    ended_at: str
    began_at: str
    detail: str
    accepted: bool = False


@dataclass(frozen=True)
class Compared:
    """The breaks between two edges; ``uncompared``: sources that cannot be matched, as text, or ""."""

    breaks: tuple[Break, ...]
    uncompared: str = ""


def compare_edges(
    end: Edge,
    start: Edge,
    deployment_id: str,
    query_name: str,
    connectors: Sequence[SourceConnector],
    *,
    keeps_places: bool = False,
    accepted: bool = False,
) -> Compared:
    """Compare the end of a query in the predecessor with its start in this deployment.

    A source of only one edge is no break: it starts where its options ask, or is left at its offset.

    Args:
        keeps_places: the query was restored, so each source continues from the offset in its own place.
        accepted: lost input was accepted by name.
    """
    if end.batch_id != start.batch_id:
        return Compared((_of_batches(end.batch_id, start.batch_id, deployment_id, query_name),))
    pairs, uncompared = _pairs(end, start, keeps_places=keeps_places)
    found = [each for pair in pairs for each in _of_source(pair, connectors, deployment_id, query_name)]
    found += _of_planned(end, start, deployment_id, query_name)
    return Compared(tuple(replace(one, accepted=accepted) for one in found), uncompared)


def undone_break(
    deployment_id: str, query_name: str, began: int | None, ended: int, holder_id: str, means: UndoneBy | None
) -> Break:
    """What became of the batches behind an older snapshot that a deployment started from.

    Args:
        began: the last batch in the snapshot, or None.
        ended: the last batch that was committed before, by ``holder_id``.
        means: how the sink was undone; None if no event shows it.
    """
    which = f"{_listed((-1 if began is None else began) + 1, ended)}, up to those of {holder_id},"
    kind: BreakKind = "overlap" if means in (None, "doubled") else "undone"
    detail = {
        None: f"{which} had to be undone, and no event reports that they were: the sink may hold them twice",
        "doubled": f"{which} were written again to a sink that cannot undo rows, as was accepted",
        "command": f"{which} were taken out of the sink by the command that was given",
    }.get(means, f"{which} were taken out of the sink")
    return Break(kind, deployment_id, query_name, "", _id(ended), _id(began), detail, accepted=means is not None)


def move_breaks(event: Skipped | Repositioned) -> list[Break]:
    """The accepted gaps and overlaps of an event: input that was passed over, or read again, as was asked for."""
    why = (
        f"batch {event.batch_id} was skipped, as {event.requested_by} asked for"
        if isinstance(event, Skipped)
        else "it started at other offsets, as was asked for"
    )
    detail = f"{why}: {event.reason}" if event.reason else why
    found = []
    for move in event.moves:
        kinds: list[tuple[BreakKind, int | None]] = [("gap", move.passed_over), ("overlap", move.read_again)]
        for kind, count in kinds:
            if count == 0 or (count is None and (move.from_offset == move.to_offset or kind == "overlap")):
                continue
            much = "" if count is None else f" ({counted(count, move.unit)})"
            edges = event.deployment_id, event.query_name, move.source, move.from_offset, move.to_offset
            found.append(Break(kind, *edges, f"{detail}{much}", accepted=True))
    return found


@dataclass(frozen=True)
class _Pair:
    """One source in both edges."""

    source: str
    ended_at: str
    began_at: str
    connector_name: str = ""


def _of_batches(ended: int | None, began: int | None, deployment_id: str, query_name: str) -> Break:
    last, first = -1 if ended is None else ended, -1 if began is None else began
    kind: BreakKind = "overlap" if first < last else "gap"
    batches = _listed(min(last, first) + 1, max(last, first))
    detail = (
        f"{batches} of the predecessor are after where this deployment started: the sink may hold them twice"
        if kind == "overlap"
        else f"this deployment started after {batches}, which its predecessor never committed"
    )
    return Break(kind, deployment_id, query_name, "", _id(ended), _id(began), detail)


def _of_source(pair: _Pair, connectors: Iterable[SourceConnector], deployment_id: str, query_name: str) -> list[Break]:
    order = _order(pair, connectors)
    if order == "same":
        return []
    sends_once = {one.name for one in connectors if isinstance(one, SendingOnceConnector)}
    if pair.began_at == NO_OFFSET and pair.connector_name in sends_once:
        detail = "the source sends each row once, so it started without an offset: what was sent in between is lost"
        return [Break("gap", deployment_id, query_name, pair.source, pair.ended_at, pair.began_at, detail)]
    parts = _parts(pair.ended_at, pair.began_at) or [("", pair.ended_at, pair.began_at, order)]
    return [
        Break(_KINDS[lies], deployment_id, query_name, part or pair.source, before, after, _SENTENCES[lies])
        for part, before, after, lies in parts
    ]


_KINDS: Mapping[OffsetOrder, BreakKind] = {"ahead": "overlap", "behind": "gap", "apart": "gap"}
_SENTENCES: Mapping[OffsetOrder, str] = {
    "ahead": "the input between the two was read by both",
    "behind": "the input between the two was read by neither",
    "apart": "the two offsets are not of the same input",
}


def _of_planned(end: Edge, start: Edge, deployment_id: str, query_name: str) -> list[Break]:
    """A planned batch is run first, over the same bounds (1a.6, Law 14)."""
    if end.planned_batch_id is None or not end.planned_lines or not start.planned_lines:
        return []
    before, after = sorted(map(_plain, end.planned_lines)), sorted(map(_plain, start.planned_lines))
    if before == after:
        return []
    text = f"batch {end.planned_batch_id}"
    detail = f"{text} was planned over other bounds by the predecessor, whose sink may hold it"
    return [Break("overlap", deployment_id, query_name, text, " ".join(before), " ".join(after), detail)]


def _pairs(end: Edge, start: Edge, *, keeps_places: bool) -> tuple[list[_Pair], str]:
    """The sources of both edges; and, as text, those that cannot be matched."""
    before, after = _sources(end), _sources(start)
    if not before or not after:
        return [], ""
    if end.names and start.names:
        found = {source.key: source for source in before}
        both = [(found[source.key], source) for source in after if source.key in found]
        return [_paired(one, other) for one, other in both], ""
    unknown = not all(source.what for source in (*before, *after))
    if (keeps_places or unknown) and len(before) == len(after):
        return [_paired(one, other) for one, other in zip(before, after, strict=True)], ""
    pairs, left = [], list(before)
    new = []
    for source in after:
        same = next((one for one in left if source.what and one.what == source.what), None)
        if same is None:
            new.append(source)
        else:
            left.remove(same)
            pairs.append(_paired(same, source))
    # A source that is gone and one that is new may be the same under another description.
    new = [source for source in new if source.line != NO_OFFSET]
    words = f"{_whats(left)} ended, and {_whats(new)} started, after an offset" if left and new else ""
    return pairs, words


@dataclass(frozen=True)
class _Source:
    """One line of an edge, with its source."""

    key: str
    line: str
    what: str = ""
    connector_name: str = ""


def _sources(edge: Edge) -> list[_Source]:
    found = []
    for number, line in enumerate(edge.lines):
        identity = edge.identities[number] if number < len(edge.identities) else SourceIdentity("", "")
        key = edge.names[number] if number < len(edge.names) else f"source {number}"
        found.append(_Source(key, line, identity.what, identity.adapter))
    return found


def _paired(one: _Source, other: _Source) -> _Pair:
    return _Pair(other.what or one.what or other.key, one.line, other.line, other.connector_name or one.connector_name)


def _whats(sources: Iterable[_Source]) -> str:
    return ", ".join(source.what or source.key for source in sources)


def _order(pair: _Pair, connectors: Iterable[SourceConnector]) -> OffsetOrder:
    """How the first offset compares with the second; "apart" where they differ and their order is unknown."""
    if _plain(pair.ended_at) == _plain(pair.began_at):
        return "same"
    for connector in connectors:
        if connector.name == pair.connector_name:
            try:
                return connector.compare(pair.ended_at, pair.began_at)
            except Exception:  # third-party connectors may raise anything: then the order is unknown
                break
    parts = _parts(pair.ended_at, pair.began_at)
    orders = {lies for *_, lies in parts} if parts else set()
    return orders.pop() if len(orders) == 1 else "apart"


def _parts(first: str, second: str) -> list[tuple[str, str, str, OffsetOrder]]:
    """The parts in which two offsets differ, where both have numbers under the same names; else none."""
    before, after = _numbers(first), _numbers(second)
    if not before or set(before) != set(after):
        return []
    return [
        (part, str(before[part]), str(after[part]), "ahead" if before[part] > after[part] else "behind")
        for part in sorted(before)
        if before[part] != after[part]
    ]


def _numbers(offset: str) -> dict[str, int]:
    """By part, the numbers of an offset: ``topic[partition]`` for one like Kafka's, "" for a single number."""
    try:
        content = json.loads(offset)
    except ValueError:
        return {}
    if isinstance(content, dict) and len(content) == 1:
        (only,) = content.values()
        if type(only) is int:
            return {"": only}
    if not isinstance(content, dict) or not all(isinstance(part, dict) for part in content.values()):
        return {}
    found = {f"{name}[{key}]": value for name, part in content.items() for key, value in part.items()}
    return found if all(type(value) is int for value in found.values()) else {}


def _plain(offset: str) -> str:
    """One text for equal JSON."""
    if offset == NO_OFFSET:
        return offset
    try:
        return json.dumps(json.loads(offset), sort_keys=True)
    except ValueError:
        return offset


def _listed(first: int, last: int) -> str:
    return f"batch {first}" if first == last else f"batches {first} to {last}"


def _id(batch_id: int | None) -> str:
    return "none" if batch_id is None else f"batch {batch_id}"


# Batches that ran again after a kill, and whether their rows may be in the sink twice.
#
# A batch that was planned and not committed runs again over the same bounds. A sink that knows its batches skips one
# that it holds; for other sinks it is unknown how much the earlier run wrote, so the batch is named with its offsets.

MOST_TOLD = 3


@dataclass(frozen=True)
class Repeat(View):
    """A batch that ran again, or that will.

    Attributes:
        attempt: the one that ran it again.
        sink: as text.
        means: what that sink makes of it.
        moves: per source, the offsets between which it reads; empty where they are gone.
        is_flush: the flush of a drain, which reads no input.
        at: RFC 3339; "" for a batch that will run again.
    """

    form: ClassVar[str] = "deployment_id attempt query=query_name batch_id sink means at is_flush rows_at_most moves"

    deployment_id: str
    query_name: str
    batch_id: int
    attempt: int
    sink: str
    means: RepeatMeans
    moves: tuple[SourceMove, ...] = ()
    is_flush: bool = False
    at: str = ""

    @property
    def may_be_doubled(self) -> bool:
        """Whether its rows may be in the sink twice."""
        return self.means != "skipped"

    @property
    def rows_at_most(self) -> int | None:
        """The rows that the batch reads; None if the offsets do not show it."""
        if not self.moves or any(move.unit != "rows" or move.passed_over is None for move in self.moves):
            return None
        return sum(move.passed_over or 0 for move in self.moves)


def repeats_of(events: Iterable[Event]) -> list[Repeat]:
    """The batches that ran again in a deployment, oldest first; ``events``: of all its attempts."""
    return [_told(event) for event in events if isinstance(event, BatchRepeated)]


def moves_in(events: Collection[Event | None]) -> list[Skipped | Repositioned]:
    """The events of one deployment about input that was passed over or read again, in their order.

    Of each query only the last ``Repositioned`` counts: an earlier start was cut off before it built the checkpoint.
    """
    last = {event.query_name: event for event in events if isinstance(event, Repositioned)}
    return [
        event
        for event in events
        if isinstance(event, Skipped) or (isinstance(event, Repositioned) and last[event.query_name] is event)
    ]


def describe_repeats(stream_id: str, repeats: Sequence[Repeat]) -> str:
    """One sentence on batches that ran again or will; "" for no batches."""
    if not repeats:
        return ""
    doubled = [one for one in repeats if one.may_be_doubled]
    shown = (doubled or list(repeats))[-MOST_TOLD:]
    head = "rows may be doubled: " if doubled else "nothing is doubled: "
    clauses = "; ".join(describe(one) for one in shown)
    left = len(doubled or repeats) - len(shown)
    return head + clauses + (f"; and {left} more, which `streamstate audit {stream_id}` lists" if left else "")


def describe(one: Repeat) -> str:
    """One clause: which batch, and what its sink makes of it."""
    which = "the flush, " if one.is_flush else ""
    runs = "ran again" if one.at else "runs again first"
    text = f"{which}batch {one.batch_id} of {one.query_name} {runs}, into {one.sink}"
    if one.means == "skipped":
        return f"{text}, where no batch is there twice"
    sink = "which cannot detect it" if one.means == "doubled" else "of which only the script knows whether it can"
    return f"{text}, {sink} a batch that it was given before{_how_much(one)}"


def _how_much(one: Repeat) -> str:
    if one.rows_at_most is not None:
        return f" (input of at most {counted(one.rows_at_most, 'rows')})"
    parts = [counted(move.passed_over, move.unit) for move in one.moves if move.passed_over is not None and move.unit]
    return f" (input of at most {' and '.join(parts)})" if parts and len(parts) == len(one.moves) else ""


def _told(event: BatchRepeated) -> Repeat:
    return Repeat(
        event.deployment_id,
        event.query_name,
        event.batch_id,
        event.attempt,
        event.sink,
        event.means,
        event.moves,
        event.is_flush,
        format_time(event.at),
    )


# The periods in which no query of a stream ran, by the events and heartbeats of its attempts. Pure.


@dataclass(frozen=True)
class NotRunning(View):
    """A period in which no query of the stream ran.

    Attributes:
        after, before: the attempts around it that ran a query, or a flush: ``d-0001 attempt 1 (drained)`` with its
            end, and ``d-0002 attempt 1``; ``before`` is "" while the period lasts.
        from_at: the end of the last query of ``after``; where unknown, its terminal event or its last sign of life.
        until_at: the first query of ``before``, or its flush; None while the period lasts.
        at_most: ``after`` has no terminal event, so it may have run longer.
        between_runs: ``after`` ended by itself, by the triggers of all its queries: nothing was due to run.
    """

    form: ClassVar[str] = "* seconds"

    after: str
    before: str
    from_at: datetime
    until_at: datetime | None
    at_most: bool = False
    between_runs: bool = False

    @property
    def seconds(self) -> float | None:
        """How long it lasted; None while it lasts."""
        return None if self.until_at is None else round((self.until_at - self.from_at).total_seconds(), 3)


def not_running(events: Sequence[Event], signs: Mapping[str, Heartbeat]) -> list[NotRunning]:
    """The periods between the last query of one attempt and the first query of the next, oldest first.

    An attempt that neither started nor flushed a query is no border of such a period.

    Args:
        events: of all deployments of a stream.
        signs: the last heartbeat of each deployment; that of an earlier attempt is in the ``Claimed`` of the next one.
    """
    beats = last_beats(events, signs)
    attempts: dict[tuple[str, int], list[Event]] = {}
    for event in sorted(events, key=lambda event: event.at):
        attempts.setdefault((event.deployment_id, event.attempt), []).append(event)
    found = []
    after: list[Event] = []
    for said in attempts.values():
        first = next((event for event in said if isinstance(event, QueryStarted | Draining)), None)
        if first is not None and after:
            ended_at = _last_at(after, beats)
            if ended_at < first.at:
                found.append(
                    NotRunning(
                        _with_end(after),
                        _named(said),
                        ended_at,
                        first.at,
                        not _has_ended(after),
                        between_runs=has_run_to_its_end(after),
                    )
                )
        flushed = any(isinstance(event, Drained) for event in said)
        if first is not None or flushed or (not after and _has_ended(said)):
            after = said
    if after and _has_ended(after):
        ended_at = _last_at(after, beats)
        found.append(NotRunning(_with_end(after), "", ended_at, None, between_runs=has_run_to_its_end(after)))
    return found


def has_run_to_its_end(said: Sequence[Event], query_name: str | None = None) -> bool:
    """Whether an attempt ended by itself, and its queries, or this one, have a trigger that ends each run.

    Args:
        said: the events of the attempt, oldest first.
    """
    end = next((event for event in reversed(said) if isinstance(event, TERMINAL_EVENTS)), None)
    starts = {event.query_name: event for event in said if isinstance(event, QueryStarted)}
    asked = [start for name, start in starts.items() if query_name in (None, name)]
    if not isinstance(end, Finished) or any(query_name in (None, name) for name in end.unfinished):
        return False
    return bool(asked) and all(start.ends_by_itself for start in asked)


def last_beats(events: Sequence[Event], signs: Mapping[str, Heartbeat]) -> Mapping[tuple[str, int], datetime]:
    """The last heartbeat of each attempt, by deployment and number, as far as known: the next attempt overwrites it."""
    told = {(beat.deployment_id, beat.attempt): beat.at for beat in signs.values()}
    for event in events:
        if isinstance(event, Claimed) and event.earlier_attempt is not None and event.earlier_beat_at is not None:
            told.setdefault((event.deployment_id, event.earlier_attempt), event.earlier_beat_at)
    return told


def _last_at(said: Sequence[Event], beats: Mapping[tuple[str, int], datetime]) -> datetime:
    """When the last query of an attempt ended, as far as known.

    Events behind the terminal one (copies at a mirror, late orders) are not of a query.
    """
    last_word = next((event for event in said if isinstance(event, TERMINAL_EVENTS)), None)
    if last_word is None:
        return last_sign(said, beats)
    ends = getattr(last_word, "ends", {}).values()
    seen = [end.last_at for end in ends if end.last_at is not None]
    return max(seen) if seen else last_word.at


def last_sign(said: Sequence[Event], beats: Mapping[tuple[str, int], datetime]) -> datetime:
    """The last sign of life of an attempt without a terminal event, by its events, oldest first, and ``last_beats``.

    A deploy may write ``Ignored`` for a dead attempt long after its end.
    """
    last = next((event for event in reversed(said) if not isinstance(event, Ignored)), said[-1])
    return max(last.at, beats.get((last.deployment_id, last.attempt), last.at))


def _has_ended(said: Sequence[Event]) -> bool:
    return any(isinstance(event, TERMINAL_EVENTS) for event in said)


def _named(said: Sequence[Event]) -> str:
    return f"{said[-1].deployment_id} attempt {said[-1].attempt}"


def _with_end(said: Sequence[Event]) -> str:
    end = next((event.kind.lower() for event in reversed(said) if isinstance(event, TERMINAL_EVENTS)), "no last event")
    return f"{_named(said)} ({end})"
