"""Finding connectors of sources and sinks by the entry points of all importable packages.

In the driver too: the driver zip brings its own metadata, and a zip among the user's py-files is searched if it has a
``NAME-VERSION.dist-info`` folder with an ``entry_points.txt``. A broken connector of another package becomes one
sentence for people; it never stops a stream.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Iterable
from typing import Generic, TypeVar

from airflow_streamstate.frozen import dataclass

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
    group: str, interface: type[ConnectorT], entry_points: Iterable[importlib.metadata.EntryPoint] | None = None
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


def _installed(group: str, problems: list[str]) -> list[importlib.metadata.EntryPoint]:
    """Of all packages; one with unreadable metadata hides none of the others."""
    with contextlib.suppress(Exception):
        return list(importlib.metadata.entry_points(group=group))
    found: list[importlib.metadata.EntryPoint] = []
    for package in importlib.metadata.distributions():
        try:
            found += package.entry_points.select(group=group)
        except Exception as error:
            place = package.locate_file("")
            problems.append(f"the entry points of a package in {place} cannot be read: {_describe(error)}")
    return found


def _ordered(entry_points: Iterable[importlib.metadata.EntryPoint]) -> list[importlib.metadata.EntryPoint]:
    """The same order everywhere, each once: a package may be on the path twice, as ours in the zip and installed."""
    points = {(point.value, point.name): point for point in entry_points}
    return sorted(points.values(), key=lambda one: (one.value.startswith("airflow_streamstate."), one.name, one.value))


def _lacking(connector: object, interface: type) -> list[str]:
    wanted = sorted(name for name in dir(interface) if not name.startswith("_"))
    wanted += sorted(name for name in getattr(interface, "__annotations__", {}) if name not in wanted)
    return [name for name in wanted if not hasattr(connector, name)] or ["what a connector has"]


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
