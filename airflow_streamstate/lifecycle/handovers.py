"""One handover of one query: whether the successor began exactly where the predecessor ended (pure).

What an end and a beginning are is read elsewhere (``custody``); here they are held against each other, source by
source, by the adapters that know what an offset means.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from airflow_streamstate.adapters.source import NO_OFFSET, OffsetOrder, SourceAdapter
from airflow_streamstate.protocol.positions import SourceIdentity

BreakKind = Literal["gap", "overlap"]
Evidence = Literal["logs", "records"]
"""By what an end or a beginning is known: Spark's own logs, or what was written down of it when it was there."""


@dataclass(frozen=True)
class Edge:
    """Where a query ended, or began, in one deployment.

    Attributes:
        batch_id: the last committed batch; None for none.
        lines: per source, the offset up to which it was read, as Spark wrote it; () where nobody knows.
        planned_batch_id: a batch that was planned over fixed bounds and not committed; None for none.
        planned_lines: its bounds; () where nobody knows.
        identities: what each source is; shorter where unknown.
        evidence: by what all this is known.
    """

    batch_id: int | None
    lines: tuple[str, ...] = ()
    planned_batch_id: int | None = None
    planned_lines: tuple[str, ...] = ()
    identities: tuple[SourceIdentity, ...] = ()
    evidence: Evidence = "logs"


@dataclass(frozen=True)
class Break:
    """Where a chain does not hold: input that nobody counted (gap), or that two deployments did (overlap).

    Attributes:
        deployment_id: the one that began, or in whose log it is.
        source: which source, or part of it; "" where it is about batches.
        ended_at, began_at: the two offsets, or batch ids, as text.
        detail: one sentence.
    """

    kind: BreakKind
    deployment_id: str
    query_name: str
    source: str
    ended_at: str
    began_at: str
    detail: str

    def to_json(self) -> dict[str, object]:
        """``deployment_id query source ended_at began_at detail``."""
        return {
            "deployment_id": self.deployment_id,
            "query": self.query_name,
            "source": self.source,
            "ended_at": self.ended_at,
            "began_at": self.began_at,
            "detail": self.detail,
        }


def breaks_between(
    end: Edge, start: Edge, deployment_id: str, query_name: str, adapters: Sequence[SourceAdapter]
) -> list[Break]:
    """What is wrong with the handover of a query; empty where the one began exactly where the other ended.

    A source that only one of the two has is no break: it begins where its options say, or is left where it was.

    Args:
        end: of the predecessor.
        start: of the successor.
        deployment_id: the successor.
        query_name: the query.
        adapters: which say how offsets lie to each other.
    """
    found = []
    if end.batch_id != start.batch_id:
        found.append(_of_batches(end.batch_id, start.batch_id, deployment_id, query_name))
    else:
        for source, ended_at, began_at, name in _pairs(end, start):
            found += _of_source(source, ended_at, began_at, name, adapters, deployment_id, query_name)
        found += _of_planned(end, start, deployment_id, query_name)
    return found


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


def _of_source(
    source: str,
    ended_at: str,
    began_at: str,
    adapter_name: str,
    adapters: Iterable[SourceAdapter],
    deployment_id: str,
    query_name: str,
) -> list[Break]:
    order = _order(ended_at, began_at, adapter_name, adapters)
    if order == "same":
        return []
    parts = _parts(ended_at, began_at) or [(source, ended_at, began_at, order)]
    return [
        Break(_KINDS[lies], deployment_id, query_name, part or source, before, after, _SENTENCES[lies])
        for part, before, after, lies in parts
    ]


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


def _pairs(end: Edge, start: Edge) -> list[tuple[str, str, str, str]]:
    """Source, where it ended, where it began, and its adapter; sources are matched by what they are."""
    known = len(end.identities) >= len(end.lines) and len(start.identities) >= len(start.lines)
    if not known or not all(identity.what for identity in (*end.identities, *start.identities)):
        pairs = zip(end.lines, start.lines, strict=False)
        return [(f"source {number}", before, after, "") for number, (before, after) in enumerate(pairs)]
    found = []
    left = list(zip(end.identities, end.lines, strict=False))
    for identity, after in zip(start.identities, start.lines, strict=False):
        same = next(
            (item for item in left if (item[0].adapter, item[0].what) == (identity.adapter, identity.what)), None
        )
        if same is not None:
            left.remove(same)
            found.append((identity.what, same[1], after, identity.adapter))
    return found


def _is_same(one: SourceIdentity, other: SourceIdentity) -> bool:
    return (one.adapter, one.what) == (other.adapter, other.what)


def _order(first: str, second: str, adapter_name: str, adapters: Iterable[SourceAdapter]) -> OffsetOrder:
    """How the first lies to the second; "apart" where nobody can tell and they are not equal."""
    if _plain(first) == _plain(second):
        return "same"
    for adapter in adapters:
        if adapter.name == adapter_name:
            try:
                return adapter.compare(first, second)
            except Exception:  # an adapter of anybody: whatever it raises, it does not know
                break
    parts = _parts(first, second)
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
