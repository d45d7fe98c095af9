"""The sources of an attempt's queries, and the driver's questions to their connectors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, Union

from airflow_streamstate.connectors.files import FileSource
from airflow_streamstate.connectors.registry import SOURCES, FoundConnectors, find_connectors
from airflow_streamstate.connectors.source import (
    NO_OFFSET,
    Lag,
    OpenSource,
    PassingOverConnector,
    PlacingConnector,
    Preflight,
    Source,
    SourceConnector,
)
from airflow_streamstate.driver.attempt.ports import QuerySource, StartableQuery
from airflow_streamstate.driver.attempt.reports import MAX_REASON_CHARACTERS, Reporter
from airflow_streamstate.older_python import pairwise, zipped
from airflow_streamstate.protocol.positions import SourceIdentity

# A topic may be deleted and recreated while a query reads it; its new offsets then follow the old ones in one log.
# Marks are read at other times than offsets are taken, so each answer is kept with the batches planned by then. An
# offset has the marks that were the same before and after its batch was planned. Where they differ the older ones
# count: the next start then asks a person, and skips nothing.

LineAt = Callable[[int], Union[str, None]]
FARTHEST_BACK = 50


@dataclass(frozen=True)
class Sighting:
    """One answer of a source about its marks.

    Attributes:
        certain_upto: the newest batch that was planned when the source was asked.
        planned_upto: the newest batch whose offsets may have been taken when the answer arrived.
    """

    marks: Mapping[str, str]
    certain_upto: int
    planned_upto: int


@dataclass
class MarkHistory:
    """The marks of one source over the batches of a query.

    Attributes:
        kept: the marks recorded with the offsets that the query started with.
    """

    kept: Mapping[str, str] = field(default_factory=dict)
    _sightings: list[Sighting] = field(default_factory=list)

    def add(self, sighting: Sighting) -> tuple[str, ...]:
        """Add an answer; returns the names of the marks that differ from the answers before, or from those kept."""
        known = dict(self.kept)
        for before in self._sightings:
            known |= before.marks
        if [before.marks for before in self._sightings[-2:]] == [sighting.marks] * 2:
            self._sightings[-1] = sighting  # of equal answers the first and the last are enough
        else:
            self._sightings.append(sighting)
        return tuple(name for name, value in sighting.marks.items() if known.get(name, value) != value)

    def at(self, batch_id: int, line_at: LineAt, has_moved_back: Callable[[str, str], bool]) -> dict[str, str]:
        """The marks of the offset at the end of a batch.

        Args:
            line_at: the offset at the end of a batch up to this one; None where the log no longer has it.
            has_moved_back: whether the second of two successive offsets is behind the first, which happens only where a
                source was recreated.
        """
        kept = self._kept()
        if all(sighting.marks == kept for sighting in self._sightings):
            return dict(kept)
        taken = _taken_at(batch_id, line_at)
        before = self._before(taken)
        after = next((one.marks for one in self._sightings if one.certain_upto >= taken), {})
        has_changed = any(value != after.get(name, value) for name, value in before.items())
        if has_changed and self._went_back(taken, line_at, has_moved_back):
            return dict(after)
        return {**after, **before}

    def _kept(self) -> Mapping[str, str]:
        """The marks kept, or else the first answer."""
        return self.kept or next((one.marks for one in self._sightings), {})

    def _before(self, batch_id: int) -> Mapping[str, str]:
        known = [one.marks for one in self._sightings if one.planned_upto < batch_id]
        return known[-1] if known else self._kept()

    def _went_back(self, batch_id: int, line_at: LineAt, has_moved_back: Callable[[str, str], bool]) -> bool:
        first = max((one.planned_upto for one in self._sightings if one.planned_upto < batch_id), default=None)
        if first is None:
            return False  # it is as old as the query's start
        lines = [line_at(number) for number in range(max(first, batch_id - FARTHEST_BACK) - 1, batch_id + 1)]
        pairs = pairwise(lines)
        return any(one is not None and other is not None and has_moved_back(one, other) for one, other in pairs)


def _taken_at(batch_id: int, line_at: LineAt) -> int:
    """The batch that took the offset at the end of this one: batches without input repeat it."""
    line = line_at(batch_id)
    for number in range(batch_id - 1, batch_id - FARTHEST_BACK, -1):
        before = line_at(number)
        if before is None:
            return number + 1 if number < 0 else -1
        if before != line:
            return number + 1
    return -1


Answer = TypeVar("Answer")
UNKNOWN = SourceIdentity("", "")
MADE_ANEW = (
    "a source was created again while this query reads it: what was not read of the old one is gone, and the first rows"
    " of the new one may be passed over"
)


@dataclass
class KnownSource:
    """One source of a query.

    Attributes:
        connector: the connector for its kind; None if there is no such connector.
        identity: its identity, with its marks before the start; without a connector ``UNKNOWN`` except for the folder.
        opened: the connection, once it was needed.
    """

    source: QuerySource
    connector: SourceConnector | None
    identity: SourceIdentity
    opened: OpenSource | None = None
    history: MarkHistory = field(default_factory=MarkHistory)

    @property
    def planned(self) -> Source:
        return self.source.planned

    @property
    def is_known(self) -> bool:
        return self.connector is not None


class SourceBook:
    """What is known of the sources of this attempt's queries; ``reporter`` is notified of connectors that fail."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._found: FoundConnectors[SourceConnector] | None = None
        self._queries: dict[str, tuple[KnownSource, ...]] = {}
        self._startables: dict[str, StartableQuery] = {}
        self._told: set[str] = set()
        self._guard = threading.RLock()
        self._sighting = threading.RLock()

    def look_up(self, query_name: str, startable: StartableQuery) -> tuple[KnownSource, ...]:
        """The sources of a query before its start, in the order of its offsets, with their current marks; () where its
        plan does not show them."""
        with self._guard:
            before = self._queries.get(query_name)
            if before is not None and self._startables[query_name] is startable:
                return before
            self.close(query_name)
            before = before or ()
            known = tuple(self._known(source) for source in startable.facts.sources)
            if [one.identity.what for one in before] == [one.identity.what for one in known]:
                for old, new in zipped(before, known):
                    new.history = old.history  # started again in this attempt
            self._queries[query_name], self._startables[query_name] = known, startable
        for one, marks in self._ask_marks(query_name, known):
            one.identity = replace(one.identity, marks=marks)
        return known

    def identities(self, query_name: str) -> tuple[SourceIdentity, ...]:
        """The identity of each source of a query, as far as it was looked up in this attempt."""
        with self._guard:
            return tuple(known.identity for known in self._queries.get(query_name, ()))

    def mark(
        self,
        query_name: str,
        before: Sequence[SourceIdentity],
        last_batch_id: int,
        moved_on: Collection[int] = (),
        silent: Collection[int] = (),
    ) -> None:
        """Record the marks of a query's sources, as ``look_up`` read them before the start.

        Args:
            before: the identities recorded with its offsets, source by source.
            last_batch_id: the newest batch that is planned or committed; -1 before the first.
            moved_on: the numbers of the sources whose offsets are new and not those recorded.
            silent: the numbers of the sources that did not report what is lost behind their offsets, so that those may
                belong to an earlier source.
        """
        for number, known in enumerate(self._queries.get(query_name, ())):
            kept = before[number].marks if number < len(before) and number not in moved_on else {}
            now = known.identity.marks
            if number in silent:
                known.history.kept = kept  # so that a recreated source is noted
            self._keep(query_name, known, Sighting(now, last_batch_id, last_batch_id))
            known.history.kept = kept
            known.identity = replace(known.identity, marks={**now, **kept} if number in silent else {**kept, **now})

    def sight(self, query_name: str, batch_id: int, newest_batch_id: Callable[[], int]) -> None:
        """Ask the sources of a query that runs, or ran, for their marks.

        Args:
            batch_id: a batch that is planned already.
            newest_batch_id: the newest batch that may be planned; called when an answer has arrived.
        """
        with self._sighting:  # answers are kept in the order in which they were true
            sources = self._queries.get(query_name, ())
            for known, marks in self._ask_marks(query_name, sources):
                newest = newest_batch_id()
                if self._queries.get(query_name) is not sources:
                    return  # started again in the meantime: how far that run has got is unknown here
                self._keep(query_name, known, Sighting(marks, batch_id, newest))

    def identities_at(
        self, query_name: str, batch_id: int, lines_at: Callable[[int], Sequence[str]]
    ) -> tuple[SourceIdentity, ...]:
        """The identity of each source when the offsets at the end of a batch were taken; ``lines_at`` gives the offsets
        of a batch source by source, () where the log no longer has them."""
        found = []
        for number, known in enumerate(self._queries.get(query_name, ())):
            with self._sighting:
                marks = known.history.at(
                    batch_id, partial(_line_of, number, lines_at), partial(self._has_moved_back, known)
                )
            found.append(replace(known.identity, marks=marks))
        return tuple(found)

    def _ask_marks(
        self, query_name: str, sources: Sequence[KnownSource]
    ) -> list[tuple[KnownSource, Mapping[str, str]]]:
        """Those of these sources that have any."""
        answers: list[tuple[KnownSource, Mapping[str, str]]] = []
        for known in sources:
            marks = self._ask(query_name, known, "its ids", lambda opened: _as_texts(opened.marks()))
            if marks is None and known.is_known:
                break  # do not wait for each source of a system that is away
            if marks:
                answers.append((known, marks))
        return answers

    def _keep(self, query_name: str, known: KnownSource, sighting: Sighting) -> None:
        if not sighting.marks:
            return
        changed = known.history.add(sighting)
        if changed:
            self._reporter.note(MADE_ANEW, query=query_name, source=known.identity.what, changed=", ".join(changed))

    def _has_moved_back(self, known: KnownSource, first: str, second: str) -> bool:
        connector = known.connector
        if connector is None:
            return False
        order = self._guarded("comparing offsets of a source", lambda: connector.compare(second, first))
        return order == "behind"

    def preflight(self, query_name: str, number: int, offset: str, marks: Mapping[str, str]) -> Preflight | None:
        """The lost input after an offset of one source; None if that is unknown."""
        if offset == NO_OFFSET:
            return None
        known = self._queries[query_name][number]
        return self._ask(query_name, known, "what it still has", lambda opened: opened.preflight(offset, marks))

    def lag(self, query_name: str, offsets: Sequence[str]) -> dict[int, Lag]:
        """How far each source is ahead of these offsets, by its number; without the sources that cannot report it."""
        sources = self._queries.get(query_name, ())
        if len(sources) != len(offsets):
            return {}
        found = {}
        for number, known in enumerate(sources):
            lag = self._ask(query_name, known, "its lag", partial(_lag_at, offsets[number]))
            if lag is not None:
                found[number] = lag
        return found

    def sources(self, query_name: str) -> tuple[KnownSource, ...]:
        return self._queries.get(query_name, ())

    def ask(self, query_name: str, number: int, what: str, question: Callable[[OpenSource], Answer]) -> Answer | None:
        """The answer of one source; None where it has no connector, or does not answer, which is noted once with
        ``what``."""
        return self._ask(query_name, self._queries[query_name][number], what, question)

    def explain(self, failure: str) -> str:
        """A connector's sentence for Spark's failure text; "" if no connector has one."""
        with self._guard:
            everything = [known for sources in self._queries.values() for known in sources]
        placed = [known for known in everything if isinstance(known.connector, PlacingConnector)]
        questions: list[Callable[[], str | None]] = [partial(_explained_for, known, failure) for known in placed]
        questions += [partial(known.connector.explain, failure) for known in everything if known.connector is not None]
        questions.append(partial(FileSource().explain, failure))  # also where the script did not come to its sources
        for question in questions:
            try:
                sentence = question()
            except Exception as error:
                self._tell(f"a source connector failed over an error: {self._words(error)}")
                continue
            if sentence:
                return str(sentence)
        return ""

    def passes_over_lost(self, query_name: str, number: int) -> bool:
        """Whether the options of a source make it pass over lost input; False where its connector does not know."""
        known = self._queries[query_name][number]
        connector = known.connector
        if not isinstance(connector, PassingOverConnector):
            return False
        said = self._guarded("asking a source of its options", lambda: connector.passes_over_lost(known.planned))
        return said is True

    def remarks(self, query_name: str) -> tuple[str, ...]:
        """The connectors' remarks on how the sources of a query are read."""
        found: list[str] = []
        for known in self._queries.get(query_name, ()):
            try:
                found += map(str, known.connector.remarks(known.planned) if known.connector is not None else ())
            except Exception as error:
                self._tell(f"a source connector has no remarks: {self._words(error)}")
        return tuple(dict.fromkeys(found))

    def close(self, query_name: str) -> None:
        """Close the connections to a query's sources."""
        for known in self._queries.get(query_name, ()):
            opened, known.opened = known.opened, None
            if opened is not None:
                self._guarded("closing a source", opened.close)

    def _known(self, source: QuerySource) -> KnownSource:
        for connector in self._connectors().connectors:
            what = self._identified(connector, source.planned)
            if what is not None:
                return KnownSource(source, connector, SourceIdentity(str(connector.name), what, source.log_folder))
        return KnownSource(source, None, replace(UNKNOWN, log_folder=source.log_folder))

    def _identified(self, connector: SourceConnector, planned: Source) -> str | None:
        return self._guarded("identifying a source", lambda: _text_or_none(connector.identify(planned)))

    def _connectors(self) -> FoundConnectors[SourceConnector]:
        if self._found is None:
            self._found = find_connectors(SOURCES, SourceConnector)  # type: ignore[type-abstract]
            for problem in self._found.problems:
                self._reporter.note(self._reporter.shortened(problem, MAX_REASON_CHARACTERS, in_a_line=True))
        return self._found

    def _ask(
        self, query_name: str, known: KnownSource, what: str, question: Callable[[OpenSource], Answer]
    ) -> Answer | None:
        connector = known.connector
        if connector is None:
            return None
        if known.opened is None:
            door = self._startables[query_name].door
            known.opened = self._guarded("connecting to a source", lambda: connector.open(known.planned, door))
        opened = known.opened
        if opened is None:
            return None
        return self._guarded(f"asking {known.identity.what} for {what}", lambda: question(opened))

    def _guarded(self, doing: str, act: Callable[[], Answer]) -> Answer | None:
        try:
            return act()
        except Exception as error:
            self._tell(f"{doing}: {self._words(error)}")
            return None

    def _words(self, error: Exception) -> str:
        text = f"{type(error).__name__}: {error}"
        return self._reporter.shortened(text, MAX_REASON_CHARACTERS, in_a_line=True)

    def _tell(self, text: str) -> None:
        """Note each kind of trouble once."""
        kind = text.partition(":")[0]
        if kind not in self._told:
            self._told.add(kind)
            self._reporter.note(f"a source could not be asked, the query is not stopped by that ({text})")


def _explained_for(known: KnownSource, failure: str) -> str | None:
    connector = known.connector
    return connector.explain_for(known.planned, failure) if isinstance(connector, PlacingConnector) else None


def _lag_at(offset: str, opened: OpenSource) -> Lag | None:
    lag = opened.lag(offset)
    return replace(lag, behind=int(lag.behind)) if isinstance(lag, Lag) else None


def _line_of(number: int, lines_at: Callable[[int], Sequence[str]], batch_id: int) -> str | None:
    lines = lines_at(batch_id)
    return lines[number] if number < len(lines) else None


def _as_texts(marks: Mapping[Any, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in marks.items()}


def _text_or_none(what: object) -> str | None:
    if what is None or isinstance(what, str):
        return what
    raise TypeError(f"an identity is a str, not {type(what).__name__}")
