"""The public interface of a source connector: what only somebody who knows a kind of source can say about it.

A connector never reads input and never changes anything. It is asked in the driver, at the start of a query and at each
sign of life; whatever it raises becomes a remark. ``conformance`` holds any connector against these promises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol, runtime_checkable

NO_OFFSET = "-"
"""What stands in Spark's offset log for a source that has no offset yet."""

SYSTEM = "cluster_id"
"""The mark that names the system which a source lies in: two of one identity in two systems are two sources."""

OffsetOrder = Literal["same", "ahead", "behind", "apart"]
"""How a first offset lies to a second: equal; nowhere behind and somewhere ahead of it; the reverse; neither."""
Unit = Literal["rows", "files", "versions", "bytes"]
"""In which a source counts what it has."""
LossReason = Literal["removed", "remade", "gone", "elsewhere", "sent_once"]
"""Retention took it; another of the same name is there; nothing of the name is there; the offset is of other parts; the
source sends each row once."""


@dataclass(frozen=True)
class Source:
    """One source as the plan of a query shows it.

    Attributes:
        format: Spark's short name of it, in lower case: ``kafka``, ``parquet``, ``rate``, ….
        options: as the script gave them, names in lower case. They may hold credentials: a connector hands them to the
            system that it asks, and to nobody else.
        table: the name of the table; "" where it is none.
    """

    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    table: str = ""


class SparkDoor(Protocol):
    """What a connector may use of the driver's Spark."""

    @property
    def jvm(self) -> Any:
        """The JVM, as py4j shows it."""

    @property
    def session(self) -> Any:
        """The ``SparkSession`` of the script."""


@dataclass(frozen=True)
class Lag:
    """How far an offset is behind its source, or behind another offset of it.

    Attributes:
        behind: how many.
        unit: of what.
    """

    behind: int
    unit: Unit = "rows"


@dataclass(frozen=True)
class Untold:
    """What a source cannot tell.

    Attributes:
        reason: why, a lower-case clause: ``it makes up rows as time passes``.
    """

    reason: str


@dataclass(frozen=True)
class LostInput:
    """Input behind an offset that cannot be read any more.

    Attributes:
        part: where, e.g. ``flights[3]`` for a partition of a topic.
        reason: what became of it.
        rows: how many; None where nobody can say.
        detail: by what that is known, e.g. which marks were kept and which were found; "" where no more is to be said.
    """

    part: str
    reason: LossReason
    rows: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class Preflight:
    """What a query would find that started at an offset.

    Attributes:
        lost: empty where everything is there.
        readable: the offset that reads all that is still there; the one asked about where nothing is lost.
    """

    lost: tuple[LostInput, ...]
    readable: str


@dataclass(frozen=True)
class Narrowed:
    """An offset as a source reads on from it that reads a part of what the offset is of.

    Attributes:
        kept: the offset of that part.
        read: what it is of, e.g. ``flights[3]``.
        left: what is not read any more, and where it was left.
        is_named: the script says itself what it left out, and reads nothing in its place: an item that was taken out of
            a list. Not so where something fell out of a pattern, or where the source reads what the offset is not of.
    """

    kept: str
    read: frozenset[str]
    left: Mapping[str, str]
    is_named: bool


class OpenSource(Protocol):
    """A source that can be asked, until it is closed. Each question has a bounded time, and may raise anything."""

    def marks(self) -> Mapping[str, str]:
        """What tells this source from another of the same name (ids that its system gave it); kept with its offsets.

        The one under ``SYSTEM`` is of the system itself: never by what address that is reached.
        """

    def lag(self, offset: str) -> Lag | Untold | None:
        """How far this offset is behind what the source has now; None where nobody knows, nor why."""

    def preflight(self, offset: str, marks: Mapping[str, str]) -> Preflight:
        """What of the input behind this offset is lost.

        Args:
            offset: as Spark wrote it; never ``NO_OFFSET``.
            marks: of when the offset was written; empty where nobody kept any.
        """

    def close(self) -> None:
        """Let go of what was opened; may be called twice."""


class UnaskedSource:
    """A source that nobody asks anything: it tells no lag, and nothing behind an offset counts as lost.

    Implements ``OpenSource`` for connectors that know identities and offsets alone.

    Args:
        reason: why it tells no lag.
    """

    def __init__(self, reason: str = "nobody asks this kind of source what it has") -> None:
        self._reason = reason

    def marks(self) -> Mapping[str, str]:
        return {}

    def lag(self, offset: str) -> Lag | Untold | None:
        return Untold(self._reason)

    def preflight(self, offset: str, marks: Mapping[str, str]) -> Preflight:
        return Preflight((), offset)

    def close(self) -> None:
        return


@runtime_checkable
class SourceConnector(Protocol):
    """What is known of one kind of source. Made without arguments; keeps nothing between two calls."""

    @property
    def name(self) -> str:
        """A word: ``kafka``."""

    def identify(self, source: Source) -> str | None:
        """What the source reads, in words that stay equal for as long as offsets mean the same; None: not of this kind.

        Never a credential, nothing that is set anew at every start, and no address by which it is reached.
        """

    def continues(self, source: Source, offset: str) -> bool:
        """Whether this source can read on from an offset, although its identity is another than the offset was kept
        under: more topics than before, say. False where that cannot be told."""

    def compare(self, first: str, second: str) -> OffsetOrder:
        """How two offsets of one source lie to each other. ``NO_OFFSET`` is behind every other.

        Raises:
            ValueError: one of them is no offset of this kind of source.
        """

    def open(self, source: Source, spark: SparkDoor) -> OpenSource:
        """Connect to where the source is, or be ready to."""

    def remarks(self, source: Source) -> tuple[str, ...]:
        """What a person should know about the options of this source, one lower-case sentence each."""

    def explain(self, failure: str) -> str | None:
        """Spark's words for why a query failed, as one sentence with the next step; None where they say otherwise."""


@runtime_checkable
class NarrowingConnector(Protocol):
    """What the connector of a source that may read a part of what it read before has beside ``SourceConnector``."""

    def narrow(self, source: Source, offset: str) -> Narrowed | None:
        """What of an offset this source reads on from; None where it reads all of it, or nothing."""


@runtime_checkable
class MeasuringConnector(Protocol):
    """What a ``SourceConnector`` has as well whose offsets say how much lies between two of them."""

    def between(self, first: str, second: str) -> Lag | None:
        """How much the second offset covers that the first does not, 0 where it is nowhere ahead; asks nobody.

        None where the two do not tell.

        Raises:
            ValueError: one of them is no offset of this kind of source.
        """


@runtime_checkable
class SendingOnceConnector(Protocol):
    """What the connector of a source has beside ``SourceConnector`` that cannot read again what it has read, so that no
    start goes on from an offset of it.

    Attributes:
        sends_once: why, a lower-case clause without its full stop.
    """

    sends_once: str


@runtime_checkable
class TimedSource(Protocol):
    """What an open source has beside ``OpenSource`` that knows when its input came."""

    def offset_at(self, moment: datetime, last: str) -> str | Untold:
        """The offset that covers all input of before a moment, and none that came since.

        Args:
            moment: which.
            last: an offset of this source, as Spark wrote it, to take the form from.
        """


@runtime_checkable
class ListedSource(Protocol):
    """What an open source has beside ``OpenSource`` that reads files, of which Spark keeps book below ``sources/``.

    Its offsets count looks, so what they cover is in that book. Paths are spelled as there.
    """

    def paths(self) -> frozenset[str]:
        """Every file that the source would find now."""

    def modified_at_ms(self) -> Mapping[str, int]:
        """The same, with when each was modified, in milliseconds since 1970."""
