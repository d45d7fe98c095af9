"""How much input lies between two positions, source by source: by the offsets themselves, or Spark's book of files.

Nobody is asked: it can be told of a query that does not run, from anywhere that its checkpoint can be read from.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from airflow_streamstate.checkpoint.file_source import files_taken, parse_file_source_offset
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.connectors.registry import SOURCES, Found, find_connectors
from airflow_streamstate.connectors.source import NO_OFFSET, Lag, MeasuringConnector, SourceConnector
from airflow_streamstate.protocol.positions import SourceIdentity, SourceMove
from airflow_streamstate.store.base import Store

FILE = "file"
"""The connector whose offsets count looks into a folder."""


@functools.cache
def known_sources() -> Found[SourceConnector]:
    """Every source connector that can be imported here, looked for once."""
    return find_connectors(SOURCES, SourceConnector)  # type: ignore[type-abstract]


def between(connector: SourceConnector | None, book: tuple[Store, str], first: str, second: str) -> Lag | None:
    """How much the second offset of a source covers that the first does not; None where nobody can tell.

    Args:
        connector: who knows the source.
        book: the store and the folder of Spark's own log of it, which reaches to both.
        first, second: as Spark wrote them, or ``NO_OFFSET``.
    """
    try:
        if isinstance(connector, MeasuringConnector):
            if first != second and NO_OFFSET in (first, second):
                return None  # where a source begins that has no offset yet, its options say: at its end, perhaps
            return connector.between(first, second)
        ends = [-1 if offset == NO_OFFSET else parse_file_source_offset(offset) for offset in (first, second)]
        if connector is None or connector.name != FILE or None in ends:
            return None
        begin, end = (int(number or 0) for number in ends)
        return Lag(len(files_taken(*book, end, begin)) if end > begin else 0, "files")
    except Exception:  # a connector of anybody: whatever it raises, it does not know
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
        checkpoint: with Spark's books of files.
        identities: what each source is, in the order of the offsets; shorter where unknown.
        names: that the script gave them; empty for none.
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
        found.append(
            SourceMove(
                identity.what or f"source {number}",
                first,
                second,
                None if over is None else over.behind,
                None if again is None else again.behind,
                unit,
            )
        )
    return tuple(found)


def moves_of_batch(
    checkpoint: Checkpoint, batch_id: int, identities: Sequence[SourceIdentity]
) -> tuple[SourceMove, ...] | None:
    """What a batch reads of each source, by the entries of the log; None where they are gone.

    Args:
        checkpoint: of the query.
        batch_id: planned or committed there.
        identities: what each source is; shorter where unknown.
    """
    end = checkpoint.read_offset(batch_id)
    before = checkpoint.read_offset(batch_id - 1) if batch_id else None
    if end is None or (batch_id and before is None):
        return None
    begin = (NO_OFFSET,) * len(end.source_lines) if before is None else before.source_lines
    return moves_between(checkpoint, identities, end.source_names, begin, end.source_lines)
