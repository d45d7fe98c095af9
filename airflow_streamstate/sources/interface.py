"""The interface of a source of your own: it lists parts, and each part reads on from its state.

State is plain JSON and goes into Spark's offset, so a part's rows and its state are committed together. ``testing``
checks a source against what is said here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Literal

from airflow_streamstate.frozen import dataclass

Json = Any
"""What ``json`` can write: the state of a part. None is the state of a part that was never read."""
Unit = Literal["rows", "bytes"]
Row = Any
"""A tuple or list in the order of the schema, or a mapping by its names."""


@dataclass(frozen=True)
class PlannedEnd:
    """Where a read of a part will end.

    Attributes:
        state: of the part there.
        units: how much lies before it, in the source's unit.
        first_at, last_at: the least and the greatest event time that lies before it; None where unknown.
    """

    state: Json
    units: int
    first_at: datetime | None = None
    last_at: datetime | None = None


@dataclass(frozen=True)
class Lost:
    """Why a part cannot be read on from its state.

    Attributes:
        reason: ``removed``: what was not read is gone; ``remade``: another one has the part's name; ``gone``: there is
            no such part.
        units: how much; None where unknown.
        detail: the evidence.
    """

    reason: Literal["removed", "remade", "gone"]
    units: int | None = None
    detail: str = ""


class Part(ABC):
    """One part of a source, from a state on. It lives in the driver, and is used by one thread at a time.

    What it raises is taken for an outage: the part is built again from its last state and asked again, until
    ``failAfterSeconds`` have passed. ``SourceError`` ends the query at once.
    """

    @abstractmethod
    def poll(self, limit: int) -> Iterable[Row]:
        """The next rows, at most ``limit``; fewer where there are no more at the moment. Does not wait for rows."""

    @abstractmethod
    def snapshot(self) -> Json:
        """The state after the rows that were given: a part built with it gives those behind them."""

    def is_finished(self) -> bool:
        """Whether no row will ever follow those that were given."""
        return False

    def suspend(self) -> None:
        """Release what is held. The part is not used any more; its state may be built again later, or elsewhere."""
        return

    def behind(self) -> int | None:
        """How much there is to read after its state, in the source's unit; None where unknown. Reads no rows."""
        return None

    def lost(self) -> Lost | None:
        """Whether what follows its state can be read; None where it can, or where that is unknown."""
        return None


class PlannedPart(Part):
    """A part that can say where a read will end, without reading. Its rows are read on executors.

    The rows between two states must stay the same: a batch that was planned is read again after a failure.
    """

    @abstractmethod
    def plan_end(self, limit: int | None) -> PlannedEnd | None:
        """Move on by about ``limit`` (in the source's unit; None: as far as there is something), and by at least one
        row; None where there is nothing. ``snapshot()`` is the end's state then.

        An end with another state and 0 units moves on without rows: such a stretch is not read.
        """

    @abstractmethod
    def read(self, end: Json) -> Iterator[Row]:
        """On an executor: the rows from its state to the state ``end``. Also ``pyarrow.RecordBatch`` of the schema."""

    def poll(self, limit: int) -> Iterable[Row]:
        raise NotImplementedError("a planned part is read by plan_end and read")


class PartitionedSource(ABC):
    """A source made of parts.

    Args:
        options: of ``readStream``, names in lower case.

    Attributes:
        name: its format in ``readStream.format``; by default the name of the class in lower case.
        schema: of its rows, as DDL.
        event_time: the column with each row's event time; "" for none. Needed for ``aheadSeconds``.
        unit: in which ``maxPerTrigger``, ``behind`` and ``PlannedEnd`` count.
        version: to be raised where the same state now gives other rows: rows read ahead by another version are not
            used, except those of a batch that is planned already.
        vanished: what a part means that has not been listed for ``failAfterSeconds`` and was not finished: an error, or
            that it is finished. It keeps its state, and goes on from it if it is listed again.
        identifying: the options that say what is read, for ``identity``.
    """

    name: ClassVar[str] = ""
    schema: ClassVar[str] = ""
    event_time: ClassVar[str] = ""
    unit: ClassVar[Unit] = "rows"
    version: ClassVar[int] = 1
    vanished: Literal["error", "finished"] = "error"
    identifying: ClassVar[Sequence[str]] = ()

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options

    @abstractmethod
    def list_parts(self) -> Iterable[str]:
        """The names of all parts there are now, each once; in the driver only.

        A name stays; new parts may come. A part that has been read before goes on from its state, whatever is listed;
        only one that was finished and has not been listed for ``failAfterSeconds`` is forgotten. What cannot be listed
        is raised, never left out.
        """

    @abstractmethod
    def build_part(self, part: str, state: Json) -> Part:
        """The part of this name from a state of ``snapshot()`` on; None where it is read for the first time: the source
        says where that begins.
        """

    def row_schema(self) -> str:
        """``schema``, for a source that has to look at what it reads to know it; DDL."""
        return self.schema

    def identity(self) -> str:
        """What is read, in words that stay equal while states mean the same; never a credential or an address."""
        return " ".join(
            f"{name}={self.options[name.lower()]}" for name in self.identifying if name.lower() in self.options
        )

    def remarks(self) -> Sequence[str]:
        """What a person should know about its options, one lower-case sentence each."""
        return ()

    def begin_bounded(self) -> None:
        """Called once where a query reads what is there now and ends (``Trigger.AvailableNow``)."""
        return

    @classmethod
    def format_name(cls) -> str:
        return cls.name or cls.__name__.lower()


def opened_source(source: type[PartitionedSource], options: Mapping[str, str]) -> PartitionedSource:
    """A source with its options, whose names are put in lower case."""
    return source({str(name).lower(): str(value) for name, value in options.items()})
