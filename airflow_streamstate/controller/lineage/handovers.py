"""One handover of one query: whether the successor began exactly where the predecessor ended (pure).

What an end and a beginning are is read elsewhere (``custody``); here they are held against each other, source by
source, by the connectors that know what an offset means.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from airflow_streamstate.connectors.moving import counted
from airflow_streamstate.connectors.source import NO_OFFSET, OffsetOrder, SendingOnceConnector, SourceConnector
from airflow_streamstate.protocol.data_events import Repositioned, Skipped, UndoneBy
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.positions import SourceIdentity

BreakKind = Literal["gap", "overlap", "undone", "backwards"]
Evidence = Literal["logs", "records"]
"""By what an end or a beginning is known: Spark's own logs, or what was written down of it when it was there."""


@dataclass(frozen=True)
class Edge:
    """Where a query ended, or began, in one deployment.

    Attributes:
        batch_id: the last committed batch; None for none.
        lines: per source, the offset up to which it was read, as Spark wrote it; () where nobody knows.
        names: of sources that have names, one for each line.
        identities: what each source is; shorter where unknown.
        planned_batch_id: a batch that was planned over fixed bounds and not committed; None for none.
        planned_lines: its bounds; () where nobody knows.
        evidence: by what all this is known.
    """

    batch_id: int | None
    lines: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    identities: tuple[SourceIdentity, ...] = ()
    planned_batch_id: int | None = None
    planned_lines: tuple[str, ...] = ()
    evidence: Evidence = "logs"


@dataclass(frozen=True)
class Break:
    """Where a chain does not hold: input that nobody counted (gap), or that two deployments did (overlap).

    Or where it was taken back on purpose: batches that are out of the sink again (undone). Or where a source's position
    went backwards within a deployment.

    Attributes:
        deployment_id: the one that began, or in whose log it is.
        source: which source, or part of it; "" where it is about batches.
        ended_at, began_at: the two offsets, or batch ids, as text.
        detail: one sentence.
        accepted: it was asked for by name (``--accept-lost-input``, ``--allow-new-query``, ``--start fresh``,
            ``--accept-duplicates``, an undo).
    """

    kind: BreakKind
    deployment_id: str
    query_name: str
    source: str
    ended_at: str
    began_at: str
    detail: str
    accepted: bool = False

    def to_json(self) -> dict[str, object]:
        """``deployment_id query source ended_at began_at detail accepted``."""
        return {
            "deployment_id": self.deployment_id,
            "query": self.query_name,
            "source": self.source,
            "ended_at": self.ended_at,
            "began_at": self.began_at,
            "detail": self.detail,
            "accepted": self.accepted,
        }


@dataclass(frozen=True)
class Compared:
    """What came of holding two edges against each other.

    Attributes:
        breaks: empty where the one began exactly where the other ended.
        uncompared: sources of which nobody can say whether one is the other, in words; "" for none.
    """

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
    """Hold where a query began against where it had ended.

    A source that only one of the two has is no break: it begins where its options say, or is left where it was.

    Args:
        end: of the predecessor.
        start: of the successor.
        deployment_id: the successor.
        query_name: the query.
        connectors: which say how offsets lie to each other.
        keeps_places: it was restored, so that each source goes on from the offset in its own place.
        accepted: whether lost input was accepted by name.
    """
    if end.batch_id != start.batch_id:
        return Compared((_of_batches(end.batch_id, start.batch_id, deployment_id, query_name),))
    pairs, uncompared = _pairs(end, start, keeps_places=keeps_places)
    found: list[Break] = []
    for pair in pairs:
        found += _of_source(pair, connectors, deployment_id, query_name)
    found += _of_planned(end, start, deployment_id, query_name)
    return Compared(tuple(replace(one, accepted=accepted) for one in found), uncompared)


def undone_break(
    deployment_id: str, query_name: str, began: int | None, ended: int, holder_id: str, means: UndoneBy | None
) -> Break:
    """What a start that went back to an older snapshot made of the batches behind it.

    Args:
        deployment_id: that went back.
        query_name: the query.
        began: the last batch in the snapshot; None for none.
        ended: the last batch that was committed before.
        holder_id: the deployment that committed it.
        means: by what its sink was undone; None where no event says that it was.
    """
    which = f"{_listed((-1 if began is None else began) + 1, ended)}, up to those of {holder_id},"
    kind: BreakKind = "overlap" if means in (None, "doubled") else "undone"
    detail = {
        None: f"{which} were to be undone, and no event says that they were: the sink may hold them twice",
        "doubled": f"{which} came again on a sink that takes nothing back, as was accepted",
        "command": f"{which} were taken out of the sink by the command that was given",
    }.get(means, f"{which} were taken out of the sink")
    return Break(kind, deployment_id, query_name, "", _id(ended), _id(began), detail, accepted=means is not None)


def moves_in(events: Collection[Event | None]) -> list[Skipped | Repositioned]:
    """What these events of one deployment tell of input that was passed over or is read again, in their order.

    A query begins elsewhere once at most: a start that was cut off before its checkpoint was built may have found other
    offsets than the one that built it, so that of each query the last word holds.
    """
    last = {event.query_name: event for event in events if isinstance(event, Repositioned)}
    return [
        event
        for event in events
        if isinstance(event, Skipped) or (isinstance(event, Repositioned) and last[event.query_name] is event)
    ]


def move_breaks(event: Skipped | Repositioned) -> list[Break]:
    """The gaps and overlaps with a name: input that was passed over, or is read again, as was asked for."""
    why = (
        f"batch {event.batch_id} was skipped, as {event.requested_by} asked for"
        if isinstance(event, Skipped)
        else "it began at other offsets, as was asked for"
    )
    detail = f"{why}: {event.reason}" if event.reason else why
    found = []
    for move in event.moves:
        kinds: list[tuple[BreakKind, int | None]] = [("gap", move.passed_over), ("overlap", move.read_again)]
        for kind, count in kinds:
            if count == 0 or (count is None and (move.from_offset == move.to_offset or kind == "overlap")):
                continue
            much = "" if count is None else f" ({counted(count, move.unit)})"
            places = event.deployment_id, event.query_name, move.source, move.from_offset, move.to_offset
            found.append(Break(kind, *places, f"{detail}{much}", accepted=True))
    return found


@dataclass(frozen=True)
class _Pair:
    """One source on both sides."""

    source: str
    ended_at: str
    began_at: str
    connector_name: str = ""


def _of_batches(ended: int | None, began: int | None, deployment_id: str, query_name: str) -> Break:
    last, first = -1 if ended is None else ended, -1 if began is None else began
    kind: BreakKind = "overlap" if first < last else "gap"
    batches = _listed(min(last, first) + 1, max(last, first))
    detail = (
        f"{batches} of the predecessor came after where this deployment began: the sink may hold them twice"
        if kind == "overlap"
        else f"this deployment began behind {batches}, which its predecessor never committed"
    )
    return Break(kind, deployment_id, query_name, "", _id(ended), _id(began), detail)


def _of_source(pair: _Pair, connectors: Iterable[SourceConnector], deployment_id: str, query_name: str) -> list[Break]:
    order = _order(pair, connectors)
    if order == "same":
        return []
    if pair.began_at == NO_OFFSET and _sends_once(pair, connectors):
        detail = "the source sends each row once, so it began without an offset: what was sent between the two is lost"
        return [Break("gap", deployment_id, query_name, pair.source, pair.ended_at, pair.began_at, detail)]
    parts = _parts(pair.ended_at, pair.began_at) or [("", pair.ended_at, pair.began_at, order)]
    return [
        Break(_KINDS[lies], deployment_id, query_name, part or pair.source, before, after, _SENTENCES[lies])
        for part, before, after, lies in parts
    ]


def _sends_once(pair: _Pair, connectors: Iterable[SourceConnector]) -> bool:
    return any(
        connector.name == pair.connector_name and isinstance(connector, SendingOnceConnector)
        for connector in connectors
    )


_KINDS: Mapping[OffsetOrder, BreakKind] = {"ahead": "overlap", "behind": "gap", "apart": "gap"}
_SENTENCES: Mapping[OffsetOrder, str] = {
    "ahead": "the input between the two was read by both",
    "behind": "the input between the two was read by neither",
    "apart": "the two offsets are not of the same input",
}


def _of_planned(end: Edge, start: Edge, deployment_id: str, query_name: str) -> list[Break]:
    """1a.6: a batch that was planned is run first, over the same bounds (Law 14)."""
    if end.planned_batch_id is None or not end.planned_lines or not start.planned_lines:
        return []
    before, after = sorted(map(_plain, end.planned_lines)), sorted(map(_plain, start.planned_lines))
    if before == after:
        return []
    text = f"batch {end.planned_batch_id}"
    detail = f"{text} was planned over other bounds by the predecessor, whose sink may hold it"
    return [Break("overlap", deployment_id, query_name, text, " ".join(before), " ".join(after), detail)]


def _pairs(end: Edge, start: Edge, *, keeps_places: bool) -> tuple[list[_Pair], str]:
    """The sources that are on both sides; and, in words, those of which that cannot be told."""
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
    # What is gone and what is new may be one source in other words.
    new = [source for source in new if source.line != NO_OFFSET]
    words = f"{_whats(left)} ended, and {_whats(new)} began, behind an offset" if left and new else ""
    return pairs, words


@dataclass(frozen=True)
class _Source:
    """One line of an edge, and what it is of."""

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
    """How the first lies to the second; "apart" where nobody can tell and they are not equal."""
    if _plain(pair.ended_at) == _plain(pair.began_at):
        return "same"
    for connector in connectors:
        if connector.name == pair.connector_name:
            try:
                return connector.compare(pair.ended_at, pair.began_at)
            except Exception:  # a connector of anybody: whatever it raises, it does not know
                break
    parts = _parts(pair.ended_at, pair.began_at)
    orders = {lies for *_, lies in parts} if parts else set()
    return orders.pop() if len(orders) == 1 else "apart"


def _parts(first: str, second: str) -> list[tuple[str, str, str, OffsetOrder]]:
    """The parts in which two offsets differ, where both are numbers under the same names; else none."""
    before, after = _numbers(first), _numbers(second)
    if not before or set(before) != set(after):
        return []
    return [
        (part, str(before[part]), str(after[part]), "ahead" if before[part] > after[part] else "behind")
        for part in sorted(before)
        if before[part] != after[part]
    ]


def _numbers(offset: str) -> dict[str, int]:
    """``topic[partition]`` to number, of an offset as Kafka's; "" to number, of one that is a single number."""
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
    """The same text for the same JSON."""
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
