"""Positions that went backwards: an end offset lower than the one before, in the log of one deployment.

Spark writes what a source tells it. A source that was connected anew, or made anew, may tell less than before: then a
good position is gone, and what was read is read again, or input is passed over in silence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from airflow_streamstate.checkpoint.entries import OffsetEntry
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.connectors.source import NO_OFFSET, SourceAdapter
from airflow_streamstate.controller.lineage.handovers import Break
from airflow_streamstate.protocol.positions import SourceIdentity

Path = tuple[str | int, ...]
"""Where a number stands in an offset: the keys and the places from outside to it."""


def backward_breaks(
    checkpoint: Checkpoint,
    deployment_id: str,
    query_name: str,
    identities: Sequence[SourceIdentity],
    adapters: Iterable[SourceAdapter],
    accepted_to: int | None,
) -> list[Break]:
    """The steps of a log at which a source went back; as far as Spark has kept it.

    Args:
        checkpoint: of the query.
        deployment_id, query_name: whose it is.
        identities: what each source is, in the order of the offsets; shorter where unknown.
        adapters: which say how offsets lie to each other.
        accepted_to: up to this batch a step back was asked for by name, where it began; None for never.

    Raises:
        DataError, UnsupportedCheckpointError: an entry cannot be read.
    """
    known = {adapter.name: adapter for adapter in adapters}
    found: list[Break] = []
    entries = [(number, checkpoint.read_offset(number)) for number in checkpoint.offset_ids()]
    for (before_id, before), (number, entry) in pairwise(entries):
        if before is None or entry is None:
            continue  # Spark has removed it meanwhile
        for place, first, second in _pairs(before, entry):
            identity = identities[place] if place < len(identities) else SourceIdentity("", "")
            part = _went_back(first, second, known.get(identity.adapter))
            if part is None:
                continue
            detail = (
                f"batch {number} ends before batch {before_id}{f' ({part})' if part else ''}: input was read again, or"
                " passed over, and the position is not one to go on from"
            )
            is_accepted = accepted_to is not None and number <= accepted_to
            what = identity.what or f"source {place}"
            found.append(Break("backwards", deployment_id, query_name, what, first, second, detail, is_accepted))
    return found


def _pairs(before: OffsetEntry, entry: OffsetEntry) -> list[tuple[int, str, str]]:
    """The sources that both have: by their keys where they have some, else by their places."""
    if before.source_keys and entry.source_keys:
        old = dict(zip(before.source_keys, before.source_lines, strict=True))
        both = enumerate(zip(entry.source_keys, entry.source_lines, strict=True))
        return [(place, old[key], line) for place, (key, line) in both if key in old]
    if len(before.source_lines) != len(entry.source_lines):
        return []
    lines = zip(before.source_lines, entry.source_lines, strict=True)
    return [(place, first, second) for place, (first, second) in enumerate(lines)]


def _went_back(first: str, second: str, adapter: SourceAdapter | None) -> str | None:
    """Which part of the second offset is behind the first, in words, "" for all of it; None where none is."""
    if first in (second, NO_OFFSET):
        return None
    if second == NO_OFFSET:
        return ""
    lowered = _lowered(first, second, is_known=adapter is not None)
    if lowered is not None or adapter is None:
        return lowered
    try:
        return "" if adapter.compare(second, first) == "behind" else None
    except Exception:  # an adapter of anybody: whatever it raises, it does not know
        return None


def _lowered(first: str, second: str, *, is_known: bool) -> str | None:
    """The first count that is lower in the second offset, in words; None for none. ``is_known``: an adapter knows the
    fields of the source, and compares them better."""
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
    """Whether this is a named number of the offset itself: one of a version and an index, of which the second begins
    anew whenever the first one rises. Numbers of lists, of partitions and of what is nested stand for themselves."""
    return len(path) == 1 and not str(path[0]).isdigit()


def _counts(offset: str) -> dict[Path, int]:
    """Every whole number of an offset, by where it stands in it; {} where it is of another form."""
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
