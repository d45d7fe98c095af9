"""How much input lies between two positions, source by source: from the offsets, or Spark's log of files.

No source is asked, so it works for a query that does not run, wherever its checkpoint can be read.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from airflow_streamstate.checkpoint.file_source import files_taken, parse_file_source_offset
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.connectors.registry import SOURCES, FoundConnectors, find_connectors
from airflow_streamstate.connectors.source import NO_OFFSET, Lag, MeasuringConnector, SourceConnector
from airflow_streamstate.protocol.positions import SourceIdentity, SourceMove
from airflow_streamstate.store.base import Store

FILE = "file"
"""The connector whose offsets count listings of a folder."""


@functools.cache
def known_sources() -> FoundConnectors[SourceConnector]:
    """Every source connector that can be imported here, cached."""
    return find_connectors(SOURCES, SourceConnector)  # type: ignore[type-abstract]


def between(connector: SourceConnector | None, book: tuple[Store, str], first: str, second: str) -> Lag | None:
    """How much the second offset of a source covers that the first does not; None where unknown.

    Args:
        connector: of the source.
        book: the store and the folder of Spark's own log of it, which reaches to both.
        first, second: as Spark wrote them, or ``NO_OFFSET``.
    """
    try:
        if isinstance(connector, MeasuringConnector):
            if first != second and NO_OFFSET in (first, second):
                return None  # its options say where a source without an offset begins
            return connector.between(first, second)
        ends = [-1 if offset == NO_OFFSET else parse_file_source_offset(offset) for offset in (first, second)]
        if connector is None or connector.name != FILE or None in ends:
            return None
        begin, end = (int(number or 0) for number in ends)
        return Lag(len(files_taken(*book, end, begin)) if end > begin else 0, "files")
    except Exception:  # a foreign connector may raise anything
        return None


def moves_between(
    checkpoint: Checkpoint,
    identities: Sequence[SourceIdentity],
    names: Sequence[str],
    stood_at: Sequence[str],
    begins_at: Sequence[str],
) -> tuple[SourceMove, ...]:
    """How the position of each source is moved from one offset to another.

    Args:
        checkpoint: with Spark's logs of files.
        identities: what each source is, in the order of the offsets; shorter where unknown.
        names: given by the script; empty for none.
        stood_at: where each source stood.
        begins_at: where it begins.
    """
    connectors = {connector.name: connector for connector in known_sources().connectors}
    found = []
    for number, (first, second) in enumerate(zip(stood_at, begins_at, strict=True)):
        identity = identities[number] if number < len(identities) else SourceIdentity("", "")
        folder = names[number] if number < len(names) else str(identity.log_folder)
        book = checkpoint.store, checkpoint.key(f"sources/{folder}")
        connector = connectors.get(identity.adapter)
        over, again = between(connector, book, first, second), between(connector, book, second, first)
        unit = over.unit if over is not None else again.unit if again is not None else ""
        passed_over, read_again = (None if lag is None else lag.behind for lag in (over, again))
        found.append(SourceMove(identity.what or f"source {number}", first, second, passed_over, read_again, unit))
    return tuple(found)


def moves_of_batch(
    checkpoint: Checkpoint, batch_id: int, identities: Sequence[SourceIdentity]
) -> tuple[SourceMove, ...] | None:
    """What a planned or committed batch reads of each source; None where its log entries are gone."""
    end = checkpoint.read_offset(batch_id)
    before = checkpoint.read_offset(batch_id - 1) if batch_id else None
    if end is None or (batch_id and before is None):
        return None
    begin = (NO_OFFSET,) * len(end.source_lines) if before is None else before.source_lines
    return moves_between(checkpoint, identities, end.source_names, begin, end.source_lines)
