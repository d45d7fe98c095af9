"""Positions that went backwards: an end offset lower than the one before, in the log of one deployment.

Spark writes what a source tells it. A source that was connected anew, or made anew, may tell less than before: then a
good position is gone, and what was read is read again, or input is passed over in silence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise

from airflow_streamstate.adapters.source import NO_OFFSET, SourceAdapter
from airflow_streamstate.checkpoint.entries import OffsetEntry
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.lifecycle.auditing.handovers import Break
from airflow_streamstate.protocol.positions import SourceIdentity


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
            if not _went_back(first, second, known.get(identity.adapter)):
                continue
            detail = (
                f"batch {number} ends before batch {before_id}: input was read again, or passed over, and the position"
                " is not one to go on from"
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


def _went_back(first: str, second: str, adapter: SourceAdapter | None) -> bool:
    """Whether any part of the second offset is behind the first."""
    if first in (second, NO_OFFSET):
        return False
    if second == NO_OFFSET:
        return True
    before, after = _numbers(first), _numbers(second)
    if any(after[part] < number for part, number in before.items() if part in after):
        return True
    if adapter is None:
        return False
    try:
        return adapter.compare(second, first) == "behind"
    except Exception:  # an adapter of anybody: whatever it raises, it does not know
        return False


def _numbers(offset: str) -> dict[str, int]:
    """The counts of an offset under names of their own; of one number under ""; {} where it has another form."""
    try:
        content = json.loads(offset)
    except ValueError:
        return {}
    if type(content) is int:
        return {"": content}
    if not isinstance(content, dict):
        return {}
    if len(content) == 1 and all(type(value) is int for value in content.values()):
        return dict(content)
    parts = [(name, part) for name, part in content.items() if isinstance(part, dict)]
    return {f"{name}[{key}]": value for name, part in parts for key, value in part.items() if type(value) is int}
