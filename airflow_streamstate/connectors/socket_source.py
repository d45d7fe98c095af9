"""Spark's ``socket``: a source that sends each row once, and counts from its connection on.

Each start reconnects and counts from -1. Started from an earlier offset, Spark commits -1 over that position and fails
("Offsets committed out of order"). Started from -1 it waits for ever: it connects with its first batch, which needs
news. So it begins without an offset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from airflow_streamstate.connectors.source import (
    NO_OFFSET,
    Lag,
    LostInput,
    OffsetOrder,
    Preflight,
    Source,
    SparkDoor,
    UnaskedSource,
)

SENDS_ONCE = "a socket sends each row once, and counts its rows from each connection on"


class SocketSource:
    """Rows of a socket. Implements ``SendingOnceConnector``."""

    name = "socket"
    sends_once = SENDS_ONCE

    def identify(self, source: Source) -> str | None:
        if source.format not in ("socket", "textsocket"):
            return None
        return f"socket {source.options.get('host', '')}:{source.options.get('port', '')}"

    def continues(self, source: Source, offset: str) -> bool:
        return False

    def compare(self, first: str, second: str) -> OffsetOrder:
        one, other = _count(first), _count(second)
        return "ahead" if one > other else "behind" if one < other else "same"

    def between(self, first: str, second: str) -> Lag | None:
        return Lag(max(0, _count(second) - max(-1, _count(first))))

    def open(self, source: Source, spark: SparkDoor) -> OpenSocket:
        return OpenSocket(self.identify(source) or self.name)

    def remarks(self, source: Source) -> tuple[str, ...]:
        return (
            f"{SENDS_ONCE}: what was read and not committed when the driver ends is lost, and no later start goes on"
            " from its offsets, unless --accept-lost-input names the query",
        )

    def explain(self, failure: str) -> str | None:
        if "Offsets committed out of order" not in failure:
            return None
        return f"{SENDS_ONCE}, so that it cannot go on from an offset: deploy with --accept-lost-input"


class OpenSocket(UnaskedSource):
    """A socket. Nothing connects to it here, which would take its rows."""

    def __init__(self, what: str) -> None:
        super().__init__("a socket does not say what it has")
        self._what = what

    def preflight(self, offset: str, marks: Mapping[str, str]) -> Preflight:
        return Preflight((LostInput(self._what, "sent_once"),), NO_OFFSET)


def _count(offset: str) -> int:
    if offset == NO_OFFSET:
        return -2
    value = json.loads(offset)
    if type(value) is int:
        return value
    raise ValueError(f"no offset of a socket: {offset[:100]}")
