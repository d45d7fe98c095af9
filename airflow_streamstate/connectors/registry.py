"""Finds connectors by entry points, and asks them what is between two positions, and what cannot be read again."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from airflow_streamstate.checkpoint.file_source import files_taken, parse_file_source_offset
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.connectors.source import (
    NO_OFFSET,
    Lag,
    MeasuringConnector,
    SendingOnceConnector,
    SourceConnector,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.older_python import zipped
from airflow_streamstate.protocol.positions import SourceIdentity, SourceMove
from airflow_streamstate.store.base import Store

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

SOURCES = "airflow_streamstate.sources"
SINKS = "airflow_streamstate.sinks"

ConnectorT = TypeVar("ConnectorT")


@dataclass(frozen=True)
class FoundConnectors(Generic[ConnectorT]):
    """The connectors of a group.

    Attributes:
        connectors: in the order in which they are asked: other packages' first, so that they can override ours.
        problems: one sentence for each unusable one, with its error's own words, uncut; hide secrets before showing
            them.
    """

    connectors: tuple[ConnectorT, ...]
    problems: tuple[str, ...]


def find_connectors(
    group: str, interface: type[ConnectorT], entry_points: Iterable[EntryPoint] | None = None
) -> FoundConnectors[ConnectorT]:
    """Every connector of a group, created.

    Args:
        group: ``SOURCES`` or ``SINKS``.
        interface: the runtime-checkable protocol that each has to implement.
        entry_points: each names a class or function without arguments that gives the connector; by default all that can
            be imported.
    """
    found: list[ConnectorT] = []
    problems: list[str] = []
    for point in _ordered(_installed(group, problems) if entry_points is None else entry_points):
        try:
            connector = point.load()()
            if not isinstance(connector, interface):
                raise TypeError(f"it lacks {', '.join(_lacking(connector, interface))}")
        except Exception as error:
            kind = "source" if group == SOURCES else "sink"
            problems.append(f"the {kind} connector {point.name} ({point.value}) cannot be used: {_describe(error)}")
        else:
            found.append(connector)
    return FoundConnectors(tuple(found), tuple(problems))


def _installed(group: str, problems: list[str]) -> list[EntryPoint]:
    """Of all packages, the first on the path of each name; one with unreadable metadata hides none of the others.

    Only a text that has the group is parsed: there may be hundreds, and a verb of the shell waits for it.
    """
    import importlib.metadata

    found: dict[str, list[EntryPoint]] = {}
    for package in importlib.metadata.distributions():
        try:
            name = package.metadata["Name"]
            if group in (package.read_text("entry_points.txt") or "") and name not in found:
                first = importlib.metadata.distribution(name)
                found[name] = [point for point in first.entry_points if point.group == group]
        except Exception as error:
            place = package.locate_file("")
            problems.append(f"the entry points of a package in {place} cannot be read: {_describe(error)}")
    return [point for points in found.values() for point in points]


def _ordered(entry_points: Iterable[EntryPoint]) -> list[EntryPoint]:
    """The same order everywhere, each once: a package may be on the path twice, as ours in the zip and installed."""
    points = {(point.value, point.name): point for point in entry_points}
    return sorted(points.values(), key=lambda one: (one.value.startswith("airflow_streamstate."), one.name, one.value))


def _lacking(connector: object, interface: type) -> list[str]:
    wanted = sorted(name for name in dir(interface) if not name.startswith("_"))
    wanted += sorted(name for name in getattr(interface, "__annotations__", {}) if name not in wanted)
    return [name for name in wanted if not hasattr(connector, name)] or ["what a connector has"]


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


# How much input is between two positions, source by source: from the offsets, or Spark's log of files.
#
# No source is asked, so it works for a query that does not run, wherever its checkpoint can be read.

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
                return None  # its options define where a source without an offset starts
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
        names: given by the script; empty if not set.
        stood_at: where each source stood.
        begins_at: where it starts.
    """
    connectors = {connector.name: connector for connector in known_sources().connectors}
    found = []
    for number, (first, second) in enumerate(zipped(stood_at, begins_at)):
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


# Which sources of a position cannot be read again from it, as their connectors declare; no source is asked.


def sending_once(
    identities: Sequence[SourceIdentity], lines: Sequence[str], connectors: Iterable[SourceConnector]
) -> dict[str, str]:
    """The sources that have an offset and cannot read it again: identity -> reason.

    Args:
        identities: what each source is, in the order of the offsets; shorter where unknown.
        lines: the offset of each, as Spark wrote it.
    """
    known = {connector.name: connector for connector in connectors if isinstance(connector, SendingOnceConnector)}
    return {
        identity.what: known[identity.adapter].sends_once
        for identity, line in zip(identities, lines)
        if identity.adapter in known and line != NO_OFFSET
    }
