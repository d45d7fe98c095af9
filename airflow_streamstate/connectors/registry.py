"""Finding the connectors of sources and sinks: ours and anybody's, by the entry points of what can be imported.

In the driver too: the runtime zip brings its own metadata, and a zip among the user's py-files is looked into if it
has a ``NAME-VERSION.dist-info`` folder with an ``entry_points.txt``. Whatever is wrong with a connector that somebody
brought is one sentence for people: it never stops a stream.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

SOURCES = "airflow_streamstate.sources"
SINKS = "airflow_streamstate.sinks"

ConnectorT = TypeVar("ConnectorT")


@dataclass(frozen=True)
class Found(Generic[ConnectorT]):
    """What there is.

    Attributes:
        connectors: in the order in which they are asked: others before ours, so that anybody can know better.
        problems: one sentence for each that cannot be used, with its error's own words, uncut: whoever shows them
            knows which secrets to hide before.
    """

    connectors: tuple[ConnectorT, ...]
    problems: tuple[str, ...]


def find_connectors(
    group: str, interface: type[ConnectorT], entry_points: Iterable[importlib.metadata.EntryPoint] | None = None
) -> Found[ConnectorT]:
    """Every connector of a group, made.

    Args:
        group: ``SOURCES`` or ``SINKS``.
        interface: the runtime-checkable protocol that each has to implement.
        entry_points: each names a class, or a function, that is called without arguments and gives the connector; all
            that can be imported where this is not given.
    """
    found: list[ConnectorT] = []
    problems: list[str] = []
    for point in _ordered(_installed(group, problems) if entry_points is None else entry_points):
        try:
            connector = point.load()()
            if not isinstance(connector, interface):
                raise TypeError(f"it lacks {', '.join(_lacking(connector, interface))}")
        except Exception as error:
            problems.append(_sentence(group, point, error))
        else:
            found.append(connector)
    return Found(tuple(found), tuple(problems))


def _installed(group: str, problems: list[str]) -> list[importlib.metadata.EntryPoint]:
    """Of all packages; one whose metadata cannot be read, with a connector in it or not, hides none of the others."""
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
    """The same order everywhere, each once: a package may lie on the path twice, as ours in the zip and installed."""
    points = {(point.value, point.name): point for point in entry_points}
    return sorted(points.values(), key=lambda point: (_is_ours(point), point.name, point.value))


def _is_ours(point: importlib.metadata.EntryPoint) -> bool:
    return point.value.startswith("airflow_streamstate.")


def _lacking(connector: object, interface: type) -> list[str]:
    wanted = sorted(name for name in dir(interface) if not name.startswith("_"))
    wanted += sorted(name for name in getattr(interface, "__annotations__", {}) if name not in wanted)
    return [name for name in wanted if not hasattr(connector, name)] or ["what a connector has"]


def _sentence(group: str, point: importlib.metadata.EntryPoint, error: Exception) -> str:
    kind = "source" if group == SOURCES else "sink"
    return f"the {kind} connector {point.name} ({point.value}) cannot be used: {_describe(error)}"


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
