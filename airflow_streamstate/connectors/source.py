"""The public interface of a source connector: what is specific to one kind of source.

A connector never reads input and never changes anything. The driver asks it at the start of a query and at each
heartbeat; whatever it raises becomes a remark. ``testing`` checks a connector against these promises.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from datetime import datetime
from typing import Any, Literal, Protocol, runtime_checkable

from airflow_streamstate.frozen import dataclass

NO_OFFSET = "-"
"""Spark's entry in an offset log for a source without an offset."""

SYSTEM = "cluster_id"
"""The mark of the system that a source is in: one identity in two systems is two sources."""

OffsetOrder = Literal["same", "ahead", "behind", "apart"]
"""A first offset against a second: equal; nowhere behind and somewhere ahead of it; the reverse; neither."""
Unit = Literal["rows", "files", "versions", "bytes"]
LossReason = Literal["removed", "remade", "gone", "elsewhere", "sent_once"]
"""Retention removed it; another source has its name now; no source has its name; the offset is of other parts; the
source sends each row once."""


@dataclass(frozen=True)
class Source:
    """One source as the plan of a query shows it.

    Attributes:
        format: Spark's short name of it, in lower case: ``kafka``, ``parquet``, ``rate``, ….
        options: as the script gave them, names in lower case. They may hold credentials, which a connector passes only
            to the system that it asks.
        table: the name of the table; "" if not set.
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
    """How far an offset is behind its source, or behind another offset of it, in ``unit``."""

    behind: int
    unit: Unit = "rows"


@dataclass(frozen=True)
class Untold:
    """Why a source reports no lag, a lower-case clause: ``it makes up rows as time passes``."""

    reason: str


@dataclass(frozen=True)
class LostInput:
    """Input after an offset that cannot be read any more.

    Attributes:
        part: where, e.g. ``flights[3]`` for a partition of a topic.
        rows: how many; None where unknown.
        detail: the evidence, e.g. which marks were kept and which were found; "" if not set.
    """

    part: str
    reason: LossReason
    rows: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class Preflight:
    """What a query that starts at an offset would find.

    Attributes:
        lost: empty where everything can be read.
        readable: the offset that reads all that is left; the given one where nothing is lost.
    """

    lost: tuple[LostInput, ...]
    readable: str


@dataclass(frozen=True)
class Narrowed:
    """The rest of an offset, for a source that now reads only a part of it.

    Attributes:
        kept: the offset of that part.
        read: the parts that it has, e.g. ``flights[3]``.
        left: the parts that are not read any more, and their offsets.
        is_named: the script explicitly lists what it reads, and the offset has all of it: an item was removed from the
            list. False where something fell out of a pattern, or where the source reads parts that the offset lacks.
    """

    kept: str
    read: frozenset[str]
    left: Mapping[str, str]
    is_named: bool


class OpenSource(Protocol):
    """A source that can be asked, until it is closed. Each call has a bounded time, and may raise anything."""

    def marks(self) -> Mapping[str, str]:
        """Ids that distinguish this source from another of the same name; kept with its offsets.

        The one under ``SYSTEM`` is of the system itself, never its address.
        """

    def lag(self, offset: str) -> Lag | Untold | None:
        """How far this offset is behind what the source has now; None if that and the reason are unknown."""

    def preflight(self, offset: str, marks: Mapping[str, str]) -> Preflight:
        """What of the input after this offset is lost.

        Args:
            offset: as Spark wrote it; never ``NO_OFFSET``.
            marks: of when the offset was written; empty where none were kept.
        """

    def close(self) -> None:
        """Release resources; may be called twice."""


class UnaskedSource:
    """An ``OpenSource`` that reports no lag, for ``reason``, and no loss: for connectors without a system to ask."""

    def __init__(self, reason: str = "this kind of source is not asked what it has") -> None:
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
    """What is known of one kind of source. Created without arguments; keeps nothing between two calls."""

    @property
    def name(self) -> str:
        """A word: ``kafka``."""

    def identify(self, source: Source) -> str | None:
        """What the source reads, as text that stays equal while offsets mean the same; None: not of this kind.

        Never a credential, an address, or anything that changes at every start.
        """

    def continues(self, source: Source, offset: str) -> bool:
        """Whether this source can read on from an offset that was kept under another identity, e.g. of fewer topics;
        False
        where unknown.
        """

    def compare(self, first: str, second: str) -> OffsetOrder:
        """The order of two offsets of one source. ``NO_OFFSET`` is behind every other.

        Raises:
            ValueError: one of them is no offset of this kind of source.
        """

    def open(self, source: Source, spark: SparkDoor) -> OpenSource:
        """Connect to the source, or prepare to."""

    def remarks(self, source: Source) -> tuple[str, ...]:
        """What a person should know about the options of this source, one lower-case sentence each."""

    def explain(self, failure: str) -> str | None:
        """Spark's text about why a query failed, as one sentence with the next step; None for any other failure."""


@runtime_checkable
class PlacingConnector(Protocol):
    """Also implemented by a connector whose words for a failure depend on whether it is about this source, or about
    something else that the script reads."""

    def explain_for(self, source: Source, failure: str) -> str | None:
        """As ``explain``, for a failure of this source; None for any other one."""


@runtime_checkable
class NarrowingConnector(Protocol):
    """Also implemented by the connector of a source that may read a part of what it read before."""

    def narrow(self, source: Source, offset: str) -> Narrowed | None:
        """The part of an offset that this source reads on from; None if that is all of it, or nothing."""


@runtime_checkable
class MeasuringConnector(Protocol):
    """Also implemented by a connector whose offsets show how much is between two of them."""

    def between(self, first: str, second: str) -> Lag | None:
        """How much the second offset covers that the first does not, without asking the source; 0 where it is nowhere
        ahead,
        None where unknown.

        Raises:
            ValueError: one of them is no offset of this kind of source.
        """


@runtime_checkable
class DividingConnector(Protocol):
    """Also implemented by a connector that knows an offset between two others."""

    def part_way(self, first: str, second: str, share: float) -> str:
        """An offset that covers this share of what the second covers and the first does not: some of it, if there is
        any.

        Raises:
            ValueError: one of them is no offset of this kind of source.
        """


@runtime_checkable
class SendingOnceConnector(Protocol):
    """Also implemented by the connector of a source that reads nothing twice: no start continues from an offset of it.

    Attributes:
        sends_once: why, a lower-case clause without its full stop.
    """

    sends_once: str


@runtime_checkable
class PassingOverConnector(Protocol):
    """Also implemented by the connector of a source that has an option to pass over lost input."""

    def passes_over_lost(self, source: Source) -> bool:
        """Whether the options of this source let it pass over lost input.

        A resume then continues although input is lost; ``remarks`` reports it.
        """


@runtime_checkable
class FinishingConnector(Protocol):
    """Also implemented by the connector of a source that may come to its end."""

    def finished_parts(self, offset: str) -> int | None:
        """How many parts an offset has, each read to its end; None where something may follow.

        Raises:
            ValueError: it is no offset of this kind of source.
        """


@runtime_checkable
class TimedSource(Protocol):
    """Also implemented by an open source that knows when its input arrived."""

    def offset_at(self, moment: datetime, last: str) -> str | Untold:
        """The offset that covers all input from before a moment, and none since.

        Args:
            last: an offset of this source, as Spark wrote it, to take the form from.
        """


@runtime_checkable
class GroupedSource(Protocol):
    """Also implemented by an open source whose system keeps offsets of consumer groups, which its tools show."""

    def commit_to_group(self, group: str, offset: str) -> None:
        """Keep this offset as that of a group; nothing of ours reads it back."""


@runtime_checkable
class ListedSource(Protocol):
    """Also implemented by an open source of files, which Spark logs below ``sources/``.

    Its offsets count listings, so that log shows what they cover. Paths are spelled as there.
    """

    def paths(self) -> frozenset[str]:
        """Every file that the source would find now."""

    def modified_at_ms(self) -> Mapping[str, int]:
        """The same, with each file's time of modification, in milliseconds since 1970."""


@runtime_checkable
class AgingSource(Protocol):
    """Also implemented by a listed source that leaves files out for ever, by their age or their name."""

    def unread(self, taken: Collection[str], newest_taken_ms: int) -> int:
        """How many files it would still read.

        Args:
            taken: the paths of those that it has read.
            newest_taken_ms: the latest time of modification among them; 0 without any.
        """
