"""The interface of a partitioned source: its parts, options, retries and registration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass as mutable_dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import InvalidRequestError, SourceError
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
        units: how much is before it, in the source's unit.
        first_at, last_at: the least and the greatest event time that is before it; None where unknown.
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
        """The next rows, at most ``limit``; fewer if there are no more at the moment. Does not wait for rows."""

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
        """Whether what follows its state can be read; None where it can, or if that is unknown."""
        return None


class PlannedPart(Part):
    """A part that can report where a read will end, without reading. Its rows are read on executors.

    The rows between two states must stay the same: a batch that was planned is read again after a failure.
    """

    @abstractmethod
    def plan_end(self, limit: int | None) -> PlannedEnd | None:
        """Move on by about ``limit`` (in the source's unit; None: as far as there is something), and by at least one
        row; None if there is nothing. ``snapshot()`` is the end's state then.

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
        event_time: the column with each row's event time; "" if not set. Needed for ``aheadSeconds``.
        unit: in which ``maxPerTrigger``, ``behind`` and ``PlannedEnd`` count.
        version: to be raised where the same state now gives other rows: rows read ahead by another version are not
            used, except those of a batch that is planned already.
        vanished: what a part means that has not been listed for ``failAfterSeconds`` and was not finished: an error, or
            that it is finished. It keeps its state, and continues from it if it is listed again.
        identifying: the options that define what is read, for ``identity``.
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

        A name stays; new parts may come. A part that has been read before continues from its state, whatever is listed;
        only one that was finished and has not been listed for ``failAfterSeconds`` is forgotten. What cannot be listed
        is raised, never left out.
        """

    @abstractmethod
    def build_part(self, part: str, state: Json) -> Part:
        """The part of this name from a state of ``snapshot()`` on; None where it is read for the first time: the source
        decides where it starts.
        """

    def row_schema(self) -> str:
        """``schema``, for a source that has to look at what it reads to know it; DDL."""
        return self.schema

    def identity(self) -> str:
        """What is read, as text that stays equal while states mean the same; never a credential or an address."""
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


# The options that every partitioned source has.

DEFAULT_ROWS = 100_000


@dataclass(frozen=True)
class SourceSettings:
    """How a partitioned source is read.

    Attributes:
        spool: the folder for rows that are read ahead: a URI of a store; "" if not set.
        max_per_trigger: how much a batch takes, in the source's unit; None for the default.
        list_seconds: how often parts are listed.
        poll_seconds: how long a part rests that had nothing.
        fail_after_seconds: how long a source may fail before its query does.
        ahead_seconds: how far the event time of a part may be ahead of the slowest open one; None: parts do not wait.
        idle_seconds: an open part without news for this long is not waited for.
        keep_spool_seconds: how long rows that were given stay in the spool.
        tasks: how many tasks read; None: as many as Spark has cores.
    """

    spool: str = ""
    max_per_trigger: int | None = None
    list_seconds: float = 10.0
    poll_seconds: float = 0.5
    fail_after_seconds: float = 300.0
    ahead_seconds: float | None = None
    idle_seconds: float = 300.0
    keep_spool_seconds: float = 7 * 86_400.0
    tasks: int | None = None


OPTIONS = {
    "spool": "spool",
    "maxpertrigger": "max_per_trigger",
    "listseconds": "list_seconds",
    "pollseconds": "poll_seconds",
    "failafterseconds": "fail_after_seconds",
    "aheadseconds": "ahead_seconds",
    "idleseconds": "idle_seconds",
    "keepspoolseconds": "keep_spool_seconds",
    "tasks": "tasks",
}
_WHOLE = ("max_per_trigger", "tasks")


def read_settings(options: Mapping[str, str]) -> SourceSettings:
    """The settings among the options of a source, whose names are in lower case.

    Raises:
        SourceError: one is no number, or below its least value.
    """
    found: dict[str, object] = {}
    for option, name in OPTIONS.items():
        text = str(options.get(option, "")).strip()
        if text:
            found[name] = text if name == "spool" else _number(option, text, is_whole=name in _WHOLE)
    return SourceSettings(**found)  # type: ignore[arg-type]


def _number(option: str, text: str, *, is_whole: bool) -> float:
    try:
        value = int(text) if is_whole else float(text)
    except ValueError:
        value = -1
    if not (1 if is_whole else 0) <= value < 1e12:
        raise SourceError(
            "this option of a source is not a number that it can be",
            option=option,
            value=text[:50],
            next_step="Use a whole number from 1 on." if is_whole else "Use a number of seconds.",
        )
    return value


# Asks a source that may fail for a while: again after a pause, until it has failed for ``failAfterSeconds``.

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
_DEFECTS = (TypeError, AttributeError, NameError, NotImplementedError, ImportError)
"""What a program raises that is wrong: asking again is no use."""


@mutable_dataclass
class _Trouble:
    """A source or a part that failed; it is asked again after a pause.

    Attributes:
        doing: what failed: only when that works again the trouble has ended.
    """

    doing: str
    since_seconds: float
    next_seconds: float
    pause_seconds: float = FIRST_PAUSE_SECONDS


class Patience:
    """Asks one source, in one process.

    Args:
        source: its format.
        say: prints one line for the user.
    """

    def __init__(self, source: str, clock: Clock, fail_after_seconds: float, say: Callable[[str], None]) -> None:
        self._source = source
        self._clock = clock
        self._fail_after_seconds = fail_after_seconds
        self._say = say
        self._trouble: dict[str, _Trouble] = {}

    def ask(
        self, name: str, what: str, act: Callable[[], Any], *, waits: bool, failed: Callable[[], None] | None = None
    ) -> Any:
        """The answer of the source.

        Args:
            name: of the part; "" for the source.
            waits: for the answer; else None is returned while it fails.
            failed: done at each failure.

        Raises:
            SourceError: its program is wrong, or it has failed for too long.
        """
        while True:
            now_seconds = self._clock.monotonic_seconds()
            trouble = self._trouble.get(name)
            if trouble is not None and now_seconds < trouble.next_seconds:
                if not waits:
                    return None
                self._clock.sleep(trouble.next_seconds - now_seconds)
            try:
                answer = act()
            except InvalidRequestError:
                raise
            except _DEFECTS as error:
                raise SourceError(
                    "the program of this source is wrong",
                    source=self._source,
                    part=name or "all",
                    doing=what,
                    error=f"{type(error).__name__}: {error}"[:500],
                ) from error
            except Exception as error:
                if failed is not None:
                    failed()
                self._note(name, what, error)
            else:
                if trouble is not None and trouble.doing == what:
                    del self._trouble[name]
                    self._say(f"{what} of {name or 'the source'} works again")
                return answer

    def _note(self, name: str, what: str, error: Exception) -> None:
        now_seconds = self._clock.monotonic_seconds()
        trouble = self._trouble.setdefault(name, _Trouble(what, now_seconds, now_seconds))
        words = f"{type(error).__name__}: {error}"[:500]
        if now_seconds - trouble.since_seconds >= self._fail_after_seconds:
            raise SourceError(
                "this source has failed for longer than it may",
                source=self._source,
                part=name or "all",
                doing=what,
                for_seconds=round(now_seconds - trouble.since_seconds, 1),
                error=words,
                next_step="Bring it back and resume: nothing was given twice or passed over.",
            ) from error
        self._say(f"{what} of {name or 'the source'} failed and is tried again: {words}")
        trouble.next_seconds = now_seconds + trouble.pause_seconds
        trouble.pause_seconds = min(2 * trouble.pause_seconds, LONGEST_PAUSE_SECONDS)


# Makes a partitioned source known to Spark, and to this process.

_registered: dict[str, type[PartitionedSource]] = {}


def register(spark: Any, source: type[PartitionedSource]) -> None:
    """Let ``spark.readStream.format(NAME)`` read a partitioned source; once more replaces it.

    Args:
        spark: a classic ``SparkSession``, of Spark 4.0 or newer.

    Raises:
        SourceError: this Spark has no Python data sources, or is Spark Connect.
    """
    if not isinstance(source, type) or not issubclass(source, PartitionedSource):
        raise SourceError("what is registered is no PartitionedSource", given=repr(source)[:100])
    if not hasattr(spark, "_jsparkSession") or not hasattr(spark, "dataSource"):
        raise SourceError(
            "a partitioned source needs a classic SparkSession of Spark 4.0 or newer",
            session=type(spark).__module__,
            spark=str(getattr(spark, "version", "unknown")),
            next_step="Connect to Spark without Spark Connect; update a Spark before 4.0.",
        )
    # Imported only here: offsets and registrations are read without pyspark.
    from airflow_streamstate.sources.spark_source import data_source_of, watch_cores

    spark.dataSource.register(data_source_of(source, watch_cores(spark.sparkContext)))
    remember(source)


def remember(source: type[PartitionedSource]) -> None:
    """Let this process know what a source's format means."""
    _registered[source.format_name().lower()] = source


def registered(format_name: str) -> type[PartitionedSource] | None:
    """The source that this process registered under a format; None without one."""
    return _registered.get(format_name.lower())
